//! A message that came from a broker, owned.

use forebay_flow::explain::{Mark, Marks};
use forebay_wire::{Properties, RawProperties};

use crate::machine::{Delivery, Returned};
use crate::marks;
use crate::message::Message;

/// A received message. One allocation holds all its parts:
/// `exchange | routing key | properties | body`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Received {
    delivery_tag: u64,
    redelivered: bool,
    bytes: Box<[u8]>,
    exchange_end: u32,
    routing_key_end: u32,
    properties_end: u32,
    /// Known without looking at the bytes, which may not be near when [`Received::marks`] asks.
    has_headers: bool,
    /// When its client had read it, in microseconds since 1970, if its consumer was asked.
    delivered_us: Option<u64>,
}

impl Received {
    fn new(
        delivery_tag: u64,
        redelivered: bool,
        exchange: &[u8],
        routing_key: &[u8],
        properties: RawProperties<'_>,
        body: &[u8],
    ) -> Received {
        // Names are at most 255 bytes and properties fit a frame, so the ends fit 32 bits.
        let exchange_end = exchange.len();
        let routing_key_end = exchange_end + routing_key.len();
        let properties_end = routing_key_end + properties.raw().len();
        let mut bytes = Vec::with_capacity(properties_end + body.len());
        for part in [exchange, routing_key, properties.raw(), body] {
            bytes.extend_from_slice(part);
        }
        Received {
            delivery_tag,
            redelivered,
            bytes: bytes.into_boxed_slice(),
            exchange_end: exchange_end as u32,
            routing_key_end: routing_key_end as u32,
            properties_end: properties_end as u32,
            has_headers: properties.headers().is_some(),
            delivered_us: None,
        }
    }

    pub(crate) fn from_delivery(delivery: &Delivery<'_>) -> Received {
        Received::new(
            delivery.delivery_tag,
            delivery.redelivered,
            delivery.exchange.as_bytes(),
            delivery.routing_key.as_bytes(),
            delivery.properties,
            delivery.body,
        )
    }

    pub(crate) fn from_returned(returned: &Returned<'_>) -> Received {
        Received::new(
            0,
            false,
            returned.exchange.as_bytes(),
            returned.routing_key.as_bytes(),
            returned.properties,
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
        self.raw_properties().parse()
    }

    /// Its properties as they came.
    pub fn raw_properties(&self) -> RawProperties<'_> {
        let raw = &self.bytes[self.routing_key_end as usize..self.properties_end as usize];
        // Validated when the frame was read.
        RawProperties::trusted(raw)
    }

    /// The times at which it passed the points of its way, in microseconds since 1970: those that its publisher says, if
    /// it was asked ([`PublisherBuilder::explain`](crate::PublisherBuilder::explain),
    /// [`Message::offered_now`]), and those of the broker and of this client, if the consumer was
    /// ([`ConsumerBuilder::explain`](crate::ConsumerBuilder::explain)). Each by the clock of who said it. One that was put off and
    /// comes again was delivered when it came for the first time.
    pub fn marks(&self) -> Marks {
        let headers = self.has_headers.then(|| self.raw_properties().headers()).flatten();
        let mut marks = headers.map(marks::read).unwrap_or_default();
        if let Some(delivered_us) = self.delivered_us
            && marks.at_us(Mark::Delivered).is_none()
        {
            marks.passed(Mark::Delivered, delivered_us);
        }
        marks
    }

    /// Its client had read it then, in microseconds since 1970.
    pub(crate) fn set_delivered(&mut self, at_us: u64) {
        self.delivered_us = Some(at_us);
    }

    /// Its body.
    pub fn body(&self) -> &[u8] {
        &self.bytes[self.properties_end as usize..]
    }

    #[cfg(test)]
    pub(crate) fn for_test(properties: &[u8], body: &[u8]) -> Received {
        Received::new(1, false, b"", b"", RawProperties::trusted(properties), body)
    }

    /// Bytes it occupies, for bounds.
    pub(crate) fn size_bytes(&self) -> usize {
        self.bytes.len() + size_of::<Received>()
    }
}

impl From<Message> for Received {
    /// The message as it would come by the default exchange: for testing, without a broker, what receives.
    fn from(message: Message) -> Received {
        let mut properties = Vec::new();
        message.encode_properties(&mut properties, "", false, None);
        let routing_key = message.own_routing_key().unwrap_or_default();
        let properties = RawProperties::trusted(&properties);
        Received::new(0, false, b"", routing_key.as_bytes(), properties, message.body())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_knows_when_it_was_offered_if_it_was_said() {
        let received = |message: Message| Received::from(message).marks();
        assert_eq!(received(Message::from("silent")), Marks::new());
        let marks = received(Message::from("said").offered_now());
        let offered_us = marks.at_us(Mark::Offered).expect("it was said");
        assert!(offered_us > 1_500_000_000_000_000, "{offered_us} is after 2017");
        assert_eq!(marks.at_us(Mark::Delivered), None);
    }
}
