//! What a RabbitMQ on a slow disk takes for a message when nothing else is in its way.
//!
//! ```text
//!   least     the least time of the last 5 to 10 s, without the network's
//!   quickest  of each round; mean: the moving average of those, the new one an eighth; usual: the least mean so far
//!   own       least, below 5 ms; else usual, between least and 2 least
//! ```
//!
//! Of two writes that a message waits for, a quorum queue's log and what tells its members, one may have been under way already: with
//! a flush that takes 8 ms more some see 9 ms and most 18, by chance and not by what they have in flight. Who went by the least alone
//! had half the target in every third run, and half the rate, for as long as it remembered the one message that was lucky.
//!
//! - **The least mean so far**, and not a recent one: with a queue before the disk the quickest of each round has waited, too, and
//!   a target which follows that would raise itself.
//! - **Twice the least at most**: it is one write or two. A disk that has become quick again is seen by its least.

use crate::ewma::Ewma;

/// A disk that takes as long is slow.
const SLOW_US: u64 = 5_000;
const WEIGHT: f64 = 0.125;
/// Writes that a message may wait for.
const WRITES: u64 = 2;

#[derive(Debug)]
pub(crate) struct SlowDisk {
    mean: Ewma,
    usual_us: f64,
}

impl Default for SlowDisk {
    fn default() -> SlowDisk {
        SlowDisk { mean: Ewma::new(WEIGHT), usual_us: f64::INFINITY }
    }
}

impl SlowDisk {
    /// The quickest message of a round took so long, without the network's part.
    pub(crate) fn round(&mut self, quickest_us: f64) {
        self.mean.add(quickest_us);
        self.usual_us = self.usual_us.min(self.mean.get().unwrap_or(f64::INFINITY));
    }

    /// What it takes by itself, if this is the least of late.
    pub(crate) fn own_us(&self, least_us: u64) -> u64 {
        match least_us {
            ..SLOW_US => least_us,
            _ => (self.usual_us as u64).clamp(least_us, WRITES * least_us),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn own_us(quickest_us: &[u64], least_us: u64) -> u64 {
        let mut disk = SlowDisk::default();
        quickest_us.iter().for_each(|&us| disk.round(us as f64));
        disk.own_us(least_us)
    }

    #[test]
    fn a_message_that_was_lucky_does_not_halve_it() {
        let rounds = [27_000, 18_000, 17_500, 9_400, 9_300, 22_000, 17_600, 17_500, 17_800];
        assert!((17_000..21_000).contains(&own_us(&rounds, 9_300)));
        assert_eq!(own_us(&[17_700; 40], 17_600), 17_700);
    }

    #[test]
    fn a_queue_that_lasts_does_not_raise_it() {
        let rounds: Vec<u64> = [vec![18_000; 8], vec![30_000; 500]].concat();
        assert_eq!(own_us(&rounds, 17_000), 18_000);
    }

    #[test]
    fn on_a_quick_disk_it_is_the_least() {
        assert_eq!(own_us(&[8_000; 20], 1_500), 1_500);
        assert_eq!(own_us(&[18_000; 20], 3_000), 3_000, "it was slow before");
    }

    proptest! {
        #[test]
        fn it_is_between_the_least_and_twice_that(
            rounds in prop::collection::vec(10u64..200_000, 0..50),
            least_us in 10u64..100_000,
        ) {
            let own_us = own_us(&rounds, least_us);
            prop_assert!((least_us..=2 * least_us).contains(&own_us));
        }
    }
}
