//! What the log's lane is doing: nothing, or one of these.

use crate::home::BatchNo;

#[derive(Debug)]
pub(crate) enum InFlight {
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
        since_us: u64,
    },
    Sync {
        upto: BatchNo,
        since_us: u64,
    },
}

impl InFlight {
    /// What is being written and not committed yet.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            InFlight::Batch { bytes, .. } => *bytes,
            InFlight::Sync { .. } => 0,
        }
    }

    /// When it was handed to the disk.
    pub(crate) fn since_us(&self) -> u64 {
        match self {
            InFlight::Batch { since_us, .. } | InFlight::Sync { since_us, .. } => *since_us,
        }
    }
}
