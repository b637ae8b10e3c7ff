//! Queues whose messages expire and go on to another one, and what may come of that: a message that is there twice, or no more.

use std::collections::{BTreeMap, BTreeSet};

use forebay_wire::{ArrayBuf, Properties, RawProperties, Table, TableBuf, Value};

use super::{Rabbit, Stored};

/// In the names of all rungs.
const RUNG: &str = ".retry.";

#[derive(Default)]
pub(in super::super) struct Rungs {
    pub(super) now_ms: u64,
    /// By their names, though they may have been deleted.
    made: BTreeMap<String, Rung>,
    /// It knows no `x-dead-letter-strategy`, as RabbitMQ before 3.10.
    pub(in super::super) is_old: bool,
    /// Nobody may make one.
    pub(in super::super) denies: bool,
    /// What came to rungs, in its order.
    pub(in super::super) copies: Vec<Copied>,
    /// Deliveries that went back to their queue.
    pub(in super::super) came_back: BTreeSet<u64>,
    /// How often a message may have become two, by its name.
    pub(in super::super) doubts: BTreeMap<String, u64>,
    /// Messages that went with their queue.
    pub(in super::super) gone: BTreeSet<String>,
    pub(in super::super) expired: u64,
    /// How often each rung was deleted.
    pub(in super::super) taken_away: BTreeMap<String, u64>,
}

/// What came to a rung.
pub(in super::super) struct Copied {
    /// Of this delivery.
    pub(in super::super) delivery: u64,
    /// How long it stays and where it goes then, if the rung is there.
    pub(in super::super) way: Option<(u64, String)>,
    pub(in super::super) properties: Vec<u8>,
}

/// What a queue was declared as.
#[derive(Debug, PartialEq, Eq)]
struct Rung {
    ttl_ms: u64,
    to: String,
    at_least_once: bool,
}

/// The name of a message, which begins its body.
pub(in super::super) fn name_of(body: &[u8]) -> String {
    String::from_utf8_lossy(body).split('|').next().unwrap().to_owned()
}

/// Of which delivery this is a copy, if it goes to a rung: of whom each was is written at the end of its body.
pub(super) fn copy_of(routing_key: &str, body: &[u8]) -> Option<u64> {
    let number = || String::from_utf8_lossy(body).rsplit('#').next().unwrap().parse();
    routing_key.contains(RUNG).then(|| number().expect("it was delivered"))
}

impl Rungs {
    /// Any other queue may be declared with anything.
    pub(super) fn declared(
        &mut self,
        name: &str,
        arguments: Option<Table<'_>>,
    ) -> Result<(), (u16, &'static str)> {
        let Some(arguments) = arguments.filter(|_| name.contains(RUNG)) else { return Ok(()) };
        if self.denies {
            return Err((403, "ACCESS_REFUSED - to configure"));
        }
        let text = |name: &str| match arguments.get(name) {
            Some(Value::LongStr(text)) => Some(String::from_utf8_lossy(text).into_owned()),
            _ => None,
        };
        assert_eq!(text("x-dead-letter-exchange").as_deref(), Some(""));
        let ttl_ms = arguments.get("x-message-ttl").and_then(|ttl| ttl.as_i64()).expect("a time");
        let at_least_once = text("x-dead-letter-strategy").as_deref() == Some("at-least-once");
        if at_least_once {
            // Otherwise it falls back to at most once without a word.
            assert_eq!(text("x-queue-type").as_deref(), Some("quorum"));
            assert_eq!(text("x-overflow").as_deref(), Some("reject-publish"));
            if self.is_old {
                return Err((406, "PRECONDITION_FAILED - invalid arg"));
            }
        }
        let to = text("x-dead-letter-routing-key").expect("it goes on");
        let rung = Rung { ttl_ms: ttl_ms as u64, to, at_least_once };
        if self.made.get(name).is_some_and(|there| *there != rung) {
            return Err((406, "PRECONDITION_FAILED - inequivalent arg"));
        }
        self.made.insert(name.to_owned(), rung);
        Ok(())
    }

    pub(super) fn copied(&mut self, delivery: u64, rung: &str, properties: &[u8]) {
        let raw = RawProperties::trusted(properties);
        assert_eq!(raw.parse().expiration, None, "it would leave its rung early");
        let copied = raw.headers().is_some_and(|headers| headers.get("CC").is_some());
        assert!(!copied, "it would go elsewhere, too");
        let way = self.made.get(rung).map(|rung| (rung.ttl_ms, rung.to.clone()));
        self.copies.push(Copied { delivery, way, properties: properties.to_vec() });
    }

    /// A publish came a second time.
    pub(super) fn may_be_two(&mut self, body: &[u8]) {
        *self.doubts.entry(name_of(body)).or_default() += 1;
    }

    /// A delivery went back to its queue, though its taker may have said that it is done with, or made a copy.
    pub(super) fn comes_back(&mut self, delivery: u64, body: &[u8], acked: bool) {
        self.came_back.insert(delivery);
        if acked || self.copies.iter().any(|copy| copy.delivery == delivery) {
            self.may_be_two(body);
        }
    }

    /// A copy of what had gone back is one too many.
    pub(super) fn copied_late(&mut self, delivery: u64, body: &[u8]) {
        if self.came_back.contains(&delivery) {
            self.may_be_two(body);
        }
    }

    pub(super) fn gone(&mut self, body: &[u8]) {
        self.gone.insert(name_of(body));
    }
}

impl Rabbit {
    pub(in super::super) fn rungs(&self) -> Vec<String> {
        self.rungs.made.keys().filter(|name| self.queues.contains_key(*name)).cloned().collect()
    }

    /// Somebody has a queue of that name, for something else.
    pub(in super::super) fn stand_in_the_way(&mut self, rung: &str) {
        let other = Rung { ttl_ms: u64::MAX, to: String::new(), at_least_once: false };
        self.rungs.made.insert(rung.to_owned(), other);
        self.declare(rung);
    }

    /// Somebody deletes a rung.
    pub(in super::super) fn take_away(&mut self, rung: &str) {
        self.delete(rung, None);
        self.rungs.made.remove(rung);
        *self.rungs.taken_away.entry(rung.to_owned()).or_default() += 1;
    }

    /// Whoever is asked from now on is `now_ms` old; what has expired goes on.
    pub(in super::super) fn pass(&mut self, now_ms: u64) {
        self.rungs.now_ms = now_ms;
        let made = std::mem::take(&mut self.rungs.made);
        for (name, rung) in &made {
            loop {
                let stays = rung.at_least_once && !self.queues.contains_key(&rung.to);
                let Some(queue) = self.queues.get_mut(name).filter(|_| !stays) else { break };
                let over =
                    |first: &mut Stored| first.arrived_ms.saturating_add(rung.ttl_ms) <= now_ms;
                let Some(stored) = queue.pop_front_if(over) else { break };
                self.dead_letter(name, &rung.to, stored);
            }
        }
        self.rungs.made = made;
    }

    fn dead_letter(&mut self, from: &str, to: &str, mut stored: Stored) {
        let properties = RawProperties::trusted(&stored.properties).parse();
        let mut headers = TableBuf::new();
        let death = TableBuf::new()
            .with("queue", Value::LongStr(from.as_bytes()))
            .with("reason", Value::LongStr(b"expired"));
        let mut deaths = ArrayBuf::new().with(Value::Table(death.as_table()));
        for (name, value) in properties.headers.unwrap_or_default().iter() {
            let Value::Array(earlier) = value else {
                headers.push(name.as_bytes(), value);
                continue;
            };
            for earlier in earlier.iter() {
                let Value::Table(death) = earlier else { continue };
                let queue = death.get("queue");
                if queue == Some(Value::LongStr(to.as_bytes())) {
                    return; // it goes round, and nobody rejected it
                }
                if queue != Some(Value::LongStr(from.as_bytes())) {
                    deaths.push(earlier);
                }
            }
        }
        headers.push("x-death", Value::Array(deaths.as_array()));
        let mut raw = Vec::new();
        Properties { headers: Some(headers.as_table()), expiration: None, ..properties }
            .encode(&mut raw);
        stored.properties = raw;
        let Some(queue) = self.queues.get_mut(to) else {
            return self.rungs.gone(&stored.body);
        };
        self.position += 1;
        self.rungs.expired += 1;
        queue.push_back(Stored { position: self.position, ..stored });
    }
}
