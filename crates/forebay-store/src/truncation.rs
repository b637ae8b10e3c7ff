//! Truncation: how the log loses its old end.
//!
//! ```text
//!   │ oldest │ … │ newest │      each counts the live messages whose durable copy it holds
//!      │ 0 alive ─► a batch that makes or finds it dead, behind a later checkpoint, says that the log begins behind it
//!      └──► that is synced: recycled or removed (background lane)
//! ```
//!
//! Oldest first only: recovery replays from the oldest segment on, and an acknowledgement is worth
//! something only while it is read after its message. What holds the oldest back is evacuated once the
//! log is over its cap, or the disk has no room for it to grow.

use crate::background::READY;
use crate::event::Event;
use crate::home::{BatchNo, Home, QueueId, Seq};
use crate::log::{Log, Stopping};
use crate::record::FLAG_RELOCATED;
use crate::segment::Segment;

impl Log {
    /// One message fewer has its durable copy in a segment, once `by` is durable.
    pub(crate) fn release(&mut self, epoch: u64, by: BatchNo) {
        let guess = epoch.wrapping_sub(self.segments[0].epoch) as usize;
        let index = match self.segments.get(guess) {
            Some(segment) if segment.epoch == epoch => guess,
            // Epochs have gaps after a salvage.
            _ => match self.segments.binary_search_by_key(&epoch, |segment| segment.epoch) {
                Ok(index) => index,
                Err(_) => return,
            },
        };
        let segment = &mut self.segments[index];
        debug_assert!(segment.live > 0, "a message of segment {epoch} was settled twice");
        segment.live = segment.live.saturating_sub(1);
        segment.dead_batch = segment.dead_batch.max(by);
    }

    /// How many segments nobody needs once this batch is there: dead oldest ones, by what is in no later batch, and with a
    /// later segment whose checkpoint is in no later one, so that recovery can begin there.
    fn dead_with(&self, batch: BatchNo) -> usize {
        let whole = self.segments.iter().rposition(|later| later.checkpoint_batch <= batch);
        let before = self.segments.iter().take(whole.unwrap_or(0));
        before.take_while(|segment| segment.live == 0 && segment.dead_batch <= batch).count()
    }

    /// The oldest segment that is needed once this batch is there, for its head: without it a start would not notice that the
    /// oldest ones are missing, which are free to go when they are dead. So these go when a batch has said it.
    pub(crate) fn begins_with(&mut self, batch: BatchNo) -> u64 {
        let dead = self.dead_with(batch);
        for segment in self.segments.range_mut(..dead) {
            segment.passed_by.get_or_insert(batch);
        }
        self.segments[dead].epoch
    }

    /// Whether a segment is dead by what is written, and no batch said so: a run has its messages since the last one.
    pub(crate) fn begins_later_than_is_said(&self) -> bool {
        let dead = self.dead_with(self.written).checked_sub(1);
        dead.is_some_and(|last| self.segments[last].passed_by.is_none())
    }

    /// Segments leave oldest first, when it is synced that they may.
    pub(crate) fn free_dead(&mut self) {
        while let Some(front) = self.segments.front()
            && front.passed_by.is_some_and(|batch| batch <= self.synced)
        {
            let front = self.segments.pop_front().expect("there is one");
            if self.evacuating == Some(front.epoch) {
                self.evacuating = None;
            }
            self.background.dead_segments.push_back(front);
        }
    }

    pub(crate) fn log_bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.allocated).sum()
    }

    fn segments_max(&self) -> usize {
        (2 * self.options.log_cap_bytes / self.options.segment_bytes) as usize + 16
    }

    pub(crate) fn evacuate_if_needed(&mut self) {
        if self.evacuating.is_some() || self.segments.len() < 2 || self.stopping != Stopping::No {
            return;
        }
        let front = &self.segments[0];
        if front.live > 0 && self.is_worth_a_copy(front) {
            self.evacuating = Some(front.epoch);
            self.events.push_back(Event::Evacuate { homes: Home::segment(front.epoch) });
        }
    }

    /// Whether what is alive in the oldest segment is to be copied.
    fn is_worth_a_copy(&self, front: &Segment) -> bool {
        let (log_bytes, cap) = (self.log_bytes(), self.options.log_cap_bytes);
        // Many restarts leave many small segments: their number is bounded too.
        let many = self.segments.len() > self.segments_max() && log_bytes <= cap;
        // A log that is mostly alive does not shrink by being copied forward. It may be twice as large
        // as what is alive in it: then each message is copied about once for each time it could be freed.
        let live_bytes = || self.segments.iter().map(Segment::live_bytes).sum::<u64>();
        let shrinks = || log_bytes > 2 * live_bytes();
        let is_due = || many || log_bytes > cap && shrinks();
        let segment_bytes = self.options.segment_bytes;
        let Some(ahead) = self.background.segments_left(segment_bytes) else { return is_due() };
        // A full disk leaves the log what it has. Acknowledgements would use that up, while one old message keeps all that is
        // behind it: for a few of them its segment becomes the next one. Those that are very few may be alone among acknowledgements.
        let few =
            front.live_bytes() <= segment_bytes / 4 || front.copy_bytes() <= segment_bytes / 64;
        // More of them take a segment, and the last one is for acknowledgements. That is worth it where as many are dead behind as have to
        // be copied before those can go.
        let behind = || self.segments.iter().take(self.segments.len() - 1);
        let is_dead = |segment: &&Segment| segment.live == 0;
        let alive = behind().take_while(|segment| !is_dead(segment)).count();
        let gains = || behind().filter(is_dead).count() >= alive;
        let lacks = ahead < READY;
        ahead > 0 && few && lacks || ahead > 1 && (is_due() || lacks && gains())
    }

    pub(crate) fn relocate(&mut self, queues: &[(QueueId, Seq)], payload: &[u8]) -> Home {
        if self.failed.is_some() {
            return Home::NONE;
        }
        let moves = |(queue, seq): &(QueueId, Seq)| {
            let mut runs = self.moving.get(queue).into_iter().flatten();
            runs.any(|run| self.runs.get(run).is_some_and(|run| run.live.contains(*seq)))
        };
        if let (true, Some(epoch)) = (queues.iter().any(moves), self.evacuating) {
            // Its run takes it out of the segment; a second copy would count twice.
            return Home::segment(epoch);
        }
        let home = self.append_message(FLAG_RELOCATED, queues, payload);
        // Now, when it is known which batch has the copy.
        if let Some(epoch) = self.evacuating {
            for _ in queues {
                self.release(epoch, self.open.number);
            }
        }
        home
    }
}
