//! Publisher confirms of one channel: what was published, what is settled, and the fewest frames that
//! say so.
//!
//! ```text
//!   sequence numbers     1 ─────────── acked ── 5   6   7 ── 9   10
//!                                               │   │   └─┬─┘    │
//!   waiting, in ranges by batch                 b7  ·   b7      b8
//!   settled out of turn                             6
//! ```
//! A range may also be held by a queue (see [`balancing`](crate::balancing)): it is settled when its batch is
//! synced and the queue has let go; what is settled behind it is told one by one.
//!
//! What a full queue refused is told at once by a `nack` of its own, and no `ack multiple` reaches over one: some clients
//! would take it for acknowledged.
//!
//! A message that needs no disk is settled at once, the others when their batch is synced. Batches are
//! synced in order, so ranges wait in order; when the first ones are settled, one `ack multiple` tells
//! of everything before the first range that still waits. It names one that was not told before: clients
//! that forget a number once it is acked take it for an error of the broker when that number comes again.

use std::collections::VecDeque;

use forebay_flow::CommitWaiter;
use forebay_store::BatchNo;

/// Unconfirmed messages a channel may have before its connection is not read any more: a bound for the
/// ranges below even if every second message is transient.
pub(crate) const UNCONFIRMED_MAX: u64 = 65_536;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    first: u64,
    last: u64,
    /// 0 if it needs no disk.
    batch: BatchNo,
    /// Number of a queue that has to let go first.
    held_by: Option<u64>,
}

/// Confirm mode's state.
#[derive(Debug)]
pub(crate) struct Confirms {
    next: u64,
    waiting: VecDeque<Range>,
    /// The last batch that was waited for, and the last one synced.
    waits_upto: BatchNo,
    durable_upto: BatchNo,
    /// Bytes in the last two batches that were waited for, the later one first.
    brought: [(BatchNo, u64); 2],
    modesty: CommitWaiter,
    /// Queues that hold ranges of `waiting`.
    held_by: Vec<u64>,
    /// All up to here have been settled and told.
    told: u64,
    /// How many have been told, one by one or together.
    told_count: u64,
    /// In `waiting`.
    open: u64,
    /// First and last of what is settled and not told yet.
    news: Vec<(u64, u64)>,
    /// Refused, and not below what has been told; the last ones, as many as `untold`, have not been told yet.
    refused: VecDeque<u64>,
    untold: usize,
}

/// A batch that is synced: what is in it, and how many channels waited for it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Committed {
    pub(crate) bytes: u64,
    pub(crate) waiters: u64,
}

/// A `basic.ack` to send, or a `basic.nack`.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(crate) struct Ack {
    pub(crate) delivery_tag: u64,
    pub(crate) multiple: bool,
    /// It is a nack.
    pub(crate) refused: bool,
}

impl Confirms {
    /// Fresh, as after the first `confirm.select`: the next publish is number 1.
    pub(crate) fn new() -> Confirms {
        Confirms {
            next: 1,
            waiting: VecDeque::new(),
            waits_upto: 0,
            durable_upto: 0,
            brought: [(0, 0); 2],
            modesty: CommitWaiter::default(),
            held_by: Vec::new(),
            told: 0,
            told_count: 0,
            open: 0,
            news: Vec::new(),
            refused: VecDeque::new(),
            untold: 0,
        }
    }

    /// Numbers a publish of `bytes` that is settled when `batch` is synced, or at once, and not before a queue that
    /// holds it lets go. Returns whether it is the first of this channel to wait for that batch.
    pub(crate) fn published(
        &mut self,
        bytes: u64,
        batch: Option<BatchNo>,
        held_by: Option<u64>,
    ) -> bool {
        let sequence = self.next;
        self.next += 1;
        if batch.is_none() && held_by.is_none() {
            match self.news.last_mut() {
                Some((_, last)) if *last + 1 == sequence => *last = sequence,
                _ => self.news.push((sequence, sequence)),
            }
            return false;
        }
        if let Some(queue) = held_by
            && !self.held_by.contains(&queue)
        {
            self.held_by.push(queue);
        }
        let first = batch.is_some_and(|batch| batch > self.waits_upto);
        self.waits_upto = self.waits_upto.max(batch.unwrap_or(0));
        if first {
            self.brought = [(self.waits_upto, 0), self.brought[0]];
        }
        if batch.is_some() {
            self.brought[0].1 += bytes;
        }
        let batch = batch.unwrap_or(0);
        self.open += 1;
        match self.waiting.back_mut() {
            Some(last)
                if last.batch == batch && last.held_by == held_by && last.last + 1 == sequence =>
            {
                last.last = sequence;
            }
            _ => self.waiting.push_back(Range { first: sequence, last: sequence, batch, held_by }),
        }
        first
    }

    /// Numbers a publish that a full queue refused.
    pub(crate) fn refused(&mut self) {
        self.refused.push_back(self.next);
        self.untold += 1;
        self.next += 1;
    }

    /// Everything up to and including `batch` is synced. Returns whether this is one of the [modest](CommitWaiter).
    pub(crate) fn durable(&mut self, batch: BatchNo, commit: Committed) -> bool {
        let brought = self.brought.iter().find(|(number, _)| *number == batch);
        let is_modest = brought.is_some_and(|(_, own_bytes)| {
            self.modesty.committed(*own_bytes, commit.bytes, commit.waiters)
        });
        self.durable_upto = self.durable_upto.max(batch);
        // Batches are synced in order, so only behind one that is held can a later one be settled.
        self.settle(!self.held_by.is_empty());
        is_modest
    }

    /// Whether anything waits for this queue to let go.
    pub(crate) fn is_held_by(&self, queue: u64) -> bool {
        self.held_by.contains(&queue)
    }

    /// A queue has let go.
    pub(crate) fn let_go(&mut self, queue: u64) {
        let Some(at) = self.held_by.iter().position(|other| *other == queue) else { return };
        self.held_by.swap_remove(at);
        for range in self.waiting.iter_mut().filter(|range| range.held_by == Some(queue)) {
            range.held_by = None;
        }
        self.settle(true);
    }

    /// Takes what is settled from the front, and, if asked for, from between what waits.
    fn settle(&mut self, between: bool) {
        let upto = self.durable_upto;
        let is_settled = |range: &Range| range.held_by.is_none() && range.batch <= upto;
        while let Some(range) = self.waiting.pop_front_if(|range| is_settled(range)) {
            self.open -= range.last - range.first + 1;
            self.news.push((range.first, range.last));
        }
        if between {
            let (news, open) = (&mut self.news, &mut self.open);
            self.waiting.retain(|range| {
                let settled = is_settled(range);
                if settled {
                    news.push((range.first, range.last));
                    *open -= range.last - range.first + 1;
                }
                !settled
            });
        }
    }

    /// The acks that tell what was settled since the last call: after it, all is told that does not wait.
    pub(crate) fn take_acks(&mut self, acks: &mut Vec<Ack>) {
        let settled = self.waiting.front().map_or(self.next, |range| range.first) - 1;
        let ack = |delivery_tag, multiple| Ack { delivery_tag, multiple, refused: false };
        let nack = |delivery_tag| Ack { delivery_tag, multiple: false, refused: true };
        self.news.sort_unstable();
        let mut news = self.news.drain(..).peekable();
        // Of all below a number, which is refused or waits, one frame tells; the last of them may be no news.
        let mut tell = |below: u64, told: &mut u64, acks: &mut Vec<Ack>| {
            let mut newest = None;
            while let Some((_, last)) = news.next_if(|(_, last)| *last < below) {
                newest = Some(last);
            }
            if let Some(newest) = newest {
                acks.push(ack(newest, newest > *told + 1));
            }
            *told = below - 1;
        };
        while let Some(refused) = self.refused.pop_front_if(|refused| *refused <= settled) {
            tell(refused, &mut self.told, acks);
            if self.refused.len() < self.untold {
                acks.push(nack(refused));
                self.untold -= 1;
            }
            self.told = refused;
        }
        tell(settled + 1, &mut self.told, acks);
        acks.extend(news.flat_map(|(first, last)| first..=last).map(|single| ack(single, false)));
        let known = self.refused.len() - self.untold;
        acks.extend(self.refused.iter().skip(known).map(|refused| nack(*refused)));
        self.untold = 0;
        self.told_count = self.published_count() - self.open;
    }

    /// Publishes numbered so far.
    pub(crate) fn published_count(&self) -> u64 {
        self.next - 1
    }

    /// The last batch that any of them waits for.
    pub(crate) fn last_batch(&self) -> Option<BatchNo> {
        (!self.waiting.is_empty()).then_some(self.waits_upto)
    }

    /// Published and not told as settled.
    pub(crate) fn unconfirmed(&self) -> u64 {
        self.published_count() - self.told_count
    }

    /// Whether no more may be published for now. Those that were refused count while they are remembered, behind one that is not
    /// settled.
    pub(crate) fn is_full(&self) -> bool {
        self.unconfirmed() + self.refused.len() as u64 >= UNCONFIRMED_MAX
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const BATCH: Committed = Committed { bytes: 100, waiters: 1 };

    fn acks(confirms: &mut Confirms) -> Vec<(u64, bool)> {
        let mut acks = Vec::new();
        confirms.take_acks(&mut acks);
        acks.iter().map(|ack| (ack.delivery_tag, ack.multiple)).collect()
    }

    #[test]
    fn one_frame_tells_of_a_whole_batch() {
        let mut confirms = Confirms::new();
        for _ in 0..10 {
            confirms.published(1, Some(7), None);
        }
        assert_eq!(acks(&mut confirms), []);
        confirms.durable(7, BATCH);
        assert_eq!(acks(&mut confirms), [(10, true)]);
        assert_eq!(acks(&mut confirms), []);
    }

    #[test]
    fn a_transient_message_is_confirmed_before_an_earlier_persistent_one() {
        let mut confirms = Confirms::new();
        confirms.published(1, Some(7), None);
        confirms.published(1, None, None);
        confirms.published(1, Some(7), None);
        assert_eq!(acks(&mut confirms), [(2, false)]);
        confirms.durable(7, BATCH);
        assert_eq!(acks(&mut confirms), [(3, true)]);
    }

    #[test]
    fn no_frame_names_one_that_was_told_before() {
        let mut confirms = Confirms::new();
        for batch in [Some(7), Some(7), None, None] {
            confirms.published(1, batch, None);
        }
        assert_eq!(acks(&mut confirms), [(3, false), (4, false)]);
        confirms.durable(7, BATCH);
        assert_eq!(acks(&mut confirms), [(2, true)]);
        confirms.published(1, None, None);
        assert_eq!(acks(&mut confirms), [(5, false)]);
    }

    #[test]
    fn a_held_confirm_waits_and_those_behind_it_do_not() {
        let mut confirms = Confirms::new();
        confirms.published(1, Some(7), None);
        confirms.published(1, Some(7), Some(1));
        confirms.published(1, None, Some(1));
        confirms.published(1, Some(7), None);
        confirms.published(1, None, None);
        assert_eq!(acks(&mut confirms), [(5, false)]);
        confirms.durable(7, BATCH);
        assert_eq!(acks(&mut confirms), [(1, false), (4, false)]);
        confirms.let_go(1);
        assert_eq!(acks(&mut confirms), [(3, true)]);
        assert!(!confirms.is_held_by(1));
    }

    #[test]
    fn what_is_refused_is_told_at_once_and_no_ack_reaches_over_it() {
        let mut confirms = Confirms::new();
        let told = |confirms: &mut Confirms| {
            let mut acks = Vec::new();
            confirms.take_acks(&mut acks);
            let tell = |ack: &Ack| (ack.delivery_tag, ack.multiple, ack.refused);
            acks.iter().map(tell).collect::<Vec<_>>()
        };
        for batch in [Some(7), Some(7)] {
            confirms.published(1, batch, None);
        }
        confirms.refused();
        confirms.published(1, Some(7), None);
        confirms.refused();
        assert_eq!(told(&mut confirms), [(3, false, true), (5, false, true)]);
        assert_eq!(confirms.unconfirmed(), 3);
        confirms.durable(7, BATCH);
        confirms.refused();
        confirms.published(1, None, None);
        let wanted = [(2, true, false), (4, false, false), (6, false, true), (7, false, false)];
        assert_eq!(told(&mut confirms), wanted);
        assert_eq!((told(&mut confirms), confirms.unconfirmed()), (vec![], 0));
    }

    proptest! {
        #[test]
        fn each_publish_settles_exactly_when_its_batch_is_synced_and_nobody_holds_it(
            steps in proptest::collection::vec((0u8..8, 1u64..6, 0u64..3), 1..200)
        ) {
            let mut confirms = Confirms::new();
            let mut open = 1u64;
            let mut due: Vec<(u64, Option<u64>, Option<u64>)> = Vec::new();
            let mut told = BTreeSet::new();
            let mut nacked = BTreeSet::new();
            let mut refused = BTreeSet::new();
            let mut waiting = BTreeSet::new();
            let mut synced = 0;
            for (kind, count, queue) in steps {
                // Queue 0 holds nobody.
                let held_by = (queue > 0).then_some(queue);
                match kind {
                    0..=3 => for _ in 0..count {
                        let batch = (kind % 2 == 0).then_some(open);
                        let held_by = held_by.filter(|_| kind < 2);
                        due.push((due.len() as u64 + 1, batch, held_by));
                        let first = confirms.published(1, batch, held_by);
                        prop_assert_eq!(first, batch.is_some_and(|batch| waiting.insert(batch)));
                    },
                    4 => open += 1,
                    5 => {
                        synced = open - 1;
                        confirms.durable(synced, BATCH);
                    }
                    6 => for _ in 0..count {
                        due.push((due.len() as u64 + 1, None, None));
                        refused.insert(due.len() as u64);
                        confirms.refused();
                    },
                    _ => {
                        confirms.let_go(queue);
                        for (_, _, held_by) in &mut due {
                            *held_by = held_by.filter(|other| *other != queue);
                        }
                    }
                }
                let mut acks = Vec::new();
                confirms.take_acks(&mut acks);
                for ack in acks {
                    if ack.refused {
                        prop_assert!(nacked.insert(ack.delivery_tag) && told.insert(ack.delivery_tag));
                    } else if ack.multiple {
                        // It names one that is new. All below are told; of what is new nothing was refused.
                        prop_assert!(told.insert(ack.delivery_tag));
                        for tag in 1..ack.delivery_tag {
                            prop_assert!(!told.insert(tag) || !refused.contains(&tag));
                        }
                    } else {
                        prop_assert!(told.insert(ack.delivery_tag));
                    }
                }
                prop_assert_eq!(&nacked, &refused);
                let expected: BTreeSet<u64> = due.iter()
                    .filter(|(_, batch, held_by)| {
                        batch.is_none_or(|batch| batch <= synced) && held_by.is_none()
                    })
                    .map(|(sequence, _, _)| *sequence)
                    .collect();
                prop_assert_eq!(&told, &expected);
                prop_assert_eq!(confirms.unconfirmed(), (due.len() - told.len()) as u64);
            }
        }
    }
}
