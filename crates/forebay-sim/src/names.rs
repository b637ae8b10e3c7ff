//! The names that a simulated world knows. Few, so that clients meet.

/// A queue, exchange, key or consumer tag.
pub(crate) type Name = &'static str;

/// The default exchange.
pub(crate) const DEFAULT: Name = "";
/// Durable exchanges of every world; `DIRECT` has `ALTERNATE` as its alternate exchange, and `FANOUT` is
/// bound to `TOPIC`.
pub(crate) const DIRECT: Name = "e.direct";
/// See [`DIRECT`].
pub(crate) const TOPIC: Name = "e.topic";
/// See [`DIRECT`].
pub(crate) const FANOUT: Name = "e.fanout";
/// See [`DIRECT`].
pub(crate) const ALTERNATE: Name = "e.alternate";
/// Those of every world.
pub(crate) const BASE_EXCHANGES: [Name; 4] = [DIRECT, TOPIC, FANOUT, ALTERNATE];
/// Exchanges that come and go.
pub(crate) const PASSING_EXCHANGES: [Name; 2] = ["p.fanout", "p.topic"];
/// An exchange that is never there.
pub(crate) const MISSING: Name = "missing";

/// Durable queues of every world.
pub(crate) const DURABLE_QUEUES: [Name; 4] = ["d0", "d1", "d2", "d3"];
/// Queues whose dead messages go to another, by a policy, where there are any: one that only its consumers make die, one with
/// too many, and one whose messages expire.
pub(crate) const LETTERS_FROM: [Name; 3] = ["d0", "d1", "d3"];
/// That one.
pub(crate) const LETTERS_TO: Name = "d2";
/// Queues with priorities, where there are any: of each kind one.
pub(crate) const PRIORITIZED: [Name; 4] = ["d0", "d3", "t0", "p0"];
/// Their highest one.
pub(crate) const PRIORITY_MAX: u8 = 3;
/// Queues of which one consumer at a time gets messages, where there are any: of each kind one.
pub(crate) const SINGLE_ACTIVE: [Name; 3] = ["d0", "t1", "p1"];
/// Priorities of consumers, where they have some.
pub(crate) const CONSUMER_PRIORITIES: [i16; 5] = [-5, 0, 0, 10, 300];
/// Queues in which no more than so many messages wait, where there are any: of each kind one.
pub(crate) const LIMITED: [Name; 3] = ["d1", "t1", "p1"];
/// So many.
pub(crate) const LIMIT_MESSAGES: u64 = 7;
/// Queues in which the bodies that wait have no more than so many bytes, where there are any: of each kind one, and one that letters
/// come from.
pub(crate) const LIMITED_BYTES: [Name; 4] = ["d1", "d3", "t0", "p0"];
/// Queues whose messages expire, where there are any: of each kind one, the one of dead letters, and one that they come from.
pub(crate) const EXPIRING: [Name; 4] = ["d2", "d3", "t0", "p2"];
/// Queues that go when nobody uses them, where there are any: of each kind one, and one that letters come from.
pub(crate) const UNUSED_GO: [Name; 5] = ["d1", "t1", "p0", "p1", "x0"];
/// Times of their own that messages have, where some have one, in milliseconds as it is said.
pub(crate) const EXPIRATIONS: [Name; 5] = ["0", "2", "20", "200", "60000"];
/// Transient queues of every world.
pub(crate) const TRANSIENT_QUEUES: [Name; 2] = ["t0", "t1"];
/// Durable queues that come and go.
pub(crate) const PASSING_QUEUES: [Name; 3] = ["p0", "p1", "p2"];
/// Exclusive queues, by client.
pub(crate) const EXCLUSIVE_QUEUES: [Name; 8] = ["x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7"];

/// Routing keys; the names of queues are keys as well.
pub(crate) const KEYS: [Name; 6] = ["a.b", "a.c", "x.b", "a", "zz", ""];
/// Who consumes this gets replies, and what is published with it as `reply-to` is told a name that begins so.
pub(crate) const REPLY_TO: Name = "amq.rabbitmq.reply-to";
/// The tag of who consumes that.
pub(crate) const REPLY_TAG: Name = TAGS[0];
/// Keys that messages name beside their own, in `CC` and `BCC`.
pub(crate) const EXTRA_KEYS: [Name; 6] = ["d0", "d1", "t1", "p1", "a.b", "zz"];
/// Binding keys of topic exchanges.
pub(crate) const PATTERNS: [Name; 6] = ["a.*", "#.b", "a.b", "#", "*.*", "a.#"];

/// Consumer tags.
pub(crate) const TAGS: [Name; 5] = ["c0", "c1", "c2", "c3", "c4"];
/// The tag of consumers that cannot be.
pub(crate) const WRONG_TAG: Name = "wrong";

/// The known name with these bytes.
pub(crate) fn known(bytes: &[u8]) -> Option<Name> {
    let tables: [&[Name]; 8] = [
        &[DEFAULT, DIRECT, TOPIC, FANOUT, ALTERNATE, MISSING],
        &PASSING_EXCHANGES,
        &DURABLE_QUEUES,
        &TRANSIENT_QUEUES,
        &PASSING_QUEUES,
        &EXCLUSIVE_QUEUES,
        &KEYS,
        &TAGS,
    ];
    tables.into_iter().flatten().copied().find(|name| name.as_bytes() == bytes)
}
