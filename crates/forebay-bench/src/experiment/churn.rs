//! Clients that come and go, and queues that do.

use std::time::{Duration, Instant};

use forebay_client::blocking::{Connection, DeclareQueue, Publication};
use forebay_wire::{TableBuf, Value};

use super::{Case, Findings, Place, told};
use crate::latency::Latency;
use crate::report::LatencyReport;

/// Clients at a time.
const CLIENTS: usize = 4;
/// Where those publish that come for one message.
const QUEUE: &str = "forebay-churn";
/// That one, and one a client.
pub(super) const QUEUES: [&str; 1 + CLIENTS] =
    [QUEUE, "forebay-churn.0", "forebay-churn.1", "forebay-churn.2", "forebay-churn.3"];

/// What one client does once.
type Once = fn(&Place, &mut Option<Connection>, &str) -> Result<(), String>;

const WAYS: [(&str, Once); 4] = [
    ("connection, publish, close", connection_once),
    ("channel, publish, close", channel_once),
    ("declare, delete, transient", |place, connection, name| {
        declare_once(place, connection, name, false)
    }),
    ("declare, delete, durable", |place, connection, name| {
        declare_once(place, connection, name, true)
    }),
];

pub(super) fn run(place: &Place) -> Result<Findings, String> {
    let connection = Connection::open(&place.url).map_err(told)?;
    let mut channel = connection.channel().map_err(told)?;
    let queue = place.queue(QUEUE);
    channel.delete_queue(&queue).map_err(told)?;
    channel.declare_queue(&queue, how(place, true)).map_err(told)?;
    let before_bytes = place.resident_bytes();
    let mut cases = Vec::new();
    for (name, once) in WAYS {
        let (count, latency) = churn(place, once)?;
        let per_s = count as f64 / place.length.as_secs_f64();
        cases.push(Case::new(name).with("done", per_s, "/s").with_latency(&latency));
    }
    channel.delete_queue(&queue).map_err(told)?;
    let grown_mb = place
        .resident_bytes()
        .zip(before_bytes)
        .map(|(after_bytes, before_bytes)| (after_bytes as f64 - before_bytes as f64) / 1e6);
    cases.push(Case::new("memory afterwards").with_known("grown by", grown_mb, "MB"));
    connection.close().map_err(told)?;
    Ok(Findings { cases, ..Findings::default() })
}

/// All clients for as long as a measurement takes.
fn churn(place: &Place, once: Once) -> Result<(u64, LatencyReport), String> {
    let began = Instant::now();
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                scope.spawn(move || {
                    let mut latency = Latency::new();
                    let mut connection = None;
                    let name = &place.queue(QUEUES[1 + client]);
                    while began.elapsed() < place.length {
                        place.goes_on()?;
                        let from = began.elapsed();
                        once(place, &mut connection, name)?;
                        count(&mut latency, from, began.elapsed(), place.length);
                    }
                    if let Some(connection) = connection {
                        connection.close().map_err(told)?;
                    }
                    Ok::<_, String>(latency)
                })
            })
            .collect();
        let mut total = Latency::new();
        for client in clients {
            total.add(&client.join().map_err(|_| "a client died".to_owned())??);
        }
        Ok((total.0.len(), LatencyReport::of(&total.0)))
    })
}

/// Something was done between these times; what ends after the end does not count.
fn count(latency: &mut Latency, from: Duration, to: Duration, end: Duration) {
    if to <= end {
        latency.record(0, (to - from).as_micros() as u64, 1);
    }
}

fn connection_once(
    place: &Place,
    _kept: &mut Option<Connection>,
    _name: &str,
) -> Result<(), String> {
    let connection = Connection::open(&place.url).map_err(told)?;
    publish_once(&connection, place)?;
    connection.close().map_err(told)
}

fn channel_once(place: &Place, kept: &mut Option<Connection>, _name: &str) -> Result<(), String> {
    publish_once(opened(place, kept)?, place)
}

/// On a channel of its own; confirmed.
fn publish_once(connection: &Connection, place: &Place) -> Result<(), String> {
    let mut channel = connection.channel().map_err(told)?;
    channel.confirm_select(1).map_err(told)?;
    let body = vec![b'x'; place.size.unwrap_or(100)];
    let queue = &place.queue(QUEUE);
    let publication = Publication { routing_key: queue, body: &body, ..Publication::default() };
    channel.publish(&publication).map_err(told)?;
    channel.wait_settled().map_err(told)?;
    channel.close().map_err(told)
}

fn declare_once(
    place: &Place,
    kept: &mut Option<Connection>,
    name: &str,
    durable: bool,
) -> Result<(), String> {
    let mut channel = opened(place, kept)?.channel().map_err(told)?;
    channel.declare_queue(name, how(place, durable)).map_err(told)?;
    channel.delete_queue(name).map_err(told)?;
    channel.close().map_err(told)
}

fn opened<'c>(place: &Place, kept: &'c mut Option<Connection>) -> Result<&'c Connection, String> {
    match kept {
        Some(connection) => Ok(connection),
        None => Ok(kept.insert(Connection::open(&place.url).map_err(told)?)),
    }
}

/// Quorum queues are durable whatever is asked for.
fn how(place: &Place, durable: bool) -> DeclareQueue {
    let mut arguments = TableBuf::new();
    if let Some(kind) = &place.queue_type {
        arguments.push("x-queue-type", Value::LongStr(kind.as_bytes()));
    }
    let durable = durable || place.queue_type.as_deref() == Some("quorum");
    DeclareQueue { durable, arguments, ..DeclareQueue::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_after_the_end_is_not_done_in_the_time() {
        let mut latency = Latency::new();
        let [from, end, late] = [1, 2, 3].map(Duration::from_secs);
        count(&mut latency, from, late, end);
        assert_eq!(latency.0.len(), 0);
        count(&mut latency, from, end, end);
        assert_eq!((latency.0.len(), latency.0.max() >= 1_000_000), (1, true));
    }

    #[test]
    fn clients_that_are_stopped_begin_nothing_more() {
        let place = Place::somewhere("", Duration::from_secs(60));
        place.stop();
        let never: Once = |_, _, _| panic!("it was begun");
        assert_eq!(churn(&place, never).unwrap_err(), "it was stopped");
    }
}
