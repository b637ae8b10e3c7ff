//! A message, in one allocation, in the form in which it is also stored.
//!
//! ```text
//!   0            1         2               6
//!   ┌────────────┬─────────┬───────────────┬──────────┬─────────────┬────────────┬──────┐
//!   │exchange len│ key len │properties len │ exchange │ routing key │ properties │ body │
//!   │     u8     │   u8    │   u32 LE      │          │             │ (raw AMQP) │      │
//!   └────────────┴─────────┴───────────────┴──────────┴─────────────┴────────────┴──────┘
//! ```
//! Of a message with a time to live of its own the highest bit of the properties' length is set, and 8 bytes stand before the exchange:
//! when it expires, in microseconds since 1970, as a u64 (LE), or 0 where nobody knows. Messages of older builds have neither.
//!
//! The properties are the validated flag words and property list exactly as the publisher sent them
//! (0-9-1 section 4.2.6.1), so what is delivered is what was published, byte for byte.

use std::num::NonZeroU64;

use forebay_wire::{Properties, RawProperties, ShortStr};

use crate::publish::{expiration_ms, has_expiration};

const HEAD_BYTES: usize = 6;

/// In the length of the properties: it says when the message expires.
const EXPIRES: u32 = 1 << 31;
const EXPIRES_BYTES: usize = 8;

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
        let expires_bytes = if has_expiration(properties) { EXPIRES_BYTES } else { 0 };
        let names_bytes = exchange.len() + routing_key.len();
        HEAD_BYTES + expires_bytes + names_bytes + properties.len() + body_bytes
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
        let expires = has_expiration(properties);
        let flag = if expires { EXPIRES } else { 0 };
        bytes.extend_from_slice(&(properties.len() as u32 | flag).to_le_bytes());
        if expires {
            bytes.extend_from_slice(&[0; EXPIRES_BYTES]);
        }
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

    /// Its own time to live, if it has one, begins now, by a clock that began so many microseconds after 1970, if that is known.
    #[inline]
    pub(crate) fn begin_to_expire(&mut self, now_us: u64, began_us: Option<u64>) {
        let Some(us) = expires_us(self.raw_properties(), now_us) else { return };
        self.times.get_or_insert_default().expires_us = Some(us);
        if let (true, Some(began_us)) = (self.says_when_it_expires(), began_us) {
            let since_1970_us = began_us.saturating_add(us.get());
            self.bytes[HEAD_BYTES..HEAD_BYTES + EXPIRES_BYTES]
                .copy_from_slice(&since_1970_us.to_le_bytes());
        }
    }

    /// The same, as it was stored: its time goes on, or begins now if nobody wrote it down. It is over at once where it was before
    /// this clock began, and never later than if it began now, whatever became of the system's clock.
    #[must_use]
    pub(crate) fn going_on_to_expire(self, now_us: u64, began_us: Option<u64>) -> Message {
        let anew = expires_us(self.raw_properties(), now_us);
        let goes_on = || Some(self.stored_expiry_us()?.saturating_sub(began_us?).max(1));
        let expires_us = anew.min(goes_on().and_then(NonZeroU64::new).or(anew));
        self.expiring_at(expires_us)
    }

    fn says_when_it_expires(&self) -> bool {
        self.bytes[HEAD_BYTES - 1] & 0x80 != 0
    }

    /// In microseconds since 1970.
    fn stored_expiry_us(&self) -> Option<u64> {
        let bytes = self.bytes.get(HEAD_BYTES..HEAD_BYTES + EXPIRES_BYTES)?.try_into().ok()?;
        let us = u64::from_le_bytes(bytes);
        (self.says_when_it_expires() && us > 0).then_some(us)
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
        let len = u32::from_le_bytes([self.bytes[2], self.bytes[3], self.bytes[4], self.bytes[5]]);
        (len & !EXPIRES) as usize
    }

    #[inline]
    fn exchange_start(&self) -> usize {
        HEAD_BYTES + if self.says_when_it_expires() { EXPIRES_BYTES } else { 0 }
    }

    fn properties_start(&self) -> usize {
        self.exchange_start() + self.exchange_len() + self.key_len()
    }

    fn body_start(&self) -> usize {
        self.properties_start() + self.properties_len()
    }

    /// The exchange it was published to.
    pub fn exchange(&self) -> ShortStr<'_> {
        let start = self.exchange_start();
        ShortStr::new(&self.bytes[start..start + self.exchange_len()]).unwrap_or_default()
    }

    /// The routing key it was published with.
    pub fn routing_key(&self) -> ShortStr<'_> {
        let start = self.exchange_start() + self.exchange_len();
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
        let mut message = Message { bytes, times: self.times.clone() };
        if let (Some(us), true) = (self.stored_expiry_us(), message.says_when_it_expires()) {
            message.bytes[HEAD_BYTES..HEAD_BYTES + EXPIRES_BYTES]
                .copy_from_slice(&us.to_le_bytes());
        }
        message
    }

    /// The bytes again.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// When a message with a time of its own expires, if it begins now.
fn expires_us(raw: &[u8], now_us: u64) -> Option<NonZeroU64> {
    if !has_expiration(raw) {
        return None;
    }
    let Properties { expiration, .. } = RawProperties::trusted(raw).parse();
    let after_us = expiration_ms(expiration?).ok()?.saturating_mul(1_000);
    NonZeroU64::new(now_us.saturating_add(after_us).max(1))
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

    /// One of which a second is left at 5 s, of two.
    fn with_a_second_left() -> Message {
        const EXPIRATION: &[u8] = b"\x01\x00\x042000";
        let mut bytes = Message::start(b"x", b"key", EXPIRATION, 4);
        bytes.extend_from_slice(b"body");
        let mut message = Message::from_bytes(bytes);
        message.begin_to_expire(4_000_000, Some(1_000_000_000));
        assert_eq!(message.expires_us(), Some(6_000_000));
        message
    }

    #[test]
    fn a_time_of_its_own_goes_on_where_it_is_read_again() {
        let message = with_a_second_left();
        assert_eq!(message.exchange().as_bytes(), b"x");
        assert_eq!(message.routing_key().as_bytes(), b"key");
        assert_eq!(message.body(), b"body");
        let other = message.with_properties(message.raw_properties());
        assert_eq!(other.as_stored(), message.as_stored());
        let read = |now_us, began_us| {
            let stored = message.as_stored().to_vec();
            let read = Message::from_stored(stored).expect("its own");
            read.going_on_to_expire(now_us, began_us).expires_us()
        };
        assert_eq!(read(5_000_000, Some(1_000_000_000)), Some(6_000_000), "of the same clock");
        assert_eq!(read(0, Some(1_005_500_000)), Some(500_000), "of one that began then");
        assert_eq!(read(0, Some(1_007_000_000)), Some(1), "it was over before");
        assert_eq!(read(0, Some(7)), Some(2_000_000), "the clock was set back");
        assert_eq!(read(3_000_000, None), Some(5_000_000), "nobody knows the time of day");
    }

    #[test]
    fn a_time_of_its_own_begins_anew_where_nobody_wrote_when_it_is_over() {
        let of_an_older_build = [&[1, 3, 7, 0, 0, 0][..], b"xkey\x01\x00\x042000body"].concat();
        let read = Message::from_stored(of_an_older_build).expect("as it was written");
        assert_eq!((read.exchange().as_bytes(), read.body()), (&b"x"[..], &b"body"[..]));
        let read = read.going_on_to_expire(5, Some(1_000_000_000));
        assert_eq!(read.expires_us(), Some(2_000_005));
    }

    #[test]
    fn bytes_that_are_no_message_are_refused() {
        assert!(Message::from_stored(vec![0, 0, 0, 0, 0, 0x80]).is_none());
        assert!(Message::from_stored(vec![]).is_none());
        assert!(Message::from_stored(vec![200, 200, 0, 0, 0, 0]).is_none());
        assert!(Message::from_stored(vec![0, 0, 255, 255, 255, 255, 1]).is_none());
    }
}
