//! Policies: what an operator says of exchanges and queues whose declarations do not say it (RabbitMQ's
//! policies).
//!
//! ```text
//!   declared with an argument? ──yes──► the argument
//!        │ no
//!   of the policies whose pattern is found in the name: the one with the highest priority
//! ```
//! A policy gives exchanges an alternate or queues a flow mode. The default exchange has none. Policies
//! come with the configuration; they are not part of a declaration, are not compared when it is
//! repeated, and are not stored.

use std::fmt;

use crate::balancing::QueueFlow;
use regex::bytes::{Regex, RegexBuilder};

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
    /// To queues.
    Flow(QueueFlow),
}

/// A pattern that cannot be compiled. It has no look-around and no back references.
#[derive(Clone, Debug)]
pub struct PolicyError {
    pattern: String,
    reason: String,
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pattern '{}' is not usable: {}", self.pattern, self.reason)
    }
}

impl std::error::Error for PolicyError {}

impl Policy {
    /// A policy that gives matching exchanges an alternate exchange, which need not exist.
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

    /// A policy that gives matching queues a flow mode.
    ///
    /// # Errors
    /// A pattern that cannot be compiled.
    pub fn of_flow(
        vhost: &str,
        pattern: &str,
        priority: i64,
        flow: QueueFlow,
    ) -> Result<Policy, PolicyError> {
        Policy::giving(vhost, pattern, priority, Gives::Flow(flow))
    }

    fn giving(
        vhost: &str,
        pattern: &str,
        priority: i64,
        gives: Gives,
    ) -> Result<Policy, PolicyError> {
        let compiled = RegexBuilder::new(pattern).size_limit(COMPILED_MAX_BYTES).build();
        let pattern = compiled.map_err(|error| PolicyError {
            pattern: pattern.to_owned(),
            // The last line says what; the lines before draw where.
            reason: error.to_string().lines().last().unwrap_or_default().to_owned(),
        })?;
        Ok(Policy { vhost: vhost.to_owned(), pattern, priority, gives })
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
        self.0.iter().find_map(|policy| match &policy.gives {
            Gives::AlternateExchange(name) if policy.pattern.is_match(exchange) => Some(&**name),
            _ => None,
        })
    }

    /// The mode of a queue without the argument.
    pub(crate) fn flow(&self, queue: &[u8]) -> QueueFlow {
        let found = self.0.iter().find_map(|policy| match policy.gives {
            Gives::Flow(flow) if policy.pattern.is_match(queue) => Some(flow),
            _ => None,
        });
        found.unwrap_or_default()
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
        ]);
        let alternate = |name: &str| {
            let found = policies.alternate_exchange(name.as_bytes());
            found.map(|name| String::from_utf8_lossy(name).into_owned())
        };
        assert_eq!(alternate("orders").as_deref(), Some("first"));
        assert_eq!(alternate("orders.eu.1").as_deref(), Some("eu"));
        assert_eq!(alternate("my-orders").as_deref(), Some("any"));
        assert_eq!(alternate(""), None, "the default exchange has no policy");
        assert_eq!(Policies::default().alternate_exchange(b"x"), None);
    }

    #[test]
    fn queues_and_exchanges_have_policies_of_their_own() {
        let flow = |pattern, priority, flow| Policy::of_flow("/", pattern, priority, flow).unwrap();
        let policies = Policies::new(vec![
            flow("", 1, QueueFlow::Balance),
            flow("^archive", 2, QueueFlow::Absorb),
            policy("^orders", 9, "lost"),
        ]);
        assert_eq!(policies.flow(b"orders"), QueueFlow::Balance);
        assert_eq!(policies.flow(b"archive.2026"), QueueFlow::Absorb);
        assert_eq!(policies.alternate_exchange(b"archive"), None);
        assert_eq!(policies.alternate_exchange(b"orders"), Some(&b"lost"[..]));
        assert_eq!(Policies::default().flow(b"orders"), QueueFlow::Absorb);
    }

    #[test]
    fn a_bad_pattern_says_which_and_why() {
        let error = Policy::new("/", "(", 0, "ae").unwrap_err().to_string();
        assert_eq!(error, "pattern '(' is not usable: error: unclosed group");
        assert!(Policy::new("/", "a{1000}{1000}{1000}", 0, "ae").is_err(), "bounded");
    }
}
