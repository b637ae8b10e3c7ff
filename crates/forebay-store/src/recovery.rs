//! Recovery: from files to a running store.
//!
//! ```text
//!   lock ─► read the log ─► sync it ─► runs, payloads ─► new segment, synced ─► delete what nobody needs ─► Store
//!             log_image.rs                contents.rs     tail.rs
//! ```
//!
//! The newest segment is synced before anything is built on it: after a killed process its last batches
//! may be in the page cache only, valid now and gone at the next power cut. That is not enough where a sync had failed
//! already: the last batch, which no other one vouches for, is carried into the new segment ([`Tail`]).
//!
//! No file that was ever begun is changed or removed before the new segment's first batch is durable, so a crash
//! during recovery leaves what recovery found.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;

use crate::contents::recovered_queues;
use crate::disk::Disk;
use crate::error::OpenError;
use crate::event::Event;
use crate::home::{BatchNo, Home, RunId};
use crate::listing::Listing;
use crate::log::{Log, LogState, Map};
use crate::log_image::{LogImage, read_log};
use crate::options::Options;
use crate::replay::ReplayedRun;
use crate::request::{WorkError, perform};
use crate::run::{FIRST_RECORD, RunState, TrackedRun};
use crate::run_files::{
    check_runs, remove_unreferenced, set_aside, set_unreferenced_aside, without_log,
};
use crate::run_numbers::RunNumbers;
use crate::segment::{
    EPOCHS_PASSED_BY_SALVAGE, Segment, SegmentHeader, Spare, segment_file, spare_file,
};
use crate::store::{Damage, Recovered};
use crate::sync::sync_written;
use crate::tail::{Tail, Unproven};

/// Opens the store; the lock is held already.
pub(crate) fn recover(disk: &dyn Disk, options: Options) -> Result<(Log, Recovered), OpenError> {
    let options = options.bounded();
    let listing = Listing::read(disk)?;
    let mut image = read_log(disk, &listing.epochs, options.salvage)?;
    match without_log(&listing) {
        Some(damage) if options.salvage => image.damage.push(damage),
        Some(Damage { file, offset, what }) => return Err(OpenError::damaged(&file, offset, what)),
        None => {}
    }

    let tail = Tail::of(disk, &image, options.batch_max_bytes as u64)?;
    if let Some(&newest) = listing.epochs.last() {
        let name = segment_file(newest);
        let synced = match &tail {
            Some(_) => disk.sync_data(&name),
            None => sync_written(disk, &name, Unproven::bytes_in(&image, newest)),
        };
        synced.map_err(OpenError::io(format!("sync {name}")))?;
        disk.sync_dir().map_err(OpenError::io("sync the data directory"))?;
    }

    for queue in image.replay.queues.values_mut() {
        // Transient messages above were delivered too, perhaps; their numbers are given again.
        let state = &mut queue.state;
        state.delivered_upto = state.delivered_upto.min(state.next_seq.saturating_sub(1));
    }
    let carried = tail.as_ref().map_or(&[][..], |tail| &tail.segments);
    // What a start left that found no room for more than a header, say: the next one needs it.
    let kept = image.accepted_before.max(listing.epochs.first().copied().unwrap_or(0));
    let is_bare = |epoch: &u64| {
        let segment = image.segments.iter().find(|segment| segment.epoch == *epoch);
        *epoch > kept && segment.is_some_and(|segment| segment.batches == 0)
    };
    let (bare, carried): (Vec<u64>, Vec<u64>) = carried.iter().partition(|epoch| is_bare(epoch));
    for &epoch in image.unbegun.iter().chain(&bare) {
        // Before a new segment begins: one that was never begun has no later one behind it.
        remove(disk, &segment_file(epoch))?;
    }
    set_unreferenced_aside(disk, &listing, &mut image)?;
    let run_files: BTreeSet<RunId> =
        listing.runs.iter().chain(&listing.lost_runs).copied().collect();
    let largest_run = run_files.last().map_or(0, |run| run.0).max(image.replay.last_run);
    let mut run_numbers = RunNumbers::new(largest_run, run_files);
    let damaged_runs = check_runs(disk, &mut image, &mut run_numbers, options.salvage)?;
    let mut segments = count_live(&image);
    segments.retain(|segment| !bare.contains(&segment.epoch) && !carried.contains(&segment.epoch));

    // What a spare held before might count as of an epoch to come: without a log they begin anew, and files are renamed.
    let anew = image.segments.is_empty();
    let passed = if image.damage.is_empty() { 1 } else { EPOCHS_PASSED_BY_SALVAGE };
    let next_epoch = listing.epochs.last().filter(|_| !anew).map_or(1, |newest| newest + passed);
    let mut spares = VecDeque::new();
    for &spare in &listing.spares {
        let name = spare_file(spare);
        let whole = disk.len(&name).is_ok_and(|len| len >= options.segment_bytes);
        // One that cannot be read is no reason not to start.
        let from_before = || SegmentHeader::spare_is_from_before(disk, &name, next_epoch);
        let usable = whole && !anew && spares.len() < options.spare_segments_max;
        if usable && from_before().unwrap_or(false) {
            // How much of it was written nobody knows any more.
            spares.push_back(Spare { number: spare, written_bytes: options.segment_bytes });
        } else {
            remove(disk, &name)?;
        }
    }

    let state = LogState {
        segments,
        next_epoch,
        salvaged_before: if image.damage.is_empty() { image.accepted_before } else { next_epoch },
        salt: image.salt.unwrap_or_else(|| disk.random()),
        next_batch: image.next_batch,
        carries_from: tail.as_ref().map_or(0, |tail| tail.carries_from),
        meta: image.replay.meta.clone(),
        queues: image.replay.queues.iter().map(|(&id, queue)| (id, queue.state)).collect(),
        runs: track_runs(&image.replay.runs),
        run_numbers,
        spares,
        next_spare: listing.spares.last().map_or(0, |spare| spare + 1),
    };
    let mut log = Log::new(options, state);
    // One batch: what leaves one queue and enters another does so in one step.
    log.begin_atomic(0);
    let (segments, replay) = (&image.segments, &mut image.replay);
    let (queues, payloads) =
        recovered_queues(disk, segments, replay, &mut |place, owners, payload| match &tail {
            Some(tail) if tail.holds(place) => log.carry(place.epoch, owners, payload),
            _ => Home::segment(place.epoch),
        })?;
    for (&queue, gone) in tail.iter().flat_map(|tail| &tail.gone) {
        log.acknowledge_all(queue, gone);
    }
    log.end_atomic();
    begin(disk, &mut log)?;
    remove_unreferenced(disk, &listing, &image)?;
    for &epoch in &carried {
        // Before an older one can go: what is the oldest has to have a header, and theirs are lost, perhaps.
        let bytes = image.segments.iter().find(|segment| segment.epoch == epoch);
        leave(disk, &mut log, epoch, bytes.map_or(0, |segment| segment.file_bytes))?;
        // The newest first, so that none of them becomes the oldest one.
        disk.sync_dir().map_err(OpenError::io("sync the data directory"))?;
    }
    // Not before: until what was read of them is in the log, they are all there is of it.
    set_aside(disk, &damaged_runs)?;
    let recovered = Recovered {
        meta: image.replay.meta,
        queues: queues
            .into_iter()
            .map(|(id, mut queue)| {
                queue.id = id;
                queue.messages.sort_by_key(|message| message.0);
                let last = queue.messages.last().map_or(0, |message| message.0);
                queue.next_seq = queue.next_seq.max(last + 1);
                queue
            })
            .collect(),
        payloads,
        clean: image.replay.clean,
        torn_tail: image.torn_tail,
        salvaged: !image.damage.is_empty() || image.accepted_before > 0,
        damage: image.damage,
    };
    Ok((log, recovered))
}

/// Writes the new segment's first batch before anybody can act on what was recovered: otherwise a crash
/// right after the first delivery would leave a log that still ends in a clean stop.
fn begin(disk: &dyn Disk, log: &mut Log) -> Result<(), OpenError> {
    while !log.is_begun() {
        let Some(request) = log.poll(0) else {
            unreachable!("a segment that is not begun has a commit to make")
        };
        let file = log.current_file();
        let completion = perform(disk, request);
        if let Err(WorkError::Io(error)) = &completion.result {
            let source = io::Error::new(error.kind(), error.to_string());
            return Err(OpenError::io(format!("begin {file}"))(source));
        }
        log.complete(0, completion).map_err(|failed| OpenError::Io {
            what: format!("begin {file}"),
            source: io::Error::other(failed.what),
        })?;
    }
    // What was durable before the owner had the store is not news.
    log.events.retain(|event| !matches!(event, Event::Durable(_)));
    Ok(())
}

/// Makes a spare of a segment that nobody needs, if it has the size of one: the start took one, and may have to on a full disk.
fn leave(disk: &dyn Disk, log: &mut Log, epoch: u64, file_bytes: u64) -> Result<(), OpenError> {
    let name = segment_file(epoch);
    match log.spare_for(file_bytes) {
        Some(spare) => disk
            .rename(&name, &spare_file(spare.number))
            .map_err(OpenError::io(format!("recycle {name}"))),
        None => remove(disk, &name),
    }
}

fn track_runs(runs: &BTreeMap<RunId, ReplayedRun>) -> Map<RunId, TrackedRun> {
    runs.iter()
        .map(|(&id, run)| {
            let tracked = TrackedRun {
                queue: run.queue,
                durable: true,
                state: RunState::Cold,
                footer: run.footer,
                live: run.live.clone(),
                transient: Default::default(),
                homes: Vec::new(),
                dead_batch: 0,
                cursor: (0, FIRST_RECORD),
            };
            (id, tracked)
        })
        .collect()
}

fn count_live(image: &LogImage) -> VecDeque<Segment> {
    let mut live: Map<u64, u64> = Map::default();
    for queue in image.replay.queues.values() {
        for place in queue.messages.values() {
            *live.entry(place.epoch).or_default() += 1;
        }
    }
    image
        .segments
        .iter()
        .map(|segment| Segment {
            epoch: segment.epoch,
            live: live.get(&segment.epoch).copied().unwrap_or(0),
            messages: segment.messages,
            message_bytes: segment.message_bytes,
            dead_batch: 0,
            passed_by: None,
            // A crash in a checkpoint of several batches leaves a segment without one.
            checkpoint_batch: if segment.checkpointed { 0 } else { BatchNo::MAX },
            used: segment.end,
            capacity: 0,
            allocated: segment.file_bytes,
            prewritten: false,
        })
        .collect()
}

pub(crate) fn remove(disk: &dyn Disk, name: &str) -> Result<(), OpenError> {
    disk.remove(name).map_err(OpenError::io(format!("remove {name}")))
}
