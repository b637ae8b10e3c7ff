//! Jobs that wait behind busy workers while others are idle. Published by users of a pipeline in which each of two
//! producers served each of 25 workers by itself: two jobs that came within 2 ms ran one after the other.
//!
//! ```text
//!   queue ─┬─▶ consumer 1 ─▶ workers 1 to 13     25 jobs at once for 25 workers: each should start
//!          └─▶ consumer 2 ─▶ workers 14 to 25    at once, whoever holds it
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_client::{Connection, Route};
use tokio::sync::{Semaphore, mpsc};

use super::{Case, Demand, Findings, Place, block_on, queue, told};

const WORKERS: usize = 25;
/// How long a job takes.
const JOB: Duration = Duration::from_millis(500);
/// When the last job of those that came together is to have started.
const START_MS_MAX: f64 = 50.0;
/// How often they come; the first time finds consumers that know nothing of their jobs yet.
const ROUNDS: usize = 3;
const QUEUE: &str = "forebay-hoarding";
/// Nothing takes so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Deliveries that a consumer may hold.
#[derive(Clone, Copy)]
enum Held {
    /// What its workers can take.
    Tuned,
    Fixed(u16),
}

pub(super) fn run(place: &Place) -> Result<Findings, String> {
    block_on(async {
        let (mut cases, mut demands) = (Vec::new(), Vec::new());
        for (held, name) in [(Held::Tuned, "credit auto"), (Held::Fixed(50), "prefetch 50")] {
            for consumers in [1, 2, 8] {
                let latest_ms = latest_start_ms(place, consumers, held).await?;
                let case = format!("{consumers} consumers, {name}");
                if matches!(held, Held::Tuned) {
                    let what = format!("last start, {consumers} consumers");
                    demands.push(Demand::at_most(&what, latest_ms, START_MS_MAX, "ms"));
                }
                cases.push(Case::new(case).with("last job started after", latest_ms, "ms"));
            }
        }
        Ok(Findings { cases, demands })
    })
}

/// From the moment all jobs were published to the start of the last one; the worst round.
async fn latest_start_ms(place: &Place, consumers: usize, held: Held) -> Result<f64, String> {
    let connection = Connection::open(&place.url).await.map_err(told)?;
    queue::fresh(&connection, place, QUEUE).await?;
    let (started, mut starts) = mpsc::channel(WORKERS);
    let mut sources = Vec::new();
    for source in 0..consumers {
        let workers = WORKERS / consumers + usize::from(source < WORKERS % consumers);
        let own = Connection::open(&place.url).await.map_err(told)?;
        sources.push(tokio::spawn(work(own, workers, held, started.clone())));
    }
    drop(started);
    let publisher = connection.publisher(Route::queue(QUEUE)).build().await.map_err(told)?;
    let mut worst_ms: f64 = 0.0;
    for _ in 0..ROUNDS {
        let mut outcomes = Vec::new();
        for _ in 0..WORKERS {
            outcomes.push(publisher.publish("job").await.map_err(told)?);
        }
        for outcome in outcomes {
            outcome.await.map_err(told)?;
        }
        let published = Instant::now();
        for _ in 0..WORKERS {
            let start = tokio::time::timeout(PATIENCE, starts.recv()).await;
            let start: Instant = match start {
                Ok(Some(start)) => start,
                _ => return Err("a job was never started".to_owned()),
            };
            let waited = start.saturating_duration_since(published);
            worst_ms = worst_ms.max(waited.as_secs_f64() * 1e3);
        }
        // All have started, so all end within the time of one.
        tokio::time::sleep(JOB + JOB / 5).await;
    }
    for source in sources {
        source.abort();
    }
    queue::delete(&connection, QUEUE).await?;
    connection.close().await.map_err(told)?;
    Ok(worst_ms)
}

/// A consumer whose workers take what it holds, each a job at a time.
async fn work(
    connection: Connection,
    workers: usize,
    held: Held,
    started: mpsc::Sender<Instant>,
) -> Result<(), String> {
    let consumer = connection.consumer(QUEUE).workers(workers as u16);
    let consumer = match held {
        Held::Tuned => consumer,
        Held::Fixed(deliveries) => consumer.fixed_credit(deliveries),
    };
    let mut consumer = consumer.build().await.map_err(told)?;
    let idle = Arc::new(Semaphore::new(workers));
    loop {
        let worker = idle.clone().acquire_owned().await.map_err(told)?;
        let Some(job) = consumer.next().await.map_err(told)? else { return Ok(()) };
        let started = started.clone();
        tokio::spawn(async move {
            // Whoever counts the starts may have seen enough.
            let _ = started.send(Instant::now()).await;
            tokio::time::sleep(JOB).await;
            job.ack();
            drop(worker);
        });
    }
}
