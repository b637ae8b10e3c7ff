//! What bounds a consumer, for those who check whether it fits their needs.

use std::time::Duration;

use forebay_wire::Table;

use crate::machine::Server;
use crate::session::{CREDIT_MAX, LIVE_CREDIT};

/// [`CREDIT_MAX`] of one that keeps what it is given first.
pub(crate) const SOLE_CREDIT_MAX: u16 = 1_000;

/// What bounds a consumer. See [`ConsumerBuilder`](crate::ConsumerBuilder).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConsumerLimits {
    /// Deliveries held at a time at most.
    pub credit_max: u16,
    /// The credit, if it is set by hand.
    pub fixed_credit: Option<u16>,
    /// The longest that a message may be in work.
    pub work_limit: Option<Duration>,
    /// The argument `x-consumer-timeout`, if it is not 0, which is none.
    pub ack_timeout: Option<Duration>,
}

/// Deliveries held at a time at most: as `set`, or fewer than elsewhere where it is alone with its queue and the broker changes no
/// live consumer's credit, as then it has all of it from the beginning.
pub(crate) fn credit_max(set: Option<u16>, sole: bool, server: &Server) -> u16 {
    let keeps = sole && !server.can(LIVE_CREDIT);
    set.unwrap_or(if keeps { SOLE_CREDIT_MAX } else { CREDIT_MAX })
}

/// How long a message may be unacknowledged, by the consumer's arguments.
pub(crate) fn ack_timeout(arguments: Table<'_>) -> Option<Duration> {
    let timeout_ms = arguments.get("x-consumer-timeout")?.as_i64()?;
    u64::try_from(timeout_ms).ok().filter(|ms| *ms > 0).map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_wire::{TableBuf, Value};

    #[test]
    fn a_timeout_of_none_is_none() {
        let timeout = |ms| {
            let arguments = TableBuf::new().with("x-consumer-timeout", Value::I64(ms));
            ack_timeout(arguments.as_table())
        };
        assert_eq!(timeout(1_500), Some(Duration::from_millis(1_500)));
        assert_eq!((timeout(0), timeout(-1)), (None, None));
    }

    #[test]
    fn who_keeps_what_it_is_given_first_is_given_less() {
        let server = |names: &[&str]| Server {
            capabilities: names.iter().map(ToString::to_string).collect(),
            ..Server::default()
        };
        assert_eq!(credit_max(None, true, &server(&[])), 1_000);
        assert_eq!(credit_max(None, true, &server(&[LIVE_CREDIT])), CREDIT_MAX);
        assert_eq!(credit_max(None, false, &server(&[])), CREDIT_MAX);
        assert_eq!(credit_max(Some(2_000), true, &server(&[])), 2_000);
    }
}
