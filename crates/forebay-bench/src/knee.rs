//! The knee: the point after which more in flight adds latency and no throughput.

use crate::spread::median;

/// From this share of the best rate on, a rate is as good as the best.
pub(crate) const RATE_MIN: f64 = 0.95;

/// What one setting showed, one entry a repetition.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Shown {
    /// Confirmed a second, after the first seconds.
    pub(crate) rate_per_s: Vec<f64>,
    /// From `publish` to the confirm, 99 %, in microseconds.
    pub(crate) p99_us: Vec<f64>,
    /// Confirmed a second in the first seconds.
    pub(crate) first_per_s: Vec<f64>,
    /// Messages without a confirm, and confirms later than the patience, in all repetitions.
    pub(crate) failed: u64,
}

/// Index of the point with the highest median rate.
pub(crate) fn best<T>(points: &[(T, Shown)]) -> Option<usize> {
    let rate = |index: &usize| median(&points[*index].1.rate_per_s);
    (0..points.len())
        .filter(|index| rate(index).is_some())
        .max_by(|a, b| rate(a).unwrap_or(0.0).total_cmp(&rate(b).unwrap_or(0.0)))
}

/// Index of the knee: the lowest median p99 among points with at least 95 % of the best median rate.
pub(crate) fn knee<T>(points: &[(T, Shown)]) -> Option<usize> {
    let rate = |index: usize| median(&points[index].1.rate_per_s).unwrap_or(0.0);
    let enough = RATE_MIN * rate(best(points)?);
    let p99 = |index: usize| median(&points[index].1.p99_us).unwrap_or(f64::INFINITY);
    (0..points.len())
        .filter(|&index| rate(index) >= enough)
        .min_by(|&a, &b| p99(a).total_cmp(&p99(b)))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn shown(rate_per_s: f64, p99_us: f64) -> Shown {
        Shown {
            rate_per_s: vec![rate_per_s; 3],
            p99_us: vec![p99_us; 3],
            first_per_s: vec![rate_per_s; 3],
            failed: 0,
        }
    }

    /// A pipe that is full at window 100.
    pub(crate) fn pipe() -> Vec<(u32, Shown)> {
        [
            (1, 10.0, 1.0),
            (10, 100.0, 1.0),
            (100, 970.0, 1.2),
            (200, 1_000.0, 2.0),
            (999, 990.0, 9.0),
        ]
        .map(|(window, rate, p99)| (window, shown(rate, p99)))
        .to_vec()
    }

    #[test]
    fn the_knee_is_where_latency_is_low_and_the_rate_still_high() {
        assert_eq!(best(&pipe()), Some(3));
        assert_eq!(knee(&pipe()), Some(2));
        assert_eq!(knee::<u32>(&[]), None);
    }

    #[test]
    fn the_knee_is_never_below_the_rate_it_must_have() {
        let mut points = pipe();
        points[2].1 = shown(949.0, 1.2);
        assert_eq!(knee(&points), Some(3));
    }
}
