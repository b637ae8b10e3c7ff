//! `forebay demo`: the whole main job by itself, on real input.
//!
//! ```text
//!   a year of Seattle's weather, over and over, from 1000 stations
//!        │
//!   4 publishers ──confirms, window──▶ topic exchange ──weather.<region>.#──▶ 4 durable queues
//!                                                                               │ prefetch, acks
//!   12 months: count, mean, min, max ◀────────────────────────────────── 4 consumers
//! ```
//! At the end all that was published must be confirmed and consumed once, and the consumers' results
//! must equal those of a direct computation from the file.

mod broker;
mod consumer;
mod gauges;
mod publisher;
mod readings;
mod station;
mod statistics;
mod summary;
mod view;

use std::io::{self, Write};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use crate::exit::Exit;
use crate::figures::thousands;
use crate::stop_signal::StopSignal;
use broker::DemoBroker;
use gauges::Gauges;
use publisher::{Load, PUBLISHER_COUNT};
use readings::Reading;
use station::{REGIONS, STATION_COUNT, stations};
use statistics::Statistics;
use summary::{Check, Summary};
use view::View;

/// Consumers may need this long without any progress before the rest counts as lost.
const DRAIN_PATIENCE: Duration = Duration::from_secs(10);

/// Carry a year of real weather readings from 1000 stations through a durable broker, watch it
/// live, and check the results.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Seconds of load
    #[arg(long, value_name = "N", default_value_t = 15,
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Use this broker instead of one of its own
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Print the summary as JSON on standard output, the live view on standard error
    #[arg(long)]
    json: bool,
}

/// Runs the demo. Fails if a check does.
pub(crate) fn run(args: Args) -> Exit {
    match demonstrate(&args) {
        Ok(summary) => {
            let text = if args.json { format!("{}\n", summary.json()) } else { summary.text() };
            // Whoever closed the pipe has seen enough; the exit code tells the rest.
            let _ = io::stdout().write_all(text.as_bytes());
            if summary.holds() { Exit::Done } else { Exit::Failed }
        }
        Err(sentence) => Exit::Failed.because(sentence),
    }
}

fn demonstrate(args: &Args) -> Result<Summary, String> {
    let stop = StopSignal::listen().map_err(|error| format!("cannot handle signals: {error}"))?;
    let readings = readings::seattle().map_err(|bad| bad.to_string())?;
    let broker = match &args.url {
        Some(url) => DemoBroker::other(url),
        None => DemoBroker::embedded()?,
    };
    let outcome = broker.set_up().map(|()| {
        say(args, &introduction(args, &broker, readings.len()));
        carry(args, &broker, &readings, &stop)
    });
    let stopped = broker.stop();
    let mut summary = outcome?;
    if let Err(sentence) = stopped {
        summary.failure.get_or_insert(sentence);
    }
    Ok(summary)
}

fn introduction(args: &Args, broker: &DemoBroker, readings: usize) -> String {
    format!(
        "\n  Forebay carries weather: {} hourly readings of Seattle (NOAA), repeated for {} s,\n  \
         from {STATION_COUNT} stations through a topic exchange to {} durable queues.\n  \
         Every message is persistent, {}confirmed and acked.\n  {}\n\n",
        thousands(readings as u64),
        args.seconds,
        REGIONS.len(),
        if args.url.is_none() { "synced to disk, " } else { "" },
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

fn carry(args: &Args, broker: &DemoBroker, readings: &[Reading], stop: &StopSignal) -> Summary {
    let gauges = Gauges::new();
    let stations = stations();
    let load = Load { readings, stations: &stations, gauges: &gauges, url: &broker.url };
    let mut view = View::new(args.json);
    let (published, months) = thread::scope(|scope| {
        let consumers =
            REGIONS.map(|region| scope.spawn(|| consumer::run(&broker.url, region, &gauges)));
        let load = &load;
        let publishers: Vec<_> = (0..PUBLISHER_COUNT)
            .map(|number| scope.spawn(move || publisher::run(load, number)))
            .collect();

        let deadline = Instant::now() + Duration::from_secs(args.seconds);
        watch(&gauges, &mut view, broker, || {
            Instant::now() >= deadline || stop.came() || gauges.failure().is_some()
        });
        gauges.stop_publishing.store(true, Ordering::Relaxed);
        watch(&gauges, &mut view, broker, || publishers.iter().all(|p| p.is_finished()));
        let published: Vec<u64> =
            publishers.into_iter().map(|publisher| publisher.join().unwrap_or(0)).collect();

        let total = published.iter().sum();
        let mut progress = (0, Instant::now());
        watch(&gauges, &mut view, broker, || {
            let consumed = gauges.consumed.load(Ordering::Relaxed);
            if consumed != progress.0 {
                progress = (consumed, Instant::now());
            }
            consumed >= total || progress.1.elapsed() > DRAIN_PATIENCE || gauges.failure().is_some()
        });
        gauges.stop_consuming.store(true, Ordering::Relaxed);
        let mut months = Statistics::default();
        for consumer in consumers {
            match consumer.join() {
                Ok(part) => months.add(&part, 1),
                Err(_) => gauges.fail("a consumer's thread ended unexpectedly".into()),
            }
        }
        (published, months)
    });
    let seconds = gauges.now_us() as f64 / 1e6;
    view.sample(&gauges);
    let left = broker.tear_down();
    let checks = checks(&gauges, readings, &published, &months, left.as_ref().ok().copied());
    Summary {
        seconds,
        published: published.iter().sum(),
        confirmed: gauges.confirmed.load(Ordering::Relaxed),
        consumed: gauges.consumed.load(Ordering::Relaxed),
        confirm: view.confirm,
        end_to_end: view.end_to_end,
        process_bytes_max: view.process_bytes_max,
        months,
        checks,
        failure: gauges.failure().or(left.err()),
    }
}

/// Draws until `done`.
fn watch(gauges: &Gauges, view: &mut View, broker: &DemoBroker, mut done: impl FnMut() -> bool) {
    let mut drawn = Instant::now();
    while !done() {
        thread::sleep(Duration::from_millis(10));
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
    months: &Statistics,
    left: Option<u64>,
) -> Vec<Check> {
    let total: u64 = published.iter().sum();
    let confirmed = gauges.confirmed.load(Ordering::Relaxed);
    let consumed = gauges.consumed.load(Ordering::Relaxed);
    let expected = Statistics::expected(readings, published);
    vec![
        Check {
            what: format!(
                "published {} = confirmed {} = consumed {}",
                thousands(total),
                thousands(confirmed),
                thousands(consumed)
            ),
            holds: total > 0 && total == confirmed && confirmed == consumed,
        },
        Check {
            what: "all twelve months equal a direct computation from the file".into(),
            holds: *months == expected,
        },
        Check { what: "every queue is empty again".into(), holds: left == Some(0) },
    ]
}
