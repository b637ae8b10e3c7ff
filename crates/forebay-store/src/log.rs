//! The writer machine: appends records to the open batch and takes batches to the disk.
//!
//! ```text
//!             append                 submit                       complete
//!   records ─────────► open batch ─────────► in flight (0 or 1) ─────────► written ──► synced
//!                          ▲                      │ begins a segment?          │          │
//!                          │                      ▼                            ▼          ▼
//!                      next batch        header + checkpoint first        Durable     free segments,
//!                                                                       (reported)    unlink runs
//! ```
//!
//! A batch knows its place from its first byte on, because at most one batch is in flight and its size is
//! known when the next one opens: records are checksummed for their offset while they are hot in cache,
//! and `publish` can say at once in which segment a message lives.
//!
//! Bounds: one open batch of `batch_max_bytes` plus one oversized message, one in flight, the parts of a
//! checkpoint that wait for their turn, [`BUFFERS_MAX`] idle buffers.

use std::collections::{BTreeMap, VecDeque};

use hashbrown::HashMap;

use crate::background::Background;
use crate::batch::{AckTable, OpenBatch};
use crate::commit::{Decision, Pacing, Pending};
use crate::error::StoreFailed;
use crate::event::Event;
use crate::home::{BatchNo, Home, QueueId, RunId, Seq};
use crate::options::{Durability, Options};
use crate::record::{FLAG_RELOCATED, QUEUES_MAX};
use crate::request::{Completion, Output, Request, Work, WorkError};
use crate::run::{RunBuilder, RunState, TrackedRun};
use crate::segment::{Segment, segment_file};
use crate::store::Statistics;

pub(crate) type Map<K, V> = HashMap<K, V, foldhash::fast::FixedState>;

/// Idle batch buffers kept: one is open, one in flight, so two more cover a checkpoint.
const BUFFERS_MAX: usize = 2;

/// A queue as the checkpoint knows it.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueState {
    /// One more than the largest sequence number that was published durably.
    pub(crate) next_seq: Seq,
    /// As the broker noted it; exact after a clean stop.
    pub(crate) delivered_upto: Seq,
}

#[derive(Debug)]
enum InFlight {
    Batch {
        number: BatchNo,
        publishes: u32,
        waiters: u32,
        /// Whether anything is in it; `false` for a seal.
        real: bool,
        /// Whether it is synced with the write.
        synced: bool,
        /// Whether the segment before was synced first.
        synced_before: bool,
        /// Whether it is the final batch.
        last: bool,
        since_us: u64,
    },
    Sync {
        upto: BatchNo,
    },
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Stopping {
    No,
    Asked,
    /// The final batch is on its way.
    Submitted,
    /// The final batch is synced; a seal vouches for it.
    Sealing,
    Stopped,
}

/// The log of a store on disk.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) options: Options,
    /// The newest time anybody told.
    pub(crate) now_us: u64,
    failed: Option<StoreFailed>,

    /// Oldest first; the last one takes the open batch. Never empty.
    pub(crate) segments: VecDeque<Segment>,
    pub(crate) next_epoch: u64,
    pub(crate) salvaged_before: u64,
    pub(crate) open: OpenBatch,
    acks: AckTable,
    /// Closed parts of a checkpoint, to be written before the open batch.
    pub(crate) queued: VecDeque<OpenBatch>,
    buffers: Vec<Vec<u8>>,
    in_flight: Option<InFlight>,
    written: BatchNo,
    synced: BatchNo,
    /// What was reported durable: `synced`, or `written` where the operator chose so.
    reported: BatchNo,
    /// When bytes were first written that are not synced yet.
    unsynced_since_us: Option<u64>,
    pacing: Pacing,
    atomic_depth: u32,
    stopping: Stopping,

    pub(crate) meta: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(crate) queues: Map<QueueId, QueueState>,
    pub(crate) runs: Map<RunId, TrackedRun>,
    pub(crate) next_run: u32,
    /// Runs whose messages' owner still holds the old homes.
    pub(crate) moving: Map<QueueId, Vec<RunId>>,
    /// Runs whose SPILL record is not durable yet, in order.
    spilling: VecDeque<(BatchNo, RunId)>,
    /// The segment that was announced by [`Event::Evacuate`].
    evacuating: Option<u64>,
    pub(crate) background: Background,
    pub(crate) events: VecDeque<Event>,

    batches: u64,
    log_written_bytes: u64,
    pub(crate) run_written_bytes: u64,
    published: u64,
    settled: u64,
}

/// What recovery hands to a new [`Log`].
pub(crate) struct LogState {
    pub(crate) segments: VecDeque<Segment>,
    pub(crate) next_epoch: u64,
    pub(crate) salvaged_before: u64,
    pub(crate) next_batch: BatchNo,
    pub(crate) meta: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(crate) queues: Map<QueueId, QueueState>,
    pub(crate) runs: Map<RunId, TrackedRun>,
    pub(crate) next_run: u32,
    pub(crate) spares: VecDeque<u32>,
    pub(crate) next_spare: u32,
}

impl Log {
    /// A log that goes on, in a new segment, where recovery ended.
    pub(crate) fn new(options: Options, state: LogState) -> Log {
        let done = state.next_batch - 1;
        let mut log = Log {
            options,
            now_us: 0,
            failed: None,
            segments: state.segments,
            next_epoch: state.next_epoch,
            salvaged_before: state.salvaged_before,
            open: OpenBatch::default(),
            acks: AckTable::default(),
            queued: VecDeque::new(),
            buffers: Vec::new(),
            in_flight: None,
            written: done,
            synced: done,
            reported: done,
            unsynced_since_us: None,
            pacing: Pacing::default(),
            atomic_depth: 0,
            stopping: Stopping::No,
            meta: state.meta,
            queues: state.queues,
            runs: state.runs,
            next_run: state.next_run,
            moving: Map::default(),
            spilling: VecDeque::new(),
            evacuating: None,
            background: Background::new(state.spares, state.next_spare),
            events: VecDeque::new(),
            batches: 0,
            log_written_bytes: 0,
            run_written_bytes: 0,
            published: 0,
            settled: 0,
        };
        log.begin_segment(state.next_batch);
        log
    }

    // ---- appending ------------------------------------------------------------------------------

    #[inline]
    pub(crate) fn publish(&mut self, queues: &[(QueueId, Seq)], payload: &[u8]) -> Home {
        if self.failed.is_some() || queues.is_empty() {
            return Home::NONE;
        }
        self.published += 1;
        self.append_message(0, queues, payload)
    }

    fn append_message(&mut self, flags: u8, queues: &[(QueueId, Seq)], payload: &[u8]) -> Home {
        for queues in queues.chunks(QUEUES_MAX) {
            self.open.writer().publish(flags, queues, payload);
        }
        self.open.publishes += 1;
        self.open.urgent = true;
        for &(queue, seq) in queues {
            let state = self.queues.entry(queue).or_default();
            state.next_seq = state.next_seq.max(seq + 1);
        }
        let segment = self.segments.back_mut().expect("there is always a segment");
        segment.live += queues.len() as u64;
        segment.messages += queues.len() as u64;
        Home::segment(segment.epoch)
    }

    #[inline]
    pub(crate) fn settle(&mut self, queue: QueueId, seq: Seq, home: Home) {
        self.settled += 1;
        if !self.moving.is_empty() && self.settle_moving(queue, seq, home) {
            return;
        }
        if let Some(epoch) = home.as_segment() {
            self.release(epoch, self.open.number);
            self.acknowledge(queue, seq);
        } else if let Some(run) = home.as_run() {
            self.settle_in_run(run, queue, seq);
        }
    }

    fn acknowledge(&mut self, queue: QueueId, seq: Seq) {
        if self.failed.is_none() {
            self.acks.push(queue, seq);
            self.pacing.acked(self.now_us);
        }
    }

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

    /// A message whose run is on its way to the disk: the owner knows its old home only.
    fn settle_moving(&mut self, queue: QueueId, seq: Seq, home: Home) -> bool {
        let Some(runs) = self.moving.get(&queue) else { return false };
        for &id in runs {
            let run = self.runs.get_mut(&id).expect("a moving run is tracked");
            if run.live.remove(seq, seq) == 0 {
                continue;
            }
            let transient = run.transient.remove(seq, seq) > 0;
            let switched = run.state == RunState::Switched;
            run.dead_batch = self.open.number;
            if let (false, Some(epoch)) = (switched, home.as_segment()) {
                self.release(epoch, self.open.number);
            }
            if !transient {
                self.acknowledge(queue, seq);
            }
            return true;
        }
        false
    }

    fn settle_in_run(&mut self, id: RunId, queue: QueueId, seq: Seq) {
        let Some(run) = self.runs.get_mut(&id) else { return };
        if run.live.remove(seq, seq) == 0 {
            return;
        }
        let transient = run.transient.remove(seq, seq) > 0;
        let logged = run.durable && !transient;
        if logged {
            run.dead_batch = self.open.number;
        }
        let empty = run.live.is_empty() && run.state == RunState::Cold;
        if logged {
            self.acknowledge(queue, seq);
        }
        if empty {
            self.retire_run(id);
        }
    }

    pub(crate) fn settle_run(&mut self, id: RunId) {
        let Some(run) = self.runs.get_mut(&id) else { return };
        self.settled += run.live.len();
        if run.durable && run.state != RunState::Writing && self.failed.is_none() {
            self.open.writer().run_drop(id);
            run.dead_batch = self.open.number;
        }
        self.drop_live(id);
    }

    /// Everything in the run is gone. While it is moving, the log's copies are acknowledged one by one.
    fn drop_live(&mut self, id: RunId) {
        let run = self.runs.get_mut(&id).expect("the caller found it");
        let live = std::mem::take(&mut run.live);
        run.transient = Default::default();
        let (queue, state) = (run.queue, run.state);
        match state {
            RunState::Cold => self.retire_run(id),
            RunState::Switched => {}
            RunState::Writing | RunState::Spilling => {
                for (seq, home) in std::mem::take(&mut run.homes) {
                    if let (true, Some(epoch)) = (live.contains(seq), home.as_segment()) {
                        self.release(epoch, self.open.number);
                        self.acknowledge(queue, seq);
                    }
                }
            }
        }
    }

    /// An empty run: its file may go once what emptied it is durable.
    pub(crate) fn retire_run(&mut self, id: RunId) {
        if let Some(run) = self.runs.remove(&id) {
            self.background.dead_runs.push_back((run.dead_batch, id));
        }
    }

    pub(crate) fn forget_queue(&mut self, queue: QueueId) {
        let left: Vec<RunId> =
            self.runs.iter().filter(|(_, run)| run.queue == queue).map(|(&id, _)| id).collect();
        for run in left {
            self.settle_run(run);
        }
        if self.queues.remove(&queue).is_some() && self.failed.is_none() {
            self.open.writer().forget(queue);
            self.open.urgent = true;
        }
    }

    pub(crate) fn note_delivered(&mut self, queue: QueueId, upto: Seq) {
        if let Some(state) = self.queues.get_mut(&queue) {
            state.delivered_upto = state.delivered_upto.max(upto);
        }
    }

    pub(crate) fn put_meta(&mut self, key: &[u8], value: &[u8]) {
        if self.failed.is_none() {
            self.open.writer().meta_put(key, value);
            self.open.urgent = true;
            self.meta.insert(key.to_vec(), value.to_vec());
        }
    }

    pub(crate) fn delete_meta(&mut self, key: &[u8]) {
        if self.failed.is_none() && self.meta.remove(key).is_some() {
            self.open.writer().meta_delete(key);
            self.open.urgent = true;
        }
    }

    pub(crate) fn begin_atomic(&mut self) {
        self.atomic_depth += 1;
    }

    pub(crate) fn end_atomic(&mut self) {
        debug_assert!(self.atomic_depth > 0);
        self.atomic_depth = self.atomic_depth.saturating_sub(1);
    }

    pub(crate) fn relocate(&mut self, queue: QueueId, seq: Seq, payload: &[u8]) -> Home {
        if self.failed.is_some() {
            return Home::NONE;
        }
        let moves = self.moving.get(&queue).is_some_and(|runs| {
            runs.iter().any(|run| self.runs.get(run).is_some_and(|run| run.live.contains(seq)))
        });
        if let (true, Some(epoch)) = (moves, self.evacuating) {
            // Its run takes it out of the segment; a second copy would count twice.
            return Home::segment(epoch);
        }
        if let Some(epoch) = self.evacuating {
            self.release(epoch, self.open.number);
        }
        self.append_message(FLAG_RELOCATED, &[(queue, seq)], payload)
    }

    // ---- group commit ---------------------------------------------------------------------------

    pub(crate) fn open_batch(&self) -> BatchNo {
        self.open.number
    }

    pub(crate) fn durable_batch(&self) -> BatchNo {
        self.reported
    }

    pub(crate) fn add_waiter(&mut self) {
        self.open.waiters += 1;
        self.open.urgent = true;
    }

    pub(crate) fn is_full(&self) -> bool {
        self.open_bytes() >= self.options.batch_max_bytes
    }

    fn open_bytes(&self) -> usize {
        self.open.bytes.len() + self.acks.record_bytes()
    }

    fn pending(&self) -> Pending {
        Pending {
            bytes: self.open_bytes(),
            urgent: self.open.urgent,
            acks: !self.acks.is_empty() || !self.open.is_empty(),
        }
    }

    pub(crate) fn poll(&mut self, now_us: u64) -> Option<Request> {
        self.now_us = self.now_us.max(now_us);
        if self.failed.is_some() || self.stopping == Stopping::Stopped {
            return None;
        }
        if self.in_flight.is_none()
            && let Some(request) = self.poll_log_lane()
        {
            return Some(request);
        }
        // What is begun now would only delay the stop.
        if self.stopping == Stopping::No { self.poll_background_lane() } else { None }
    }

    fn poll_log_lane(&mut self) -> Option<Request> {
        if let Some(part) = self.queued.pop_front() {
            return Some(self.dispatch(part, true, false));
        }
        if self.atomic_depth > 0 {
            return None;
        }
        match self.stopping {
            Stopping::Asked => {
                self.append_stop();
                self.stopping = Stopping::Submitted;
                return Some(self.submit_open(true, true));
            }
            Stopping::Sealing => return Some(self.submit_open(false, true)),
            Stopping::Submitted | Stopping::Stopped => return None,
            Stopping::No => {}
        }
        match self.pacing.decide(self.now_us, self.pending()) {
            Decision::Submit => return Some(self.submit_open(true, false)),
            Decision::Seal if self.options.durability == Durability::Always => {
                return Some(self.submit_open(false, false));
            }
            // Without a sync there is no durable batch that a seal could vouch for.
            Decision::Seal => self.pacing.submitted(),
            Decision::WaitUntil(_) | Decision::Idle => {}
        }
        if self.sync_due_us().is_some_and(|due_us| due_us <= self.now_us) {
            self.in_flight = Some(InFlight::Sync { upto: self.written });
            let epoch = self.last_written_epoch();
            return Some(Request { work: Work::Sync { epoch } });
        }
        None
    }

    fn sync_due_us(&self) -> Option<u64> {
        match self.options.durability {
            Durability::Interval { ms } => Some(self.unsynced_since_us? + ms * 1000),
            Durability::Always | Durability::Os => None,
        }
    }

    /// The segment of the newest written batch: the open one's, or the one before it if the open batch
    /// has a segment to begin.
    fn last_written_epoch(&self) -> u64 {
        let unbegun = self.queued.front().unwrap_or(&self.open).begin.is_some();
        let index = self.segments.len() - 1 - usize::from(unbegun && self.segments.len() > 1);
        self.segments[index].epoch
    }

    fn append_stop(&mut self) {
        let mut delivered: Vec<_> = self
            .queues
            .iter()
            .filter(|(_, state)| state.delivered_upto > 0)
            .map(|(&queue, state)| (queue, state.delivered_upto))
            .collect();
        delivered.sort_unstable();
        // The STOP record is to be the last of the log, so acknowledgements may not follow it.
        let mut writer = self.open.writer();
        self.acks.drain_into(&mut writer);
        for (queue, upto) in delivered {
            writer.delivered(queue, upto);
        }
        writer.stop();
    }

    fn submit_open(&mut self, real: bool, last: bool) -> Request {
        let end = self.open.close(&mut self.acks);
        let segment = self.segments.back_mut().expect("there is always a segment");
        segment.used = end;
        segment.allocated = segment.allocated.max(end);
        let number = self.open.number;
        let closed = std::mem::take(&mut self.open);
        self.begin_batch(number + 1);
        self.pacing.submitted();
        self.dispatch(closed, real, last)
    }

    fn begin_batch(&mut self, number: BatchNo) {
        let segment = self.segments.back().expect("there is always a segment");
        let full = segment.used + self.options.batch_max_bytes as u64 > segment.capacity;
        // The first segment of a run is not pre-written; as soon as a pre-written one is there, it is
        // worth one small checkpoint to commit into that.
        let better = !segment.prewritten
            && !self.background.ready.is_empty()
            && segment.used >= self.options.warm_bytes();
        // Nothing may follow the end of a clean stop but its seal.
        if (full || better) && self.stopping == Stopping::No {
            self.begin_segment(number);
        } else {
            let (epoch, used) = (segment.epoch, segment.used);
            let buffer = self.take_buffer();
            self.open = OpenBatch::new(number, epoch, used, buffer);
        }
        self.evacuate_if_over_cap();
    }

    fn dispatch(&mut self, mut batch: OpenBatch, real: bool, last: bool) -> Request {
        batch.seal(self.synced);
        let mut synced_before = false;
        if let Some(begin) = &mut batch.begin
            && self.synced < self.written
        {
            // A hole in the log is allowed in its last segment only.
            begin.sync_first = self.before(batch.epoch);
            synced_before = begin.sync_first.is_some();
        }
        // Whatever the operator chose, a checkpoint is synced: until it is, the log begins before it.
        let checkpoint =
            self.segments.back().is_some_and(|segment| batch.number <= segment.checkpoint_batch);
        let synced = last || checkpoint || self.options.durability == Durability::Always;
        self.in_flight = Some(InFlight::Batch {
            number: batch.number,
            publishes: batch.publishes,
            waiters: batch.waiters,
            real,
            synced,
            synced_before,
            last,
            since_us: self.now_us,
        });
        self.log_written_bytes += batch.bytes.len() as u64;
        Request {
            work: Work::Commit {
                epoch: batch.epoch,
                offset: batch.offset,
                bytes: batch.bytes,
                begin: batch.begin,
                sync: synced,
            },
        }
    }

    fn before(&self, epoch: u64) -> Option<u64> {
        self.segments.iter().rev().map(|segment| segment.epoch).find(|&other| other < epoch)
    }

    pub(crate) fn take_buffer(&mut self) -> Vec<u8> {
        self.buffers.pop().unwrap_or_default()
    }

    fn give_buffer(&mut self, mut buffer: Vec<u8>) {
        if self.buffers.len() < BUFFERS_MAX && buffer.capacity() <= 4 * self.options.batch_max_bytes
        {
            buffer.clear();
            self.buffers.push(buffer);
        }
    }

    pub(crate) fn next_deadline_us(&self) -> Option<u64> {
        if self.failed.is_some() || self.stopping == Stopping::Stopped {
            return None;
        }
        let mut deadline = self.background.retry_at_us.filter(|_| self.stopping == Stopping::No);
        let mut at_latest = |at_us: u64| {
            deadline = Some(deadline.map_or(at_us, |deadline: u64| deadline.min(at_us)));
        };
        if self.in_flight.is_none() {
            if !self.queued.is_empty()
                || matches!(self.stopping, Stopping::Asked | Stopping::Sealing)
            {
                at_latest(self.now_us);
            }
            match self.pacing.clone().decide(self.now_us, self.pending()) {
                Decision::Submit | Decision::Seal => at_latest(self.now_us),
                Decision::WaitUntil(at_us) => at_latest(at_us),
                Decision::Idle => {}
            }
            if let Some(at_us) = self.sync_due_us() {
                at_latest(at_us);
            }
        }
        deadline
    }

    // ---- completion -----------------------------------------------------------------------------

    pub(crate) fn complete(
        &mut self,
        now_us: u64,
        completion: Completion,
    ) -> Result<(), StoreFailed> {
        self.now_us = self.now_us.max(now_us);
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        let Completion { work, result } = completion;
        match (work, result) {
            (Work::Commit { bytes, .. }, Ok(_)) => {
                self.give_buffer(bytes);
                self.committed();
                Ok(())
            }
            (Work::Sync { .. }, Ok(_)) => {
                if let Some(InFlight::Sync { upto }) = self.in_flight.take() {
                    self.synced = self.synced.max(upto);
                    self.unsynced_since_us = (self.synced < self.written).then_some(self.now_us);
                }
                self.free_dead();
                Ok(())
            }
            (work @ (Work::Commit { .. } | Work::Sync { .. }), Err(error)) => {
                Err(self.fail(&work, &error))
            }
            (work, result) => self.complete_background(work, result),
        }
    }

    pub(crate) fn fail(&mut self, work: &Work, error: &WorkError) -> StoreFailed {
        let what = match error {
            WorkError::Io(error) => format!("cannot {}: {error}", work.describe()),
            WorkError::Damaged(damage) => format!(
                "{} is damaged at byte {}: {}",
                crate::run::run_file(damage.run),
                damage.offset,
                damage.what
            ),
        };
        let failed = StoreFailed { what };
        self.failed = Some(failed.clone());
        failed
    }

    fn committed(&mut self) {
        let Some(InFlight::Batch {
            number,
            publishes,
            waiters,
            real,
            synced,
            synced_before,
            last,
            since_us,
        }) = self.in_flight.take()
        else {
            return;
        };
        self.batches += 1;
        self.written = number;
        if synced {
            self.synced = number;
            self.unsynced_since_us = None;
        } else {
            if synced_before {
                self.synced = number - 1;
            }
            self.unsynced_since_us.get_or_insert(self.now_us);
        }
        self.reported = number;
        match self.events.back_mut() {
            Some(Event::Durable(upto)) => *upto = number,
            _ => self.events.push_back(Event::Durable(number)),
        }
        if real {
            let took_us = self.now_us.saturating_sub(since_us);
            self.pacing.committed(self.now_us, took_us, publishes, waiters);
        }
        while let Some(&(batch, run)) = self.spilling.front()
            && batch <= number
        {
            self.spilling.pop_front();
            self.switch_run(run, batch);
        }
        self.free_dead();
        self.evacuate_if_over_cap();
        if last && real {
            self.stopping = Stopping::Sealing;
        } else if last {
            self.stopping = Stopping::Stopped;
            self.events.push_back(Event::Stopped);
        }
    }

    /// The run's SPILL record is durable: its live messages no longer need their segments.
    fn switch_run(&mut self, id: RunId, spilled_by: BatchNo) {
        let run = self.runs.get_mut(&id).expect("a spilling run is tracked");
        run.state = RunState::Switched;
        let queue = run.queue;
        let homes = std::mem::take(&mut run.homes);
        for (seq, home) in homes {
            if let Some(epoch) = home.as_segment()
                && self.runs[&id].live.contains(seq)
            {
                self.release(epoch, spilled_by);
            }
        }
        self.events.push_back(Event::RunDurable { run: id, queue });
    }

    /// Segments leave oldest first: dead, with what made them dead synced, and with a later segment's
    /// checkpoint synced, so that recovery can begin there.
    pub(crate) fn free_dead(&mut self) {
        while let Some(front) = self.segments.front()
            && front.live == 0
            && front.dead_batch <= self.synced
            && self.segments.iter().skip(1).any(|later| later.checkpoint_batch <= self.synced)
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

    fn evacuate_if_over_cap(&mut self) {
        if self.evacuating.is_some() || self.segments.len() < 2 || self.stopping != Stopping::No {
            return;
        }
        let (front, log_bytes, cap) =
            (&self.segments[0], self.log_bytes(), self.options.log_cap_bytes);
        // Many restarts leave many small segments: their number is bounded too.
        let many = self.segments.len() > self.segments_max() && log_bytes <= cap;
        if front.live == 0 || !(many || log_bytes > cap) {
            return;
        }
        // A log that is mostly alive does not shrink by being copied forward. It may be twice as large
        // as what is alive in it: then each message is copied about once for each time it could be freed.
        let live_bytes: u64 = self.segments.iter().map(Segment::live_bytes).sum();
        if many || log_bytes > 2 * live_bytes {
            self.evacuating = Some(front.epoch);
            self.events.push_back(Event::Evacuate { homes: Home::segment(front.epoch) });
        }
    }

    // ---- runs -----------------------------------------------------------------------------------

    pub(crate) fn write_run(&mut self, queue: QueueId, run: RunBuilder, durable: bool) -> RunId {
        let id = RunId(self.next_run);
        self.next_run += 1;
        if self.failed.is_some() {
            return id;
        }
        let finished = run.finish(id, queue);
        self.runs.insert(
            id,
            TrackedRun {
                queue,
                durable,
                state: RunState::Writing,
                footer: finished.footer,
                live: finished.live,
                transient: finished.transient,
                homes: finished.homes,
                dead_batch: 0,
                cursor: (0, crate::run::FIRST_RECORD),
            },
        );
        self.moving.entry(queue).or_default().push(id);
        self.background.run_writes.push_back((id, finished.bytes, durable));
        id
    }

    /// The run's file is written (and synced): the log is told.
    pub(crate) fn run_written(&mut self, id: RunId) {
        let run = self.runs.get_mut(&id).expect("a run being written is tracked");
        let persistent = run.persistent();
        if run.durable && !persistent.is_empty() {
            run.state = RunState::Spilling;
            self.open.writer().spill(id, run.queue, &run.footer, &persistent);
            self.open.urgent = true;
            self.spilling.push_back((self.open.number, id));
        } else {
            run.state = RunState::Switched;
            run.homes = Vec::new();
            let queue = run.queue;
            self.events.push_back(Event::RunDurable { run: id, queue });
        }
    }

    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        if let Event::RunDurable { run: id, queue } = event {
            if let Some(moving) = self.moving.get_mut(&queue) {
                moving.retain(|&run| run != id);
                if moving.is_empty() {
                    self.moving.remove(&queue);
                }
            }
            let run = self.runs.get_mut(&id).expect("a switched run is tracked");
            run.state = RunState::Cold;
            if run.live.is_empty() {
                self.retire_run(id);
            }
        }
        Some(event)
    }

    // ---- the end --------------------------------------------------------------------------------

    pub(crate) fn shutdown(&mut self) {
        if self.stopping == Stopping::No {
            self.stopping = Stopping::Asked;
        }
    }

    /// Whether everything up to the checkpoint of the newest segment is synced; `open` waits for it.
    pub(crate) fn is_begun(&self) -> bool {
        self.segments.back().expect("there is always a segment").checkpoint_batch <= self.synced
    }

    pub(crate) fn synced(&self) -> BatchNo {
        self.synced
    }

    pub(crate) fn statistics(&self) -> Statistics {
        Statistics {
            log_bytes: self.log_bytes(),
            segments: self.segments.len() as u64,
            spares: self.background.ready.len() as u64,
            runs: self.runs.len() as u64,
            batches: self.batches,
            log_written_bytes: self.log_written_bytes,
            run_written_bytes: self.run_written_bytes,
            flush_us: self.pacing.flush_us(),
            published: self.published,
            settled: self.settled,
        }
    }

    /// Name of the file that takes the open batch, for messages.
    pub(crate) fn current_file(&self) -> String {
        segment_file(self.segments.back().expect("there is always a segment").epoch)
    }

    pub(crate) fn block_read(&mut self, id: RunId, from_seq: Seq, output: Output) {
        self.background.block_read(&mut self.runs, &mut self.events, id, from_seq, output);
    }
}
