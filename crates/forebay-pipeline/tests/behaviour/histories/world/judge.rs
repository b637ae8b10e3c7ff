//! The judge: virtual time stands still while anything is left to do, so what is there when it moves on is what the pipeline
//! has come to.

use std::collections::HashMap;

use forebay_pipeline::Report;

use super::batch::BatchAt;
use super::delivery::{At, Delivery};
use super::{Shared, World};

/// Timers go off so much too late at most.
const LATE: u64 = 1;

/// A worker who waits with its message looks so often whether it may go on.
const LOOKS: u64 = 1_000;

impl Shared {
    /// All is over, and this is what the pipeline has counted: what is wrong.
    pub(crate) fn ends(&self, report: Report) -> Option<String> {
        let mut world = self.enter();
        world.joined = true;
        world.judge_end(report);
        (!world.faults.is_empty()).then(|| world.told())
    }
}

impl World {
    /// A message that may begin does, if `workers` are idle, by then.
    pub(super) fn begins_by(&self) -> u64 {
        let mut by = self.last;
        if self.gate.open_until() > 0 {
            by = by.max(self.gate.open_until() + LATE);
        }
        if let Some(per_s) = self.rate.per_s {
            let since = self.begins.last().copied().unwrap_or(0).max(self.rate.since);
            by = by.max(since + 1_000 / per_s + 2 + LATE);
        }
        by
    }

    /// All is done that could be by `last`, and nothing happens before `now`.
    pub(super) fn judge(&mut self, now: u64) {
        let begins_by = self.begins_by();
        let workers = self.workers[1].1;
        let idle = workers.saturating_sub(self.busy() + self.waiting_with());
        let mut faults = Vec::new();
        for (tag, delivery) in self.deliveries.iter().enumerate() {
            let may = match delivery.at {
                At::Here if self.handing() > 0 && self.plan.ordered => continue,
                At::Here if !self.is_behind(tag) => delivery.rests_until,
                At::Off { to, with_worker: true, .. } => to.max(self.last) + LOOKS,
                At::Off { to, .. } => to,
                At::Settling(_) => {
                    faults.push(format!("{tag} is not settled"));
                    continue;
                }
                _ => continue,
            };
            let by = begins_by.max(if may > 0 { may + LATE } else { 0 });
            if idle > 0 && now > by {
                faults.push(format!("{tag} waits, and {idle} workers are idle: {:?}", delivery.at));
            }
        }
        let open =
            |delivery: &Delivery| delivery.connection == self.connection && !delivery.settled;
        let unsettled = self.count(open);
        let waits = !self.queue.is_empty() && self.connected && unsettled < self.credit;
        let room = self.buffered() < self.plan.buffer_max;
        if waits && room && idle > 0 && now > begins_by && !self.over {
            faults.push(format!("one waits outside, and {idle} workers are idle"));
        }
        self.judge_batches(now, &mut faults);
        let gone = |delivery: &Delivery| delivery.at != At::Gone;
        let batches = self.batches.iter().filter(|batch| batch.at != BatchAt::Over).count();
        let rest = self.count(gone) + batches;
        let none = self.closing.is_some() && self.queue.is_empty() || self.over;
        if none && rest == 0 && !self.joined && (self.over || idle > 0) {
            faults.push("it does not end".to_owned());
        }
        if self.deadline.is_some_and(|deadline| now > deadline + LATE) && !self.joined {
            faults.push("it goes on after its deadline".to_owned());
        }
        faults.iter().for_each(|what| self.fault(what));
        if self.handing() > 0 {
            // Some wait for room, and their time begins when they have it.
            for delivery in &mut self.deliveries {
                if let At::Handed { since, .. } = &mut delivery.at {
                    *since = now;
                }
            }
        }
    }

    pub(super) fn judge_batches(&self, now: u64, faults: &mut Vec<String>) {
        let busy = self.batches.iter().filter(|batch| match batch.at {
            BatchAt::Work | BatchAt::Buried => true,
            BatchAt::Off { with_worker, .. } => with_worker,
            _ => false,
        });
        let idle = self.batch_workers[1].1.saturating_sub(busy.count());
        let opens = self.batch_gate.open_until();
        let by = self.last.max(if opens > 0 { opens + LATE } else { 0 });
        if idle == 0 {
            return;
        }
        for (number, batch) in self.batches.iter().enumerate() {
            let may = match batch.at {
                BatchAt::Off { to, with_worker: true, .. } => to.max(self.last) + LOOKS + LATE,
                BatchAt::Off { to, .. } => to + LATE,
                BatchAt::Split => 0,
                _ => continue,
            };
            if now > by.max(may) {
                faults.push(format!("batch {number} waits, and {idle} workers are idle"));
            }
        }
        let batcher = self.plan.batcher;
        let mut open: HashMap<u8, (usize, usize, bool)> = HashMap::new();
        for delivery in &self.deliveries {
            let At::Handed { since, .. } = delivery.at else { continue };
            if now > by.max(since + batcher.delay + LATE) {
                faults.push(format!("a batch is not begun in its time: {delivery:?}"));
            }
            let key = if batcher.keyed { delivery.value.key } else { 0 };
            let (messages, bytes, last) = open.entry(key).or_default();
            *messages += 1;
            *bytes += delivery.value.bytes;
            *last |= delivery.value.last;
        }
        for (messages, bytes, last) in open.into_values() {
            if now > by && (messages >= batcher.messages || bytes >= batcher.bytes || last) {
                faults.push(format!("a full batch waits, and {idle} workers are idle"));
            }
        }
        if now > by && self.handing() > 0 {
            faults.push(format!("handlers wait for room, and {idle} batch workers are idle"));
        }
    }

    fn judge_end(&mut self, report: Report) {
        for tag in 0..self.deliveries.len() {
            if !self.deliveries[tag].settled {
                let at = self.deliveries[tag].at;
                self.fault(&format!("{tag} is neither settled nor given back: {at:?}"));
            }
        }
        self.report.taken = self.deliveries.len() as u64;
        if report != self.report && !self.unsure {
            let expected = self.report;
            self.fault(&format!("{report:?}, which should be {expected:?}"));
        }
    }
}
