//! What it costs to know where the time of messages goes: the same messages with one in so many marked, and without.
//!
//! ```text
//!   publisher ──▶ queue, until all are there;  then  queue ──▶ a pipeline that does nothing with them
//! ```
//! Times are the processor's, of this process, which has one thread, and of the broker. A pair of ways, one with marks and one without, is a
//! fraction of a second; which of them is first changes from pair to pair.

use std::future::ready;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_client::{Connection, Message, Received, Route};
use forebay_pipeline::{Item, Pipeline, Running};
use tokio::sync::Notify;

use super::queue_source::QueueSource;
use super::{Case, Demand, Findings, PATIENCE, Place, block_on_here, queue, told};
use crate::process::{own_cpu_seconds, running_seconds};
use crate::spread::{Ratio, median};

pub(super) const QUEUE: &str = "forebay-marks";
/// Of each way, unless `--messages` says something else: so few that none of them needs memory which the others did not have.
const MESSAGES: u64 = 20_000;
const PAIRS: usize = 101;
/// One in so many is marked; the last is for a busy stream, and its cost has a bound.
const EVERY: [u64; 2] = [100, 1_000];
const WORKERS: u16 = 25;
const SIZE_BYTES: usize = 100;
const COST_MAX: f64 = 1.02;

/// Microseconds of processors that a message takes.
#[derive(Debug, Clone, Copy, Default)]
struct Way {
    publisher: f64,
    broker: Option<f64>,
    consumer: f64,
}

#[derive(Clone, Copy)]
enum Part {
    Publisher,
    Broker,
    Consumer,
    All,
}

impl Way {
    fn of(&self, part: Part) -> Option<f64> {
        match part {
            Part::Publisher => Some(self.publisher),
            Part::Broker => self.broker,
            Part::Consumer => Some(self.consumer),
            Part::All => Some(self.publisher + self.broker.unwrap_or(0.0) + self.consumer),
        }
    }
}

pub(super) fn run(place: &Place) -> Result<Findings, String> {
    let messages = place.messages.unwrap_or(MESSAGES).max(1);
    block_on_here(async {
        let connection = place.connect().await?;
        let mut findings = Findings::default();
        // What is allocated once is not part of any pair.
        go(&connection, place, messages, Some(1)).await?;
        for every in EVERY {
            let (mut without, mut with) = (Vec::new(), Vec::new());
            for pair in 0..PAIRS {
                for marked in [pair % 2 == 0, pair % 2 == 1] {
                    let way = go(&connection, place, messages, marked.then_some(every)).await?;
                    if marked { with.push(way) } else { without.push(way) }
                }
            }
            add(&mut findings, every, &without, &with);
        }
        queue::delete(&connection, place, QUEUE).await?;
        connection.close().await.map_err(told)?;
        Ok(findings)
    })
}

fn add(findings: &mut Findings, every: u64, without: &[Way], with: &[Way]) {
    let parts = [
        ("publisher", Part::Publisher),
        ("broker", Part::Broker),
        ("consumer", Part::Consumer),
        ("the whole way", Part::All),
    ];
    for (name, part) in parts {
        let of = |ways: &[Way]| ways.iter().filter_map(|way| way.of(part)).collect();
        let (without, with): (Vec<f64>, Vec<f64>) = (of(without), of(with));
        let Some(ratio) = Ratio::of_pairs(&with, &without, 1) else { continue };
        let case = Case::new(format!("{name}, one in {every} marked"))
            .with("without", median(&without).unwrap_or(f64::NAN), "µs")
            .with("with marks", median(&with).unwrap_or(f64::NAN), "µs")
            .with("ratio", ratio.value, "x")
            .with("95 % from", ratio.low(), "x")
            .with("to", ratio.high(), "x");
        findings.cases.push(case);
        if matches!(part, Part::All) && EVERY.last() == Some(&every) {
            let what = format!("CPU of messages of which one in {every} is marked, beside none");
            findings.demands.push(Demand::at_most(&what, ratio.value, COST_MAX, "x"));
        }
    }
    let note = "the broker's process is not known, so its part is not counted";
    if with.iter().any(|way| way.broker.is_none()) && findings.notes.is_empty() {
        findings.notes.push(note.into());
    }
}

/// All messages into the queue, and out of it; marked is one in so many, or none.
async fn go(
    connection: &Connection,
    place: &Place,
    messages: u64,
    marked: Option<u64>,
) -> Result<Way, String> {
    queue::fresh(connection, place, QUEUE).await?;
    let broker_s = || place.pid.and_then(running_seconds);
    let publisher = connection.publisher(Route::queue(place.queue(QUEUE)));
    let publisher = match marked {
        Some(every) => publisher.explain(every),
        None => publisher,
    };
    let publisher = publisher.build().await.map_err(told)?;
    let message = Message::new(vec![b'x'; place.size.unwrap_or(SIZE_BYTES)]).transient();
    let (own, brokers) = (own_cpu_seconds(), broker_s());
    for _ in 0..messages {
        drop(publisher.publish(message.clone()).await.map_err(told)?);
    }
    publisher.idle().await;
    let between = own_cpu_seconds();
    take(connection, place, messages, marked).await?;
    let each = |seconds: f64| seconds * 1e6 / messages as f64;
    let broker = broker_s().zip(brokers).map(|(after, before)| each(after - before));
    Ok(Way { publisher: each(between - own), broker, consumer: each(own_cpu_seconds() - between) })
}

/// By a pipeline, until all are settled.
async fn take(
    connection: &Connection,
    place: &Place,
    messages: u64,
    marked: Option<u64>,
) -> Result<(), String> {
    let consumer = connection.consumer(place.queue(QUEUE)).workers(WORKERS);
    let consumer = if marked.is_some() { consumer.explain() } else { consumer };
    let source = QueueSource(consumer.build().await.map_err(told)?);
    let (left, all) = (AtomicU64::new(messages), Arc::new(Notify::new()));
    let tell = all.clone();
    let handler = move |_: Item<Received>| {
        if left.fetch_sub(1, Ordering::Relaxed) == 1 {
            tell.notify_one();
        }
        ready(())
    };
    let pipeline = Pipeline::from(source).process(usize::from(WORKERS), handler);
    let pipeline = match marked {
        Some(every) => pipeline.explain(every, Received::marks),
        None => pipeline,
    };
    drained(pipeline.start(), &all).await
}

/// Ends a pipeline when all is done; one that ends before, as its queue or broker is gone, has no figures.
async fn drained(running: Running, all: &Notify) -> Result<(), String> {
    let control = running.control();
    let mut end = pin!(running.join());
    tokio::select! {
        biased;
        () = all.notified() => control.drain(PATIENCE),
        ended = &mut end => {
            ended.map_err(told)?;
            return Err("the queue ended before all messages were there".to_owned());
        }
    }
    end.await.map(drop).map_err(told)
}

#[cfg(test)]
mod tests {
    use forebay_pipeline::source::iter;

    use super::*;

    #[test]
    fn a_queue_that_ends_too_soon_is_not_waited_for() {
        let ended = block_on_here(async {
            let running =
                Pipeline::from(iter(Vec::<u8>::new())).process(1, |_: Item<u8>| ready(()));
            drained(running.start(), &Notify::new()).await
        });
        assert!(ended.unwrap_err().starts_with("the queue ended"));
    }
}
