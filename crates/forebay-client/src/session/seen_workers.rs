//! How many workers of a program hold messages, where nobody counts them.
//!
//! ```text
//!   round     a second at least, and 8 completions; most: what was held at a time in it
//!   after it  most is half of the workers, or less: half as many, and never fewer than it was told of
//! ```
//! More of them are seen by their asking ([`Credit`](super::Credit)). Those of a batch that was collected once need not be
//! there for ever: what is held for them waits behind others.

const ROUND_US: u64 = 1_000_000;
const ROUND_COMPLETIONS: u32 = 8;

/// One consumer's workers. Times are microseconds of the caller's clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct SeenWorkers {
    /// Those it was told of.
    least: u32,
    most: u32,
    completions: u32,
    since_us: u64,
}

impl SeenWorkers {
    pub(super) fn new(now_us: u64, least: u32) -> SeenWorkers {
        SeenWorkers { least, most: 0, completions: 0, since_us: now_us }
    }

    /// The same program on another connection: nothing is held.
    pub(super) fn restarted(self, now_us: u64) -> SeenWorkers {
        SeenWorkers::new(now_us, self.least)
    }

    /// So many messages are held.
    pub(super) fn hold(&mut self, held: u32) {
        self.most = self.most.max(held);
    }

    /// A worker is done, and `held` are left of what `workers` may hold: how many are enough from now on, if fewer.
    pub(super) fn completed(&mut self, now_us: u64, held: u32, workers: u32) -> Option<u32> {
        self.completions = self.completions.saturating_add(1);
        let lasts_us = now_us.saturating_sub(self.since_us);
        if self.completions < ROUND_COMPLETIONS || lasts_us < ROUND_US {
            return None;
        }
        let half = workers / 2;
        let enough = self.most <= half && half >= self.least;
        *self = SeenWorkers { most: held, ..SeenWorkers::new(now_us, self.least) };
        enough.then_some(half)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many are taken, one each `every_us`, and then all completed.
    fn batch(
        seen: &mut SeenWorkers,
        now_us: &mut u64,
        size: u32,
        every_us: u64,
        workers: &mut u32,
    ) {
        for held in 1..=size {
            *now_us += every_us;
            seen.hold(held);
        }
        for held in (0..size).rev() {
            *workers = seen.completed(*now_us, held, *workers).unwrap_or(*workers);
        }
    }

    #[test]
    fn a_batch_that_takes_long_to_collect_keeps_its_room() {
        let (mut seen, mut now_us, mut workers) = (SeenWorkers::new(0, 1), 0, 128);
        for _ in 0..5 {
            batch(&mut seen, &mut now_us, 100, 100_000, &mut workers);
        }
        assert_eq!(workers, 128);
    }

    #[test]
    fn they_halve_down_to_those_it_was_told_of() {
        let (mut seen, mut now_us, mut workers) = (SeenWorkers::new(0, 3), 0, 96);
        let mut had = vec![workers];
        for _ in 0..100 {
            batch(&mut seen, &mut now_us, 1, 200_000, &mut workers);
            had.push(workers);
        }
        had.dedup();
        assert_eq!(had, [96, 48, 24, 12, 6, 3]);
    }
}
