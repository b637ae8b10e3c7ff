//! Publishing: a message is assembled, checked, routed, stored and enqueued.

use std::sync::Arc;

use forebay_store::{BatchNo, Home};
use forebay_wire::{ContentHeader, Properties, ReplyCode, ShortStr, basic};

use crate::channel::{Channel, Expects, Mode, Publish};
use crate::content::Way;
use crate::error::AmqpError;
use crate::input::ConnectionId;
use crate::marks::is_marked;
use crate::message::Message;
use crate::queue::Entry;
use crate::reply_to::{REPLY_TO, is_reply};
use crate::shard::Shard;
use crate::topology::{QueueKey, names_extra_keys};

/// `delivery-mode` of a persistent message (0-9-1 section 1.8, basic properties).
pub(crate) const PERSISTENT: u8 = 2;

/// The largest body that may be configured; RabbitMQ's, which words its refusal by it.
const MESSAGE_CEILING_BYTES: u64 = 512 * 1024 * 1024;

/// A body is given this much room when its header comes; more as its frames arrive, so that headers
/// alone cannot fill the memory.
const BODY_ROOM_BYTES: u64 = 128 * 1024;

/// Content class of `basic`.
const BASIC: u16 = 60;

impl Shard {
    /// `basic.publish`: its content comes next.
    pub(crate) fn publish_method(
        &mut self,
        id: ConnectionId,
        number: u16,
        publish: &basic::Publish<'_>,
    ) -> Result<(), AmqpError> {
        if publish.immediate {
            return Err(AmqpError::not_implemented("immediate=true"));
        }
        let Some(connection) = self.connection(id) else { return Ok(()) };
        if !connection.publisher {
            self.becomes_publisher(id);
        }
        self.publishes(id);
        let Some(connection) = self.connection(id) else { return Ok(()) };
        let Some(channel) = connection.channel(number) else { return Ok(()) };
        let Channel { assembly, route_cache, .. } = channel;
        assembly.expects = Expects::Header;
        assembly.mandatory = publish.mandatory;
        // Compared here, while both are in the processor's cache, and then not copied: the message's
        // own bytes are still on their way there, and each waits for the stores before it.
        assembly.remembered =
            route_cache.leads(publish.exchange.as_bytes(), publish.routing_key.as_bytes());
        if !assembly.remembered {
            assembly.aim(publish.exchange.as_bytes(), publish.routing_key.as_bytes());
        }
        Ok(())
    }

    /// The content header of a publish: all that can be refused is refused here.
    pub(crate) fn publish_header(
        &mut self,
        id: ConnectionId,
        number: u16,
        header: &ContentHeader<'_>,
    ) -> Result<(), AmqpError> {
        if header.class_id != BASIC {
            return Err(AmqpError::unexpected_frame(format!(
                "expected content header for class 60, got one for class {} instead",
                header.class_id
            )));
        }
        let message_max_bytes = self.config.message_max_bytes;
        if header.body_size_bytes > message_max_bytes {
            let size_bytes = header.body_size_bytes;
            let configured = message_max_bytes != MESSAGE_CEILING_BYTES;
            return Err(AmqpError::message_too_large(size_bytes, message_max_bytes, configured));
        }
        self.permit_publish(id, number)?;
        let mut raw = header.properties.raw();
        let rewritten;
        let mut marked = false;
        if needs_a_look(raw) {
            let properties = header.properties.parse();
            self.check_properties(id, &properties)?;
            if let Some(headers) = properties.headers {
                marked = is_marked(headers);
                // It goes to more places than the last one. Where headers themselves are looked at, nothing is remembered.
                if names_extra_keys(headers) {
                    if let Some(channel) = self.connection(id).and_then(|c| c.channel(number)) {
                        channel.forget_remembered();
                    }
                    self.permit_extra_keys(id, number, headers)?;
                }
            }
            if properties.reply_to.is_some_and(|reply_to| reply_to.as_bytes() == REPLY_TO) {
                rewritten = self.with_reply_to(id, number, properties)?;
                raw = &rewritten;
            }
        }
        // Any other is transient, as with RabbitMQ since 3.13; before that it refused all but 1 and 2.
        let persistent = header.properties.delivery_mode() == Some(PERSISTENT);
        let (connections, warm) = (&mut self.connections, &mut self.warm_messages);
        let Some(channel) = connections
            .get_mut(id.0 as usize)
            .and_then(|connection| connection.as_deref_mut()?.channel(number))
        else {
            return Ok(());
        };
        let Channel { assembly, route_cache, .. } = channel;
        let (exchange, routing_key) = if assembly.remembered {
            (&route_cache.exchange, &route_cache.routing_key)
        } else {
            (&assembly.exchange, &assembly.routing_key)
        };
        let body_bytes = header.body_size_bytes.min(BODY_ROOM_BYTES) as usize;
        let room_bytes = Message::room_bytes(exchange, routing_key, raw, body_bytes);
        let bytes = warm.take(room_bytes);
        assembly.bytes = Message::start_in(bytes, exchange, routing_key, raw);
        assembly.persistent = persistent;
        assembly.marked = marked;
        assembly.expires = has_expiration(raw);
        assembly.missing_bytes = header.body_size_bytes;
        assembly.expects = Expects::Body;
        let begun_bytes = assembly.bytes.capacity() as u64;
        self.memory_bytes += begun_bytes;
        self.assembling.bytes += begun_bytes;
        if header.body_size_bytes == 0 { self.published(id, number) } else { Ok(()) }
    }

    /// A body frame of a publish.
    pub(crate) fn publish_body(
        &mut self,
        id: ConnectionId,
        number: u16,
        payload: &[u8],
    ) -> Result<(), AmqpError> {
        let Some(channel) = self.connection(id).and_then(|c| c.channel(number)) else {
            return Ok(());
        };
        let assembly = &mut channel.assembly;
        if payload.len() as u64 > assembly.missing_bytes {
            return Err(AmqpError::body_too_long());
        }
        let before = assembly.bytes.capacity() as u64;
        assembly.bytes.extend_from_slice(payload);
        assembly.missing_bytes -= payload.len() as u64;
        let complete = assembly.missing_bytes == 0;
        let after = assembly.bytes.capacity() as u64;
        self.memory_bytes += after - before;
        self.assembling.bytes += after - before;
        if complete {
            return self.published(id, number);
        }
        // It can be so much only while memory is short, and then this one alone goes on.
        if after > before && self.assembling.bytes > self.halves_max_bytes() {
            return Err(AmqpError::out_of_resources(format_args!(
                "messages that have not come to their end take {} bytes together, more than there is for them; \
                 publish fewer large messages at the same time over one connection, or raise memory_budget",
                self.assembling.bytes
            )));
        }
        Ok(())
    }

    /// The content is complete.
    fn published(&mut self, id: ConnectionId, number: u16) -> Result<(), AmqpError> {
        self.counters.published += 1;
        let Some(channel) = self.connection(id).and_then(|c| c.channel(number)) else {
            return Ok(());
        };
        let assembly = &mut channel.assembly;
        assembly.expects = Expects::Method;
        let bytes = std::mem::take(&mut assembly.bytes);
        let size_bytes = bytes.len() as u64;
        let (mandatory, persistent) = (assembly.mandatory, assembly.persistent);
        let (marked, expires) = (assembly.marked, assembly.expires);
        let permitted_at = assembly.permitted_at;
        let is_remembered = assembly.remembered;
        let is_reply =
            !is_remembered && assembly.exchange.is_empty() && is_reply(&assembly.routing_key);
        self.memory_bytes -= bytes.capacity() as u64;
        self.assembling.bytes -= bytes.capacity() as u64;
        let mut message = Message::from_bytes(bytes);
        if expires {
            message.begin_to_expire(self.now_us, self.clock_began_us);
        }
        if marked {
            message = message.received_at(self.now_us);
        }
        let message = self.shared(message);
        let publish = Publish { message, mandatory, persistent, permitted_at, is_reply };
        let Some(channel) = self.connection(id).and_then(|c| c.channel(number)) else {
            return Ok(());
        };
        if matches!(channel.mode, Mode::Tx(_)) {
            return self.hold_until_commit(id, number, publish);
        }
        // The topology may have changed between the frames of a long message.
        let version = channel.route_cache.version;
        let remembered = is_remembered && self.topology(id).version() == version;
        let batch = self.route_and_enqueue(id, number, publish, remembered)?;
        let held_by = self.hold_confirm(id, number);
        if std::mem::take(&mut self.refused) {
            self.refuse(id, number);
        } else {
            self.confirm(id, number, size_bytes, batch, held_by);
        }
        Ok(())
    }

    /// 403, 404 or 406 for properties that RabbitMQ refuses.
    fn check_properties(
        &mut self,
        id: ConnectionId,
        properties: &Properties<'_>,
    ) -> Result<(), AmqpError> {
        let Some(connection) = self.connection(id) else { return Ok(()) };
        if let (Some(user_id), Some(login)) = (properties.user_id, &connection.login)
            && user_id.as_bytes() != login.user.as_bytes()
            && !login.impersonator
        {
            return Err(AmqpError::wrong_user_id(user_id, &login.user));
        }
        if let Some(expiration) = properties.expiration {
            expiration_ms(expiration)?;
        }
        Ok(())
    }

    /// The raw properties with the channel's own reply name.
    fn with_reply_to(
        &mut self,
        id: ConnectionId,
        number: u16,
        properties: Properties<'_>,
    ) -> Result<Vec<u8>, AmqpError> {
        let name = self.rewritten_reply_to(id, number)?;
        let reply_to = ShortStr::new(&name).unwrap_or_default();
        let mut raw = Vec::new();
        Properties { reply_to: Some(reply_to), ..properties }.encode(&mut raw);
        Ok(raw)
    }

    /// Finds the queues and puts the message into them. Returns the batch to wait for, if any.
    pub(crate) fn route_and_enqueue(
        &mut self,
        id: ConnectionId,
        number: u16,
        publish: Publish,
        remembered: bool,
    ) -> Result<Option<BatchNo>, AmqpError> {
        let Publish { message, mandatory, persistent, permitted_at, is_reply } = publish;
        self.refused = false;
        if is_reply {
            let delivered = self.deliver_reply(&message);
            if !delivered {
                self.counters.unroutable += 1;
                if mandatory {
                    self.return_message(id, number, &message);
                }
            }
            if self.tracing {
                self.trace_publish(id, number, &message, &message, &[]);
            }
            self.release(message);
            return Ok(None);
        }
        let as_published = self.tracing.then(|| self.another(&message));
        let mut queues = std::mem::take(&mut self.scratch_queues);
        queues.clear();
        let routed = if remembered {
            self.remembered_route(id, number, &mut queues);
            Ok(None)
        } else {
            self.route(id, number, &message, permitted_at, &mut queues)
        };
        let message = match routed {
            Ok(None) => message,
            // BCC is not for the consumers' eyes.
            Ok(Some(stripped)) => {
                self.release(message);
                self.shared(stripped)
            }
            Err(error) => {
                self.scratch_queues = queues;
                self.release(message);
                if let Some(as_published) = as_published {
                    self.release(as_published);
                }
                return Err(error);
            }
        };
        let traced = as_published.map(|as_published| (as_published, self.another(&message)));
        if queues.is_empty() {
            self.counters.unroutable += 1;
            if mandatory {
                self.return_message(id, number, &message);
            }
        }
        self.refused = self.leave_out_full(&message, &mut queues);
        let batch = self.enqueue(message, persistent, &mut queues);
        if let Some((as_published, message)) = traced {
            self.trace_publish(id, number, &as_published, &message, &queues);
            self.release(as_published);
            self.release(message);
        }
        self.scratch_queues = queues;
        Ok(batch)
    }

    /// Appends to the log and to each queue; to none, the message is given up. Queues with priorities are replaced by the
    /// levels it goes to.
    pub(crate) fn enqueue(
        &mut self,
        message: Arc<Message>,
        persistent: bool,
        queues: &mut [QueueKey],
    ) -> Option<BatchNo> {
        self.find_levels(&message, queues);
        let Some((last, others)) = queues.split_last() else {
            self.release(message);
            return None;
        };
        let mut places = std::mem::take(&mut self.scratch_places);
        places.clear();
        if persistent {
            for key in queues.iter() {
                let queue = &self.queues[key.0 as usize];
                if queue.stored {
                    places.push((queue.id, queue.next_seq));
                    if queue.limited {
                        self.write_arrival(*key);
                    }
                }
            }
        }
        let home = if places.is_empty() {
            Home::NONE
        } else {
            self.store.publish(&places, message.as_stored())
        };
        self.scratch_places = places;
        for key in others {
            let message = self.another(&message);
            self.append(*key, message, home);
        }
        self.append(*last, message, home);
        (home != Home::NONE).then(|| self.store.open_batch())
    }

    /// Appends to a queue what the log has at `home`.
    fn append(&mut self, key: QueueKey, message: Arc<Message>, home: Home) {
        let queue = &mut self.queues[key.0 as usize];
        let seq = queue.take_seq();
        let home = if queue.stored { home } else { Home::NONE };
        let limited = queue.limited || message.expires_us().is_some();
        queue.push(Entry { seq, message, home, redelivered: false });
        let whole = queue.level_of.unwrap_or(key);
        let is_balanced = queue.balanced.is_some();
        queue.hold_without_consumer(self.now_us);
        if whole != key {
            self.hold_without_consumer(whole);
        }
        if is_balanced {
            self.came(key, seq);
        }
        if limited {
            self.came_to_limited(key, seq);
        }
        self.mark_queue(whole);
    }

    /// `basic.return`, strictly before the confirm (which is sent at the end of the turn).
    fn return_message(&mut self, id: ConnectionId, number: u16, message: &Arc<Message>) {
        self.counters.returned += 1;
        let soft = self.out_soft_bytes();
        let Some(Some(connection)) = self.connections.get_mut(id.0 as usize) else { return };
        if let Some(channel) = connection.channel(number) {
            channel.note_not_taken();
        }
        let way = Way::new(number, connection.frame_max_bytes, soft);
        let returned = basic::Return {
            reply_code: ReplyCode::NoRoute.code(),
            reply_text: ShortStr::truncated(ReplyCode::NoRoute.name()),
            exchange: message.exchange(),
            routing_key: message.routing_key(),
        };
        connection.out.message(way, &returned, None, (message, None), &mut self.memory_bytes);
        self.mark_connection(id);
    }
}

/// Properties that are looked at when a message is published, by their bits in the first flag word
/// (0-9-1 section 4.2.6.1): headers, reply-to, expiration, user-id.
const LOOKED_AT: u16 = 1 << 13 | 1 << 9 | EXPIRATION | 1 << 4;
const EXPIRATION: u16 = 1 << 8;

fn needs_a_look(raw: &[u8]) -> bool {
    has_any(raw, LOOKED_AT)
}

/// Whether a message has a time to live of its own.
pub(crate) fn has_expiration(raw: &[u8]) -> bool {
    has_any(raw, EXPIRATION)
}

fn has_any(raw: &[u8], bits: u16) -> bool {
    matches!(raw, [high, low, ..] if u16::from_be_bytes([*high, *low]) & bits != 0)
}

/// The longest time to live that RabbitMQ takes: ten years, in milliseconds.
const EXPIRATION_MAX_MS: i64 = 315_360_000_000;

/// `expiration` is a decimal number of milliseconds, as text; refusals read as RabbitMQ's.
pub(crate) fn expiration_ms(expiration: ShortStr<'_>) -> Result<u64, AmqpError> {
    let text = expiration.to_string();
    let invalid = |reason: String| Err(AmqpError::invalid_expiration(&text, reason));
    let digits_from = usize::from(text.starts_with(['+', '-']));
    let digits_to = text[digits_from..]
        .find(|c: char| !c.is_ascii_digit())
        .map_or(text.len(), |at| digits_from + at);
    if digits_to == digits_from {
        return invalid("no_integer".to_owned());
    }
    if digits_to < text.len() {
        return invalid(format!("{{leftover_string,\"{}\"}}", &text[digits_to..]));
    }
    match text.parse::<i64>() {
        Ok(ms) if ms < 0 => invalid(format!("{{value_negative,{ms}}}")),
        Ok(ms) if ms <= EXPIRATION_MAX_MS => Ok(ms as u64),
        _ => invalid(format!("{{value_too_large,{}}}", text.trim_start_matches('+'))),
    }
}
