//! A set of sequence numbers as sorted, disjoint, inclusive ranges.
//!
//! Messages are mostly acknowledged in order, so the set is nearly always one range; the two cheap
//! cases (extend or shorten an end range) are met first.

use std::collections::VecDeque;

use crate::home::Seq;

/// Sorted ranges `first..=last` with a gap of at least one between neighbours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RangeSet {
    ranges: VecDeque<(Seq, Seq)>,
    len: u64,
}

impl RangeSet {
    /// How many numbers are in the set.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn first(&self) -> Option<Seq> {
        self.ranges.front().map(|range| range.0)
    }

    pub(crate) fn last(&self) -> Option<Seq> {
        self.ranges.back().map(|range| range.1)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Seq, Seq)> + '_ {
        self.ranges.iter().copied()
    }

    /// Index of the first range that ends at or after `seq`.
    fn at(&self, seq: Seq) -> usize {
        self.ranges.partition_point(|range| range.1 < seq)
    }

    pub(crate) fn contains(&self, seq: Seq) -> bool {
        self.ranges.get(self.at(seq)).is_some_and(|range| range.0 <= seq)
    }

    /// The smallest number in the set that is at least `seq`.
    pub(crate) fn next_from(&self, seq: Seq) -> Option<Seq> {
        self.ranges.get(self.at(seq)).map(|range| range.0.max(seq))
    }

    /// Adds `first..=last`; parts already there stay.
    pub(crate) fn insert(&mut self, first: Seq, last: Seq) {
        debug_assert!(first <= last);
        if let Some(back) = self.ranges.back_mut()
            && first == back.1.wrapping_add(1)
        {
            back.1 = last;
            self.len += last - first + 1;
            return;
        }
        if self.ranges.back().is_none_or(|back| back.1 < first) {
            self.ranges.push_back((first, last));
            self.len += last - first + 1;
            return;
        }
        let (mut low, mut high) = (first, last);
        let from = self.ranges.partition_point(|range| range.1.saturating_add(1) < first);
        let mut to = from;
        while let Some(&(start, end)) = self.ranges.get(to)
            && start <= last.saturating_add(1)
        {
            low = low.min(start);
            high = high.max(end);
            self.len -= end - start + 1;
            to += 1;
        }
        self.len += high - low + 1;
        if from == to {
            self.ranges.insert(from, (low, high));
        } else {
            self.ranges[from] = (low, high);
            self.ranges.drain(from + 1..to);
        }
    }

    /// Takes `first..=last` out; returns how many numbers left the set.
    pub(crate) fn remove(&mut self, first: Seq, last: Seq) -> u64 {
        debug_assert!(first <= last);
        let mut removed = 0;
        let mut index = self.at(first);
        while let Some(&(start, end)) = self.ranges.get(index)
            && start <= last
        {
            let (from, to) = (start.max(first), end.min(last));
            removed += to - from + 1;
            match (start < from, to < end) {
                (false, false) => {
                    self.ranges.remove(index);
                }
                (false, true) => {
                    self.ranges[index].0 = to + 1;
                    index += 1;
                }
                (true, false) => {
                    self.ranges[index].1 = from - 1;
                    index += 1;
                }
                (true, true) => {
                    self.ranges[index].1 = from - 1;
                    self.ranges.insert(index + 1, (to + 1, end));
                    index += 2;
                }
            }
        }
        self.len -= removed;
        removed
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_as_a_set_of_numbers(
            steps in prop::collection::vec((any::<bool>(), 0u64..60, 0u64..8), 1..80)
        ) {
            let mut set = RangeSet::default();
            let mut model = BTreeSet::new();
            for (insert, first, more) in steps {
                let last = first + more;
                if insert {
                    set.insert(first, last);
                    model.extend(first..=last);
                } else {
                    let removed = set.remove(first, last);
                    let before = model.len();
                    model.retain(|seq| !(first..=last).contains(seq));
                    prop_assert_eq!(removed, (before - model.len()) as u64);
                }
                prop_assert_eq!(set.len(), model.len() as u64);
                prop_assert_eq!(set.first(), model.first().copied());
                prop_assert_eq!(set.last(), model.last().copied());
                for seq in 0..70 {
                    prop_assert_eq!(set.contains(seq), model.contains(&seq));
                    prop_assert_eq!(set.next_from(seq), model.range(seq..).next().copied());
                }
                let ranges: Vec<_> = set.iter().collect();
                for pair in ranges.windows(2) {
                    prop_assert!(pair[0].1 + 1 < pair[1].0, "{:?}", ranges);
                }
            }
        }
    }
}
