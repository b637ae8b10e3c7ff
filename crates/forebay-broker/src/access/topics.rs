//! What a user may do with routing keys at topic exchanges (RabbitMQ's topic permissions).
//!
//! They come on top of the permissions by name, and count at topic exchanges only: `write` is matched
//! with the keys of a publish, `read` with the key of a binding. An exchange without an entry is not
//! limited by them. In a pattern `{username}` and `{vhost}` stand for what the connection has.

use std::fmt;

use super::permissions::{Access, Pattern, PatternError};
use crate::error::AmqpError;
use crate::topology::Resource;

/// Patterns over routing keys, per topic exchange; for one user in one virtual host.
#[derive(Clone, Debug, Default)]
pub struct TopicPermissions {
    exchanges: Vec<(Box<[u8]>, Keys)>,
}

#[derive(Clone, Debug)]
struct Keys {
    write: Pattern,
    read: Pattern,
}

impl TopicPermissions {
    /// Limits the keys of an exchange, for a user of this name in a virtual host of this name.
    ///
    /// # Errors
    /// A pattern that cannot be compiled.
    pub fn limit(
        &mut self,
        exchange: &str,
        (write, read): (&str, &str),
        user: &str,
        vhost: &str,
    ) -> Result<(), PatternError> {
        let pattern = |source: &str| Pattern::new(&expanded(source, user, vhost));
        let keys = Keys { write: pattern(write)?, read: pattern(read)? };
        self.exchanges.retain(|(name, _)| **name != *exchange.as_bytes());
        self.exchanges.push((exchange.as_bytes().into(), keys));
        Ok(())
    }

    /// Whether nothing is limited.
    pub fn is_empty(&self) -> bool {
        self.exchanges.is_empty()
    }

    /// Refuses (403) a routing key that `user` may not use at this topic exchange.
    ///
    /// # Errors
    /// The refusal.
    pub fn check(
        &self,
        access: Access,
        exchange: Resource<'_>,
        routing_key: &[u8],
        user: impl fmt::Display,
    ) -> Result<(), AmqpError> {
        let Some((_, keys)) = self.exchanges.iter().find(|(name, _)| **name == *exchange.name)
        else {
            return Ok(());
        };
        let pattern = match access {
            Access::Write => &keys.write,
            Access::Read => &keys.read,
            Access::Configure => return Ok(()),
        };
        if pattern.allows(routing_key) {
            return Ok(());
        }
        Err(AmqpError::topic_refused(access, routing_key, exchange, user))
    }
}

/// The pattern with the names put in, each as the text it is: a dot in a name is only a dot.
fn expanded(pattern: &str, user: &str, vhost: &str) -> String {
    pattern
        .split("{username}")
        .map(|part| part.replace("{vhost}", &regex::escape(vhost)))
        .collect::<Vec<_>>()
        .join(&regex::escape(user))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENTS: Resource<'static> = Resource::exchange(b"events", "/");

    fn topics(write: &str, read: &str) -> TopicPermissions {
        let mut topics = TopicPermissions::default();
        topics.limit("events", (write, read), "a.b", "/").unwrap();
        topics
    }

    #[test]
    fn keys_are_matched_per_access_and_exchange() {
        let topics = topics("^in\\.", "^out\\.");
        assert_eq!(topics.check(Access::Write, EVENTS, b"in.1", "a.b"), Ok(()));
        assert_eq!(topics.check(Access::Read, EVENTS, b"out.#", "a.b"), Ok(()));
        assert_eq!(topics.check(Access::Configure, EVENTS, b"x", "a.b"), Ok(()));
        assert_eq!(
            topics.check(Access::Write, EVENTS, b"out.1", "a.b").unwrap_err().reply_text(),
            "ACCESS_REFUSED - write access to topic 'out.1' in exchange 'events' in vhost '/' \
             refused for user 'a.b'"
        );
        let other = Resource::exchange(b"others", "/");
        assert_eq!(topics.check(Access::Write, other, b"out.1", "a.b"), Ok(()));
    }

    #[test]
    fn names_are_put_in_as_text() {
        let topics = topics("^{username}\\.", "^{vhost}{username}$");
        assert_eq!(topics.check(Access::Write, EVENTS, b"a.b.c", "a.b"), Ok(()));
        assert!(topics.check(Access::Write, EVENTS, b"axb.c", "a.b").is_err());
        assert_eq!(topics.check(Access::Read, EVENTS, b"/a.b", "a.b"), Ok(()));
        assert_eq!(expanded("{username}{vhost}", "{vhost}", "v"), "\\{vhost\\}v");
    }

    #[test]
    fn the_empty_pattern_allows_the_empty_key_only() {
        let topics = topics("", "");
        assert_eq!(topics.check(Access::Write, EVENTS, b"", "a.b"), Ok(()));
        assert!(topics.check(Access::Write, EVENTS, b"k", "a.b").is_err());
    }

    #[test]
    fn the_last_entry_of_an_exchange_holds_and_a_bad_pattern_is_refused() {
        let mut topics = topics("^in$", "");
        topics.limit("events", ("^out$", ""), "a.b", "/").unwrap();
        assert!(topics.check(Access::Write, EVENTS, b"in", "a.b").is_err());
        assert!(topics.limit("events", ("(", ""), "a.b", "/").is_err());
        assert!(!topics.is_empty() && TopicPermissions::default().is_empty());
    }
}
