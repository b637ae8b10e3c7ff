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
//! With the tail go segments at the log's end that say little. A start begins a segment each time, and behind an old message none goes by
//! itself; on a full disk that would use up what is kept for acknowledgements.
//!
//! What the tail said is said by
//! - the checkpoint: meta, queues, runs, all as of the tail's end;
//! - a copy of each message that is alive in it;
//! - acknowledgements of whatever it took out of the log, be it into a run, unless that is alive there.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::batch::{OpenBatch, Trust, walk};
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

/// The largest number that an acknowledgement may name.
const SEQ_MAX: Seq = Seq::MAX - 1;

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

/// The end of a log, as a start carries it on.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    /// The first batch that may be missing from here on; 0: none.
    pub(crate) carries_from: BatchNo,
    /// Segments that nobody needs from then on, the newest first. Of some nothing is proven: a power loss may leave them without
    /// a header.
    pub(crate) segments: Vec<u64>,
    /// Those of them that are carried whole.
    whole: Vec<u64>,
    /// The batch of another segment with something in it.
    batch: Option<(u64, Range<u64>)>,
    /// What all these took out of the log.
    pub(crate) gone: BTreeMap<QueueId, RangeSet>,
}

impl Tail {
    /// The tail of a log that was read to its end; `None` if it is one that is not carried. Segments at the end go as well that
    /// say no more than `little_bytes` together.
    pub(crate) fn of(
        disk: &dyn Disk,
        image: &LogImage,
        little_bytes: u64,
    ) -> Result<Option<Tail>, OpenError> {
        let mut tail = Tail::default();
        tail.choose_segments(image, little_bytes);
        for segment in &image.segments {
            if !tail.is_whole(segment.epoch) {
                continue;
            }
            let name = segment_file(segment.epoch);
            let mut window = Window::open(disk, &name)?;
            let mut offset = BLOCK as u64;
            for number in segment.first_batch..segment.first_batch + segment.batches {
                offset = tail.take(&mut window, segment, offset, number)?.0;
            }
        }
        // What was carried is not carried from where it was before.
        let carries = |segment: &&SegmentImage| segment.carries_from > 0 && segment.checkpointed;
        let from = image.segments.iter().rev().find(carries).map_or(0, |segment| segment.epoch);
        for &Unproven { number, epoch, offset } in &image.unproven {
            let segment = image.segments.iter().find(|segment| segment.epoch == epoch);
            let Some(segment) = segment.filter(|_| epoch >= from && !tail.is_whole(epoch)) else {
                continue;
            };
            let name = segment_file(epoch);
            let mut window = Window::open(disk, &name)?;
            let (end, says_something) = tail.take(&mut window, segment, offset, number)?;
            if says_something && tail.batch.replace((epoch, offset..end)).is_some() {
                return Ok(None);
            }
        }
        tail.keep_what_is_alive(&image.replay);
        Ok(Some(tail))
    }

    fn is_whole(&self, epoch: u64) -> bool {
        self.whole.contains(&epoch)
    }

    /// Which segments go, from the newest back to the first that has to stay.
    fn choose_segments(&mut self, image: &LogImage, little_bytes: u64) {
        let mut from = image.unproven.front().map_or(BatchNo::MAX, |first| first.number);
        // From this batch on the segments that go say all that those before them said.
        let mut said_from = BatchNo::MAX;
        let mut left = little_bytes;
        // Where an operator accepts damage, it is not for us to remove anything.
        for segment in image.segments.iter().rev().take_while(|_| image.damage.is_empty()) {
            let accepted = segment.epoch < image.accepted_before;
            let proven = segment.first_batch <= image.durable_upto;
            if segment.said_bytes <= left && !accepted && segment.first_batch < said_from {
                left -= segment.said_bytes;
                from = from.min(segment.first_batch);
                self.whole.push(segment.epoch);
            } else if proven && (accepted || segment.first_batch < said_from) {
                break;
            }
            if segment.checkpointed && segment.carries_from > 0 {
                said_from = said_from.min(segment.carries_from);
                from = from.min(said_from);
            } else if segment.missing_from > 0 {
                from = from.min(segment.missing_from);
            }
            self.segments.push(segment.epoch);
        }
        // A segment without a batch is no reason to say that others are carried.
        self.carries_from = if from < image.next_batch { from } else { 0 };
    }

    /// One more batch: where it ends, and whether it says something.
    fn take(
        &mut self,
        window: &mut Window<'_>,
        segment: &SegmentImage,
        offset: u64,
        number: BatchNo,
    ) -> Result<(u64, bool), OpenError> {
        let epoch = segment.epoch;
        // Checked again: pages that are nowhere else may have gone meanwhile.
        let (head, bytes) = batch_at(window, (epoch, segment.salt), offset)?;
        let Ok(head) = sound_batch((head, bytes), epoch, offset, number) else {
            let name = segment_file(epoch);
            return Err(OpenError::damaged(&name, offset, "a batch changed while it was read"));
        };
        let mut says_something = false;
        let mut gone = Vec::new();
        walk(bytes, epoch, offset, &head, Trust::Verified, |_, record| match record {
            Record::CheckpointBegin
            | Record::CheckpointMeta { .. }
            | Record::CheckpointQueue { .. }
            | Record::CheckpointEnd { .. } => {}
            // That they are not in the log, where older segments have them, was said by a batch that is carried no more.
            Record::CheckpointRun(spill) => {
                gone.extend(spill.live.iter().map(|range| (spill.queue, range)));
            }
            Record::Ack { queue, ranges } => {
                says_something = true;
                gone.extend(ranges.iter().map(|range| (queue, range)));
            }
            // Another queue may have its number after a restart. What consumers held of it was not acknowledged.
            Record::Forget { queue } => {
                says_something = true;
                gone.push((queue, (0, SEQ_MAX)));
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
        Ok((offset + head.padded_bytes() as u64, says_something))
    }

    /// An acknowledgement does not say where: what is alive in a run or in the log is not to be taken from there.
    fn keep_what_is_alive(&mut self, replay: &Replay) {
        for run in replay.runs.values() {
            if let Some(gone) = self.gone.get_mut(&run.queue) {
                for (first, last) in run.live.iter() {
                    gone.remove(first, last);
                }
            }
        }
        for (queue, gone) in &mut self.gone {
            let Some(queue) = replay.queues.get(queue) else { continue };
            let there: Vec<Seq> = gone
                .iter()
                .flat_map(|(first, last)| queue.messages.range(first..=last))
                .map(|(seq, _)| *seq)
                .collect();
            for seq in there {
                gone.remove(seq, seq);
            }
        }
        self.gone.retain(|_, gone| !gone.is_empty());
    }

    /// Whether this message is to be copied.
    pub(crate) fn holds(&self, place: Place) -> bool {
        let batch = self.batch.as_ref();
        self.is_whole(place.epoch)
            || batch.is_some_and(|(epoch, range)| {
                *epoch == place.epoch && range.contains(&place.offset)
            })
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
