//! How long a message that failed waits for its next attempt.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use forebay_flow::explain::Pauses;

/// So many attempts, with pauses that double.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    retries: u32,
    first: Duration,
    max: Duration,
}

impl Backoff {
    /// Up to `retries` more attempts after the first, with a pause of `first`, then twice that, and so on up to
    /// `max`. Each pause is shortened by up to half, differently for each message, so that what failed together
    /// does not come back together.
    #[must_use]
    pub fn new(retries: u32, first: Duration, max: Duration) -> Backoff {
        Backoff { retries, first, max }
    }

    /// Attempts after the first.
    pub(crate) fn retries(&self) -> u32 {
        self.retries
    }

    /// The longest that all pauses of a message may take together.
    pub(crate) fn longest(&self) -> Duration {
        // By then they have doubled as often as they can.
        let doubling = self.retries.min(33);
        let pause = |attempt: u32| {
            self.first.saturating_mul(2_u32.saturating_pow(attempt - 1)).min(self.max)
        };
        let sum = (1..=doubling).map(pause).fold(Duration::ZERO, Duration::saturating_add);
        sum.saturating_add(pause(33).saturating_mul(self.retries - doubling))
    }

    /// The longest that a message is held by its pauses in a row, where those of `limit` and more are spent elsewhere, and what is left of
    /// one after that is shorter than `limit`.
    #[must_use]
    pub fn held_below(&self, limit: Duration) -> Duration {
        // One that is shortened by half may still be as long as the limit.
        let may_be_held = |pause: Duration| pause / 2 < limit;
        if may_be_held(self.max) {
            let held = Backoff { first: self.first.min(limit), max: self.max.min(limit), ..*self };
            return held.longest();
        }
        let pauses = (1..=self.retries.min(33)).map(|attempt| {
            self.first.saturating_mul(2_u32.saturating_pow(attempt - 1)).min(self.max)
        });
        let held = pauses.take_while(|pause| may_be_held(*pause)).map(|pause| pause.min(limit));
        held.fold(if self.retries > 0 { limit } else { Duration::ZERO }, Duration::saturating_add)
    }

    pub(crate) fn pauses(&self) -> Pauses {
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let (first_us, max_us) = (us(self.first.min(self.max)), us(self.max));
        Pauses { count: self.retries.into(), first_us, max_us }
    }

    /// The pause after the failure of attempt number `attempt`, counted from 1, of message number `message`;
    /// `None` if it was the last.
    #[must_use]
    pub fn pause(&self, attempt: u32, message: u64) -> Option<Duration> {
        if attempt > self.retries {
            return None;
        }
        let doubled = 2_u32.saturating_pow(attempt.saturating_sub(1));
        let pause = self.first.saturating_mul(doubled).min(self.max);
        let mut hasher = DefaultHasher::new();
        (message, attempt).hash(&mut hasher);
        let share = (hasher.finish() >> 32) as u32;
        Some(pause - pause.mul_f64(f64::from(share) / f64::from(u32::MAX) / 2.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_end() {
        let (first, max) = (Duration::from_secs(1), Duration::from_secs(5));
        let backoff = Backoff::new(40, first, max);
        for (attempt, longest_s) in [(1, 1), (2, 2), (3, 4), (4, 5), (40, 5)] {
            let longest = Duration::from_secs(longest_s);
            for message in 0..100 {
                let pause = backoff.pause(attempt, message).unwrap();
                assert!(pause <= longest && pause >= longest / 2, "{pause:?} after {attempt}");
            }
        }
        assert_ne!(backoff.pause(1, 1), backoff.pause(1, 2));
        assert_eq!(backoff.pause(41, 0), None);
        assert_eq!(Backoff::new(0, first, max).pause(1, 0), None);
        assert_eq!(backoff.longest(), Duration::from_secs(1 + 2 + 4 + 37 * 5));
        assert_eq!(Backoff::new(0, first, max).longest(), Duration::ZERO);
        assert_eq!(Backoff::new(u32::MAX, max, Duration::MAX).longest(), Duration::MAX);
    }

    #[test]
    fn short_pauses_are_held_and_long_ones_are_not() {
        let second = Duration::from_secs(1);
        let held_s = |retries, first_s, max_s| {
            let backoff = Backoff::new(retries, first_s * second, max_s * second);
            backoff.held_below(5 * second).as_secs()
        };
        assert_eq!(held_s(3, 60, 600), 5, "the rest of one that came back");
        assert_eq!(held_s(20, 1, 3_600), 5 + 1 + 2 + 4 + 5);
        assert_eq!(held_s(100, 2, 4), 2 + 99 * 4);
        assert_eq!(held_s(100, 8, 8), 100 * 5, "each shortened to less than the limit");
        assert_eq!(held_s(0, 60, 60), 0);
    }
}
