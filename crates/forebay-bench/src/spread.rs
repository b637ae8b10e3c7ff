//! Medians, and how far a ratio of medians is to be trusted.

/// Fewer repetitions say nothing about their own spread.
const REPETITIONS_MIN: usize = 3;
const RESAMPLES: usize = 2_000;

/// The middle one, or the mean of the middle two; `None` without any.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(sorted[half]),
        _ => Some((sorted[half - 1] + sorted[half]) / 2.0),
    }
}

/// A ratio of two medians with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub(crate) struct Ratio {
    /// Median of ours over median of theirs.
    pub(crate) value: f64,
    /// The interval; `None` if there were too few repetitions for one.
    pub(crate) interval: Option<(f64, f64)>,
}

impl Ratio {
    /// Of the medians of `ours` and `theirs`; `None` if one is empty or theirs is 0. The interval is the
    /// percentile bootstrap's (B. Efron, "Bootstrap Methods: Another Look at the Jackknife", 1979): both
    /// sides drawn again with replacement, independently. The same `seed` gives the same interval.
    pub(crate) fn of(ours: &[f64], theirs: &[f64], seed: u64) -> Option<Ratio> {
        let divide = |ours: &[f64], theirs: &[f64]| {
            let theirs = median(theirs).filter(|&theirs| theirs > 0.0)?;
            median(ours).map(|ours| ours / theirs)
        };
        let value = divide(ours, theirs)?;
        if ours.len().min(theirs.len()) < REPETITIONS_MIN {
            return Some(Ratio { value, interval: None });
        }
        let mut random = Random::new(seed);
        let drawn = (0..RESAMPLES)
            .filter_map(|_| divide(&random.resample(ours), &random.resample(theirs)))
            .collect();
        Some(Ratio { value, interval: interval(drawn) })
    }

    /// Of pairs that were measured one right after the other: the median of their ratios, whose pairs are drawn again. What
    /// slows both of a pair is not in it. `None` if there is no pair.
    pub(crate) fn of_pairs(ours: &[f64], theirs: &[f64], seed: u64) -> Option<Ratio> {
        let pairs = ours.iter().zip(theirs).filter(|(_, theirs)| **theirs > 0.0);
        let ratios: Vec<f64> = pairs.map(|(ours, theirs)| ours / theirs).collect();
        let value = median(&ratios)?;
        if ratios.len() < REPETITIONS_MIN {
            return Some(Ratio { value, interval: None });
        }
        let mut random = Random::new(seed);
        let medians = (0..RESAMPLES).filter_map(|_| median(&random.resample(&ratios))).collect();
        Some(Ratio { value, interval: interval(medians) })
    }

    /// The least it may be: the lower end of the interval, or the value where there is none.
    pub(crate) fn low(&self) -> f64 {
        self.interval.map_or(self.value, |(low, _)| low)
    }

    /// The most it may be.
    pub(crate) fn high(&self) -> f64 {
        self.interval.map_or(self.value, |(_, high)| high)
    }
}

/// What lies between the outer fortieths of what was drawn.
fn interval(mut drawn: Vec<f64>) -> Option<(f64, f64)> {
    drawn.sort_by(f64::total_cmp);
    let at = |quantile: f64| drawn[(quantile * (drawn.len() - 1) as f64).round() as usize];
    (!drawn.is_empty()).then(|| (at(0.025), at(0.975)))
}

/// SplitMix64 (Steele, Lea and Flood, 2014): numbers that a seed repeats.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    /// From a seed.
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Below `bound`, which is above 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }

    /// Any order, each as likely as the others.
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }

    /// As many as `values`, drawn with replacement.
    pub(crate) fn resample(&mut self, values: &[f64]) -> Vec<f64> {
        (0..values.len()).map(|_| values[self.below(values.len())]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn runs_that_do_not_vary_leave_no_doubt() {
        let ratio = Ratio::of(&[2.0; 5], &[4.0; 5], 1).unwrap();
        assert_eq!(ratio, Ratio { value: 0.5, interval: Some((0.5, 0.5)) });
    }

    #[test]
    fn runs_that_vary_leave_as_much_doubt_as_they_vary() {
        let ours = [80.0, 90.0, 100.0, 110.0, 120.0];
        let theirs = [99.0, 100.0, 100.0, 100.0, 101.0];
        let wide = Ratio::of(&ours, &theirs, 7).unwrap();
        let (low, high) = wide.interval.unwrap();
        assert!((0.8..=0.95).contains(&low) && (1.05..=1.22).contains(&high), "{wide:?}");
        assert_eq!(Ratio::of(&ours, &theirs, 7), Some(wide), "a seed repeats it");
        let near = Ratio::of(&theirs, &theirs, 7).unwrap();
        assert!(near.high() - near.low() < 0.03, "{near:?}");
    }

    #[test]
    fn one_run_has_a_ratio_and_no_interval() {
        let ratio = Ratio::of(&[9.0], &[10.0], 1).unwrap();
        assert_eq!((ratio.value, ratio.interval, ratio.low(), ratio.high()), (0.9, None, 0.9, 0.9));
        assert_eq!(Ratio::of(&[9.0], &[0.0], 1), None);
        assert_eq!(Ratio::of(&[], &[1.0], 1), None);
    }

    #[test]
    fn what_slows_both_of_a_pair_is_not_in_its_ratio() {
        let theirs = [1.0, 5.0, 2.0, 9.0, 4.0];
        let ours = theirs.map(|theirs| theirs * 1.01);
        let ratio = Ratio::of_pairs(&ours, &theirs, 3).unwrap();
        assert!(
            (ratio.low() - 1.01).abs() < 1e-9 && (ratio.high() - 1.01).abs() < 1e-9,
            "{ratio:?}"
        );
        assert!(Ratio::of(&ours, &theirs, 3).unwrap().high() > 1.5, "as if they were not pairs");
        assert_eq!(Ratio::of_pairs(&[1.0], &[0.0], 3), None);
        assert_eq!(Ratio::of_pairs(&[3.0], &[2.0], 3), Some(Ratio { value: 1.5, interval: None }));
    }

    #[test]
    fn a_shuffle_keeps_everything() {
        let mut items: Vec<u32> = (0..50).collect();
        Random::new(3).shuffle(&mut items);
        assert_ne!(items, (0..50).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..50).collect::<Vec<_>>());
    }
}
