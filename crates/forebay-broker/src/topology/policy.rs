//! Policies: what an operator says of exchanges whose declarations do not say it (RabbitMQ's policies).
//!
//! ```text
//!   declared with an argument? ──yes──► the argument
//!        │ no
//!   of the policies whose pattern is found in the name: the one with the highest priority
//! ```
//! One policy holds for an exchange, never a mixture of two. The default exchange has none. Policies
//! come with the configuration; they are not part of a declaration, are not compared when it is
//! repeated, and are not stored.

use std::fmt;

use regex::bytes::{Regex, RegexBuilder};

/// Bound on a compiled pattern, in bytes.
const COMPILED_MAX_BYTES: usize = 1 << 20;

/// A policy of a virtual host.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Virtual host whose exchanges it is for.
    pub vhost: String,
    /// Found anywhere in an exchange's name, unless it has anchors.
    pattern: Regex,
    /// Among those that match, the highest holds; among equals, the first.
    priority: i64,
    alternate_exchange: Box<[u8]>,
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
        let compiled = RegexBuilder::new(pattern).size_limit(COMPILED_MAX_BYTES).build();
        let pattern = compiled.map_err(|error| PolicyError {
            pattern: pattern.to_owned(),
            // The last line says what; the lines before draw where.
            reason: error.to_string().lines().last().unwrap_or_default().to_owned(),
        })?;
        let alternate_exchange = alternate_exchange.as_bytes().into();
        Ok(Policy { vhost: vhost.to_owned(), pattern, priority, alternate_exchange })
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
        let holds = self.0.iter().find(|policy| policy.pattern.is_match(exchange))?;
        Some(&holds.alternate_exchange)
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
    fn a_bad_pattern_says_which_and_why() {
        let error = Policy::new("/", "(", 0, "ae").unwrap_err().to_string();
        assert_eq!(error, "pattern '(' is not usable: error: unclosed group");
        assert!(Policy::new("/", "a{1000}{1000}{1000}", 0, "ae").is_err(), "bounded");
    }
}
