//! Whose turn it is among the consumers of a queue, and how much that one gets.
//!
//! A message to each in turn is what an idle consumer wants, and what a busy broker can afford least: with a hundred
//! consumers every one of them gets two or three messages in a turn, each in a write of its own, and the system
//! calls cost more than all the rest (measured: 44 % of the processor). So, while there is more to read than a turn
//! reads, the queue gathers messages for a moment, and consumers get several in a row; never more than an equal share of
//! what is there, so that nobody goes without. The moment is shorter where the next consumer has nothing to do: no worker
//! is idle for more than a millisecond while a message waits that it may take.
//!
//! ```text
//!   not busy            a b c a b c                       at once, one each
//!   busy    gather ──▶  a a a a b b b b c c c c           after GATHER_US, or with PORTION_MAX for each
//!           and a idle                                    after GATHER_IDLE_US
//! ```

/// How long messages are gathered at most, in microseconds, for a consumer that has work,
const GATHER_US: u64 = 5_000;
/// and for one that has none.
const GATHER_IDLE_US: u64 = 1_000;

/// While queues gather they are looked at so often, in microseconds, if nothing else happens.
pub(crate) const GATHER_LOOK_US: u64 = GATHER_IDLE_US / 2;

/// The most that one consumer gets in a row, in messages.
const PORTION_MAX: usize = 32;

/// The turns of one queue.
#[derive(Debug, Default)]
pub(crate) struct RoundRobin {
    /// Whose turn it is.
    at: usize,
    /// How much everyone gets, and how much this one still does; 0 before the first portion.
    portion: usize,
    left: usize,
    /// When portions were last cut.
    cut_us: u64,
}

impl RoundRobin {
    /// Whose turn it is; at or beyond the end means the first one's.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// Whether a queue with so many messages and consumers had better wait for more, if the broker is busy; the next
    /// consumer has work, or is `idle`.
    pub(crate) fn gathers(&self, now_us: u64, ready: usize, consumers: usize, idle: bool) -> bool {
        let gather_us = if idle { GATHER_IDLE_US } else { GATHER_US };
        ready < consumers * PORTION_MAX && now_us < self.cut_us + gather_us
    }

    /// Cuts portions, once in a turn: equal shares if the broker is busy.
    pub(crate) fn cut(&mut self, now_us: u64, ready: usize, consumers: usize, busy: bool) {
        if self.cut_us == now_us && self.portion > 0 {
            return;
        }
        self.cut_us = now_us;
        let share = if busy { ready / consumers.max(1) } else { 1 };
        self.portion = share.clamp(1, PORTION_MAX);
        self.left = self.portion;
    }

    /// The consumer at `at` got a message: the one whose turn it was, or the first behind it that could take one.
    pub(crate) fn served(&mut self, at: usize) {
        if at != self.at {
            self.at = at;
            self.left = self.portion;
        }
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            self.at = at + 1;
            self.left = self.portion;
        }
    }

    /// The consumer at `at` is gone, and those behind it have moved up.
    pub(crate) fn removed(&mut self, at: usize) {
        if self.at > at {
            self.at -= 1;
        } else if self.at == at {
            self.left = self.portion;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Who gets `ready` messages.
    fn serve(turns: &mut RoundRobin, ready: usize, consumers: usize) -> Vec<usize> {
        (0..ready)
            .map(|_| {
                let at = if turns.at() >= consumers { 0 } else { turns.at() };
                turns.served(at);
                at
            })
            .collect()
    }

    #[test]
    fn one_each_while_the_broker_has_time() {
        let mut turns = RoundRobin::default();
        turns.cut(5, 7, 3, false);
        assert_eq!(serve(&mut turns, 7, 3), [0, 1, 2, 0, 1, 2, 0]);
    }

    #[test]
    fn equal_shares_in_a_row_while_it_is_busy() {
        let mut turns = RoundRobin::default();
        turns.cut(5, 7, 3, true);
        assert_eq!(serve(&mut turns, 7, 3), [0, 0, 1, 1, 2, 2, 0]);
        turns.cut(5, 100, 3, true);
        assert_eq!(serve(&mut turns, 2, 3), [0, 1], "once in a turn");
        turns.cut(6, 2, 3, true);
        assert_eq!(serve(&mut turns, 2, 3), [1, 2]);
    }

    #[test]
    fn messages_are_gathered_for_a_moment_and_not_beyond_a_portion_for_each() {
        let mut turns = RoundRobin::default();
        turns.cut(10_000, 1, 3, true);
        assert!(turns.gathers(14_999, 95, 3, false));
        assert!(!turns.gathers(14_999, 96, 3, false));
        assert!(!turns.gathers(15_000, 1, 3, false));
    }

    #[test]
    fn for_an_idle_consumer_messages_are_gathered_for_a_millisecond() {
        let mut turns = RoundRobin::default();
        turns.cut(10_000, 1, 3, true);
        assert!(turns.gathers(10_999, 95, 3, true));
        assert!(!turns.gathers(11_000, 1, 3, true));
    }

    proptest! {
        #[test]
        fn nobody_goes_without_where_there_is_one_for_each(
            ready in 0..500usize, consumers in 1..40usize, at in 0..50usize, busy: bool, gone in 0..50usize,
        ) {
            let mut turns = RoundRobin { at, ..RoundRobin::default() };
            turns.removed(gone);
            turns.cut(1, ready, consumers, busy);
            let mut got = vec![0usize; consumers];
            for at in serve(&mut turns, ready, consumers) {
                got[at] += 1;
            }
            let (least, most) = (got.iter().min().unwrap(), got.iter().max().unwrap());
            prop_assert!(ready < consumers || *least > 0, "{got:?}");
            prop_assert!(most - least <= PORTION_MAX.max(1), "{got:?}");
        }
    }
}
