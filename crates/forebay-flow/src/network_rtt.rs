//! The kernel's round trip time, and whether to believe it.
//!
//! `tcpi_rtt` is a smoothed value that moves with every acknowledged segment, by microseconds at least. One
//! that stands still comes from something that is not measuring, such as a tunnel's end, and then none is
//! better: see [`crate::pfw`] on what changes without it.

/// Readings in a row, all the same, after which they are not believed: 2 s at ten a second.
const FROZEN_READINGS: u32 = 20;
/// Recent readings, of which the second largest counts. One outlier does not move it, a longer route is
/// seen with its second reading, a shorter one with its fourth. Of noise it shows the upper side, which costs
/// some delay; the lower side would cost throughput.
const READINGS: usize = 5;
/// A route is taken for another one when it is longer by this factor, and by this time.
const LONGER_FACTOR: u64 = 2;
const LONGER_MIN_US: u64 = 1_000;
/// Readings over which a rise is seen.
const RISE_READINGS: usize = 3;

#[derive(Debug, Default)]
pub(crate) struct NetworkRtt {
    route_us: u64, // average since the last change of route
    recent: [u64; READINGS],
    taken: usize,
    same: u32,
}

impl NetworkRtt {
    /// Takes a reading in; true if the route has become much longer.
    pub(crate) fn set(&mut self, rtt_us: Option<u64>) -> bool {
        let Some(rtt_us) = rtt_us.filter(|&us| us > 0) else {
            *self = NetworkRtt::default();
            return false;
        };
        let last = (self.taken > 0).then(|| self.recent[(self.taken - 1) % READINGS]);
        self.same = if last == Some(rtt_us) { self.same.saturating_add(1) } else { 0 };
        self.recent[self.taken % READINGS] = rtt_us;
        self.taken += 1;
        let Some(now_us) = self.get() else { return false };
        let longest_us = (LONGER_FACTOR * self.route_us).max(self.route_us + LONGER_MIN_US);
        let longer = self.taken > 1 && now_us >= longest_us;
        self.route_us = match longer || self.taken == 1 {
            true => now_us,
            // A slow average, so that noise does not look like a change, and a gradual change does.
            false => (15 * self.route_us + now_us) / 16,
        };
        longer
    }

    /// Whether the last readings rise: the kernel smooths, so that after a change of route they lag.
    pub(crate) fn rises(&self) -> bool {
        if self.taken <= RISE_READINGS {
            return false;
        }
        let last_us = self.recent[(self.taken - 1) % READINGS];
        let before_us = self.recent[(self.taken - 1 - RISE_READINGS) % READINGS];
        last_us > before_us + (before_us / 10).max(LONGER_MIN_US)
    }

    pub(crate) fn get(&self) -> Option<u64> {
        if self.taken == 0 || self.same >= FROZEN_READINGS {
            return None;
        }
        let mut recent = self.recent;
        let known = &mut recent[..self.taken.min(READINGS)];
        known.sort_unstable();
        Some(known[known.len().saturating_sub(2)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_largest_of_five_counts() {
        let mut network = NetworkRtt::default();
        assert_eq!(network.get(), None);
        for (reading, counts) in [(5, 5), (90, 5), (6, 6), (7, 7), (8, 8), (8, 8), (1, 8), (50, 8)]
        {
            network.set(Some(reading));
            assert_eq!(network.get(), Some(counts));
        }
    }

    #[test]
    fn a_longer_route_is_told_once() {
        let mut network = NetworkRtt::default();
        let longer: Vec<bool> = [100, 101, 900, 901, 10_000, 10_001, 10_000, 9_999]
            .map(|us| network.set(Some(us)))
            .into();
        assert_eq!(longer, [false, false, false, false, false, true, false, false]);
    }

    #[test]
    fn a_value_that_stands_still_is_not_believed_until_it_moves() {
        let mut network = NetworkRtt::default();
        for _ in 0..=FROZEN_READINGS {
            network.set(Some(50));
        }
        assert_eq!(network.get(), None);
        network.set(Some(51));
        assert!(network.get().is_some());
    }

    #[test]
    fn none_and_zero_forget_what_was() {
        for nothing in [None, Some(0)] {
            let mut network = NetworkRtt::default();
            network.set(Some(50));
            network.set(nothing);
            assert_eq!(network.get(), None);
        }
    }
}
