//! Flow control inside the broker: who may be read, and what happens when memory or disk run short.
//!
//! Work in progress goes before new work: deliveries, acknowledgements and confirms are served first
//! and only publishes are held back, by not reading the connections that make them. The surplus then
//! waits where it is made. In the order in which it comes to it:
//!
//! ```text
//!   memory ≥ 50 %      longest queues are spilled to disk
//!   open batch full    publishing connections are not read until the disk has caught up (silent)
//!   memory ≥ 100 %     the same, until memory is back
//!   … for 1 s, or      connection.blocked to publishing connections
//!   little disk space
//! ```

use forebay_wire::{ShortStr, connection};

use crate::connection::{OUT_HARD_BYTES, Stage};
use crate::input::ConnectionId;
use crate::shard::Shard;

/// A paused connection that holds unsettled deliveries is read this often all the same: its
/// acknowledgements are what frees memory.
const TRICKLE_EVERY_US: u64 = 10_000;

/// A pause shorter than this stays silent.
const ALARM_AFTER_US: u64 = 1_000_000;

/// An alarm ends when memory is below this part of the budget, in percent.
const ALARM_CLEAR_PERCENT: u64 = 80;

/// What flow control says of reading a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// As much as its fair share.
    Open,
    /// A few KiB, so that acknowledgements arrive.
    Trickle,
    /// Nothing.
    Closed,
}

impl Shard {
    /// How much of a connection may be read now. Ask anew each turn: a trickle is granted once.
    pub fn admission(&mut self, id: ConnectionId) -> Admission {
        if !self.is_paused(id) {
            return Admission::Open;
        }
        let now_us = self.now_us;
        let Some(connection) = self.connection(id) else { return Admission::Closed };
        if connection.out.len() < OUT_HARD_BYTES
            && now_us >= connection.trickle_us + TRICKLE_EVERY_US
            && connection.has_unacked()
        {
            connection.trickle_us = now_us;
            return Admission::Trickle;
        }
        Admission::Closed
    }

    /// Whether flow control keeps a connection from being read.
    pub(crate) fn is_paused(&self, id: ConnectionId) -> bool {
        let Some(Some(connection)) = self.connections.get(id.0 as usize) else { return true };
        if connection.stage != Stage::Open {
            return false;
        }
        connection.out.len() >= OUT_HARD_BYTES
            || connection.publisher && (connection.confirms_full || self.publishers_paused())
            || self.stopping == crate::shard::Stopping::Closing
    }

    fn publishers_paused(&self) -> bool {
        self.store.is_full()
            || self.memory_bytes >= self.config.memory_budget_bytes
            || self.low_space
            || self.is_stopping()
    }

    /// What flow control does at the end of a turn.
    pub(crate) fn balance_memory(&mut self) {
        self.spill();
        self.feed_hungry_queues();
        if self.evacuating.is_some() && !self.store.is_full() {
            self.evacuate_some();
        }
        let budget = self.config.memory_budget_bytes;
        let memory_short = self.memory_bytes >= budget;
        self.paused_since_us = match self.paused_since_us {
            Some(since) if memory_short => Some(since),
            None if memory_short => Some(self.now_us),
            _ => None,
        };
        let memory_long_short =
            self.paused_since_us.is_some_and(|since| self.now_us >= since + ALARM_AFTER_US);
        let memory_alarm = match self.alarm {
            Some(reason) if reason.contains("memory") => {
                self.memory_bytes >= budget / 100 * ALARM_CLEAR_PERCENT
            }
            _ => memory_long_short,
        };
        let reason = match (memory_alarm, self.low_space) {
            (true, true) => Some("low on memory & disk"),
            (true, false) => Some("low on memory"),
            (false, true) => Some("low on disk"),
            (false, false) => None,
        };
        if reason != self.alarm {
            self.alarm = reason;
            for index in 0..self.connections.len() {
                self.tell_alarm(ConnectionId(index as u32));
            }
        }
    }

    /// Tells a publishing connection of an alarm, once per episode, and of its end.
    pub(crate) fn tell_alarm(&mut self, id: ConnectionId) {
        let alarm = self.alarm;
        let Some(connection) = self.connection(id) else { return };
        if connection.stage != Stage::Open || !connection.capabilities.connection_blocked {
            return;
        }
        match alarm {
            Some(reason) if connection.publisher && !connection.blocked_told => {
                connection.blocked_told = true;
                let reason = ShortStr::truncated(reason);
                self.send(id, 0, &connection::Blocked { reason });
            }
            None if connection.blocked_told => {
                connection.blocked_told = false;
                self.send(id, 0, &connection::Unblocked::default());
            }
            _ => {}
        }
    }

    /// When flow control wants to look again, if anything is held back.
    pub(crate) fn flow_deadline_us(&self) -> Option<u64> {
        let pressed = self.memory_bytes >= self.config.memory_budget_bytes / 2;
        (pressed || self.low_space || self.is_stopping()).then(|| self.now_us + TRICKLE_EVERY_US)
    }
}
