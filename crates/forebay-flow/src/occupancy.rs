//! How many workers there are and how many of them are at something, from whoever employs them to whoever fetches
//! their work.
//!
//! A message that somebody holds is not always in work: it may pause before another attempt, wait for an earlier one
//! of its key, or for its batch to be full. Whoever fetches messages cannot tell, and who takes them can. Nor is whoever
//! is at nothing always free: he may have to wait for a rate, or for room for a message that is not for him.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Written by one, read by some. A reader may see the state of a moment ago; workers and those who are busy are of the same
/// moment, a limit may be newer.
#[derive(Debug, Default)]
pub struct Occupancy {
    /// Workers in the upper half, busy ones in the lower.
    counts: AtomicU64,
    limit: AtomicU32,
    limit_per_s: AtomicU32,
    turns: AtomicU64,
    /// One more than the turn at which a reader found that they are busy for long.
    stuck: AtomicU64,
}

/// See [`Occupancy`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Occupied {
    /// How many there are; may be fewer than are busy, when some are to leave.
    pub workers: u32,
    /// Those that are at something.
    pub busy: u32,
    /// Messages that may be taken now, however many would take one; [`u32::MAX`] where nothing limits them.
    pub limit: u32,
    /// By how many that grows in a second.
    pub limit_per_s: u32,
    /// Grows whenever one begins or ends something, or the limit changes.
    pub turns: u64,
    /// A reader found them [stuck](Occupancy::stuck), and nothing has happened since.
    pub stuck: bool,
}

impl Occupied {
    /// Workers that would take a message, if they may.
    #[must_use]
    pub fn free(&self) -> u32 {
        self.workers.saturating_sub(self.busy)
    }
}

impl Occupancy {
    /// One of them began or ended something, or there are more or fewer.
    pub fn set(&self, workers: u32, busy: u32) {
        self.set_limited(workers, busy, u32::MAX, 0);
    }

    /// The same where no more than `limit` messages may be taken now, and `limit_per_s` more in each second. Nothing has
    /// happened if all is as it was.
    pub fn set_limited(&self, workers: u32, busy: u32, limit: u32, limit_per_s: u32) {
        let counts = u64::from(workers) << 32 | u64::from(busy);
        // One writer at a time: no need for atomic changes.
        let new = self.counts.load(Ordering::Relaxed) != counts
            || self.limit.load(Ordering::Relaxed) != limit
            || self.limit_per_s.load(Ordering::Relaxed) != limit_per_s;
        if new {
            self.limit.store(limit, Ordering::Release);
            self.limit_per_s.store(limit_per_s, Ordering::Release);
            self.counts.store(counts, Ordering::Release);
            self.turns.store(self.turns.load(Ordering::Relaxed) + 1, Ordering::Release);
        }
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
        Occupied {
            workers: (counts >> 32) as u32,
            busy: counts as u32,
            limit: self.limit.load(Ordering::Acquire),
            limit_per_s: self.limit_per_s.load(Ordering::Acquire),
            turns,
            stuck: self.stuck.load(Ordering::Relaxed) == turns + 1,
        }
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
        let unlimited = Occupied { limit: u32::MAX, ..Occupied::default() };
        let seen = Occupied { workers: 25, busy: 24, turns: 1, ..unlimited };
        assert_eq!(occupancy.get(), seen);
        occupancy.stuck(1);
        assert_eq!(occupancy.get(), Occupied { stuck: true, ..seen });
        assert_eq!(occupancy.get().free(), 1);
        occupancy.set(5, u32::MAX);
        assert_eq!(occupancy.get(), Occupied { workers: 5, busy: u32::MAX, turns: 2, ..unlimited });
        assert_eq!(occupancy.get().free(), 0);
    }

    #[test]
    fn what_is_as_it_was_is_no_turn() {
        let occupancy = Occupancy::default();
        occupancy.set_limited(25, 1, 3, 10);
        occupancy.stuck(1);
        occupancy.set_limited(25, 1, 3, 10);
        let seen = occupancy.get();
        assert_eq!((seen.limit, seen.limit_per_s, seen.turns, seen.stuck), (3, 10, 1, true));
        occupancy.set_limited(25, 1, 2, 10);
        assert_eq!((occupancy.get().turns, occupancy.get().stuck), (2, false));
    }
}
