//! A message that waits for another attempt with its source, not in the pipeline.

use std::pin::Pin;
use std::time::Duration;

use forebay_flow::explain::Marks;

use crate::needs::Finding;

/// What was, before a message came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Past {
    /// Attempts at it, by whomever.
    pub attempts: u32,
    /// It was given out since then, and came back: requeued, or lost with a process. One whose attempts are used up begins anew, or
    /// nobody would pause between what follows.
    pub given_back: bool,
    /// It is not to be begun for so long.
    pub rest: Option<Duration>,
}

/// A message that is put off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Later {
    /// Attempts at it so far.
    pub attempts: u32,
    /// It is not to be begun for so long.
    pub pause: Duration,
    /// Its way so far, this pause included, if it is one of those that are explained.
    pub marks: Option<Marks>,
}

/// Comes out when the source has a message a second time, to be given out later, and what was given out may be acknowledged;
/// or with what is wrong. Dropped, it may have it or not.
pub type Leaving = Pin<Box<dyn Future<Output = Result<(), Finding>> + Send>>;
