//! The flags of `forebay bench run`, with the names that PerfTest's users know.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::grid::Axis;
use super::onlooker::STALL_SECONDS_MAX;
use super::perftest::PerfTest;
use super::record::Asked;
use super::scale::Scale;
use super::target::Target;
use super::workload::Workload;
use crate::arguments::QueueArguments;
use crate::experiment::{Experiment, Place};
use crate::plan::{Plan, SECONDS_MAX};
use crate::schedule::RatePiece;
use crate::setting::{Credit, Window};
use crate::stamp::Mark;
use crate::step::{Step, StepKind};

const WARM_UP_SECONDS: f64 = 3.0;
/// A slip of the hand is above: ten minutes, a terabit a second, a thousand runs of each setting.
const RTT_MS_MAX: f64 = 600_000.0;
const MBIT_MAX: f64 = 1e6;
const ROUNDS_MAX: usize = 1_000;
/// The messages of an experiment, which lie in memory or are counted to the last.
const MESSAGES_MAX: u64 = 10_000_000;

/// What to run, where, and what to do with the figures.
#[derive(clap::Args, Debug, Clone)]
pub struct Flags {
    /// A workload by name (`forebay bench list`); without it flags say everything
    pub name: Option<String>,
    /// The broker; without it, one of our own in a temporary directory. May be repeated
    #[arg(long, value_name = "URL", env = "FOREBAY_URL", hide_env_values = true)]
    pub(crate) url: Vec<String>,
    /// Also measure a RabbitMQ of our own, with classic and with quorum queues, if it is installed here
    #[arg(long)]
    pub(crate) peers: bool,
    /// Where the data of a broker of our own go: their disk is what is measured [default: the system's directory
    /// for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// The program to serve with, if not this one
    #[arg(long, value_name = "PROGRAM", hide = true)]
    pub(crate) forebay: Option<PathBuf>,

    /// Publishers, each with a connection
    #[arg(long, short = 'x', value_name = "N", help_heading = "Load")]
    producers: Option<usize>,
    /// Consumers, each with a connection
    #[arg(long, short = 'y', value_name = "N", help_heading = "Load")]
    consumers: Option<usize>,
    /// Queues; publisher and consumer number i use queue i modulo this
    #[arg(long, value_name = "N", help_heading = "Load")]
    queues: Option<usize>,
    /// Queues are called NAME.0, NAME.1, … and deleted afterwards; what is there already is refused, unless
    /// --predeclared [default: a name that nobody else has]
    #[arg(long, short = 'u', value_name = "NAME", help_heading = "Load")]
    queue: Option<String>,
    /// classic or quorum
    #[arg(long, value_name = "TYPE", help_heading = "Load")]
    queue_type: Option<String>,
    /// Further arguments of the queues: NAME=VALUE, separated by commas
    #[arg(long, value_name = "LIST", help_heading = "Load")]
    queue_args: Option<QueueArguments>,
    /// Messages a second per publisher; 0 = as fast as the broker takes them
    #[arg(long, short = 'r', value_name = "N", help_heading = "Load")]
    rate: Option<f64>,
    /// The same as a profile: RATE:SECONDS, one after the other and again. May be repeated
    #[arg(long, value_name = "RATE:SECONDS", conflicts_with = "rate", help_heading = "Load")]
    variable_rate: Vec<RatePiece>,
    /// Messages a second that a consumer can work on
    #[arg(long, short = 'R', value_name = "N", help_heading = "Load")]
    consumer_rate: Option<f64>,
    /// Bytes of a body
    #[arg(long, short = 's', value_name = "BYTES", help_heading = "Load")]
    size: Option<usize>,
    /// persistent or transient
    #[arg(long, short = 'f', value_name = "FLAG", value_parser = ["persistent", "transient"], help_heading = "Load")]
    flag: Option<String>,
    /// Messages to lie in the queue before consumers come (backlog)
    #[arg(long, value_name = "N", help_heading = "Load")]
    messages: Option<u64>,

    /// Unconfirmed messages of a publisher: auto (the window tunes itself), N, or none or 0 (no confirms)
    #[arg(
        long,
        short = 'c',
        alias = "window",
        value_name = "N|auto|none",
        help_heading = "Flow control"
    )]
    confirm: Option<Window>,
    /// Unacknowledged messages of a consumer: auto (the credit tunes itself), N, or none or 0 (no bound)
    #[arg(
        long,
        short = 'q',
        alias = "prefetch",
        value_name = "N|auto|none",
        help_heading = "Flow control"
    )]
    qos: Option<Credit>,
    /// Ack with `multiple` after so many deliveries; 0 = after each read of the socket
    #[arg(long, short = 'A', value_name = "N", help_heading = "Flow control")]
    multi_ack_every: Option<u64>,
    /// Consumers need no acks
    #[arg(long, short = 'a', help_heading = "Flow control")]
    autoack: bool,

    #[command(flatten)]
    perftest: PerfTest,

    /// Seconds that are measured
    #[arg(
        long,
        short = 'z',
        visible_alias = "time",
        value_name = "N",
        default_value_t = 10.0,
        help_heading = "Measurement"
    )]
    pub(crate) seconds: f64,
    /// Seconds of load before them [default: 3]
    #[arg(long, value_name = "N", help_heading = "Measurement")]
    warm_up: Option<f64>,
    /// auto: measure the broker's capacity first and fit the workload's rate to it; N%: the load is so much of that
    /// capacity; X: the rate X times. Without it, workloads with a rate are fitted, and a rate given by flag is taken
    /// as it is
    #[arg(long, value_name = "auto|N%|X", help_heading = "Measurement")]
    pub(crate) scale: Option<Scale>,
    /// Fixed settings beside the own one: window=8,64,512 (or 1%,10% of the rate), prefetch=…, ack=…. May be
    /// repeated
    #[arg(long, value_name = "GRID", help_heading = "Measurement")]
    pub(crate) grid: Vec<Axis>,
    /// Find the knee: the window, a publisher, after which more in flight adds latency and no throughput. As fast as
    /// the broker takes it, unless --rate or --scale are given
    #[arg(long, conflicts_with = "grid", help_heading = "Measurement")]
    pub(crate) knee: bool,
    /// Every run so many times, in random order; from 3 on ratios have intervals, from 5 on they can be relied on [default: 1, with --knee 3]
    #[arg(long, value_name = "N", help_heading = "Measurement")]
    repeat: Option<usize>,
    /// Rounds that judge, after those that choose: the best and the knee of --grid and what tunes itself in turns, compared
    /// within each round. Without them the runs that choose the best judge, too, and its luck is in the ratios [default: 0]
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        requires = "grid",
        hide_default_value = true,
        help_heading = "Measurement"
    )]
    pub(crate) judge: usize,
    /// Orders the runs
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Measurement")]
    pub(crate) seed: u64,
    /// Something that happens meanwhile: SECOND:consumers/FACTOR (they slow down), SECOND:stall=SECONDS (a broker of
    /// our own stands still), SECOND:rtt=MS. May be repeated
    #[arg(long = "step", value_name = "STEP", help_heading = "Measurement")]
    steps: Vec<Step>,
    /// Round trip of an emulated link between, in milliseconds
    #[arg(long, value_name = "MS", help_heading = "Measurement")]
    pub(crate) rtt: Option<f64>,
    /// Bandwidth of the emulated link, in megabits a second
    #[arg(long, value_name = "N", help_heading = "Measurement")]
    pub(crate) mbit: Option<f64>,

    /// Write everything to this file, for `forebay bench compare`
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub json: Option<PathBuf>,
    /// Write the report to this file: charts and tables, to be opened in a browser
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub html: Option<PathBuf>,
    /// Draw the timelines of `hoarding` to this file, as SVG
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub svg: Option<PathBuf>,
    /// Write every second to this file; of an experiment, every figure
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub csv: Option<PathBuf>,
}

impl Flags {
    /// The workload that was named.
    pub(crate) fn workload(&self) -> Result<Option<&'static Workload>, String> {
        let Some(name) = &self.name else { return Ok(None) };
        let found = Workload::named(name);
        found.map(Some).ok_or_else(|| {
            format!("there is no workload `{name}`; `forebay bench list` names all of them")
        })
    }

    /// The same, with the workload's link where the flags do not say another.
    pub(crate) fn with_link_of(&self, workload: Option<&Workload>) -> Flags {
        let mut flags = self.clone();
        if let Some((rtt_ms, mbit)) = workload.and_then(|workload| workload.link) {
            flags.rtt.get_or_insert(rtt_ms);
            flags.mbit.get_or_insert(mbit);
        }
        flags
    }

    /// The experiment that was named.
    pub(crate) fn experiment(&self) -> Option<&'static Experiment> {
        self.name.as_deref().and_then(Experiment::named)
    }

    /// What an experiment is told of the flags, on a broker.
    pub(crate) fn place(&self, target: &Target, url: String) -> Place {
        Place {
            url,
            pid: target.pid,
            queue_type: target.queue_type.clone().or_else(|| self.queue_type()),
            ..self.nowhere()
        }
    }

    /// The same without a broker.
    pub(crate) fn nowhere(&self) -> Place {
        Place {
            url: String::new(),
            pid: None,
            queue_type: None,
            dir: self.dir.clone(),
            length: Duration::from_secs_f64(self.seconds),
            connections: self.producers,
            size: self.size,
            messages: self.messages,
            mark: Mark::fresh(),
            stopped: Arc::default(),
        }
    }

    /// What an experiment is asked, for its record.
    pub(crate) fn asked(&self) -> Asked {
        Asked {
            seconds: self.seconds,
            connections: self.producers,
            size_bytes: self.size,
            messages: self.messages,
            queue_type: self.queue_type(),
            rtt_ms: self.rtt,
            mbit: self.mbit,
        }
    }

    /// Refuses numbers that mean nothing, whatever is run.
    pub(crate) fn check(&self) -> Result<(), String> {
        let within = |value: f64, most: f64| value.is_finite() && (0.0..=most).contains(&value);
        let stalls = |step: &Step| match step.what {
            StepKind::StallSeconds(seconds) => seconds > STALL_SECONDS_MAX,
            StepKind::Consumers(_) | StepKind::RttMs(_) => false,
        };
        let lengthens =
            |step: &Step| matches!(step.what, StepKind::RttMs(ms) if !within(ms, RTT_MS_MAX));
        let wrong = if !(within(self.seconds, SECONDS_MAX) && self.seconds > 0.0) {
            format!("a measurement takes time, and {SECONDS_MAX} seconds at most")
        } else if self.repeat.is_some_and(|runs| runs > ROUNDS_MAX) || self.judge > ROUNDS_MAX {
            format!("--repeat and --judge: {ROUNDS_MAX} rounds at most")
        } else if self.rtt.is_some_and(|ms| !within(ms, RTT_MS_MAX)) {
            format!("--rtt is a number of milliseconds from 0 to {RTT_MS_MAX}")
        } else if self.steps.iter().any(lengthens) {
            format!("--step: a round trip has {RTT_MS_MAX} ms at most")
        } else if self.mbit.is_some_and(|mbit| !(within(mbit, MBIT_MAX) && mbit > 0.0)) {
            format!("--mbit is a number above 0, {MBIT_MAX} at most")
        } else if self.steps.iter().any(stalls) {
            format!("--step: a broker stands still for {STALL_SECONDS_MAX} seconds at most")
        } else if self.svg.is_some() && self.name.as_deref() != Some("hoarding") {
            "--svg: only `hoarding` has timelines to draw".to_owned()
        } else if self.dir.is_some() && !self.url.is_empty() && !self.peers {
            "--dir is for a broker of our own, and --url or FOREBAY_URL names another".to_owned()
        } else if let Some(dir) = self.dir.as_ref().filter(|dir| !dir.is_dir()) {
            format!("--dir: there is no directory {}", dir.display())
        } else if let Some(wrong) = self.contradiction() {
            wrong.to_owned()
        } else {
            return Ok(());
        };
        Err(wrong)
    }

    /// Two flags of which one would be ignored, or could only fail when the time has come.
    fn contradiction(&self) -> Option<&'static str> {
        let stalls = |step: &Step| matches!(step.what, StepKind::StallSeconds(_));
        let written = [&self.json, &self.html, &self.svg, &self.csv].map(Option::as_ref);
        let written: Vec<_> = written.into_iter().flatten().collect();
        let twice = (1..written.len()).any(|at| written[..at].contains(&written[at]));
        let fits_rate = matches!(self.scale, Some(Scale::Auto | Scale::Share(_)));
        let all = [
            (twice, "two of --json, --html, --svg and --csv name one file"),
            (self.repeat == Some(0), "--repeat is at least 1"),
            (
                self.steps.iter().any(stalls) && !self.url.is_empty(),
                "--step: only a broker of our own is made to stand still, and --url or FOREBAY_URL names another",
            ),
            (
                self.knee && self.confirm.is_some(),
                "--knee searches the window: leave --confirm out",
            ),
            (
                self.knee && self.producers == Some(0),
                "--knee searches the window of publishers, and there are none",
            ),
            (
                fits_rate && self.rate.is_some(),
                "--scale fits the rate to the capacity: leave --rate out",
            ),
            (
                self.autoack && (self.qos.is_some() || self.multi_ack_every.is_some()),
                "--autoack: what needs no acks has no bound and no interval of them: leave --qos and --multi-ack-every out",
            ),
            (
                self.perftest.ends_before_it_begins(),
                "--queue-pattern-to is below --queue-pattern-from: that is no queue",
            ),
            (
                self.perftest.predeclared && self.queue.is_none() && !self.perftest.names_queues(),
                "--predeclared takes queues that are there: --queue or --queue-pattern says which",
            ),
            (
                self.warm_up.is_some_and(|warm_up_s| warm_up_s > 0.0) && self.perftest.counts(),
                "--warm-up: a load that ends after a number of messages begins with the first of them",
            ),
        ];
        all.into_iter().find_map(|(wrong, why)| wrong.then_some(why))
    }

    /// Refuses what an experiment cannot do, rather than leave it out in silence.
    pub(crate) fn check_experiment(&self, experiment: &Experiment) -> Result<(), String> {
        let (publishers, size) = (self.producers.unwrap_or(1), self.size.unwrap_or(0));
        let sizes = Plan { publishers, size, ..Plan::default() };
        sizes.check().map_err(|error| error.to_string())?;
        if self.messages.is_some_and(|messages| messages > MESSAGES_MAX) {
            return Err(format!("--messages: an experiment takes {MESSAGES_MAX} at most"));
        }
        let somewhere = [
            ("--url", !self.url.is_empty()),
            ("--peers", self.peers),
            ("--rtt and --mbit", self.link()),
        ];
        if let Some((flag, _)) = somewhere.iter().find(|(_, given)| experiment.alone && *given) {
            return Err(format!("{flag}: {} asks no broker anything", experiment.name));
        }
        let of_loads = [
            ("--producers", self.producers.is_some()),
            ("--consumers", self.consumers.is_some()),
            ("--queues", self.queues.is_some()),
            ("--queue", self.queue.is_some()),
            ("--queue-args", self.queue_args.is_some()),
            ("--rate", self.has_rate()),
            ("--consumer-rate", self.consumer_rate.is_some()),
            ("--size", self.size.is_some()),
            ("--flag", self.flag.is_some()),
            ("--messages", self.messages.is_some()),
            ("--confirm", self.confirm.is_some()),
            ("--qos", self.qos.is_some()),
            ("--multi-ack-every", self.multi_ack_every.is_some()),
            ("--autoack", self.autoack),
            ("--warm-up", self.warm_up.is_some()),
            ("--scale", self.scale.is_some()),
            ("--grid", !self.grid.is_empty()),
            ("--knee", self.knee),
            ("--judge", self.judge > 0),
            ("--step", !self.steps.is_empty()),
        ];
        let perftest = self.perftest.given();
        let mut given = of_loads.iter().chain(&perftest).filter(|(_, given)| *given).copied();
        match given.find(|(flag, _)| !experiment.takes.contains(flag)) {
            Some((flag, _)) => {
                Err(format!("{flag} is for loads; this is an experiment of its own"))
            }
            None => Ok(()),
        }
    }

    /// The plan: the workload's, or one without a name, changed by flags.
    pub(crate) fn plan(&self, workload: Option<&Workload>) -> Plan {
        let mut plan = match workload {
            Some(workload) => workload.plan(),
            // What PerfTest does without flags, but with what Forebay does about flow control.
            None => Plan { window: Window::Auto, prefetch: Credit::Auto, ..Plan::default() },
        };
        set(&mut plan.publishers, self.producers);
        set(&mut plan.consumers, self.consumers);
        set(&mut plan.queues, self.queues);
        set(&mut plan.rate, self.rate);
        set(&mut plan.consumer_rate, self.consumer_rate);
        set(&mut plan.size, self.size);
        set(&mut plan.messages, self.messages);
        set(&mut plan.window, self.confirm);
        set(&mut plan.prefetch, self.qos);
        set(&mut plan.ack_every, self.multi_ack_every);
        set(&mut plan.queue_args, self.queue_args.clone());
        set(&mut plan.persistent, self.flag.as_ref().map(|flag| flag == "persistent"));
        if !self.variable_rate.is_empty() {
            plan.profile = self.variable_rate.clone();
        }
        if self.multi_ack_every.is_some_and(|every| every > 0) && self.qos.is_none() {
            plan.prefetch = Credit::Fixed(1000);
        }
        if self.knee && !self.has_rate() && self.scale.is_none() {
            plan.rate = 0.0;
        }
        plan = Plan {
            queue_prefix: self.queue.clone().unwrap_or_else(|| own_name(Mark::fresh())),
            new_queues_only: self.queue.is_some() || self.perftest.names_queues(),
            queue_type: self.queue_type(),
            no_ack: self.autoack,
            seconds: self.seconds,
            warm_up: self.warm_up.unwrap_or(WARM_UP_SECONDS),
            steps: self.steps.clone(),
            emulated: self.link(),
            rtt_ms: self.rtt,
            mbit: self.mbit,
            ..plan
        };
        self.perftest.apply(&mut plan);
        plan
    }

    /// What happens to the rate.
    pub(crate) fn scale(&self, workload: Option<&Workload>) -> Scale {
        let fitted = workload.is_some_and(|workload| workload.share_of_capacity.is_some());
        match self.scale {
            Some(scale) => scale,
            None if fitted && !self.has_rate() && !self.knee => Scale::Auto,
            None => Scale::Times(1.0),
        }
    }

    fn queue_type(&self) -> Option<String> {
        let quorum = self.perftest.quorum_queue.then(|| "quorum".to_owned());
        quorum.or_else(|| self.queue_type.clone())
    }

    /// Whether a flag says how much is published.
    fn has_rate(&self) -> bool {
        self.rate.is_some() || !self.variable_rate.is_empty()
    }

    /// How often what decides is run.
    pub(crate) fn repeat(&self) -> usize {
        self.repeat.unwrap_or(if self.knee { 3 } else { 1 })
    }

    /// Whether there is an emulated link between.
    pub(crate) fn link(&self) -> bool {
        let rtt = |step: &Step| matches!(step.what, StepKind::RttMs(_));
        self.rtt.is_some() || self.mbit.is_some() || self.steps.iter().any(rtt)
    }
}

/// Of queues on a broker where others may measure as well, or where a run before this one was killed.
pub(super) fn own_name(mark: Mark) -> String {
    format!("forebay-bench-{}", mark.hex())
}

fn set<T>(place: &mut T, flag: Option<T>) {
    if let Some(value) = flag {
        *place = value;
    }
}

#[cfg(test)]
mod tests;
