//! Which messages are marked: one in so many.

use std::sync::atomic::{AtomicU64, Ordering};

/// Chooses the first, and then one in so many. It counts down, because each message pays for it and divisions are dear; threads
/// that ask at the same moment may count as one, because none waits for another to know what is marked.
#[derive(Debug)]
pub struct Sampling {
    every: u64,
    left: AtomicU64,
}

impl Sampling {
    /// One in `every`, at least 1.
    #[must_use]
    pub fn new(every: u64) -> Sampling {
        Sampling { every: every.max(1), left: AtomicU64::new(0) }
    }

    /// One in so many.
    #[must_use]
    pub fn every(&self) -> u64 {
        self.every
    }

    /// Whether the next one is chosen.
    pub fn choose(&self) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        self.left.store(left.checked_sub(1).unwrap_or(self.every - 1), Ordering::Relaxed);
        left == 0
    }

    /// Somebody else chose the next one: that is enough for a while.
    pub fn chosen(&self) {
        self.left.store(self.every - 1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_and_then_one_in_so_many_unless_others_were_chosen() {
        let sampling = Sampling::new(4);
        let chosen = |count: usize| (0..count).map(|_| sampling.choose()).collect::<Vec<_>>();
        assert_eq!(chosen(6), [true, false, false, false, true, false]);
        sampling.chosen();
        assert_eq!(chosen(4), [false, false, false, true]);
        let all = Sampling::new(0);
        assert!(all.choose() && all.choose());
    }
}
