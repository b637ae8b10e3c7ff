//! The batches: what each holds, when one may begin, and what follows from its end.

use std::time::Duration;

use forebay_pipeline::Outcome;

use super::World;
use super::delivery::{At, Delivery, Message, verdict};
use crate::histories::plan::{Act, Call};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BatchAt {
    Work,
    Buried,
    Off {
        from: u64,
        to: u64,
        with_worker: bool,
    },
    /// Halves of it are to be begun.
    Split,
    Over,
}

#[derive(Debug)]
pub(super) struct Seen {
    pub(super) tags: Vec<usize>,
    pub(super) attempts: u32,
    pub(super) at: BatchAt,
    pub(super) begun: u64,
    /// Which are to be begun.
    pub(super) halves: Vec<Vec<usize>>,
    /// Some of its dead letters was not sent.
    pub(super) unsent: bool,
}

impl Seen {
    fn new(tags: &[usize], attempts: u32) -> Seen {
        let (tags, halves) = (tags.to_vec(), Vec::new());
        Seen { tags, attempts, at: BatchAt::Over, begun: 0, halves, unsent: false }
    }
}

impl World {
    pub(super) fn batch_begins(&mut self, batch: &[Message], attempt: u32) -> (usize, Call) {
        let now = self.now();
        let tags: Vec<usize> = batch.iter().map(|message| message.tag).collect();
        self.note(format!("begin batch {tags:?} attempt {attempt}"));
        let busy = |batch: &&Seen| matches!(batch.at, BatchAt::Work | BatchAt::Buried);
        let busy = self.batches.iter().filter(busy).count();
        let known = self
            .batches
            .iter()
            .position(|seen| matches!(seen.at, BatchAt::Off { .. }) && seen.tags == tags);
        let of = |number: usize| match self.deliveries[tags[0]].at {
            At::Batch(of) => of == number,
            _ => false,
        };
        let mut waited_with = false;
        let number = if let Some(number) = known {
            let BatchAt::Off { from, with_worker, .. } = self.batches[number].at else {
                unreachable!()
            };
            waited_with = with_worker;
            if now < from {
                self.fault("a batch is tried again too early");
            }
            if tags.iter().all(|tag| self.was_void(*tag)) {
                self.fault("a batch is tried again that comes again");
            }
            number
        } else if let Some(parent) = (0..self.batches.len()).find(|number| of(*number)) {
            let seen = &mut self.batches[parent];
            match seen.halves.iter().position(|half| *half == tags) {
                Some(half) => drop(seen.halves.remove(half)),
                None => self.fault(&format!("{tags:?} are in work already")),
            }
            self.forget_halves(parent);
            if tags.iter().all(|tag| self.deliveries[*tag].settled) {
                self.fault("a half of which all is settled");
            }
            let attempts = self.batches[parent].attempts;
            self.batches.push(Seen::new(&tags, attempts));
            self.batches.len() - 1
        } else {
            self.new_batch(batch);
            self.batches.push(Seen::new(&tags, 0));
            self.batches.len() - 1
        };
        if !waited_with && busy >= self.most_batch_workers() {
            self.fault("a batch begins, and all are busy");
        }
        if self.batch_gate.was_open(now) {
            self.fault("a batch begins while the breaker is open");
        }
        let expected = self.batches[number].attempts + 1;
        if attempt != expected && !self.unsure {
            self.fault(&format!("attempt {attempt} at a batch, which is {expected}"));
        }
        for tag in &tags {
            self.deliveries[*tag].at = At::Batch(number);
        }
        let seen = &mut self.batches[number];
        (seen.at, seen.attempts, seen.begun) = (BatchAt::Work, expected, now);
        let last = Call { work: 1, act: Act::Settle(Outcome::Ack), settles: 0 };
        let call = self.plan.calls.get(self.calls).copied().unwrap_or(last);
        self.calls += 1;
        (number, call)
    }

    pub(super) fn new_batch(&mut self, batch: &[Message]) {
        let (now, batcher) = (self.now(), self.plan.batcher);
        let mut before = None;
        let mut first_since = now;
        for message in batch {
            let tag = message.tag;
            match self.deliveries[tag].at {
                At::Handed { order, since } => {
                    if before.is_some_and(|before| before > order) && !self.pressed {
                        self.fault("a batch is not in the order in which it came");
                    }
                    before = Some(order);
                    first_since = first_since.min(since);
                    let ahead = |other: &Delivery| match other.at {
                        At::Handed { order: first, .. } => {
                            let same = !batcher.keyed || other.value.key == message.value.key;
                            let here =
                                batch.iter().any(|it| self.deliveries[it.tag].job == other.job);
                            first < order && same && !here && other.connection == self.connection
                        }
                        _ => false,
                    };
                    if self.count(ahead) > 0 && !self.pressed {
                        self.fault(&format!("{tag} is batched before one that came before it"));
                    }
                }
                At::Cancelled if self.unsure => {}
                at => self.fault(&format!("{tag} is batched: {at:?}")),
            }
            if self.was_void(tag) {
                self.fault(&format!("{tag} is batched and comes again"));
            }
        }
        let (last, others) = batch.split_last().unwrap();
        let bytes: usize = others.iter().map(|message| message.value.bytes).sum();
        if batch.len() > batcher.messages
            || bytes >= batcher.bytes
            || others.iter().any(|it| it.value.last)
        {
            self.fault(&format!("a batch is too large: {batch:?}"));
        }
        if batcher.keyed && batch.iter().any(|message| message.value.key != last.value.key) {
            self.fault("a batch of several keys");
        }
        let full = batch.len() == batcher.messages
            || bytes + last.value.bytes >= batcher.bytes
            || last.value.last;
        let due = now >= first_since + batcher.delay;
        // What came again was taken out of it.
        let whole = self.connection == 0;
        if !(full || due || self.pressed || self.over || self.closing.is_some()) && whole {
            self.fault(&format!("a batch begins before it is full: {batch:?}"));
        }
    }

    pub(super) fn batch_ended(&mut self, number: usize, act: Option<Act>) {
        self.note(format!("end batch {:?} {act:?}", self.batches[number].tags));
        let tags = self.batches[number].tags.clone();
        let Ok(act) = self.result(self.batches[number].begun, act) else {
            if !self.is_ending() {
                self.fault("a batch is cancelled");
            }
            self.batches[number].at = BatchAt::Over;
            for tag in tags {
                let delivery = &mut self.deliveries[tag];
                delivery.at = if delivery.settled { At::Gone } else { At::Cancelled };
            }
            return;
        };
        let now = self.now();
        let attempts = self.batches[number].attempts;
        let settled = tags.iter().all(|tag| self.deliveries[*tag].settled);
        let void = tags.iter().all(|tag| self.is_void(*tag));
        let failed = matches!(act, Act::Fail | Act::Panic);
        let again = if failed && !settled { self.backoff(attempts) } else { None };
        let then = match act {
            Act::Settle(outcome) => outcome,
            Act::Batch => Outcome::Ack,
            _ if again.is_some() => Outcome::Retry(Duration::ZERO),
            _ => self.at_last(),
        };
        let splits =
            failed && !settled && again.is_none() && self.plan.batcher.bisects && tags.len() > 1;
        let comes_again = matches!(then, Outcome::Retry(_) | Outcome::Requeue);
        if splits {
            // Its parts tell whether one of them is to blame.
        } else if !self.batch_gate.by_default {
            self.batch_gate.tell(now, failed || comes_again);
        } else if failed && then == Outcome::Requeue {
            self.batch_gate.tell(now, true);
        } else if !failed && !comes_again && then != Outcome::DeadLetter {
            self.batch_gate.tell(now, false);
        }
        if splits {
            let middle = tags.len() / 2;
            let open = |half: &[usize]| half.iter().any(|tag| !self.deliveries[*tag].settled);
            let halves = [&tags[..middle], &tags[middle..]].into_iter().filter(|half| open(half));
            let halves = halves.map(<[usize]>::to_vec).collect();
            (self.batches[number].at, self.batches[number].halves) = (BatchAt::Split, halves);
            return;
        }
        let window = match then {
            Outcome::Retry(pause) if !settled && !void => {
                let at = now + pause.as_millis() as u64;
                Some(again.unwrap_or((at, at)))
            }
            _ => None,
        };
        if let Some((from, to)) = window {
            self.report.retried += 1;
            let off = |batch: &&Seen| matches!(batch.at, BatchAt::Off { .. });
            let with_worker = self.batches.iter().filter(off).count() >= self.batch_workers_most;
            self.batches[number].at = BatchAt::Off { from, to, with_worker };
            return;
        }
        if then == Outcome::DeadLetter && !settled && self.plan.dead_letters.is_some() {
            self.batches[number].at = BatchAt::Buried;
            return;
        }
        if then == Outcome::DeadLetter && !settled && self.batch_gate.by_default {
            self.batch_gate.tell(now, false);
        }
        self.batches[number].at = BatchAt::Over;
        for tag in tags {
            let delivery = &mut self.deliveries[tag];
            delivery.at = if delivery.settled { At::Gone } else { At::Settling(verdict(then)) };
        }
    }

    pub(super) fn batch_is_buried(&mut self, number: usize) {
        let now = self.now();
        let failed = self.batches[number].unsent;
        if self.batch_gate.by_default {
            self.batch_gate.tell(now, failed);
        }
        self.batches[number].at = BatchAt::Over;
    }

    /// Those of which all is settled, and the batch with the last.
    pub(super) fn forget_halves(&mut self, number: usize) {
        let (seen, deliveries) = (&mut self.batches[number], &self.deliveries);
        seen.halves.retain(|half| half.iter().any(|tag| !deliveries[*tag].settled));
        if seen.halves.is_empty() {
            seen.at = BatchAt::Over;
        }
    }
}
