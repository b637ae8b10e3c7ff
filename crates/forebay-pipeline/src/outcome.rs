//! What becomes of a message.

use std::convert::Infallible;
use std::fmt;
use std::time::Duration;

/// What a handler decides about a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The work is done.
    Ack,
    /// The message cannot be used: its source drops it, or hands it to its dead letters.
    Reject,
    /// Back to the source, for whoever takes it next.
    Requeue,
    /// Here again after this long; until then it frees its worker and keeps the others of its key waiting. It
    /// counts as an attempt.
    Retry(Duration),
    /// To where [`Process::dead_letters`](crate::Process::dead_letters) sends it; rejected where that was not
    /// said, which a broker may take as its word to do the same.
    DeadLetter,
}

/// What a source is told about a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The work is done.
    Ack,
    /// The message cannot be used.
    Reject,
    /// The message is given back.
    Requeue,
}

/// What follows from what a handler returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step<V> {
    /// The message is settled.
    Settle(Outcome),
    /// Its value goes to a batcher; the message is settled with its batch.
    Batch {
        /// Which; `None` is for where there is but one.
        batcher: Option<&'static str>,
        /// What the batch shall have.
        value: V,
    },
}

/// What a handler may return: nothing, an [`Outcome`], a value for a batch ([`ToBatch`](crate::ToBatch)), or a
/// `Result` of one of these. An error is a failure, and the pipeline decides what follows from it.
pub trait Handled {
    /// What it may send to a batcher.
    type Value: Send;

    /// # Errors
    /// What went wrong, for the log.
    fn handled(self) -> Result<Step<Self::Value>, String>;
}

impl Handled for () {
    type Value = Infallible;

    fn handled(self) -> Result<Step<Infallible>, String> {
        Ok(Step::Settle(Outcome::Ack))
    }
}

impl Handled for Outcome {
    type Value = Infallible;

    fn handled(self) -> Result<Step<Infallible>, String> {
        Ok(Step::Settle(self))
    }
}

impl<H: Handled, E: fmt::Display> Handled for Result<H, E> {
    type Value = H::Value;

    fn handled(self) -> Result<Step<H::Value>, String> {
        match self {
            Ok(handled) => handled.handled(),
            Err(error) => Err(error.to_string()),
        }
    }
}
