//! Names of things in the store: queues, sequence numbers, batches, and where a message lives.

use std::fmt;

/// A queue, numbered by the broker; never reused within a data directory.
pub type QueueId = u64;

/// Position of a message in its queue: from 1, strictly increasing in the order of publishing.
pub type Seq = u64;

/// Number of a batch of the log; increases by one from batch to batch, for the life of a data directory.
pub type BatchNo = u64;

/// The largest one. No log gets there: what says more was never written by one.
pub(crate) const BATCH_NO_MAX: BatchNo = 1 << 62;

/// Set in a [`Home`] that is a run; the other 31 bits are the run's or the segment's number. At one
/// segment of 64 MiB, 31 bits last for 128 PiB of log; runs may be small, and their numbers begin again.
const RUN_BIT: u32 = 1 << 31;

/// The largest number of a run.
pub(crate) const RUN_MAX: u32 = RUN_BIT - 1;

/// Number of a run file, from 1 to 2³¹ − 1, then from 1 again; never one that has a file.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RunId(pub u32);

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Where a message's durable copy lives: nowhere, in a segment of the log, or in a run file.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Home(u32);

impl Home {
    /// No durable copy: the message is transient, or the store is in memory.
    pub const NONE: Home = Home(0);

    /// The home of messages of a cold run.
    pub const fn run(run: RunId) -> Home {
        Home(run.0 | RUN_BIT)
    }

    /// The home of messages of the segment with this epoch (epochs count from 1, see `segment.rs`).
    pub(crate) const fn segment(epoch: u64) -> Home {
        Home((epoch as u32) & !RUN_BIT)
    }

    /// Whether there is no durable copy.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// The run, if the durable copy is in one.
    pub const fn as_run(self) -> Option<RunId> {
        if self.0 & RUN_BIT != 0 { Some(RunId(self.0 & !RUN_BIT)) } else { None }
    }

    /// The epoch of the segment, if the durable copy is in one.
    pub(crate) const fn as_segment(self) -> Option<u64> {
        if self.0 != 0 && self.0 & RUN_BIT == 0 { Some(self.0 as u64) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_home_is_exactly_one_of_none_segment_and_run() {
        assert!(Home::NONE.is_none());
        assert_eq!(Home::NONE.as_run(), None);
        assert_eq!(Home::NONE.as_segment(), None);
        let segment = Home::segment(7);
        assert_eq!(
            (segment.as_segment(), segment.as_run(), segment.is_none()),
            (Some(7), None, false)
        );
        let run = Home::run(RunId(7));
        assert_eq!((run.as_segment(), run.as_run(), run.is_none()), (None, Some(RunId(7)), false));
        assert_ne!(segment, run);
    }
}
