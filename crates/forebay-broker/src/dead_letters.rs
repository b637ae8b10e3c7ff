//! Where messages go that were rejected, have expired or were too many (`x-dead-letter-exchange`), and what is written on them.
//!
//! ```text
//!   routing keys    the queue's x-dead-letter-routing-key, and then without CC; else those it was published with
//!   x-death         array of tables, the newest first, one for each queue and reason:
//!                   count, exchange, original-expiration, queue, reason, routing-keys, time (of the first)
//!   x-first-death-exchange, -queue, -reason     of the first of all
//!   x-last-death-exchange, -queue, -reason      of this one (RabbitMQ's since 3.13)
//!   expiration      taken out: it stays where it goes
//! ```
//! As RabbitMQ 3.x does it. A message that would come back into a queue which it has been in, and that nobody has rejected on the way,
//! would go round for ever: it is dropped.

use forebay_wire::{Array, ArrayBuf, Properties, RawProperties, Table, TableBuf, Value};

use crate::message::Message;
use crate::topology::extra_routing_keys;

/// The argument that names the exchange.
pub(crate) const EXCHANGE_ARGUMENT: &str = "x-dead-letter-exchange";
/// The argument that replaces the routing key.
pub(crate) const ROUTING_KEY_ARGUMENT: &str = "x-dead-letter-routing-key";

const DEATHS: &str = "x-death";
const LAST_DEATH: [&str; 3] =
    ["x-last-death-exchange", "x-last-death-queue", "x-last-death-reason"];

/// Why a message left its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// A consumer would not have it: `basic.reject` or `basic.nack` without `requeue`.
    Rejected,
    /// Its time, or its queue's, was over.
    Expired,
    /// Its queue was longer than it may be.
    MaxLength,
}

impl Reason {
    const fn name(self) -> &'static [u8] {
        match self {
            Reason::Rejected => b"rejected",
            Reason::Expired => b"expired",
            Reason::MaxLength => b"maxlen",
        }
    }
}

/// Of exchanges and of routing keys.
const NAME_MAX_BYTES: usize = 255;

/// What a queue does with its dead letters.
#[derive(Debug, Clone)]
pub(crate) struct DeadLetters {
    exchange: Box<[u8]>,
    routing_key: Option<Box<[u8]>>,
}

/// A message died.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Death<'a> {
    pub(crate) queue: &'a [u8],
    pub(crate) reason: Reason,
    /// Since 1970.
    pub(crate) time_s: u64,
}

impl DeadLetters {
    /// From a queue's arguments, which were checked.
    pub(crate) fn of(arguments: Table<'_>) -> Option<DeadLetters> {
        let text = |name| arguments.get(name).and_then(|value: Value<'_>| value.as_long_str());
        // A longer name is that of no exchange, and letters to what is not there are dropped.
        let exchange = text(EXCHANGE_ARGUMENT).filter(|name| name.len() <= NAME_MAX_BYTES)?.into();
        Some(DeadLetters { exchange, routing_key: text(ROUTING_KEY_ARGUMENT).map(Into::into) })
    }

    /// The message as it goes to the exchange.
    pub(crate) fn letter(&self, message: &Message, death: Death<'_>) -> Message {
        let properties = RawProperties::trusted(message.raw_properties()).parse();
        let before = properties.headers.unwrap_or_default();
        let mut headers = TableBuf::new();
        for (name, value) in before.iter() {
            let of_this = name == DEATHS || LAST_DEATH.iter().any(|last| name == *last);
            let replaced = of_this || (self.routing_key.is_some() && name == "CC");
            if !replaced {
                headers.push(name, value);
            }
        }
        let deaths = deaths(message, &properties, death);
        headers.push(DEATHS, Value::Array(deaths.as_array()));
        if before.get("x-first-death-reason").is_none() {
            headers.push("x-first-death-exchange", Value::LongStr(&message.exchange()));
            headers.push("x-first-death-queue", Value::LongStr(death.queue));
            headers.push("x-first-death-reason", Value::LongStr(death.reason.name()));
        }
        let exchange = message.exchange();
        for (name, value) in
            LAST_DEATH.into_iter().zip([&*exchange, death.queue, death.reason.name()])
        {
            headers.push(name, Value::LongStr(value));
        }
        let mut raw = Vec::new();
        Properties { headers: Some(headers.as_table()), expiration: None, ..properties }
            .encode(&mut raw);
        let key = self.routing_key.as_deref();
        let routing_key = message.routing_key();
        let key = key.unwrap_or(routing_key.as_bytes());
        let key = &key[..key.len().min(NAME_MAX_BYTES)];
        let mut bytes = Message::start(&self.exchange, key, &raw, message.body().len());
        bytes.extend_from_slice(message.body());
        Message::from_bytes(bytes)
    }
}

/// `x-death` with this one.
fn deaths(message: &Message, properties: &Properties<'_>, death: Death<'_>) -> ArrayBuf {
    let before = properties.headers.unwrap_or_default();
    let known = known_deaths(before);
    let is_this = |table: &Table<'_>| {
        table.get("queue") == Some(Value::LongStr(death.queue))
            && table.get("reason") == Some(Value::LongStr(death.reason.name()))
    };
    let mut this = TableBuf::new();
    match known.iter().find(|table| is_this(table)) {
        Some(table) => {
            for (name, value) in table.iter() {
                let count = (name == "count").then(|| value.as_i64()).flatten();
                this.push(name, count.map_or(value, |count| Value::I64(count.saturating_add(1))));
            }
        }
        None => {
            let mut keys = ArrayBuf::new();
            keys.push(Value::LongStr(&message.routing_key()));
            for key in extra_routing_keys(before).unwrap_or_default() {
                keys.push(Value::LongStr(key));
            }
            this.push("count", Value::I64(1));
            this.push("exchange", Value::LongStr(&message.exchange()));
            if let Some(expiration) = properties.expiration {
                this.push("original-expiration", Value::LongStr(&expiration));
            }
            this.push("queue", Value::LongStr(death.queue));
            this.push("reason", Value::LongStr(death.reason.name()));
            this.push("routing-keys", Value::Array(keys.as_array()));
            this.push("time", Value::Timestamp(death.time_s));
        }
    }
    let mut deaths = ArrayBuf::new().with(Value::Table(this.as_table()));
    for table in known.iter().filter(|table| !is_this(table)) {
        deaths.push(Value::Table(*table));
    }
    deaths
}

/// What is written of earlier deaths; nothing if it is not what a broker writes.
fn known_deaths(headers: Table<'_>) -> Vec<Table<'_>> {
    let Some(Value::Array(array)) = headers.get(DEATHS) else { return Vec::new() };
    tables(array).unwrap_or_default()
}

fn tables(array: Array<'_>) -> Option<Vec<Table<'_>>> {
    array
        .iter()
        .map(|value| if let Value::Table(table) = value { Some(table) } else { None })
        .collect()
}

/// Whether a letter has been in this queue before, and was rejected by nobody since.
pub(crate) fn goes_round(letter: &Message, queue: &[u8]) -> bool {
    let headers = RawProperties::trusted(letter.raw_properties()).headers().unwrap_or_default();
    let deaths = known_deaths(headers);
    let of_queue = |table: &Table<'_>| table.get("queue") == Some(Value::LongStr(queue));
    let rejected =
        |table: &Table<'_>| table.get("reason") == Some(Value::LongStr(Reason::Rejected.name()));
    match deaths.iter().position(of_queue) {
        Some(at) => !deaths[..=at].iter().any(rejected),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use forebay_wire::ShortStr;

    use super::*;

    fn arguments(routing_key: Option<&str>) -> DeadLetters {
        let mut table = TableBuf::new().with(EXCHANGE_ARGUMENT, Value::LongStr(b"dlx"));
        if let Some(key) = routing_key {
            table.push(ROUTING_KEY_ARGUMENT, Value::LongStr(key.as_bytes()));
        }
        DeadLetters::of(table.as_table()).expect("it names an exchange")
    }

    fn message(headers: &TableBuf, expiration: Option<&str>) -> Message {
        let mut raw = Vec::new();
        let expiration = expiration.and_then(|text| ShortStr::new(text.as_bytes()));
        let headers = Some(headers.as_table());
        Properties { headers, expiration, delivery_mode: Some(2), ..Properties::default() }
            .encode(&mut raw);
        let mut bytes = Message::start(b"from", b"key", &raw, 4);
        bytes.extend_from_slice(b"body");
        Message::from_bytes(bytes)
    }

    fn death(queue: &str, reason: Reason) -> Death<'_> {
        Death { queue: queue.as_bytes(), reason, time_s: 1_700_000_000 }
    }

    fn told(letter: &Message) -> String {
        let properties = RawProperties::trusted(letter.raw_properties()).parse();
        format!("{:?}", properties.headers.unwrap_or_default())
    }

    fn queues(letter: &Message) -> Vec<(String, i64)> {
        let headers = RawProperties::trusted(letter.raw_properties()).headers().unwrap_or_default();
        let text = |table: &Table<'_>, name| {
            let value = table.get(name).and_then(|value| value.as_long_str()).unwrap_or_default();
            String::from_utf8_lossy(value).into_owned()
        };
        let tell = |table: &Table<'_>| {
            let count = table.get("count").and_then(|value| value.as_i64()).unwrap_or_default();
            (text(table, "queue") + " " + &text(table, "reason"), count)
        };
        known_deaths(headers).iter().map(tell).collect()
    }

    #[test]
    fn a_letter_says_where_it_comes_from_and_stays_where_it_goes() {
        let cc = ArrayBuf::new().with(Value::LongStr(b"more"));
        let headers =
            TableBuf::new().with("mine", Value::I32(7)).with("CC", Value::Array(cc.as_array()));
        let message = message(&headers, Some("250"));
        let letter = arguments(None).letter(&message, death("q", Reason::Expired));
        let properties = RawProperties::trusted(letter.raw_properties()).parse();
        assert_eq!(properties.expiration, None);
        assert_eq!(properties.delivery_mode, Some(2));
        assert_eq!((&*letter.exchange(), &*letter.routing_key()), (&b"dlx"[..], &b"key"[..]));
        assert_eq!(letter.body(), b"body");
        let headers = properties.headers.unwrap();
        assert_eq!(headers.get("mine"), Some(Value::I32(7)));
        assert!(headers.get("CC").is_some(), "it goes on to all that it was for");
        for (name, value) in [("exchange", "from"), ("queue", "q"), ("reason", "expired")] {
            let name = format!("x-first-death-{name}");
            assert_eq!(headers.get(&name), Some(Value::LongStr(value.as_bytes())));
        }
        let deaths = known_deaths(headers);
        let [only] = &deaths[..] else { panic!("one death: {deaths:?}") };
        let names: Vec<String> = only.iter().map(|(name, _)| name.to_string()).collect();
        let wanted =
            ["count", "exchange", "original-expiration", "queue", "reason", "routing-keys", "time"];
        assert_eq!(names, wanted);
        assert_eq!(only.get("original-expiration"), Some(Value::LongStr(b"250")));
        assert_eq!(only.get("time"), Some(Value::Timestamp(1_700_000_000)));
        let Some(Value::Array(keys)) = only.get("routing-keys") else { panic!("{only:?}") };
        assert!(keys.iter().eq([Value::LongStr(b"key"), Value::LongStr(b"more")]));
    }

    #[test]
    fn the_first_death_stays_and_the_last_is_told_anew() {
        // As if it had been published with what a broker writes.
        let stale = TableBuf::new().with("x-last-death-queue", Value::LongStr(b"elsewhere"));
        let once = arguments(None).letter(&message(&stale, None), death("a", Reason::Expired));
        let twice = arguments(None).letter(&once, death("b", Reason::Rejected));
        let deaths = |letter: &Message| {
            let headers =
                RawProperties::trusted(letter.raw_properties()).headers().unwrap_or_default();
            let told = |of: &str, what: &str| {
                let name = format!("x-{of}-death-{what}");
                assert_eq!(
                    headers.iter().filter(|(other, _)| *other == *name).count(),
                    1,
                    "{name}"
                );
                let value = headers.get(&name).and_then(|value| value.as_long_str());
                String::from_utf8_lossy(value.unwrap_or_default()).into_owned()
            };
            ["first", "last"].map(|of| ["exchange", "queue", "reason"].map(|what| told(of, what)))
        };
        let first = ["from", "a", "expired"].map(str::to_owned);
        assert_eq!(deaths(&once), [first.clone(), first.clone()]);
        assert_eq!(deaths(&twice), [first, ["dlx", "b", "rejected"].map(str::to_owned)]);
    }

    #[test]
    fn a_key_of_the_queues_own_replaces_all_others() {
        let cc = ArrayBuf::new().with(Value::LongStr(b"more"));
        let message = message(&TableBuf::new().with("CC", Value::Array(cc.as_array())), None);
        let letter = arguments(Some("dead")).letter(&message, death("q", Reason::Rejected));
        assert_eq!(&*letter.routing_key(), b"dead");
        assert!(!told(&letter).contains("\"CC\""), "{}", told(&letter));
    }

    #[test]
    fn deaths_are_counted_by_queue_and_reason_the_newest_first() {
        let mut letter = message(&TableBuf::new(), None);
        for (queue, reason) in [
            ("a", Reason::Expired),
            ("b", Reason::Rejected),
            ("a", Reason::Rejected),
            ("a", Reason::Expired),
        ] {
            letter = arguments(None).letter(&letter, death(queue, reason));
        }
        let wanted = [("a expired", 2), ("a rejected", 1), ("b rejected", 1)];
        assert_eq!(queues(&letter), wanted.map(|(of, count)| (of.to_owned(), count)));
        assert!(told(&letter).contains("x-first-death"));
    }

    #[test]
    fn what_is_no_history_is_replaced() {
        let nonsense = ArrayBuf::new().with(Value::I32(1));
        for value in [Value::LongStr(b"never"), Value::Array(nonsense.as_array())] {
            let message = message(&TableBuf::new().with(DEATHS, value), None);
            let letter = arguments(None).letter(&message, death("q", Reason::Rejected));
            assert_eq!(queues(&letter), [("q rejected".to_owned(), 1)]);
        }
    }

    #[test]
    fn a_letter_goes_round_if_nobody_rejected_it_since() {
        let dead = arguments(None);
        let once = dead.letter(&message(&TableBuf::new(), None), death("a", Reason::Expired));
        assert!(goes_round(&once, b"a") && !goes_round(&once, b"b"));
        let twice = dead.letter(&once, death("b", Reason::Expired));
        assert!(goes_round(&twice, b"a") && goes_round(&twice, b"b"));
        let rejected = dead.letter(&once, death("b", Reason::Rejected));
        assert!(!goes_round(&rejected, b"a") && !goes_round(&rejected, b"b"));
    }
}
