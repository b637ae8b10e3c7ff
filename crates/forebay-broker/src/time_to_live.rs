//! How long messages may stay in a queue (`x-message-ttl`), without a time for each of them.
//!
//! ```text
//!   seq     1 ... 99 │ 100 ... 163 │ 164 ... 170 │ 171 ...
//!   mark             │ came at 3 s │ came at 5 s │ came at 9 s
//!           all gone   due at 3 s + step + ttl
//! ```
//! Messages come in the order of their numbers, so a mark says of all from its number on when they came: at its time, or up to a
//! *step* later. A step is the 128th part of the time to live: nobody expires early, and nobody later than by that part. Marks whose
//! messages have all expired are forgotten, so there are 130 at most, however long the queue is.

use std::collections::VecDeque;

use forebay_store::Seq;

/// Steps in a time to live.
const STEPS: u64 = 128;

#[derive(Debug)]
struct Mark {
    first: Seq,
    came_us: u64,
}

/// Of one queue. Times are in microseconds of one monotonic clock.
#[derive(Debug)]
pub(crate) struct TimeToLive {
    ttl_us: u64,
    marks: VecDeque<Mark>,
    /// All before this one have expired, wherever they are.
    gone_before: Seq,
}

impl TimeToLive {
    pub(crate) fn of_ms(ttl_ms: u64) -> TimeToLive {
        TimeToLive { ttl_us: ttl_ms.saturating_mul(1_000), marks: VecDeque::new(), gone_before: 0 }
    }

    fn step_us(&self) -> u64 {
        self.ttl_us / STEPS
    }

    fn due_after_us(&self, came_us: u64) -> u64 {
        came_us.saturating_add(self.step_us()).saturating_add(self.ttl_us)
    }

    /// Message `seq` came, behind all others.
    pub(crate) fn came(&mut self, now_us: u64, seq: Seq) {
        while let Some(mark) = self.marks.front()
            && self.due_after_us(mark.came_us) <= now_us
        {
            self.marks.pop_front();
            self.gone_before = self.marks.front().map_or(seq, |next| next.first);
        }
        let ends_us = self.marks.back().map(|mark| mark.came_us + self.step_us());
        if ends_us.is_none_or(|ends_us| ends_us < now_us) {
            self.marks.push_back(Mark { first: seq, came_us: now_us });
        }
        debug_assert!(self.marks.len() <= STEPS as usize + 2, "{} marks", self.marks.len());
    }

    /// When message `seq` has expired. One that nobody has seen come, say before a restart, counts as if it came with the next.
    pub(crate) fn due_us(&self, seq: Seq) -> u64 {
        if seq < self.gone_before {
            return 0;
        }
        let behind = self.marks.partition_point(|mark| mark.first <= seq);
        let mark = self.marks.get(behind.saturating_sub(1));
        mark.map_or(u64::MAX, |mark| self.due_after_us(mark.came_us))
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
