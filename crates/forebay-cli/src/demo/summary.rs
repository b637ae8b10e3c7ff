//! What the demo says at its end: was everything carried, how fast, and what the weather is like.

use std::fmt::Write;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::statistics::Statistics;
use crate::figures::{duration, megabytes, thousands};

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// One thing that must hold.
#[derive(Debug)]
pub(super) struct Check {
    pub(super) what: String,
    pub(super) holds: bool,
}

/// The result of a run.
pub(super) struct Summary {
    pub(super) seconds: f64,
    pub(super) published: u64,
    pub(super) confirmed: u64,
    pub(super) consumed: u64,
    pub(super) confirm: Histogram<u64>,
    pub(super) end_to_end: Histogram<u64>,
    pub(super) process_bytes_max: u64,
    pub(super) months: Statistics,
    pub(super) checks: Vec<Check>,
    pub(super) failure: Option<String>,
}

impl Summary {
    /// Whether all checks hold and nothing failed.
    pub(super) fn holds(&self) -> bool {
        self.failure.is_none() && self.checks.iter().all(|check| check.holds)
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let mut text = String::from("\n");
        for check in &self.checks {
            let mark = if check.holds { "✓" } else { "✗" };
            let _ = writeln!(text, "  {mark} {}", check.what);
        }
        if let Some(failure) = &self.failure {
            let _ = writeln!(text, "  ✗ {failure}");
        }
        let _ = writeln!(
            text,
            "\n  {} readings a second over {:.1} s, at most {} of memory in all",
            thousands((self.consumed as f64 / self.seconds.max(1e-3)) as u64),
            self.seconds,
            megabytes(self.process_bytes_max)
        );
        let _ =
            writeln!(text, "\n  {:<12}{:>10}{:>10}{:>10}{:>10}", "", "p50", "p90", "p99", "max");
        for (name, histogram) in [("confirm", &self.confirm), ("end to end", &self.end_to_end)] {
            let at = |quantile| duration(histogram.value_at_quantile(quantile));
            let _ = writeln!(
                text,
                "  {name:<12}{:>10}{:>10}{:>10}{:>10}",
                at(0.5),
                at(0.9),
                at(0.99),
                duration(histogram.max())
            );
        }
        let _ = writeln!(
            text,
            "\n  Seattle     readings   mean °C    min °C    max °C       hPa       m/s"
        );
        for (name, month) in MONTHS.iter().zip(&self.months.0) {
            let _ = writeln!(
                text,
                "  {name:<8}{:>12}{:>10.1}{:>10.1}{:>10.1}{:>10.1}{:>10.1}",
                thousands(month.count),
                month.temperature_mean(),
                month.temperature_min(),
                month.temperature_max(),
                month.pressure_mean(),
                month.wind_mean()
            );
        }
        text.push_str(
            "\n  Next:\n    forebay serve                                   a broker on 127.0.0.1:5672\n    seq 1 1000 | forebay publish --queue hello      in another terminal\n    forebay consume --queue hello --count 10\n",
        );
        text
    }

    /// For machines.
    pub(super) fn json(&self) -> Value {
        let latency = |histogram: &Histogram<u64>| {
            json!({
                "p50_us": histogram.value_at_quantile(0.5),
                "p90_us": histogram.value_at_quantile(0.9),
                "p99_us": histogram.value_at_quantile(0.99),
                "max_us": histogram.max(),
            })
        };
        let months: Vec<Value> = MONTHS
            .iter()
            .zip(&self.months.0)
            .map(|(name, month)| {
                json!({
                    "month": name,
                    "readings": month.count,
                    "temperature_mean": month.temperature_mean(),
                    "temperature_min": month.temperature_min(),
                    "temperature_max": month.temperature_max(),
                    "pressure_mean": month.pressure_mean(),
                    "wind_mean": month.wind_mean(),
                })
            })
            .collect();
        let checks: Vec<Value> = self
            .checks
            .iter()
            .map(|check| json!({ "what": check.what, "holds": check.holds }))
            .collect();
        json!({
            "holds": self.holds(),
            "seconds": self.seconds,
            "published": self.published,
            "confirmed": self.confirmed,
            "consumed": self.consumed,
            "consumed_per_second": self.consumed as f64 / self.seconds.max(1e-3),
            "confirm": latency(&self.confirm),
            "end_to_end": latency(&self.end_to_end),
            "process_bytes_max": self.process_bytes_max,
            "months": months,
            "checks": checks,
            "failure": self.failure,
        })
    }
}
