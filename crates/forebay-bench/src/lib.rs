//! A load generator that stays out of the way of what it measures.
//!
//! One thread drives all publishers and consumers over non-blocking sockets; bytes move in batches
//! of up to 256 KB and no message costs an allocation. Use it on the machine of the broker, give the
//! broker the other cores, and read `generator_cores` in the report: near 1 means that the generator
//! was the bottleneck, not the broker.
//!
//! ```text
//!   Plan ──▶ Generator ──▶ Report
//!              ├── Publisher × P   window of unconfirmed, or a rate with intended send times
//!              ├── Consumer × C    prefetch, acks with `multiple`
//!              └── Peer            socket + connection machine, one a publisher or consumer
//! ```
//! Linux only: it waits with epoll and reads /proc.
#![cfg(target_os = "linux")]

mod actor;
mod arguments;
pub mod bench;
mod broker;
mod consumer;
mod costs;
mod depth;
pub mod distance;
mod experiment;
mod generator;
mod in_flight;
mod knee;
mod latency;
pub mod link;
mod occasion;
mod own_directory;
mod peer;
mod plan;
mod poller;
mod process;
mod publisher;
mod rabbitmq;
mod report;
mod schedule;
mod search;
mod setting;
mod slow_disk;
mod spread;
mod stamp;
mod step;
mod topology;
mod totals;

pub use arguments::QueueArguments;
pub use costs::{Costs, LoadCost};
pub use generator::{LoadError, Progress, Watch, run};
pub use occasion::{Machine, Occasion};
pub use plan::{Plan, PlanError};
pub use report::{LatencyReport, Report, Sample};
pub use schedule::RatePiece;
pub use setting::{Credit, Window};
pub use step::{Step, StepKind};
