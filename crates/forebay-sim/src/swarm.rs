//! What one seed switches on. Runs that do everything at once find less than runs that each do some of
//! it (Groce et al., "Swarm Testing", 2012): a feature that is off lets another one reach further.

use forebay_broker::ShardConfig;
use forebay_broker::topology::Policy;
use forebay_store::{Durability, Options};
use forebay_wire::Value;

use crate::command::Exchange;
use crate::model::BaseBinding;
use crate::model::limit::Limit;
use crate::names::{
    ALTERNATE, DIRECT, DURABLE_QUEUES, EXCLUSIVE_QUEUES, EXPIRING, FANOUT, LETTERS_FROM,
    LETTERS_TO, LIMIT_MESSAGES, LIMITED, LIMITED_BYTES, Name, PASSING_EXCHANGES, PASSING_QUEUES,
    PATTERNS, PRIORITIZED, PRIORITY_MAX, SINGLE_ACTIVE, TOPIC, TRANSIENT_QUEUES, UNUSED_GO,
};
use crate::random::Random;

/// What a channel of a client is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// Publishes and does not ask what became of it.
    Publish,
    /// Publishes with confirms.
    Confirm,
    /// Publishes, and waits for replies.
    Request,
    /// Publishes, gets and settles in transactions.
    Transact,
    /// Consumes, settles in all ways, leaves and comes back.
    Consume,
    /// Gets messages one by one.
    Get,
    /// Declares, deletes, binds, purges.
    Churn,
}

/// The choices of a run.
#[derive(Clone, Debug)]
pub struct Swarm {
    /// Clients, each with the jobs of its channels.
    pub clients: Vec<Vec<Job>>,
    /// Bindings of the base topology: source, key, queue.
    pub bindings: Vec<BaseBinding>,
    /// Events before the faults stop.
    pub events: u32,
    /// The sixteenths of publishes that are persistent.
    pub persistent_sixteenths: u64,
    /// The sixteenths that are mandatory.
    pub mandatory_sixteenths: u64,
    /// Bodies of some KiB now and then.
    pub large_bodies: bool,
    /// Most bodies are at most so large, in bytes.
    pub body_bytes: u64,
    /// Messages that a publisher makes at a time.
    pub burst_messages: u64,
    /// Consumers come late and settle slowly, so that backlogs build.
    pub slow_consumers: bool,
    /// Syncs say they are done and are not. Never by chance: it breaks every promise, and is there to show
    /// that this is seen.
    pub lying_disk: bool,
    /// There is no disk, and nothing survives.
    pub in_memory: bool,
    /// Unconfirmed messages a publisher may have.
    pub window_messages: usize,
    /// Largest prefetch asked for; 0: also none.
    pub prefetch_max: u16,
    /// One delivery in so many goes back; 0: none.
    pub requeue_one_in: u64,
    /// Acknowledgements with `multiple`.
    pub multiple: bool,
    /// Now and then a request that must be refused.
    pub mistakes: bool,
    /// `frame-max` that clients ask for, in bytes.
    pub frame_max: u32,
    /// Heartbeat interval, in seconds.
    pub heartbeat_s: u16,
    /// Weights of faults; 0: never.
    pub reset: u32,
    /// A client falls silent for good, without a word to the network.
    pub vanish: u32,
    /// A client stops reading for a while.
    pub stall: u32,
    /// The process is killed.
    pub kill: u32,
    /// The power goes.
    pub power_loss: u32,
    /// Recovery is cut short as well, one time in so many; 0: never.
    pub recovery_crash_one_in: u64,
    /// A disk call fails.
    pub disk_error: u32,
    /// The disk is full for a while.
    pub disk_full: u32,
    /// A bit of a run file or of an old segment changes.
    pub bit_flip: u32,
    /// The broker is stopped and started.
    pub restart: u32,
    /// Disk requests take long.
    pub slow_disk: bool,
    /// How the store is opened.
    pub options: Options,
    /// Memory budget of the broker, in bytes.
    pub memory_budget_bytes: u64,
    /// The broker is told what its process takes, which is messages and anything up to the budget.
    pub resident: bool,
    /// Between two events time goes on by at most so much, in microseconds.
    pub step_us: u64,
    /// Some queues balance: their publishers follow their consumers.
    pub balance: bool,
    /// Clients renew their deliveries when they are asked, and the timeout is short.
    pub leases: bool,
    /// What is rejected from some queues goes to another.
    pub dead_letters: bool,
    /// Some queues have priorities.
    pub priorities: bool,
    /// Of some queues one consumer at a time gets messages.
    pub single_active: bool,
    /// Consumers have priorities.
    pub consumer_priorities: bool,
    /// Channels of consumers are paused now and then.
    pub pauses: bool,
    /// Nobody publishes to the exchange that is an alternate of others, nor to one of those that come and go.
    pub internal: bool,
    /// Exchanges that come and go do so with their last binding.
    pub auto_delete: bool,
    /// In some queues only so many messages may wait.
    pub limits: bool,
    /// In some queues the bodies that wait have no more than so many bytes; 0: in none.
    pub limit_bytes: u64,
    /// They refuse what is too much instead of dropping the oldest.
    pub refuses: bool,
    /// In some queues messages live for so long, in milliseconds; 0: in none.
    pub ttl_ms: u64,
    /// Some messages have more than one routing key.
    pub extra_keys: bool,
    /// Some queues go when nobody has used them for so long, in milliseconds; 0: none does.
    pub expires_ms: u64,
    /// Some messages live for as long as they say.
    pub expirations: bool,
}

/// The queues that balance, where some do: of each kind one, or more.
const BALANCED: [Name; 6] = ["d0", "d1", "d2", "t0", "p0", "x0"];

/// How long a delivery may stay, where clients renew them. Half of it, in which they must answer, is many waits long.
const LEASE_MS: u32 = 8_000;

impl Swarm {
    /// The choices of a seed.
    pub fn new(seed: u64) -> Swarm {
        let mut random = Random::new(seed ^ 0x5157_4D00);
        let random = &mut random;
        let segment_bytes = random.pick(&[16 << 10, 64 << 10, 256 << 10]);
        let durability = match random.below(8) {
            0 => Durability::Os,
            1 => Durability::Interval { ms: random.pick(&[1, 20]) },
            _ => Durability::Always,
        };
        let options = Options {
            segment_bytes,
            log_cap_bytes: segment_bytes * random.pick(&[2, 3, 8]),
            batch_max_bytes: random.pick(&[4 << 10, 16 << 10, 64 << 10]),
            durability,
            spare_segments_max: random.pick(&[0, 1, 4]),
            salvage: false,
        };
        let large_bodies = random.one_in(3);
        // Publishers that run ahead of consumers, in little memory: backlogs go to disk and come back.
        let deep = random.one_in(3);
        let body_bytes = if deep { 3_000 } else { 300 };
        let in_memory = random.one_in(12);
        let faults = random.below(8) > 0;
        // Of the faults of disks and processes a broker in memory knows nothing.
        let on_disk = |weight: u32| if in_memory { 0 } else { weight };
        let weight = |random: &mut Random, most: u64| match faults && random.one_in(2) {
            true => 1 + random.below(most) as u32,
            false => 0,
        };
        Swarm {
            clients: (0..1 + random.below(5)).map(|_| jobs(random)).collect(),
            bindings: bindings(random),
            events: if deep { 3000 } else { random.pick(&[300, 1000, 3000]) },
            persistent_sixteenths: random.pick(&[16, 12, 8, 0]),
            mandatory_sixteenths: random.pick(&[0, 0, 4]),
            large_bodies,
            body_bytes,
            burst_messages: if deep { 8 } else { 1 },
            slow_consumers: deep || random.one_in(4),
            in_memory,
            lying_disk: false,
            window_messages: if deep { 100 } else { random.pick(&[1, 8, 100]) },
            prefetch_max: random.pick(&[0, 1, 3, 50]),
            requeue_one_in: random.pick(&[0, 2, 5, 20]),
            multiple: random.one_in(2),
            mistakes: random.one_in(4),
            frame_max: random.pick(&[8192, 131_072]),
            heartbeat_s: random.pick(&[0, 0, 1]),
            reset: weight(random, 12),
            vanish: weight(random, 4),
            stall: weight(random, 8),
            kill: on_disk(weight(random, 6)),
            // What the policy does not promise to survive is not asked of it.
            power_loss: match durability {
                Durability::Always => on_disk(weight(random, 6)),
                _ => 0,
            },
            recovery_crash_one_in: random.pick(&[0, 2, 4]),
            disk_error: on_disk(weight(random, 3)),
            disk_full: on_disk(weight(random, 2)),
            bit_flip: match random.one_in(16) {
                true => on_disk(weight(random, 3)),
                false => 0,
            },
            restart: on_disk(weight(random, 2)),
            slow_disk: random.one_in(3),
            options,
            // The first message of each queue stays in memory, however large.
            memory_budget_bytes: match large_bodies {
                // Without a disk, what nobody consumes fills the memory, and publishers wait for good.
                _ if in_memory => 64 << 20,
                true => random.pick(&[512 << 10, 16 << 20]),
                false if deep => 160 << 10,
                false => random.pick(&[160 << 10, 512 << 10, 16 << 20]),
            },
            step_us: 64,
            balance: random.one_in(3),
            leases: random.one_in(4),
            // In half of the least budget the first messages of the queues may leave no room for another.
            resident: !large_bodies && random.one_in(3),
            dead_letters: random.one_in(3),
            priorities: random.one_in(3),
            limits: random.one_in(3),
            ttl_ms: random.pick(&[0, 0, 0, 2, 20, 200]),
            expirations: random.one_in(3),
            expires_ms: random.pick(&[0, 0, 0, 20, 100, 500]),
            extra_keys: random.one_in(3),
            refuses: random.one_in(2),
            single_active: random.one_in(4),
            consumer_priorities: random.one_in(3),
            pauses: random.one_in(4),
            internal: random.one_in(2),
            auto_delete: random.one_in(2),
            // A few, some, or as much as is written to runs before it is too much.
            limit_bytes: match random.one_in(3) {
                true => random.pick(&[2 * body_bytes, 8 * body_bytes, 100_000]),
                false => 0,
            },
        }
        .timed()
    }

    /// Where queues balance or deliveries are renewed, seconds pass, and the broker lives for some of them.
    fn timed(mut self) -> Swarm {
        if self.dead_letters && self.requeue_one_in == 0 {
            self.requeue_one_in = 5;
        }
        if self.balance || self.leases {
            self.events = 3_000;
            self.slow_consumers = true;
            self.kill = 0;
            self.power_loss = self.power_loss.min(1);
            self.restart = self.restart.min(1);
            self.disk_error = 0;
            self.disk_full = 0;
            self.recovery_crash_one_in = 0;
        }
        if self.balance {
            // Somebody publishes ahead of somebody who consumes slowly.
            self.step_us = 20_000;
            self.leases = false;
            // Queues with priorities do not balance, and what goes by itself need not wait for a consumer.
            self.priorities = false;
            self.limits = false;
            self.limit_bytes = 0;
            self.ttl_ms = 0;
            self.expirations = false;
            self.clients.truncate(1);
            self.clients.extend([vec![Job::Confirm, Job::Publish], vec![Job::Confirm; 2]]);
            self.clients.extend([vec![Job::Consume; 3], vec![Job::Consume; 2]]);
            self.burst_messages = 8;
            self.window_messages = 100;
            self.body_bytes = 300;
            self.large_bodies = false;
            self.prefetch_max = 3;
            self.memory_budget_bytes = 16 << 20;
        }
        if self.leases {
            self.step_us = 10_000;
            // Who falls silent would rightly lose what it holds.
            self.vanish = 0;
            self.stall = 0;
        }
        self
    }

    /// The highest priority of a queue's messages; 0: it has none.
    pub(crate) fn max_priority(&self, queue: Name) -> u8 {
        if self.priorities && PRIORITIZED.contains(&queue) { PRIORITY_MAX } else { 0 }
    }

    /// Whether one consumer at a time gets a queue's messages.
    pub(crate) fn is_single_active(&self, queue: Name) -> bool {
        self.single_active && SINGLE_ACTIVE.contains(&queue)
    }

    /// What may wait in a queue.
    pub(crate) fn limit(&self, queue: Name) -> Option<Limit> {
        let messages = (self.limits && LIMITED.contains(&queue)).then_some(LIMIT_MESSAGES);
        let bytes =
            (self.limit_bytes > 0 && LIMITED_BYTES.contains(&queue)).then_some(self.limit_bytes);
        (messages.is_some() || bytes.is_some()).then_some(Limit { messages, bytes })
    }

    /// How long a message lives in a queue, in microseconds.
    pub(crate) fn ttl_us(&self, queue: Name) -> Option<u64> {
        (self.ttl_ms > 0 && EXPIRING.contains(&queue)).then_some(self.ttl_ms * 1_000)
    }

    /// After how long a queue goes that nobody uses, in microseconds.
    pub(crate) fn expires_us(&self, queue: Name) -> Option<u64> {
        (self.expires_ms > 0 && UNUSED_GO.contains(&queue)).then_some(self.expires_ms * 1_000)
    }

    /// What an exchange is in this world.
    pub(crate) fn exchange(&self, exchange: Name) -> Exchange {
        let made = |kind| Exchange { kind, alternate: None, internal: false, auto_delete: false };
        match exchange {
            DIRECT => Exchange { alternate: Some(ALTERNATE), ..made("direct") },
            TOPIC => made("topic"),
            FANOUT => made("fanout"),
            ALTERNATE => Exchange { internal: self.internal, ..made("fanout") },
            _ if exchange == PASSING_EXCHANGES[0] => Exchange {
                internal: self.internal,
                auto_delete: self.auto_delete,
                ..made("fanout")
            },
            // What nothing here wants goes to the other, if that is there.
            _ => Exchange {
                alternate: Some(PASSING_EXCHANGES[0]),
                auto_delete: self.auto_delete,
                ..made("topic")
            },
        }
    }

    /// The queues whose dead messages go elsewhere.
    pub(crate) fn letters_from(&self) -> &'static [Name] {
        if self.dead_letters { &LETTERS_FROM } else { &[] }
    }

    /// Messages after which a transaction is committed. Together they have a quarter of the budget, half of it where the
    /// process has grown, and a connection that is lost may hold as much as the next one; who goes beyond is refused, which
    /// the model cannot foresee.
    pub(crate) fn transaction_messages(&self) -> usize {
        let channels = self.clients.iter().flatten().filter(|job| **job == Job::Transact).count();
        let share = self.memory_budget_bytes / if self.resident { 16 } else { 8 };
        let body_bytes = if self.large_bodies { 29_000 } else { self.body_bytes };
        let message_bytes = body_bytes + body_bytes / 8 + 400;
        (share / message_bytes / channels.max(1) as u64).max(1) as usize
    }

    /// The same world without faults, so that a checker's own eyes can be tested.
    pub fn calm(mut self) -> Swarm {
        self.reset = 0;
        self.vanish = 0;
        self.stall = 0;
        self.kill = 0;
        self.power_loss = 0;
        self.disk_error = 0;
        self.disk_full = 0;
        self.bit_flip = 0;
        self.restart = 0;
        self
    }

    /// The broker's settings.
    pub(crate) fn config(&self, seed: u64) -> ShardConfig {
        let default = ShardConfig::default();
        // Of several policies one holds: each queue has one with all that is said of it.
        let queues = DURABLE_QUEUES.into_iter().chain(TRANSIENT_QUEUES).chain(PASSING_QUEUES);
        let policies = queues.chain(EXCLUSIVE_QUEUES).filter_map(|queue| {
            let mut definition = Vec::new();
            if self.balance && BALANCED.contains(&queue) {
                definition.push(("flow", Value::LongStr(b"balance")));
            }
            if let Some(Limit { messages, bytes }) = self.limit(queue) {
                if let Some(messages) = messages {
                    definition.push(("max-length", Value::I64(messages as i64)));
                }
                if let Some(bytes) = bytes {
                    definition.push(("max-length-bytes", Value::I64(bytes as i64)));
                }
                if self.refuses {
                    let letters = self.letters_from().contains(&queue);
                    let overflow: &[u8] =
                        if letters { b"reject-publish-dlx" } else { b"reject-publish" };
                    definition.push(("overflow", Value::LongStr(overflow)));
                }
            }
            if let Some(ttl_us) = self.ttl_us(queue) {
                definition.push(("message-ttl", Value::I64(ttl_us as i64 / 1_000)));
            }
            if let Some(expires_us) = self.expires_us(queue) {
                definition.push(("expires", Value::I64(expires_us as i64 / 1_000)));
            }
            if self.letters_from().contains(&queue) {
                definition.push(("dead-letter-exchange", Value::LongStr(b"")));
                let key = Value::LongStr(LETTERS_TO.as_bytes());
                definition.push(("dead-letter-routing-key", key));
            }
            let pattern = format!("^{queue}$");
            let says_something = !definition.is_empty();
            says_something.then(|| Policy::of_queues("/", &pattern, 0, definition))
        });
        ShardConfig {
            policies: policies.collect::<Result<_, _>>().expect("they are constant"),
            ack_timeout_ms: if self.leases { LEASE_MS } else { default.ack_timeout_ms },
            memory_budget_bytes: self.memory_budget_bytes,
            connections_max: 16,
            seed,
            secret: seed.into(),
            ..default
        }
    }
}

fn jobs(random: &mut Random) -> Vec<Job> {
    const JOBS: [Job; 10] = [
        Job::Request,
        Job::Publish,
        Job::Confirm,
        Job::Confirm,
        Job::Confirm,
        Job::Transact,
        Job::Consume,
        Job::Consume,
        Job::Get,
        Job::Churn,
    ];
    (0..1 + random.below(3)).map(|_| random.pick(&JOBS)).collect()
}

fn bindings(random: &mut Random) -> Vec<BaseBinding> {
    let mut bindings = Vec::new();
    for queue in DURABLE_QUEUES.into_iter().chain(TRANSIENT_QUEUES) {
        if random.one_in(2) {
            bindings.push((DIRECT, queue, queue));
        }
        if random.one_in(2) {
            bindings.push((TOPIC, random.pick(&PATTERNS), queue));
        }
        if random.one_in(4) {
            bindings.push((FANOUT, "", queue));
        }
        if random.one_in(6) {
            bindings.push((ALTERNATE, "", queue));
        }
    }
    bindings
}
