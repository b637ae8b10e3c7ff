//! What is not begun because it comes again, told together: a lost connection may have brought thousands.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// From the first to when they are told.
const GATHERING: Duration = Duration::from_secs(1);

/// Of one stage.
#[derive(Debug, Default)]
pub(crate) struct LetGo(Mutex<Untold>);

#[derive(Debug, Default)]
struct Untold {
    messages: u64,
    due: Option<Instant>,
}

impl LetGo {
    /// One more. True: it is the first that is to be told.
    pub(crate) fn one(&self, now: Instant) -> bool {
        let mut untold = self.untold();
        untold.messages += 1;
        let first = untold.messages == 1;
        if first {
            untold.due = now.checked_add(GATHERING);
        }
        first
    }

    /// When there is something to [`LetGo::tell`].
    pub(crate) fn due(&self) -> Option<Instant> {
        self.untold().due
    }

    /// Warns of all since the last time, and how many these are.
    pub(crate) fn tell(&self) -> u64 {
        let Untold { messages, .. } = std::mem::take(&mut *self.untold());
        if messages > 0 {
            warn(messages);
        }
        messages
    }

    fn untold(&self) -> MutexGuard<'_, Untold> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// So many are not begun.
pub(crate) fn warn(messages: u64) {
    tracing::warn!(
        messages,
        "messages that waited here are back in their source, and are not begun: they come again"
    );
}

impl Drop for LetGo {
    fn drop(&mut self) {
        self.tell();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_of_a_second_are_told_together() {
        let (let_go, now) = (LetGo::default(), Instant::now());
        assert_eq!((let_go.due(), let_go.tell()), (None, 0));
        for round in 1..3 {
            assert!(let_go.one(now), "somebody has to know when they are due");
            assert!(!let_go.one(now + GATHERING / 2) && !let_go.one(now + GATHERING / 2));
            assert_eq!(let_go.due(), Some(now + GATHERING), "round {round}");
            assert_eq!(let_go.tell(), 3);
            assert_eq!((let_go.due(), let_go.tell()), (None, 0));
        }
    }
}
