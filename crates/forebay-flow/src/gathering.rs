//! How long a busy broker may gather what it delivers.
//!
//! ```text
//!   publisher ──waits for its turn──► read ──gathers──► written to a consumer
//!               W, as it happens             W, or W / 2 where the consumer is idle
//! ```
//! What a write costs is shared by the messages in it, and in 5 ms a thousand consumers of two hundred queues have two each.
//! Then the broker is slow, and publishers wait much longer than that until it reads them. So what it read may wait as long
//! as it waited before: a broker that has time gathers next to nothing, and one that a thousand publishers overload
//! writes ten times as many messages at once, by which all of them wait for less.

use crate::ewma::Ewma;

/// Where the next consumer has nothing to do, a wait for a turn is divided by this.
const IDLE_PART: u64 = 2;
/// In microseconds; so much is gathered however soon publishers are read,
const WORKING_LEAST_US: u64 = 5_000;
/// and so much for an idle consumer.
pub const IDLE_LEAST_US: u64 = 1_000;
/// More brings nothing.
const WORKING_MOST_US: u64 = 80_000;
/// Weight of a visit to a publisher; there are tens of thousands a second.
const WEIGHT: f64 = 1.0 / 256.0;

/// How long messages are gathered, from how long publishers wait until they are read.
#[derive(Debug, Clone)]
pub struct Gathering {
    waited_us: Ewma,
    busy: bool,
}

impl Default for Gathering {
    fn default() -> Gathering {
        Gathering { waited_us: Ewma::new(WEIGHT), busy: false }
    }
}

impl Gathering {
    /// A publisher that had sent something was read after so long.
    pub fn waited(&mut self, waited_us: u64) {
        self.waited_us.add(waited_us as f64);
    }

    /// A turn ends after which there is more to read, or is not.
    pub fn turn(&mut self, busy: bool) {
        self.busy = busy;
    }

    /// Whether there was more to read after the last turn: what is delivered meanwhile is gathered, too.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.busy
    }

    /// The moment for a consumer that has work, in microseconds.
    #[must_use]
    pub fn working_us(&self) -> u64 {
        self.turn_us().clamp(WORKING_LEAST_US, WORKING_MOST_US)
    }

    /// The moment for a consumer that has nothing to do, in microseconds; never more than for one that has.
    #[must_use]
    pub fn idle_us(&self) -> u64 {
        (self.turn_us() / IDLE_PART).clamp(IDLE_LEAST_US, WORKING_MOST_US / IDLE_PART)
    }

    fn turn_us(&self) -> u64 {
        self.waited_us.get().unwrap_or(0.0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn after(waits_us: &[u64]) -> (u64, u64) {
        let mut gathering = Gathering::default();
        for &waited_us in waits_us {
            gathering.waited(waited_us);
        }
        (gathering.working_us(), gathering.idle_us())
    }

    #[test]
    fn as_long_as_publishes_wait_anyway() {
        assert_eq!(after(&[]), (5_000, 1_000));
        assert_eq!(after(&[300; 1000]), (5_000, 1_000), "next to nothing");
        assert_eq!(after(&[4_000; 1000]), (5_000, 2_000));
        assert_eq!(after(&[60_000; 1000]), (60_000, 30_000));
        assert_eq!(after(&[10_000_000; 1000]), (80_000, 40_000), "enough");
    }

    #[test]
    fn it_is_short_again_as_soon_as_publishers_are_read_soon() {
        let mut waits_us = vec![100_000; 1000];
        waits_us.extend([200; 2000]);
        assert_eq!(after(&waits_us), (5_000, 1_000));
    }

    proptest! {
        #[test]
        fn the_idle_wait_for_no_longer_than_the_others(waits_us in proptest::collection::vec(0..u64::MAX, 0..20)) {
            let (working_us, idle_us) = after(&waits_us);
            prop_assert!((IDLE_LEAST_US..=working_us).contains(&idle_us));
            prop_assert!((WORKING_LEAST_US..=WORKING_MOST_US).contains(&working_us));
        }
    }
}
