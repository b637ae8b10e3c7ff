//! A message to publish: a body, and properties for those who want some.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use forebay_wire::{Properties, RawProperties, ShortStr, TableBuf, Value};

use crate::forwarded::Forwarded;
use crate::ladder;
use crate::machine::Returned;
use crate::marks::{self, OFFERED_HEADER, Stamps};
use crate::received::Received;
use crate::spans::PublishSpan;
use crate::timed::TimedPublish;
use crate::too_long::{NAME_BYTES_MAX, TooLong};

/// The header that marks a message which was published again after a reconnect: it may be in its queue
/// twice, with the same message-id both times.
pub const REPUBLISHED_HEADER: &str = "x-republished";

/// A message on its way to a broker. Persistent unless [`Message::transient`] is said; gets a message-id
/// unless [`Message::message_id`] gives one.
///
/// A plain body costs no allocation here: `Message::new(vec)` takes the vector, and a clone shares it.
#[derive(Clone, PartialEq)]
pub struct Message {
    pub(crate) body: Bytes,
    /// What only some messages have; boxed, as messages wait in the window.
    extra: Option<Box<Extra>>,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Extra {
    routing_key: Option<String>,
    transient: bool,
    content_type: Option<String>,
    content_encoding: Option<String>,
    correlation_id: Option<String>,
    reply_to: Option<String>,
    expiration_ms: Option<u64>,
    message_id: Option<String>,
    timestamp_s: Option<u64>,
    type_name: Option<String>,
    user_id: Option<String>,
    app_id: Option<String>,
    priority: Option<u8>,
    headers: TableBuf,
    /// They are those of a message that was received.
    passed_on: bool,
    forwarded: Option<Forwarded>,
    /// While it is being published.
    span: Option<Box<PublishSpan>>,
    /// The same, for whoever subscribes to `tracing`.
    timed: Option<TimedPublish>,
}

/// Text properties, all at most 255 bytes.
macro_rules! texts {
    ($($(#[$doc:meta])+ $name:ident;)+) => {$(
        $(#[$doc])+
        #[must_use]
        pub fn $name(mut self, value: impl Into<String>) -> Message {
            self.extra().$name = Some(value.into());
            self
        }
    )+};
}

impl Message {
    /// A persistent message.
    pub fn new(body: impl Into<Bytes>) -> Message {
        Message { body: body.into(), extra: None }
    }

    /// The body.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    texts! {
        /// Publishes with this routing key instead of the publisher's.
        routing_key;
        /// MIME type of the body.
        content_type;
        /// MIME encoding of the body.
        content_encoding;
        /// What a reply refers to.
        correlation_id;
        /// The queue where replies shall go.
        reply_to;
        /// Your own name for the message; otherwise it gets one that no other message has. Republishing
        /// keeps it, so that readers can tell a duplicate.
        message_id;
        /// Your type of the message (`type` in AMQP).
        type_name;
        /// Who publishes; a broker refuses what is not the login's name.
        user_id;
        /// Which application publishes.
        app_id;
    }

    /// The broker need not keep it on disk: faster, and lost when the broker stops.
    #[must_use]
    pub fn transient(mut self) -> Message {
        self.extra().transient = true;
        self
    }

    /// Milliseconds after which the broker may drop it undelivered.
    #[must_use]
    pub fn expires_after_ms(mut self, ms: u64) -> Message {
        self.extra().expiration_ms = Some(ms);
        self
    }

    /// When it came to be, in seconds since 1970.
    #[must_use]
    pub fn timestamp_s(mut self, seconds: u64) -> Message {
        self.extra().timestamp_s = Some(seconds);
        self
    }

    /// Its rank in a priority queue, 0 to the queue's `x-max-priority`.
    #[must_use]
    pub fn priority(mut self, priority: u8) -> Message {
        self.extra().priority = Some(priority);
        self
    }

    /// One more header. A name over 255 bytes is cut there.
    #[must_use]
    pub fn header(mut self, name: &str, value: Value<'_>) -> Message {
        self.extra().headers.push(name.as_bytes(), value);
        self
    }

    /// With the header `x-forebay-offered-us`: the time now, in microseconds since 1970, from which on its way counts for
    /// those who ask where its time goes ([`Received::marks`](crate::Received::marks)). Call it when the message is
    /// published, not when it is made. A publisher that was asked
    /// ([`PublisherBuilder::explain`](crate::PublisherBuilder::explain)) says this and more by itself.
    #[must_use]
    pub fn offered_now(self) -> Message {
        self.header(OFFERED_HEADER, Value::I64(since_1970_us() as i64))
    }

    /// The same message with all the properties of one that was received, for passing it on.
    /// Its message-id, expiration and delivery mode are kept, too; not the times of its way so far, and not how often it was
    /// tried ([`ATTEMPTS_HEADER`](crate::ATTEMPTS_HEADER)).
    #[must_use]
    pub fn with_properties(mut self, properties: &Properties<'_>) -> Message {
        let text = |value: Option<ShortStr<'_>>| value.map(|value| value.to_string());
        let extra = self.extra();
        extra.transient = properties.delivery_mode != Some(2);
        extra.content_type = text(properties.content_type);
        extra.content_encoding = text(properties.content_encoding);
        extra.correlation_id = text(properties.correlation_id);
        extra.reply_to = text(properties.reply_to);
        extra.expiration_ms = properties.expiration.and_then(|ms| ms.to_str()?.trim().parse().ok());
        extra.message_id = text(properties.message_id);
        extra.timestamp_s = properties.timestamp;
        extra.type_name = text(properties.type_name);
        extra.user_id = text(properties.user_id);
        extra.app_id = text(properties.app_id);
        extra.priority = properties.priority;
        let headers = properties.headers.map(marks::without);
        extra.headers =
            headers.map(|headers| ladder::without(headers.as_table())).unwrap_or_default();
        extra.passed_on = true;
        self
    }

    /// A received message to be passed on: body and properties byte for byte, and no message-id of ours if
    /// it has none. Nothing but [`Message::routing_key`] and [`Message::marked`] can be said of it any more.
    pub fn forward(received: &Received) -> Message {
        let mut message = Message::from(received.body());
        let raw = received.raw_properties().raw().into();
        message.extra().forwarded = Some(Forwarded { raw, marked: false });
        message
    }

    /// A message whose properties were made of those of a received one; nothing is added to them.
    pub(crate) fn with_raw_properties(body: &[u8], raw: Vec<u8>) -> Message {
        let mut message = Message::from(body);
        message.extra().forwarded = Some(Forwarded { raw: raw.into(), marked: false });
        message
    }

    /// The same message with properties that can be changed, which those of a forwarded one cannot.
    pub(crate) fn with_own_properties(mut self) -> Message {
        let Some(forwarded) = self.extra.as_mut().and_then(|extra| extra.forwarded.take()) else {
            return self;
        };
        let message = self.with_properties(&RawProperties::trusted(&forwarded.raw).parse());
        match forwarded.marked {
            true => message.header(REPUBLISHED_HEADER, Value::Bool(true)),
            false => message,
        }
    }

    /// Marks a forwarded message from the start with the header [`REPUBLISHED_HEADER`]: it may be in its queue
    /// already. Anything else is left as it is.
    #[must_use]
    pub fn marked(mut self) -> Message {
        if let Some(forwarded) = &mut self.extra().forwarded {
            forwarded.marked = true;
        }
        self
    }

    fn extra(&mut self) -> &mut Extra {
        self.extra.get_or_insert_default()
    }

    /// Its own routing key, if it has one.
    pub(crate) fn own_routing_key(&self) -> Option<&str> {
        self.extra.as_ref()?.routing_key.as_deref()
    }

    /// Its span, which it has while it is being published by who was asked for spans.
    pub(crate) fn take_span(&mut self) -> Option<Box<PublishSpan>> {
        self.extra.as_mut()?.span.take()
    }

    /// The same, for `tracing`.
    pub(crate) fn timed(&self) -> Option<&TimedPublish> {
        self.extra.as_ref()?.timed.as_ref()
    }

    pub(crate) fn take_timed(&mut self) -> Option<TimedPublish> {
        self.extra.as_mut()?.timed.take()
    }

    pub(crate) fn set_timed(&mut self, timed: TimedPublish) {
        self.extra().timed = Some(timed);
    }

    /// Its own message-id, if it has one; that of a forwarded message may be empty.
    pub(crate) fn own_message_id(&self) -> Option<&[u8]> {
        let extra = self.extra.as_ref()?;
        match &extra.forwarded {
            Some(forwarded) => {
                let id = RawProperties::trusted(&forwarded.raw).parse().message_id;
                Some(id.map_or(&[], |id| id.as_bytes()))
            }
            None => extra.message_id.as_deref().map(str::as_bytes),
        }
    }

    /// Whether a message that came back may be this one, which has an id of its own; `exactly` compares the
    /// properties of a forwarded one, too.
    pub(crate) fn came_back(&self, returned: &Returned<'_>, exactly: bool) -> bool {
        let id = returned.properties.parse().message_id.unwrap_or_default();
        let key = self.own_routing_key();
        let forwarded = self.extra.as_ref().and_then(|extra| extra.forwarded.as_ref());
        self.own_message_id() == Some(id.as_bytes())
            && self.body == returned.body
            && key.is_none_or(|key| key.as_bytes() == returned.routing_key.as_bytes())
            && (!exactly || forwarded.is_none_or(|it| *it.raw == *returned.properties.raw()))
    }

    /// Whether all its names can be said in AMQP.
    pub(crate) fn check(&self) -> Result<(), TooLong> {
        let Some(extra) = &self.extra else { return Ok(()) };
        for (what, text) in [
            ("routing key", &extra.routing_key),
            ("content-type", &extra.content_type),
            ("content-encoding", &extra.content_encoding),
            ("correlation-id", &extra.correlation_id),
            ("reply-to", &extra.reply_to),
            ("message-id", &extra.message_id),
            ("type", &extra.type_name),
            ("user-id", &extra.user_id),
            ("app-id", &extra.app_id),
        ] {
            if let Some(bytes) = text.as_ref().map(String::len).filter(|&len| len > NAME_BYTES_MAX)
            {
                return Err(TooLong { what, bytes, bytes_max: NAME_BYTES_MAX });
            }
        }
        Ok(())
    }

    /// Bytes of its properties that are not bounded by their own nature: headers, or what is forwarded as it came.
    pub(crate) fn unbounded_bytes(&self) -> usize {
        self.extra.as_ref().map_or(0, |extra| {
            let forwarded = extra.forwarded.as_ref().map_or(0, |forwarded| forwarded.raw.len());
            forwarded + extra.headers.as_table().raw().len()
        })
    }

    /// Appends flag word and property list; `id` is for a message without one of its own, none if empty. `stamps` are
    /// left out of a forwarded message.
    pub(crate) fn encode_properties(
        &self,
        out: &mut Vec<u8>,
        id: &str,
        republished: bool,
        stamps: Option<&Stamps>,
    ) {
        let extra = self.extra.as_deref();
        match extra.and_then(|extra| extra.forwarded.as_ref()) {
            Some(forwarded) => forwarded.encode(out, republished),
            None if extra.is_none() && stamps.is_none() && !republished && !id.is_empty() => {
                encode_plain(out, id);
            }
            None => match extra {
                Some(extra) => extra.encode(out, id, republished, stamps),
                None => Extra::default().encode(out, id, republished, stamps),
            },
        }
    }
}

#[cfg(feature = "opentelemetry")]
impl Message {
    pub(crate) fn set_span(&mut self, span: PublishSpan) {
        self.extra().span = Some(Box::new(span));
    }

    pub(crate) fn own_correlation_id(&self) -> Option<&str> {
        self.extra.as_ref()?.correlation_id.as_deref()
    }

    /// Looks at its headers, and at whether they have to stay what they are: a program that wrote them itself may have put
    /// a trace context there, and what is forwarded is not changed.
    pub(crate) fn with_headers<T>(
        &self,
        look: impl FnOnce(forebay_wire::Table<'_>, bool) -> T,
    ) -> T {
        let Some(extra) = &self.extra else { return look(forebay_wire::Table::default(), false) };
        match &extra.forwarded {
            Some(forwarded) => {
                let headers = RawProperties::trusted(&forwarded.raw).headers();
                look(headers.unwrap_or_default(), true)
            }
            None => look(extra.headers.as_table(), !extra.passed_on),
        }
    }
}

impl Extra {
    fn encode(&self, out: &mut Vec<u8>, id: &str, republished: bool, stamps: Option<&Stamps>) {
        let extra = self;
        let expiration = extra.expiration_ms.map(|ms| ms.to_string());
        let traced = extra.span.as_ref().and_then(|span| span.headers());
        let own = traced.unwrap_or(&extra.headers);
        let stamped = stamps.map(|stamps| stamps.on(own.as_table()));
        let headers = stamped.as_ref().unwrap_or(own);
        let marked =
            republished.then(|| headers.clone().with(REPUBLISHED_HEADER, Value::Bool(true)));
        let headers = marked.as_ref().unwrap_or(headers);
        let properties = Properties {
            content_type: short(&extra.content_type),
            content_encoding: short(&extra.content_encoding),
            headers: (!headers.is_empty()).then(|| headers.as_table()),
            delivery_mode: Some(if extra.transient { 1 } else { 2 }),
            priority: extra.priority,
            correlation_id: short(&extra.correlation_id),
            reply_to: short(&extra.reply_to),
            expiration: short(&expiration),
            message_id: short(&extra.message_id)
                .or((!id.is_empty()).then(|| ShortStr::truncated(id))),
            timestamp: extra.timestamp_s,
            type_name: short(&extra.type_name),
            user_id: short(&extra.user_id),
            app_id: short(&extra.app_id),
            ..Properties::default()
        };
        properties.encode(out);
    }
}

/// By the system's clock, in microseconds.
pub(crate) fn since_1970_us() -> u64 {
    #[cfg(test)]
    if let Some(at_us) = crate::system_clock::by_hand::now_us() {
        return at_us;
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

fn short(text: &Option<String>) -> Option<ShortStr<'_>> {
    text.as_deref().map(ShortStr::truncated)
}

/// The properties of nearly every message: delivery mode 2 and a message-id.
fn encode_plain(out: &mut Vec<u8>, id: &str) {
    const FLAGS: u16 = 1 << 12 | 1 << 7;
    debug_assert!(id.len() <= 255);
    out.extend_from_slice(&FLAGS.to_be_bytes());
    out.extend_from_slice(&[2, id.len() as u8]);
    out.extend_from_slice(id.as_bytes());
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Message");
        debug.field("body_bytes", &self.body.len());
        if let Some(extra) = &self.extra {
            debug.field("with", extra);
        }
        debug.finish()
    }
}

impl From<Bytes> for Message {
    fn from(body: Bytes) -> Message {
        Message::new(body)
    }
}

impl From<Vec<u8>> for Message {
    fn from(body: Vec<u8>) -> Message {
        Message::new(body)
    }
}

impl From<String> for Message {
    fn from(body: String) -> Message {
        Message::new(body)
    }
}

impl From<&str> for Message {
    /// Copies the text.
    fn from(body: &str) -> Message {
        Message::new(Bytes::copy_from_slice(body.as_bytes()))
    }
}

impl From<&[u8]> for Message {
    /// Copies the bytes.
    fn from(body: &[u8]) -> Message {
        Message::new(Bytes::copy_from_slice(body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_wire::RawProperties;

    fn encoded(message: &Message, republished: bool) -> Vec<u8> {
        let mut out = Vec::new();
        message.encode_properties(&mut out, "id-1", republished, None);
        assert!(RawProperties::validate(&out).is_ok());
        out
    }

    #[test]
    fn the_short_way_says_the_same_as_the_long_one() {
        let plain = Message::new("x");
        let mut long = Vec::new();
        Extra::default().encode(&mut long, "id-1", false, None);
        assert_eq!(encoded(&plain, false), long);
    }

    #[test]
    fn a_republished_message_is_marked_and_keeps_its_id() {
        for message in [Message::new("x"), Message::new("x").message_id("mine").priority(3)] {
            let (first, again) = (encoded(&message, false), encoded(&message, true));
            let first = RawProperties::trusted(&first).parse();
            let again = RawProperties::trusted(&again).parse();
            assert_eq!(first.message_id, again.message_id);
            assert_eq!(first.headers, None);
            let headers = again.headers.expect("marked");
            assert_eq!(headers.get(REPUBLISHED_HEADER), Some(Value::Bool(true)));
        }
    }

    #[test]
    fn a_forwarded_message_is_what_it_was_until_it_is_marked() {
        let headers = TableBuf::new().with("n", Value::I16(-1)).with("v", Value::Void);
        let cluster_id = ShortStr::new(b"old").unwrap();
        for id in [None, ShortStr::new(b"\xff\0")] {
            let properties = Properties {
                headers: Some(headers.as_table()),
                message_id: id,
                cluster_id: Some(cluster_id),
                ..Properties::default()
            };
            let mut raw = Vec::new();
            properties.encode(&mut raw);
            let message = Message::forward(&Received::for_test(&raw, b"body"));
            assert_eq!(encoded(&message, false), raw);
            assert_eq!(message.own_message_id(), Some(id.map_or(&b""[..], |id| id.as_bytes())));
            let marked = encoded(&message.clone().marked(), false);
            assert_eq!(encoded(&message, true), marked);
            let marked_headers = headers.clone().with(REPUBLISHED_HEADER, Value::Bool(true));
            let expected = Properties { headers: Some(marked_headers.as_table()), ..properties };
            assert_eq!(RawProperties::trusted(&marked).parse(), expected);
            let again = Message::forward(&Received::for_test(&marked, b"body")).marked();
            assert_eq!(encoded(&again, true), marked, "one mark is enough");
        }
    }

    #[test]
    fn of_two_forwarded_messages_the_one_that_came_back_is_known_by_its_properties() {
        let raw = |level: i32| {
            let headers = TableBuf::new().with("level", Value::I32(level));
            let mut raw = Vec::new();
            Properties { headers: Some(headers.as_table()), ..Properties::default() }
                .encode(&mut raw);
            raw
        };
        let (one, two) = (raw(1), raw(2));
        let message = Message::forward(&Received::for_test(&one, b"same")).routing_key("k");
        let back = |raw, key: &'static [u8], exactly| {
            let returned = Returned {
                channel: 1,
                reply_code: 312,
                reply_text: ShortStr::default(),
                exchange: ShortStr::default(),
                routing_key: ShortStr::new(key).unwrap(),
                properties: RawProperties::trusted(raw),
                body: b"same",
            };
            message.came_back(&returned, exactly)
        };
        assert!(back(&one, b"k", true));
        assert!(!back(&two, b"k", true));
        assert!(back(&two, b"k", false), "as a broker may have rewritten them");
        assert!(!back(&one, b"other", false));
    }

    #[test]
    fn what_cannot_be_said_is_refused_by_name() {
        let long = "k".repeat(256);
        assert_eq!(
            Message::new("").correlation_id(long).check(),
            Err(TooLong { what: "correlation-id", bytes: 256, bytes_max: 255 })
        );
        assert_eq!(Message::new("").app_id("k".repeat(255)).check(), Ok(()));
    }
}
