//! Publishers and a broker in virtual time: what the windows are tried on.
//!
//! ```text
//!            half a round trip            visits, in turn            commit, one at a time
//!   flow ───────────────────────► socket ────────────────► pending ───────────────────────┐
//!    ▲  Gate + Window: the real ones        CPU, budget             fsync                 │
//!    └────────────────────────────────── confirm, half a round trip ◄─────────────────────┘
//! ```
//!
//! `Costs::default` is a broker of 60 000 messages a second, made up; what ours costs was measured with
//! `forebay-costs` (docs/decisions/0015-publisher-window.md). A commit takes 0.8 to 1.2 x fsync and something for
//! each message, and one in a hundred takes five times as long. The broker reads at most a budget of what it
//! has not committed: 5 ms or three commits of its recent rate. Not modelled: TCP, sizes, several cores,
//! consumers other than as CPU time per message.
//!
//! Latency runs from the call of `publish`, waiting for a permit included, to the confirm.

#![allow(dead_code, unreachable_pub, missing_docs)] // each test includes it and uses a part

pub mod broker;
pub mod flow;
pub mod outcome;
pub mod random;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use broker::Broker;
use flow::Flow;
use forebay_flow::{CommitTime, Window};
pub use outcome::Outcome;
use random::Random;

/// What one kind of work costs the broker's CPU and its log.
#[derive(Debug, Clone, Copy)]
pub struct Costs {
    pub visit_us: f64,
    pub message_us: f64,
    pub commit_message_us: f64,
}

impl Default for Costs {
    fn default() -> Costs {
        Costs { visit_us: 12.0, message_us: 16.0, commit_message_us: 1.5 }
    }
}

/// What the kernel says about the round trip.
#[derive(Debug, Clone, Copy)]
pub enum Kernel {
    Right,
    Off,
    Zero,
    FrozenAtFirst,
    /// Each reading off by up to this share.
    Noisy(f64),
    /// Each reading times this.
    Scaled(f64),
    /// The broker's kernel acknowledges when the broker reads, so a reading is most of what a confirm takes.
    Late,
}

/// A value that changes at given times: (from, value), the first at 0.
pub type Steps = Vec<(u64, u64)>;

/// One load on one broker.
#[derive(Debug, Clone)]
pub struct Cell {
    pub flows: usize,
    /// Beside them, publishers without confirms: their sockets are never empty.
    pub floods: usize,
    /// Messages a second that each flow wants to publish; infinite: as many as it may.
    pub rate_per_s: f64,
    pub rtt_us: Steps,
    pub fsync_us: Steps,
    /// Between these times no commit ends.
    pub stall_us: Option<(u64, u64)>,
    /// Flows publish nothing between these times.
    pub idle_us: Option<(u64, u64)>,
    pub kernel: Kernel,
    /// The broker tells its commit time.
    pub commit_times: bool,
    pub costs: Costs,
    pub end_us: u64,
    /// What was confirmed before does not count.
    pub warm_us: u64,
    pub seed: u64,
}

impl Default for Cell {
    fn default() -> Cell {
        Cell {
            flows: 20,
            floods: 0,
            rate_per_s: f64::INFINITY,
            rtt_us: vec![(0, 200)],
            fsync_us: vec![(0, 1_000)],
            stall_us: None,
            idle_us: None,
            kernel: Kernel::Right,
            commit_times: true,
            costs: Costs::default(),
            end_us: 6_000_000,
            warm_us: 3_000_000,
            seed: 1,
        }
    }
}

pub fn at(steps: &Steps, now_us: u64) -> u64 {
    steps.iter().rev().find(|(from_us, _)| *from_us <= now_us).expect("steps begin at 0").1
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    Publish { flow: usize },
    Arrive { flow: usize, messages: u32 },
    VisitDone,
    CommitDone,
    Confirm { flow: usize, messages: u32 },
}

/// Events in the order of their times; those of one time in the order in which they were set.
#[derive(Default)]
pub struct Agenda {
    heap: BinaryHeap<Reverse<(u64, u64, Event)>>,
    next: u64,
}

impl Agenda {
    pub fn set(&mut self, at_us: u64, event: Event) {
        self.next += 1;
        self.heap.push(Reverse((at_us, self.next, event)));
    }
}

/// Runs `cell` with a window from `window` for each flow.
pub fn run(cell: &Cell, window: impl Fn(u64) -> Box<dyn Window>) -> Outcome {
    let mut agenda = Agenda::default();
    let mut random = Random(cell.seed);
    let mut broker = Broker::new(cell);
    let mut outcome = Outcome::new(cell);
    let mut flows: Vec<Flow> = (0..cell.flows)
        .map(|index| {
            let start_us = random.below(2_000);
            agenda.set(start_us, Event::Publish { flow: index });
            Flow::new(index, cell, start_us, window(random.next()))
        })
        .collect();
    while let Some(Reverse((now_us, _, event))) = agenda.heap.pop() {
        if now_us > cell.end_us {
            break;
        }
        match event {
            Event::Publish { flow } => flows[flow].publish(now_us, &mut agenda),
            Event::Arrive { flow, messages } => {
                broker.arrived(flow, messages);
                broker.work(now_us, &mut agenda);
            }
            Event::VisitDone => broker.visit_done(now_us, &mut random, &mut agenda),
            Event::CommitDone => broker.commit_done(now_us, &mut random, &mut agenda),
            Event::Confirm { flow, messages } => {
                if cell.commit_times {
                    let (us, publishers) = (broker.commit_cost.us(), cell.flows as u32);
                    flows[flow].told(CommitTime { us, publishers, ..CommitTime::default() });
                }
                flows[flow].confirmed(now_us, messages, &mut random, &mut outcome);
                flows[flow].publish(now_us, &mut agenda);
            }
        }
    }
    outcome.finish(&flows, broker.flooded);
    outcome
}
