//! A message that was delivered, where it is, and what became of it.

use forebay_pipeline::{Outcome, Receipt, Verdict};

use super::batch::BatchAt;
use super::{Shared, World};
use crate::histories::plan::Value;

/// One delivery of a message, as handlers get it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) tag: usize,
    pub(crate) value: Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum At {
    /// Not begun.
    Here,
    Work,
    /// Tried again between the two, here, unless its source takes it.
    Off {
        from: u64,
        to: u64,
        with_worker: bool,
    },
    Leaving {
        from: u64,
        to: u64,
        with_worker: bool,
    },
    /// Its source has it.
    Left,
    Buried,
    Settling(Verdict),
    /// Waits for its batch.
    Handed {
        since: u64,
        order: u64,
    },
    Batch(usize),
    Cancelled,
    Gone,
}

#[derive(Debug)]
pub(super) struct Delivery {
    pub(super) job: usize,
    pub(super) value: Value,
    pub(super) connection: u32,
    pub(super) attempts: u32,
    pub(super) at: At,
    pub(super) begun: u64,
    pub(super) settled: bool,
    /// Its handler settles it so.
    pub(super) settles: Option<Verdict>,
    pub(super) rests_until: u64,
}

impl World {
    pub(super) fn is_void(&self, tag: usize) -> bool {
        let delivery = &self.deliveries[tag];
        !delivery.settled && delivery.connection != self.connection
    }

    /// It has been for some time.
    pub(super) fn was_void(&self, tag: usize) -> bool {
        self.is_void(tag) && self.cut < self.now()
    }

    /// An earlier one of its key is not done.
    pub(super) fn is_behind(&self, tag: usize) -> bool {
        let of_lane = |at| {
            use At::{Buried, Here, Leaving, Off, Settling, Work};
            matches!(at, Here | Work | Off { .. } | Leaving { .. } | Buried | Settling(_))
        };
        let key = self.deliveries[tag].value.key;
        let mut before = self.deliveries[..tag].iter();
        self.plan.ordered && before.any(|other| other.value.key == key && of_lane(other.at))
    }

    pub(super) fn settle(&mut self, tag: usize, verdict: Verdict) {
        self.note(format!("settle {tag} {verdict:?}"));
        let void = self.is_void(tag);
        let delivery = &mut self.deliveries[tag];
        let given = delivery.settles.take() == Some(verdict);
        let (allowed, at) = match delivery.at {
            At::Work | At::Batch(_) => (given, delivery.at),
            At::Settling(expected) => (expected == verdict, At::Gone),
            At::Left => (verdict == Verdict::Ack, At::Gone),
            At::Here | At::Off { .. } | At::Leaving { .. } | At::Handed { .. } => {
                (void && verdict == Verdict::Requeue, At::Gone)
            }
            _ => (self.unsure, At::Gone),
        };
        let (was, left) = (delivery.at, delivery.at == At::Left);
        let (job, here) = (delivery.job, delivery.connection == self.connection);
        (delivery.settled, delivery.at) = (true, at);
        // Another attempt at its batch is in vain if it comes again.
        if let At::Batch(number) = was
            && void
            && let BatchAt::Off { .. } | BatchAt::Split = self.batches[number].at
        {
            if self.batches[number].at == BatchAt::Split {
                self.forget_halves(number);
            } else if self.batches[number].tags.iter().all(|tag| self.deliveries[*tag].settled) {
                self.batches[number].at = BatchAt::Over;
            }
            self.deliveries[tag].at = At::Gone;
        } else if !allowed {
            self.fault(&format!("{tag} is settled with {verdict:?}: {was:?}"));
        }
        if let At::Batch(number) = was
            && self.batches[number].at == BatchAt::Over
        {
            for tag in self.batches[number].tags.clone() {
                if self.deliveries[tag].settled {
                    self.deliveries[tag].at = At::Gone;
                }
            }
        }
        match verdict {
            Verdict::Ack => self.report.acked += 1,
            Verdict::Reject => self.report.rejected += 1,
            Verdict::Requeue => self.report.requeued += 1,
        }
        self.report.postponed += u64::from(left);
        if verdict == Verdict::Requeue && here {
            self.queue.push_back(job);
            self.given_back.insert(job, true);
        }
        // The credit may have been what was missing.
        self.wake();
    }

    pub(super) fn dropped(&mut self, tag: usize) {
        self.note(format!("drop {tag}"));
        if !self.is_ending() {
            let at = self.deliveries[tag].at;
            self.fault(&format!("{tag} is given up: {at:?}"));
        }
        let delivery = &mut self.deliveries[tag];
        (delivery.settled, delivery.at) = (true, At::Gone);
        let (job, here) = (delivery.job, delivery.connection == self.connection);
        if here {
            self.queue.push_back(job);
            self.given_back.insert(job, true);
        }
    }
}

pub(super) fn verdict(outcome: Outcome) -> Verdict {
    match outcome {
        Outcome::Ack => Verdict::Ack,
        Outcome::Reject | Outcome::DeadLetter => Verdict::Reject,
        _ => Verdict::Requeue,
    }
}

pub(crate) struct Tag {
    pub(super) world: Shared,
    pub(super) tag: usize,
    pub(super) connection: u32,
    pub(super) used: bool,
}

impl Receipt for Tag {
    fn is_void(&self) -> bool {
        self.world.0.lock().unwrap().connection != self.connection
    }

    fn settle(mut self, verdict: Verdict) {
        self.used = true;
        self.world.enter().settle(self.tag, verdict);
    }
}

impl Drop for Tag {
    fn drop(&mut self) {
        if !self.used {
            self.world.enter().dropped(self.tag);
        }
    }
}
