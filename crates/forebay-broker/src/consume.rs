//! `basic.consume`, `basic.cancel` and `basic.qos` (0-9-1 sections 1.8.3.1 to 1.8.3.6).

use std::num::NonZeroU64;

use forebay_wire::{ShortStr, Table, Value, basic};

use crate::access::Access;
use crate::ack_timeout::timeout_argument;
use crate::consumer::{Consumer, ConsumerKey};
use crate::error::AmqpError;
use crate::input::ConnectionId;
use crate::marks::ARGUMENT;
use crate::reply_to::REPLY_TO;
use crate::shard::Shard;
use crate::topology::Resource;

/// Consumers of one channel: each `basic.consume` looks at the tags of all.
const CONSUMERS_OF_CHANNEL_MAX: usize = 10_000;

const STREAM_OFFSET: &str = "x-stream-offset";

impl Shard {
    pub(crate) fn consume(
        &mut self,
        id: ConnectionId,
        number: u16,
        consume: &basic::Consume<'_>,
    ) -> Result<(), AmqpError> {
        if consume.queue.as_bytes() == REPLY_TO {
            return self.consume_replies(id, number, consume);
        }
        let vhost = self.vhost_name(id);
        let tag = self.consumer_tag(id, number, consume.consumer_tag)?;
        let Some(channel) = self.connection(id).and_then(|c| c.channel(number)) else {
            return Ok(());
        };
        let prefetch = channel.prefetch;
        let key = self.queue_for(id, number, consume.queue, Some(Access::Read))?;
        let resource = Resource::queue(&consume.queue, &vhost);
        let priority = priority_argument(resource, consume.arguments)?;
        check_not_of_a_stream(resource, consume.arguments)?;
        let own_timeout_ms = timeout_argument(resource, consume.arguments)?;
        let marks = marks_argument(resource, consume.arguments)?;
        let serial = NonZeroU64::new(self.take_serial()).expect("serials count from 1");
        let configured_ms = self.config.ack_timeout_ms;
        let queue = &self.queues[key.0 as usize];
        // On a queue with a single active consumer RabbitMQ lets nobody be exclusive.
        let taken = !queue.consumers.is_empty() || queue.consumers.is_single_active();
        if queue.exclusive_consumer || (consume.exclusive && taken) {
            return Err(AmqpError::queue_in_exclusive_use(queue.display_name(), &vhost));
        }
        let ack_timeout_ms = own_timeout_ms.or(queue.ack_timeout_ms).unwrap_or(configured_ms);
        self.shorten_idle(key);
        self.each_level(key, |shard, level| {
            shard.note_offered(level);
            true
        });
        let queue = &mut self.queues[key.0 as usize];
        let consumer_key = ConsumerKey(self.consumers.insert(Consumer {
            serial,
            connection: id,
            channel: number,
            tag: tag.clone(),
            queue: key,
            place: queue.consumers.len(),
            no_ack: consume.no_ack,
            ack_timeout_ms,
            marks,
            prefetch,
            unacked: 0,
        }) as u32);
        queue.exclusive_consumer = consume.exclusive;
        let (place, moved) = queue.consumers.push(consumer_key, priority);
        for behind in moved {
            self.consumers[behind.0 as usize].place += 1;
        }
        self.consumers[consumer_key.0 as usize].place = place;
        if place + 1 < queue.consumers.len() {
            queue.turns.inserted(place);
        } else {
            queue.turns.appended(place);
        }
        queue.had_consumer = true;
        self.mix_ack_limits(id, number, ack_timeout_ms);
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

    pub(crate) fn cancel(
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

    /// The tag of a new consumer: the wanted one if the channel has none such, or a made-up one.
    pub(crate) fn consumer_tag(
        &mut self,
        id: ConnectionId,
        number: u16,
        wanted: ShortStr<'_>,
    ) -> Result<Box<[u8]>, AmqpError> {
        let wanted = wanted.as_bytes();
        let Some(Some(connection)) = self.connections.get_mut(id.0 as usize) else {
            return Ok(wanted.into());
        };
        let consumers = match connection.channel(number) {
            Some(channel) => &channel.consumers,
            None => return Ok(wanted.into()),
        };
        if consumers.len() >= CONSUMERS_OF_CHANNEL_MAX {
            let reason = "a channel has 10000 consumers at most; open another one";
            return Err(AmqpError::out_of_resources(reason));
        }
        if wanted.is_empty() {
            return Ok(self.made_up_name("amq.ctag-").into());
        }
        if consumers.iter().any(|key| *self.consumers[key.0 as usize].tag == *wanted) {
            return Err(AmqpError::consumer_tag_reused(String::from_utf8_lossy(wanted)));
        }
        Ok(wanted.into())
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
        if consumer.place < queue.consumers.len() && queue.consumers.at(consumer.place) == key {
            for behind in queue.consumers.remove(consumer.place) {
                self.consumers[behind.0 as usize].place -= 1;
            }
            queue.turns.removed(consumer.place);
            queue.exclusive_consumer = false;
            let next_is_active = queue.consumers.is_single_active() && consumer.place == 0;
            queue.used(self.now_us);
            let unused = queue.auto_delete && queue.consumers.is_empty();
            if unused {
                self.delete_queue(consumer.queue);
            } else {
                if self.ready_in(consumer.queue) > 0 {
                    self.hold_without_consumer(consumer.queue);
                }
                self.plan_levels(consumer.queue);
                if next_is_active {
                    self.mark_queue(consumer.queue);
                }
            }
        }
    }

    pub(crate) fn qos(
        &mut self,
        id: ConnectionId,
        number: u16,
        qos: &basic::Qos,
    ) -> Result<(), AmqpError> {
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
        channel.rooms_told = channel.rooms_told.wrapping_add(1);
        let (keys, first) = (channel.consumers.clone(), channel.rooms_told);
        self.mark_queues_in_turn(&keys, first);
    }

    /// The queues of these consumers may go on. What there is room for is soon taken by the first, so each time another one is: always the
    /// same, and a queue would starve beside one with a backlog.
    pub(crate) fn mark_queues_in_turn(&mut self, keys: &[ConsumerKey], first: usize) {
        let (later, sooner) = keys.split_at(first.checked_rem(keys.len()).unwrap_or(0));
        for key in sooner.iter().chain(later) {
            if let Some(consumer) = self.consumers.get(key.0 as usize) {
                self.mark_queue(consumer.queue);
            }
        }
    }
}

/// Whether the times at which marked messages passed the broker are asked for.
fn marks_argument(queue: Resource<'_>, arguments: Table<'_>) -> Result<bool, AmqpError> {
    match arguments.get(ARGUMENT) {
        None | Some(Value::Void) => Ok(false),
        Some(Value::Bool(asked)) => Ok(asked),
        Some(value) => {
            let reason = format!("\"expected boolean, got {}\"", value.type_name());
            Err(AmqpError::invalid_arg(ARGUMENT, queue, reason))
        }
    }
}

/// A consumer's priority, 0 unless set.
fn priority_argument(queue: Resource<'_>, arguments: Table<'_>) -> Result<i64, AmqpError> {
    let Some(value) = arguments.get("x-priority") else { return Ok(0) };
    value.as_i64().ok_or_else(|| {
        let reason = format!("\"expected integer, got {}\"", value.type_name());
        AmqpError::invalid_arg("x-priority", queue, reason)
    })
}

/// Consumers of streams say where to begin. No queue here is one, so whoever says it takes the queue for another.
fn check_not_of_a_stream(queue: Resource<'_>, arguments: Table<'_>) -> Result<(), AmqpError> {
    match arguments.get(STREAM_OFFSET) {
        None => Ok(()),
        Some(_) => Err(AmqpError::invalid_arg_of_queue_type(STREAM_OFFSET, queue)),
    }
}
