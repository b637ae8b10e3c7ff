//! Latency histograms.

use hdrhistogram::Histogram;

use crate::in_flight::SentAt;
use crate::report::LatencyReport;

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

    pub(crate) fn add(&mut self, other: &Latency) {
        self.0.add(&other.0).expect("all histograms have the same bounds");
    }
}

/// The two latencies of one event: from when the message was due, and from when it was handed over. Without
/// due times they are one.
#[derive(Debug)]
pub(crate) struct Timing {
    paced: bool,
    intended: Latency,
    called: Latency,
}

impl Timing {
    pub(crate) fn new(paced: bool) -> Timing {
        Timing { paced, intended: Latency::new(), called: Latency::new() }
    }

    pub(crate) fn record(&mut self, from: SentAt, to_us: u64, count: u64) {
        self.called.record(from.called_us, to_us, count);
        if self.paced {
            self.intended.record(from.intended_us, to_us, count);
        }
    }

    /// Adds what `other` saw, and empties it.
    pub(crate) fn take(&mut self, other: &mut Timing) {
        self.called.add(&other.called);
        self.intended.add(&other.intended);
        other.clear();
    }

    pub(crate) fn clear(&mut self) {
        self.called.0.reset();
        self.intended.0.reset();
    }

    /// From the intended time.
    pub(crate) fn intended(&self) -> &Histogram<u64> {
        if self.paced { &self.intended.0 } else { &self.called.0 }
    }

    /// From the call.
    pub(crate) fn called(&self) -> &Histogram<u64> {
        &self.called.0
    }

    pub(crate) fn report_intended(&self) -> LatencyReport {
        LatencyReport::of(self.intended())
    }

    pub(crate) fn report_called(&self) -> LatencyReport {
        LatencyReport::of(&self.called.0)
    }
}

/// The percentile curve: quantiles that halve the distance to 1 again and again, in eight steps each, and
/// the latency there. It ends where one message decides.
pub(crate) fn curve(histogram: &Histogram<u64>) -> Vec<(f64, u64)> {
    let steps = histogram.iter_quantiles(4);
    steps
        .map(|step| (step.quantile_iterated_to(), step.value_iterated_to()))
        .take_while(|(quantile, _)| *quantile < 1.0)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_add_up_to_the_whole() {
        let (mut whole, mut second) = (Timing::new(true), Timing::new(true));
        for from in 0..1_000 {
            second.record(SentAt { intended_us: from, called_us: 500 }, 1_000, 1);
            if from % 100 == 99 {
                whole.take(&mut second);
            }
        }
        assert_eq!(second.called().len(), 0);
        let (intended, called) = (whole.report_intended(), whole.report_called());
        assert_eq!((intended.count, called.count), (1_000, 1_000));
        assert!((499..=501).contains(&intended.p50_us), "{intended:?}");
        assert_eq!((called.p50_us, called.max_us), (500, 500));
    }

    #[test]
    fn without_due_times_both_latencies_are_one() {
        let mut timing = Timing::new(false);
        timing.record(SentAt { intended_us: 1, called_us: 7 }, 10, 3);
        assert_eq!(timing.report_intended(), timing.report_called());
        assert_eq!(timing.report_called().max_us, 3);
    }

    #[test]
    fn a_curve_rises_and_reaches_the_tail() {
        let mut timing = Timing::new(false);
        for us in 1..=10_000 {
            timing.record(SentAt { intended_us: 0, called_us: 0 }, us, 1);
        }
        let curve = curve(timing.called());
        assert!(curve.len() > 20 && curve.windows(2).all(|pair| pair[0].1 <= pair[1].1));
        assert!(curve.last().is_some_and(|last| last.0 > 0.999 && last.1 > 9_900), "{curve:?}");
    }
}
