//! How long a delivery may stay without its acknowledgement (RabbitMQ's `consumer_timeout`).
//!
//! A consumer that hangs would keep its messages, and what they take on disk, for ever; after the
//! timeout its channel is closed with 406 and the messages go back to their queue. The timeout is the
//! consumer's (`x-consumer-timeout` of `basic.consume`), or the queue's (the same argument of
//! `queue.declare`), or the configured one; 0 is none.
//!
//! A client that announces [`LEASES`] may take longer while it lives: at half of the timeout it is asked with
//! `channel.flow`, which every client has to answer (0-9-1 section 1.5.2.3), and its answer counts as a new delivery
//! of all that the channel held when it was asked.
//!
//! ```text
//!   delivered ───── timeout / 2 ─────▶ channel.flow ──── flow-ok ────▶ as if delivered at the asking
//!                                          └──── nothing, timeout / 2 ────▶ channel.close 406
//! ```
//! Nobody who would answer is closed unasked: deliveries whose acknowledgement a transaction kept and `tx.rollback` gave
//! back may be over the timeout at once. They are asked for first, and a quarter of the timeout is left for the answer.
//! (Without leases they count from their delivery, as in RabbitMQ.)
//!
//! While publishes of its connection are held back, the answer may stand behind them and its delay is our doing: then
//! the timeout counts anew.

use forebay_wire::{Table, Value, channel};

use crate::error::AmqpError;
use crate::input::ConnectionId;
use crate::shard::Shard;
use crate::topology::Resource;
use crate::unacked::Delivery;

/// The argument of consumers and queues.
pub(crate) const CONSUMER_TIMEOUT: &str = "x-consumer-timeout";

/// Announced by both sides: deliveries may stay for as long as their client answers.
pub(crate) const LEASES: &str = "forebay.leases";

/// A connection's deliveries are looked at this often, so a timeout takes up to this much (and a
/// timer's interval) longer; or eight times in the shortest timeout that it has, if that is more often.
pub(crate) const CHECK_EVERY_S: u32 = 60;

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

    /// The timeout, if it has passed since the delivery and since the channel's last renewal.
    fn passed(self, now_us: u64, renewed_s: u32) -> Option<u32> {
        // A started second counts as not passed.
        let until_us = self.since_us(renewed_s) + 1_000_000 + u64::from(self.timeout_ms) * 1_000;
        (self.timeout_ms > 0 && now_us >= until_us).then_some(self.timeout_ms)
    }

    /// The timeout, if it has passed and a quarter of it since the client was asked.
    fn unanswered(self, now_us: u64, asked_s: u32, renewed_s: u32) -> Option<u32> {
        let until_us = (u64::from(asked_s) + 1) * 1_000_000 + u64::from(self.timeout_ms) * 250;
        self.passed(now_us, renewed_s).filter(|_| now_us >= until_us)
    }

    /// Whether it is time to ask.
    fn is_half_over(self, now_us: u64, renewed_s: u32) -> bool {
        let half_us = u64::from(self.timeout_ms) * 500;
        self.timeout_ms > 0 && now_us >= self.since_us(renewed_s) + half_us
    }

    fn since_us(self, renewed_s: u32) -> u64 {
        u64::from(self.delivered_s.max(renewed_s)) * 1_000_000
    }
}

/// What a channel's client was asked and has answered, in seconds on the shard's clock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lease {
    renewed_s: u32,
    asked_s: Option<u32>,
}

/// Whole seconds: a shard's clock starts near 0 and fits for 136 years.
pub(crate) fn seconds(now_us: u64) -> u32 {
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
    /// of the connection, it looks once in `ack_check_s`. Asks those that may renew them.
    pub(crate) fn check_ack_timeouts(&mut self, id: ConnectionId) {
        let now_us = self.now_us;
        let Some(connection) = self.connection(id) else { return };
        if seconds(now_us) < connection.acks_checked_s + connection.ack_check_s {
            return;
        }
        connection.acks_checked_s = seconds(now_us);
        // What it says is not heard, or what it is asked not said: behind an answer that waits for the disk.
        if connection.keeps_back() || connection.out.waits_for_disk() {
            connection.held_s = seconds(now_us);
        }
        let (leases, held_s) = (connection.capabilities.leases, connection.held_s);
        let (mut late, mut ask) = (Vec::new(), Vec::new());
        for (number, channel) in connection.channels.numbered_mut() {
            let Lease { renewed_s, asked_s } = channel.lease;
            let since_s = if leases { renewed_s.max(held_s) } else { renewed_s };
            let deliveries = channel.unacked.iter();
            // With one timeout for all, nothing is later than the oldest.
            let looked_at = if channel.mixed_ack_limits { usize::MAX } else { 1 };
            let (mut passed, mut half_over) = (None, false);
            for Delivery { limit, .. } in deliveries.take(looked_at) {
                let late = || match asked_s {
                    None if leases => None,
                    Some(asked_s) => limit.unanswered(now_us, asked_s, since_s),
                    None => limit.passed(now_us, since_s),
                };
                passed = passed.or_else(late);
                half_over |= limit.is_half_over(now_us, renewed_s);
            }
            if let Some(timeout_ms) = passed {
                late.push((number, timeout_ms));
            } else if leases && half_over && asked_s.is_none() {
                channel.lease.asked_s = Some(seconds(now_us));
                ask.push(number);
            }
        }
        for number in ask {
            self.send(id, number, &channel::Flow { active: true });
        }
        for (number, timeout_ms) in late {
            self.counters.ack_timeouts += 1;
            let error = AmqpError::ack_timeout(number, timeout_ms.into());
            self.channel_error(id, number, error, 0, 0);
        }
    }

    /// The client of a channel has answered that it is there.
    pub(crate) fn renew_lease(&mut self, id: ConnectionId, number: u16) {
        if let Some(channel) = self.connection(id).and_then(|c| c.channel(number))
            && let Some(asked_s) = channel.lease.asked_s.take()
        {
            channel.lease.renewed_s = asked_s;
        }
    }

    /// Notes which timeout a channel's deliveries may have from now on.
    pub(crate) fn mix_ack_limits(&mut self, id: ConnectionId, number: u16, timeout_ms: u32) {
        let configured_ms = self.config.ack_timeout_ms;
        let Some(connection) = self.connection(id) else { return };
        if timeout_ms != configured_ms
            && let Some(channel) = connection.channel(number)
        {
            channel.mixed_ack_limits = true;
        }
        let check_s = (timeout_ms / 8_000).max(1);
        if timeout_ms > 0 && check_s < connection.ack_check_s {
            connection.ack_check_s = check_s;
            self.plan_heartbeat(id);
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
        assert_eq!(limit.passed(7_499_999, 0), None);
        assert_eq!(limit.passed(7_500_000, 0), Some(1_500));
        assert_eq!(limit.passed(7_500_000, 6), None);
        assert_eq!(limit.passed(8_500_000, 6), Some(1_500));
        assert_eq!(AckLimit::from(0, 0).passed(u64::MAX, 0), None);
    }

    #[test]
    fn a_client_is_asked_when_half_of_it_is_over() {
        let limit = AckLimit::from(5_000_000, 60_000);
        assert!(!limit.is_half_over(34_999_999, 0) && limit.is_half_over(35_000_000, 0));
        assert!(!limit.is_half_over(64_999_999, 35) && limit.is_half_over(65_000_000, 35));
        assert!(!AckLimit::from(0, 0).is_half_over(u64::MAX, 0));
    }

    #[test]
    fn a_client_that_was_asked_late_has_a_quarter_of_it_to_answer() {
        let limit = AckLimit::from(5_000_000, 60_000);
        assert_eq!(limit.unanswered(65_999_999, 35, 0), None);
        assert_eq!(limit.unanswered(66_000_000, 35, 0), Some(60_000));
        assert_eq!(limit.unanswered(115_999_999, 100, 0), None);
        assert_eq!(limit.unanswered(116_000_000, 100, 0), Some(60_000));
        assert_eq!(limit.unanswered(116_000_000, 100, 100), None);
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
