//! Where a message waits that is not due yet: a machine that compares numbers.
//!
//! ```text
//!   pause of 45 s    |─────────────── 32 s ───────────────|─── 8 s ───|─ 4 s ─|1 s|
//!                     queue.retry.32s               queue   .retry.8s   .4s    held, where less than `from` is left
//! ```
//! Each rung is a queue in which all messages wait equally long, so none waits behind one that waits longer: a broker
//! lets messages expire at the head of their queue only. A message takes the longest rung that is not longer than what is
//! left of its pause, and is looked at again when it comes back. Late by a trip through its queue each time, never early by the
//! clock of whoever looks.
//!
//! A Forebay lets messages expire up to a 128th part of their time to live late, which would be four minutes of the longest rung. So a
//! rung is taken with that to spare, and the next one makes up for it: late is the message only by what the last rungs were.
//!
//! Trips: one for each [`Rung::LONGEST`] of the pause, and 16 at most for the rest, none on a longer rung than the one before.

/// A queue in which messages wait for 1, 2, 4, … 32 768 seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rung(u8);

/// What becomes of a message with a due time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Its time has come.
    Over,
    /// It is held for so long.
    Held {
        /// Milliseconds.
        rest_ms: u64,
    },
    /// It goes here.
    Rung(Rung),
}

impl Rung {
    /// 2^15 s, which is 9 h 6 min.
    pub const LONGEST: Rung = Rung(15);
    /// Messages may stay longer by this part of it.
    const LATE_PART: u64 = 128;

    /// The longest that does not take longer than this, though it be a 128th part of it late; `None` below a second.
    #[must_use]
    pub fn within_ms(rest_ms: u64) -> Option<Rung> {
        let exponent = (rest_ms / (1_000 + 1_000u64.div_ceil(Rung::LATE_PART))).checked_ilog2()?;
        Some(Rung(Rung::LONGEST.0.min(u8::try_from(exponent).unwrap_or(u8::MAX))))
    }

    /// How long messages stay.
    #[must_use]
    pub fn seconds(self) -> u32 {
        1 << self.0
    }

    /// The queue's name, for messages of `queue`.
    #[must_use]
    pub fn name(self, queue: &str) -> String {
        format!("{queue}.retry.{}s", self.seconds())
    }

    /// Its place, from 0.
    pub(crate) fn index(self) -> usize {
        self.0.into()
    }
}

/// What becomes of a message that is due at `due_ms`, where pauses shorter than `from_ms` are held. All in milliseconds since
/// 1970.
pub(crate) fn wait(due_ms: u64, now_ms: u64, from_ms: u64) -> Wait {
    match due_ms.saturating_sub(now_ms) {
        0 => Wait::Over,
        rest_ms if rest_ms < from_ms => Wait::Held { rest_ms },
        rest_ms => Rung::within_ms(rest_ms).map_or(Wait::Held { rest_ms }, Wait::Rung),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_pause_takes_the_longest_rung_within_it() {
        for (rest_ms, seconds) in [
            (1_008, 1),
            (1_999, 1),
            (45_000, 32),
            (32_255, 16),
            (32_256, 32),
            (33_030_144, 32_768),
            (u64::MAX, 32_768),
        ] {
            assert_eq!(Rung::within_ms(rest_ms).map(Rung::seconds), Some(seconds), "{rest_ms}");
        }
        assert_eq!(Rung::within_ms(1_007), None);
        assert_eq!(Rung::within_ms(9_000).unwrap().name("orders"), "orders.retry.8s");
    }

    /// A Forebay's are late by up to the 128th part.
    #[test]
    fn a_long_pause_on_rungs_that_are_all_late_ends_in_time() {
        let due_ms = 4 * 32_768_000;
        let (mut now_ms, mut trips) = (0, 0);
        while let Wait::Rung(rung) = wait(due_ms, now_ms, 5_000) {
            now_ms += u64::from(rung.seconds()) * 1_000 * 129 / 128;
            trips += 1;
        }
        assert!(matches!(wait(due_ms, now_ms, 5_000), Wait::Held { .. }), "after {now_ms} ms");
        assert!(trips <= 20, "{trips} trips");
    }

    proptest! {
        /// Each trip is late by as much as queues and brokers like.
        #[test]
        fn it_is_never_early_and_takes_few_trips(
            pause_ms in prop_oneof![1..100_000u64, 1..300_000_000u64],
            from_ms in 1..20_000u64,
            lates_ms in prop::collection::vec(prop_oneof![Just(0u64), 0..50u64, 0..200_000u64], 64),
        ) {
            let (due_ms, mut now_ms) = (1_700_000_000_000 + pause_ms, 1_700_000_000_000);
            let (mut rungs, mut held_ms) = (Vec::new(), 0);
            let mut late_ms = 0;
            for trip_late_ms in lates_ms {
                match wait(due_ms, now_ms, from_ms) {
                    Wait::Over => break,
                    Wait::Held { rest_ms } => {
                        prop_assert_eq!(now_ms + rest_ms, due_ms);
                        prop_assert!(rest_ms < from_ms.max(1_008));
                        held_ms = rest_ms;
                        now_ms += rest_ms;
                    }
                    Wait::Rung(rung) => {
                        let stay_ms = u64::from(rung.seconds()) * 1_000;
                        prop_assert!(now_ms + stay_ms <= due_ms, "early, by itself");
                        let no_longer = rungs.last().is_none_or(|last| rung <= *last);
                        prop_assert!(no_longer, "{:?} after {:?}", rung, rungs);
                        rungs.push(rung);
                        late_ms += trip_late_ms;
                        now_ms += stay_ms + trip_late_ms;
                    }
                }
            }
            prop_assert_eq!(wait(due_ms, now_ms, from_ms), Wait::Over);
            prop_assert!(now_ms >= due_ms);
            let trips_max = pause_ms / 32_768_000 + 16;
            prop_assert!(rungs.len() as u64 <= trips_max, "{} trips", rungs.len());
            let stays_ms: u64 = rungs.iter().map(|rung| u64::from(rung.seconds()) * 1_000).sum();
            prop_assert!(stays_ms + held_ms <= pause_ms);
            prop_assert!(now_ms - due_ms <= late_ms, "later than its trips were");
            if late_ms == 0 {
                prop_assert_eq!(stays_ms + held_ms, pause_ms);
            }
        }
    }
}
