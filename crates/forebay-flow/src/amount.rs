//! Messages and bytes, counted together: what is asked for, what is in flight, what a window allows.

/// A number of messages and the bytes of their bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amount {
    /// Messages.
    pub messages: u32,
    /// Bytes of their bodies.
    pub bytes: u64,
}

impl Amount {
    /// Nothing.
    pub const ZERO: Amount = Amount { messages: 0, bytes: 0 };

    /// `messages` messages with `bytes` bytes together.
    #[must_use]
    pub const fn new(messages: u32, bytes: u64) -> Amount {
        Amount { messages, bytes }
    }

    /// One message of `bytes` bytes.
    #[must_use]
    pub const fn message(bytes: u64) -> Amount {
        Amount { messages: 1, bytes }
    }

    /// Both numbers added; stops at the largest number instead of wrapping.
    #[must_use]
    pub const fn plus(self, other: Amount) -> Amount {
        Amount {
            messages: self.messages.saturating_add(other.messages),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    /// Both numbers subtracted, or `None` where one would fall below zero.
    #[must_use]
    pub const fn minus(self, other: Amount) -> Option<Amount> {
        match (self.messages.checked_sub(other.messages), self.bytes.checked_sub(other.bytes)) {
            (Some(messages), Some(bytes)) => Some(Amount { messages, bytes }),
            _ => None,
        }
    }

    /// Whether neither number is larger than in `window`.
    #[must_use]
    pub const fn fits(self, window: Amount) -> bool {
        self.messages <= window.messages && self.bytes <= window.bytes
    }
}
