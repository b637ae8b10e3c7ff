//! The store as its owner sees it.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;

use crate::commit::Commits;
use crate::disk::Disk;
use crate::error::{OpenError, StoreFailed};
use crate::event::Event;
use crate::home::{BatchNo, Home, QueueId, RunId, Seq};
use crate::log::Log;
use crate::options::Options;
use crate::recovery;
use crate::request::{Completion, Request};
use crate::run::RunBuilder;

/// What recovery found.
#[derive(Debug, Default)]
pub struct Recovered {
    /// The topology.
    pub meta: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Queues that ever held a persistent message and were not forgotten, by id.
    pub queues: Vec<RecoveredQueue>,
    /// What is in the queues' messages: one that was published to several is here once.
    pub payloads: Vec<Vec<u8>>,
    /// The last stop was a clean shutdown.
    pub clean: bool,
    /// The log ended in a batch that was visibly not written to its end: normal after a crash.
    pub torn_tail: bool,
    /// What is missing; empty unless [`Options::salvage`] let a damaged store open.
    pub damage: Vec<Damage>,
    /// Something is missing, or was when an earlier start went on without it: what the meta map does not know may have been there.
    pub salvaged: bool,
}

/// One damaged place that salvage passed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// File, relative to the data directory.
    pub file: String,
    /// Offset of the first damaged byte range, in bytes.
    pub offset: u64,
    /// What is wrong there, and what is lost by it.
    pub what: String,
}

/// One queue's durable contents.
#[derive(Debug, Default)]
pub struct RecoveredQueue {
    /// The queue.
    pub id: QueueId,
    /// The sequence number for its next message: above every one that was ever durable.
    pub next_seq: Seq,
    /// Live messages from the log, and from runs that overlap them, in order; each with the index of its payload in
    /// [`Recovered::payloads`].
    pub messages: Vec<(Seq, Home, usize)>,
    /// Cold runs in order; none overlaps another, or has a message of `messages` inside its span.
    pub runs: Vec<RunInfo>,
    /// Up to where messages were delivered at least once; exact only if [`Recovered::clean`].
    pub delivered_upto: Seq,
}

/// A cold run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunInfo {
    /// The run.
    pub id: RunId,
    /// Its queue.
    pub queue: QueueId,
    /// First live message.
    pub first: Seq,
    /// Last live message.
    pub last: Seq,
    /// Live messages.
    pub messages: u64,
    /// Their payload in bytes (in proportion, if some messages of the run are gone).
    pub bytes: u64,
}

/// Counters and gauges of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Size of the log's segments, in bytes.
    pub log_bytes: u64,
    /// Segments of the log.
    pub segments: u64,
    /// Spare segments ready for use.
    pub spares: u64,
    /// Run files alive.
    pub runs: u64,
    /// Batches committed since the start.
    pub batches: u64,
    /// Bytes written to the log since the start, padding included.
    pub log_written_bytes: u64,
    /// Bytes written to run files since the start.
    pub run_written_bytes: u64,
    /// Moving average of a commit's time on its lane, in microseconds.
    pub flush_us: u64,
    /// Messages published since the start.
    pub published: u64,
    /// Messages settled since the start.
    pub settled: u64,
}

/// Opens the store in a directory, recovering what is there. Blocks; takes the directory's lock, which
/// stays taken until [`Disk::unlock`] or the end of the process.
///
/// # Errors
/// See [`OpenError`]; each is a sentence for an operator.
pub fn open(disk: Arc<dyn Disk>, options: Options) -> Result<(Store, Recovered), OpenError> {
    disk.lock().map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => OpenError::Locked,
        _ => OpenError::io("take the data directory's lock")(error),
    })?;
    match recovery::recover(&*disk, options) {
        Ok((log, recovered)) => {
            Ok((Store { log: Some(Box::new(log)), ..Store::default() }, recovered))
        }
        Err(error) => {
            disk.unlock();
            Err(error)
        }
    }
}

/// The store, a pure machine. See the crate's documentation for its shape.
#[derive(Debug, Default)]
pub struct Store {
    /// `None`: in memory.
    log: Option<Box<Log>>,
    /// Events of a store in memory.
    events: VecDeque<Event>,
}

impl Store {
    /// A store without a disk: nothing is kept, everything counts as durable at once, no request is
    /// ever made. [`write_run`](Store::write_run) never becomes durable: limits must bound memory.
    pub fn in_memory() -> Store {
        Store::default()
    }

    // ---- appending to the open batch ------------------------------------------------------------

    /// Appends a message to the open batch, once for all its queues. The payload is copied. What would reach beyond the end of
    /// a segment may close the batch and begin the next one: [`open_batch`](Store::open_batch) is asked for after it.
    /// Returns its home: the segment, or [`Home::NONE`] in memory.
    ///
    /// # Panics
    /// When the payload is not below 4 GiB.
    #[inline]
    pub fn publish(&mut self, queues: &[(QueueId, Seq)], payload: &[u8]) -> Home {
        self.log.as_mut().map_or(Home::NONE, |log| log.publish(queues, payload))
    }

    /// A message is gone: acknowledged, expired, dropped or purged. `home` is its present home. With
    /// [`Home::NONE`] there is nothing to do, unless the message is in a run that is being written.
    #[inline]
    pub fn settle(&mut self, queue: QueueId, seq: Seq, home: Home) {
        if let Some(log) = &mut self.log {
            log.settle(queue, seq, home);
        }
    }

    /// What is left of a run from `from` on is gone (purge). What was read before may be with consumers.
    pub fn settle_run_from(&mut self, run: RunId, from: Seq) {
        if let Some(log) = &mut self.log {
            log.settle_run_from(run, from);
        }
    }

    /// All that is left of a run is gone.
    pub fn settle_run(&mut self, run: RunId) {
        if let Some(log) = &mut self.log {
            log.settle_run(run);
        }
    }

    /// The queue was deleted, after its messages were settled: forget its state.
    pub fn forget_queue(&mut self, queue: QueueId) {
        if let Some(log) = &mut self.log {
            log.forget_queue(queue);
        }
    }

    /// Messages up to `upto` were delivered at least once. Kept in memory; written by a clean stop only.
    #[inline]
    pub fn note_delivered(&mut self, queue: QueueId, upto: Seq) {
        if let Some(log) = &mut self.log {
            log.note_delivered(queue, upto);
        }
    }

    /// Sets a key of the meta map.
    pub fn put_meta(&mut self, key: &[u8], value: &[u8]) {
        if let Some(log) = &mut self.log {
            log.put_meta(key, value);
        }
    }

    /// Removes a key of the meta map.
    pub fn delete_meta(&mut self, key: &[u8]) {
        if let Some(log) = &mut self.log {
            log.delete_meta(key);
        }
    }

    /// What is appended until [`end_atomic`](Store::end_atomic) is recovered as a whole or not at all:
    /// it lies in one batch, however large. Where so many bytes would reach beyond the end of a segment it is in the next one, as
    /// one message would be: on a full disk no segment can become longer. Pairs may nest; the outermost says what all of it takes.
    pub fn begin_atomic(&mut self, bytes: usize) {
        if let Some(log) = &mut self.log {
            log.begin_atomic(bytes);
        }
    }

    /// See [`begin_atomic`](Store::begin_atomic).
    pub fn end_atomic(&mut self) {
        if let Some(log) = &mut self.log {
            log.end_atomic();
        }
    }

    // ---- group commit ---------------------------------------------------------------------------

    /// Segments that the log can go on with when the disk is full; none while the present one has not all of its room.
    pub fn ready_segments(&self) -> usize {
        self.log.as_ref().map_or(0, |log| log.ready_segments())
    }

    /// Number of the batch that takes what is appended now; 0 in memory.
    #[inline]
    pub fn open_batch(&self) -> BatchNo {
        self.log.as_ref().map_or(0, |log| log.open_batch())
    }

    /// Everything up to this batch is durable; what was appended is settled when this is at least the
    /// [`open_batch`](Store::open_batch) of that moment. 0 in memory.
    #[inline]
    pub fn durable_batch(&self) -> BatchNo {
        self.log.as_ref().map_or(0, |log| log.durable_batch())
    }

    /// One more channel waits for the open batch: it is committed without delay.
    #[inline]
    pub fn add_waiter(&mut self) {
        if let Some(log) = &mut self.log {
            log.add_waiter();
        }
    }

    /// What may be appended and not committed before the store [is full](Store::is_full), in bytes; at
    /// least a batch, at most a quarter of a segment. A disk that takes long needs more to be kept busy.
    pub fn set_uncommitted_max(&mut self, bytes: usize) {
        if let Some(log) = &mut self.log {
            log.set_uncommitted_max(bytes);
        }
    }

    /// The size of the open batch, in bytes, at which the store [is full](Store::is_full) in any case, if there is to be
    /// one: who waits for a small message waits for all that is in its batch and in the one before.
    pub fn set_batch_most(&mut self, bytes: Option<usize>) {
        if let Some(log) = &mut self.log {
            log.set_batch_most(bytes);
        }
    }

    /// Whether a batch that is full may be handed to the disk behind the one that is being written, which is so from the
    /// start: the disk goes on at once, with smaller commits. Where each takes long, however little is in it, larger ones
    /// bring more.
    pub fn set_may_follow(&mut self, may: bool) {
        if let Some(log) = &mut self.log {
            log.may_follow = may;
        }
    }

    /// What commits take and bring; nothing in memory.
    pub fn commits(&self) -> Commits {
        self.log.as_ref().map_or_else(Commits::default, |log| log.commits())
    }

    /// The open batch is full: pause ingress until a batch is durable.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.log.as_ref().is_some_and(|log| log.is_full())
    }

    /// What is in memory for the disk, in bytes: batches and runs on their way.
    pub fn buffered_bytes(&self) -> u64 {
        self.log.as_ref().map_or(0, |log| log.buffered_bytes())
    }

    /// Since when the disk has been at the first write or sync of the log that is in flight, in monotonic
    /// microseconds; `None` while there is none, and in memory.
    pub fn log_busy_since_us(&self) -> Option<u64> {
        self.log.as_ref()?.busy_since_us()
    }

    // ---- disk, as data --------------------------------------------------------------------------

    /// The next disk request, if there is something to do and its lane [takes it](crate::Lane::requests_max); call until `None`.
    #[inline]
    pub fn poll(&mut self, now_us: u64) -> Option<Request> {
        self.log.as_mut()?.poll(now_us)
    }

    /// When to [`poll`](Store::poll), and to look for events, next, even if nothing happens until then;
    /// monotonic microseconds.
    pub fn next_deadline_us(&self) -> Option<u64> {
        self.log.as_ref()?.next_deadline_us()
    }

    /// A request is done.
    ///
    /// # Errors
    /// [`StoreFailed`] is final: nothing more becomes durable. Stop confirming and exit.
    pub fn complete(&mut self, now_us: u64, completion: Completion) -> Result<(), StoreFailed> {
        self.log.as_mut().map_or(Ok(()), |log| log.complete(now_us, completion))
    }

    /// The next event.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        match &mut self.log {
            Some(log) => log.poll_event(),
            None => self.events.pop_front(),
        }
    }

    // ---- cold storage ---------------------------------------------------------------------------

    /// Copies a live message forward into the open batch, out of the segment that [`Event::Evacuate`] named, once for all of
    /// these queues; to be called for those where it has that home only. Returns the new home there: the old one, if one of
    /// these is in a run that is being written, and takes it out of the segment.
    pub fn relocate(&mut self, queues: &[(QueueId, Seq)], payload: &[u8]) -> Home {
        self.log.as_mut().map_or(Home::NONE, |log| log.relocate(queues, payload))
    }

    /// Writes a run file. Until [`Event::RunDurable`] is taken the messages keep their homes and their
    /// copies in memory, and are settled with those homes, or with [`Home::run`]; from then on with that only.
    /// `durable = false`: a transient queue; not synced, gone after a restart. In memory nothing is
    /// written and the event never comes.
    pub fn write_run(&mut self, queue: QueueId, messages: RunBuilder, durable: bool) -> RunId {
        self.log.as_mut().map_or(RunId(0), |log| log.write_run(queue, messages, durable))
    }

    /// Asks for a block (about 1 MiB) of a cold run from the first live message at or after `from_seq`;
    /// answered by one [`Event::RunBlock`], which is empty if nothing is alive there. Only after
    /// [`Event::RunDurable`].
    pub fn read_run(&mut self, run: RunId, from_seq: Seq) {
        match &mut self.log {
            Some(log) => log.background.want_read(run, from_seq),
            None => self.events.push_back(Event::RunBlock {
                run,
                queue: 0,
                messages: Vec::new(),
                at_end: true,
            }),
        }
    }

    /// Ends the store: [`poll`](Store::poll) yields the final batch, marked clean; then
    /// [`Event::Stopped`]. Nothing may be appended after it. A background request may still be in flight
    /// then; whatever it does, the next start cleans up after it.
    pub fn shutdown(&mut self) {
        match &mut self.log {
            Some(log) => log.shutdown(),
            None => self.events.push_back(Event::Stopped),
        }
    }

    /// Counters and gauges.
    pub fn statistics(&self) -> Statistics {
        self.log.as_ref().map_or_else(Statistics::default, |log| log.statistics())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_memory_everything_is_durable_at_once_and_no_disk_is_asked_for() {
        let mut store = Store::in_memory();
        assert_eq!(store.publish(&[(1, 1)], b"payload"), Home::NONE);
        store.put_meta(b"key", b"value");
        store.add_waiter();
        assert!(store.durable_batch() >= store.open_batch());
        assert!(store.poll(0).is_none());
        assert_eq!(store.next_deadline_us(), None);
        store.settle(1, 1, Home::NONE);
        store.shutdown();
        assert_eq!(store.poll_event(), Some(Event::Stopped));
        assert_eq!(store.poll_event(), None);
    }
}
