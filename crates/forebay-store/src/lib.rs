//! The store: one append-only log for messages and topology, and run files for what grew cold.
//!
//! The store knows no AMQP. It keeps opaque payloads under `(queue id, sequence number)` and an opaque
//! key → value map ("meta", the durable topology), all in one log, so a declare, a bind and a publish
//! are ordered by, and synced with, the same batch.
//!
//! ```text
//!   publish / settle / put_meta            poll() ──► Request ──► perform(disk, request)
//!            │                               ▲                          │ (a lane's thread,
//!            ▼                               │                          ▼  or a simulator)
//!      open batch ──► group commit ──► in flight ◄──────────────── Completion
//!                                            │
//!                                            └──► Event::Durable(batch number)
//! ```
//!
//! [`Store`] is a pure machine: it does no I/O, reads no clock and starts no thread. It hands out
//! [`Request`]s; [`perform`] carries one out on a [`Disk`]; the [`Completion`] goes back in. There are
//! three lanes with at most one request in flight on each: [`Lane::Log`] (commits), [`Lane::Read`] (blocks of run
//! files) and [`Lane::Background`] (everything that may take its time: writing runs, pre-writing, unlinking).
//!
//! The bytes are described in `docs/storage-format.md`.
//!
//! Deliberately absent: queues in order, consumers, routing, reading the log while running (the log is
//! read by recovery only; live messages are in the broker's memory or in run files).

#![forbid(unsafe_code)]

mod background;
mod batch;
mod check;
mod checkpoint;
mod checksum;
mod commit;
mod contents;
mod disk;
mod error;
mod event;
pub mod fault_disk;
mod home;
mod in_flight;
mod late_sync;
mod listing;
mod log;
mod log_image;
mod options;
mod range_set;
mod record;
mod recovery;
mod replay;
mod request;
mod room;
mod run;
mod run_files;
mod run_numbers;
mod runs_by_span;
mod segment;
mod spill;
mod store;
mod sync;
mod tail;
mod truncation;
mod window;

pub use check::{CheckReport, Finding, check};
pub use commit::Commits;
pub use disk::{Allocate, Disk, FileDisk};
pub use error::{OpenError, StoreFailed};
pub use event::Event;
pub use fault_disk::MemDisk;
pub use home::{BatchNo, Home, QueueId, RunId, Seq};
pub use options::{Durability, Options};
pub use record::ACK_BYTES;
pub use request::{Completion, Lane, Request, perform};
pub use run::RunBuilder;
pub use store::{Damage, Recovered, RecoveredQueue, RunInfo, Statistics, Store, open};
