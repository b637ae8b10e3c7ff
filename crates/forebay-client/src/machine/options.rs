//! What a client asks of a connection before it exists.

use std::fmt;

use forebay_wire::{AmqpUri, FRAME_MIN_SIZE_BYTES};

/// Largest frame we propose, in bytes, head and end octet included: RabbitMQ's own default.
pub const FRAME_BYTES_MAX: u32 = 131_072;
/// The largest frame limit that is proposed.
const FRAME_BYTES_LARGEST: u32 = 16 << 20;
/// Highest channel number we propose: RabbitMQ's own default.
pub const CHANNEL_MAX: u16 = 2047;
/// Heartbeat interval we propose, in seconds: RabbitMQ's own default.
pub const HEARTBEAT_S: u16 = 60;
/// Bytes waiting to be sent after which `publish` says [`PublishError::Full`](super::PublishError::Full).
pub const OUTGOING_BYTES_MAX: usize = 1 << 20;
/// Largest message taken from a peer, in bytes. RabbitMQ accepts at most 512 MiB; its default was
/// 128 MiB before 4.0 and has been 16 MiB since.
pub const MESSAGE_BYTES_MAX: u64 = 128 << 20;

/// How to prove who we are (SASL).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Login {
    /// User name and password (RFC 4616).
    #[default]
    Plain,
    /// By what the transport knows, such as a TLS client certificate (RFC 4422 appendix A).
    External,
}

impl Login {
    /// The mechanism's name on the wire.
    pub const fn mechanism(self) -> &'static str {
        match self {
            Login::Plain => "PLAIN",
            Login::External => "EXTERNAL",
        }
    }
}

/// Login, virtual host and limits of one connection.
#[derive(Clone)]
pub struct Options {
    /// How to log in; PLAIN by default.
    pub login: Login,
    /// User name for SASL PLAIN.
    pub username: String,
    /// Password for SASL PLAIN. Never printed.
    pub password: String,
    /// Virtual host, `/` by default.
    pub vhost: String,
    /// Shown by brokers beside the connection (`connection_name` in the client properties).
    pub connection_name: Option<String>,
    /// Proposed heartbeat interval in seconds; 0 asks for none. The lower of ours and the
    /// server's wins.
    pub heartbeat_s: u16,
    /// Proposed frame limit in bytes; at least 4096, at most 16 MiB. The lower of ours and the
    /// server's wins.
    pub frame_bytes_max: u32,
    /// Proposed number of channels; at least 1. The lower of ours and the server's wins.
    pub channel_max: u16,
    /// Bound of the send buffer in bytes: `publish` refuses once so much is waiting.
    /// The buffer may exceed it by one message.
    pub outgoing_bytes_max: usize,
    /// Bound of one received message in bytes; a larger one fails the connection.
    pub message_bytes_max: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            login: Login::Plain,
            username: "guest".into(),
            password: "guest".into(),
            vhost: "/".into(),
            connection_name: None,
            heartbeat_s: HEARTBEAT_S,
            frame_bytes_max: FRAME_BYTES_MAX,
            channel_max: CHANNEL_MAX,
            outgoing_bytes_max: OUTGOING_BYTES_MAX,
            message_bytes_max: MESSAGE_BYTES_MAX,
        }
    }
}

impl Options {
    /// The options that `uri` states; the rest as by default.
    pub fn from_uri(uri: &AmqpUri) -> Options {
        let default = Options::default();
        let external = uri.other_parameters.iter().any(|(name, value)| {
            name == "auth_mechanism" && value.eq_ignore_ascii_case("external")
        });
        Options {
            login: if external { Login::External } else { Login::Plain },
            username: uri.username.clone(),
            password: uri.password.clone(),
            vhost: uri.vhost.clone(),
            heartbeat_s: uri.heartbeat_s.unwrap_or(default.heartbeat_s),
            // 0 leaves the choice to the server; ours then is the default, which bounds our buffers.
            channel_max: uri.channel_max.filter(|&max| max > 0).unwrap_or(default.channel_max),
            frame_bytes_max: uri
                .frame_max_bytes
                .filter(|&bytes| bytes > 0)
                .unwrap_or(default.frame_bytes_max),
            ..default
        }
    }

    /// The frame limit that is proposed, within its bounds.
    pub(crate) fn bounded_frame_bytes(&self) -> u32 {
        self.frame_bytes_max.clamp(FRAME_MIN_SIZE_BYTES, FRAME_BYTES_LARGEST)
    }

    /// The same with the name that brokers show beside the connection.
    pub fn named(self, connection_name: impl Into<String>) -> Options {
        Options { connection_name: Some(connection_name.into()), ..self }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("login", &self.login)
            .field("username", &self.username)
            .field("password", &"…")
            .field("vhost", &self.vhost)
            .field("connection_name", &self.connection_name)
            .field("heartbeat_s", &self.heartbeat_s)
            .field("frame_bytes_max", &self.frame_bytes_max)
            .field("channel_max", &self.channel_max)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_printed() {
        let options = Options { password: "sesame".into(), ..Options::default() };
        assert!(!format!("{options:?}").contains("sesame"));
    }
}
