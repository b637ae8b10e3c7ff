//! A session's channels that users drive: each ends with its connection.

use forebay_wire::{ShortStr, basic};

use super::{Owner, Phase, Session, Ticket, UserChannel, Wants, owner};
use crate::error::{ChannelFault, Lost};
use crate::machine::Machine;

impl Session {
    pub(crate) fn open_user_channel(&mut self) -> Result<(usize, u16, Ticket), ChannelFault> {
        match &self.phase {
            Phase::Over(lost) => return Err(lost.clone().into()),
            Phase::Up => {}
            _ => return Err(Lost::Io("it is being opened again; try later".into()).into()),
        }
        let number = self.machine.open_channel()?;
        let mut channel = UserChannel::default();
        let ticket = channel.ask(Wants::Answer);
        let key = self.users.insert(channel);
        self.own(number, Owner::User(key));
        Ok((key, number, ticket))
    }

    pub(crate) fn user(&mut self, key: usize) -> (&mut UserChannel, &mut Machine) {
        (&mut self.users[key], &mut self.machine)
    }

    /// How many of a user's publishes have no outcome yet; none once his channel is over, whose number others may have.
    pub(crate) fn unconfirmed(&self, key: usize, number: u16) -> u64 {
        let ours = owner(&self.owners, number) == Owner::User(key);
        if ours { self.machine.unconfirmed(number) } else { 0 }
    }

    /// Bytes were taken out of the inbox of a user's channel.
    pub(crate) fn taken(&mut self, key: usize, bytes: usize) {
        self.inbox_bytes -= self.users[key].counted(bytes);
    }

    /// Nobody waits for this answer any more.
    pub(crate) fn abandon(&mut self, key: usize, number: u16, ticket: Ticket) {
        if let Some((tag, subscription)) = self.users[key].abandon(ticket) {
            self.end_subscription(key, number, &tag, subscription);
        }
    }

    /// Nobody takes the messages of this consumer any more.
    pub(crate) fn end_subscription(
        &mut self,
        key: usize,
        number: u16,
        tag: &str,
        subscription: u64,
    ) {
        // Once it has ended, another one may have its tag, or be about to.
        if self.users[key].is_consuming(tag, subscription) {
            self.cancel_unwanted(key, number, tag);
        }
        self.inbox_bytes -= self.users[key].drop_subscription(tag, subscription);
    }

    /// A consumer whose messages nobody takes is cancelled, and what still comes for it is dropped.
    pub(super) fn cancel_unwanted(&mut self, key: usize, number: u16, tag: &str) {
        let Some(user) = self.users.get_mut(key) else { return };
        let cancel = basic::Cancel { consumer_tag: ShortStr::truncated(tag), ..Default::default() };
        // Fails only if the channel is closing, which ends the consumer as well.
        if user.usable().is_ok() && self.machine.send(number, &cancel).is_ok() {
            user.forget(tag);
            let ticket = user.ask(Wants::Answer);
            user.abandon(ticket);
        }
    }

    /// The user's handle is gone.
    pub(crate) fn drop_user_channel(&mut self, key: usize, number: u16) {
        let channel = self.users.remove(key);
        self.inbox_bytes -= channel.ready_bytes();
        if owner(&self.owners, number) == Owner::User(key) {
            let _ = self.machine.close_channel(number);
            self.own(number, Owner::Nobody);
        }
    }
}
