//! What waits for all clients together to read it, when messages are large.
//!
//! A connection may have as much outgoing as its share says, and a message more: for many connections, each with a large
//! message that it does not read, that is no bound.
//!
//! ```text
//!   together   0 ............ 32 MiB .................. a quarter of the budget ....
//!   a large    to anybody     to whom nothing else      to nobody, until some
//!   message    with room      waits for                 of it is read
//! ```
//! Small ones are no matter here: what a connection may always have is larger. A queue that was left for that is looked
//! at again as soon as anybody has read, or is gone.

use std::collections::BTreeSet;

use crate::delivery::{OUT_SOFT_MIN_BYTES, OUT_TOTAL_BYTES};
use crate::shard::Shard;
use crate::topology::QueueKey;

/// What all outgoing buffers take of the memory budget, beside small messages and one large one.
const OUT_PER_MEMORY: u64 = 4;

/// Outgoing buffers of all connections.
#[derive(Debug)]
pub(crate) struct Unread {
    /// What they hold, as of when each was last written into or from.
    pub(crate) bytes: usize,
    /// From where on no large message is added.
    max_bytes: usize,
    /// Queues with a large message next that could not be added.
    queues: BTreeSet<QueueKey>,
}

/// To whom a message may be sent that has credit and room of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admits {
    Anybody,
    /// Only those for whom nothing else waits.
    Idle,
    Nobody,
}

impl Unread {
    pub(crate) fn new(memory_budget_bytes: u64) -> Unread {
        let share = usize::try_from(memory_budget_bytes / OUT_PER_MEMORY).unwrap_or(usize::MAX);
        Unread { bytes: 0, max_bytes: share.max(OUT_TOTAL_BYTES), queues: BTreeSet::new() }
    }

    /// To whom a message of so many bytes may be sent.
    pub(crate) fn admits(&self, message_bytes: usize) -> Admits {
        if message_bytes <= OUT_SOFT_MIN_BYTES || self.bytes < OUT_TOTAL_BYTES {
            Admits::Anybody
        } else if self.bytes < self.max_bytes {
            Admits::Idle
        } else {
            Admits::Nobody
        }
    }

    /// The next message of a queue was not admitted.
    pub(crate) fn leave(&mut self, queue: QueueKey) {
        self.queues.insert(queue);
    }
}

impl Shard {
    /// A buffer may have become smaller or empty: queues that were left for it may go on.
    pub(crate) fn return_to_left_queues(&mut self) {
        if self.unread.bytes < self.unread.max_bytes {
            for key in std::mem::take(&mut self.unread.queues) {
                self.mark_queue(key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_messages_go_to_fewer_the_more_waits_and_small_ones_to_anybody() {
        let mut unread = Unread::new(256 << 20);
        for (mib, large) in [
            (0, Admits::Anybody),
            (31, Admits::Anybody),
            (32, Admits::Idle),
            (63, Admits::Idle),
            (64, Admits::Nobody),
        ] {
            unread.bytes = mib << 20;
            assert_eq!(unread.admits(OUT_SOFT_MIN_BYTES + 1), large, "{mib}");
            assert_eq!(unread.admits(OUT_SOFT_MIN_BYTES), Admits::Anybody, "{mib}");
        }
    }
}
