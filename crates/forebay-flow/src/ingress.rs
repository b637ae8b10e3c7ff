//! How much a broker takes in before it is on disk, and how much of that from whom.
//!
//! ```text
//!   sockets ──visits, so many bytes each──► read, not committed ──commits, in turn───────► durable
//!                                           ≤ IngressBudget
//! ```
//! Too small a budget starves the disk, and a starved disk measures a low rate: a fixed 5 ms cost three
//! quarters of the throughput at a commit time of 8 ms in simulation. So the budget is never less than
//! three commit times (one batch being written, one being filled, one to spare), and the rate it is
//! counted with is the best of the last second, not the mean: from a hundredth of the true rate it heals
//! within 3 s.

/// Length of a bin of the rate, in microseconds.
const BIN_US: u64 = 250_000;
/// Bins that are remembered, the running one included.
const BINS: usize = 4;
/// The budget is worth at least this much of the rate, in microseconds,
const LEAST_US: u64 = 5_000;
/// and at least so many commit times.
const COMMITS: u64 = 3;

/// Bytes that may be read and not committed, from what commits take and bring.
#[derive(Debug, Clone)]
pub struct IngressBudget {
    most_bytes: u64,
    /// Bytes committed in each bin; `newest` is the number of the running one since the clock's zero.
    bins: [u64; BINS],
    newest: u64,
    commit_us: u64,
}

impl IngressBudget {
    /// With a ceiling: what may wait for a slow disk in memory.
    #[must_use]
    pub fn new(most_bytes: u64) -> IngressBudget {
        IngressBudget { most_bytes, bins: [0; BINS], newest: 0, commit_us: 0 }
    }

    /// A commit of `bytes` is done; `commit_us` is the mean time of the last ones.
    pub fn committed(&mut self, now_us: u64, commit_us: u64, bytes: u64) {
        let bin = (now_us / BIN_US).max(self.newest);
        for passed in 0..(bin - self.newest).min(BINS as u64) {
            self.bins[((bin - passed) % BINS as u64) as usize] = 0;
        }
        self.newest = bin;
        let running = &mut self.bins[(bin % BINS as u64) as usize];
        *running = running.saturating_add(bytes);
        self.commit_us = commit_us;
    }

    /// The budget in bytes; 0 before the first commit, so give it a floor.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let best = u128::from(self.bins.iter().copied().max().unwrap_or(0));
        let worth_us = LEAST_US.max(COMMITS.saturating_mul(self.commit_us));
        let bytes = best * u128::from(worth_us) / u128::from(BIN_US);
        u64::try_from(bytes).unwrap_or(u64::MAX).min(self.most_bytes)
    }
}

/// Bytes read from a connection before the next one has its turn; a byte stream can be cut anywhere. Half of it costs a
/// third of the rate: much of what a visit touches has left the processor's caches since the one before (a hundred
/// publishers of 1 kB: 0.8 and 1.2 million messages a second).
///
/// Round robin with such a quantum is deficit round robin (Shreedhar and Varghese, SIGCOMM 1995) without
/// deficits: nobody takes more than the quantum, and what is not used is not kept.
pub const VISIT_BYTES: usize = 64 * 1024;
/// A broker with this capability reads in visits of [`VISIT_BYTES`] at most, and a message costs it less than
/// a visit does: it is told to [`Window::broker`](crate::Window::broker).
pub const FAIR_VISITS: &str = "forebay.fair_visits";

/// Publishers get one byte read for so many bytes written to consumers: a fifth of the work.
const CONSUMERS_PER_PUBLISHER: u64 = 4;
/// Turns over which the work is counted, as the weight of a moving average.
const TURNS: u64 = 8;

/// The publishers' part of a broker's turn while a backlog drains.
///
/// Work in progress goes before new work, but without a guarantee it stops new work: strictly consumers
/// first, publishers got some 10 messages a second in simulation while 200 000 drained.
#[derive(Debug, Clone)]
pub(crate) struct PublisherShare {
    least_bytes: u64,
    /// Bytes written in a turn, on average, times [`TURNS`].
    written: u64,
}

impl PublisherShare {
    /// With the bytes that publishers may bring in any turn.
    #[must_use]
    pub(crate) fn new(least_bytes: u64) -> PublisherShare {
        PublisherShare { least_bytes, written: 0 }
    }

    /// A turn has ended in which consumers were sent `bytes`.
    pub(crate) fn turn(&mut self, bytes: u64) {
        self.written = self.written - self.written / TURNS + bytes;
    }

    /// Bytes to read from publishers in this turn.
    #[must_use]
    pub(crate) fn bytes(&self) -> u64 {
        self.least_bytes.max(self.written / TURNS / CONSUMERS_PER_PUBLISHER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    /// A broker that always has more to read than it may, on a disk that writes `rate` bytes a second
    /// and takes `sync_us` for each commit. Returns bytes committed in the last of `seconds`.
    fn last_second(budget: &mut IngressBudget, sync_us: u64, rate: u64, seconds: u64) -> u64 {
        let floor = MIB;
        let (mut now_us, mut commit_us, mut open, mut last) = (0, sync_us, floor, 0);
        while now_us < seconds * 1_000_000 {
            // What is open is handed over; the next batch fills while it is written.
            let in_flight = open;
            let took_us = sync_us + in_flight * 1_000_000 / rate;
            open = budget.bytes().saturating_sub(in_flight).max(floor);
            now_us += took_us;
            commit_us = (commit_us * 7 + took_us) / 8;
            budget.committed(now_us, commit_us, in_flight);
            if now_us > (seconds - 1) * 1_000_000 {
                last += in_flight;
            }
        }
        last
    }

    #[test]
    fn a_slow_disk_gets_batches_that_keep_it_busy() {
        for sync_us in [50, 1_000, 8_000, 30_000] {
            let mut budget = IngressBudget::new(16 * MIB);
            let got = last_second(&mut budget, sync_us, 200 * MIB, 4);
            // Batches of 16 MiB at most, of which the half is in flight.
            let best = 1e6 / (sync_us as f64 + 8e6 / 200.0) * 8.0 * MIB as f64;
            assert!(got as f64 >= 0.7 * best.min(200e6), "{sync_us} us: {got} of {best}");
        }
    }

    #[test]
    fn a_rate_measured_far_too_low_heals_within_three_seconds() {
        let mut budget = IngressBudget::new(16 * MIB);
        for tenth in 0..10 {
            budget.committed(tenth * 100_000, 30_000, 10_000);
        }
        let mut now_us = 1_000_000;
        let mut open = MIB / 100;
        while now_us < 4_000_000 {
            let in_flight = open;
            now_us += 30_000;
            budget.committed(now_us, 30_000, in_flight);
            open = (budget.bytes() - in_flight).max(in_flight);
        }
        assert!(budget.bytes() >= 12 * MIB, "{}", budget.bytes());
    }

    #[test]
    fn what_was_long_ago_does_not_count() {
        let mut budget = IngressBudget::new(u64::MAX);
        budget.committed(0, 1_000, 250_000);
        assert_eq!(budget.bytes(), 5_000);
        budget.committed(999_999, 1_000, 0);
        assert_eq!(budget.bytes(), 5_000);
        budget.committed(1_000_000, 10_000, 25_000);
        assert_eq!(budget.bytes(), 3_000);
        budget.committed(1_000_000_000, 1_000, 0);
        assert_eq!(budget.bytes(), 0);
    }

    #[test]
    fn publishers_get_a_fifth_of_the_work_while_a_backlog_drains() {
        let mut share = PublisherShare::new(256 * 1024);
        for _ in 0..100 {
            share.turn(4 * MIB);
        }
        let (publishers, consumers) = (share.bytes(), 4 * MIB);
        assert!(publishers * 5 >= (publishers + consumers) * 99 / 100, "{publishers}");
        for _ in 0..100 {
            share.turn(0);
        }
        assert_eq!(share.bytes(), 256 * 1024);
    }

    proptest! {
        #[test]
        fn never_above_the_ceiling_and_at_least_three_commits_of_the_best_rate(
            most in 1..u64::MAX,
            commits in prop::collection::vec((0..2_000_000u64, 0..1_000_000u64, 0..u64::MAX / 100), 1..100),
        ) {
            let mut budget = IngressBudget::new(most);
            let mut now_us = 0;
            for (pause_us, commit_us, bytes) in commits {
                now_us += pause_us;
                budget.committed(now_us, commit_us, bytes);
                let worth = u128::from(bytes) * u128::from((3 * commit_us).max(5_000)) / 250_000;
                prop_assert!(budget.bytes() <= most);
                prop_assert!(u128::from(budget.bytes()) >= worth.min(u128::from(most)));
            }
        }
    }
}
