//! The largest value of a recent time, from two buckets.

use crate::windowed_min::WindowedMin;

/// The maximum over the running bucket and the one before it; remembers and forgets as [`WindowedMin`] does.
#[derive(Debug, Clone, Copy)]
pub struct WindowedMax {
    /// Of the complements, whose order is the other way round.
    least: WindowedMin,
}

impl WindowedMax {
    /// With buckets of `bucket_us` microseconds.
    #[must_use]
    pub fn new(bucket_us: u64) -> WindowedMax {
        WindowedMax { least: WindowedMin::new(bucket_us) }
    }

    /// Takes a sample in.
    pub fn add(&mut self, now_us: u64, value: u64) {
        self.least.add(now_us, !value);
    }

    /// The maximum; 0 before the first sample.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.least.get().map_or(0, |least| !least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_forgotten_after_one_to_two_buckets() {
        let mut max = WindowedMax::new(100);
        assert_eq!(max.get(), 0);
        max.add(0, 9);
        max.add(50, 5);
        assert_eq!(max.get(), 9);
        max.add(120, 5);
        assert_eq!(max.get(), 9);
        max.add(230, 5);
        assert_eq!(max.get(), 5);
        max.add(1_000, 0);
        assert_eq!(max.get(), 0);
    }
}
