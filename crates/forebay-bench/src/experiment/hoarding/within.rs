//! The same mix within one pipeline, without a broker.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use forebay_pipeline::{Item, Pipeline, source};

use super::idle::Span;
use crate::experiment::told;

pub(super) const WORKERS: usize = 25;
/// Short jobs come one by one meanwhile.
const SHORT: Duration = Duration::from_millis(1);
const SHORT_JOBS_MAX: usize = 1_000;
/// A job that computes keeps its thread for so long. One comes with every so manieth short one.
const COMPUTING: Duration = Duration::from_millis(5);
const COMPUTING_EVERY: usize = 10;

/// What keeps all workers but one busy, or a thread.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Beside {
    /// Jobs that wait for as long as this.
    Long(Duration),
    /// Jobs that compute without waiting for anything, for as long as this altogether, with pauses.
    Computing(Duration),
}

/// A job: when it came, and how long it takes.
struct Job {
    came: Instant,
    length: Duration,
    computes: bool,
}

/// Runs the mix, from so many sources in turn; tells how each job went, by a clock that `began` then.
pub(super) async fn run(
    began: Instant,
    sources: usize,
    beside: Beside,
) -> Result<Vec<Span>, String> {
    let us = move |at: Instant| at.saturating_duration_since(began).as_micros() as u64;
    let spans = Arc::new(Mutex::new(Vec::with_capacity(2 * SHORT_JOBS_MAX + WORKERS)));
    let seen = spans.clone();
    let handler = move |job: Item<Job>| {
        let (begun, seen) = (Instant::now(), seen.clone());
        async move {
            if job.computes {
                while begun.elapsed() < job.length {
                    std::hint::spin_loop();
                }
            } else {
                tokio::time::sleep(job.length).await;
            }
            let span =
                Span { came_us: us(job.came), begun_us: us(begun), done_us: us(Instant::now()) };
            seen.lock().unwrap_or_else(PoisonError::into_inner).push(span);
        }
    };
    let (jobs, taken): (Vec<_>, Vec<_>) = (0..sources.max(1)).map(|_| source::test()).unzip();
    let running = Pipeline::from(source::merge(taken)).process(WORKERS, handler).start();
    let mut turns = (0..jobs.len()).cycle();
    let mut give = |length, computes| {
        let turn = turns.next().unwrap_or_default();
        drop(jobs[turn].send(Job { came: Instant::now(), length, computes }));
    };
    let lasts = match beside {
        Beside::Long(long) => {
            (1..WORKERS).for_each(|_| give(long, false));
            long * 3 / 4
        }
        Beside::Computing(lasts) => lasts,
    };
    let until = Instant::now() + lasts;
    let mut count = 0;
    while Instant::now() < until && count < SHORT_JOBS_MAX {
        if matches!(beside, Beside::Computing(_)) && count % COMPUTING_EVERY == 0 {
            give(COMPUTING, true);
        }
        give(SHORT, false);
        count += 1;
        tokio::time::sleep(SHORT * 2).await;
    }
    drop(jobs);
    running.join().await.map_err(told)?;
    Ok(std::mem::take(&mut *spans.lock().unwrap_or_else(PoisonError::into_inner)))
}
