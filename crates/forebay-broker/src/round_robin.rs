//! Whose turn it is among the consumers of a queue, and how much that one gets.
//!
//! A message to each in turn is what an idle consumer wants, and what a busy broker can afford least: with a hundred
//! consumers every one of them gets two or three messages in a turn, each in a write of its own, and the system
//! calls cost more than all the rest (measured: 44 % of the processor). So, while there is more to read than a turn
//! reads, the queue gathers messages for a moment, and consumers get several in a row: an equal share of what comes in
//! such a moment, so that nobody goes without, and as soon as it is there for whom it is next. (Until there was one for
//! everybody, a hundred consumers had 3 MB gathered, which had left the processor's cache when it was copied to them:
//! a thousand publishers had an eighth less, decision 24.) The moment is 5 ms, and one where the next consumer has
//! nothing to do; on a broker that is overloaded as long as publishers wait for it ([`Gathering`](forebay_flow::Gathering)).
//!
//! ```text
//!   not busy            a b c a b c                       at once, one each
//!   busy    gather ─▶ a a a a   gather ─▶ b b b b c c c   each when its share is there
//! ```
//! A share is what was delivered in the last moment, divided among the consumers, from one to [`PORTION_MAX`] messages; of a
//! backlog, and after a moment in which less came, it is what is ready, divided among them. It does not follow a burst at once:
//! those that come together after a pause are not for one worker while others are idle.

use forebay_flow::IDLE_LEAST_US;

/// While queues gather they are looked at so often, in microseconds, if nothing else happens.
pub(crate) const GATHER_LOOK_US: u64 = IDLE_LEAST_US / 2;

const SECOND_US: u64 = 1_000_000;

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
    /// When the running moment began, and the messages served in it; those of the one before, a second.
    moment_began_us: u64,
    served: u64,
    served_per_s: u64,
}

impl RoundRobin {
    /// Whose turn it is; at or beyond the end means the first one's.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// How many messages the next consumer gets in a row if the broker is busy, and whether a queue with so many had better
    /// wait for more, for a moment of `moment_us`.
    pub(crate) fn portion(
        &self,
        now_us: u64,
        ready: usize,
        consumers: usize,
        moment_us: u64,
    ) -> Result<usize, Gathers> {
        let consumers = consumers.max(1);
        let of_all = (ready / consumers).clamp(1, PORTION_MAX);
        let came = self.served_per_s * moment_us / SECOND_US;
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
    pub(crate) fn cut(&mut self, now_us: u64, portion: usize, moment_us: u64) {
        if self.cut_us == now_us && self.portion > 0 {
            return;
        }
        self.cut_us = now_us;
        let passed_us = now_us.saturating_sub(self.moment_began_us);
        if passed_us >= moment_us {
            self.served_per_s = self.served * SECOND_US / passed_us.max(1);
            (self.moment_began_us, self.served) = (now_us, 0);
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

    /// A consumer came to `at`, and those behind it have moved down.
    pub(crate) fn inserted(&mut self, at: usize) {
        self.at += usize::from(self.at >= at);
    }

    /// A consumer came to `at`, behind all others. If all of them have had their turn it is the first one's, and not that of
    /// who comes now; so it is with RabbitMQ.
    pub(crate) fn appended(&mut self, at: usize) {
        if self.at >= at {
            self.at = 0;
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

    const MOMENT_US: u64 = 5_000;

    /// A queue that had so many messages in the moment before.
    fn after(served: u64) -> RoundRobin {
        let served_per_s = served * SECOND_US / MOMENT_US;
        RoundRobin { cut_us: 10_000, portion: 1, served_per_s, ..RoundRobin::default() }
    }

    #[test]
    fn one_each_while_the_broker_has_time() {
        let mut turns = RoundRobin::default();
        turns.cut(5, 1, MOMENT_US);
        assert_eq!(serve(&mut turns, 7, 3), [0, 1, 2, 0, 1, 2, 0]);
    }

    #[test]
    fn portions_in_a_row_while_it_is_busy() {
        let mut turns = RoundRobin::default();
        turns.cut(5, 2, MOMENT_US);
        assert_eq!(serve(&mut turns, 7, 3), [0, 0, 1, 1, 2, 2, 0]);
        turns.cut(5, 33, MOMENT_US);
        assert_eq!(serve(&mut turns, 2, 3), [0, 1], "once in a turn");
        turns.cut(6, 1, MOMENT_US);
        assert_eq!(serve(&mut turns, 2, 3), [1, 2]);
    }

    #[test]
    fn the_next_one_has_its_share_of_a_moment_as_soon_as_it_is_there() {
        let turns = after(60);
        assert_eq!(turns.portion(10_000, 19, 3, MOMENT_US), Err(Gathers));
        assert_eq!(turns.portion(10_000, 20, 3, MOMENT_US), Ok(20));
        assert_eq!(after(6000).portion(10_000, 31, 3, MOMENT_US), Err(Gathers));
        assert_eq!(after(6000).portion(10_000, 32, 3, MOMENT_US), Ok(PORTION_MAX));
    }

    #[test]
    fn if_less_comes_all_share_what_is_there_after_a_moment() {
        let turns = after(60);
        assert_eq!(turns.portion(14_999, 15, 3, MOMENT_US), Err(Gathers));
        assert_eq!(turns.portion(15_000, 15, 3, MOMENT_US), Ok(5));
        assert_eq!(turns.portion(15_000, 2, 3, MOMENT_US), Ok(1));
    }

    #[test]
    fn an_idle_consumer_waits_a_fifth_of_that() {
        let turns = after(60);
        assert_eq!(turns.portion(10_999, 3, 3, MOMENT_US / 5), Err(Gathers));
        assert_eq!(turns.portion(11_000, 3, 3, MOMENT_US / 5), Ok(1));
        assert_eq!(turns.portion(10_000, 4, 3, MOMENT_US / 5), Ok(4));
    }

    #[test]
    fn what_comes_together_after_a_pause_is_not_for_one() {
        assert_eq!(after(0).portion(10_001, 32, 25, MOMENT_US), Ok(1));
        assert_eq!(after(0).portion(10_001, 75, 25, MOMENT_US), Ok(3), "a backlog is for all");
    }

    #[test]
    fn a_moment_is_counted_by_the_time_it_took() {
        let mut turns = RoundRobin::default();
        turns.cut(MOMENT_US, 1, MOMENT_US);
        serve(&mut turns, 600, 3);
        turns.cut(2 * MOMENT_US - 1, 1, MOMENT_US);
        assert_eq!(turns.served_per_s, 0);
        turns.cut(3 * MOMENT_US, 1, MOMENT_US);
        assert_eq!(turns.served_per_s, 60_000, "in twice the time");
    }

    proptest! {
        /// Whatever comes, how it comes, and how often the broker looks: nobody waits longer than until a portion is there
        /// for everyone, or for a moment for each round.
        #[test]
        fn everyone_has_a_portion_in_a_round(
            consumers in 1..40usize,
            arrivals in proptest::collection::vec((0..200usize, 1..3_000u64), 1..400),
            moment_us in 100..50_000u64,
        ) {
            let mut turns = RoundRobin::default();
            let (mut now_us, mut ready, mut came_us) = (1_000_000, 0, 1_000_000);
            let mut waited_for = vec![0usize; consumers];
            for (came, passed_us) in arrivals {
                now_us += passed_us;
                if ready == 0 {
                    came_us = now_us;
                }
                ready += came;
                match turns.portion(now_us, ready, consumers, moment_us) {
                    Err(Gathers) => {
                        prop_assert!(ready < PORTION_MAX);
                        prop_assert!(now_us < came_us.max(turns.cut_us) + moment_us);
                    }
                    Ok(portion) => {
                        prop_assert!((1..=PORTION_MAX).contains(&portion));
                        turns.cut(now_us, portion, moment_us);
                        for at in serve(&mut turns, std::mem::take(&mut ready), consumers) {
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
            turns.cut(1, RoundRobin::default().portion(1, ready, consumers, MOMENT_US).unwrap_or(1), MOMENT_US);
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
