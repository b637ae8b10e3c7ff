//! Pipelines ([`forebay_pipeline`]), with queues as sources, on any broker.
//!
//! ```
//! use forebay::pipeline::{Item, Pipeline, Queues};
//! use forebay::{Broker, Queue, Received, Route, Topology};
//!
//! async fn work(order: Item<Received>) -> Result<(), std::str::Utf8Error> {
//!     println!("{}", std::str::from_utf8(order.body())?);
//!     Ok(()) // acknowledged; an error rejects it
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
use std::time::Duration;

use forebay_client::{
    BuildConsumerError, CREDIT_MAX, Connection, Consumer, ConsumerBuilder, ConsumerLimits,
    Delivery, Received,
};
pub use forebay_pipeline::*;

use forebay_pipeline::source::Taken;

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
/// From a [`ConsumerBuilder`] for one with options. The number of workers is the pipeline's. So is the largest credit,
/// where it comes from [`Queues::source`]; the credit of a builder must be enough for the batches.
pub struct QueueSource {
    state: State,
    /// Nobody set the credit, so it can be what the pipeline needs.
    free: bool,
    limits: ConsumerLimits,
    ack_timeout: AckTimeout,
}

type Opening = Pin<Box<dyn Future<Output = Result<Consumer, BuildConsumerError>> + Send>>;

enum State {
    Planned(ConsumerBuilder),
    Opening(Opening),
    Consuming(Consumer),
}

impl From<ConsumerBuilder> for QueueSource {
    fn from(consumer: ConsumerBuilder) -> QueueSource {
        QueueSource {
            free: false,
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
                    Ok(consumer) => self.state = State::Consuming(consumer),
                    Err(error) => return Poll::Ready(Err(SourceError::new(error))),
                },
                State::Consuming(consumer) => {
                    let taken = ready!(consumer.poll_next(cx)).map_err(SourceError::new)?;
                    return Poll::Ready(Ok(
                        taken.map(|mut delivery| (delivery.take_message(), QueueReceipt(delivery)))
                    ));
                }
            }
        }
    }

    fn needs(&mut self, needs: &Needs) -> Vec<Finding> {
        let at_most = |messages: usize| u16::try_from(messages).unwrap_or(u16::MAX);
        if let State::Planned(consumer) = &mut self.state {
            let mut fitting = consumer.clone().workers(at_most(needs.workers));
            if self.free {
                // Or a batch could wait for messages that the broker does not send before it is acknowledged.
                let most = needs.held_messages.saturating_add(needs.put_off_messages);
                fitting = fitting.credit_max(at_most(most).max(CREDIT_MAX));
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
            *consumer = fitting;
        }
        examine(needs, &self.limits, self.ack_timeout)
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
pub struct QueueReceipt(Delivery);

impl Receipt for QueueReceipt {
    const TIMED: bool = true;

    fn worked(&mut self, time: Duration) {
        self.0.set_worked(time);
    }

    fn settle(self, verdict: Verdict) {
        // Too late, after a reconnect, is told by the consumer's metrics: the message comes again.
        let _ = match verdict {
            Verdict::Ack => self.0.ack(),
            Verdict::Reject => self.0.reject(),
            Verdict::Requeue => self.0.requeue(),
        };
    }
}
