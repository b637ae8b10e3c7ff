//! What can go wrong, one small enum per operation; every text is a sentence for an operator.

use std::fmt;

use crate::machine::{ChannelError, Failed};
use crate::partitions::CONSISTENT_HASH;
use crate::too_long::TooLong;

/// A broker's refusal: its reply code and text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// For instance 404.
    pub code: u16,
    /// For instance `NOT_FOUND - no queue 'q' in vhost '/'`.
    pub text: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.text, self.code)
    }
}

/// Why a connection is no more. Every later operation on it gives the same answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Lost {
    /// The broker closed it.
    Closed(Refusal),
    /// We closed it.
    ClosedByUs,
    /// The peer broke the protocol, fell silent or hung up.
    Failed(Failed),
    /// Reading or writing failed.
    Io(String),
    /// More deliveries arrived than [`DELIVERIES_BYTES_MAX`](crate::blocking::DELIVERIES_BYTES_MAX) while
    /// nobody took them.
    TooManyDeliveries,
}

impl Lost {
    /// Our close had no answer for as long as we wait for one.
    pub(crate) fn end_unanswered() -> Lost {
        Lost::Io(
            "the broker has not answered the end of the connection; what was sent last may not have reached it"
                .into(),
        )
    }

    /// The peer was gone before it agreed to our close, and this is how.
    pub(crate) fn end_cut_off(how: &str) -> Lost {
        Lost::Io(format!(
            "{how}, while the connection was closed; what was sent last may not have reached the broker"
        ))
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lost::Closed(refusal) => write!(f, "the broker closed the connection: {refusal}"),
            Lost::ClosedByUs => f.write_str("the connection is closed"),
            Lost::Failed(failed) => write!(f, "the connection was lost: {failed}"),
            Lost::Io(error) => write!(f, "the connection was lost: {error}"),
            Lost::TooManyDeliveries => f.write_str(
                "the connection was given up: deliveries filled their buffer while nobody took them",
            ),
        }
    }
}

impl std::error::Error for Lost {}

/// Why a connection could not be opened.
#[derive(Debug, Clone, PartialEq)]
pub enum OpenError {
    /// The URI cannot be read.
    Uri {
        /// As given, without its passwords.
        uri: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The certificates or keys cannot be used, or the server's are not trusted.
    Tls {
        /// What is wrong, and with which file.
        reason: String,
    },
    /// A parameter of the URI has a value that it cannot have.
    Parameter {
        /// Its name.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The host name has no address.
    NoAddress {
        /// The host.
        host: String,
        /// What the resolver said.
        reason: String,
    },
    /// No address took the connection.
    NotConnected {
        /// Host and port.
        address: String,
        /// What the last attempt said.
        reason: String,
    },
    /// The broker refused the login or the virtual host.
    Refused(Refusal),
    /// The connection was lost during the login.
    Lost(Lost),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Uri { uri, reason } => write!(f, "cannot read the URL {uri}: {reason}"),
            OpenError::Tls { reason } => write!(f, "cannot connect with TLS: {reason}"),
            OpenError::Parameter { name, reason } => {
                write!(f, "parameter {name} of the URL {reason}")
            }
            OpenError::NoAddress { host, reason } => {
                write!(f, "cannot find the host {host}: {reason}")
            }
            OpenError::NotConnected { address, reason } => {
                write!(f, "cannot connect to {address}: {reason}")
            }
            OpenError::Refused(refusal) => write!(f, "the broker refused the login: {refusal}"),
            OpenError::Lost(lost) => lost.fmt(f),
        }
    }
}

impl std::error::Error for OpenError {}

/// Why a channel operation was not done.
#[derive(Debug, Clone, PartialEq)]
pub enum ChannelFault {
    /// The broker refused it and closed the channel, or had closed it before.
    Refused(Refusal),
    /// The channel cannot be had or was closed by us.
    NotUsable(ChannelError),
    /// A name is longer than 255 bytes.
    NameTooLong {
        /// How long it is.
        bytes: usize,
    },
    /// A message's properties do not fit into one of the broker's frames.
    PropertiesTooLong {
        /// How long they are.
        bytes: usize,
        /// How long they may be.
        bytes_max: usize,
    },
    /// The connection is gone.
    Lost(Lost),
}

impl fmt::Display for ChannelFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChannelFault::Refused(refusal) => write!(f, "the broker refused: {refusal}"),
            ChannelFault::NotUsable(error) => error.fmt(f),
            ChannelFault::NameTooLong { bytes } => {
                write!(f, "a name of {bytes} bytes is too long: AMQP allows 255")
            }
            ChannelFault::PropertiesTooLong { bytes, bytes_max } => {
                TooLong::properties(*bytes, *bytes_max).fmt(f)
            }
            ChannelFault::Lost(lost) => lost.fmt(f),
        }
    }
}

impl std::error::Error for ChannelFault {}

/// Why no further message will come from a consumer.
#[derive(Debug, Clone, PartialEq)]
pub enum ConsumeError {
    /// The broker cancelled the consumer, for instance because the queue was deleted.
    Cancelled,
    /// The channel or connection is gone.
    Channel(ChannelFault),
}

impl fmt::Display for ConsumeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConsumeError::Cancelled => {
                f.write_str("the broker cancelled the consumer: the queue was deleted or moved")
            }
            ConsumeError::Channel(fault) => fault.fmt(f),
        }
    }
}

impl std::error::Error for ConsumeError {}

impl From<Lost> for ChannelFault {
    fn from(lost: Lost) -> Self {
        ChannelFault::Lost(lost)
    }
}

impl From<ChannelError> for ChannelFault {
    fn from(error: ChannelError) -> Self {
        ChannelFault::NotUsable(error)
    }
}

impl From<ChannelFault> for ConsumeError {
    fn from(fault: ChannelFault) -> Self {
        ConsumeError::Channel(fault)
    }
}

/// What was not in order when a connection was closed. It is closed all the same.
#[derive(Debug, Clone, PartialEq)]
pub enum CloseError {
    /// Published messages are not confirmed, and nobody was told: their [outcomes](crate::Outcome) were dropped, or
    /// are kept and were not awaited so far. An outcome that was awaited is not counted, whatever it was.
    Unconfirmed {
        /// Messages that the broker refused.
        rejected: u64,
        /// Messages that no queue took.
        returned: u64,
        /// Messages that were admitted and had no answer. They may have arrived.
        unknown: u64,
        /// Messages that were never sent: the publisher's limit was over before.
        withdrawn: u64,
        /// How the connection ended, if not by our will.
        lost: Option<Lost>,
    },
    /// The connection was gone for good before, or broke while it was closed: the last acknowledgements may be lost.
    Lost(Lost),
}

impl fmt::Display for CloseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (why, lost) = match self {
            CloseError::Unconfirmed { rejected, returned, unknown, withdrawn, lost } => {
                let why = [
                    (*rejected, "rejected by the broker"),
                    (*returned, "taken by no queue"),
                    (*unknown, "without an answer"),
                    (*withdrawn, "never sent"),
                ];
                (why, lost)
            }
            CloseError::Lost(lost) => return lost.fmt(f),
        };
        let count: u64 = why.iter().map(|(count, _)| count).sum();
        let why = why.iter().filter(|(count, _)| *count > 0);
        let why: Vec<_> = why.map(|(count, why)| format!("{count} {why}")).collect();
        let why = why.join(", ");
        write!(
            f,
            "published messages not confirmed: {count} ({why}); await each outcome to know which"
        )?;
        match lost {
            Some(lost) => write!(f, "; {lost}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for CloseError {}

/// Why a topology was not declared.
#[derive(Debug, Clone, PartialEq)]
pub struct DeclareError {
    /// Which part, for instance `queue 'orders'`; `None`: no channel could be had.
    pub what: Option<String>,
    /// Why.
    pub fault: ChannelFault,
}

impl fmt::Display for DeclareError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.what {
            Some(what) => write!(f, "cannot declare {what}: {}", self.fault)?,
            None => self.fault.fmt(f)?,
        }
        if self.is_plug_in_missing() {
            write!(
                f,
                "; enable the broker's plug-in on each of its nodes (`rabbitmq-plugins enable \
                 rabbitmq_consistent_hash_exchange`), or let the client choose the part \
                 (`Partitions::new`)"
            )?;
        }
        Ok(())
    }
}

impl DeclareError {
    /// RabbitMQ 3 closes the connection over it (503), RabbitMQ 4 the channel (406).
    fn is_plug_in_missing(&self) -> bool {
        match &self.fault {
            ChannelFault::Refused(refusal) | ChannelFault::Lost(Lost::Closed(refusal)) => {
                refusal.text.contains("unknown exchange type")
                    && refusal.text.contains(CONSISTENT_HASH)
            }
            _ => false,
        }
    }
}

impl std::error::Error for DeclareError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_confirmed_is_counted_by_kind() {
        let lost = Some(Lost::Io("cut".into()));
        let error =
            CloseError::Unconfirmed { rejected: 2, returned: 0, unknown: 1, withdrawn: 0, lost };
        assert_eq!(
            error.to_string(),
            "published messages not confirmed: 3 (2 rejected by the broker, 1 without an answer); await each outcome \
             to know which; the connection was lost: cut"
        );
    }

    #[test]
    fn a_missing_plug_in_is_told_with_what_to_do() {
        let refusal = |kind: &str| Refusal {
            code: 503,
            text: format!("COMMAND_INVALID - unknown exchange type '{kind}'"),
        };
        let error = |fault| DeclareError { what: Some("exchange 'orders'".into()), fault };
        for fault in [
            ChannelFault::Lost(Lost::Closed(refusal(CONSISTENT_HASH))),
            ChannelFault::Refused(refusal(CONSISTENT_HASH)),
        ] {
            assert!(error(fault).to_string().contains("rabbitmq-plugins enable"));
        }
        let other = error(ChannelFault::Refused(refusal("x-delayed-message"))).to_string();
        assert!(!other.contains("rabbitmq-plugins"), "{other}");
    }
}
