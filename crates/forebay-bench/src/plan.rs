//! What is to be measured: declared once, parsed from the command line, checked in one place.

use std::fmt;

/// A load: publishers, consumers, queues, sizes, rates, times.
#[derive(clap::Args, Debug, Clone, serde::Serialize)]
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
    /// Body size in bytes; from 8 on bodies carry their send time
    #[arg(long, short = 's', value_name = "BYTES", default_value_t = 1000)]
    pub size: usize,
    /// Persistent messages to durable queues
    #[arg(long)]
    pub persistent: bool,
    /// `x-queue-type` of the queues: classic or quorum
    #[arg(long, value_name = "TYPE")]
    pub queue_type: Option<String>,
    /// Ask for confirms and have at most so many unconfirmed; 0 = no confirms
    #[arg(long, short = 'w', value_name = "N", default_value_t = 0)]
    pub window: u64,
    /// Messages a second per publisher, latency counted from the intended send time; 0 = as fast
    /// as the broker takes them
    #[arg(long, short = 'r', value_name = "N", default_value_t = 0.0)]
    pub rate: f64,
    /// Unacked messages a consumer may have; 0 = no bound
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub prefetch: u16,
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
    /// Queues are called PREFIX.0, PREFIX.1, …
    #[arg(long, value_name = "PREFIX", default_value = "forebay-load")]
    pub queue_prefix: String,
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
        let sane = |value: f64| value.is_finite() && value >= 0.0;
        let wrong = if self.publishers + self.consumers == 0 {
            "there is nothing to do without publishers and consumers"
        } else if self.queues == 0 {
            "at least one queue is needed"
        } else if !sane(self.rate)
            || !sane(self.seconds)
            || !sane(self.warm_up)
            || !sane(self.drain)
        {
            "rates and times are numbers from 0 on"
        } else if self.seconds == 0.0 {
            "a measurement takes time"
        } else if self.prefetch > 0 && self.ack_every > u64::from(self.prefetch) && !self.no_ack {
            "with ack-every above prefetch consumers would wait for ever"
        } else if self.window > 1 << 24 {
            "a window is at most 16777216"
        } else {
            return Ok(());
        };
        Err(PlanError(wrong))
    }

    /// Name of a queue.
    pub(crate) fn queue(&self, number: usize) -> String {
        format!("{}.{}", self.queue_prefix, number % self.queues)
    }
}
