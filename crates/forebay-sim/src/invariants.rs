//! What must hold at every step, whatever happens: bounds, and work for those who can do it.

use forebay_broker::{ConnectionId, Gate, QueueStatus};
use forebay_flow::BalanceState;

use crate::link::UPSTREAM_MAX_BYTES;
use crate::model::observe::Round;
use crate::violation::{Violation, violation};
use crate::world::{Step, World};

/// Bytes outgoing above which a connection may be passed over (`OUT_SOFT_MIN_BYTES` of the broker).
const OUT_SOFT_BYTES: usize = 16 * 1024;

/// Bytes outgoing above which a connection is not read, and what one reading may add to it.
const OUT_BOUND_BYTES: usize = (1 << 20) + (256 << 10);

/// The largest message of a world with what the broker keeps beside it, in bytes.
const MESSAGE_BYTES: u64 = 32_000;

/// How long a queue may go on holding publishers when nothing waits in it, in microseconds. It looks every few
/// milliseconds.
const HELD_IN_VAIN_US: u64 = 1_000_000;

/// Beside the names of queues.
const NO_QUEUE: &str = "";

impl World {
    /// Every buffer within its bound.
    pub(crate) fn check_bounds(&mut self) -> Step {
        let status = self.broker.shard.status();
        if status.memory_bytes <= status.memory_budget_bytes {
            self.trickled_bytes = 0;
        }
        // Whoever is being read when the budget is reached is read to the end of the piece; and each
        // queue keeps its first message in memory, however large.
        let reading = (UPSTREAM_MAX_BYTES as u64 + MESSAGE_BYTES) * self.links.len() as u64;
        let first = MESSAGE_BYTES * status.queue_count as u64;
        // A small message takes several times its bytes in memory.
        let most = status.memory_budget_bytes + 4 * reading + first + 8 * self.trickled_bytes;
        if status.memory_bytes > most {
            let what = format!("memory of messages: {} of {most} bytes", status.memory_bytes);
            violation("every buffer is within its bound", what)?;
        }
        for client in 0..self.links.len() {
            let bytes = self.broker.shard.unsent_bytes(ConnectionId(client as u32));
            if bytes > OUT_BOUND_BYTES {
                let what = format!("client {client} has {bytes} bytes outgoing");
                violation("every buffer is within its bound", what)?;
            }
        }
        Ok(())
    }

    /// After a turn no consumer with credit is left waiting for a message that is in memory
    /// and stays there, but while a busy broker gathers.
    pub(crate) fn check_nobody_idle(&mut self) -> Step {
        self.look_for_idle(|queue| queue.cold + queue.spilling == 0)
    }

    /// When all have come to rest without faults, what lies on disk has been read for whoever could take it. Here is seen who was
    /// not woken: while others publish and settle, the next of them wakes him.
    pub(crate) fn check_nobody_is_left_idle(&mut self) -> Step {
        self.look_for_idle(|_| true)
    }

    /// Looks for consumers with credit of those queues in which something waits.
    fn look_for_idle(&self, is_looked_at: impl Fn(&QueueStatus) -> bool) -> Step {
        // What a timer has just brought, a dead letter for one, is delivered in the next turn.
        let busy = self.broker.shard.next_deadline_us().is_some_and(|at| at <= self.now_us);
        if busy || self.broker.shard.is_gathering() || self.stopping {
            return Ok(());
        }
        for queue in &self.broker.shard.status().queues {
            if queue.ready == 0 || queue.consumers == 0 || !is_looked_at(queue) {
                continue;
            }
            // What has died by itself is not delivered, and stays until there is room for its letter, or a little longer.
            if self.model.next_may_leave(&queue.name) {
                continue;
            }
            let Some((client, _, tag)) = self.model.idle_consumer(&queue.name) else { continue };
            let outgoing = self.broker.shard.unsent_bytes(ConnectionId(client as u32));
            if outgoing < OUT_SOFT_BYTES {
                let what = format!("{tag} of client {client} while {queue:?}");
                violation("nobody is idle while a message waits", what)?;
            }
        }
        Ok(())
    }

    /// In a step nobody was served while somebody of a higher priority could take it.
    pub(crate) fn check_priorities(&self, round: &Round) -> Result<(), Violation> {
        for (client, number, tag) in self.model.passed_over(round) {
            let outgoing = self.broker.shard.unsent_bytes(ConnectionId(client as u32));
            if outgoing < OUT_SOFT_BYTES {
                let what = format!("{tag} of client {client}, channel {number}: {round:?}");
                return violation("a higher priority goes first", what);
            }
        }
        Ok(())
    }

    /// After a turn no more wait in a queue than may, but what nobody has been offered yet, or lies on disk.
    pub(crate) fn check_lengths(&mut self) -> Step {
        if self.swarm.refuses {
            // What comes back to a queue is never refused.
            return Ok(());
        }
        let shard = &self.broker.shard;
        let busy = shard.next_deadline_us().is_some_and(|at| at <= self.now_us);
        if busy || shard.is_gathering() || shard.is_shortening() || self.stopping {
            return Ok(());
        }
        let letters_wait = shard.letters_again_us().is_some();
        for queue in &self.broker.shard.status().queues {
            let too_many = self.model.are_too_many(&queue.name, queue.ready);
            let waits = letters_wait && self.model.has_letters(&queue.name);
            if too_many && !waits && queue.cold + queue.spilling == 0 {
                violation("no more wait than may", format!("{queue:?}"))?;
            }
        }
        Ok(())
    }

    /// A queue that balances lets its publishers go when nothing waits in it or nobody consumes it, and nobody waits
    /// for a queue that holds nobody.
    pub(crate) fn check_nobody_held_in_vain(&mut self) -> Step {
        let status = self.broker.shard.status();
        let now_us = self.now_us;
        let mut gates = status.waits.gates.iter();
        let waiting = gates.find(|gate| gate.gate == Gate::Balance).map_or(0, |gate| gate.waiting);
        self.statistics.held += status.queues_holding as u64;
        let busy = self.broker.shard.next_deadline_us().is_some_and(|at| at <= now_us);
        let before = std::mem::take(&mut self.held_in_vain_us);
        if status.queues_holding == 0 && waiting > 0 {
            // They are let go in the next turn.
            let since_us = before.get(NO_QUEUE).copied().unwrap_or(now_us);
            if !busy && now_us > since_us + HELD_IN_VAIN_US {
                let what = format!("{waiting} wait, and no queue holds: {:?}", status.queues);
                violation("nobody is held in vain", what)?;
            }
            self.held_in_vain_us.insert(NO_QUEUE.to_owned(), since_us);
        }
        for queue in status.queues {
            let holds = queue.flow_state == BalanceState::Holding;
            if !holds || queue.ready > 0 && queue.consumers > 0 {
                continue;
            }
            let since_us = before.get(&queue.name).copied().unwrap_or(now_us);
            if !busy && now_us > since_us + HELD_IN_VAIN_US {
                let what = format!("{} us: {queue:?}", now_us - since_us);
                violation("nobody is held in vain", what)?;
            }
            self.held_in_vain_us.insert(queue.name, since_us);
        }
        Ok(())
    }
}
