//! Ways in which a connection ends without a close from the broker.

use std::fmt;

use forebay_wire::FrameError;
use forebay_wire::MethodError;

/// Why the machine gave the connection up. Final: nothing can be done with it afterwards.
#[derive(Debug, Clone, PartialEq)]
pub enum Failed {
    /// The peer answered with a protocol header: it speaks another version, or is no AMQP server.
    OtherProtocol {
        /// The first bytes it sent, at most 8.
        said: [u8; 8],
    },
    /// The peer does not offer the SASL mechanism that we were told to use.
    NoSuchLogin {
        /// The mechanism.
        wanted: &'static str,
        /// What it offers, separated by spaces.
        offered: String,
    },
    /// A frame could not be read.
    Frame(FrameError),
    /// A method could not be read.
    Method(MethodError),
    /// The peer broke the order of the protocol.
    Misbehaved {
        /// What it did.
        what: &'static str,
        /// On which channel; 0 = the connection itself.
        channel: u16,
    },
    /// A message is larger than [`Options::message_bytes_max`](super::Options::message_bytes_max).
    MessageTooLarge {
        /// Announced size of the body.
        size_bytes: u64,
        /// The bound.
        max_bytes: u64,
    },
    /// Nothing was heard for two heartbeat intervals.
    Silent {
        /// The negotiated interval.
        heartbeat_s: u16,
    },
    /// The peer hung up during the login, as brokers do that refuse it without a word.
    HungUpAtLogin,
    /// The peer hung up without closing the connection first.
    HungUp,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failed::OtherProtocol { said } => write!(
                f,
                "the server does not speak AMQP 0-9-1; it began with {:?}",
                String::from_utf8_lossy(said)
            ),
            Failed::NoSuchLogin { wanted, offered } => {
                write!(f, "the server offers no {wanted} login, only: {offered}")
            }
            Failed::Frame(error) => {
                write!(f, "the server sent a frame that cannot be read: {error}")
            }
            Failed::Method(error) => {
                write!(f, "the server sent a method that cannot be read: {error}")
            }
            Failed::Misbehaved { what, channel: 0 } => write!(f, "the server sent {what}"),
            Failed::Misbehaved { what, channel } => {
                write!(f, "the server sent {what} on channel {channel}")
            }
            Failed::MessageTooLarge { size_bytes, max_bytes } => write!(
                f,
                "the server sent a message of {size_bytes} bytes; at most {max_bytes} are accepted"
            ),
            Failed::Silent { heartbeat_s } => write!(
                f,
                "the server was silent for two heartbeat intervals of {heartbeat_s} s and counts as gone"
            ),
            Failed::HungUpAtLogin => f.write_str(
                "the server hung up during the login: wrong user name, password or virtual host?",
            ),
            Failed::HungUp => f.write_str("the server hung up without closing the connection"),
        }
    }
}

impl std::error::Error for Failed {}
