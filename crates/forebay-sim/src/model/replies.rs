//! Direct reply-to: who consumes `amq.rabbitmq.reply-to` gets a name by which whoever receives its messages can reach it, past all queues:
//! at once, or not at all.

use crate::message::Published;
use crate::names::{Name, REPLY_TAG};
use crate::violation::{Violation, violation};

use super::Model;
use super::content::Content;

/// Somebody who waits for replies: client and channel, and the operation with which it began.
pub(super) type Requester = (usize, u16, u64);

impl Model {
    /// A message is published that wants replies; false if nobody would get them.
    pub(super) fn asks(&mut self, client: usize, number: u16, id: u32) -> bool {
        let began = self.channel(client, number).and_then(|channel| channel.reply_consumer);
        if let Some(began) = began {
            self.requesters.insert(id, (client, number, began));
        }
        began.is_some()
    }

    /// A message came with this name for replies: each requester has one, and it is nobody else's.
    pub(super) fn learn_name(&mut self, id: u32, name: &[u8]) -> Result<(), Violation> {
        let who = self.requesters.get(&id).copied();
        let known = self.reply_names.get(name).copied();
        let is_new = known.is_none() && !self.reply_names.values().any(|other| Some(*other) == who);
        match who {
            Some(who) if is_new => drop(self.reply_names.insert(name.to_vec(), who)),
            Some(who) if known == Some(who) => {}
            _ => {
                let what = format!("message {id} of {who:?} names {known:?} for replies");
                return violation("replies go to who asked", what);
            }
        }
        Ok(())
    }

    /// A reply is on its way, if its requester is still there.
    pub(super) fn reply(&mut self, message: &Published) -> bool {
        let Some(&(client, number, began)) = self.reply_names.get(message.key.as_bytes()) else {
            return false;
        };
        let is_gone = self.is_closing(client);
        let Some(channel) = self.channel(client, number) else { return false };
        if is_gone || channel.failed || channel.reply_consumer != Some(began) {
            return false;
        }
        channel.replies_to_come.push_back(message.id);
        true
    }

    /// A reply came.
    pub(super) fn replied_to(
        &mut self,
        client: usize,
        number: u16,
        tag_name: Option<Name>,
        tag: u64,
        redelivered: bool,
        content: &Content<'_>,
    ) -> Result<(), Violation> {
        let (message, _) = self.genuine(content)?;
        let Some(channel) = self.channel(client, number) else { return Ok(()) };
        let due = channel.replies_to_come.pop_front();
        if due != Some(message.id) || tag_name != Some(REPLY_TAG) || redelivered {
            let id = message.id;
            let what =
                format!("client {client}, channel {number}: {id} to {tag_name:?}, not {due:?}");
            return violation("replies go to who asked", what);
        }
        self.delivered += 1;
        self.replies += 1;
        self.took(client, number, tag, None)
    }

    /// A step is over: replies that were on their way have come, but for those that stand behind what waits for the disk.
    pub(super) fn check_replies(&self) -> Result<(), Violation> {
        for (client, connection) in &self.connections {
            if connection.barriers > 0 || connection.closing {
                continue;
            }
            for (number, channel) in &connection.channels {
                if let Some(id) = channel.replies_to_come.front() {
                    let what = format!("client {client}, channel {number}: {id} has not come");
                    return violation("replies go to who asked", what);
                }
            }
        }
        Ok(())
    }
}
