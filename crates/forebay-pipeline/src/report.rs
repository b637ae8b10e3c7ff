//! What a pipeline has done.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::handler::Failure;
use crate::outcome::Verdict;

/// Counts, since the pipeline was started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Messages taken from the source.
    pub taken: u64,
    /// Settled: the work is done.
    pub acked: u64,
    /// Settled: dropped, or a dead letter.
    pub rejected: u64,
    /// Settled: given back to the source, or there again already, after a lost connection.
    pub requeued: u64,
    /// Calls of handlers that returned an error or panicked, whatever was done about it.
    pub failed: u64,
    /// Of those, the ones that panicked.
    pub panicked: u64,
    /// Of those, the ones that took too long.
    pub timed_out: u64,
    /// Attempts put off until later.
    pub retried: u64,
    /// Messages that were left with their source for a later attempt; they count as acknowledged, too, and come again as others.
    pub postponed: u64,
    /// Messages that went where dead letters go; they count as acknowledged, too.
    pub dead_lettered: u64,
}

impl Report {
    /// Messages with an outcome.
    #[must_use]
    pub fn settled(&self) -> u64 {
        self.acked + self.rejected + self.requeued
    }
}

/// The same while it goes on.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    taken: AtomicU64,
    acked: AtomicU64,
    rejected: AtomicU64,
    requeued: AtomicU64,
    failed: AtomicU64,
    panicked: AtomicU64,
    timed_out: AtomicU64,
    retried: AtomicU64,
    postponed: AtomicU64,
    dead_lettered: AtomicU64,
}

impl Counters {
    /// How many were taken before.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn settled(&self, verdict: Verdict) {
        let counter = match verdict {
            Verdict::Ack => &self.acked,
            Verdict::Reject => &self.rejected,
            Verdict::Requeue => &self.requeued,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn failed(&self, failure: &Failure) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        let kind = match failure {
            Failure::Error(_) => return,
            Failure::Panic(_) => &self.panicked,
            Failure::TimedOut(_) => &self.timed_out,
        };
        kind.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn retried(&self) {
        self.retried.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn postponed(&self) {
        self.postponed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn dead_lettered(&self) {
        self.dead_lettered.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn report(&self) -> Report {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Report {
            taken: count(&self.taken),
            acked: count(&self.acked),
            rejected: count(&self.rejected),
            requeued: count(&self.requeued),
            failed: count(&self.failed),
            panicked: count(&self.panicked),
            timed_out: count(&self.timed_out),
            retried: count(&self.retried),
            postponed: count(&self.postponed),
            dead_lettered: count(&self.dead_lettered),
        }
    }
}
