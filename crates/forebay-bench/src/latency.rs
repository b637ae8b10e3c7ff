//! Latency histograms.

use hdrhistogram::Histogram;

/// Latencies above ten minutes are counted as ten minutes.
const LATENCY_US_MAX: u64 = 600_000_000;

/// Microseconds, with three significant digits.
#[derive(Debug)]
pub(crate) struct Latency(pub(crate) Histogram<u64>);

impl Latency {
    pub(crate) fn new() -> Latency {
        let histogram = Histogram::new_with_bounds(1, LATENCY_US_MAX, 3);
        Latency(histogram.expect("the bounds are constant and valid"))
    }

    /// `count` messages that took from `from_us` to `to_us`.
    pub(crate) fn record(&mut self, from_us: u64, to_us: u64, count: u64) {
        self.0.saturating_record_n(to_us.saturating_sub(from_us), count);
    }
}
