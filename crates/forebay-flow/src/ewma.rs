//! An exponentially weighted moving average.

/// `average += weight * (sample - average)`; the first sample counts whole.
#[derive(Debug, Clone, Copy)]
pub struct Ewma {
    weight: f64,
    average: Option<f64>,
}

impl Ewma {
    /// # Panics
    /// If `weight` is not in (0, 1].
    #[must_use]
    pub fn new(weight: f64) -> Ewma {
        assert!(weight > 0.0 && weight <= 1.0, "weight of a sample: {weight}");
        Ewma { weight, average: None }
    }

    /// Takes a sample in.
    pub fn add(&mut self, sample: f64) {
        self.average = Some(match self.average {
            Some(average) => average + self.weight * (sample - average),
            None => sample,
        });
    }

    /// Replaces the average.
    pub fn set(&mut self, average: f64) {
        self.average = Some(average);
    }

    /// The average; `None` before the first sample.
    #[must_use]
    pub fn get(&self) -> Option<f64> {
        self.average
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_sample_counts_whole_and_others_by_weight() {
        let mut ewma = Ewma::new(0.25);
        assert_eq!(ewma.get(), None);
        ewma.add(8.0);
        assert_eq!(ewma.get(), Some(8.0));
        ewma.add(16.0);
        assert_eq!(ewma.get(), Some(10.0));
    }
}
