//! Resource alarms, as publishers hear of them.
//!
//! ```text
//!   memory at its budget for 1 s ─┐
//!   no room for another segment ──┼─► raised ── connection.blocked, to all who publish, at once
//!   a write of the log for > 1 s ─┘     │
//!                                       ▼ each below 80 %, and after 1 s at least
//!                                     over ──── connection.unblocked, to each at its own moment of the next second
//! ```
//! So nobody is told more than once a second, and a thousand publishers that wait for the same word do not come
//! back at the same moment. Shorter stops stay silent: TCP and confirms tell enough (`flow.rs`). Blocked is who
//! was told; what is read is decided by what there is, not by what was said.

use std::collections::VecDeque;

use forebay_flow::{Alarm, alarm::LEAST_US};
use forebay_wire::{ShortStr, connection};

use crate::connection::Stage;
use crate::input::ConnectionId;
use crate::notices::Notice;
use crate::shard::Shard;

/// Memory is at its budget for so long before anybody is told.
const MEMORY_AFTER_US: u64 = 1_000_000;

/// A write or sync of the log that takes so long is a stall.
const LOG_STALL_US: u64 = 1_000_000;

/// A stall is seen again after so long before anybody is told: who was asleep himself finds the disk done then.
const LOG_AFTER_US: u64 = 10_000;

/// Those who were told are let go within so long.
const RELEASE_WITHIN_US: u64 = 1_000_000;

/// The alarms of a shard.
#[derive(Debug)]
pub(crate) struct Alarms {
    memory: Alarm,
    disk: Alarm,
    log: Alarm,
    /// Whom to let go when, soonest first; at most everybody who was told.
    releases: VecDeque<(u64, ConnectionId)>,
}

impl Default for Alarms {
    fn default() -> Alarms {
        Alarms {
            memory: Alarm::new(MEMORY_AFTER_US),
            disk: Alarm::new(0),
            log: Alarm::new(LOG_AFTER_US),
            releases: VecDeque::new(),
        }
    }
}

impl Alarms {
    /// What publishers are told, if anything; the first two as RabbitMQ words them.
    pub(crate) fn reason(&self) -> Option<&'static str> {
        match (self.memory.is_raised(), self.disk.is_raised(), self.log.is_raised()) {
            (false, false, false) => None,
            (true, false, false) => Some("low on memory"),
            (false, true, false) => Some("low on disk"),
            (true, true, false) => Some("low on memory & disk"),
            (false, false, true) => Some("log stalled"),
            (true, false, true) => Some("low on memory, log stalled"),
            (false, true, true) => Some("low on disk, log stalled"),
            (true, true, true) => Some("low on memory & disk, log stalled"),
        }
    }
}

impl Shard {
    /// What the alarms have to do at the end of a turn.
    pub(crate) fn look_at_alarms(&mut self) {
        let now_us = self.now_us;
        let memory = self.memory_bytes * 100 / self.memory_max_bytes().max(1);
        let busy_us =
            self.store.log_busy_since_us().map_or(0, |since| now_us.saturating_sub(since));
        let before = self.alarms.reason();
        self.alarms.memory.look(now_us, memory);
        self.alarms.disk.look(now_us, if self.low_space { 100 } else { 0 });
        self.alarms.log.look(now_us, busy_us * 100 / LOG_STALL_US);
        match (before, self.alarms.reason()) {
            (None, Some(reason)) => {
                self.notices.tell(Notice::Alarm(reason));
                self.alarms.releases.clear();
                for index in 0..self.connections.len() {
                    self.tell_alarm(ConnectionId(index as u32));
                }
            }
            (Some(_), None) => {
                self.notices.tell(Notice::AlarmOver);
                self.plan_releases();
            }
            _ => {}
        }
        while let Some((_, id)) = self.alarms.releases.pop_front_if(|(at_us, _)| *at_us <= now_us) {
            self.tell_released(id);
        }
    }

    /// Tells a publishing connection of an alarm, once per episode.
    pub(crate) fn tell_alarm(&mut self, id: ConnectionId) {
        let (Some(reason), now_us) = (self.alarms.reason(), self.now_us) else { return };
        let Some(connection) = self.connection(id) else { return };
        if connection.publisher
            && connection.stage == Stage::Open
            && connection.capabilities.connection_blocked
            && connection.blocked_us.is_none()
        {
            connection.blocked_us = Some(now_us);
            let reason = ShortStr::truncated(reason);
            self.send(id, 0, &connection::Blocked { reason });
        }
    }

    /// The alarm is over: everybody who was told has another moment, and another one the next time.
    fn plan_releases(&mut self) {
        let (now_us, seed) = (self.now_us, mixed(self.config.seed ^ self.now_us));
        let mut releases: Vec<(u64, ConnectionId)> = Vec::new();
        for (index, connection) in self.connections.iter().enumerate() {
            let Some(connection) = connection else { continue };
            let Some(blocked_us) = connection.blocked_us else { continue };
            let at_us = now_us + mixed(seed ^ connection.serial) % RELEASE_WITHIN_US;
            // Who began to publish at its very end was told late.
            releases.push((at_us.max(blocked_us + LEAST_US), ConnectionId(index as u32)));
        }
        releases.sort_unstable();
        self.alarms.releases = releases.into();
    }

    fn tell_released(&mut self, id: ConnectionId) {
        // It may be gone, and its place another's, who was told nothing.
        let Some(connection) = self.connection(id) else { return };
        if connection.blocked_us.take().is_some() && connection.stage == Stage::Open {
            self.send(id, 0, &connection::Unblocked::default());
        }
    }

    /// When an alarm may be raised or end by time alone, or somebody is to be let go.
    pub(crate) fn alarms_deadline_us(&self) -> Option<u64> {
        let Alarms { memory, disk, log, releases } = &self.alarms;
        let due = [memory, disk, log].into_iter().filter_map(|alarm| alarm.due_us(self.now_us));
        let stall = self.store.log_busy_since_us().map(|since_us| since_us + LOG_STALL_US);
        let stall = stall.filter(|at_us| *at_us > self.now_us);
        let release = releases.front().map(|(at_us, _)| (*at_us).max(self.now_us + 1));
        due.chain(stall).chain(release).min()
    }
}

/// A number that looks like another one's by chance only: the last step of splitmix64.
fn mixed(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
