//! The simulator: production broker and store, in one thread, under one seed.
//!
//! ```text
//!   clients ──bytes──► links ──Feed──► Shard::step ──requests──► lanes ──Complete──► MemDisk
//!      ▲                  │                │                                          faults
//!      └──────Carry───────┴── checker ◄────┘ outgoing
//!                                │ Command (at its last byte), Sent (as it is made)
//!                                ▼
//!                              model
//! ```
//!
//! Each step `choose` picks one event that can happen: a client acts, bytes move, a disk request
//! completes, a turn ends, somebody dies. Nothing else in here is left to chance, so a seed is a run, and
//! so is a list of [events](Event). `docs/testing.md` tells how to run one, read its trace and add a
//! fault or an invariant.

mod broker;
mod checker;
mod choose;
mod client;
mod command;
mod event;
mod finish;
mod invariants;
mod jobs;
mod letter;
mod lifecycle;
mod link;
mod message;
mod model;
mod names;
mod random;
mod run;
mod shrink;
mod swarm;
mod trace;
mod violation;
mod world;

pub use event::{Death, DiskError, Event};
pub use run::{Report, replay, run};
pub use shrink::shrink;
pub use swarm::{Job, Swarm};
pub use violation::Violation;
pub use world::Statistics;
