//! What commits take on a slow disk, as much of it as is no queue: what a publisher waits for there in any case.
//!
//! ```text
//!   took   ·        ·       took = fixed + slope * bytes, fitted to the last 256 commits or so of this disk
//!    │      · ─── · ·
//!    ├──·─ ·               fixed: what remains with no bytes, of the last 32 the lower quartile
//!    └──────────────▶ bytes
//!   told   the mean of took, each commit counted by its bytes, from fixed to 2.5 * fixed;
//!          0 where fixed is below 1 ms, and until it was 2 ms
//! ```
//!
//! A publisher sees a latency and cannot know whether the disk became slow or a queue formed: with the one it may
//! have more in flight, with the other it must have less. The broker sees each commit. Whether a disk is slow is said by what
//! remains with no bytes: more in flight makes larger commits, which take longer, and would let more in flight, so a quick disk
//! that carries little would be one. Where all commits are of one size the slope stays what it was. Before anything differs
//! all of a commit's time is taken for that of its bytes.
//!
//! What a slow one takes for its bytes counts as well. A window fills the disk and the processors from about 2.2 times what a
//! commit takes on, and the bytes have a part in that, which differs from machine to machine and with the size of messages: on a
//! quick one with a flush of 8 ms commits that keep it busy take 11 to 14 ms. There is an end to it, since where
//! the disk carries no more, more in flight again makes larger commits.
//!
//! On two cores that publishers share commits of the same bytes take once 11 ms and once 22, and all who publish steer by
//! this one number: fitted to 16 commits it went from 4 to 15 ms and back within a second, and once in ten to 0. So it is
//! fitted to many, and what makes single ones longer is left out. Eight in a row that take half as long again as was to be
//! expected, or two thirds of it, are another disk: of what was known only the bytes' part counts on,
//! until it is fitted anew.
//!
//! Fast disks tell nothing: windows learn a fraction of a millisecond by themselves.

use crate::recent_median::RecentMedian;

/// A broker with this capability tells publishers that have it, too, what [`CommitCost`] finds, by
/// `forebay.commit-time`; they tell it to [`Window::commit_time`](crate::Window::commit_time).
pub const COMMIT_TIMES: &str = "forebay.commit_times";

/// What a broker tells of its commits; if it tells nothing, of times and publishers 0, and all of windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommitTime {
    /// What a byte waits for its commit, in microseconds; 0: next to nothing, or all of it comes from the bytes.
    pub us: u64,
    /// Connections that publish, and share it.
    pub publishers: u32,
    /// What windows next door are to have in flight of what they would, in thousandths ([`FillTrial`](crate::FillTrial)).
    pub part_permille: u32,
}

impl Default for CommitTime {
    fn default() -> CommitTime {
        CommitTime { us: 0, publishers: 0, part_permille: 1_000 }
    }
}

impl CommitTime {
    /// Whether it is another than what a publisher was told `before`: the number of those who share by a quarter, the
    /// part by a fiftieth.
    #[must_use]
    pub fn differs(self, before: CommitTime) -> bool {
        let others = self.publishers.abs_diff(before.publishers) > before.publishers / CHANGE_SHARE;
        let part =
            self.part_permille.abs_diff(before.part_permille) > before.part_permille / CHANGE_PART;
        self.us != before.us || others || part
    }
}

/// Weight of a commit in the moving averages, once there were so many.
const COMMITS: f64 = 256.0;
/// The slope of fewer is chance.
const SLOPE_MIN: f64 = 16.0;
/// What is told is of so many.
const LAST: usize = 32;
/// So many commits in a row by which another disk is known,
const OTHERS: u32 = 8;
/// in which each took so many times as long as was expected, or as small a part of it,
const OTHER: f64 = 1.5;
/// and the difference is worth it.
const OTHER_MIN_US: f64 = 1_000.0;
/// The slope is fitted where sizes vary by this share of their mean.
const VARIES: f64 = 0.1;
/// Slow from here on, and fast again below the other.
pub(crate) const SLOW_US: u64 = 2_000;
const FAST_US: u64 = 1_000;
/// What is told is so many times what remains with no bytes at most.
const BYTES_MAX: f64 = 2.5;
/// A change by less than one part in so many is not worth telling: of the time, and of those who share.
const CHANGE: u64 = 8;
pub(crate) const CHANGE_SHARE: u32 = 4;
/// Of the part of windows.
const CHANGE_PART: u32 = 50;

/// The fit, and what was told of it.
#[derive(Debug, Clone)]
pub struct CommitCost {
    fit: Fit,
    /// What the last commits took beside their bytes.
    fixed_us: RecentMedian,
    /// Of those that took much longer than the fit has it, and of those that took much less, in a row.
    longer: u32,
    shorter: u32,
    told_us: u64,
}

impl Default for CommitCost {
    fn default() -> CommitCost {
        CommitCost {
            fit: Fit::default(),
            fixed_us: RecentMedian::new(LAST),
            longer: 0,
            shorter: 0,
            told_us: 0,
        }
    }
}

/// A straight line through commits: their bytes, and what they took.
#[derive(Debug, Clone)]
struct Fit {
    /// At most [`COMMITS`].
    commits: f64,
    /// Moving averages: bytes, microseconds, bytes², bytes * microseconds.
    means: [f64; 4],
    /// Microseconds for each byte; infinite until sizes have differed.
    slope: f64,
}

impl Default for Fit {
    fn default() -> Fit {
        Fit { commits: 0.0, means: [0.0; 4], slope: f64::INFINITY }
    }
}

impl Fit {
    fn add(&mut self, bytes: f64, took_us: f64) {
        self.commits = (self.commits + 1.0).min(COMMITS);
        let sample = [bytes, took_us, bytes * bytes, bytes * took_us];
        for (mean, sample) in self.means.iter_mut().zip(sample) {
            *mean += (sample - *mean) / self.commits;
        }
        let [bytes, took_us, squares, products] = self.means;
        let variance = squares - bytes * bytes;
        if self.commits >= SLOPE_MIN && variance > (VARIES * bytes).powi(2) {
            self.slope = ((products - bytes * took_us) / variance).max(0.0);
        }
    }

    /// What one that has so many bytes took beside them; `None` until sizes have differed.
    fn fixed_us(&self, bytes: f64, took_us: f64) -> Option<f64> {
        self.slope.is_finite().then(|| (took_us - self.slope * bytes).max(0.0))
    }

    /// What one of so many bytes was to take; `None` before that can be said.
    fn expected_us(&self, bytes: f64) -> Option<f64> {
        let [mean_bytes, mean_us, ..] = self.means;
        let known = self.commits > 0.0 && self.slope.is_finite();
        known.then(|| (mean_us + self.slope * (bytes - mean_bytes)).max(0.0))
    }
}

impl CommitCost {
    /// A commit of so many bytes took so long. Returns whether [`us`](CommitCost::us) is another now.
    pub fn committed(&mut self, took_us: u64, bytes: u64) -> bool {
        let (bytes, took_us) = (bytes as f64, took_us as f64);
        if !self.is_other(bytes, took_us) {
            self.fit.add(bytes, took_us);
        }
        if let Some(fixed_us) = self.fit.fixed_us(bytes, took_us) {
            self.fixed_us.add(fixed_us as u64);
        }
        let fixed_us = self.fixed_us.lower_quartile().unwrap_or(0);
        let us = match fixed_us {
            slow if slow >= SLOW_US => self.with_its_bytes_us(slow),
            between if between >= FAST_US && self.told_us > 0 => self.with_its_bytes_us(between),
            _ => 0,
        };
        let changes = us.abs_diff(self.told_us) > self.told_us / CHANGE;
        if changes {
            self.told_us = us;
        }
        changes
    }

    /// What a byte waits for its commit, on the average, of a disk that takes `fixed_us` without any.
    fn with_its_bytes_us(&self, fixed_us: u64) -> u64 {
        let [bytes, took_us, _, products] = self.fit.means;
        let weighted_us = if bytes > 0.0 { products / bytes } else { took_us };
        (weighted_us as u64).clamp(fixed_us, (BYTES_MAX * fixed_us as f64) as u64)
    }

    /// Whether it took so much longer or shorter than was expected that it must not be fitted to the others: another disk is
    /// known by several, of which one in the fit would make the bytes' part of them all.
    fn is_other(&mut self, bytes: f64, took_us: f64) -> bool {
        let expected_us = self.fit.expected_us(bytes).unwrap_or(took_us);
        let differs = (took_us - expected_us).abs() > OTHER_MIN_US;
        let longer = differs && took_us > OTHER * expected_us;
        let shorter = differs && OTHER * took_us < expected_us;
        self.longer = if longer { self.longer + 1 } else { 0 };
        self.shorter = if shorter { self.shorter + 1 } else { 0 };
        if self.longer.max(self.shorter) >= OTHERS {
            (self.longer, self.shorter) = (0, 0);
            self.fit = Fit { slope: self.fit.slope, ..Fit::default() };
            self.fixed_us = RecentMedian::new(LAST);
            return false;
        }
        longer || shorter
    }

    /// Bytes that take as long as all else in a commit; `None` until sizes have differed.
    #[must_use]
    pub fn even_bytes(&self) -> Option<u64> {
        let (fixed_us, slope) = (self.fixed_us.lower_quartile()?, self.fit.slope);
        (slope.is_finite() && slope > 0.0).then(|| (fixed_us as f64 / slope) as u64)
    }

    /// What a byte waits for its commit, in microseconds, to an eighth; 0 on a quick disk.
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
            cost.committed(took_us, bytes);
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
        assert!((8_000..=9_000).contains(&cost.us()), "{}", cost.us());
        let quick_us = now_us;
        while cost.us() > 0 {
            commits(&mut cost, &mut now_us, 1, 200, 500);
        }
        assert!(now_us - quick_us < 100_000, "{} us", now_us - quick_us);
    }

    /// As everybody waits for them.
    #[test]
    fn slow_commits_that_are_larger_than_the_quick_ones_were_are_slow() {
        let (mut cost, mut now_us) = (CommitCost::default(), 0);
        commits(&mut cost, &mut now_us, 1_000, 200, 500);
        for number in 0..60_u64 {
            let bytes = 4_000_000 + number * 7_919_333 % 2_000_000;
            cost.committed(8_000 + bytes / 500, bytes);
        }
        assert!((15_000..=20_000).contains(&cost.us()), "{}", cost.us());
    }

    /// It is what each message waits for. But where it is most of a commit more in flight would let more in flight.
    #[test]
    fn of_a_slow_disk_the_time_for_the_bytes_is_told_as_well_to_an_end() {
        let told_us = |rate: u64| {
            let mut cost = CommitCost::default();
            for number in 0..400_u64 {
                let bytes = if number % 4 == 0 { 8_000_000 } else { 2_000_000 };
                cost.committed(8_000 + bytes / rate, bytes);
            }
            cost.us() as f64
        };
        // Of 14 MB eight wait for 8 ms + 8 MB, and six for 8 ms + 2 MB.
        let weighted_us = |rate: f64| 8_000.0 + (8.0 * 8e6 + 6.0 * 2e6) / 14.0 / rate;
        for rate in [1_000, 2_000] {
            let (told_us, weighted_us) = (told_us(rate), weighted_us(rate as f64));
            assert!((told_us - weighted_us).abs() <= weighted_us / 8.0, "{told_us} {weighted_us}");
        }
        assert!(told_us(100) <= 2.5 * 9_000.0, "{}", told_us(100));
    }

    /// What its bytes took before says nothing of it.
    #[test]
    fn a_disk_that_loses_its_bandwidth_is_not_slow_for_long() {
        let (mut cost, mut now_us) = (CommitCost::default(), 0);
        commits(&mut cost, &mut now_us, 1_000, 200, 500);
        commits(&mut cost, &mut now_us, 200, 200, 50);
        assert_eq!(cost.us(), 0);
    }

    #[test]
    fn as_many_bytes_as_take_as_long_as_a_commit_without() {
        let (mut cost, mut now_us) = (CommitCost::default(), 0);
        assert_eq!(cost.even_bytes(), None);
        cost.committed(300, 80_000);
        assert_eq!(cost.even_bytes(), None, "sizes have not differed");
        commits(&mut cost, &mut now_us, 400, 2_000, 500);
        let even_bytes = cost.even_bytes().unwrap_or(0);
        assert!((900_000..=1_100_000).contains(&even_bytes), "{even_bytes}");
    }

    /// Or more in flight would let more in flight.
    #[test]
    fn large_commits_on_a_disk_of_little_bandwidth_are_not_slow() {
        let mut cost = CommitCost::default();
        for fill in [1, 4, 16] {
            for number in 0..500 {
                let bytes = fill * (500_000 + number * 7_919 % 500_000);
                cost.committed(300 + bytes / 50, bytes); // 50 MB/s
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
                cost.committed(took_us, 80_000);
            }
        };
        one_size(&mut cost, &mut now_us, 8_000);
        assert_eq!(cost.us(), 0, "all of it may be the bytes'");
        commits(&mut cost, &mut now_us, 100, 200, 500);
        one_size(&mut cost, &mut now_us, 8_000);
        assert!((7_000..=8_100).contains(&cost.us()), "{}", cost.us());
    }

    /// All who publish steer by what is told.
    #[test]
    fn commits_that_take_once_longer_and_once_not_change_little_of_what_is_told() {
        let (mut cost, mut told_us) = (CommitCost::default(), Vec::new());
        for number in 0..2_000_u64 {
            let bytes = 4_000_000 + number * 7_919_333 % 4_000_000;
            let waits_us = number / 5 * 104_729 % 10_000; // for a processor, some in a row
            cost.committed(9_000 + bytes / 1_000 + waits_us, bytes);
            told_us.extend((number >= 300).then(|| cost.us()));
        }
        let (least_us, most_us) = (told_us.iter().min(), told_us.iter().max());
        assert!(least_us >= Some(&14_000) && most_us <= Some(&22_000), "{least_us:?} {most_us:?}");
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
            commits in prop::collection::vec((0..200_000u64, 0..20_000_000u64), 1..200),
        ) {
            let (mut cost, mut most_us) = (CommitCost::default(), 0);
            for (took_us, bytes) in commits {
                most_us = most_us.max(took_us);
                let before_us = cost.us();
                let told = cost.committed(took_us, bytes);
                prop_assert_eq!(told, cost.us() != before_us);
                prop_assert!(cost.us() <= most_us);
                prop_assert!(cost.us() == 0 || cost.us() >= FAST_US);
            }
        }
    }
}
