//! What an operator may choose about the store.

/// When a batch counts as durable.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub enum Durability {
    /// After `fdatasync` of its bytes: survives power loss. The default.
    #[default]
    Always,
    /// After the write; synced every `ms` milliseconds. **Not power-safe**: survives a killed process,
    /// not a power cut, which may take the last `ms` milliseconds of confirmed messages.
    Interval {
        /// Longest time between two syncs while there is something to sync, in milliseconds.
        ms: u64,
    },
    /// After the write; synced when a segment is full and at a clean stop. **Not power-safe**.
    Os,
}

/// Options of [`open`](crate::open). The defaults are right for a server; tests make everything small.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Size of a log segment, in bytes; at least 16 KiB. A segment may grow beyond it by
    /// one batch or by a large checkpoint.
    pub segment_bytes: u64,
    /// Size of the log above which the oldest live messages are to be evacuated, in bytes.
    pub log_cap_bytes: u64,
    /// Size of the open batch at which [`Store::is_full`](crate::Store::is_full) pauses ingress, in
    /// bytes; at least 4 KiB and at most a quarter of a segment. Only one oversized message, or one
    /// atomic group, goes beyond it.
    pub batch_max_bytes: usize,
    /// When a batch counts as durable.
    pub durability: Durability,
    /// Most recycled segments kept for reuse.
    pub spare_segments_max: usize,
    /// Open a damaged store nevertheless and report what is missing instead of refusing.
    pub salvage: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            segment_bytes: 64 << 20,
            log_cap_bytes: 1 << 30,
            batch_max_bytes: 1 << 20,
            durability: Durability::Always,
            spare_segments_max: 4,
            salvage: false,
        }
    }
}

impl Options {
    /// The options with every bound enforced.
    pub(crate) fn bounded(mut self) -> Options {
        self.segment_bytes = self.segment_bytes.clamp(16 << 10, 1 << 30).next_multiple_of(4096);
        self.batch_max_bytes = self.batch_max_bytes.clamp(4096, (self.segment_bytes / 4) as usize);
        self.log_cap_bytes = self.log_cap_bytes.max(2 * self.segment_bytes);
        self
    }

    /// Use of a segment from which on the store counts as being in use: segments are pre-written, and a
    /// segment that was not is left for one that was. 256 KiB of 64 MiB: about sixty lone commits, each
    /// of which costs a write to the file system's journal as long as the file has to grow.
    pub(crate) fn warm_bytes(&self) -> u64 {
        (self.segment_bytes / 256).max(self.segment_bytes.min(1 << 20) / 16)
    }
}
