//! A token bucket: so many per second on average, so many at once.
//!
//! Tokens are counted in millionths, so that a rate per second times microseconds is exact and nothing is
//! lost to rounding however often the bucket is asked.

const MILLIONTHS: i128 = 1_000_000;

/// Not enough tokens yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotYet {
    /// When there will be enough, if nobody else takes any.
    pub retry_us: u64,
}

/// A bucket that fills with `rate_per_s` tokens a second up to `burst`.
#[derive(Debug, Clone)]
pub struct TokenBucket {
    rate_per_s: i128,
    burst: i128, // in millionths
    level: i128, // in millionths; below zero after more than a burst was taken at once
    filled_us: u64,
}

impl TokenBucket {
    /// A full bucket.
    ///
    /// # Panics
    /// If the rate or the burst is 0: nothing would ever pass.
    #[must_use]
    pub fn new(now_us: u64, rate_per_s: u64, burst: u64) -> TokenBucket {
        assert!(rate_per_s > 0 && burst > 0, "a bucket of rate {rate_per_s}/s and burst {burst}");
        let burst = i128::from(burst) * MILLIONTHS;
        TokenBucket { rate_per_s: i128::from(rate_per_s), burst, level: burst, filled_us: now_us }
    }

    /// Goes on with another rate and burst, and with what it holds, as far as that is no more than the burst.
    ///
    /// # Panics
    /// If the rate or the burst is 0, as in [`TokenBucket::new`].
    pub fn set_rate(&mut self, now_us: u64, rate_per_s: u64, burst: u64) {
        assert!(rate_per_s > 0 && burst > 0, "a bucket of rate {rate_per_s}/s and burst {burst}");
        self.fill(now_us);
        self.rate_per_s = i128::from(rate_per_s);
        self.burst = i128::from(burst) * MILLIONTHS;
        self.level = self.level.min(self.burst);
    }

    fn fill(&mut self, now_us: u64) {
        let elapsed_us = now_us.saturating_sub(self.filled_us);
        self.filled_us = self.filled_us.max(now_us);
        self.level = (self.level + self.rate_per_s * i128::from(elapsed_us)).min(self.burst);
    }

    /// Takes `tokens`. More than a burst at once passes when the bucket is full and is paid off afterwards,
    /// or a large message could never pass.
    ///
    /// # Errors
    /// If there are not enough; nothing is taken then.
    pub fn take(&mut self, now_us: u64, tokens: u64) -> Result<(), NotYet> {
        self.look(now_us, tokens)?;
        self.level -= i128::from(tokens) * MILLIONTHS;
        Ok(())
    }

    /// Whether [`TokenBucket::take`] would take so many.
    ///
    /// # Errors
    /// If there are not enough.
    pub fn look(&mut self, now_us: u64, tokens: u64) -> Result<(), NotYet> {
        self.fill(now_us);
        let wanted = i128::from(tokens) * MILLIONTHS;
        let missing = wanted.min(self.burst) - self.level;
        if missing > 0 {
            let wait_us = u64::try_from((missing - 1) / self.rate_per_s + 1).unwrap_or(u64::MAX);
            return Err(NotYet { retry_us: self.filled_us.saturating_add(wait_us) });
        }
        Ok(())
    }

    /// Tokens that it holds.
    pub fn available(&mut self, now_us: u64) -> u64 {
        self.fill(now_us);
        u64::try_from(self.level / MILLIONTHS).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_large_request_passes_a_full_bucket_and_is_paid_off() {
        let mut bucket = TokenBucket::new(0, 1_000, 10);
        assert_eq!(bucket.take(0, 30), Ok(()));
        assert_eq!(bucket.take(0, 1), Err(NotYet { retry_us: 21_000 }));
        assert_eq!(bucket.take(21_000, 1), Ok(()));
    }

    #[test]
    fn what_is_there_can_be_taken_and_no_more() {
        let mut bucket = TokenBucket::new(0, 1_000, 10);
        assert_eq!(bucket.available(0), 10);
        assert_eq!(bucket.take(0, 30), Ok(()));
        assert_eq!(bucket.available(20_999), 0, "it is paid off first");
        assert_eq!(bucket.available(23_999), 3);
        assert_eq!(bucket.take(23_999, 3), Ok(()));
        assert_eq!((bucket.available(23_999), bucket.available(1_000_000)), (0, 10));
    }

    #[test]
    fn another_rate_counts_from_its_time_on() {
        let mut bucket = TokenBucket::new(0, 1_000, 10);
        assert_eq!(bucket.take(0, 10), Ok(()));
        bucket.set_rate(4_000, 100, 2);
        assert_eq!(
            bucket.take(4_000, 2),
            Ok(()),
            "of four that came no more is kept than the burst"
        );
        assert_eq!(bucket.take(4_000, 1), Err(NotYet { retry_us: 14_000 }));
        bucket.set_rate(9_000, 1_000, 2);
        assert_eq!(bucket.take(9_000, 1), Err(NotYet { retry_us: 9_500 }));
    }

    proptest! {
        #[test]
        fn no_more_passes_than_rate_and_burst_allow_and_the_named_time_suffices(
            rate in 1..100_000u64, burst in 1..1_000u64,
            asks in prop::collection::vec((0..20_000u64, 1..50u64), 1..100),
        ) {
            let mut bucket = TokenBucket::new(0, rate, burst);
            let (mut now_us, mut taken, mut largest) = (0, 0, 0);
            for (pause_us, tokens) in asks {
                now_us += pause_us;
                if let Err(NotYet { retry_us }) = bucket.take(now_us, tokens) {
                    prop_assert!(retry_us > now_us);
                    prop_assert!(bucket.take(retry_us - 1, tokens).is_err());
                    now_us = retry_us;
                    prop_assert_eq!(bucket.take(now_us, tokens), Ok(()));
                }
                taken += u128::from(tokens);
                largest = largest.max(tokens);
                let allowed = u128::from(rate) * u128::from(now_us) / 1_000_000 + u128::from(burst.max(largest));
                prop_assert!(taken <= allowed, "{} of {}", taken, allowed);
            }
        }
    }
}
