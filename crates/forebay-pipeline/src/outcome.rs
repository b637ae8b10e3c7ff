//! What becomes of a message.

use std::fmt;

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

/// What a handler may return: nothing, an [`Outcome`], or a `Result` of either. An error is a failure, and the
/// pipeline decides what follows from it.
pub trait Handled {
    /// # Errors
    /// What went wrong, for the log.
    fn handled(self) -> Result<Outcome, String>;
}

impl Handled for () {
    fn handled(self) -> Result<Outcome, String> {
        Ok(Outcome::Ack)
    }
}

impl Handled for Outcome {
    fn handled(self) -> Result<Outcome, String> {
        Ok(self)
    }
}

impl<H: Handled, E: fmt::Display> Handled for Result<H, E> {
    fn handled(self) -> Result<Outcome, String> {
        match self {
            Ok(handled) => handled.handled(),
            Err(error) => Err(error.to_string()),
        }
    }
}
