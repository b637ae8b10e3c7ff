//! When nothing is begun for a while, because nothing has succeeded for a while.
//!
//! ```text
//!            `after` failures in a row           the pause is over
//!   closed ───────────────────────────▶ open ─────────────────────▶ trying
//!     ▲                                   ▲                            │
//!     │                                   └──── a failure: twice as ◄──┤
//!     └─────────────── a success ◄──────────────  long a pause         ┘
//! ```
//! What was in work when it opened and fails then does not make the pause longer.

use std::time::Duration;

use forebay_flow::explain::Pauses;

/// A circuit breaker. No clock: times are microseconds of the caller's. See
/// [`Process::breaker`](crate::Process::breaker).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Breaker {
    after: u32,
    first_us: u64,
    max_us: u64,
    /// In a row.
    failures: u32,
    /// Pauses since the last success.
    pauses: u32,
    open_until_us: Option<u64>,
}

impl Breaker {
    /// Opens after so many failures in a row, at least 1, for `first`, then twice that, and so on up to `max`.
    #[must_use]
    pub fn new(after: u32, first: Duration, max: Duration) -> Breaker {
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        Breaker {
            after: after.max(1),
            first_us: us(first),
            max_us: us(max),
            failures: 0,
            pauses: 0,
            open_until_us: None,
        }
    }

    pub(crate) fn pauses(&self) -> Pauses {
        let (first_us, max_us) = (self.first_us.min(self.max_us), self.max_us);
        Pauses { count: self.after.into(), first_us, max_us }
    }

    /// A call did what it was for.
    pub fn succeeded(&mut self) {
        (self.failures, self.pauses, self.open_until_us) = (0, 0, None);
    }

    /// A call did not.
    pub fn failed(&mut self, now_us: u64) {
        self.failures = self.failures.saturating_add(1);
        if self.failures < self.after || self.is_open(now_us) {
            return;
        }
        let doubled = 2_u64.saturating_pow(self.pauses);
        let pause_us = self.first_us.saturating_mul(doubled).min(self.max_us);
        self.pauses = self.pauses.saturating_add(1);
        self.open_until_us = Some(now_us.saturating_add(pause_us));
    }

    /// Whether nothing may begin now.
    #[must_use]
    pub fn is_open(&self, now_us: u64) -> bool {
        self.open_until_us.is_some_and(|until_us| now_us < until_us)
    }

    /// Until when nothing may begin, if it is open or was.
    #[must_use]
    pub fn open_until_us(&self) -> Option<u64> {
        self.open_until_us
    }

    /// Time has passed.
    pub fn tick(&mut self, now_us: u64) {
        self.open_until_us = self.open_until_us.filter(|until_us| now_us < *until_us);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_US: u64 = 1_000_000;

    #[test]
    fn pauses_double_until_something_succeeds() {
        let mut breaker = Breaker::new(3, Duration::from_secs(1), Duration::from_secs(5));
        let mut now_us = 0;
        breaker.failed(now_us);
        breaker.failed(now_us);
        assert!(!breaker.is_open(now_us));
        for pause_s in [1, 2, 4, 5, 5] {
            breaker.failed(now_us);
            breaker.failed(now_us); // it was in work
            assert_eq!(breaker.open_until_us(), Some(now_us + pause_s * SECOND_US));
            assert!(breaker.is_open(now_us + pause_s * SECOND_US - 1));
            now_us += pause_s * SECOND_US;
            breaker.tick(now_us);
            assert!(!breaker.is_open(now_us));
        }
        breaker.succeeded();
        breaker.failed(now_us);
        breaker.failed(now_us);
        assert!(!breaker.is_open(now_us), "three in a row, again");
        breaker.failed(now_us);
        assert_eq!(breaker.open_until_us(), Some(now_us + SECOND_US));
    }
}
