//! How long messages are unsettled, where their source takes back what is for too long.
//!
//! Looked at eight times in that time, or ten times a second if that is less often, and told once, when half of it is over:
//! before the source acts, and late enough that work of a usual length is none of it. Without such a time nothing is kept.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Looked at no more often, however short the time.
const LOOK_MIN: Duration = Duration::from_millis(100);

/// Of all messages that have arrived and are not settled; as many as those.
#[derive(Debug, Default)]
pub(crate) struct Ages {
    watched: AtomicBool,
    inside: Mutex<Inside>,
}

#[derive(Debug, Default)]
struct Inside {
    /// What the source allows.
    limit: Option<Duration>,
    look_at: Option<Instant>,
    /// By their numbers, which is the order in which they came.
    since: BTreeMap<u64, Instant>,
}

/// Counts until it has ended, or is dropped.
#[derive(Debug)]
pub(crate) struct Age {
    ages: Arc<Ages>,
    number: u64,
}

impl Ages {
    /// The source allows so much; `None` or zero: whatever it takes.
    pub(crate) fn watch(&self, limit: Option<Duration>, now: Instant) {
        let limit = limit.filter(|limit| !limit.is_zero());
        let mut inside = self.inside();
        if inside.limit != limit {
            inside.limit = limit;
            inside.look_at = limit.and_then(|limit| next_look(limit, now));
            self.watched.store(limit.is_some(), Ordering::Relaxed);
        }
    }

    /// Message number `number` has arrived.
    pub(crate) fn begin(self: &Arc<Ages>, number: u64, now: impl Fn() -> Instant) -> Option<Age> {
        if !self.watched.load(Ordering::Relaxed) {
            return None;
        }
        self.inside().since.insert(number, now());
        Some(Age { ages: self.clone(), number })
    }

    /// When there is something for [`Ages::look`].
    pub(crate) fn look_at(&self) -> Option<Instant> {
        if self.watched.load(Ordering::Relaxed) { self.inside().look_at } else { None }
    }

    /// The age of the oldest, if it is time to look and that is half of what the source allows; then never again.
    pub(crate) fn look(&self, now: Instant) -> Option<Duration> {
        let mut inside = self.inside();
        let limit = inside.limit.filter(|_| inside.look_at.is_some_and(|at| at <= now))?;
        inside.look_at = next_look(limit, now);
        let (_, since) = inside.since.first_key_value()?;
        let age = now.saturating_duration_since(*since);
        if age < limit / 2 {
            return None;
        }
        self.watched.store(false, Ordering::Relaxed);
        inside.look_at = None;
        inside.since.clear();
        Some(age)
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn next_look(limit: Duration, now: Instant) -> Option<Instant> {
    now.checked_add((limit / 8).max(LOOK_MIN))
}

impl Age {
    /// The message is settled.
    pub(crate) fn end(&self) {
        self.ages.inside().since.remove(&self.number);
    }
}

impl Drop for Age {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    #[test]
    fn the_oldest_that_is_not_settled_is_told_once_at_half_of_what_is_allowed() {
        let start = Instant::now();
        let ages = Arc::new(Ages::default());
        assert!(ages.begin(0, || start).is_none(), "nobody takes anything back");
        ages.watch(Some(HOUR), start);
        ages.watch(Some(HOUR), start + HOUR / 2);
        assert_eq!(ages.look_at(), Some(start + HOUR / 8));
        let (first, second) = (ages.begin(1, || start), ages.begin(2, || start + HOUR / 4));
        assert_eq!(ages.look(start + HOUR / 9), None, "not yet");
        drop(first);
        assert_eq!(ages.look(start + HOUR / 2), None, "it is settled");
        assert_eq!(ages.look(start + HOUR), Some(HOUR * 3 / 4));
        assert_eq!((ages.look_at(), ages.look(start + 2 * HOUR)), (None, None));
        assert!(ages.begin(3, || start).is_none());
        drop(second);
    }

    #[test]
    fn a_short_limit_is_looked_at_now_and_then_and_none_is_no_limit() {
        let start = Instant::now();
        let ages = Arc::new(Ages::default());
        ages.watch(Some(Duration::ZERO), start);
        assert!(ages.look_at().is_none() && ages.begin(0, || start).is_none());
        let millisecond = Duration::from_millis(1);
        ages.watch(Some(millisecond), start);
        assert_eq!(ages.look_at(), Some(start + LOOK_MIN));
        assert_eq!(ages.look(start + LOOK_MIN), None, "there is nothing");
        assert_eq!(ages.look_at(), Some(start + 2 * LOOK_MIN));
        let _first = ages.begin(1, || start);
        assert_eq!(ages.look(start + 2 * LOOK_MIN), Some(2 * LOOK_MIN));
    }
}
