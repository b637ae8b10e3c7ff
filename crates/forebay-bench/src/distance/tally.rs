//! What a publisher saw: when messages were confirmed and how long that took.

use crate::latency::Latency;

/// Confirms are counted in bins of this length.
pub(super) const BIN_US: u64 = 100_000;

/// One bin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Bin {
    /// Messages confirmed in it.
    pub(super) confirmed: u64,
    /// Sum of their latencies, in microseconds.
    pub(super) latency_us: u64,
}

/// Counts of one publisher, or of several together. Times are microseconds since the load began.
///
/// A rate counts confirms by when they came. A latency belongs to the time of its `publish`, so that a
/// window which only queues does not lose its worst latencies behind the end of the measurement.
#[derive(Debug)]
pub(super) struct Tally {
    /// The first seconds end here.
    first_us: u64,
    /// Publishing ends here.
    end_us: u64,
    /// A confirm that takes longer is a timeout.
    patience_us: u64,
    pub(super) bins: Vec<Bin>,
    first_confirmed: u64,
    later_confirmed: u64,
    pub(super) first: Latency,
    pub(super) later: Latency,
    pub(super) failed: u64,
    pub(super) timed_out: u64,
}

impl Tally {
    pub(super) fn new(first_us: u64, end_us: u64, patience_us: u64) -> Tally {
        assert!(first_us < end_us, "a measurement takes time");
        Tally {
            first_us,
            end_us,
            patience_us,
            bins: vec![Bin::default(); end_us.div_ceil(BIN_US) as usize],
            first_confirmed: 0,
            later_confirmed: 0,
            first: Latency::new(),
            later: Latency::new(),
            failed: 0,
            timed_out: 0,
        }
    }

    /// A message published then was confirmed now.
    pub(super) fn confirmed(&mut self, published_us: u64, now_us: u64) {
        let latency_us = now_us.saturating_sub(published_us);
        if now_us < self.first_us {
            self.first_confirmed += 1;
        } else if now_us < self.end_us {
            self.later_confirmed += 1;
        }
        if let Some(bin) = self.bins.get_mut((now_us / BIN_US) as usize) {
            bin.confirmed += 1;
            bin.latency_us += latency_us;
        }
        if published_us < self.first_us { &mut self.first } else { &mut self.later }.record(
            published_us,
            now_us,
            1,
        );
        self.timed_out += u64::from(latency_us > self.patience_us);
    }

    /// Messages whose outcome was another one, or none.
    pub(super) fn failed(&mut self, messages: u64) {
        self.failed += messages;
    }

    /// Adds what another publisher of the same load saw.
    pub(super) fn merge(&mut self, other: &Tally) {
        assert_eq!(
            (self.first_us, self.end_us, self.patience_us),
            (other.first_us, other.end_us, other.patience_us),
            "tallies of one load"
        );
        for (bin, more) in self.bins.iter_mut().zip(&other.bins) {
            bin.confirmed += more.confirmed;
            bin.latency_us += more.latency_us;
        }
        self.first_confirmed += other.first_confirmed;
        self.later_confirmed += other.later_confirmed;
        for (own, more) in [(&mut self.first, &other.first), (&mut self.later, &other.later)] {
            own.0.add(&more.0).expect("histograms of one making");
        }
        self.failed += other.failed;
        self.timed_out += other.timed_out;
    }

    /// Confirmed a second in the first seconds; 0 without any.
    pub(super) fn first_per_s(&self) -> f64 {
        per_s(self.first_confirmed, self.first_us)
    }

    /// Confirmed a second from then to the end.
    pub(super) fn later_per_s(&self) -> f64 {
        per_s(self.later_confirmed, self.end_us - self.first_us)
    }

    /// Confirmed before the end.
    pub(super) fn total(&self) -> u64 {
        self.first_confirmed + self.later_confirmed
    }
}

fn per_s(count: u64, us: u64) -> f64 {
    if us == 0 { 0.0 } else { count as f64 * 1e6 / us as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally() -> Tally {
        Tally::new(200_000, 1_000_000, 500_000)
    }

    #[test]
    fn rates_go_by_the_confirm_and_latencies_by_the_publish() {
        let mut tally = tally();
        tally.confirmed(50_000, 150_000);
        tally.confirmed(190_000, 250_000); // published early, confirmed late
        tally.confirmed(300_000, 340_000);
        tally.confirmed(990_000, 1_200_000); // its rate is lost, its latency not
        assert_eq!((tally.first_per_s(), tally.later_per_s()), (5.0, 2.5));
        assert_eq!((tally.first.0.len(), tally.later.0.len()), (2, 2));
        assert_eq!(tally.later.0.max() / 1_000, 210);
        assert_eq!(tally.bins[2], Bin { confirmed: 1, latency_us: 60_000 });
        assert_eq!((tally.total(), tally.timed_out), (3, 0));
    }

    #[test]
    fn a_confirm_beyond_patience_is_a_timeout_and_still_counts() {
        let mut tally = tally();
        tally.confirmed(0, 500_001);
        assert_eq!((tally.timed_out, tally.total()), (1, 1));
    }

    #[test]
    fn publishers_add_up() {
        let (mut all, mut one) = (tally(), tally());
        all.confirmed(0, 10_000);
        one.confirmed(300_000, 310_000);
        one.confirmed(300_000, 320_000);
        one.failed(3);
        all.merge(&one);
        assert_eq!((all.first_per_s(), all.later_per_s()), (5.0, 2.5));
        assert_eq!((all.first.0.len(), all.later.0.len(), all.failed), (1, 2, 3));
        assert_eq!(all.bins[3], Bin { confirmed: 2, latency_us: 30_000 });
        assert_eq!(all.later.0.value_at_quantile(0.99) / 1_000, 20);
    }
}
