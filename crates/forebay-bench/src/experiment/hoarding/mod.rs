//! Jobs that wait behind busy workers while others are idle. Published by users of a pipeline in which each of two
//! producers served each of 25 workers by itself: two jobs that came within 2 ms ran one after the other.
//!
//! ```text
//!   queue ─┬─▶ consumer 1 ─┬─▶ workers 1 to 25     25 jobs at once for 25 workers: each should start
//!          └─▶ consumer 2 ─┘   of one process      at once, whoever holds it
//! ```
//! Three questions, each with credit that follows the workers and with a prefetch set by hand, corrected as a pipeline does
//! it or kept as it is: do all start when they
//! come together, from however many consumers the workers take; when they are there before the second process is; and
//! do short jobs wait behind long ones.

mod bare;
mod crew;
mod idle;
mod within;

use std::time::{Duration, Instant};

use forebay_client::Connection;

use self::bare::BareThreads;
pub(super) use self::crew::QUEUE;
use self::crew::{Crew, Held, Jobs};
use self::idle::{Span, worst_wait_beside_idle_us, worst_wait_of_its_own_us};
use self::within::Beside;
use super::findings::Drawn;
use super::{Case, Demand, Findings, Place, block_on, queue, told};

const WORKERS: usize = 25;
/// How long a job takes of those that come together.
const JOB: Duration = Duration::from_millis(500);
/// When the last job of those that came together is to have started.
const START_MS_MAX: f64 = 50.0;
/// How often they come; the first time finds consumers that know nothing of their jobs yet.
const ROUNDS: usize = 3;
/// What is set by hand: below the number of workers, as many, and many times as many. Processes with consumers for their
/// workers.
const PREFETCHES: [u16; 3] = [5, 25, 250];
const SOURCES: [(usize, usize); 6] = [(1, 1), (2, 1), (8, 1), (1, 2), (1, 8), (2, 8)];

/// Processes with the short and long jobs, workers of each, and long jobs: all workers but one are busy.
const MIXED_PROCESSES: usize = 2;
const MIXED_WORKERS: usize = 2;
const LONG_JOBS: usize = 3;
const SHORT: Duration = Duration::from_millis(1);
/// A long job takes this part of a measurement: 1 s unless `--seconds` is given.
const LONG_OF_LENGTH: u32 = 10;
const SHORT_JOBS_MAX: usize = 1_000;
/// What a job may wait beside an idle worker of another process, and of its own.
const ACROSS_MS_MAX: f64 = 100.0;
const WITHIN_MS_MAX: f64 = 1.0;

pub(super) fn run(place: &Place) -> Result<Findings, String> {
    let long = place.length / LONG_OF_LENGTH;
    block_on(async {
        let mut findings = Findings::default();
        let connection = place.connect().await?;
        let live = connection.server().can("forebay.live_credit");
        connection.close().await.map_err(told)?;
        let by_hand = PREFETCHES.map(Held::Fixed);
        for held in std::iter::once(Held::Tuned).chain(by_hand) {
            for (processes, sources) in SOURCES {
                let latest_ms = together(place, processes, sources, held).await?;
                let name = format!("{}, {held}", whose(processes, sources));
                if held.suffices(processes, live) {
                    let what = format!("last start, {name}");
                    findings.demands.push(Demand::at_most(&what, latest_ms, START_MS_MAX, "ms"));
                }
                let case = Case::new(name).with("last job started after", latest_ms, "ms");
                findings.cases.push(case);
            }
        }
        let variants = [Held::Tuned, Held::Fixed(50), Held::Kept(50)];
        for held in variants {
            let name = format!("jobs first, {held}");
            let (latest_ms, drawn) = jobs_first(place, held, &name).await?;
            let case = Case::new(name).with("last job started after", latest_ms, "ms");
            findings.cases.push(held.draw(case, drawn));
            if held.suffices(2, live) {
                let what = format!("last start, jobs before consumers, {held}");
                findings.demands.push(Demand::at_most(&what, latest_ms, START_MS_MAX, "ms"));
            }
        }
        for (held, sources, name) in [
            (Held::Tuned, 1, "credit auto"),
            (Held::Tuned, 8, "8 consumers each, credit auto"),
            (Held::Fixed(50), 1, "prefetch 50"),
            (Held::Kept(50), 1, "prefetch 50, kept"),
        ] {
            let name = format!("1 ms and {} s, {name}", long.as_secs_f64());
            let (worst_ms, drawn) = mixed(place, sources, held, long, &name).await?;
            let case = Case::new(name).with("waited beside an idle worker", worst_ms, "ms");
            findings.cases.push(if sources == 1 { held.draw(case, drawn) } else { case });
            if held.suffices(MIXED_PROCESSES, live) {
                let what = format!(
                    "wait beside an idle worker of another process, {}, {held}",
                    whose(MIXED_PROCESSES, sources)
                );
                findings.demands.push(Demand::at_most(&what, worst_ms, ACROSS_MS_MAX, "ms"));
            }
        }
        let long_ones = format!("1 ms and {} s, one pipeline", long.as_secs_f64());
        for (beside, sources, name) in [
            (Beside::Long(long), 1, long_ones.clone()),
            (Beside::Long(long), 8, format!("{long_ones} of 8 sources")),
            (Beside::Computing(long), 1, "1 ms beside 5 ms of computing, one pipeline".into()),
        ] {
            in_pipeline(beside, sources, name, &mut findings).await?;
        }
        Ok(findings)
    })
}

/// The longest waits of some rounds in one pipeline: all of it, and without the times at which bare threads were late, too.
async fn in_pipeline(
    beside: Beside,
    sources: usize,
    name: String,
    findings: &mut Findings,
) -> Result<(), String> {
    let (mut waits_ms, mut own_ms, mut late_ms) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let began = Instant::now();
        let bare = BareThreads::start(began)?;
        let spans = within::run(began, sources, beside).await?;
        let late = bare.late();
        late_ms.push(ms(late.iter().map(|(due, woke)| woke - due).max().unwrap_or(0)));
        waits_ms.push(ms(worst_wait_beside_idle_us(&spans, within::WORKERS)));
        own_ms.push(ms(worst_wait_of_its_own_us(&spans, within::WORKERS, late)));
    }
    let worst = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    // Beside one that computes the kernel decides: it lets a thread that it woke wait for that one's processor, though
    // another is idle.
    if matches!(beside, Beside::Long(_)) {
        let what =
            format!("wait beside an idle worker while the machine was not late itself, {name}");
        findings.demands.push(Demand::at_most(&what, worst(&own_ms), WITHIN_MS_MAX, "ms"));
    }
    let case = Case::new(name)
        .with_spread("waited beside an idle worker", &waits_ms, "ms")
        .with("of it while the machine was not late, at most", worst(&own_ms), "ms")
        .with("the machine was late by at most", worst(&late_ms), "ms");
    findings.cases.push(case);
    Ok(())
}

fn ms(us: u64) -> f64 {
    us as f64 / 1e3
}

fn latest_ms(spans: &[Span]) -> f64 {
    ms(spans.iter().map(|job| job.begun_us - job.came_us).max().unwrap_or(0))
}

fn whose(processes: usize, sources: usize) -> String {
    let several = |count: usize| if count == 1 { "" } else { "s" };
    match (processes, sources) {
        (1, _) => format!("{sources} consumer{}", several(sources)),
        (_, 1) => format!("{processes} processes"),
        _ => format!("{processes} processes of {sources} consumers"),
    }
}

/// How many of the workers the process number `process` of `processes` has.
fn workers_of(process: usize, processes: usize) -> usize {
    WORKERS / processes + usize::from(process < WORKERS % processes)
}

/// From the moment all jobs were in the queue to the start of the last one; the worst round.
async fn together(
    place: &Place,
    processes: usize,
    sources: usize,
    held: Held,
) -> Result<f64, String> {
    let connection = place.connect().await?;
    queue::fresh(&connection, place, QUEUE).await?;
    let mut crew = Crew::new();
    for process in 0..processes {
        crew.hire(place, workers_of(process, processes), sources, held).await?;
    }
    let mut jobs = Jobs::new(&connection, place).await?;
    let mut worst_ms: f64 = 0.0;
    for _ in 0..ROUNDS {
        jobs.together(WORKERS, JOB).await?;
        let done = crew.done(WORKERS).await?;
        let spans: Vec<Span> = done.iter().map(|job| jobs.span(job)).collect();
        worst_ms = worst_ms.max(latest_ms(&spans));
    }
    finish(connection, place, crew).await?;
    Ok(worst_ms)
}

/// The same with two processes that come, one after the other, when the jobs are there: from the moment the second one
/// consumes.
async fn jobs_first(place: &Place, held: Held, name: &str) -> Result<(f64, Drawn), String> {
    let connection = place.connect().await?;
    queue::fresh(&connection, place, QUEUE).await?;
    let mut jobs = Jobs::new(&connection, place).await?;
    jobs.together(WORKERS, JOB).await?;
    let mut crew = Crew::new();
    for process in 0..2 {
        crew.hire(place, workers_of(process, 2), 1, held).await?;
    }
    jobs.came_now(0..WORKERS as u64);
    let done = crew.done(WORKERS).await?;
    finish(connection, place, crew).await?;
    let spans: Vec<Span> = done.iter().map(|job| jobs.span(job)).collect();
    let latest_ms = latest_ms(&spans);
    let title = format!("{name}: the last one started after {latest_ms:.0} ms");
    Ok((latest_ms, jobs.drawn(title, &done)))
}

/// Short jobs come one by one while all workers but one are busy with long ones: the longest that a job waited while a
/// worker was idle.
async fn mixed(
    place: &Place,
    sources: usize,
    held: Held,
    long: Duration,
    name: &str,
) -> Result<(f64, Drawn), String> {
    let connection = place.connect().await?;
    queue::fresh(&connection, place, QUEUE).await?;
    let mut crew = Crew::new();
    for _ in 0..MIXED_PROCESSES {
        crew.hire(place, MIXED_WORKERS, sources, held).await?;
    }
    let mut jobs = Jobs::new(&connection, place).await?;
    // Consumers that have seen short jobs only, as they would most of the time.
    let mut count = 0;
    while count < SHORT_JOBS_MAX / 10 {
        jobs.one(SHORT).await?;
        count += 1;
    }
    for _ in 0..LONG_JOBS {
        jobs.one(long).await?;
    }
    let until = Instant::now() + long * 3 / 4;
    while Instant::now() < until && count < SHORT_JOBS_MAX {
        jobs.one(SHORT).await?;
        count += 1;
        tokio::time::sleep(SHORT).await;
    }
    let done = crew.done(count + LONG_JOBS).await?;
    finish(connection, place, crew).await?;
    let spans: Vec<Span> = done.iter().map(|job| jobs.span(job)).collect();
    let worst_ms = ms(worst_wait_beside_idle_us(&spans, MIXED_PROCESSES * MIXED_WORKERS));
    let title = format!("{name}: a job waited {worst_ms:.0} ms beside an idle worker");
    Ok((worst_ms, jobs.drawn(title, &done)))
}

async fn finish(connection: Connection, place: &Place, crew: Crew) -> Result<(), String> {
    drop(crew);
    queue::delete(&connection, place, QUEUE).await?;
    connection.close().await.map_err(told)
}
