//! A queue of the model: every message that may still be there, in order, and how sure that is.
//!
//! ```text
//!               delivered                 acked, purged, deleted
//!   Ready ────────────────────► Out ──────────────────────────────► Settled(op) ──► forgotten, once
//!     ▲  ◄── requeued, lost ─────┘                                      │           `op` is durable
//!     └──────────── crash before the settlement was durable ────────────┘ (then `may`)
//! ```
//!
//! `may` marks what a crash left in doubt: a publish, a settlement or a purge that was processed and not
//! yet known to be durable. Such a message may be there; the first later one delivered in its stead
//! shows that it is not.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::event::End;
use crate::message::Published;
use crate::names::Name;
use crate::swarm::Swarm;

use super::consumers::Who;
use super::limit::Limit;
use super::unused::Unused;

/// Below it stands the number of a message.
const PRIORITY_SHIFT: u32 = 56;

/// So many turns of the broker after it came a message was offered to whoever could take it.
const OFFERED_TURNS: u64 = 8;

/// An expired message may be late by so much, and by a 64th of its time to live, in microseconds.
const LATE_US: u64 = 2_000;

/// So exactly, and to a 16th of its time to live, it is written when a message came.
const SPAN_US: u64 = 1_000_000;

/// Where a message of a queue is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Ready,
    /// With the client of this index, on this channel, under this tag.
    Out {
        client: usize,
        channel: u16,
    },
    /// Gone since this operation.
    Settled {
        op: u64,
    },
}

/// What the `redelivered` flag of the next delivery has to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flag {
    /// Never delivered.
    Unset,
    /// Delivered before.
    Set,
    /// It may have been on its way.
    Either,
}

/// A message in a queue.
#[derive(Clone, Debug)]
pub(crate) struct Instance {
    pub(crate) id: u32,
    pub(crate) body_bytes: u64,
    /// It came as a dead letter from there: beside it the queue may have the message itself.
    pub(crate) letter: Option<Name>,
    pub(crate) published_op: u64,
    /// When it last came back; 0: never.
    pub(crate) back_op: u64,
    published_us: u64,
    published_turn: u64,
    /// When its time is over.
    due_us: Option<u64>,
    /// It may have died by itself, and its letter may be where those go.
    pub(crate) leaving: bool,
    /// Its queue may have been full, and it is in doubt for that.
    pub(crate) may_be_refused: bool,
    /// Nobody knows when it came, so it stands anywhere.
    pub(crate) loose: bool,
    /// In the log: a persistent message in a durable queue.
    pub(crate) stored: bool,
    pub(crate) place: Place,
    pub(crate) may: bool,
    /// If it is in doubt, then not only because it died: it may have been lost, or settled otherwise.
    pub(crate) may_be_gone: bool,
    pub(crate) flag: Flag,
}

/// A message, or a letter from there, that was in doubt and is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Absent {
    pub(crate) id: u32,
    pub(crate) letter: Option<Name>,
    /// It may have been there before.
    pub(crate) may_be_gone: bool,
}

/// A queue, with everything that may still be in it.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    pub(crate) name: Name,
    pub(crate) durable: bool,
    pub(crate) auto_delete: bool,
    /// The client that owns it.
    pub(crate) exclusive: Option<usize>,
    /// False: it was deleted, and what was in it may come back with a crash.
    pub(crate) exists: bool,
    /// When a client made it last; 0: it was there from the start.
    pub(crate) declared_op: u64,
    pub(crate) instances: BTreeMap<u64, Instance>,
    pub(super) ready: BTreeSet<u64>,
    settled: VecDeque<(u64, u64)>,
    next_position: u64,
    /// Positions begin with what a message's priority lacks to this one, so that the highest stand first.
    pub(super) max_priority: u8,
    /// No more may wait here.
    pub(crate) limit: Option<Limit>,
    /// What is too much is refused; otherwise the first may have gone.
    pub(crate) refuses: bool,
    /// The broker was started after this operation.
    pub(crate) started_op: u64,
    /// After so long a message may have gone.
    pub(crate) ttl_us: Option<u64>,
    /// When the first of those that are not in doubt for it may have gone; at the latest.
    next_due_us: u64,
    /// It goes when nobody uses it.
    pub(super) unused: Option<Unused>,
    /// What dies here goes to another queue.
    has_letters: bool,
    /// Those that may have died by themselves since somebody asked.
    pub(crate) left: Vec<u64>,
    pub(super) now_us: u64,
    turn: u64,
    /// What comes until then is counted with what a start found, of which less is known.
    coarse_until_us: u64,
    /// Messages that were in doubt for no other reason than that they died, or letters that were expected, and that turned
    /// out not to be there.
    pub(crate) absent: BTreeSet<Absent>,
    /// Consumers that the broker knows, in the order in which they came.
    pub(crate) consumers: Vec<Who>,
    /// Only the first of them gets anything.
    pub(crate) single_active: bool,
    pub(crate) exclusive_consumer: bool,
}

impl Queue {
    pub(crate) fn new(name: Name, swarm: &Swarm) -> Queue {
        Queue {
            name,
            durable: false,
            auto_delete: false,
            exclusive: None,
            exists: false,
            declared_op: 0,
            instances: BTreeMap::new(),
            ready: BTreeSet::new(),
            settled: VecDeque::new(),
            next_position: 0,
            max_priority: swarm.max_priority(name),
            limit: swarm.limit(name),
            refuses: swarm.refuses,
            started_op: 0,
            ttl_us: swarm.ttl_us(name),
            next_due_us: u64::MAX,
            unused: swarm.expires_us(name).map(Unused::after),
            has_letters: swarm.letters_from().contains(&name),
            left: Vec::new(),
            now_us: 0,
            turn: 0,
            coarse_until_us: 0,
            absent: BTreeSet::new(),
            consumers: Vec::new(),
            single_active: swarm.is_single_active(name),
            exclusive_consumer: false,
        }
    }

    /// Adds a message, or the letter of one from there. Returns its position.
    pub(crate) fn publish(&mut self, message: &Published, letter: Option<Name>, op: u64) -> u64 {
        let lacks = self.max_priority.saturating_sub(message.priority);
        let position = u64::from(lacks) << PRIORITY_SHIFT | self.next_position;
        self.next_position += 1;
        let of_its_own = message.expires_after_us().filter(|_| letter.is_none());
        let lives_us = of_its_own.into_iter().chain(self.ttl_us).min();
        let due_us = lives_us.map(|lives_us| self.now_us + lives_us);
        self.next_due_us = self.next_due_us.min(due_us.unwrap_or(u64::MAX));
        let instance = Instance {
            id: message.id,
            body_bytes: message.body_bytes.into(),
            letter,
            published_op: op,
            back_op: 0,
            published_us: self.now_us,
            published_turn: self.turn,
            due_us,
            leaving: false,
            may_be_refused: false,
            loose: false,
            stored: message.persistent && self.durable,
            place: Place::Ready,
            may: false,
            may_be_gone: false,
            flag: Flag::Unset,
        };
        self.instances.insert(position, instance);
        self.ready.insert(position);
        self.doubt_excess();
        position
    }

    /// A letter of this message may come from there at any time from now on. Where it is in doubt already it stays so.
    pub(crate) fn letter_may_come(&mut self, message: &Published, from: Name, op: u64) {
        let there = self.instances.values_mut().find(|instance| {
            let settled = matches!(instance.place, Place::Settled { .. });
            (instance.id, instance.letter) == (message.id, Some(from)) && !settled
        });
        if let Some(instance) = there {
            // Before a crash it was there, so it is not where it died.
            if instance.may && instance.place == Place::Ready {
                instance.loose = true;
                if instance.flag == Flag::Set {
                    instance.flag = Flag::Either;
                }
            }
            return;
        }
        self.never_was(message.id, Some(from));
        let position = self.publish(message, Some(from), op);
        if let Some(instance) = self.instances.get_mut(&position) {
            (instance.may, instance.loose) = (true, true);
        }
    }

    /// It is this time now. What has expired goes soon, and never comes after something that came later.
    pub(crate) fn at(&mut self, now_us: u64, turn: u64) {
        (self.now_us, self.turn) = (now_us, turn);
        self.doubt_excess();
        if self.next_due_us > now_us {
            return;
        }
        self.next_due_us = u64::MAX;
        for position in self.ready.clone() {
            let Some(due_us) = self.instances.get(&position).and_then(|i| i.due_us) else {
                continue;
            };
            if due_us <= now_us {
                self.doubt(position);
            } else {
                self.next_due_us = self.next_due_us.min(due_us);
            }
        }
    }

    /// Whether this should have gone: of what came in this life of the broker, and could be taken since. Behind what is to leave a
    /// letter and waits for room for it nothing is offered, and so it does not go, for as long as that lasts.
    pub(crate) fn is_overdue(&self, position: u64) -> bool {
        let instance = self.instances.get(&position);
        let Some(instance) = instance.filter(|instance| !instance.loose && !self.has_letters)
        else {
            return false;
        };
        let Some(due_us) = instance.due_us else { return false };
        let lives_us = due_us - instance.published_us;
        instance.published_us > self.coarse_until_us
            && instance.published_turn + OFFERED_TURNS < self.turn
            && self.now_us > due_us + lives_us / 64 + LATE_US
    }

    /// What is too much goes once nobody takes it, and that may have been before somebody did: those before the last ones may
    /// be there or not. Which of them went is seen when they do not come.
    fn doubt_excess(&mut self) {
        let Some(limit) = self.limit.filter(|_| !self.refuses) else { return };
        let newest_first = self.ready.iter().rev().map(|position| &self.instances[position]);
        let excess = self.ready.len() - limit.fit(newest_first);
        let positions: Vec<u64> = self.ready.iter().take(excess).copied().collect();
        positions.into_iter().for_each(|position| self.doubt(position));
    }

    /// This one may have died by itself.
    fn doubt(&mut self, position: u64) {
        let Some(instance) = self.instances.get_mut(&position) else { return };
        (instance.may, instance.may_be_refused) = (true, false);
        if !self.has_letters {
            instance.may_be_gone = true;
        } else if !instance.leaving {
            instance.leaving = true;
            self.left.push(position);
        }
    }

    /// Those whose letters may be where they go: they may be here all the same, and come there later.
    pub(crate) fn letters_go_anew(&mut self, lost: bool) {
        for position in &self.ready {
            if let Some(instance) = self.instances.get_mut(position) {
                instance.leaving = false;
                // One that a crash left in doubt may have died before it, and its letter is lost like the others.
                instance.may_be_gone |= lost && instance.may;
            }
        }
        self.next_due_us = 0;
    }

    /// The ready message that this delivery must be, if there is one: its position, and the positions of
    /// certain messages before it, which it has overtaken.
    pub(crate) fn ready_with_id(&self, id: u32, letter: Option<Name>) -> Option<u64> {
        // Mostly the first; the id is in a queue once, and once as a letter of each other.
        let same = |instance: &Instance| (instance.id, instance.letter) == (id, letter);
        self.ready.iter().copied().find(|position| same(&self.instances[position]))
    }

    /// The message of a delivery.
    pub(crate) fn out(&self, position: u64) -> Option<&Instance> {
        let instance = self.instances.get(&position);
        instance.filter(|instance| matches!(instance.place, Place::Out { .. }))
    }

    /// The first message that is certainly ready.
    pub(crate) fn first_certain(&self) -> Option<&Instance> {
        let ready = self.ready.iter().map(|position| &self.instances[position]);
        ready.into_iter().find(|instance| !instance.may)
    }

    /// (certainly, possibly) ready messages.
    pub(crate) fn ready_range(&self) -> (usize, usize) {
        let doubtful = self.ready.iter().filter(|p| self.instances[p].may).count();
        (self.ready.len() - doubtful, self.ready.len())
    }

    /// Whether what is next may have died by itself, and leave a letter.
    pub(crate) fn next_may_leave(&self) -> bool {
        let ready = self.ready.iter().map(|position| &self.instances[position]);
        ready.take_while(|instance| instance.may).any(|instance| instance.leaving)
    }

    /// All that may be ready, in order.
    pub(crate) fn ready(&self) -> impl DoubleEndedIterator<Item = &Instance> {
        self.ready.iter().map(|position| &self.instances[position])
    }

    /// Whether there may be something to deliver.
    pub(crate) fn ready_count(&self) -> usize {
        self.ready.len()
    }

    pub(crate) fn deliver(&mut self, position: u64, client: usize, channel: u16) {
        self.ready.remove(&position);
        if let Some(instance) = self.instances.get_mut(&position) {
            instance.place = Place::Out { client, channel };
            (instance.may, instance.may_be_gone) = (false, false);
            (instance.leaving, instance.may_be_refused) = (false, false);
            instance.flag = Flag::Set;
        }
    }

    /// What stands anywhere, since nobody knows when it came, is there: it came by operation `op`.
    pub(crate) fn came_by(&mut self, position: u64, op: u64) {
        if let Some(instance) = self.instances.get_mut(&position).filter(|instance| instance.loose)
        {
            instance.published_op = op;
        }
    }

    /// A delivery comes back to its place.
    pub(crate) fn requeue(&mut self, position: u64, op: u64) {
        if let Some(instance) = self.instances.get_mut(&position)
            && matches!(instance.place, Place::Out { .. })
        {
            instance.place = Place::Ready;
            instance.back_op = op;
            self.ready.insert(position);
            self.next_due_us = 0;
            self.doubt_excess();
        }
    }

    /// A message is done with, as of operation `op`.
    pub(crate) fn settle(&mut self, position: u64, op: u64) {
        let Some(instance) = self.instances.get_mut(&position) else { return };
        if matches!(instance.place, Place::Settled { .. }) {
            return;
        }
        self.ready.remove(&position);
        if instance.stored {
            instance.place = Place::Settled { op };
            instance.may_be_gone = true;
            self.settled.push_back((op, position));
        } else {
            self.instances.remove(&position);
        }
    }

    /// The same, but it has gone where dead letters go.
    pub(crate) fn die(&mut self, position: u64, op: u64) {
        let lost = self.instances.get(&position).is_some_and(|instance| instance.may_be_gone);
        self.settle(position, op);
        if let Some(instance) = self.instances.get_mut(&position) {
            instance.may_be_gone = lost;
        }
    }

    /// Drops what is ready. With `certain` false some of it may have left unseen and come back.
    pub(crate) fn purge(&mut self, op: u64, certain: bool) {
        for position in self.ready.clone() {
            if certain {
                self.settle(position, op);
            } else if let Some(instance) = self.instances.get_mut(&position) {
                instance.may = true;
                instance.may_be_gone = true;
                instance.may_be_refused = false;
                instance.flag = Flag::Either;
            }
        }
    }

    /// Ready messages may have been delivered unseen and come back, behind others' deliveries of the same step.
    pub(crate) fn touched(&mut self, op: u64) {
        for position in &self.ready {
            let Some(instance) = self.instances.get_mut(position) else { continue };
            instance.back_op = op;
            if instance.flag == Flag::Unset {
                instance.flag = Flag::Either;
            }
        }
    }

    pub(crate) fn delete(&mut self, op: u64) {
        self.exists = false;
        self.exclusive = None;
        self.consumers.clear();
        self.exclusive_consumer = false;
        let positions: Vec<u64> = self.instances.keys().copied().collect();
        for position in positions {
            self.settle(position, op);
        }
    }

    /// The letter of this one was seen, so it has died, as of operation `op`.
    pub(crate) fn has_died(&mut self, id: u32, op: u64) {
        let leaving = |position: &u64| {
            let instance = &self.instances[position];
            instance.leaving && (instance.id, instance.letter) == (id, None)
        };
        if let Some(position) = self.ready.iter().copied().find(leaving) {
            self.die(position, op);
        }
    }

    /// The doubtful one that is this message, or came as this letter.
    pub(crate) fn doubtful(&mut self, id: u32, letter: Option<Name>) -> Option<&mut Instance> {
        let same = |instance: &&mut Instance| (instance.id, instance.letter) == (id, letter);
        self.instances.values_mut().filter(|instance| instance.may).find(same)
    }

    /// This message, or this letter, is not there and was not since the last crash.
    pub(crate) fn never_was(&mut self, id: u32, letter: Option<Name>) {
        let same = |instance: &Instance| (instance.id, instance.letter) == (id, letter);
        let gone = |instance: &Instance| !matches!(instance.place, Place::Out { .. });
        let (ready, instances) = (&mut self.ready, &mut self.instances);
        instances.retain(|position, instance| {
            let stays = !same(instance) || !gone(instance);
            if !stays {
                ready.remove(position);
            }
            stays
        });
    }

    /// All operations up to `op` are durable.
    pub(crate) fn durable(&mut self, op: u64) {
        while self.settled.front().is_some_and(|(settled, _)| *settled <= op) {
            let Some((_, position)) = self.settled.pop_front() else { break };
            if let Some(instance) = self.instances.get(&position)
                && matches!(instance.place, Place::Settled { .. })
            {
                self.instances.remove(&position);
            }
        }
    }

    /// The broker has ended with all operations up to `durable_op` on disk, and was started after `op`.
    pub(crate) fn restart(&mut self, durable_op: u64, op: u64, end: End) {
        self.started_op = op;
        self.durable(durable_op);
        if self.next_position > 0 {
            let coarse_us = SPAN_US + self.ttl_us.unwrap_or(0) / 16;
            self.coarse_until_us = self.now_us + coarse_us;
        }
        self.consumers.clear();
        self.exclusive_consumer = false;
        self.ready.clear();
        self.settled.clear();
        self.instances.retain(|_, instance| instance.stored);
        for (position, instance) in &mut self.instances {
            match instance.place {
                // Not durable, or it would be forgotten: whether it is gone is in doubt.
                Place::Settled { .. } => instance.may = true,
                Place::Ready | Place::Out { .. } => {}
            }
            let may_be_lost = instance.published_op > durable_op;
            instance.may |= may_be_lost;
            instance.may_be_gone |= may_be_lost && instance.letter.is_none();
            instance.place = Place::Ready;
            (instance.leaving, instance.may_be_refused) = (false, false);
            instance.flag = match instance.flag {
                _ if end == End::Died => Flag::Set,
                Flag::Set => Flag::Set,
                Flag::Unset | Flag::Either => Flag::Either,
            };
            self.ready.insert(*position);
        }
        if !self.durable {
            self.instances.clear();
            self.ready.clear();
        }
        self.next_due_us = 0;
        self.doubt_excess();
    }
}
