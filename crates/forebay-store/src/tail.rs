//! The tail: what the log ends with and nothing vouches for.
//!
//! ```text
//!   … │ batch n-1 │ batch n ▒▒▒▒ │          │ header: carries from n │ checkpoint, what n says │ batch n+2 │ …
//!                  nobody says that           └── batch n+1, in the segment that a start begins ──┘
//!                  it was synced
//! ```
//!
//! A batch that can be read need not be on the medium: Linux tells of a failed write once, to the sync that meets it, and may
//! keep the pages, marked clean. The process that was told ends; a start would read them, sync nothing, be told that this went
//! well, and free the older copies of what is in them. So a start says once more, in the segment that it begins, what the tail
//! says, and from then on nothing depends on it: its batches may be there or not. Writing the tail again in its place would
//! put at risk what is there, if the power goes meanwhile.
//!
//! Where each batch is synced before the next one is written, the tail is one batch with something in it at most. A log of more
//! was not written so, and nobody was told that it is safe from a power loss: its tail is synced and not carried (`sync.rs`).
//!
//! What the tail said is said by
//! - the checkpoint: meta, queues, runs, all as of the tail's end;
//! - a copy of each message that is alive in it;
//! - acknowledgements of whatever it took out of the log, be it into a run, unless that is alive there.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::batch::{BatchHead, OpenBatch, Trust, walk};
use crate::disk::Disk;
use crate::error::OpenError;
use crate::home::{BatchNo, Home, QueueId, Seq};
use crate::log::Log;
use crate::log_image::{LogImage, SegmentImage, batch_at, sound_batch};
use crate::range_set::RangeSet;
use crate::record::{FLAG_RELOCATED, Record};
use crate::replay::{Place, Replay};
use crate::segment::{BLOCK, segment_file};
use crate::window::Window;

/// A valid batch that nothing shows to have been durable.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unproven {
    pub(crate) number: BatchNo,
    /// Its segment.
    pub(crate) epoch: u64,
    /// Where it begins there.
    pub(crate) offset: u64,
}

impl Unproven {
    /// What of a segment is unproven; its header goes with its first batch.
    pub(crate) fn bytes_in(image: &LogImage, epoch: u64) -> Range<u64> {
        let end = image.segments.iter().find(|segment| segment.epoch == epoch);
        let end = end.map_or(0, |segment| segment.end);
        let first = image.unproven.iter().find(|unproven| unproven.epoch == epoch);
        first.map_or(end, |first| if first.offset == BLOCK as u64 { 0 } else { first.offset })..end
    }
}

/// The unproven end of a log, as a start carries it on.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    /// The first batch that may be missing from here on; 0: none.
    pub(crate) carries_from: BatchNo,
    /// Segments of which nothing is proven: a power loss may leave them without a header.
    pub(crate) segments: Vec<u64>,
    /// The batch with something in it.
    batch: Option<(u64, Range<u64>)>,
    /// What it took out of the log.
    pub(crate) gone: BTreeMap<QueueId, RangeSet>,
}

impl Tail {
    /// The tail of a log that was read to its end; `None` if it is one that is not carried.
    pub(crate) fn of(disk: &dyn Disk, image: &LogImage) -> Result<Option<Tail>, OpenError> {
        // Where an operator accepts damage, it is not for us to remove anything.
        let nothing_proven = |segment: &&SegmentImage| {
            segment.first_batch > image.durable_upto && image.damage.is_empty()
        };
        let whole = || image.segments.iter().rev().take_while(nothing_proven);
        let carried_before = whole().map(|segment| segment.carries_from).filter(|from| *from > 0);
        let first = image.unproven.front().map(|first| first.number);
        let mut tail = Tail {
            carries_from: carried_before.chain(first).min().unwrap_or(0),
            segments: whole().map(|segment| segment.epoch).collect(),
            ..Tail::default()
        };
        // What was carried is not carried from where it was before.
        let carries = |segment: &&SegmentImage| segment.carries_from > 0 && segment.checkpointed;
        let from = image.segments.iter().rev().find(carries).map_or(0, |segment| segment.epoch);
        for unproven in image.unproven.iter().filter(|unproven| unproven.epoch >= from) {
            let (epoch, offset) = (unproven.epoch, unproven.offset);
            let name = segment_file(epoch);
            let salt = image.segments.iter().find(|segment| segment.epoch == epoch);
            let salt = salt.map_or(0, |segment| segment.salt);
            let mut window = Window::open(disk, &name)?;
            // Checked again: pages that are nowhere else may have gone meanwhile.
            let (head, bytes) = batch_at(&mut window, (epoch, salt), offset)?;
            let Ok(head) = sound_batch((head, bytes), epoch, offset, unproven.number) else {
                return Err(OpenError::damaged(&name, offset, "a batch changed while it was read"));
            };
            if !tail.take(epoch, offset, &head, bytes) {
                return Ok(None);
            }
        }
        tail.keep_what_is_in(&image.replay);
        Ok(Some(tail))
    }

    /// One more batch; `false` if it is one too many.
    fn take(&mut self, epoch: u64, offset: u64, head: &BatchHead, bytes: &[u8]) -> bool {
        let mut says_something = false;
        let mut gone = Vec::new();
        walk(bytes, epoch, offset, head, Trust::Verified, |_, record| match record {
            Record::CheckpointBegin
            | Record::CheckpointMeta { .. }
            | Record::CheckpointQueue { .. }
            | Record::CheckpointRun(_)
            | Record::CheckpointEnd { .. } => {}
            Record::Ack { queue, ranges } => {
                says_something = true;
                gone.extend(ranges.iter().map(|range| (queue, range)));
            }
            Record::Spill(spill) => {
                says_something = true;
                gone.extend(spill.live.iter().map(|range| (spill.queue, range)));
            }
            _ => says_something = true,
        });
        // One behind the other they are put in quickly.
        gone.sort_unstable();
        for (queue, (first, last)) in gone {
            self.gone.entry(queue).or_default().insert(first, last);
        }
        if !says_something {
            return true;
        }
        let end = offset + head.padded_bytes() as u64;
        self.batch.replace((epoch, offset..end)).is_none()
    }

    /// An acknowledgement does not say where: what is alive in a run is not to be taken from there.
    fn keep_what_is_in(&mut self, replay: &Replay) {
        for run in replay.runs.values() {
            if let Some(gone) = self.gone.get_mut(&run.queue) {
                for (first, last) in run.live.iter() {
                    gone.remove(first, last);
                }
            }
        }
        self.gone.retain(|_, gone| !gone.is_empty());
    }

    /// Whether this message is to be copied.
    pub(crate) fn holds(&self, place: Place) -> bool {
        let batch = self.batch.as_ref();
        batch.is_some_and(|(epoch, range)| *epoch == place.epoch && range.contains(&place.offset))
    }
}

impl Log {
    /// What this batch may say is durable when it is written: nothing that is carried, before all of it is.
    pub(crate) fn durable_when_written(&self, batch: &OpenBatch, synced_before: bool) -> BatchNo {
        match self.carrying {
            Some((last, durable)) if batch.number <= last => durable,
            _ if synced_before => batch.number - 1,
            _ => self.in_flight.synced_then().unwrap_or(self.synced),
        }
    }

    /// A message that was found in this segment.
    pub(crate) fn carry(&mut self, epoch: u64, queues: &[(QueueId, Seq)], payload: &[u8]) -> Home {
        let home = self.append_message(FLAG_RELOCATED, queues, payload);
        for _ in queues {
            self.release(epoch, self.open.number);
        }
        home
    }

    /// What the log has still and the state has not.
    pub(crate) fn acknowledge_all(&mut self, queue: QueueId, gone: &RangeSet) {
        let ranges: Vec<_> = gone.iter().collect();
        self.open.writer().ack(queue, &ranges);
    }
}
