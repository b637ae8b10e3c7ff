//! What arrived for one channel and waits for its owner.
//!
//! A consumer has a number here, from the broker's answer on: its tag may be another's when it was cancelled, and what it left is
//! not that one's.

use std::collections::{BTreeMap, VecDeque};

use super::{Message, Reply};
use crate::error::Refusal;
use crate::machine::Settled;
use crate::returns::Returns;

#[derive(Debug, Default)]
pub(in super::super) struct Inbox {
    /// Of the channel that has the number now.
    pub(super) life: u64,
    pub(super) replies: VecDeque<Reply>,
    /// By their numbers; those that nobody holds any more are not among them.
    consumers: BTreeMap<u64, Consuming>,
    /// Whose messages those with a tag are.
    tags: BTreeMap<Vec<u8>, u64>,
    /// Consumers so far.
    begun: u64,
    /// Neighbours are joined, so this stays short.
    pub(in super::super) settled: VecDeque<Settled>,
    pub(in super::super) returns: Returns,
    pub(in super::super) closed: Option<Refusal>,
}

/// A consumer that somebody holds.
#[derive(Debug, Default)]
pub(in super::super) struct Consuming {
    pub(in super::super) messages: VecDeque<Message>,
    /// The broker sends it nothing more.
    pub(in super::super) cancelled: bool,
}

impl Inbox {
    pub(super) fn new(life: u64) -> Inbox {
        Inbox { life, ..Inbox::default() }
    }

    /// The broker has agreed to a consumer: what comes with this tag from now on is its.
    pub(super) fn begin_consumer(&mut self, tag: &[u8]) -> u64 {
        self.begun += 1;
        self.consumers.insert(self.begun, Consuming::default());
        self.tags.insert(tag.to_vec(), self.begun);
        self.begun
    }

    pub(in super::super) fn consumer(&mut self, number: u64) -> Option<&mut Consuming> {
        self.consumers.get_mut(&number)
    }

    /// Whom the broker means by a tag, unless nobody asks for its messages any more.
    pub(super) fn consumer_of(&mut self, tag: &[u8]) -> Option<&mut Consuming> {
        self.consumers.get_mut(self.tags.get(tag)?)
    }

    /// The broker sends it nothing more.
    pub(in super::super) fn cancel(&mut self, number: u64) {
        if let Some(consumer) = self.consumer(number) {
            consumer.cancelled = true;
        }
    }

    pub(in super::super) fn is_cancelled(&mut self, number: u64) -> bool {
        self.consumer(number).is_none_or(|consumer| consumer.cancelled)
    }

    /// Returns how many bytes wait for it, which nobody takes any more.
    pub(super) fn forget_consumer(&mut self, number: u64) -> usize {
        self.tags.retain(|_, of| *of != number);
        self.consumers.remove(&number).map_or(0, |consumer| consumer.bytes())
    }

    /// Bytes of all messages that wait here.
    pub(super) fn delivery_bytes(&self) -> usize {
        self.consumers.values().map(Consuming::bytes).sum()
    }
}

impl Consuming {
    fn bytes(&self) -> usize {
        self.messages.iter().map(Message::size_bytes).sum()
    }
}
