//! The store as its owner sees it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::disk::Disk;
use crate::error::{OpenError, StoreFailed};
use crate::event::Event;
use crate::home::{BatchNo, Home, QueueId, RunId, Seq};
use crate::options::Options;
use crate::request::{Completion, Request};
use crate::run::RunBuilder;

/// What recovery found.
#[derive(Debug, Default)]
pub struct Recovered {
    /// The topology.
    pub meta: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Queues that ever held a persistent message and were not forgotten, by id.
    pub queues: Vec<RecoveredQueue>,
    /// The last stop was a clean shutdown.
    pub clean: bool,
    /// The log ended in a batch that was not written to its end: normal after a crash.
    pub torn_tail: bool,
    /// What is missing; empty unless [`Options::salvage`] let a damaged store open.
    pub damage: Vec<Damage>,
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
    /// Live messages from the log, and from runs that overlap them, in order.
    pub messages: Vec<(Seq, Home, Vec<u8>)>,
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

/// Opens the store in a directory, recovering what is there. Blocks; takes the directory's lock.
///
/// # Errors
/// See [`OpenError`]; each is a sentence for an operator.
pub fn open(_disk: Arc<dyn Disk>, _options: Options) -> Result<(Store, Recovered), OpenError> {
    Ok((Store::in_memory(), Recovered::default()))
}

/// The store, a pure machine. See the crate's documentation for its shape.
#[derive(Debug, Default)]
pub struct Store {
    events: VecDeque<Event>,
}

impl Store {
    /// A store without a disk: nothing is kept, everything counts as durable at once, no request is
    /// ever made. [`write_run`](Store::write_run) never becomes durable: limits must bound memory.
    pub fn in_memory() -> Store {
        Store::default()
    }

    /// Appends a message to the open batch, once for all its queues. The payload is copied.
    /// Returns its home: the segment, or [`Home::NONE`] in memory.
    ///
    /// # Panics
    /// When the payload is not below 4 GiB.
    pub fn publish(&mut self, _queues: &[(QueueId, Seq)], _payload: &[u8]) -> Home {
        Home::NONE
    }

    /// A message is gone: acknowledged, expired, dropped or purged. `home` is its present home.
    pub fn settle(&mut self, _queue: QueueId, _seq: Seq, _home: Home) {}

    /// All that is left of a cold run is gone (purge).
    pub fn settle_run(&mut self, _run: RunId) {}

    /// The queue was deleted, after its messages were settled: forget its state.
    pub fn forget_queue(&mut self, _queue: QueueId) {}

    /// Messages up to `upto` were delivered at least once. Kept in memory; written by a clean stop only.
    pub fn note_delivered(&mut self, _queue: QueueId, _upto: Seq) {}

    /// Sets a key of the meta map.
    pub fn put_meta(&mut self, _key: &[u8], _value: &[u8]) {}

    /// Removes a key of the meta map.
    pub fn delete_meta(&mut self, _key: &[u8]) {}

    /// What is appended until [`end_atomic`](Store::end_atomic) is recovered as a whole or not at all.
    pub fn begin_atomic(&mut self) {}

    /// See [`begin_atomic`](Store::begin_atomic).
    pub fn end_atomic(&mut self) {}

    /// Number of the batch that takes what is appended now.
    pub fn open_batch(&self) -> BatchNo {
        0
    }

    /// Everything up to this batch is durable; what was appended is settled when this is at least the
    /// [`open_batch`](Store::open_batch) of that moment.
    pub fn durable_batch(&self) -> BatchNo {
        0
    }

    /// One more channel waits for the open batch.
    pub fn add_waiter(&mut self) {}

    /// The open batch is full: pause ingress until a batch is durable.
    pub fn is_full(&self) -> bool {
        false
    }

    /// The next disk request, if there is something to do and its lane is idle; call until `None`.
    pub fn poll(&mut self, _now_us: u64) -> Option<Request> {
        None
    }

    /// When to [`poll`](Store::poll) next, even if nothing happens until then.
    pub fn next_deadline_us(&self) -> Option<u64> {
        None
    }

    /// A request is done.
    ///
    /// # Errors
    /// [`StoreFailed`] is final.
    pub fn complete(&mut self, _now_us: u64, _completion: Completion) -> Result<(), StoreFailed> {
        Ok(())
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Copies a live message forward into the open batch, out of a segment that is to be freed.
    pub fn relocate(&mut self, _queue: QueueId, _seq: Seq, _payload: &[u8]) -> Home {
        Home::NONE
    }

    /// Writes a run file. Until [`Event::RunDurable`] is taken the messages keep their homes and their
    /// copies in memory. `durable = false`: a transient queue; not synced, gone after a restart.
    pub fn write_run(&mut self, _queue: QueueId, _messages: RunBuilder, _durable: bool) -> RunId {
        RunId(0)
    }

    /// Asks for a block (about 1 MiB) of a cold run from the first live message at or after `from_seq`;
    /// answered by one [`Event::RunBlock`].
    pub fn read_run(&mut self, _run: RunId, _from_seq: Seq) {}

    /// Ends the store: [`poll`](Store::poll) yields the final batch, marked clean; then [`Event::Stopped`].
    pub fn shutdown(&mut self) {
        self.events.push_back(Event::Stopped);
    }

    /// Counters and gauges.
    pub fn statistics(&self) -> Statistics {
        Statistics::default()
    }
}
