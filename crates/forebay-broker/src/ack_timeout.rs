//! How long a delivery may stay without its acknowledgement (RabbitMQ's `consumer_timeout`).
//!
//! A consumer that hangs would keep its messages, and what they take on disk, for ever; after the
//! timeout its channel is closed with 406 and the messages go back to their queue. The timeout is the
//! consumer's (`x-consumer-timeout` of `basic.consume`), or the queue's (the same argument of
//! `queue.declare`), or the configured one; 0 is none.

use forebay_wire::{Table, Value};

use crate::error::AmqpError;
use crate::input::ConnectionId;
use crate::shard::Shard;
use crate::topology::Resource;

/// The argument of consumers and queues.
pub(crate) const CONSUMER_TIMEOUT: &str = "x-consumer-timeout";

/// A connection's deliveries are looked at this often, so a timeout takes up to this much (and a
/// timer's interval) longer.
const CHECK_EVERY_S: u32 = 60;

/// When a delivery was made and how long it may stay: 8 bytes, because there may be very many.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckLimit {
    /// Seconds on the shard's clock.
    delivered_s: u32,
    /// 0 = for ever.
    timeout_ms: u32,
}

impl AckLimit {
    /// For a delivery that is made now.
    pub(crate) fn from(now_us: u64, timeout_ms: u32) -> AckLimit {
        AckLimit { delivered_s: seconds(now_us), timeout_ms }
    }

    /// The timeout, if it has passed.
    fn passed(self, now_us: u64) -> Option<u32> {
        let delivered_us = u64::from(self.delivered_s) * 1_000_000;
        // A started second counts as not passed.
        let until_us = delivered_us + 1_000_000 + u64::from(self.timeout_ms) * 1_000;
        (self.timeout_ms > 0 && now_us >= until_us).then_some(self.timeout_ms)
    }
}

/// Whole seconds: a shard's clock starts near 0 and fits for 136 years.
fn seconds(now_us: u64) -> u32 {
    (now_us / 1_000_000) as u32
}

/// The timeout in the arguments of a consumer or a queue, in milliseconds; 406 if it is not a number
/// from 0 to 4 294 967 295 (49 days).
pub(crate) fn timeout_argument(
    resource: Resource<'_>,
    arguments: Table<'_>,
) -> Result<Option<u32>, AmqpError> {
    let reason = match arguments.get(CONSUMER_TIMEOUT) {
        None | Some(Value::Void) => return Ok(None),
        Some(value) => match value.as_i64() {
            None => format!("\"expected integer, got {}\"", value.type_name()),
            Some(negative @ ..0) => format!("{{value_negative,{negative}}}"),
            Some(ms) => match u32::try_from(ms) {
                Ok(ms) => return Ok(Some(ms)),
                Err(_) => format!("{{value_too_large,{ms}}}"),
            },
        },
    };
    Err(AmqpError::invalid_arg(CONSUMER_TIMEOUT, resource, reason))
}

impl Shard {
    /// Closes the channels of a connection that hold a delivery for too long. Called with every timer
    /// of the connection, it looks once in [`CHECK_EVERY_S`].
    pub(crate) fn check_ack_timeouts(&mut self, id: ConnectionId) {
        let now_us = self.now_us;
        let Some(connection) = self.connection(id) else { return };
        if seconds(now_us) < connection.acks_checked_s + CHECK_EVERY_S {
            return;
        }
        connection.acks_checked_s = seconds(now_us);
        let mut late = Vec::new();
        for (number, channel) in connection.channels.iter().enumerate() {
            let Some(channel) = channel else { continue };
            let deliveries = channel.unacked.iter();
            // With one timeout for all, nothing is later than the oldest.
            let looked_at = if channel.mixed_ack_limits { usize::MAX } else { 1 };
            let passed =
                deliveries.take(looked_at).find_map(|delivery| delivery.limit.passed(now_us));
            late.extend(passed.map(|timeout_ms| (number as u16, timeout_ms)));
        }
        for (number, timeout_ms) in late {
            self.counters.ack_timeouts += 1;
            let error = AmqpError::ack_timeout(number, timeout_ms.into());
            self.channel_error(id, number, error, 0, 0);
        }
    }

    /// Notes that a channel gets deliveries with another timeout than the configured one.
    pub(crate) fn mix_ack_limits(&mut self, id: ConnectionId, number: u16, timeout_ms: u32) {
        if timeout_ms != self.config.ack_timeout_ms
            && let Some(channel) = self.connection(id).and_then(|c| c.channel(number))
        {
            channel.mixed_ack_limits = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_wire::TableBuf;

    use super::*;

    #[test]
    fn a_limit_passes_when_the_whole_timeout_has() {
        let limit = AckLimit::from(5_999_999, 1_500);
        assert_eq!(limit.passed(7_499_999), None);
        assert_eq!(limit.passed(7_500_000), Some(1_500));
        assert_eq!(AckLimit::from(0, 0).passed(u64::MAX), None);
    }

    #[test]
    fn an_argument_is_a_number_of_milliseconds() {
        let read = |value| {
            let table = TableBuf::new().with(CONSUMER_TIMEOUT, value);
            timeout_argument(Resource::queue(b"q", "/"), table.as_table())
                .map_err(|error| error.reply_text())
        };
        assert_eq!(read(Value::I32(1000)), Ok(Some(1000)));
        assert_eq!(read(Value::I64(u32::MAX.into())), Ok(Some(u32::MAX)));
        assert_eq!(read(Value::Void), Ok(None));
        let wrong = [
            (Value::I64(1 << 32), "{value_too_large,4294967296}"),
            (Value::I32(-1), "{value_negative,-1}"),
            (Value::LongStr(b"1s"), "\"expected integer, got longstr\""),
        ];
        for (value, reason) in wrong {
            assert_eq!(
                read(value).unwrap_err(),
                format!(
                    "PRECONDITION_FAILED - invalid arg 'x-consumer-timeout' for queue 'q' in \
                     vhost '/': {reason}"
                )
            );
        }
    }
}
