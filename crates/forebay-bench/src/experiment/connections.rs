//! Connections that do nothing: what they cost, and what others notice of them.

use std::time::Instant;

use forebay_client::blocking::Connection;

use super::{Case, Demand, Findings, Place, told};
use crate::latency::Latency;
use crate::process;
use crate::report::LatencyReport;

const COUNT: usize = 1_000;
/// Threads that open them.
const OPENERS: usize = 4;
/// Round trips of somebody else, with and without them.
const ROUND_TRIPS: usize = 1_000;
/// What one may cost the broker's process, in kilobytes.
const KB_MAX: f64 = 4.0;

pub(super) fn run(place: &Place) -> Result<Findings, String> {
    let count = place.connections.unwrap_or(COUNT).max(1);
    process::may_open(count)?;
    let url = place.idle_url();
    let alone = round_trips(&url)?;
    let before_bytes = place.resident_bytes();
    let began = Instant::now();
    let (opened, latency) = open(&url, count)?;
    let seconds = began.elapsed().as_secs_f64();
    let kb_each = place.resident_bytes().zip(before_bytes).map(|(after_bytes, before_bytes)| {
        after_bytes.saturating_sub(before_bytes) as f64 / 1e3 / count as f64
    });
    let beside = round_trips(&url)?;
    let began = Instant::now();
    for connection in opened {
        connection.close().map_err(told)?;
    }
    let close_seconds = began.elapsed().as_secs_f64();
    let cases = vec![
        Case::new(format!("opening {count}"))
            .with("opened", count as f64 / seconds, "/s")
            .with_latency(&latency),
        Case::new("each, while idle").with_known("memory", kb_each, "KB"),
        Case::new("somebody's round trip alone").with_latency(&alone),
        Case::new("somebody's round trip then").with_latency(&beside),
        Case::new("closing").with("closed", count as f64 / close_seconds, "/s"),
    ];
    let demand = |kb| Demand::at_most("memory of an idle connection", kb, KB_MAX, "KB");
    let demands = kb_each.map(demand).into_iter().collect();
    Ok(Findings { cases, demands, ..Findings::default() })
}

fn open(url: &str, count: usize) -> Result<(Vec<Connection>, LatencyReport), String> {
    let share = |opener: usize| count / OPENERS + usize::from(opener < count % OPENERS);
    std::thread::scope(|scope| {
        let openers: Vec<_> = (0..OPENERS)
            .map(|opener| {
                scope.spawn(move || {
                    let mut opened = Vec::with_capacity(share(opener));
                    let mut latency = Latency::new();
                    for _ in 0..share(opener) {
                        let began = Instant::now();
                        opened.push(Connection::open(url).map_err(told)?);
                        latency.record(0, began.elapsed().as_micros() as u64, 1);
                    }
                    Ok::<_, String>((opened, latency))
                })
            })
            .collect();
        let (mut all, mut total) = (Vec::with_capacity(count), Latency::new());
        for opener in openers {
            let (opened, latency) = opener.join().map_err(|_| "an opener died".to_owned())??;
            all.extend(opened);
            total.add(&latency);
        }
        Ok((all, LatencyReport::of(&total.0)))
    })
}

/// Of a method and its answer, which change nothing.
fn round_trips(url: &str) -> Result<LatencyReport, String> {
    let connection = Connection::open(url).map_err(told)?;
    let mut channel = connection.channel().map_err(told)?;
    let mut latency = Latency::new();
    for _ in 0..ROUND_TRIPS {
        let began = Instant::now();
        channel.qos(1).map_err(told)?;
        latency.record(0, began.elapsed().as_micros() as u64, 1);
    }
    connection.close().map_err(told)?;
    Ok(LatencyReport::of(&latency.0))
}
