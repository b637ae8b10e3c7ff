//! What bounds a consumer, for those who check whether it fits their needs.

use std::time::Duration;

/// What bounds a consumer. See [`ConsumerBuilder`](crate::ConsumerBuilder).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConsumerLimits {
    /// Deliveries held at a time at most.
    pub credit_max: u16,
    /// The credit, if it is set by hand.
    pub fixed_credit: Option<u16>,
    /// The longest that a message may be in work.
    pub work_limit: Option<Duration>,
    /// The argument `x-consumer-timeout`.
    pub ack_timeout: Option<Duration>,
}
