//! The AMQP 0-9-1 client of Forebay, for Forebay and RabbitMQ alike.
//!
//! ```no_run
//! use forebay_client::{Connection, Queue, Route, Topology};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let connection = Connection::open("amqp://guest:guest@localhost").await?;
//! connection.declare(Topology::new().queue(Queue::durable("orders"))).await?;
//! let orders = connection.publisher(Route::queue("orders")).build().await?;
//! orders.publish("one").await?.await?; // first await: admitted; second: on the broker's disk
//!
//! let mut jobs = connection.consumer("orders").build().await?;
//! while let Some(job) = jobs.next().await? {
//!     println!("{}", String::from_utf8_lossy(job.body()));
//!     job.ack();
//! }
//! # Ok(())
//! # }
//! ```
//!
//! - [`Connection`] connects, over TCP, TLS or any stream, and connects again after a loss; what was
//!   [declared](Connection::declare), published and consumed on it goes on.
//! - [`Publisher`]: one outcome a message, and a window that tunes itself.
//! - [`Consumer`]: credit that follows the workers, acks that leave together.
//! - [`Partitions`]: one queue in several parts, each key in one of them.
//! - [`WaitLadder`]: messages that wait in a RabbitMQ for another attempt.
//! - [`Caller`]: requests with replies, by direct reply-to.
//! - [`Channel`]: AMQP as it is.
//! - [`blocking`]: a small client for programs that like to wait.
//! - [`machine`]: one connection as a state machine without sockets, clock or threads, for load generators
//!   and other shells.

pub mod blocking;
mod caller;
mod channel;
mod connection;
mod consumer;
mod consumer_limits;
mod deliveries;
mod error;
mod forwarded;
mod happening;
mod ladder;
mod lanes;
pub mod machine;
mod marks;
mod message;
mod metrics;
mod outcome;
mod partitions;
mod pool;
mod publisher;
mod receive_buffer;
mod received;
mod retry;
mod returns;
mod session;
mod settlement;
mod shell;
#[cfg_attr(not(feature = "opentelemetry"), path = "no_spans.rs")]
mod spans;
mod system_clock;
mod tcp;
mod timed;
mod tls;
mod tls_stream;
mod too_long;

pub use caller::{CallError, Caller};
pub use channel::{Channel, Consume, DeclareExchange, DeclareQueue, QueueInfo};
pub use connection::{Connection, ConnectionBuilder};
pub use consumer::{BuildConsumerError, Consumer, ConsumerBuilder, Delivery};
pub use consumer_limits::ConsumerLimits;
pub use deliveries::Deliveries;
pub use error::{ChannelFault, CloseError, ConsumeError, DeclareError, Lost, OpenError, Refusal};
pub use forebay_flow::{KernelReading, Occupancy};
pub use happening::{Happening, PublisherChannelFault};
pub use ladder::{ATTEMPTS_HEADER, Again, DUE_HEADER, LADDER_FROM, NotPutOff, Rung, WaitLadder};
pub use marks::OFFERED_HEADER;
pub use message::{Message, REPUBLISHED_HEADER};
pub use metrics::{CallerMetrics, ConnectionMetrics, ConsumerMetrics, PublisherMetrics, Summary};
pub use outcome::{Confirmed, NotPublished, NotPublishedReason, Unconfirmed, UnknownReason};
pub use partitions::Partitions;
pub use publisher::{Outcome, Publisher, PublisherBuilder, Route, Window};
pub use received::Received;
pub use returns::{RETURNS_BYTES_MAX, RETURNS_KEPT_MAX, ReturnedMessage};
pub use session::{
    Binding, CALLS_MAX, CREDIT_MAX, Credit, Exchange, INBOX_BYTES_MAX, Queue, Topology,
};
pub use settlement::{Settlement, Stale};
pub use shell::{ByteStream, HAPPENINGS_KEPT, KernelRtt, StreamFuture};
pub use tcp::connect_tcp;
pub use tls::Tls;
pub use tls_stream::TlsStream;
pub use too_long::TooLong;

pub use machine::{Event, Machine, Options, Settled};
pub use receive_buffer::ReceiveBuffer;
