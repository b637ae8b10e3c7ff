//! Telling the operator, in the log, what the broker has noticed.

use forebay_broker::Notice;

use super::ShardLoop;

/// Closed connections told at once, before they become rare.
pub(super) const CLOSED_TOLD_AT_ONCE: u64 = 8;

impl ShardLoop {
    /// All that came up since the last turn.
    pub(super) fn tell_operator(&mut self) {
        while let Some(notice) = self.shard.take_notice() {
            match notice {
                Notice::AlarmOver => tracing::info!("{notice}"),
                Notice::ConnectionClosed { .. } => {
                    for notice in self.closed_told.told(self.now_us, notice) {
                        tracing::warn!("{notice}");
                    }
                }
                _ => tracing::warn!("{notice}"),
            }
        }
    }
}
