//! Pipelines ([`forebay_pipeline`]), with queues as sources, on any broker.
//!
//! ```
//! use forebay::pipeline::{Item, Pipeline, Queues};
//! use forebay::{Broker, Queue, Received, Route, Topology};
//!
//! async fn work(order: Item<Received>) -> Result<(), std::str::Utf8Error> {
//!     println!("{}", std::str::from_utf8(order.body())?);
//!     Ok(()) // acknowledged; after an error it goes back to its queue
//! }
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let broker = Broker::in_memory()?;
//! let connection = broker.connect().await?;
//! connection.declare(Topology::new().queue(Queue::durable("orders"))).await?;
//! let orders = connection.publisher(Route::queue("orders")).build().await?;
//! let pipeline = Pipeline::from(connection.source("orders")).process(25, work).start();
//! orders.publish("one").await?.await?;
//! pipeline.control().drain(std::time::Duration::from_secs(10));
//! pipeline.join().await?;
//! connection.close().await?; // with it the last acknowledgements leave
//! broker.close()?;
//! # Ok(())
//! # }
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(example())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_client::{
    Again, BuildConsumerError, CREDIT_MAX, Connection, Consumer, ConsumerBuilder, ConsumerLimits,
    Delivery, NotPutOff, Received, WaitLadder,
};
pub use forebay_pipeline::*;

use forebay_pipeline::source::{Later, Leaving, Past, Taken};

use crate::doctor::{AckTimeout, examine};

/// `consumer_timeout` of a RabbitMQ that was not told otherwise.
const RABBITMQ_ACK_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// Queues of a connection as sources.
pub trait Queues {
    /// Takes messages from `queue`, as many ahead as the pipeline's workers and the way to the broker need.
    fn source(&self, queue: impl Into<String>) -> QueueSource;
}

impl Queues for Connection {
    fn source(&self, queue: impl Into<String>) -> QueueSource {
        QueueSource { free: true, ..QueueSource::from(self.consumer(queue)) }
    }
}

/// A queue as a source of messages. It consumes from when the pipeline starts until it takes no more; what the
/// client has received and not handed out then goes back to the queue at once, and what the pipeline gives up
/// goes back too.
///
/// From a [`ConsumerBuilder`] for one with options. The number of workers is the pipeline's, and so is the largest credit,
/// where it comes from [`Queues::source`]. A credit that a builder was given is corrected where it would leave workers idle: it
/// is raised to what workers and batches need, and on a broker with live credit (a Forebay) it follows the workers instead of
/// being fixed ([`ConsumerBuilder::fitted`]). What was corrected is among the findings. [`QueueSource::keep_credit`] leaves it.
///
/// **Pauses before another attempt** that take [`LADDER_FROM`](crate::LADDER_FROM) or longer are spent in the broker where that is a
/// Forebay or a RabbitMQ, on a [`WaitLadder`]: attempts are remembered and nothing is held here. Elsewhere, and where keys are in order,
/// messages are held, unacknowledged.
pub struct QueueSource {
    state: State,
    ladder: Ladder,
    rungs_made_by_others: bool,
    /// Nobody set the credit, so it can be what the pipeline needs.
    free: bool,
    /// It is not corrected either.
    kept: bool,
    limits: ConsumerLimits,
    ack_timeout: AckTimeout,
}

type Opening = Pin<Box<dyn Future<Output = Result<Consumer, BuildConsumerError>> + Send>>;

enum State {
    Planned(ConsumerBuilder),
    Opening(Opening),
    Consuming(Consumer),
}

/// Where long pauses are spent.
enum Ladder {
    /// In the broker, where [it is known](WaitLadder::is_known_on).
    Unset,
    Off,
    From(Duration),
    Chosen(Option<WaitLadder>),
}

impl QueueSource {
    /// The credit is what the consumer's builder says, though workers may idle beside messages that wait for it. Needed for
    /// nothing but to see what a prefetch does.
    #[must_use]
    pub fn keep_credit(mut self) -> QueueSource {
        self.kept = true;
        self
    }

    /// Pauses before another attempt that take so long or longer, at least 1 s, are spent in the broker, whatever it calls
    /// itself. [`LADDER_FROM`](crate::LADDER_FROM) on a Forebay and on RabbitMQ, and none on others, unless set.
    #[must_use]
    pub fn ladder_from(mut self, pause: Duration) -> QueueSource {
        self.ladder = Ladder::From(pause);
        self
    }

    /// Who runs the broker has made the ladder's queues, and this user may not: [`WaitLadder::made_by_others`].
    #[must_use]
    pub fn ladder_made_by_others(mut self) -> QueueSource {
        self.rungs_made_by_others = true;
        self
    }

    /// Messages are held here until their next attempt, unacknowledged, however long that takes.
    #[must_use]
    pub fn without_ladder(mut self) -> QueueSource {
        self.ladder = Ladder::Off;
        self
    }
}

impl From<ConsumerBuilder> for QueueSource {
    fn from(consumer: ConsumerBuilder) -> QueueSource {
        QueueSource {
            ladder: Ladder::Unset,
            rungs_made_by_others: false,
            free: false,
            kept: false,
            limits: consumer.limits(),
            ack_timeout: AckTimeout::Leases,
            state: State::Planned(consumer),
        }
    }
}

impl Source for QueueSource {
    type Value = Received;
    type Receipt = QueueReceipt;

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Taken<Self>> {
        loop {
            match &mut self.state {
                State::Planned(consumer) => {
                    self.state = State::Opening(Box::pin(consumer.clone().build()));
                }
                State::Opening(opening) => match ready!(opening.as_mut().poll(cx)) {
                    Ok(mut consumer) => {
                        if self.free {
                            consumer.raise_credit_max(self.limits.credit_max);
                        }
                        self.state = State::Consuming(consumer);
                    }
                    Err(error) => return Poll::Ready(Err(SourceError::new(error))),
                },
                State::Consuming(consumer) => {
                    let taken = ready!(consumer.poll_next(cx)).map_err(SourceError::new)?;
                    let Some(mut delivery) = taken else { return Poll::Ready(Ok(None)) };
                    let ladder = match &self.ladder {
                        Ladder::Chosen(ladder) => ladder.clone(),
                        _ => None,
                    };
                    let message = delivery.take_message();
                    return Poll::Ready(Ok(Some((message, QueueReceipt { delivery, ladder }))));
                }
            }
        }
    }

    fn needs(&mut self, needs: &Needs) -> Vec<Finding> {
        let at_most = |messages: usize| u16::try_from(messages).unwrap_or(u16::MAX);
        // Or a batch could wait for messages that the broker does not send before it is acknowledged.
        let most = at_most(needs.held_messages.saturating_add(needs.put_off_messages));
        let mut set = None;
        if let State::Planned(consumer) = &mut self.state {
            let mut fitting = consumer.clone().workers(at_most(needs.workers));
            if !self.kept && !self.free {
                let limits = fitting.limits();
                let least = needs.workers.max(needs.batch_messages.unwrap_or_default());
                fitting = fitting.fitted(at_most(least));
                self.free =
                    limits.fixed_credit.is_some() && fitting.limits().fixed_credit.is_none();
                set = Some(limits).filter(|limits| *limits != fitting.limits());
            }
            if self.free {
                fitting = fitting.credit_max(most.max(CREDIT_MAX));
            }
            if needs.marks {
                fitting = fitting.explain();
            }
            let server = fitting.connection().server();
            self.limits = fitting.limits();
            self.ack_timeout = match self.limits.ack_timeout {
                _ if server.can("forebay.leases") => AckTimeout::Leases,
                limit => AckTimeout::After(limit.unwrap_or(RABBITMQ_ACK_TIMEOUT)),
            };
            let mut ladder = WaitLadder::new(fitting.connection(), fitting.queue());
            if self.rungs_made_by_others {
                ladder = ladder.made_by_others();
            }
            let chosen = match &self.ladder {
                Ladder::Off => None,
                Ladder::Chosen(chosen) => chosen.clone(),
                Ladder::From(pause) => Some(ladder.from_pause(*pause)),
                Ladder::Unset => Some(ladder).filter(|_| WaitLadder::is_known_on(&server)),
            };
            self.ladder = Ladder::Chosen(chosen.filter(|_| !needs.ordered));
            *consumer = fitting;
        } else if self.free {
            // More workers than there were to be; one that is being opened is told when it is open.
            self.limits.credit_max = self.limits.credit_max.max(most);
            if let State::Consuming(consumer) = &mut self.state {
                consumer.raise_credit_max(self.limits.credit_max);
            }
        }
        let mut needs = *needs;
        // Batches wait here.
        if let Ladder::Chosen(Some(ladder)) = &self.ladder
            && needs.batch_messages.is_none()
        {
            needs.retry_pauses = needs.retries.map(|retries| retries.held_below(ladder.shortest()));
        }
        let mut findings = examine(&needs, &self.limits, self.ack_timeout);
        let remaining = findings.len();
        for mut found in set.iter().flat_map(|set| examine(&needs, set, self.ack_timeout)) {
            if findings[..remaining].iter().all(|left| left.name != found.name) {
                found.says += &match self.limits.fixed_credit {
                    Some(fixed) => format!(" (it is {fixed} here)"),
                    None => " (here it follows the workers)".to_owned(),
                };
                findings.push(found);
            }
        }
        findings
    }

    fn past(message: &Received, _: &QueueReceipt) -> Past {
        let rest = message.due_ms().map(|due_ms| due_ms.saturating_sub(since_1970_ms()));
        let rest = rest.filter(|rest_ms| *rest_ms > 0).map(Duration::from_millis);
        Past { attempts: message.attempts(), given_back: message.redelivered(), rest }
    }

    fn later(message: &Received, receipt: &QueueReceipt, later: Later) -> Option<Leaving> {
        let pause_ms = u64::try_from(later.pause.as_nanos().div_ceil(1_000_000));
        let due_ms = since_1970_ms().saturating_add(1).saturating_add(pause_ms.unwrap_or(u64::MAX));
        let again = Again { attempts: later.attempts, due_ms, marks: later.marks };
        let leaving = receipt.ladder.as_ref()?.put_off(message, &again)?;
        Some(Box::pin(async move { leaving.await.map_err(|why| not_put_off(&why)) }))
    }

    fn ack_timeout(&self) -> Option<Duration> {
        match self.ack_timeout {
            AckTimeout::Leases => None,
            AckTimeout::After(limit) => Some(limit),
        }
    }

    fn occupancy(&mut self, occupancy: &Arc<Occupancy>) {
        if let State::Planned(consumer) = &mut self.state {
            *consumer = consumer.clone().occupancy(occupancy.clone());
        }
    }

    fn prefetch(&self) -> Option<u64> {
        let ConsumerLimits { fixed_credit, credit_max, .. } = self.limits;
        let capped = (credit_max < CREDIT_MAX).then_some(credit_max);
        fixed_credit.or(capped).map(u64::from)
    }
}

impl fmt::Debug for QueueSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueSource").finish_non_exhaustive()
    }
}

/// Settles a message at its broker. Dropped unsettled it goes back to its queue.
#[derive(Debug)]
pub struct QueueReceipt {
    delivery: Delivery,
    ladder: Option<WaitLadder>,
}

fn since_1970_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn not_put_off(why: &NotPutOff) -> Finding {
    let name = match why {
        NotPutOff::NotDeclared(_) => "retry-ladder-refused",
        NotPutOff::NotPublished(_) | NotPutOff::Unconfirmed(_) => "retry-ladder-unconfirmed",
        NotPutOff::OfUser { .. } => "retry-ladder-of-user",
    };
    let says = format!(
        "a message could not wait in the broker for its next attempt and is held here, unacknowledged, until then: {why}"
    );
    Finding { name, says }
}

impl Receipt for QueueReceipt {
    const TIMED: bool = true;

    fn worked(&mut self, time: Duration) {
        self.delivery.set_worked(time);
    }

    fn is_void(&self) -> bool {
        self.delivery.comes_again()
    }

    fn settle(self, verdict: Verdict) {
        // Too late, after a reconnect, is told by the consumer's metrics: the message comes again.
        let _ = match verdict {
            Verdict::Ack => self.delivery.ack(),
            Verdict::Reject => self.delivery.reject(),
            Verdict::Requeue => self.delivery.requeue(),
        };
    }
}
