//! What the log's lane has to do: nothing, a sync, a batch, or a batch and a full one behind it.
//!
//! ```text
//!   open batch ──full──► behind ──► being written ──► done
//!        └────────lane idle──────────────▲
//! ```
//!
//! A lane that waits for its next batch until somebody has heard of the last one rests, and whoever waits for confirms waits
//! for the half of what is in flight to be written as one. With a full batch behind the one that is being written the lane
//! goes on at once, and confirms come in smaller parts: `docs/decisions/0038`.

use std::collections::VecDeque;

use crate::home::BatchNo;
use crate::request::Lane;

/// One thing that the log's lane does.
#[derive(Debug)]
pub(crate) enum LogWork {
    Batch {
        number: BatchNo,
        bytes: usize,
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
    },
    Sync {
        upto: BatchNo,
    },
}

/// What was handed to the lane and is not done, in its order; [`Lane::requests_max`] at most.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    works: VecDeque<LogWork>,
    /// When the first of them became the first.
    since_us: u64,
}

impl InFlight {
    pub(crate) fn is_empty(&self) -> bool {
        self.works.is_empty()
    }

    /// Whether a full batch may stand behind what there is: a batch with something in it that is synced when it is written.
    /// Without that the second one might outlive the first.
    pub(crate) fn takes_another(&self) -> bool {
        let last = self.works.back();
        self.works.len() < Lane::Log.requests_max()
            && matches!(last, Some(LogWork::Batch { real: true, synced: true, last: false, .. }))
    }

    /// What is synced when the lane comes to what is handed over now: it begins nothing behind a failure.
    pub(crate) fn synced_then(&self) -> Option<BatchNo> {
        match self.works.back()? {
            LogWork::Batch { number, synced: true, .. } => Some(*number),
            LogWork::Batch { .. } | LogWork::Sync { .. } => None,
        }
    }

    /// Handed to the lane.
    pub(crate) fn push(&mut self, now_us: u64, work: LogWork) {
        debug_assert!(self.is_empty() || self.takes_another());
        if self.works.is_empty() {
            self.since_us = now_us;
        }
        self.works.push_back(work);
    }

    /// The first one is done: it, and how long the lane was at it, in microseconds.
    pub(crate) fn pop(&mut self, now_us: u64) -> Option<(LogWork, u64)> {
        let work = self.works.pop_front()?;
        let took_us = now_us.saturating_sub(std::mem::replace(&mut self.since_us, now_us));
        Some((work, took_us))
    }

    /// What is handed over and not committed yet.
    pub(crate) fn bytes(&self) -> usize {
        let bytes = |work: &LogWork| match work {
            LogWork::Batch { bytes, .. } => *bytes,
            LogWork::Sync { .. } => 0,
        };
        self.works.iter().map(bytes).sum()
    }

    /// Since when the lane has been at the first of them.
    pub(crate) fn since_us(&self) -> Option<u64> {
        (!self.is_empty()).then_some(self.since_us)
    }
}
