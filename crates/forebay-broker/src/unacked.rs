//! Deliveries that a channel has not settled yet, by delivery tag.
//!
//! Tags rise by one per delivery and are mostly settled from the front, so a deque in tag order with
//! holes is enough: the front pops in O(1), one in the middle is found by binary search and leaves a
//! hole. Holes at the front go at once; when more than half are holes the deque is compacted, so its
//! length stays ≤ 2 × live + [`COMPACT_MIN`].

use std::collections::VecDeque;
use std::num::NonZeroU64;

use crate::ack_timeout::AckLimit;
use crate::consumer::ConsumerKey;
use crate::queue::Entry;
use crate::topology::QueueKey;

/// Below this length nobody minds holes.
const COMPACT_MIN: usize = 64;

/// A delivered, unsettled message.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) queue: QueueKey,
    /// Durable identity of the queue: tells whether `queue` still means the same one.
    pub(crate) queue_id: u64,
    pub(crate) entry: Entry,
    /// The consumer that got it, with its serial; `None` for `basic.get`.
    pub(crate) consumer: Option<(ConsumerKey, NonZeroU64)>,
    pub(crate) limit: AckLimit,
}

/// Unsettled deliveries of one channel.
#[derive(Debug, Default)]
pub(crate) struct Unacked {
    slots: VecDeque<(u64, Option<Delivery>)>,
    live: usize,
}

impl Unacked {
    /// Deliveries not settled.
    pub(crate) fn len(&self) -> usize {
        self.live
    }

    /// Adds a delivery; `tag` is higher than all before it.
    pub(crate) fn push(&mut self, tag: u64, delivery: Delivery) {
        debug_assert!(self.slots.back().is_none_or(|(last, _)| *last < tag));
        self.slots.push_back((tag, Some(delivery)));
        self.live += 1;
    }

    /// Takes the delivery with this tag.
    pub(crate) fn take(&mut self, tag: u64) -> Option<Delivery> {
        if self.slots.front().is_some_and(|(front, _)| *front == tag) {
            let taken = self.slots.pop_front().and_then(|(_, delivery)| delivery);
            self.live -= usize::from(taken.is_some());
            self.tidy();
            return taken;
        }
        let at = self.slots.binary_search_by_key(&tag, |(tag, _)| *tag).ok()?;
        let taken = self.slots[at].1.take()?;
        self.live -= 1;
        self.tidy();
        Some(taken)
    }

    /// Whether this tag is unsettled.
    pub(crate) fn contains(&self, tag: u64) -> bool {
        self.slots
            .binary_search_by_key(&tag, |(tag, _)| *tag)
            .is_ok_and(|at| self.slots[at].1.is_some())
    }

    /// Takes the oldest delivery if its tag is ≤ `upto`.
    pub(crate) fn take_oldest(&mut self, upto: u64) -> Option<(u64, Delivery)> {
        if self.slots.front().is_none_or(|(tag, _)| *tag > upto) {
            return None;
        }
        let (tag, delivery) = self.slots.pop_front()?;
        self.live -= 1;
        self.tidy();
        delivery.map(|delivery| (tag, delivery))
    }

    /// Takes all deliveries with tags ≤ `upto`, newest first: so each goes back to the front of its queue, where
    /// oldest first each would move those before it.
    pub(crate) fn take_newest_first(&mut self, upto: u64) -> Vec<Delivery> {
        let mut taken = Vec::new();
        while let Some((_, delivery)) = self.take_oldest(upto) {
            taken.push(delivery);
        }
        taken.reverse();
        taken
    }

    /// Puts back deliveries that were taken in a transaction that rolled back. All in one go: a hundred thousand that are put in one by one
    /// would each move those behind them.
    pub(crate) fn restore(&mut self, mut taken: Vec<(u64, Delivery)>) {
        taken.sort_unstable_by_key(|(tag, _)| *tag);
        self.live += taken.len();
        let mut there = std::mem::take(&mut self.slots).into_iter().peekable();
        let mut slots = VecDeque::with_capacity(self.live);
        for (tag, delivery) in taken {
            slots.extend(std::iter::from_fn(|| there.next_if(|(other, _)| *other < tag)));
            let hole = there.next_if(|(other, _)| *other == tag);
            debug_assert!(hole.is_none_or(|(_, hole)| hole.is_none()), "tag {tag} is there twice");
            slots.push_back((tag, Some(delivery)));
        }
        slots.extend(there);
        self.slots = slots;
    }

    /// All live deliveries, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Delivery> {
        self.slots.iter().filter_map(|(_, delivery)| delivery.as_ref())
    }

    /// The same with their tags.
    pub(crate) fn tagged(&self) -> impl Iterator<Item = (u64, &Delivery)> {
        self.slots.iter().filter_map(|(tag, delivery)| Some((*tag, delivery.as_ref()?)))
    }

    /// The delivery with this tag, to be changed.
    pub(crate) fn get_mut(&mut self, tag: u64) -> Option<&mut Delivery> {
        let at = self.slots.binary_search_by_key(&tag, |(tag, _)| *tag).ok()?;
        self.slots[at].1.as_mut()
    }

    /// Keeps the front live and holes fewer than half.
    fn tidy(&mut self) {
        while self.slots.front().is_some_and(|(_, delivery)| delivery.is_none()) {
            self.slots.pop_front();
        }
        if self.slots.len() > COMPACT_MIN && self.live * 2 < self.slots.len() {
            self.slots.retain(|(_, delivery)| delivery.is_some());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use forebay_store::Home;
    use proptest::prelude::*;

    use super::*;
    use crate::message::Message;

    fn delivery(seq: u64) -> Delivery {
        let message = Arc::new(Message::from_bytes(Message::start(b"", b"q", &[0, 0], 0)));
        Delivery {
            queue: QueueKey(0),
            queue_id: 1,
            entry: Entry { seq, message, home: Home::NONE, redelivered: false },
            consumer: None,
            limit: AckLimit::from(0, 0),
        }
    }

    #[test]
    fn a_delivery_stays_small() {
        assert_eq!(size_of::<Delivery>(), 64);
        assert_eq!(size_of::<(u64, Option<Delivery>)>(), 72);
    }

    #[test]
    fn what_goes_back_is_taken_newest_first_up_to_a_tag() {
        let mut unacked = Unacked::default();
        for tag in 1..=5 {
            unacked.push(tag, delivery(tag));
        }
        unacked.take(2);
        let seqs = |taken: Vec<Delivery>| taken.iter().map(|d| d.entry.seq).collect::<Vec<_>>();
        assert_eq!(seqs(unacked.take_newest_first(4)), [4, 3, 1]);
        assert_eq!(seqs(unacked.take_newest_first(u64::MAX)), [5]);
        assert_eq!(unacked.len(), 0);
    }

    #[test]
    fn a_tag_is_settled_once() {
        let mut unacked = Unacked::default();
        for tag in 1..=5 {
            unacked.push(tag, delivery(tag));
        }
        assert!(unacked.take(3).is_some());
        assert!(unacked.take(3).is_none());
        assert!(unacked.contains(4) && !unacked.contains(3));
        assert_eq!(unacked.take_oldest(4).map(|(tag, _)| tag), Some(1));
        assert_eq!(unacked.take_oldest(4).map(|(tag, _)| tag), Some(2));
        assert_eq!(unacked.take_oldest(4).map(|(tag, _)| tag), Some(4));
        assert!(unacked.take_oldest(4).is_none());
        assert_eq!(unacked.len(), 1);
    }

    proptest! {
        #[test]
        fn any_order_of_settling_agrees_with_a_set(order in proptest::collection::vec((1u64..400, any::<bool>()), 0..400)) {
            let mut unacked = Unacked::default();
            let mut model = std::collections::BTreeSet::new();
            for tag in 1..400 {
                unacked.push(tag, delivery(tag));
                model.insert(tag);
            }
            for (tag, multiple) in order {
                if multiple && tag.is_multiple_of(3) {
                    // A transaction takes them, and rolls back.
                    let mut taken = Vec::new();
                    while let Some(one) = unacked.take_oldest(tag) {
                        taken.insert(taken.len() / 2, one);
                    }
                    unacked.restore(taken);
                } else if multiple {
                    while let Some((taken, _)) = unacked.take_oldest(tag) {
                        prop_assert_eq!(model.pop_first(), Some(taken));
                    }
                    prop_assert!(model.first().is_none_or(|first| *first > tag));
                } else {
                    prop_assert_eq!(unacked.take(tag).is_some(), model.remove(&tag));
                }
                prop_assert_eq!(unacked.len(), model.len());
                prop_assert!(unacked.slots.len() <= 2 * unacked.live + COMPACT_MIN + 1);
            }
        }
    }
}
