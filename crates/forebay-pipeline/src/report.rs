//! What a pipeline has done.

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
    /// Settled: given back to the source.
    pub requeued: u64,
    /// Handlers that returned an error or panicked, whatever was done about it.
    pub failed: u64,
    /// Of those, the ones that panicked.
    pub panicked: u64,
}

impl Report {
    pub(crate) fn count(&mut self, verdict: Verdict) {
        let counter = match verdict {
            Verdict::Ack => &mut self.acked,
            Verdict::Reject => &mut self.rejected,
            Verdict::Requeue => &mut self.requeued,
        };
        *counter += 1;
    }

    /// Messages with an outcome.
    #[must_use]
    pub fn settled(&self) -> u64 {
        self.acked + self.rejected + self.requeued
    }
}
