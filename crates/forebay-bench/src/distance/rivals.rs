//! Other clients doing the same as ours, on the same broker, in the same run: lapin, which Rust programs use
//! today, and RabbitMQ's own for Go, with the windows that a person could set for them.
//!
//! Each run has a process to itself: whoever empties or fills the queue is another process or was done
//! before, so the CPU time of the process is that of the client (and of a loop round it, which is the same
//! for all). Ours and lapin run in this one; the one in Go is a program of its own, `rivals/go`.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::path::PathBuf;
use std::pin::Pin;
use std::process::Stdio;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use forebay_client::{Message, Publisher, Route};
use futures_core::Stream;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, PublisherConfirm};
use serde::{Deserialize, Serialize};
use tokio::process::Command;
use tokio::time::timeout;

use super::broker::{Broker, PATIENCE, Queue};
use super::cell::Choice;
use super::load::Load;
use super::setting::{Setting, ms, rate, say};
use super::tally::Tally;
use crate::occasion::Occasion;
use crate::process::own_cpu_seconds;
use crate::spread::{Random, Ratio, median};

/// Ours shall do so many times as much in a second of CPU time.
const PER_CPU_MIN: f64 = 2.0;
/// Messages put into a queue together before they are consumed.
const FILL_WINDOW: usize = 1_000;
const PREFIX: &str = "forebay-rivals";

/// What is varied.
#[derive(clap::Args, Debug, Clone)]
pub struct Rivals {
    #[command(flatten)]
    setting: Setting,
    /// The rival in Go, built with `go build` in `crates/forebay-bench/rivals/go`; without it there are
    /// no rows of it
    #[arg(long, value_name = "PROGRAM")]
    go: Option<PathBuf>,
    /// Windows of the other clients, and their prefetch
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "50,200,1000,5000")]
    windows: Vec<u16>,
    /// Deliveries that the other clients ack together, with `multiple`
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,50")]
    ack_every: Vec<u64>,
    /// Bytes of a body
    #[arg(long, value_name = "BYTES", default_value_t = 200)]
    size: usize,
    /// Seconds of publishing
    #[arg(long, value_name = "S", default_value_t = 5.0)]
    seconds: f64,
    /// Messages to consume
    #[arg(long, value_name = "N", default_value_t = 300_000)]
    messages: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Work {
    Publish,
    Consume,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Client {
    Ours,
    Lapin { window: u16, ack_every: u64 },
    Go { window: u16, ack_every: u64 },
}

/// What is compared with ours, and what makes it with a window and acks.
type Rival = (&'static str, fn(u16, u64) -> Client);

const RIVALS: [Rival; 2] = [
    ("lapin", |window, ack_every| Client::Lapin { window, ack_every }),
    ("amqp091-go", |window, ack_every| Client::Go { window, ack_every }),
];

impl Client {
    /// Its name, and what was set by hand.
    fn rival(self) -> Option<(&'static str, u16, u64)> {
        match self {
            Client::Ours => None,
            Client::Lapin { window, ack_every } => Some(("lapin", window, ack_every)),
            Client::Go { window, ack_every } => Some(("amqp091-go", window, ack_every)),
        }
    }
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Run {
    per_s: f64,
    /// CPU time of the client's process per message, in microseconds.
    cpu_us: f64,
    /// From `publish` to the confirm; 0 when consuming.
    p99_us: u64,
    failed: u64,
}

#[derive(Debug, Clone, Serialize)]
struct Row {
    work: Work,
    client: Client,
    runs: Vec<Run>,
}

#[derive(Serialize)]
struct Record<'a> {
    #[serde(flatten)]
    occasion: &'a Occasion,
    repeat: usize,
    seed: u64,
    size_bytes: usize,
    rows: &'a [Row],
}

impl Rivals {
    /// Measures and prints everything; returns whether ours does as much as it shall.
    pub async fn run(&self) -> Result<bool, String> {
        if !(self.seconds > 0.0 && self.seconds.is_finite())
            || self.windows.contains(&0)
            || self.ack_every.contains(&0)
            || self.messages == 0
            || self.setting.repeat == 0
        {
            return Err("seconds, windows, acks, messages and repetitions are above 0".to_owned());
        }
        let broker = self.setting.broker().await?;
        let occasion = Occasion::now("forebay-distance", broker.introduces_itself().await?);
        println!("{}\n", occasion.headline());
        let mut rows = self.rows();
        let mut random = Random::new(self.setting.seed);
        for _ in 0..self.setting.repeat {
            let mut order: Vec<usize> = (0..rows.len()).collect();
            random.shuffle(&mut order);
            for index in order {
                let row = &mut rows[index];
                let run = self.one(&broker, row.work, row.client).await?;
                say(&format!(
                    "  {:?}, {:?}: {}, {:.2} µs a message",
                    row.work,
                    row.client,
                    rate(run.per_s),
                    run.cpu_us
                ));
                row.runs.push(run);
            }
        }
        println!("| | client | messages | CPU a message | messages a CPU second | p99 |");
        println!("|---|---|---|---|---|---|");
        rows.iter().for_each(|row| println!("{}", row.line()));
        println!();
        let mut all_met = true;
        for (rival, _) in self.rivals() {
            for work in [Work::Publish, Work::Consume] {
                let (text, met) = judge(&rows, work, rival, self.setting.seed);
                println!("{} {text}", if met { "pass" } else { "**FAIL**" });
                all_met &= met;
            }
        }
        self.setting.save(&Record {
            occasion: &occasion,
            repeat: self.setting.repeat,
            seed: self.setting.seed,
            size_bytes: self.size,
            rows: &rows,
        })?;
        Ok(all_met)
    }

    fn rows(&self) -> Vec<Row> {
        let row = |work, client| Row { work, client, runs: Vec::new() };
        let mut rows = vec![row(Work::Publish, Client::Ours), row(Work::Consume, Client::Ours)];
        for (_, client) in self.rivals() {
            for &window in &self.windows {
                rows.push(row(Work::Publish, client(window, 1)));
                for &ack_every in &self.ack_every {
                    // With fewer it would wait for ever.
                    if ack_every <= u64::from(window) {
                        rows.push(row(Work::Consume, client(window, ack_every)));
                    }
                }
            }
        }
        rows
    }

    fn rivals(&self) -> impl Iterator<Item = Rival> {
        let there = self.go.is_some();
        RIVALS.into_iter().filter(move |(name, _)| *name == "lapin" || there)
    }

    async fn one(&self, broker: &Broker, work: Work, client: Client) -> Result<Run, String> {
        let kind = self.setting.queue_type.as_deref();
        let drain = work == Work::Publish;
        let mut queue = Queue::declare(broker, PREFIX, kind, drain).await?;
        let worked = async {
            match (work, client) {
                (Work::Publish, Client::Ours) => self.publish_ours(broker, &queue).await,
                (Work::Publish, Client::Lapin { window, .. }) => {
                    self.publish_lapin(broker, &queue, window.into()).await.map_err(sentence)
                }
                (Work::Publish, Client::Go { window, .. }) => {
                    let (size, seconds) = (self.size.to_string(), self.seconds.to_string());
                    let words = ["publish", &queue.name, &window.to_string(), &size, &seconds];
                    self.run_go(broker, words).await
                }
                (Work::Consume, _) => self.consume(broker, &queue, client).await,
            }
        };
        // A queue is filled and emptied, at a thousand messages a second at least.
        let length =
            Duration::from_secs_f64(self.seconds) + Duration::from_millis(2 * self.messages);
        let run = timeout(PATIENCE + length, worked).await;
        let run = run.map_err(|_| format!("{work:?}, {client:?}: it comes to no end"))??;
        queue.delete(broker).await?;
        Ok(run)
    }

    fn load(&self, broker: &Broker, queue: &Queue) -> Load {
        let length = Duration::from_secs_f64(self.seconds);
        let first = length / 10;
        Load {
            url: broker.url.clone(),
            queue: queue.name.clone(),
            publishers: 1,
            size_bytes: self.size,
            choice: Choice::Tuned,
            first,
            later: length - first,
            patience: Duration::from_secs(10),
            kernel_rtt: true,
        }
    }

    async fn publish_ours(&self, broker: &Broker, queue: &Queue) -> Result<Run, String> {
        let mut cpu_s = 0.0;
        let seen = self.load(broker, queue).run(|_| cpu_s = own_cpu_seconds()).await?;
        Ok(self.published(&seen.tally, own_cpu_seconds() - cpu_s))
    }

    fn published(&self, tally: &Tally, cpu_s: f64) -> Run {
        // The last window's confirms come after the end, and their CPU time counts: so do they.
        let all = tally.first.0.len() + tally.later.0.len();
        Run {
            per_s: tally.later_per_s(),
            cpu_us: cpu_s * 1e6 / all.max(1) as f64,
            p99_us: tally.later.0.value_at_quantile(0.99),
            failed: tally.failed + tally.timed_out,
        }
    }

    /// The loop of [`Load`], with a window by hand.
    async fn publish_lapin(
        &self,
        broker: &Broker,
        queue: &Queue,
        window: usize,
    ) -> lapin::Result<Run> {
        let load = self.load(broker, queue);
        let (connection, channel) = open(&broker.url).await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        let body = vec![b'x'; self.size];
        let persistent = BasicProperties::default().with_delivery_mode(2);
        let cpu_s = own_cpu_seconds();
        let began = Instant::now();
        let now_us = || began.elapsed().as_micros() as u64;
        let end_us = (load.first + load.later).as_micros() as u64;
        let mut tally = load.tally();
        let mut in_flight: VecDeque<(u64, PublisherConfirm)> = VecDeque::new();
        loop {
            let called_us = now_us();
            if called_us >= end_us {
                break;
            }
            if in_flight.len() >= window {
                let (published_us, confirm) = in_flight.pop_front().expect("the window is full");
                count(&mut tally, published_us, &confirm.await, now_us());
            }
            let sent = channel.basic_publish(
                "".into(),
                queue.name.as_str().into(),
                BasicPublishOptions::default(),
                &body,
                persistent.clone(),
            );
            in_flight.push_back((called_us, sent.await?));
            while let Some((published_us, confirm)) = in_flight.front_mut() {
                let mut nobody = Context::from_waker(Waker::noop());
                let Poll::Ready(told) = Pin::new(confirm).poll(&mut nobody) else { break };
                count(&mut tally, *published_us, &told, now_us());
                in_flight.pop_front();
            }
        }
        for (published_us, confirm) in in_flight {
            count(&mut tally, published_us, &confirm.await, now_us());
        }
        let run = self.published(&tally, own_cpu_seconds() - cpu_s);
        connection.close(200, "done".into()).await?;
        Ok(run)
    }

    async fn consume(&self, broker: &Broker, queue: &Queue, client: Client) -> Result<Run, String> {
        self.fill(broker, queue).await?;
        let mut run = match client {
            Client::Ours => self.consume_ours(broker, queue).await?,
            Client::Lapin { window, ack_every } => {
                self.consume_lapin(broker, queue, window, ack_every).await.map_err(sentence)?
            }
            Client::Go { window, ack_every } => {
                let (acks, messages) = (ack_every.to_string(), self.messages.to_string());
                let words = ["consume", &queue.name, &window.to_string(), &acks, &messages];
                self.run_go(broker, words).await?
            }
        };
        // What was not acknowledged is back.
        run.failed = queue.messages(broker, true).await?.into();
        Ok(run)
    }

    async fn fill(&self, broker: &Broker, queue: &Queue) -> Result<(), String> {
        let connection = broker.connect().await?;
        let publisher = connection.publisher(Route::queue(&queue.name)).build().await;
        let publisher: Publisher = publisher.map_err(sentence)?;
        let message = Message::new(vec![b'x'; self.size]);
        let mut outcomes = VecDeque::new();
        for _ in 0..self.messages {
            outcomes.push_back(publisher.publish(message.clone()).await.map_err(sentence)?);
            if outcomes.len() >= FILL_WINDOW {
                let outcome = outcomes.pop_front().expect("there are some");
                outcome.await.map_err(sentence)?;
            }
        }
        for outcome in outcomes {
            outcome.await.map_err(sentence)?;
        }
        connection.close().await.map_err(sentence)
    }

    async fn consume_ours(&self, broker: &Broker, queue: &Queue) -> Result<Run, String> {
        let connection = broker.connect().await?;
        let (cpu_s, began) = (own_cpu_seconds(), Instant::now());
        let mut consumer = connection.consumer(&queue.name).build().await.map_err(sentence)?;
        for _ in 0..self.messages {
            let delivery = consumer.next().await.map_err(sentence)?;
            delivery.ok_or("the consumer ended")?.ack();
        }
        let run = self.consumed(began, cpu_s);
        drop(consumer);
        connection.close().await.map_err(sentence)?;
        Ok(run)
    }

    async fn consume_lapin(
        &self,
        broker: &Broker,
        queue: &Queue,
        prefetch: u16,
        ack_every: u64,
    ) -> lapin::Result<Run> {
        let (connection, channel) = open(&broker.url).await?;
        channel.basic_qos(prefetch, BasicQosOptions::default()).await?;
        let (cpu_s, began) = (own_cpu_seconds(), Instant::now());
        let (tag, options) = ("rival".into(), BasicConsumeOptions::default());
        let name = queue.name.as_str().into();
        let mut consumer = channel.basic_consume(name, tag, options, FieldTable::default()).await?;
        for number in 1..=self.messages {
            let Some(delivery) = poll_fn(|cx| Pin::new(&mut consumer).poll_next(cx)).await else {
                break; // the count of what is left over tells
            };
            let delivery = delivery?;
            if number % ack_every == 0 || number == self.messages {
                delivery.acker.ack(BasicAckOptions { multiple: ack_every > 1 }).await?;
            }
        }
        let run = self.consumed(began, cpu_s);
        connection.close(200, "done".into()).await?;
        Ok(run)
    }

    /// The rival in Go does this; it counts for itself.
    async fn run_go(&self, broker: &Broker, words: [&str; 5]) -> Result<Run, String> {
        let program = self.go.as_ref().ok_or("there is no rival in Go")?;
        let mut command = Command::new(program);
        command.args(words).env("FOREBAY_URL", &broker.url).stderr(Stdio::inherit());
        command.kill_on_drop(true);
        let told = command.output().await;
        let told = told.map_err(|error| format!("{}: {error}", program.display()))?;
        if !told.status.success() {
            return Err(format!("{} failed: {}", program.display(), told.status));
        }
        serde_json::from_slice(&told.stdout)
            .map_err(|error| format!("{} said something else: {error}", program.display()))
    }

    fn consumed(&self, began: Instant, cpu_s: f64) -> Run {
        Run {
            per_s: self.messages as f64 / began.elapsed().as_secs_f64(),
            cpu_us: (own_cpu_seconds() - cpu_s) * 1e6 / self.messages as f64,
            p99_us: 0,
            failed: 0,
        }
    }
}

async fn open(url: &str) -> lapin::Result<(Connection, Channel)> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    Ok((connection, channel))
}

fn count(
    tally: &mut Tally,
    published_us: u64,
    told: &lapin::Result<lapin::Confirmation>,
    now_us: u64,
) {
    match told {
        Ok(confirmation) if confirmation.is_ack() => tally.confirmed(published_us, now_us),
        _ => tally.failed(1),
    }
}

fn sentence(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Row {
    fn middle(&self, of: fn(&Run) -> f64) -> f64 {
        median(&self.runs.iter().map(of).collect::<Vec<_>>()).unwrap_or(0.0)
    }

    fn per_cpu_s(&self) -> Vec<f64> {
        self.runs.iter().map(|run| 1e6 / run.cpu_us).collect()
    }

    fn line(&self) -> String {
        let client = match (self.client.rival(), self.work) {
            (None, _) => "ours, nothing set".to_owned(),
            (Some((name, window, _)), Work::Publish) => format!("{name}, window {window}"),
            (Some((name, window, 1)), _) => format!("{name}, prefetch {window}"),
            (Some((name, window, ack_every)), _) => {
                format!("{name}, prefetch {window}, acks {ack_every} together")
            }
        };
        let p99 = match self.work {
            Work::Publish => ms(self.middle(|run| run.p99_us as f64)),
            Work::Consume => "–".to_owned(),
        };
        format!(
            "| {:?} | {client} | {} | {:.2} µs | {} | {p99} |",
            self.work,
            rate(self.middle(|run| run.per_s)),
            self.middle(|run| run.cpu_us),
            rate(median(&self.per_cpu_s()).unwrap_or(0.0)),
        )
    }
}

/// Ours beside that setting of another client which needs the least CPU time.
fn judge(rows: &[Row], work: Work, rival: &str, seed: u64) -> (String, bool) {
    let of_work = || rows.iter().filter(|row| row.work == work);
    let of_rival =
        || of_work().filter(|row| row.client.rival().is_some_and(|(name, ..)| name == rival));
    let ours = of_work().find(|row| row.client == Client::Ours);
    let theirs =
        of_rival().min_by(|a, b| a.middle(|run| run.cpu_us).total_cmp(&b.middle(|run| run.cpu_us)));
    let ratio = ours
        .zip(theirs)
        .and_then(|(ours, theirs)| Ratio::of(&ours.per_cpu_s(), &theirs.per_cpu_s(), seed));
    let Some(ratio) = ratio else { return (format!("{work:?}: nothing to compare"), false) };
    let failed: u64 = ours.iter().flat_map(|row| &row.runs).map(|run| run.failed).sum();
    let per_s = |row: &Row| row.middle(|run| run.per_s);
    let fastest = of_rival().map(per_s).fold(0.0, f64::max);
    let text = format!(
        "{work:?}: {:.2} x the messages of the best {rival} in a second of CPU time (≥ {PER_CPU_MIN}), {:.2} x those of the fastest in a second; {failed} of ours failed",
        ratio.value,
        ours.map_or(0.0, per_s) / fastest,
    );
    (text, ratio.low() >= PER_CPU_MIN && failed == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rival_is_the_cheapest_of_its_settings() {
        let row = |client, cpu_us, failed| Row {
            work: Work::Publish,
            client,
            runs: vec![Run { per_s: 1.0, cpu_us, p99_us: 1, failed }; 3],
        };
        let lapin = |window| Client::Lapin { window, ack_every: 1 };
        let mut rows =
            vec![row(Client::Ours, 1.0, 0), row(lapin(50), 9.0, 0), row(lapin(1_000), 1.9, 0)];
        assert!(!judge(&rows, Work::Publish, "lapin", 1).1);
        rows[2] = row(lapin(1_000), 2.0, 0);
        assert!(judge(&rows, Work::Publish, "lapin", 1).1);
        rows[0] = row(Client::Ours, 1.0, 1);
        assert!(!judge(&rows, Work::Publish, "lapin", 1).1, "what fails is not cheap");
        assert!(!judge(&rows, Work::Consume, "lapin", 1).1);
    }
}
