//! What all measures have in common: the broker, repetitions, chance, where the record goes.

use std::path::PathBuf;

use serde::Serialize;

use super::broker::{Broker, beside_us};
use crate::broker::Ground;
use crate::link::RoutedLink;

/// The broker that is measured and how often.
#[derive(clap::Args, Debug, Clone)]
pub(super) struct Setting {
    /// A broker that runs already; otherwise `forebay serve` is started, afresh for each cell
    #[arg(long, value_name = "URL", env = "FOREBAY_URL", hide_env_values = true)]
    pub(super) url: Option<String>,
    /// Starts RabbitMQ, which must be installed here, in place of `forebay serve`
    #[arg(long, conflicts_with = "url")]
    rabbitmq: bool,
    /// The program to start; otherwise the one beside this program
    #[arg(long, value_name = "PROGRAM")]
    forebay: Option<PathBuf>,
    /// Where its data go: their disk is what is measured
    #[arg(long, value_name = "DIR", default_value = ".cache/distance")]
    dir: PathBuf,
    /// `x-queue-type` of the queue: classic or quorum
    #[arg(long, value_name = "TYPE")]
    pub(super) queue_type: Option<String>,
    /// Repetitions; from 3 on ratios have intervals
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(super) repeat: usize,
    /// Orders the runs and draws the intervals
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,
    /// Over an emulated link, too, let the client ask the kernel for its sockets' round trip, which is
    /// loopback's then: as behind a proxy that ends TCP
    #[arg(long)]
    pub(super) kernel_rtt: bool,
    /// The emulated link is one of IP packets, whose round trip the kernel measures: run it under
    /// `unshare --net`, as root
    #[arg(long)]
    pub(super) routed: bool,
    /// Write the record here, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Setting {
    /// The broker: the one at the URL, or a fresh one.
    pub(super) async fn broker(&self) -> Result<Broker, String> {
        self.broker_on(None).await
    }

    /// The broker, on a disk whose flush takes so many milliseconds longer, which may be changed, if it is ours.
    pub(super) async fn broker_on(&self, flush_ms: Option<f64>) -> Result<Broker, String> {
        if let Some(url) = &self.url {
            return Ok(Broker::at(url));
        }
        let directory = std::path::absolute(&self.dir).map_err(|error| error.to_string())?;
        if self.routed {
            RoutedLink::raise_loopback().map_err(|error| error.to_string())?;
        }
        let ground = Ground { flush_us: flush_ms.map(|ms| (ms * 1e3) as u32), far: self.routed };
        if self.rabbitmq {
            return Broker::start_rabbitmq(&directory, ground);
        }
        let program = match &self.forebay {
            Some(program) => program.clone(),
            None => beside_us("forebay")?,
        };
        Broker::start(&program, &directory, ground)
    }

    /// Writes the record, as far as it has come.
    pub(super) fn save(&self, record: &impl Serialize) -> Result<(), String> {
        let Some(path) = &self.json else { return Ok(()) };
        let text = serde_json::to_string_pretty(record).map_err(|error| error.to_string())?;
        std::fs::write(path, text + "\n").map_err(|error| format!("{}: {error}", path.display()))
    }
}

/// Tells whoever waits how it goes; results go to standard output.
pub(super) fn say(text: &str) {
    eprintln!("{text}");
}

/// A rate for people.
pub(super) fn rate(per_s: f64) -> String {
    match per_s {
        few if few < 1e4 => format!("{few:.0}/s"),
        many => format!("{:.1} k/s", many / 1e3),
    }
}

/// Microseconds for people, as milliseconds.
pub(super) fn ms(us: f64) -> String {
    let ms = us / 1e3;
    if ms < 10.0 { format!("{ms:.2} ms") } else { format!("{ms:.0} ms") }
}
