//! A promise that was not kept.

use std::fmt;

/// What went wrong, in words. `rule` names the invariant and stays the same while a run is shrunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The invariant, as `docs/testing.md` lists them.
    pub rule: &'static str,
    /// What was seen.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.what)
    }
}

/// `Err` of a [`Violation`].
pub(crate) fn violation<T>(rule: &'static str, what: impl Into<String>) -> Result<T, Violation> {
    Err(Violation { rule, what: what.into() })
}
