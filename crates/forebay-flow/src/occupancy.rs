//! How many workers there are and how many of them are at something, from whoever employs them to whoever fetches
//! their work.
//!
//! A message that somebody holds is not always in work: it may pause before another attempt, wait for an earlier one
//! of its key, or for its batch to be full. Whoever fetches messages cannot tell, and who takes them can.

use std::sync::atomic::{AtomicU64, Ordering};

/// Written by one, read by some. A reader may see the state of a moment ago, never one that was not.
#[derive(Debug, Default)]
pub struct Occupancy {
    /// Workers in the upper half, busy ones in the lower.
    counts: AtomicU64,
    turns: AtomicU64,
    /// One more than the turn at which a reader found that they are busy for long.
    stuck: AtomicU64,
}

/// See [`Occupancy`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Occupied {
    /// How many there are; may be fewer than are busy, when some are to leave.
    pub workers: u32,
    /// Those that will take nothing now.
    pub busy: u32,
    /// Grows whenever one begins or ends something.
    pub turns: u64,
    /// A reader found them [stuck](Occupancy::stuck), and nothing has happened since.
    pub stuck: bool,
}

impl Occupied {
    /// Workers that would take a message.
    #[must_use]
    pub fn free(&self) -> u32 {
        self.workers.saturating_sub(self.busy)
    }
}

impl Occupancy {
    /// One of them began or ended something, or there are more or fewer.
    pub fn set(&self, workers: u32, busy: u32) {
        self.counts.store(u64::from(workers) << 32 | u64::from(busy), Ordering::Release);
        // One writer at a time: no need for an atomic addition.
        self.turns.store(self.turns.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// For the other readers: all were busy at this turn, and have been for long.
    pub fn stuck(&self, turns: u64) {
        self.stuck.store(turns + 1, Ordering::Relaxed);
    }

    /// As it is now.
    #[must_use]
    pub fn get(&self) -> Occupied {
        let (turns, counts) =
            (self.turns.load(Ordering::Acquire), self.counts.load(Ordering::Acquire));
        let stuck = self.stuck.load(Ordering::Relaxed) == turns + 1;
        Occupied { workers: (counts >> 32) as u32, busy: counts as u32, turns, stuck }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_set_is_what_is_seen() {
        let occupancy = Occupancy::default();
        assert_eq!(occupancy.get(), Occupied::default());
        occupancy.set(25, 24);
        let seen = Occupied { workers: 25, busy: 24, turns: 1, stuck: false };
        assert_eq!(occupancy.get(), seen);
        occupancy.stuck(1);
        assert_eq!(occupancy.get(), Occupied { stuck: true, ..seen });
        assert_eq!(occupancy.get().free(), 1);
        occupancy.set(5, u32::MAX);
        assert_eq!(
            occupancy.get(),
            Occupied { workers: 5, busy: u32::MAX, turns: 2, stuck: false }
        );
        assert_eq!(occupancy.get().free(), 0);
    }
}
