//! A publisher: every fourth station, on its own connection, with confirms.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use forebay_client::blocking::{Channel, ChannelFault, Connection, Publication};
use forebay_wire::{Properties, ShortStr, TableBuf, Value};

use super::gauges::Gauges;
use super::readings::Reading;
use super::station::{EXCHANGE, Station};

/// Publishers, each with a connection. Shares no divisor with the 8,759 readings.
pub(super) const PUBLISHER_COUNT: usize = 4;
/// Publishes of one publisher that may have no confirm yet.
pub(super) const WINDOW: u64 = 256;
/// Messages under way above which publishers pause, so that the demo ends soon after its load even
/// if consuming is slower than publishing.
const UNDER_WAY_MAX: u64 = 100_000;
/// Messages between two looks at the confirms.
const BATCH: usize = 32;
/// Header that carries the time of publishing, in microseconds of the demo's clock.
pub(super) const SENT_US: &str = "sent-us";

/// What all publishers share.
pub(super) struct Load<'a> {
    pub(super) readings: &'a [Reading],
    pub(super) stations: &'a [Station],
    pub(super) gauges: &'a Gauges,
    pub(super) url: &'a str,
}

/// Publishes until told to stop, waits for the last confirm, returns how many were published.
pub(super) fn run(load: &Load<'_>, number: usize) -> u64 {
    let mut published = 0;
    if let Err(sentence) = publish(load, number, &mut published) {
        load.gauges.fail(format!("publisher {number}: {sentence}"));
    }
    published
}

fn publish(load: &Load<'_>, number: usize, published: &mut u64) -> Result<(), String> {
    let name = format!("forebay demo, publisher {number}");
    let connection =
        Connection::open_named(load.url, Some(&name)).map_err(|error| error.to_string())?;
    carry(load, &connection, number, published).map_err(|fault| fault.to_string())?;
    connection.close().map_err(|lost| lost.to_string())
}

fn carry(
    load: &Load<'_>,
    connection: &Connection,
    number: usize,
    published: &mut u64,
) -> Result<(), ChannelFault> {
    let gauges = load.gauges;
    let mut channel = connection.channel()?;
    channel.confirm_select(WINDOW)?;
    // Send times of the unconfirmed, oldest first; at most WINDOW.
    let mut sent_us = VecDeque::with_capacity(WINDOW as usize);
    let mut next = number;
    let mut body = Vec::with_capacity(256);
    while !gauges.stop_publishing.load(Ordering::Relaxed) {
        if gauges.under_way() > UNDER_WAY_MAX {
            channel.pump(Duration::from_millis(1))?;
            thread::sleep(Duration::from_millis(1));
        } else {
            for _ in 0..BATCH {
                let reading = &load.readings[next % load.readings.len()];
                let station = &load.stations[next % load.stations.len()];
                next += PUBLISHER_COUNT;
                body.clear();
                body.extend_from_slice(station.json_head.as_bytes());
                body.extend_from_slice(reading.json_tail.as_bytes());
                let now_us = gauges.now_us();
                let headers = TableBuf::new().with(SENT_US, Value::I64(now_us as i64));
                channel.publish(&Publication {
                    exchange: EXCHANGE,
                    routing_key: &station.routing_key,
                    mandatory: true,
                    properties: Properties {
                        content_type: Some(ShortStr::truncated("application/json")),
                        delivery_mode: Some(2),
                        headers: Some(headers.as_table()),
                        ..Default::default()
                    },
                    body: &body,
                })?;
                *published += 1;
                sent_us.push_back(now_us);
                if sent_us.len() >= WINDOW as usize {
                    collect(&mut channel, gauges, &mut sent_us)?;
                }
            }
            gauges.published.fetch_add(BATCH as u64, Ordering::Relaxed);
            channel.flush()?;
        }
        collect(&mut channel, gauges, &mut sent_us)?;
    }
    while channel.unconfirmed() > 0 {
        channel.pump(Duration::from_millis(100))?;
        collect(&mut channel, gauges, &mut sent_us)?;
    }
    collect(&mut channel, gauges, &mut sent_us)
}

/// Takes the confirms that arrived. Any return or refusal is a failure: every key has its queue.
fn collect(
    channel: &mut Channel,
    gauges: &Gauges,
    sent_us: &mut VecDeque<u64>,
) -> Result<(), ChannelFault> {
    let settled = channel.take_settled();
    if settled.is_empty() {
        return Ok(());
    }
    let now_us = gauges.now_us();
    let mut latency = gauges.confirm.lock();
    for range in settled {
        if !range.acked {
            gauges.fail(format!("the broker rejected {} readings", range.count()));
            continue;
        }
        // Out of order confirms are rare and of the same moment: times are taken oldest first.
        for sent in sent_us.drain(..sent_us.len().min(range.count() as usize)) {
            latency.saturating_record(now_us.saturating_sub(sent));
        }
        gauges.confirmed.fetch_add(range.count(), Ordering::Relaxed);
    }
    drop(latency);
    let returned = channel.take_returns().len();
    if returned > 0 {
        gauges.fail(format!("the broker returned {returned} readings as unroutable"));
    }
    Ok(())
}
