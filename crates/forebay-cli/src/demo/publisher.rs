//! A publisher: every fourth station, on its own connection, with one outcome a reading and a window that tunes itself.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_client::{Connection, Message, Outcome, Route};
use forebay_wire::Value;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::gauges::Gauges;
use super::readings::Reading;
use super::station::{EXCHANGE, Station, message_id};

/// Publishers, each with a connection. Divides the 1000 stations, and shares no divisor with the 8,759 readings: so a
/// station's readings all come from one publisher, in order.
pub(super) const PUBLISHER_COUNT: usize = 4;
/// Messages under way above which publishers pause, so that the demo ends soon after its load even if the pipeline is
/// slower than its publishers.
const UNDER_WAY_MAX: u64 = 20_000;
/// Outcomes that nobody has looked at yet; more than a window ever has.
const OUTCOMES_MAX: usize = 16_384;

/// Header with the time of publishing, in microseconds of the demo's clock.
pub(super) const SENT_US: &str = "sent-us";
/// One reading in so many tells where its time went.
pub(super) const EXPLAINED_EVERY: u64 = 100;

/// What all publishers share.
pub(super) struct Load {
    pub(super) readings: Vec<Reading>,
    pub(super) stations: Vec<Station>,
    pub(super) gauges: Arc<Gauges>,
    pub(super) url: String,
}

/// Publishes until told to stop, waits for the last outcome, returns how many were published.
pub(super) async fn run(load: Arc<Load>, number: usize) -> u64 {
    let mut published = 0;
    if let Err(sentence) = publish(&load, number, &mut published).await {
        load.gauges.fail(format!("publisher {number}: {sentence}"));
    }
    published
}

async fn publish(load: &Load, number: usize, published: &mut u64) -> Result<(), String> {
    let gauges = &load.gauges;
    let builder = Connection::builder().name(format!("forebay demo, publisher {number}"));
    let connection = builder.open(&load.url).await.map_err(|error| error.to_string())?;
    let publisher = connection.publisher(Route::exchange(EXCHANGE, ""));
    let publisher = publisher.explain(EXPLAINED_EVERY).build().await;
    let publisher = publisher.map_err(|fault| fault.to_string())?;
    let (sent, outcomes) = mpsc::channel(OUTCOMES_MAX);
    let collecting = tokio::spawn(collect(outcomes, gauges.clone()));
    while !gauges.stop_publishing.load(Ordering::Relaxed) {
        if gauges.under_way() > UNDER_WAY_MAX {
            sleep(Duration::from_millis(1)).await;
            continue;
        }
        let message = reading(load, number as u64 + *published * PUBLISHER_COUNT as u64);
        let offered_us = gauges.now_us();
        let outcome = publisher.publish(message).await.map_err(|error| error.to_string())?;
        *published += 1;
        gauges.published.fetch_add(1, Ordering::Relaxed);
        if sent.send((offered_us, outcome)).await.is_err() {
            break; // an outcome was bad
        }
    }
    drop(sent);
    collecting.await.map_err(|error| error.to_string())??;
    connection.close().await.map_err(|lost| lost.to_string())
}

/// Reading number `at` of the endless file, by the station whose turn it is.
fn reading(load: &Load, at: u64) -> Message {
    let reading = &load.readings[at as usize % load.readings.len()];
    let stations = load.stations.len() as u64;
    let station = &load.stations[(at % stations) as usize];
    Message::new([station.json_head.as_bytes(), reading.json_tail.as_bytes()].concat())
        .routing_key(&station.routing_key)
        .message_id(message_id(&station.name, at / stations + 1))
        .content_type("application/json")
        .header(SENT_US, Value::I64(load.gauges.now_us() as i64))
}

/// Awaits the outcomes in the order of publishing. All must be good: every key has its queue.
async fn collect(
    mut outcomes: mpsc::Receiver<(u64, Outcome)>,
    gauges: Arc<Gauges>,
) -> Result<(), String> {
    while let Some((offered_us, outcome)) = outcomes.recv().await {
        let confirmed = outcome.await.map_err(|bad| bad.to_string())?;
        gauges.confirm.record(gauges.now_us().saturating_sub(offered_us));
        gauges.confirmed.fetch_add(1, Ordering::Relaxed);
        gauges.republished.fetch_add(u64::from(confirmed.republished), Ordering::Relaxed);
    }
    Ok(())
}
