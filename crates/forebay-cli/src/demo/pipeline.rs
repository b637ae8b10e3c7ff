//! The pipeline: four queues, readings of a station in order, batches of them into the database.
//!
//! ```text
//!   north ─┐
//!   east  ─┤  merge ─▶ read JSON, each station in order ─▶ batches ─▶ one transaction each ─▶ ack
//!   south ─┤
//!   west  ─┘
//! ```

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use forebay::pipeline::{
    Backoff, Batch, Item, Outcome, Pipeline, Queues, Running, ToBatch, Verdict, source,
};
use forebay_client::{Connection, Received};
use serde::Deserialize;

use super::database::{Arrived, Database, Fate};
use super::gauges::Gauges;
use super::publisher::{EXPLAINED_EVERY, SENT_US};
use super::readings::{month_of, tenths};
use super::station::{REGIONS, of_message_id, queue_of};
use super::statistics::Month;

/// Readings that are parsed at a time.
const WORKERS: usize = 4;
/// A transaction has so many readings, or what has come within this time.
const BATCH_MESSAGES: usize = 4_000;
const BATCH_DELAY: Duration = Duration::from_millis(20);
/// A transaction that fails is tried again so often.
const RETRIES: u32 = 5;
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Where batches go; one at a time has it.
pub(super) type Shared = Arc<Mutex<Database>>;

/// A message as the stations write it.
#[derive(Deserialize)]
struct Body<'a> {
    time: &'a str,
    pressure: f64,
    temperature: f64,
    wind: f64,
}

/// Starts it on the current runtime.
pub(super) fn start(connection: &Connection, database: &Shared, gauges: &Arc<Gauges>) -> Running {
    let queues = REGIONS.map(|region| connection.source(queue_of(region)));
    let (counted, database) = (gauges.clone(), database.clone());
    let gauges = gauges.clone();
    let read = move |message: Item<Received>| {
        let read = read(&message).inspect_err(|sentence| gauges.fail(sentence.clone()));
        std::future::ready(read.map(ToBatch::new))
    };
    let store = move |batch| store(batch, database.clone(), counted.clone());
    Pipeline::from(source::merge(queues))
        .process(WORKERS, read)
        .ordered_by(|message: &Received| station(message).map(|(station, _)| station))
        .retries(Backoff::new(RETRIES, PAUSE_MIN, PAUSE_MAX))
        .on_failure(Outcome::Requeue)
        .explain(EXPLAINED_EVERY, Received::marks)
        .batch("sqlite", BATCH_MESSAGES, BATCH_DELAY, store)
        .start()
}

/// Whose reading it is, and which.
fn station(message: &Received) -> Option<(u16, u64)> {
    of_message_id(message.properties().message_id?.to_str()?)
}

fn read(message: &Received) -> Result<Arrived, String> {
    let (station, number) = station(message).ok_or("a message lost its message-id")?;
    let headers = message.properties().headers;
    let sent_us = headers.and_then(|headers| headers.get(SENT_US)).and_then(|sent| sent.as_i64());
    let sent_us = sent_us.ok_or("a message lost its header")? as u64;
    let body: Body<'_> = serde_json::from_slice(message.body())
        .map_err(|error| format!("a message is not what was published: {error}"))?;
    let month = month_of(body.time).ok_or("a message has no valid time")?;
    let values = Month::of(tenths(body.temperature), tenths(body.pressure), tenths(body.wind));
    Ok(Arrived { station, number, month, values, sent_us })
}

/// One transaction. What it counted is acknowledged after it, and so is what was counted before; what comes too early
/// goes back to its place in the queue.
async fn store(
    batch: Item<Batch<Arrived>>,
    database: Shared,
    gauges: Arc<Gauges>,
) -> Result<(), String> {
    let work = move || {
        let mut database = database.lock().unwrap_or_else(PoisonError::into_inner);
        let fates = database.commit(&batch)?;
        drop(database);
        let now_us = gauges.now_us();
        let mut latency = gauges.end_to_end.lock();
        let (mut counted, mut duplicates) = (0, 0);
        for (index, (arrived, fate)) in batch.iter().zip(fates).enumerate() {
            match fate {
                Fate::Counted => {
                    latency.saturating_record(now_us.saturating_sub(arrived.sent_us));
                    counted += 1;
                }
                Fate::Duplicate => duplicates += 1,
                Fate::Early => drop(batch.settle(index, Verdict::Requeue)),
            }
        }
        drop(latency);
        gauges.transactions.fetch_add(1, Ordering::Relaxed);
        gauges.duplicates.fetch_add(duplicates, Ordering::Relaxed);
        gauges.stored.fetch_add(counted, Ordering::Relaxed);
        Ok(())
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(error.to_string()),
    }
}
