//! One logical queue in several parts, each with the order of its keys.

use crate::message::Message;
use crate::publisher::Route;
use crate::session::{Binding, Exchange, Queue, Topology};

/// The exchange type that hashes routing keys: our broker's own, and a plug-in of RabbitMQ.
pub(crate) const CONSISTENT_HASH: &str = "x-consistent-hash";
/// The weight of each part.
const WEIGHT: &str = "1";

/// Queues `NAME-0` to `NAME-(count − 1)`, and which of them a key belongs to.
///
/// All messages of one key go to one queue, so each key keeps its order, and the parts can be published to and
/// consumed from side by side. Growing from n to m parts moves no more keys than it must: (m − n) / m of them.
/// What was published before stays in its part, so a key that moves keeps its order only if its old part was
/// emptied first.
///
/// Who chooses the part:
///
/// - [`Partitions::by_exchange`]: the broker, with an exchange of type `x-consistent-hash` named like the parts.
///   Whoever publishes to it, in any language, with the key as routing key, shares the parts. Forebay has it;
///   RabbitMQ with its plug-in `rabbitmq_consistent_hash_exchange`, which comes with it and has to be enabled.
/// - [`Partitions::new`]: the client, by jump consistent hashing (Lamping and Veach, 2014) over FNV-1a of the key,
///   and publishes to the queue by its name. That needs no plug-in, works on every broker, and tells which part a
///   key is in. Programs in other languages have to compute the same two functions.
///
/// All publishers of one set of parts have to choose in the same way.
///
/// ```no_run
/// # async fn example(connection: forebay_client::Connection) -> Result<(), Box<dyn std::error::Error>> {
/// use forebay_client::{Partitions, Queue};
///
/// let orders = Partitions::by_exchange("orders", 4);
/// connection.declare(orders.topology(Queue::durable)).await?;
/// let publisher = connection.publisher(orders.target()).build().await?;
/// publisher.publish(orders.route("customer 17", "an order")).await?.await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partitions {
    name: String,
    count: u32,
    by_exchange: bool,
}

impl Partitions {
    /// `count` parts, at least 1, chosen by the client.
    pub fn new(name: impl Into<String>, count: u32) -> Partitions {
        Partitions { name: name.into(), count: count.max(1), by_exchange: false }
    }

    /// `count` parts, at least 1, chosen by the broker: exchange `name` hashes the routing key.
    ///
    /// Keys are text of at most 255 bytes here, as routing keys are; what is no UTF-8 is replaced.
    pub fn by_exchange(name: impl Into<String>, count: u32) -> Partitions {
        Partitions { by_exchange: true, ..Partitions::new(name, count) }
    }

    /// How many parts there are.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The queue of one part.
    pub fn queue(&self, part: u32) -> String {
        format!("{}-{part}", self.name)
    }

    /// All the queues, each as `declare` would have a queue of its name, and the exchange, durable, if there is
    /// one; for [`Connection::declare`](crate::Connection::declare).
    ///
    /// A RabbitMQ without the plug-in refuses the exchange and closes the connection for it (503 before 4.0). The
    /// error says what to do.
    pub fn topology(&self, declare: impl Fn(String) -> Queue) -> Topology {
        let queues = (0..self.count)
            .fold(Topology::new(), |topology, part| topology.queue(declare(self.queue(part))));
        if !self.by_exchange {
            return queues;
        }
        let exchange = queues.exchange(Exchange::durable(&self.name, CONSISTENT_HASH));
        (0..self.count).fold(exchange, |topology, part| {
            topology.binding(Binding::new(self.queue(part), &self.name, WEIGHT))
        })
    }

    /// Where a publisher of [routed](Partitions::route) messages publishes to.
    pub fn target(&self) -> Route {
        if self.by_exchange { Route::exchange(&self.name, "") } else { Route::queue("") }
    }

    /// The part that a key belongs to; `None` if only the broker knows.
    pub fn of(&self, key: impl AsRef<[u8]>) -> Option<u32> {
        (!self.by_exchange).then(|| jump(fnv_1a(key.as_ref()), self.count))
    }

    /// The message with the routing key that brings it to its part, for a publisher on [`Partitions::target`].
    #[must_use]
    pub fn route(&self, key: impl AsRef<[u8]>, message: impl Into<Message>) -> Message {
        let key = key.as_ref();
        message.into().routing_key(match self.of(key) {
            Some(part) => self.queue(part),
            None => String::from_utf8_lossy(key).into_owned(),
        })
    }
}

/// FNV-1a, 64 bits.
fn fnv_1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Jump consistent hash: walks through the counts at which the key would move, and stops before `count`.
fn jump(mut key: u64, count: u32) -> u32 {
    let (mut part, mut next) = (0_u32, 0_f64);
    while next < f64::from(count) {
        part = next as u32;
        key = key.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        let draw = ((key >> 33) + 1) as f64;
        next = (f64::from(part) + 1.0) * ((1_u64 << 31) as f64 / draw);
    }
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_spread_evenly_and_move_only_when_they_must() {
        let keys: Vec<String> = (0..40_000).map(|number| format!("key {number}")).collect();
        for (few, many) in [(1, 2), (4, 5), (8, 16)] {
            let (before, after) = (Partitions::new("q", few), Partitions::new("q", many));
            let mut sizes = vec![0_u32; many as usize];
            let mut moved = 0_u32;
            for key in &keys {
                let (from, to) = (before.of(key).unwrap(), after.of(key).unwrap());
                sizes[to as usize] += 1;
                moved += u32::from(from != to);
                assert!(from == to || to >= few, "a key moves to a new part only");
            }
            let even = keys.len() as u32 / many;
            assert!(sizes.iter().all(|size| size.abs_diff(even) < even / 10), "{sizes:?}");
            let must = keys.len() as u32 * (many - few) / many;
            assert!(moved.abs_diff(must) < must / 10, "{moved} moved, {must} had to");
        }
    }

    #[test]
    fn the_functions_are_the_published_ones() {
        assert_eq!(fnv_1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv_1a(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(jump(0, 1), 0);
        assert_eq!(jump(u64::MAX, 1), 0);
    }
}
