//! The broker as a state machine.
//!
//! One [`Shard`] owns connections, channels, topology, queues, consumers and the open batch of its
//! [store](forebay_store). It is driven from outside:
//!
//! ```text
//!              bytes, disk completions, ticks                  bytes to send, sockets to close,
//!   shell ───────────────► step(now_us, Input) ───────────►    disk requests, next deadline
//! ```
//!
//! Deliberately absent: sockets, threads, clocks, files, random numbers that nobody seeded. The same
//! inputs at the same times give the same outputs, which is what the simulator lives on.
//!
//! Polling order for a shell, once per turn of its loop: step every [`Input`] it has (with [`Input::Deliver`] and
//! what is outgoing then between the bytes of those that only take and those of publishers), then
//! [`Input::Turn`], then [`Shard::next_dirty`]/[`Shard::outgoing`] until empty, then
//! [`Shard::next_closed`], then [`Shard::poll_disk`] until `None`, then sleep no longer than
//! [`Shard::next_deadline_us`].

pub mod access;
mod ack_timeout;
mod active_publishers;
mod alarms;
mod arrivals;
mod balancing;
mod channel;
mod channel_methods;
mod channels;
mod cold;
mod cold_runs;
mod config;
mod confirm;
mod confirming;
mod connection;
mod connection_methods;
mod consume;
mod consumer;
mod content;
mod dead_letters;
mod declared;
mod delivery;
mod dying;
pub mod error;
mod evacuation;
mod exchange_methods;
mod expiring;
mod firehose;
mod flow;
mod frames;
mod get;
mod handshake;
mod head;
mod input;
mod latencies;
mod levels;
mod listing;
mod marks;
mod memory;
mod message;
mod notices;
mod outgoing;
mod publish;
mod publisher;
mod queue;
mod queue_consumers;
mod queue_end;
mod queue_expiry;
mod queue_methods;
mod queue_report;
mod reply_to;
mod restore;
mod round_robin;
mod routing;
mod server_properties;
mod settle;
mod shard;
mod status;
mod time_to_live;
pub mod topology;
mod tx;
mod unacked;
mod wait_report;
mod waits;
mod warm;

pub use balancing::QueueFlow;
pub use config::ShardConfig;
pub use declared::Declared;
pub use flow::Admission;
pub use input::{CloseHow, ConnectionId, Input, Mail, Peer, ShardId};
pub use latencies::Latencies;
pub use listing::{ListCursor, Listed, SLICE};
pub use message::Message;
pub use notices::{NOTICES_MAX, Notice};
pub use queue_report::{ConsumerStatus, QueueReport};
pub use restore::RestoreError;
pub use server_properties::COMPATIBILITY;
pub use shard::Shard;
pub use status::{Counters, QueueStatus, Status};
pub use wait_report::{GateWaits, WaitEdge, WaitReport, Waiter};
pub use waits::Gate;
