//! What a commit costs however little is in it: what a publisher waits for on this disk without any queue.
//!
//! ```text
//!   took   ·        ·       took = fixed + slope * bytes, fitted to the last 16 commits or so
//!    │      · ─── · ·
//!    ├──·─ ·               fixed: what remains with no bytes
//!    └──────────────▶ bytes
//!   told   the least fixed of the last 0.25 to 0.5 s; 0 below 1 ms, and until it was 2 ms
//! ```
//!
//! A publisher sees a latency and cannot know whether the disk became slow or a queue formed: with the one it may
//! have more in flight, with the other it must have less. The broker sees each commit. Its time alone would not do,
//! as more in flight makes larger commits, which take longer and would let more in flight; so what comes from the
//! bytes is left out. Where all commits are of one size the slope stays what it was. Before anything differs all of
//! a commit's time is taken for that of its bytes.
//!
//! Fast disks tell nothing: windows learn a fraction of a millisecond by themselves.

use crate::windowed_min::WindowedMin;

/// A broker with this capability tells publishers that have it, too, what [`CommitCost`] finds, by
/// `forebay.commit-time`; they tell it to [`Window::commit_time`](crate::Window::commit_time).
pub const COMMIT_TIMES: &str = "forebay.commit_times";

/// What a broker tells of its commits; if it tells nothing, all is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CommitTime {
    /// What one takes however little is in it, in microseconds; 0: next to nothing.
    pub us: u64,
    /// Connections that publish, and share it.
    pub publishers: u32,
}

impl CommitTime {
    /// Whether it is another than what a publisher was told `before`: by a quarter, as for the number of those who share.
    #[must_use]
    pub fn differs(self, before: CommitTime) -> bool {
        let others =
            self.publishers.abs_diff(before.publishers) > before.publishers / CHANGE as u32;
        self.us != before.us || others
    }
}

/// Weight of a commit in the moving averages.
const WEIGHT: f64 = 1.0 / 16.0;
/// The slope is fitted where sizes vary by this share of their mean.
const VARIES: f64 = 0.1;
const LEAST_BUCKET_US: u64 = 250_000;
/// Slow from here on, and fast again below the other.
pub(crate) const SLOW_US: u64 = 2_000;
const FAST_US: u64 = 1_000;
/// A change by less than one part in so many is not worth telling.
const CHANGE: u64 = 4;

/// The fit, and what was told of it.
#[derive(Debug, Clone)]
pub struct CommitCost {
    /// Moving averages: bytes, microseconds, bytes², bytes * microseconds; `None` before the first commit.
    means: Option<[f64; 4]>,
    /// Microseconds for each byte.
    slope: f64,
    least: WindowedMin,
    told_us: u64,
}

impl Default for CommitCost {
    fn default() -> CommitCost {
        CommitCost {
            means: None,
            slope: f64::INFINITY,
            least: WindowedMin::new(LEAST_BUCKET_US),
            told_us: 0,
        }
    }
}

impl CommitCost {
    /// A commit of so many bytes took so long. Returns whether [`us`](CommitCost::us) is another now.
    pub fn committed(&mut self, now_us: u64, took_us: u64, bytes: u64) -> bool {
        let (bytes, took) = (bytes as f64, took_us as f64);
        let sample = [bytes, took, bytes * bytes, bytes * took];
        let means = self.means.get_or_insert(sample);
        for (mean, sample) in means.iter_mut().zip(sample) {
            *mean += WEIGHT * (sample - *mean);
        }
        let [bytes, took, squares, products] = *means;
        let variance = squares - bytes * bytes;
        if variance > (VARIES * bytes).powi(2) {
            self.slope = ((products - bytes * took) / variance).max(0.0);
        }
        let fixed = (took - self.slope * bytes).max(0.0);
        self.least.add(now_us, fixed as u64);
        let least_us = self.least.get().unwrap_or(0);
        let us = match least_us {
            slow if slow >= SLOW_US => slow,
            between if between >= FAST_US && self.told_us > 0 => between,
            _ => 0,
        };
        let changes = us.abs_diff(self.told_us) > self.told_us / CHANGE;
        if changes {
            self.told_us = us;
        }
        changes
    }

    /// Bytes that take as long as all else in a commit; `None` until sizes have differed.
    #[must_use]
    pub fn even_bytes(&self) -> Option<u64> {
        let fixed_us = self.least.get()?;
        (self.slope.is_finite() && self.slope > 0.0).then(|| (fixed_us as f64 / self.slope) as u64)
    }

    /// What a commit costs beside its bytes, in microseconds, to a quarter; 0: next to nothing.
    #[must_use]
    pub fn us(&self) -> u64 {
        self.told_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A disk that takes `fixed_us` and a microsecond for so many bytes; sizes go up and down.
    fn commits(cost: &mut CommitCost, now_us: &mut u64, count: u64, fixed_us: u64, rate: u64) {
        for number in 0..count {
            let bytes = 20_000 + (number * 7_919) % 400_000;
            let took_us = fixed_us + bytes / rate;
            *now_us += took_us + 500;
            cost.committed(*now_us, took_us, bytes);
        }
    }

    #[test]
    fn a_disk_that_becomes_slow_is_told_within_a_second_and_one_that_is_quick_again_sooner() {
        let (mut cost, mut now_us) = (CommitCost::default(), 0);
        commits(&mut cost, &mut now_us, 1_000, 200, 500);
        assert_eq!(cost.us(), 0);
        let slow_us = now_us;
        while cost.us() < 6_000 {
            commits(&mut cost, &mut now_us, 1, 8_000, 500);
        }
        assert!(now_us - slow_us < 1_000_000, "{} us", now_us - slow_us);
        commits(&mut cost, &mut now_us, 200, 8_000, 500);
        assert!((6_000..=10_000).contains(&cost.us()), "{}", cost.us());
        let quick_us = now_us;
        while cost.us() > 0 {
            commits(&mut cost, &mut now_us, 1, 200, 500);
        }
        assert!(now_us - quick_us < 100_000, "{} us", now_us - quick_us);
    }

    #[test]
    fn as_many_bytes_as_take_as_long_as_a_commit_without() {
        let (mut cost, mut now_us) = (CommitCost::default(), 0);
        assert_eq!(cost.even_bytes(), None);
        cost.committed(0, 300, 80_000);
        assert_eq!(cost.even_bytes(), None, "sizes have not differed");
        commits(&mut cost, &mut now_us, 400, 2_000, 500);
        let even_bytes = cost.even_bytes().unwrap_or(0);
        assert!((900_000..=1_100_000).contains(&even_bytes), "{even_bytes}");
    }

    /// Or more in flight would let more in flight.
    #[test]
    fn large_commits_on_a_disk_of_little_bandwidth_are_not_slow() {
        let (mut cost, mut now_us) = (CommitCost::default(), 0);
        for fill in [1, 4, 16] {
            for number in 0..500 {
                let bytes = fill * (500_000 + number * 7_919 % 500_000);
                now_us += 300 + bytes / 50;
                cost.committed(now_us, 300 + bytes / 50, bytes); // 50 MB/s
            }
            assert_eq!(cost.us(), 0, "{fill}");
        }
    }

    #[test]
    fn commits_of_one_size_keep_the_slope_that_was_known() {
        let (mut cost, mut now_us) = (CommitCost::default(), 0);
        let one_size = |cost: &mut CommitCost, now_us: &mut u64, took_us| {
            for _ in 0..400 {
                *now_us += took_us;
                cost.committed(*now_us, took_us, 80_000);
            }
        };
        one_size(&mut cost, &mut now_us, 8_000);
        assert_eq!(cost.us(), 0, "all of it may be the bytes'");
        commits(&mut cost, &mut now_us, 100, 200, 500);
        one_size(&mut cost, &mut now_us, 8_000);
        assert!((7_000..=8_000).contains(&cost.us()), "{}", cost.us());
    }

    #[test]
    fn one_slow_commit_among_others_is_not_told() {
        let (mut cost, mut now_us) = (CommitCost::default(), 0);
        for _ in 0..20 {
            commits(&mut cost, &mut now_us, 100, 200, 500);
            commits(&mut cost, &mut now_us, 1, 100_000, 500);
            assert_eq!(cost.us(), 0);
        }
    }

    proptest! {
        #[test]
        fn no_more_is_told_than_commits_take(
            commits in prop::collection::vec((0..1_000_000u64, 0..200_000u64, 0..20_000_000u64), 1..200),
        ) {
            let (mut cost, mut now_us, mut most_us) = (CommitCost::default(), 0, 0);
            for (pause_us, took_us, bytes) in commits {
                now_us += pause_us + took_us;
                most_us = most_us.max(took_us);
                let before_us = cost.us();
                let told = cost.committed(now_us, took_us, bytes);
                prop_assert_eq!(told, cost.us() != before_us);
                prop_assert!(cost.us() <= most_us);
                prop_assert!(cost.us() == 0 || cost.us() >= FAST_US);
            }
        }
    }
}
