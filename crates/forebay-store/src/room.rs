//! Room: what is left of a segment for the next record, and for what has to be in one batch.
//!
//! ```text
//!   │ segment … │ open batch ──record──►│ capacity
//!                    │ it would reach beyond: closed          │ next segment: header, checkpoint │ record …
//!                    └────────────────────────────────────────────────────────────────────────────►
//! ```
//!
//! The next segments have their room when the log needs them, and a file that grows has none on a full disk.

use crate::log::{Log, Stopping};
use crate::record::ACK_BYTES;
use crate::segment::BLOCK;

impl Log {
    pub(crate) fn begin_atomic(&mut self, bytes: usize) {
        if self.atomic_depth == 0 {
            self.make_room(bytes);
        }
        self.atomic_depth += 1;
    }

    pub(crate) fn end_atomic(&mut self) {
        debug_assert!(self.atomic_depth > 0);
        self.atomic_depth = self.atomic_depth.saturating_sub(1);
    }

    /// Before a record is appended: what would reach beyond the end of the segment goes into the next one. Its batch has room
    /// there, and here perhaps not: a full disk is no reason to end, but for a commit that needs more of it. So the
    /// acknowledgements of one commit are as many batches as they need segments.
    ///
    /// What is to be one batch stays together, and so does what is larger than a segment.
    #[inline]
    pub(crate) fn make_room(&mut self, record_bytes: usize) {
        let end = self.open.offset + (self.open_bytes() + record_bytes) as u64;
        let segment = self.segments.back().expect("there is always a segment");
        if end.next_multiple_of(BLOCK as u64) > segment.capacity {
            self.go_on_in_next_segment(record_bytes);
        }
    }

    /// The same before an acknowledgement. Where the file has become longer it stays: what it grew for may be the dead letter of
    /// the very message, and both are in one batch.
    #[inline]
    pub(crate) fn make_room_for_ack(&mut self) {
        let end = self.open.offset + self.open_bytes() as u64;
        let segment = self.segments.back().expect("there is always a segment");
        if end <= segment.capacity {
            self.make_room(ACK_BYTES);
        }
    }

    #[cold]
    fn go_on_in_next_segment(&mut self, record_bytes: usize) {
        let fits = record_bytes as u64 <= self.options.segment_bytes / 8 * 7;
        let empty = self.open.is_empty() && self.acks.is_empty();
        let divisible = self.atomic_depth == 0 || empty;
        // Where there is nothing but a checkpoint yet the next segment would have no more room.
        let used = self.segments.back().map_or(0, |segment| segment.used);
        let fresh = self.open.offset + self.open_bytes() as u64 == used;
        let goes_on = self.failed.is_none() && self.stopping == Stopping::No;
        if !(fits && divisible && goes_on) || fresh {
            return;
        }
        if empty {
            // Its number goes to the first part of the checkpoint: whoever waits for it waits for nothing that is in it.
            let waiters = self.open.waiters;
            self.begin_segment(self.open.number, 0);
            self.open.waiters += waiters;
        } else {
            let closed = self.close_open();
            let next = closed.number + 1;
            self.queued.push_back(closed);
            self.begin_segment(next, 0);
        }
    }
}
