//! Telling the operator, in the log, what the broker has noticed.

use std::io;

use forebay_broker::Notice;

use super::ShardLoop;
use crate::telling::{Ongoing, Telling};

/// Closed connections told at once, before they become rare.
const CLOSED_TOLD_AT_ONCE: u64 = 8;

/// Logins that were refused, likewise: more, for they say who tries.
const REFUSED_TOLD_AT_ONCE: u64 = 64;

/// What is told of kinds of notices that may come by the thousand.
pub(super) struct Tellings {
    closed: Telling,
    refused: Telling,
    exhausted: Ongoing,
}

impl Default for Tellings {
    fn default() -> Tellings {
        Tellings {
            closed: Telling::new(CLOSED_TOLD_AT_ONCE),
            refused: Telling::new(REFUSED_TOLD_AT_ONCE),
            exhausted: Ongoing::default(),
        }
    }
}

impl Tellings {
    fn told(&mut self, now_us: u64, notice: Notice) -> Vec<Notice> {
        match notice {
            Notice::ConnectionClosed { .. } => self.closed.told(now_us, notice),
            Notice::LoginRefused { .. } => self.refused.told(now_us, notice),
            _ => vec![notice],
        }
    }
}

impl ShardLoop {
    /// All that came up since the last turn.
    pub(super) fn tell_operator(&mut self) {
        while let Some(notice) = self.shard.take_notice() {
            for notice in self.tellings.told(self.now_us, notice) {
                match notice {
                    Notice::AlarmOver => tracing::info!("{notice}"),
                    _ => tracing::warn!("{notice}"),
                }
            }
        }
    }

    /// Why nobody can be accepted, which is tried again soon.
    pub(super) fn tell_exhausted(&mut self, error: &io::Error) {
        if self.tellings.exhausted.is_told(self.now_us) {
            tracing::warn!(%error, "cannot accept connections for the moment");
        }
    }
}
