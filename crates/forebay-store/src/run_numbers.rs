//! Which number a new run gets.
//!
//! There are 2³¹ − 1, as a [`Home`](crate::home::Home) has so many bits for one. Where many queues share a full memory their runs
//! have some KiB, and those of transient queues are not synced: thousands a second, so a broker lives to see the last number. After it
//! comes 1 again. One whose file is there is passed over: with its number the messages of another run would be settled, or its
//! file be written over.

use std::collections::BTreeSet;

use crate::home::{RUN_MAX, RunId};

/// The numbers that have files, and where the next free one is looked for.
#[derive(Debug)]
pub(crate) struct RunNumbers {
    next: u32,
    taken: BTreeSet<RunId>,
}

impl RunNumbers {
    /// `largest` is the largest one that anything still tells of; `taken` have files.
    pub(crate) fn new(largest: u32, taken: BTreeSet<RunId>) -> RunNumbers {
        RunNumbers { next: after(largest), taken }
    }

    /// A number that no file has.
    pub(crate) fn take(&mut self) -> RunId {
        loop {
            let run = RunId(self.next);
            self.next = after(self.next);
            if self.taken.insert(run) {
                return run;
            }
        }
    }

    /// Its file is gone.
    pub(crate) fn give_back(&mut self, run: RunId) {
        self.taken.remove(&run);
    }
}

/// The number after this one.
fn after(number: u32) -> u32 {
    if number < RUN_MAX { number + 1 } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_begin_again_behind_the_last_one_and_pass_over_files() {
        let taken = [1, 3].map(RunId);
        let mut numbers = RunNumbers::new(RUN_MAX - 1, taken.into());
        let mut take = |count: usize| (0..count).map(|_| numbers.take().0).collect::<Vec<_>>();
        assert_eq!(take(4), [RUN_MAX, 2, 4, 5]);
        numbers.give_back(RunId(3));
        assert_eq!(numbers.take(), RunId(6), "what was given back comes when it is its turn");
        assert!(!numbers.taken.contains(&RunId(3)));
    }

    #[test]
    fn a_number_that_is_none_is_followed_by_the_first() {
        for largest in [RUN_MAX, RUN_MAX + 1, u32::MAX] {
            assert_eq!(RunNumbers::new(largest, BTreeSet::new()).take(), RunId(1));
        }
        assert_eq!(RunNumbers::new(0, BTreeSet::new()).take(), RunId(1));
    }
}
