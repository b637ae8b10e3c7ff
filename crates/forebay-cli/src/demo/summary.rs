//! What the demo says at its end: was everything carried, how fast, and what the weather is like.

use std::fmt::Write;
use std::path::PathBuf;

use forebay::pipeline::explain::Explanation;
use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::statistics::Month;
use crate::figures::{duration, megabytes, thousands};

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Length of a bar that is all of the time.
const BAR_COLUMNS: u64 = 24;

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
    /// Counted by SQLite.
    pub(super) stored: u64,
    /// Published again after a loss of the connection.
    pub(super) republished: u64,
    /// Delivered, and counted before.
    pub(super) duplicates: u64,
    pub(super) transactions: u64,
    /// Transactions that were tried again, and readings.
    pub(super) retried: u64,
    pub(super) confirm: Histogram<u64>,
    pub(super) end_to_end: Histogram<u64>,
    pub(super) process_bytes_max: u64,
    /// Where the time of some readings went.
    pub(super) explanation: Explanation,
    /// What makes the longest wait so long.
    pub(super) cause: Option<String>,
    /// Of all stations.
    pub(super) months: [Month; 12],
    /// The file, if it was kept.
    pub(super) database: Option<PathBuf>,
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
            "\n  {} readings a second over {:.1} s in {} transactions, at most {} of memory in all",
            thousands((self.stored as f64 / self.seconds.max(1e-3)) as u64),
            self.seconds,
            thousands(self.transactions),
            megabytes(self.process_bytes_max)
        );
        if self.republished + self.duplicates + self.retried > 0 {
            let _ = writeln!(
                text,
                "  {} published again, {} duplicates told apart, {} attempts repeated",
                thousands(self.republished),
                thousands(self.duplicates),
                thousands(self.retried)
            );
        }
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
        self.write_way(&mut text);
        let _ = writeln!(
            text,
            "\n  Seattle     readings   mean °C    min °C    max °C       hPa       m/s"
        );
        for (name, month) in MONTHS.iter().zip(&self.months) {
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
        if let Some(file) = &self.database {
            let _ = writeln!(
                text,
                "\n  The database is kept:\n    sqlite3 {} 'SELECT * FROM climate LIMIT 12'",
                file.display()
            );
        }
        text.push_str(
            "\n  Next:\n    forebay serve                                   a broker on 127.0.0.1:5672\n    seq 1 1000 | forebay publish --queue hello      in another terminal\n    forebay consume --queue hello --count 10\n",
        );
        text
    }

    /// Where the mean reading's time went, as bars.
    fn write_way(&self, text: &mut String) {
        let (messages, total_us) = (self.explanation.messages(), self.explanation.total_us());
        if messages == 0 {
            return;
        }
        let _ = writeln!(text, "\n  where a reading's time goes, on average");
        for share in self.explanation.shares() {
            let bar = (share.sum_us * BAR_COLUMNS).div_ceil(total_us.max(1)).min(BAR_COLUMNS);
            let _ = writeln!(
                text,
                "  {:<42}{:>9}  {}",
                share.segment.name(),
                duration(share.sum_us / messages),
                "▪".repeat(bar as usize)
            );
        }
        if let Some(cause) = &self.cause {
            let _ = writeln!(text, "  {cause}");
        }
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
            .zip(&self.months)
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
        let shares = self.explanation.shares().iter();
        let way: Vec<Value> = shares
            .map(|share| {
                let mean_us = share.sum_us / self.explanation.messages().max(1);
                json!({ "segment": share.segment.name(), "mean_us": mean_us, "max_us": share.max_us })
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
            "stored": self.stored,
            "stored_per_second": self.stored as f64 / self.seconds.max(1e-3),
            "republished": self.republished,
            "duplicates": self.duplicates,
            "transactions": self.transactions,
            "retried": self.retried,
            "confirm": latency(&self.confirm),
            "end_to_end": latency(&self.end_to_end),
            "way": way,
            "cause": self.cause,
            "process_bytes_max": self.process_bytes_max,
            "months": months,
            "database": self.database,
            "checks": checks,
            "failure": self.failure,
        })
    }
}
