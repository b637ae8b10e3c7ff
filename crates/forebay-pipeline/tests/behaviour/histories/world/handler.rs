//! The handlers: which message may begin, what its call does, and what follows from its end.

use std::time::Duration;

use forebay_pipeline::{Outcome, Verdict};

use super::batch::BatchAt;
use super::delivery::{At, Delivery, Message, verdict};
use super::{Shared, World, pause};
use crate::histories::plan::{Act, Attempt, Call};

#[derive(Debug, Clone, Copy)]
enum Of {
    Message(usize),
    Batch(usize),
}

/// Tells how a call ended.
pub(crate) struct Exit {
    world: Shared,
    of: Of,
    act: Option<Act>,
}

impl Exit {
    /// By itself, and so.
    pub(crate) fn with(&mut self, act: Act) {
        self.act = Some(act);
    }

    /// A message of the batch is settled by its handler.
    pub(crate) fn settles(&self, tag: usize, verdict: Option<Verdict>) {
        self.world.enter().deliveries[tag].settles = verdict;
    }
}

impl Drop for Exit {
    fn drop(&mut self) {
        let mut world = self.world.enter();
        match self.of {
            Of::Message(tag) => world.ended(tag, self.act),
            Of::Batch(number) => world.batch_ended(number, self.act),
        }
    }
}

impl Shared {
    /// The handler begins: what it does.
    pub(crate) fn begins(&self, message: Message, attempt: u32) -> (Attempt, Exit) {
        let attempt = self.enter().begins(message, attempt);
        (attempt, Exit { world: self.clone(), of: Of::Message(message.tag), act: None })
    }

    pub(crate) fn batch_begins(&self, batch: &[Message], attempt: u32) -> (Call, Exit) {
        let (number, call) = self.enter().batch_begins(batch, attempt);
        (call, Exit { world: self.clone(), of: Of::Batch(number), act: None })
    }

    /// A dead letter is sent, which may not succeed.
    pub(crate) async fn bury(self, message: Message) -> Result<(), &'static str> {
        let (time, of) = {
            let mut world = self.enter();
            let tag = message.tag;
            world.note(format!("bury {tag}"));
            let at = world.deliveries[tag].at;
            let allowed = match at {
                At::Buried => true,
                At::Batch(number) => world.batches[number].at == BatchAt::Buried,
                _ => false,
            };
            if !allowed && !world.unsure {
                world.fault(&format!("{tag} is buried: {at:?}"));
            }
            world.buried += 1;
            let (time, every) = world.plan.dead_letters.unwrap();
            (time, if world.buried % (every + 1) == every { Err("no room") } else { Ok(()) })
        };
        pause(time).await;
        self.enter().is_buried(message.tag, of.is_ok());
        of
    }
}

impl World {
    pub(super) fn begins(&mut self, message: Message, attempt: u32) -> Attempt {
        let (now, tag) = (self.now(), message.tag);
        self.note(format!("begin {tag} attempt {attempt}"));
        let delivery = &self.deliveries[tag];
        let early = match delivery.at {
            At::Here => now < delivery.rests_until,
            At::Off { from, .. } => now < from,
            At::Cancelled => !self.unsure,
            _ => true,
        };
        let (at, expected) = (delivery.at, delivery.attempts + 1);
        if early {
            self.fault(&format!("{tag} begins: {at:?}"));
        }
        if attempt != expected {
            self.fault(&format!("attempt {attempt} at {tag}, which is {expected}"));
        }
        if self.was_void(tag) {
            self.fault(&format!("{tag} begins and comes again"));
        }
        let waited_with = matches!(at, At::Off { with_worker: true, .. });
        if !waited_with && self.busy() >= self.most_workers() {
            self.fault(&format!("{tag} begins, and all are busy"));
        }
        if self.gate.was_open(now) {
            self.fault(&format!("{tag} begins while the breaker is open"));
        }
        if self.plan.ordered {
            let key = message.value.key;
            let at_work = |other: &Delivery| {
                other.value.key == key && matches!(other.at, At::Work | At::Buried)
            };
            if self.count(at_work) > 0 || self.is_behind(tag) {
                self.fault(&format!("{tag} begins before one of its key is done"));
            }
        }
        self.begins.push(now);
        if let Some(per_s) = self.rate.per_s {
            let begun = &self.begins[self.rate.begun..];
            let burst = (per_s / 10).max(1) + 1;
            for (number, from) in begun.iter().enumerate() {
                let many = (begun.len() - number) as u64;
                if many > burst + per_s * (now - from) / 1_000 + 1 {
                    self.fault(&format!("{many} begin in {} ms", now - from));
                    break;
                }
            }
        }
        let job = self.deliveries[tag].job;
        let tries = self.tries.entry(job).or_default();
        let job = &self.plan.jobs[job];
        let last = Attempt { work: 1, act: job.at_last, early: false };
        let does = job.attempts.get(*tries).copied().unwrap_or(last);
        *tries += 1;
        let delivery = &mut self.deliveries[tag];
        (delivery.at, delivery.begun, delivery.attempts) = (At::Work, now, expected);
        delivery.settles = does.early.then_some(Verdict::Ack);
        does
    }

    pub(super) fn ended(&mut self, tag: usize, act: Option<Act>) {
        self.note(format!("end {tag} {act:?}"));
        let Ok(act) = self.result(self.deliveries[tag].begun, act) else {
            if !self.is_ending() {
                self.fault(&format!("{tag} is cancelled"));
            }
            self.deliveries[tag].at =
                if self.deliveries[tag].settled { At::Gone } else { At::Cancelled };
            return;
        };
        let now = self.now();
        let Delivery { settled, attempts, .. } = self.deliveries[tag];
        let failed = matches!(act, Act::Fail | Act::Panic);
        let again = if failed && !settled { self.backoff(attempts) } else { None };
        let buries = self.plan.dead_letters.is_some();
        let then = match act {
            Act::Settle(outcome) => Some(outcome),
            Act::Batch => None,
            _ if again.is_some() => Some(Outcome::Retry(Duration::ZERO)),
            _ => Some(self.at_last()),
        };
        let comes_again = matches!(then, Some(Outcome::Retry(_) | Outcome::Requeue));
        if !self.gate.by_default {
            self.gate.tell(now, failed || comes_again);
        } else if failed && then == Some(Outcome::Requeue) {
            self.gate.tell(now, true);
        } else if !(failed || comes_again || buries && then == Some(Outcome::DeadLetter)) {
            self.gate.tell(now, false);
        }
        let window = match then {
            Some(Outcome::Retry(pause)) if !settled && !self.is_void(tag) => {
                let at = now + pause.as_millis() as u64;
                Some(again.unwrap_or((at, at)))
            }
            _ => None,
        };
        let with_worker = self.buffered() >= self.plan.buffer_max;
        let order = self.orders;
        let at = match (then, window) {
            (_, Some((from, to))) => {
                self.report.retried += 1;
                At::Off { from, to, with_worker }
            }
            (None, _) => {
                self.orders += 1;
                At::Handed { since: now, order }
            }
            _ if settled => At::Gone,
            (Some(Outcome::DeadLetter), _) if buries => At::Buried,
            (Some(outcome), _) => At::Settling(verdict(outcome)),
        };
        self.deliveries[tag].at = at;
        if self.handing() > 0 {
            self.pressed = true;
        }
        let handed = self.count(|delivery| matches!(delivery.at, At::Handed { .. }));
        self.pressed |= handed >= self.held_max();
    }

    /// `Err`: it was cancelled, and not by its time limit.
    pub(super) fn result(&mut self, begun: u64, act: Option<Act>) -> Result<Act, ()> {
        if let Some(act) = act {
            match act {
                Act::Fail => self.report.failed += 1,
                Act::Panic => {
                    self.report.failed += 1;
                    self.report.panicked += 1;
                }
                _ => {}
            }
            return Ok(act);
        }
        if self.plan.timeout.is_some_and(|limit| self.now() >= begun + limit.max(1)) {
            if self.is_ending() {
                // Which of the two came first?
                self.unsure = true;
                return Err(());
            }
            self.report.failed += 1;
            self.report.timed_out += 1;
            return Ok(Act::Fail);
        }
        Err(())
    }

    pub(super) fn at_last(&self) -> Outcome {
        let buries = self.plan.dead_letters.is_some();
        let unset = if buries { Outcome::DeadLetter } else { Outcome::Requeue };
        self.plan.on_failure.unwrap_or(unset)
    }

    /// From when until when it is tried again, after so many attempts; `None`: it is not.
    pub(super) fn backoff(&self, attempts: u32) -> Option<(u64, u64)> {
        let (retries, first) = self.plan.retries?;
        if attempts > retries {
            return None;
        }
        let longest = (first << (attempts - 1)).min(first * 4);
        Some((self.now() + longest / 2, self.now() + longest))
    }

    pub(super) fn is_buried(&mut self, tag: usize, sent: bool) {
        self.note(format!("buried {tag} {sent}"));
        let now = self.now();
        let verdict = if sent { Verdict::Ack } else { Verdict::Requeue };
        match self.deliveries[tag].at {
            At::Buried => {
                self.deliveries[tag].at = At::Settling(verdict);
                self.report.dead_lettered += u64::from(sent);
                if self.gate.by_default {
                    self.gate.tell(now, !sent);
                }
            }
            At::Batch(number) => {
                self.report.dead_lettered += u64::from(sent);
                self.deliveries[tag].settles = Some(verdict);
                let left = |tag: &&usize| !self.deliveries[**tag].settled;
                let last = self.batches[number].tags.iter().filter(left).count() == 1;
                self.batches[number].unsent |= !sent;
                if last {
                    self.batch_is_buried(number);
                }
            }
            At::Cancelled if self.unsure => {}
            at => self.fault(&format!("{tag} was buried: {at:?}")),
        }
    }
}
