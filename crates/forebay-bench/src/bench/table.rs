//! Figures for people.

use std::fmt::Write;

use super::conclusion::conclusion;
use super::grid::Setting;
use super::points::{Judgement, Point, Points};
use super::record::Record;
use super::workload::WORKLOADS;
use crate::experiment::{EXPERIMENTS, Found};
use crate::report::{LatencyReport, Report, not_arrived};
use crate::spread::{Ratio, median};
use crate::stamp::STAMP_BYTES;

/// The workloads that have names, one paragraph each.
pub fn list() -> String {
    let mut text = String::new();
    let loads = WORKLOADS.iter().map(|load| (load.name, load.about, load.look_at));
    let experiments = EXPERIMENTS.iter().map(|each| (each.name, each.about, each.look_at));
    for (name, about, look_at) in loads.chain(experiments) {
        let _ = writeln!(text, "{name:<11} {about}");
        let _ = writeln!(text, "{:<11} look at: {look_at}", "");
    }
    text.push_str(
        "\nWithout a name, flags say what to run: forebay bench run --producers 10 --consumers 5 --size 200\n",
    );
    text
}

/// One table a broker and phase; of an experiment, one a broker.
pub fn table(record: &Record) -> String {
    let mut text: String = record.found.iter().map(Found::text).collect();
    for points in Points::of(record) {
        let phase =
            if points.phase.is_empty() { String::new() } else { format!(", {}", points.phase) };
        let _ = writeln!(text, "\n{} on {}{phase}", record.workload, points.broker);
        let from = if points.intended { "when they were due" } else { "the call" };
        let _ =
            writeln!(text, "latencies in milliseconds, from {from}; rates in messages a second");
        let _ = writeln!(text, "\n  {HEAD}");
        let knee = points.knee();
        for point in &points.points {
            let mark = if knee == Some(point.setting) { " knee" } else { "" };
            let _ = writeln!(text, "  {}{mark}", row(point, points.intended));
        }
        if let Some(judgement) = points.judge() {
            let _ = writeln!(text, "\n  {}", judged(&judgement));
        }
        if let Some(conclusion) = conclusion(&points) {
            let _ = writeln!(text, "\n  {}", conclusion.join("\n  "));
        }
        for line in remarks(&points, points.intended) {
            let _ = writeln!(text, "  {line}");
        }
    }
    text
}

const HEAD: &str = " window prefetch   ack | published consumed |    p50     p90     p99   p99.9     max | \
confirm p50   p99 | vary fair | broker:cores us/msg    MB | generator";

fn row(point: &Point<'_>, intended: bool) -> String {
    let Setting { window, prefetch, ack_every } = point.setting;
    let ack = if ack_every == 0 { "auto".to_owned() } else { ack_every.to_string() };
    let name = format!("{window:>7} {prefetch:>8} {ack:>5}");
    if point.reports.is_empty() {
        let why = point.failures.first().copied().unwrap_or("it was not measured");
        return format!("{name} | FAILED: {why}");
    }
    let of = |what: &dyn Fn(&Report) -> f64| point.median(what).unwrap_or(0.0);
    let known = |what: fn(&Report) -> Option<f64>| {
        let values: Vec<f64> = point.reports.iter().filter_map(|report| what(report)).collect();
        median(&values)
    };
    let ms = |us: f64| {
        let ms = us / 1e3;
        if ms < 100.0 { format!("{ms:.2}") } else { format!("{ms:.0}") }
    };
    // Of runs that timed nothing there is nothing to say.
    let timed = |of: &dyn Fn(&Report) -> LatencyReport, what: fn(&LatencyReport) -> u64| {
        let all = point.reports.iter().map(|report| of(report)).filter(|timed| timed.count > 0);
        let values: Vec<f64> = all.map(|timed| what(&timed) as f64).collect();
        median(&values).map_or("-".to_owned(), ms)
    };
    let latency = |what| timed(&|report| report.latency(intended), what);
    let confirm = |what| {
        let confirms = |report: &Report| match intended {
            true => report.confirm,
            false => report.confirm_from_call,
        };
        timed(&confirms, what)
    };
    let or_dash = |value: Option<f64>, digits: usize| {
        value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
    };
    format!(
        "{name} | {:>9.0} {:>8.0} | {:>6} {:>7} {:>7} {:>7} {:>7} | {:>11} {:>5} | {:>4} {:.2} | {:>12} {:>6} {:>5} | {:>9.2}{}",
        of(&|report| report.published_per_s),
        of(&|report| report.consumed_per_s),
        latency(|latency| latency.p50_us),
        latency(|latency| latency.p90_us),
        latency(|latency| latency.p99_us),
        latency(|latency| latency.p999_us),
        latency(|latency| latency.max_us),
        confirm(|latency| latency.p50_us),
        confirm(|latency| latency.p99_us),
        known(Report::varies).map_or("-".to_owned(), |varies| format!("{:.0}%", varies * 100.0)),
        of(&|report| report.fairness),
        or_dash(known(|report| report.broker_cores), 2),
        or_dash(known(|report| report.broker_cpu_us_per_message), 2),
        or_dash(known(|report| report.broker_bytes_max.map(|bytes| bytes as f64 / 1e6)), 0),
        of(&|report| report.generator_cores),
        point.failed().map_or(String::new(), |failed| format!(" ({failed})")),
    )
}

pub(crate) fn judged(judgement: &Judgement) -> String {
    let knee = judgement.knee;
    let p99 = judgement.p99.as_ref().map(|p99| {
        format!(
            ", p99 {} that of the knee (window {}, prefetch {})",
            times(p99),
            knee.window,
            knee.prefetch
        )
    });
    format!(
        "tuned by itself: {} of the best rate (window {}, prefetch {}){}",
        percent(&judgement.rate),
        judgement.best.window,
        judgement.best.prefetch,
        p99.unwrap_or_default(),
    ) + &judgement.failed.iter().map(|failed| format!("; {failed}")).collect::<String>()
}

fn percent(ratio: &Ratio) -> String {
    let value = ratio.value * 100.0;
    match ratio.interval {
        Some((low, high)) => {
            format!("{value:.0} % (95 %: {:.0} to {:.0})", low * 100.0, high * 100.0)
        }
        None => format!("{value:.0} %"),
    }
}

fn times(ratio: &Ratio) -> String {
    match ratio.interval {
        Some((low, high)) => format!("{:.2} x (95 %: {low:.2} to {high:.2})", ratio.value),
        None => format!("{:.2} x", ratio.value),
    }
}

/// Of the runs that timed something, as in the row of the table.
fn medians(point: &Point<'_>, intended: bool) -> Option<LatencyReport> {
    let timed = || point.reports.iter().map(|report| report.latency(intended));
    let of = |what: fn(&LatencyReport) -> u64| {
        let values: Vec<f64> =
            timed().filter(|each| each.count > 0).map(|each| what(&each) as f64).collect();
        median(&values).map(|value| value as u64)
    };
    Some(LatencyReport {
        count: timed().map(|each| each.count).sum(),
        p50_us: of(|each| each.p50_us)?,
        p90_us: of(|each| each.p90_us)?,
        p99_us: of(|each| each.p99_us)?,
        p999_us: of(|each| each.p999_us)?,
        max_us: of(|each| each.max_us)?,
    })
}

/// What else there is to say about a broker and phase, where latencies are shown from when messages were due, `intended`,
/// or from the call; a sentence each.
pub(crate) fn remarks(points: &Points<'_>, intended: bool) -> Vec<String> {
    let mut lines = Vec::new();
    let reports = || points.points.iter().flat_map(|point| point.reports.iter().copied());
    let mut say = |line: String| lines.push(line);
    if let Some(capacity_per_s) = points.capacity_per_s {
        let whose = match points.capacity_of_generator {
            true => "; the generator was the bottleneck, and the broker's is above",
            false => "",
        };
        say(format!("capacity {capacity_per_s:.0}/s: the same shape, as fast as it goes{whose}"));
    }
    // The other latency, so that both are told.
    for point in points.points.iter().filter(|_| points.is_paced()) {
        let other = if intended { "from the call" } else { "from when they were due" };
        if let Some(latency) = medians(point, !intended) {
            say(format!("{}: {other} {latency}", points.called(point)));
        }
    }
    if reports().any(Report::generator_was_the_bottleneck) {
        say("the generator used up its core: rates are its own, not the broker's".into());
    } else if reports().any(Report::generator_was_crowded) {
        let waited: Vec<f64> = reports().map(|report| report.generator_waited).collect();
        say(format!(
            "the generator waited for a core {:.0} % of the time: the machine was full, and latencies may be its own",
            median(&waited).unwrap_or(0.0) * 100.0
        ));
    }
    if points.all_carried() {
        say("every setting carried the load: rates say nothing here, latencies do".into());
    }
    let untimed = |report: &Report| report.plan.size < STAMP_BYTES && report.consumed_per_s > 0.0;
    if reports().any(untimed) {
        say(format!(
            "bodies of fewer than {STAMP_BYTES} bytes have no room for the time at which they left: latencies of messages are missing"
        ));
    }
    for point in &points.points {
        if let Some(open) = not_arrived(point.median(Report::seconds_open).unwrap_or(0.0)) {
            say(format!("{}: at the end {open}, and is in no latency", points.called(point)));
        }
        if let Some(cut) = point.reports.iter().find_map(|report| report.cut_short()) {
            say(format!("{}: {cut}", points.called(point)));
        }
    }
    for (count, what) in [
        (reports().map(|report| report.rejected).sum::<u64>(), "messages were rejected"),
        (
            reports().map(|report| report.returned).sum(),
            "messages were returned: no queue took them, and a broker confirms those sooner than others",
        ),
        (reports().map(|report| report.blocked).sum(), "times connection.blocked came"),
        (reports().map(|report| report.redelivered).sum(), "messages were redelivered"),
        (
            reports().map(|report| report.strange).sum(),
            "messages were of another run, and not timed",
        ),
    ] {
        if count > 0 {
            say(format!("{count} {what}"));
        }
    }
    for point in &points.points {
        for why in &point.failures {
            say(format!("{}: FAILED: {why}", points.called(point)));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::record::{Outcome, Run};
    use crate::occasion::Occasion;
    use crate::plan::Plan;
    use crate::setting::{Credit, Window};

    #[test]
    fn a_capacity_that_is_the_generators_is_not_told_as_the_brokers() {
        let mut record = Record::new(Occasion::default(), "stress-1", "");
        record.runs.push(Run {
            broker: "B".into(),
            phase: String::new(),
            setting: Setting::of(&Plan::default()),
            repetition: 0,
            capacity_per_s: Some(60_000.0),
            outcome: Outcome::Report(Report::default()),
        });
        assert!(!table(&record).contains("bottleneck"));
        record.capacity_of_generator.push("B".into());
        let text = table(&record);
        assert!(text.contains("capacity 60000/s") && text.contains("was the bottleneck"), "{text}");
    }

    #[test]
    fn bodies_without_room_for_a_time_are_told_of() {
        let mut record = Record::new(Occasion::default(), "free", "");
        let plan = Plan { size: 15, ..Plan::default() };
        let report = Report { plan, consumed_per_s: 9.0, ..Report::default() };
        record.runs.push(Run::measured("B", report.clone()));
        assert!(table(&record).contains("fewer than 16 bytes"), "{}", table(&record));
        let plan = Plan { size: 16, ..report.plan.clone() };
        record.runs = vec![Run::measured("B", Report { plan, ..report })];
        assert!(!table(&record).contains("fewer than"), "{}", table(&record));
    }

    #[test]
    fn what_is_said_of_a_setting_is_of_all_its_runs_and_of_no_other_setting() {
        let mut record = Record::new(Occasion::default(), "free", "");
        for (prefetch, call_ms) in [(10, 1), (10, 3), (10, 4), (500, 9)] {
            let plan =
                Plan { window: Window::Auto, prefetch: Credit::Fixed(prefetch), ..Plan::default() };
            let latency = |p99_us| LatencyReport { count: 1, p99_us, ..LatencyReport::default() };
            let report = Report {
                target_per_s: Some(100.0),
                published_per_s: 100.0,
                consumed_per_s: 100.0,
                end_to_end: latency(10_000),
                end_to_end_from_call: latency(call_ms * 1_000),
                plan,
                ..Report::default()
            };
            record.runs.push(Run::measured("B", report));
        }
        let text = table(&record);
        for told in [
            "window auto, prefetch 10: from the call p50 0.00 p99 3.00 ",
            "window auto, prefetch 500: from the call p50 0.00 p99 9.00 ",
        ] {
            assert!(text.contains(told), "{told} in {text}");
        }
    }
}
