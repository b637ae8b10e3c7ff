//! `forebay bench`: workloads by name or by flags, on any AMQP 0-9-1 broker.
//!
//! ```text
//!   Flags ──▶ Workload ──▶ Phase = Plan ──┐
//!                                         ├─▶ Session: targets x settings x repetitions, in any order
//!   Target    a broker at a URL, or our   │        │ generator, one run after the other
//!             own `forebay serve` ────────┘        ▼
//!                                               Record ──▶ table, CSV, JSON, HTML, comparison
//! ```
//! What is set by hand and what tunes itself runs in the same generator, with the algorithms of
//! `forebay-flow` and the credit of `forebay-client`: nothing but the setting differs between two columns.

mod compare;
mod conclusion;
mod csv;
mod flags;
mod grid;
mod html;
mod inquiry;
mod onlooker;
mod perftest;
mod points;
mod record;
mod scale;
mod session;
mod table;
mod target;
mod workload;

pub use compare::compare;
pub use flags::Flags;
pub use html::page;
pub use record::{Outcome, Record, Run};
pub use session::{BenchError, Ended, Screen, run};
pub use table::{list, table};
