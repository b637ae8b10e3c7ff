//! Calls made by the handler of a pipeline while messages wait for it. Published by people whose replies had to be found
//! behind the waiting mail: 57 times as slow with 10,000 messages.

mod erlang;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use forebay_client::{Caller, Connection, Message, Publisher, Received, Route};
use forebay_pipeline::{Item, Pipeline, Running};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;

use super::queue_source::QueueSource;
use super::{Case, Demand, Findings, PATIENCE, Place, block_on, queue, told};
use crate::latency::Latency;
use crate::report::LatencyReport;
use crate::spread::median;

/// Messages that wait, at least.
const WAITING: [u64; 3] = [0, 10_000, 1_000_000];
/// Messages that are handled, each with so many calls.
const HANDLED: u64 = 400;
const CALLS: usize = 10;
/// The same where it counts how fast they are published; a tenth of `--messages`, if that is less.
const LETTERS: u64 = 10_000;
/// In turns, so that what disturbs one disturbs the others.
const ROUNDS: usize = 5;
/// How much more a call may cost with many waiting.
const COST_MAX: f64 = 1.25;
pub(super) const QUEUE: &str = "forebay-mailbox";
pub(super) const SERVICE: &str = "forebay-mailbox-service";

/// What was measured of one thing, a figure a round.
struct Rounds {
    name: String,
    p50_us: Vec<f64>,
    p99_us: Vec<f64>,
}

impl Rounds {
    fn new(name: String) -> Rounds {
        Rounds { name, p50_us: Vec::new(), p99_us: Vec::new() }
    }

    fn case(&self) -> Case {
        let case = Case::new(&self.name).with_spread("call", &self.p50_us, "µs");
        case.with_known("p99", median(&self.p99_us), "µs")
    }

    /// Its median beside that of another.
    fn beside(&self, other: &Rounds) -> f64 {
        let of = |rounds: &Rounds| median(&rounds.p50_us).unwrap_or(f64::NAN);
        of(self) / of(other).max(1e-3)
    }
}

pub(super) fn run(place: &Place) -> Result<Findings, String> {
    let most = place.messages.unwrap_or(u64::MAX);
    let letters = LETTERS.min(most / 10).max(1);
    block_on(async {
        let connection = place.connect().await?;
        queue::fresh(&connection, place, SERVICE).await?;
        let service = serve(place).await?;
        let waiting: Vec<u64> = WAITING.into_iter().filter(|waiting| *waiting <= most).collect();
        let mut mail: Vec<Rounds> =
            waiting.iter().map(|waiting| Rounds::new(format!("{waiting} waiting"))).collect();
        let mut pace = [true, false].map(|throttled| {
            let how = if throttled { "one at a time" } else { "as they come" };
            (throttled, Rounds::new(format!("{letters} letters {how}")))
        });
        for _ in 0..ROUNDS {
            for (waiting, rounds) in waiting.iter().zip(&mut mail) {
                queue::fresh(&connection, place, QUEUE).await?;
                let latency = calls(&connection, place, *waiting).await?;
                rounds.p50_us.push(latency.p50_us.max(1) as f64);
                rounds.p99_us.push(latency.p99_us as f64);
            }
            for (throttled, rounds) in &mut pace {
                queue::fresh(&connection, place, QUEUE).await?;
                rounds.p50_us.push(handled(&connection, place, letters, *throttled).await?);
            }
        }
        service.abort();
        queue::delete(&connection, place, QUEUE).await?;
        queue::delete(&connection, place, SERVICE).await?;
        connection.close().await.map_err(told)?;
        let mut findings = judged(&waiting, &mail, &pace.map(|(_, rounds)| rounds));
        match erlang::cases(&waiting, letters, CALLS, ROUNDS).await? {
            Some(beside) => findings.cases.extend(beside),
            None => {
                let note = "no escript was found, so there is no Erlang to compare with";
                findings.notes.push(note.into());
            }
        }
        Ok(findings)
    })
}

fn judged(waiting: &[u64], mail: &[Rounds], [throttled, unthrottled]: &[Rounds; 2]) -> Findings {
    let mut findings = Findings::default();
    findings.cases.extend(mail.iter().chain([throttled, unthrottled]).map(Rounds::case));
    for (waiting, rounds) in waiting.iter().zip(mail).skip(1) {
        let what = format!("a call with {waiting} waiting, beside one with none");
        let times = rounds.beside(&mail[0]);
        findings.demands.push(Demand::at_most(&what, times, COST_MAX, "x"));
    }
    findings.demands.push(Demand::at_most(
        "a call while letters come as they like, beside one where the next waits for the one before",
        unthrottled.beside(throttled),
        COST_MAX,
        "x",
    ));
    findings
}

/// What a pipeline of one worker does with each letter, as soon as it may: calls, each timed, and tells when it is done.
async fn calling(
    connection: &Connection,
    place: &Place,
    latency: Arc<Mutex<Latency>>,
    may: Arc<Semaphore>,
) -> Result<(Running, mpsc::Receiver<Result<(), String>>), String> {
    let consumer =
        connection.consumer(place.queue(QUEUE)).workers(1).build().await.map_err(told)?;
    let (caller, service) =
        (Arc::new(connection.caller()), Arc::new(Route::queue(place.queue(SERVICE))));
    let (tell, done) = mpsc::channel(1);
    let handler = move |_: Item<Received>| {
        let (caller, service) = (caller.clone(), service.clone());
        let (latency, tell, may) = (latency.clone(), tell.clone(), may.clone());
        async move {
            let called = match may.acquire().await {
                Ok(permit) => {
                    permit.forget();
                    call(&caller, &service, &latency).await
                }
                Err(error) => Err(told(error)),
            };
            // Whoever listens may have heard enough.
            let _ = tell.send(called).await;
        }
    };
    Ok((Pipeline::from(QueueSource(consumer)).process(1, handler).start(), done))
}

async fn call(caller: &Caller, service: &Route, latency: &Mutex<Latency>) -> Result<(), String> {
    for _ in 0..CALLS {
        let called = Instant::now();
        caller.call(PATIENCE, service, mail()).await.map_err(told)?;
        let took_us = called.elapsed().as_micros() as u64;
        latency.lock().unwrap_or_else(PoisonError::into_inner).record(0, took_us, 1);
    }
    Ok(())
}

/// Until the handler is done with one letter more.
async fn one_done(done: &mut mpsc::Receiver<Result<(), String>>) -> Result<(), String> {
    let patience = PATIENCE * CALLS as u32;
    let heard = tokio::time::timeout(patience, done.recv()).await.map_err(told)?;
    heard.ok_or("the pipeline has ended")?
}

/// Calls of a handler on the connection that its messages come by.
async fn calls(
    connection: &Connection,
    place: &Place,
    waiting: u64,
) -> Result<LatencyReport, String> {
    let route = Route::queue(place.queue(QUEUE));
    let publisher = connection.publisher(route).build().await.map_err(told)?;
    fill(&publisher, waiting).await?;
    let latency = Arc::new(Mutex::new(Latency::new()));
    let may = Arc::new(Semaphore::new(0));
    let (_running, mut done) = calling(connection, place, latency.clone(), may.clone()).await?;
    for _ in 0..HANDLED {
        // Those that wait go on waiting, also where there are none. Calls are made when nothing else happens, here and there.
        publisher.publish(mail()).await.map_err(told)?.await.map_err(told)?;
        may.add_permits(1);
        one_done(&mut done).await?;
    }
    let latency = latency.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(LatencyReport::of(&latency.0))
}

/// Calls of a handler for each of so many letters, whose publisher does not wait, or waits for each to be handled; the mean
/// time of a call in all of it, in microseconds.
async fn handled(
    connection: &Connection,
    place: &Place,
    letters: u64,
    throttled: bool,
) -> Result<f64, String> {
    let route = Route::queue(place.queue(QUEUE));
    let publisher = connection.publisher(route).build().await.map_err(told)?;
    let (latency, may) = (Arc::new(Mutex::new(Latency::new())), Semaphore::new(letters as usize));
    let (_running, mut done) = calling(connection, place, latency, Arc::new(may)).await?;
    let allowed = if throttled { 1 } else { letters as usize };
    let allowed = Arc::new(Semaphore::new(allowed));
    let began = Instant::now();
    let publishing = tokio::spawn({
        let allowed = allowed.clone();
        async move {
            for _ in 0..letters {
                allowed.acquire().await.map_err(told)?.forget();
                // Each is confirmed, which is not waited for: the handler sees whether they all come.
                drop(publisher.publish(mail()).await.map_err(told)?);
            }
            publisher.idle().await;
            Ok::<(), String>(())
        }
    });
    for _ in 0..letters {
        one_done(&mut done).await?;
        if throttled {
            allowed.add_permits(1);
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
async fn serve(place: &Place) -> Result<JoinHandle<Result<(), String>>, String> {
    let connection = place.connect().await?;
    let mut requests = connection.consumer(place.queue(SERVICE)).build().await.map_err(told)?;
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
