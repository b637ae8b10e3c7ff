//! What the answers to gets say is left. A step's answers and deliveries are seen connection by connection, not in
//! the order they were made in: what is seen before an answer may have been taken after it, and the reverse. So an
//! answer is held against what was there when it was seen, give or take all that the step took, once that is known.

use std::collections::BTreeMap;

use crate::names::Name;
use crate::violation::{Violation, violation};

/// What one step took of each queue, and what its answers said is left.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// By queue: deliveries, answers to gets, and what is seen to have died, by its letter.
    taken: BTreeMap<Name, usize>,
    told: Vec<Told>,
}

/// An answer to a get.
#[derive(Debug)]
struct Told {
    queue: Name,
    left: usize,
    /// What was ready, at least and at most, when the answer was seen.
    ready: (usize, usize),
    /// What was seen to be taken up to then, with the answer's own message.
    taken: usize,
}

impl Counts {
    pub(super) fn took(&mut self, queue: Name) {
        *self.taken.entry(queue).or_insert(0) += 1;
    }

    /// An answer, whose own message has been counted as taken.
    pub(super) fn told(&mut self, queue: Name, left: u32, ready: (usize, usize)) {
        let taken = self.taken.get(queue).copied().unwrap_or(0);
        self.told.push(Told { queue, left: left as usize, ready, taken });
    }

    /// The step is over.
    pub(super) fn check(&self) -> Result<(), Violation> {
        for Told { queue, left, ready: (least, most), taken } in &self.told {
            let all = self.taken.get(queue).copied().unwrap_or(0);
            let least = least.saturating_sub(all - taken);
            let most = most + taken.saturating_sub(1);
            if !(least..=most).contains(left) {
                let what = format!("get-ok of {queue} says {left} left, not {least} to {most}");
                return violation("counts are right", what);
            }
        }
        Ok(())
    }
}
