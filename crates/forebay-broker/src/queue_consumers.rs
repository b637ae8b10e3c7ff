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
//!
//! Consumers of a higher priority (`x-priority`, RabbitMQ's) stand before those of a lower one, and these get what the others cannot
//! take:
//!
//! ```text
//!   place     0 1 2 │ 3 4 5 6 7 │ 8 9         a turn goes round among those of one priority;
//!   priority    10  │     0     │ -5          then, if none of them can take it, among the next
//! ```
//! Of a queue with a single active consumer only the first gets anything. Priorities do not count there, so that whoever is first
//! stays it.

use std::ops::Range;

use crate::consumer::ConsumerKey;

const WORD_BITS: usize = u64::BITS as usize;

/// Consumers by their places, which are 0 to `len` - 1 without gaps.
#[derive(Debug, Default)]
pub(crate) struct QueueConsumers {
    keys: Vec<ConsumerKey>,
    /// A bit for each place, lowest first; those at `len` and above are 0.
    full: Vec<u64>,
    /// By priority, the highest first; none is empty.
    groups: Vec<Group>,
    single_active: bool,
}

/// Those of one priority.
#[derive(Debug, Clone, Copy)]
struct Group {
    priority: i64,
    /// The place behind its last.
    end: usize,
    /// Whose turn it is among them; elsewhere means the first one's.
    next: usize,
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

    /// Only the first one gets anything from now on. For a queue that has no consumers yet.
    pub(crate) fn only_one_active(&mut self) {
        debug_assert!(self.keys.is_empty());
        self.single_active = true;
    }

    /// Whether only the first one gets anything.
    pub(crate) fn is_single_active(&self) -> bool {
        self.single_active
    }

    /// Among how many what comes is shared out, as long as they can take it.
    pub(crate) fn sharers(&self) -> usize {
        self.group(0).map_or(0, |group| group.len())
    }

    /// The places of those of one priority who may get something; 0 is the highest.
    fn group(&self, at: usize) -> Option<Range<usize>> {
        let end = self.groups.get(at)?.end;
        let start = at.checked_sub(1).map_or(0, |before| self.groups[before].end);
        match self.single_active {
            true => (at == 0).then_some(0..1),
            false => Some(start..end),
        }
    }

    /// Adds one with credit, behind all others of its priority; returns its place, and who moved down by one for it.
    pub(crate) fn push(&mut self, key: ConsumerKey, priority: i64) -> (usize, &[ConsumerKey]) {
        let priority = if self.single_active { 0 } else { priority };
        let at = self.groups.partition_point(|group| group.priority > priority);
        if self.groups.get(at).is_none_or(|group| group.priority != priority) {
            let end = at.checked_sub(1).map_or(0, |before| self.groups[before].end);
            self.groups.insert(at, Group { priority, end, next: end });
        }
        let place = self.groups[at].end;
        if self.groups[at].next >= place {
            // The first one's turn, and not that of who comes now.
            self.groups[at].next = at.checked_sub(1).map_or(0, |before| self.groups[before].end);
        }
        for (behind, group) in self.groups[at..].iter_mut().enumerate() {
            group.end += 1;
            group.next += usize::from(behind > 0 && group.next >= place);
        }
        self.keys.insert(place, key);
        if place + 1 < self.keys.len() {
            // As when one goes.
            self.full.clear();
        }
        self.full.resize(self.keys.len().div_ceil(WORD_BITS), 0);
        (place, &self.keys[place + 1..])
    }

    /// Takes the one at `place` out; those behind it move up by one and are returned.
    ///
    /// # Panics
    /// If nobody is there.
    pub(crate) fn remove(&mut self, place: usize) -> &[ConsumerKey] {
        self.keys.remove(place);
        let mut start = 0;
        self.groups.retain_mut(|group| {
            group.end -= usize::from(group.end > place);
            group.next -= usize::from(group.next > place);
            std::mem::replace(&mut start, group.end) < group.end
        });
        // One is looked at in vain now and then rather than all bits moved.
        self.full.clear();
        self.full.resize(self.keys.len().div_ceil(WORD_BITS), 0);
        &self.keys[place..]
    }

    /// The one at `place` got something, and it is the turn of `next`: where there are several priorities each has turns of its own.
    #[inline]
    pub(crate) fn served(&mut self, place: usize, next: usize) {
        if self.groups.len() > 1
            && let Some(group) = self.groups.iter_mut().find(|group| place < group.end)
        {
            group.next = next;
        }
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

/// Once around among those of each priority, from the one whose turn it is to the one before it.
#[derive(Debug)]
pub(crate) struct Round {
    first: usize,
    now: Range<usize>,
    /// Those before the first.
    then: Range<usize>,
    /// Whose turn comes after these.
    next_group: usize,
}

impl Round {
    /// From `first`, or where there are several priorities from whose turn it is in each; where nobody of a priority stands there it
    /// means from the beginning.
    pub(crate) fn from(first: usize, consumers: &QueueConsumers) -> Round {
        let mut round = Round { first, now: 0..0, then: 0..0, next_group: 0 };
        round.enter_group(consumers);
        round
    }

    fn enter_group(&mut self, consumers: &QueueConsumers) -> bool {
        let Some(group) = consumers.group(self.next_group) else { return false };
        let wanted = match consumers.groups.len() {
            1 => self.first,
            _ => consumers.groups[self.next_group].next,
        };
        self.next_group += 1;
        let first = if group.contains(&wanted) { wanted } else { group.start };
        (self.now, self.then) = (first..group.end, group.start..first);
        true
    }

    /// The place of the next one that is not marked as full; each comes once at most. Nobody may have come or gone since
    /// the round began.
    pub(crate) fn next(&mut self, consumers: &QueueConsumers) -> Option<usize> {
        loop {
            let found = consumers.next_in(self.now.clone()).or_else(|| {
                self.now = std::mem::take(&mut self.then);
                consumers.next_in(self.now.clone())
            });
            self.now.start = found.map_or(self.now.end, |place| place + 1);
            if found.is_some() || !self.enter_group(consumers) {
                return found;
            }
        }
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
            assert_eq!(consumers.push(ConsumerKey(number), 0), (number as usize, &[][..]));
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
            consumers.push(ConsumerKey(number), 0);
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
            consumers.push(ConsumerKey(number), 0);
        }
        assert_eq!(round(0, &consumers), [0, 1, 2, 3, 4]);
        assert_eq!(round(3, &consumers), [3, 4, 0, 1, 2]);
        assert_eq!(round(5, &consumers), [0, 1, 2, 3, 4]);
        consumers.full(0);
        consumers.full(4);
        assert_eq!(round(3, &consumers), [3, 1, 2]);
        assert_eq!(round(4, &consumers), [1, 2, 3]);
    }

    #[test]
    fn those_of_a_lower_priority_get_what_the_others_cannot_take() {
        let mut consumers = QueueConsumers::default();
        for (number, priority) in [(0, 0), (1, 0), (2, 5), (3, -1), (4, 5)] {
            consumers.push(ConsumerKey(number), priority);
        }
        let keys: Vec<_> = consumers.iter().map(|key| key.0).collect();
        assert_eq!((keys, consumers.sharers()), (vec![2, 4, 0, 1, 3], 2));
        // Each priority has turns of its own.
        consumers.served(0, 1);
        consumers.served(2, 3);
        assert_eq!(round(9, &consumers), [1, 0, 3, 2, 4]);
        consumers.served(1, 2);
        assert_eq!(round(9, &consumers), [0, 1, 3, 2, 4]);
        consumers.full(0);
        consumers.full(1);
        assert_eq!(round(9, &consumers), [3, 2, 4]);
        let (place, moved) = consumers.push(ConsumerKey(5), 5);
        assert_eq!((place, moved), (2, &[ConsumerKey(0), ConsumerKey(1), ConsumerKey(3)][..]));
        assert_eq!(round(9, &consumers), [0, 1, 2, 4, 3, 5], "looked at in vain once more");
        for _ in 0..3 {
            consumers.remove(0);
        }
        assert_eq!((consumers.sharers(), round(9, &consumers)), (2, vec![1, 0, 2]));
    }

    #[test]
    fn a_single_active_one_is_the_first_until_it_goes() {
        let mut consumers = QueueConsumers::default();
        consumers.only_one_active();
        for (number, priority) in [(0, 0), (1, 9), (2, 0)] {
            consumers.push(ConsumerKey(number), priority);
        }
        assert_eq!((consumers.sharers(), round(2, &consumers)), (1, vec![0]));
        consumers.full(0);
        assert_eq!(round(0, &consumers), []);
        assert_eq!(consumers.remove(0), [ConsumerKey(1), ConsumerKey(2)]);
        assert_eq!(round(0, &consumers), [0]);
    }

    proptest! {
        /// As a list of keys and marks that is sorted by priority and searched from the front.
        #[test]
        fn it_finds_what_a_plain_search_finds(
            orders in proptest::collection::vec((0..4u8, 0..300usize, 0..300usize, -1..2i64), 1..200),
            most in 0..130u32,
        ) {
            let (mut consumers, mut plain) = (QueueConsumers::default(), Vec::new());
            for number in 0..most {
                consumers.push(ConsumerKey(number), 0);
                plain.push((ConsumerKey(number), false, 0));
            }
            for (number, (order, place, other, priority)) in orders.into_iter().enumerate() {
                match order {
                    0 => {
                        let key = ConsumerKey(1000 + number as u32);
                        let at = consumers.push(key, priority).0;
                        plain.push((key, false, priority));
                        plain.sort_by_key(|(.., priority)| -priority);
                        prop_assert_eq!(plain[at].0, key);
                        if at + 1 < plain.len() {
                            plain.iter_mut().for_each(|(_, full, _)| *full = false);
                        }
                    }
                    1 if place < plain.len() => {
                        consumers.remove(place);
                        plain.remove(place);
                        plain.iter_mut().for_each(|(_, full, _)| *full = false);
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
                let found = range.clone().find(|at| plain.get(*at).is_some_and(|(_, full, _)| !full));
                prop_assert_eq!(consumers.next_in(range), found);
                prop_assert!(consumers.iter().eq(plain.iter().map(|(key, ..)| *key)));
                // Everybody who is not full, those of a higher priority first.
                let in_turn = round(place, &consumers);
                let mut all = in_turn.clone();
                all.sort_unstable();
                let free = (0..plain.len()).filter(|at| !plain[*at].1);
                prop_assert!(all.into_iter().eq(free));
                prop_assert!(in_turn.windows(2).all(|two| plain[two[0]].2 >= plain[two[1]].2));
            }
        }
    }
}
