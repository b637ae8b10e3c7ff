//! How many connections publish at present: those that have published in this period or in the one before.
//!
//! Clients divide a commit among so many ([`CommitTime`](forebay_wire::forebay::CommitTime)), and sockets a part of the
//! memory. A thousand that once published and are silent now need none of it.

/// Half of the time for which a publisher that falls silent still counts, at least.
const PERIOD_US: u64 = 2_000_000;

/// Counted by periods.
#[derive(Debug, Default)]
pub(crate) struct ActivePublishers {
    /// Number of the present period, from 1 on once somebody has published.
    period: u64,
    now: usize,
    before: usize,
}

impl ActivePublishers {
    /// A connection publishes; `last` is what this returned the last time, 0 at first, and is kept with the connection.
    pub(crate) fn publishes(&mut self, now_us: u64, last: u64) -> u64 {
        self.turn(now_us);
        if last != self.period {
            self.now += 1;
        }
        self.period
    }

    /// How many there are: in the period before, or already more in this one.
    pub(crate) fn count(&mut self, now_us: u64) -> usize {
        self.turn(now_us);
        self.now.max(self.before)
    }

    fn turn(&mut self, now_us: u64) {
        let period = now_us / PERIOD_US + 1;
        if period == self.period {
            return;
        }
        self.before = if period == self.period + 1 { self.now } else { 0 };
        (self.period, self.now) = (period, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counts_once_and_is_forgotten_when_it_has_been_silent() {
        let mut active = ActivePublishers::default();
        let mut last = [0; 3];
        for now_us in [1, 10, 1_999_999] {
            for last in &mut last {
                *last = active.publishes(now_us, *last);
            }
        }
        assert_eq!(active.count(1_999_999), 3);
        last[0] = active.publishes(2_000_000, last[0]);
        assert_eq!(active.count(3_999_999), 3, "the others have published in the period before");
        assert_eq!(active.count(4_000_000), 1);
        assert_eq!(active.count(8_000_000), 0);
        last[0] = active.publishes(8_000_001, last[0]);
        assert_eq!((active.count(8_000_001), last[0]), (1, 5));
    }
}
