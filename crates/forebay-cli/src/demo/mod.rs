//! `forebay demo`: the whole main job by itself, on real input.
//!
//! ```text
//!   a year of Seattle's weather, over and over, from 1000 stations
//!        │
//!   4 publishers ──confirms, self-tuned windows──▶ topic exchange ──weather.<region>.#──▶ 4 durable queues
//!                                                                                             │ acks
//!   SQLite: 1000 stations × 12 months ◀──a transaction a batch── pipeline, each station in order ◀┘
//! ```
//! At the end all that was published must be confirmed and counted once, whatever was delivered twice, and the table in
//! SQLite must equal a direct computation from the file. A broker given by `--url` may be killed and started again
//! meanwhile.

mod broker;
mod database;
mod gauges;
mod pipeline;
mod publisher;
mod readings;
mod station;
mod statistics;
mod summary;
mod view;
mod workplace;

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use forebay_client::Connection;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::exit::Exit;
use crate::figures::thousands;
use crate::standard_output;
use crate::stop_signal::{NOT_ANSWERED, StopSignal};
use broker::DemoBroker;
use database::Database;
use gauges::Gauges;
use publisher::{Load, PUBLISHER_COUNT};
use readings::Reading;
use station::{REGIONS, STATION_COUNT, stations};
use statistics::Statistics;
use summary::{Check, Summary};
use view::View;
use workplace::Workplace;

/// Without any progress for so long, the rest counts as lost: longer than a broker needs to start again.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a broker has to delete what was declared when nothing is carried after all.
const GIVING_UP: Duration = Duration::from_secs(1);

/// What is said at a signal, which nothing else shows until all is done.
const ENDING: &str =
    "forebay: no more is published, and what was is still counted; a second signal ends at once";

/// Carry a year of Seattle's hourly weather, sent as 1000 stations, through a durable broker and a pipeline into
/// a database, watch it live, and check the results.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Seconds of load
    #[arg(long, value_name = "N", default_value_t = 15,
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Use this broker instead of one of its own; it may be restarted meanwhile
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Write the SQLite database to this file, which must not exist yet, and keep it
    #[arg(long, value_name = "FILE")]
    database: Option<PathBuf>,
    /// Print the summary as JSON on standard output, the live view on standard error
    #[arg(long)]
    json: bool,
}

/// Runs the demo. Fails if a check does.
pub(crate) fn run(args: Args) -> Exit {
    match demonstrate(&args) {
        Ok(summary) => {
            let text = if args.json { format!("{}\n", summary.json()) } else { summary.text() };
            let exit = if summary.holds() { Exit::Done } else { Exit::Failed };
            exit.once(standard_output::print(&text))
        }
        Err(sentence) => Exit::Failed.because(sentence),
    }
}

fn demonstrate(args: &Args) -> Result<Summary, String> {
    let workplace = Workplace::new()?;
    let clear = workplace.clearing();
    let stop = StopSignal::listen_with(move |exit| {
        clear();
        exit();
    });
    let stop = stop.map_err(|error| format!("cannot handle signals: {error}"))?;
    let readings = readings::seattle().map_err(|bad| bad.to_string())?;
    let path = args.database.clone().unwrap_or_else(|| workplace.join("weather.sqlite"));
    let database = Database::create(&path)?;
    let broker = match &args.url {
        Some(url) => DemoBroker::other(url),
        None => DemoBroker::embedded(&workplace.join("broker"))?,
    };
    let runtime = Runtime::new().map_err(|error| format!("cannot start threads: {error}"))?;
    let outcome = runtime.block_on(async {
        match stop.or(broker.set_up()).await {
            Some(Ok(())) => {}
            Some(Err(why)) => return Err(give_up(&broker, why).await),
            None => return Err(give_up(&broker, NOT_ANSWERED.to_owned()).await),
        }
        say(args, &introduction(args, &broker, readings.len()));
        carry(args, &broker, database, readings, &stop).await
    });
    // What hangs on a broker that is gone is not waited for.
    runtime.shutdown_timeout(Duration::from_secs(1));
    let stopped = broker.stop();
    let mut summary = outcome?;
    if let Err(sentence) = stopped {
        summary.failure.get_or_insert(sentence);
    }
    Ok(summary)
}

/// Deletes what may have been declared before it could not go on, from a broker that answers, and says why nothing else is done.
async fn give_up(broker: &DemoBroker, why: String) -> String {
    // It may be the one that did not answer.
    let _ = timeout(GIVING_UP, broker.tear_down()).await;
    why
}

fn introduction(args: &Args, broker: &DemoBroker, readings: usize) -> String {
    format!(
        "\n  Forebay carries weather: {} hourly readings of Seattle (NOAA), repeated for {} s,\n  \
         from {STATION_COUNT} stations by a topic exchange to {} durable queues, and by a pipeline that\n  \
         keeps each station in order into SQLite. Every reading is persistent, {}\n  \
         confirmed, and acknowledged once its transaction is committed.\n  By {}.\n\n",
        thousands(readings as u64),
        args.seconds,
        REGIONS.len(),
        if args.url.is_none() { "synced to disk," } else { "" },
        broker.describe()
    )
}

fn say(args: &Args, text: &str) {
    // Nobody may be listening, which is no reason to stop.
    let _ = if args.json {
        io::stderr().write_all(text.as_bytes())
    } else {
        io::stdout().write_all(text.as_bytes())
    };
}

async fn carry(
    args: &Args,
    broker: &DemoBroker,
    database: Database,
    readings: Vec<Reading>,
    stop: &StopSignal,
) -> Result<Summary, String> {
    let gauges = Arc::new(Gauges::new());
    let mut view = View::new(args.json);
    let builder = Connection::builder().name("forebay demo, pipeline");
    let connection = match stop.or(builder.open(&broker.url)).await {
        Some(Ok(connection)) => connection,
        Some(Err(error)) => return Err(give_up(broker, error.to_string()).await),
        None => return Err(give_up(broker, NOT_ANSWERED.to_owned()).await),
    };
    let database = Arc::new(Mutex::new(database));
    let running = pipeline::start(&connection, &database, &gauges);
    let url = broker.url.clone();
    let load = Load { readings, stations: stations(), gauges: gauges.clone(), url };
    let load = Arc::new(load);
    let mut publishers = JoinSet::new();
    for number in 0..PUBLISHER_COUNT {
        let load = load.clone();
        publishers.spawn(async move { (number, publisher::run(load, number).await) });
    }

    let deadline = Instant::now() + Duration::from_secs(args.seconds);
    watch(&gauges, &mut view, broker, || {
        Instant::now() >= deadline || stop.came() || gauges.failure().is_some()
    })
    .await;
    gauges.stop_publishing.store(true, Ordering::Relaxed);
    if stop.came() {
        view.say(ENDING);
    }
    let mut published = [0; PUBLISHER_COUNT];
    let mut patience = Patience::new(&gauges);
    watch(&gauges, &mut view, broker, || {
        while let Some(ended) = publishers.try_join_next() {
            match ended {
                Ok((number, count)) => published[number] = count,
                Err(error) => gauges.fail(format!("a publisher ended unexpectedly: {error}")),
            }
        }
        publishers.is_empty() || patience.is_at_an_end()
    })
    .await;
    let total: u64 = published.iter().sum();
    watch(&gauges, &mut view, broker, || {
        let stored = gauges.stored.load(Ordering::Relaxed);
        stored >= total || patience.is_at_an_end() || gauges.failure().is_some()
    })
    .await;

    let control = running.control();
    control.drain(PATIENCE);
    let report = running.join().await.map_err(|error| error.to_string());
    let report = report.inspect_err(|sentence| gauges.fail(sentence.clone())).unwrap_or_default();
    let seconds = gauges.now_us() as f64 / 1e6;
    view.sample(&gauges);
    // The last acknowledgements leave with this.
    match timeout(PATIENCE, connection.close()).await {
        Ok(Ok(())) => {}
        Ok(Err(lost)) => gauges.fail(format!("the pipeline's connection: {lost}")),
        Err(_) => gauges.fail("the broker does not answer the pipeline".into()),
    }
    let left = broker.tear_down().await;
    let statistics = database.lock().unwrap_or_else(PoisonError::into_inner).statistics()?;
    let checks =
        checks(&gauges, &load.readings, &published, &statistics, left.as_ref().ok().copied());
    Ok(Summary {
        seconds,
        published: total,
        confirmed: gauges.confirmed.load(Ordering::Relaxed),
        stored: gauges.stored.load(Ordering::Relaxed),
        republished: gauges.republished.load(Ordering::Relaxed),
        duplicates: gauges.duplicates.load(Ordering::Relaxed),
        transactions: gauges.transactions.load(Ordering::Relaxed),
        retried: report.retried,
        confirm: view.confirm,
        end_to_end: view.end_to_end,
        process_bytes_max: view.process_bytes_max,
        explanation: control.explanation().unwrap_or_default(),
        cause: control.cause().map(|cause| cause.to_string()),
        months: statistics.months(),
        database: args.database.clone(),
        checks,
        failure: gauges.failure().or(left.err()),
    })
}

/// Until nothing has moved for [`PATIENCE`].
struct Patience<'g> {
    gauges: &'g Gauges,
    moved: u64,
    at: Instant,
}

impl Patience<'_> {
    fn new(gauges: &Gauges) -> Patience<'_> {
        Patience { gauges, moved: 0, at: Instant::now() }
    }

    /// If it is, that is a failure.
    fn is_at_an_end(&mut self) -> bool {
        let counters = [&self.gauges.confirmed, &self.gauges.stored];
        let moved = counters.iter().map(|counter| counter.load(Ordering::Relaxed)).sum();
        if moved != self.moved {
            (self.moved, self.at) = (moved, Instant::now());
        }
        let ended = self.at.elapsed() > PATIENCE;
        if ended {
            let seconds = PATIENCE.as_secs();
            self.gauges.fail(format!("nothing was confirmed or stored for {seconds} s"));
        }
        ended
    }
}

/// Draws until `done`.
async fn watch(
    gauges: &Gauges,
    view: &mut View,
    broker: &DemoBroker,
    mut done: impl FnMut() -> bool,
) {
    let mut drawn = Instant::now();
    while !done() {
        sleep(Duration::from_millis(10)).await;
        if drawn.elapsed() >= view.interval() {
            drawn = Instant::now();
            view.draw(gauges, broker);
        }
    }
}

fn checks(
    gauges: &Gauges,
    readings: &[Reading],
    published: &[u64],
    statistics: &Statistics,
    left: Option<u64>,
) -> Vec<Check> {
    let total: u64 = published.iter().sum();
    let confirmed = gauges.confirmed.load(Ordering::Relaxed);
    let stored = gauges.stored.load(Ordering::Relaxed);
    vec![
        Check {
            what: format!(
                "published {} = confirmed {} = counted in SQLite {}",
                thousands(total),
                thousands(confirmed),
                thousands(stored)
            ),
            holds: total > 0 && total == confirmed && confirmed == stored,
        },
        Check {
            what: format!(
                "its {} rows, a station and a month each, equal a direct computation from the file",
                thousands(statistics.rows() as u64)
            ),
            holds: *statistics == Statistics::expected(readings, published),
        },
        Check { what: "every queue is empty again".into(), holds: left == Some(0) },
    ]
}
