//! Telling the operator, in the log, what the broker has noticed.

use forebay_broker::Notice;

use super::ShardLoop;

impl ShardLoop {
    /// All that came up since the last turn.
    pub(super) fn tell_operator(&mut self) {
        while let Some(notice) = self.shard.take_notice() {
            match notice {
                Notice::AlarmOver => tracing::info!("{notice}"),
                _ => tracing::warn!("{notice}"),
            }
        }
    }
}
