//! Two records side by side: what changed between two days, two versions, or two brokers.

use std::fmt::Write;

use super::points::{Point, Points};
use super::record::Record;
use crate::experiment::{Found, Row, number};
use crate::report::Report;
use crate::spread::{Ratio, median};

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
    if a.occasion.machine != b.occasion.machine {
        let _ = writeln!(
            text,
            "A and B were measured on different machines, or one of them was busier before"
        );
    }
    if !a.found.is_empty() && !b.found.is_empty() {
        return compare_found(&a.found, &b.found).map(|lines| text + &lines);
    }
    let _ = writeln!(text, "\n{HEAD}");
    let mut pairs = 0;
    for points_a in &all_a {
        let alone = is_alone(&all_a, points_a.phase) && is_alone(&all_b, points_a.phase);
        let same = |other: &&Points<'_>| {
            other.phase == points_a.phase && (alone || other.broker == points_a.broker)
        };
        let Some(points_b) = all_b.iter().find(same) else { continue };
        let intended = points_a.intended && points_b.intended;
        for point_a in &points_a.points {
            let setting = |other: &&Point<'_>| other.setting == point_a.setting;
            let Some(point_b) = points_b.points.iter().find(setting) else { continue };
            if let Some(line) = line(points_a, point_a, point_b, intended) {
                pairs += 1;
                let _ = writeln!(text, "{line}");
            }
        }
    }
    match pairs {
        0 => Err("the two files have no setting in common that both measured".into()),
        _ => Ok(text),
    }
}

/// One line for each figure that both have.
fn compare_found(all_a: &[Found], all_b: &[Found]) -> Result<String, String> {
    let mut text = String::new();
    let mut pairs = 0;
    for found_a in all_a {
        let alone = all_a.len() == 1 && all_b.len() == 1;
        let same = |found: &&Found| alone || found.broker == found_a.broker;
        let Some(found_b) = all_b.iter().find(same) else { continue };
        let rows_b = found_b.rows();
        let _ = writeln!(text, "\n{:<44} |        A         B  B/A (95 %)", found_a.broker);
        for row in found_a.rows() {
            let same = |other: &&Row<'_>| (other.case, other.figure) == (row.case, row.figure);
            let Some(other) = rows_b.iter().find(same) else { continue };
            let (Some(a), Some(b)) = (median(&row.values), median(&other.values)) else { continue };
            pairs += 1;
            let _ = writeln!(
                text,
                "{:<28}  {:<14} | {:>8}  {:>8}  {:<21} {}",
                row.case,
                row.figure,
                number(a),
                number(b),
                told(Ratio::of(&other.values, &row.values, 1)),
                row.unit,
            );
        }
        let ((met_a, of_a), (met_b, of_b)) = (found_a.demands_met(), found_b.demands_met());
        if of_a + of_b > 0 {
            let _ =
                writeln!(text, "met of what is asked: A {met_a} of {of_a}, B {met_b} of {of_b}");
        }
    }
    match pairs {
        0 => Err("the two files have no figure in common that both measured".into()),
        _ => Ok(text),
    }
}

const HEAD: &str = "\
broker, phase                window prefetch |   rate A    rate B  B/A (95 %)             |    p99 A    p99 B ms  B/A (95 %)";

/// Whether a record has one broker for this phase, which then may be called anything.
fn is_alone(all: &[Points<'_>], phase: &str) -> bool {
    all.iter().filter(|points| points.phase == phase).count() == 1
}

fn line(points: &Points<'_>, a: &Point<'_>, b: &Point<'_>, intended: bool) -> Option<String> {
    let each = |point: &Point<'_>, of: &dyn Fn(&Report) -> f64| -> Vec<f64> {
        point.reports.iter().map(|report| of(report)).collect()
    };
    let p99 = |report: &Report| report.latency(intended).p99_us as f64 / 1e3;
    let (rate_a, rate_b) = (each(a, &Report::rate_per_s), each(b, &Report::rate_per_s));
    let (p99_a, p99_b) = (each(a, &p99), each(b, &p99));
    let name = match points.phase {
        "" => points.broker.to_owned(),
        phase => format!("{}, {phase}", points.broker),
    };
    Some(format!(
        "{name:<27} {:>7} {:>8} | {:>8.0}  {:>8.0}  {:<21} | {:>8.2} {:>8.2}     {}",
        a.setting.window,
        a.setting.prefetch,
        median(&rate_a)?,
        median(&rate_b)?,
        told(Ratio::of(&rate_b, &rate_a, 1)),
        median(&p99_a)?,
        median(&p99_b)?,
        told(Ratio::of(&p99_b, &p99_a, 1)),
    ))
}

fn told(ratio: Option<Ratio>) -> String {
    match ratio {
        None => "-".to_owned(),
        Some(Ratio { value, interval: None }) => format!("{value:.2}"),
        Some(Ratio { value, interval: Some((low, high)) }) => {
            let sure = if low > 1.0 || high < 1.0 { "*" } else { "" };
            format!("{value:.2} ({low:.2} to {high:.2}){sure}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::grid::Setting;
    use crate::bench::record::{Outcome, Run};
    use crate::experiment::{Case, Demand, Findings};
    use crate::occasion::Occasion;
    use crate::plan::Plan;
    use crate::setting::Window;

    fn record(broker: &str, window: Window, rates: &[f64]) -> Record {
        let mut record = Record::new(Occasion::default(), "free", "");
        let plan = Plan { window, ..Plan::default() };
        for (repetition, &rate) in rates.iter().enumerate() {
            let report = Report { consumed_per_s: rate, plan: plan.clone(), ..Report::default() };
            record.runs.push(Run {
                broker: broker.into(),
                phase: String::new(),
                setting: Setting::of(&plan),
                repetition,
                capacity_per_s: None,
                outcome: Outcome::Report(report),
            });
        }
        record
    }

    #[test]
    fn one_broker_each_is_compared_whatever_it_is_called() {
        let a = record("RabbitMQ", Window::Auto, &[100.0, 101.0, 99.0]);
        let b = record("Forebay", Window::Auto, &[200.0, 201.0, 199.0]);
        let text = compare(&a, &b).unwrap();
        assert!(text.contains("2.00 (1.97 to 2.03)*"), "{text}");
    }

    #[test]
    fn a_difference_that_may_be_chance_has_no_star() {
        let a = record("X", Window::Auto, &[90.0, 100.0, 110.0]);
        let b = record("X", Window::Auto, &[95.0, 102.0, 108.0]);
        let text = compare(&a, &b).unwrap();
        assert!(text.contains("1.02 (") && !text.contains(")*"), "{text}");
    }

    #[test]
    fn experiments_are_compared_figure_by_figure() {
        let record = |broker: &str, per_s: [f64; 3], limit: f64| {
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
        let a = record("X", [100.0, 101.0, 99.0], 0.0);
        let b = record("Y", [50.0, 51.0, 49.0], 50.0);
        let text = compare(&a, &b).unwrap();
        assert!(text.contains("0.50 (0.49 to 0.52)*"), "{text}");
        assert!(text.contains("A 3 of 3, B 2 of 3") && !text.contains("alone"), "{text}");
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
