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
//! - [`Concurrency`]: how many at a time, a number or what the pipeline finds out.
//! - [`Outcome`]: what a handler may decide. An error or a panic is one message's failure, nobody else's.
//! - [`ToBatch`] and [`Batching`]: what handlers return is worked on together, and the messages are settled then.
//! - [`source::merge`] and [`Process::into_source`]: several sources for one pipeline, and pipelines one after the other.
//! - [`explain`]: where the time of messages went, for pipelines that were asked ([`Process::explain`]).
//! - [`dispatch`] and [`batcher`]: who may start what, and when a batch is full, as machines without clock or I/O.
//!
//! **No message waits behind a busy worker.** There is one buffer for all workers, and a message is asked for
//! when a worker is idle, not before. What waits elsewhere can still be done elsewhere.
//!
//! Deliberately absent: AMQP. Queues are one source among others.

mod ages;
mod backoff;
mod batch;
mod batched;
pub mod batcher;
mod breaker;
mod chain;
mod collector;
mod concurrency;
mod deduplicate;
pub mod dispatch;
mod floor;
mod handler;
mod item;
mod let_go;
mod needs;
mod outages;
mod outcome;
mod pipeline;
mod policy;
mod report;
mod running;
mod seats;
mod service;
pub mod source;
#[cfg_attr(not(feature = "opentelemetry"), path = "no_spans.rs")]
mod spans;
mod stage;
mod stretch;
mod supervise;
mod trace;
mod tuning;

pub use backoff::Backoff;
pub use batch::{Batch, BatchReceipt, Batching, HELD_MAX, ToBatch};
pub use batched::Batched;
pub use breaker::Breaker;
pub use chain::{ChainReceipt, Chained, HandOn};
pub use concurrency::Concurrency;
pub use deduplicate::{Deduplicated, Once};
pub use forebay_flow::{Occupancy, explain};
pub use handler::{Async, Blocking, Failure, Handler};
pub use item::Item;
pub use needs::{Finding, Needs};
pub use outcome::{Handled, Outcome, Step, Verdict};
pub use pipeline::{BUFFER_MAX, Pipeline, Process};
pub use report::Report;
pub use running::{Control, Running};
pub use service::Called;
pub use source::{Receipt, Source, SourceError};
pub use trace::Explaining;
