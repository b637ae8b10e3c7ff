//! A connection as its users see it: one handle, sockets for publishing and one for consuming below.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use forebay_wire::{AmqpUri, UriError};
use tokio::sync::{Notify, broadcast, oneshot};
use tracing::Instrument;

use crate::caller::Caller;
use crate::channel::Channel;
use crate::consumer::ConsumerBuilder;
use crate::error::{ChannelFault, CloseError, DeclareError, Lost, OpenError};
use crate::happening::Happening;
use crate::machine::{ChannelError, Limits, Options, Server};
use crate::metrics::ConnectionMetrics;
use crate::outcome::Unheard;
use crate::pool::{CONNECTIONS_MAX, Pool};
use crate::publisher::{PublisherBuilder, Route};
use crate::retry::Recovery;
use crate::session::{Phase, Topology};
use crate::shell::{ByteStream, Dialer, Driver, HAPPENINGS_KEPT, Link, StreamFuture};

/// How long closing waits for outcomes, unless set.
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);

/// A handle on a broker. Clones share it.
///
/// Below is one socket for publishing and everything else, and one for consuming, opened when the first consumer
/// is. A broker that holds back a publisher's socket then never holds back an ack. While several publishers wait and
/// one more socket makes them faster, they share a few ([`ConnectionBuilder::connections_max`]).
///
/// It is closed by [`Connection::close`], or in the background once the last handle, publisher, consumer,
/// delivery and outcome on it is gone. Needs a tokio runtime.
#[derive(Clone)]
pub struct Connection {
    shared: Arc<Shared>,
}

struct Shared {
    setup: Setup,
    /// Publishing, channels, declarations.
    main: Arc<Guard>,
    /// The main one, and further ones for publishing.
    pool: Arc<Pool>,
    /// Consuming; opened when needed.
    consuming: tokio::sync::Mutex<Option<Arc<Guard>>>,
    /// [`Connection::close`] was called: nothing more is opened.
    closed: AtomicBool,
    /// Told then, for who is opening something.
    closing: Notify,
}

/// What a further socket is opened with.
#[derive(Clone)]
pub(crate) struct Setup {
    dialer: Dialer,
    options: Options,
    recovery: Option<Recovery>,
    close_patience: Duration,
    topology: Arc<Mutex<Topology>>,
    /// Which host let in one of its sockets last.
    place: Arc<AtomicUsize>,
    happenings: broadcast::Sender<Happening>,
}

/// Closes a link when nobody uses it any more.
pub(crate) struct Guard {
    pub(crate) link: Arc<Link>,
    /// Ends with the driver.
    driver: Mutex<Option<tokio::task::JoinHandle<()>>>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.link.close();
    }
}

/// How a connection is opened. All parts have defaults.
#[derive(Clone)]
pub struct ConnectionBuilder {
    options: Options,
    recovery: Option<Recovery>,
    connections_max: Option<u32>,
    close_patience: Duration,
}

impl Default for ConnectionBuilder {
    fn default() -> Self {
        ConnectionBuilder {
            options: Options::default(),
            recovery: Some(Recovery::default()),
            connections_max: None,
            close_patience: CLOSE_PATIENCE,
        }
    }
}

impl ConnectionBuilder {
    /// The name that brokers show beside the connection.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.options.connection_name = Some(name.into());
        self
    }

    /// Never connects again: the first loss ends everything on the connection.
    #[must_use]
    pub fn without_recovery(mut self) -> Self {
        self.recovery = None;
        self
    }

    /// After a loss tries each host this often (at least once), then gives up. Without it, tries for ever,
    /// with pauses of up to 10 s.
    #[must_use]
    pub fn recovery_rounds(mut self, rounds: u32) -> Self {
        self.recovery.get_or_insert_default().rounds_max = Some(rounds.max(1));
        self
    }

    /// The longest pause before the first attempt after a loss, 100 ms unless set (1 ms to 10 s). Each round over the
    /// hosts doubles it.
    #[must_use]
    pub fn recovery_pause(mut self, pause: Duration) -> Self {
        let pause_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX).clamp(1, 10_000);
        if let Some(recovery) = &mut self.recovery {
            recovery.pause_first_ms = pause_ms;
        }
        self
    }

    /// How many sockets publishers may share, at least 1; 4 unless set, and 1 over streams of one's own
    /// ([`ConnectionBuilder::over`]) and where recovery is bounded, which then is the bound of all.
    ///
    /// There is one at first. Another is opened while publishers wait for windows or for the socket, kept if at least a
    /// tenth more is delivered, and closed otherwise; trials become rare where they lead to nothing. Publishers are
    /// spread over them, each on one, so that its messages stay in order
    /// ([`PublisherBuilder::unordered`] uses all).
    ///
    /// Unless it is 1, publishers who wait move to a new socket when the route to the broker became longer
    /// ([`Happening::LongerRoute`]); the first one stays beside it, for all else.
    #[must_use]
    pub fn connections_max(mut self, connections: u32) -> Self {
        self.connections_max = Some(connections.max(1));
        self
    }

    /// How long [`Connection::close`] waits for outcomes; 5 s unless set. Then it waits for the broker's agreement to the end, for 5 s
    /// from when all that we send has left, and for the patience and 5 s in all at most.
    #[must_use]
    pub fn close_patience(mut self, patience: Duration) -> Self {
        self.close_patience = patience;
        self
    }

    /// Bound of each socket's send buffer in bytes; 1 MiB unless set. It may be exceeded by one message.
    #[must_use]
    pub fn outgoing_bytes_max(mut self, bytes: usize) -> Self {
        self.options.outgoing_bytes_max = bytes.max(1);
        self
    }

    #[cfg(test)]
    pub(crate) fn options(self, options: Options) -> Self {
        ConnectionBuilder { options, ..self }
    }

    /// Connects to `uri`.
    ///
    /// # Errors
    /// As [`Connection::open`].
    pub async fn open(self, uri: &str) -> Result<Connection, OpenError> {
        let parsed: AmqpUri = uri.parse().map_err(|error: UriError| OpenError::Uri {
            uri: AmqpUri::shown(uri),
            reason: error.to_string(),
        })?;
        let name = self.options.connection_name.clone();
        let options = Options {
            connection_name: name,
            outgoing_bytes_max: self.options.outgoing_bytes_max,
            ..Options::from_uri(&parsed)
        };
        let dialer = Dialer::from_uri(&parsed)?;
        Connection::with(ConnectionBuilder { options, ..self }, dialer).await
    }

    /// Connects over streams that `make` makes: one now, one more for consuming, and new ones after a loss.
    /// `address` is for people.
    ///
    /// # Errors
    /// `make` fails, or the broker refuses the login.
    pub async fn over<F, S>(
        self,
        address: impl Into<String>,
        options: Options,
        make: F,
    ) -> Result<Connection, OpenError>
    where
        F: Fn() -> S + Send + Sync + 'static,
        S: Future<Output = io::Result<Box<dyn ByteStream>>> + Send + 'static,
    {
        let make = move |_| -> StreamFuture { Box::pin(make()) };
        let dialer = Dialer::Made { addresses: vec![address.into()], make: Arc::new(make) };
        let name = self.options.connection_name.or(options.connection_name.clone());
        let options = Options { connection_name: name, ..options };
        let connections_max = Some(self.connections_max.unwrap_or(1));
        Connection::with(ConnectionBuilder { options, connections_max, ..self }, dialer).await
    }
}

impl Connection {
    /// Connects to a broker, for instance `amqp://guest:guest@localhost`. Several hosts may be given
    /// (`amqp://a,b:5673/vhost`); the first that lets us in is taken, also for further sockets, and after a loss any of them.
    ///
    /// Query parameters are RabbitMQ's: `heartbeat` (s), `connection_timeout` (ms), `channel_max`,
    /// `frame_max` (bytes), `auth_mechanism=external`, and for `amqps` `cacertfile`, `certfile`, `keyfile`
    /// and `server_name_indication`.
    ///
    /// # Errors
    /// The URI makes no sense, no host answers, or the broker refuses the login. Nothing is tried again
    /// here; after this, a lost connection is.
    ///
    /// # Cancellation
    /// A dropped future leaves nothing behind.
    pub async fn open(uri: &str) -> Result<Connection, OpenError> {
        Connection::builder().open(uri).await
    }

    /// Options, and then [`ConnectionBuilder::open`].
    pub fn builder() -> ConnectionBuilder {
        ConnectionBuilder::default()
    }

    pub(crate) async fn with(
        builder: ConnectionBuilder,
        dialer: Dialer,
    ) -> Result<Connection, OpenError> {
        let (happenings, _) = broadcast::channel(HAPPENINGS_KEPT);
        let setup = Setup {
            dialer,
            options: builder.options,
            recovery: builder.recovery,
            close_patience: builder.close_patience,
            topology: Arc::default(),
            place: Arc::default(),
            happenings,
        };
        let main = setup.open("").await?;
        // What ends with its first loss, or after so many rounds, ends as a whole.
        let max = match builder.recovery {
            Some(Recovery { rounds_max: None, .. }) => {
                builder.connections_max.unwrap_or(CONNECTIONS_MAX)
            }
            _ => 1,
        };
        let pool = Pool::new(setup.clone(), main.clone(), max);
        let consuming = tokio::sync::Mutex::new(None);
        let (closed, closing) = Default::default();
        let shared = Shared { setup, main, pool, consuming, closed, closing };
        Ok(Connection { shared: Arc::new(shared) })
    }

    /// Opens a channel, for AMQP as it is. It ends with its connection; it is not restored after a loss.
    ///
    /// # Errors
    /// The connection is gone or being opened again, or all its channels are in use.
    pub async fn channel(&self) -> Result<Channel, ChannelFault> {
        Channel::open(self.shared.main.clone(), self.shared.setup.topology.clone()).await
    }

    /// The same on the socket for consuming. Its answers come behind what was delivered before: who asks whether a queue is empty has its
    /// last messages then, and does not take it for empty while they are on their way over a narrow link. On the first socket
    /// while there is no other, or where consumers have all its channels.
    ///
    /// # Errors
    /// As for [`Connection::channel`].
    pub async fn consuming_channel(&self) -> Result<Channel, ChannelFault> {
        let consuming = self.shared.consuming.lock().await.clone();
        if let Some(guard) = consuming {
            match Channel::open(guard, self.shared.setup.topology.clone()).await {
                Err(ChannelFault::NotUsable(ChannelError::AllInUse { .. })) => {}
                opened => return opened,
            }
        }
        self.channel().await
    }

    /// Declares exchanges, queues and bindings, now and on each socket that is opened later, after a loss above all. What has a
    /// name that was declared before takes its place; what is deleted or unbound on a [`Channel`] is not declared again.
    ///
    /// # Errors
    /// The broker refuses one of them; those before it are declared, and none is remembered.
    ///
    /// # Cancellation
    /// A dropped future may have declared some of them, and remembers none.
    pub async fn declare(&self, topology: Topology) -> Result<(), DeclareError> {
        let channel = self.channel().await.map_err(|fault| DeclareError { what: None, fault })?;
        for declaration in &topology.declarations {
            channel
                .declare(declaration)
                .await
                .map_err(|fault| DeclareError { what: Some(declaration.name()), fault })?;
        }
        let mut remembered =
            self.shared.setup.topology.lock().unwrap_or_else(PoisonError::into_inner);
        remembered.remember(&topology);
        Ok(())
    }

    /// A publisher on `route`; finish it with [`PublisherBuilder::build`].
    pub fn publisher(&self, route: Route) -> PublisherBuilder {
        PublisherBuilder::new(self.clone(), route)
    }

    /// A consumer of `queue`; finish it with [`ConsumerBuilder::build`].
    pub fn consumer(&self, queue: impl Into<String>) -> ConsumerBuilder {
        ConsumerBuilder::new(self.clone(), queue.into())
    }

    /// A caller, for requests with replies.
    pub fn caller(&self) -> Caller {
        Caller::new(self)
    }

    /// What happens from now on: losses, reconnects, blocking. A watcher that does not look misses the
    /// oldest beyond [`HAPPENINGS_KEPT`].
    pub fn happenings(&self) -> broadcast::Receiver<Happening> {
        self.shared.setup.happenings.subscribe()
    }

    /// What the sockets for publishing count, one for each; the first is that of [`Connection::metrics`], or what took its place when
    /// the route became longer.
    pub fn publishing_metrics(&self) -> Vec<ConnectionMetrics> {
        self.shared.pool.members().iter().map(|guard| guard.link.metrics()).collect()
    }

    /// What the first socket for publishing counts.
    pub fn metrics(&self) -> ConnectionMetrics {
        self.shared.main.link.metrics()
    }

    /// What the socket for consuming counts; `None` before there is one.
    pub fn consuming_metrics(&self) -> Option<ConnectionMetrics> {
        let consuming = self.shared.consuming.try_lock().ok()?;
        consuming.as_ref().map(|guard| guard.link.metrics())
    }

    /// Why the broker takes no publishes at the moment, if it does not.
    pub fn blocked(&self) -> Option<String> {
        let blocked =
            |guard: &Arc<Guard>| guard.link.with(|session| session.blocked().map(str::to_owned));
        self.shared.pool.members().iter().find_map(blocked)
    }

    /// What the broker says about itself; of the last connection while there is none.
    pub fn server(&self) -> Server {
        self.shared.main.link.with(|session| session.machine.server().clone())
    }

    /// What was agreed on with the broker.
    pub fn limits(&self) -> Limits {
        self.shared.main.link.with(|session| session.machine.limits())
    }

    /// Brings every publish to its outcome, gives back what waits in consumers, and closes. Outcomes are waited for as
    /// long as [`ConnectionBuilder::close_patience`] says, and not while there is no connection. All else on the
    /// connection finds it closed, and so does who asks to publish from now on.
    ///
    /// # Errors
    /// Messages are not confirmed and nobody was told so, since the connection was opened; or it was gone for good
    /// before, or broke meanwhile. `Ok` therefore says: everything that was published is on the broker, but for what
    /// an outcome that was awaited told. A connection that is dropped instead tells nobody.
    ///
    /// # Cancellation
    /// A dropped future changes nothing: the connection closes all the same.
    pub async fn close(self) -> Result<(), CloseError> {
        // Before anything is waited for, all of them are told, and so is who is dialling for a consumer.
        self.shared.closed.store(true, Ordering::SeqCst);
        self.shared.closing.notify_waiters();
        let (mut guards, mut unheard) = self.shared.pool.close();
        guards.push(self.shared.main.clone());
        let told = |guard: Arc<Guard>| {
            let before = guard.link.with(|session| session.over().cloned());
            if before.is_none() {
                guard.link.close();
            }
            (guard, before)
        };
        let mut closing: Vec<_> = guards.into_iter().map(told).collect();
        let consuming = match self.shared.consuming.try_lock() {
            Ok(mut consuming) => consuming.take().map(told),
            // Whoever has it, and although nobody may wait here any more.
            Err(_) => {
                let shared = self.shared.clone();
                let taken = async move { shared.consuming.lock().await.take().map(told) };
                tokio::spawn(taken).await.unwrap_or(None)
            }
        };
        closing.extend(consuming);
        let mut lost = None;
        for (guard, before) in closing {
            let driver = guard.driver.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(driver) = driver {
                // It never panics; if the runtime stops, everything does.
                let _ = driver.await;
            }
            let (after, here) =
                guard.link.with(|session| (session.over().cloned(), session.unheard()));
            unheard.add(here);
            lost = lost.or(before).or(after.filter(|after| *after != Lost::ClosedByUs));
        }
        let Unheard { rejected, returned, unknown, withdrawn } = unheard;
        match lost {
            _ if unheard != Unheard::default() => {
                let lost = lost.filter(|lost| *lost != Lost::ClosedByUs);
                Err(CloseError::Unconfirmed { rejected, returned, unknown, withdrawn, lost })
            }
            Some(lost) => Err(CloseError::Lost(lost)),
            None => Ok(()),
        }
    }

    /// Who logged in.
    pub(crate) fn username(&self) -> &str {
        &self.shared.setup.options.username
    }

    /// The sockets for publishing.
    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.shared.pool
    }

    /// The first socket for publishing.
    pub(crate) fn main(&self) -> &Arc<Guard> {
        &self.shared.main
    }

    /// Whether this queue was declared here as one whose consumer should never be replaced.
    pub(crate) fn is_consumed_once(&self, queue: &str) -> bool {
        let topology = self.shared.setup.topology.lock().unwrap_or_else(PoisonError::into_inner);
        topology.is_consumed_once(queue)
    }

    /// Whether this queue should still have what a consumer held when its connection was lost.
    pub(crate) fn gives_again(&self, queue: &str) -> bool {
        let topology = self.shared.setup.topology.lock().unwrap_or_else(PoisonError::into_inner);
        topology.gives_again(queue)
    }

    /// The socket for consuming.
    pub(crate) async fn consuming(&self) -> Result<Arc<Guard>, OpenError> {
        let is_closed = || self.shared.closed.load(Ordering::SeqCst);
        let mut consuming = self.shared.consuming.lock().await;
        let mut closing = pin!(self.shared.closing.notified());
        closing.as_mut().enable(); // from here on
        if is_closed() {
            // Who closed it may not have waited for this lock.
            consuming.take().inspect(|guard| guard.link.close());
            return Err(OpenError::Lost(Lost::ClosedByUs));
        }
        if let Some(guard) = &*consuming {
            let over = guard.link.with(|session| matches!(session.phase(), Phase::Over(_)));
            if !over {
                return Ok(guard.clone());
            }
        }
        // Who closes it waits for this lock, and not for hosts that do not answer. What is dropped is closed again.
        let guard = tokio::select! {
            biased;
            () = closing => return Err(OpenError::Lost(Lost::ClosedByUs)),
            opened = self.shared.setup.open(" (consuming)") => opened?,
        };
        *consuming = Some(guard.clone());
        Ok(guard)
    }
}

impl Setup {
    pub(crate) async fn open(&self, suffix: &str) -> Result<Arc<Guard>, OpenError> {
        let name = self.options.connection_name.as_ref().map(|name| format!("{name}{suffix}"));
        let options_name = name.clone();
        let options = Options { connection_name: name, ..self.options.clone() };
        let link = Link::new(options.clone(), self.happenings.clone());
        let (opened, wait) = oneshot::channel();
        let driver = Driver {
            link: link.clone(),
            dialer: self.dialer.clone(),
            options,
            topology: self.topology.clone(),
            place: self.place.clone(),
            recovery: self.recovery,
            close_patience_us: u64::try_from(self.close_patience.as_micros()).unwrap_or(u64::MAX),
        };
        let span = tracing::info_span!("amqp", connection = options_name.as_deref().unwrap_or(""));
        let driver = tokio::spawn(driver.run(opened).instrument(span));
        // Made before waiting, so that a caller who gives up closes what was begun.
        let guard = Arc::new(Guard { link, driver: Mutex::new(Some(driver)) });
        match wait.await {
            Ok(outcome) => outcome.map(|()| guard),
            Err(_) => Err(OpenError::Lost(Lost::ClosedByUs)),
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("options", &self.shared.setup.options)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ConnectionBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionBuilder").field("options", &self.options).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
