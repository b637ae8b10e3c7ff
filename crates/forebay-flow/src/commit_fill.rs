//! What few publishers next door have in flight although they wait for it: together so much that commits are large.
//!
//! ```text
//!   fill   3000 n^0.41 messages, or what n carry in 2.4 ms / n if that is more, and 3.9 MB at most, divided by n publishers,
//!          while that is no more than 16 ms above the base
//! ```
//!
//! A commit of few messages costs nearly as much as one of many, and what is in flight is what commits hold. On two slow
//! cores windows of 700, 1300, 2000 and 4000 messages of 200 B carry 410, 590, 660 and 800 k/s of one publisher, at a p99
//! of 7 to 14 ms; on two quick ones 2000 carry nine tenths of what any window does. Of 1 kB twenty with some 90, 150 and
//! 700 each carry 89, 95 and 100 % on two of middling speed; of 5 kB one does best with 600 to 800.
//!
//! All of this is where the search begins: where it counts, the broker [tries out](crate::FillTrial) which part of it a machine needs,
//! and a quick one needs half.
//!
//! Of several each has its own visits and wakes, so together they need somewhat more: of 200 B two, five, ten and twenty
//! carry most with 5700, 5700, 6000 and 8500 in flight on two cores of middling speed, and 92, 98, 87 and 83 % of it with
//! 4000. The search begins at three quarters, for twenty of 9750: 380 each.
//!
//! On a quick machine 3000 are on their way for 1.6 ms, and one that then waits for threads to wake has 92 to 97 % of the best rate, where
//! 5200 have 95 to 100 % at a p99 of 5 ms. So what one alone carries in some milliseconds is its part, too; of several each
//! finds others at work. By the least latency of three rounds that is 2 ms, and by the mean, as rounds there are, 3. With 2.4 by the least one on a
//! quick machine has 5400 in flight in place of 4400, and 95 % (94 to 97) of the best rate in place of 92 % (90 to 95), at 0.88 times the knee's p99.
//!
//! The latency alone does not show this. Next door it is made of a disk's fraction of a millisecond and of threads that wake late, both as uneven as
//! what a window adds: one publisher had between 200 and 2600 messages in flight within the same four seconds, and half of the rate. So where
//! the broker tells how many publish ([`CommitTime`](crate::CommitTime)), a window is not cut below its part. Of many publishers
//! the part is less than a [visit](crate::crowd) is, and nothing changes for them: from 76 on with 200 B, from 48 with more.
//!
//! It is not for the messages that a slower machine or a link of little bandwidth makes wait: 16 ms is what they may. With 8 a slow
//! moment of the disk left twenty of 1 kB below their part, and in the first seconds after a start their p99 was 555 ms in place of 89.

use crate::delay_target::OVERHEAD_BYTES;

/// In flight of all together, what is less: so many messages of one, and of n as much more as n to this power says,
const FILL_MESSAGES: f64 = 3_000.0;
const FILL_SHARED: f64 = 0.41;
/// or so many bytes, of bodies and what is [beside them](OVERHEAD_BYTES).
const FILL_BYTES: f64 = 3_900_000.0;
/// If one alone carries more than those messages in this time, so many, and of n publishers what they carry in the n-th part of it.
const FILL_QUICK_US: f64 = 2_400.0;
/// And no longer above the base than this, in microseconds.
pub(crate) const FILL_MAX_US: f64 = 16_000.0;

/// Messages of this mean size that each of so many publishers may have in flight, of which one carries so many a microsecond.
pub(crate) fn fill_messages(publishers: f64, size_bytes: f64, per_us: f64) -> f64 {
    let messages = FILL_MESSAGES * publishers.powf(FILL_SHARED) / publishers;
    let quick_messages = FILL_QUICK_US / publishers * per_us;
    let most_messages = FILL_BYTES / (size_bytes + OVERHEAD_BYTES) / publishers;
    messages.max(quick_messages).min(most_messages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_share_commits_fill_them_together() {
        let fill_messages = |publishers, size_bytes| fill_messages(publishers, size_bytes, 0.0);
        let alone = fill_messages(1.0, 200.0);
        assert!((2_500.0..=3_500.0).contains(&alone), "{alone}");
        for publishers in [2.0, 5.0, 20.0] {
            let together = publishers * fill_messages(publishers, 200.0) / alone;
            assert!((1.1..=3.5).contains(&together), "{publishers}: {together}");
        }
        assert!(
            (4.0 * fill_messages(4.0, 5_000.0) / fill_messages(1.0, 5_000.0) - 1.0).abs() < 1e-6
        );
    }

    #[test]
    fn large_messages_fill_a_commit_sooner() {
        let fill = |size_bytes| fill_messages(1.0, size_bytes, 0.0);
        assert!(fill(0.0) < 1.1 * fill(1_000.0), "below 1.1 kB it is their number that counts");
        assert!(fill(2_000.0) < 0.7 * fill(200.0) && fill(5_000.0) < 0.5 * fill(2_000.0));
    }

    #[test]
    fn one_alone_on_a_quick_machine_has_in_flight_what_it_carries_in_a_few_milliseconds() {
        let per_us = 2.5;
        let alone = fill_messages(1.0, 200.0, per_us);
        assert!((1_500.0..=2_500.0).contains(&(alone / per_us)), "{alone}");
        let slow = fill_messages(1.0, 200.0, 0.5);
        assert!(slow < 0.7 * alone && (slow - fill_messages(1.0, 200.0, 0.0)).abs() < 1e-6);
        let large = [per_us, 0.0].map(|per_us| fill_messages(1.0, 5_000.0, per_us));
        assert!((large[0] - large[1]).abs() < 1e-6, "its bytes are the end: {large:?}");
        let of_twenty = [per_us / 20.0, 0.0].map(|per_us| fill_messages(20.0, 200.0, per_us));
        assert!((of_twenty[0] - of_twenty[1]).abs() < 1e-6, "{of_twenty:?}");
    }
}
