//! Messages that wait in the broker for another attempt, by queues whose messages expire.
//!
//! ```text
//!            consumer ── put off for 45 s ──▶ orders.retry.32s ──┐ after 32 s, dead-lettered by the broker
//!               ▲                             orders.retry.8s    │
//!               └───────── orders ◀──────────────────────────────┘ and on to the next, or due
//! ```
//! What to wait on decides [`rung`]; what is sent is made by [`again`]. Here is what asks the broker.

mod again;
mod rung;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use forebay_wire::Value;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use crate::channel::DeclareQueue;
use crate::connection::Connection;
use crate::error::{ChannelFault, DeclareError, Refusal};
use crate::machine::Server;
use crate::message::{Message, since_1970_us};
use crate::outcome::{NotPublishedReason, Unconfirmed};
use crate::publisher::{Publisher, Route};
use crate::received::Received;
use crate::session::{Queue, Topology};

pub(crate) use again::without;
pub use again::{ATTEMPTS_HEADER, Again, DUE_HEADER};
pub use rung::Rung;

/// Shorter pauses than this are not worth the way to the broker, unless set otherwise.
pub const LADDER_FROM: Duration = Duration::from_secs(5);
/// How long each of declaring, being admitted and being confirmed may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// After a refusal the broker is not asked again for so long.
const REFUSED_FOR: Duration = Duration::from_secs(60);
/// A Forebay that knows `x-message-ttl` says so, and that a time to live goes on over a restart.
const LASTING_EXPIRY: &str = "forebay.lasting_expiry";
/// Reply codes of AMQP 0-9-1, section 1.1.
const ACCESS_REFUSED: u16 = 403;
/// See [`ACCESS_REFUSED`].
const PRECONDITION_FAILED: u16 = 406;

/// Holds messages of one queue in the broker until they are due, on any broker that knows `x-message-ttl` and
/// `x-dead-letter-exchange`. Clones share it.
///
/// Its rungs are durable queues named like the queue with `.retry.1s`, `.retry.2s`, … `.retry.32768s` added. Each is declared
/// when it is first needed, and never removed, as messages may wait in it. On a Forebay it is a plain queue, which loses no dead letter; elsewhere
/// a quorum queue that dead-letters at least once (`x-dead-letter-strategy`). Where a broker refuses that (RabbitMQ before 3.10) it is a classic
/// queue: one that loses a message if the broker dies between taking it out and having it in the queue again.
///
/// Needs permission to configure the rungs, unless [others make them](WaitLadder::made_by_others); to read them, and to write to the
/// default exchange.
#[derive(Clone)]
pub struct WaitLadder {
    shared: Arc<Shared>,
}

struct Shared {
    connection: Connection,
    queue: String,
    from_ms: u64,
    made_by_others: bool,
    /// By [`Rung::index`]. Held while one is being declared, which stops nobody who needs another.
    declared: [Mutex<bool>; 16],
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    publisher: Option<Publisher>,
    /// Until then nothing is declared, for this reason.
    refused: Option<(Instant, DeclareError)>,
}

impl WaitLadder {
    /// Whether a pause may be spent in this broker unless it is [set](WaitLadder::from_pause): a RabbitMQ, or a Forebay whose times to
    /// live go on over a restart.
    #[must_use]
    pub fn is_known_on(server: &Server) -> bool {
        server.product == "RabbitMQ" || server.can(LASTING_EXPIRY)
    }

    /// For messages that came from `queue` by this connection. Nothing is asked of the broker before one is put off.
    pub fn new(connection: &Connection, queue: impl Into<String>) -> WaitLadder {
        WaitLadder::made(connection.clone(), queue.into(), LADDER_FROM, false)
    }

    fn made(
        connection: Connection,
        queue: String,
        from: Duration,
        made_by_others: bool,
    ) -> WaitLadder {
        let from_ms = u64::try_from(from.as_millis()).unwrap_or(u64::MAX).max(1_000);
        let (declared, state) = Default::default();
        let shared = Shared { connection, queue, from_ms, made_by_others, declared, state };
        WaitLadder { shared: Arc::new(shared) }
    }

    /// Only for what is due in this time or later, at least 1 s; [`LADDER_FROM`] unless set.
    #[must_use]
    pub fn from_pause(self, pause: Duration) -> WaitLadder {
        let Shared { connection, queue, made_by_others, .. } = &*self.shared;
        WaitLadder::made(connection.clone(), queue.clone(), pause, *made_by_others)
    }

    /// Who runs the broker has made the rungs: one that this user may not declare (403) is taken as it is, if there is a queue of its
    /// name. What that queue does with a message nobody can ask for without the permission, so a wrong one keeps or loses what it
    /// is given. Otherwise nothing waits in a queue that was not declared as a rung.
    #[must_use]
    pub fn made_by_others(self) -> WaitLadder {
        let Shared { connection, queue, .. } = &*self.shared;
        WaitLadder::made(connection.clone(), queue.clone(), self.shortest(), true)
    }

    /// What is due sooner is better held.
    #[must_use]
    pub fn shortest(&self) -> Duration {
        Duration::from_millis(self.shared.from_ms)
    }

    /// Publishes `received` again, to wait in the broker: with its body and properties (but for `expiration` and `CC`, and an `x-death`
    /// that names its queue), and what `again` says in headers. Comes out confirmed; then the original may be acknowledged. It comes back by its
    /// queue, as a new message, once or several times before it is due: [`Received::due_ms`] tells, and whoever takes it puts
    /// it off again.
    ///
    /// `None`: it is due too soon, and better held.
    ///
    /// # Errors
    /// It is not there for certain: hold it. If the outcome is [unknown](Unconfirmed::Unknown) it may come a second time.
    ///
    /// # Cancellation
    /// A message whose future is dropped may wait there or not.
    pub fn put_off(
        &self,
        received: &Received,
        again: &Again,
    ) -> Option<impl Future<Output = Result<(), NotPutOff>> + Send + use<>> {
        let now_ms = since_1970_us() / 1_000;
        let rung::Wait::Rung(rung) = rung::wait(again.due_ms, now_ms, self.shared.from_ms) else {
            return None;
        };
        let message = self.shared.message(received, again, rung);
        let shared = self.shared.clone();
        Some(async move { shared.publish(message?, rung).await })
    }
}

impl Shared {
    fn message(
        &self,
        received: &Received,
        again: &Again,
        rung: Rung,
    ) -> Result<Message, NotPutOff> {
        if let Some(user) = again::user_id(received)
            && user.as_bytes() != self.connection.username().as_bytes()
        {
            return Err(NotPutOff::OfUser { user: user.to_string() });
        }
        Ok(again::message(received, again, &self.queue).routing_key(rung.name(&self.queue)))
    }

    async fn publish(&self, message: Message, rung: Rung) -> Result<(), NotPutOff> {
        let publisher = self.publisher(rung).await?;
        let admitted = publisher.publish_within(PATIENCE, message).await;
        let outcome = admitted.map_err(|refused| NotPutOff::NotPublished(refused.reason))?;
        match outcome.await {
            Ok(_) => Ok(()),
            Err(unconfirmed) => {
                if matches!(unconfirmed, Unconfirmed::Returned(_)) {
                    // Somebody deleted it.
                    *self.declared[rung.index()].lock().await = false;
                }
                Err(NotPutOff::Unconfirmed(unconfirmed))
            }
        }
    }

    /// A publisher, once the rung is there.
    async fn publisher(&self, rung: Rung) -> Result<Publisher, NotPutOff> {
        let mut declared = self.declared[rung.index()].lock().await;
        if !*declared {
            if let Some((until, error)) = &self.state.lock().await.refused
                && Instant::now() < *until
            {
                return Err(NotPutOff::NotDeclared(error.clone()));
            }
            if let Err(error) = self.declare(rung).await {
                // A connection that broke meanwhile says nothing of the next one.
                if let ChannelFault::Refused(_) = &error.fault {
                    let until = Instant::now() + REFUSED_FOR;
                    self.state.lock().await.refused = Some((until, error.clone()));
                }
                return Err(NotPutOff::NotDeclared(error));
            }
            *declared = true;
            self.state.lock().await.refused = None;
        }
        drop(declared);
        let mut state = self.state.lock().await;
        if let Some(publisher) = &state.publisher {
            return Ok(publisher.clone());
        }
        let builder = self.connection.publisher(Route::queue("")).outcome_within(PATIENCE);
        let built = builder.build().await;
        let fault = |fault| NotPutOff::NotDeclared(DeclareError { what: None, fault });
        let publisher = built.map_err(fault)?;
        state.publisher = Some(publisher.clone());
        Ok(publisher)
    }

    async fn declare(&self, rung: Rung) -> Result<(), DeclareError> {
        let name = rung.name(&self.queue);
        let plain = |queue: Queue| {
            let ttl_ms = i64::from(rung.seconds()) * 1_000;
            queue
                .argument("x-message-ttl", Value::I64(ttl_ms))
                .argument("x-dead-letter-exchange", Value::LongStr(b""))
                .argument("x-dead-letter-routing-key", Value::LongStr(self.queue.as_bytes()))
        };
        // A policy that bounds it must not drop what waits: it is held instead.
        let full = ("x-overflow", Value::LongStr(b"reject-publish"));
        let quorum = plain(Queue::quorum(&name))
            .argument("x-dead-letter-strategy", Value::LongStr(b"at-least-once"))
            .argument(full.0, full.1);
        let plain = plain(Queue::durable(&name));
        // A Forebay has no quorum queues: to ask for one would cost the connection.
        let tried = if self.connection.server().can(LASTING_EXPIRY) {
            self.declared(&name, plain.argument(full.0, full.1)).await
        } else {
            match self.declared(&name, quorum).await {
                refused if code(&refused) == Some(PRECONDITION_FAILED) => {
                    self.declared(&name, plain).await
                }
                tried => tried,
            }
        };
        let may_not = code(&tried) == Some(ACCESS_REFUSED);
        if may_not && self.made_by_others && self.exists(&name).await { Ok(()) } else { tried }
    }

    async fn declared(&self, name: &str, queue: Queue) -> Result<(), DeclareError> {
        let declaring = self.connection.declare(Topology::new().queue(queue));
        let silent = || DeclareError {
            what: Some(format!("queue '{name}'")),
            fault: ChannelFault::Refused(Refusal {
                code: 0,
                text: format!("no answer within {} s", PATIENCE.as_secs()),
            }),
        };
        timeout(PATIENCE, declaring).await.unwrap_or_else(|_| Err(silent()))
    }

    async fn exists(&self, name: &str) -> bool {
        let asking = async {
            let passive = DeclareQueue { passive: true, ..DeclareQueue::default() };
            self.connection.channel().await?.declare_queue(name, passive).await
        };
        matches!(timeout(PATIENCE, asking).await, Ok(Ok(_)))
    }
}

/// With which code it was refused.
fn code(declared: &Result<(), DeclareError>) -> Option<u16> {
    match declared {
        Err(DeclareError { fault: ChannelFault::Refused(refusal), .. }) => Some(refusal.code),
        _ => None,
    }
}

impl fmt::Debug for WaitLadder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { queue, from_ms, .. } = &*self.shared;
        let mut debug = f.debug_struct("WaitLadder");
        debug.field("queue", queue).field("from_ms", from_ms).finish_non_exhaustive()
    }
}

/// Why a message does not wait in the broker.
#[derive(Debug, Clone, PartialEq)]
pub enum NotPutOff {
    /// The rung cannot be declared.
    NotDeclared(DeclareError),
    /// It was not sent.
    NotPublished(NotPublishedReason),
    /// It was sent and not confirmed.
    Unconfirmed(Unconfirmed),
    /// It says in its property `user-id` who published it, and a broker takes that from this user alone.
    OfUser {
        /// Who.
        user: String,
    },
}

impl fmt::Display for NotPutOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotPutOff::NotDeclared(error) => {
                error.fmt(f)?;
                match error.fault {
                    ChannelFault::Refused(Refusal { code: ACCESS_REFUSED, .. }) => {
                        f.write_str("; a program whose rungs others make says `made_by_others`")
                    }
                    _ => Ok(()),
                }
            }
            NotPutOff::NotPublished(reason) => write!(f, "it was not sent: {reason}"),
            NotPutOff::Unconfirmed(unconfirmed) => unconfirmed.fmt(f),
            NotPutOff::OfUser { user } => write!(
                f,
                "its user-id is '{user}', and a broker takes such a message from that user alone"
            ),
        }
    }
}

impl std::error::Error for NotPutOff {}
