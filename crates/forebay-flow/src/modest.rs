//! How large commits may be while somebody waits for them who puts next to nothing into them.
//!
//! ```text
//!   a flood's commits    ████████████████████▏████████████████████▏   a message that comes in the first one
//!                          ↑                                      ↓   waits for both: for the one that runs,
//!                                                                     and for its own
//!   beside the modest    ███▏███▏███▏███▏███▏███▏                     bytes that take as long as all else does
//!                          ↑       ↓
//! ```
//! Group commit is a bargain among those who wait: each has its messages in the batch that it waits for. Who publishes
//! without confirms, or has a large window, fills batches and hardly feels what they take; who sends a message now and then
//! pays for all of it. So it is as with sparse flows (RFC 8290, section 4.1): while there are some, nobody fills
//! a commit beyond what costs them twice its least time. Where all bring as much as each other nobody is modest, however
//! many they are and however small their windows.

/// Modest is who has less than one part in so many of an even share of a commit,
const SHARE: u64 = 16;
/// in so many of its commits in a row: a visit that is cut by the end of a batch is not modesty.
const IN_A_ROW: u8 = 8;
/// Commits stay small for so long after the last commit with somebody modest in it, in microseconds.
const REMEMBERED_US: u64 = 1_000_000;
/// Smaller commits cost more than they save: a quick disk has five sixths of its best rate with these.
const LEAST_BYTES: u64 = 256 * 1024;

/// One who waits for commits.
#[derive(Debug, Clone, Copy, Default)]
pub struct CommitWaiter {
    in_a_row: u8,
}

impl CommitWaiter {
    /// A commit of `bytes` that `waiters` waited for is done, and `own_bytes` of it were of this one. Returns whether it
    /// is modest.
    pub fn committed(&mut self, own_bytes: u64, bytes: u64, waiters: u64) -> bool {
        let few = own_bytes.saturating_mul(SHARE).saturating_mul(waiters.max(1)) <= bytes;
        self.in_a_row = if few { self.in_a_row.saturating_add(1) } else { 0 };
        self.in_a_row >= IN_A_ROW
    }
}

/// The bound on commits.
#[derive(Debug, Clone, Default)]
pub struct CommitSize {
    until_us: u64,
}

impl CommitSize {
    /// Somebody modest has waited.
    pub fn modest(&mut self, now_us: u64) {
        self.until_us = now_us + REMEMBERED_US;
    }

    /// The most bytes of a commit, if there is a bound now. `even_bytes` take as long as all else of a commit
    /// ([`CommitCost::even_bytes`](crate::CommitCost::even_bytes)); of a disk of which that is not known there is none.
    #[must_use]
    pub fn most_bytes(&self, now_us: u64, even_bytes: Option<u64>) -> Option<u64> {
        even_bytes.filter(|_| now_us < self.until_us).map(|bytes| bytes.max(LEAST_BYTES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn who_has_next_to_nothing_in_eight_commits_in_a_row_is_modest() {
        let mut waiter = CommitWaiter::default();
        for _ in 0..7 {
            assert!(!waiter.committed(1_000, 2_000_000, 1));
        }
        assert!(waiter.committed(1_000, 2_000_000, 1));
        assert!(waiter.committed(62_500, 2_000_000, 2), "a sixteenth of the half");
        assert!(!waiter.committed(62_501, 2_000_000, 2));
        assert!(!waiter.committed(1_000, 2_000_000, 2), "from the beginning");
    }

    #[test]
    fn commits_are_small_for_a_second_after_the_last_modest_one() {
        let mut size = CommitSize::default();
        assert_eq!(size.most_bytes(0, Some(1 << 20)), None);
        size.modest(500);
        assert_eq!(size.most_bytes(1_000_499, Some(1 << 20)), Some(1 << 20));
        assert_eq!(size.most_bytes(1_000_499, Some(1_000)), Some(LEAST_BYTES));
        assert_eq!(size.most_bytes(1_000_499, None), None);
        assert_eq!(size.most_bytes(1_000_500, Some(1 << 20)), None);
    }

    proptest! {
        /// Visits end where a batch does, so some have little in one; not the same ones every time.
        #[test]
        fn among_equals_nobody_is_modest(
            waiters in 2..200usize, visit_bytes in 1_000..100_000u64, cuts in prop::collection::vec(0..100_000u64, 1..100),
        ) {
            let mut all = vec![CommitWaiter::default(); waiters];
            for (number, cut) in cuts.iter().enumerate() {
                let cut_at = number % waiters;
                let own = |at| if at == cut_at { cut.min(&visit_bytes) / 7 } else { visit_bytes };
                let bytes = (0..waiters).map(own).sum();
                for (at, waiter) in all.iter_mut().enumerate() {
                    prop_assert!(!waiter.committed(own(at), bytes, waiters as u64));
                }
            }
        }
    }
}
