//! From the largest wait to the setting or resource behind it.

use std::fmt;

use super::{Detour, Explanation, Mark, Segment, Share};

/// What is known of a set-up; what is not known is `None`, and is not blamed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Settings {
    /// The publisher's window, if it was set by hand; messages of our publishers say so themselves
    /// ([`Marks::window_messages`](super::Marks::window_messages)).
    pub window_messages: Option<u64>,
    /// Messages in work at a time, all consumers together.
    pub workers: Option<u64>,
    /// The prefetch or credit, if it was set by hand, all consumers together.
    pub prefetch: Option<u64>,
    /// Messages of a full batch.
    pub batch_messages: Option<u64>,
    /// The longest that a batch waits to be full.
    pub batch_delay_us: Option<u64>,
    /// Batches in work at a time.
    pub batch_workers: Option<u64>,
    /// Messages begun in a second at most, if that is limited.
    pub rate_per_s: Option<u64>,
    /// Messages of a key are worked on one after the other.
    pub ordered: bool,
    /// The longest that an attempt may take.
    pub timeout_us: Option<u64>,
    /// Attempts after the first, and the shortest and longest pause before one.
    pub retries: Option<Pauses>,
    /// Failures in a row that open the circuit breaker, and for how long it is open.
    pub breaker: Option<Pauses>,
}

/// A setting after which something pauses, for longer and longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pauses {
    /// How many of what it counts.
    pub count: u64,
    /// The first pause.
    pub first_us: u64,
    /// The longest.
    pub max_us: u64,
}

/// Why messages waited. Displayed it is a sentence with what to change.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// The publisher's window is set by hand, and full.
    WindowFixed {
        /// What it is set to.
        window_messages: u64,
    },
    /// The publisher's window follows the broker, which takes no more.
    BrokerFull,
    /// What the program publishes does not leave its socket.
    SocketFull,
    /// The network between publisher and broker, or a broker that does not read.
    WayToBroker,
    /// The broker's disk.
    Disk,
    /// Fewer messages may be out than there are workers.
    PrefetchBelowWorkers {
        /// What it is set to.
        prefetch: u64,
        /// How many there are.
        workers: u64,
    },
    /// All workers are busy, with this for each message.
    WorkersBusy {
        /// How many there are.
        workers: Option<u64>,
        /// Its mean time.
        handler_us: u64,
    },
    /// More come than may be begun in a second.
    RateLimited {
        /// How many may be.
        rate_per_s: u64,
    },
    /// Nobody consumed the queue, for most of the time.
    NoConsumer,
    /// Messages lie in the queue or in the broker, and handlers are not why.
    Queue,
    /// The network between broker and consumer, or a consumer that does not read.
    WayToConsumer,
    /// Messages were sent ahead to busy workers, by a prefetch that was set by hand.
    PrefetchHoards {
        /// What it is set to.
        prefetch: u64,
        /// How many there are.
        workers: Option<u64>,
    },
    /// Messages wait for earlier ones of their key.
    KeyBusy,
    /// Messages wait in the consumer for its workers.
    WorkersBehind,
    /// Messages whose attempt failed pause before the next.
    RetryPause {
        /// Their mean time in pauses.
        pause_us: u64,
        /// What is set; `None` where handlers say for how long.
        retries: Option<Pauses>,
    },
    /// Attempts that fail, or ask for another, take the time.
    EarlierAttempts {
        /// Their mean time for a message that had such.
        attempts_us: u64,
        /// When they are ended.
        timeout_us: Option<u64>,
    },
    /// Messages are in the pipeline that follows.
    NextPipeline {
        /// Their mean time there.
        next_us: u64,
    },
    /// Messages may not begin, because many in a row failed.
    BreakerOpen {
        /// Their mean time behind it.
        open_us: u64,
        /// What is set.
        breaker: Option<Pauses>,
    },
    /// The handlers' own work.
    Handler {
        /// Its mean time.
        handler_us: u64,
    },
    /// A batch needs more messages than may be out.
    PrefetchBelowBatch {
        /// What it is set to.
        prefetch: u64,
        /// Messages of a full batch.
        batch_messages: u64,
    },
    /// Batches wait until their time is up, because too little comes.
    BatchNeverFull {
        /// How long they wait.
        batch_delay_us: u64,
    },
    /// Batches wait for those that are in work, or what is before them does.
    BatchWorkersBusy {
        /// Their mean time.
        batch_us: u64,
    },
    /// The batch handlers' own work.
    BatchHandler {
        /// Their mean time.
        batch_us: u64,
    },
    /// Acknowledgements wait.
    AckDelayed,
}

/// Where the mean wait is in this part of the batch's delay, in percent, it was the delay that ended it: the first of a
/// batch waits for all of it, the last for nothing, and what waits for longer waits for somebody.
const DELAY_PERCENT: std::ops::RangeInclusive<u64> = 40..=110;

pub(super) fn of(explanation: &Explanation, settings: &Settings) -> Option<Cause> {
    let share = explanation.largest()?;
    let largest = share.segment;
    if let Some(detour) = largest.detour {
        return Some(detoured(detour, &share, settings));
    }
    let handler_us = explanation.mean_us(Mark::Handled);
    let batch_us = explanation.mean_us(Mark::Done);
    let wait_us = explanation.mean_us(largest.to);
    // What keeps workers busy.
    let busy_us = handler_us + explanation.mean_detour_us(Detour::Attempts);
    let behind = batches_are_behind(settings, explanation.mean_us(Mark::Begun), batch_us, busy_us);
    Some(match largest.to {
        Mark::Offered => return None, // nothing ends with it
        Mark::Admitted => match settings.window_messages.or(explanation.fixed_window_messages()) {
            Some(window_messages) => Cause::WindowFixed { window_messages },
            None => Cause::BrokerFull,
        },
        Mark::Written => Cause::SocketFull,
        Mark::Received => Cause::WayToBroker,
        Mark::Stored => Cause::Disk,
        Mark::Taken if largest.from == Mark::Delivered && behind => {
            Cause::BatchWorkersBusy { batch_us }
        }
        Mark::Taken if largest.from == Mark::Delivered => hoarded(settings, busy_us),
        Mark::Sent | Mark::Delivered | Mark::Taken => {
            let unattended = largest.spans(Mark::Sent)
                && explanation.unattended_us().saturating_mul(2) > share.sum_us;
            if unattended {
                return Some(Cause::NoConsumer);
            }
            queued(largest, settings, busy_us, behind.then_some(batch_us))
        }
        Mark::Handled => Cause::Handler { handler_us },
        Mark::Begun => batched(settings, wait_us, batch_us),
        Mark::Done => Cause::BatchHandler { batch_us },
        Mark::Settled => Cause::AckDelayed,
    })
}

fn detoured(detour: Detour, share: &Share, settings: &Settings) -> Cause {
    let mean_us = share.sum_us / share.messages.max(1);
    let Settings { retries, breaker, timeout_us, .. } = *settings;
    match detour {
        Detour::Breaker => Cause::BreakerOpen { open_us: mean_us, breaker },
        Detour::Next => Cause::NextPipeline { next_us: mean_us },
        Detour::Pauses | Detour::BatchPauses => Cause::RetryPause { pause_us: mean_us, retries },
        Detour::Attempts | Detour::BatchAttempts => {
            Cause::EarlierAttempts { attempts_us: mean_us, timeout_us }
        }
    }
}

/// `behind_us`: what batches take, where they are what handlers wait for.
fn queued(segment: Segment, settings: &Settings, handler_us: u64, behind_us: Option<u64>) -> Cause {
    if !segment.spans(Mark::Sent) {
        return Cause::WayToConsumer;
    }
    match (settings.prefetch, settings.workers, behind_us) {
        (Some(prefetch), Some(workers), _) if prefetch < workers => {
            Cause::PrefetchBelowWorkers { prefetch, workers }
        }
        // Who batches holds more than there are workers.
        (Some(prefetch), ..) if settings.batch_messages.is_some_and(|batch| prefetch < batch) => {
            let batch_messages = settings.batch_messages.unwrap_or_default();
            Cause::PrefetchBelowBatch { prefetch, batch_messages }
        }
        (.., Some(batch_us)) => Cause::BatchWorkersBusy { batch_us },
        (_, workers, None)
            if settings.rate_per_s.is_some_and(|rate| idle(rate, workers, handler_us)) =>
        {
            Cause::RateLimited { rate_per_s: settings.rate_per_s.unwrap_or_default() }
        }
        (_, workers, None) if handler_us > 0 => Cause::WorkersBusy { workers, handler_us },
        _ => Cause::Queue,
    }
}

/// Whether batches wait for longer than to be full, and those in work let fewer messages through than the workers before
/// them, who then wait for room there.
fn batches_are_behind(settings: &Settings, wait_us: u64, batch_us: u64, handler_us: u64) -> bool {
    let Some(delay_us) = settings.batch_delay_us else { return false };
    let of = |count: Option<u64>| u128::from(count.unwrap_or(1).max(1));
    let batched = of(settings.batch_messages).saturating_mul(of(settings.batch_workers));
    let (batches_us, handlers_us) = (
        of(settings.workers).saturating_mul(batch_us.into()),
        batched.saturating_mul(handler_us.into()),
    );
    delayed_percent(wait_us, delay_us) > *DELAY_PERCENT.end() && batches_us > handlers_us
}

/// A mean wait for batches, in percent of their delay.
fn delayed_percent(wait_us: u64, delay_us: u64) -> u64 {
    wait_us.saturating_mul(100) / delay_us.max(1)
}

/// Whether workers have time left at this rate.
fn idle(rate_per_s: u64, workers: Option<u64>, handler_us: u64) -> bool {
    let busy_us = rate_per_s.saturating_mul(handler_us);
    busy_us < workers.unwrap_or(1).saturating_mul(1_000_000)
}

fn hoarded(settings: &Settings, handler_us: u64) -> Cause {
    match (settings.prefetch, settings.workers) {
        _ if settings.ordered => Cause::KeyBusy,
        (_, workers) if settings.rate_per_s.is_some_and(|rate| idle(rate, workers, handler_us)) => {
            Cause::RateLimited { rate_per_s: settings.rate_per_s.unwrap_or_default() }
        }
        (Some(prefetch), workers) if workers.is_none_or(|workers| prefetch > workers) => {
            Cause::PrefetchHoards { prefetch, workers }
        }
        _ => Cause::WorkersBehind,
    }
}

fn batched(settings: &Settings, wait_us: u64, batch_us: u64) -> Cause {
    let by_delay = |delay_us: &u64| DELAY_PERCENT.contains(&delayed_percent(wait_us, *delay_us));
    let by_delay = settings.batch_delay_us.filter(by_delay);
    match (by_delay, settings.prefetch, settings.batch_messages) {
        (Some(_), Some(prefetch), Some(batch_messages)) if prefetch < batch_messages => {
            Cause::PrefetchBelowBatch { prefetch, batch_messages }
        }
        (Some(batch_delay_us), _, _) => Cause::BatchNeverFull { batch_delay_us },
        _ => Cause::BatchWorkersBusy { batch_us },
    }
}

impl Cause {
    /// Its name, for machines. Never changes.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Cause::WindowFixed { .. } => "window-fixed",
            Cause::BrokerFull => "broker-full",
            Cause::SocketFull => "socket-full",
            Cause::WayToBroker => "way-to-broker",
            Cause::Disk => "disk",
            Cause::PrefetchBelowWorkers { .. } => "prefetch-below-workers",
            Cause::WorkersBusy { .. } => "workers-busy",
            Cause::RateLimited { .. } => "rate-limited",
            Cause::NoConsumer => "no-consumer",
            Cause::Queue => "queue",
            Cause::WayToConsumer => "way-to-consumer",
            Cause::PrefetchHoards { .. } => "prefetch-hoards",
            Cause::KeyBusy => "key-busy",
            Cause::WorkersBehind => "workers-behind",
            Cause::RetryPause { .. } => "retry-pause",
            Cause::EarlierAttempts { .. } => "earlier-attempts",
            Cause::BreakerOpen { .. } => "breaker-open",
            Cause::NextPipeline { .. } => "next-pipeline",
            Cause::Handler { .. } => "handler",
            Cause::PrefetchBelowBatch { .. } => "prefetch-below-batch",
            Cause::BatchNeverFull { .. } => "batch-never-full",
            Cause::BatchWorkersBusy { .. } => "batch-workers-busy",
            Cause::BatchHandler { .. } => "batch-handler",
            Cause::AckDelayed => "ack-delayed",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::WindowFixed { window_messages } => write!(
                f,
                "the publisher's window is fixed at {window_messages} messages and full; let it tune itself, or raise it"
            ),
            Cause::BrokerFull => f.write_str(
                "the publisher's window is as large as the broker's disk or consumers allow; look there, or publish less",
            ),
            Cause::SocketFull => f.write_str(
                "the socket takes less than is published: the link is full, or the broker does not read (connection.blocked)",
            ),
            Cause::WayToBroker => f.write_str("the way to the broker: a long link, or a broker that reads late"),
            Cause::Disk => f.write_str(
                "the broker's disk: see forebay_commit_duration_us, and durability `interval=MS` where losing so much is allowed",
            ),
            Cause::PrefetchBelowWorkers { prefetch, workers } => write!(
                f,
                "prefetch {prefetch} is less than the {workers} workers, so some are always idle; leave it out, or raise it"
            ),
            Cause::WorkersBusy { workers, handler_us } => {
                let busy = match workers {
                    Some(1) => "the only worker is".into(),
                    Some(workers) => format!("all {workers} workers are"),
                    None => "all workers are".into(),
                };
                write!(
                    f,
                    "{busy} busy, {handler_us} us a message; raise the concurrency (Concurrency::auto() finds \
                     what helps), or make the handler faster"
                )
            }
            Cause::RateLimited { rate_per_s } => write!(
                f,
                "no more than {rate_per_s} messages are begun in a second, and the workers could do more; raise the rate limit"
            ),
            Cause::NoConsumer => f.write_str(
                "messages lay in the queue before anybody consumed it; that passes, or the consumer should have been there",
            ),
            Cause::Queue => f.write_str("messages wait in the broker: is a consumer there, and does it take all it may?"),
            Cause::WayToConsumer => {
                f.write_str("the way to the consumer: a long or full link, or a consumer that reads late")
            }
            Cause::PrefetchHoards { prefetch, workers } => {
                let workers = workers.map_or("the".into(), |workers| workers.to_string());
                write!(
                    f,
                    "prefetch {prefetch} sends messages ahead to {workers} workers that are busy, while others may be idle; \
                     leave it out"
                )
            }
            Cause::KeyBusy => f.write_str(
                "messages wait for earlier ones of their key, which are worked on one after the other; choose a finer key, or \
                 make the handler faster",
            ),
            Cause::WorkersBehind => f.write_str(
                "messages wait in the consumer for its workers: handlers hold up the runtime, or take very different times",
            ),
            Cause::RetryPause { pause_us, retries: None } => write!(
                f,
                "messages that are tried again pause for {pause_us} us, as their handler asks (Outcome::Retry); let it ask for \
                 less, or see why it has to"
            ),
            Cause::RetryPause { pause_us, retries: Some(Pauses { count, first_us, max_us }) } => write!(
                f,
                "messages that fail pause for {pause_us} us before they are tried again: retries is set to {count}, after \
                 {first_us} us and up to {max_us} us; see why they fail, or shorten the pauses"
            ),
            Cause::EarlierAttempts { attempts_us, timeout_us } => {
                write!(f, "attempts that fail take {attempts_us} us of a message that is tried again; ")?;
                match timeout_us {
                    Some(timeout_us) => write!(
                        f,
                        "see why they fail, and whether it shows before their timeout of {timeout_us} us"
                    ),
                    None => f.write_str("see why they fail, or end them sooner by a timeout"),
                }
            }
            Cause::NextPipeline { next_us } => write!(
                f,
                "what becomes of messages is in the next pipeline for {next_us} us; its own explanation says what it waits for there"
            ),
            Cause::BreakerOpen { open_us, breaker } => {
                write!(f, "messages wait {open_us} us while the circuit breaker is open")?;
                if let Some(Pauses { count, first_us, max_us }) = breaker {
                    write!(
                        f,
                        ": after {count} failures in a row nothing begins for {first_us} us, and up to {max_us} us while they go on"
                    )?;
                }
                f.write_str("; see why they fail, or let it open later and for less")
            }
            Cause::Handler { handler_us } => {
                write!(f, "the handler itself takes {handler_us} us a message; make it faster")
            }
            Cause::PrefetchBelowBatch { prefetch, batch_messages } => write!(
                f,
                "a batch of {batch_messages} is never full, because prefetch {prefetch} lets no more be out; leave it out, or \
                 raise it"
            ),
            Cause::BatchNeverFull { batch_delay_us } => write!(
                f,
                "batches wait {batch_delay_us} us and are not full even then; make them smaller, or let them wait for less"
            ),
            Cause::BatchWorkersBusy { batch_us } => write!(
                f,
                "batches wait for those in work, {batch_us} us each; raise the batcher's concurrency, or its batch size"
            ),
            Cause::BatchHandler { batch_us } => {
                write!(f, "the batch handler itself takes {batch_us} us a batch; make it faster")
            }
            Cause::AckDelayed => f.write_str(
                "messages are done and not acknowledged: acknowledge more often, and not on a connection that publishes",
            ),
        }
    }
}
