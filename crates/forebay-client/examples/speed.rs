//! Publishes and consumes as fast as nothing set by hand allows, and says what it cost.
//!
//! `cargo run --release -p forebay-client --example speed -- amqp://localhost 200000 [WINDOW|auto [N]]`
//!
//! With N one message in N is marked, and the consumer asks for marks: what it costs to be able to explain.
//! CPU time is that of this process alone, read from `/proc/self/stat` in steps of 10 ms.

use std::error::Error;
use std::time::Instant;

use forebay_client::{Connection, PublisherBuilder, Queue, Route, Topology, Window};
use forebay_flow::explain::{self, Explanation};

const QUEUE: &str = "bench";

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let uri = arguments.next().unwrap_or_else(|| "amqp://localhost".into());
    let count: u64 = arguments.next().map_or(Ok(100_000), |count| count.parse())?;
    let window = match arguments.next().as_deref() {
        None | Some("auto") => Window::tuned(),
        Some(messages) => Window::fixed(messages.parse()?),
    };
    let explain_every: Option<u64> = arguments.next().map(|every| every.parse()).transpose()?;
    let connection = Connection::open(&uri).await?;
    connection.declare(Topology::new().queue(Queue::durable(QUEUE))).await?;
    connection.channel().await?.purge_queue(QUEUE).await?;

    let body = bytes::Bytes::from(vec![1; 1000]);
    let publisher = connection.publisher(Route::queue(QUEUE)).window(window);
    let publisher = explain_every.into_iter().fold(publisher, PublisherBuilder::explain);
    let publisher = publisher.build().await?;
    let began = Mark::now();
    let mut outcomes = std::collections::VecDeque::new();
    for _ in 0..count {
        outcomes.push_back(publisher.publish(body.clone()).await?);
        // Those that are old enough to be there, so that no more than a few thousand are kept.
        if outcomes.len() > 30_000 {
            outcomes.pop_front().expect("it is long").await?;
        }
    }
    for outcome in outcomes {
        outcome.await?;
    }
    began.report("publish", count);
    let metrics = publisher.metrics();
    println!(
        "  window {} at the end, confirm latency {} us, {} writes",
        metrics.window_messages,
        metrics.confirm_latency.mean_us(),
        connection.metrics().writes
    );

    let consumer = connection.consumer(QUEUE);
    let consumer = if explain_every.is_some() { consumer.explain() } else { consumer };
    let mut consumer = consumer.build().await?;
    let began = Mark::now();
    let mut explanation = Explanation::new();
    for _ in 0..count {
        let message = consumer.next().await?.ok_or("the consumer ended")?;
        // As a pipeline does it: of each message it is asked whether it is marked.
        let marks = explain_every.map(|_| message.marks()).unwrap_or_default();
        if marks.at_us(explain::Mark::Offered).is_some() {
            explanation.add(&marks);
        }
        message.ack();
    }
    began.report("consume", count);
    if explain_every.is_some() {
        println!("{explanation}");
    }
    let metrics = consumer.metrics();
    println!("  credit {} at the end, {} ack frames", metrics.credit, metrics.ack_frames);
    drop(consumer);
    connection.close().await?;
    Ok(())
}

struct Mark {
    at: Instant,
    cpu_s: f64,
}

impl Mark {
    fn now() -> Mark {
        Mark { at: Instant::now(), cpu_s: cpu_s() }
    }

    fn report(&self, what: &str, count: u64) {
        let per_second = count as f64 / self.at.elapsed().as_secs_f64();
        let cpu_us = (cpu_s() - self.cpu_s) * 1e6 / count as f64;
        println!("{what}: {per_second:.0} messages a second, {cpu_us:.2} us of CPU each");
    }
}

/// User and system time of this process; 0 where there is no `/proc`.
fn cpu_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks = |index: usize| -> f64 {
        after_name.split_whitespace().nth(index).and_then(|text| text.parse().ok()).unwrap_or(0.0)
    };
    (ticks(11) + ticks(12)) / 100.0
}
