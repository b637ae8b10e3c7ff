//! Pipelines: messages from a source, worked on by many at a time, each settled once.
//!
//! ```
//! use forebay_pipeline::{Item, Pipeline, source};
//!
//! async fn greet(name: Item<&'static str>) {
//!     println!("hello, {}", *name);
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let report = Pipeline::from(source::iter(["Ada", "Bo"])).process(25, greet).run().await?;
//! assert_eq!(report.acked, 2);
//! # Ok(())
//! # }
//! ```
//!
//! - [`Pipeline`] puts a source and a handler together; [`Running`] and [`Control`] are for while it works.
//! - [`source`]: iterators, streams, lines, messages of a test. The crate `forebay` adds queues.
//! - [`Outcome`]: what a handler may decide. An error or a panic is one message's failure, nobody else's.
//! - [`dispatch`]: who may start what, as a machine without clock or I/O.
//!
//! **No message waits behind a busy worker.** There is one buffer for all workers, and a message is asked for
//! when a worker is idle, not before. What waits elsewhere can still be done elsewhere.
//!
//! Deliberately absent: AMQP. Queues are one source among others.

pub mod dispatch;
mod handler;
mod item;
mod outcome;
mod pipeline;
mod report;
mod running;
mod seats;
pub mod source;
mod stage;

pub use handler::{Async, Blocking, Handler, Panicked};
pub use item::Item;
pub use outcome::{Handled, Outcome, Verdict};
pub use pipeline::{BUFFER_MAX, Pipeline, Process};
pub use report::Report;
pub use running::{Control, Running};
pub use source::{Receipt, Source, SourceError};
