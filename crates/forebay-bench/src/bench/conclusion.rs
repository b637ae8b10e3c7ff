//! What a search for the knee found, in plain words.

use super::points::{Point, Points};
use crate::report::Report;
use crate::search::{Finding, REPETITIONS_MIN, WINDOW_MAX};
use crate::setting::Window;
use crate::spread::median;

/// An interval whose upper end is so many times its lower one says little.
const WIDE: f64 = 1.5;

/// Lines for somebody who asked only how to set their window; `None`: nobody searched.
pub(crate) fn conclusion(points: &Points<'_>) -> Option<Vec<String>> {
    let finding = points.finding()?;
    if points.unfinished {
        let best = points.with_window(finding.best)?;
        return Some(vec![format!(
            "The search was stopped before it had found the knee. Of the windows until then {} carried most: {:.0} messages a second.",
            finding.best,
            best.median(Report::rate_per_s)?
        )]);
    }
    let (best, knee) = (points.with_window(finding.best)?, points.with_window(finding.measured)?);
    let publishers = knee.reports.first()?.plan.publishers;
    let mut lines = vec![format!(
        "This broker carries {:.0} messages a second in this shape.",
        best.median(Report::rate_per_s)?
    )];
    if finding.growing {
        lines.push(format!(
            "It still carried more with every larger window up to {WINDOW_MAX}: there is no knee below it."
        ));
        return Some(lines);
    }
    let in_all = match publishers {
        1 => String::new(),
        many => format!(", {} in all", u64::from(finding.window) * many as u64),
    };
    lines.push(format!(
        "Best window: {}{in_all}. It carries {:.0}/s{}.",
        told(&finding),
        knee.median(Report::rate_per_s)?,
        p99_ms(points, knee).map_or(String::new(), |ms| format!(" at p99 {ms:.1} ms")),
    ));
    if finding.interval.is_some_and(|(low, high)| f64::from(high) > WIDE * f64::from(low)) {
        lines.push("The runs vary too much to say it closer: try more --seconds, more --repeat, or a quieter machine.".into());
    }
    if knee.reports.len() < REPETITIONS_MIN {
        lines.push(format!(
            "How sure that is, fewer than {REPETITIONS_MIN} runs of it cannot tell: --repeat {REPETITIONS_MIN}."
        ));
    }
    if let Some(less) = neighbour(points, |window| window <= finding.measured / 2, true) {
        let share = less.median(Report::rate_per_s)? / best.median(Report::rate_per_s)?;
        lines.push(format!(
            "With less it carries less: {:.0} % with {}.",
            share * 100.0,
            less.setting.window
        ));
    }
    if let Some(more) =
        neighbour(points, |window| window >= finding.measured.saturating_mul(4), false)
    {
        let gain = more.median(Report::rate_per_s)? / knee.median(Report::rate_per_s)? - 1.0;
        let (gain, window) = (gain * 100.0, more.setting.window);
        let p99 = p99_ms(points, more).zip(p99_ms(points, knee).filter(|ms| *ms > 0.0));
        lines.push(match p99 {
            Some((more_ms, ms)) => format!(
                "Beyond it only latency grows: {gain:+.0} % throughput and {:.1} times the p99 with {window}.",
                more_ms / ms
            ),
            None => format!("Beyond it little is gained: {gain:+.0} % throughput with {window}."),
        });
    }
    let deciding = || knee.reports.iter().chain(&best.reports);
    if deciding().any(|report| report.generator_was_the_bottleneck()) {
        lines.push("The generator was busy all the time: the broker itself may carry more.".into());
    }
    Some(lines)
}

fn told(finding: &Finding) -> String {
    let plural = if finding.window == 1 { "message" } else { "messages" };
    match finding.interval {
        Some((low, high)) => {
            format!("{} {plural} a publisher (95 %: {low} to {high})", finding.window)
        }
        None => format!("{} {plural} a publisher", finding.window),
    }
}

/// The last (or first) window measured that `fits`.
fn neighbour<'a>(
    points: &'a Points<'_>,
    fits: impl Fn(u32) -> bool,
    last: bool,
) -> Option<&'a Point<'a>> {
    let fits = |point: &&Point<'_>| match point.setting.window {
        Window::Fixed(window) => !point.reports.is_empty() && fits(window),
        Window::None | Window::Auto => false,
    };
    // They are sorted by window.
    let mut found = points.points.iter().filter(fits);
    if last { found.next_back() } else { found.next() }
}

fn p99_ms(points: &Points<'_>, point: &Point<'_>) -> Option<f64> {
    median(&point.p99_us(points.intended)).map(|us| us / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::record::{Outcome, Record, Run};
    use crate::occasion::Occasion;
    use crate::plan::Plan;
    use crate::report::LatencyReport;

    fn record(windows: &[(u32, f64, u64)]) -> Record {
        let mut record = Record::new(Occasion::default(), "stress-2", "");
        record.searched = true;
        for (&(window, rate, p99_ms), repetition) in
            windows.iter().flat_map(|row| (0..3).map(move |repetition| (row, repetition)))
        {
            let plan = Plan { window: Window::Fixed(window), publishers: 20, ..Plan::default() };
            let p99 =
                LatencyReport { count: 1, p99_us: p99_ms * 1_000, ..LatencyReport::default() };
            let report = Report {
                consumed_per_s: rate,
                end_to_end_from_call: p99,
                plan,
                ..Report::default()
            };
            record.runs.push(Run { repetition, ..Run::measured("RabbitMQ", report) });
        }
        record
    }

    fn told_of(record: &Record) -> String {
        conclusion(&Points::of(record)[0]).expect("it was searched").join("\n")
    }

    #[test]
    fn somebody_who_knows_nothing_of_windows_is_told_which_to_take() {
        let record = record(&[
            (1, 500.0, 2),
            (16, 8_000.0, 2),
            (38, 19_000.0, 3),
            (64, 20_000.0, 4),
            (256, 20_000.0, 12),
        ]);
        let expected = "This broker carries 20000 messages a second in this shape.
Best window: 38 messages a publisher (95 %: 38 to 38), 760 in all. It carries 19000/s at p99 3.0 ms.
With less it carries less: 40 % with 16.
Beyond it only latency grows: +5 % throughput and 4.0 times the p99 with 256.";
        assert_eq!(told_of(&record), expected);
    }

    #[test]
    fn two_runs_do_not_tell_how_sure_it_is() {
        let mut record = record(&[(1, 500.0, 2), (4, 2_000.0, 2), (16, 2_000.0, 9)]);
        record.runs.retain(|run| run.repetition < 2);
        let told = told_of(&record);
        assert!(told.contains("Best window: 4") && told.contains("--repeat 3"), "{told}");
    }

    #[test]
    fn a_search_that_was_stopped_names_no_best_window() {
        let mut record = record(&[(1, 500.0, 2), (4, 2_000.0, 2)]);
        record.unfinished.push("RabbitMQ".into());
        let told = told_of(&record);
        assert!(told.contains("stopped before") && told.contains("4 carried most: 2000"), "{told}");
        assert!(!told.contains("Best window"), "{told}");
        assert_eq!(Points::of(&record)[0].knee(), None);
        record.unfinished = vec!["another".into()];
        assert!(told_of(&record).contains("Best window: 4"));
    }

    #[test]
    fn a_best_rate_that_is_the_generators_is_told() {
        let mut record = record(&[(16, 9_600.0, 2), (64, 10_000.0, 4), (256, 9_900.0, 12)]);
        assert!(!told_of(&record).contains("generator"));
        assert!(!told_of(&record).contains("How sure"));
        let Outcome::Report(report) = &mut record.runs[3].outcome else { panic!("it has figures") };
        report.generator_cores = 1.0;
        assert!(told_of(&record).contains("The generator was busy"), "the rate is that of 64");
    }

    #[test]
    fn one_at_a_time_may_be_enough_and_no_knee_is_said() {
        let told = told_of(&record(&[(1, 900.0, 2), (4, 910.0, 8), (16, 905.0, 30)]));
        assert!(told.contains("1 message a publisher") && !told.contains("With less"), "{told}");
        let mut untimed = record(&[(1, 900.0, 2), (4, 910.0, 8), (16, 905.0, 30)]);
        for run in &mut untimed.runs {
            let Outcome::Report(report) = &mut run.outcome else { continue };
            report.end_to_end_from_call = LatencyReport::default();
        }
        let told = told_of(&untimed);
        assert!(!told.contains("p99") && told.contains("little is gained: +1 %"), "{told}");
        let told = told_of(&record(&[(16_384, 900.0, 2), (WINDOW_MAX, 9_100.0, 8)]));
        assert!(told.contains("no knee"), "{told}");
    }
}
