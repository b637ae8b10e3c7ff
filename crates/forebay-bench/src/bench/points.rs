//! Runs of one setting together, and which setting is best.
//!
//! ```text
//!   basis   latency from the intended time if some setting carried what was asked for, otherwise from the
//!           call: a load that nobody can carry is late by definition
//!   best    the setting with the highest median rate
//!   knee    of those with at least 95 % of that rate, the one with the lowest median p99; where it was searched
//!           for, the one with the least window
//! ```

use super::grid::Setting;
use super::record::{Record, Run};
use crate::knee::{self, Shown};
use crate::report::Report;
use crate::search::{self, Finding};
use crate::setting::Window;
use crate::spread::{Ratio, median};

/// Of the bootstrap: the same file gives the same intervals.
const SEED: u64 = 1;

/// One setting, and its runs.
#[derive(Debug, Clone)]
pub(crate) struct Point<'a> {
    pub(crate) setting: Setting,
    pub(crate) reports: Vec<&'a Report>,
    /// Of each report, which repetition it is of.
    repetitions: Vec<usize>,
    pub(crate) failures: Vec<&'a str>,
}

/// All settings of one phase on one broker.
#[derive(Debug, Clone)]
pub(crate) struct Points<'a> {
    pub(crate) broker: &'a str,
    pub(crate) phase: &'a str,
    pub(crate) capacity_per_s: Option<f64>,
    /// That is the generator's, who was the bottleneck.
    pub(crate) capacity_of_generator: bool,
    /// Latency counts from the intended time.
    pub(crate) intended: bool,
    /// Windows were searched, and only they differ.
    searched: bool,
    /// That was stopped, and what it had shown until then says little.
    pub(crate) unfinished: bool,
    /// Repetitions from this one on judge, those before choose; `None`: all do both.
    judged_from: Option<usize>,
    /// Without flow control set by hand first, then by setting.
    pub(crate) points: Vec<Point<'a>>,
}

/// How what tunes itself compares with the best that was set by hand.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Judgement {
    pub(crate) best: Setting,
    pub(crate) knee: Setting,
    pub(crate) rate: Ratio,
    /// `None`: nothing was timed.
    pub(crate) p99: Option<Ratio>,
    /// What failed of those that are compared, each a sentence: the ratios are of the others.
    pub(crate) failed: Vec<String>,
}

impl Point<'_> {
    /// Median of something over the runs.
    pub(crate) fn median(&self, of: impl Fn(&Report) -> f64) -> Option<f64> {
        median(&self.each(of))
    }

    /// How many of its runs are in no figure; `None` if all are in.
    pub(crate) fn failed(&self) -> Option<String> {
        let (failed, all) = (self.failures.len(), self.failures.len() + self.reports.len());
        (failed > 0).then(|| format!("{failed} of {all} runs failed"))
    }

    fn each(&self, of: impl Fn(&Report) -> f64) -> Vec<f64> {
        self.reports.iter().map(|report| of(report)).collect()
    }

    /// Of the runs that timed something.
    pub(crate) fn p99_us(&self, intended: bool) -> Vec<f64> {
        self.reports.iter().filter_map(|report| report.p99_us(intended)).collect()
    }

    fn shown(&self, intended: bool) -> Shown {
        Shown {
            rate_per_s: self.each(Report::rate_per_s),
            p99_us: self.p99_us(intended),
            first_per_s: Vec::new(),
            failed: self.failures.len() as u64,
        }
    }

    /// Only the runs of these repetitions.
    fn of(&self, repetitions: impl Fn(usize) -> bool) -> Self {
        let kept = self.repetitions.iter().zip(&self.reports).filter(|(at, _)| repetitions(**at));
        let (repetitions, reports) = kept.map(|(at, report)| (*at, *report)).unzip();
        Point { repetitions, reports, ..self.clone() }
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
                        capacity_of_generator: record.capacity_of_generator.contains(&run.broker),
                        intended: false,
                        searched: record.searched,
                        unfinished: record.unfinished.contains(&run.broker),
                        judged_from: record.judged_from,
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

    /// What it is called beside others.
    pub(crate) fn name(&self) -> String {
        match self.phase {
            "" => self.broker.to_owned(),
            phase => format!("{}, {phase}", self.broker),
        }
    }

    /// What one of its points is called beside the others: by its window, and by what else is needed to tell them apart.
    pub(crate) fn called(&self, point: &Point<'_>) -> String {
        let Setting { window, prefetch, ack_every } = point.setting;
        let differs =
            |same: &dyn Fn(&Setting) -> bool| self.points.iter().any(|other| !same(&other.setting));
        let mut name = format!("window {window}");
        if differs(&|other| other.prefetch == prefetch) {
            name.push_str(&format!(", prefetch {prefetch}"));
        }
        if differs(&|other| other.ack_every == ack_every) {
            let ack = if ack_every == 0 { "auto".to_owned() } else { ack_every.to_string() };
            name.push_str(&format!(", ack {ack}"));
        }
        name
    }

    /// Whether its messages had due times.
    pub(crate) fn is_paced(&self) -> bool {
        let mut reports = self.points.iter().flat_map(|point| &point.reports);
        reports.any(|report| report.target_per_s.is_some())
    }

    /// The best setting by hand, the knee, and how the one that tunes itself compares; `None` unless both
    /// kinds were measured.
    pub(crate) fn judge(&self) -> Option<Judgement> {
        let tuned = self.points.iter().find(|point| point.setting.tunes_itself())?;
        let (best, knee) = self.rivals()?;
        let point = |setting| self.points.iter().find(|point| point.setting == setting);
        let (best_point, knee_point) = (point(best)?, point(knee)?);
        let rate = Report::rate_per_s;
        let (rate, p99) = match self.judged_from {
            None => (
                Ratio::of(&tuned.each(rate), &best_point.each(rate), SEED)?,
                Ratio::of(&tuned.p99_us(self.intended), &knee_point.p99_us(self.intended), SEED),
            ),
            Some(from) => {
                let both = |of: &dyn Fn(&Report) -> f64, rival: &Point<'_>| {
                    let ours = tuned.of(|at| at >= from && rival.repetitions.contains(&at));
                    let theirs = rival.of(|at| at >= from && tuned.repetitions.contains(&at));
                    Ratio::of_pairs(&ours.each(of), &theirs.each(of), SEED)
                };
                let p99 = |report: &Report| report.p99_us(self.intended).unwrap_or(0.0);
                (both(&rate, best_point)?, both(&p99, knee_point))
            }
        };
        let mut compared = vec![tuned, best_point, knee_point];
        compared.dedup_by_key(|point| point.setting);
        let failed =
            |point: &&Point<'_>| Some(format!("{}: {}", self.called(point), point.failed()?));
        let failed = compared.iter().filter_map(failed).collect();
        Some(Judgement { best, knee, rate, p99, failed })
    }

    /// The best setting by hand and the knee, of the runs that choose.
    pub(crate) fn rivals(&self) -> Option<(Setting, Setting)> {
        let chooses = |at: usize| self.judged_from.is_none_or(|from| at < from);
        let fixed = self.points.iter().filter(|point| !point.setting.tunes_itself());
        let fixed: Vec<_> =
            fixed.map(|point| (point.setting, point.of(chooses).shown(self.intended))).collect();
        Some((fixed[knee::best(&fixed)?].0, self.knee_by_hand(&fixed)?.0))
    }

    /// The knee among all settings, whoever set them; of a search, among those set by hand, and where rounds judge, the one
    /// that was chosen for them.
    pub(crate) fn knee(&self) -> Option<Setting> {
        if self.judged_from.is_some() {
            return self.rivals().map(|(_, knee)| knee);
        }
        let shown = |point: &Point<'_>| (point.setting, point.shown(self.intended));
        let shown: Vec<_> = self.points.iter().map(shown).collect();
        if shown.len() < 2 {
            return None;
        }
        self.knee_by_hand(&shown).map(|(setting, _)| *setting)
    }

    fn knee_by_hand<'a>(&self, shown: &'a [(Setting, Shown)]) -> Option<&'a (Setting, Shown)> {
        match self.finding() {
            _ if self.unfinished => None,
            Some(finding) => {
                let window = Window::Fixed(finding.measured);
                shown.iter().find(|(setting, _)| setting.window == window)
            }
            None => knee::knee(shown).map(|index| &shown[index]),
        }
    }

    /// Whether several settings were measured and each carried what was asked for: then they tie.
    pub(crate) fn all_carried(&self) -> bool {
        let carried = |point: &Point<'_>| {
            point.failures.is_empty() && point.reports.iter().all(|report| report.carried())
        };
        self.points.len() > 1 && self.points.iter().all(carried)
    }

    /// What a search found; `None` if there was none, or if it found nothing.
    pub(crate) fn finding(&self) -> Option<Finding> {
        let fixed = self.points.iter().filter_map(|point| match point.setting.window {
            Window::Fixed(window) => {
                let mut rates = point.each(Report::rate_per_s);
                rates.extend(point.failures.iter().map(|_| 0.0));
                Some((window, rates))
            }
            Window::None | Window::Auto => None,
        });
        self.searched.then(|| search::finding(&fixed.collect(), SEED)).flatten()
    }

    /// The point with that setting.
    pub(crate) fn with(&self, setting: Setting) -> Option<&Point<'_>> {
        self.points.iter().find(|point| point.setting == setting)
    }

    /// The point with that window, set by hand.
    pub(crate) fn with_window(&self, window: u32) -> Option<&Point<'_>> {
        self.points.iter().find(|point| point.setting.window == Window::Fixed(window))
    }
}

impl<'a> Points<'a> {
    fn add(&mut self, run: &'a Run) {
        let found = self.points.iter_mut().position(|point| point.setting == run.setting);
        let index = found.unwrap_or_else(|| {
            self.points.push(Point {
                setting: run.setting,
                reports: Vec::new(),
                repetitions: Vec::new(),
                failures: Vec::new(),
            });
            self.points.len() - 1
        });
        match &run.outcome {
            super::record::Outcome::Report(report) => {
                self.points[index].reports.push(report);
                self.points[index].repetitions.push(run.repetition);
            }
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
    use crate::setting::Credit;

    fn run(window: Window, rate: f64, p99_ms: u64, intended_p99_ms: u64) -> Run {
        let latency =
            |ms: u64| LatencyReport { count: 1, p99_us: ms * 1_000, ..LatencyReport::default() };
        let plan = Plan { window, prefetch: Credit::Auto, ..Plan::default() };
        let report = Report {
            published_per_s: rate,
            consumed_per_s: rate,
            target_per_s: Some(1_000.0),
            end_to_end: latency(intended_p99_ms),
            end_to_end_from_call: latency(p99_ms),
            plan,
            ..Report::default()
        };
        Run::measured("B", report)
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
        assert_eq!((judgement.rate.value, judgement.p99.unwrap().value), (0.975, 1.25));
        assert_eq!(points.knee().unwrap().window, Window::Fixed(64));
    }

    #[test]
    fn rounds_that_had_no_part_in_the_choice_judge_by_their_own_ratios() {
        let mut runs = vec![
            run(Window::Fixed(512), 900.0, 40, 900),
            run(Window::Fixed(64), 860.0, 4, 900),
            run(Window::Fixed(8), 400.0, 1, 900),
        ];
        // 512 was lucky, and still it is what was chosen; then the machine becomes slower, for all of a round.
        for (repetition, speed) in [(1, 1.0), (2, 0.5), (3, 0.8)] {
            for (window, rate, p99_ms) in [(512, 800.0, 48.0), (64, 850.0, 8.0)] {
                let of_round =
                    run(Window::Fixed(window), rate * speed, (p99_ms / speed) as u64, 900);
                runs.push(Run { repetition, ..of_round });
            }
            let of_round = run(Window::Auto, 760.0 * speed, (10.0 / speed) as u64, 900);
            runs.push(Run { repetition, ..of_round });
        }
        let mut record = record(runs);
        record.judged_from = Some(1);
        let judgement = Points::of(&record)[0].judge().unwrap();
        assert_eq!(judgement.best.window, Window::Fixed(512));
        assert_eq!(judgement.knee.window, Window::Fixed(64));
        assert!((judgement.rate.low() - 0.95).abs() < 1e-9, "{judgement:?}");
        assert!((judgement.rate.high() - 0.95).abs() < 1e-9, "{judgement:?}");
        assert!((judgement.p99.unwrap().value - 1.25).abs() < 0.06, "{judgement:?}");
        record.judged_from = None;
        assert!(Points::of(&record)[0].judge().unwrap().rate.low() < 0.9, "as if all chose");
    }

    #[test]
    fn the_knee_that_judges_is_the_one_that_is_marked() {
        let round = |repetition, windows: &[(Window, f64, u64)]| {
            let of_round = |&(window, rate, p99_ms)| run(window, rate, p99_ms, 900);
            let runs: Vec<Run> = windows.iter().map(of_round).collect();
            runs.into_iter().map(move |run| Run { repetition, ..run })
        };
        let by_hand = [(Window::Fixed(512), 900.0, 40), (Window::Fixed(64), 860.0, 8)];
        let tuned = [(Window::Auto, 880.0, 5)];
        let runs = round(0, &by_hand).chain(round(1, &by_hand)).chain(round(1, &tuned));
        let mut record = record(runs.collect());
        let knee = |record: &Record| Points::of(record)[0].knee().unwrap().window;
        assert_eq!(knee(&record), Window::Auto);
        record.judged_from = Some(1);
        assert_eq!(knee(&record), Window::Fixed(64));
        assert_eq!(Points::of(&record)[0].judge().unwrap().knee.window, Window::Fixed(64));
    }

    #[test]
    fn what_failed_is_told_with_the_verdict() {
        let mut failed = run(Window::Auto, 0.0, 0, 0);
        failed.outcome = Outcome::Failed("it hung up".into());
        let good = run(Window::Auto, 780.0, 5, 900);
        let record = record(vec![run(Window::Fixed(512), 800.0, 40, 900), good, failed]);
        let all = Points::of(&record);
        let judgement = all[0].judge().unwrap();
        assert_eq!(judgement.failed, ["window auto: 1 of 2 runs failed"]);
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
        assert_eq!(all[0].judge().unwrap().p99.unwrap().value, 1.0);
    }

    #[test]
    fn a_setting_whose_messages_were_not_timed_is_not_the_quickest() {
        let mut untimed = run(Window::None, 1_000.0, 0, 0);
        let Outcome::Report(report) = &mut untimed.outcome else { panic!("it has figures") };
        report.end_to_end.count = 0;
        report.end_to_end_from_call.count = 0;
        let timed = run(Window::Fixed(64), 990.0, 4, 4);
        let record = record(vec![untimed.clone(), timed, run(Window::Auto, 980.0, 5, 5)]);
        let judgement = Points::of(&record)[0].judge().unwrap();
        assert_eq!(
            (judgement.best.window, judgement.knee.window),
            (Window::None, Window::Fixed(64))
        );
        assert_eq!(judgement.p99.unwrap().value, 1.25);
        let mut record = record;
        record.runs.remove(1);
        let judgement = Points::of(&record)[0].judge().unwrap();
        assert_eq!((judgement.rate.value, judgement.p99), (0.98, None));
    }

    #[test]
    fn of_a_search_the_least_window_with_the_rate_is_the_knee() {
        let mut record = record(vec![
            run(Window::Fixed(40), 500.0, 2, 2),
            run(Window::Fixed(80), 990.0, 4, 4),
            run(Window::Fixed(320), 1_000.0, 3, 3),
        ]);
        assert_eq!(Points::of(&record)[0].knee().unwrap().window, Window::Fixed(320));
        assert_eq!(Points::of(&record)[0].finding(), None, "nobody searched");
        record.searched = true;
        let all = Points::of(&record);
        assert_eq!(all[0].knee().unwrap().window, Window::Fixed(80));
        assert_eq!(all[0].finding().unwrap().best, 320);
    }

    #[test]
    fn without_anything_set_by_hand_there_is_no_judgement() {
        let record = record(vec![run(Window::Auto, 1.0, 1, 1)]);
        let all = Points::of(&record);
        assert!(all[0].judge().is_none() && all[0].knee().is_none());
    }
}
