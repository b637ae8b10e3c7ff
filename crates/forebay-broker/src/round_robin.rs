//! Whose turn it is among the consumers of a queue, and how much that one gets.
//!
//! A message to each in turn is what an idle consumer wants, and what a busy broker can afford least: with a hundred
//! consumers every one of them gets two or three messages in a turn, each in a write of its own, and the system
//! calls cost more than all the rest (measured: 44 % of the processor). So, while there is more to read than a turn
//! reads, the queue gathers messages for a moment, and consumers get several in a row: an equal share of what comes in
//! such a moment, so that nobody goes without, and as soon as it is there for whom it is next. (Until there was one for
//! everybody, a hundred consumers had 3 MB gathered, which had left the processor's cache when it was copied to them:
//! a thousand publishers had 15 to 25 % less, decision 24.) The moment is shorter where the next consumer has nothing to do:
//! no worker is idle for more than a millisecond while a message waits that it may take.
//!
//! ```text
//!   not busy            a b c a b c                       at once, one each
//!   busy    gather ─▶ a a a a   gather ─▶ b b b b c c c   each when its share is there
//! ```
//! A share is what was delivered in the last moment, divided among the consumers, from one to [`PORTION_MAX`] messages; of a
//! backlog, and after a moment in which less came, it is what is ready, divided among them. It does not follow a burst at once:
//! those that come together after a pause are not for one worker while others are idle.

/// How long messages are gathered at most, in microseconds, for a consumer that has work,
const GATHER_US: u64 = 5_000;
/// and for one that has none.
const GATHER_IDLE_US: u64 = 1_000;

/// While queues gather they are looked at so often, in microseconds, if nothing else happens.
pub(crate) const GATHER_LOOK_US: u64 = GATHER_IDLE_US / 2;

/// The most that one consumer gets in a row, in messages.
const PORTION_MAX: usize = 32;

/// A queue waits for a moment for more messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gathers;

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
    /// When the running moment began, the messages served in it, and those of the last one.
    moment_us: u64,
    served: u64,
    last_served: u64,
}

impl RoundRobin {
    /// Whose turn it is; at or beyond the end means the first one's.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// How many messages the next consumer gets in a row if the broker is busy, and whether a queue with so many had better
    /// wait for more; that consumer has work, or is `idle`.
    pub(crate) fn portion(
        &self,
        now_us: u64,
        ready: usize,
        consumers: usize,
        idle: bool,
    ) -> Result<usize, Gathers> {
        let moment_us = if idle { GATHER_IDLE_US } else { GATHER_US };
        let consumers = consumers.max(1);
        let of_all = (ready / consumers).clamp(1, PORTION_MAX);
        let came = self.last_served * moment_us / GATHER_US;
        let share = ((came / consumers as u64) as usize).clamp(of_all, PORTION_MAX);
        if ready >= share {
            Ok(share)
        } else if now_us < self.cut_us + moment_us {
            Err(Gathers)
        } else {
            Ok(of_all)
        }
    }

    /// Everyone gets `portion` in a row from now on. Once in a turn.
    pub(crate) fn cut(&mut self, now_us: u64, portion: usize) {
        if self.cut_us == now_us && self.portion > 0 {
            return;
        }
        self.cut_us = now_us;
        let passed_us = now_us.saturating_sub(self.moment_us);
        if passed_us >= GATHER_US {
            self.last_served = self.served * GATHER_US / passed_us;
            (self.moment_us, self.served) = (now_us, 0);
        }
        self.portion = portion;
        self.left = portion;
    }

    /// The consumer at `at` got a message: the one whose turn it was, or the first behind it that could take one.
    pub(crate) fn served(&mut self, at: usize) {
        self.served += 1;
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

    /// A queue that had so many messages in its last moment.
    fn after(last_served: u64) -> RoundRobin {
        RoundRobin { cut_us: 10_000, portion: 1, last_served, ..RoundRobin::default() }
    }

    #[test]
    fn one_each_while_the_broker_has_time() {
        let mut turns = RoundRobin::default();
        turns.cut(5, 1);
        assert_eq!(serve(&mut turns, 7, 3), [0, 1, 2, 0, 1, 2, 0]);
    }

    #[test]
    fn portions_in_a_row_while_it_is_busy() {
        let mut turns = RoundRobin::default();
        turns.cut(5, 2);
        assert_eq!(serve(&mut turns, 7, 3), [0, 0, 1, 1, 2, 2, 0]);
        turns.cut(5, 33);
        assert_eq!(serve(&mut turns, 2, 3), [0, 1], "once in a turn");
        turns.cut(6, 1);
        assert_eq!(serve(&mut turns, 2, 3), [1, 2]);
    }

    #[test]
    fn the_next_one_has_its_share_of_a_moment_as_soon_as_it_is_there() {
        let turns = after(60);
        assert_eq!(turns.portion(10_000, 19, 3, false), Err(Gathers));
        assert_eq!(turns.portion(10_000, 20, 3, false), Ok(20));
        assert_eq!(after(6000).portion(10_000, 31, 3, false), Err(Gathers));
        assert_eq!(after(6000).portion(10_000, 32, 3, false), Ok(PORTION_MAX));
    }

    #[test]
    fn if_less_comes_all_share_what_is_there_after_a_moment() {
        let turns = after(60);
        assert_eq!(turns.portion(14_999, 15, 3, false), Err(Gathers));
        assert_eq!(turns.portion(15_000, 15, 3, false), Ok(5));
        assert_eq!(turns.portion(15_000, 2, 3, false), Ok(1));
    }

    #[test]
    fn an_idle_consumer_waits_a_fifth_of_that() {
        let turns = after(60);
        assert_eq!(turns.portion(10_999, 3, 3, true), Err(Gathers));
        assert_eq!(turns.portion(11_000, 3, 3, true), Ok(1));
        assert_eq!(turns.portion(10_000, 4, 3, true), Ok(4));
    }

    #[test]
    fn what_comes_together_after_a_pause_is_not_for_one() {
        assert_eq!(after(0).portion(10_001, 32, 25, false), Ok(1));
        assert_eq!(after(0).portion(10_001, 75, 25, false), Ok(3), "a backlog is for all");
    }

    #[test]
    fn a_moment_is_counted_by_the_time_it_took() {
        let mut turns = RoundRobin::default();
        turns.cut(GATHER_US, 1);
        serve(&mut turns, 600, 3);
        turns.cut(2 * GATHER_US - 1, 1);
        assert_eq!(turns.last_served, 0);
        turns.cut(3 * GATHER_US, 1);
        assert_eq!(turns.last_served, 300, "in half of the time that passed");
    }

    proptest! {
        /// Whatever comes, how it comes, and how often the broker looks: nobody waits longer than until a portion is there
        /// for everyone, or for a moment for each round.
        #[test]
        fn everyone_has_a_portion_in_a_round(
            consumers in 1..40usize,
            arrivals in proptest::collection::vec((0..200usize, 1..3_000u64), 1..400),
            idle: bool,
        ) {
            let mut turns = RoundRobin::default();
            let (mut now_us, mut ready, mut came_us) = (1_000_000, 0, 1_000_000);
            let (mut got, mut waited_for) = (vec![0usize; consumers], vec![0usize; consumers]);
            for (came, passed_us) in arrivals {
                now_us += passed_us;
                if ready == 0 {
                    came_us = now_us;
                }
                ready += came;
                match turns.portion(now_us, ready, consumers, idle) {
                    Err(Gathers) => {
                        prop_assert!(ready < PORTION_MAX);
                        let moment_us = if idle { GATHER_IDLE_US } else { GATHER_US };
                        prop_assert!(now_us < came_us.max(turns.cut_us) + moment_us);
                    }
                    Ok(portion) => {
                        prop_assert!((1..=PORTION_MAX).contains(&portion));
                        turns.cut(now_us, portion);
                        for at in serve(&mut turns, std::mem::take(&mut ready), consumers) {
                            got[at] += 1;
                            for (other, waits) in waited_for.iter_mut().enumerate() {
                                *waits = if other == at { 0 } else { *waits + 1 };
                            }
                        }
                        // A portion may be cut anew in mid-row: twice at most for each of the others.
                        let most = 2 * PORTION_MAX * consumers;
                        prop_assert!(waited_for.iter().all(|waits| *waits <= most), "{waited_for:?}");
                    }
                }
            }
        }

        #[test]
        fn nobody_goes_without_where_a_backlog_has_one_for_each(
            ready in 0..500usize, consumers in 1..40usize, at in 0..50usize, gone in 0..50usize,
        ) {
            let mut turns = RoundRobin { at, ..RoundRobin::default() };
            turns.removed(gone);
            turns.cut(1, RoundRobin::default().portion(1, ready, consumers, false).unwrap_or(1));
            let mut got = vec![0usize; consumers];
            for at in serve(&mut turns, ready, consumers) {
                got[at] += 1;
            }
            let (least, most) = (got.iter().min().unwrap(), got.iter().max().unwrap());
            prop_assert!(ready < consumers || *least > 0, "{got:?}");
            prop_assert!(most - least <= PORTION_MAX, "{got:?}");
        }
    }
}
