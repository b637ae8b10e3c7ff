//! The live view: a block that is drawn over itself on a terminal, a line a second elsewhere.

use std::collections::VecDeque;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;

use super::broker::DemoBroker;
use super::gauges::{Gauges, histogram};
use crate::figures::{duration, megabytes, thousands};

/// Time between two drawings on a terminal.
const TERMINAL_INTERVAL: Duration = Duration::from_millis(250);
/// Time between two lines elsewhere.
const LINE_INTERVAL: Duration = Duration::from_secs(1);
/// Points of a sparkline.
const SPARKLINE_POINTS: usize = 24;
/// Bars of a sparkline, lowest first.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// One of the three counters over time.
#[derive(Debug, Default)]
struct Series {
    name: &'static str,
    total: u64,
    per_second: f64,
    /// At most `SPARKLINE_POINTS`.
    points: VecDeque<f64>,
}

impl Series {
    fn sample(&mut self, counter: &AtomicU64, seconds: f64) {
        let total = counter.load(Ordering::Relaxed);
        self.per_second = (total - self.total) as f64 / seconds.max(1e-3);
        self.total = total;
        if self.points.len() == SPARKLINE_POINTS {
            self.points.pop_front();
        }
        self.points.push_back(self.per_second);
    }

    fn sparkline(&self) -> String {
        let top = self.points.iter().copied().fold(1.0, f64::max);
        let bar = |point: &f64| BARS[((point / top * 7.0).round() as usize).min(7)];
        let drawn: String = self.points.iter().map(bar).collect();
        format!("{drawn:>SPARKLINE_POINTS$}")
    }
}

/// Draws the gauges, and keeps the histograms of the whole run.
#[derive(Debug)]
pub(super) struct View {
    /// Drawn over itself, or lines.
    terminal: bool,
    to_stderr: bool,
    lines_drawn: usize,
    sampled_us: u64,
    series: [Series; 3],
    recent_confirm: Histogram<u64>,
    recent_end_to_end: Histogram<u64>,
    pub(super) confirm: Histogram<u64>,
    pub(super) end_to_end: Histogram<u64>,
    /// What the loudest part of the run needed.
    pub(super) process_bytes_max: u64,
}

impl View {
    /// On standard output, or on standard error when that is kept free for JSON.
    pub(super) fn new(to_stderr: bool) -> View {
        let terminal =
            if to_stderr { io::stderr().is_terminal() } else { io::stdout().is_terminal() };
        let series = ["published", "confirmed", "stored"];
        View {
            terminal,
            to_stderr,
            lines_drawn: 0,
            sampled_us: 0,
            series: series.map(|name| Series { name, ..Series::default() }),
            recent_confirm: histogram(),
            recent_end_to_end: histogram(),
            confirm: histogram(),
            end_to_end: histogram(),
            process_bytes_max: 0,
        }
    }

    /// How long to wait before the next drawing.
    pub(super) fn interval(&self) -> Duration {
        if self.terminal { TERMINAL_INTERVAL } else { LINE_INTERVAL }
    }

    /// Takes a sample without drawing it, for the last moments of the run.
    pub(super) fn sample(&mut self, gauges: &Gauges) {
        let now_us = gauges.now_us();
        let seconds = (now_us - self.sampled_us) as f64 / 1e6;
        self.sampled_us = now_us;
        let counters = [&gauges.published, &gauges.confirmed, &gauges.stored];
        for (series, counter) in self.series.iter_mut().zip(counters) {
            series.sample(counter, seconds);
        }
        self.recent_confirm = gauges.confirm.take();
        self.recent_end_to_end = gauges.end_to_end.take();
        for (total, recent) in [
            (&mut self.confirm, &self.recent_confirm),
            (&mut self.end_to_end, &self.recent_end_to_end),
        ] {
            // Equal bounds: adding cannot fail.
            let _ = total.add(recent);
        }
        self.process_bytes_max = self.process_bytes_max.max(process_bytes().unwrap_or(0));
    }

    /// Samples and draws.
    pub(super) fn draw(&mut self, gauges: &Gauges, broker: &DemoBroker) {
        self.sample(gauges);
        let text = if self.terminal { self.block(gauges, broker) } else { self.line(gauges) };
        // A view that cannot be drawn is no reason to stop the work.
        let _ = if self.to_stderr {
            io::stderr().write_all(text.as_bytes())
        } else {
            io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush())
        };
    }

    /// A line on standard error, which stays: a block is drawn anew below it.
    pub(super) fn say(&mut self, line: &str) {
        say!("{line}");
        self.lines_drawn = 0;
    }

    fn block(&mut self, gauges: &Gauges, broker: &DemoBroker) -> String {
        let mut lines = vec![format!("  {:<12}{:>9}{:>27}{:>14}", "", "a second", "", "in all")];
        for series in &self.series {
            lines.push(format!(
                "  {:<12}{:>9}   \x1b[36m{}\x1b[0m{:>14}",
                series.name,
                thousands(series.per_second as u64),
                series.sparkline(),
                thousands(series.total)
            ));
        }
        for (name, recent) in
            [("confirm", &self.recent_confirm), ("end to end", &self.recent_end_to_end)]
        {
            lines.push(format!(
                "  {:<12}p50 {:>9}   p99 {:>9}",
                name,
                duration(recent.value_at_quantile(0.5)),
                duration(recent.value_at_quantile(0.99))
            ));
        }
        lines.push(format!("  {:<12}{}", "queues", broker.queues(gauges)));
        lines.push(format!("  {:<12}{}", "SQLite", transactions(gauges)));
        lines.push(format!("  {:<12}{}", "memory", memory(broker)));
        lines.push(format!(
            "  {:<12}{:.0} s   (Ctrl-C ends it and still counts)",
            "elapsed",
            gauges.now_us() as f64 / 1e6
        ));
        let mut text = String::new();
        if self.lines_drawn > 0 {
            text.push_str(&format!("\x1b[{}A", self.lines_drawn));
        }
        for line in &lines {
            text.push_str("\x1b[2K");
            text.push_str(line);
            text.push('\n');
        }
        self.lines_drawn = lines.len();
        text
    }

    fn line(&self, gauges: &Gauges) -> String {
        let [published, confirmed, stored] = &self.series;
        format!(
            "{:3.0} s  published {}/s  confirmed {}/s  stored {}/s  confirm p50 {} p99 {}  end to end p50 {} p99 {}  under way {}\n",
            gauges.now_us() as f64 / 1e6,
            thousands(published.per_second as u64),
            thousands(confirmed.per_second as u64),
            thousands(stored.per_second as u64),
            duration(self.recent_confirm.value_at_quantile(0.5)),
            duration(self.recent_confirm.value_at_quantile(0.99)),
            duration(self.recent_end_to_end.value_at_quantile(0.5)),
            duration(self.recent_end_to_end.value_at_quantile(0.99)),
            thousands(gauges.under_way()),
        )
    }
}

fn transactions(gauges: &Gauges) -> String {
    let transactions = gauges.transactions.load(Ordering::Relaxed);
    let stored = gauges.stored.load(Ordering::Relaxed);
    let each = stored.checked_div(transactions).unwrap_or(0);
    let text =
        format!("{} transactions, {} readings each", thousands(transactions), thousands(each));
    match gauges.duplicates.load(Ordering::Relaxed) {
        0 => text,
        duplicates => format!("{text}, {} duplicates", thousands(duplicates)),
    }
}

fn memory(broker: &DemoBroker) -> String {
    let process = process_bytes().map_or("unknown".to_owned(), megabytes);
    match broker.message_bytes() {
        Some(bytes) => format!("{} of messages, {process} the whole process", megabytes(bytes)),
        None => format!("{process} this process, without the broker"),
    }
}

/// Resident memory of this process, where the system tells it.
fn process_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_block_fits_eighty_columns() {
        let gauges = Gauges::new();
        for counter in [&gauges.published, &gauges.confirmed, &gauges.stored] {
            counter.store(98_765_432_100, Ordering::Relaxed);
        }
        let mut view = View::new(true);
        view.sample(&gauges);
        let broker = DemoBroker::other("amqp://somewhere");
        for line in view.block(&gauges, &broker).lines() {
            let visible =
                line.replace("\x1b[36m", "").replace("\x1b[0m", "").replace("\x1b[2K", "");
            assert!(visible.chars().count() <= 80, "{visible}");
        }
    }
}
