//! The shell around the broker: sockets, threads, configuration, HTTP.
//!
//! The state machine in `forebay-broker` decides, this crate performs:
//!
//! ```text
//!   sockets, in-process pipes ──bytes──►                ──bytes──► sockets, pipes
//!   clock ───────────────now_us────────►  Shard::step   ──requests──► lanes: log, read, background
//!   lanes ─────────────completions─────►                ──next deadline──► the wait
//! ```
//!
//! Deliberately absent: AMQP (bytes go in and come out), and any decision about messages.
//!
//! # Example
//! ```
//! use forebay_server::{Config, Data, Server};
//!
//! let config = Config {
//!     data: Data::Memory,
//!     amqp: vec!["127.0.0.1:0".to_owned()],
//!     http: None,
//!     ..Config::default()
//! };
//! let server = Server::start(config)?;
//! println!("any RabbitMQ client may connect to {}", server.addresses().amqp[0]);
//! server.stop()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod allocate;
pub mod config;
mod congestion;
mod connection;
mod http;
mod in_process;
mod lane;
mod line_writer;
mod listener;
pub mod logging;
mod mailbox;
mod management;
pub mod metrics;
mod outcome;
mod pages;
mod poller;
mod resident;
mod server;
mod shard_loop;
mod shard_setup;
mod size;
mod start_error;
mod telling;

pub use config::{Config, ConfigError, Data, DurabilitySetting, Layer, LogFormat, UserSetting};
pub use forebay_broker::topology::QUEUE_POLICY_KEYS;
pub use forebay_broker::{Declared, Gate};
pub use in_process::{IN_PROCESS_PIPE_BYTES_MAX, InProcessStream};
pub use mailbox::{ShellCounters, Snapshot};
pub use outcome::ServerFailed;
pub use server::{Addresses, Server};
pub use size::{Size, SizeError};
pub use start_error::StartError;
