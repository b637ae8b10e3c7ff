//! Messages that we own, and messages on their way out.

use forebay_wire::{Properties, RawProperties};

use crate::machine::{Delivery, Returned};

/// A received message. One allocation holds all its parts:
/// `exchange | routing key | properties | body`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    delivery_tag: u64,
    redelivered: bool,
    bytes: Box<[u8]>,
    exchange_end: u32,
    routing_key_end: u32,
    properties_end: u32,
}

impl Message {
    fn new(
        delivery_tag: u64,
        redelivered: bool,
        exchange: &[u8],
        routing_key: &[u8],
        properties: &[u8],
        body: &[u8],
    ) -> Message {
        // Names are at most 255 bytes and properties fit a frame, so the ends fit 32 bits.
        let exchange_end = exchange.len();
        let routing_key_end = exchange_end + routing_key.len();
        let properties_end = routing_key_end + properties.len();
        let mut bytes = Vec::with_capacity(properties_end + body.len());
        for part in [exchange, routing_key, properties, body] {
            bytes.extend_from_slice(part);
        }
        Message {
            delivery_tag,
            redelivered,
            bytes: bytes.into_boxed_slice(),
            exchange_end: exchange_end as u32,
            routing_key_end: routing_key_end as u32,
            properties_end: properties_end as u32,
        }
    }

    pub(super) fn from_delivery(delivery: &Delivery<'_>) -> Message {
        Message::new(
            delivery.delivery_tag,
            delivery.redelivered,
            delivery.exchange.as_bytes(),
            delivery.routing_key.as_bytes(),
            delivery.properties.raw(),
            delivery.body,
        )
    }

    pub(super) fn from_returned(returned: &Returned<'_>) -> Message {
        Message::new(
            0,
            false,
            returned.exchange.as_bytes(),
            returned.routing_key.as_bytes(),
            returned.properties.raw(),
            returned.body,
        )
    }

    /// Its number on its channel, from 1; 0 for a returned message.
    pub fn delivery_tag(&self) -> u64 {
        self.delivery_tag
    }

    /// It may have been delivered before.
    pub fn redelivered(&self) -> bool {
        self.redelivered
    }

    /// The exchange it was published to.
    pub fn exchange(&self) -> &[u8] {
        &self.bytes[..self.exchange_end as usize]
    }

    /// The routing key it was published with.
    pub fn routing_key(&self) -> &[u8] {
        &self.bytes[self.exchange_end as usize..self.routing_key_end as usize]
    }

    /// Its properties.
    pub fn properties(&self) -> Properties<'_> {
        let raw = &self.bytes[self.routing_key_end as usize..self.properties_end as usize];
        // Validated when the frame was read.
        RawProperties::trusted(raw).parse()
    }

    /// Its body.
    pub fn body(&self) -> &[u8] {
        &self.bytes[self.properties_end as usize..]
    }

    /// Bytes it occupies, for bounds.
    pub(super) fn size_bytes(&self) -> usize {
        self.bytes.len() + size_of::<Message>()
    }
}

/// A mandatory message of ours that no queue took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReturnedMessage {
    /// 312 when no queue was bound.
    pub reply_code: u16,
    /// For instance `NO_ROUTE`.
    pub reply_text: String,
    /// What we published.
    pub message: Message,
}

/// A message to publish.
#[derive(Debug, Clone, Copy, Default)]
pub struct Publication<'a> {
    /// Where to; empty is the default exchange, which takes a queue's name as routing key.
    pub exchange: &'a str,
    /// The routing key.
    pub routing_key: &'a str,
    /// Send it back if no queue takes it.
    pub mandatory: bool,
    /// Its properties; `delivery_mode: Some(2)` makes it persistent.
    pub properties: Properties<'a>,
    /// Its body.
    pub body: &'a [u8],
}
