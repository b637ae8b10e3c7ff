//! One logical queue in several parts, each with the order of its keys.

use crate::message::Message;
use crate::session::{Queue, Topology};

/// Queues `NAME-0` to `NAME-(count − 1)`, and which of them a key belongs to.
///
/// All messages of one key go to one queue, so each key keeps its order, and the parts can be published to and
/// consumed from side by side. Growing from n to m parts moves no more keys than it must: (m − n) / m of them.
///
/// The client chooses the part, by jump consistent hashing (Lamping and Veach, 2014) over FNV-1a of the key, and
/// publishes to the queue by its name. That needs no plug-in, works on every broker, and a missing part is
/// returned like any other queue. Programs in other languages find the same part with the same two functions.
///
/// ```
/// use forebay_client::{Message, Partitions};
///
/// let orders = Partitions::new("orders", 4);
/// let message = orders.route("customer 17", Message::new("an order"));
/// assert_eq!(orders.of("customer 17"), orders.of("customer 17"));
/// # let _ = message;
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partitions {
    name: String,
    count: u32,
}

impl Partitions {
    /// `count` parts, at least 1.
    pub fn new(name: impl Into<String>, count: u32) -> Partitions {
        Partitions { name: name.into(), count: count.max(1) }
    }

    /// How many parts there are.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The queue of one part.
    pub fn queue(&self, part: u32) -> String {
        format!("{}-{part}", self.name)
    }

    /// All the queues, each as `declare` would have a queue of its name, for
    /// [`Connection::declare`](crate::Connection::declare).
    pub fn topology(&self, declare: impl Fn(String) -> Queue) -> Topology {
        (0..self.count)
            .fold(Topology::new(), |topology, part| topology.queue(declare(self.queue(part))))
    }

    /// The part that a key belongs to.
    pub fn of(&self, key: impl AsRef<[u8]>) -> u32 {
        jump(fnv_1a(key.as_ref()), self.count)
    }

    /// The message with the queue of its key as routing key, for a publisher on `Route::queue("")`.
    #[must_use]
    pub fn route(&self, key: impl AsRef<[u8]>, message: impl Into<Message>) -> Message {
        message.into().routing_key(self.queue(self.of(key)))
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
                let (from, to) = (before.of(key), after.of(key));
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
