//! A message broker inside your process, and the client to talk to it.
//!
//! ```
//! use forebay::{Broker};
//! use forebay::blocking::{Publication};
//!
//! let broker = Broker::in_memory()?; // or Broker::open("./data")?
//! let connection = broker.connect_blocking()?;
//! let mut channel = connection.channel()?;
//! channel.declare_queue("orders", Default::default())?;
//! channel.confirm_select(100)?;
//! channel.publish(&Publication { routing_key: "orders", body: b"one", ..Default::default() })?;
//! channel.wait_settled()?;
//! let (message, _left) = channel.get("orders", true)?.expect("it was published above");
//! assert_eq!(message.body(), b"one");
//! broker.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The same program runs against `forebay serve` or RabbitMQ when the connection is opened by
//! [`blocking::Connection::open`] with a URI instead. With [`Broker::listen`] other processes may join.

mod broker;

pub use broker::{Broker, BrokerBuilder};
pub use forebay_client::*;
pub use forebay_server::{
    Config, Data, DurabilitySetting, InProcessStream, ServerFailed, Snapshot, StartError,
    UserSetting,
};
