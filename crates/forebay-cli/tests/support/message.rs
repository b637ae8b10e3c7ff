//! Messages that know what they are.
//!
//! Everything about a message (queue, persistence, size, every byte of its body) follows from the
//! seed, its publisher and its number. The two numbers travel as its `message_id`, so whoever
//! receives it can tell what it must look like, also with an empty body.

use super::random::Random;
use forebay_client::blocking::{Message, Publication};
use forebay_wire::Properties;

/// Who published a message, and as which of its messages (from 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id {
    /// The publisher.
    pub publisher: u32,
    /// Its number, without gaps over all rounds.
    pub number: u64,
}

impl Id {
    /// The identity that a received message claims.
    pub fn of(message: &Message) -> Result<Id, String> {
        let properties = message.properties();
        let text = properties.message_id.ok_or("a message without message_id")?.to_string();
        let (publisher, number) = text.split_once('-').ok_or(format!("message_id {text}"))?;
        match (publisher.parse(), number.parse()) {
            (Ok(publisher), Ok(number)) => Ok(Id { publisher, number }),
            _ => Err(format!("message_id {text}")),
        }
    }
}

/// Where a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// To the durable queue `orders` by the default exchange.
    Orders,
    /// To the durable queues `left` and `right` by the exchange `fan`.
    Fan,
    /// To the transient queue `passing`.
    Passing,
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Where it goes.
    pub target: Target,
    /// Whether it is published as persistent.
    pub persistent: bool,
    /// Body size in bytes.
    pub size_bytes: usize,
    /// Where its body begins in the noise.
    offset: usize,
}

/// Largest body, in bytes.
pub const BODY_MAX_BYTES: usize = 200_000;

/// Makes and checks messages of one seed.
#[derive(Debug)]
pub struct Messages {
    seed: u64,
    /// Bodies are parts of it with their identity written over the beginning.
    noise: Vec<u8>,
}

impl Messages {
    /// The messages of a seed.
    pub fn new(seed: u64) -> Messages {
        let mut random = Random::new(seed);
        let noise = (0..(BODY_MAX_BYTES + 4096) / 8).flat_map(|_| random.bits().to_le_bytes());
        Messages { seed, noise: noise.collect() }
    }

    /// What a message is.
    pub fn plan(&self, id: Id) -> Plan {
        let mut random = Random::of(self.seed ^ id.number, u64::from(id.publisher) + 1);
        let target = match random.below(10) {
            0..5 => Target::Orders,
            5..9 => Target::Fan,
            _ => Target::Passing,
        };
        let size_bytes = match random.below(100) {
            0..5 => 0,
            5..75 => random.below(1024),
            75..97 => random.below(16 * 1024),
            _ => random.below(BODY_MAX_BYTES as u64 + 1),
        } as usize;
        let offset = random.below(4096 - 64) as usize;
        Plan { target, persistent: random.percent(70), size_bytes, offset }
    }

    /// Writes a body into `body`.
    pub fn body(&self, id: Id, plan: &Plan, body: &mut Vec<u8>) {
        body.clear();
        body.extend_from_slice(&self.noise[plan.offset..plan.offset + plan.size_bytes]);
        let stamp = stamp(id);
        let stamped = stamp.len().min(body.len());
        body[..stamped].copy_from_slice(&stamp[..stamped]);
    }

    /// The message as it is to be published; `name` and `body` keep what it borrows.
    pub fn publication<'a>(
        &self,
        id: Id,
        name: &'a mut String,
        body: &'a mut Vec<u8>,
    ) -> Publication<'a> {
        let plan = self.plan(id);
        self.body(id, &plan, body);
        *name = format!("{}-{}", id.publisher, id.number);
        let (exchange, routing_key) = match plan.target {
            Target::Orders => ("", "orders"),
            Target::Fan => ("fan", "any"),
            Target::Passing => ("", "passing"),
        };
        let properties = Properties {
            delivery_mode: Some(if plan.persistent { 2 } else { 1 }),
            message_id: forebay_wire::ShortStr::new(name.as_bytes()),
            ..Properties::default()
        };
        Publication { exchange, routing_key, mandatory: false, properties, body }
    }

    /// Says who a message is, after comparing all of it with what was published.
    pub fn check(&self, message: &Message, queue: &str) -> Result<Id, String> {
        let id = Id::of(message)?;
        let plan = self.plan(id);
        let goes_here = match plan.target {
            Target::Orders => queue == "orders",
            Target::Fan => queue == "left" || queue == "right",
            Target::Passing => queue == "passing",
        };
        if !goes_here {
            return Err(format!("{id:?} is in '{queue}' and was published to {:?}", plan.target));
        }
        let mode = message.properties().delivery_mode;
        if mode != Some(if plan.persistent { 2 } else { 1 }) {
            return Err(format!("{id:?} came with delivery mode {mode:?}"));
        }
        let body = message.body();
        let stamp = stamp(id);
        let stamped = stamp.len().min(plan.size_bytes);
        let noise = &self.noise[plan.offset + stamped..plan.offset + plan.size_bytes.max(stamped)];
        if body.len() != plan.size_bytes
            || body[..stamped] != stamp[..stamped]
            || body[stamped..] != *noise
        {
            return Err(format!("{id:?} in '{queue}' came with other bytes than were published"));
        }
        Ok(id)
    }
}

fn stamp(id: Id) -> [u8; 16] {
    let mut stamp = [0; 16];
    stamp[..4].copy_from_slice(&id.publisher.to_be_bytes());
    stamp[8..].copy_from_slice(&id.number.to_be_bytes());
    stamp
}
