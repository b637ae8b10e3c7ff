//! The grid: in each cell every fixed window beside the one that tunes itself, in any order, again and
//! again.
//!
//! ```text
//!   without --judge   --repeat rounds of all windows; the same runs choose the best one and judge by it
//!   with --judge N    --repeat rounds of the fixed ones choose best and knee; then N rounds of these two and
//!                     the tuned one, in any order, judge, each by its ratios within the round
//! ```
//!
//! The best of many windows, each measured a few times on a machine whose speed wanders, owes a part of its lead
//! to luck, and what is compared with the same runs pays for it. Runs that had no part in the choice do not have it,
//! and what slows a whole round is not in its ratios.

use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::oneshot;
use tokio::time::sleep_until;

use super::broker::{Broker, Queue};
use super::cell::{Cell, Choice, WINDOWS, round_the_best};
use super::load::Load;
use super::setting::{Setting, ms, rate, say};
use super::verdict::{Grade, Verdict};
use super::way::Way;
use crate::knee::{Shown, best, knee};
use crate::occasion::Occasion;
use crate::report::{LatencyReport, fairness};
use crate::spread::{Random, Ratio, median};

/// What the grid varies.
#[derive(clap::Args, Debug, Clone)]
pub struct Grid {
    #[command(flatten)]
    pub(super) setting: Setting,
    /// Round trips of the emulated link, in milliseconds; 0 = no link, loopback's own 0.1 ms
    #[arg(long, value_name = "MS", value_delimiter = ',', default_value = "0,10,33,100")]
    rtt: Vec<f64>,
    /// Bandwidths of the emulated link, in megabits a second; 0 = no bound
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "0")]
    mbit: Vec<f64>,
    /// What each flush of the broker's disk takes longer, in milliseconds, by way of a preloaded library
    #[arg(
        long,
        value_name = "MS",
        value_delimiter = ',',
        default_value = "0",
        conflicts_with = "url"
    )]
    flush: Vec<f64>,
    /// Publishers
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,20")]
    publishers: Vec<usize>,
    /// Bytes of a body
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_value = "200,5000")]
    size: Vec<usize>,
    /// Fixed windows; two round the best one are added
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = WINDOWS)]
    windows: Vec<u32>,
    /// First seconds of the tuned run, kept apart; a fixed window gets 1 s of them at most
    #[arg(long, value_name = "S", default_value_t = 5.0)]
    first: f64,
    /// Seconds after them
    #[arg(long, value_name = "S", default_value_t = 5.0)]
    later: f64,
    /// A confirm that takes longer is a timeout, in seconds
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    patience: f64,
    /// Rounds that judge, after those that choose: the best fixed window, the knee and the tuned one in turns; 0 = the
    /// runs that choose judge, too
    #[arg(long, value_name = "N", default_value_t = 0)]
    judge: usize,
    /// Nobody empties the queue
    #[arg(long)]
    no_drain: bool,
}

/// One run of one window.
#[derive(Debug, Clone, Serialize)]
struct Run {
    first_per_s: f64,
    /// Confirmed a second, without what only made the queue longer: that has not been carried.
    later_per_s: f64,
    first: LatencyReport,
    later: LatencyReport,
    /// Median of the publishers' windows at the end.
    window_at_end: u32,
    /// Jain's index between the publishers.
    fairness: f64,
    failed: u64,
    timed_out: u64,
    /// Messages a second by which the queue grew in the later seconds.
    queue_grew_per_s: f64,
}

/// One window and its runs, one a repetition.
#[derive(Debug, Clone, Serialize)]
struct Point {
    window: Choice,
    runs: Vec<Run>,
}

/// One cell, measured and judged.
#[derive(Debug, Clone, Serialize)]
struct Measured {
    cell: Cell,
    /// Of the rounds that choose, and without `--judge` judge.
    points: Vec<Point>,
    /// Of those that only judge, one run of each a round.
    judged: Vec<Point>,
    /// `None` if something could not be measured.
    verdict: Option<Verdict>,
    /// Why.
    error: Option<String>,
}

/// What the record file holds.
#[derive(Serialize)]
struct Record<'a> {
    #[serde(flatten)]
    occasion: &'a Occasion,
    repeat: usize,
    seed: u64,
    first_s: f64,
    later_s: f64,
    patience_s: f64,
    judge: usize,
    queue_type: Option<&'a str>,
    cells: &'a [Measured],
}

impl Grid {
    /// Measures all cells and prints each as it is done; returns whether all are as good as they shall be.
    pub async fn run(&self) -> Result<bool, String> {
        self.check()?;
        let occasion = Occasion::now(
            "forebay-distance",
            self.setting.broker().await?.introduces_itself().await?,
        );
        println!("{}\n", occasion.headline());
        println!("{HEAD}");
        let mut cells = Vec::new();
        for cell in self.cells() {
            let mut measured = Measured {
                cell,
                points: Vec::new(),
                judged: Vec::new(),
                verdict: None,
                error: None,
            };
            measured.error = self.measure(&mut measured).await.err();
            measured.judge(self.setting.seed);
            println!("{}", measured.row());
            cells.push(measured);
            let Setting { repeat, seed, queue_type, .. } = &self.setting;
            self.setting.save(&Record {
                occasion: &occasion,
                repeat: *repeat,
                seed: *seed,
                first_s: self.first,
                later_s: self.later,
                patience_s: self.patience,
                judge: self.judge,
                queue_type: queue_type.as_deref(),
                cells: &cells,
            })?;
        }
        let (met, text) = summary(&cells);
        println!("\n{text}");
        Ok(met)
    }

    fn check(&self) -> Result<(), String> {
        let times = [self.first, self.later, self.patience];
        if !times.iter().all(|time| time.is_finite() && *time > 0.0) {
            return Err("times are above 0".to_owned());
        }
        if self.windows.contains(&0) || self.publishers.contains(&0) || self.setting.repeat == 0 {
            return Err("windows, publishers and repetitions are at least 1".to_owned());
        }
        let mut lengths = self.rtt.iter().chain(&self.mbit).chain(&self.flush);
        if !lengths.all(|value| value.is_finite() && *value >= 0.0) {
            return Err("round trips, bandwidths and flushes are at least 0".to_owned());
        }
        Ok(())
    }

    fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for &rtt_ms in &self.rtt {
            for &mbit in &self.mbit {
                for &flush_ms in &self.flush {
                    for &publishers in &self.publishers {
                        for &size_bytes in &self.size {
                            cells.push(Cell { rtt_ms, mbit, flush_ms, publishers, size_bytes });
                        }
                    }
                }
            }
        }
        cells
    }

    async fn measure(&self, measured: &mut Measured) -> Result<(), String> {
        let cell = measured.cell;
        let Cell { rtt_ms, mbit, flush_ms, .. } = cell;
        let broker = self.setting.broker_on((flush_ms > 0.0).then_some(flush_ms)).await?;
        let way = Way::to(&broker, rtt_ms, mbit, self.setting.routed)?;
        let mut random = Random::new(self.setting.seed);
        for repetition in 0..self.setting.repeat {
            let mut choices: Vec<Choice> = match repetition {
                0 => self.windows.iter().copied().map(Choice::Fixed).collect(),
                _ => measured.points.iter().map(|point| point.window).collect(),
            };
            if repetition == 0 && self.judge == 0 {
                choices.push(Choice::Tuned);
            }
            random.shuffle(&mut choices);
            self.runs(cell, &mut measured.points, &broker, &way, &choices).await?;
            let fixed = measured.fixed();
            if repetition == 0
                && let Some(best) = best(&fixed)
            {
                let added = round_the_best(&self.windows, fixed[best].0);
                let added: Vec<Choice> = added.into_iter().map(Choice::Fixed).collect();
                self.runs(cell, &mut measured.points, &broker, &way, &added).await?;
            }
        }
        measured.points.sort_by_key(|point| point.window);
        let fixed = measured.fixed();
        if let (Some(best), Some(knee)) = (best(&fixed), knee(&fixed)) {
            let mut choices = vec![Choice::Fixed(fixed[best].0), Choice::Fixed(fixed[knee].0)];
            choices.dedup();
            choices.push(Choice::Tuned);
            for _ in 0..self.judge {
                random.shuffle(&mut choices);
                self.runs(cell, &mut measured.judged, &broker, &way, &choices).await?;
            }
        }
        Ok(())
    }

    /// One run of each of these windows, in this order, added to `points`.
    async fn runs(
        &self,
        cell: Cell,
        points: &mut Vec<Point>,
        broker: &Broker,
        way: &Way,
        choices: &[Choice],
    ) -> Result<(), String> {
        for &choice in choices {
            let run = self.one(cell, broker, way, choice).await?;
            let line = format!(
                "  {}, window {choice}: {} p50 {} p99 {}, first seconds {}",
                cell,
                rate(run.later_per_s),
                ms(run.later.p50_us as f64),
                ms(run.later.p99_us as f64),
                rate(run.first_per_s),
            );
            say(&line);
            match points.iter_mut().find(|point| point.window == choice) {
                Some(point) => point.runs.push(run),
                None => points.push(Point { window: choice, runs: vec![run] }),
            }
        }
        Ok(())
    }

    async fn one(
        &self,
        cell: Cell,
        broker: &Broker,
        way: &Way,
        choice: Choice,
    ) -> Result<Run, String> {
        let kind = self.setting.queue_type.as_deref();
        let mut queue = Queue::declare(broker, "forebay-distance", kind, !self.no_drain).await?;
        let first = match choice {
            Choice::Tuned => self.first,
            Choice::Fixed(_) => self.first.min(1.0),
        };
        let load = Load {
            url: way.url(broker)?,
            queue: queue.name.clone(),
            publishers: cell.publishers,
            size_bytes: cell.size_bytes,
            choice,
            first: Duration::from_secs_f64(first),
            later: Duration::from_secs_f64(self.later),
            patience: Duration::from_secs_f64(self.patience),
            kernel_rtt: self.setting.kernel_rtt || way.is_the_kernels(),
        };
        let (began, when) = oneshot::channel();
        let (seen, queue_grew_per_s) = tokio::join!(
            load.run(|now| {
                let _ = began.send(now);
            }),
            growth(&queue, broker, when, load.first, load.later),
        );
        let (mut seen, queue_grew_per_s) = (seen?, queue_grew_per_s?);
        queue.delete(broker).await?;
        seen.windows.sort_unstable();
        Ok(Run {
            first_per_s: seen.tally.first_per_s(),
            later_per_s: (seen.tally.later_per_s() - queue_grew_per_s).max(0.0),
            first: LatencyReport::of(&seen.tally.first.0),
            later: LatencyReport::of(&seen.tally.later.0),
            window_at_end: seen.windows[seen.windows.len() / 2],
            fairness: fairness(&seen.shares),
            failed: seen.tally.failed,
            timed_out: seen.tally.timed_out,
            queue_grew_per_s,
        })
    }
}

/// Messages a second by which the queue grows in the later part of a run that begins `when` it is told; at
/// least 0, for what was there before is not this part's merit.
async fn growth(
    queue: &Queue,
    broker: &Broker,
    when: oneshot::Receiver<Instant>,
    first: Duration,
    later: Duration,
) -> Result<f64, String> {
    let Ok(began) = when.await else { return Ok(0.0) }; // the run failed and says why
    sleep_until((began + first).into()).await;
    let (before, asked) = (queue.messages(broker, true).await?, Instant::now());
    sleep_until((began + first + later).into()).await;
    let grew = queue.messages(broker, true).await?.saturating_sub(before);
    Ok(f64::from(grew) / asked.elapsed().as_secs_f64())
}

impl Measured {
    fn fixed(&self) -> Vec<(u32, Shown)> {
        let fixed = self.points.iter().filter_map(|point| match point.window {
            Choice::Fixed(window) => Some((window, point.shown())),
            Choice::Tuned => None,
        });
        fixed.collect()
    }

    /// What is judged: the runs that had no part in the choice, where there are some.
    fn point(&self, window: Choice) -> Option<&Point> {
        let points = if self.judged.is_empty() { &self.points } else { &self.judged };
        points.iter().find(|point| point.window == window)
    }

    fn judge(&mut self, seed: u64) {
        if self.error.is_none() {
            let shown = |window| self.point(window).map(Point::shown);
            let apart = |window| shown(Choice::Fixed(window)).filter(|_| !self.judged.is_empty());
            self.verdict = shown(Choice::Tuned)
                .and_then(|tuned| Verdict::of(&self.fixed(), &tuned, apart, seed));
        }
    }

    /// One row of the table.
    fn row(&self) -> String {
        let (Some(verdict), Some(tuned)) = (&self.verdict, self.point(Choice::Tuned)) else {
            let error = self.error.as_deref().unwrap_or("nothing was measured");
            return format!("| {} | | | | | | | | **FAIL**: {error} |", self.cell);
        };
        let point = |window| self.point(Choice::Fixed(window));
        let of = |point: Option<&Point>| point.map(Point::shown).unwrap_or_default();
        let (best, knee, tuned_shown) =
            (of(point(verdict.best)), of(point(verdict.knee)), tuned.shown());
        let middle = |values: &[f64]| median(values).unwrap_or(0.0);
        let windows: Vec<f64> = tuned.runs.iter().map(|run| f64::from(run.window_at_end)).collect();
        let grade = match verdict.grade {
            Grade::Pass if verdict.no_difference => "pass (any window does)".to_owned(),
            Grade::Pass => "pass".to_owned(),
            Grade::Near => "near".to_owned(),
            Grade::Fail => format!("**FAIL**: {}", verdict.missed.join("; ")),
        };
        format!(
            "| {} | {} ({}) | {} ({:.0}) | {} | {} ({}) | {} | {} | {:.0} % | {grade} |",
            self.cell,
            rate(middle(&best.rate_per_s)),
            verdict.best,
            rate(middle(&tuned_shown.rate_per_s)),
            middle(&windows),
            percent(&verdict.rate),
            ms(middle(&knee.p99_us)),
            verdict.knee,
            ms(middle(&tuned_shown.p99_us)),
            times(&verdict.p99),
            verdict.first.value * 100.0,
        )
    }
}

impl Point {
    fn shown(&self) -> Shown {
        Shown {
            rate_per_s: self.runs.iter().map(|run| run.later_per_s).collect(),
            p99_us: self.runs.iter().map(|run| run.later.p99_us as f64).collect(),
            first_per_s: self.runs.iter().map(|run| run.first_per_s).collect(),
            failed: self.runs.iter().map(|run| run.failed + run.timed_out).sum(),
        }
    }
}

const HEAD: &str = "\
| cell | best fixed (window) | tuned (window) | rate, 95 % CI | knee's p99 (window) | tuned p99 | p99, 95 % CI | first seconds | |
|---|---|---|---|---|---|---|---|---|";

fn percent(ratio: &Ratio) -> String {
    let value = ratio.value * 100.0;
    match ratio.interval {
        Some((low, high)) => format!("{value:.0} % ({:.0} to {:.0})", low * 100.0, high * 100.0),
        None => format!("{value:.0} %"),
    }
}

fn times(ratio: &Ratio) -> String {
    match ratio.interval {
        Some((low, high)) => format!("{:.2} x ({low:.2} to {high:.2})", ratio.value),
        None => format!("{:.2} x", ratio.value),
    }
}

/// Whether the cells together are good enough: all pass, or the worst rates are between 90 and 95 %.
fn summary(cells: &[Measured]) -> (bool, String) {
    let count = |grade: Grade| {
        let graded = cells.iter().filter_map(|cell| cell.verdict.as_ref());
        graded.filter(|verdict| verdict.grade == grade).count()
    };
    let (pass, near) = (count(Grade::Pass), count(Grade::Near));
    let fail = cells.len() - pass - near;
    let text = format!(
        "{} cells: {pass} pass, {near} near (90 to 95 % of the best rate), {fail} FAIL",
        cells.len()
    );
    (fail == 0, text)
}
