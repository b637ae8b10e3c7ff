//! Queues with `x-flow` = `balance`: their publishers follow their consumers. When is
//! [`Balance`]'s business; here it meets channels and connections.
//!
//! ```text
//!   publish to a queue that holds ──► enqueued and stored as ever, and then
//!        channel in confirm mode          its confirm waits          (never an error, never lost)
//!        any other                        its connection's next publish waits
//! ```

use std::collections::BTreeMap;

use forebay_flow::{Balance, BalanceState};
use forebay_wire::Table;

use crate::channel::Mode;
use crate::input::ConnectionId;
use crate::shard::Shard;
use crate::topology::QueueKey;
use crate::waits::Gate;

/// How often queues that balance are looked at while they have messages.
const LOOK_EVERY_US: u64 = 20_000;

/// The argument that asks for a mode.
pub(crate) const FLOW_ARGUMENT: &str = "x-flow";

/// What a queue does with publishers that are faster than its consumers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum QueueFlow {
    /// Takes what memory and disk hold.
    #[default]
    Absorb,
    /// Makes publishers wait while messages wait for longer than 100 ms.
    Balance,
}

impl QueueFlow {
    /// From its name.
    #[must_use]
    pub fn named(name: &[u8]) -> Option<QueueFlow> {
        match name {
            b"absorb" => Some(QueueFlow::Absorb),
            b"balance" => Some(QueueFlow::Balance),
            _ => None,
        }
    }

    /// What arguments ask for, which were checked.
    fn of(arguments: Table<'_>) -> QueueFlow {
        let asked = arguments.get(FLOW_ARGUMENT).and_then(|value| value.as_long_str());
        asked.and_then(QueueFlow::named).unwrap_or_default()
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            QueueFlow::Absorb => "absorb",
            QueueFlow::Balance => "balance",
        }
    }
}

/// What a queue that balances has beside.
#[derive(Debug, Default)]
pub(crate) struct Balanced {
    pub(crate) balance: Balance,
    /// In the shard's list of queues to look at.
    listed: bool,
    /// Channels with confirms that wait for it, and the serial of their connection: as many as there may be at
    /// a time, at most, for those of a connection that is gone make room for its successor's.
    channels: BTreeMap<(ConnectionId, u16), u64>,
    /// Connections whose publishes wait for it; likewise.
    connections: BTreeMap<ConnectionId, u64>,
}

impl Balanced {
    /// For a queue that was declared with these arguments, or has them from a policy.
    pub(crate) fn of(arguments: Table<'_>) -> Option<Box<Balanced>> {
        (QueueFlow::of(arguments) == QueueFlow::Balance).then(Box::default)
    }
}

impl Shard {
    /// A message was put into a queue that balances. If it holds, whoever published has to wait.
    pub(crate) fn came(&mut self, key: QueueKey, seq: u64) {
        let now_us = self.now_us;
        // Of several queues that hold, the longest is waited for: it lets go last, mostly.
        let ready = |key: QueueKey| self.queues.get(key.0 as usize).map_or(0, |q| q.ready());
        let longest = self.held_by.is_none_or(|other| ready(key) >= ready(other));
        let queue = &mut self.queues[key.0 as usize];
        let queue_id = queue.id;
        let Some(balanced) = &mut queue.balanced else { return };
        balanced.balance.came(now_us, seq);
        if balanced.balance.state() == BalanceState::Holding && longest {
            self.held_by = Some(key);
        }
        if !balanced.listed {
            balanced.listed = true;
            self.balanced_queues.push((key, queue_id));
        }
    }

    /// The publish of a channel came to a queue that holds: its confirm waits, and the queue remembers
    /// whom to tell. Returns by whom it is held.
    pub(crate) fn hold_confirm(&mut self, id: ConnectionId, number: u16) -> Option<u64> {
        let (key, now_us) = (self.held_by.take()?, self.now_us);
        let Some(Some(connection)) = self.connections.get_mut(id.0 as usize) else { return None };
        let queue = self.queues.get_mut(key.0 as usize)?;
        let balanced = queue.balanced.as_mut()?;
        let serial = connection.serial;
        if let Some(Mode::Confirm(confirms)) = connection.channel(number).map(|c| &c.mode) {
            if !confirms.is_held_by(queue.id)
                && balanced.channels.insert((id, number), serial) != Some(serial)
            {
                connection.waits.begin(Gate::Balance, now_us);
            }
            return Some(queue.id);
        }
        if !connection.waits_for.contains(&queue.id) {
            connection.waits_for.push(queue.id);
            balanced.connections.insert(id, serial);
        }
        None
    }

    /// Looks at the queues that balance, and lets go whom they need not hold any more.
    pub(crate) fn look_at_balanced_queues(&mut self) {
        if self.balanced_queues.is_empty() || self.now_us < self.balanced_looked_us + LOOK_EVERY_US
        {
            return;
        }
        self.balanced_looked_us = self.now_us;
        let now_us = self.now_us;
        let mut listed = std::mem::take(&mut self.balanced_queues);
        listed.retain(|(key, queue_id)| {
            // Another queue may have its place, and then has a place of its own here.
            let queue = self.queues.get_mut(key.0 as usize).filter(|queue| queue.id == *queue_id);
            let Some(queue) = queue else { return false };
            let (depth, consumed) = (queue.ready(), !queue.consumers.is_empty());
            let Some(balanced) = &mut queue.balanced else { return false };
            let before = balanced.balance.state();
            let after = balanced.balance.look(now_us, depth, consumed);
            balanced.listed = depth > 0 || after != BalanceState::Absorbing;
            let listed = balanced.listed;
            if before == BalanceState::Holding && after != BalanceState::Holding {
                self.let_go(*key);
            }
            listed
        });
        // Nobody is put on the list meanwhile: what is let go goes on in the next turn.
        debug_assert!(self.balanced_queues.is_empty());
        self.balanced_queues = listed;
    }

    /// Tells what waited for a queue to be told.
    pub(crate) fn let_go(&mut self, key: QueueKey) {
        let Some(queue) = self.queues.get_mut(key.0 as usize) else { return };
        let (queue_id, now_us) = (queue.id, self.now_us);
        let Some(balanced) = &mut queue.balanced else { return };
        let channels = std::mem::take(&mut balanced.channels);
        let connections = std::mem::take(&mut balanced.connections);
        for (id, serial) in connections {
            if let Some(connection) = self.connection(id)
                && connection.serial == serial
            {
                connection.waits_for.retain(|other| *other != queue_id);
                if connection.waits_for.is_empty() {
                    connection.waits.release(Gate::Balance, now_us);
                }
            }
        }
        for ((id, number), serial) in channels {
            let Some(connection) = self.connection(id).filter(|c| c.serial == serial) else {
                continue;
            };
            connection.waits.end(Gate::Balance, now_us);
            if let Some(channel) = connection.channel(number)
                && let Mode::Confirm(confirms) = &mut channel.mode
            {
                confirms.let_go(queue_id);
                if !channel.confirms_dirty {
                    channel.confirms_dirty = true;
                    self.dirty_confirms.push((id, number));
                }
            }
        }
    }

    /// All of them; nobody is held over the end.
    pub(crate) fn let_all_go(&mut self) {
        let keys: Vec<_> = self
            .queues
            .iter()
            .filter(|(_, queue)| queue.balanced.is_some())
            .map(|(at, _)| at)
            .collect();
        for at in keys {
            self.let_go(QueueKey(at as u32));
        }
    }

    /// When the queues that balance are to be looked at, if there is anything to look at.
    pub(crate) fn balance_deadline_us(&self) -> Option<u64> {
        (!self.balanced_queues.is_empty()).then_some(self.balanced_looked_us + LOOK_EVERY_US)
    }
}
