//! What a message did before a mark beside what the mark's wait is named for.
//!
//! A message that fails is tried again, after a pause, and while a circuit breaker is open nothing begins. Such times are not
//! between two marks, for they come several times and in between: they are added up, and taken out of the wait for the mark.
//!
//! ```text
//!   Delivered ─buffer─ attempt ─pause─ buffer ─ attempt ─pause─ buffer ─ Taken ─handler─ Handled
//!                      └ Attempts: the sum of both ┘ └ Pauses: likewise; what is left of the wait is the buffer's
//! ```

use super::Mark;

/// See the module's documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Detour {
    /// Nothing was begun, because a circuit breaker was open; here or in the queue.
    Breaker,
    /// Attempts that failed, or asked for another.
    Attempts,
    /// Pauses before another.
    Pauses,
    /// The same of its batch.
    BatchAttempts,
    /// The same of its batch.
    BatchPauses,
    /// What was made of it is in another pipeline, and it is settled when that is done.
    Next,
}

/// All of them, in their order.
pub const DETOURS: [Detour; 6] = [
    Detour::Breaker,
    Detour::Attempts,
    Detour::Pauses,
    Detour::BatchAttempts,
    Detour::BatchPauses,
    Detour::Next,
];

impl Detour {
    /// The mark whose wait it is taken out of.
    #[must_use]
    pub fn before(self) -> Mark {
        match self {
            Detour::Breaker | Detour::Attempts | Detour::Pauses => Mark::Taken,
            Detour::BatchAttempts | Detour::BatchPauses => Mark::Begun,
            Detour::Next => Mark::Settled,
        }
    }

    /// Where it may begin.
    pub(super) fn after(self) -> Mark {
        match self {
            Detour::Breaker => Mark::Received,
            Detour::Attempts | Detour::Pauses => Mark::Delivered,
            Detour::BatchAttempts | Detour::BatchPauses | Detour::Next => Mark::Handled,
        }
    }

    /// Its name, for machines. Never changes.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Detour::Breaker => "breaker",
            Detour::Attempts => "attempts",
            Detour::Pauses => "pauses",
            Detour::BatchAttempts => "batch-attempts",
            Detour::BatchPauses => "batch-pauses",
            Detour::Next => "next-pipeline",
        }
    }

    /// What it is called as a segment, for people.
    pub(super) fn title(self) -> &'static str {
        match self {
            Detour::Breaker => "open circuit breaker",
            Detour::Attempts => "earlier attempts",
            Detour::Pauses => "pauses before retries",
            Detour::BatchAttempts => "earlier attempts of its batch",
            Detour::BatchPauses => "pauses before its batch's retries",
            Detour::Next => "next pipeline",
        }
    }
}
