//! What a log that is read from its files turns out to be: recovery's first pass, and all of a check's.
//!
//! ```text
//!   headers ─► walk segments, oldest first ─► LogImage
//!       │            │ replay.rs
//!       │            └── a batch that is not valid: torn or damaged?
//!       └── newer format: refuse
//! ```
//!
//! **Torn tail or damage?** Let `n` be the number of the first batch that is not there or not valid. It
//! is damage if the log shows that `n` was durable once: a later segment begins above `n`, or some valid
//! batch head carries `durable upto >= n`. Otherwise nobody was ever told that `n` was durable, and the
//! log ends before it: a torn tail, normal after a crash. Bytes after a torn tail are never appended to:
//! the store goes on in a new segment whose first batch is `n` again, which marks the old one's end.

use std::collections::VecDeque;

use crate::batch::{BATCH_HEAD, BatchHead, Trust, verify, walk};
use crate::disk::Disk;
use crate::error::{OpenError, is_bad_sector};
use crate::home::BatchNo;
use crate::record::Record;
use crate::replay::{Place, Replay};
use crate::segment::{BLOCK, HeaderError, SegmentHeader, VERSION, segment_file};
use crate::store::Damage;
use crate::tail::Unproven;
use crate::window::{UNREADABLE, Window};

/// What walking the log gave.
#[derive(Debug, Default)]
pub(crate) struct LogImage {
    pub(crate) replay: Replay,
    pub(crate) segments: Vec<SegmentImage>,
    /// Segments that nothing was ever durable in: a crash came before their first batch.
    pub(crate) unbegun: Vec<u64>,
    /// The number the next batch gets; 1 in an empty directory.
    pub(crate) next_batch: BatchNo,
    pub(crate) batches: u64,
    /// The newest batch that some other one shows to have been durable.
    pub(crate) durable_upto: BatchNo,
    /// Valid batches above it, in order.
    pub(crate) unproven: VecDeque<Unproven>,
    pub(crate) torn_tail: bool,
    pub(crate) damage: Vec<Damage>,
    /// Damage that an operator accepted before.
    pub(crate) accepted: Vec<Damage>,
    /// Where the log begins by the newest valid batch: that one's segment, and the oldest one that is needed.
    begins: Option<(u64, u64)>,
    /// Damage in segments below this epoch was accepted by an operator before.
    pub(crate) accepted_before: u64,
    /// The directory's salt, if it has one.
    pub(crate) salt: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct SegmentImage {
    pub(crate) epoch: u64,
    pub(crate) salt: u64,
    /// The batch from which on it stands in for those before it; 0: for none.
    pub(crate) carries_from: BatchNo,
    pub(crate) first_batch: BatchNo,
    /// Where its valid batches end, in bytes.
    pub(crate) end: u64,
    pub(crate) file_bytes: u64,
    pub(crate) batches: u64,
    /// Messages that were put here, once for each of their queues.
    pub(crate) messages: u64,
    /// What the records of these take.
    pub(crate) message_bytes: u64,
    /// What it says beyond its checkpoint takes so many bytes at most, with whatever else would have to be said again.
    pub(crate) said_bytes: u64,
    /// The first batch before it that is not there, because it or a later segment carries that; 0: none.
    pub(crate) missing_from: BatchNo,
    /// Its checkpoint is whole: recovery can begin here.
    pub(crate) checkpointed: bool,
}

/// What a batch that could not be taken looked like.
pub(crate) struct Stop {
    offset: u64,
    what: &'static str,
    /// There is something of this segment's life, not just the untouched rest of the file or of an
    /// earlier life (as far as can be seen: the first sector may be what was not written).
    written: bool,
}

/// The head of the batch at `offset` if there is one, and what the file holds from there on: all of the batch, unless
/// the file ends before it does.
pub(crate) fn batch_at<'a>(
    window: &'a mut Window<'_>,
    (epoch, salt): (u64, u64),
    offset: u64,
) -> Result<(Option<BatchHead>, &'a [u8]), OpenError> {
    let head = BatchHead::decode(window.from(offset, BATCH_HEAD)?, epoch, offset);
    let head = head.filter(|head| head.salt == salt);
    let wanted = head.as_ref().map_or(BATCH_HEAD, BatchHead::padded_bytes);
    Ok((head, window.from(offset, wanted)?))
}

/// The head, if it is the one of batch `number` and all the records in `bytes` behind it are valid.
pub(crate) fn sound_batch(
    (head, bytes): (Option<BatchHead>, &[u8]),
    epoch: u64,
    offset: u64,
    number: BatchNo,
) -> Result<BatchHead, Stop> {
    let Some(head) = head else {
        let written = BatchHead::was_begun(bytes, epoch);
        return Err(Stop { offset, what: "a batch's head does not match its checksum", written });
    };
    if head.number != number {
        return Err(Stop { offset, what: "a batch has a number out of turn", written: true });
    }
    match verify(bytes, epoch, offset, &head) {
        Ok(()) => Ok(head),
        Err((offset, what)) => Err(Stop { offset, what, written: true }),
    }
}

/// Valid batch heads of a segment from `start` on: one for each block at most. `is_ours` is asked about each, with the number of
/// blocks before it.
fn heads_from(
    window: &mut Window<'_>,
    epoch: u64,
    start: u64,
    is_ours: impl Fn(u64, &BatchHead) -> bool,
) -> Result<Vec<(u64, BatchHead)>, OpenError> {
    let mut heads = Vec::new();
    for (blocks, offset) in (0..).zip((start..window.file_bytes()).step_by(BLOCK)) {
        let head = BatchHead::decode(window.from(offset, BATCH_HEAD)?, epoch, offset);
        let head = head.filter(|head| is_ours(blocks, head));
        heads.extend(head.map(|head| (offset, head)));
    }
    Ok(heads)
}

/// The newest batch that these heads show to have been durable.
fn proven_by(heads: &[(u64, BatchHead)]) -> Option<BatchNo> {
    heads.iter().map(|(_, head)| head.durable_upto).max()
}

/// Walks the whole log. `lenient`: damage is noted and passed over; otherwise it is an error.
pub(crate) fn read_log(
    disk: &dyn Disk,
    epochs: &[u64],
    lenient: bool,
) -> Result<LogImage, OpenError> {
    let mut image = LogImage { next_batch: 1, ..LogImage::default() };
    let (headers, unreadable) = read_headers(disk, epochs)?;
    let accepted_before =
        headers.iter().flatten().map(|header| header.salvaged_before).max().unwrap_or(0);
    image.accepted_before = accepted_before;
    // From some segment on all have the same salt.
    let salts = headers.iter().map(|header| header.map_or(0, |header| header.salt));
    let salted = salts.enumerate().find(|(_, salt)| *salt != 0);
    // The next batch expected; unknown before the first readable segment.
    let mut expected: Option<BatchNo> = None;
    let mut durable_upto: BatchNo = 0;
    let mut last_stop: Option<(String, Stop)> = None;

    for (index, &epoch) in epochs.iter().enumerate() {
        let name = segment_file(epoch);
        let refuses = !lenient && epoch >= accepted_before;
        let mut window = Window::open(disk, &name)?.refusing(refuses);
        let next_first =
            headers.get(index + 1).and_then(|next| next.as_ref()).map(|next| next.first_batch);
        let from_here = headers[index..].iter().flatten();
        let carried = |number| from_here.clone().any(|header| header.stands_in_for(number));
        let damaged = |image: &mut LogImage, offset: u64, what: String| {
            if epoch < accepted_before {
                image.accepted.push(Damage { file: name.clone(), offset, what });
            } else if lenient {
                image.damage.push(Damage { file: name.clone(), offset, what });
            } else {
                return Err(OpenError::damaged(&name, offset, what));
            }
            image.replay.gap();
            Ok(())
        };
        let note_missed = |image: &mut LogImage, window: &Window<'_>| {
            let mut missed = window.missed().iter();
            missed.try_for_each(|range| {
                let bytes = range.end - range.start;
                damaged(image, range.start, format!("{UNREADABLE}: {bytes} bytes"))
            })
        };
        let mut segment = SegmentImage {
            epoch,
            salt: headers[index].map_or(0, |header| header.salt),
            carries_from: headers[index].map_or(0, |header| header.carries_from),
            first_batch: headers[index].map_or(0, |header| header.first_batch),
            end: BLOCK as u64,
            file_bytes: window.file_bytes(),
            batches: 0,
            messages: 0,
            message_bytes: 0,
            said_bytes: 0,
            missing_from: 0,
            checkpointed: false,
        };
        let checkpoints_before = image.replay.checkpoints;

        let mut offset = BLOCK as u64;
        match (&headers[index], expected) {
            (None, _) => {
                let mut heads = heads_from(&mut window, epoch, offset, |_, head| {
                    let had_none = |from| head.salt == 0 && index < from;
                    salted.is_none_or(|(from, salt)| head.salt == salt || had_none(from))
                })?;
                // A segment begins with one that its writer wrote.
                segment.salt = heads.first().map_or(0, |(_, head)| head.salt);
                heads.retain(|(_, head)| head.salt == segment.salt);
                let proven = proven_by(&heads);
                let first = heads.iter().map(|(_, head)| head.number).min();
                let needed = expected.or(first);
                durable_upto = durable_upto.max(proven.unwrap_or(0));
                let header_lost = unreadable.contains(&epoch);
                if header_lost || !window.missed().is_empty() {
                    if header_lost {
                        damaged(&mut image, 0, UNREADABLE.to_owned())?;
                    }
                    if needed.is_none() {
                        note_missed(&mut image, &window)?;
                        image.segments.push(segment);
                        continue;
                    }
                    expected = needed;
                } else if let (Some(proven), Some(needed)) = (proven, needed)
                    && proven >= needed
                {
                    let what = "the segment's header does not match its checksum";
                    damaged(&mut image, 0, what.to_owned())?;
                    expected = Some(needed);
                } else if expected.is_none() && !begins_empty(epochs[0], &headers[index + 1..]) {
                    let what = "the oldest segment's header does not match its checksum, and what \
                                was in it is not in a later one";
                    damaged(&mut image, 0, what.to_owned())?;
                    image.segments.push(segment);
                    continue;
                } else {
                    image.torn_tail |= first.is_some();
                    image.unbegun.push(epoch);
                    continue;
                }
            }
            (Some(header), None) => expected = Some(header.first_batch),
            (Some(header), Some(number)) if header.first_batch == number => {}
            (Some(header), Some(number)) if number < header.first_batch && carried(number) => {
                segment.missing_from = number;
                expected = Some(header.first_batch);
            }
            (Some(header), Some(number)) => {
                let what = if header.first_batch < number {
                    format!(
                        "the segment begins with batch {}, but the log before it reaches to {}",
                        header.first_batch,
                        number - 1
                    )
                } else {
                    format!(
                        "batches {number} to {} before this segment are missing",
                        header.first_batch - 1
                    )
                };
                damaged(&mut image, 0, what)?;
                expected = Some(header.first_batch);
            }
        }

        let mut number = expected.expect("set above");
        // A header that goes back is itself the damage, and ends nothing before it.
        let next_first = next_first.filter(|next| *next > number);
        let stop = loop {
            if next_first.is_some_and(|limit| number >= limit) {
                break None;
            }
            let key = (epoch, segment.salt);
            let (head, bytes) = batch_at(&mut window, key, offset)?;
            match sound_batch((head, bytes), epoch, offset, number) {
                Ok(head) => {
                    let visit = |at: u64, record: Record<'_>| {
                        let bytes = record.bytes_to_say_again();
                        segment.said_bytes += bytes;
                        if let Record::Publish { queues, .. } = &record {
                            segment.messages += queues.iter().count() as u64;
                            segment.message_bytes += bytes;
                        }
                        image.replay.apply(Place { epoch, offset: at }, record);
                    };
                    walk(bytes, epoch, offset, &head, Trust::Verified, visit);
                    durable_upto = durable_upto.max(head.durable_upto);
                    image.begins = Some((epoch, head.log_begins));
                    image.unproven.push_back(Unproven { number, epoch, offset });
                    while image.unproven.front().is_some_and(|front| front.number <= durable_upto) {
                        image.unproven.pop_front();
                    }
                    image.batches += 1;
                    segment.batches += 1;
                    number += 1;
                    offset += head.padded_bytes() as u64;
                    segment.end = offset;
                }
                Err(stop) => {
                    let later = heads_from(&mut window, epoch, offset, |blocks, head| {
                        // Each batch before it takes a block or more; without a header nobody knows which was the first.
                        let follows = headers[index].is_none() || head.number <= number + blocks;
                        head.salt == segment.salt && follows
                    })?;
                    durable_upto = durable_upto.max(proven_by(&later).unwrap_or(0));
                    let proven = match next_first {
                        Some(limit) => limit > number && !carried(number),
                        None => durable_upto >= number,
                    };
                    if !proven {
                        break Some(stop);
                    }
                    // What salvage can take from the damaged batch: the records before the damage.
                    let mut resume = offset + BLOCK as u64;
                    let (head, bytes) = batch_at(&mut window, key, offset)?;
                    let lost = stop.what;
                    damaged(&mut image, stop.offset, format!("{lost} (batch {number})"))?;
                    if let Some(head) = head
                        && head.number == number
                    {
                        image.begins = Some((epoch, head.log_begins));
                        let mut taken = 0;
                        walk(bytes, epoch, offset, &head, Trust::Nothing, |at, record| {
                            taken += 1;
                            image.replay.apply(Place { epoch, offset: at }, record);
                        });
                        image.replay.gap();
                        if epoch >= accepted_before
                            && let Some(damage) = image.damage.last_mut()
                        {
                            let (lost, all) = (head.count - taken, head.count);
                            damage.what += &format!(
                                ": {lost} of its {all} records cannot be read, each one message at most"
                            );
                        }
                        resume = offset + head.padded_bytes() as u64;
                    }
                    let next =
                        later.iter().find(|(at, head)| *at >= resume && head.number > number);
                    match next {
                        Some(&(at, head)) if next_first.is_none_or(|limit| head.number < limit) => {
                            offset = at;
                            number = head.number;
                        }
                        _ => {
                            // The rest of the segment is gone; the log goes on in the next one, or above
                            // everything that was ever durable.
                            number = next_first.unwrap_or(durable_upto + 1);
                            break None;
                        }
                    }
                }
            }
        };
        note_missed(&mut image, &window)?;
        segment.checkpointed = image.replay.checkpoints > checkpoints_before;
        // Only the newest segment's: one from an earlier crash may still be in the log.
        image.torn_tail = stop.as_ref().is_some_and(|stop| stop.written);
        last_stop = stop.map(|stop| (name.clone(), stop)).or(last_stop);
        expected = Some(number);
        image.segments.push(segment);
    }

    image.next_batch = expected.unwrap_or(1);
    image.durable_upto = durable_upto;
    image.unproven.retain(|unproven| unproven.number > durable_upto);
    let salts = image.segments.iter().map(|segment| segment.salt);
    image.salt = salted.map(|(_, salt)| salt).or(salts.rev().find(|salt| *salt != 0));
    // One below that was accepted, or nobody has written since.
    if let (Some((by, begins)), Some(&oldest)) = (image.begins, epochs.first())
        && (1..oldest).contains(&begins)
        && by >= accepted_before
    {
        let file = segment_file(begins);
        let there = segment_file(oldest);
        let what = format!(
            "the log begins with this segment, which is missing: the oldest one is {there}"
        );
        if !lenient {
            return Err(OpenError::damaged(&file, 0, what));
        }
        image.damage.push(Damage { file, offset: 0, what });
    }
    if image.batches > 0 && image.replay.checkpoints == 0 {
        // A segment goes only when a later one has a whole checkpoint, so there must be one.
        let file = segment_file(epochs[0]);
        let what = "no segment has a whole checkpoint";
        if !lenient {
            return Err(OpenError::damaged(&file, BLOCK as u64, what));
        }
        image.damage.push(Damage { file, offset: BLOCK as u64, what: what.to_owned() });
    }
    if durable_upto >= image.next_batch {
        // A later file proved it: the header of the next segment is unreadable or its file is gone.
        let (file, offset) = match last_stop {
            Some((file, stop)) => (file, stop.offset),
            None => ("log".to_owned(), 0),
        };
        let what =
            format!("batches {} to {durable_upto} were durable and are missing", image.next_batch);
        if !lenient {
            return Err(OpenError::damaged(&file, offset, what));
        }
        image.damage.push(Damage { file, offset, what });
        image.next_batch = durable_upto + 1;
    }
    Ok(image)
}

/// Whether a directory whose oldest segment has no header may be one in which nothing was ever durable:
/// the log's first batch comes later, or nowhere and its first segment is still there. In any other
/// directory the oldest segment is sound, since recovery removes those that were never begun.
fn begins_empty(oldest: u64, later: &[Option<SegmentHeader>]) -> bool {
    let mut later = later.iter().flatten();
    match later.next() {
        Some(header) => {
            header.first_batch == 1 || later.chain([header]).any(|header| header.carries_from == 1)
        }
        None => oldest == 1,
    }
}

/// The headers, where they are sound, and which of the segments have one that cannot be read.
fn read_headers(
    disk: &dyn Disk,
    epochs: &[u64],
) -> Result<(Vec<Option<SegmentHeader>>, Vec<u64>), OpenError> {
    let mut headers = Vec::with_capacity(epochs.len());
    let mut unreadable = Vec::new();
    for &epoch in epochs {
        let name = segment_file(epoch);
        let mut block = [0; 64];
        let read = match disk.read_at(&name, 0, &mut block) {
            Err(error) if is_bad_sector(&error) => {
                unreadable.push(epoch);
                0
            }
            read => read.map_err(OpenError::reading(format!("read {name}")))?,
        };
        headers.push(match SegmentHeader::decode(epoch, &block[..read]) {
            Ok(header) => Some(header),
            Err(HeaderError::Invalid) => None,
            Err(HeaderError::Newer(found)) => {
                return Err(OpenError::NewerFormat { found, supported: VERSION });
            }
        });
    }
    Ok((headers, unreadable))
}
