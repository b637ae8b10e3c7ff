//! The head of a queue: messages in RAM that are delivered next, in order of their numbers.
//!
//! ```text
//!   row        1  50001  50002  50003 …     nearly all of them
//!   returned   2  3  4 …                    what came back to a place behind the row's first
//! ```
//! A message that comes back before all others is put before the row. In the middle of it each would move those on one
//! side: fifty thousand that a consumer gives back one by one, oldest first, would move a billion. So these are in a
//! tree until their turn comes.

use std::collections::{BTreeMap, VecDeque};

use forebay_store::Seq;

use crate::queue::{Entry, find};

/// A queue keeps room for so many messages when it has become short.
pub(crate) const ROOM_MIN_ENTRIES: usize = 1_024;

/// Entries in order; no two have the same number.
#[derive(Debug, Default)]
pub(crate) struct Head {
    row: VecDeque<Entry>,
    returned: BTreeMap<Seq, Entry>,
}

impl Head {
    pub(crate) fn len(&self) -> usize {
        self.row.len() + self.returned.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.row.is_empty() && self.returned.is_empty()
    }

    /// What is next.
    pub(crate) fn first(&self) -> Option<&Entry> {
        let returned = self.returned.first_key_value().map(|(_, entry)| entry);
        self.row.front().into_iter().chain(returned).min_by_key(|entry| entry.seq)
    }

    /// Adds one behind all others.
    pub(crate) fn push_back(&mut self, entry: Entry) {
        debug_assert!(self.last_seq().is_none_or(|last| last < entry.seq));
        self.row.push_back(entry);
    }

    /// Adds many behind all others.
    pub(crate) fn extend(&mut self, entries: impl IntoIterator<Item = Entry>) {
        self.row.extend(entries);
    }

    /// The same. The longer row stays where it is: a copy of a million entries would want their memory once more.
    pub(crate) fn append(&mut self, mut entries: VecDeque<Entry>) {
        if self.row.len() < entries.len() {
            for entry in self.row.drain(..).rev() {
                entries.push_front(entry);
            }
            self.row = entries;
        } else {
            self.row.append(&mut entries);
        }
    }

    /// Adds one at its place, wherever that is.
    pub(crate) fn put_back(&mut self, entry: Entry) {
        if self.row.front().is_none_or(|first| entry.seq < first.seq) {
            self.row.push_front(entry);
        } else {
            self.returned.insert(entry.seq, entry);
        }
    }

    pub(crate) fn pop_front(&mut self) -> Option<Entry> {
        if let Some(first) = self.returned.first_entry()
            && self.row.front().is_none_or(|other| first.key() < &other.seq)
        {
            return Some(first.remove());
        }
        let entry = self.row.pop_front()?;
        // What a backlog took, it does not keep; fewer are moved than were taken since the last time.
        let room = self.row.capacity();
        if room > ROOM_MIN_ENTRIES && self.row.len() < room / 4 {
            self.row.shrink_to(room / 2);
        }
        Some(entry)
    }

    /// Takes the last one, if it may go.
    pub(crate) fn pop_back_if(&mut self, may_go: impl FnOnce(&Entry) -> bool) -> Option<Entry> {
        if let Some(last) = self.returned.last_entry()
            && self.row.back().is_none_or(|other| other.seq < *last.key())
        {
            return may_go(last.get()).then(|| last.remove());
        }
        self.row.pop_back_if(|entry| may_go(entry))
    }

    /// What is last.
    pub(crate) fn last(&self) -> Option<&Entry> {
        let returned = self.returned.last_key_value().map(|(_, entry)| entry);
        self.row.back().into_iter().chain(returned).max_by_key(|entry| entry.seq)
    }

    fn last_seq(&self) -> Option<Seq> {
        self.last().map(|entry| entry.seq)
    }

    /// All of it as one row, to be cut.
    pub(crate) fn as_row(&mut self) -> &mut VecDeque<Entry> {
        if let Some((&last, _)) = self.returned.last_key_value() {
            let before = self.row.partition_point(|entry| entry.seq < last);
            let mut passed: Vec<Entry> = self.row.drain(..before).collect();
            while let Some((seq, entry)) = self.returned.pop_last() {
                while let Some(behind) = passed.pop_if(|other| other.seq > seq) {
                    self.row.push_front(behind);
                }
                self.row.push_front(entry);
            }
            passed.into_iter().rev().for_each(|entry| self.row.push_front(entry));
        }
        &mut self.row
    }

    /// All of it.
    pub(crate) fn into_row(mut self) -> VecDeque<Entry> {
        std::mem::take(self.as_row())
    }

    /// The one with this number.
    pub(crate) fn get_mut(&mut self, seq: Seq) -> Option<&mut Entry> {
        self.returned.get_mut(&seq).or_else(|| find(&mut self.row, seq))
    }

    /// All of it, in no particular order.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.row.iter().chain(self.returned.values())
    }

    #[cfg(test)]
    pub(crate) fn room(&self) -> usize {
        self.row.capacity()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::queue::test_entry;

    fn seqs(row: &VecDeque<Entry>) -> Vec<Seq> {
        row.iter().map(|entry| entry.seq).collect()
    }

    /// Each of them would be put into the middle of the row.
    #[test]
    fn what_comes_back_one_by_one_moves_nothing() {
        let mut head = Head::default();
        head.extend((1..=1_000).map(test_entry));
        let taken: Vec<Entry> = (1..=500).filter_map(|_| head.pop_front()).collect();
        taken.into_iter().for_each(|entry| head.put_back(entry));
        assert_eq!(seqs(&head.row), [&[1], &(501..=1_000).collect::<Vec<_>>()[..]].concat());
        assert_eq!((head.returned.len(), head.len()), (499, 1_000));
    }

    #[derive(Clone, Debug)]
    enum Op {
        Push { count: u8 },
        Append { count: u8 },
        Pop { count: u8 },
        PutBack { pick: u8 },
        PopBack { upto: u8 },
        Cut { keep: u8 },
        Find { pick: u8 },
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            3 => (1u8..20).prop_map(|count| Op::Push { count }),
            2 => (1u8..20).prop_map(|count| Op::Append { count }),
            4 => (1u8..20).prop_map(|count| Op::Pop { count }),
            8 => any::<u8>().prop_map(|pick| Op::PutBack { pick }),
            2 => any::<u8>().prop_map(|upto| Op::PopBack { upto }),
            1 => any::<u8>().prop_map(|keep| Op::Cut { keep }),
            2 => any::<u8>().prop_map(|pick| Op::Find { pick }),
        ]
    }

    proptest! {
        /// Whatever comes back, and in whatever order, it is a list that is kept sorted.
        #[test]
        fn it_is_a_sorted_list(ops in prop::collection::vec(op(), 1..60)) {
            let (mut head, mut model) = (Head::default(), Vec::<Seq>::new());
            let (mut out, mut next) = (Vec::<Entry>::new(), 1);
            for op in ops {
                match op {
                    Op::Push { count } => for _ in 0..count {
                        head.push_back(test_entry(next));
                        model.push(next);
                        next += 1;
                    },
                    Op::Append { count } => {
                        let more = next..next + u64::from(count);
                        head.append(more.clone().map(test_entry).collect());
                        model.extend(more);
                        next += u64::from(count);
                    }
                    Op::Pop { count } => for _ in 0..count {
                        let first = (!model.is_empty()).then(|| model.remove(0));
                        prop_assert_eq!(head.first().map(|entry| entry.seq), first);
                        let entry = head.pop_front();
                        prop_assert_eq!(entry.as_ref().map(|entry| entry.seq), first);
                        out.extend(entry);
                    },
                    Op::PutBack { pick } => if !out.is_empty() {
                        let entry = out.remove(usize::from(pick) % out.len());
                        model.push(entry.seq);
                        model.sort_unstable();
                        head.put_back(entry);
                    },
                    Op::PopBack { upto } => {
                        let last = model.pop_if(|seq| *seq > u64::from(upto));
                        let entry = head.pop_back_if(|entry| entry.seq > u64::from(upto));
                        prop_assert_eq!(entry.as_ref().map(|entry| entry.seq), last);
                        out.extend(entry);
                    }
                    Op::Cut { keep } => {
                        let keep = usize::from(keep).min(model.len());
                        let row = head.as_row();
                        prop_assert_eq!(&seqs(row), &model);
                        out.extend(row.drain(keep..));
                        model.truncate(keep);
                    }
                    Op::Find { pick } => {
                        let found = head.get_mut(pick.into()).map(|entry| entry.seq);
                        prop_assert_eq!(found, model.iter().copied().find(|seq| *seq == u64::from(pick)));
                    }
                }
                prop_assert_eq!(head.len(), model.len());
                prop_assert_eq!(head.is_empty(), model.is_empty());
                prop_assert_eq!(head.entries().count(), model.len());
            }
            prop_assert_eq!(seqs(&head.into_row()), model);
        }
    }
}
