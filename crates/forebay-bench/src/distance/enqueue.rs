//! Callers who each enqueue one message, wait until it is on the broker's disk, and enqueue the next: all on
//! one connection.
//!
//! ```text
//!   pipelined   every caller publishes by itself; the connection and the disk are shared
//!   serial      one after the other: a caller's turn comes when the one before has its confirm
//!   bare        one blocking connection with nothing around it, one message at a time
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_client::{Message, Publisher, Route};
use serde::Serialize;
use tokio::sync::Mutex;
use tokio::time::timeout_at;

use super::broker::{Broker, PATIENCE, Queue};
use super::setting::{Setting, ms, rate, say};
use crate::latency::Latency;
use crate::occasion::Occasion;
use crate::plan::Plan;
use crate::report::LatencyReport;
use crate::setting::Window;
use crate::spread::{Random, Ratio, median};

/// Callers more than these need not enqueue more than the ones before: disk or CPU may be full.
const GROWTH_MIN: f64 = 0.9;
const BARE_MIN: f64 = 0.95;
const OVER_SERIAL_MIN: f64 = 10.0;
const P99_MAX: f64 = 2.0;
/// The number of callers for which the last two are asked.
const CALLERS_JUDGED: usize = 48;

/// What is varied.
#[derive(clap::Args, Debug, Clone)]
pub struct Enqueue {
    #[command(flatten)]
    setting: Setting,
    /// Callers
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,6,12,24,48,480")]
    callers: Vec<usize>,
    /// Bytes of a body
    #[arg(long, value_name = "BYTES", default_value_t = 200)]
    size: usize,
    /// Callers need no order among them, so that the client may use several connections
    #[arg(long)]
    unordered: bool,
    /// Seconds of each measurement
    #[arg(long, value_name = "S", default_value_t = 4.0)]
    seconds: f64,
}

/// Who calls how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Path {
    Bare,
    Serial,
    Pipelined,
}

#[derive(Debug, Clone, Serialize)]
struct Run {
    per_s: f64,
    latency: LatencyReport,
    failed: u64,
}

#[derive(Debug, Clone, Serialize)]
struct Row {
    path: Path,
    callers: usize,
    runs: Vec<Run>,
}

#[derive(Serialize)]
struct Record<'a> {
    #[serde(flatten)]
    occasion: &'a Occasion,
    repeat: usize,
    seed: u64,
    seconds: f64,
    size_bytes: usize,
    unordered: bool,
    rows: &'a [Row],
    judged: Vec<Judged>,
}

/// One demand and whether it was met.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Judged {
    what: String,
    met: bool,
}

impl Enqueue {
    /// Measures and prints everything; returns whether all demands are met.
    pub async fn run(&self) -> Result<bool, String> {
        if !(self.seconds > 0.0 && self.seconds.is_finite())
            || self.callers.contains(&0)
            || self.setting.repeat == 0
        {
            return Err("seconds, callers and repetitions are above 0".to_owned());
        }
        let broker = self.setting.broker().await?;
        let occasion = Occasion::now("forebay-distance", broker.introduces_itself().await?);
        println!("{}\n", occasion.headline());
        let mut rows = vec![Row { path: Path::Bare, callers: 1, runs: Vec::new() }];
        for path in [Path::Serial, Path::Pipelined] {
            rows.extend(self.callers.iter().map(|&callers| Row {
                path,
                callers,
                runs: Vec::new(),
            }));
        }
        let mut random = Random::new(self.setting.seed);
        for _ in 0..self.setting.repeat {
            let mut order: Vec<usize> = (0..rows.len()).collect();
            random.shuffle(&mut order);
            for index in order {
                let row = &mut rows[index];
                let run = self.one(&broker, row.path, row.callers).await?;
                say(&format!(
                    "  {:?}, {}: {} p99 {}",
                    row.path,
                    row.callers,
                    rate(run.per_s),
                    ms(run.latency.p99_us as f64)
                ));
                row.runs.push(run);
            }
        }
        let judged = judge(&rows, self.setting.seed);
        println!(
            "| path | callers | enqueued | each caller | p50 | p99 |\n|---|---|---|---|---|---|"
        );
        rows.iter().for_each(|row| println!("{}", row.line()));
        println!();
        for Judged { what, met } in &judged {
            println!("{} {what}", if *met { "pass" } else { "**FAIL**" });
        }
        let all_met = judged.iter().all(|judged| judged.met);
        self.setting.save(&Record {
            occasion: &occasion,
            repeat: self.setting.repeat,
            seed: self.setting.seed,
            seconds: self.seconds,
            size_bytes: self.size,
            unordered: self.unordered,
            rows: &rows,
            judged,
        })?;
        Ok(all_met)
    }

    async fn one(&self, broker: &Broker, path: Path, callers: usize) -> Result<Run, String> {
        let kind = self.setting.queue_type.as_deref();
        let mut queue = Queue::declare(broker, "forebay-enqueue", kind, true).await?;
        let run = match path {
            Path::Bare => self.bare(broker).await?,
            Path::Serial => self.called(broker, &queue, callers, Some(Arc::default())).await?,
            Path::Pipelined => self.called(broker, &queue, callers, None).await?,
        };
        queue.delete(broker).await?;
        Ok(run)
    }

    async fn called(
        &self,
        broker: &Broker,
        queue: &Queue,
        callers: usize,
        turn: Option<Arc<Mutex<()>>>,
    ) -> Result<Run, String> {
        let connection = broker.connect().await?;
        let publisher = connection.publisher(Route::queue(&queue.name));
        let publisher = if self.unordered { publisher.unordered() } else { publisher };
        let publisher = publisher.build().await.map_err(|error| error.to_string())?;
        let began = Instant::now();
        let length = Duration::from_secs_f64(self.seconds);
        let message = Message::new(vec![b'x'; self.size]);
        let caller = Caller { publisher, message, turn, began, length };
        let (latency, failed) = caller.times(callers).await?;
        let _ = connection.close().await; // all outcomes are told
        Ok(Run {
            per_s: latency.0.len() as f64 / self.seconds,
            latency: LatencyReport::of(&latency.0),
            failed,
        })
    }

    /// The generator's: one thread, one blocking socket, window 1.
    async fn bare(&self, broker: &Broker) -> Result<Run, String> {
        let plan = Plan {
            url: broker.url.clone(),
            publishers: 1,
            consumers: 0,
            queues: 1,
            size: self.size,
            persistent: true,
            queue_type: self.setting.queue_type.clone(),
            window: Window::Fixed(1),
            seconds: self.seconds,
            warm_up: 0.0,
            keep: true,
            queue_prefix: "forebay-enqueue".to_owned(),
            ..Plan::default()
        };
        let ran = tokio::task::spawn_blocking(move || crate::run(&plan)).await;
        let report = ran.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        Ok(Run { per_s: report.confirmed_per_s, latency: report.confirm, failed: report.rejected })
    }
}

/// Somebody who enqueues one message after the other.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) publisher: Publisher,
    pub(crate) message: Message,
    /// Whose turn it is, where only one may enqueue at a time.
    pub(crate) turn: Option<Arc<Mutex<()>>>,
    pub(crate) began: Instant,
    pub(crate) length: Duration,
}

impl Caller {
    /// So many of them at a time, until the end: how long each message took, and how many failed.
    pub(crate) async fn times(self, callers: usize) -> Result<(Latency, u64), String> {
        let calling: Vec<_> = (0..callers).map(|_| tokio::spawn(self.clone().enqueue())).collect();
        let (mut latency, mut failed) = (Latency::new(), 0);
        let end = tokio::time::Instant::from_std(self.began + self.length + PATIENCE);
        for caller in calling {
            let ended = timeout_at(end, caller).await;
            let ended = ended.map_err(|_| "the broker does not confirm".to_owned())?;
            let (own, own_failed) = ended.map_err(|error| error.to_string())?;
            latency.add(&own);
            failed += own_failed;
        }
        Ok((latency, failed))
    }

    async fn enqueue(self) -> (Latency, u64) {
        let (mut latency, mut failed) = (Latency::new(), 0);
        loop {
            let called = self.began.elapsed();
            if called >= self.length {
                return (latency, failed);
            }
            let turn = match &self.turn {
                Some(turn) => Some(turn.lock().await),
                None => None,
            };
            let confirmed = match self.publisher.publish(self.message.clone()).await {
                Ok(outcome) => outcome.await.is_ok(),
                Err(_) => return (latency, failed + 1),
            };
            drop(turn);
            match confirmed {
                // What ends after the end does not count.
                true if self.began.elapsed() <= self.length => latency.record(
                    called.as_micros() as u64,
                    self.began.elapsed().as_micros() as u64,
                    1,
                ),
                true => {}
                false => failed += 1,
            }
        }
    }
}

impl Row {
    fn rates(&self) -> Vec<f64> {
        self.runs.iter().map(|run| run.per_s).collect()
    }

    fn p99_us(&self) -> Vec<f64> {
        self.runs.iter().map(|run| run.latency.p99_us as f64).collect()
    }

    fn line(&self) -> String {
        let per_s = median(&self.rates()).unwrap_or(0.0);
        let p50: Vec<f64> = self.runs.iter().map(|run| run.latency.p50_us as f64).collect();
        format!(
            "| {:?} | {} | {} | {} | {} | {} |",
            self.path,
            self.callers,
            rate(per_s),
            rate(per_s / self.callers as f64),
            ms(median(&p50).unwrap_or(0.0)),
            ms(median(&self.p99_us()).unwrap_or(0.0)),
        )
    }
}

fn judge(rows: &[Row], seed: u64) -> Vec<Judged> {
    let find = |path, callers| rows.iter().find(|row| row.path == path && row.callers == callers);
    let mut judged = Vec::new();
    let pipelined: Vec<&Row> = rows.iter().filter(|row| row.path == Path::Pipelined).collect();
    for pair in pipelined.windows(2) {
        if let Some(ratio) = Ratio::of(&pair[1].rates(), &pair[0].rates(), seed) {
            judged.push(Judged {
                what: format!(
                    "{} callers enqueue {:.2} x as much as {} (≥ {GROWTH_MIN})",
                    pair[1].callers, ratio.value, pair[0].callers
                ),
                met: ratio.low() >= GROWTH_MIN,
            });
        }
    }
    let mut compare = |ours: Option<&Row>, theirs: Option<&Row>, limit: f64, what: &str| {
        let ratio = ours
            .zip(theirs)
            .and_then(|(ours, theirs)| Ratio::of(&ours.rates(), &theirs.rates(), seed));
        if let Some(ratio) = ratio {
            let what = format!("{what}: {:.2} x (≥ {limit})", ratio.value);
            judged.push(Judged { what, met: ratio.low() >= limit });
        }
    };
    let one = find(Path::Pipelined, 1);
    let many = find(Path::Pipelined, CALLERS_JUDGED);
    compare(one, find(Path::Bare, 1), BARE_MIN, "one caller beside a bare connection");
    let serial = find(Path::Serial, CALLERS_JUDGED);
    compare(many, serial, OVER_SERIAL_MIN, "48 callers beside the serial path");
    let p99 = many.zip(one).and_then(|(many, one)| Ratio::of(&many.p99_us(), &one.p99_us(), seed));
    if let Some(ratio) = p99 {
        let what =
            format!("p99 of 48 callers beside that of one: {:.2} x (< {P99_MAX})", ratio.value);
        judged.push(Judged { what, met: ratio.high() < P99_MAX });
    }
    let failed: u64 = rows.iter().flat_map(|row| &row.runs).map(|run| run.failed).sum();
    judged.push(Judged { what: format!("{failed} messages failed (0)"), met: failed == 0 });
    judged
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(path: Path, callers: usize, per_s: f64, p99_us: u64) -> Row {
        let latency = LatencyReport { p99_us, ..LatencyReport::default() };
        Row { path, callers, runs: vec![Run { per_s, latency, failed: 0 }; 3] }
    }

    #[test]
    fn growth_the_bare_connection_the_serial_path_and_the_tail_are_asked_for() {
        let mut rows = vec![
            row(Path::Bare, 1, 100.0, 10),
            row(Path::Serial, 48, 99.0, 480),
            row(Path::Pipelined, 1, 99.0, 10),
            row(Path::Pipelined, 48, 3_000.0, 19),
        ];
        let judged = judge(&rows, 1);
        assert_eq!(judged.len(), 5);
        assert!(judged.iter().all(|judged| judged.met), "{judged:?}");
        rows[3] = row(Path::Pipelined, 48, 80.0, 20);
        let missed: Vec<bool> = judge(&rows, 1).iter().map(|judged| judged.met).collect();
        assert_eq!(missed, [false, true, false, false, true]);
    }
}
