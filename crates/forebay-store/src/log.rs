//! The writer machine: appends records to the open batch and takes batches to the disk.
//!
//! ```text
//!             append                 submit                       complete
//!   records ─────────► open batch ─────────► in flight (2 at most) ──────► written ──► synced
//!                          ▲                      │ begins a segment?          │          │
//!                          │                      ▼                            ▼          ▼
//!                      next batch        header + checkpoint first        Durable     free segments,
//!                                                                       (reported)    unlink runs
//! ```
//!
//! A batch knows its place from its first byte on, because the one before has its size when it opens: records are
//! checksummed for their offset while they are hot in cache, and `publish` can say at once in which segment a message lives.
//!
//! Bounds: one open batch of `batch_max_bytes` plus one oversized message, two in flight, the parts of a
//! checkpoint that wait for their turn, [`BUFFERS_MAX`] idle buffers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use hashbrown::HashMap;

use crate::background::Background;
use crate::batch::{AckTable, OpenBatch};
use crate::commit::{Commits, Decision, Pacing, Pending};
use crate::error::{DAMAGE_CURE, StoreFailed, is_bad_sector};
use crate::event::Event;
use crate::home::{BatchNo, Home, QueueId, RunId, Seq};
use crate::in_flight::{InFlight, LogWork};
use crate::options::{Durability, Options};
use crate::record::{ACK_BYTES, QUEUES_MAX, RECORD_HEAD};
use crate::request::{Completion, Request, Work, WorkError};
use crate::run::TrackedRun;
use crate::run_numbers::RunNumbers;
use crate::segment::{Segment, Spare, segment_file};
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

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stopping {
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
    /// What may be appended and not committed, if that is more than a batch.
    uncommitted_max_bytes: usize,
    /// What one batch may hold, for the sake of who waits for it.
    batch_most_bytes: usize,
    /// The newest time anybody told.
    pub(crate) now_us: u64,
    pub(crate) failed: Option<StoreFailed>,

    /// Oldest first; the last one takes the open batch. Never empty.
    pub(crate) segments: VecDeque<Segment>,
    pub(crate) next_epoch: u64,
    pub(crate) salvaged_before: u64,
    pub(crate) salt: u64,
    /// The batch that has all that is carried over from the last life, and the newest one that is durable without it.
    pub(crate) carrying: Option<(BatchNo, BatchNo)>,
    pub(crate) open: OpenBatch,
    pub(crate) acks: AckTable,
    /// Closed parts of a checkpoint, and a batch that [ended its segment](Log::make_room): to be written before the open one.
    pub(crate) queued: VecDeque<OpenBatch>,
    buffers: Vec<Vec<u8>>,
    pub(crate) in_flight: InFlight,
    /// Whether a full batch may be handed over behind another.
    pub(crate) may_follow: bool,
    pub(crate) written: BatchNo,
    pub(crate) synced: BatchNo,
    /// What was reported durable: `synced`, or `written` where the operator chose so.
    reported: BatchNo,
    /// When bytes were first written that are not synced yet.
    pub(crate) unsynced_since_us: Option<u64>,
    /// Where in the segment of the newest written batch bytes begin that no sync was asked for.
    pub(crate) unsynced_from: Option<u64>,
    pacing: Pacing,
    pub(crate) atomic_depth: u32,
    pub(crate) stopping: Stopping,

    pub(crate) meta: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(crate) queues: Map<QueueId, QueueState>,
    pub(crate) runs: Map<RunId, TrackedRun>,
    /// The same by their queues: whoever forgets many queues does not look through the runs of all others for each.
    pub(crate) runs_of: BTreeSet<(QueueId, RunId)>,
    pub(crate) run_numbers: RunNumbers,
    /// Runs whose messages' owner still holds the old homes.
    pub(crate) moving: Map<QueueId, Vec<RunId>>,
    /// Runs whose SPILL record is not durable yet, in order.
    pub(crate) spilling: VecDeque<(BatchNo, RunId)>,
    /// The segment that was announced by [`Event::Evacuate`].
    pub(crate) evacuating: Option<u64>,
    pub(crate) background: Background,
    pub(crate) events: VecDeque<Event>,

    batches: u64,
    log_written_bytes: u64,
    pub(crate) run_written_bytes: u64,
    published: u64,
    pub(crate) settled: u64,
}

/// What recovery hands to a new [`Log`].
pub(crate) struct LogState {
    pub(crate) segments: VecDeque<Segment>,
    pub(crate) next_epoch: u64,
    pub(crate) salvaged_before: u64,
    pub(crate) salt: u64,
    pub(crate) next_batch: BatchNo,
    pub(crate) carries_from: BatchNo,
    pub(crate) meta: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(crate) queues: Map<QueueId, QueueState>,
    pub(crate) runs: Map<RunId, TrackedRun>,
    pub(crate) run_numbers: RunNumbers,
    pub(crate) spares: VecDeque<Spare>,
    pub(crate) next_spare: u32,
}

impl Log {
    /// A log that goes on, in a new segment, where recovery ended.
    pub(crate) fn new(options: Options, state: LogState) -> Log {
        let done = state.next_batch - 1;
        let mut log = Log {
            options,
            uncommitted_max_bytes: 0,
            batch_most_bytes: usize::MAX,
            now_us: 0,
            failed: None,
            segments: state.segments,
            next_epoch: state.next_epoch,
            salvaged_before: state.salvaged_before,
            salt: state.salt,
            carrying: None,
            open: OpenBatch::default(),
            acks: AckTable::default(),
            queued: VecDeque::new(),
            buffers: Vec::new(),
            in_flight: InFlight::default(),
            may_follow: true,
            written: done,
            synced: done,
            reported: done,
            unsynced_since_us: None,
            unsynced_from: None,
            pacing: Pacing::default(),
            atomic_depth: 0,
            stopping: Stopping::No,
            meta: state.meta,
            queues: state.queues,
            runs_of: state.runs.iter().map(|(&id, run)| (run.queue, id)).collect(),
            runs: state.runs,
            run_numbers: state.run_numbers,
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
        log.begin_segment(state.next_batch, state.carries_from);
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

    pub(crate) fn append_message(
        &mut self,
        flags: u8,
        queues: &[(QueueId, Seq)],
        payload: &[u8],
    ) -> Home {
        // With the acknowledgement of what it takes the place of, perhaps: that is to be in the same batch.
        let bytes = RECORD_HEAD + 16 * queues.len() + payload.len();
        self.make_room(bytes + ACK_BYTES);
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
        segment.put(queues.len() as u64, bytes as u64);
        Home::segment(segment.epoch)
    }

    #[inline]
    pub(crate) fn settle(&mut self, queue: QueueId, seq: Seq, home: Home) {
        self.settled += 1;
        self.make_room_for_ack();
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

    pub(crate) fn acknowledge(&mut self, queue: QueueId, seq: Seq) {
        if self.failed.is_none() {
            self.acks.push(queue, seq);
            self.pacing.acked(self.now_us);
        }
    }

    pub(crate) fn note_delivered(&mut self, queue: QueueId, upto: Seq) {
        if let Some(state) = self.queues.get_mut(&queue) {
            state.delivered_upto = state.delivered_upto.max(upto);
        }
    }

    pub(crate) fn put_meta(&mut self, key: &[u8], value: &[u8]) {
        if self.failed.is_none() {
            self.make_room(RECORD_HEAD + 4 + key.len() + value.len());
            self.open.writer().meta_put(key, value);
            self.open.urgent = true;
            self.meta.insert(key.to_vec(), value.to_vec());
        }
    }

    pub(crate) fn delete_meta(&mut self, key: &[u8]) {
        if self.failed.is_none() && self.meta.contains_key(key) {
            // Before it is removed: a checkpoint that comes before its record has it still.
            self.make_room(RECORD_HEAD + key.len());
            self.meta.remove(key);
            self.open.writer().meta_delete(key);
            self.open.urgent = true;
        }
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
        let room = self.uncommitted_max_bytes.saturating_sub(self.in_flight.bytes());
        self.open_bytes() >= room.max(self.options.batch_max_bytes).min(self.batch_most_bytes)
    }

    pub(crate) fn buffered_bytes(&self) -> u64 {
        let queued: usize = self.queued.iter().map(|batch| batch.bytes.len()).sum();
        (self.open_bytes() + queued + self.in_flight.bytes() + self.background.run_bytes) as u64
    }

    pub(crate) fn busy_since_us(&self) -> Option<u64> {
        self.in_flight.since_us()
    }

    pub(crate) fn set_uncommitted_max(&mut self, bytes: usize) {
        self.uncommitted_max_bytes = bytes.min(self.options.segment_bytes as usize / 4);
    }

    pub(crate) fn set_batch_most(&mut self, bytes: Option<usize>) {
        self.batch_most_bytes = bytes.unwrap_or(usize::MAX);
    }

    /// Small commits, on whose latency somebody waits.
    pub(crate) fn commits_are_small(&self) -> bool {
        self.pacing.commits_are_small()
    }

    pub(crate) fn rests(&self) -> bool {
        self.in_flight.is_empty() && self.pacing.is_sealed()
    }

    pub(crate) fn commits(&self) -> Commits {
        self.pacing.commits(self.log_written_bytes)
    }

    pub(crate) fn open_bytes(&self) -> usize {
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
        let request =
            if self.in_flight.is_empty() { self.poll_log_lane() } else { self.poll_follower() };
        if request.is_some() {
            return request;
        }
        // What is begun now would only delay the stop.
        if self.stopping == Stopping::No { self.poll_other_lanes() } else { None }
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
        // While there is always something to write, nothing else would make room for a sync.
        if let Some(sync) = self.poll_late_sync() {
            return Some(sync);
        }
        match self.pacing.decide(self.now_us, self.pending()) {
            Decision::Submit => Some(self.submit_open(true, false)),
            Decision::Seal
                if self.options.durability == Durability::Always
                    || self.begins_later_than_is_said() =>
            {
                Some(self.submit_open(false, false))
            }
            // Without a sync there is no durable batch that a seal could vouch for.
            Decision::Seal => {
                self.pacing.submitted();
                self.poll_late_sync()
            }
            Decision::WaitUntil(_) | Decision::Idle => None,
        }
    }

    /// The open batch, if it is full and is to follow the one in flight; not one that begins a segment, nor before a checkpoint.
    fn poll_follower(&mut self) -> Option<Request> {
        let follows = self.may_follow
            && self.in_flight.takes_another()
            && self.open_bytes() >= self.options.batch_max_bytes
            && self.stopping == Stopping::No
            && self.atomic_depth == 0
            && self.queued.is_empty()
            && self.open.begin.is_none();
        follows.then(|| self.submit_open(true, false))
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
        let closed = self.close_open();
        self.begin_batch(closed.number + 1);
        self.pacing.submitted();
        self.dispatch(closed, real, last)
    }

    /// Takes the open batch as it is; another one is to be opened.
    pub(crate) fn close_open(&mut self) -> OpenBatch {
        let end = self.open.close(&mut self.acks);
        let segment = self.segments.back_mut().expect("there is always a segment");
        segment.used = end;
        segment.allocated = segment.allocated.max(end);
        std::mem::take(&mut self.open)
    }

    fn begin_batch(&mut self, number: BatchNo) {
        let segment = self.segments.back().expect("there is always a segment");
        let batch_bytes = self.options.batch_max_bytes.max(self.uncommitted_max_bytes);
        let full = segment.used + batch_bytes as u64 > segment.capacity;
        // It is worth one small checkpoint to commit into a better segment.
        let better = segment.used >= self.options.warm_bytes()
            && self.background.has_better(segment, self.options.segment_bytes);
        // Nothing may follow the end of a clean stop but its seal.
        if (full || better) && self.stopping == Stopping::No {
            self.begin_segment(number, 0);
        } else {
            let (epoch, used) = (segment.epoch, segment.used);
            let buffer = self.take_buffer();
            self.open = OpenBatch::new(number, epoch, self.salt, used, buffer);
        }
        self.evacuate_if_needed();
    }

    fn dispatch(&mut self, mut batch: OpenBatch, real: bool, last: bool) -> Request {
        let mut synced_before = false;
        if let Some(begin) = &mut batch.begin
            && self.synced < self.written
        {
            // A hole in the log is allowed in its last segment only.
            begin.sync_first = self.before(batch.epoch).map(|epoch| self.unsynced(epoch));
            synced_before = begin.sync_first.is_some();
        }
        let durable_upto = self.durable_when_written(&batch, synced_before);
        batch.seal(durable_upto, self.begins_with(batch.number));
        // Whatever the operator chose, a checkpoint is synced: until it is, the log begins before it.
        let checkpoint =
            self.segments.back().is_some_and(|segment| batch.number <= segment.checkpoint_batch);
        let synced = last || checkpoint || self.options.durability == Durability::Always;
        let from = self.unsynced_from.take().unwrap_or(batch.offset);
        self.unsynced_from = (!synced).then_some(from);
        self.in_flight.push(
            self.now_us,
            LogWork::Batch {
                number: batch.number,
                bytes: batch.bytes.len(),
                publishes: batch.publishes,
                waiters: batch.waiters,
                real,
                synced,
                synced_before,
                last,
            },
        );
        Request {
            work: Work::Commit {
                epoch: batch.epoch,
                offset: batch.offset,
                bytes: batch.bytes,
                begin: batch.begin,
                sync: synced.then_some(from),
            },
        }
    }

    pub(crate) fn before(&self, epoch: u64) -> Option<u64> {
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
        if !self.events.is_empty() {
            // An answer that needed no disk: its owner is to look at once.
            return Some(self.now_us);
        }
        if self.failed.is_some() || self.stopping == Stopping::Stopped {
            return None;
        }
        let mut deadline = self.background.next_try_us().filter(|_| self.stopping == Stopping::No);
        let mut at_latest = |at_us: u64| {
            deadline = Some(deadline.map_or(at_us, |deadline: u64| deadline.min(at_us)));
        };
        if self.in_flight.is_empty() {
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
            if let Some(at_us) = self.late_sync_due_us() {
                at_latest(at_us);
            }
        }
        deadline
    }

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
            (Work::Sync(_), Ok(_)) => {
                self.late_synced();
                Ok(())
            }
            (work @ (Work::Commit { .. } | Work::Sync(_)), Err(error)) => {
                Err(self.fail(&work, &error))
            }
            (work, result) => self.complete_background(work, result),
        }
    }

    pub(crate) fn fail(&mut self, work: &Work, error: &WorkError) -> StoreFailed {
        let what = match error {
            WorkError::Io(error)
                if matches!(work, Work::ReadRun { .. }) && is_bad_sector(error) =>
            {
                format!("cannot {}: {error}. {DAMAGE_CURE}", work.describe())
            }
            WorkError::Io(error) => format!("cannot {}: {error}", work.describe()),
            // A start does not read runs to their ends: the next one would come as far as this.
            WorkError::Damaged(damage) => format!(
                "{} is damaged at byte {}: {}. {DAMAGE_CURE}",
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
        let Some((
            LogWork::Batch { number, bytes, publishes, waiters, real, synced, synced_before, last },
            took_us,
        )) = self.in_flight.pop(self.now_us)
        else {
            return;
        };
        self.batches += 1;
        self.log_written_bytes += bytes as u64;
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
            self.pacing.committed(self.now_us, took_us, bytes, publishes, waiters);
        }
        while let Some(&(batch, run)) = self.spilling.front()
            && batch <= number
        {
            self.spilling.pop_front();
            self.switch_run(run, batch);
        }
        self.free_dead();
        self.evacuate_if_needed();
        if last && real {
            self.stopping = Stopping::Sealing;
        } else if last {
            self.stopping = Stopping::Stopped;
            self.events.push_back(Event::Stopped);
        }
    }

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
}
