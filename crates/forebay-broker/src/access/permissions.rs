//! What a user may do in a virtual host: three regular expressions over names (RabbitMQ's model).
//!
//! | access | needed for |
//! |---|---|
//! | configure | declaring and deleting |
//! | write | publishing to an exchange; being the destination of a binding |
//! | read | consuming, getting, purging; being the source of a binding |
//!
//! An expression matches anywhere in the name unless it has anchors: `jobs` allows `my-jobs-2`. The
//! empty expression allows the empty name only, so nothing. The default exchange, which has no
//! name, counts as `amq.default`.

use std::fmt;

use regex::bytes::{Regex, RegexBuilder};

use super::topics::TopicPermissions;
use crate::error::AmqpError;
use crate::topology::{Resource, ResourceKind};

/// Bound on a compiled expression, in bytes.
const COMPILED_MAX_BYTES: usize = 1 << 20;

/// A kind of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Declare, delete.
    Configure,
    /// Publish, bind to.
    Write,
    /// Consume, get, purge, bind from.
    Read,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Access::Configure => "configure",
            Access::Write => "write",
            Access::Read => "read",
        })
    }
}

/// An expression over names, compiled.
#[derive(Clone, Debug)]
pub struct Pattern {
    source: String,
    /// `None` for expressions that match every name.
    regex: Option<Regex>,
}

/// An expression that cannot be compiled. Unlike RabbitMQ's, expressions have no look-around and no
/// back references.
#[derive(Clone, Debug)]
pub struct PatternError {
    pattern: String,
    reason: String,
}

impl fmt::Display for PatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "permission pattern '{}' is not usable: {}", self.pattern, self.reason)
    }
}

impl std::error::Error for PatternError {}

impl Pattern {
    /// Compiles an expression.
    pub fn new(source: &str) -> Result<Self, PatternError> {
        let regex = match source {
            ".*" | "^.*$" | "^.*" | ".*$" => None,
            "" => Some("^$"),
            other => Some(other),
        }
        .map(|regex| {
            RegexBuilder::new(regex).size_limit(COMPILED_MAX_BYTES).build().map_err(|error| {
                PatternError {
                    pattern: source.to_owned(),
                    // The last line says what; the lines before draw where.
                    reason: error.to_string().lines().last().unwrap_or_default().to_owned(),
                }
            })
        })
        .transpose()?;
        Ok(Pattern { source: source.to_owned(), regex })
    }

    /// The expression that matches every name.
    pub fn all() -> Self {
        Pattern { source: ".*".to_owned(), regex: None }
    }

    /// Whether the name is allowed.
    pub fn allows(&self, name: &[u8]) -> bool {
        self.regex.as_ref().is_none_or(|regex| regex.is_match(name))
    }

    /// The expression as given.
    pub fn as_str(&self) -> &str {
        &self.source
    }
}

/// What a user may do in one virtual host.
#[derive(Clone, Debug)]
pub struct Permissions {
    /// Names that may be declared and deleted.
    pub configure: Pattern,
    /// Names that may be published and bound to.
    pub write: Pattern,
    /// Names that may be consumed and bound from.
    pub read: Pattern,
    /// Routing keys that may be used at topic exchanges.
    pub topics: TopicPermissions,
}

impl Permissions {
    /// Compiles the three expressions.
    pub fn new(configure: &str, write: &str, read: &str) -> Result<Self, PatternError> {
        Ok(Permissions {
            configure: Pattern::new(configure)?,
            write: Pattern::new(write)?,
            read: Pattern::new(read)?,
            topics: TopicPermissions::default(),
        })
    }

    /// Everything.
    pub fn all() -> Self {
        Permissions {
            configure: Pattern::all(),
            write: Pattern::all(),
            read: Pattern::all(),
            topics: TopicPermissions::default(),
        }
    }

    /// Whether this access to the resource is allowed.
    pub fn allow(&self, access: Access, resource: Resource<'_>) -> bool {
        let pattern = match access {
            Access::Configure => &self.configure,
            Access::Write => &self.write,
            Access::Read => &self.read,
        };
        pattern.allows(checked_name(resource))
    }

    /// Refuses (403) what is not allowed to `user`.
    pub fn check(
        &self,
        access: Access,
        resource: Resource<'_>,
        user: impl fmt::Display,
    ) -> Result<(), AmqpError> {
        if self.allow(access, resource) {
            return Ok(());
        }
        let shown = Resource { name: checked_name(resource), ..resource };
        Err(AmqpError::access_refused(access, shown, user))
    }
}

/// The name that expressions see.
fn checked_name(resource: Resource<'_>) -> &[u8] {
    if resource.kind == ResourceKind::Exchange && resource.name.is_empty() {
        b"amq.default"
    } else {
        resource.name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(pattern: &str, name: &str) -> bool {
        Pattern::new(pattern).unwrap().allows(name.as_bytes())
    }

    #[test]
    fn expressions_match_anywhere_unless_anchored() {
        assert!(allows("jobs", "my-jobs-2"));
        assert!(!allows("^jobs$", "my-jobs-2"));
        assert!(allows("^jobs$", "jobs"));
        assert!(allows("^(amq\\.gen.*|jobs)$", "amq.gen-x"));
        assert!(allows(".*", ""));
    }

    #[test]
    fn the_empty_expression_allows_nothing_that_has_a_name() {
        assert!(!allows("", "q"));
        assert!(allows("", ""));
    }

    #[test]
    fn names_need_not_be_text() {
        assert!(Pattern::new("^q").unwrap().allows(b"q\xff"));
        assert!(Pattern::all().allows(b"\xff"));
    }

    #[test]
    fn a_bad_expression_says_which_and_why() {
        let error = Pattern::new("(").unwrap_err().to_string();
        assert_eq!(error, "permission pattern '(' is not usable: error: unclosed group");
        assert!(Pattern::new("(?=a)").is_err());
        assert!(Pattern::new("a{1000}{1000}{1000}").is_err(), "bounded");
    }

    #[test]
    fn refusals_name_access_resource_and_user() {
        let permissions = Permissions::new("^mine", ".*", "").unwrap();
        let queue = Resource::queue(b"q", "/");
        let refused = |access| permissions.check(access, queue, "u").map_err(|error| error.text);
        assert_eq!(
            refused(Access::Configure).unwrap_err(),
            "configure access to queue 'q' in vhost '/' refused for user 'u'"
        );
        assert_eq!(refused(Access::Write), Ok(()));
        assert_eq!(
            refused(Access::Read).unwrap_err(),
            "read access to queue 'q' in vhost '/' refused for user 'u'"
        );
        let mine = Resource::exchange(b"mine", "/");
        assert_eq!(permissions.check(Access::Configure, mine, "u"), Ok(()));
    }

    #[test]
    fn the_default_exchange_is_checked_by_a_name() {
        let only_default = Permissions::new("", "^amq\\.default$", "").unwrap();
        let default_exchange = Resource::exchange(b"", "/");
        assert!(only_default.allow(Access::Write, default_exchange));
        assert!(!only_default.allow(Access::Read, default_exchange));
        assert_eq!(
            only_default.check(Access::Read, default_exchange, "u").unwrap_err().text,
            "read access to exchange 'amq.default' in vhost '/' refused for user 'u'"
        );
    }
}
