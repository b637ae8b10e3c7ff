//! A consumer: messages of one queue, one after the other.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forebay_wire::{TableBuf, basic};

use super::Message;
use super::channel::short;
use super::link::{Life, Link, Place, SEND_BATCH_BYTES};
use super::lock;
use crate::error::{ChannelFault, ConsumeError};

/// How a queue is consumed.
#[derive(Debug, Clone)]
pub struct ConsumeOptions {
    /// Deliveries that may be unacked at a time; 0 = no bound. 100 by default.
    pub prefetch: u16,
    /// Deliveries need no ack (and are lost with us).
    pub no_ack: bool,
    /// No other consumer may share the queue.
    pub exclusive: bool,
    /// The consumer's tag; empty lets the broker choose.
    pub tag: String,
    /// Arguments, for instance `x-priority`.
    pub arguments: TableBuf,
}

impl Default for ConsumeOptions {
    fn default() -> Self {
        ConsumeOptions {
            prefetch: 100,
            no_ack: false,
            exclusive: false,
            tag: String::new(),
            arguments: TableBuf::default(),
        }
    }
}

/// A consumer under way. As an iterator it waits for each message and ends with an error. It ends with its channel, or by
/// [`Consumer::cancel`]. One that is dropped alone goes on at the broker: what is delivered to it goes back to its queue when its
/// channel ends.
pub struct Consumer {
    link: Arc<Mutex<Link>>,
    /// It keeps its channel open.
    _life: Arc<Life>,
    channel: Place,
    tag: String,
    /// Which of its channel's consumers it is: others may have had the tag, or get it.
    number: u64,
    over: bool,
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").field("tag", &self.tag).finish_non_exhaustive()
    }
}

impl Consumer {
    pub(super) fn new(
        link: Arc<Mutex<Link>>,
        life: Arc<Life>,
        tag: String,
        number: u64,
    ) -> Consumer {
        let channel = life.place;
        Consumer { link, _life: life, channel, tag, number, over: false }
    }

    /// Its tag.
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// The next message; `None` when none came within `timeout` (`None`, or longer than the clock goes: waits as long as it
    /// takes). What came before the end of its channel or connection is handed out before that is told.
    pub fn next_message(
        &mut self,
        timeout: Option<Duration>,
    ) -> Result<Option<Message>, ConsumeError> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut link = lock(&self.link);
        if let Some(message) = link.take_delivery(self.channel, self.number) {
            if link.machine.outgoing().len() >= SEND_BATCH_BYTES {
                // Whoever asks for the next one hears of it: this one may come from nowhere else again.
                let _ = link.flush(deadline);
            }
            return Ok(Some(message));
        }
        loop {
            if link.inbox(self.channel)?.is_cancelled(self.number) {
                return Err(ConsumeError::Cancelled);
            }
            let pumped = link.pump(deadline);
            // What came together with the end of the connection comes before it.
            if let Some(message) = link.take_delivery(self.channel, self.number) {
                return Ok(Some(message));
            }
            pumped.map_err(ChannelFault::Lost)?;
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Ok(None);
            }
        }
    }

    /// A message that is here already; never waits.
    pub fn take_ready(&mut self) -> Option<Message> {
        lock(&self.link).take_delivery(self.channel, self.number)
    }

    /// Whether a message is here already.
    pub fn has_ready(&self) -> bool {
        let mut link = lock(&self.link);
        let consumer = link.any_inbox(self.channel).and_then(|inbox| inbox.consumer(self.number));
        consumer.is_some_and(|consumer| !consumer.messages.is_empty())
    }

    /// Acknowledges a message, or with `multiple` all up to it. Sent with the next wait or flush.
    pub fn ack(&mut self, message: &Message, multiple: bool) -> Result<(), ChannelFault> {
        let mut link = lock(&self.link);
        link.inbox(self.channel)?;
        Ok(link.machine.ack(self.channel.number, message.delivery_tag(), multiple)?)
    }

    /// Refuses a message, or with `multiple` all up to it; with `requeue` it goes back to its queue.
    pub fn nack(
        &mut self,
        message: &Message,
        multiple: bool,
        requeue: bool,
    ) -> Result<(), ChannelFault> {
        let mut link = lock(&self.link);
        link.inbox(self.channel)?;
        Ok(link.machine.nack(self.channel.number, message.delivery_tag(), multiple, requeue)?)
    }

    /// Sends the acks that wait.
    pub fn flush(&mut self) -> Result<(), ChannelFault> {
        lock(&self.link).flush(None).map_err(ChannelFault::Lost)
    }

    /// Stops the consumer; messages that had arrived can still be taken with
    /// [`Consumer::take_ready`].
    pub fn cancel(&mut self) -> Result<(), ChannelFault> {
        let cancel = basic::Cancel { consumer_tag: short(&self.tag)?, ..Default::default() };
        let mut link = lock(&self.link);
        if link.inbox(self.channel)?.is_cancelled(self.number) {
            return Ok(()); // the tag may be another's
        }
        link.machine.send(self.channel.number, &cancel)?;
        link.reply(self.channel)?;
        link.inbox(self.channel)?.cancel(self.number);
        Ok(())
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        lock(&self.link).forget_consumer(self.channel, self.number);
    }
}

impl Iterator for Consumer {
    type Item = Result<Message, ConsumeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        match self.next_message(None) {
            Ok(message) => message.map(Ok),
            Err(error) => {
                self.over = true;
                Some(Err(error))
            }
        }
    }
}
