//! The AMQP 0-9-1 client of Forebay, for Forebay and RabbitMQ alike.
//!
//! - [`machine`] is a connection as a state machine: bytes in, [`Event`]s out; commands in, bytes out.
//!   No sockets, no clock, no threads. Load generators and other shells drive it directly.
//! - [`blocking`] is a shell around it for programs that like to wait: one connection over TCP or over
//!   any pair of `Read` and `Write`.
//!
//! ```no_run
//! use forebay_client::blocking::{Connection, Publication};
//!
//! let connection = Connection::open("amqp://guest:guest@127.0.0.1:5672/%2f")?;
//! let mut channel = connection.channel()?;
//! channel.declare_queue("orders", Default::default())?;
//! channel.confirm_select(100)?; // at most 100 publishes without an outcome
//! channel.publish(&Publication { routing_key: "orders", body: b"one", ..Default::default() })?;
//! channel.wait_settled()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod blocking;
pub mod machine;
mod receive_buffer;

pub use machine::{Event, Machine, Options, Settled};
pub use receive_buffer::ReceiveBuffer;
