//! The consumers of one queue, in the order of their turns, and which of them have all they may hold.
//!
//! A thousand workers that hold one message each are a thousand consumers without credit; for every acknowledgement the
//! queue looks for the one that has some again. So a consumer that was found without is marked, and not looked at until
//! it may have credit again:
//!
//! ```text
//!   place   0 1 2 3 4 …              from 3:  3 is marked, 4 is not: 4 is looked at
//!   marked  x x . x . x x x x …      from 5:  64 marked ones at a time are passed over, then 2
//! ```
//! A mark says "has no credit of its own" and nothing about its channel or socket.

use std::ops::Range;

use crate::consumer::ConsumerKey;

const WORD_BITS: usize = u64::BITS as usize;

/// Consumers by their places, which are 0 to `len` - 1 without gaps.
#[derive(Debug, Default)]
pub(crate) struct QueueConsumers {
    keys: Vec<ConsumerKey>,
    /// A bit for each place, lowest first; those at `len` and above are 0.
    full: Vec<u64>,
}

impl QueueConsumers {
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = ConsumerKey> + '_ {
        self.keys.iter().copied()
    }

    /// Who is at this place.
    ///
    /// # Panics
    /// If nobody is.
    pub(crate) fn at(&self, place: usize) -> ConsumerKey {
        self.keys[place]
    }

    /// Adds one with credit, behind all others; returns its place.
    pub(crate) fn push(&mut self, key: ConsumerKey) -> usize {
        let place = self.keys.len();
        self.keys.push(key);
        self.full.resize(self.keys.len().div_ceil(WORD_BITS), 0);
        place
    }

    /// Takes the one at `place` out; those behind it move up by one and are returned.
    ///
    /// # Panics
    /// If nobody is there.
    pub(crate) fn remove(&mut self, place: usize) -> &[ConsumerKey] {
        self.keys.remove(place);
        // One is looked at in vain now and then rather than all bits moved.
        self.full.clear();
        self.full.resize(self.keys.len().div_ceil(WORD_BITS), 0);
        &self.keys[place..]
    }

    /// The one at `place` has no credit of its own: it is passed over until it is [`freed`](Self::freed).
    pub(crate) fn full(&mut self, place: usize) {
        debug_assert!(place < self.keys.len());
        self.full[place / WORD_BITS] |= 1 << (place % WORD_BITS);
    }

    /// The one at `place` may have credit again.
    pub(crate) fn freed(&mut self, place: usize) {
        debug_assert!(place < self.keys.len());
        self.full[place / WORD_BITS] &= !(1 << (place % WORD_BITS));
    }

    /// The first place in `range` that is not marked as full.
    fn next_in(&self, range: Range<usize>) -> Option<usize> {
        let (mut place, end) = (range.start, range.end.min(self.keys.len()));
        while place < end {
            let free = !self.full[place / WORD_BITS] >> (place % WORD_BITS);
            if free != 0 {
                let found = place + free.trailing_zeros() as usize;
                return (found < end).then_some(found);
            }
            place = (place / WORD_BITS + 1) * WORD_BITS;
        }
        None
    }
}

/// Once around, from the one whose turn it is to the one before it.
#[derive(Debug)]
pub(crate) struct Round {
    now: Range<usize>,
    /// Those before the first.
    then: Range<usize>,
}

impl Round {
    /// From `first`; at or beyond the end means from the beginning.
    pub(crate) fn from(first: usize, consumers: &QueueConsumers) -> Round {
        let first = if first < consumers.len() { first } else { 0 };
        Round { now: first..consumers.len(), then: 0..first }
    }

    /// The place of the next one that is not marked as full; each comes once at most. Nobody may have come or gone since
    /// the round began.
    pub(crate) fn next(&mut self, consumers: &QueueConsumers) -> Option<usize> {
        let found = consumers.next_in(self.now.clone()).or_else(|| {
            self.now = std::mem::take(&mut self.then);
            consumers.next_in(self.now.clone())
        });
        self.now.start = found.map_or(self.now.end, |place| place + 1);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn those_that_are_full_are_passed_over_until_they_are_freed() {
        let mut consumers = QueueConsumers::default();
        for number in 0..200 {
            assert_eq!(consumers.push(ConsumerKey(number)), number as usize);
        }
        for place in (0..200).filter(|place| *place != 150) {
            consumers.full(place);
        }
        assert_eq!(consumers.next_in(0..200), Some(150));
        assert_eq!(consumers.next_in(151..200), None);
        assert_eq!(consumers.next_in(0..150), None);
        consumers.freed(64);
        assert_eq!(consumers.next_in(0..200), Some(64));
        assert_eq!(consumers.next_in(65..200), Some(150));
    }

    #[test]
    fn when_one_goes_those_behind_it_move_up_and_are_looked_at() {
        let mut consumers = QueueConsumers::default();
        for number in 0..3 {
            consumers.push(ConsumerKey(number));
            consumers.full(number as usize);
        }
        assert_eq!(consumers.remove(1), [ConsumerKey(2)]);
        assert_eq!((consumers.at(1), consumers.next_in(0..2)), (ConsumerKey(2), Some(0)));
    }

    fn round(first: usize, consumers: &QueueConsumers) -> Vec<usize> {
        let mut round = Round::from(first, consumers);
        std::iter::from_fn(|| round.next(consumers)).collect()
    }

    #[test]
    fn a_round_ends_before_the_one_it_began_with() {
        let mut consumers = QueueConsumers::default();
        assert!(round(0, &consumers).is_empty());
        for number in 0..5 {
            consumers.push(ConsumerKey(number));
        }
        assert_eq!(round(0, &consumers), [0, 1, 2, 3, 4]);
        assert_eq!(round(3, &consumers), [3, 4, 0, 1, 2]);
        assert_eq!(round(5, &consumers), [0, 1, 2, 3, 4]);
        consumers.full(0);
        consumers.full(4);
        assert_eq!(round(3, &consumers), [3, 1, 2]);
        assert_eq!(round(4, &consumers), [1, 2, 3]);
    }

    proptest! {
        /// As a list of keys and marks that is searched from the front.
        #[test]
        fn it_finds_what_a_plain_search_finds(
            orders in proptest::collection::vec((0..4u8, 0..300usize, 0..300usize), 1..200),
        ) {
            let (mut consumers, mut plain) = (QueueConsumers::default(), Vec::new());
            for number in 0..130 {
                consumers.push(ConsumerKey(number));
                plain.push((ConsumerKey(number), false));
            }
            for (number, (order, place, other)) in orders.into_iter().enumerate() {
                match order {
                    0 => {
                        consumers.push(ConsumerKey(1000 + number as u32));
                        plain.push((ConsumerKey(1000 + number as u32), false));
                    }
                    1 if place < plain.len() => {
                        consumers.remove(place);
                        plain.remove(place);
                        plain.iter_mut().for_each(|(_, full)| *full = false);
                    }
                    2 if place < plain.len() => {
                        consumers.full(place);
                        plain[place].1 = true;
                    }
                    3 if place < plain.len() => {
                        consumers.freed(place);
                        plain[place].1 = false;
                    }
                    _ => {}
                }
                let range = place.min(other)..place.max(other);
                let found = range.clone().find(|at| plain.get(*at).is_some_and(|(_, full)| !full));
                prop_assert_eq!(consumers.next_in(range), found);
                prop_assert!(consumers.iter().eq(plain.iter().map(|(key, _)| *key)));
            }
        }
    }
}
