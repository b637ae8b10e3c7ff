//! A channel: AMQP 0-9-1 as it is, one method a function.

use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use forebay_wire::{
    Properties, RawProperties, ShortStr, Table, TableBuf, WireMethod, basic, channel, exchange,
    queue, tx,
};

use crate::connection::Guard;
use crate::deliveries::Deliveries;
use crate::error::ChannelFault;
use crate::machine::{ChannelError, PublishError, Settled};
use crate::received::Received;
use crate::returns::ReturnedMessage;
use crate::session::{Reply, Ticket, Topology, Wants};

/// How a queue is declared; by default transient, shared and kept.
#[derive(Debug, Clone, Default)]
pub struct DeclareQueue {
    /// Only ask whether it exists.
    pub passive: bool,
    /// Survives a restart of the broker.
    pub durable: bool,
    /// For this connection only, gone with it.
    pub exclusive: bool,
    /// Gone with its last consumer.
    pub auto_delete: bool,
    /// Arguments, for instance `x-max-length`.
    pub arguments: TableBuf,
}

/// How an exchange is declared; by default transient and kept.
#[derive(Debug, Clone, Default)]
pub struct DeclareExchange {
    /// Only ask whether it exists.
    pub passive: bool,
    /// Survives a restart of the broker.
    pub durable: bool,
    /// Gone with its last binding.
    pub auto_delete: bool,
    /// Only other exchanges may publish to it.
    pub internal: bool,
    /// Arguments, for instance `alternate-exchange`.
    pub arguments: TableBuf,
}

/// A queue as the broker described it at its declaration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueInfo {
    /// Its name, chosen by the broker if it was declared without.
    pub name: String,
    /// Messages ready for delivery.
    pub message_count: u32,
    /// Its consumers.
    pub consumer_count: u32,
}

/// How a queue is consumed on a channel.
#[derive(Debug, Clone, Default)]
pub struct Consume {
    /// Deliveries need no ack (and are lost with us).
    pub no_ack: bool,
    /// No other consumer may share the queue.
    pub exclusive: bool,
    /// The consumer's tag; empty lets the broker choose.
    pub tag: String,
    /// Arguments, for instance `x-priority`.
    pub arguments: TableBuf,
}

/// An open channel. A refusal closes it; open another one to go on.
///
/// For most programs a [`Publisher`](crate::Publisher) and a [`Consumer`](crate::Consumer) do more with less:
/// windows, outcomes, recovery. A channel gives none of that and hides nothing.
///
/// Methods may be called from many tasks; the broker answers in the order in which they were called. A
/// future that is dropped leaves its request on its way and drops the answer. Dropping the channel closes
/// it: deliveries not acknowledged go back to their queues.
pub struct Channel {
    pub(crate) inner: Arc<Inner>,
}

/// What a channel and its consumers share; the channel closes with the last of them.
pub(crate) struct Inner {
    pub(crate) guard: Arc<Guard>,
    pub(crate) key: usize,
    pub(crate) number: u16,
    /// What is declared again on new sockets, without what is deleted here.
    topology: Arc<Mutex<Topology>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.guard.link.with(|session| session.drop_user_channel(self.key, self.number));
    }
}

/// An answer that is waited for; its place in the line stays when nobody waits any more.
struct Answer<'c> {
    inner: &'c Inner,
    ticket: Option<Ticket>,
}

impl Answer<'_> {
    async fn wait(mut self) -> Result<Reply, ChannelFault> {
        let Some(ticket) = self.ticket else { return Err(ChannelError::NotOpen.into()) };
        let (link, key) = (&self.inner.guard.link, self.inner.key);
        let reply =
            poll_fn(|cx| link.with(|session| session.user(key).0.poll_reply(ticket, cx))).await;
        self.ticket = None;
        reply
    }
}

impl Drop for Answer<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            let Inner { guard, key, number, .. } = self.inner;
            guard.link.with(|session| session.abandon(*key, *number, ticket));
        }
    }
}

impl Channel {
    pub(crate) async fn open(
        guard: Arc<Guard>,
        topology: Arc<Mutex<Topology>>,
    ) -> Result<Channel, ChannelFault> {
        let (key, number, ticket) = guard.link.with(|session| session.open_user_channel())?;
        let inner = Arc::new(Inner { guard, key, number, topology });
        Answer { inner: &inner, ticket: Some(ticket) }.wait().await?;
        Ok(Channel { inner })
    }

    /// Its number on its connection.
    pub fn number(&self) -> u16 {
        self.inner.number
    }

    // ---- topology

    /// Declares a queue; an empty name lets the broker choose one.
    pub async fn declare_queue(
        &self,
        name: &str,
        how: DeclareQueue,
    ) -> Result<QueueInfo, ChannelFault> {
        let reply = self
            .request(&queue::Declare {
                queue: short(name)?,
                passive: how.passive,
                durable: how.durable,
                exclusive: how.exclusive,
                auto_delete: how.auto_delete,
                arguments: how.arguments.as_table(),
                ..Default::default()
            })
            .await?;
        Ok(match reply {
            Reply::Declared { name, message_count, consumer_count } => {
                QueueInfo { name, message_count, consumer_count }
            }
            _ => QueueInfo { name: name.to_owned(), message_count: 0, consumer_count: 0 },
        })
    }

    /// Declares an exchange of `kind` (`direct`, `fanout`, `topic`, `headers`).
    pub async fn declare_exchange(
        &self,
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
        .await
        .map(drop)
    }

    /// Binds a queue to an exchange. `arguments` are for headers exchanges.
    pub async fn bind_queue(
        &self,
        queue: &str,
        exchange: &str,
        routing_key: &str,
        arguments: Table<'_>,
    ) -> Result<(), ChannelFault> {
        self.request(&queue::Bind {
            queue: short(queue)?,
            exchange: short(exchange)?,
            routing_key: short(routing_key)?,
            arguments,
            ..Default::default()
        })
        .await
        .map(drop)
    }

    /// Removes a binding of a queue, and [`Connection::declare`](crate::Connection::declare) makes it no more.
    pub async fn unbind_queue(
        &self,
        queue: &str,
        exchange: &str,
        routing_key: &str,
        arguments: Table<'_>,
    ) -> Result<(), ChannelFault> {
        self.request(&queue::Unbind {
            queue: short(queue)?,
            exchange: short(exchange)?,
            routing_key: short(routing_key)?,
            arguments,
            ..Default::default()
        })
        .await?;
        self.remembered(|topology| {
            topology.forget_binding(queue, exchange, routing_key, arguments)
        });
        Ok(())
    }

    /// Binds exchange `destination` to exchange `source`.
    pub async fn bind_exchange(
        &self,
        destination: &str,
        source: &str,
        routing_key: &str,
        arguments: Table<'_>,
    ) -> Result<(), ChannelFault> {
        self.request(&exchange::Bind {
            destination: short(destination)?,
            source: short(source)?,
            routing_key: short(routing_key)?,
            arguments,
            ..Default::default()
        })
        .await
        .map(drop)
    }

    /// Removes a binding between exchanges.
    pub async fn unbind_exchange(
        &self,
        destination: &str,
        source: &str,
        routing_key: &str,
        arguments: Table<'_>,
    ) -> Result<(), ChannelFault> {
        self.request(&exchange::Unbind {
            destination: short(destination)?,
            source: short(source)?,
            routing_key: short(routing_key)?,
            arguments,
            ..Default::default()
        })
        .await
        .map(drop)
    }

    /// Deletes a queue and returns how many messages went with it. What was declared by
    /// [`Connection::declare`](crate::Connection::declare) is then declared no more.
    ///
    /// # Cancellation
    /// A dropped future may have deleted it and leave it among what is declared again; so with exchanges and bindings.
    pub async fn delete_queue(
        &self,
        name: &str,
        if_unused: bool,
        if_empty: bool,
    ) -> Result<u32, ChannelFault> {
        let delete =
            queue::Delete { queue: short(name)?, if_unused, if_empty, ..Default::default() };
        let deleted = self.request(&delete).await.map(count)?;
        self.remembered(|topology| topology.forget_queue(name));
        Ok(deleted)
    }

    /// Deletes an exchange, which is then declared no more either.
    pub async fn delete_exchange(&self, name: &str, if_unused: bool) -> Result<(), ChannelFault> {
        let delete = exchange::Delete { exchange: short(name)?, if_unused, ..Default::default() };
        self.request(&delete).await?;
        self.remembered(|topology| topology.forget_exchange(name));
        Ok(())
    }

    /// Drops the ready messages of a queue and returns how many there were.
    pub async fn purge_queue(&self, name: &str) -> Result<u32, ChannelFault> {
        self.request(&queue::Purge { queue: short(name)?, ..Default::default() }).await.map(count)
    }

    // ---- publishing

    /// Publishes a message and returns its sequence number: from 1 after [`Channel::confirm_select`], 0
    /// without. Waits while the send buffer is full; returns before the message is on the wire.
    ///
    /// # Cancellation
    /// A future dropped before it is ready has sent nothing.
    pub async fn publish(
        &self,
        exchange: &str,
        routing_key: &str,
        mandatory: bool,
        properties: &Properties<'_>,
        body: &[u8],
    ) -> Result<u64, ChannelFault> {
        let (exchange, routing_key) = (short(exchange)?, short(routing_key)?);
        let mut encoded = Vec::new();
        properties.encode(&mut encoded);
        let properties = RawProperties::validate(&encoded)
            .map_err(|_| ChannelFault::NameTooLong { bytes: encoded.len() })?;
        poll_fn(|cx| {
            self.inner.guard.link.with(|session| {
                let (user, machine) = session.user(self.inner.key);
                if let Err(fault) = user.usable() {
                    return Poll::Ready(Err(fault));
                }
                let number = self.inner.number;
                match machine.publish(number, exchange, routing_key, mandatory, properties, body) {
                    Ok(sequence) => Poll::Ready(Ok(sequence)),
                    Err(PublishError::NotOpen) => Poll::Ready(Err(ChannelError::NotOpen.into())),
                    Err(PublishError::PropertiesTooLong { bytes, bytes_max }) => {
                        Poll::Ready(Err(ChannelFault::PropertiesTooLong { bytes, bytes_max }))
                    }
                    Err(PublishError::Full) => {
                        session.wait_for_room(cx);
                        Poll::Pending
                    }
                }
            })
        })
        .await
    }

    /// Asks for confirms of what is published from now on; see [`Channel::next_settled`].
    pub async fn confirm_select(&self) -> Result<(), ChannelFault> {
        let ticket = self.inner.guard.link.with(|session| {
            let (user, machine) = session.user(self.inner.key);
            user.usable()?;
            machine.select_confirms(self.inner.number)?;
            Ok::<_, ChannelFault>(user.ask(Wants::Answer))
        })?;
        Answer { inner: &self.inner, ticket: Some(ticket) }.wait().await.map(drop)
    }

    /// The next outcomes of publishes, in the order in which they came. For one task at a time.
    pub async fn next_settled(&self) -> Result<Settled, ChannelFault> {
        let key = self.inner.key;
        let link = &self.inner.guard.link;
        poll_fn(|cx| link.with(|session| session.user(key).0.poll_settled(cx))).await
    }

    /// How many publishes have no outcome yet; 0 without confirms, and on a channel that is over.
    pub fn unconfirmed(&self) -> u64 {
        let Inner { guard, key, number, .. } = &*self.inner;
        guard.link.with(|session| session.unconfirmed(*key, *number))
    }

    /// Mandatory messages that came back. Each came before its confirm. The latest
    /// [`RETURNS_KEPT_MAX`](crate::RETURNS_KEPT_MAX) are kept, of [`RETURNS_BYTES_MAX`](crate::RETURNS_BYTES_MAX) at most.
    pub fn take_returns(&self) -> Vec<ReturnedMessage> {
        self.inner.guard.link.with(|session| session.user(self.inner.key).0.take_returns()).into()
    }

    // ---- consuming

    /// Bounds unacknowledged deliveries; 0 = no bound. With `global` those of the channel, otherwise those
    /// of each consumer started from now on.
    pub async fn qos(&self, prefetch_count: u16, global: bool) -> Result<(), ChannelFault> {
        let qos = basic::Qos { prefetch_size: 0, prefetch_count, global };
        self.request(&qos).await.map(drop)
    }

    /// Starts a consumer. Bound what it may hold with [`Channel::qos`] before: without, the broker sends all there is, and when
    /// 64 MiB wait here nothing more is read from the connection until they are taken. A program that waits meanwhile for a
    /// confirm, a reply or a declaration on the same connection waits for what is behind them, for ever; with a bound, or
    /// with [`Connection::consumer`](crate::Connection::consumer), which has a socket of its own, it does not.
    ///
    /// # Cancellation
    /// A dropped future has its consumer cancelled as soon as it has begun. What was delivered until then is dropped: it goes back to
    /// its queue when the channel closes, or is lost if it needed no ack.
    pub async fn consume(&self, queue: &str, how: Consume) -> Result<Deliveries, ChannelFault> {
        let reply = self
            .request(&basic::Consume {
                queue: short(queue)?,
                consumer_tag: short(&how.tag)?,
                no_ack: how.no_ack,
                exclusive: how.exclusive,
                arguments: how.arguments.as_table(),
                ..Default::default()
            })
            .await?;
        let (tag, subscription) = match reply {
            Reply::Consuming { tag, subscription } => (tag, subscription),
            _ => (how.tag, 0),
        };
        Ok(Deliveries { inner: self.inner.clone(), tag, subscription })
    }

    /// Takes one message from a queue, with the count of those left; `None` if there is none.
    pub async fn get(
        &self,
        queue: &str,
        no_ack: bool,
    ) -> Result<Option<(Received, u32)>, ChannelFault> {
        let get = basic::Get { queue: short(queue)?, no_ack, ..Default::default() };
        Ok(match self.ask(&get, Wants::Message).await? {
            Reply::Got { message, message_count } => Some((message, message_count)),
            _ => None,
        })
    }

    /// Acknowledges a delivery, or with `multiple` all up to it.
    pub fn ack(&self, delivery_tag: u64, multiple: bool) -> Result<(), ChannelFault> {
        self.tell(&basic::Ack { delivery_tag, multiple })
    }

    /// Refuses a delivery, or with `multiple` all up to it; with `requeue` it goes back to its queue.
    pub fn nack(
        &self,
        delivery_tag: u64,
        multiple: bool,
        requeue: bool,
    ) -> Result<(), ChannelFault> {
        self.tell(&basic::Nack { delivery_tag, multiple, requeue })
    }

    /// Refuses one delivery; with `requeue` it goes back to its queue.
    pub fn reject(&self, delivery_tag: u64, requeue: bool) -> Result<(), ChannelFault> {
        self.tell(&basic::Reject { delivery_tag, requeue })
    }

    /// All unacknowledged deliveries of the channel go back to their queues.
    pub async fn recover(&self) -> Result<(), ChannelFault> {
        self.request(&basic::Recover { requeue: true }).await.map(drop)
    }

    /// Stops or restarts deliveries on the channel.
    pub async fn flow(&self, active: bool) -> Result<(), ChannelFault> {
        self.request(&channel::Flow { active }).await.map(drop)
    }

    // ---- transactions

    /// Makes the channel transactional: publishes and acks take effect with [`Channel::tx_commit`].
    pub async fn tx_select(&self) -> Result<(), ChannelFault> {
        self.request(&tx::Select::default()).await.map(drop)
    }

    /// Performs what was held back.
    pub async fn tx_commit(&self) -> Result<(), ChannelFault> {
        self.request(&tx::Commit::default()).await.map(drop)
    }

    /// Forgets what was held back.
    pub async fn tx_rollback(&self) -> Result<(), ChannelFault> {
        self.request(&tx::Rollback::default()).await.map(drop)
    }

    /// Closes the channel and waits for the broker's agreement.
    pub async fn close(self) -> Result<(), ChannelFault> {
        let ticket = self.inner.guard.link.with(|session| {
            let (user, machine) = session.user(self.inner.key);
            user.usable()?;
            machine.close_channel(self.inner.number)?;
            Ok::<_, ChannelFault>(user.ask_last())
        })?;
        Answer { inner: &self.inner, ticket: Some(ticket) }.wait().await.map(drop)
    }

    pub(crate) async fn declare(
        &self,
        declaration: &crate::session::Declaration,
    ) -> Result<(), ChannelFault> {
        if let Some(bytes) = declaration.too_long() {
            return Err(ChannelFault::NameTooLong { bytes });
        }
        let ticket = self.inner.guard.link.with(|session| {
            let (user, machine) = session.user(self.inner.key);
            user.usable()?;
            declaration.send(machine, self.inner.number)?;
            Ok::<_, ChannelFault>(user.ask(Wants::Answer))
        })?;
        Answer { inner: &self.inner, ticket: Some(ticket) }.wait().await.map(drop)
    }

    pub(crate) async fn request(&self, method: &impl WireMethod) -> Result<Reply, ChannelFault> {
        self.ask(method, Wants::Answer).await
    }

    fn remembered(&self, change: impl FnOnce(&mut Topology)) {
        change(&mut self.inner.topology.lock().unwrap_or_else(PoisonError::into_inner));
    }

    async fn ask(&self, method: &impl WireMethod, wants: Wants) -> Result<Reply, ChannelFault> {
        let ticket = self.inner.guard.link.with(|session| {
            let (user, machine) = session.user(self.inner.key);
            user.usable()?;
            machine.send(self.inner.number, method)?;
            Ok::<_, ChannelFault>(user.ask(wants))
        })?;
        Answer { inner: &self.inner, ticket: Some(ticket) }.wait().await
    }

    fn tell(&self, method: &impl WireMethod) -> Result<(), ChannelFault> {
        self.inner.guard.link.with(|session| {
            let (user, machine) = session.user(self.inner.key);
            user.usable()?;
            Ok(machine.send(self.inner.number, method)?)
        })
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("number", &self.inner.number).finish_non_exhaustive()
    }
}

fn count(reply: Reply) -> u32 {
    match reply {
        Reply::Count(count) => count,
        _ => 0,
    }
}

fn short(name: &str) -> Result<ShortStr<'_>, ChannelFault> {
    ShortStr::new(name.as_bytes()).ok_or(ChannelFault::NameTooLong { bytes: name.len() })
}
