//! No message is held for ever: after the publisher's limit it has its outcome, whatever the connection does.
//!
//! ```text
//!   written, or in doubt   unknown     a late answer is ignored; it is not sent again
//!   never written          withdrawn   nothing of it has left, and nothing will
//! ```
//! All messages have the same limit, so of each list the first is due first.

use forebay_flow::Amount;

use super::{Ledger, SETTLED, Wakeups};
use crate::outcome::{Unconfirmed, UnknownReason};

impl Ledger {
    /// From its admission on, a message has its outcome after so long; `None`: when the connection has it.
    pub(crate) fn set_limit_us(&mut self, limit_us: Option<u64>) {
        self.limit_us = limit_us;
    }

    /// When something has to be expired, or could be if it is published now.
    pub(crate) fn next_expiry_us(&self, now_us: u64) -> Option<u64> {
        let limit_us = self.limit_us?;
        let due = self.first_open().map(|key| self.entries[key].until_us);
        Some(due.min().unwrap_or_else(|| now_us.saturating_add(limit_us)))
    }

    /// Gives what is due its outcome, and its permit back.
    pub(crate) fn expire(&mut self, now_us: u64, wakeups: &mut Wakeups) {
        if self.limit_us.is_none() {
            return;
        }
        let unknown = Unconfirmed::Unknown(UnknownReason::TimeOver);
        while let Some(&key) = self.by_sequence.front() {
            if key != SETTLED {
                if !self.is_due(key as usize, now_us) {
                    break;
                }
                self.expired = true;
                self.settle_unknown(key as usize, &unknown, wakeups);
            }
            self.by_sequence.pop_front();
            self.base += 1;
        }
        self.expire_in_doubt(now_us, &unknown, wakeups);
        while let Some(key) = self.unsent.front().copied().filter(|&key| self.is_due(key, now_us)) {
            self.unsent.pop_front();
            if self.entries[key].written {
                self.settle_unknown(key, &unknown, wakeups);
            } else {
                self.metrics.withdrawn += 1;
                self.gate.settle(Amount::message(self.entries[key].message.body.len() as u64));
                self.finish(key, Err(Unconfirmed::Withdrawn), wakeups);
            }
        }
    }

    pub(super) fn is_due(&self, key: usize, now_us: u64) -> bool {
        self.entries[key].until_us <= now_us
    }
}
