//! Policies: what an operator says of exchanges and queues whose declarations do not say it (RabbitMQ's
//! policies).
//!
//! ```text
//!   of the policies whose pattern is found in the name: the one with the highest priority, all of it and nothing of the others
//!        │
//!   declared with an argument, too? ──yes──► the argument, or of two bounds (x-message-ttl, x-expires, x-max-length, x-max-length-bytes) the smaller
//!        │ no
//!   what the policy says
//! ```
//! A policy gives exchanges an alternate, or queues what arguments would give them. The default exchange has none. Policies
//! come with the configuration; they are not part of a declaration, are not compared when it is
//! repeated, and are not stored.

use std::fmt;

use forebay_wire::{Table, TableBuf, Value};
use regex::bytes::{Regex, RegexBuilder};

use super::queue_arguments::check_queue_arguments;
use super::resource::Resource;
use crate::ack_timeout::timeout_argument;
use crate::error::AmqpError;

/// What a policy may give to queues, in the words of RabbitMQ's definitions: arguments without their `x-`.
pub const QUEUE_POLICY_KEYS: [&str; 9] = [
    "consumer-timeout",
    "dead-letter-exchange",
    "dead-letter-routing-key",
    "expires",
    "flow",
    "max-length",
    "max-length-bytes",
    "message-ttl",
    "overflow",
];
/// Of these the smaller value holds, if an argument gives one, too.
const BOUNDS: [&str; 4] = ["x-expires", "x-max-length", "x-max-length-bytes", "x-message-ttl"];
/// Bound on a compiled pattern, in bytes.
const COMPILED_MAX_BYTES: usize = 1 << 20;

/// A policy of a virtual host.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Virtual host whose exchanges or queues it is for.
    pub vhost: String,
    /// Found anywhere in a name, unless it has anchors.
    pattern: Regex,
    /// Among those that match, the highest holds; among equals, the first.
    priority: i64,
    gives: Gives,
}

/// What a policy gives, and thereby to what.
#[derive(Clone, Debug)]
enum Gives {
    /// To exchanges.
    AlternateExchange(Box<[u8]>),
    /// To queues, as arguments.
    Arguments(TableBuf),
}

/// Why something is no policy.
#[derive(Clone, Debug)]
pub enum PolicyError {
    /// A pattern that cannot be compiled. It has no look-around and no back references.
    Pattern {
        /// The pattern.
        pattern: String,
        /// What is wrong about it.
        reason: String,
    },
    /// A queue cannot have this.
    Definition(String),
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PolicyError::Pattern { pattern, reason } => {
                write!(f, "pattern '{pattern}' is not usable: {reason}")
            }
            PolicyError::Definition(what) => write!(f, "its definition is not usable: {what}"),
        }
    }
}

impl std::error::Error for PolicyError {}

impl Policy {
    /// A policy that gives matching exchanges an alternate exchange, which need not exist; without a name none, so that no other
    /// policy does.
    ///
    /// # Errors
    /// A pattern that cannot be compiled.
    pub fn new(
        vhost: &str,
        pattern: &str,
        priority: i64,
        alternate_exchange: &str,
    ) -> Result<Policy, PolicyError> {
        let gives = Gives::AlternateExchange(alternate_exchange.as_bytes().into());
        Policy::giving(vhost, pattern, priority, gives)
    }

    /// A policy that gives matching queues what these of [`QUEUE_POLICY_KEYS`] say.
    ///
    /// # Errors
    /// A pattern that cannot be compiled, another key, or a value that a queue's argument could not have.
    pub fn of_queues<'a>(
        vhost: &str,
        pattern: &str,
        priority: i64,
        definition: impl IntoIterator<Item = (&'a str, Value<'a>)>,
    ) -> Result<Policy, PolicyError> {
        let mut arguments = TableBuf::new();
        for (key, value) in definition {
            if !QUEUE_POLICY_KEYS.contains(&key) {
                return Err(PolicyError::Definition(format!("queues have no `{key}`")));
            }
            arguments.push(format!("x-{key}"), value);
        }
        if let Err(error) = check_given(vhost, arguments.as_table()) {
            // A queue is told of its argument, who writes a policy of a key: the first that is wrong by itself.
            let is_wrong = |key: &str| {
                let mut alone = TableBuf::new();
                // A routing key is right only beside an exchange.
                let beside = (key == "dead-letter-routing-key").then_some("dead-letter-exchange");
                for name in beside.into_iter().chain([key]).map(|name| format!("x-{name}")) {
                    if let Some(value) = arguments.as_table().get(name.as_bytes()) {
                        alone.push(name, value);
                    }
                }
                check_given(vhost, alone.as_table()).is_err()
            };
            let what = QUEUE_POLICY_KEYS.iter().find(|key| is_wrong(key)).map_or_else(
                || error.text.to_string(),
                |key| format!("{key} must be {}", takes(key)),
            );
            return Err(PolicyError::Definition(what));
        }
        Policy::giving(vhost, pattern, priority, Gives::Arguments(arguments))
    }

    fn giving(
        vhost: &str,
        pattern: &str,
        priority: i64,
        gives: Gives,
    ) -> Result<Policy, PolicyError> {
        let compiled = RegexBuilder::new(pattern).size_limit(COMPILED_MAX_BYTES).build();
        let pattern = compiled.map_err(|error| PolicyError::Pattern {
            pattern: pattern.to_owned(),
            // The last line says what; the lines before draw where.
            reason: error.to_string().lines().last().unwrap_or_default().to_owned(),
        })?;
        Ok(Policy { vhost: vhost.to_owned(), pattern, priority, gives })
    }
}

fn check_given(vhost: &str, arguments: Table<'_>) -> Result<(), AmqpError> {
    let queue = Resource::queue(b"", vhost);
    check_queue_arguments(queue, arguments)?;
    timeout_argument(queue, arguments).map(drop)
}

/// What the value of one of [`QUEUE_POLICY_KEYS`] may be.
fn takes(key: &str) -> &'static str {
    match key {
        "overflow" => "drop-head, reject-publish or reject-publish-dlx",
        "flow" => "absorb or balance",
        "max-length" | "max-length-bytes" => "a whole number from 0",
        "message-ttl" => "a number of milliseconds from 0 to 315360000000, ten years",
        "expires" => "a number of milliseconds from 1 to 315360000000, ten years",
        "consumer-timeout" => "a number of milliseconds from 0 to 4294967295",
        "dead-letter-routing-key" => "a text, and there must be a dead-letter-exchange beside it",
        _ => "a text",
    }
}

/// The policies of one virtual host, highest priority first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Policies(Vec<Policy>);

impl Policies {
    pub(crate) fn new(mut policies: Vec<Policy>) -> Policies {
        // Stable: equals stay in their order.
        policies.sort_by_key(|policy| std::cmp::Reverse(policy.priority));
        Policies(policies)
    }

    /// What an exchange without the argument has as its alternate.
    pub(crate) fn alternate_exchange(&self, exchange: &[u8]) -> Option<&[u8]> {
        if exchange.is_empty() {
            return None;
        }
        let found = self.0.iter().find_map(|policy| match &policy.gives {
            Gives::AlternateExchange(name) if policy.pattern.is_match(exchange) => Some(&**name),
            _ => None,
        });
        found.filter(|name| !name.is_empty())
    }

    /// What holds for a queue that was declared with these arguments.
    pub(crate) fn queue_arguments(&self, queue: &[u8], declared: Table<'_>) -> TableBuf {
        let found = self.0.iter().find_map(|policy| match &policy.gives {
            Gives::Arguments(given) if policy.pattern.is_match(queue) => Some(given.as_table()),
            _ => None,
        });
        let Some(given) = found else { return declared.into() };
        let mut all = TableBuf::new();
        for (name, value) in declared.iter() {
            let bound = BOUNDS.iter().any(|bound| bound.as_bytes() == name.as_bytes());
            let other = given.get(name.as_bytes()).filter(|_| bound);
            let smaller = other.filter(|other| other.as_i64() < value.as_i64());
            all.push(name.as_bytes(), smaller.unwrap_or(value));
        }
        for (name, value) in
            given.iter().filter(|(name, _)| declared.get(name.as_bytes()).is_none())
        {
            all.push(name.as_bytes(), value);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(pattern: &str, priority: i64, alternate: &str) -> Policy {
        Policy::new("/", pattern, priority, alternate).unwrap()
    }

    #[test]
    fn the_highest_priority_that_matches_holds_and_among_equals_the_first() {
        let policies = Policies::new(vec![
            policy("", -1, "any"),
            policy("^orders", 1, "first"),
            policy("^orders", 1, "second"),
            policy("^orders\\.eu", 5, "eu"),
            policy("^orders\\.us", 5, ""),
        ]);
        let alternate = |name: &str| {
            let found = policies.alternate_exchange(name.as_bytes());
            found.map(|name| String::from_utf8_lossy(name).into_owned())
        };
        assert_eq!(alternate("orders").as_deref(), Some("first"));
        assert_eq!(alternate("orders.eu.1").as_deref(), Some("eu"));
        assert_eq!(alternate("orders.us"), None, "one that gives nothing holds, too");
        assert_eq!(alternate("my-orders").as_deref(), Some("any"));
        assert_eq!(alternate(""), None, "the default exchange has no policy");
        assert_eq!(Policies::default().alternate_exchange(b"x"), None);
    }

    fn of_queues(pattern: &str, priority: i64, definition: &[(&str, Value<'_>)]) -> Policy {
        Policy::of_queues("/", pattern, priority, definition.iter().copied()).unwrap()
    }

    #[test]
    fn queues_and_exchanges_have_policies_of_their_own() {
        let policies = Policies::new(vec![
            of_queues(
                "",
                1,
                &[("flow", Value::LongStr(b"balance")), ("max-length", Value::I32(5))],
            ),
            of_queues("^archive", 2, &[("flow", Value::LongStr(b"absorb"))]),
            policy("^orders", 9, "lost"),
        ]);
        let given =
            |name: &str| policies.queue_arguments(name.as_bytes(), TableBuf::new().as_table());
        let flow = |flow| TableBuf::new().with("x-flow", Value::LongStr(flow));
        assert_eq!(given("orders"), flow(b"balance").with("x-max-length", Value::I32(5)));
        assert_eq!(given("archive.2026"), flow(b"absorb"), "all of one, and nothing of others");
        assert_eq!(policies.alternate_exchange(b"archive"), None);
        assert_eq!(policies.alternate_exchange(b"orders"), Some(&b"lost"[..]));
    }

    #[test]
    fn an_argument_goes_before_a_policy_and_of_two_bounds_the_smaller_holds() {
        let dead = |name| Value::LongStr(name);
        let policies = Policies::new(vec![of_queues(
            "",
            0,
            &[
                ("message-ttl", Value::I32(1_000)),
                ("expires", Value::I32(9_000)),
                ("max-length-bytes", Value::I32(100)),
                ("dead-letter-exchange", dead(b"theirs")),
                ("overflow", dead(b"reject-publish")),
            ],
        )]);
        let declared = TableBuf::new()
            .with("x-message-ttl", Value::I32(2_000))
            .with("x-expires", Value::U8(7))
            .with("x-max-length-bytes", Value::I32(101))
            .with("x-dead-letter-exchange", dead(b"mine"))
            .with("x-other", Value::Void);
        let all = policies.queue_arguments(b"q", declared.as_table());
        let expected = TableBuf::new()
            .with("x-message-ttl", Value::I32(1_000))
            .with("x-expires", Value::U8(7))
            .with("x-max-length-bytes", Value::I32(100))
            .with("x-dead-letter-exchange", dead(b"mine"))
            .with("x-other", Value::Void)
            .with("x-overflow", dead(b"reject-publish"));
        assert_eq!(all, expected);
        let none = Policies::default().queue_arguments(b"q", declared.as_table());
        assert_eq!(none, declared);
    }

    #[test]
    fn what_a_queue_cannot_have_is_no_policy() {
        for (key, value, part) in [
            ("max-length", Value::I32(-1), "max-length must be a whole number from 0"),
            (
                "overflow",
                Value::LongStr(b"swing"),
                "overflow must be drop-head, reject-publish or reject-publish-dlx",
            ),
            ("max-length-bytes", Value::Bool(true), "max-length-bytes must be"),
            ("max-priority", Value::I32(5), "queues have no `max-priority`"),
        ] {
            let error = Policy::of_queues("/", "", 0, [(key, value)]).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_bad_pattern_says_which_and_why() {
        let error = Policy::new("/", "(", 0, "ae").unwrap_err().to_string();
        assert_eq!(error, "pattern '(' is not usable: error: unclosed group");
        assert!(Policy::new("/", "a{1000}{1000}{1000}", 0, "ae").is_err(), "bounded");
    }
}
