//! What becomes of a delivery that can be settled no more.

use forebay_wire::RawProperties;

use super::{ConsumerShared, Delivery};
use crate::received::Received;

/// A delivery mode.
const PERSISTENT: u8 = 2;

/// The header of what comes from a stream, and the argument of who reads one.
pub(super) const STREAM_OFFSET: &str = "x-stream-offset";

impl Delivery {
    /// Whether settling it would come too late ([`Stale`](crate::Stale)): its connection is lost, or it was held for longer than
    /// [`work_limit`](crate::ConsumerBuilder::work_limit). Whether it comes again is another question ([`Delivery::comes_again`]).
    /// One that is not stale now may be so in the next moment.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.consumer
            .as_ref()
            .is_some_and(|consumer| !self.is_present(consumer) || self.is_overdue(consumer))
    }

    /// Whether it is stale, and the broker is expected to deliver the message again, here or elsewhere, so that work on it that has
    /// not begun need not. Where that is not sure it is false, and the message may be worked on twice.
    ///
    /// What was held for too long comes again. After the loss of a connection a message is expected again if it is persistent and
    /// has no time to live, from a queue that this connection declared ([`Connection::declare`](crate::Connection::declare)) as
    /// durable, and neither as a stream, nor as auto-delete, nor with an argument by which it drops messages or goes away
    /// (`x-message-ttl`, `x-max-length`, `x-max-length-bytes`, `x-expires`). What a policy adds to it is not known here, and a
    /// broker is taken for one that lasts: one that keeps nothing on disk has nothing to deliver again when it is started anew.
    #[must_use]
    pub fn comes_again(&self) -> bool {
        self.consumer.as_ref().is_some_and(|consumer| {
            if self.is_present(consumer) {
                self.is_overdue(consumer)
            } else {
                consumer.gives_again && (self.lasts || lasts(&self.message))
            }
        })
    }

    /// Takes the message out; what is left of the delivery is for settling it, and its message is empty.
    pub fn take_message(&mut self) -> Received {
        self.lasts |= lasts(&self.message);
        std::mem::take(&mut self.message)
    }

    fn is_present(&self, consumer: &ConsumerShared) -> bool {
        consumer.present.is(self.key.tap)
    }

    fn is_overdue(&self, consumer: &ConsumerShared) -> bool {
        let held_us = || consumer.guard.link.now_us().saturating_sub(self.taken_us);
        consumer.work_limit_us.is_some_and(|limit_us| held_us() >= limit_us)
    }
}

/// Whether a queue that lasts keeps it until somebody settles it.
fn lasts(message: &Received) -> bool {
    let of_stream = |properties: RawProperties<'_>| {
        properties.headers().is_some_and(|headers| headers.get(STREAM_OFFSET).is_some())
    };
    let properties = message.raw_properties();
    properties.delivery_mode() == Some(PERSISTENT)
        && properties.parse().expiration.is_none()
        && !of_stream(properties)
}

#[cfg(test)]
mod tests {
    use forebay_wire::{Properties, ShortStr, TableBuf, Value};

    use super::*;

    #[test]
    fn a_persistent_message_of_a_queue_without_a_time_to_live_lasts() {
        let received = |properties: Properties<'_>| {
            let mut raw = Vec::new();
            properties.encode(&mut raw);
            Received::for_test(&raw, b"body")
        };
        let persistent = Properties { delivery_mode: Some(2), ..Default::default() };
        let expiring = Properties { expiration: Some(ShortStr::truncated("9")), ..persistent };
        let mut headers = TableBuf::new();
        headers.push(STREAM_OFFSET.as_bytes(), Value::I64(7));
        let of_stream = Properties { headers: Some(headers.as_table()), ..persistent };
        let transient = Properties { delivery_mode: Some(1), ..Default::default() };
        assert!(lasts(&received(persistent)));
        for passing in [expiring, of_stream, transient, Properties::default()] {
            assert!(!lasts(&received(passing)));
        }
    }
}
