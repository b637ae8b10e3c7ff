//! What a delivery, or the lack of one, says about messages that should have come before.

use super::queue::{Absent, Instance, Queue};

impl Queue {
    /// What was passed over by the one at `position`, in a step of the broker that began after `step_op`: of what came in that step
    /// with a higher priority nobody knows, nor of what came back in it.
    fn passed_over(&self, position: u64, step_op: u64) -> impl Iterator<Item = u64> + '_ {
        let passed_over = move |position: &u64| {
            let instance = &self.instances[position];
            let is_new = instance.published_op > step_op && self.max_priority > 0;
            let is_back = instance.back_op > step_op;
            !(instance.loose || is_new || is_back)
        };
        self.ready.range(..position).copied().filter(passed_over)
    }

    /// The first message that is certainly ready and was passed over.
    pub(crate) fn overtaken(&self, position: u64, step_op: u64) -> Option<&Instance> {
        let passed_over = self.passed_over(position, step_op);
        passed_over.map(|position| &self.instances[&position]).find(|instance| !instance.may)
    }

    /// Doubtful messages that were passed over are not there: whatever took them did so before `op`.
    pub(crate) fn doubts_resolved_before(&mut self, position: u64, step_op: u64, op: u64) {
        let absent: Vec<u64> = self.passed_over(position, step_op).collect();
        absent.into_iter().for_each(|position| self.doubt_resolved(position, op));
    }

    /// There is no ready message: the doubtful ones are not there.
    pub(crate) fn doubts_resolved(&mut self, op: u64) {
        for position in self.ready.clone() {
            self.doubt_resolved(position, op);
        }
    }

    fn doubt_resolved(&mut self, position: u64, op: u64) {
        let instance = &self.instances[&position];
        if !instance.may {
            return;
        }
        // A letter that came may have gone by now: then what died is in none of both places.
        if !instance.may_be_gone || instance.letter.is_some() {
            let (id, letter) = (instance.id, instance.letter);
            self.absent.insert(Absent { id, letter, may_be_gone: instance.may_be_gone });
        }
        if instance.leaving {
            self.die(position, op);
        } else {
            self.settle(position, op);
        }
    }
}
