//! What publishers and pipeline tell each other and the view.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use hdrhistogram::Histogram;

/// Latencies above a minute are counted as a minute.
const LATENCY_US_MAX: u64 = 60_000_000;

/// A histogram of microseconds with two significant digits (about 30 KB).
pub(super) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_US_MAX, 2).expect("the bounds are constant and valid")
}

/// Latencies since the view last asked, and since the start.
#[derive(Debug)]
pub(super) struct Latency(Mutex<Histogram<u64>>);

impl Latency {
    fn new() -> Latency {
        Latency(Mutex::new(histogram()))
    }

    /// For a batch of records.
    pub(super) fn lock(&self) -> MutexGuard<'_, Histogram<u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn record(&self, us: u64) {
        self.lock().saturating_record(us);
    }

    /// What was recorded since the last call.
    pub(super) fn take(&self) -> Histogram<u64> {
        std::mem::replace(&mut *self.lock(), histogram())
    }
}

/// Shared by publishers, pipeline and view.
#[derive(Debug)]
pub(super) struct Gauges {
    started: Instant,
    pub(super) published: AtomicU64,
    pub(super) confirmed: AtomicU64,
    /// Counted by a transaction that was committed.
    pub(super) stored: AtomicU64,
    /// Confirmed after they were published again: they may be in their queues twice.
    pub(super) republished: AtomicU64,
    /// Delivered, and counted before.
    pub(super) duplicates: AtomicU64,
    pub(super) transactions: AtomicU64,
    pub(super) confirm: Latency,
    pub(super) end_to_end: Latency,
    /// Publishers: no more messages.
    pub(super) stop_publishing: AtomicBool,
    /// The first thing that went wrong, as a sentence.
    failure: Mutex<Option<String>>,
}

impl Gauges {
    pub(super) fn new() -> Gauges {
        Gauges {
            started: Instant::now(),
            published: AtomicU64::new(0),
            confirmed: AtomicU64::new(0),
            stored: AtomicU64::new(0),
            republished: AtomicU64::new(0),
            duplicates: AtomicU64::new(0),
            transactions: AtomicU64::new(0),
            confirm: Latency::new(),
            end_to_end: Latency::new(),
            stop_publishing: AtomicBool::new(false),
            failure: Mutex::new(None),
        }
    }

    /// Microseconds since the start.
    pub(super) fn now_us(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }

    /// Remembers the first failure and ends the load.
    pub(super) fn fail(&self, sentence: String) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(sentence);
        self.stop_publishing.store(true, Ordering::Relaxed);
    }

    pub(super) fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Messages on their way from publishers to the database.
    pub(super) fn under_way(&self) -> u64 {
        let stored = self.stored.load(Ordering::Relaxed);
        self.published.load(Ordering::Relaxed).saturating_sub(stored)
    }
}
