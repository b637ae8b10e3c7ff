//! The knee without a grid: which window to measure next, from what the windows so far have shown.
//!
//! ```text
//!   rate
//!     │            16     64    256          1  climb     1, 4, 16, … until two rungs in a row gain nothing
//!     │          ┌─●──────●──────●           2  halve     between the least window with 95 % of the best rate
//!  95%│- - - - -◆- - - - - - - - - -                      and the one below it, until they are 10 % apart
//!     │       ●◂│                            3  repeat    what decides: the two, the best, the tuned,
//!     │    ● 4  knee                                      the last rung; medians that move go back to 2
//!     │ ● 1
//!     └───────────────────────▶ window, logarithmic
//! ```
//! Latency grows with the window from there on (Little's law: what is in flight over the rate), so the least window
//! with nearly all of the rate is the one with the lowest latency among those.

use std::collections::BTreeMap;

use crate::knee::RATE_MIN;
use crate::setting::Window;
use crate::spread::{Random, median};

/// The first window, in messages of each publisher.
const WINDOW_MIN: u32 = 1;
/// No larger one is tried.
pub(crate) const WINDOW_MAX: u32 = 1 << 16;
/// From one rung of the ladder to the next.
const RUNG: u32 = 4;
/// So many rungs that gain less than a twentieth end the ladder.
const FLAT_RUNGS: usize = 2;
/// Two windows that are this near are one.
const NEAR: f64 = 1.10;
/// No search takes more runs.
pub(crate) const RUNS_MAX: usize = 48;
/// Draws of the bootstrap.
const RESAMPLES: usize = 1_000;
/// Fewer repetitions say nothing about their own spread.
pub(crate) const REPETITIONS_MIN: usize = 3;

/// Messages a second of each run by window. A run that failed shows 0.
pub(crate) type Curve = BTreeMap<u32, Vec<f64>>;

/// The search: [`next`](Search::next) says what to run, [`learn`](Search::learn) is told what came of it.
#[derive(Debug, Clone)]
pub(crate) struct Search {
    /// Runs of each window that decides.
    repeat: usize,
    curve: Curve,
    /// The ladder has ended. Repeats that move its medians do not begin it again.
    climbed: bool,
    /// Runs of the window that tunes itself, of how many; it is measured beside the others.
    tuned: (usize, usize),
    runs: usize,
    random: Random,
}

/// What the runs of a search show.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Finding {
    /// Where the curve crosses 95 % of the best rate, in messages of each publisher.
    pub(crate) window: u32,
    /// Its 95 % interval; `None`: too few repetitions.
    pub(crate) interval: Option<(u32, u32)>,
    /// The least window measured that had 95 % of the best rate.
    pub(crate) measured: u32,
    /// The one with the best rate.
    pub(crate) best: u32,
    /// The rate still grew at the largest window: the knee is further up.
    pub(crate) growing: bool,
}

impl Search {
    /// With `repeat` runs of what decides, from 1 on; `tuned`: also of the window that tunes itself.
    pub(crate) fn new(repeat: usize, tuned: bool, seed: u64) -> Search {
        assert!(repeat > 0, "what is never run decides nothing");
        Search {
            repeat,
            curve: Curve::new(),
            climbed: false,
            tuned: (0, if tuned { repeat } else { 0 }),
            runs: 0,
            random: Random::new(seed),
        }
    }

    /// How many runs it will take, about.
    pub(crate) fn runs_expected(&self) -> usize {
        // Six rungs, four halvings, and what decides again.
        (10 + 4 * (self.repeat - 1) + self.tuned.1).clamp(self.runs + 1, RUNS_MAX)
    }

    /// The next window to run; `None`: the knee is as clear as it gets.
    pub(crate) fn next(&mut self) -> Option<Window> {
        if self.runs >= RUNS_MAX {
            return None;
        }
        if !self.climbed {
            if let Some(rung) = rung(&self.curve) {
                return Some(Window::Fixed(rung));
            }
            self.climbed = true;
        }
        let medians = medians(&self.curve);
        let crossing = crossing(&medians)?;
        if let Some(between) = crossing.between().filter(|window| !self.curve.contains_key(window))
        {
            return Some(Window::Fixed(between));
        }
        let runs = |window: u32| self.curve.get(&window).map_or(0, Vec::len);
        let (&(top, rate), others) = medians.split_last()?;
        let gains = others.iter().all(|(_, other)| RATE_MIN * rate >= *other);
        if gains && top < WINDOW_MAX && runs(top) >= self.repeat {
            // Repeated, and still ahead: the ladder ended too early.
            return Some(Window::Fixed(top * RUNG));
        }
        let mut open: Vec<(usize, Window)> =
            [crossing.below.map_or(0, |(window, _)| window), crossing.at.0, crossing.best.0, top]
                .into_iter()
                .filter(|window| *window > 0)
                .map(|window| (runs(window), Window::Fixed(window)))
                .filter(|(runs, _)| *runs < self.repeat)
                .collect();
        if self.tuned.0 < self.tuned.1 {
            open.push((self.tuned.0, Window::Auto));
        }
        // Fewest first, so that drift of the machine meets all alike; otherwise in any order.
        let fewest = open.iter().map(|(runs, _)| *runs).min()?;
        open.retain(|(runs, _)| *runs == fewest);
        Some(open[self.random.below(open.len())].1)
    }

    /// A run of that window carried so many messages a second; 0 if it failed.
    pub(crate) fn learn(&mut self, window: Window, rate_per_s: f64) {
        self.runs += 1;
        match window {
            Window::Fixed(window) => self.curve.entry(window).or_default().push(rate_per_s),
            Window::Auto => self.tuned.0 += 1,
            Window::None => unreachable!("it is never asked for"),
        }
    }
}

/// The knee of a curve; `None` if nothing was carried. The same `seed` gives the same interval.
pub(crate) fn finding(curve: &Curve, seed: u64) -> Option<Finding> {
    let crossing = crossing(&medians(curve))?;
    let decides = [crossing.below.map(|(window, _)| window), Some(crossing.at.0)];
    let sure = decides.into_iter().flatten().all(|window| curve[&window].len() >= REPETITIONS_MIN);
    let last = *curve.keys().next_back()?;
    Some(Finding {
        window: crossing.window(),
        interval: sure.then(|| interval(curve, seed)).flatten(),
        measured: crossing.at.0,
        best: crossing.best.0,
        growing: last >= WINDOW_MAX && !is_flat(curve),
    })
}

/// The percentile bootstrap (Efron, 1979): the runs of each window drawn again with replacement.
fn interval(curve: &Curve, seed: u64) -> Option<(u32, u32)> {
    let mut random = Random::new(seed);
    let mut drawn: Vec<u32> = (0..RESAMPLES)
        .filter_map(|_| {
            let again = curve.iter().map(|(&window, rates)| (window, random.resample(rates)));
            Some(crossing(&medians(&again.collect()))?.window())
        })
        .collect();
    drawn.sort_unstable();
    let at = |quantile: f64| drawn[(quantile * (drawn.len() - 1) as f64).round() as usize];
    (!drawn.is_empty()).then(|| (at(0.025), at(0.975)))
}

/// The next rung of the ladder, unless it is at its end.
fn rung(curve: &Curve) -> Option<u32> {
    let top = climbed(curve).last().map(|&(window, _)| window);
    match top {
        None => Some(WINDOW_MIN),
        Some(top) if top >= WINDOW_MAX || is_flat(curve) => None,
        Some(top) => Some(top * RUNG),
    }
}

/// The rungs that were measured, upwards, with their median rates.
fn climbed(curve: &Curve) -> Vec<(u32, f64)> {
    let rungs = std::iter::successors(Some(WINDOW_MIN), |rung| rung.checked_mul(RUNG));
    rungs.map_while(|rung| Some((rung, median(curve.get(&rung)?)?))).collect()
}

/// Whether the last rungs gained nothing over those before them.
fn is_flat(curve: &Curve) -> bool {
    let rates: Vec<f64> = climbed(curve).into_iter().map(|(_, rate)| rate).collect();
    let Some(before) = rates.len().checked_sub(FLAT_RUNGS) else { return false };
    let best = rates[..before].iter().copied().fold(0.0, f64::max);
    best > 0.0 && rates[before..].iter().all(|rate| RATE_MIN * rate < best)
}

fn medians(curve: &Curve) -> Vec<(u32, f64)> {
    let medians = curve.iter().map(|(&window, rates)| (window, median(rates).unwrap_or(0.0)));
    medians.collect()
}

/// Where a curve reaches 95 % of its best rate: pairs of window and rate.
#[derive(Debug, Clone, Copy)]
struct Crossing {
    /// The next window below; `None` if the least one is enough.
    below: Option<(u32, f64)>,
    /// The least window with enough.
    at: (u32, f64),
    best: (u32, f64),
}

fn crossing(medians: &[(u32, f64)]) -> Option<Crossing> {
    let best = medians.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let index = medians.iter().position(|(_, rate)| *rate >= RATE_MIN * best.1)?;
    let below = index.checked_sub(1).map(|below| medians[below]);
    (best.1 > 0.0).then_some(Crossing { below, at: medians[index], best })
}

impl Crossing {
    /// The window half way between the two, unless they are near.
    fn between(&self) -> Option<u32> {
        let (below, at) = (self.below?.0, self.at.0);
        if at <= below + 1 || f64::from(at) <= NEAR * f64::from(below) {
            return None;
        }
        let middle = (f64::from(below) * f64::from(at)).sqrt().round() as u32;
        Some(middle.clamp(below + 1, at - 1))
    }

    /// On the straight line between the two, with both axes logarithmic.
    fn window(&self) -> u32 {
        let (at, rate) = self.at;
        let Some((below, rate_below)) = self.below.filter(|(_, rate)| *rate > 0.0) else {
            return at;
        };
        let way = (RATE_MIN * self.best.1 / rate_below).ln() / (rate / rate_below).ln();
        let window = f64::from(below) * (f64::from(at) / f64::from(below)).powf(way);
        (window.ceil() as u32).clamp(below, at)
    }
}

#[cfg(test)]
mod tests;
