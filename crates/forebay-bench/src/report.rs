//! What was measured, for people and machines.

use std::fmt;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::plan::Plan;
use crate::setting::Window;

/// A generator that used this many cores, of the one it has, was the bottleneck itself.
const BOTTLENECK_CORES: f64 = 0.9;
/// From this share of the time on, a generator that waits for a core is crowded.
const CROWDED: f64 = 0.2;
/// From this share of the target on, a load that was asked for was also carried.
const CARRIED: f64 = 0.98;
/// From so many seconds of the load on, what had not arrived is told.
const OPEN_SECONDS: f64 = 0.5;

/// One second of the measurement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sample {
    /// Length in seconds; about 1.
    pub seconds: f64,
    /// Messages published a second.
    pub published: f64,
    /// Messages confirmed a second.
    pub confirmed: f64,
    /// Messages consumed a second.
    pub consumed: f64,
    /// Resident memory of the broker in bytes, if its process is known.
    pub broker_bytes: Option<u64>,
    /// CPU of the broker in cores, if its process is known.
    pub broker_cores: Option<f64>,
    /// CPU of the generator's thread in cores.
    pub generator_cores: f64,
    /// From the call to the confirm.
    pub confirm: LatencyReport,
    /// From the intended time to the confirm; without due times the same. Nothing in files of before.
    pub confirm_intended: LatencyReport,
    /// From the call to the delivery.
    pub end_to_end: LatencyReport,
    /// From the intended time to the delivery; without due times the same.
    pub end_to_end_intended: LatencyReport,
    /// Messages in the queues, ready to be delivered, as of the last answer.
    pub depth: Option<u64>,
    /// Published and not confirmed.
    pub unconfirmed: u64,
    /// Delivered and not acknowledged.
    pub unacked: u64,
    /// Due and not published: what waits at its source.
    pub behind: u64,
    /// What the publishers' windows allow together; 0 without windows.
    pub window: u64,
}

impl Sample {
    /// A last piece of a second says little.
    pub(crate) fn is_whole(&self) -> bool {
        self.seconds > 0.5
    }
}

/// Percentiles in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyReport {
    /// How many messages were timed.
    pub count: u64,
    /// Median.
    pub p50_us: u64,
    /// 90 %.
    pub p90_us: u64,
    /// 99 %.
    pub p99_us: u64,
    /// 99.9 %.
    pub p999_us: u64,
    /// The slowest.
    pub max_us: u64,
}

impl LatencyReport {
    pub(crate) fn of(histogram: &Histogram<u64>) -> LatencyReport {
        LatencyReport {
            count: histogram.len(),
            p50_us: histogram.value_at_quantile(0.5),
            p90_us: histogram.value_at_quantile(0.9),
            p99_us: histogram.value_at_quantile(0.99),
            p999_us: histogram.value_at_quantile(0.999),
            max_us: histogram.max(),
        }
    }
}

impl fmt::Display for LatencyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |us: u64| us as f64 / 1e3;
        write!(
            f,
            "p50 {:.2} p99 {:.2} max {:.1} ms",
            ms(self.p50_us),
            ms(self.p99_us),
            ms(self.max_us)
        )
    }
}

/// The result of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// What was asked for.
    pub plan: Plan,
    /// `product version` of the broker.
    pub broker: String,
    /// Length of the measurement in seconds.
    pub seconds: f64,
    /// Messages published in it.
    pub published: u64,
    /// Messages confirmed in it.
    pub confirmed: u64,
    /// Messages rejected (nacked) in the whole run.
    pub rejected: u64,
    /// Messages that the broker returned in the whole run, as no queue took them; only of queues that were there before.
    #[serde(default)]
    pub returned: u64,
    /// Messages consumed in it.
    pub consumed: u64,
    /// Of all consumed in the whole run, how many were marked as redelivered.
    pub redelivered: u64,
    /// Of all consumed in the whole run, how many were none of this run's, and are not timed.
    #[serde(default)]
    pub strange: u64,
    /// Published a second.
    pub published_per_s: f64,
    /// Confirmed a second.
    pub confirmed_per_s: f64,
    /// Consumed a second.
    pub consumed_per_s: f64,
    /// Coefficient of variation of the consumed (without consumers: published) a second, between
    /// samples.
    pub variation: f64,
    /// Jain's index of fairness between publishers: 1 = all published the same.
    pub fairness: f64,
    /// From the intended time to the confirm (a call: to its reply); without due times from the call.
    pub confirm: LatencyReport,
    /// From the call to the confirm.
    pub confirm_from_call: LatencyReport,
    /// From the intended time to the delivery; without due times from the call.
    pub end_to_end: LatencyReport,
    /// From the call to the delivery.
    pub end_to_end_from_call: LatencyReport,
    /// `end_to_end` as pairs of quantile and microseconds.
    pub curve: Vec<(f64, u64)>,
    /// `end_to_end_from_call` as pairs of quantile and microseconds.
    pub curve_from_call: Vec<(f64, u64)>,
    /// Messages a second that all publishers together were asked for; `None`: as many as possible.
    pub target_per_s: Option<f64>,
    /// Messages published by each publisher in the whole run.
    pub shares: Vec<u64>,
    /// CPU that this generator used, in cores.
    pub generator_cores: f64,
    /// Share of the time in which this generator could have run and got no core.
    #[serde(default)]
    pub generator_waited: f64,
    /// CPU that the broker used, in cores.
    pub broker_cores: Option<f64>,
    /// CPU of the broker per message (the larger of published and consumed), in microseconds.
    pub broker_cpu_us_per_message: Option<f64>,
    /// Highest resident memory of the broker in a sample, in bytes.
    pub broker_bytes_max: Option<u64>,
    /// How often the broker sent connection.blocked.
    pub blocked: u64,
    /// Published, in this phase or before it, not rejected and not consumed at the end of the measurement; only with consumers.
    pub left_over: u64,
    /// Of these, consumed in the drain: they are in no latency either.
    #[serde(default)]
    pub drained: u64,
    /// Second by second.
    pub samples: Vec<Sample>,
}

impl Report {
    /// Whether this generator had no more to give: its figures are its own then, not the broker's.
    pub fn generator_was_the_bottleneck(&self) -> bool {
        self.generator_cores >= BOTTLENECK_CORES
    }

    /// Whether all that was asked for was published, and consumed where somebody consumes, or confirmed: what only fills a queue
    /// or is rejected is not carried. A saturated load never is.
    pub fn carried(&self) -> bool {
        let copies = self.plan.copies() as f64;
        let expected = if self.plan.consumers == 0 || self.plan.rpc { 1.0 } else { copies };
        self.target_per_s.is_some_and(|target| {
            self.published_per_s >= CARRIED * target
                && (self.plan.rpc || self.rate_per_s() >= CARRIED * target * expected)
        })
    }

    /// Whether it had to wait for a core so long that its times may be its own: the machine was full.
    pub fn generator_was_crowded(&self) -> bool {
        self.generator_waited >= CROWDED
    }

    /// Seconds of the load that had not arrived when the measurement ended: published and not consumed, or due and not
    /// even published; infinitely many where nothing arrives. None of them has a latency.
    pub fn seconds_open(&self) -> f64 {
        let behind = self.samples.last().map_or(0, |sample| sample.behind);
        let open = self.left_over as f64 + behind as f64 * self.plan.copies() as f64;
        if open > 0.0 { open / self.rate_per_s() } else { 0.0 }
    }

    /// How its seconds vary; `None`: they were fewer than two.
    pub(crate) fn varies(&self) -> Option<f64> {
        let whole = self.samples.iter().filter(|sample| sample.is_whole());
        (whole.count() > 1).then_some(self.variation)
    }

    /// Taken by a queue and not consumed: what lies there for the next phase.
    pub(crate) fn lying(&self) -> u64 {
        let taken = self.published.saturating_sub(self.rejected + self.returned);
        (taken * self.plan.copies()).saturating_sub(self.consumed)
    }

    /// What had not come of a number of messages that was asked for when the time was over.
    pub(crate) fn cut_short(&self) -> Option<String> {
        let Plan { publishers, messages, consumed_messages, window, .. } = self.plan;
        let (published, consumed) = match publishers {
            0 => (0, messages.max(consumed_messages)),
            _ => (messages, consumed_messages),
        };
        let (settled, how) = match window {
            Window::None if !self.plan.rpc => (self.published, "published"),
            _ => (self.confirmed + self.rejected, "published and answered"),
        };
        let all = [(published, settled, how), (consumed, self.consumed, "consumed")];
        let (asked, came, how) = all.into_iter().find(|(asked, came, _)| came < asked)?;
        Some(format!("{came} of {asked} messages were {how} when the time was over"))
    }

    /// What the load is about: messages consumed a second, or calls; where nobody consumes those that the broker took, which
    /// are those confirmed, or without confirms those published.
    pub fn rate_per_s(&self) -> f64 {
        match &self.plan {
            plan if plan.rpc => self.confirmed_per_s,
            plan if plan.consumers > 0 => self.consumed_per_s,
            // A queue that rejects carries none of what it rejects.
            plan if plan.window != Window::None => self.confirmed_per_s,
            _ => self.published_per_s,
        }
    }

    /// What publishers are to be asked for to have it carried so: messages published a second, of each of which as many
    /// are consumed as it has copies in queues with a consumer.
    pub(crate) fn source_per_s(&self) -> f64 {
        let consumed = self.plan.copies().min(self.plan.consumers as u64);
        self.rate_per_s() / consumed.max(1) as f64
    }

    /// The latency of that rate: `intended` from when messages were due, otherwise from the call. Where nobody
    /// consumes it is that of confirms.
    pub fn latency(&self, intended: bool) -> LatencyReport {
        let confirms = self.plan.rpc || self.plan.consumers == 0;
        match (confirms, intended) {
            (true, true) => self.confirm,
            (true, false) => self.confirm_from_call,
            (false, true) => self.end_to_end,
            (false, false) => self.end_to_end_from_call,
        }
    }
}

impl Report {
    /// The 99 % of that latency; `None`: nothing was timed, as of bodies without room for times, or without confirms.
    pub(crate) fn p99_us(&self, intended: bool) -> Option<f64> {
        let latency = self.latency(intended);
        (latency.count > 0).then_some(latency.p99_us as f64)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let thousands = |rate: f64| format!("{:.1} k/s", rate / 1e3);
        write!(f, "{}: published {}", self.broker, thousands(self.published_per_s))?;
        if self.plan.window != Window::None {
            write!(f, ", confirmed {}", thousands(self.confirmed_per_s))?;
        }
        if self.confirm.count > 0 {
            write!(f, " ({})", self.confirm)?;
        }
        if self.plan.consumers > 0 {
            write!(f, ", consumed {}", thousands(self.consumed_per_s))?;
        }
        if self.end_to_end.count > 0 {
            write!(f, " (end to end {})", self.end_to_end)?;
        }
        if let Some(varies) = self.varies() {
            write!(f, ", variation {:.1} %", varies * 100.0)?;
        }
        write!(f, "; generator {:.2} cores", self.generator_cores)?;
        if let (Some(cores), Some(us)) = (self.broker_cores, self.broker_cpu_us_per_message) {
            write!(f, ", broker {cores:.2} cores = {us:.2} µs a message")?;
        }
        if let Some(bytes) = self.broker_bytes_max {
            write!(f, ", {:.0} MB", bytes as f64 / 1e6)?;
        }
        for (count, what) in [
            (self.rejected, "rejected"),
            (self.returned, "returned as no queue took them"),
            (self.blocked, "times blocked"),
            (self.redelivered, "redelivered"),
            (self.strange, "of another run"),
        ] {
            if count > 0 {
                write!(f, ", {count} {what}")?;
            }
        }
        if let Some(open) = not_arrived(self.seconds_open()) {
            write!(f, ", at the end {open}, in no latency")?;
        }
        if let Some(cut) = self.cut_short() {
            write!(f, ", {cut}")?;
        }
        if self.plan.drain > 0.0 && self.left_over > 0 {
            let (drained, left_over) = (self.drained, self.left_over);
            write!(f, ", {drained} of {left_over} left over came in the drain, in no latency")?;
        }
        Ok(())
    }
}

/// What to say of seconds of a load that had not arrived, if it is to be said.
pub(crate) fn not_arrived(seconds: f64) -> Option<String> {
    match seconds {
        f64::INFINITY => Some("nothing of the load had arrived".to_owned()),
        OPEN_SECONDS.. => Some(format!("{seconds:.1} s of the load had not arrived")),
        _ => None,
    }
}

/// Standard deviation over mean; 0 for fewer than two samples.
pub(crate) fn variation(samples: &[f64]) -> f64 {
    let count = samples.len() as f64;
    let mean = samples.iter().sum::<f64>() / count;
    if samples.len() < 2 || mean <= 0.0 {
        return 0.0;
    }
    let variance = samples.iter().map(|sample| (sample - mean).powi(2)).sum::<f64>() / count;
    variance.sqrt() / mean
}

/// Jain's index: (Σx)² / (n Σx²).
pub(crate) fn fairness(shares: &[u64]) -> f64 {
    let sum: f64 = shares.iter().map(|&share| share as f64).sum();
    let squares: f64 = shares.iter().map(|&share| (share as f64).powi(2)).sum();
    if squares == 0.0 { 1.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fills_a_queue_is_not_carried() {
        let report = |published_per_s: f64, consumed_per_s: f64, plan: Plan| Report {
            target_per_s: Some(100.0),
            published_per_s,
            consumed_per_s,
            plan,
            ..Report::default()
        };
        let plan = Plan::default;
        assert!(report(99.0, 99.0, plan()).carried());
        assert!(!report(90.0, 90.0, plan()).carried());
        assert!(!report(100.0, 90.0, plan()).carried());
        assert!(report(100.0, 0.0, Plan { consumers: 0, ..plan() }).carried());
        let confirmed = Plan { consumers: 0, window: Window::Auto, ..plan() };
        let mut rejecting = Report { confirmed_per_s: 60.0, ..report(100.0, 0.0, confirmed) };
        assert!(!rejecting.carried(), "the rest was rejected");
        assert_eq!(rejecting.rate_per_s(), 60.0);
        rejecting.confirmed_per_s = 99.0;
        assert!(rejecting.carried());
        let fanout = Plan { fanout: true, queues: 10, ..plan() };
        assert!(report(100.0, 1_000.0, fanout.clone()).carried());
        assert!(!report(100.0, 500.0, fanout).carried());
    }

    #[test]
    fn a_fanout_carries_a_copy_of_each_message_to_each_queue() {
        let plan = Plan { fanout: true, queues: 10, consumers: 10, ..Plan::default() };
        let mut report =
            Report { published_per_s: 120.0, consumed_per_s: 1_000.0, plan, ..Report::default() };
        assert_eq!(report.source_per_s(), 100.0);
        report.plan.consumers = 5;
        assert_eq!(report.source_per_s(), 200.0, "half of the queues have no consumer");
        report.plan.consumers = 0;
        assert_eq!(report.source_per_s(), 120.0);
        report.plan = Plan { queues: 10, ..Plan::default() };
        assert_eq!(report.source_per_s(), 1_000.0);
    }

    #[test]
    fn what_has_not_arrived_is_told_in_seconds_of_the_load() {
        let sample = Sample { behind: 300, ..Sample::default() };
        let mut report = Report { consumed_per_s: 100.0, left_over: 200, ..Report::default() };
        report.samples.push(sample);
        assert_eq!(report.seconds_open(), 5.0);
        let told = report.to_string();
        assert!(
            told.ends_with(", at the end 5.0 s of the load had not arrived, in no latency"),
            "{told}"
        );
        (report.plan.drain, report.drained) = (1.0, 150);
        let told = report.to_string();
        assert!(told.ends_with("150 of 200 left over came in the drain, in no latency"), "{told}");
        assert_eq!(Report::default().seconds_open(), 0.0);
        let plan = Plan { window: Window::Auto, ..Plan::default() };
        let stuck = Report { left_over: 3, plan, ..Report::default() }.to_string();
        assert!(stuck.contains("confirmed 0.0 k/s") && !stuck.contains("p50"), "{stuck}");
        assert!(
            stuck.ends_with(", at the end nothing of the load had arrived, in no latency"),
            "{stuck}"
        );
    }

    #[test]
    fn what_lasted_for_a_second_does_not_vary_and_is_not_steady_either() {
        let second = Sample { seconds: 1.0, ..Sample::default() };
        let piece = Sample { seconds: 0.2, ..Sample::default() };
        let mut report = Report { samples: vec![second, piece], ..Report::default() };
        assert!(report.varies().is_none() && !report.to_string().contains("variation"));
        report.samples.push(second);
        assert_eq!(report.varies(), Some(0.0));
    }

    #[test]
    fn a_number_of_messages_that_was_not_reached_is_told() {
        let told = |plan: Plan, published: u64, confirmed: u64, consumed: u64| {
            Report { plan, published, confirmed, rejected: 1, consumed, ..Report::default() }
                .cut_short()
        };
        let asked = Plan { messages: 100, window: Window::Auto, ..Plan::default() };
        let unanswered = told(asked.clone(), 100, 9, 50).unwrap();
        assert_eq!(
            unanswered,
            "10 of 100 messages were published and answered when the time was over"
        );
        assert_eq!(told(asked.clone(), 100, 99, 0), None, "one was rejected, and answered");
        let unconfirmed = Plan { window: Window::None, ..asked };
        assert!(told(unconfirmed.clone(), 7, 0, 0).unwrap().starts_with("7 of 100"));
        let taken = Plan { publishers: 0, ..unconfirmed };
        assert!(told(taken, 0, 0, 99).unwrap().contains("99 of 100 messages were consumed"));
        let both = Plan { consumed_messages: 5, ..Plan::default() };
        assert_eq!((told(both.clone(), 0, 0, 5), told(both, 9, 9, 4).is_some()), (None, true));
        assert_eq!(told(Plan::default(), 0, 0, 0), None, "nobody asked for a number");
    }

    #[test]
    fn what_no_queue_took_does_not_lie_in_one() {
        let plan = Plan { fanout: true, queues: 3, ..Plan::default() };
        let mut filled = Report { published: 100, consumed: 30, plan, ..Report::default() };
        assert_eq!(filled.lying(), 270);
        (filled.rejected, filled.returned) = (50, 10);
        assert_eq!(filled.lying(), 90, "of forty three copies each, without the consumed ones");
    }

    #[test]
    fn equal_shares_are_fair_and_steady_rates_do_not_vary() {
        assert_eq!(fairness(&[5, 5, 5]), 1.0);
        assert!((fairness(&[9, 0, 0]) - 1.0 / 3.0).abs() < 1e-9);
        assert_eq!(variation(&[4.0, 4.0]), 0.0);
        assert_eq!(variation(&[2.0, 6.0]), 0.5);
        assert_eq!(variation(&[]), 0.0);
    }
}
