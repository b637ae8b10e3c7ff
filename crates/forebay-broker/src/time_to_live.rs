//! How long messages may stay in a queue (`x-message-ttl`), without a time for each of them.
//!
//! ```text
//!   seq     1 ... 99 │ 100 ... 163 │ 164 ... 170 │ 171 ...
//!   mark             │ came at 3 s │ came at 5 s │ came at 9 s
//!           all gone   due at 3 s + step + ttl
//! ```
//! Messages come in the order of their numbers, so a mark says of all from its number on when they came: at its time, or up to a
//! *step* later. A step is the 128th part of the time to live: nobody expires early, and nobody later than by that part. Marks whose
//! messages have all expired are forgotten, so there are 130 at most, however long the queue is. After a restart there are those that
//! [were written](crate::arrivals), which are coarser.

use std::collections::VecDeque;

use forebay_store::Seq;

use crate::arrivals::{Arrival, Arrivals};

/// Steps in a time to live.
const STEPS: u64 = 128;
/// Those of a time to live, one that begins and one that ends; and those of before a restart.
const MARKS_MAX: usize = STEPS as usize + 2 + crate::arrivals::SLOTS as usize;

#[derive(Debug)]
struct Mark {
    first: Seq,
    /// They had come by then: before the clock began, where a restart was in between.
    by_us: i64,
}

/// Of one queue. Times are in microseconds of one monotonic clock.
#[derive(Debug)]
pub(crate) struct TimeToLive {
    ttl_us: u64,
    marks: VecDeque<Mark>,
    /// All before this one have expired, wherever they are.
    gone_before: Seq,
    arrivals: Arrivals,
    /// What a restart found counts as if it came with it, and nothing has come since.
    anew: bool,
}

impl TimeToLive {
    pub(crate) fn of_ms(ttl_ms: u64) -> TimeToLive {
        TimeToLive {
            ttl_us: ttl_ms.saturating_mul(1_000),
            marks: VecDeque::new(),
            gone_before: 0,
            arrivals: Arrivals::default(),
            anew: false,
        }
    }

    /// The same time to live, for messages of which none has come.
    pub(crate) fn anew(&self) -> TimeToLive {
        TimeToLive::of_ms(self.ttl_us / 1_000)
    }

    fn step_us(&self) -> u64 {
        self.ttl_us / STEPS
    }

    /// When those are due that had come by then; 0 if that was before the clock began.
    fn due_after_us(&self, by_us: i64) -> u64 {
        self.ttl_us.saturating_add_signed(by_us)
    }

    /// Message `seq` came, behind all others.
    pub(crate) fn came(&mut self, now_us: u64, seq: Seq) {
        self.anew = false;
        while let Some(mark) = self.marks.front()
            && self.due_after_us(mark.by_us) <= now_us
        {
            self.marks.pop_front();
            self.gone_before = self.marks.front().map_or(seq, |next| next.first);
        }
        let now_us = i64::try_from(now_us).unwrap_or(i64::MAX);
        if self.marks.back().is_none_or(|mark| mark.by_us < now_us) {
            let by_us = now_us.saturating_add_unsigned(self.step_us());
            self.marks.push_back(Mark { first: seq, by_us });
        }
        debug_assert!(self.marks.len() <= MARKS_MAX, "{} marks", self.marks.len());
    }

    /// Message `place` of a queue's comes, and is to survive a restart: what is to be written before it is. The clock began
    /// `began_us` after 1970.
    pub(crate) fn comes_to_stay(
        &mut self,
        now_us: u64,
        began_us: u64,
        place: (u64, Seq),
    ) -> Option<Arrival> {
        self.arrivals.comes(now_us, began_us, self.ttl_us, place)
    }

    /// What a start found of when messages came. Until the time of day is [known](TimeToLive::clock_known) they count as if they came now.
    pub(crate) fn restored(&mut self, now_us: u64, arrivals: impl IntoIterator<Item = Arrival>) {
        self.came(now_us, 1);
        self.anew = true;
        for arrival in arrivals {
            self.arrivals.found(arrival);
        }
    }

    /// The time of day is known for the first time: the clock began `began_us` after 1970. If something came before, it is too late.
    pub(crate) fn clock_known(&mut self, now_us: u64, began_us: u64) {
        let found = self.arrivals.take_found(now_us, began_us, self.ttl_us);
        if self.anew && !found.is_empty() {
            self.marks = found.into_iter().map(|(first, by_us)| Mark { first, by_us }).collect();
        }
    }

    /// The slots of its arrivals that are on disk.
    pub(crate) fn slots(&self) -> impl Iterator<Item = u8> + use<> {
        self.arrivals.slots()
    }

    /// When message `seq` has expired. One that nobody has seen come, say before a restart, counts as if it came with the next.
    pub(crate) fn due_us(&self, seq: Seq) -> u64 {
        if seq < self.gone_before {
            return 0;
        }
        let behind = self.marks.partition_point(|mark| mark.first <= seq);
        let mark = self.marks.get(behind.saturating_sub(1));
        mark.map_or(u64::MAX, |mark| self.due_after_us(mark.by_us))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn with_none_to_live_what_came_now_is_due_now() {
        let mut ttl = TimeToLive::of_ms(0);
        ttl.came(5, 1);
        ttl.came(5, 2);
        ttl.came(7, 3);
        assert_eq!([1, 2, 3].map(|seq| ttl.due_us(seq)), [0, 0, 7]);
    }

    #[test]
    fn what_came_before_all_marks_is_due_with_the_first() {
        let mut ttl = TimeToLive::of_ms(128);
        assert_eq!(ttl.due_us(7), u64::MAX, "nobody has seen any");
        ttl.came(1_000, 8);
        assert_eq!(ttl.due_us(7), 1_000 + 129_000);
    }

    proptest! {
        /// Whenever messages come: none is due early, none later than by a step, and there are few marks.
        #[test]
        fn a_message_expires_in_time(
            ttl_ms in prop_oneof![Just(0), 1u64..50, 1_000u64..100_000],
            pauses_us in prop::collection::vec(prop_oneof![0u64..2_000, 0u64..2_000_000], 1..400),
        ) {
            let mut ttl = TimeToLive::of_ms(ttl_ms);
            let (mut now_us, mut came_us) = (0, Vec::new());
            for pause_us in pauses_us {
                now_us += pause_us;
                came_us.push(now_us);
                ttl.came(now_us, came_us.len() as Seq);
                prop_assert!(ttl.marks.len() <= 130);
            }
            for (at, came_us) in came_us.iter().enumerate() {
                let due_us = ttl.due_us(at as Seq + 1);
                let earliest_us = came_us + ttl_ms * 1_000;
                prop_assert!(due_us == 0 && earliest_us <= now_us || due_us >= earliest_us);
                prop_assert!(due_us <= earliest_us + ttl_ms * 1_000 / 128);
            }
        }
    }
}
