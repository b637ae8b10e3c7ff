//! Two records side by side: what changed between two days, two versions, or two brokers.

use std::fmt::Write;

use serde::Serialize;
use serde_json::Value;

use super::grid::Setting;
use super::points::{Point, Points};
use super::record::Record;
use crate::experiment::{Found, Row, number};
use crate::plan::Plan;
use crate::report::Report;
use crate::spread::{Ratio, median};

/// Fewer runs are too few to say that a difference is none of chance.
const STAR_RUNS_MIN: usize = 5;
/// What may differ between two runs of the same load: where it went, and what a line of the comparison names.
const SAME_LOAD: [&str; 6] =
    ["broker_pid", "queue_prefix", "queue_type", "window", "prefetch", "ack_every"];

/// One line for each setting, or figure of an experiment, that both records measured; `Err` if there is none.
pub fn compare(a: &Record, b: &Record) -> Result<String, String> {
    let (all_a, all_b) = (Points::of(a), Points::of(b));
    let mut text = String::new();
    for (name, record) in [("A", a), ("B", b)] {
        let occasion = &record.occasion;
        let _ = writeln!(
            text,
            "{name}: {} on {}, {}, {}",
            record.workload, occasion.broker, occasion.date, occasion.build
        );
    }
    if a.workload != b.workload {
        let _ = writeln!(text, "these are different workloads: ratios say nothing about brokers");
    }
    if !a.occasion.machine.is_like(&b.occasion.machine) {
        let _ = writeln!(text, "A and B were measured on different machines");
    }
    if !a.found.is_empty() && !b.found.is_empty() {
        if let Some(asked) = different_fields(a.asked.as_ref(), b.asked.as_ref()) {
            let _ = writeln!(text, "what they were asked differs: {asked}");
        }
        return compare_found(&a.found, &b.found).map(|lines| text + &lines);
    }
    let _ = writeln!(text, "\n{HEAD}");
    let mut pairs = 0;
    let (names_a, names_b) = (names(&all_a), names(&all_b));
    for (at, points_a) in all_a.iter().enumerate() {
        let Some(other) = partner(at, &names_a, &names_b) else { continue };
        let points_b = &all_b[other];
        let _ = writeln!(text, "{}: {}", both(points_a, points_b), basis(points_a, points_b));
        if let Some(loads) = different_loads(points_a, points_b) {
            let _ = writeln!(text, "{}: the loads differ: {loads}", points_a.broker);
        }
        for point_a in &points_a.points {
            let Some(point_b) = points_b.with(point_a.setting) else { continue };
            let line = match line(points_a, point_a, point_b, intended(points_a, points_b)) {
                Some(line) => {
                    pairs += 1;
                    line
                }
                None => named(points_a, point_a),
            };
            let _ = writeln!(text, "{line}{}", failed(point_a, point_b));
        }
        for (name, here, there) in [("A", points_a, points_b), ("B", points_b, points_a)] {
            for point in here.points.iter().filter(|point| there.with(point.setting).is_none()) {
                let _ = writeln!(text, "{} only in {name}", named(here, point));
            }
        }
    }
    for (name, all, here, there) in
        [("A", &all_a, &names_a, &names_b), ("B", &all_b, &names_b, &names_a)]
    {
        for at in (0..all.len()).filter(|&at| partner(at, here, there).is_none()) {
            let _ = writeln!(text, "{}: only in {name}", all[at].name());
        }
    }
    match pairs {
        0 => Err("the two files have no setting in common that both measured".into()),
        _ => Ok(text),
    }
}

fn names<'a>(all: &[Points<'a>]) -> Vec<Name<'a>> {
    all.iter().map(|points| (points.phase, points.broker)).collect()
}

/// What the two are called.
fn both(a: &Points<'_>, b: &Points<'_>) -> String {
    if a.broker == b.broker { a.name() } else { format!("{}, and in B {}", a.name(), b.broker) }
}

/// Where both latencies count from: if one side carried what was asked for, a side that did not is late, and that is what
/// is to be seen. A load that nobody carries is late by definition.
fn intended(a: &Points<'_>, b: &Points<'_>) -> bool {
    a.intended || b.intended
}

/// The same for people.
fn basis(a: &Points<'_>, b: &Points<'_>) -> String {
    if !intended(a, b) {
        return "latencies from the call".to_owned();
    }
    let told = |name: &str, points: &Points<'_>| match (points.is_paced(), points.intended) {
        (false, _) => format!("; {name} has no such times: its latencies are from the call"),
        (true, false) => format!("; {name} did not carry the load: the longer it runs, the later"),
        (true, true) => String::new(),
    };
    format!("latencies from when messages were due{}{}", told("A", a), told("B", b))
}

/// What two loads differ in beside the setting, the addresses and the names: `size 100, 10000; rate 50.0, 48.0`.
fn different_loads(a: &Points<'_>, b: &Points<'_>) -> Option<String> {
    fn of<'a>(points: &Points<'a>) -> Option<&'a Plan> {
        points.points.iter().find_map(|point| point.reports.first()).map(|report| &report.plan)
    }
    different_fields(of(a), of(b))
}

/// `None` if nothing differs, or one of them is not known.
fn different_fields<T: Serialize>(a: Option<&T>, b: Option<&T>) -> Option<String> {
    let fields = |of: Option<&T>| match serde_json::to_value(of?).ok()? {
        Value::Object(fields) => Some(fields),
        _ => None,
    };
    let (a, b) = (fields(a)?, fields(b)?);
    let differs = |(name, value): (&String, &Value)| {
        let other = b.get(name).unwrap_or(&Value::Null);
        let told = !SAME_LOAD.contains(&&name[..]) && value != other;
        told.then(|| format!("{name} {value}, {other}"))
    };
    let all: Vec<String> = a.iter().filter_map(differs).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// One line for each figure that both have.
fn compare_found<'a>(all_a: &'a [Found], all_b: &'a [Found]) -> Result<String, String> {
    let mut text = String::new();
    let mut pairs = 0;
    let names = |all: &'a [Found]| -> Vec<Name<'a>> {
        all.iter().map(|found| ("", &*found.broker)).collect()
    };
    let (names_a, names_b) = (names(all_a), names(all_b));
    for (at, found_a) in all_a.iter().enumerate() {
        let Some(other) = partner(at, &names_a, &names_b) else { continue };
        let found_b = &all_b[other];
        let rows_b = found_b.rows();
        let name = match found_a.broker == found_b.broker {
            true => found_a.broker.clone(),
            false => format!("{}, and in B {}", found_a.broker, found_b.broker),
        };
        let _ = writeln!(text, "\n{name:<44} |        A         B  B/A (95 %)");
        for row in found_a.rows() {
            let same = |other: &&Row<'_>| (other.case, other.figure) == (row.case, row.figure);
            let Some(other) = rows_b.iter().find(same) else { continue };
            let (Some(a), Some(b)) = (median(&row.values), median(&other.values)) else { continue };
            pairs += 1;
            let whole = found_a.answers.iter().chain(&found_b.answers).all(Result::is_ok);
            let runs = if whole { fewer(&other.values, &row.values) } else { 0 };
            let _ = writeln!(
                text,
                "{:<28}  {:<14} | {:>8}  {:>8}  {:<21} {}",
                row.case,
                row.figure,
                number(a),
                number(b),
                told(Ratio::of(&other.values, &row.values, 1), runs),
                row.unit,
            );
        }
        let failed = |found: &Found| {
            let failed = found.answers.iter().filter(|answer| answer.is_err()).count();
            (failed, found.answers.len())
        };
        let ((failed_a, all_a), (failed_b, all_b)) = (failed(found_a), failed(found_b));
        if failed_a + failed_b > 0 {
            let _ = writeln!(
                text,
                "failed, and in no figure: A {failed_a} of {all_a} runs, B {failed_b} of {all_b}"
            );
        }
        let ((met_a, of_a), (met_b, of_b)) = (found_a.demands_met(), found_b.demands_met());
        if of_a + of_b > 0 {
            let _ =
                writeln!(text, "met of what is asked: A {met_a} of {of_a}, B {met_b} of {of_b}");
        }
    }
    for (name, all, here, there) in
        [("A", all_a, &names_a, &names_b), ("B", all_b, &names_b, &names_a)]
    {
        for at in (0..all.len()).filter(|&at| partner(at, here, there).is_none()) {
            let _ = writeln!(text, "{}: only in {name}", all[at].broker);
        }
    }
    match pairs {
        0 => Err("the two files have no figure in common that both measured".into()),
        _ => Ok(text),
    }
}

const HEAD: &str = "\
broker, phase                window prefetch |   rate A    rate B  B/A (95 %)             |    p99 A    p99 B ms  B/A (95 %)";

/// A phase and a broker.
type Name<'a> = (&'a str, &'a str);

/// Who there is compared with number `at` here: whoever is called alike, or if it is the only one here without a namesake the
/// only one there, as of a broker whose version is another.
fn partner(at: usize, here: &[Name<'_>], there: &[Name<'_>]) -> Option<usize> {
    let name = here[at];
    let only = |all: &[Name<'_>], others: &[Name<'_>]| {
        let unknown = |other: &Name<'_>| other.0 == name.0 && !others.contains(other);
        let mut unknown = (0..all.len()).filter(|&index| unknown(&all[index]));
        unknown.next().filter(|_| unknown.next().is_none())
    };
    let namesake = there.iter().position(|other| *other == name);
    namesake.or_else(|| only(here, there).and_then(|_| only(there, here)))
}

/// What failed on either side, and is in no figure of a line.
fn failed(a: &Point<'_>, b: &Point<'_>) -> String {
    let told = |name: &str, point: &Point<'_>| Some(format!("{name}: {}", point.failed()?));
    let told: Vec<String> = [told("A", a), told("B", b)].into_iter().flatten().collect();
    if told.is_empty() { String::new() } else { format!("  {}", told.join(", ")) }
}

/// How a line begins.
fn named(points: &Points<'_>, point: &Point<'_>) -> String {
    let Setting { window, prefetch, ack_every } = point.setting;
    let ack = if ack_every == 0 { String::new() } else { format!(", ack {ack_every}") };
    format!("{:<27} {window:>7} {prefetch:>8}{ack} |", points.name())
}

fn line(points: &Points<'_>, a: &Point<'_>, b: &Point<'_>, intended: bool) -> Option<String> {
    let each = |point: &Point<'_>, of: &dyn Fn(&Report) -> f64| -> Vec<f64> {
        point.reports.iter().map(|report| of(report)).collect()
    };
    let (rate_a, rate_b) = (each(a, &Report::rate_per_s), each(b, &Report::rate_per_s));
    let (p99_a, p99_b) = (a.p99_us(intended), b.p99_us(intended));
    let ms = |us: &[f64]| median(us).map_or("-".to_owned(), |us| format!("{:.2}", us / 1e3));
    // What is left when some have failed may be the quicker ones.
    let whole = a.failures.is_empty() && b.failures.is_empty();
    let runs = if whole { fewer(&rate_a, &rate_b) } else { 0 };
    let timed = if whole { fewer(&p99_a, &p99_b) } else { 0 };
    // Whoever carries all that was asked for has the rate that was asked for.
    let tied = [a, b].iter().all(|point| point.reports.iter().all(|report| report.carried()));
    let name = named(points, a);
    Some(format!(
        "{name} {:>8.0}  {:>8.0}  {:<21} | {:>8} {:>8}     {}",
        median(&rate_a)?,
        median(&rate_b)?,
        told(Ratio::of(&rate_b, &rate_a, 1), if tied { 0 } else { runs }),
        ms(&p99_a),
        ms(&p99_b),
        told(Ratio::of(&p99_b, &p99_a, 1), timed),
    ))
}

fn fewer(a: &[f64], b: &[f64]) -> usize {
    a.len().min(b.len())
}

/// With a star if chance does not explain it: the interval of so few runs as three is hardly more than their range, so
/// that one comparison in ten of nothing with nothing would have one (one in 27 with five).
fn told(ratio: Option<Ratio>, runs: usize) -> String {
    match ratio {
        None => "-".to_owned(),
        Some(Ratio { value, interval: None }) => format!("{value:.2}"),
        Some(Ratio { value, interval: Some((low, high)) }) => {
            let sure = runs >= STAR_RUNS_MIN && (low > 1.0 || high < 1.0);
            let sure = if sure { "*" } else { "" };
            format!("{value:.2} ({low:.2} to {high:.2}){sure}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::record::{Asked, Outcome, Run};
    use crate::experiment::{Case, Demand, Findings};
    use crate::occasion::Occasion;
    use crate::report::LatencyReport;
    use crate::setting::Window;

    fn record(broker: &str, window: Window, rates: &[f64]) -> Record {
        let mut record = Record::new(Occasion::default(), "free", "");
        let plan = Plan { window, ..Plan::default() };
        for (repetition, &rate) in rates.iter().enumerate() {
            let report = Report { consumed_per_s: rate, plan: plan.clone(), ..Report::default() };
            record.runs.push(Run { repetition, ..Run::measured(broker, report) });
        }
        record
    }

    #[test]
    fn one_broker_each_is_compared_whatever_it_is_called() {
        let a = record("RabbitMQ", Window::Auto, &[100.0, 101.0, 99.0, 100.0, 100.0]);
        let b = record("Forebay", Window::Auto, &[200.0, 201.0, 199.0, 200.0, 200.0]);
        let text = compare(&a, &b).unwrap();
        assert!(text.contains("2.00 (1.98 to 2.02)*"), "{text}");
    }

    #[test]
    fn another_version_is_compared_though_others_were_measured_beside_it() {
        let beside = |version: &str, rate: f64| {
            let mut all = record(version, Window::Auto, &[rate]);
            all.runs.extend(record("RabbitMQ 3 classic", Window::Auto, &[50.0]).runs);
            all
        };
        let text = compare(&beside("Forebay 1", 100.0), &beside("Forebay 2", 300.0)).unwrap();
        assert!(
            text.contains("Forebay 1, and in B Forebay 2: ") && text.contains("3.00"),
            "{text}"
        );
        assert!(text.contains("1.00") && !text.contains("only in"), "{text}");
        let mut more = beside("Forebay 2", 300.0);
        more.runs.extend(record("Forebay 3", Window::Auto, &[400.0]).runs);
        let text = compare(&beside("Forebay 1", 100.0), &more).unwrap();
        assert!(text.contains("Forebay 1: only in A"), "which of the two is not known: {text}");
    }

    #[test]
    fn a_difference_that_may_be_chance_has_no_star() {
        let a = record("X", Window::Auto, &[90.0, 100.0, 110.0]);
        let b = record("X", Window::Auto, &[95.0, 102.0, 108.0]);
        let text = compare(&a, &b).unwrap();
        assert!(text.contains("1.02 (") && !text.contains(")*"), "{text}");
    }

    #[test]
    fn three_runs_are_too_few_for_a_star() {
        let a = record("X", Window::Auto, &[100.0, 101.0, 99.0]);
        let b = record("X", Window::Auto, &[200.0, 201.0, 199.0]);
        let text = compare(&a, &b).unwrap();
        assert!(text.contains("2.00 (1.97 to 2.03) "), "{text}");
    }

    #[test]
    fn loads_that_differ_are_told_and_rates_that_were_asked_for_are_no_difference() {
        let asked = |size: usize, rate: f64| {
            let mut record = record("X", Window::Auto, &[rate; 5]);
            for run in &mut record.runs {
                let Outcome::Report(report) = &mut run.outcome else { continue };
                (report.plan.size, report.plan.rate) = (size, rate);
                (report.published_per_s, report.target_per_s) = (rate, Some(rate));
            }
            record
        };
        let text = compare(&asked(100, 50.0), &asked(100, 48.0)).unwrap();
        assert!(text.contains("rate 50.0, 48.0") && !text.contains("size"), "{text}");
        assert!(text.contains("0.96 (0.96 to 0.96) "), "{text}");
        let text = compare(&asked(100, 50.0), &asked(200, 50.0)).unwrap();
        assert!(text.contains("the loads differ: size 100, 200"), "{text}");
    }

    #[test]
    fn who_did_not_carry_the_load_is_late_beside_who_did() {
        let paced = |carried: f64| {
            let mut record = record("X", Window::Auto, &[100.0; 5]);
            for run in &mut record.runs {
                let Outcome::Report(report) = &mut run.outcome else { continue };
                report.plan.rate = 100.0;
                (report.published_per_s, report.consumed_per_s) = (carried, carried);
                report.target_per_s = Some(100.0);
                let late_us = if carried < 100.0 { 5_000_000 } else { 3_000 };
                report.end_to_end =
                    LatencyReport { count: 1, p99_us: late_us, ..LatencyReport::default() };
                report.end_to_end_from_call =
                    LatencyReport { count: 1, p99_us: 2_000, ..LatencyReport::default() };
            }
            record
        };
        for (a, b, p99_ms) in [(100.0, 50.0, "3.00  5000.00"), (50.0, 100.0, "5000.00     3.00")] {
            let text = compare(&paced(a), &paced(b)).unwrap();
            assert!(text.contains("when messages were due") && text.contains(p99_ms), "{text}");
            assert!(text.contains("did not carry the load"), "{text}");
        }
        let text = compare(&paced(50.0), &paced(50.0)).unwrap();
        assert!(text.contains("X: latencies from the call\n"), "{text}");
        let free = record("X", Window::Auto, &[100.0; 5]);
        let text = compare(&paced(100.0), &free).unwrap();
        assert!(text.contains("B has no such times"), "{text}");
    }

    #[test]
    fn messages_that_were_not_timed_have_no_latency() {
        let a = record("X", Window::Auto, &[100.0]);
        let text = compare(&a, &a).unwrap();
        assert!(text.contains("|        -        -     -"), "{text}");
    }

    #[test]
    fn links_that_differ_are_told() {
        let over = |rtt_ms: f64| {
            let mut record = record("X", Window::Auto, &[100.0; 5]);
            for run in &mut record.runs {
                let Outcome::Report(report) = &mut run.outcome else { continue };
                report.plan.rtt_ms = Some(rtt_ms);
            }
            record
        };
        let text = compare(&over(1.0), &over(100.0)).unwrap();
        assert!(text.contains("the loads differ: rtt_ms 1.0, 100.0"), "{text}");
    }

    #[test]
    fn what_failed_is_told_and_leaves_no_star() {
        let a = record("X", Window::Auto, &[100.0, 101.0, 99.0, 100.0, 100.0]);
        let mut b = record("X", Window::Auto, &[200.0, 201.0, 199.0, 200.0, 200.0, 0.0]);
        b.runs[5].outcome = Outcome::Failed("it hung up".into());
        let text = compare(&a, &b).unwrap();
        assert!(text.contains("2.00 (") && !text.contains(")*"), "{text}");
        assert!(text.contains("B: 1 of 6 runs failed") && !text.contains("A: 0"), "{text}");
    }

    #[test]
    fn what_only_one_file_has_is_named() {
        let mut a = record("X", Window::Auto, &[100.0]);
        a.runs.extend(record("X", Window::Fixed(8), &[100.0]).runs);
        let mut b = record("X", Window::Auto, &[100.0]);
        b.runs.extend(record("X", Window::Fixed(64), &[100.0]).runs);
        let text = compare(&a, &b).unwrap();
        let only = |window: &str| text.lines().find(|line| line.contains(window)).unwrap();
        assert!(
            only(" 8 ").ends_with("only in A") && only(" 64 ").ends_with("only in B"),
            "{text}"
        );
        b.runs.extend(record("Y", Window::Auto, &[100.0]).runs);
        let text = compare(&a, &b).unwrap();
        assert!(text.contains("Y: only in B"), "{text}");
    }

    #[test]
    fn experiments_are_compared_figure_by_figure() {
        let record = |broker: &str, per_s: [f64; 5], limit: f64| {
            let answer = |per_s: f64| {
                Ok(Findings {
                    cases: vec![
                        Case::new("declare").with("done", per_s, "/s"),
                        Case::new(broker).with("alone", 1.0, "s"),
                    ],
                    demands: vec![Demand::at_least("declared", per_s, limit, "/s")],
                    ..Findings::default()
                })
            };
            let found = Found { broker: broker.into(), answers: per_s.map(answer).into() };
            let mut record = Record::new(Occasion::default(), "churn", "");
            record.found.push(found);
            record
        };
        let mut a = record("X", [100.0, 101.0, 99.0, 100.0, 100.0], 0.0);
        let mut b = record("Y", [50.0, 51.0, 49.0, 50.0, 50.0], 50.0);
        let text = compare(&a, &b).unwrap();
        assert!(!text.contains("asked differs"), "{text}");
        a.asked = Some(Asked { seconds: 10.0, rtt_ms: Some(1.0), ..Asked::default() });
        b.asked = Some(Asked { seconds: 10.0, messages: Some(7), ..Asked::default() });
        let text = compare(&a, &b).unwrap();
        assert!(text.contains("differs: messages null, 7; rtt_ms 1.0, null"), "{text}");
        assert!(text.contains("0.50 (0.49 to 0.51)*"), "{text}");
        assert!(text.contains("A 5 of 5, B 4 of 5") && !text.contains("alone"), "{text}");
        assert!(!text.contains("failed"), "{text}");
        b.found[0].answers.push(Err("it hung up".into()));
        let text = compare(&a, &b).unwrap();
        assert!(text.contains("A 0 of 5 runs, B 1 of 6") && !text.contains(")*"), "{text}");
        let load = Record::new(Occasion::default(), "free", "");
        assert!(compare(&a, &load).unwrap_err().contains("in common"));
    }

    #[test]
    fn nothing_in_common_is_an_error() {
        let a = record("X", Window::Auto, &[1.0]);
        let b = record("X", Window::Fixed(1), &[1.0]);
        assert!(compare(&a, &b).unwrap_err().contains("in common"));
    }
}
