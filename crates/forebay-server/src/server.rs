//! A running broker: its threads, its addresses, and how it is stopped.
//!
//! ```text
//!   forebay-shard  the loop of shard_loop.rs; owns sockets and the state machine
//!   forebay-log    log writes and syncs, one at a time        (not in memory)
//!   forebay-read   reads blocks of run files, one at a time (not in memory)
//!   forebay-disk   run files and spare segments, one at a time (not in memory)
//!   forebay-http   /metrics, /healthz, /api/definitions        (if configured)
//! ```

use crate::config::{Config, Data};
use crate::http::HttpEndpoint;
use crate::in_process::{self, InProcessStream};
use crate::lane::Lanes;
use crate::listener::listen;
use crate::mailbox::{Mail, Mailbox, Snapshot};
use crate::management::Management;
use crate::outcome::{Outcome, ServerFailed};
use crate::pages;
use crate::poller::Poller;
use crate::resident::Resident;
use crate::shard_loop::{LoopFailed, Setup, ShardLoop};
use crate::shard_setup::{self, Opened};
use crate::start_error::StartError;
use forebay_store::Disk;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long [`Server::status`] waits for the shard. A turn takes about a millisecond.
const STATUS_PATIENCE: Duration = Duration::from_secs(2);

/// Where a server can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// AMQP, in the order of the configuration, with real port numbers.
    pub amqp: Vec<SocketAddr>,
    /// HTTP, if configured.
    pub http: Option<SocketAddr>,
}

/// A running broker. Dropping it stops it as [`Server::stop`] does.
pub struct Server {
    mailbox: Arc<Mailbox>,
    outcome: Arc<Outcome>,
    addresses: Addresses,
    http: Option<HttpEndpoint>,
    shard: Mutex<Option<JoinHandle<()>>>,
}

impl Server {
    /// Binds, recovers the store, starts the threads; returns when clients are served.
    ///
    /// # Errors
    /// The configuration makes no sense, an address is taken, the data directory is locked by
    /// another server, unwritable, of a newer format or damaged.
    pub fn start(config: Config) -> Result<Server, StartError> {
        Server::start_with(config, None)
    }

    /// As [`Server::start`], with the store on a disk of the caller's making, for tests of what reaches it
    /// and when. [`Config::data`] is only a name for it in messages; it must be [`Data::Dir`].
    ///
    /// # Errors
    /// As for [`Server::start`].
    pub fn start_on(disk: Arc<dyn Disk>, config: Config) -> Result<Server, StartError> {
        Server::start_with(config, Some(disk))
    }

    fn start_with(config: Config, disk: Option<Arc<dyn Disk>>) -> Result<Server, StartError> {
        let started = Instant::now();
        config.check()?;
        let (mut listeners, mut addresses) = (Vec::new(), Vec::new());
        let all: Vec<String> = config.amqp.iter().chain(&config.http).cloned().collect();
        for address in &config.amqp {
            let listener = bind("amqp", address, &all)?;
            addresses.push(listener.local_addr().map_err(StartError::System)?);
            listeners.push(listener);
        }
        let http_listener =
            config.http.as_deref().map(|address| bind("http", address, &all)).transpose()?;
        let http_address = match &http_listener {
            Some(listener) => Some(listener.local_addr().map_err(StartError::System)?),
            None => None,
        };

        let management = Management::new(&config)?;
        let outcome = Arc::new(Outcome::default());
        let (ready, started_up) = sync_channel(1);
        let shard = {
            let outcome = outcome.clone();
            std::thread::Builder::new()
                .name("forebay-shard".to_owned())
                .spawn(move || {
                    // A panic in this thread must not leave others waiting for its outcome.
                    let _ended = EndOnDrop(outcome.clone());
                    let started = StartedShard { config, disk, listeners, started };
                    run_shard(started, &ready, &outcome);
                })
                .map_err(StartError::System)?
        };
        let mailbox = started_up.recv().unwrap_or_else(|_| {
            let error = io::Error::other("the shard's thread ended before it was ready");
            Err(StartError::System(error))
        })?;
        let addresses = Addresses { amqp: addresses, http: http_address };
        let mut server =
            Server { mailbox, outcome, addresses, http: None, shard: Mutex::new(Some(shard)) };
        if let Some(listener) = http_listener {
            let mailbox = server.mailbox.clone();
            let management = management.over(mailbox.clone());
            let endpoint = HttpEndpoint::start(listener, move |request| {
                pages::answer(request, &management, || ask_status(&mailbox))
            });
            server.http = Some(endpoint.map_err(StartError::System)?);
        }
        Ok(server)
    }

    /// Where clients connect; port 0 of the configuration is resolved here.
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// Accepts AMQP connections on one more address; returns the real one.
    ///
    /// # Errors
    /// The address is taken or not of this machine.
    pub fn listen(&self, address: &str) -> io::Result<SocketAddr> {
        let beside: Vec<String> = self.addresses.amqp.iter().map(ToString::to_string).collect();
        let listener = listen(address, &beside)?;
        let address = listener.local_addr()?;
        self.mailbox.post(Mail::Listen(listener));
        Ok(address)
    }

    /// A connection inside this process: AMQP bytes without a socket. After the server has stopped,
    /// reads from it end and writes to it fail.
    pub fn connect(&self) -> InProcessStream {
        let (stream, end) = in_process::pair(self.mailbox.clone());
        self.mailbox.post(Mail::Connect(end));
        stream
    }

    /// What [`Server::connect`] does, for whoever cannot hold on to the server: it may outlive it.
    pub fn connector(&self) -> impl Fn() -> InProcessStream + Clone + Send + Sync + 'static {
        let mailbox = self.mailbox.clone();
        move || {
            let (stream, end) = in_process::pair(mailbox.clone());
            mailbox.post(Mail::Connect(end));
            stream
        }
    }

    /// A snapshot of counters and queues, made by the shard between two turns. `None` when it has
    /// stopped, or does not answer within 2 s.
    pub fn status(&self) -> Option<Snapshot> {
        ask_status(&self.mailbox)
    }

    /// Begins to stop and returns at once: no more accepts, every client is told
    /// `320 CONNECTION_FORCED`, the final checkpoint is written. [`Server::wait`] tells the end.
    pub fn request_stop(&self) {
        self.mailbox.post(Mail::Stop);
    }

    /// Waits until the server has stopped, for whatever reason.
    ///
    /// # Errors
    /// It stopped by itself: the disk failed, and nothing more could be confirmed honestly.
    pub fn wait(&self) -> Result<(), ServerFailed> {
        let outcome = self.outcome.wait();
        let shard = self.shard.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(shard) = shard {
            // A panic is already part of the outcome.
            let _ = shard.join();
        }
        outcome
    }

    /// Stops: [`Server::request_stop`], then [`Server::wait`].
    ///
    /// # Errors
    /// The disk failed before or during the final checkpoint.
    pub fn stop(self) -> Result<(), ServerFailed> {
        self.request_stop();
        self.wait()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.request_stop();
        // Whoever wants to know the outcome has asked `wait` or `stop`.
        let _ = self.wait();
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

fn bind(key: &'static str, address: &str, beside: &[String]) -> Result<TcpListener, StartError> {
    let address = address.to_owned();
    listen(&address, beside).map_err(|source| StartError::Listen { key, address, source })
}

fn ask_status(mailbox: &Mailbox) -> Option<Snapshot> {
    let (reply, answer) = sync_channel(1);
    mailbox.post(Mail::Status(reply));
    answer.recv_timeout(STATUS_PATIENCE).ok()
}

/// What the shard's thread takes along.
struct StartedShard {
    config: Config,
    /// Instead of the directory's.
    disk: Option<Arc<dyn Disk>>,
    listeners: Vec<TcpListener>,
    started: Instant,
}

struct EndOnDrop(Arc<Outcome>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.set(Err(ServerFailed("the shard's thread ended unexpectedly".to_owned())));
    }
}

struct CloseOnDrop(Arc<Mailbox>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// The whole life of the shard's thread.
fn run_shard(
    started: StartedShard,
    ready: &SyncSender<Result<Arc<Mailbox>, StartError>>,
    outcome: &Outcome,
) {
    let (shard_loop, mailbox) = match set_up(started) {
        Ok(made) => made,
        Err(error) => {
            outcome.set(Err(ServerFailed(error.to_string())));
            // The starter waits for this; it can only be gone if its thread has died.
            let _ = ready.send(Err(error));
            return;
        }
    };
    let _ = ready.send(Ok(mailbox.clone()));
    // Whatever ends the loop, who writes afterwards is not left waiting.
    let _closed = CloseOnDrop(mailbox);
    outcome.set(shard_loop.run().map_err(|failed| {
        ServerFailed(match failed {
            LoopFailed::Store(failed) => {
                format!("the disk failed, nothing more can be confirmed: {failed}")
            }
            LoopFailed::Poll(error) => format!("waiting for sockets failed: {error}"),
            LoopFailed::Lane => "a disk thread died, nothing more can be confirmed".to_owned(),
        })
    }));
}

/// Opens the store and builds the loop, on the shard's own thread: none of it needs to be `Send`.
fn set_up(started: StartedShard) -> Result<(ShardLoop, Arc<Mailbox>), StartError> {
    let StartedShard { config, disk, listeners, started } = started;
    let poller = Poller::new().map_err(StartError::System)?;
    let mailbox = Arc::new(Mailbox::new(poller.waker()));
    let Opened { shard, disk } = shard_setup::open(&config, disk, started)?;
    let lanes = match disk {
        None => None,
        Some(disk) => Some(Lanes::start(&disk, &mailbox).map_err(StartError::System)?),
    };
    if let Data::Dir(dir) = &config.data {
        tracing::info!(dir = %dir.display(), ms = started.elapsed().as_millis() as u64, "store open");
    }
    let shard_loop = ShardLoop::new(Setup {
        shard,
        poller,
        mailbox: mailbox.clone(),
        lanes,
        listeners,
        connections_max: config.connections_max,
        resident: config.owns_process.then(Resident::open).flatten(),
        drain_timeout: config.drain_timeout,
        started,
    })
    .map_err(StartError::System)?;
    Ok((shard_loop, mailbox))
}
