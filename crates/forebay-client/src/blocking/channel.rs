//! A channel: declare, bind, publish with confirms, get, ack.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forebay_wire::{RawProperties, ShortStr, Table, WireMethod, basic, exchange, queue};

use super::Message;
use super::link::{Inbox, Life, Link, Place, Reply, SEND_BATCH_BYTES};
use super::message::Publication;
use super::{ConsumeError, ConsumeOptions, Consumer, ReturnedMessage, lock};
use crate::channel::{DeclareExchange, DeclareQueue, QueueInfo};
use crate::error::ChannelFault;
use crate::machine::{PublishError, Settled};

/// An open channel. A refusal closes it; open another one to go on. It is closed with the last of it and its consumers: what is
/// not acknowledged then goes back to its queue.
pub struct Channel {
    link: Arc<Mutex<Link>>,
    life: Arc<Life>,
    place: Place,
    /// Most publishes without an outcome; `None`: no confirms.
    window: Option<u64>,
    /// Encoded properties of the message under way, kept for its memory.
    properties: Vec<u8>,
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("number", &self.place.number).finish_non_exhaustive()
    }
}

impl Channel {
    pub(super) fn new(link: Arc<Mutex<Link>>, life: Arc<Life>) -> Channel {
        let place = life.place;
        Channel { link, life, place, window: None, properties: Vec::new() }
    }

    /// Its number on its connection.
    pub fn number(&self) -> u16 {
        self.place.number
    }

    /// Declares a queue; an empty name lets the broker choose one.
    pub fn declare_queue(
        &mut self,
        name: &str,
        how: DeclareQueue,
    ) -> Result<QueueInfo, ChannelFault> {
        let reply = self.request(&queue::Declare {
            queue: short(name)?,
            passive: how.passive,
            durable: how.durable,
            exclusive: how.exclusive,
            auto_delete: how.auto_delete,
            arguments: how.arguments.as_table(),
            ..Default::default()
        })?;
        Ok(match reply {
            Reply::Declared { name, message_count, consumer_count } => {
                QueueInfo { name, message_count, consumer_count }
            }
            _ => QueueInfo { name: name.to_owned(), message_count: 0, consumer_count: 0 },
        })
    }

    /// Declares an exchange of `kind` (`direct`, `fanout`, `topic`, `headers`).
    pub fn declare_exchange(
        &mut self,
        name: &str,
        kind: &str,
        how: DeclareExchange,
    ) -> Result<(), ChannelFault> {
        self.request(&exchange::Declare {
            exchange: short(name)?,
            type_name: short(kind)?,
            passive: how.passive,
            durable: how.durable,
            auto_delete: how.auto_delete,
            internal: how.internal,
            arguments: how.arguments.as_table(),
            ..Default::default()
        })
        .map(drop)
    }

    /// Binds a queue to an exchange.
    pub fn bind_queue(
        &mut self,
        queue: &str,
        exchange: &str,
        routing_key: &str,
    ) -> Result<(), ChannelFault> {
        self.request(&queue::Bind {
            queue: short(queue)?,
            exchange: short(exchange)?,
            routing_key: short(routing_key)?,
            arguments: Table::default(),
            ..Default::default()
        })
        .map(drop)
    }

    /// Deletes a queue and returns how many messages went with it.
    pub fn delete_queue(&mut self, name: &str) -> Result<u32, ChannelFault> {
        self.request(&queue::Delete { queue: short(name)?, ..Default::default() }).map(count)
    }

    /// Deletes an exchange.
    pub fn delete_exchange(&mut self, name: &str) -> Result<(), ChannelFault> {
        self.request(&exchange::Delete { exchange: short(name)?, ..Default::default() }).map(drop)
    }

    /// Drops the ready messages of a queue and returns how many there were.
    pub fn purge_queue(&mut self, name: &str) -> Result<u32, ChannelFault> {
        self.request(&queue::Purge { queue: short(name)?, ..Default::default() }).map(count)
    }

    /// Bounds the unacked deliveries of consumers started from now on; 0 = no bound.
    pub fn qos(&mut self, prefetch_count: u16) -> Result<(), ChannelFault> {
        self.request(&basic::Qos { prefetch_count, ..Default::default() }).map(drop)
    }

    /// Asks for confirms; from now on a publish waits while `window` publishes have no outcome.
    /// `window` is at least 1.
    pub fn confirm_select(&mut self, window: u64) -> Result<(), ChannelFault> {
        self.window = Some(window.max(1));
        let mut link = lock(&self.link);
        link.inbox(self.place)?;
        link.machine.select_confirms(self.place.number)?;
        link.reply(self.place).map(drop)
    }

    /// Publishes a message and returns its sequence number, from 1 (0 without confirms). Waits for
    /// the window, and for the socket when much waits to be sent; otherwise the message may still
    /// be in the send buffer on return, see [`Channel::flush`].
    pub fn publish(&mut self, publication: &Publication<'_>) -> Result<u64, ChannelFault> {
        let exchange = short(publication.exchange)?;
        let routing_key = short(publication.routing_key)?;
        self.properties.clear();
        publication.properties.encode(&mut self.properties);
        let properties = RawProperties::validate(&self.properties)
            .map_err(|_| ChannelFault::NameTooLong { bytes: self.properties.len() })?;
        let mut link = lock(&self.link);
        link.inbox(self.place)?;
        if let Some(window) = self.window {
            while link.machine.unconfirmed(self.place.number) >= window {
                link.pump(None)?;
                link.inbox(self.place)?;
            }
        }
        let sequence = loop {
            let published = link.machine.publish(
                self.place.number,
                exchange,
                routing_key,
                publication.mandatory,
                properties,
                publication.body,
            );
            match published {
                Ok(sequence) => break sequence,
                Err(PublishError::Full) => link.flush(None)?,
                Err(PublishError::PropertiesTooLong { bytes, bytes_max }) => {
                    return Err(ChannelFault::PropertiesTooLong { bytes, bytes_max });
                }
                Err(PublishError::NotOpen) => {
                    link.inbox(self.place)?;
                    return Err(crate::machine::ChannelError::NotOpen.into());
                }
            }
        };
        if link.machine.outgoing().len() >= SEND_BATCH_BYTES {
            link.flush(None)?;
        }
        Ok(sequence)
    }

    /// Sends all that waits to be sent.
    pub fn flush(&mut self) -> Result<(), ChannelFault> {
        let mut link = lock(&self.link);
        link.inbox(self.place)?;
        link.flush(None).map_err(ChannelFault::Lost)
    }

    /// How many publishes have no outcome yet, as of the last bytes read.
    pub fn unconfirmed(&self) -> u64 {
        let link = lock(&self.link);
        let ours = link.is_current(self.place);
        if ours { link.machine.unconfirmed(self.place.number) } else { 0 }
    }

    /// Outcomes that have arrived, oldest first; does not wait.
    pub fn take_settled(&mut self) -> VecDeque<Settled> {
        self.with_inbox(|inbox| std::mem::take(&mut inbox.settled))
    }

    /// Mandatory messages that came back; does not wait. The latest [`RETURNS_KEPT_MAX`](super::RETURNS_KEPT_MAX) are
    /// kept, of [`RETURNS_BYTES_MAX`](super::RETURNS_BYTES_MAX) at most.
    pub fn take_returns(&mut self) -> VecDeque<ReturnedMessage> {
        self.with_inbox(|inbox| inbox.returns.take())
    }

    /// Sends what waits and waits up to `timeout` for something new: outcomes, returns, deliveries. What the broker does not take
    /// in that time waits for the next call; finding that out may take half a second more.
    pub fn pump(&mut self, timeout: Duration) -> Result<(), ChannelFault> {
        let mut link = lock(&self.link);
        link.inbox(self.place)?;
        link.pump(Instant::now().checked_add(timeout))?;
        link.inbox(self.place).map(drop)
    }

    /// Waits until every publish has its outcome.
    pub fn wait_settled(&mut self) -> Result<(), ChannelFault> {
        let mut link = lock(&self.link);
        while link.inbox(self.place).is_ok() && link.machine.unconfirmed(self.place.number) > 0 {
            link.pump(None)?;
        }
        link.inbox(self.place).map(drop)
    }

    /// The same for at most `patience`. False: some have none yet.
    pub fn wait_settled_for(&mut self, patience: Duration) -> Result<bool, ChannelFault> {
        // With a patience that no clock can tell the end of there is none.
        let Some(deadline) = Instant::now().checked_add(patience) else {
            return self.wait_settled().map(|()| true);
        };
        while self.unconfirmed() > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            self.pump(left)?;
        }
        // A channel that is over has nothing unconfirmed, and nothing of it was settled.
        lock(&self.link).inbox(self.place).map(|_| true)
    }

    /// Takes one message from a queue, with the count of those left; `None` if there is none.
    pub fn get(
        &mut self,
        queue: &str,
        no_ack: bool,
    ) -> Result<Option<(Message, u32)>, ChannelFault> {
        let get = basic::Get { queue: short(queue)?, no_ack, ..Default::default() };
        Ok(match self.request(&get)? {
            Reply::Got { message, message_count } => Some((message, message_count)),
            _ => None,
        })
    }

    /// Starts a consumer on `queue`.
    pub fn consume(
        &mut self,
        queue: &str,
        options: ConsumeOptions,
    ) -> Result<Consumer, ConsumeError> {
        if !options.no_ack {
            self.qos(options.prefetch)?;
        }
        let reply = self.request(&basic::Consume {
            queue: short(queue)?,
            consumer_tag: short(&options.tag)?,
            no_ack: options.no_ack,
            exclusive: options.exclusive,
            arguments: options.arguments.as_table(),
            ..Default::default()
        })?;
        let (tag, number) = match reply {
            Reply::Consuming { tag, number } => (tag, number),
            _ => (options.tag, 0), // what is none is over
        };
        Ok(Consumer::new(self.link.clone(), self.life.clone(), tag, number))
    }

    /// Acknowledges a delivery, or with `multiple` all up to it. Sent with the next wait or flush.
    pub fn ack(&mut self, delivery_tag: u64, multiple: bool) -> Result<(), ChannelFault> {
        let mut link = lock(&self.link);
        link.inbox(self.place)?;
        Ok(link.machine.ack(self.place.number, delivery_tag, multiple)?)
    }

    /// Refuses a delivery, or with `multiple` all up to it; with `requeue` it goes back to its queue.
    pub fn nack(
        &mut self,
        delivery_tag: u64,
        multiple: bool,
        requeue: bool,
    ) -> Result<(), ChannelFault> {
        let mut link = lock(&self.link);
        link.inbox(self.place)?;
        Ok(link.machine.nack(self.place.number, delivery_tag, multiple, requeue)?)
    }

    /// Closes the channel and waits for the broker's agreement.
    pub fn close(self) -> Result<(), ChannelFault> {
        let mut link = lock(&self.link);
        link.inbox(self.place)?;
        link.machine.close_channel(self.place.number)?;
        link.reply(self.place)?;
        link.forget(self.place.number);
        Ok(())
    }

    fn request(&mut self, method: &impl WireMethod) -> Result<Reply, ChannelFault> {
        let mut link = lock(&self.link);
        link.inbox(self.place)?;
        link.machine.send(self.place.number, method)?;
        link.reply(self.place)
    }

    fn with_inbox<T: Default>(&mut self, take: impl FnOnce(&mut Inbox) -> T) -> T {
        lock(&self.link).any_inbox(self.place).map(take).unwrap_or_default()
    }
}

fn count(reply: Reply) -> u32 {
    match reply {
        Reply::Count(count) => count,
        _ => 0,
    }
}

pub(super) fn short(name: &str) -> Result<ShortStr<'_>, ChannelFault> {
    ShortStr::new(name.as_bytes()).ok_or(ChannelFault::NameTooLong { bytes: name.len() })
}
