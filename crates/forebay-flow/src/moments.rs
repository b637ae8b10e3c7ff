//! Count, mean and variance of values that come one by one.

/// By Welford's recurrence (1962), which does not lose small variances of large values.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Moments {
    count: f64,
    mean: f64,
    squares: f64,
}

impl Moments {
    /// Takes a value in.
    pub(crate) fn add(&mut self, value: f64) {
        self.count += 1.0;
        let off = value - self.mean;
        self.mean += off / self.count;
        self.squares += off * (value - self.mean);
    }

    /// How many values there were.
    pub(crate) fn count(&self) -> u64 {
        self.count as u64
    }

    /// Their mean; 0 where there were none.
    pub(crate) fn mean(&self) -> f64 {
        self.mean
    }

    /// The variance of their mean; 0 for fewer than two.
    pub(crate) fn variance_of_mean(&self) -> f64 {
        if self.count < 2.0 { 0.0 } else { self.squares / (self.count - 1.0) / self.count }
    }

    /// The standard error of their mean; 0 for fewer than two.
    pub(crate) fn error(&self) -> f64 {
        self.variance_of_mean().sqrt()
    }

    /// Whether the standard error is `share` of the mean or less, by two values at least.
    pub(crate) fn is_known_to(&self, share: f64) -> bool {
        self.count >= 2.0 && self.error() <= share * self.mean
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_and_error_are_those_of_the_textbook() {
        let mut moments = Moments::default();
        assert_eq!((moments.count(), moments.error()), (0, 0.0));
        for value in [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0] {
            moments.add(value);
        }
        assert_eq!((moments.count(), moments.mean()), (8, 5.0));
        let variance: f64 = 32.0 / 7.0;
        assert!((moments.error() - (variance / 8.0).sqrt()).abs() < 1e-12);
        assert!(moments.is_known_to(0.2) && !moments.is_known_to(0.1));
    }
}
