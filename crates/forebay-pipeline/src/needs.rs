//! What a pipeline needs of its source, and what the source finds wrong with it.

use std::fmt;
use std::time::Duration;

use crate::backoff::Backoff;

/// What a pipeline asks of its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Needs {
    /// Messages in work at a time, now.
    pub workers: usize,
    /// Messages that may be unsettled at a time: in work, in batches, waiting for one of their key.
    pub held_messages: usize,
    /// Messages beside those that may be put off for another attempt.
    pub put_off_messages: usize,
    /// Messages of a key stay in their order, so that none is put off elsewhere.
    pub ordered: bool,
    /// Messages in the largest batch, where there are batches.
    pub batch_messages: Option<usize>,
    /// The longest that a batch waits to be full.
    pub batch_delay: Option<Duration>,
    /// The longest that an attempt may take, if that is limited.
    pub timeout: Option<Duration>,
    /// The longest that all pauses before a message's retries may take together, if it is retried.
    pub retry_pauses: Option<Duration>,
    /// How a message is retried, if it is.
    pub retries: Option<Backoff>,
    /// For how long the oldest message is unsettled, at half of what the source allows
    /// ([`Source::ack_timeout`](crate::Source::ack_timeout)).
    pub oldest: Option<Duration>,
    /// It wants to know when messages passed the points of their way.
    pub marks: bool,
}

/// Something about a set-up that costs time or messages, found before it does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What it is called, for searching: words with hyphens.
    pub name: &'static str,
    /// A sentence with the numbers, and what to change.
    pub says: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.says)
    }
}
