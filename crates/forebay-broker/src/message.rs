//! A message, in one allocation, in the form in which it is also stored.
//!
//! ```text
//!   0            1         2               6
//!   ┌────────────┬─────────┬───────────────┬──────────┬─────────────┬────────────┬──────┐
//!   │exchange len│ key len │properties len │ exchange │ routing key │ properties │ body │
//!   │     u8     │   u8    │   u32 LE      │          │             │ (raw AMQP) │      │
//!   └────────────┴─────────┴───────────────┴──────────┴─────────────┴────────────┴──────┘
//! ```
//! The properties are the validated flag words and property list exactly as the publisher sent them
//! (0-9-1 section 4.2.6.1), so what is delivered is what was published, byte for byte.

use std::num::NonZeroU64;

use forebay_wire::{RawProperties, ShortStr};

const HEAD_BYTES: usize = 6;

/// What a message costs in memory beside its bytes: the allocations' own headers and the queue's entry.
const OVERHEAD_BYTES: usize = 144;

/// An immutable message.
#[derive(Debug, PartialEq, Eq)]
pub struct Message {
    bytes: Vec<u8>,
    /// Of the few that have any: others are no larger for it.
    times: Option<Box<Times>>,
}

/// By the clock of the broker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Times {
    /// When it was read, if its publisher marked it ([`marks`](crate::marks)).
    received_us: Option<NonZeroU64>,
    /// When its own time to live is over.
    expires_us: Option<NonZeroU64>,
}

impl Message {
    /// Starts the bytes of a message whose body is still to come; the caller appends the body and
    /// calls [`Message::from_bytes`]. `body_hint_bytes` is only an allocation hint.
    pub fn start(
        exchange: &[u8],
        routing_key: &[u8],
        properties: &[u8],
        body_hint_bytes: usize,
    ) -> Vec<u8> {
        let room_bytes = Message::room_bytes(exchange, routing_key, properties, body_hint_bytes);
        Message::start_in(Vec::with_capacity(room_bytes), exchange, routing_key, properties)
    }

    /// What the bytes of a message take.
    pub(crate) fn room_bytes(
        exchange: &[u8],
        routing_key: &[u8],
        properties: &[u8],
        body_bytes: usize,
    ) -> usize {
        HEAD_BYTES + exchange.len() + routing_key.len() + properties.len() + body_bytes
    }

    /// The same in an empty buffer.
    pub(crate) fn start_in(
        mut bytes: Vec<u8>,
        exchange: &[u8],
        routing_key: &[u8],
        properties: &[u8],
    ) -> Vec<u8> {
        // They come as short strings. Were one longer, nothing behind its length would be where it is looked for.
        assert!(exchange.len() <= 255 && routing_key.len() <= 255, "names are short strings");
        bytes.push(exchange.len() as u8);
        bytes.push(routing_key.len() as u8);
        bytes.extend_from_slice(&(properties.len() as u32).to_le_bytes());
        bytes.extend_from_slice(exchange);
        bytes.extend_from_slice(routing_key);
        bytes.extend_from_slice(properties);
        bytes
    }

    /// Takes bytes that [`Message::start`] began.
    pub fn from_bytes(bytes: Vec<u8>) -> Message {
        debug_assert!(bytes.len() >= HEAD_BYTES);
        Message { bytes, times: None }
    }

    /// The same, read at `us` by the clock of its broker.
    #[must_use]
    pub fn received_at(self, us: u64) -> Message {
        self.timed(|times| times.received_us = NonZeroU64::new(us.max(1)))
    }

    /// When it was read, if that was said of it.
    pub fn received_us(&self) -> Option<u64> {
        self.times.as_ref()?.received_us.map(NonZeroU64::get)
    }

    /// The same, to expire then by the clock of its broker; `None`: never by itself.
    #[must_use]
    pub fn expiring_at(self, expires_us: Option<NonZeroU64>) -> Message {
        match expires_us {
            None => self,
            Some(_) => self.timed(|times| times.expires_us = expires_us),
        }
    }

    /// The same of one that is there.
    pub(crate) fn expire_at(&mut self, us: NonZeroU64) {
        self.times.get_or_insert_default().expires_us = Some(us);
    }

    fn timed(self, set: impl FnOnce(&mut Times)) -> Message {
        let mut times = self.times.unwrap_or_default();
        set(&mut times);
        Message { times: Some(times), ..self }
    }

    /// When its own time to live is over.
    pub fn expires_us(&self) -> Option<u64> {
        self.times.as_ref()?.expires_us.map(NonZeroU64::get)
    }

    /// Takes bytes from the store; `None` when they are not a message.
    pub fn from_stored(bytes: Vec<u8>) -> Option<Message> {
        if bytes.len() < HEAD_BYTES {
            return None;
        }
        let message = Message { bytes, times: None };
        if message.body_start() > message.bytes.len() {
            return None;
        }
        RawProperties::validate(message.raw_properties()).ok()?;
        Some(message)
    }

    /// The form that is stored.
    pub fn as_stored(&self) -> &[u8] {
        &self.bytes
    }

    /// What this message counts for in the memory budget, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        // Allocators round up by as much as an eighth.
        let capacity = self.bytes.capacity();
        (capacity + capacity / 8 + OVERHEAD_BYTES) as u64
    }

    fn exchange_len(&self) -> usize {
        usize::from(self.bytes[0])
    }

    fn key_len(&self) -> usize {
        usize::from(self.bytes[1])
    }

    fn properties_len(&self) -> usize {
        u32::from_le_bytes([self.bytes[2], self.bytes[3], self.bytes[4], self.bytes[5]]) as usize
    }

    fn properties_start(&self) -> usize {
        HEAD_BYTES + self.exchange_len() + self.key_len()
    }

    fn body_start(&self) -> usize {
        self.properties_start() + self.properties_len()
    }

    /// The exchange it was published to.
    pub fn exchange(&self) -> ShortStr<'_> {
        let end = HEAD_BYTES + self.exchange_len();
        ShortStr::new(&self.bytes[HEAD_BYTES..end]).unwrap_or_default()
    }

    /// The routing key it was published with.
    pub fn routing_key(&self) -> ShortStr<'_> {
        let start = HEAD_BYTES + self.exchange_len();
        ShortStr::new(&self.bytes[start..start + self.key_len()]).unwrap_or_default()
    }

    /// Property flags and list, raw.
    pub fn raw_properties(&self) -> &[u8] {
        let start = self.properties_start();
        &self.bytes[start..start + self.properties_len()]
    }

    /// The body.
    pub fn body(&self) -> &[u8] {
        &self.bytes[self.body_start()..]
    }

    /// The same message with other properties (no `BCC`).
    pub fn with_properties(&self, properties: &[u8]) -> Message {
        let mut bytes = Message::start(
            self.exchange().as_bytes(),
            self.routing_key().as_bytes(),
            properties,
            self.body().len(),
        );
        bytes.extend_from_slice(self.body());
        Message { bytes, times: self.times.clone() }
    }

    /// The bytes again.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_gives_back_its_parts() {
        let mut bytes = Message::start(b"amq.topic", b"a.b", &[0x10, 0x00, 2], 4);
        bytes.extend_from_slice(b"body");
        let message = Message::from_stored(bytes).expect("well-formed");
        assert_eq!(message.exchange().as_bytes(), b"amq.topic");
        assert_eq!(message.routing_key().as_bytes(), b"a.b");
        assert_eq!(message.raw_properties(), &[0x10, 0x00, 2]);
        assert_eq!(message.body(), b"body");
    }

    #[test]
    fn bytes_that_are_no_message_are_refused() {
        assert!(Message::from_stored(vec![]).is_none());
        assert!(Message::from_stored(vec![200, 200, 0, 0, 0, 0]).is_none());
        assert!(Message::from_stored(vec![0, 0, 255, 255, 255, 255, 1]).is_none());
    }
}
