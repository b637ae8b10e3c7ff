//! Any sequence of operations on one queue against the plainest model of it: a list. Checked are order,
//! bodies, redelivered flags, the places that requeued messages return to, counts, prefetch, that
//! nobody waits for a message who could have one, and what limits send to the dead letters, which has to be there. With priorities the
//! list begins with the highest one: a message's number says both when it came and which it has.

use std::collections::BTreeMap;

use forebay_broker::ConnectionId;
use forebay_wire::{Properties, TableBuf, Value, basic, queue};
use proptest::prelude::*;

use crate::rig::{Rig, consume, declare, short};

const TAGS: [&str; 3] = ["a", "b", "c"];

#[derive(Clone, Debug)]
enum Op {
    Publish { count: u8, priority: u8 },
    Get { no_ack: bool },
    Consume { tag: usize, prefetch: u16, no_ack: bool },
    Cancel { tag: usize },
    Ack { pick: u8, multiple: bool },
    Nack { pick: u8, multiple: bool, requeue: bool },
    Reject { pick: u8, requeue: bool },
    Recover,
    Purge,
    Reconnect,
    Pass { tens_ms: u8 },
}

/// What the queue was declared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    None,
    Ttl,
    MaxLength(usize),
    MaxBytes(usize),
}

/// The highest priority, where there are any.
const PRIORITY_MAX: u8 = 4;
/// Messages of one priority.
const OF_A_PRIORITY: u32 = 10_000;

const TTL_MS: u64 = 125;

fn op() -> impl Strategy<Value = Op> {
    let tag = 0..TAGS.len();
    prop_oneof![
        6 => (1u8..5, 0..PRIORITY_MAX + 2)
            .prop_map(|(count, priority)| Op::Publish { count, priority }),
        3 => any::<bool>().prop_map(|no_ack| Op::Get { no_ack }),
        3 => (tag.clone(), 0u16..5, prop::bool::weighted(0.2))
            .prop_map(|(tag, prefetch, no_ack)| Op::Consume { tag, prefetch, no_ack }),
        2 => tag.prop_map(|tag| Op::Cancel { tag }),
        4 => (any::<u8>(), any::<bool>()).prop_map(|(pick, multiple)| Op::Ack { pick, multiple }),
        4 => (any::<u8>(), any::<bool>(), prop::bool::weighted(0.8))
            .prop_map(|(pick, multiple, requeue)| Op::Nack { pick, multiple, requeue }),
        1 => (any::<u8>(), any::<bool>()).prop_map(|(pick, requeue)| Op::Reject { pick, requeue }),
        1 => Just(Op::Recover),
        1 => Just(Op::Purge),
        1 => Just(Op::Reconnect),
        2 => (1u8..10).prop_map(|tens_ms| Op::Pass { tens_ms }),
    ]
}

fn limit() -> impl Strategy<Value = Limit> {
    prop_oneof![
        Just(Limit::None),
        Just(Limit::Ttl),
        (0usize..6).prop_map(Limit::MaxLength),
        (0usize..25).prop_map(Limit::MaxBytes),
    ]
}

struct Consumer {
    prefetch: u16,
    no_ack: bool,
    unacked: u16,
}

struct World {
    limit: Limit,
    priorities: bool,
    /// When each message came.
    came_us: BTreeMap<u32, u64>,
    /// Rejected, expired or too many.
    dead: Vec<u32>,
    rig: Rig,
    client: ConnectionId,
    /// Ready messages by number, which is their order, and whether each was delivered before.
    ready: BTreeMap<u32, bool>,
    /// By delivery tag: the message and who has it, if a consumer.
    unacked: BTreeMap<u64, (u32, Option<usize>)>,
    consumers: BTreeMap<usize, Consumer>,
    next_number: u32,
    next_tag: u64,
}

impl World {
    fn new(limit: Limit, priorities: bool) -> World {
        let mut rig = Rig::new();
        let client = rig.client();
        let arguments = World::arguments(limit, priorities);
        rig.method(client, 1, &declare("dead", false));
        rig.method(client, 1, &World::queue(&arguments));
        rig.trace(client);
        World {
            limit,
            priorities,
            came_us: BTreeMap::new(),
            dead: Vec::new(),
            rig,
            client,
            ready: BTreeMap::new(),
            unacked: BTreeMap::new(),
            consumers: BTreeMap::new(),
            next_number: 1,
            next_tag: 1,
        }
    }

    fn arguments(limit: Limit, priorities: bool) -> TableBuf {
        let most = if priorities { PRIORITY_MAX } else { 0 };
        let arguments = TableBuf::new()
            .with("x-max-priority", Value::U8(most))
            .with("x-dead-letter-exchange", Value::LongStr(b""))
            .with("x-dead-letter-routing-key", Value::LongStr(b"dead"));
        match limit {
            Limit::None => arguments,
            Limit::Ttl => arguments.with("x-message-ttl", Value::I64(TTL_MS as i64)),
            Limit::MaxLength(most) => arguments.with("x-max-length", Value::I64(most as i64)),
            Limit::MaxBytes(most) => arguments.with("x-max-length-bytes", Value::I64(most as i64)),
        }
    }

    fn queue(arguments: &TableBuf) -> queue::Declare<'_> {
        queue::Declare { arguments: arguments.as_table(), ..declare("q", false) }
    }

    /// What is ready and too old dies. Time passes until there is no doubt: a message may be late by a step.
    fn expire(&mut self) {
        if self.limit != Limit::Ttl {
            return;
        }
        let held = self.unacked.values().map(|(number, _)| number);
        let numbers: Vec<u32> = self.ready.keys().chain(held).copied().collect();
        let age_us = |rig: &Rig, number: &u32| rig.now_us - self.came_us[number];
        let doubt_us = TTL_MS * 1_000..(TTL_MS + 2) * 1_000;
        while numbers.iter().any(|number| doubt_us.contains(&age_us(&self.rig, number))) {
            self.rig.pass(1);
        }
        let rig = &self.rig;
        let expired = |number: &u32, _: &mut bool| age_us(rig, number) >= doubt_us.end;
        self.dead.extend(self.ready.extract_if(.., expired).map(|(number, _)| number));
    }

    /// The first ready message leaves the queue as the broker says it did.
    fn taken(&mut self, line: &str, consumer: Option<usize>, no_ack: bool) {
        let (head, body) = line.split_once(" [").expect("a body");
        let (number, redelivered) = self.ready.pop_first().expect("something was ready");
        assert_eq!(body, format!("{number}]"), "the next message is {number}");
        assert_eq!(head.contains(" redelivered"), redelivered, "{line}");
        let words: Vec<_> = head.split(' ').collect();
        let tag = words[if consumer.is_some() { 3 } else { 2 }];
        assert_eq!(tag, self.next_tag.to_string(), "{line}");
        if !no_ack {
            self.unacked.insert(self.next_tag, (number, consumer));
        }
        self.next_tag += 1;
    }

    /// What the broker did by itself: it must be what the model allows, and all of it.
    fn settle(&mut self) -> Vec<String> {
        let mut others = Vec::new();
        for line in self.rig.trace(self.client) {
            let Some(rest) = line.strip_prefix("1 basic.deliver ") else {
                others.push(line);
                continue;
            };
            let tag = TAGS.iter().position(|tag| rest.starts_with(tag)).expect("one of ours");
            let consumer = self.consumers.get_mut(&tag).expect("it consumes");
            let no_ack = consumer.no_ack;
            if !no_ack {
                consumer.unacked += 1;
                let within = consumer.prefetch == 0 || consumer.unacked <= consumer.prefetch;
                assert!(within, "{line}: more than {} unacknowledged", consumer.prefetch);
            }
            self.taken(&line, Some(tag), no_ack);
        }
        let idle = |consumer: &Consumer| {
            consumer.no_ack || consumer.prefetch == 0 || consumer.unacked < consumer.prefetch
        };
        self.expire();
        if self.consumers.values().any(idle) {
            assert_eq!(self.ready.len(), 0, "somebody could have had it");
        }
        while self.is_too_long() {
            self.dead.extend(self.ready.pop_first().map(|(number, _)| number));
        }
        others
    }

    fn is_too_long(&self) -> bool {
        match self.limit {
            Limit::None | Limit::Ttl => false,
            Limit::MaxLength(most) => self.ready.len() > most,
            Limit::MaxBytes(most) => {
                let bytes = self.ready.keys().map(|number| number.to_string().len());
                bytes.sum::<usize>() > most
            }
        }
    }

    /// What happens to unacknowledged messages: gone, or back in their places.
    fn settled(&mut self, tags: Vec<u64>, requeue: bool, dies: bool) {
        for tag in tags {
            let (number, consumer) = self.unacked.remove(&tag).expect("it was picked");
            if let Some(consumer) = consumer.and_then(|tag| self.consumers.get_mut(&tag)) {
                consumer.unacked = consumer.unacked.saturating_sub(1);
            }
            if requeue {
                self.ready.insert(number, true);
            } else if dies {
                self.dead.push(number);
            }
        }
        self.expire();
    }

    /// A tag that is unacknowledged, and all that are meant with it.
    fn pick(&self, pick: u8, multiple: bool) -> Option<(u64, Vec<u64>)> {
        let tags: Vec<u64> = self.unacked.keys().copied().collect();
        let index = usize::from(pick) % tags.len().max(1);
        let tag = *tags.get(index)?;
        Some((tag, if multiple { tags[..=index].to_vec() } else { vec![tag] }))
    }

    fn step(&mut self, op: &Op) {
        self.expire();
        let client = self.client;
        match *op {
            Op::Publish { count, priority } => {
                for _ in 0..count {
                    let before = match self.priorities {
                        true => PRIORITY_MAX.saturating_sub(priority),
                        false => 0,
                    };
                    let number = u32::from(before) * OF_A_PRIORITY + self.next_number;
                    self.next_number += 1;
                    self.ready.insert(number, false);
                    self.came_us.insert(number, self.rig.now_us);
                    let properties =
                        Properties { priority: Some(priority), ..Properties::default() };
                    let body = number.to_string();
                    self.rig.publish_with(client, "", "q", false, &properties, body.as_bytes());
                }
                assert_eq!(self.settle(), [""; 0]);
            }
            Op::Get { no_ack } => {
                let before = self.ready.len();
                let get = basic::Get { queue: short("q"), no_ack, ..basic::Get::default() };
                self.rig.method(client, 1, &get);
                // Before time passes.
                let answers = self.rig.sent(client);
                assert_eq!(answers.len(), 1, "{answers:?}");
                if before == 0 {
                    assert_eq!(answers, ["1 basic.get-empty"]);
                } else {
                    assert!(answers[0].contains(&format!("left={}", before - 1)), "{answers:?}");
                    self.taken(&answers[0], None, no_ack);
                }
                assert_eq!(self.settle(), [""; 0]);
            }
            Op::Consume { tag, prefetch, no_ack } => {
                if self.consumers.contains_key(&tag) || self.holds(tag) {
                    return;
                }
                let qos = basic::Qos { prefetch_count: prefetch, ..basic::Qos::default() };
                self.rig.method(client, 1, &qos);
                self.rig.method(client, 1, &consume("q", TAGS[tag], no_ack));
                self.consumers.insert(tag, Consumer { prefetch, no_ack, unacked: 0 });
                assert_eq!(self.settle(), ["1 basic.qos-ok", "1 basic.consume-ok"]);
            }
            Op::Cancel { tag } => {
                if self.consumers.remove(&tag).is_some() {
                    let cancel = basic::Cancel {
                        consumer_tag: short(TAGS[tag]),
                        ..basic::Cancel::default()
                    };
                    self.rig.method(client, 1, &cancel);
                    assert_eq!(self.settle(), ["1 basic.cancel-ok"]);
                }
            }
            Op::Ack { pick, multiple } => {
                if let Some((delivery_tag, tags)) = self.pick(pick, multiple) {
                    self.rig.method(client, 1, &basic::Ack { delivery_tag, multiple });
                    self.settled(tags, false, false);
                    assert_eq!(self.settle(), [""; 0]);
                }
            }
            Op::Nack { pick, multiple, requeue } => {
                if let Some((delivery_tag, tags)) = self.pick(pick, multiple) {
                    self.rig.method(client, 1, &basic::Nack { delivery_tag, multiple, requeue });
                    self.settled(tags, requeue, true);
                    assert_eq!(self.settle(), [""; 0]);
                }
            }
            Op::Reject { pick, requeue } => {
                if let Some((delivery_tag, tags)) = self.pick(pick, false) {
                    self.rig.method(client, 1, &basic::Reject { delivery_tag, requeue });
                    self.settled(tags, requeue, true);
                    assert_eq!(self.settle(), [""; 0]);
                }
            }
            Op::Recover => {
                self.rig.method(client, 1, &basic::Recover { requeue: true });
                self.settled(self.unacked.keys().copied().collect(), true, false);
                assert_eq!(self.settle(), ["1 basic.recover-ok"]);
            }
            Op::Pass { tens_ms } => {
                self.rig.pass(u64::from(tens_ms) * 10);
                self.expire();
                assert_eq!(self.settle(), [""; 0]);
            }
            Op::Purge => {
                // What has expired is gone.
                self.rig.pass(1);
                self.expire();
                assert_eq!(self.settle(), [""; 0]);
                let purge = queue::Purge { queue: short("q"), ..queue::Purge::default() };
                self.rig.method(client, 1, &purge);
                let answer = format!("1 queue.purge-ok {}", self.ready.len());
                self.ready.clear();
                assert_eq!(self.settle(), [answer]);
            }
            Op::Reconnect => {
                self.rig.disconnect(client);
                self.consumers.clear();
                self.settled(self.unacked.keys().copied().collect(), true, false);
                self.client = self.rig.client();
                self.next_tag = 1;
                assert_eq!(self.settle(), [""; 0]);
            }
        }
    }

    /// Whether a cancelled consumer of this name still has messages: its successor would be counted with
    /// them here, not there.
    fn holds(&self, tag: usize) -> bool {
        self.unacked.values().any(|(_, consumer)| *consumer == Some(tag))
    }

    /// Everything that was neither acknowledged nor purged comes, once, in order.
    fn drain(mut self) {
        self.step(&Op::Reconnect);
        let count = self.ready.len();
        let counted = format!("1 queue.declare-ok q {count} 0");
        let arguments = World::arguments(self.limit, self.priorities);
        self.rig.method(self.client, 1, &World::queue(&arguments));
        assert_eq!(self.rig.trace(self.client), [counted]);
        for _ in 0..=count {
            self.step(&Op::Get { no_ack: true });
        }
        assert!(self.ready.is_empty());
        let get = basic::Get { queue: short("dead"), no_ack: true, ..basic::Get::default() };
        let mut found = Vec::new();
        loop {
            self.rig.method(self.client, 1, &get);
            let answer = self.rig.trace(self.client).concat();
            let Some((_, body)) = answer.split_once('[') else { break };
            found.push(body.trim_end_matches(']').parse::<u32>().expect("a number"));
        }
        found.sort_unstable();
        self.dead.sort_unstable();
        assert_eq!(found, self.dead, "each that died is there, once");
    }
}

fn config() -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    ProptestConfig {
        cases: cases.unwrap_or(256),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_queue_is_a_list(
        limit in limit(),
        priorities in any::<bool>(),
        ops in prop::collection::vec(op(), 1..60),
    ) {
        let mut world = World::new(limit, priorities);
        for op in &ops {
            world.step(op);
        }
        world.drain();
    }
}
