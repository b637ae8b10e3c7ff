//! A message broker inside your process, and the client to talk to it.
//!
//! ```
//! use forebay::{Broker, Queue, Route, Topology};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let broker = Broker::in_memory()?; // or Broker::open("./data")?
//! let connection = broker.connect().await?;
//! connection.declare(Topology::new().queue(Queue::durable("orders"))).await?;
//! let orders = connection.publisher(Route::queue("orders")).build().await?;
//! orders.publish("one").await?.await?;
//!
//! let mut jobs = connection.consumer("orders").build().await?;
//! let job = jobs.next().await?.expect("it was published above");
//! assert_eq!(job.body(), b"one");
//! job.ack();
//! connection.close().await?; // fails if anything published is not confirmed
//! broker.close()?;
//! # Ok(())
//! # }
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(example())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The same program runs against `forebay serve` or RabbitMQ when the connection is opened by
//! [`Connection::open`] with a URI instead. With [`Broker::listen`] other processes may join.
//!
//! [`pipeline`] works on a queue's messages, or any others, many at a time.

mod broker;
mod doctor;
mod in_process;
pub mod pipeline;

pub use broker::{Broker, BrokerBuilder};
pub use forebay_client::*;
pub use forebay_server::{
    Config, Data, DurabilitySetting, InProcessStream, ServerFailed, Snapshot, StartError,
    UserSetting,
};
#[cfg(feature = "opentelemetry")]
pub use opentelemetry;
