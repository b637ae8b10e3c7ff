//! Runs of one setting together, and which setting is best.
//!
//! ```text
//!   basis   latency from the intended time if some setting carried what was asked for, otherwise from the
//!           call: a load that nobody can carry is late by definition
//!   best    the setting with the highest median rate
//!   knee    of those with at least 95 % of that rate, the one with the lowest median p99
//! ```

use super::grid::Setting;
use super::record::{Record, Run};
use crate::knee::{self, Shown};
use crate::report::Report;
use crate::spread::{Ratio, median};

/// One setting, and its runs.
#[derive(Debug, Clone)]
pub(crate) struct Point<'a> {
    pub(crate) setting: Setting,
    pub(crate) reports: Vec<&'a Report>,
    pub(crate) failures: Vec<&'a str>,
}

/// All settings of one phase on one broker.
#[derive(Debug, Clone)]
pub(crate) struct Points<'a> {
    pub(crate) broker: &'a str,
    pub(crate) phase: &'a str,
    pub(crate) capacity_per_s: Option<f64>,
    /// Latency counts from the intended time.
    pub(crate) intended: bool,
    /// Without flow control set by hand first, then by setting.
    pub(crate) points: Vec<Point<'a>>,
}

/// How what tunes itself compares with the best that was set by hand.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Judgement {
    pub(crate) best: Setting,
    pub(crate) knee: Setting,
    pub(crate) rate: Ratio,
    pub(crate) p99: Ratio,
}

impl Point<'_> {
    /// Median of something over the runs.
    pub(crate) fn median(&self, of: impl Fn(&Report) -> f64) -> Option<f64> {
        median(&self.each(of))
    }

    fn each(&self, of: impl Fn(&Report) -> f64) -> Vec<f64> {
        self.reports.iter().map(|report| of(report)).collect()
    }

    fn shown(&self, intended: bool) -> Shown {
        Shown {
            rate_per_s: self.each(Report::rate_per_s),
            p99_us: self.each(|report| report.latency(intended).p99_us as f64),
            first_per_s: Vec::new(),
            failed: self.failures.len() as u64,
        }
    }
}

impl Points<'_> {
    /// The runs of a record by broker and phase, in the order in which these first came.
    pub(crate) fn of(record: &Record) -> Vec<Points<'_>> {
        let mut all: Vec<Points<'_>> = Vec::new();
        for run in &record.runs {
            let same =
                |points: &Points<'_>| points.broker == run.broker && points.phase == run.phase;
            let points = match all.iter_mut().position(|points| same(points)) {
                Some(index) => &mut all[index],
                None => {
                    all.push(Points {
                        broker: &run.broker,
                        phase: &run.phase,
                        capacity_per_s: run.capacity_per_s,
                        intended: false,
                        points: Vec::new(),
                    });
                    all.last_mut().expect("it was pushed")
                }
            };
            points.add(run);
        }
        for points in &mut all {
            let carried = |point: &Point<'_>| {
                !point.reports.is_empty() && point.reports.iter().all(|report| report.carried())
            };
            points.intended = points.points.iter().any(carried);
            points.points.sort_by_key(|point| (!point.setting.tunes_itself(), point.setting));
        }
        all
    }

    /// The best setting by hand, the knee, and how the one that tunes itself compares; `None` unless both
    /// kinds were measured.
    pub(crate) fn judge(&self) -> Option<Judgement> {
        let shown = |point: &Point<'_>| (point.setting, point.shown(self.intended));
        let (tuned, fixed): (Vec<_>, Vec<_>) =
            self.points.iter().map(shown).partition(|(setting, _)| setting.tunes_itself());
        let (_, tuned) = tuned.into_iter().next()?;
        let best = &fixed[knee::best(&fixed)?];
        let knee = &fixed[knee::knee(&fixed)?];
        Some(Judgement {
            best: best.0,
            knee: knee.0,
            rate: Ratio::of(&tuned.rate_per_s, &best.1.rate_per_s, 1)?,
            p99: Ratio::of(&tuned.p99_us, &knee.1.p99_us, 1)?,
        })
    }

    /// The knee among all settings, whoever set them.
    pub(crate) fn knee(&self) -> Option<Setting> {
        let shown: Vec<_> =
            self.points.iter().map(|point| (point.setting, point.shown(self.intended))).collect();
        (shown.len() > 1).then(|| knee::knee(&shown)).flatten().map(|index| shown[index].0)
    }
}

impl<'a> Points<'a> {
    fn add(&mut self, run: &'a Run) {
        let found = self.points.iter_mut().position(|point| point.setting == run.setting);
        let index = found.unwrap_or_else(|| {
            let point = Point { setting: run.setting, reports: Vec::new(), failures: Vec::new() };
            self.points.push(point);
            self.points.len() - 1
        });
        match &run.outcome {
            super::record::Outcome::Report(report) => self.points[index].reports.push(report),
            super::record::Outcome::Failed(why) => self.points[index].failures.push(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::record::Outcome;
    use crate::occasion::Occasion;
    use crate::plan::Plan;
    use crate::report::LatencyReport;
    use crate::setting::{Credit, Window};

    fn run(window: Window, rate: f64, p99_ms: u64, intended_p99_ms: u64) -> Run {
        let latency = |ms: u64| LatencyReport { p99_us: ms * 1_000, ..LatencyReport::default() };
        let plan = Plan { window, prefetch: Credit::Auto, ..Plan::default() };
        let report = Report {
            published_per_s: rate,
            consumed_per_s: rate,
            target_per_s: Some(1_000.0),
            end_to_end: latency(intended_p99_ms),
            end_to_end_from_call: latency(p99_ms),
            plan: plan.clone(),
            ..Report::default()
        };
        Run {
            broker: "B".into(),
            phase: String::new(),
            setting: Setting::of(&plan),
            repetition: 0,
            capacity_per_s: None,
            outcome: Outcome::Report(report),
        }
    }

    fn record(runs: Vec<Run>) -> Record {
        let mut record = Record::new(Occasion::default(), "free", "");
        record.runs = runs;
        record
    }

    #[test]
    fn the_tuned_one_is_judged_against_best_and_knee() {
        let record = record(vec![
            run(Window::Fixed(512), 800.0, 40, 900),
            run(Window::Fixed(64), 790.0, 4, 900),
            run(Window::Auto, 780.0, 5, 900),
            run(Window::Fixed(8), 400.0, 1, 900),
        ]);
        let all = Points::of(&record);
        let [points] = &all[..] else { panic!("one broker, one phase") };
        assert!(!points.intended, "nobody carried what was asked for");
        assert!(points.points[0].setting.tunes_itself(), "it is shown first");
        let judgement = points.judge().unwrap();
        assert_eq!(judgement.best.window, Window::Fixed(512));
        assert_eq!(judgement.knee.window, Window::Fixed(64));
        assert_eq!((judgement.rate.value, judgement.p99.value), (0.975, 1.25));
        assert_eq!(points.knee().unwrap().window, Window::Fixed(64));
    }

    #[test]
    fn a_load_that_somebody_carries_is_judged_from_the_intended_time() {
        let record = record(vec![
            run(Window::Fixed(1), 300.0, 1, 9_000),
            run(Window::Fixed(64), 1_000.0, 3, 4),
            run(Window::Auto, 1_000.0, 3, 4),
        ]);
        let all = Points::of(&record);
        assert!(all[0].intended);
        assert_eq!(all[0].judge().unwrap().p99.value, 1.0);
    }

    #[test]
    fn without_anything_set_by_hand_there_is_no_judgement() {
        let record = record(vec![run(Window::Auto, 1.0, 1, 1)]);
        let all = Points::of(&record);
        assert!(all[0].judge().is_none() && all[0].knee().is_none());
    }
}
