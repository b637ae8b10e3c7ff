//! How a server ended, for everybody who waits for it.

use std::fmt;
use std::sync::{Condvar, Mutex, PoisonError};

/// Why a server stopped by itself; one sentence for an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFailed(pub(crate) String);

impl fmt::Display for ServerFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ServerFailed {}

/// Set once, by the shard's thread.
#[derive(Default)]
pub(crate) struct Outcome {
    ended: Mutex<Option<Result<(), ServerFailed>>>,
    changed: Condvar,
}

impl Outcome {
    /// The first outcome stays.
    pub(crate) fn set(&self, outcome: Result<(), ServerFailed>) {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(outcome);
        self.changed.notify_all();
    }

    pub(crate) fn wait(&self) -> Result<(), ServerFailed> {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(outcome) = &*ended {
                return outcome.clone();
            }
            ended = self.changed.wait(ended).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
