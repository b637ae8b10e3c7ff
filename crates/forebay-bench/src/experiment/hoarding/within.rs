//! The same mix within one pipeline, without a broker.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use forebay_pipeline::{Item, Pipeline, source};

use super::idle::Span;
use crate::experiment::told;

pub(super) const WORKERS: usize = 25;
/// Long jobs come as many as workers but one; short ones meanwhile, one by one.
const SHORT: Duration = Duration::from_millis(1);
const SHORT_JOBS_MAX: usize = 1_000;

/// A job: when it came, and how long it takes.
struct Job {
    came: Instant,
    length: Duration,
}

/// Runs the mix; tells how each job went.
pub(super) async fn run(long: Duration) -> Result<Vec<Span>, String> {
    let began = Instant::now();
    let us = move |at: Instant| at.saturating_duration_since(began).as_micros() as u64;
    let spans = Arc::new(Mutex::new(Vec::with_capacity(SHORT_JOBS_MAX + WORKERS)));
    let seen = spans.clone();
    let handler = move |job: Item<Job>| {
        let (begun, seen) = (Instant::now(), seen.clone());
        async move {
            tokio::time::sleep(job.length).await;
            let span =
                Span { came_us: us(job.came), begun_us: us(begun), done_us: us(Instant::now()) };
            seen.lock().unwrap_or_else(PoisonError::into_inner).push(span);
        }
    };
    let (jobs, source) = source::test();
    let running = Pipeline::from(source).process(WORKERS, handler).start();
    let give = |length| drop(jobs.send(Job { came: Instant::now(), length }));
    (1..WORKERS).for_each(|_| give(long));
    let until = Instant::now() + long * 3 / 4;
    let mut count = 0;
    while Instant::now() < until && count < SHORT_JOBS_MAX {
        give(SHORT);
        count += 1;
        tokio::time::sleep(SHORT * 2).await;
    }
    drop(jobs);
    running.join().await.map_err(told)?;
    Ok(std::mem::take(&mut *spans.lock().unwrap_or_else(PoisonError::into_inner)))
}
