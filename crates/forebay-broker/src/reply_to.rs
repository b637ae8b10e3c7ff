//! Direct reply-to: replies go straight to the requester's channel, past queues and store.
//!
//! A requester consumes from the pseudo-queue `amq.rabbitmq.reply-to`; in what it publishes, that
//! `reply-to` is rewritten to a name with a token; a reply published to that name over the default
//! exchange is delivered at most once, to that channel, or not at all.

use std::sync::Arc;

use forebay_wire::{ShortStr, basic};

use crate::channel::ReplyConsumer;
use crate::connection::Stage;
use crate::content::Way;
use crate::error::AmqpError;
use crate::input::ConnectionId;
use crate::message::Message;
use crate::shard::Shard;

/// The pseudo-queue's name.
pub(crate) const REPLY_TO: &[u8] = b"amq.rabbitmq.reply-to";

/// What rewritten names begin with.
const REPLY_PREFIX: &[u8] = b"amq.rabbitmq.reply-to.";

/// Outgoing bytes of a requester above which replies to it are dropped (and counted): it has stopped
/// reading, and nothing else bounds what its repliers may send.
const REPLY_OUT_MAX_BYTES: usize = 16 * 1024 * 1024;

/// Whether a routing key on the default exchange means somebody's replies.
pub(crate) fn is_reply(routing_key: &[u8]) -> bool {
    routing_key.starts_with(REPLY_PREFIX)
}

impl Shard {
    /// `basic.consume` on the pseudo-queue.
    pub(crate) fn consume_replies(
        &mut self,
        id: ConnectionId,
        number: u16,
        consume: &basic::Consume<'_>,
    ) -> Result<(), AmqpError> {
        let tag = self.consumer_tag(id, number, consume.consumer_tag)?;
        if !consume.no_ack {
            return Err(AmqpError::reply_consumer_cannot_acknowledge());
        }
        let token = self.made_up_name("");
        let Some(channel) = self.connection(id).and_then(|c| c.channel(number)) else {
            return Ok(());
        };
        if channel.reply_consumer.is_some() {
            return Err(AmqpError::reply_consumer_already_set());
        }
        channel.reply_consumer = Some(ReplyConsumer { tag: tag.clone(), token: token.clone() });
        self.reply_tokens.insert(token, (id, number));
        if !consume.no_wait {
            let consumer_tag = ShortStr::new(&tag).unwrap_or_default();
            self.send(id, number, &basic::ConsumeOk { consumer_tag });
        }
        Ok(())
    }

    /// The name that stands for this channel's replies.
    pub(crate) fn rewritten_reply_to(
        &mut self,
        id: ConnectionId,
        number: u16,
    ) -> Result<Vec<u8>, AmqpError> {
        let token = self
            .connection(id)
            .and_then(|c| c.channel(number))
            .and_then(|channel| channel.reply_consumer.as_ref())
            .map(|reply| reply.token.clone())
            .ok_or_else(AmqpError::reply_consumer_missing)?;
        Ok([REPLY_PREFIX, &token].concat())
    }

    /// Whether the requester behind this name is still there.
    pub(crate) fn replies_wanted(&self, name: &[u8]) -> bool {
        name.strip_prefix(REPLY_PREFIX).is_some_and(|token| self.reply_tokens.contains_key(token))
    }

    /// Delivers a reply; false if nobody waits for it.
    pub(crate) fn deliver_reply(&mut self, message: &Arc<Message>) -> bool {
        let key = message.routing_key();
        let token = key.as_bytes().strip_prefix(REPLY_PREFIX).unwrap_or_default();
        let Some((id, number)) = self.reply_tokens.get(token).copied() else { return false };
        let soft = self.out_soft_bytes();
        let Some(Some(connection)) = self.connections.get_mut(id.0 as usize) else { return false };
        if connection.stage != Stage::Open || connection.out.len() > REPLY_OUT_MAX_BYTES {
            self.counters.replies_dropped += 1;
            return false;
        }
        let way = Way::new(number, connection.frame_max_bytes, soft);
        let Some(channel) = connection.channels.get_mut(number) else {
            return false;
        };
        let delivery_tag = channel.take_delivery_tag();
        let Some(reply) = &channel.reply_consumer else { return false };
        let deliver = basic::Deliver {
            consumer_tag: ShortStr::new(&reply.tag).unwrap_or_default(),
            delivery_tag,
            redelivered: false,
            exchange: message.exchange(),
            routing_key: message.routing_key(),
        };
        connection.out.message(way, &deliver, None, (message, None), &mut self.memory_bytes);
        self.counters.delivered += 1;
        self.mark_connection(id);
        true
    }

    /// `basic.cancel` of the reply consumer; false if this tag is not its.
    pub(crate) fn cancel_replies(&mut self, id: ConnectionId, number: u16, tag: &[u8]) -> bool {
        let Some(channel) = self.connection(id).and_then(|c| c.channel(number)) else {
            return false;
        };
        match channel.reply_consumer.take_if(|reply| *reply.tag == *tag) {
            Some(reply) => {
                self.reply_tokens.remove(&reply.token);
                true
            }
            None => false,
        }
    }
}
