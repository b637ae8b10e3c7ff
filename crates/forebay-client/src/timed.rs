//! Spans of the crate `tracing`, at the level DEBUG.
//!
//! | span | from … to | fields |
//! |---|---|---|
//! | `publish` | offered … outcome | `exchange`, `routing_key`, `body_bytes`; once admitted `admitted_wait_us`, `window_messages`, `in_flight_messages`; at the end `confirm_us`, `republished`, `outcome` |
//! | `delivery` | handed out … settled | `queue`, `redelivered`, `body_bytes`, `credit`, `in_work`; at the end `service_us`, `settled`, `in_time` |
//! | `call` | request … reply | `exchange`, `routing_key`, `body_bytes`, `patience_ms`; at the end `reply_us`, `outcome` |
//!
//! Each is a child of the span that is current where it begins. A span that nobody subscribes to is not made: asking
//! costs the comparison of a level.

use std::time::Duration;

use tracing::Span;
use tracing::field::{Empty, display};

use crate::caller::CallError;
use crate::message::Message;
use crate::outcome::{Confirmed, NotPublishedReason, Unconfirmed};
use crate::session::{Target, Verdict};

/// A span that somebody sees.
fn seen(span: Span) -> Option<Box<Span>> {
    (!span.is_disabled()).then(|| Box::new(span))
}

/// The span of a publish, in its message until the outcome is known. Dropped, it ends without one.
#[derive(Debug, Clone)]
pub(crate) struct TimedPublish(Box<Span>);

impl TimedPublish {
    pub(crate) fn begin(target: &Target, message: &Message) -> Option<TimedPublish> {
        let span = tracing::debug_span!(
            "publish",
            exchange = target.exchange,
            routing_key = message.own_routing_key().unwrap_or(&target.routing_key),
            body_bytes = message.body.len(),
            admitted_wait_us = Empty,
            window_messages = Empty,
            in_flight_messages = Empty,
            confirm_us = Empty,
            republished = Empty,
            outcome = Empty,
        );
        seen(span).map(TimedPublish)
    }

    /// It has its place in a window.
    pub(crate) fn admitted(&self, wait_us: u64, window_messages: u32, in_flight_messages: u32) {
        self.0.record("admitted_wait_us", wait_us);
        self.0.record("window_messages", window_messages);
        self.0.record("in_flight_messages", in_flight_messages);
    }

    /// The broker has answered, so long after it was last sent.
    pub(crate) fn answered(&self, confirm_us: u64) {
        self.0.record("confirm_us", confirm_us);
    }

    /// It has its outcome.
    pub(crate) fn concluded(&self, outcome: &Result<Confirmed, Unconfirmed>) {
        match outcome {
            Ok(confirmed) => {
                self.0.record("republished", confirmed.republished);
                self.0.record("outcome", "confirmed");
            }
            Err(unconfirmed) => {
                self.0.record("outcome", display(unconfirmed));
            }
        }
    }

    /// It was not sent.
    pub(crate) fn refused(&self, reason: &NotPublishedReason) {
        self.0.record("outcome", display(reason));
    }
}

/// Messages are compared by what they say.
impl PartialEq for TimedPublish {
    fn eq(&self, _: &TimedPublish) -> bool {
        true
    }
}

/// The span of a delivery, while it is in work.
#[derive(Debug)]
pub(crate) struct TimedDelivery(Box<Span>);

impl TimedDelivery {
    /// `held` tells the consumer's credit and what is in work, and is asked only if somebody sees the span.
    pub(crate) fn begin(
        queue: &str,
        redelivered: bool,
        body_bytes: usize,
        held: impl FnOnce() -> (u32, u32),
    ) -> Option<TimedDelivery> {
        let span = seen(tracing::debug_span!(
            "delivery",
            queue,
            redelivered,
            body_bytes,
            credit = Empty,
            in_work = Empty,
            service_us = Empty,
            settled = Empty,
            in_time = Empty,
        ))?;
        let (credit, in_work) = held();
        span.record("credit", credit);
        span.record("in_work", in_work);
        Some(TimedDelivery(span))
    }

    pub(crate) fn span(&self) -> Span {
        (*self.0).clone()
    }

    pub(crate) fn settled(&self, verdict: Verdict, service_us: u64, in_time: bool) {
        let settled = match verdict {
            Verdict::Ack => "acked",
            Verdict::Refuse { requeue: true } => "requeued",
            Verdict::Refuse { requeue: false } => "rejected",
        };
        self.0.record("service_us", service_us);
        self.0.record("settled", settled);
        self.0.record("in_time", in_time);
    }
}

/// The span of a call. Dropped, it ends: its caller gave up.
#[derive(Debug)]
pub(crate) struct TimedCall(Box<Span>);

impl TimedCall {
    pub(crate) fn begin(
        exchange: &str,
        routing_key: &str,
        body_bytes: usize,
        patience: Duration,
    ) -> Option<TimedCall> {
        let span = tracing::debug_span!(
            "call",
            exchange,
            routing_key,
            body_bytes,
            patience_ms = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX),
            reply_us = Empty,
            outcome = Empty,
        );
        seen(span).map(TimedCall)
    }

    /// So long after it was asked.
    pub(crate) fn replied(&self, reply_us: u64) {
        self.0.record("reply_us", reply_us);
        self.0.record("outcome", "replied");
    }

    pub(crate) fn failed(&self, error: &CallError) {
        self.0.record("outcome", display(error));
    }
}
