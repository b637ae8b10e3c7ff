//! Callers who each enqueue one message, wait until it is on the broker's disk, and enqueue the next: all on
//! one connection. Published by a job library whose callers waited for each other: 12,000 a second however many
//! they were.

use std::sync::Arc;
use std::time::Instant;

use forebay_client::{Connection, Message, Route};
use tokio::sync::Mutex;

use super::{Case, Demand, Findings, Place, block_on, queue, told};
use crate::distance::Caller;
use crate::report::LatencyReport;

const CALLERS: [usize; 5] = [1, 6, 12, 24, 48];
pub(super) const QUEUE: &str = "forebay-enqueue";
/// As many as the callers may be that are judged.
const MANY: usize = 48;

/// What so many callers got.
struct Enqueued {
    per_s: f64,
    latency: LatencyReport,
}

pub(super) fn run(place: &Place) -> Result<Findings, String> {
    block_on(async {
        let connection = place.connect().await?;
        let mut cases = Vec::new();
        let serial = enqueue(&connection, place, MANY, Some(Arc::default())).await?;
        cases.push(case(&format!("{MANY} callers, in turn"), MANY, &serial));
        let mut pipelined = Vec::new();
        for callers in CALLERS {
            let enqueued = enqueue(&connection, place, callers, None).await?;
            cases.push(case(&format!("{callers} callers at a time"), callers, &enqueued));
            pipelined.push(enqueued);
        }
        queue::delete(&connection, place, QUEUE).await?;
        connection.close().await.map_err(told)?;
        let mut demands = Vec::new();
        if let [one, .., many] = &pipelined[..] {
            demands = vec![
                Demand::at_least(
                    "48 callers beside 48 in turn",
                    many.per_s / serial.per_s.max(1.0),
                    10.0,
                    "x",
                ),
                Demand::at_most(
                    "p99 of 48 callers beside that of one",
                    many.latency.p99_us as f64 / (one.latency.p99_us as f64).max(1.0),
                    2.0,
                    "x",
                ),
            ];
        }
        Ok(Findings { cases, demands, ..Findings::default() })
    })
}

fn case(name: &str, callers: usize, enqueued: &Enqueued) -> Case {
    Case::new(name)
        .with("enqueued", enqueued.per_s, "/s")
        .with("each", enqueued.per_s / callers as f64, "/s")
        .with_latency(&enqueued.latency)
}

async fn enqueue(
    connection: &Connection,
    place: &Place,
    callers: usize,
    turn: Option<Arc<Mutex<()>>>,
) -> Result<Enqueued, String> {
    queue::fresh(connection, place, QUEUE).await?;
    let route = Route::queue(place.queue(QUEUE));
    let publisher = connection.publisher(route).build().await.map_err(told)?;
    let message = Message::new(vec![b'x'; place.size.unwrap_or(200)]);
    let began = Instant::now();
    let caller = Caller { publisher, message, turn, began, length: place.length };
    let (total, failed) = caller.times(callers).await?;
    if failed > 0 {
        return Err(format!("{failed} messages were not confirmed"));
    }
    let per_s = total.0.len() as f64 / place.length.as_secs_f64();
    Ok(Enqueued { per_s, latency: LatencyReport::of(&total.0) })
}
