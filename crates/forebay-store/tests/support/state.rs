//! What a store should hold, as plainly as it can be said.

use std::collections::{BTreeMap, BTreeSet};

use forebay_store::{QueueId, Seq};

pub const QUEUES: u64 = 3;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    pub messages: BTreeMap<(QueueId, Seq), Vec<u8>>,
    pub meta: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Above every number that a persistent message of the queue ever had.
    pub next_seq: BTreeMap<QueueId, Seq>,
}

#[derive(Clone, Debug)]
pub enum Change {
    Publish(Vec<(QueueId, Seq)>, Vec<u8>),
    Settle(QueueId, Seq),
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    Forget(QueueId),
}

impl State {
    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::Publish(queues, payload) => {
                for &(queue, seq) in queues {
                    self.messages.insert((queue, seq), payload.clone());
                    self.next_seq.insert(queue, seq + 1);
                }
            }
            Change::Settle(queue, seq) => {
                self.messages.remove(&(*queue, *seq));
            }
            Change::Put(key, value) => {
                self.meta.insert(key.clone(), value.clone());
            }
            Change::Delete(key) => {
                self.meta.remove(key);
            }
            Change::Forget(queue) => {
                self.next_seq.remove(queue);
            }
        }
    }

    /// Whether recovery may find this where `self` is what should be there: the same, but numbers may be
    /// passed over.
    pub fn allows(&self, found: &State) -> bool {
        let reached = |(queue, next): (&QueueId, &Seq)| {
            found.next_seq.get(queue).is_some_and(|found| found >= next)
        };
        self.messages == found.messages
            && self.meta == found.meta
            && self.next_seq.iter().all(reached)
    }
}

/// One life of a store, from a recovery to the next: what may be found at its end, or at any moment of it.
#[derive(Clone, Debug, Default)]
pub struct Life {
    /// What recovery found, and the newest batch then.
    pub base: State,
    pub base_batch: u64,
    /// What was done since, each with its batch.
    pub changes: Vec<(u64, Change)>,
    /// Calls to the disk that were recorded before this life.
    pub began: usize,
    /// Calls recorded when this batch had become durable.
    pub durable: Vec<(usize, u64)>,
}

impl Life {
    /// The states after each batch from `durable` on.
    pub fn candidates(&self, durable: u64) -> BTreeMap<u64, State> {
        let mut state = self.base.clone();
        let mut candidates = BTreeMap::new();
        let last = self.changes.last().map_or(self.base_batch, |change| change.0);
        let mut changes = self.changes.iter().peekable();
        for batch in self.base_batch..=last.max(durable) {
            while let Some((_, change)) = changes.next_if(|(number, _)| *number <= batch) {
                state.apply(change);
            }
            if batch >= durable {
                candidates.insert(batch, state.clone());
            }
        }
        candidates
    }

    /// The newest batch that was durable when so many calls had been made.
    pub fn durable_at(&self, calls: usize) -> u64 {
        let before = self.durable.partition_point(|mark| mark.0 <= calls);
        before.checked_sub(1).map_or(self.base_batch, |last| self.durable[last].1)
    }
}

/// Panics if none of the candidates allows what was found, and says how each differs.
pub fn assert_allowed(candidates: &BTreeMap<u64, State>, found: &State, context: &str) {
    if candidates.values().any(|candidate| candidate.allows(found)) {
        return;
    }
    for (batch, state) in candidates {
        let expected: BTreeSet<_> = state.messages.keys().collect();
        let got: BTreeSet<_> = found.messages.keys().collect();
        eprintln!(
            "batch {batch}: lost {:?}, returned {:?}, meta {}, numbers {:?} for {:?}",
            expected.difference(&got).collect::<Vec<_>>(),
            got.difference(&expected).collect::<Vec<_>>(),
            state.meta == found.meta,
            found.next_seq,
            state.next_seq,
        );
    }
    panic!("what was recovered is the state after no batch: {context}");
}
