//! What must be, and what may be, in each durable queue after a restart.
//!
//! ```text
//!   published ──► confirmed ──► delivered ──► acked ──► ack known to be on disk
//!   may be         must be      must be,      may be    must not be
//!   there          there        flagged       there,    there
//!                               redelivered   flagged
//! ```
//! Transient messages must not be there. After each check the model starts anew from what was found:
//! whatever was not there must never come back.

use std::collections::{HashMap, HashSet};

use super::message::{Id, Messages, Target};

/// The durable queues.
pub const QUEUES: [&str; 3] = ["orders", "left", "right"];

/// What one publisher did in one round.
#[derive(Debug, Default)]
pub struct Published {
    /// Which publisher.
    pub publisher: u32,
    /// Its first number in this round.
    pub first: u64,
    /// The last number handed to the client; below `first` if there is none.
    pub last: u64,
    /// The numbers that were confirmed, in ranges.
    pub confirmed: Vec<(u64, u64)>,
    /// What went wrong, apart from the broker's end.
    pub wrong: Vec<String>,
}

/// What one consumer did in one round.
#[derive(Debug, Default)]
pub struct Consumed {
    /// Of which queue.
    pub queue: &'static str,
    /// Everything delivered, with the flag it came with, in order.
    pub delivered: Vec<(Id, bool)>,
    /// Acked; nobody knows whether the ack reached the disk.
    pub acked: HashSet<Id>,
    /// Acked, and a later publish on the same channel was confirmed: the ack is on disk.
    pub gone: HashSet<Id>,
    /// What went wrong, apart from the broker's end.
    pub wrong: Vec<String>,
}

/// One durable queue.
#[derive(Debug, Default)]
pub struct QueueModel {
    must: HashSet<Id>,
    may: HashSet<Id>,
    delivered: HashSet<Id>,
}

/// A message found after a restart.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// Which.
    pub id: Id,
    /// Its flag.
    pub redelivered: bool,
}

/// All durable queues.
#[derive(Debug, Default)]
pub struct Model {
    queues: HashMap<&'static str, QueueModel>,
}

impl Model {
    /// Takes over what publishers and consumers did. Returns what is wrong already.
    pub fn round(
        &mut self,
        messages: &Messages,
        published: &[Published],
        consumed: &[Consumed],
    ) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut fresh = HashMap::<&str, HashSet<Id>>::new();
        for by in published {
            wrong.extend(by.wrong.iter().cloned());
            let confirmed: HashSet<u64> =
                by.confirmed.iter().flat_map(|(first, last)| *first..=*last).collect();
            for number in by.first..=by.last {
                let id = Id { publisher: by.publisher, number };
                let plan = messages.plan(id);
                let queues: &[&str] = match plan.target {
                    Target::Orders => &["orders"],
                    Target::Fan => &["left", "right"],
                    Target::Passing => &[],
                };
                for queue in queues {
                    fresh.entry(queue).or_default().insert(id);
                    if plan.persistent {
                        let model = self.queue(queue);
                        model.may.insert(id);
                        if confirmed.contains(&number) {
                            model.must.insert(id);
                        }
                    }
                }
            }
        }
        for by in consumed {
            wrong.extend(by.wrong.iter().cloned());
        }
        for queue in QUEUES {
            let fresh = fresh.remove(queue).unwrap_or_default();
            let mut first_deliveries = HashSet::new();
            let model = self.queue(queue);
            for by in consumed.iter().filter(|by| by.queue == queue) {
                let mut last_of = HashMap::<u32, u64>::new();
                for (id, redelivered) in &by.delivered {
                    if !fresh.contains(id) && !model.may.contains(id) {
                        wrong.push(format!("'{queue}' delivered {id:?}, which is not in it"));
                    }
                    if *redelivered {
                        continue;
                    }
                    if model.delivered.contains(id) || !first_deliveries.insert(*id) {
                        wrong.push(format!("'{queue}' delivered {id:?} again without the flag"));
                    }
                    let last = last_of.insert(id.publisher, id.number);
                    if last.is_some_and(|last| last >= id.number) {
                        wrong.push(format!("'{queue}' delivered {id:?} after {last:?}"));
                    }
                }
            }
            for by in consumed.iter().filter(|by| by.queue == queue) {
                model.delivered.extend(by.delivered.iter().map(|(id, _)| *id));
                for id in &by.acked {
                    model.must.remove(id);
                }
                for id in &by.gone {
                    model.must.remove(id);
                    model.may.remove(id);
                }
            }
        }
        wrong
    }

    /// Compares what is in a queue after a restart, in order, with what must and may be.
    pub fn check(&mut self, messages: &Messages, queue: &str, found: &[Found]) -> Vec<String> {
        let mut wrong = Vec::new();
        let model = self.queue(queue);
        let mut seen = HashSet::new();
        let mut last_of = HashMap::<u32, u64>::new();
        for message in found {
            let id = message.id;
            if !seen.insert(id) {
                wrong.push(format!("'{queue}' has {id:?} twice"));
            }
            if !messages.plan(id).persistent {
                wrong.push(format!("'{queue}' has {id:?}, which is transient"));
            } else if !model.may.contains(&id) {
                wrong.push(format!("'{queue}' has {id:?}, which was never there or is gone"));
            }
            if model.delivered.contains(&id) && !message.redelivered {
                wrong.push(format!("'{queue}' has {id:?} delivered before, without the flag"));
            }
            let last = last_of.insert(id.publisher, id.number);
            if last.is_some_and(|last| last >= id.number) {
                wrong.push(format!("'{queue}' has {id:?} behind number {last:?}"));
            }
        }
        for id in model.must.difference(&seen) {
            wrong.push(format!("'{queue}' has lost {id:?}, which was confirmed"));
        }
        wrong
    }

    /// Goes on from what was found, less what was acked for certain.
    pub fn restart(&mut self, queue: &'static str, left: impl IntoIterator<Item = Id>) {
        let left: HashSet<Id> = left.into_iter().collect();
        let model = self.queue(queue);
        model.must.clone_from(&left);
        model.may.clone_from(&left);
        model.delivered = left;
    }

    /// How many messages must be in all queues.
    pub fn must_be(&self) -> usize {
        self.queues.values().map(|queue| queue.must.len()).sum()
    }

    fn queue(&mut self, queue: &str) -> &mut QueueModel {
        let name = QUEUES.into_iter().find(|name| *name == queue).expect("a durable queue");
        self.queues.entry(name).or_default()
    }
}
