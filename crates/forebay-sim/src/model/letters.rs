//! Dead letters: what is rejected goes when the broker says so, what dies by itself at a time that nobody sees.
//!
//! ```text
//!   where it died                       where its letter goes
//!   Ready, may, leaving ◄── one of ──►  Ready, may, loose        its time is over, or there are too many
//!        │ not there                        │ delivered
//!        ▼                                  ▼
//!   the letter is certainly there       it has died for certain
//! ```

use crate::names::{LETTERS_TO, Name};

use super::Model;
use super::channel::{Unacked, Verdict};
use super::counts::Counts;
use super::queue::{Absent, Queue};

impl Model {
    /// Whether what dies in a queue goes to another.
    pub(crate) fn has_letters(&self, queue: &str) -> bool {
        self.letters_from.contains(&queue)
    }

    /// Whether what is next in a queue may have died by itself, and leave a letter.
    pub(crate) fn next_may_leave(&self, queue: &str) -> bool {
        self.queues.get(queue).is_some_and(Queue::next_may_leave)
    }

    /// Where else a doubtful message may be: a rejection and its letter are one step for the broker, and whether that was on
    /// disk nobody knows after a crash. It is in one of the places, then, and not in the other.
    fn elsewhere(&self, queue: Name, letter: Option<Name>) -> Option<(Name, Option<Name>)> {
        match letter {
            Some(from) => Some((from, None)),
            None => self.letters_from.contains(&queue).then_some((LETTERS_TO, Some(queue))),
        }
    }

    /// A doubtful message is there: it is not where else it might be.
    pub(super) fn is_there(
        &mut self,
        queue: Name,
        id: u32,
        letter: Option<Name>,
        counts: &mut Counts,
    ) {
        let op = self.op;
        self.refused_letters.remove(&(letter.unwrap_or(queue), id));
        if let Some((name, other_letter)) = self.elsewhere(queue, letter)
            && let Some(other) = self.queues.get_mut(name)
            && let Some(instance) = other.doubtful(id, other_letter)
        {
            if instance.leaving {
                // In this life: a crash may bring it back.
                other.has_died(id, op);
                counts.took(name);
            } else {
                self.found_letters += u64::from(!instance.loose);
                other.never_was(id, other_letter);
            }
        }
    }

    /// Doubtful messages that died and are not there are certainly where else they might be.
    pub(super) fn note_absent(&mut self) {
        let op = self.op;
        let absent: Vec<(Name, Absent)> = self
            .queues
            .values_mut()
            .flat_map(|queue| {
                let name = queue.name;
                let absent = std::mem::take(&mut queue.absent);
                absent.into_iter().map(move |absent| (name, absent))
            })
            .collect();
        for (queue, Absent { id, letter, may_be_gone }) in absent {
            if let Some((other, other_letter)) = self.elsewhere(queue, letter)
                && let Some(other) = self.queues.get_mut(other)
                && let Some(instance) = other.doubtful(id, other_letter)
                && !instance.may_be_gone
            {
                if may_be_gone {
                    instance.may_be_gone = true;
                    continue;
                }
                instance.may = false;
                if instance.loose {
                    // It came by now.
                    instance.published_op = op;
                } else if !instance.leaving {
                    self.found_letters += 1;
                }
            }
        }
    }

    /// The broker says how many of what was rejected wait for room: the others, which came before, have their letters.
    ///
    /// Of those that were refused, too, none comes any more once no letter at all waits.
    pub(crate) fn letters_wait(&mut self, wait: usize, all: usize) {
        if all == 0 {
            self.refused_letters.clear();
        }
        while self.dying.len() > wait
            && let Some(dead) = self.dying.pop_front()
        {
            self.credit_came = true;
            // In a batch of the log that nothing before it need be in.
            self.op += 1;
            match dead.past {
                None => self.end(dead.unacked, Verdict::Rejected),
                Some(id) => self.letter(id, dead.unacked.queue),
            }
        }
    }

    /// Whether a delivery that is rejected goes where dead letters go.
    pub(super) fn has_letter(&self, unacked: &Unacked) -> bool {
        let queue = self.queues.get(unacked.queue);
        let is_there = queue.is_some_and(|queue| queue.out(unacked.position).is_some());
        is_there && self.letters_from.contains(&unacked.queue)
    }

    /// The letter of this message of that queue is written.
    pub(super) fn letter(&mut self, id: u32, from: Name) {
        let op = self.op;
        if let Some(to) = self.queues.get_mut(LETTERS_TO).filter(|to| to.exists) {
            // Another one from before a crash is not there: the message was.
            to.never_was(id, Some(from));
            to.publish(&self.messages[id as usize], Some(from), op);
        }
    }

    /// What may have died by itself may be where its letter goes, from now on.
    pub(super) fn send_those_that_left(&mut self) {
        let op = self.op;
        for from in self.letters_from.iter().copied() {
            let Some(queue) = self.queues.get_mut(from) else { continue };
            let left: Vec<u32> = std::mem::take(&mut queue.left)
                .into_iter()
                .filter_map(|position| queue.instances.get(&position))
                .filter(|instance| instance.leaving)
                .map(|instance| instance.id)
                .collect();
            for id in left {
                if let Some(to) = self.queues.get_mut(LETTERS_TO) {
                    to.letter_may_come(&self.messages[id as usize], from, op);
                }
            }
        }
        if !self.queues.get(LETTERS_TO).is_some_and(|to| to.exists) {
            self.letters_may_be_lost();
        }
    }

    /// The queue of letters was emptied or is not there: of those that may have come none is, and others may come yet.
    pub(super) fn letters_may_be_lost(&mut self) {
        self.letters_go_anew(true);
    }

    /// No letter is there: all that have not come may come yet.
    pub(super) fn letters_may_come_yet(&mut self) {
        self.letters_go_anew(false);
    }

    fn letters_go_anew(&mut self, lost: bool) {
        for from in self.letters_from.iter() {
            if let Some(queue) = self.queues.get_mut(from) {
                queue.letters_go_anew(lost);
            }
        }
        self.refused_letters_may_come();
    }
}
