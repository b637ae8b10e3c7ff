//! Why messages of a queue wait, by what a broker tells of it from outside.
//!
//! Two looks some seconds apart give what came and went, how much lies there, and who holds what. A Forebay says at which of
//! its gates messages of the queue waited, and for how long; of any other broker the cause follows from the numbers.
//! Little's law gives the times: messages that lie somewhere, by messages that leave in a second, is how long one lies there.

use std::fmt;

/// A queue, looked at for a while.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct QueueLook {
    /// For how long.
    pub looked_us: u64,
    /// Messages that came in that time.
    pub arrived: u64,
    /// Messages that left for good in that time.
    pub left: u64,
    /// Messages that lie there, at the end.
    pub ready: u64,
    /// Messages that consumers hold.
    pub unacked: u64,
    /// Who consumes.
    pub consumers: Vec<ConsumerLook>,
    /// How long messages of the queue waited in that time at each gate, if the broker counts that.
    pub waits: Option<Vec<GateLook>>,
    /// How long publishers of the broker waited at each gate, all together, if it counts that.
    pub publishers: Vec<GateLook>,
}

/// A consumer of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ConsumerLook {
    /// Who it is.
    pub name: String,
    /// Messages that it may hold; 0: as many as there are.
    pub prefetch: u64,
    /// Messages that it holds, if that is known of it alone.
    pub unacked: Option<u64>,
    /// For how long its connection was not read, because it publishes as well and publishes were held; 0 where nobody counts that.
    pub publishes_held_us: u64,
}

/// A place where a broker holds somebody.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GateLook {
    /// What the broker calls it.
    pub gate: String,
    /// For how long it did.
    pub waited_us: u64,
}

/// Why messages of a queue wait. Displayed it is a sentence with what to change.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueueCause {
    /// They do not: neither here nor before.
    Nothing,
    /// Nobody consumes the queue.
    NoConsumer,
    /// Consumers hold messages, and were done with none of them.
    Stuck {
        /// How many they hold.
        unacked: u64,
        /// For how long nothing happened.
        looked_us: u64,
    },
    /// One consumer holds several messages, and not for a moment only, while others hold none.
    Hoarded {
        /// Who.
        name: String,
        /// How many it holds.
        unacked: u64,
        /// How many it may hold; 0: as many as there are.
        prefetch: u64,
        /// Consumers that hold none.
        idle: usize,
    },
    /// Consumers hold all that they may.
    CreditUsed {
        /// How many that is, all together.
        prefetch: u64,
        /// How long they hold each.
        held_us: u64,
    },
    /// A consumer holds all that it may, and what it acknowledges waits behind publishes on its connection, which are held.
    SharedConnection {
        /// Who.
        name: String,
        /// For how long they were.
        held_us: u64,
        /// Of so long.
        looked_us: u64,
    },
    /// Consumers may take more, and their clients do not read it.
    Unread,
    /// Messages come back from disk.
    Disk,
    /// Messages wait on disk for memory.
    Memory,
    /// Publishers are held before the queue, at this gate.
    Publishers {
        /// What the broker calls it.
        gate: String,
    },
    /// Consumers may take more, and the broker does not send it.
    Broker,
}

/// A gate that held somebody for less of the time than this, in percent, is not why.
const WAITED_PERCENT_MIN: u64 = 20;
/// Messages that are held for less than this, in microseconds, are not hoarded.
const HOARDED_US_MIN: u64 = 100_000;
/// Consumers that hold so much of what they may hold, in percent, hold all of it: the rest is on its way.
const FULL_PERCENT: u64 = 90;

impl QueueLook {
    /// How long a message waits in the queue, at the rate at which they leave.
    #[must_use]
    pub fn waits_us(&self) -> Option<u64> {
        self.by_rate(self.ready)
    }

    /// How long its consumer holds a message.
    #[must_use]
    pub fn held_us(&self) -> Option<u64> {
        self.by_rate(self.unacked)
    }

    fn by_rate(&self, messages: u64) -> Option<u64> {
        messages.saturating_mul(self.looked_us).checked_div(self.left)
    }

    /// Why they wait.
    #[must_use]
    pub fn cause(&self) -> QueueCause {
        if self.consumers.is_empty() {
            return if self.ready > 0 { QueueCause::NoConsumer } else { self.before() };
        }
        if self.unacked > 0 && self.left == 0 {
            let stuck = QueueCause::Stuck { unacked: self.unacked, looked_us: self.looked_us };
            return self.shared().or_else(|| self.hoarded()).unwrap_or(stuck);
        }
        if self.ready == 0 {
            return self.hoarded().unwrap_or_else(|| self.before());
        }
        match &self.waits {
            Some(waits) => self.counted(waits),
            None => self.by_credit(),
        }
    }

    /// With nothing in the queue: what is held before it.
    fn before(&self) -> QueueCause {
        let longest = self.publishers.iter().max_by_key(|gate| gate.waited_us);
        match longest.filter(|gate| self.counts(gate)) {
            Some(gate) => QueueCause::Publishers { gate: gate.gate.clone() },
            None => QueueCause::Nothing,
        }
    }

    fn counts(&self, gate: &GateLook) -> bool {
        self.is_much(gate.waited_us)
    }

    fn is_much(&self, waited_us: u64) -> bool {
        waited_us.saturating_mul(100) >= self.looked_us.saturating_mul(WAITED_PERCENT_MIN)
    }

    /// Acknowledgements that wait behind publishes.
    fn shared(&self) -> Option<QueueCause> {
        let full = |consumer: &&ConsumerLook| {
            let full = |unacked| unacked > 0 && is_full(unacked, consumer.prefetch);
            consumer.unacked.is_some_and(full)
        };
        let longest =
            self.consumers.iter().filter(full).max_by_key(|consumer| consumer.publishes_held_us)?;
        let held_us = longest.publishes_held_us;
        let (name, looked_us) = (longest.name.clone(), self.looked_us);
        self.is_much(held_us).then_some(QueueCause::SharedConnection { name, held_us, looked_us })
    }

    fn hoarded(&self) -> Option<QueueCause> {
        let holds = |consumer: &ConsumerLook| consumer.unacked.unwrap_or(1);
        let most = self.consumers.iter().max_by_key(|consumer| holds(consumer))?;
        let idle = self.consumers.iter().filter(|consumer| holds(consumer) == 0).count();
        // What one has at some moment and hands back soon keeps nobody waiting.
        let long = self.held_us().is_none_or(|held_us| held_us >= HOARDED_US_MIN);
        (self.ready == 0 && idle > 0 && holds(most) > 1 && long).then(|| QueueCause::Hoarded {
            name: most.name.clone(),
            unacked: holds(most),
            prefetch: most.prefetch,
            idle,
        })
    }

    /// By what the broker says it waited for.
    fn counted(&self, waits: &[GateLook]) -> QueueCause {
        let longest = waits.iter().max_by_key(|gate| gate.waited_us);
        match longest.filter(|gate| self.counts(gate)).map(|gate| gate.gate.as_str()) {
            Some("no_consumer") => QueueCause::NoConsumer,
            Some("credit") => self.used(),
            Some("delivery") => QueueCause::Unread,
            Some("run") => QueueCause::Disk,
            Some("room") => QueueCause::Memory,
            _ => self.by_credit(),
        }
    }

    fn used(&self) -> QueueCause {
        let prefetch = self.consumers.iter().map(|consumer| consumer.prefetch).sum();
        let used = QueueCause::CreditUsed { prefetch, held_us: self.held_us().unwrap_or(0) };
        self.shared().unwrap_or(used)
    }

    /// By what consumers may hold and do hold.
    fn by_credit(&self) -> QueueCause {
        if self.consumers.iter().any(|consumer| consumer.prefetch == 0) {
            // Whoever may hold anything is sent everything, as fast as it is read.
            return QueueCause::Unread;
        }
        let prefetch: u64 = self.consumers.iter().map(|consumer| consumer.prefetch).sum();
        if is_full(self.unacked, prefetch) { self.used() } else { QueueCause::Broker }
    }
}

fn is_full(unacked: u64, prefetch: u64) -> bool {
    unacked.saturating_mul(100) >= prefetch.saturating_mul(FULL_PERCENT)
}

impl QueueCause {
    /// Its name, for machines. Never changes.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            QueueCause::Nothing => "nothing",
            QueueCause::NoConsumer => "no-consumer",
            QueueCause::Stuck { .. } => "stuck",
            QueueCause::Hoarded { .. } => "hoarded",
            QueueCause::CreditUsed { .. } => "credit-used",
            QueueCause::SharedConnection { .. } => "shared-connection",
            QueueCause::Unread => "unread",
            QueueCause::Disk => "disk",
            QueueCause::Memory => "memory",
            QueueCause::Publishers { .. } => "publishers-held",
            QueueCause::Broker => "broker",
        }
    }
}

impl fmt::Display for QueueCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |us: u64| us as f64 / 1e3;
        match self {
            QueueCause::Nothing => f.write_str(
                "messages do not wait here, and publishers not for the broker; what is late waits in its publisher or in its \
                 consumer: let them mark messages (explain)",
            ),
            QueueCause::NoConsumer => f.write_str("nobody consumes the queue; start a consumer"),
            QueueCause::Stuck { unacked, looked_us } => write!(
                f,
                "consumers hold {unacked} messages and acknowledged none of them in {:.1} s: handlers hang, or take longer \
                 than that, or do not acknowledge",
                ms(*looked_us) / 1e3
            ),
            QueueCause::Hoarded { name, unacked, prefetch, idle } => {
                let may = match prefetch {
                    0 => "no prefetch lets it take all there is".to_owned(),
                    prefetch => format!("prefetch {prefetch} lets it"),
                };
                write!(
                    f,
                    "{name} holds {unacked} messages, while {idle} other consumers hold none: {may}; set a prefetch of as many \
                     as it works on at a time"
                )
            }
            QueueCause::CreditUsed { prefetch, held_us } => write!(
                f,
                "consumers hold all {prefetch} messages that they may, each for {:.1} ms: if that is how long the work takes, \
                 more consumers or faster work help; if the work is quicker, a larger prefetch does, since messages and \
                 acknowledgements are on their way for the rest",
                ms(*held_us)
            ),
            QueueCause::SharedConnection { name, held_us, looked_us } => write!(
                f,
                "{name} publishes on the same connection, and publishes there were held for {:.1} s of {:.1} s: what it acknowledges \
                 waits behind them; publish on one connection and consume on another",
                ms(*held_us) / 1e3,
                ms(*looked_us) / 1e3
            ),
            QueueCause::Unread => f.write_str(
                "consumers may take more, and do not read what is sent: their link is full, or their clients do not read",
            ),
            QueueCause::Disk => f.write_str(
                "messages of a long queue come back from disk: consumers that keep up, or a larger memory_budget",
            ),
            QueueCause::Memory => f.write_str(
                "messages wait on disk for memory: consumers that acknowledge sooner, or a larger memory_budget",
            ),
            QueueCause::Publishers { gate } => {
                let what = match gate.as_str() {
                    "batch" | "unconfirmed" => "the disk; a faster one, or durability `interval=MS` where losing so much is allowed",
                    "memory" => "memory; consumers that acknowledge, or a larger memory_budget",
                    "space" => "room on the disk",
                    "balance" => "consumers of a queue with x-flow=balance; faster consumers, or `absorb`",
                    _ => "the broker",
                };
                write!(f, "nothing waits here, since publishers are held ({gate}): they wait for {what}")
            }
            QueueCause::Broker => f.write_str(
                "consumers may take more, and the broker does not send it: its processor is busy, or it holds a consumer back \
                 for another one",
            ),
        }
    }
}
