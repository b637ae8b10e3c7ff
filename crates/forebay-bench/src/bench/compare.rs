//! Two records side by side: what changed between two days, two versions, or two brokers.

use std::fmt::Write;

use super::points::{Point, Points};
use super::record::Record;
use crate::report::Report;
use crate::spread::{Ratio, median};

/// One line for each setting that both records measured; `Err` if there is none.
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
    fn nothing_in_common_is_an_error() {
        let a = record("X", Window::Auto, &[1.0]);
        let b = record("X", Window::Fixed(1), &[1.0]);
        assert!(compare(&a, &b).unwrap_err().contains("in common"));
    }
}
