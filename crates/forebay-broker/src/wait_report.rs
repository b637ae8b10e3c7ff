//! What a shard tells of its waits: totals by gate, and the edges that matter.

use crate::shard::Shard;
use crate::waits::{Gate, Waits};

/// Edges in one report: those that wait now first, then the longest.
const EDGES_MAX: usize = 200;

/// One gate, over all who waited there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateWaits {
    /// Which one.
    pub gate: Gate,
    /// Time waited since the start by all waiters together, in microseconds; never falls.
    pub waited_us: u64,
    /// How many wait now.
    pub waiting: u64,
}

/// Who waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waiter {
    /// A connection.
    Connection {
        /// Never given twice.
        serial: u64,
        /// The peer's address.
        address: String,
        /// Who logged in; empty before that.
        user: String,
    },
    /// A queue.
    Queue {
        /// Virtual host.
        vhost: String,
        /// Name.
        name: String,
    },
}

/// Somebody's waits at one gate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitEdge {
    /// Who.
    pub waiter: Waiter,
    /// Where.
    pub gate: Gate,
    /// For how long since the waiter is there, in microseconds; never falls.
    pub waited_us: u64,
    /// It waits now.
    pub waiting: bool,
}

/// Who waits for whom.
#[derive(Debug, Clone, Default)]
pub struct WaitReport {
    /// Every gate, in the order of [`Gate::ALL`].
    pub gates: Vec<GateWaits>,
    /// At most 200; who waits now first, then by time.
    pub edges: Vec<WaitEdge>,
    /// Edges that were left out.
    pub edges_left_out: usize,
}

#[derive(Clone, Copy)]
enum At {
    Connection(usize),
    Queue(usize),
}

impl Shard {
    /// Time was spent waiting for the broker's attention: bytes of `id` had arrived and were read only
    /// `waited_us` later. The shell knows, the machine does not.
    pub fn waited_for_turn(&mut self, id: crate::ConnectionId, waited_us: u64) {
        if let Some(connection) = self.connection(id) {
            connection.waits.add(Gate::Turn, waited_us);
        }
    }

    /// Whoever brings more than it takes was read `waited_us` after it had something to be read, at its gate or not.
    pub fn publisher_waited(&mut self, waited_us: u64) {
        self.gather.waited(waited_us);
    }

    /// Who waits for whom. Costs a visit to every queue and connection.
    pub(crate) fn wait_report(&self, now_us: u64) -> WaitReport {
        let now_us = now_us.max(self.now_us);
        let mut gates = Gate::ALL.map(|gate| GateWaits {
            gate,
            waited_us: self.past_waits.waited_us(gate),
            waiting: 0,
        });
        let mut found: Vec<(bool, u64, Gate, At)> = Vec::new();
        let mut look = |waits: &Waits, at: At| {
            for (gate, waited_us, waiting) in waits.edges(now_us) {
                gates[gate as usize].waited_us += waited_us;
                gates[gate as usize].waiting += u64::from(waiting);
                found.push((waiting, waited_us, gate, at));
            }
        };
        for (index, connection) in self.connections.iter().enumerate() {
            if let Some(connection) = connection {
                look(&connection.waits, At::Connection(index));
            }
        }
        for (index, queue) in &self.queues {
            look(&queue.waits, At::Queue(index));
        }
        let count = found.len();
        if count > EDGES_MAX {
            found.select_nth_unstable_by_key(EDGES_MAX, |&(waiting, waited_us, ..)| {
                std::cmp::Reverse((waiting, waited_us))
            });
            found.truncate(EDGES_MAX);
        }
        found.sort_by_key(|&(waiting, waited_us, ..)| std::cmp::Reverse((waiting, waited_us)));
        let edges = found
            .into_iter()
            .filter_map(|(waiting, waited_us, gate, at)| {
                Some(WaitEdge { waiter: self.waiter(at)?, gate, waited_us, waiting })
            })
            .collect();
        WaitReport { gates: gates.into(), edges, edges_left_out: count.saturating_sub(EDGES_MAX) }
    }

    fn waiter(&self, at: At) -> Option<Waiter> {
        Some(match at {
            At::Connection(index) => {
                let connection = self.connections.get(index)?.as_ref()?;
                let user = connection.login.as_ref().map(|login| login.user.to_string());
                Waiter::Connection {
                    serial: connection.serial,
                    address: connection.peer.address.clone(),
                    user: user.unwrap_or_default(),
                }
            }
            At::Queue(index) => {
                let queue = self.queues.get(index)?;
                Waiter::Queue {
                    vhost: self.vhosts[queue.vhost as usize].name.clone(),
                    name: queue.display_name(),
                }
            }
        })
    }
}
