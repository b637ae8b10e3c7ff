//! Requests with replies.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::connection::{Connection, Guard};
use crate::error::{Lost, Refusal};
use crate::message::Message;
use crate::metrics::CallerMetrics;
use crate::publisher::Route;
use crate::received::Received;
use crate::session::Calls;
use crate::timed::TimedCall;
use crate::too_long::TooLong;

/// Why a call has no reply.
#[derive(Debug, Clone, PartialEq)]
pub enum CallError {
    /// No reply came in time. The request may have been carried out all the same.
    TimedOut {
        /// The request was still waiting to be sent: it was not carried out.
        unsent: bool,
    },
    /// No queue took the request.
    Unroutable(Refusal),
    /// One of its names is too long for AMQP, or all its properties together for one of the broker's frames.
    TooLong(TooLong),
    /// As many calls wait for replies as may: [`CALLS_MAX`](crate::CALLS_MAX).
    TooManyCalls,
    /// The broker closed the caller's channel, for instance because the exchange does not exist. The next
    /// call gets a new one.
    ChannelClosed(Refusal),
    /// The connection broke, and the reply with it. The request may have been carried out.
    Lost(Lost),
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallError::TimedOut { unsent: true } => {
                f.write_str("the request could not be sent in time; it was not carried out")
            }
            CallError::TimedOut { unsent: false } => {
                f.write_str("no reply came in time; the request may have been carried out")
            }
            CallError::Unroutable(why) => write!(f, "no queue took the request: {why}"),
            CallError::TooLong(too_long) => too_long.fmt(f),
            CallError::TooManyCalls => write!(
                f,
                "{} calls wait for replies already; await some before the next",
                crate::session::CALLS_MAX
            ),
            CallError::ChannelClosed(why) => {
                write!(f, "the broker closed the channel of the request: {why}")
            }
            CallError::Lost(lost) => {
                write!(f, "no reply will come, and the request may have been carried out: {lost}")
            }
        }
    }
}

impl std::error::Error for CallError {}

/// Sends requests and matches replies to them. Clones share it; any number of calls may wait at a time.
///
/// Replies come by direct reply-to: no reply queue, and past all queues. They cost the same whatever waits
/// on the connection or for other calls.
///
/// ```no_run
/// # async fn example(connection: forebay_client::Connection) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use forebay_client::Route;
///
/// let caller = connection.caller();
/// let reply = caller.call(Duration::from_secs(5), &Route::queue("prices"), "what is tea?").await?;
/// println!("{}", String::from_utf8_lossy(reply.body()));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Caller {
    shared: Arc<CallerShared>,
}

struct CallerShared {
    guard: Arc<Guard>,
    key: usize,
}

impl Drop for CallerShared {
    fn drop(&mut self) {
        self.guard.link.with(|session| session.drop_calls(self.key));
    }
}

impl Caller {
    pub(crate) fn new(connection: &Connection) -> Caller {
        let guard = connection.main().clone();
        let key = guard.link.with(|session| session.add_calls(Calls::default()));
        Caller { shared: Arc::new(CallerShared { guard, key }) }
    }

    /// Sends a request and waits for its reply, for `patience` at most. Correlation-id and reply-to are the
    /// caller's; what the message says there is replaced. While the connection is being opened again the
    /// request waits.
    ///
    /// # Errors
    /// [`CallError`]; most say that the request may have been carried out.
    ///
    /// # Cancellation
    /// A dropped future gives the reply up. A request that was not sent by then is not sent.
    pub async fn call(
        &self,
        patience: Duration,
        route: &Route,
        message: impl Into<Message>,
    ) -> Result<Received, CallError> {
        let message = message.into();
        let key = message.own_routing_key().unwrap_or(&route.routing_key);
        let timed = TimedCall::begin(&route.exchange, key, message.body.len(), patience);
        let asked = timed.as_ref().map(|_| Instant::now());
        let answer = self.ask(patience, route, message).await;
        if let (Some(timed), Some(asked)) = (timed, asked) {
            match &answer {
                Ok(_) => timed.replied(asked.elapsed().as_micros() as u64),
                Err(error) => timed.failed(error),
            }
        }
        answer
    }

    /// What it counts.
    pub fn metrics(&self) -> CallerMetrics {
        let key = self.shared.key;
        self.shared.guard.link.with(|session| session.calls(key).metrics())
    }

    async fn ask(
        &self,
        patience: Duration,
        route: &Route,
        message: Message,
    ) -> Result<Received, CallError> {
        let (link, key) = (&self.shared.guard.link, self.shared.key);
        for bytes in [route.exchange.len(), route.routing_key.len()] {
            if bytes > 255 {
                return Err(CallError::TooLong(TooLong { what: "route", bytes, bytes_max: 255 }));
            }
        }
        let number = link.with_now(|session, now_us| {
            session.call(key, &route.exchange, &route.routing_key, message, now_us)
        })?;
        let mut waiting = Waiting { shared: &self.shared, number: Some(number) };
        let answer = poll_fn(|cx| link.with(|session| session.calls(key).poll_answer(number, cx)));
        match tokio::time::timeout(patience, answer).await {
            Ok(answer) => {
                waiting.number = None;
                answer
            }
            Err(_) => Err(CallError::TimedOut { unsent: waiting.give_up() }),
        }
    }
}

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caller").finish_non_exhaustive()
    }
}

/// A place in the table, left when dropped.
struct Waiting<'c> {
    shared: &'c CallerShared,
    number: Option<u64>,
}

impl Waiting<'_> {
    fn give_up(&mut self) -> bool {
        let Some(number) = self.number.take() else { return false };
        self.shared.guard.link.with(|session| session.calls(self.shared.key).give_up_call(number))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.give_up();
    }
}

impl Received {
    /// The message that answers this request: to its reply-to, with its correlation-id, transient. Publish
    /// it with a publisher on `Route::queue("")` that allows unroutable messages, since the asker may be
    /// gone. `None`: no answer is wanted.
    pub fn reply(&self, body: impl Into<Message>) -> Option<Message> {
        let properties = self.properties();
        let reply_to = properties.reply_to?.to_string();
        let message = body.into().transient().routing_key(reply_to);
        Some(match properties.correlation_id {
            Some(id) => message.correlation_id(id.to_string()),
            None => message,
        })
    }
}
