//! What a program may bound of a window that tunes itself.

use crate::delay_target::{NETWORK_ALLOWANCE_MAX_US, VISIT_ALLOWANCE_MAX_US};
use crate::pfw::{CEILING_BYTES, CEILING_MESSAGES, FLOOR_MESSAGES};

/// What a user may bound. Nothing of it needs to be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PfwOptions {
    /// Smallest window in messages, at least 1; a narrow link may have less, and before RabbitMQ it is 12 at least, if the ceiling is.
    pub floor_messages: u32,
    /// Largest window in messages, at least the floor ("max in flight").
    pub ceiling_messages: u32,
    /// Largest window in bytes.
    pub ceiling_bytes: u64,
    /// There is no network between, as in one process: its round trip is known to be 0.
    pub local: bool,
    /// Largest delay above the base that the target allows ("max added delay"), in microseconds.
    pub added_delay_max_us: u64,
    /// Spreads the probes of many windows; any number that differs between them.
    pub seed: u64,
}

impl Default for PfwOptions {
    fn default() -> PfwOptions {
        PfwOptions {
            floor_messages: FLOOR_MESSAGES,
            ceiling_messages: CEILING_MESSAGES,
            ceiling_bytes: CEILING_BYTES,
            local: false,
            added_delay_max_us: (VISIT_ALLOWANCE_MAX_US + NETWORK_ALLOWANCE_MAX_US) as u64,
            seed: 0,
        }
    }
}
