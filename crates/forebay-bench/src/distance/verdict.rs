//! Whether the window that tunes itself kept up with the best one set by hand.
//!
//! ```text
//!   best  the fixed window with the highest median rate
//!   knee  of those with at least 95 % of that rate, the one with the lowest median p99
//!   pass  tuned rate >= 95 % of the best's, tuned p99 <= 1.5 x the knee's, first seconds >= 70 % of the
//!         later ones, nothing failed or timed out; where there is an interval, its bad end counts
//!   near  all of that, with 90 to 95 % of the rate: good enough for the worst cell, not for most
//! ```
//!
//! Where runs of best, knee and tuned are there that had no part in the choice, one of each in turn, they are what
//! is judged, by the ratios within a turn.

use serde::Serialize;

use crate::knee::{RATE_MIN, Shown, best, knee};
use crate::spread::{Ratio, median};

const RATE_MIN_WORST: f64 = 0.90;
const P99_MAX: f64 = 1.5;
const FIRST_MIN: f64 = 0.70;

/// How it went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Grade {
    /// All of it.
    Pass,
    /// 90 to 95 % of the best rate.
    Near,
    /// Not.
    Fail,
}

/// The judgement of one cell.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Verdict {
    /// The fixed window with the highest rate.
    pub(super) best: u32,
    /// The fixed window at the knee.
    pub(super) knee: u32,
    /// Tuned rate over the best one's.
    pub(super) rate: Ratio,
    /// Tuned p99 over the knee's.
    pub(super) p99: Ratio,
    /// Tuned rate in the first seconds over that of the later ones.
    pub(super) first: Ratio,
    /// All windows are within 5 %: the cell cannot tell good windows from bad ones, which is no win.
    pub(super) no_difference: bool,
    /// The grade.
    pub(super) grade: Grade,
    /// What was missed, as sentences.
    pub(super) missed: Vec<String>,
}

impl Verdict {
    /// Judges a cell; `None` if something of it was not measured. `fixed` chooses best and knee; `apart` has what a
    /// window showed in runs that only judge, in turns with those of `tuned`.
    pub(super) fn of(
        fixed: &[(u32, Shown)],
        tuned: &Shown,
        apart: impl Fn(u32) -> Option<Shown>,
        seed: u64,
    ) -> Option<Verdict> {
        let (best, knee) = (&fixed[best(fixed)?], &fixed[knee(fixed)?]);
        let (rate, p99) = match (apart(best.0), apart(knee.0)) {
            (Some(best), Some(knee)) => (
                Ratio::of_pairs(&tuned.rate_per_s, &best.rate_per_s, seed)?,
                Ratio::of_pairs(&tuned.p99_us, &knee.p99_us, seed)?,
            ),
            _ => (
                Ratio::of(&tuned.rate_per_s, &best.1.rate_per_s, seed)?,
                Ratio::of(&tuned.p99_us, &knee.1.p99_us, seed)?,
            ),
        };
        // Of the same run, whatever the machine's speed was then.
        let first = Ratio::of_pairs(&tuned.first_per_s, &tuned.rate_per_s, seed)?;
        let enough = RATE_MIN * median(&best.1.rate_per_s)?;
        let ties = |shown: &Shown| median(&shown.rate_per_s).is_some_and(|rate| rate >= enough);
        let no_difference = fixed.len() > 1 && fixed.iter().all(|(_, shown)| ties(shown));
        let mut missed = Vec::new();
        if rate.low() < RATE_MIN_WORST {
            missed.push(format!("rate {:.0} % of window {}", rate.low() * 100.0, best.0));
        }
        if p99.high() > P99_MAX {
            missed.push(format!("p99 {:.2} x that of window {}", p99.high(), knee.0));
        }
        if first.low() < FIRST_MIN {
            missed.push(format!("first seconds {:.0} % of the later ones", first.low() * 100.0));
        }
        if tuned.failed > 0 {
            missed.push(format!("{} messages failed or timed out", tuned.failed));
        }
        let grade = match (missed.is_empty(), rate.low() >= RATE_MIN) {
            (true, true) => Grade::Pass,
            (true, false) => Grade::Near,
            (false, _) => Grade::Fail,
        };
        Some(Verdict { best: best.0, knee: knee.0, rate, p99, first, no_difference, grade, missed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::knee::tests::{pipe, shown};

    fn judged(fixed: &[(u32, Shown)], tuned: &Shown) -> Option<Verdict> {
        Verdict::of(fixed, tuned, |_| None, 1)
    }

    #[test]
    fn rate_latency_first_seconds_and_losses_all_count() {
        let judge = |tuned: &Shown| judged(&pipe(), tuned).unwrap();
        let good = judge(&shown(960.0, 1.7));
        assert_eq!((good.best, good.knee, good.grade), (200, 100, Grade::Pass));
        assert!(good.missed.is_empty() && !good.no_difference);
        assert_eq!(judge(&shown(920.0, 1.2)).grade, Grade::Near);
        assert_eq!(judge(&shown(890.0, 1.2)).grade, Grade::Fail);
        assert_eq!(judge(&shown(1_000.0, 1.9)).grade, Grade::Fail);
        let slow_start = Shown { first_per_s: vec![600.0; 3], ..shown(1_000.0, 1.0) };
        assert_eq!(judge(&slow_start).missed, ["first seconds 60 % of the later ones"]);
        assert_eq!(judge(&Shown { failed: 1, ..shown(1_000.0, 1.0) }).grade, Grade::Fail);
    }

    #[test]
    fn only_the_bad_end_of_the_interval_counts() {
        let wobbly = Shown {
            rate_per_s: vec![800.0, 800.0, 1_000.0, 1_000.0, 1_000.0],
            ..shown(1_000.0, 1.0)
        };
        let verdict = judged(&pipe(), &wobbly).unwrap();
        assert_eq!((verdict.rate.value, verdict.grade), (1.0, Grade::Fail));
    }

    #[test]
    fn a_cell_in_which_all_windows_tie_says_so() {
        let points = [(1, shown(99.0, 1.0)), (9, shown(100.0, 1.0))];
        assert!(judged(&points, &shown(100.0, 1.0)).unwrap().no_difference);
        assert_eq!(judged(&points, &Shown::default()), None);
    }

    #[test]
    fn runs_that_had_no_part_in_the_choice_judge_by_their_own_turns() {
        // The best one was lucky when it was chosen; a machine that becomes slower slows all of a turn.
        let speeds = [1.0, 0.5, 0.8, 0.4, 0.9];
        let in_turns = |rate: f64, p99_us: f64| Shown {
            rate_per_s: speeds.map(|speed| rate * speed).to_vec(),
            p99_us: speeds.map(|speed| p99_us / speed).to_vec(),
            first_per_s: speeds.map(|speed| rate * speed).to_vec(),
            failed: 0,
        };
        let apart = |window| Some(in_turns(if window == 200 { 890.0 } else { 880.0 }, 1.2));
        let verdict = Verdict::of(&pipe(), &in_turns(870.0, 1.5), apart, 1).unwrap();
        assert_eq!((verdict.best, verdict.knee, verdict.grade), (200, 100, Grade::Pass));
        assert!((verdict.rate.low() - 870.0 / 890.0).abs() < 1e-9, "{verdict:?}");
        assert!((verdict.p99.high() - 1.25).abs() < 1e-9, "{verdict:?}");
        assert_eq!(judged(&pipe(), &in_turns(870.0, 1.5)).unwrap().grade, Grade::Fail);
    }
}
