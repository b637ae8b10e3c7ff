//! The lanes beside the log's: reading runs, for which a consumer waits, and everything that may take its time.
//!
//! The latter in this order: writing runs (memory waits), recycling or removing dead segments and runs (disk
//! space waits), allocating spares, pre-writing them. Pre-writing goes in slices, so that a commit does not wait long for
//! the disk behind it, and while commits are large it waits until the log rests: a segment takes longer to be filled with
//! zeros than commits of megabytes lose in one that was allocated only, and is written when it is recycled.
//!
//! On one lane with a write and its flush a read of a millisecond took ten, and a consumer of a long
//! queue got a third of what it takes.
//!
//! A full disk is noticed here first. A spare or a run that cannot be written for lack of space is tried
//! again later, and [`Event::LowSpace`] asks the owner to stop publishers. For [`READY`] segments there is
//! room: the next one, and two in reserve, which acks and checkpoints live on meanwhile. Any other error is final.

use std::collections::VecDeque;
use std::io;

use crate::error::StoreFailed;
use crate::event::Event;
use crate::home::{BatchNo, RunId, Seq};
use crate::log::{Log, Map};
use crate::options::Options;
use crate::request::{Output, Request, Work, WorkError};
use crate::run::{FIRST_RECORD, RunState, TrackedRun};
use crate::segment::{Segment, Spare};

/// Segments that room is kept for once the log is in use: the next one and two in reserve.
pub(crate) const READY: usize = 3;
/// Pre-writing goes in slices of this size, in bytes.
const SLICE_BYTES: u64 = 2 << 20;
/// Time between two tries of writing a run on a full disk, in microseconds.
const RETRY_US: u64 = 1_000_000;
/// Time between two tries of pre-writing on a full disk, in microseconds, unless something was removed
/// from it meanwhile: each try takes the space that the open segment needs for acks.
const PREWRITE_RETRY_US: u64 = 30_000_000;

/// What waits for the two lanes.
#[derive(Debug)]
pub(crate) struct Background {
    busy: bool,
    /// The run that is being read.
    reading: Option<RunId>,
    reads: VecDeque<ReadWanted>,
    pub(crate) run_writes: VecDeque<(RunId, Vec<u8>, bool)>,
    /// Bytes of these, and of the one that is being written.
    pub(crate) run_bytes: usize,
    pub(crate) dead_segments: VecDeque<Segment>,
    /// Empty runs, with the batch that must be synced before their files go; in order of it.
    pub(crate) dead_runs: VecDeque<(BatchNo, RunId)>,
    /// Spares ready for use.
    pub(crate) ready: VecDeque<Spare>,
    /// Where room cannot be allocated: the spare being pre-written, and how far it is, in bytes.
    prewriting: Option<(u32, u64)>,
    /// One of those that are ready, while a slice of it is being written: nobody may take it.
    slicing: Option<u32>,
    /// The disk can only promise room that was written.
    allocates_nothing: bool,
    next_spare: u32,
    /// A spare that the disk had no room for: what there is of it gives its space back at once.
    abandoned: Option<u32>,
    low_space: bool,
    /// When to pre-write again after the disk was full.
    prewrite_at_us: Option<u64>,
    /// When to try again after the disk was full.
    pub(crate) retry_at_us: Option<u64>,
}

#[derive(Copy, Clone, Debug)]
struct ReadWanted {
    run: RunId,
    from_seq: Seq,
}

impl Background {
    pub(crate) fn new(ready: VecDeque<Spare>, next_spare: u32) -> Background {
        Background {
            busy: false,
            reading: None,
            reads: VecDeque::new(),
            run_writes: VecDeque::new(),
            run_bytes: 0,
            dead_segments: VecDeque::new(),
            dead_runs: VecDeque::new(),
            ready,
            prewriting: None,
            slicing: None,
            allocates_nothing: false,
            next_spare,
            abandoned: None,
            low_space: false,
            prewrite_at_us: None,
            retry_at_us: None,
        }
    }

    /// When the lane wants to try again what failed for lack of space.
    pub(crate) fn next_try_us(&self) -> Option<u64> {
        // A busy lane is asked again when it is free.
        if self.busy {
            return None;
        }
        [self.retry_at_us, self.prewrite_at_us].into_iter().flatten().min()
    }

    pub(crate) fn want_read(&mut self, run: RunId, from_seq: Seq) {
        self.reads.push_back(ReadWanted { run, from_seq });
    }

    /// The file for the next segment, if there is one: a written one rather than another.
    pub(crate) fn take_spare(&mut self, segment_bytes: u64) -> Option<Spare> {
        let next = self.best_spare(segment_bytes)?;
        self.ready.retain(|spare| *spare != next);
        Some(next)
    }

    /// Those that have all of their room: where none can be allocated, room is what was written.
    pub(crate) fn ready_segments(&self, segment_bytes: u64) -> usize {
        let has_room =
            |spare: &&Spare| !self.allocates_nothing || spare.written_bytes >= segment_bytes;
        self.ready.iter().filter(has_room).count()
    }

    fn has_written(&self, segment_bytes: u64) -> bool {
        self.ready.iter().any(|spare| spare.written_bytes >= segment_bytes)
    }

    /// The one that would be taken.
    pub(crate) fn best_spare(&self, segment_bytes: u64) -> Option<Spare> {
        let mut free = self.ready.iter().filter(|spare| Some(spare.number) != self.slicing);
        let written = free.clone().find(|spare| spare.written_bytes >= segment_bytes);
        written.or_else(|| free.next()).copied()
    }

    /// Whether a spare is better than this segment. The first one of a run grows, and would fail on a full disk; the next ones
    /// have room, and are not written yet, perhaps: of a full disk the log uses what it has to its end.
    pub(crate) fn has_better(&self, segment: &Segment, segment_bytes: u64) -> bool {
        let grows = segment.allocated < segment_bytes;
        let slow = !segment.prewritten && !self.low_space;
        self.best_spare(segment_bytes)
            .is_some_and(|spare| grows || slow && spare.written_bytes >= segment_bytes)
    }

    /// Where the disk is full, how many segments are left to go on with.
    pub(crate) fn segments_left(&self, segment_bytes: u64) -> Option<usize> {
        self.low_space.then(|| self.ready_segments(segment_bytes))
    }

    fn new_spare(&mut self) -> u32 {
        let spare = self.next_spare;
        self.next_spare += 1;
        spare
    }

    /// The next read that needs the disk; the others are answered.
    fn next_read(
        &mut self,
        runs: &Map<RunId, TrackedRun>,
        events: &mut VecDeque<Event>,
    ) -> Option<Work> {
        while let Some(ReadWanted { run: id, from_seq }) = self.reads.pop_front() {
            let wanted = runs
                .get(&id)
                .filter(|run| matches!(run.state, RunState::Switched | RunState::Cold))
                .and_then(|run| Some((run, run.live.next_from(from_seq)?)));
            let Some((run, seq)) = wanted else {
                let queue = runs.get(&id).map_or(0, |run| run.queue);
                events.push_back(Event::RunBlock {
                    run: id,
                    queue,
                    messages: Vec::new(),
                    at_end: true,
                });
                continue;
            };
            let from_offset = if run.cursor.0 <= seq { run.cursor.1 } else { FIRST_RECORD };
            let records_end = run.footer.records_end;
            return Some(Work::ReadRun { run: id, from_offset, records_end, from_seq: seq });
        }
        None
    }

    /// A block came from the disk: what is alive in it goes to the owner.
    fn block_read(
        &mut self,
        runs: &mut Map<RunId, TrackedRun>,
        events: &mut VecDeque<Event>,
        id: RunId,
        from_seq: Seq,
        output: Output,
    ) {
        let Output::Block { mut messages, next_offset } = output else { return };
        let Some(run) = runs.get_mut(&id) else {
            self.reads.push_front(ReadWanted { run: id, from_seq });
            return;
        };
        let next_seq = messages.last().map_or(from_seq, |message| message.0 + 1);
        if next_offset < run.footer.records_end {
            run.cursor = (next_seq, next_offset);
        }
        messages.retain(|message| run.live.contains(message.0));
        if messages.is_empty() && next_offset < run.footer.records_end {
            // All of the block was settled meanwhile, or it was skipped over: go on behind it.
            self.reads.push_front(ReadWanted { run: id, from_seq: next_seq });
            return;
        }
        let at_end = run.live.next_from(next_seq).is_none();
        events.push_back(Event::RunBlock { run: id, queue: run.queue, messages, at_end });
    }
}

/// Whether there may be one more spare, and a segment whose file has this size may be it.
fn may_be_spare(options: &Options, ready: &VecDeque<Spare>, file_bytes: u64) -> bool {
    let size = options.segment_bytes;
    (size..=size + size / 2).contains(&file_bytes) && ready.len() < options.spare_segments_max
}

impl Log {
    /// Segments to go on with when the disk is full; none while the present one grows, which would fail.
    pub(crate) fn ready_segments(&self) -> usize {
        let segment_bytes = self.options.segment_bytes;
        let current = self.segments.back().expect("there is always a segment");
        match current.allocated < segment_bytes {
            true => 0,
            false => self.background.ready_segments(segment_bytes),
        }
    }

    /// A spare, if a segment that a start leaves may become one, to be ready once it is renamed.
    pub(crate) fn spare_for(&mut self, file_bytes: u64) -> Option<Spare> {
        let background = &mut self.background;
        may_be_spare(&self.options, &background.ready, file_bytes).then(|| {
            let number = background.new_spare();
            // How much of it was written nobody knows any more.
            let spare = Spare { number, written_bytes: self.options.segment_bytes };
            background.ready.push_back(spare);
            spare
        })
    }

    pub(crate) fn poll_other_lanes(&mut self) -> Option<Request> {
        self.poll_read_lane().or_else(|| self.poll_background_lane())
    }

    fn poll_read_lane(&mut self) -> Option<Request> {
        if self.background.reading.is_some() {
            return None;
        }
        let work = self.background.next_read(&self.runs, &mut self.events)?;
        if let Work::ReadRun { run, .. } = work {
            self.background.reading = Some(run);
        }
        Some(Request { work })
    }

    fn poll_background_lane(&mut self) -> Option<Request> {
        if self.background.busy {
            return None;
        }
        let work = self.next_background_work()?;
        self.background.busy = true;
        Some(Request { work })
    }

    fn next_background_work(&mut self) -> Option<Work> {
        let background = &mut self.background;
        if let Some(spare) = background.abandoned.take() {
            return Some(Work::RemoveSpare { spare });
        }
        let may_write = background.retry_at_us.is_none_or(|at_us| at_us <= self.now_us);
        if may_write {
            background.retry_at_us = None;
        }
        while may_write && let Some((run, bytes, durable)) = self.background.run_writes.pop_front()
        {
            // All of it was settled while it waited for its turn.
            if self.runs.get(&run).is_some_and(|run| run.live.is_empty()) {
                self.background.run_bytes -= bytes.len();
                self.run_written(run);
                self.space_found();
                continue;
            }
            return Some(Work::WriteRun { run, bytes, durable });
        }
        let background = &mut self.background;
        if let Some(dead) = background.dead_segments.pop_front() {
            let size = self.options.segment_bytes;
            return Some(if may_be_spare(&self.options, &background.ready, dead.allocated) {
                let written_bytes = if dead.prewritten { size } else { dead.used };
                Work::Recycle { epoch: dead.epoch, spare: background.new_spare(), written_bytes }
            } else {
                Work::RemoveSegment { epoch: dead.epoch }
            });
        }
        if let Some(&(batch, run)) = self.background.dead_runs.front()
            && batch <= self.synced()
            && self.background.reading != Some(run)
        {
            self.background.dead_runs.pop_front();
            return Some(Work::RemoveRun { run });
        }
        self.next_slice()
    }

    fn next_slice(&mut self) -> Option<Work> {
        let current = self.segments.back().expect("there is always a segment");
        // A store that is hardly used does not take two segments of disk for it.
        let in_use = current.prewritten || current.used >= self.options.warm_bytes();
        let (small, rests) = (self.commits_are_small(), self.rests());
        let background = &mut self.background;
        if background.prewrite_at_us.is_some_and(|at_us| at_us > self.now_us) {
            return None;
        }
        background.prewrite_at_us = None;
        if !(in_use || background.low_space) {
            return None;
        }
        let segment_bytes = self.options.segment_bytes;
        let lacks = background.ready.len() < READY;
        if lacks && !background.allocates_nothing {
            return Some(Work::Allocate { spare: background.new_spare(), segment_bytes });
        }
        let (spare, offset, create) = if lacks {
            let (spare, offset) =
                background.prewriting.unwrap_or_else(|| (background.new_spare(), 0));
            background.prewriting = Some((spare, offset));
            (spare, offset, offset == 0)
        } else {
            // Zeros take nothing from small commits that they do not get back, but one segment ahead is enough for these.
            let mut ready = background.ready.iter();
            let wanted = rests || small && !background.has_written(segment_bytes);
            let spare = ready.find(|spare| wanted && spare.written_bytes < segment_bytes)?;
            background.slicing = Some(spare.number);
            (spare.number, spare.written_bytes, false)
        };
        let slice_bytes = SLICE_BYTES.min(segment_bytes - offset);
        Some(Work::Prewrite { spare, create, offset, slice_bytes })
    }

    pub(crate) fn complete_background(
        &mut self,
        work: Work,
        result: Result<Output, WorkError>,
    ) -> Result<(), StoreFailed> {
        match work {
            Work::ReadRun { .. } => self.background.reading = None,
            _ => self.background.busy = false,
        }
        let output = match result {
            Ok(output) => output,
            Err(error) => return self.background_failed(work, &error),
        };
        match work {
            Work::ReadRun { run, from_seq, .. } => {
                let (runs, events) = (&mut self.runs, &mut self.events);
                self.background.block_read(runs, events, run, from_seq, output);
            }
            Work::WriteRun { run, bytes, .. } => {
                self.run_written_bytes += bytes.len() as u64;
                self.background.run_bytes -= bytes.len();
                self.run_written(run);
                self.space_found();
            }
            Work::Allocate { spare, .. } => self.spare_found(spare, 0),
            Work::Prewrite { spare, offset, slice_bytes, .. } => {
                self.prewritten(spare, offset + slice_bytes);
            }
            Work::Recycle { spare, written_bytes, .. } => self.spare_found(spare, written_bytes),
            Work::RemoveSegment { .. } | Work::RemoveRun { .. } => {
                if let Work::RemoveRun { run } = work {
                    self.run_numbers.give_back(run);
                }
                // Somebody may have been waiting for just this space.
                self.background.retry_at_us = None;
                self.background.prewrite_at_us = None;
            }
            Work::RemoveSpare { .. } | Work::Commit { .. } | Work::Sync(_) => {}
        }
        Ok(())
    }

    fn background_failed(&mut self, work: Work, error: &WorkError) -> Result<(), StoreFailed> {
        let full = matches!(error, WorkError::Io(error) if error.kind() == io::ErrorKind::StorageFull
            || error.kind() == io::ErrorKind::QuotaExceeded);
        let unsupported =
            matches!(error, WorkError::Io(error) if error.kind() == io::ErrorKind::Unsupported);
        match work {
            Work::WriteRun { run, bytes, durable } if full => {
                self.background.run_writes.push_front((run, bytes, durable));
                self.background.retry_at_us = Some(self.now_us + RETRY_US);
            }
            Work::Allocate { spare, .. } if unsupported => {
                self.background.allocates_nothing = true;
                self.background.abandoned = Some(spare);
                return Ok(());
            }
            Work::Prewrite { spare, .. } | Work::Allocate { spare, .. } if full => {
                self.background.prewriting = None;
                self.background.slicing = None;
                // Where it was to have room for all of this, the file system did not keep its word.
                self.background.ready.retain(|ready| ready.number != spare);
                self.background.abandoned = Some(spare);
                self.background.prewrite_at_us = Some(self.now_us + PREWRITE_RETRY_US);
            }
            work => return Err(self.fail(&work, error)),
        }
        if !self.background.low_space {
            self.background.low_space = true;
            self.events.push_back(Event::LowSpace(true));
        }
        Ok(())
    }

    /// Zeros reach so far now.
    fn prewritten(&mut self, spare: u32, written_bytes: u64) {
        let background = &mut self.background;
        if background.slicing.take_if(|slicing| *slicing == spare).is_some() {
            for ready in &mut background.ready {
                if ready.number == spare {
                    ready.written_bytes = written_bytes;
                }
            }
        } else if written_bytes < self.options.segment_bytes {
            background.prewriting = Some((spare, written_bytes));
        } else {
            background.prewriting = None;
            self.spare_found(spare, written_bytes);
        }
    }

    fn spare_found(&mut self, number: u32, written_bytes: u64) {
        self.background.ready.push_back(Spare { number, written_bytes });
        self.space_found();
    }

    /// Something that needs space has it. Space is low until there is room for the next segments and no run waits for its own.
    fn space_found(&mut self) {
        let background = &mut self.background;
        let found = background.ready.len() >= READY && background.run_writes.is_empty();
        if found && std::mem::take(&mut background.low_space) {
            self.events.push_back(Event::LowSpace(false));
        }
    }
}
