//! Calls made by a handler while messages wait for it. Published by people whose replies had to be found behind the
//! waiting mail: 57 times as slow with 10,000 messages.

mod erlang;

use std::time::{Duration, Instant};

use forebay_client::{Connection, Message, Publisher, Route};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::{Case, Demand, Findings, Place, block_on, queue, told};
use crate::latency::Latency;
use crate::report::LatencyReport;

/// Messages that wait, at least.
const WAITING: [u64; 3] = [0, 10_000, 1_000_000];
/// Messages that are handled, each with so many calls.
const HANDLED: u64 = 100;
const CALLS: usize = 10;
/// The same where it counts how fast they are published; a tenth of `--messages`, if that is less.
const LETTERS: u64 = 10_000;
/// How much more a call may cost with many waiting.
const COST_MAX: f64 = 1.25;
const QUEUE: &str = "forebay-mailbox";
const SERVICE: &str = "forebay-mailbox-service";
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn run(place: &Place) -> Result<Findings, String> {
    let most = place.messages.unwrap_or(u64::MAX);
    block_on(async {
        let connection = Connection::open(&place.url).await.map_err(told)?;
        queue::fresh(&connection, place, SERVICE).await?;
        let service = serve(&place.url).await?;
        let (mut cases, mut demands) = (Vec::new(), Vec::new());
        let mut alone_us = None;
        for waiting in WAITING.into_iter().filter(|waiting| *waiting <= most) {
            queue::fresh(&connection, place, QUEUE).await?;
            let latency = calls(&connection, waiting).await?;
            cases.push(Case::new(format!("{waiting} waiting")).with_latency(&latency));
            let p50_us = latency.p50_us.max(1) as f64;
            match alone_us {
                None => alone_us = Some(p50_us),
                Some(alone_us) => demands.push(Demand::at_most(
                    &format!("a call with {waiting} waiting, beside one with none"),
                    p50_us / alone_us,
                    COST_MAX,
                    "x",
                )),
            }
        }
        let letters = LETTERS.min(most / 10).max(1);
        let mut run = [0.0; 2];
        for ((name, throttled), us) in
            [("one at a time", true), ("as they come", false)].into_iter().zip(&mut run)
        {
            queue::fresh(&connection, place, QUEUE).await?;
            *us = handled(&connection, letters, throttled).await?;
            let name = format!("{letters} letters {name}");
            cases.push(Case::new(name).with("call", *us, "µs"));
        }
        demands.push(Demand::at_most(
            "a call while letters come as they like, beside one where the next waits for the one before",
            run[1] / run[0].max(1e-3),
            COST_MAX,
            "x",
        ));
        service.abort();
        queue::delete(&connection, QUEUE).await?;
        queue::delete(&connection, SERVICE).await?;
        connection.close().await.map_err(told)?;
        let waiting: Vec<u64> = WAITING.into_iter().filter(|waiting| *waiting <= most).collect();
        let mut notes = Vec::new();
        match erlang::cases(&waiting, letters, CALLS).await? {
            Some(beside) => cases.extend(beside),
            None => {
                notes.push("no escript was found, so there is no Erlang to compare with".into())
            }
        }
        Ok(Findings { cases, demands, notes })
    })
}

/// Calls of a handler on the connection that its messages come by.
async fn calls(connection: &Connection, waiting: u64) -> Result<LatencyReport, String> {
    let publisher = connection.publisher(Route::queue(QUEUE)).build().await.map_err(told)?;
    fill(&publisher, waiting).await?;
    let mut consumer = connection.consumer(QUEUE).workers(1).build().await.map_err(told)?;
    let (caller, service) = (connection.caller(), Route::queue(SERVICE));
    let mut latency = Latency::new();
    for _ in 0..HANDLED {
        // Those that wait go on waiting, also where there are none.
        publisher.publish(mail()).await.map_err(told)?.await.map_err(told)?;
        let Some(message) = consumer.next().await.map_err(told)? else {
            return Err("the queue is gone".to_owned());
        };
        for _ in 0..CALLS {
            let called = Instant::now();
            caller.call(PATIENCE, &service, mail()).await.map_err(told)?;
            latency.record(0, called.elapsed().as_micros() as u64, 1);
        }
        message.ack();
    }
    Ok(LatencyReport::of(&latency.0))
}

/// Calls of a handler for each of so many letters, whose publisher does not wait, or waits for each to be handled; the mean
/// time of a call in all of it, in microseconds.
async fn handled(connection: &Connection, letters: u64, throttled: bool) -> Result<f64, String> {
    let publisher = connection.publisher(Route::queue(QUEUE)).build().await.map_err(told)?;
    let mut consumer = connection.consumer(QUEUE).workers(1).build().await.map_err(told)?;
    let (caller, service) = (connection.caller(), Route::queue(SERVICE));
    let (tell, mut told_handled) = mpsc::channel(1);
    let began = Instant::now();
    let publishing = tokio::spawn(async move {
        for _ in 0..letters {
            // Each is confirmed, which is not waited for: the handler sees whether they all come.
            drop(publisher.publish(mail()).await.map_err(told)?);
            if throttled {
                told_handled.recv().await.ok_or("the handler has ended")?;
            }
        }
        publisher.idle().await;
        Ok::<(), String>(())
    });
    for _ in 0..letters {
        let Some(message) = consumer.next().await.map_err(told)? else {
            return Err("the queue is gone".to_owned());
        };
        for _ in 0..CALLS {
            caller.call(PATIENCE, &service, mail()).await.map_err(told)?;
        }
        message.ack();
        if throttled {
            tell.send(()).await.map_err(told)?;
        }
    }
    let us = began.elapsed().as_secs_f64() * 1e6;
    publishing.await.map_err(told)??;
    Ok(us / (letters as f64 * CALLS as f64))
}

/// Many outcomes at a time.
async fn fill(publisher: &Publisher, messages: u64) -> Result<(), String> {
    const AT_A_TIME: u64 = 5_000;
    let mut left = messages;
    while left > 0 {
        let now = left.min(AT_A_TIME);
        let mut outcomes = Vec::with_capacity(now as usize);
        for _ in 0..now {
            outcomes.push(publisher.publish(mail()).await.map_err(told)?);
        }
        for outcome in outcomes {
            outcome.await.map_err(told)?;
        }
        left -= now;
    }
    Ok(())
}

fn mail() -> Message {
    Message::new("a letter of 16 B").transient()
}

/// Answers every call, on a connection of its own.
async fn serve(url: &str) -> Result<JoinHandle<Result<(), String>>, String> {
    let connection = Connection::open(url).await.map_err(told)?;
    let mut requests = connection.consumer(SERVICE).build().await.map_err(told)?;
    let replies = connection.publisher(Route::queue("")).allow_unroutable().build().await;
    let replies = replies.map_err(told)?;
    Ok(tokio::spawn(async move {
        while let Some(request) = requests.next().await.map_err(told)? {
            if let Some(reply) = request.reply("done") {
                // Whether it arrives is the asker's concern.
                drop(replies.publish(reply).await.map_err(told)?);
            }
            request.ack();
        }
        Ok(())
    }))
}
