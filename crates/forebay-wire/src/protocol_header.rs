//! The eight octets a client sends first (clause 4.2.2).
//!
//! ```text
//!  +-----+-----+-----+-----+---+---+---+---+
//!  | 'A' | 'M' | 'Q' | 'P' | 0 | 0 | 9 | 1 |      what the specification asks for
//!  +-----+-----+-----+-----+---+---+---+---+
//!  | 'A' | 'M' | 'Q' | 'P' | 1 | 1 | 0 | 9 |      what 0-8 era clients send for 0-9; RabbitMQ takes it
//!  +-----+-----+-----+-----+---+---+---+---+
//! ```

use std::fmt;

/// The header of AMQP 0-9-1; also what a server answers before closing on a wrong one.
pub const PROTOCOL_HEADER: [u8; 8] = *b"AMQP\x00\x00\x09\x01";

/// The older spelling of 0-9 that RabbitMQ accepts beside [`PROTOCOL_HEADER`].
const PROTOCOL_HEADER_OLD: [u8; 8] = *b"AMQP\x01\x01\x00\x09";

/// The peer does not speak AMQP 0-9-1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrongProtocol {
    /// It speaks AMQP in another version: the four octets after the name, as far as they came
    /// (missing ones are 0). `[0, 1, 0, 0]` is AMQP 1.0, `[3, 1, 0, 0]` its SASL layer.
    Amqp([u8; 4]),
    /// It speaks something else, HTTP or TLS for example.
    Foreign,
}

impl fmt::Display for WrongProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Amqp([id, major, minor, revision]) => write!(
                f,
                "the peer speaks AMQP {major}.{minor}.{revision} (protocol id {id}), not AMQP 0-9-1"
            ),
            Self::Foreign => write!(f, "the peer does not speak AMQP"),
        }
    }
}

impl std::error::Error for WrongProtocol {}

/// Reads the protocol header at the start of `input`; it is 8 bytes long.
///
/// `Ok(None)` asks for more bytes. Fails at the first octet that fits neither accepted header, so a
/// foreign client is answered without waiting for eight of them.
pub fn read_protocol_header(input: &[u8]) -> Result<Option<()>, WrongProtocol> {
    let head = &input[..input.len().min(PROTOCOL_HEADER.len())];
    if PROTOCOL_HEADER.starts_with(head) || PROTOCOL_HEADER_OLD.starts_with(head) {
        return Ok((head.len() == PROTOCOL_HEADER.len()).then_some(()));
    }
    match head.strip_prefix(b"AMQP") {
        Some(given) => {
            let mut version = [0; 4];
            version[..given.len()].copy_from_slice(given);
            Err(WrongProtocol::Amqp(version))
        }
        None => Err(WrongProtocol::Foreign),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_are_taken_byte_by_byte() {
        for header in [PROTOCOL_HEADER, PROTOCOL_HEADER_OLD] {
            for cut in 0..8 {
                assert_eq!(read_protocol_header(&header[..cut]), Ok(None));
            }
            assert_eq!(read_protocol_header(&header), Ok(Some(())));
            let and_more = [&header[..], b"\x01rest"].concat();
            assert_eq!(read_protocol_header(&and_more), Ok(Some(())));
        }
    }

    #[test]
    fn other_versions_are_told_from_other_protocols() {
        for (input, error) in [
            (&b"AMQP\x00\x01\x00\x00"[..], WrongProtocol::Amqp([0, 1, 0, 0])),
            (b"AMQP\x03\x01\x00\x00", WrongProtocol::Amqp([3, 1, 0, 0])),
            (b"AMQP\x00\x00\x08\x00", WrongProtocol::Amqp([0, 0, 8, 0])),
            (b"AMQP\x02", WrongProtocol::Amqp([2, 0, 0, 0])),
            // A mixture of the two spellings is neither.
            (b"AMQP\x00\x00\x00\x09", WrongProtocol::Amqp([0, 0, 0, 9])),
            (b"GET / HTTP/1.1\r\n", WrongProtocol::Foreign),
            (b"\x16\x03\x01", WrongProtocol::Foreign),
            (b"AMQx", WrongProtocol::Foreign),
        ] {
            assert_eq!(read_protocol_header(input), Err(error), "{}", input.escape_ascii());
        }
        assert_eq!(
            WrongProtocol::Amqp([0, 1, 0, 0]).to_string(),
            "the peer speaks AMQP 1.0.0 (protocol id 0), not AMQP 0-9-1"
        );
    }
}
