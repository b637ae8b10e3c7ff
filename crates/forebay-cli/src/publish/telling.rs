//! `forebay publish --explain`: where the publisher's own time went. What becomes of messages behind the broker is told
//! by those who consume them.

use std::time::Duration;

use forebay::pipeline::explain::Cause;
use forebay_client::{PublisherMetrics, Summary};
use serde_json::{Value, json};

use crate::figures::{duration, thousands};

/// What a publisher counted in its time.
#[derive(Debug)]
pub(super) struct Telling {
    pub(super) metrics: PublisherMetrics,
    pub(super) took: Duration,
    /// The window, if it was set by hand.
    pub(super) window_messages: Option<u32>,
}

impl Telling {
    /// What kept it from being faster: its window, if somebody waited there for more than half of the time, and otherwise
    /// what it reads. A name for machines, and a sentence.
    fn cause(&self) -> (&'static str, String) {
        let waited = Duration::from_micros(self.metrics.admission_wait.sum_us);
        if waited * 2 <= self.took {
            let says = "the broker takes more than comes: the input, or what writes it, is what takes the time";
            return ("input", says.into());
        }
        let cause = match self.window_messages {
            Some(window) => Cause::WindowFixed { window_messages: window.into() },
            None => Cause::BrokerFull,
        };
        (cause.name(), cause.to_string())
    }

    /// For people; the last line is the cause.
    pub(super) fn lines(&self) -> Vec<String> {
        let PublisherMetrics {
            published, window_messages, admission_wait, confirm_latency, ..
        } = &self.metrics;
        let line = |summary: &Summary, what: &str| {
            let (mean, most) = (duration(summary.mean_us()), duration(summary.max_us));
            format!("  {mean:>9}, at most {most:>9}  {what}, {} of them", thousands(summary.count))
        };
        vec![
            format!("{} messages, a window of {window_messages} at the end", thousands(*published)),
            line(admission_wait, "waits for the window"),
            line(confirm_latency, "confirms after that"),
            self.cause().1,
        ]
    }

    /// The same as an object; durations are microseconds.
    pub(super) fn json(&self) -> Value {
        let summary = |summary: &Summary| {
            json!({
                "count": summary.count,
                "sum_us": summary.sum_us,
                "mean_us": summary.mean_us(),
                "max_us": summary.max_us,
            })
        };
        let (cause, says) = self.cause();
        json!({
            "took_us": u64::try_from(self.took.as_micros()).unwrap_or(u64::MAX),
            "window_waits": summary(&self.metrics.admission_wait),
            "confirms": summary(&self.metrics.confirm_latency),
            "window_messages": self.metrics.window_messages,
            "window_set_to": self.window_messages,
            "cause": cause,
            "says": says,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waited(sum_us: u64, window_messages: Option<u32>) -> Telling {
        let mut metrics = PublisherMetrics::default();
        metrics.admission_wait = Summary { count: 4, sum_us, max_us: sum_us, ..Summary::default() };
        Telling { metrics, took: Duration::from_secs(1), window_messages }
    }

    #[test]
    fn what_is_waited_for_most_of_the_time_is_named() {
        assert_eq!(waited(500_000, Some(1)).cause().0, "input");
        assert_eq!(waited(500_001, Some(1)).cause().0, "window-fixed");
        assert_eq!(waited(900_000, None).cause().0, "broker-full");
        let told = waited(900_000, Some(7)).json();
        assert_eq!(told["window_waits"]["mean_us"], 225_000);
        assert!(told["says"].as_str().is_some_and(|says| says.contains("fixed at 7 messages")));
    }
}
