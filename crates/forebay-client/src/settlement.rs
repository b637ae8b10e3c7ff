//! Whether what became of a message was told in time.

use std::fmt;

/// It came too late, and nothing was sent: the broker delivers the message again, here or elsewhere. Before it was settled
/// - the connection broke or was closed,
/// - the broker closed the consumer's channel,
/// - or it was in work for longer than [`ConsumerBuilder::work_limit`](crate::ConsumerBuilder::work_limit).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stale;

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "too late: the connection or channel that brought the message is gone, or it was in work for longer than it may; the \
             broker delivers it again",
        )
    }
}

impl std::error::Error for Stale {}

/// How a settlement went; most programs need not look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settlement(Result<(), Stale>);

impl Settlement {
    pub(crate) fn new(in_time: bool) -> Settlement {
        Settlement(if in_time { Ok(()) } else { Err(Stale) })
    }

    /// Whether it was in time.
    ///
    /// # Errors
    /// [`Stale`].
    pub fn in_time(self) -> Result<(), Stale> {
        self.0
    }
}
