//! Whether so many publish to a near broker of ours that they wait for each other, however small their windows are.
//!
//! ```text
//!   wait of a window that fills one visit   2 ms            6 ms
//!                                           ─┬───────────────┬──────────────▶
//!   a visit and a quarter, 80 KiB       ◄────┘ ends    known └────►  one visit, 64 KiB
//! ```
//! Where a hundred and more keep our broker busy, whose visits are 64 KiB, what does not fit in one waits for a whole round,
//! and a window that fills one carries most: with 1000 publishers of 1 kB windows of 27, 53, 67 and 106 carry 787, 956, 778 and 832 k/s, with 250
//! 813, 1076, 986 and 1032, with 100 700, 1140, 1155 and 1008. While visits of so many were half as long, windows were,
//! too, and carried a quarter to a third less.

use crate::commit_cost::SLOW_US;

/// Visits that a window may fill whatever the others do, and in a crowd; of the length that the broker tells.
const VISITS: f64 = 1.25;
const VISITS_OF_CROWD: f64 = 1.0;
/// A crowd makes messages wait for so long beyond the base with windows that fill a visit,
const CROWD_US: f64 = 6_000.0;
/// and has ended where it is less.
const CROWD_ENDS_US: f64 = 2_000.0;
/// Two commits of a disk of which the broker tells nothing take less than this. None of a crowd has seen an empty queue,
/// and takes what it sees for the base.
const COMMITS_UNTOLD_US: f64 = 2.0 * SLOW_US as f64;

#[derive(Debug, Default)]
pub(crate) struct Crowd {
    known: bool,
}

impl Crowd {
    /// What of a service time may be the disk's, where the broker tells of a commit (0: nothing).
    pub(crate) fn believable_us(service_us: f64, commit_us: f64) -> f64 {
        if commit_us > 0.0 { service_us } else { service_us.min(COMMITS_UNTOLD_US) }
    }

    /// Each message of a window waits for so many microseconds beyond the base, divided by the window; a broker that
    /// reads so many of them in a visit, 0 if it does not tell, is `near`.
    pub(crate) fn set(&mut self, near: bool, waits_us: f64, visit_messages: f64) {
        let crowd_us = waits_us * VISITS_OF_CROWD * visit_messages;
        self.known = near && crowd_us > if self.known { CROWD_ENDS_US } else { CROWD_US };
    }

    pub(crate) fn is_known(&self) -> bool {
        self.known
    }

    /// How many visits of the told length a window may fill whatever the others do.
    pub(crate) fn visits(&self) -> f64 {
        if self.known { VISITS_OF_CROWD } else { VISITS }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fifty messages fill a visit.
    fn after(waits_us: &[f64]) -> f64 {
        let mut crowd = Crowd::default();
        for &waits_us in waits_us {
            crowd.set(true, waits_us / 50.0, 50.0);
        }
        crowd.visits()
    }

    #[test]
    fn it_is_known_by_what_they_wait_and_ends_when_they_wait_much_less() {
        assert_eq!(after(&[5_900.0]), VISITS);
        assert_eq!(after(&[6_100.0]), VISITS_OF_CROWD);
        assert_eq!(after(&[6_100.0, 2_100.0]), VISITS_OF_CROWD);
        assert_eq!(after(&[6_100.0, 1_900.0]), VISITS);
    }

    #[test]
    fn who_is_far_away_or_is_told_no_visits_is_none_of_it() {
        let mut crowd = Crowd::default();
        crowd.set(true, 1_000_000.0, 0.0);
        assert!(!crowd.is_known());
        crowd.set(true, 1_000_000.0, 50.0);
        assert!(crowd.is_known());
        crowd.set(false, 1_000_000.0, 50.0);
        assert!(!crowd.is_known());
    }
}
