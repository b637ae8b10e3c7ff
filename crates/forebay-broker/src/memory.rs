//! What messages may take of the memory budget.
//!
//! ```text
//!   budget ───────────────────────────────────────────────────────────────────
//!   │ what the process has beside messages │ sockets, disk, ahead │ messages │
//!   └───────── told by the shell, half of it at most ─┘
//! ```
//!
//! A message's own memory is counted to the byte, its places in queues and the allocator's rounding by constants. What
//! else a broker's process takes (buffers, runs being built, tables, memory that the allocator keeps) nobody counts:
//! the operating system knows it, and the shell tells.

use std::sync::Arc;

use forebay_flow::WindowedMax;

use crate::message::Message;
use crate::queue::Entry;
use crate::shard::Shard;
use crate::warm::Warm;

/// Receive buffers of publishers' sockets together take this part of the memory budget at most.
pub(crate) const RECEIVE_PER_MEMORY: u64 = 3;

/// What the store holds for the disk counts for this part of the memory budget at most: runs and batches on their way,
/// which a small budget does not bound.
const BUFFERED_PER_MEMORY: u64 = 8;

/// Messages keep this part of the budget whatever else the process has grown to: publishers would wait for memory that
/// no message holds.
const MESSAGES_PER_MEMORY: u64 = 2;

/// This part of the budget stays free: what the process grows by until it is told of again, and until publishers stop.
const SPARE_PER_MEMORY: u64 = 12;

/// Each reference to a message but one, whose place counts with the message: the entry of another queue, which may have as much
/// again of room in its table.
const REFERENCE_BYTES: u64 = 2 * size_of::<Entry>() as u64;

/// What messages and the disk's buffers took is remembered for one to two of these, in microseconds: an allocator gives
/// memory back after about a second, and until then it has it for the next messages.
const PEAK_BUCKET_US: u64 = 1_000_000;

/// What the process takes beside messages, as far as somebody tells.
#[derive(Debug)]
pub(crate) struct Beside {
    bytes: u64,
    /// What is counted: messages, and what waits for the disk.
    counted: WindowedMax,
}

impl Default for Beside {
    fn default() -> Self {
        Beside { bytes: 0, counted: WindowedMax::new(PEAK_BUCKET_US) }
    }
}

impl Beside {
    fn told(&mut self, now_us: u64, resident_bytes: u64, counted_bytes: u64) {
        self.counted.add(now_us, counted_bytes);
        self.bytes = resident_bytes.saturating_sub(self.counted.get());
    }
}

impl Shard {
    /// Counts a message's memory, until its last reference is given up.
    pub(crate) fn shared(&mut self, message: Message) -> Arc<Message> {
        self.memory_bytes += message.memory_bytes();
        Arc::new(message)
    }

    /// Another reference to a message, counted until it is given up.
    pub(crate) fn another(&mut self, message: &Arc<Message>) -> Arc<Message> {
        another(&mut self.memory_bytes, message)
    }

    /// Gives up one reference to a message.
    pub(crate) fn release(&mut self, message: Arc<Message>) {
        release(&mut self.memory_bytes, &mut self.warm_messages, message);
    }

    /// Says what the process takes at `now_us`, in bytes, all in all; only where it is the broker's alone. Who says nothing
    /// has the whole budget for messages and what waits for the disk.
    pub fn set_resident(&mut self, now_us: u64, bytes: u64) {
        let counted = self.memory_bytes + self.store.buffered_bytes();
        let spare = self.config.memory_budget_bytes / SPARE_PER_MEMORY;
        self.beside.told(now_us, bytes + spare, counted);
    }

    /// What there is for messages, for what waits for the disk, and for sockets.
    pub(crate) fn budget_bytes(&self) -> u64 {
        let budget = self.config.memory_budget_bytes;
        budget - self.beside.bytes.min(budget - budget / MESSAGES_PER_MEMORY)
    }

    /// What messages may take while publishes are taken: the budget without what publishers' sockets hold (a third of
    /// it at most, while there are so many that the smallest buffers are too large), without what is in memory for
    /// the disk, and without what is read ahead for consumers: they go before publishers.
    pub(crate) fn memory_max_bytes(&self) -> u64 {
        let budget = self.budget_bytes();
        let sockets = self.receive_bytes.min(budget / RECEIVE_PER_MEMORY);
        let disk = self.store.buffered_bytes().min(budget / BUFFERED_PER_MEMORY);
        budget - sockets - disk - self.ahead_bytes()
    }
}

/// Another reference to a message, counted until it is given up.
pub(crate) fn another(memory_bytes: &mut u64, message: &Arc<Message>) -> Arc<Message> {
    *memory_bytes += REFERENCE_BYTES;
    message.clone()
}

/// Gives up one reference to a message, and takes it off the memory count: the last one with the message.
pub(crate) fn release(memory_bytes: &mut u64, warm: &mut Warm, message: Arc<Message>) {
    // Nobody else has references to it: these are the shard's.
    let last = Arc::strong_count(&message) == 1;
    let bytes = if last { message.memory_bytes() } else { REFERENCE_BYTES };
    debug_assert!(*memory_bytes >= bytes);
    *memory_bytes -= bytes;
    if let Some(message) = Arc::into_inner(message) {
        warm.give(message.into_bytes());
    }
}
