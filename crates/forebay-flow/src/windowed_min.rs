//! The smallest value of a recent time, from two buckets.
//!
//! Exact sliding minima need a queue; two buckets need two numbers, and forget a value after one to two
//! bucket lengths.

/// The minimum over the running bucket and the one before it.
#[derive(Debug, Clone, Copy)]
pub struct WindowedMin {
    bucket_us: u64,
    started_us: Option<u64>,
    running: u64,
    before: u64,
}

impl WindowedMin {
    /// With buckets of `bucket_us` microseconds.
    #[must_use]
    pub fn new(bucket_us: u64) -> WindowedMin {
        WindowedMin { bucket_us, started_us: None, running: u64::MAX, before: u64::MAX }
    }

    /// Takes a sample in.
    pub fn add(&mut self, now_us: u64, value: u64) {
        let started_us = *self.started_us.get_or_insert(now_us);
        let age_us = now_us.saturating_sub(started_us);
        if age_us >= self.bucket_us {
            // After a pause of two buckets nothing known is recent.
            self.before = if age_us < 2 * self.bucket_us { self.running } else { u64::MAX };
            self.running = u64::MAX;
            self.started_us = Some(now_us);
        }
        self.running = self.running.min(value);
    }

    /// The minimum; `None` before the first sample.
    #[must_use]
    pub fn get(&self) -> Option<u64> {
        let least = self.running.min(self.before);
        (least != u64::MAX).then_some(least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_forgotten_after_one_to_two_buckets() {
        let mut min = WindowedMin::new(100);
        min.add(0, 5);
        min.add(50, 9);
        assert_eq!(min.get(), Some(5));
        min.add(120, 9);
        assert_eq!(min.get(), Some(5));
        min.add(230, 9);
        assert_eq!(min.get(), Some(9));
    }

    #[test]
    fn nothing_is_recent_after_a_long_pause() {
        let mut min = WindowedMin::new(100);
        min.add(0, 5);
        min.add(1_000, 7);
        assert_eq!(min.get(), Some(7));
    }
}
