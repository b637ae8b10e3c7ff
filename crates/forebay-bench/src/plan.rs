//! What is to be measured: declared once, parsed from the command line, checked in one place.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::arguments::QueueArguments;
use crate::schedule::{RatePiece, Schedule};
use crate::setting::{Credit, Window};
use crate::stamp::Mark;
use crate::step::{Step, StepKind};

/// The most that is asked for of anything a second: what is above is a slip of the hand.
const NUMBER_MAX: f64 = 1e9;
/// And so it is with times: eleven days.
pub(crate) const SECONDS_MAX: f64 = 1e6;
/// Of publishers and consumers: a system has ports for no more.
const CONNECTIONS_MAX: usize = 60_000;
/// Of queues.
const QUEUES_MAX: usize = 1_000_000;
/// Of a body: what a RabbitMQ can be told to take at most.
const SIZE_BYTES_MAX: usize = 512 << 20;

/// Types of exchanges that take one of their queues for each message, whatever the keys.
const CHOOSING: [&str; 4] = ["x-consistent-hash", "x-modulus-hash", "x-random", "x-local-random"];

/// A load: publishers, consumers, queues, sizes, rates, times.
#[derive(clap::Args, Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Plan {
    /// The broker
    #[arg(
        long,
        env = "FOREBAY_URL",
        value_name = "URL",
        default_value = "amqp://guest:guest@127.0.0.1:5672/%2f",
        hide_env_values = true
    )]
    #[serde(skip)]
    pub url: String,
    /// Publishers, each with a connection
    #[arg(long, short = 'p', value_name = "N", default_value_t = 1)]
    pub publishers: usize,
    /// Consumers, each with a connection
    #[arg(long, short = 'c', value_name = "N", default_value_t = 1)]
    pub consumers: usize,
    /// Queues; publisher and consumer number i use queue i modulo this
    #[arg(long, short = 'q', value_name = "N", default_value_t = 1)]
    pub queues: usize,
    /// Body size in bytes; from 8 on bodies carry the time they are due, from 16 on also when they left
    #[arg(long, short = 's', value_name = "BYTES", default_value_t = 1000)]
    pub size: usize,
    /// Persistent messages to durable queues
    #[arg(long)]
    pub persistent: bool,
    /// `x-queue-type` of the queues: classic or quorum
    #[arg(long, value_name = "TYPE")]
    pub queue_type: Option<String>,
    /// Further arguments of the queues: NAME=VALUE, separated by commas
    #[arg(long, value_name = "LIST", default_value_t)]
    pub queue_args: QueueArguments,
    /// Every queue gets every message, by a fanout exchange
    #[arg(long)]
    pub fanout: bool,
    /// Publishers call and wait for replies, consumers reply; the window is of calls
    #[arg(long)]
    pub rpc: bool,
    /// Ask for confirms and have at most so many unconfirmed; auto = the window tunes itself, none = no
    /// confirms
    #[arg(long, short = 'w', value_name = "N", default_value = "none")]
    pub window: Window,
    /// Messages a second per publisher, latency counted from the intended send time; 0 = as fast
    /// as the broker takes them
    #[arg(long, short = 'r', value_name = "N", default_value_t = 0.0)]
    pub rate: f64,
    /// The same as a profile: RATE:SECONDS, one after the other and again
    #[arg(long = "variable-rate", value_name = "RATE:SECONDS", conflicts_with = "rate")]
    pub profile: Vec<RatePiece>,
    /// Unacked messages a consumer may have; auto = the credit tunes itself, none = no bound
    #[arg(long, value_name = "N", default_value = "1000")]
    pub prefetch: Credit,
    /// Messages a second that a consumer can work on; 0 = any number
    #[arg(long, value_name = "N", default_value_t = 0.0)]
    pub consumer_rate: f64,
    /// Ack with `multiple` after so many deliveries; 0 = after each read of the socket
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub ack_every: u64,
    /// Consumers need no acks
    #[arg(long)]
    pub no_ack: bool,
    /// Seconds that are measured
    #[arg(long, short = 't', value_name = "S", default_value_t = 10.0)]
    pub seconds: f64,
    /// Seconds of load before the measurement
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    pub warm_up: f64,
    /// Stop as soon as so many messages are published (and confirmed), or without publishers
    /// consumed; 0 = only time counts. There is no warm-up then
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub messages: u64,
    /// After the measurement wait up to so many seconds until all that was published is consumed
    #[arg(long, value_name = "S", default_value_t = 0.0)]
    pub drain: f64,
    /// Leave queues and their messages as they are, before and afterwards
    #[arg(long)]
    pub keep: bool,
    /// Process id of the broker, to measure its CPU time and memory
    #[arg(long, value_name = "PID")]
    pub broker_pid: Option<u32>,
    /// Something that happens during the measurement: SECOND:consumers/FACTOR, SECOND:stall=SECONDS,
    /// SECOND:rtt=MS
    #[arg(long = "step", value_name = "STEP")]
    pub steps: Vec<Step>,
    /// Ask for the depth of the queues every second
    #[arg(long)]
    pub depth: bool,
    /// There is an emulated link between: the kernel's round trip is not that of the network
    #[arg(skip)]
    pub emulated: bool,
    /// Its round trip in milliseconds, and its bandwidth in megabits a second, as far as they were given
    #[arg(skip)]
    pub rtt_ms: Option<f64>,
    /// See `rtt_ms`
    #[arg(skip)]
    pub mbit: Option<f64>,
    /// Queues are called PREFIX.0, PREFIX.1, …
    #[arg(long, value_name = "PREFIX", default_value = "forebay-load")]
    pub queue_prefix: String,
    /// They are called so instead, where `%d` stands for a number from `queue_from` on
    #[arg(skip)]
    pub queue_pattern: Option<String>,
    /// See `queue_pattern`
    #[arg(skip)]
    pub queue_from: usize,
    /// Queues and exchange are there: nothing is declared, emptied or deleted
    #[arg(skip)]
    pub predeclared: bool,
    /// Publishers publish to this exchange, to which all queues are bound
    #[arg(skip)]
    pub own_exchange: Option<ExchangePlan>,
    /// With this routing key, each of them; otherwise with the name of a queue
    #[arg(skip)]
    pub routing_key: Option<String>,
    /// Queues that are there already are somebody's: they are refused, not emptied
    #[arg(skip)]
    #[serde(skip)]
    pub new_queues_only: bool,
    /// Messages of this run that a phase before it left in the queues
    #[arg(skip)]
    #[serde(skip)]
    pub lying: u64,
    /// Which run messages are of
    #[arg(skip)]
    #[serde(skip)]
    pub mark: Mark,
    /// Stop as soon as consumers have taken so many; 0 = only time counts. There is no warm-up then
    #[arg(skip)]
    pub consumed_messages: u64,
}

/// An exchange of a load.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExchangePlan {
    /// What it is called.
    pub name: String,
    /// `direct`, `fanout`, `topic` or what else the broker knows.
    pub kind: String,
}

impl Default for Plan {
    /// As without any flag; the URL is empty.
    fn default() -> Plan {
        #[derive(clap::Parser)]
        struct Flags {
            #[command(flatten)]
            plan: Plan,
        }
        let flags: Flags = clap::Parser::parse_from(["plan"]);
        Plan { url: String::new(), ..flags.plan }
    }
}

/// Why a plan makes no sense, as a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanError(&'static str);

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for PlanError {}

impl Plan {
    /// Refuses plans that would stand still or measure nothing.
    pub fn check(&self) -> Result<(), PlanError> {
        let sane = |value: f64| value.is_finite() && (0.0..=NUMBER_MAX).contains(&value);
        let lasts = |seconds: f64| seconds.is_finite() && (0.0..=SECONDS_MAX).contains(&seconds);
        let sane_piece = |piece: &RatePiece| sane(piece.rate) && lasts(piece.seconds);
        let slows = |step: &Step| matches!(step.what, StepKind::Consumers(_));
        let bounded = !self.no_ack && self.prefetch != Credit::Unbounded;
        let wrong = if self.publishers.saturating_add(self.consumers) > CONNECTIONS_MAX {
            "there are 60000 publishers and consumers at most: each has a port of its own"
        } else if self.queues > QUEUES_MAX {
            "there are a million queues at most"
        } else if self.publishers + self.consumers == 0 {
            "there is nothing to do without publishers and consumers"
        } else if self.queues == 0 {
            "at least one queue is needed"
        } else if self.size > SIZE_BYTES_MAX {
            "a message has 512 MiB at most"
        } else if !sane(self.rate)
            || !sane(self.consumer_rate)
            || ![self.seconds, self.warm_up, self.drain].into_iter().all(lasts)
            || !self.profile.iter().all(sane_piece)
        {
            "rates are numbers from 0 to a thousand million, and times from 0 to a million seconds"
        } else if self.seconds == 0.0 {
            "a measurement takes time"
        } else if self.steps.iter().any(|step| step.at_s >= self.seconds) {
            "a step comes before the end of the measurement"
        } else if self.steps.iter().any(|step| slows(step) && step.at_s < 1.0) {
            "consumers can slow down from the first second on: how fast they were is measured in the one before"
        } else if !bounded && (self.consumer_rate > 0.0 || self.steps.iter().any(slows)) {
            "consumers that work slowly have a bound of what they hold: acks, and a prefetch"
        } else if self.ack_every > self.prefetch_max() && !self.no_ack {
            "with ack-every above prefetch consumers would wait for ever"
        } else if self.rpc && self.window == Window::Auto {
            "a window of calls does not tune itself: say a number"
        } else if self.rpc && (self.fanout || self.size < 16) {
            "calls go to one queue each, and need 16 bytes for their times"
        } else if self.queues > 1
            && self.queue_pattern.as_ref().is_some_and(|pattern| !pattern.contains("%d"))
        {
            "a name for several queues says where their numbers go: orders-%d"
        } else if self.consumed_messages > 0 && self.consumers == 0 {
            "a number of messages to be consumed needs consumers"
        } else if self.own_exchange.is_some() && (self.fanout || self.rpc) {
            "this load has an exchange of its own"
        } else if !self.profile.is_empty() && self.mean_rate() == Some(0.0) {
            "a rate profile publishes something"
        } else {
            return Ok(());
        };
        Err(PlanError(wrong))
    }

    fn prefetch_max(&self) -> u64 {
        match self.prefetch {
            Credit::Fixed(messages) => u64::from(messages),
            // It begins with one message, and grows only while its acks leave.
            Credit::Auto => 1,
            Credit::Unbounded => u64::MAX,
        }
    }

    /// Name of a queue.
    pub(crate) fn queue(&self, number: usize) -> String {
        let number = number % self.queues;
        match &self.queue_pattern {
            Some(pattern) => pattern.replace("%d", &(self.queue_from + number).to_string()),
            None => format!("{}.{number}", self.queue_prefix),
        }
    }

    /// Where publishers publish, and of which type that is; `None`: the default exchange.
    pub(crate) fn exchange(&self) -> Option<(String, &str)> {
        match &self.own_exchange {
            Some(exchange) => Some((exchange.name.clone(), &exchange.kind)),
            None => self.fanout.then(|| (format!("{}.fanout", self.queue_prefix), "fanout")),
        }
    }

    /// What publisher `number` writes on its messages, and what its queue is bound with.
    pub(crate) fn routing_key(&self, number: usize) -> String {
        self.routing_key.clone().unwrap_or_else(|| self.queue(number))
    }

    /// Whether somebody has asked for a number of messages.
    pub(crate) fn is_counted(&self) -> bool {
        self.messages > 0 || self.consumed_messages > 0
    }

    /// How many messages somebody has asked to be consumed; 0 = no number of them.
    pub(crate) fn to_consume(&self) -> u64 {
        match self.publishers {
            0 => self.messages.max(self.consumed_messages),
            _ => self.consumed_messages,
        }
    }

    /// Whether the queues are declared durable.
    pub(crate) fn durable(&self) -> bool {
        self.persistent || self.queue_type.as_deref() == Some("quorum")
    }

    /// How many queues a message reaches.
    pub(crate) fn copies(&self) -> u64 {
        let by_key = |kind: &str| matches!(kind, "direct" | "topic") && self.routing_key.is_none();
        match self.exchange() {
            None => 1,
            Some((_, kind)) if by_key(kind) || CHOOSING.contains(&kind) => 1,
            Some(_) => self.queues as u64,
        }
    }

    /// Whether messages have due times.
    pub(crate) fn is_paced(&self) -> bool {
        Schedule::new(self.rate, &self.profile).is_paced()
    }

    /// Messages a second of each publisher; `None`: as many as possible.
    pub fn mean_rate(&self) -> Option<f64> {
        Schedule::new(self.rate, &self.profile).mean_rate()
    }

    /// Messages a second of all publishers; `None`: as many as possible.
    pub fn target_per_s(&self) -> Option<f64> {
        self.mean_rate().map(|rate| rate * self.publishers as f64)
    }
}
