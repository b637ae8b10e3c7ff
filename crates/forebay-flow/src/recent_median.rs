//! The median of the last values, and their lower quartile.

use std::collections::VecDeque;

/// The median over the last `capacity` values; a single very slow one does not move it.
#[derive(Debug, Clone)]
pub struct RecentMedian {
    capacity: usize,
    arrivals: VecDeque<u64>,
    sorted: Vec<u64>,
}

impl RecentMedian {
    /// # Panics
    /// If `capacity` is 0.
    #[must_use]
    pub fn new(capacity: usize) -> RecentMedian {
        assert!(capacity > 0, "a median of nothing");
        RecentMedian {
            capacity,
            arrivals: VecDeque::with_capacity(capacity),
            sorted: Vec::with_capacity(capacity),
        }
    }

    /// Takes a value in; the oldest leaves when there are more than `capacity`.
    pub fn add(&mut self, value: u64) {
        if self.arrivals.len() == self.capacity
            && let Some(oldest) = self.arrivals.pop_front()
        {
            let place = self.sorted.partition_point(|&v| v < oldest);
            self.sorted.remove(place);
        }
        self.arrivals.push_back(value);
        let place = self.sorted.partition_point(|&v| v < value);
        self.sorted.insert(place, value);
    }

    /// The median, the upper one of two; `None` before the first value.
    #[must_use]
    pub fn get(&self) -> Option<u64> {
        self.sorted.get(self.sorted.len() / 2).copied()
    }

    /// A quarter of the values is smaller; `None` before the first value.
    #[must_use]
    pub fn lower_quartile(&self) -> Option<u64> {
        self.sorted.get(self.sorted.len() / 4).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_the_median_and_the_quartile_of_the_last_values(values in prop::collection::vec(0..50u64, 1..60)) {
            let mut median = RecentMedian::new(7);
            for &value in &values {
                median.add(value);
            }
            let mut last = values[values.len().saturating_sub(7)..].to_vec();
            last.sort_unstable();
            prop_assert_eq!(median.get(), Some(last[last.len() / 2]));
            prop_assert_eq!(median.lower_quartile(), Some(last[last.len() / 4]));
        }
    }
}
