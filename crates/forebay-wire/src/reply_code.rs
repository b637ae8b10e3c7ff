//! Reply codes of `channel.close`, `connection.close` and `basic.return` (clause 1.2).

/// Declares the codes once: value, name, scope and clause.
macro_rules! reply_codes {
    ($($(#[doc = $doc:literal])+ $variant:ident = $code:literal, $name:literal, $scope:ident;)+) => {
        /// Why a method was refused, a message returned, or a channel or connection closed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum ReplyCode {
            $($(#[doc = $doc])+ $variant = $code,)+
        }

        impl ReplyCode {
            /// Every code, in ascending order.
            pub const ALL: &'static [ReplyCode] = &[$(Self::$variant,)+];

            /// The code of the number on the wire; `None` for numbers that are not defined.
            pub const fn from_code(code: u16) -> Option<Self> {
                match code {
                    $($code => Some(Self::$variant),)+
                    _ => None,
                }
            }

            /// The name as reply texts carry it: `NOT_FOUND`, `PRECONDITION_FAILED`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// What an error with this code closes.
            pub const fn scope(self) -> Scope {
                match self {
                    $(Self::$variant => Scope::$scope,)+
                }
            }
        }
    };
}

/// What an error closes: soft errors their channel, hard errors the connection (clause 1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Only the channel.
    Channel,
    /// The whole connection.
    Connection,
}

reply_codes! {
    /// The method completed successfully. (Not an error; its scope means nothing.)
    Success = 200, "SUCCESS", Channel;
    /// The content is larger than the server accepts.
    ContentTooLarge = 311, "CONTENT_TOO_LARGE", Channel;
    /// RabbitMQ: a mandatory message reached no queue.
    NoRoute = 312, "NO_ROUTE", Channel;
    /// An immediate message reached no consumer.
    NoConsumers = 313, "NO_CONSUMERS", Channel;
    /// An operator closed the connection, or the broker stops.
    ConnectionForced = 320, "CONNECTION_FORCED", Connection;
    /// The virtual host is unknown.
    InvalidPath = 402, "INVALID_PATH", Connection;
    /// The user may not do this.
    AccessRefused = 403, "ACCESS_REFUSED", Channel;
    /// The queue, exchange or binding does not exist.
    NotFound = 404, "NOT_FOUND", Channel;
    /// Another connection owns the queue.
    ResourceLocked = 405, "RESOURCE_LOCKED", Channel;
    /// The request contradicts what exists.
    PreconditionFailed = 406, "PRECONDITION_FAILED", Channel;
    /// A frame could not be read.
    FrameError = 501, "FRAME_ERROR", Connection;
    /// A field could not be read.
    SyntaxError = 502, "SYNTAX_ERROR", Connection;
    /// The method is not acceptable at this point.
    CommandInvalid = 503, "COMMAND_INVALID", Connection;
    /// The channel is not open, or is open already.
    ChannelError = 504, "CHANNEL_ERROR", Connection;
    /// A frame came where another kind was due.
    UnexpectedFrame = 505, "UNEXPECTED_FRAME", Connection;
    /// The server lacks the resources to go on.
    ResourceError = 506, "RESOURCE_ERROR", Connection;
    /// The request is against the rules, whatever the state.
    NotAllowed = 530, "NOT_ALLOWED", Connection;
    /// The server does not implement this.
    NotImplemented = 540, "NOT_IMPLEMENTED", Connection;
    /// The server failed.
    InternalError = 541, "INTERNAL_ERROR", Connection;
}

impl ReplyCode {
    /// The number on the wire.
    pub const fn code(self) -> u16 {
        self as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_numbers_name_each_other() {
        for &code in ReplyCode::ALL {
            assert_eq!(ReplyCode::from_code(code.code()), Some(code));
        }
        assert!(ReplyCode::ALL.is_sorted_by_key(|code| code.code()));
        assert_eq!(ReplyCode::from_code(999), None);
        assert_eq!(ReplyCode::NotFound.name(), "NOT_FOUND");
        assert_eq!(ReplyCode::NotFound.code(), 404);
    }

    #[test]
    fn soft_errors_close_the_channel_and_hard_errors_the_connection() {
        let soft: Vec<u16> = ReplyCode::ALL
            .iter()
            .filter(|code| code.scope() == Scope::Channel)
            .map(|code| code.code())
            .collect();
        assert_eq!(soft, [200, 311, 312, 313, 403, 404, 405, 406]);
    }
}
