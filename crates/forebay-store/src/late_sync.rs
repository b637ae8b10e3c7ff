//! Syncs by themselves, where commits are not synced: of what was written before.
//!
//! ```text
//!   interval ─► so long after the first write that is not synced, however much there is to write meanwhile
//!   os ───────► when the log rests, and files wait to be deleted that the log may need until it is synced
//! ```
//!
//! Whatever the operator chose, a segment is synced before the next one begins, so that is not told here.

use crate::in_flight::LogWork;
use crate::log::Log;
use crate::options::Durability;
use crate::request::{Request, Unsynced, Work};

impl Log {
    /// The sync that is due, for the idle lane.
    pub(crate) fn poll_late_sync(&mut self) -> Option<Request> {
        self.late_sync_due_us().filter(|due_us| *due_us <= self.now_us)?;
        self.in_flight.push(self.now_us, LogWork::Sync { upto: self.written });
        let unsynced = self.unsynced(self.last_written_epoch());
        Some(Request { work: Work::Sync(unsynced) })
    }

    /// What is not synced of this segment, in which the newest written batch is: it is going to be.
    pub(crate) fn unsynced(&mut self, epoch: u64) -> Unsynced {
        let segment = self.segments.iter().rev().find(|segment| segment.epoch == epoch);
        let end = segment.map_or(0, |segment| segment.used);
        Unsynced { epoch, bytes: self.unsynced_from.take().unwrap_or(end)..end }
    }

    /// When what is written is to be synced, if the lane is idle then.
    pub(crate) fn late_sync_due_us(&self) -> Option<u64> {
        match self.options.durability {
            Durability::Always => None,
            Durability::Interval { ms } => Some(self.unsynced_since_us? + ms * 1000),
            Durability::Os => (self.rests() && self.files_wait_for_sync()).then_some(self.now_us),
        }
    }

    /// Whether a sync would let a dead segment or run go: on a full disk publishers wait for their space.
    fn files_wait_for_sync(&self) -> bool {
        let waited_for = self.synced + 1..=self.written;
        let segment = self.segments.front().and_then(|front| front.passed_by);
        let run = self.background.dead_runs.front();
        segment.is_some_and(|batch| waited_for.contains(&batch))
            || run.is_some_and(|(batch, _)| waited_for.contains(batch))
    }

    /// The segment of the newest written batch: that of the next one, or the one before it if the next one has a segment to
    /// begin.
    fn last_written_epoch(&self) -> u64 {
        let next = self.queued.front().unwrap_or(&self.open);
        let before = next.begin.as_ref().and_then(|_| self.before(next.epoch));
        before.unwrap_or(next.epoch)
    }

    /// It is done.
    pub(crate) fn late_synced(&mut self) {
        if let Some((LogWork::Sync { upto }, _)) = self.in_flight.pop(self.now_us) {
            self.synced = self.synced.max(upto);
            self.unsynced_since_us = (self.synced < self.written).then_some(self.now_us);
        }
        self.free_dead();
    }
}
