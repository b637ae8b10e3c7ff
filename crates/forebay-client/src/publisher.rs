//! Publishing with one outcome a message.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use forebay_flow::explain::Sampling;
use forebay_flow::{Amount, Fixed, HalfDrain, Pfw, PfwOptions, WaiterId};
use tokio::time::Instant;

use crate::connection::Connection;
use crate::error::{ChannelFault, Lost};
use crate::lanes::{Asked, Idle, Lane, Lanes, Plan};
use crate::message::{Message, since_1970_us};
use crate::metrics::PublisherMetrics;
use crate::outcome::{Confirmed, NotPublished, NotPublishedReason, Unconfirmed};
use crate::session::{MakeWindow, NotAdmitted, Phase, Published, STALL_US, Target};
use crate::shell::random_u64;
use crate::spans::Spans;
use crate::timed::TimedPublish;
use crate::too_long::TooLong;

/// Bytes of bodies in flight together, at most, under a window fixed by hand.
const FIXED_BYTES_MAX: u64 = 256 << 20;

/// Where a publisher's messages go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    pub(crate) exchange: String,
    pub(crate) routing_key: String,
}

impl Route {
    /// To one queue, by the default exchange.
    pub fn queue(queue: impl Into<String>) -> Route {
        Route { exchange: String::new(), routing_key: queue.into() }
    }

    /// To an exchange, with a routing key that each message may replace.
    pub fn exchange(exchange: impl Into<String>, routing_key: impl Into<String>) -> Route {
        Route { exchange: exchange.into(), routing_key: routing_key.into() }
    }
}

/// How many messages may be without an outcome.
#[derive(Debug, Clone, PartialEq)]
pub struct Window(WindowKind);

#[derive(Debug, Clone, PartialEq)]
enum WindowKind {
    Tuned(PfwOptions),
    Fixed(u32),
    HalfDrain(u32),
}

impl Window {
    /// Follows the rate at which confirms come back (`forebay_flow::pfw`). The default.
    pub fn tuned() -> Window {
        Window(WindowKind::Tuned(PfwOptions::default()))
    }

    /// The same within bounds: messages in flight, at least 1, and delay above that of an idle broker.
    pub fn tuned_within(in_flight_messages_max: u32, added_delay_max: Duration) -> Window {
        let default = PfwOptions::default();
        let ceiling_messages = in_flight_messages_max.max(1);
        Window(WindowKind::Tuned(PfwOptions {
            ceiling_messages,
            floor_messages: default.floor_messages.min(ceiling_messages),
            added_delay_max_us: added_delay_max.as_micros() as u64,
            ..default
        }))
    }

    /// Always `messages`, at least 1, and at most 256 MiB of bodies.
    pub fn fixed(messages: u32) -> Window {
        Window(WindowKind::Fixed(messages.max(1)))
    }

    /// At most `messages`, at least 1; once they are in flight, waits until half of them have outcomes.
    pub fn fixed_half_drain(messages: u32) -> Window {
        Window(WindowKind::HalfDrain(messages.max(1)))
    }

    /// What it was set to by hand.
    pub(crate) fn fixed_messages(&self) -> Option<u32> {
        match self.0 {
            WindowKind::Tuned(_) => None,
            WindowKind::Fixed(messages) | WindowKind::HalfDrain(messages) => Some(messages),
        }
    }

    pub(crate) fn make(self) -> MakeWindow {
        match self.0 {
            WindowKind::Tuned(options) => {
                Box::new(move || Box::new(Pfw::new(PfwOptions { seed: random_u64(), ..options })))
            }
            WindowKind::Fixed(messages) => {
                Box::new(move || Box::new(Fixed::new(Amount::new(messages, FIXED_BYTES_MAX))))
            }
            WindowKind::HalfDrain(messages) => {
                Box::new(move || Box::new(HalfDrain::new(Amount::new(messages, FIXED_BYTES_MAX))))
            }
        }
    }
}

impl Default for Window {
    fn default() -> Window {
        Window::tuned()
    }
}

/// Options of a publisher. All have defaults.
#[derive(Debug, Clone)]
pub struct PublisherBuilder {
    connection: Connection,
    route: Route,
    window: Window,
    mandatory: bool,
    stall_us: Option<u64>,
    limit_us: Option<u64>,
    ordered: bool,
    explain_every: Option<u64>,
    spans: Option<Arc<Spans>>,
}

impl PublisherBuilder {
    pub(crate) fn new(connection: Connection, route: Route) -> PublisherBuilder {
        PublisherBuilder {
            connection,
            route,
            window: Window::default(),
            mandatory: true,
            stall_us: Some(STALL_US),
            limit_us: None,
            ordered: true,
            explain_every: None,
            spans: None,
        }
    }

    /// How many messages may be without an outcome; tunes itself unless set.
    #[must_use]
    pub fn window(mut self, window: Window) -> Self {
        self.window = window;
        self
    }

    /// A message that no queue takes is confirmed like any other, and gone. Without this, its outcome is
    /// [`Unconfirmed::Returned`].
    #[must_use]
    pub fn allow_unroutable(mut self) -> Self {
        self.mandatory = false;
        self
    }

    /// After so long without any answer, while messages wait for theirs, the publisher goes on with another
    /// channel and sends them again there, marked, as after a reconnect; 30 s unless set, at least 1 s. If that
    /// channel stalls as well and the broker has not even answered the end of the first, the connection
    /// counts as lost. Time in which the broker takes no publishes, or the socket no bytes, is not counted. Not on Forebay's own
    /// broker, whose channels do not stall: there a queue that balances may keep confirms for as long as its consumers need.
    #[must_use]
    pub fn stall_timeout(mut self, timeout: Duration) -> Self {
        let timeout_us = u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX);
        self.stall_us = Some(timeout_us.max(1_000_000));
        self
    }

    /// Waits for outcomes as long as the connection lives.
    #[must_use]
    pub fn without_stall_timeout(mut self) -> Self {
        self.stall_us = None;
        self
    }

    /// Each message has its outcome so long after it was admitted at the latest, at least 10 ms: without an answer it is
    /// [unknown](crate::UnknownReason::TimeOver), and is not sent again; one that waited for a connection and of which
    /// nothing has left is [withdrawn](Unconfirmed::Withdrawn). Its place in the window is free then. Without this, a
    /// message is held for as long as the connection is opened again and again.
    ///
    /// How long a message may wait to be admitted is said by [`Publisher::publish_within`].
    #[must_use]
    pub fn outcome_within(mut self, limit: Duration) -> Self {
        let limit_us = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX);
        self.limit_us = Some(limit_us.max(10_000));
        self
    }

    /// The order of messages does not matter: they go over all the sockets that the connection has for publishers
    /// ([`ConnectionBuilder::connections_max`](crate::ConnectionBuilder::connections_max)), so that one publisher with
    /// many callers gets what many publishers would. Each socket has a window of its own; with a window that is not
    /// [`Window::tuned`] there is one window, and so one socket.
    #[must_use]
    pub fn unordered(mut self) -> Self {
        self.ordered = false;
        self
    }

    /// Marks one message in `every`, at least 1, with headers that say when it was offered, admitted by the window and
    /// written for its socket (`x-forebay-offered-us` and so on, microseconds since 1970), and what its window was set to, if
    /// it was (`x-forebay-window-messages`): whoever consumes it can tell
    /// where its time went ([`Received::marks`](crate::Received::marks)). They are the last that is encoded of it.
    /// *Written* is into the client's buffer before the socket, which holds 2 MiB at most.
    ///
    /// It costs a marked message an allocation and some 100 bytes of headers, the others nothing. A message that is
    /// [forwarded](Message::forward) has none, as it stays what it was.
    #[must_use]
    pub fn explain(mut self, every: u64) -> Self {
        self.explain_every = Some(every.max(1));
        self
    }

    /// Makes a span of OpenTelemetry for each publish, a child of the span that is current where
    /// [`Publisher::publish`] is first polled, and puts its context into the message's headers (`traceparent`): whoever
    /// consumes the message goes on with the trace. It ends when the outcome is known, and tells it. A context that the
    /// program has put there itself stays; one that came with
    /// [the properties of a received message](Message::with_properties) is replaced, and linked. A message that is
    /// [forwarded](Message::forward) keeps its own.
    ///
    /// Tracer provider and propagator are the global ones, the provider's as it is now.
    /// It costs a span, some allocations and about 75 bytes of headers a message; without this call, nothing.
    #[cfg(feature = "opentelemetry")]
    #[must_use]
    pub fn opentelemetry(mut self) -> Self {
        self.spans = Some(Arc::new(Spans::new()));
        self
    }

    /// Opens the publisher. If the connection is being opened again, it starts with it.
    ///
    /// # Errors
    /// A name of the route is too long, all channels of the connection are in use, or it is gone for good. That the exchange
    /// exists is not asked here; if it does not, outcomes say so.
    pub async fn build(self) -> Result<Publisher, ChannelFault> {
        for name in [&self.route.exchange, &self.route.routing_key] {
            if name.len() > 255 {
                return Err(ChannelFault::NameTooLong { bytes: name.len() });
            }
        }
        let over = self.connection.main().link.with(|session| match session.phase() {
            Phase::Over(lost) => Some(lost.clone()),
            _ => None,
        });
        if let Some(lost) = over {
            return Err(lost.into());
        }
        let target = Target {
            exchange: self.route.exchange,
            routing_key: self.route.routing_key,
            mandatory: self.mandatory,
        };
        let plan = Plan {
            target,
            stall_us: self.stall_us,
            limit_us: self.limit_us,
            ordered: self.ordered || self.window != Window::tuned(),
            window: self.window,
        };
        let lanes = self
            .connection
            .pool()
            .join(|guards| Lanes::new(plan, guards))
            .ok_or(Lost::ClosedByUs)?;
        lanes.check_free_channel()?;
        let sampling = self.explain_every.map(|every| Arc::new(Sampling::new(every)));
        Ok(Publisher { lanes, sampling, spans: self.spans })
    }
}

/// Publishes to one route, in order unless [unordered](PublisherBuilder::unordered), with confirms. Clones share it,
/// and its window.
///
/// ```no_run
/// # async fn example(connection: forebay_client::Connection) -> Result<(), Box<dyn std::error::Error>> {
/// use forebay_client::Route;
///
/// let orders = connection.publisher(Route::queue("orders")).build().await?;
/// let outcome = orders.publish("one").await?; // admitted: the window has room
/// outcome.await?; // confirmed: the broker has it, on disk
/// # Ok(())
/// # }
/// ```
///
/// **After a reconnect** what has no outcome yet is published again, in order, with the same message-id and
/// the header [`REPUBLISHED_HEADER`](crate::REPUBLISHED_HEADER); callers still see one outcome each.
///
/// **A message over which connections end** is not published for ever. After an end that may be because of one, what was
/// in flight goes out one by one and then more at a time, while everything else waits; and what connections keep ending over
/// has the outcome [`ConnectionsEnded`](crate::UnknownReason::ConnectionsEnded). No outage makes one: not a broker that cannot be
/// reached, nor one that closes connections because it stops.
///
/// **A channel that is no good** is replaced: one that rejected everything for a second or more, once what is on
/// it has its outcomes, or 5 s later (a channel that does no better is given twice as long, up to 8 s), and one that stalls
/// ([`PublisherBuilder::stall_timeout`]).
///
/// **Order.** Messages reach a queue in the order in which they were admitted, which for one task is the
/// order of its calls. A publisher is on one socket, and moves to another only when nothing of it is in flight.
///
/// **Memory.** Bodies are kept until they have an outcome; the window bounds how many that are.
#[derive(Clone)]
pub struct Publisher {
    lanes: Arc<Lanes>,
    /// Which messages are marked.
    sampling: Option<Arc<Sampling>>,
    spans: Option<Arc<Spans>>,
}

impl Publisher {
    /// Publishes a message as soon as the window has room, and returns the future of its outcome. Neither
    /// the broker nor the network is waited for beyond that.
    ///
    /// While the connection is being opened again, or the broker takes no publishes, there is no room; use
    /// [`Publisher::publish_within`] where that may not take for ever.
    ///
    /// # Errors
    /// The message was not sent, for the reason given, and is handed back.
    ///
    /// # Cancellation
    /// A future dropped while it waits has sent nothing, unless it was admitted in that very moment; then
    /// the message has an outcome that only the metrics and the log tell.
    pub async fn publish(&self, message: impl Into<Message>) -> Result<Outcome, NotPublished> {
        self.pass(message.into(), None).await
    }

    /// The same, giving up after `patience`.
    ///
    /// # Errors
    /// As [`Publisher::publish`], and [`NotPublishedReason::DeadlinePassed`].
    pub async fn publish_within(
        &self,
        patience: Duration,
        message: impl Into<Message>,
    ) -> Result<Outcome, NotPublished> {
        // With a patience that no clock can tell the end of there is none.
        self.pass(message.into(), Instant::now().checked_add(patience)).await
    }

    async fn pass(
        &self,
        message: Message,
        deadline: Option<Instant>,
    ) -> Result<Outcome, NotPublished> {
        // A caller that never has to wait would keep everybody else from running.
        tokio::task::coop::consume_budget().await;
        let (mut message, offered_us) = self.offered(message);
        loop {
            let (lane, published) = match self.lanes.publish(message, offered_us) {
                Asked::Answered(lane, published) => (lane, published),
                Asked::After(lane, back) => {
                    if until(deadline, Idle::begin(lane)).await.is_none() {
                        return Err(refused(NotPublishedReason::DeadlinePassed, back));
                    }
                    message = back;
                    continue;
                }
            };
            let entry = match published {
                Published::Admitted(entry) => entry,
                Published::Refused(reason, message) => return Err(refused(reason, message)),
                Published::Waiting(id) => {
                    let mut waiting = Waiting { lane: &lane, id: Some(id) };
                    let admitted = until(deadline, poll_fn(|cx| waiting.poll(cx))).await;
                    let late =
                        |message| NotAdmitted::Never(NotPublishedReason::DeadlinePassed, message);
                    match admitted.unwrap_or_else(|| waiting.give_up().map_err(late)) {
                        Ok(entry) => entry,
                        Err(NotAdmitted::Never(reason, message)) => {
                            return Err(refused(reason, message));
                        }
                        Err(NotAdmitted::Elsewhere(back)) => {
                            message = back;
                            continue;
                        }
                    }
                }
            };
            return Ok(Outcome { lane, entry: Some(entry) });
        }
    }

    /// A message is offered: begins its span, and says when that was if it is to be marked.
    fn offered(&self, mut message: Message) -> (Message, Option<u64>) {
        if let Some(timed) = TimedPublish::begin(self.lanes.target(), &message) {
            message.set_timed(timed);
        }
        if let Some(spans) = &self.spans {
            spans.publish(self.lanes.target(), &mut message);
        }
        (message, self.offered_us())
    }

    /// Now, if the next message is to be marked.
    fn offered_us(&self) -> Option<u64> {
        self.sampling.as_ref()?.choose().then(since_1970_us)
    }

    /// Waits until every message published so far has its outcome, on whatever clone, and not for those that follow meanwhile.
    pub async fn idle(&self) {
        self.lanes.idle().await;
    }

    /// What it counts, and its window.
    pub fn metrics(&self) -> PublisherMetrics {
        self.lanes.metrics()
    }
}

impl fmt::Debug for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publisher").finish_non_exhaustive()
    }
}

/// `None`: the deadline came first.
async fn until<T>(deadline: Option<Instant>, work: impl Future<Output = T>) -> Option<T> {
    match deadline {
        Some(deadline) => tokio::time::timeout_at(deadline, work).await.ok(),
        None => Some(work.await),
    }
}

/// A message is handed back as it came.
fn refused(reason: NotPublishedReason, mut message: Message) -> NotPublished {
    if let Some(span) = message.take_span() {
        span.refused(&reason);
    }
    if let Some(timed) = message.take_timed() {
        timed.refused(&reason);
    }
    NotPublished { reason, message }
}

/// A place before the gate, left when dropped.
struct Waiting<'p> {
    lane: &'p Lane,
    id: Option<WaiterId>,
}

impl Waiting<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, NotAdmitted>> {
        let id = self.id.expect("it is polled until it is ready");
        let Lane { guard, key } = self.lane;
        let polled = guard.link.with(|session| session.ledger(*key).0.poll_admitted(id, cx));
        if polled.is_ready() {
            self.id = None;
        }
        polled
    }

    /// The message back, or its entry if it was admitted meanwhile.
    fn give_up(&mut self) -> Result<usize, Message> {
        let id = self.id.take().expect("it was not ready");
        let Lane { guard, key } = self.lane;
        guard.link.with_now(|session, now_us| session.withdraw(*key, id, now_us))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            let Lane { guard, key } = self.lane;
            drop(guard.link.with_now(|session, now_us| session.stop_waiting(*key, id, now_us)));
        }
    }
}

/// What becomes of one published message: the future of exactly one outcome.
///
/// It need not be awaited at once; a program may keep a thousand and await them in any order. If it is
/// dropped the message goes on its way, and an outcome other than confirmed is logged, counted, and an error of
/// [`Connection::close`].
#[must_use = "the message is not safe before its outcome says so; await it"]
pub struct Outcome {
    lane: Arc<Lane>,
    /// Until it was told.
    entry: Option<usize>,
}

impl Future for Outcome {
    type Output = Result<Confirmed, Unconfirmed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let entry = self.entry.expect("an outcome is not polled after it was told");
        let key = self.lane.key;
        let polled =
            self.lane.guard.link.with(|session| session.ledger(key).0.poll_outcome(entry, cx));
        if polled.is_ready() {
            self.entry = None;
        }
        polled
    }
}

impl Drop for Outcome {
    fn drop(&mut self) {
        if let Some(entry) = self.entry {
            let key = self.lane.key;
            self.lane.guard.link.with(|session| session.abandon_outcome(key, entry));
        }
    }
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outcome").field("told", &self.entry.is_none()).finish_non_exhaustive()
    }
}

impl From<TooLong> for NotPublishedReason {
    fn from(too_long: TooLong) -> Self {
        NotPublishedReason::TooLong(too_long)
    }
}

impl From<Lost> for NotPublishedReason {
    fn from(lost: Lost) -> Self {
        NotPublishedReason::Lost(lost)
    }
}
