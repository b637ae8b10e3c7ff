//! The consistent-hash exchange: each key in one of the bound queues, keys spread by weight.
//!
//! Known to clients as RabbitMQ's plug-in has it: type `x-consistent-hash`; a binding's key is its weight, an
//! integer from 1; what is hashed is the routing key, or the header named by the argument `hash-header`, or the
//! property named by `hash-property` (`correlation_id`, `message_id`, `timestamp`). A message without that header
//! or property counts as one with an empty value, so all such messages go to one queue.
//!
//! Which queue that is differs from RabbitMQ's, whose choice depends on the order in which queues were bound. Here
//! it is decided by weighted rendezvous hashing:
//!
//! ```text
//!   u(key, name) = a hash of both, as a number in (0, 1)
//!   score        = weight / −ln u(key, name)                 the highest wins
//! ```
//! Each name wins the share weight / Σ weights of all keys, since −ln u / weight is exponentially distributed. A
//! new binding takes keys from the others and moves none between them, and a restart, which binds again in another
//! order, moves none at all. The price is a pass over the bindings for each message. (Thaler and Ravishankar,
//! "Using name-based mappings to increase hit rates", 1998; Schindelhauer and Schomaker, "Weighted distributed
//! hash tables", 2005.)
//!
//! A destination that is bound twice counts with the larger of its weights.

use forebay_wire::{Properties, Table, Value};

use super::arguments::ShownValue;
use super::binding::BindingKey;
use super::destination::Destination;
use super::resource::{Lossy, Resource};
use super::route::RoutedBy;
use crate::error::AmqpError;

const HASH_HEADER: &str = "hash-header";
const HASH_PROPERTY: &str = "hash-property";

/// What is hashed, and the bindings with their weights.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConsistentHash {
    hashed: Hashed,
    members: Vec<Member>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Hashed {
    #[default]
    RoutingKey,
    Header(Box<[u8]>),
    CorrelationId,
    MessageId,
    Timestamp,
}

#[derive(Clone, Debug)]
struct Member {
    key: BindingKey,
    destination: Destination,
    weight: f64,
    /// Of the destination's name, which stays over restarts.
    name_hash: u64,
}

impl ConsistentHash {
    /// Without bindings. The arguments were checked when the exchange was declared.
    pub(crate) fn new(arguments: Table<'_>) -> Self {
        let hashed = Hashed::parse(arguments).unwrap_or_default();
        ConsistentHash { hashed, members: Vec::new() }
    }

    pub(crate) fn add(
        &mut self,
        key: BindingKey,
        binding_key: &[u8],
        destination: Destination,
        name: &[u8],
    ) {
        let weight = weight(binding_key).unwrap_or(1) as f64;
        self.members.push(Member { key, destination, weight, name_hash: mix(fnv_1a(name)) });
    }

    pub(crate) fn remove(&mut self, key: BindingKey) {
        self.members.retain(|member| member.key != key);
    }

    /// Whether messages of one routing key may go to different queues.
    pub(crate) fn looks_beyond_the_key(&self) -> bool {
        self.hashed != Hashed::RoutingKey
    }

    /// Calls `found` once, unless nothing is bound. Keys in `CC` and `BCC` do not count: one message, one queue.
    pub(crate) fn route(
        &self,
        routing_key: &[u8],
        by: &RoutedBy<'_>,
        mut found: impl FnMut(Destination),
    ) {
        let key_hash = match &self.hashed {
            Hashed::RoutingKey => fnv_1a(routing_key),
            Hashed::Header(name) => header_hash(by.headers.get(name)),
            Hashed::CorrelationId => {
                property_hash(by, |properties| properties.correlation_id.map(|id| id.as_bytes()))
            }
            Hashed::MessageId => {
                property_hash(by, |properties| properties.message_id.map(|id| id.as_bytes()))
            }
            Hashed::Timestamp => {
                let seconds = by.properties.and_then(|raw| raw.parse().timestamp);
                seconds.map_or(fnv_1a(b""), |seconds| fnv_1a(seconds.to_string().as_bytes()))
            }
        };
        let best = self.members.iter().max_by(|a, b| {
            let order = a.score(key_hash).total_cmp(&b.score(key_hash));
            order.then(a.name_hash.cmp(&b.name_hash))
        });
        if let Some(best) = best {
            found(best.destination);
        }
    }
}

impl Member {
    fn score(&self, key_hash: u64) -> f64 {
        // 53 bits, and never 0 or 1.
        let u = ((mix(key_hash ^ self.name_hash) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        self.weight / -u.ln()
    }
}

impl Hashed {
    fn parse(arguments: Table<'_>) -> Result<Hashed, Refused<'_>> {
        match (arguments.get(HASH_HEADER), arguments.get(HASH_PROPERTY)) {
            (None, None) => Ok(Hashed::RoutingKey),
            (Some(_), Some(_)) => Err(Refused::Both),
            (Some(Value::LongStr(name)), None) => Ok(Hashed::Header(name.into())),
            (None, Some(Value::LongStr(b"correlation_id"))) => Ok(Hashed::CorrelationId),
            (None, Some(Value::LongStr(b"message_id"))) => Ok(Hashed::MessageId),
            (None, Some(Value::LongStr(b"timestamp"))) => Ok(Hashed::Timestamp),
            (None, Some(Value::LongStr(other))) => Err(Refused::Property(other)),
            (Some(other), None) => Err(Refused::Type(HASH_HEADER, other)),
            (None, Some(other)) => Err(Refused::Type(HASH_PROPERTY, other)),
        }
    }
}

enum Refused<'a> {
    Both,
    Property(&'a [u8]),
    Type(&'static str, Value<'a>),
}

/// Refuses (406) arguments of an exchange that do not say what to hash.
pub(crate) fn check_arguments(
    exchange: Resource<'_>,
    arguments: Table<'_>,
) -> Result<(), AmqpError> {
    Hashed::parse(arguments).map(drop).map_err(|refused| match refused {
        Refused::Both => AmqpError::invalid_binding(format_args!(
            "{HASH_HEADER} and {HASH_PROPERTY} are mutually exclusive"
        )),
        Refused::Property(name) => {
            AmqpError::invalid_binding(format_args!("Unsupported property: {}", Lossy(name)))
        }
        Refused::Type(name, value) => {
            AmqpError::invalid_arg_type(name, exchange, value.type_name())
        }
    })
}

/// Refuses (406) a binding whose key is no weight.
pub(crate) fn check_binding(key: &[u8]) -> Result<(), AmqpError> {
    match weight(key) {
        Some(1..) => Ok(()),
        Some(_) => Err(AmqpError::invalid_binding("The binding key must be greater than 0")),
        None => Err(AmqpError::invalid_binding(format_args!(
            "The binding key must be an integer: <<\"{}\">>",
            Lossy(key)
        ))),
    }
}

fn weight(key: &[u8]) -> Option<i64> {
    std::str::from_utf8(key).ok()?.parse().ok()
}

/// Numbers of all widths hash alike, so that clients in different languages agree.
fn header_hash(value: Option<Value<'_>>) -> u64 {
    match value {
        None => fnv_1a(b""),
        Some(Value::LongStr(bytes) | Value::Bytes(bytes)) => fnv_1a(bytes),
        Some(other) => fnv_1a(ShownValue(other).to_string().as_bytes()),
    }
}

fn property_hash<'a>(
    by: &RoutedBy<'a>,
    of: impl FnOnce(&Properties<'a>) -> Option<&'a [u8]>,
) -> u64 {
    let properties = by.properties.map(|raw| raw.parse());
    fnv_1a(properties.as_ref().and_then(of).unwrap_or_default())
}

/// FNV-1a, 64 bits: the same on every machine and in every version.
fn fnv_1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood, 2014): spreads each bit over all.
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use forebay_wire::{RawProperties, ShortStr, TableBuf};

    use super::super::destination::QueueKey;
    use super::*;

    fn exchange(arguments: &TableBuf, members: &[(u32, &str)]) -> ConsistentHash {
        let mut exchange = ConsistentHash::new(arguments.as_table());
        for &(queue, weight) in members {
            let name = format!("part-{queue}");
            let destination = Destination::Queue(QueueKey(queue));
            exchange.add(BindingKey(queue), weight.as_bytes(), destination, name.as_bytes());
        }
        exchange
    }

    fn route(exchange: &ConsistentHash, key: &str, by: impl Into<RoutedBy<'static>>) -> u32 {
        let mut found = Vec::new();
        exchange.route(key.as_bytes(), &by.into(), |destination| found.push(destination));
        match found[..] {
            [Destination::Queue(QueueKey(queue))] => queue,
            _ => panic!("one queue: {found:?}"),
        }
    }

    fn keys() -> impl Iterator<Item = String> {
        (0..20_000).map(|number| format!("customer {number}"))
    }

    fn by_key(exchange: &ConsistentHash, key: &str) -> u32 {
        route(exchange, key, Table::default())
    }

    #[test]
    fn keys_spread_by_weight() {
        let members = [(0, "1"), (1, "1"), (2, "2"), (3, "4")];
        let exchange = exchange(&TableBuf::new(), &members);
        let mut sizes = [0_f64; 4];
        keys().for_each(|key| sizes[by_key(&exchange, &key) as usize] += 1.0);
        for (size, share) in sizes.into_iter().zip([1.0, 1.0, 2.0, 4.0]) {
            let due = 20_000.0 * share / 8.0;
            assert!((size - due).abs() < due * 0.1, "{sizes:?}");
        }
    }

    #[test]
    fn a_new_queue_takes_keys_and_moves_none_between_the_others() {
        let before = exchange(&TableBuf::new(), &[(0, "10"), (1, "10"), (2, "10")]);
        let mut after = exchange(&TableBuf::new(), &[(3, "10"), (2, "10"), (0, "10"), (1, "10")]);
        let mut moved = 0;
        for key in keys() {
            let (from, to) = (by_key(&before, &key), by_key(&after, &key));
            assert!(from == to || to == 3);
            moved += u32::from(from != to);
        }
        assert!((4500..5500).contains(&moved), "a quarter of the keys: {moved}");
        after.remove(BindingKey(3));
        assert!(keys().all(|key| by_key(&before, &key) == by_key(&after, &key)));
    }

    #[test]
    fn what_is_hashed_may_be_a_header_or_a_property() {
        let members = [(0, "1"), (1, "1"), (2, "1"), (3, "1")];
        let plain = exchange(&TableBuf::new(), &members);
        assert!(!plain.looks_beyond_the_key());

        let argument =
            |name, value: &'static [u8]| TableBuf::new().with(name, Value::LongStr(value));
        let by_header = exchange(&argument(HASH_HEADER, b"who"), &members);
        assert!(by_header.looks_beyond_the_key());
        for (text, value) in
            [("x7", Value::LongStr(b"x7")), ("7", Value::I8(7)), ("7", Value::I64(7))]
        {
            let headers = Box::leak(Box::new(TableBuf::new().with("who", value))).as_table();
            assert_eq!(route(&by_header, "any", headers), by_key(&plain, text));
        }
        assert_eq!(route(&by_header, "any", Table::default()), by_key(&plain, ""), "absent: empty");

        let properties = Properties {
            correlation_id: ShortStr::new(b"c"),
            message_id: ShortStr::new(b"m"),
            timestamp: Some(77),
            ..Default::default()
        };
        let mut bytes = Vec::new();
        properties.encode(&mut bytes);
        let raw = RawProperties::trusted(Vec::leak(bytes));
        for (property, text) in
            [(&b"correlation_id"[..], "c"), (b"message_id", "m"), (b"timestamp", "77")]
        {
            let exchange = exchange(&argument(HASH_PROPERTY, property), &members);
            assert_eq!(route(&exchange, "any", raw), by_key(&plain, text));
            assert_eq!(route(&exchange, "any", Table::default()), by_key(&plain, ""));
        }
    }

    #[test]
    fn what_cannot_be_is_refused_with_rabbitmqs_words() {
        let resource = Resource::exchange(b"x", "/");
        let text = |outcome: Result<(), AmqpError>| outcome.unwrap_err().reply_text().to_owned();
        assert_eq!(check_binding(b"1"), Ok(()));
        assert!(text(check_binding(b"0")).ends_with("The binding key must be greater than 0"));
        assert!(text(check_binding(b"k")).ends_with("must be an integer: <<\"k\">>"));
        let header = TableBuf::new().with(HASH_HEADER, Value::LongStr(b"h"));
        assert_eq!(check_arguments(resource, header.as_table()), Ok(()));
        let both = header.with(HASH_PROPERTY, Value::LongStr(b"message_id"));
        assert!(text(check_arguments(resource, both.as_table())).ends_with("mutually exclusive"));
        for value in [Value::LongStr(b"app_id"), Value::I32(1)] {
            let arguments = TableBuf::new().with(HASH_PROPERTY, value);
            assert!(check_arguments(resource, arguments.as_table()).is_err());
        }
    }

    #[test]
    fn without_bindings_nothing_is_found() {
        let none = exchange(&TableBuf::new(), &[]);
        none.route(b"key", &Table::default().into(), |_| panic!("nothing is bound"));
    }
}
