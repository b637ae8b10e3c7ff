//! Publisher confirms of one channel: what was published, what is settled, and the fewest frames that
//! say so.
//!
//! ```text
//!   sequence numbers     1 ─────────── acked ── 5   6   7 ── 9   10
//!                                               │   │   └─┬─┘    │
//!   waiting, in ranges by batch                 b7  ·   b7      b8
//!   settled out of turn                             6
//! ```
//! A message that needs no disk is settled at once, the others when their batch is synced. Batches are
//! synced in order, so ranges wait in order; when the first ones are settled, one `ack multiple` tells
//! of everything before the first range that still waits.

use std::collections::VecDeque;

use forebay_store::BatchNo;

/// Unconfirmed messages a channel may have before its connection is not read any more: a bound for the
/// ranges below even if every second message is transient.
pub(crate) const UNCONFIRMED_MAX: u64 = 65_536;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    first: u64,
    last: u64,
    batch: BatchNo,
}

/// Confirm mode's state.
#[derive(Debug)]
pub(crate) struct Confirms {
    next: u64,
    waiting: VecDeque<Range>,
    /// All up to here have been settled and told.
    told: u64,
    /// Settled while an earlier one waits; told one by one.
    singles: Vec<u64>,
}

/// A `basic.ack` to send.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(crate) struct Ack {
    pub(crate) delivery_tag: u64,
    pub(crate) multiple: bool,
}

impl Confirms {
    /// Fresh, as after the first `confirm.select`: the next publish is number 1.
    pub(crate) fn new() -> Confirms {
        Confirms { next: 1, waiting: VecDeque::new(), told: 0, singles: Vec::new() }
    }

    /// Numbers a publish that is settled when `batch` is synced, or at once.
    /// Returns whether it is the first of this channel to wait for that batch.
    pub(crate) fn published(&mut self, batch: Option<BatchNo>) -> bool {
        let sequence = self.next;
        self.next += 1;
        match (batch, self.waiting.back_mut()) {
            (Some(batch), Some(last)) if last.batch == batch => {
                if last.last + 1 == sequence {
                    last.last = sequence;
                } else {
                    self.waiting.push_back(Range { first: sequence, last: sequence, batch });
                }
                false
            }
            (Some(batch), _) => {
                self.waiting.push_back(Range { first: sequence, last: sequence, batch });
                true
            }
            (None, Some(_)) => {
                self.singles.push(sequence);
                false
            }
            (None, None) => false,
        }
    }

    /// Everything up to and including `batch` is synced.
    pub(crate) fn durable(&mut self, batch: BatchNo) {
        while self.waiting.front().is_some_and(|range| range.batch <= batch) {
            self.waiting.pop_front();
        }
    }

    /// The acks that tell what was settled since the last call.
    pub(crate) fn take_acks(&mut self, acks: &mut Vec<Ack>) {
        let settled = self.waiting.front().map_or(self.next, |range| range.first) - 1;
        if settled > self.told {
            acks.push(Ack { delivery_tag: settled, multiple: settled > self.told + 1 });
            self.told = settled;
        }
        let told = self.told;
        acks.extend(
            self.singles
                .drain(..)
                .filter(|single| *single > told)
                .map(|delivery_tag| Ack { delivery_tag, multiple: false }),
        );
    }

    /// Publishes numbered so far.
    pub(crate) fn published_count(&self) -> u64 {
        self.next - 1
    }

    /// The last batch that any of them waits for.
    pub(crate) fn last_batch(&self) -> Option<BatchNo> {
        self.waiting.back().map(|range| range.batch)
    }

    /// Published and not told as settled; an upper bound (singles that were told count until the
    /// prefix passes them).
    pub(crate) fn unconfirmed(&self) -> u64 {
        self.next - 1 - self.told
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn acks(confirms: &mut Confirms) -> Vec<(u64, bool)> {
        let mut acks = Vec::new();
        confirms.take_acks(&mut acks);
        acks.iter().map(|ack| (ack.delivery_tag, ack.multiple)).collect()
    }

    #[test]
    fn one_frame_tells_of_a_whole_batch() {
        let mut confirms = Confirms::new();
        for _ in 0..10 {
            confirms.published(Some(7));
        }
        assert_eq!(acks(&mut confirms), []);
        confirms.durable(7);
        assert_eq!(acks(&mut confirms), [(10, true)]);
        assert_eq!(acks(&mut confirms), []);
    }

    #[test]
    fn a_transient_message_is_confirmed_before_an_earlier_persistent_one() {
        let mut confirms = Confirms::new();
        confirms.published(Some(7));
        confirms.published(None);
        confirms.published(Some(7));
        assert_eq!(acks(&mut confirms), [(2, false)]);
        confirms.durable(7);
        assert_eq!(acks(&mut confirms), [(3, true)]);
    }

    proptest! {
        #[test]
        fn each_publish_settles_exactly_when_its_batch_is_synced(
            steps in proptest::collection::vec((0u8..4, 1u64..6), 1..200)
        ) {
            let mut confirms = Confirms::new();
            let mut open = 1u64;
            let mut due: Vec<(u64, Option<u64>)> = Vec::new();
            let mut told = BTreeSet::new();
            let mut synced = 0;
            for (kind, count) in steps {
                match kind {
                    0 => for _ in 0..count {
                        due.push((due.len() as u64 + 1, Some(open)));
                        confirms.published(Some(open));
                    },
                    1 => for _ in 0..count {
                        due.push((due.len() as u64 + 1, None));
                        confirms.published(None);
                    },
                    2 => open += 1,
                    _ => {
                        synced = open - 1;
                        confirms.durable(synced);
                    }
                }
                let mut acks = Vec::new();
                confirms.take_acks(&mut acks);
                for ack in acks {
                    if ack.multiple {
                        told.extend(1..=ack.delivery_tag);
                    } else {
                        prop_assert!(told.insert(ack.delivery_tag));
                    }
                }
                let expected: BTreeSet<u64> = due.iter()
                    .filter(|(_, batch)| batch.is_none_or(|batch| batch <= synced))
                    .map(|(sequence, _)| *sequence)
                    .collect();
                prop_assert_eq!(&told, &expected);
            }
        }
    }
}
