//! What queues hold after the log was walked: recovery's second pass.
//!
//! ```text
//!   Replay: where each message lies ─► runs stay cold, or ─► load_run ──┐
//!                                  └─► payloads, a window of a segment ─┴─► RecoveredQueue
//! ```
//!
//! What was in memory at a crash must fit into it again: the places of messages are let go segment by segment as their
//! payloads come, and of a segment one [`Window`] is in memory.

use std::collections::BTreeMap;

use crate::checksum::owner;
use crate::disk::Disk;
use crate::error::OpenError;
use crate::home::{Home, QueueId, RunId, Seq};
use crate::log_image::SegmentImage;
use crate::record::{self, RECORD_HEAD, Record};
use crate::replay::{Place, Replay, ReplayedQueue, ReplayedRun};
use crate::request::WorkError;
use crate::run::{self, FIRST_RECORD, run_file};
use crate::segment::segment_file;
use crate::store::{RecoveredQueue, RunInfo};
use crate::window::Window;

/// Queues as they are built.
type Queues = BTreeMap<QueueId, RecoveredQueue>;

/// Where a message is from now on, with all of its queues and its payload, that was found at this place.
type HomeOf<'a> = &'a mut dyn FnMut(Place, &[(QueueId, Seq)], &[u8]) -> Home;

/// Builds each queue: payloads from the segments, runs that cannot stay cold from their files. The places of messages are
/// taken out of `replay`. A payload is read once, however many queues have it; `home_of` says where that is from now on.
pub(crate) fn recovered_queues(
    disk: &dyn Disk,
    segments: &[SegmentImage],
    replay: &mut Replay,
    home_of: HomeOf<'_>,
) -> Result<(Queues, Vec<Vec<u8>>), OpenError> {
    let mut queues = Queues::new();
    let mut payloads = Vec::new();
    for (&id, queue) in &replay.queues {
        let recovered = queues.entry(id).or_default();
        recovered.next_seq = queue.state.next_seq.max(1);
        recovered.delivered_upto = queue.state.delivered_upto;
        recovered.messages.reserve_exact(queue.messages.len());
    }
    let mut by_queue: BTreeMap<QueueId, Vec<(RunId, &ReplayedRun)>> = BTreeMap::new();
    for (&id, run) in &replay.runs {
        by_queue.entry(run.queue).or_default().push((id, run));
    }
    let mut warm = Vec::new();
    for (id, runs) in by_queue {
        let queue = queues.entry(id).or_default();
        warm.extend(keep_cold(runs, replay.queues.get(&id), queue));
    }

    let mut by_segment: BTreeMap<u64, Vec<(u64, QueueId, Seq)>> = BTreeMap::new();
    for (&id, queue) in &mut replay.queues {
        for (seq, place) in std::mem::take(&mut queue.messages) {
            by_segment.entry(place.epoch).or_default().push((place.offset, id, seq));
        }
    }
    for (epoch, places) in by_segment {
        let segment = segments.iter().find(|segment| segment.epoch == epoch);
        let salt = segment.map_or(0, |segment| segment.salt);
        read_payloads(disk, (epoch, salt), places, home_of, &mut queues, &mut payloads)?;
    }
    for id in warm {
        let run = &replay.runs[&id];
        let queue = queues.entry(run.queue).or_default();
        let mut messages = Vec::new();
        load_run(disk, id, run, &mut messages).map_err(|error| match error {
            WorkError::Io(error) => OpenError::reading(format!("read {}", run_file(id)))(error),
            WorkError::Damaged(damage) => {
                OpenError::damaged(&run_file(id), damage.offset, damage.what)
            }
        })?;
        for (seq, home, payload) in messages {
            queue.messages.push((seq, home, payloads.len()));
            payloads.push(payload);
        }
    }
    Ok((queues, payloads))
}

/// Gives `queue` those of its runs that neither overlap another nor have one of its messages in their
/// span; returns the others.
fn keep_cold(
    mut runs: Vec<(RunId, &ReplayedRun)>,
    replayed: Option<&ReplayedQueue>,
    queue: &mut RecoveredQueue,
) -> Vec<RunId> {
    runs.sort_by_key(|(_, run)| run.live.first());
    // Sorted by their first, runs overlap one before them if they begin at or before its last.
    let mut reach = 0;
    let mut overlaps = vec![false; runs.len()];
    let mut widest = 0;
    for (index, (_, run)) in runs.iter().enumerate() {
        let (Some(first), Some(last)) = (run.live.first(), run.live.last()) else { continue };
        if index > 0 && first <= reach {
            overlaps[index] = true;
            overlaps[widest] = true;
        }
        if last > reach {
            reach = last;
            widest = index;
        }
    }
    let mut warm = Vec::new();
    for (&(id, run), overlaps) in runs.iter().zip(overlaps) {
        let (Some(first), Some(last)) = (run.live.first(), run.live.last()) else { continue };
        queue.next_seq = queue.next_seq.max(last + 1);
        let meets_message =
            replayed.is_some_and(|replayed| replayed.messages.range(first..=last).next().is_some());
        if overlaps || meets_message {
            warm.push(id);
            continue;
        }
        let share = u128::from(run.footer.payload_bytes) * u128::from(run.live.len())
            / u128::from(run.footer.count.max(1));
        queue.runs.push(RunInfo {
            id,
            queue: run.queue,
            first,
            last,
            messages: run.live.len(),
            bytes: u64::try_from(share).unwrap_or(u64::MAX),
        });
    }
    warm
}

/// Appends what is alive in a run. On an error, what could be read was appended.
pub(crate) fn load_run(
    disk: &dyn Disk,
    id: RunId,
    run: &ReplayedRun,
    messages: &mut Vec<(Seq, Home, Vec<u8>)>,
) -> Result<(), WorkError> {
    let mut offset = FIRST_RECORD;
    while offset < run.footer.records_end {
        let mut block = Vec::new();
        let read = run::read_records(disk, id, offset, run.footer.records_end, 0, &mut block);
        messages.extend(
            block
                .into_iter()
                .filter(|(seq, persistent, _)| *persistent && run.live.contains(*seq))
                .map(|(seq, _, payload)| (seq, Home::run(id), payload)),
        );
        offset = read?;
    }
    Ok(())
}

/// The payloads of what is alive in one segment.
fn read_payloads(
    disk: &dyn Disk,
    (epoch, salt): (u64, u64),
    mut places: Vec<(u64, QueueId, Seq)>,
    home_of: HomeOf<'_>,
    queues: &mut Queues,
    payloads: &mut Vec<Vec<u8>>,
) -> Result<(), OpenError> {
    places.sort_unstable();
    let name = segment_file(epoch);
    let mut window = Window::open(disk, &name)?;
    let mut owners = Vec::new();
    for of_one in places.chunk_by(|one, next| one.0 == next.0) {
        let offset = of_one[0].0;
        // Checked again: these are other bytes than the first pass saw, if the medium lies.
        let claimed = record::claimed_bytes(window.from(offset, RECORD_HEAD)?);
        let bytes = window.from(offset, claimed)?;
        let read = record::read(bytes, owner(epoch, salt), offset);
        let Ok((Record::Publish { payload, .. }, _)) = read else {
            return Err(OpenError::damaged(&name, offset, "a record changed while it was read"));
        };
        owners.clear();
        owners.extend(of_one.iter().map(|&(_, id, seq)| (id, seq)));
        let home = home_of(Place { epoch, offset }, &owners, payload);
        for &(id, seq) in &owners {
            queues.entry(id).or_default().messages.push((seq, home, payloads.len()));
        }
        payloads.push(payload.to_vec());
    }
    Ok(())
}
