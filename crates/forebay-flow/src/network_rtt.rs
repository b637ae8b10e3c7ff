//! The kernel's round trip time, and whether to believe it.
//!
//! `tcpi_rtt` is a smoothed value that moves with every acknowledged segment, by microseconds at least. One
//! that stands still comes from something that is not measuring, such as a tunnel's end, and then none is
//! better: see [`crate::pfw`] on what changes without it.

/// Readings in a row, all the same, after which they are not believed: 2 s at ten a second.
const FROZEN_READINGS: u32 = 20;
/// Readings whose median counts; odd.
const READINGS: usize = 3;

#[derive(Debug, Default)]
pub(crate) struct NetworkRtt {
    recent: [u64; READINGS],
    taken: usize,
    same: u32,
}

impl NetworkRtt {
    pub(crate) fn set(&mut self, rtt_us: Option<u64>) {
        let Some(rtt_us) = rtt_us.filter(|&us| us > 0) else {
            *self = NetworkRtt::default();
            return;
        };
        let last = (self.taken > 0).then(|| self.recent[(self.taken - 1) % READINGS]);
        self.same = if last == Some(rtt_us) { self.same.saturating_add(1) } else { 0 };
        self.recent[self.taken % READINGS] = rtt_us;
        self.taken += 1;
    }

    pub(crate) fn get(&self) -> Option<u64> {
        if self.taken == 0 || self.same >= FROZEN_READINGS {
            return None;
        }
        let mut recent = self.recent;
        let known = &mut recent[..self.taken.min(READINGS)];
        known.sort_unstable();
        Some(known[known.len() / 2])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_the_last_three_counts() {
        let mut network = NetworkRtt::default();
        assert_eq!(network.get(), None);
        for (reading, median) in [(5, 5), (90, 90), (6, 6), (7, 7), (900, 7), (800, 800)] {
            network.set(Some(reading));
            assert_eq!(network.get(), Some(median));
        }
        for round in 0..50 {
            network.set(Some(100 + round));
        }
        assert_eq!(network.get(), Some(148));
    }

    #[test]
    fn a_value_that_stands_still_is_not_believed_until_it_moves() {
        let mut network = NetworkRtt::default();
        for _ in 0..=FROZEN_READINGS {
            network.set(Some(50));
        }
        assert_eq!(network.get(), None);
        network.set(Some(51));
        assert_eq!(network.get(), Some(50));
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
