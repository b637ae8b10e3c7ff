//! What AMQP has no room for: names and properties of more than 255 bytes, and more properties than a frame holds.

use std::fmt;

/// A name or property is longer than AMQP's 255 bytes, or all properties together are longer than one of the broker's frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLong {
    /// Which, for instance `correlation-id`, or `properties` for all of them.
    pub what: &'static str,
    /// How long it is.
    pub bytes: usize,
    /// How long it may be.
    pub bytes_max: usize,
}

impl TooLong {
    pub(crate) fn properties(bytes: usize, bytes_max: usize) -> TooLong {
        TooLong { what: PROPERTIES, bytes, bytes_max }
    }
}

/// All of them.
const PROPERTIES: &str = "properties";
/// AMQP's short strings have an octet for their length (clause 4.2.5.3).
pub(crate) const NAME_BYTES_MAX: usize = 255;

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TooLong { what, bytes, bytes_max } = self;
        if *what == PROPERTIES {
            write!(f, "{what} of {bytes} bytes are too long: the broker's frames allow {bytes_max}")
        } else {
            write!(f, "a {what} of {bytes} bytes is too long: AMQP allows {bytes_max}")
        }
    }
}

impl std::error::Error for TooLong {}
