//! What a client is told when something cannot be done.
//!
//! ```text
//!   AmqpError { code, text }
//!        │ scope()                              │ reply_text()
//!        ▼                                      ▼
//!   soft (403 404 405 406 ...): channel.close   "NOT_FOUND - no queue 'q' in vhost '/'"
//!   hard (320 501 530 540 ...): connection.close   cut to 255 bytes
//! ```
//!
//! The texts are the ones RabbitMQ writes, because programs and people match on them. Constructors
//! are grouped by who is at fault: bytes that make no sense, a client that misuses the protocol, a
//! client that may not, and ourselves.

use std::fmt::{self, Display};

use forebay_wire::{MethodError, ReplyCode, Scope};

use crate::topology::{Lossy, Resource, ResourceKind};

/// The longest reply text on the wire, in bytes (a short string).
pub const REPLY_TEXT_MAX_BYTES: usize = 255;

/// Ends a text that was cut.
const CUT: &str = "...";

/// A refusal: a reply code and a sentence without the code's name in front.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AmqpError {
    /// Which kind of refusal; decides what is closed.
    pub code: ReplyCode,
    /// The sentence, of any length.
    pub text: String,
}

/// Who has to change something so that it does not happen again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The bytes were not AMQP: a broken client library or not a client at all.
    Malformed,
    /// The application asked for what cannot be.
    Misuse,
    /// The application asked for what it may not have.
    Refused,
    /// The broker or its operator.
    Ours,
}

impl AmqpError {
    /// Any code with any text, for the cases that have no constructor of their own.
    pub fn new(code: ReplyCode, text: impl Into<String>) -> Self {
        AmqpError { code, text: text.into() }
    }

    /// Whether the channel or the whole connection is closed with it.
    pub fn scope(&self) -> Scope {
        self.code.scope()
    }

    /// The reply text of `channel.close` and `connection.close`: `CODE_NAME - text`, at most
    /// [`REPLY_TEXT_MAX_BYTES`], cut between characters and ended with `...` if it was longer.
    pub fn reply_text(&self) -> String {
        let mut reply = format!("{} - {}", self.code.name(), self.text);
        if reply.len() > REPLY_TEXT_MAX_BYTES {
            let mut end = REPLY_TEXT_MAX_BYTES - CUT.len();
            while !reply.is_char_boundary(end) {
                end -= 1;
            }
            reply.truncate(end);
            reply.push_str(CUT);
        }
        reply
    }

    /// Who is at fault, as far as the code tells.
    pub fn fault(&self) -> Fault {
        match self.code {
            ReplyCode::FrameError | ReplyCode::SyntaxError | ReplyCode::UnexpectedFrame => {
                Fault::Malformed
            }
            ReplyCode::AccessRefused | ReplyCode::ResourceLocked => Fault::Refused,
            ReplyCode::ConnectionForced | ReplyCode::InternalError | ReplyCode::ResourceError => {
                Fault::Ours
            }
            _ => Fault::Misuse,
        }
    }
}

impl Display for AmqpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} - {}", self.code.code(), self.code.name(), self.text)
    }
}

impl std::error::Error for AmqpError {}

/// Malformed: the bytes.
impl AmqpError {
    /// 501: a frame that cannot be read.
    pub fn frame(reason: impl Display) -> Self {
        Self::new(ReplyCode::FrameError, reason.to_string())
    }

    /// 502: a method whose arguments cannot be read.
    pub fn syntax(reason: impl Display) -> Self {
        Self::new(ReplyCode::SyntaxError, reason.to_string())
    }

    /// 505: a frame of one kind where another was due.
    pub fn unexpected_frame(reason: impl Display) -> Self {
        Self::new(ReplyCode::UnexpectedFrame, reason.to_string())
    }

    /// 502: the answer to a login challenge cannot be read. It holds a password and is not repeated.
    pub fn malformed_login() -> Self {
        Self::new(ReplyCode::SyntaxError, "the response to the login challenge is malformed")
    }

    /// 503 for a method that is not known, 502 for arguments that cannot be read.
    pub fn method(error: &MethodError) -> Self {
        match error {
            MethodError::Unknown { .. } => Self::unimplemented_method(),
            other => Self::new(other.reply_code(), other.to_string()),
        }
    }

    /// 505: body frames with more bytes together than their header announced.
    pub fn body_too_long() -> Self {
        Self::new(
            ReplyCode::UnexpectedFrame,
            "the content body is longer than its header announced",
        )
    }
}

/// Misuse: of the connection and its channels.
impl AmqpError {
    /// 504: a method on a channel that is not open.
    pub fn channel_not_open() -> Self {
        Self::new(ReplyCode::ChannelError, "expected 'channel.open'")
    }

    /// 504: `channel.open` on an open channel.
    pub fn second_channel_open() -> Self {
        Self::new(ReplyCode::ChannelError, "second 'channel.open' seen")
    }

    /// 504: a method that does not belong into this phase of the connection.
    pub fn out_of_order(connection_state: impl Display) -> Self {
        Self::new(
            ReplyCode::ChannelError,
            format!("unexpected method in connection state {connection_state}"),
        )
    }

    /// 503: a login mechanism that was not offered.
    pub fn unknown_mechanism(mechanism: impl Display) -> Self {
        Self::new(
            ReplyCode::CommandInvalid,
            format!("unknown authentication mechanism '{mechanism}'"),
        )
    }

    /// 540: something that brokers may leave out and this one does: `immediate=true`,
    /// `prefetch_size!=0 (N)`, `requeue=false` (recover), `active=false` (flow).
    pub fn not_implemented(what: impl Into<String>) -> Self {
        Self::new(ReplyCode::NotImplemented, what)
    }

    /// 503: a method that no broker takes from a client.
    pub fn unimplemented_method() -> Self {
        Self::new(ReplyCode::CommandInvalid, "unimplemented method")
    }

    /// 530: a client that tunes above what was offered.
    pub fn negotiated_too_high(field: &str, value: impl Display, max: impl Display) -> Self {
        Self::new(
            ReplyCode::NotAllowed,
            format!(
                "negotiated {field} = {value} is higher than the maximum allowed value ({max})"
            ),
        )
    }

    /// 530: a client that tunes below what the protocol needs.
    pub fn negotiated_too_low(field: &str, value: impl Display, min: impl Display) -> Self {
        Self::new(
            ReplyCode::NotAllowed,
            format!("negotiated {field} = {value} is lower than the minimum allowed value ({min})"),
        )
    }

    /// 530: more channels than were negotiated.
    pub fn too_many_channels(opened: impl Display, channel_max: impl Display) -> Self {
        Self::new(
            ReplyCode::NotAllowed,
            format!(
                "number of channels opened ({opened}) has reached the negotiated channel_max \
                 ({channel_max})"
            ),
        )
    }
}

/// Misuse: of publishing, consuming and transactions.
impl AmqpError {
    /// 406: a message body over the limit. `configured` is false at the protocol's own ceiling.
    pub fn message_too_large(size_bytes: u64, max_bytes: u64, configured: bool) -> Self {
        let configured = if configured { "configured " } else { "" };
        Self::new(
            ReplyCode::PreconditionFailed,
            format!("message size {size_bytes} is larger than {configured}max size {max_bytes}"),
        )
    }

    /// 406: a `CC` or `BCC` header that is no array.
    pub fn bad_extra_keys(header: &str, type_name: &str) -> Self {
        Self::new(
            ReplyCode::PreconditionFailed,
            format!("invalid message: {{unacceptable_type_in_header,\"{header}\",{type_name}}}"),
        )
    }

    /// 406: a transaction over its bound.
    pub fn transaction_too_large(bound: impl Display) -> Self {
        let text = format!("transaction holds more than {bound}");
        Self::new(ReplyCode::PreconditionFailed, text)
    }

    /// 406: an `expiration` that is not a number of milliseconds.
    pub fn invalid_expiration(expiration: impl Display, reason: impl Display) -> Self {
        Self::new(
            ReplyCode::PreconditionFailed,
            format!("invalid expiration '{expiration}': {reason}"),
        )
    }

    /// 406: a `user_id` that is not the login's name.
    pub fn wrong_user_id(claimed: impl Display, actual: impl Display) -> Self {
        Self::new(
            ReplyCode::PreconditionFailed,
            format!("user_id property set to '{claimed}' but authenticated user was '{actual}'"),
        )
    }

    /// 406: an acknowledgement of something that is not outstanding on the channel.
    pub fn unknown_delivery_tag(delivery_tag: u64) -> Self {
        Self::new(ReplyCode::PreconditionFailed, format!("unknown delivery tag {delivery_tag}"))
    }

    /// 406: a delivery that stayed without its acknowledgement for too long.
    pub fn ack_timeout(channel: u16, timeout_ms: u64) -> Self {
        Self::new(
            ReplyCode::PreconditionFailed,
            format!(
                "delivery acknowledgement on channel {channel} timed out. Timeout value used: \
                 {timeout_ms} ms. This timeout value can be configured, see consumers doc guide \
                 to learn more"
            ),
        )
    }

    /// 530: a consumer tag that is taken on this channel.
    pub fn consumer_tag_reused(consumer_tag: impl Display) -> Self {
        Self::new(ReplyCode::NotAllowed, format!("attempt to reuse consumer tag '{consumer_tag}'"))
    }

    /// 406: `confirm.select` on a transactional channel.
    pub fn tx_to_confirm() -> Self {
        Self::new(ReplyCode::PreconditionFailed, "cannot switch from tx to confirm mode")
    }

    /// 406: `tx.select` on a confirming channel.
    pub fn confirm_to_tx() -> Self {
        Self::new(ReplyCode::PreconditionFailed, "cannot switch from confirm to tx mode")
    }

    /// 406: a full queue refused some of what was committed (RabbitMQ's words).
    pub fn partial_completion() -> Self {
        Self::new(ReplyCode::PreconditionFailed, "partial tx completion")
    }

    /// 406: commit or rollback without `tx.select`.
    pub fn not_transactional() -> Self {
        Self::new(ReplyCode::PreconditionFailed, "channel is not transactional")
    }

    /// 406: a direct reply-to publish without a reply consumer.
    pub fn reply_consumer_missing() -> Self {
        Self::new(ReplyCode::PreconditionFailed, "fast reply consumer does not exist")
    }

    /// 406: a reply consumer that wants to acknowledge.
    pub fn reply_consumer_cannot_acknowledge() -> Self {
        Self::new(ReplyCode::PreconditionFailed, "reply consumer cannot acknowledge")
    }

    /// 406: a second reply consumer on one channel.
    pub fn reply_consumer_already_set() -> Self {
        Self::new(ReplyCode::PreconditionFailed, "reply consumer already set")
    }
}

/// Misuse: of exchanges, queues and bindings.
impl AmqpError {
    /// 404: a queue or exchange that does not exist.
    pub fn not_found(resource: Resource<'_>) -> Self {
        Self::new(ReplyCode::NotFound, format!("no {resource}"))
    }

    /// 404: an empty queue name on a channel that has declared none.
    pub fn no_declared_queue() -> Self {
        Self::new(ReplyCode::NotFound, "no previously declared queue")
    }

    /// 406: redeclared with another value. `received` and `current` come with their quotes, since
    /// absent values have none.
    pub fn inequivalent_arg(
        name: &str,
        resource: Resource<'_>,
        received: impl Display,
        current: impl Display,
    ) -> Self {
        Self::new(
            ReplyCode::PreconditionFailed,
            format!(
                "inequivalent arg '{name}' for {resource}: received {received} but current is \
                 {current}"
            ),
        )
    }

    /// 406: an argument whose value makes no sense.
    pub fn invalid_arg(name: &str, resource: Resource<'_>, reason: impl Display) -> Self {
        Self::new(
            ReplyCode::PreconditionFailed,
            format!("invalid arg '{name}' for {resource}: {reason}"),
        )
    }

    /// 406: an argument of a type of queue that this queue is not.
    pub fn invalid_arg_of_queue_type(name: &str, queue: Resource<'_>) -> Self {
        Self::new(
            ReplyCode::PreconditionFailed,
            format!("invalid arg '{name}' for {queue} of queue type rabbit_classic_queue"),
        )
    }

    /// 406: a name argument (alternate or dead letter exchange) that is no string.
    pub fn invalid_arg_type(name: &str, resource: Resource<'_>, type_name: &str) -> Self {
        Self::new(
            ReplyCode::PreconditionFailed,
            format!("invalid type '{type_name}' for arg '{name}' in {resource}"),
        )
    }

    /// 540: an argument that RabbitMQ has and this version does not. Ours alone; taking it in
    /// silence would promise what is not kept.
    pub fn unsupported_arg(name: &str, resource: Resource<'_>) -> Self {
        Self::new(
            ReplyCode::NotImplemented,
            format!("argument '{name}' for {resource} is not supported by this version of Forebay"),
        )
    }

    /// 540: a type of queue that RabbitMQ has and this version does not.
    pub fn unsupported_queue_type(queue_type: &[u8], queue: Resource<'_>) -> Self {
        Self::new(
            ReplyCode::NotImplemented,
            format!(
                "queue type '{}' for {queue} is not supported by this version of Forebay (x-queue-type)",
                Lossy(queue_type)
            ),
        )
    }

    /// 406: a binding whose `x-match` makes no sense.
    pub fn invalid_binding(reason: impl Display) -> Self {
        Self::new(ReplyCode::PreconditionFailed, reason.to_string())
    }

    /// 503: a type of exchange that does not exist (closes the connection, as RabbitMQ 3.x).
    pub fn unknown_exchange_type(kind: &[u8]) -> Self {
        let what = if kind.is_empty() { "invalid" } else { "unknown" };
        Self::new(ReplyCode::CommandInvalid, format!("{what} exchange type '{}'", Lossy(kind)))
    }

    /// 403: a new name under `amq.`.
    pub fn reserved_name(kind: ResourceKind, name: &[u8]) -> Self {
        Self::new(
            ReplyCode::AccessRefused,
            format!("{kind} name '{}' contains reserved prefix 'amq.*'", Lossy(name)),
        )
    }

    /// 403: declare, delete, bind or unbind of the default exchange.
    pub fn default_exchange() -> Self {
        Self::new(ReplyCode::AccessRefused, "operation not permitted on the default exchange")
    }

    /// 403: deletion of a predeclared exchange.
    pub fn system_exchange(exchange: Resource<'_>) -> Self {
        Self::new(ReplyCode::AccessRefused, format!("deletion of system {exchange} not allowed"))
    }

    /// 403: a publish to an internal exchange.
    pub fn internal_exchange(exchange: Resource<'_>) -> Self {
        Self::new(ReplyCode::AccessRefused, format!("cannot publish to internal {exchange}"))
    }

    /// 406: `if_unused` and it is used.
    pub fn in_use(resource: Resource<'_>) -> Self {
        Self::new(ReplyCode::PreconditionFailed, format!("{resource} in use"))
    }

    /// 406: `if_empty` and it is not.
    pub fn not_empty(queue: Resource<'_>) -> Self {
        Self::new(ReplyCode::PreconditionFailed, format!("{queue} not empty"))
    }
}

/// Refused: may not.
impl AmqpError {
    /// 403: a wrong name, password or place. What exactly was wrong is for the log only.
    pub fn login_refused(mechanism: impl Display) -> Self {
        Self::new(
            ReplyCode::AccessRefused,
            format!(
                "Login was refused using authentication mechanism {mechanism}. For details see \
                 the broker logfile."
            ),
        )
    }

    /// 403: no permission. `access` is `configure`, `write` or `read`.
    pub fn access_refused(
        access: impl Display,
        resource: Resource<'_>,
        user: impl Display,
    ) -> Self {
        let text = format!("{access} access to {resource} refused for user '{user}'");
        Self::new(ReplyCode::AccessRefused, text)
    }

    /// 403: a routing key that may not be used at a topic exchange. `access` is `write` or `read`.
    pub fn topic_refused(
        access: impl Display,
        routing_key: &[u8],
        exchange: Resource<'_>,
        user: impl Display,
    ) -> Self {
        let key = Lossy(routing_key);
        let text =
            format!("{access} access to topic '{key}' in {exchange} refused for user '{user}'");
        Self::new(ReplyCode::AccessRefused, text)
    }

    /// 530: a virtual host that does not exist.
    pub fn vhost_not_found(vhost: impl Display) -> Self {
        Self::new(ReplyCode::NotAllowed, format!("vhost {vhost} not found"))
    }

    /// 530: as many connections as the virtual host may have.
    pub fn vhost_full(vhost: impl Display, user: impl Display, limit: usize) -> Self {
        let mut refused = Self::vhost_refused(vhost, user);
        refused.text += &format!(": connection limit ({limit}) is reached");
        refused
    }

    /// 530: a virtual host on which the user has no permissions at all.
    pub fn vhost_refused(vhost: impl Display, user: impl Display) -> Self {
        let text = format!("access to vhost '{vhost}' refused for user '{user}'");
        Self::new(ReplyCode::NotAllowed, text)
    }

    /// 405: a queue that is exclusive to another connection.
    pub fn resource_locked(queue: Resource<'_>) -> Self {
        Self::new(
            ReplyCode::ResourceLocked,
            format!(
                "cannot obtain exclusive access to locked {queue}. It could be originally \
                 declared on another connection or the exclusive property value does not match \
                 that of the original declaration."
            ),
        )
    }

    /// 403: a consumer beside an exclusive one, or an exclusive one beside others.
    pub fn queue_in_exclusive_use(name: impl Display, vhost: impl Display) -> Self {
        Self::new(
            ReplyCode::AccessRefused,
            format!("queue '{name}' in vhost '{vhost}' in exclusive use"),
        )
    }
}

/// Ours: the broker or its operator.
impl AmqpError {
    /// 320: the broker stops, or an operator closes the connection.
    pub fn forced(reason: impl Display) -> Self {
        Self::new(
            ReplyCode::ConnectionForced,
            format!("broker forced connection closure with reason '{reason}'"),
        )
    }

    /// 541: a fault of the broker, as a sentence for its operator.
    pub fn internal(reason: impl Display) -> Self {
        Self::new(ReplyCode::InternalError, reason.to_string())
    }

    /// 506: the broker lacks the means to go on with this connection.
    pub fn out_of_resources(reason: impl Display) -> Self {
        Self::new(ReplyCode::ResourceError, reason.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(name: &[u8]) -> Resource<'_> {
        Resource::queue(name, "/")
    }

    #[test]
    fn reply_text_has_the_name_of_the_code_in_front() {
        assert_eq!(
            AmqpError::not_found(queue(b"q")).reply_text(),
            "NOT_FOUND - no queue 'q' in vhost '/'"
        );
        assert_eq!(
            AmqpError::not_found(Resource::exchange(b"x", "dev")).reply_text(),
            "NOT_FOUND - no exchange 'x' in vhost 'dev'"
        );
    }

    #[test]
    fn reply_text_is_cut_to_a_short_string_between_characters() {
        let name = "é".repeat(127);
        let reply = AmqpError::not_found(queue(name.as_bytes())).reply_text();
        assert!(reply.len() <= REPLY_TEXT_MAX_BYTES && reply.len() >= REPLY_TEXT_MAX_BYTES - 1);
        assert!(reply.ends_with("é..."));
        let error = AmqpError::not_found(queue(&[0xff; 255]));
        assert!(error.reply_text().len() <= REPLY_TEXT_MAX_BYTES);
    }

    #[test]
    fn soft_errors_close_the_channel_and_hard_ones_the_connection() {
        assert_eq!(AmqpError::unknown_delivery_tag(7).scope(), Scope::Channel);
        assert_eq!(AmqpError::resource_locked(queue(b"q")).scope(), Scope::Channel);
        assert_eq!(AmqpError::unknown_exchange_type(b"x").scope(), Scope::Connection);
        assert_eq!(AmqpError::consumer_tag_reused("c").scope(), Scope::Connection);
        assert_eq!(AmqpError::not_implemented("immediate=true").scope(), Scope::Connection);
        assert_eq!(AmqpError::forced("shutdown").scope(), Scope::Connection);
    }

    #[test]
    fn texts_are_those_that_clients_match_on() {
        let texts = [
            (
                AmqpError::resource_locked(queue(b"q")),
                "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'q' in vhost \
                 '/'. It could be originally declared on another connection or the exclusive \
                 property value does not match that of the original declaration.",
            ),
            (
                AmqpError::queue_in_exclusive_use("q", "/"),
                "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use",
            ),
            (
                AmqpError::access_refused("configure", queue(b"q"), "u"),
                "ACCESS_REFUSED - configure access to queue 'q' in vhost '/' refused for user 'u'",
            ),
            (
                AmqpError::reserved_name(ResourceKind::Queue, b"amq.x"),
                "ACCESS_REFUSED - queue name 'amq.x' contains reserved prefix 'amq.*'",
            ),
            (AmqpError::in_use(queue(b"q")), "PRECONDITION_FAILED - queue 'q' in vhost '/' in use"),
            (
                AmqpError::message_too_large(9, 8, true),
                "PRECONDITION_FAILED - message size 9 is larger than configured max size 8",
            ),
            (
                AmqpError::message_too_large(9, 8, false),
                "PRECONDITION_FAILED - message size 9 is larger than max size 8",
            ),
            (
                AmqpError::not_implemented("prefetch_size!=0 (5)"),
                "NOT_IMPLEMENTED - prefetch_size!=0 (5)",
            ),
            (
                AmqpError::negotiated_too_high("channel_max", 4000, 2047),
                "NOT_ALLOWED - negotiated channel_max = 4000 is higher than the maximum allowed \
                 value (2047)",
            ),
            (
                AmqpError::forced("shutdown"),
                "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'",
            ),
        ];
        for (error, text) in texts {
            assert_eq!(error.reply_text(), text);
        }
    }

    #[test]
    fn somebody_is_at_fault() {
        assert_eq!(AmqpError::frame("bad end").fault(), Fault::Malformed);
        assert_eq!(AmqpError::not_transactional().fault(), Fault::Misuse);
        assert_eq!(AmqpError::login_refused("PLAIN").fault(), Fault::Refused);
        assert_eq!(AmqpError::internal("x").fault(), Fault::Ours);
    }
}
