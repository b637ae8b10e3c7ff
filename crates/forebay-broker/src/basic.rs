//! The methods of a channel: dispatch, and class `basic` beside publishing (0-9-1 section 1.8).

use forebay_wire::{Method, ShortStr, Table, Value, basic, confirm, write_method};

use crate::access::Access;
use crate::channel::Mode;
use crate::confirm::{Ack, Confirms};
use crate::consumer::{Consumer, ConsumerKey};
use crate::delivery::write_content;
use crate::error::AmqpError;
use crate::input::ConnectionId;
use crate::queue::PendingGet;
use crate::reply_to::REPLY_TO;
use crate::shard::{ConfirmWaiter, Shard};
use crate::topology::{QueueKey, Resource};
use crate::tx::Outcome;
use crate::unacked::Delivery;

/// `basic.get`s that may wait for a block of a long queue; one more is told that the queue is empty.
const PENDING_GETS_MAX: usize = 1_000;

impl Shard {
    /// A method on an open channel that does not stand in the middle of a publish.
    pub(crate) fn channel_method(
        &mut self,
        id: ConnectionId,
        number: u16,
        method: &Method<'_>,
    ) -> Result<(), AmqpError> {
        match method {
            Method::BasicPublish(publish) => self.publish_method(id, number, publish),
            Method::BasicAck(ack) => {
                self.settle(id, number, ack.delivery_tag, ack.multiple, Outcome::Discard)
            }
            Method::BasicNack(nack) => {
                let outcome = if nack.requeue { Outcome::Requeue } else { Outcome::Discard };
                self.settle(id, number, nack.delivery_tag, nack.multiple, outcome)
            }
            Method::BasicReject(reject) => {
                let outcome = if reject.requeue { Outcome::Requeue } else { Outcome::Discard };
                self.settle(id, number, reject.delivery_tag, false, outcome)
            }
            Method::BasicGet(get) => self.get(id, number, get),
            Method::BasicConsume(consume) => self.consume(id, number, consume),
            Method::BasicCancel(cancel) => self.cancel(id, number, cancel),
            Method::BasicCancelOk(_) | Method::ChannelFlowOk(_) => Ok(()),
            Method::BasicQos(qos) => self.qos(id, number, qos),
            Method::BasicRecover(recover) => {
                self.recover(id, number, recover.requeue)?;
                self.send(id, number, &basic::RecoverOk::default());
                Ok(())
            }
            Method::BasicRecoverAsync(recover) => self.recover(id, number, recover.requeue),
            Method::ConfirmSelect(select) => self.confirm_select(id, number, select.no_wait),
            Method::TxSelect(_) => self.tx_select(id, number),
            Method::TxCommit(_) => self.tx_commit(id, number),
            Method::TxRollback(_) => self.tx_rollback(id, number),
            Method::QueueDeclare(declare) => self.queue_declare(id, number, declare),
            Method::QueueBind(bind) => self.queue_bind(id, number, bind),
            Method::QueueUnbind(unbind) => self.queue_unbind(id, number, unbind),
            Method::QueuePurge(purge) => self.queue_purge(id, number, purge),
            Method::QueueDelete(delete) => self.queue_delete(id, number, delete),
            Method::ExchangeDeclare(declare) => self.exchange_declare(id, number, declare),
            Method::ExchangeDelete(delete) => self.exchange_delete(id, number, delete),
            Method::ExchangeBind(bind) => self.exchange_bind(id, number, bind),
            Method::ExchangeUnbind(unbind) => self.exchange_unbind(id, number, unbind),
            Method::AccessRequest(_) => {
                // Realms went out of use with 0-9-1; old clients still ask, any ticket will do.
                self.send(id, number, &forebay_wire::access::RequestOk { ticket: 1 });
                Ok(())
            }
            Method::ChannelOpen(_) => Err(AmqpError::second_channel_open()),
            Method::ChannelClose(_) => {
                self.channel_close(id, number);
                Ok(())
            }
            // The answer to a close that crossed the client's new channel.open.
            Method::ChannelCloseOk(_) => Ok(()),
            Method::ChannelFlow(flow) => self.channel_flow(id, number, flow.active),
            _ => Err(AmqpError::unimplemented_method()),
        }
    }

    /// `basic.ack`, `basic.nack`, `basic.reject`.
    fn settle(
        &mut self,
        id: ConnectionId,
        number: u16,
        tag: u64,
        multiple: bool,
        outcome: Outcome,
    ) -> Result<(), AmqpError> {
        let Some(Some(connection)) = self.connections.get_mut(id.0 as usize) else { return Ok(()) };
        let Some(Some(channel)) = connection.channels.get_mut(usize::from(number)) else {
            return Ok(());
        };
        if !multiple {
            let delivery = channel.unacked.take(tag).ok_or_else(|| unknown_tag(tag))?;
            if let Mode::Tx(transaction) = &mut channel.mode {
                return transaction.settle(tag, delivery, outcome);
            }
            self.finish(id, number, delivery, outcome);
            return Ok(());
        }
        // 0-9-1 section 1.8.3.13: multiple with tag 0 means all of them.
        if tag != 0 && !channel.unacked.contains(tag) {
            return Err(unknown_tag(tag));
        }
        let upto = if tag == 0 { u64::MAX } else { tag };
        if let Mode::Tx(transaction) = &mut channel.mode {
            while let Some((tag, delivery)) = channel.unacked.take_oldest(upto) {
                transaction.settle(tag, delivery, outcome)?;
            }
            return Ok(());
        }
        while let Some((_, delivery)) = self
            .connections
            .get_mut(id.0 as usize)
            .and_then(|connection| connection.as_mut()?.channel(number)?.unacked.take_oldest(upto))
        {
            self.finish(id, number, delivery, outcome);
        }
        Ok(())
    }

    /// `basic.recover`: everything unsettled on the channel goes back.
    fn recover(&mut self, id: ConnectionId, number: u16, requeue: bool) -> Result<(), AmqpError> {
        if !requeue {
            return Err(AmqpError::not_implemented("requeue=false".to_owned()));
        }
        while let Some((_, delivery)) =
            self.connection(id).and_then(|c| c.channel(number)?.unacked.take_oldest(u64::MAX))
        {
            self.finish(id, number, delivery, Outcome::Requeue);
        }
        Ok(())
    }

    fn qos(&mut self, id: ConnectionId, number: u16, qos: &basic::Qos) -> Result<(), AmqpError> {
        if qos.prefetch_size != 0 {
            return Err(AmqpError::not_implemented(format!(
                "prefetch_size!=0 ({})",
                qos.prefetch_size
            )));
        }
        let Some(channel) = self.connection(id).and_then(|c| c.channel(number)) else {
            return Ok(());
        };
        if qos.global {
            channel.prefetch_global = qos.prefetch_count;
            self.mark_queues_of_channel(id, number);
        } else {
            channel.prefetch = qos.prefetch_count;
        }
        self.send(id, number, &basic::QosOk::default());
        Ok(())
    }

    /// The queues that a channel consumes from may go on.
    pub(crate) fn mark_queues_of_channel(&mut self, id: ConnectionId, number: u16) {
        let Some(channel) = self.connection(id).and_then(|c| c.channel(number)) else { return };
        for key in channel.consumers.clone() {
            if let Some(consumer) = self.consumers.get(key.0 as usize) {
                self.mark_queue(consumer.queue);
            }
        }
    }

    fn confirm_select(
        &mut self,
        id: ConnectionId,
        number: u16,
        nowait: bool,
    ) -> Result<(), AmqpError> {
        let Some(channel) = self.connection(id).and_then(|c| c.channel(number)) else {
            return Ok(());
        };
        match channel.mode {
            Mode::Tx(_) => return Err(AmqpError::tx_to_confirm()),
            Mode::Plain => channel.mode = Mode::Confirm(Confirms::new()),
            Mode::Confirm(_) => {}
        }
        if !nowait {
            self.send(id, number, &confirm::SelectOk::default());
        }
        Ok(())
    }

    fn consume(
        &mut self,
        id: ConnectionId,
        number: u16,
        consume: &basic::Consume<'_>,
    ) -> Result<(), AmqpError> {
        if consume.queue.as_bytes() == REPLY_TO {
            return self.consume_replies(id, number, consume);
        }
        let vhost = self.vhost_name(id);
        let made_up = self.made_up_name("amq.ctag-");
        let tag: Box<[u8]> = if consume.consumer_tag.is_empty() {
            made_up.into()
        } else {
            consume.consumer_tag.as_bytes().into()
        };
        let Some(channel) = self.connection(id).and_then(|c| c.channel(number)) else {
            return Ok(());
        };
        let consumers = channel.consumers.clone();
        let prefetch = channel.prefetch;
        if consumers.iter().any(|key| self.consumers[key.0 as usize].tag == tag) {
            return Err(AmqpError::consumer_tag_reused(String::from_utf8_lossy(&tag)));
        }
        let key = self.queue_for(id, number, consume.queue, Some(Access::Read))?;
        check_consume_arguments(Resource::queue(&consume.queue, &vhost), consume.arguments)?;
        let serial = self.take_serial();
        let queue = &mut self.queues[key.0 as usize];
        if queue.exclusive_consumer || (consume.exclusive && !queue.consumers.is_empty()) {
            return Err(AmqpError::queue_in_exclusive_use(queue.display_name(), &vhost));
        }
        let consumer_key = ConsumerKey(self.consumers.insert(Consumer {
            serial,
            connection: id,
            channel: number,
            tag: tag.clone(),
            queue: key,
            no_ack: consume.no_ack,
            prefetch,
            unacked: 0,
        }) as u32);
        queue.exclusive_consumer = consume.exclusive;
        queue.consumers.push(consumer_key);
        queue.had_consumer = true;
        if let Some(connection) = self.connection(id) {
            connection.consumers += 1;
            let first = connection.consumers == 1;
            if let Some(channel) = connection.channel(number) {
                channel.consumers.push(consumer_key);
            }
            self.consuming_connections += usize::from(first);
        }
        if !consume.no_wait {
            let consumer_tag = ShortStr::new(&tag).unwrap_or_default();
            self.send(id, number, &basic::ConsumeOk { consumer_tag });
        }
        self.mark_queue(key);
        Ok(())
    }

    fn cancel(
        &mut self,
        id: ConnectionId,
        number: u16,
        cancel: &basic::Cancel<'_>,
    ) -> Result<(), AmqpError> {
        let tag = cancel.consumer_tag.as_bytes();
        if !self.cancel_replies(id, number, tag) {
            let consumers = match self.connection(id).and_then(|c| c.channel(number)) {
                Some(channel) => channel.consumers.clone(),
                None => return Ok(()),
            };
            let found =
                consumers.into_iter().find(|key| *self.consumers[key.0 as usize].tag == *tag);
            if let Some(key) = found {
                if let Some(channel) = self.connection(id).and_then(|c| c.channel(number)) {
                    channel.consumers.retain(|other| *other != key);
                }
                self.remove_consumer(key);
            }
        }
        if !cancel.no_wait {
            self.send(id, number, &basic::CancelOk { consumer_tag: cancel.consumer_tag });
        }
        Ok(())
    }

    /// Takes a consumer off its queue. Its unsettled deliveries stay with the channel.
    pub(crate) fn remove_consumer(&mut self, key: ConsumerKey) {
        let Some(consumer) = self.consumers.try_remove(key.0 as usize) else { return };
        if let Some(connection) = self.connection(consumer.connection) {
            connection.consumers -= 1;
            let last = connection.consumers == 0;
            self.consuming_connections -= usize::from(last);
        }
        let Some(queue) = self.queues.get_mut(consumer.queue.0 as usize) else { return };
        if let Some(at) = queue.consumers.iter().position(|other| *other == key) {
            queue.consumers.remove(at);
            if queue.cursor > at {
                queue.cursor -= 1;
            }
            queue.exclusive_consumer = false;
            let unused = queue.auto_delete && queue.consumers.is_empty();
            if unused {
                self.delete_queue(consumer.queue);
            }
        }
    }

    fn get(
        &mut self,
        id: ConnectionId,
        number: u16,
        get: &basic::Get<'_>,
    ) -> Result<(), AmqpError> {
        let key = self.queue_for(id, number, get.queue, Some(Access::Read))?;
        let queue = &mut self.queues[key.0 as usize];
        // What is next lies on disk: the answer comes with its block.
        if queue.head.is_empty() && queue.ready() > 0 && queue.gets.len() < PENDING_GETS_MAX {
            let serial = self.connection(id).map_or(0, |connection| connection.serial);
            let queue = &mut self.queues[key.0 as usize];
            queue.gets.push_back(PendingGet {
                connection: id,
                serial,
                channel: number,
                no_ack: get.no_ack,
            });
            self.load_cold(key);
            return Ok(());
        }
        self.answer_get(id, number, key, get.no_ack);
        Ok(())
    }

    /// Answers the gets that waited for messages to come back to RAM.
    pub(crate) fn answer_pending_gets(&mut self, key: QueueKey) {
        while let Some(queue) = self.queues.get_mut(key.0 as usize)
            && (!queue.head.is_empty() || queue.ready() == 0)
            && let Some(get) = queue.gets.pop_front()
        {
            let there = self.connection(get.connection).is_some_and(|connection| {
                connection.serial == get.serial
                    && connection.channel(get.channel).is_some_and(|channel| !channel.closing)
            });
            if there {
                self.answer_get(get.connection, get.channel, key, get.no_ack);
            }
        }
    }

    fn answer_get(&mut self, id: ConnectionId, number: u16, key: QueueKey, no_ack: bool) {
        let Some(Some(connection)) = self.connections.get_mut(id.0 as usize) else { return };
        let frame_max_bytes = connection.frame_max_bytes;
        let Some(Some(channel)) = connection.channels.get_mut(usize::from(number)) else { return };
        let queue = &mut self.queues[key.0 as usize];
        let Some(entry) = queue.pop() else {
            self.send(id, number, &basic::GetEmpty::default());
            return;
        };
        let delivery_tag = channel.take_delivery_tag();
        let message_count = queue.ready().min(u64::from(u32::MAX)) as u32;
        let out = connection.out.buffer();
        write_method(
            out,
            number,
            &basic::GetOk {
                delivery_tag,
                redelivered: entry.redelivered,
                exchange: entry.message.exchange(),
                routing_key: entry.message.routing_key(),
                message_count,
            },
        );
        write_content(out, number, frame_max_bytes, &entry.message);
        self.counters.delivered += 1;
        let queue_id = queue.id;
        if no_ack {
            self.discard(queue_id, entry);
        } else {
            queue.unacked += 1;
            channel
                .unacked
                .push(delivery_tag, Delivery { queue: key, queue_id, entry, consumer: None });
        }
        self.mark_connection(id);
        self.load_cold(key);
    }

    /// A batch is synced: the channels that waited for it have something to tell.
    pub(crate) fn confirm_durable(&mut self, waiter: ConfirmWaiter, batch: u64) {
        let Some(connection) = self.connection(waiter.connection) else { return };
        if connection.serial != waiter.serial {
            return;
        }
        let Some(channel) = connection.channel(waiter.channel) else { return };
        let Mode::Confirm(confirms) = &mut channel.mode else { return };
        confirms.durable(batch);
        if !channel.confirms_dirty {
            channel.confirms_dirty = true;
            self.dirty_confirms.push((waiter.connection, waiter.channel));
        }
    }

    /// Sends what is to be told of confirms, merged.
    pub(crate) fn tell_confirms(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty_confirms);
        for (id, number) in dirty.drain(..) {
            self.tell_confirms_of(id, number);
        }
        self.dirty_confirms = dirty;
    }

    pub(crate) fn tell_confirms_of(&mut self, id: ConnectionId, number: u16) {
        let mut acks = std::mem::take(&mut self.scratch_acks);
        if let Some(connection) = self.connection(id)
            && let Some(channel) = connection.channel(number)
            && let Mode::Confirm(confirms) = &mut channel.mode
        {
            channel.confirms_dirty = false;
            let before = confirms.unconfirmed();
            confirms.take_acks(&mut acks);
            let told = before - confirms.unconfirmed();
            connection.confirms_full = false;
            let out = connection.out.buffer();
            for Ack { delivery_tag, multiple } in acks.drain(..) {
                write_method(out, number, &basic::Ack { delivery_tag, multiple });
            }
            self.counters.confirmed += told;
            self.mark_connection(id);
        }
        self.scratch_acks = acks;
    }
}

fn unknown_tag(tag: u64) -> AmqpError {
    AmqpError::unknown_delivery_tag(tag)
}

/// `x-priority` comes with a later version; what is not understood is never ignored silently.
fn check_consume_arguments(queue: Resource<'_>, arguments: Table<'_>) -> Result<(), AmqpError> {
    match arguments.get("x-priority") {
        None => {}
        Some(value) if value.as_i64().is_none() => {
            let reason = format!("\"expected integer, got {}\"", value.type_name());
            return Err(AmqpError::invalid_arg("x-priority", queue, reason));
        }
        Some(_) => {
            return Err(AmqpError::not_implemented(
                "consumer argument 'x-priority' is not available in this version".to_owned(),
            ));
        }
    }
    for name in ["x-stream-offset", "x-consumer-timeout"] {
        if !matches!(arguments.get(name), None | Some(Value::Void)) {
            return Err(AmqpError::not_implemented(format!(
                "consumer argument '{name}' is not available in this version"
            )));
        }
    }
    Ok(())
}
