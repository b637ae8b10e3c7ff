//! A consumer: one region's queue, on its own connection, with manual acknowledgement.

use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_client::blocking::{Connection, ConsumeOptions, Message};
use forebay_wire::Value;
use serde::Deserialize;

use super::gauges::Gauges;
use super::publisher::SENT_US;
use super::readings::{month_of, tenths};
use super::station::queue_of;
use super::statistics::Statistics;

/// Deliveries that may be unacked at a time.
const PREFETCH: u16 = 2000;
/// Messages after which an ack is sent even if more are waiting.
const ACK_EVERY: u64 = 256;

/// A message as the stations write it.
#[derive(Deserialize)]
struct Body<'a> {
    #[serde(rename = "station")]
    _station: &'a str,
    time: &'a str,
    pressure: f64,
    temperature: f64,
    wind: f64,
}

/// Consumes until told to stop, returns what it computed.
pub(super) fn run(url: &str, region: &str, gauges: &Gauges) -> Statistics {
    let mut statistics = Statistics::default();
    if let Err(sentence) = consume(url, region, gauges, &mut statistics) {
        gauges.fail(format!("the consumer of {}: {sentence}", queue_of(region)));
    }
    statistics
}

fn consume(
    url: &str,
    region: &str,
    gauges: &Gauges,
    statistics: &mut Statistics,
) -> Result<(), String> {
    let name = format!("forebay demo, consumer of {region}");
    let connection = Connection::open_named(url, Some(&name)).map_err(|error| error.to_string())?;
    let mut channel = connection.channel().map_err(|fault| fault.to_string())?;
    let options = ConsumeOptions { prefetch: PREFETCH, ..Default::default() };
    let mut consumer =
        channel.consume(&queue_of(region), options).map_err(|error| error.to_string())?;
    while !gauges.stop_consuming.load(Ordering::Relaxed) {
        let first = consumer
            .next_message(Some(Duration::from_millis(50)))
            .map_err(|error| error.to_string())?;
        let Some(first) = first else { continue };
        let now_us = gauges.now_us();
        let mut latency = gauges.end_to_end.lock();
        let (mut last_tag, mut count) = (0, 0);
        let mut next = Some(first);
        while let Some(message) = next {
            let sent_us = take(&message, statistics)?;
            latency.saturating_record(now_us.saturating_sub(sent_us));
            last_tag = message.delivery_tag();
            count += 1;
            next = if count < ACK_EVERY { consumer.take_ready() } else { None };
        }
        drop(latency);
        channel
            .ack(last_tag, true)
            .and_then(|()| channel.flush())
            .map_err(|fault| fault.to_string())?;
        gauges.consumed.fetch_add(count, Ordering::Relaxed);
    }
    connection.close().map_err(|lost| lost.to_string())
}

/// Computes with one message; returns when it was sent.
fn take(message: &Message, statistics: &mut Statistics) -> Result<u64, String> {
    let body: Body<'_> = serde_json::from_slice(message.body())
        .map_err(|error| format!("a message is not what was published: {error}"))?;
    let month = month_of(body.time).ok_or("a message has no valid time")?;
    statistics.take(month, tenths(body.temperature), tenths(body.pressure), tenths(body.wind));
    let headers = message.properties().headers;
    match headers.and_then(|headers| headers.get(SENT_US)) {
        Some(Value::I64(sent_us)) => Ok(sent_us as u64),
        _ => Err("a message lost its header".into()),
    }
}
