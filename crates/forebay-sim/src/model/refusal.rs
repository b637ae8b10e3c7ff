//! Queues that refuse what is too much (`x-overflow`). What consumers can take does not make them full, and what they took of late
//! nobody has seen yet: so a publish may be refused, or not, and its confirm says which.

use crate::message::Published;
use crate::names::{LETTERS_TO, Name};
use crate::violation::{Violation, violation};

use super::Model;
use super::channel::{Channel, Mode, Pending};
use super::queue::{Place, Queue};

/// What a queue does with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// It takes it.
    Certain,
    /// It takes it unless it is full.
    Doubtful,
    /// It refuses it.
    None,
}

impl Queue {
    /// Adds a message, unless the queue is full. `certain`: nobody's deliveries wait unseen.
    pub(super) fn publish_if_room(&mut self, message: &Published, op: u64, certain: bool) -> Room {
        let body_bytes = message.body_bytes.into();
        if self.is_full(body_bytes, certain) {
            return Room::None;
        }
        let may_be_full = self.may_be_full(body_bytes);
        let position = self.publish(message, None, op);
        if !may_be_full {
            return Room::Certain;
        }
        if let Some(instance) = self.instances.get_mut(&position) {
            (instance.may, instance.may_be_gone, instance.may_be_refused) = (true, true, true);
        }
        Room::Doubtful
    }

    /// This message was not refused.
    fn accepted(&mut self, id: u32) {
        let same = |instance: &&mut super::queue::Instance| {
            (instance.id, instance.letter, instance.place) == (id, None, Place::Ready)
        };
        if let Some(instance) = self.instances.values_mut().find(same)
            && instance.may_be_refused
        {
            (instance.may, instance.may_be_gone, instance.may_be_refused) = (false, false, false);
        }
    }

    /// Whether this message may have died by itself, and leave a letter.
    fn is_leaving(&self, id: u32) -> bool {
        self.ready()
            .any(|instance| instance.leaving && (instance.id, instance.letter) == (id, None))
    }

    /// Whether somebody has this message.
    fn is_out(&self, id: u32) -> bool {
        self.instances.values().any(|instance| {
            (instance.id, instance.letter) == (id, None)
                && matches!(instance.place, Place::Out { .. })
        })
    }
}

impl Model {
    /// This message may be refused there; if so, its letter comes when there is room for it.
    pub(super) fn refused_letter_may_come(&mut self, from: Name, id: u32) {
        if self.letters_from.contains(&from) {
            self.refused_letters.insert((from, id));
            self.expect_refused(from, id);
        }
    }

    /// Those that have not come may come yet.
    pub(super) fn refused_letters_may_come(&mut self) {
        for (from, id) in self.refused_letters.clone() {
            self.expect_refused(from, id);
        }
    }

    fn expect_refused(&mut self, from: Name, id: u32) {
        let op = self.op;
        if let Some(to) = self.queues.get_mut(LETTERS_TO) {
            to.letter_may_come(&self.messages[id as usize], from, op);
            if let Some(letter) = to.doubtful(id, Some(from)) {
                letter.may_be_gone = true;
            }
        }
    }

    /// These publishes were confirmed, so no queue refused them.
    pub(super) fn accepted(
        &mut self,
        settled: impl Iterator<Item = Pending>,
    ) -> Result<(), Violation> {
        let op = self.op;
        for pending in settled {
            if let Some(full) = pending.refused_by {
                let what = format!("message {} is confirmed, and {full} was full", pending.id);
                return violation("a full queue refuses", what);
            }
            for name in pending.may_refuse {
                let mut leaving = false;
                if let Some(queue) = self.queues.get_mut(name) {
                    queue.accepted(pending.id);
                    leaving = queue.is_leaving(pending.id);
                }
                if self.refused_letters.remove(&(name, pending.id))
                    && let Some(to) = self.queues.get_mut(LETTERS_TO)
                {
                    to.never_was(pending.id, Some(name));
                    if leaving {
                        // It was taken, and its time is over by now.
                        to.letter_may_come(&self.messages[pending.id as usize], name, op);
                    }
                }
            }
        }
        Ok(())
    }

    /// A publish was refused.
    pub(super) fn refused(
        &mut self,
        client: usize,
        number: u16,
        tag: u64,
        multiple: bool,
    ) -> Result<(), Violation> {
        let who = format!("client {client}, channel {number}: publish {tag} refused");
        let Some(channel) = self.channel(client, number) else { return Ok(()) };
        let Mode::Confirm { outstanding, .. } = &mut channel.mode else {
            return violation("every publish settles", format!("{who} outside confirm mode"));
        };
        let Some(pending) = outstanding.remove(&tag).filter(|_| !multiple) else {
            return violation("every publish settles", format!("{who}, and it is not outstanding"));
        };
        self.refused += 1;
        match pending.may_refuse[..] {
            [] => violation("every publish settles", format!("{who} by no full queue")),
            [name] => self.refused_by(name, pending.id, &who),
            _ => Ok(()),
        }
    }

    /// A queue has refused this message.
    fn refused_by(&mut self, name: Name, id: u32, who: &str) -> Result<(), Violation> {
        let Some(queue) = self.queues.get_mut(name) else { return Ok(()) };
        if queue.is_out(id) {
            return violation("delivered once", format!("{who}, and {name} delivered it"));
        }
        queue.never_was(id, None);
        Ok(())
    }

    /// Of a transaction some publishes were refused, and the rest of it is done; its channel is closed for that.
    pub(super) fn commit_refused(
        &mut self,
        client: usize,
        number: u16,
        enqueued: &[Pending],
    ) -> Result<(), Violation> {
        self.refused += 1;
        let mut refused =
            enqueued.iter().flat_map(|one| one.may_refuse.iter().map(|name| (*name, one.id)));
        if let (Some((name, id)), None) = (refused.next(), refused.next()) {
            let who = format!("client {client}, channel {number}: commit of {id} refused");
            self.refused_by(name, id, &who)?;
        }
        let Some(channel) = self.channel(client, number) else { return Ok(()) };
        let mut failed = Channel::new();
        failed.failed = true;
        std::mem::swap(channel, &mut failed);
        // Its client has waited for the answer: it holds nothing.
        self.close_channel(client, number, failed, false);
        Ok(())
    }
}
