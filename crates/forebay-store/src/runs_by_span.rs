//! Which runs of a queue may hold a message: acknowledgements name queue and number only.
//!
//! ```text
//!   first ───────────────────────────────────────────►
//!     │ run 1 │ run 2 │ run 3 │ run 4 │ run 5 │
//!                        ├ widest ┤ 7..9       looked at: runs that begin from 7 − widest to 9
//! ```
//! A queue may have thousands, and the log as many acknowledgements of single messages for each: looking at every run for
//! every one of them took hours. Runs may overlap, so an order of their ends does not follow from that of their beginnings.

use std::collections::BTreeMap;

use crate::home::{RunId, Seq};
use crate::run::Footer;

/// The runs of one queue.
#[derive(Debug, Default)]
pub(crate) struct RunsBySpan {
    /// By their first and number: their last.
    runs: BTreeMap<(Seq, RunId), Seq>,
    /// The most that a run's last was ever above its first.
    widest: u64,
}

impl RunsBySpan {
    pub(crate) fn insert(&mut self, id: RunId, footer: &Footer) {
        self.runs.insert((footer.first, id), footer.last);
        self.widest = self.widest.max(footer.last.saturating_sub(footer.first));
    }

    pub(crate) fn remove(&mut self, id: RunId, footer: &Footer) {
        self.runs.remove(&(footer.first, id));
    }

    /// All of them.
    pub(crate) fn ids(&self) -> impl Iterator<Item = RunId> + '_ {
        self.runs.keys().map(|(_, id)| *id)
    }

    /// Those that reach into `first..=last`.
    pub(crate) fn meeting(&self, first: Seq, last: Seq) -> impl Iterator<Item = RunId> + '_ {
        self.near(first, last).filter(move |(_, reach)| *reach >= first).map(|(id, _)| id)
    }

    /// Those that are looked at for that, with their lasts.
    fn near(&self, first: Seq, last: Seq) -> impl Iterator<Item = (RunId, Seq)> + '_ {
        let from = (first.saturating_sub(self.widest), RunId(0));
        self.runs.range(from..=(last, RunId(u32::MAX))).map(|((_, id), reach)| (*id, *reach))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn footer(first: Seq, last: Seq) -> Footer {
        Footer { count: 1, first, last, payload_bytes: 0, records_end: 0 }
    }

    #[test]
    fn of_many_runs_two_are_looked_at_for_one_message() {
        let mut runs = RunsBySpan::default();
        for id in 0..10_000 {
            let first = u64::from(id) * 1_000;
            runs.insert(RunId(id), &footer(first, first + 999));
        }
        assert_eq!(runs.meeting(5_000_007, 5_000_007).collect::<Vec<_>>(), [RunId(5_000)]);
        assert!((0..10_000_000).step_by(777).all(|seq| runs.near(seq, seq).count() <= 2));
    }

    proptest! {
        #[test]
        fn none_that_may_hold_a_message_is_missed(
            spans in prop::collection::vec((1u64..100, 0u64..40, any::<bool>()), 0..30),
            first in 0u64..140,
            more in 0u64..20,
        ) {
            let mut runs = RunsBySpan::default();
            let mut expected = Vec::new();
            for (id, &(begin, length, gone)) in (1..).zip(&spans) {
                let footer = footer(begin, begin + length);
                runs.insert(RunId(id), &footer);
                if gone {
                    runs.remove(RunId(id), &footer);
                } else if begin <= first + more && begin + length >= first {
                    expected.push(RunId(id));
                }
            }
            let mut found: Vec<_> = runs.meeting(first, first + more).collect();
            found.sort_unstable();
            prop_assert_eq!(found, expected);
            let left = spans.iter().filter(|(_, _, gone)| !gone).count();
            prop_assert_eq!(runs.ids().count(), left);
        }
    }
}
