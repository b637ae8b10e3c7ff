//! One look at a broker: what `/api/forebay/overview` said.
//!
//! Names of gates are kept as text, so that a newer broker's can be shown as well.

use std::collections::HashMap;

use serde::Deserialize;

/// The document, as far as it is shown.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Look {
    pub(super) version: String,
    pub(super) uptime_us: u64,
    /// Why publishers are told `connection.blocked`.
    pub(super) alarm: Option<String>,
    pub(super) connections: u64,
    pub(super) consumers: u64,
    pub(super) messages: Messages,
    pub(super) memory: Memory,
    pub(super) commits: Commits,
    pub(super) sync_latency: Latency,
    pub(super) queues: Vec<Queue>,
    pub(super) queues_left_out: u64,
    pub(super) gates: Vec<Gate>,
    pub(super) edges: Vec<Edge>,
    pub(super) edges_left_out: u64,
}

/// Totals since the start, but for the last two.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Messages {
    pub(super) published: u64,
    pub(super) confirmed: u64,
    pub(super) delivered: u64,
    pub(super) acknowledged: u64,
    pub(super) ready: u64,
    pub(super) unacked: u64,
}

/// Of messages, in bytes.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Memory {
    pub(super) used: u64,
    /// From where on publishers wait.
    pub(super) max: u64,
}

/// Syncs of the log.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Commits {
    pub(super) count: u64,
    pub(super) mean_us: u64,
}

/// Pairs of the longest time and a count.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Latency {
    pub(super) buckets_us: Vec<(u64, u64)>,
}

/// A queue.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Queue {
    pub(super) vhost: String,
    pub(super) name: String,
    pub(super) consumers: u64,
    pub(super) enqueued: u64,
    pub(super) ready: u64,
    pub(super) unacked: u64,
    pub(super) on_disk_only: u64,
    /// Its mode, `absorb` or `balance`; empty: the broker knows none.
    #[serde(default)]
    pub(super) flow: String,
    /// Of one that balances: whether it holds its publishers.
    #[serde(default)]
    pub(super) flow_state: String,
    /// The least time that a message waited lately, if it balances.
    #[serde(default)]
    pub(super) standing_wait_us: u64,
}

impl Queue {
    /// Messages that have left it for good.
    pub(super) fn left(&self) -> u64 {
        self.enqueued.saturating_sub(self.ready + self.unacked)
    }
}

/// A gate's totals.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Gate {
    pub(super) gate: String,
    pub(super) waits_for: String,
    pub(super) waited_us: u64,
    pub(super) waiting: u64,
}

/// Who waits.
#[derive(Debug, Clone, Deserialize, serde::Serialize, PartialEq, Eq, Hash)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum Waiter {
    Connection { id: u64, address: String, user: String },
    Queue { vhost: String, name: String },
}

/// Somebody's wait at a gate.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Edge {
    pub(super) waiter: Waiter,
    pub(super) gate: String,
    pub(super) waited_us: u64,
}

impl Look {
    /// How long each waiter had waited at each gate, in microseconds.
    pub(super) fn waited(&self) -> HashMap<(&Waiter, &str), u64> {
        self.edges.iter().map(|edge| ((&edge.waiter, &*edge.gate), edge.waited_us)).collect()
    }
}
