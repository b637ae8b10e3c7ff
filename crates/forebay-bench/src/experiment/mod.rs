//! Workloads that are no load of the generator's: each asks a question of its own and has figures of its own.
//!
//! ```text
//!   Experiment ── run(Place) ──▶ Findings = cases with figures, demands that were met or not
//! ```
//! They are programs as users write them, with this repository's clients, so their processor time counts in
//! their figures.

mod churn;
mod connections;
mod enqueue;
mod findings;
mod hoarding;
mod machine;
mod mailbox;
mod marks;
mod overhead;
mod queue;
mod queue_source;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_client::Connection;

pub(crate) use findings::{Case, Demand, Findings, Found, Row, number};

use crate::process;
use crate::stamp::Mark;

/// A question to a broker.
#[derive(Clone, Copy)]
pub(crate) struct Experiment {
    pub(crate) name: &'static str,
    /// One line for people.
    pub(crate) about: &'static str,
    /// What a good broker shows.
    pub(crate) look_at: &'static str,
    /// It asks no broker anything.
    pub(crate) alone: bool,
    /// The queues that it declares, and deletes at its end, by what [`Place::queue`] makes names of.
    pub(crate) queues: &'static [&'static str],
    /// The flags of loads that it understands.
    pub(crate) takes: &'static [&'static str],
    run: fn(&Place) -> Result<Findings, String>,
}

pub(crate) const EXPERIMENTS: [Experiment; 8] = [
    Experiment {
        name: "connections",
        about: "a thousand connections that do nothing (--producers says how many)",
        look_at: "what each costs the broker's memory, how fast they open, and that others notice nothing",
        alone: false,
        queues: &[],
        takes: &["--producers"],
        run: connections::run,
    },
    Experiment {
        name: "churn",
        about: "four clients that open, publish and close, or declare and delete, without end",
        look_at: "how many a second, and that the broker's memory is afterwards what it was",
        alone: false,
        queues: &churn::QUEUES,
        takes: &["--size"],
        run: churn::run,
    },
    Experiment {
        name: "enqueue",
        about: "1 to 48 callers share one connection; each waits until its message is on disk",
        look_at: "48 callers enqueue ten times as much as one after the other, and none waits twice as long",
        alone: false,
        queues: &[enqueue::QUEUE],
        takes: &["--size"],
        run: enqueue::run,
    },
    Experiment {
        name: "hoarding",
        about: "25 workers behind 1, 2 and 8 consumers, 25 jobs; short jobs among long ones (a tenth of --seconds)",
        look_at: "all jobs start at once, none waits behind a busy worker while another is idle; the timelines",
        alone: false,
        queues: &[hoarding::QUEUE],
        takes: &[],
        run: hoarding::run,
    },
    Experiment {
        name: "mailbox",
        about: "a handler makes calls while 0, 10,000 or a million messages wait (--messages says how many at most)",
        look_at: "a call costs the same however many wait, and however fast they come; an Erlang process beside it",
        alone: false,
        queues: &[mailbox::QUEUE, mailbox::SERVICE],
        takes: &["--messages"],
        run: mailbox::run,
    },
    Experiment {
        name: "overhead",
        about: "a pipeline whose handler does nothing, on one core and without a broker (--messages)",
        look_at: "what a message costs the processor, and how many go through in a second",
        alone: true,
        queues: &[],
        takes: &["--messages"],
        run: overhead::run,
    },
    Experiment {
        name: "marks",
        about: "publisher, broker and pipeline with one message in a hundred marked for explain, and without, in turns (--messages)",
        look_at: "how much more of the processor's time the whole way takes with marks",
        alone: false,
        queues: &[marks::QUEUE],
        takes: &["--size", "--messages"],
        run: marks::run,
    },
    Experiment {
        name: "machine",
        about: "arithmetic, memory, the loopback interface and the disk, without a broker",
        look_at: "how much the machine itself varies from second to second: what a rate that varies owes to it",
        alone: true,
        queues: &[],
        takes: &[],
        run: machine::run,
    },
];

impl Experiment {
    /// By its name.
    pub(crate) fn named(name: &str) -> Option<&'static Experiment> {
        EXPERIMENTS.iter().find(|experiment| experiment.name == name)
    }

    /// Asks it.
    ///
    /// # Errors
    /// Why there is no answer.
    pub(crate) fn run(&self, place: &Place) -> Result<Findings, String> {
        (self.run)(place)
    }
}

/// How often a lost connection is tried again, with pauses that double.
const RECOVERY_ROUNDS: u32 = 3;
/// Nothing takes so long beside what is measured.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where a question is asked, and what the flags say of it.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// Empty where nobody is asked.
    pub(crate) url: String,
    /// The broker's process, if it runs on this machine and we may look.
    pub(crate) pid: Option<u32>,
    pub(crate) queue_type: Option<String>,
    /// Whose disk is measured.
    pub(crate) dir: Option<PathBuf>,
    /// Of each measurement.
    pub(crate) length: Duration,
    pub(crate) connections: Option<usize>,
    pub(crate) size: Option<usize>,
    pub(crate) messages: Option<u64>,
    /// Of the queues: others may ask the same broker the same, or have one of that name.
    pub(crate) mark: Mark,
    /// Nobody waits for the answer any more.
    pub(crate) stopped: Arc<AtomicBool>,
}

impl Place {
    /// What a queue is called here.
    pub(crate) fn queue(&self, name: &str) -> String {
        format!("{name}-{}", self.mark.hex())
    }

    /// From now on nothing new is begun.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Refuses to begin something that would be left behind.
    fn goes_on(&self) -> Result<(), String> {
        if self.stopped.load(Ordering::Relaxed) { Err("it was stopped".into()) } else { Ok(()) }
    }

    /// Memory of the broker and all that it started, if it is known.
    fn resident_bytes(&self) -> Option<u64> {
        self.pid.and_then(process::usage_of_tree).map(|usage| usage.resident_bytes)
    }

    /// A connection that gives up when the broker is gone: what waits for it ends.
    async fn connect(&self) -> Result<Connection, String> {
        let builder = Connection::builder().recovery_rounds(RECOVERY_ROUNDS);
        builder.open(&self.url).await.map_err(told)
    }

    /// The URL of a connection that nobody serves: without heartbeats.
    fn idle_url(&self) -> String {
        let sign = if self.url.contains('?') { '&' } else { '?' };
        format!("{}{sign}heartbeat=0", self.url)
    }
}

/// Runs `work` on a runtime of its own.
fn block_on<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| format!("no threads: {error}"))?;
    runtime.block_on(work)
}

/// The same on this thread: its processor's time varies less.
fn block_on_here<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| format!("no runtime: {error}"))?.block_on(work)
}

/// Any error as a sentence.
fn told(error: impl std::fmt::Display) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Place {
        /// Without flags.
        pub(in crate::experiment) fn somewhere(url: &str, length: Duration) -> Place {
            Place {
                url: url.into(),
                pid: None,
                queue_type: None,
                dir: None,
                length,
                connections: None,
                size: None,
                messages: None,
                mark: Mark::default(),
                stopped: Arc::default(),
            }
        }
    }

    #[test]
    fn names_are_found_and_are_no_workloads_names() {
        for experiment in &EXPERIMENTS {
            let found = Experiment::named(experiment.name).map(|found| found.name);
            assert_eq!(found, Some(experiment.name));
        }
        assert!(Experiment::named("stress-1").is_none());
    }

    #[test]
    fn a_connection_that_nobody_serves_has_no_heartbeats() {
        let at = |url: &str| Place::somewhere(url, Duration::ZERO);
        assert_eq!(at("amqp://h").idle_url(), "amqp://h?heartbeat=0");
        assert_eq!(at("amqp://h?a=b").idle_url(), "amqp://h?a=b&heartbeat=0");
    }
}
