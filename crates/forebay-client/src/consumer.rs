//! Consuming with credit that follows the workers.

use std::fmt;
use std::future::poll_fn;
use std::ops::Deref;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use forebay_flow::Occupancy;
use forebay_wire::{TableBuf, Value};

use crate::connection::{Connection, Guard};
use crate::consumer_limits::{ConsumerLimits, SOLE_CREDIT_MAX, ack_timeout, credit_max};
use crate::error::{ChannelFault, ConsumeError, OpenError};
use crate::machine::ChannelError;
use crate::message::since_1970_us;
use crate::metrics::ConsumerMetrics;
use crate::received::Received;
use crate::session::{
    CREDIT_MAX, Credit, DeliveryKey, How, Intake, LIVE_CREDIT, PresentTap, Ready, STALL_US, Verdict,
};
use crate::settlement::Settlement;
use crate::shell::random_u64;
use crate::spans::Spans;
use crate::system_clock::SystemClock;
use crate::timed::TimedDelivery;

mod stale;
use stale::STREAM_OFFSET;

/// With less nobody could settle anything before it goes back, and it would come again and again.
const WORK_LIMIT_MIN_US: u64 = 1_000;

/// Options of a consumer. All have defaults.
#[derive(Debug, Clone)]
pub struct ConsumerBuilder {
    connection: Connection,
    queue: String,
    workers: u16,
    credit_max: Option<u16>,
    credit: Option<u16>,
    exclusive: bool,
    arguments: TableBuf,
    work_limit: Option<Duration>,
    occupancy: Option<Arc<Occupancy>>,
    stall_us: Option<u64>,
    explain: bool,
    spans: Option<Arc<Spans>>,
}

impl ConsumerBuilder {
    pub(crate) fn new(connection: Connection, queue: String) -> ConsumerBuilder {
        ConsumerBuilder {
            connection,
            queue,
            workers: 1,
            credit_max: None,
            credit: None,
            exclusive: false,
            arguments: TableBuf::new(),
            work_limit: None,
            occupancy: None,
            stall_us: Some(STALL_US),
            explain: false,
            spans: None,
        }
    }

    /// How many messages are worked on at a time, at least 1. It need not be said: whoever asks for a message while holding others
    /// counts as one more worker. Saying it spares finding out.
    #[must_use]
    pub fn workers(mut self, workers: u16) -> Self {
        self.workers = workers.max(1);
        self
    }

    /// Workers that somebody counts, who says at each moment how many there are and how many are busy; several consumers may serve
    /// the same ones. Then the credit follows them: nothing is held here for a worker who is busy with something long, also when
    /// there are fewer workers than there were, when messages that were taken wait for something other than a worker, or when
    /// another consumer brought what they are busy with. Say that a worker is free *before* his message is settled: else the
    /// consumer may find all of them busy, ask for nothing, and look again only after 20 ms. For pools of workers, instead of
    /// [`ConsumerBuilder::workers`]; a pipeline does it by itself.
    #[must_use]
    pub fn occupancy(mut self, occupancy: Arc<Occupancy>) -> Self {
        self.occupancy = Some(occupancy);
        self
    }

    /// Deliveries held at a time at most, in work and waiting together; [`CREDIT_MAX`] unless set, at least
    /// 1. This also bounds how many messages are in work at a time.
    #[must_use]
    pub fn credit_max(mut self, deliveries: u16) -> Self {
        self.credit_max = Some(deliveries.max(1));
        self
    }

    /// Sets the credit by hand, at least 1 (`prefetch`, as others call it). Needed on RabbitMQ for a queue with
    /// `x-single-active-consumer`, or a stream, that was not declared on this connection: there the credit is changed by
    /// another consumer that takes the first one's place, which gives up its turn.
    #[must_use]
    pub fn fixed_credit(mut self, deliveries: u16) -> Self {
        self.credit = Some(deliveries.max(1));
        self
    }

    /// Corrects what was set by hand, for workers that somebody counts ([`ConsumerBuilder::occupancy`]) and that need `least`
    /// deliveries at a time: `credit_max` and `fixed_credit` are never less. On a broker that changes the credit of a live
    /// consumer (capability `forebay.live_credit`) no credit is fixed any more: it follows the workers. Elsewhere it stays
    /// fixed, because there only another consumer could have another one. For pools of workers; a pipeline does it by itself.
    #[must_use]
    pub fn fitted(mut self, least: u16) -> Self {
        let unset = (least > SOLE_CREDIT_MAX).then_some(CREDIT_MAX);
        self.credit_max = self.credit_max.or(unset).map(|most| most.max(least));
        let live = self.connection.server().can(LIVE_CREDIT);
        self.credit = self.credit.filter(|_| !live).map(|fixed| fixed.max(least));
        self
    }

    /// No other consumer may share the queue. On brokers that cannot change the credit of a live consumer (RabbitMQ) it
    /// is `credit_max` from the beginning then, 1000 unless set.
    #[must_use]
    pub fn exclusive(mut self) -> Self {
        self.exclusive = true;
        self
    }

    /// The longest that a message may be in work, at least 1 ms. One that is held for longer goes back to its queue, for somebody
    /// else, and settling it comes too late. No limit unless set.
    ///
    /// A Forebay broker lets work last as long as it needs to while this program lives, whatever its `ack_timeout_ms` or
    /// `x-consumer-timeout`: so this is what finds a worker that is stuck. RabbitMQ closes the consumer's channel at its own
    /// timeout, which should be longer.
    #[must_use]
    pub fn work_limit(mut self, limit: Duration) -> Self {
        let limit_us = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX);
        self.work_limit = Some(Duration::from_micros(limit_us.max(WORK_LIMIT_MIN_US)));
        self
    }

    /// After so long without a message, while nothing is held, RabbitMQ is asked how many wait in the queue. If some do, a
    /// second later as well, the consumer goes on with another channel, and the broker delivers again, marked, what it
    /// believes to have sent on the first. 30 s unless set, at least 1 s. RabbitMQ's quorum queues need it after a node was
    /// away for a while. Where no other channel gets anything either, the next is tried after twice the time.
    ///
    /// Not for consumers that have their queue alone: exclusive ones, those of a stream, and of a queue that was declared
    /// on this connection with `x-single-active-consumer`. A Forebay is never asked.
    #[must_use]
    pub fn stall_timeout(mut self, timeout: Duration) -> Self {
        let timeout_us = u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX);
        self.stall_us = Some(timeout_us.max(1_000_000));
        self
    }

    /// Waits for messages as long as the connection lives.
    #[must_use]
    pub fn without_stall_timeout(mut self) -> Self {
        self.stall_us = None;
        self
    }

    /// Tells of each message when this client had read it, and asks the broker when it had it and sent it, for messages
    /// that their publisher marked: [`Received::marks`](crate::Received::marks) has the times. A Forebay can
    /// (`forebay.marks`); of any other broker it is only known when its messages came.
    #[must_use]
    pub fn explain(mut self) -> Self {
        self.explain = true;
        self
    }

    /// Makes a span of OpenTelemetry (`receive`) for each message at the moment at which it is handed out. It is a child of
    /// the current span, or of the context with which the message came where there is none, and has a link to that
    /// context. Whether the work on it gets a span is up to the program: [`Received::process_span`].
    ///
    /// Not needed for a pipeline, which has spans of its own. Tracer provider and propagator are the global ones, the
    /// provider's as it is now.
    #[cfg(feature = "opentelemetry")]
    #[must_use]
    pub fn opentelemetry(mut self) -> Self {
        self.spans = Some(Arc::new(Spans::new()));
        self
    }

    /// One more argument of `basic.consume`, for instance `x-priority`.
    #[must_use]
    pub fn argument(mut self, name: &str, value: Value<'_>) -> Self {
        self.arguments.push(name.as_bytes(), value);
        self
    }

    /// What was set, for those who check whether it fits their needs.
    #[must_use]
    pub fn limits(&self) -> ConsumerLimits {
        ConsumerLimits {
            credit_max: self.most(),
            fixed_credit: self.credit,
            work_limit: self.work_limit,
            ack_timeout: ack_timeout(self.arguments.as_table()),
        }
    }

    /// Whether it has its queue alone, so that no other consumer can take its place.
    fn is_sole(&self) -> bool {
        self.exclusive
            || self.arguments.as_table().get(STREAM_OFFSET).is_some()
            || self.connection.is_consumed_once(&self.queue)
    }

    /// Whether what it holds when its connection is lost is still in the queue then.
    fn is_given_again(&self) -> bool {
        self.arguments.as_table().get(STREAM_OFFSET).is_none()
            && self.connection.gives_again(&self.queue)
    }

    /// Deliveries held at a time at most, where none were fixed.
    fn most(&self) -> u16 {
        credit_max(self.credit_max, self.is_sole(), &self.connection.server())
    }

    /// What it will consume.
    #[must_use]
    pub fn queue(&self) -> &str {
        &self.queue
    }

    /// The connection that it will be on.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Starts the consumer, on the connection's socket for consuming.
    ///
    /// # Errors
    /// The queue does not exist or may not be consumed, or no socket can be opened.
    ///
    /// # Cancellation
    /// A dropped future leaves no consumer behind.
    pub async fn build(self) -> Result<Consumer, BuildConsumerError> {
        if self.queue.len() > 255 {
            let fault = crate::error::ChannelFault::NameTooLong { bytes: self.queue.len() };
            return Err(BuildConsumerError::Refused(fault.into()));
        }
        let guard = self.connection.consuming().await.map_err(BuildConsumerError::NotOpened)?;
        let (sole, max) = (self.is_sole(), u32::from(self.most()));
        let work_limit_us = self.work_limit.map(|limit| limit.as_micros() as u64);
        let gives_again = self.is_given_again();
        let how = How {
            queue: self.queue.clone(),
            tag: format!("forebay-{:016x}", random_u64()),
            exclusive: self.exclusive,
            sole,
            arguments: self.arguments,
            marks: self.explain,
            work_limit_us,
            occupancy: self.occupancy,
            stall_us: self.stall_us,
        };
        let added = guard.link.with_now(|session, now_us| {
            let credit =
                Credit::new(now_us, u32::from(self.workers), max, self.credit.map(u32::from));
            session.check_free_channel()?;
            let intake = Intake::new(how, credit);
            let present = intake.present_tap();
            Ok::<_, ChannelError>((session.add_intake(intake, now_us), present))
        });
        let refused =
            |error: ChannelError| BuildConsumerError::Refused(ChannelFault::from(error).into());
        let (key, present) = added.map_err(refused)?;
        let clock = self.explain.then(SystemClock::default);
        let (queue, spans) = (self.queue, self.spans);
        let shared =
            ConsumerShared { guard, key, present, work_limit_us, gives_again, clock, queue, spans };
        let consumer = Consumer { shared: Arc::new(shared) };
        let shared = &consumer.shared;
        poll_fn(|cx| shared.guard.link.with(|session| session.intake(key).0.poll_consuming(cx)))
            .await
            .map_err(BuildConsumerError::Refused)?;
        Ok(consumer)
    }
}

/// Why a consumer was not started.
#[derive(Debug, Clone, PartialEq)]
pub enum BuildConsumerError {
    /// There is no socket for consuming.
    NotOpened(OpenError),
    /// The broker refused.
    Refused(ConsumeError),
}

impl fmt::Display for BuildConsumerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BuildConsumerError::NotOpened(error) => error.fmt(f),
            BuildConsumerError::Refused(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for BuildConsumerError {}

/// Takes messages of one queue.
///
/// ```no_run
/// # async fn example(connection: forebay_client::Connection) -> Result<(), Box<dyn std::error::Error>> {
/// let mut jobs = connection.consumer("jobs").build().await?;
/// while let Some(job) = jobs.next().await? {
///     println!("{}", String::from_utf8_lossy(job.body()));
///     job.ack();
/// }
/// # Ok(())
/// # }
/// ```
///
/// **Credit.** How many messages the broker sends ahead follows from how long they take and how far away the
/// broker is; see [`ConsumerMetrics::credit`]. Slow work holds nothing back that another consumer could do.
///
/// **Acks** leave together: `multiple` over what is finished without a gap, one by one beyond, after at most 10 ms, and at once
/// when there is nothing left to work on. On brokers that cannot change the credit of a live consumer (RabbitMQ) they are kept for
/// a round trip and 20 ms at most whenever another credit is wanted, four times a second at most.
///
/// **Order.** Messages come in the order in which the broker gives them to its consumer, also while the credit changes.
///
/// **After a reconnect** it goes on by itself. What had been delivered is delivered again; acks that come
/// too late say so and are not sent. In a RabbitMQ cluster the queue may be on a node that is down: then it asks every second until
/// that is back, and [`Happening::QueueAway`](crate::Happening::QueueAway) tells.
///
/// **Busy workers hold nothing back.** On a broker that says it is safe (`forebay.live_credit`), messages that
/// wait here while all workers are busy with something long go back to their queue, for others to take.
///
/// Dropping the consumer stops it, as [`Consumer::stop`] does; deliveries taken from it can still be settled.
pub struct Consumer {
    shared: Arc<ConsumerShared>,
}

struct ConsumerShared {
    guard: Arc<Guard>,
    key: usize,
    present: PresentTap,
    work_limit_us: Option<u64>,
    /// The queue does, what was in hand when a connection was lost.
    gives_again: bool,
    /// Where messages are marked.
    clock: Option<SystemClock>,
    queue: String,
    spans: Option<Arc<Spans>>,
}

impl ConsumerShared {
    fn delivery(self: &Arc<Self>, ready: Ready, now_us: u64) -> Delivery {
        let Ready { key, mut message, came_us } = ready;
        if let Some(clock) = &self.clock {
            message.set_delivered(clock.at(came_us, now_us, since_1970_us));
        }
        let consumer = Some(self.clone());
        let taken_us = now_us;
        Delivery { message, key, taken_us, lasts: false, worked: None, timed: None, consumer }
    }

    /// It is handed out; not with the lock held, as spans are somebody else's code.
    fn hand_out(&self, mut delivery: Delivery) -> Delivery {
        if let Some(spans) = &self.spans {
            spans.received(&self.queue, &delivery);
        }
        let (redelivered, body_bytes) = (delivery.redelivered(), delivery.body().len());
        delivery.timed = TimedDelivery::begin(&self.queue, redelivered, body_bytes, || {
            let metrics = self.guard.link.with(|session| session.intake(self.key).0.metrics());
            (metrics.credit, metrics.in_work)
        });
        delivery
    }
}

impl Drop for ConsumerShared {
    fn drop(&mut self) {
        self.guard.link.with(|session| session.drop_intake(self.key));
    }
}

impl Drop for Consumer {
    /// Deliveries in work can still be settled; no others are for us.
    fn drop(&mut self) {
        self.stop();
    }
}

impl Consumer {
    /// The next message; `None` after [`Consumer::stop`], unless there was an error before.
    ///
    /// # Errors
    /// The broker cancelled the consumer (its queue was deleted) or closed its channel, or the connection is gone for good. Each
    /// later call gives the same answer, also after [`Consumer::stop`].
    ///
    /// # Cancellation
    /// A dropped future has taken nothing.
    pub async fn next(&mut self) -> Result<Option<Delivery>, ConsumeError> {
        tokio::task::coop::consume_budget().await;
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// [`Consumer::next`] for those who poll: the last waker is the one that is woken.
    ///
    /// # Errors
    /// As [`Consumer::next`].
    pub fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Delivery>, ConsumeError>> {
        let shared = &self.shared;
        let polled = shared.guard.link.with_now(|session, now_us| {
            let (intake, machine) = session.intake(shared.key);
            let polled = intake.poll_next(machine, now_us, cx);
            polled.map_ok(|ready| Some(shared.delivery(ready?, now_us)))
        });
        polled.map_ok(|delivery| delivery.map(|delivery| shared.hand_out(delivery)))
    }

    /// A message that is here already, without waiting.
    pub fn try_next(&mut self) -> Option<Delivery> {
        let shared = &self.shared;
        let taken = shared.guard.link.with_now(|session, now_us| {
            let (intake, machine) = session.intake(shared.key);
            Some(shared.delivery(intake.take_ready(machine, now_us)?, now_us))
        });
        taken.map(|delivery| shared.hand_out(delivery))
    }

    /// Takes no more messages: those that wait here go back to their queue at once. Deliveries taken before
    /// can still be settled.
    pub fn stop(&mut self) {
        self.shared.guard.link.with(|session| {
            let (intake, machine) = session.intake(self.shared.key);
            intake.stop(machine);
        });
    }

    /// From now on [`ConsumerBuilder::credit_max`] is `deliveries`, if that is more than it was: for more workers than there
    /// were to be when it was built.
    pub fn raise_credit_max(&mut self, deliveries: u16) {
        self.shared.guard.link.with(|session| {
            session.intake(self.shared.key).0.raise_credit_max(deliveries.into());
        });
    }

    /// What it counts, and its credit.
    pub fn metrics(&self) -> ConsumerMetrics {
        self.shared.guard.link.with(|session| session.intake(self.shared.key).0.metrics())
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").finish_non_exhaustive()
    }
}

/// A message to work on. Settle it with [`Delivery::ack`], [`Delivery::requeue`] or [`Delivery::reject`];
/// dropped unsettled, for instance by an error or a panic, it goes back to its queue.
#[must_use = "an unsettled delivery goes back to its queue when it is dropped"]
pub struct Delivery {
    message: Received,
    key: DeliveryKey,
    taken_us: u64,
    /// Of the message, where it was taken out: see [`Delivery::comes_again`].
    lasts: bool,
    /// Where somebody said so.
    worked: Option<Duration>,
    timed: Option<TimedDelivery>,
    /// Until it is settled.
    consumer: Option<Arc<ConsumerShared>>,
}

impl Delivery {
    /// The work is done: the broker may forget the message.
    ///
    /// Returns at once; the ack leaves together with others, soon ([`Consumer`] says when).
    ///
    /// The settlement tells whether it was in time; most programs can do nothing about it. Work that must
    /// not be done twice remembers message-ids.
    pub fn ack(mut self) -> Settlement {
        self.settle(Verdict::Ack)
    }

    /// The message goes back to its queue, as near to its old place as the broker can.
    pub fn requeue(mut self) -> Settlement {
        self.settle(Verdict::Refuse { requeue: true })
    }

    /// The message cannot be used: the broker drops it, or hands it to the queue's dead-letter exchange.
    pub fn reject(mut self) -> Settlement {
        self.settle(Verdict::Refuse { requeue: false })
    }

    /// The message without its fate: it is acknowledged, and what it said remains.
    pub fn ack_and_keep(mut self) -> Received {
        self.settle(Verdict::Ack);
        std::mem::take(&mut self.message)
    }

    /// A worker was at it for so long, where that is not the time since it was taken: it waited for something else
    /// as well, for instance for its batch. How far to look ahead follows from it.
    pub fn set_worked(&mut self, worked: Duration) {
        self.worked = Some(worked);
    }

    /// The span of `tracing` that is open while the message is in work, for what the work logs:
    /// `work(&job).instrument(job.tracing_span())`. Disabled unless somebody subscribes to the level DEBUG.
    #[must_use]
    pub fn tracing_span(&self) -> tracing::Span {
        self.timed.as_ref().map_or_else(tracing::Span::none, TimedDelivery::span)
    }

    fn settle(&mut self, verdict: Verdict) -> Settlement {
        let Some(consumer) = self.consumer.take() else { return Settlement::new(true) };
        let (known, service_us) = consumer.guard.link.with_now(|session, now_us| {
            let worked_us = self.worked.map(|worked| worked.as_micros() as u64);
            let service_us = worked_us.unwrap_or_else(|| now_us.saturating_sub(self.taken_us));
            let (intake, machine) = session.intake(consumer.key);
            (intake.settle(machine, self.key, verdict, service_us, now_us), service_us)
        });
        if let Some(timed) = self.timed.take() {
            timed.settled(verdict, service_us, known);
        }
        Settlement::new(known)
    }
}

impl Deref for Delivery {
    type Target = Received;

    fn deref(&self) -> &Received {
        &self.message
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        self.settle(Verdict::Refuse { requeue: true });
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery").field("message", &self.message).finish_non_exhaustive()
    }
}
