//! What becomes of a publish: exactly one of four things, or five if its time is limited.

use std::fmt;

use crate::error::{Lost, Refusal};
use crate::message::Message;
use crate::too_long::TooLong;

/// The broker has the message: for a persistent one in durable queues, on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Confirmed {
    /// The connection broke or the channel stalled before an answer came, and the broker could not say whether it had taken the
    /// message; so it was sent again, with the same message-id and marked with the header
    /// [`REPUBLISHED_HEADER`](crate::REPUBLISHED_HEADER): it may be there twice.
    pub republished: bool,
}

/// The broker does not have the message, or may not.
#[derive(Debug, Clone, PartialEq)]
pub enum Unconfirmed {
    /// The broker refused it (basic.nack), for instance because the queue is full. Or it was admitted on another connection, and its
    /// properties do not fit into the frames of the broker that took over.
    Rejected,
    /// No queue took it: nothing is bound for its routing key.
    Returned(Refusal),
    /// It was admitted and no answer will come. It may have arrived; publish it again only where a duplicate
    /// does no harm. When a connection is given up this is said also of messages that were still waiting to be sent.
    Unknown(UnknownReason),
    /// Nothing of it was sent, and nothing will be: its time was over before
    /// ([`PublisherBuilder::outcome_within`](crate::PublisherBuilder::outcome_within)).
    Withdrawn,
}

/// Why nobody can tell what became of a message.
#[derive(Debug, Clone, PartialEq)]
pub enum UnknownReason {
    /// The broker closed the publisher's channel, for instance because the exchange does not exist.
    ChannelClosed(Refusal),
    /// The connection is gone for good.
    Lost(Lost),
    /// It was sent on so many connections that ended while nothing else of theirs was unanswered, as far as this process knows,
    /// so it is not sent again: a message that a broker cannot read or take, or one too large for what is in between.
    ConnectionsEnded {
        /// Connections: three where the broker complained of what was sent, else ten in a row over 30 s at least.
        times: u32,
        /// How the last one ended.
        last: Lost,
    },
    /// No answer came within the publisher's limit. A later one changes nothing, and it is not sent again.
    TimeOver,
}

impl fmt::Display for Unconfirmed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unconfirmed::Rejected => f.write_str("the broker rejected the message"),
            Unconfirmed::Returned(why) => write!(f, "no queue took the message: {why}"),
            Unconfirmed::Unknown(UnknownReason::ChannelClosed(why)) => {
                write!(f, "the message was not confirmed: the broker closed the channel: {why}")
            }
            Unconfirmed::Unknown(UnknownReason::Lost(lost)) => {
                write!(f, "the message was not confirmed: {lost}")
            }
            Unconfirmed::Unknown(UnknownReason::ConnectionsEnded { times, last }) => write!(
                f,
                "the message was not confirmed, and is not sent again: {times} connections ended over it: {last}"
            ),
            Unconfirmed::Unknown(UnknownReason::TimeOver) => {
                f.write_str("the message was sent and no answer came in time")
            }
            Unconfirmed::Withdrawn => {
                f.write_str("the message could not be sent in time, and was not")
            }
        }
    }
}

impl std::error::Error for Unconfirmed {}

/// Outcomes other than confirmed that nobody was told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Unheard {
    pub(crate) rejected: u64,
    pub(crate) returned: u64,
    pub(crate) unknown: u64,
    pub(crate) withdrawn: u64,
}

impl Unheard {
    pub(crate) fn count(&mut self, unconfirmed: &Unconfirmed) {
        match unconfirmed {
            Unconfirmed::Rejected => self.rejected += 1,
            Unconfirmed::Returned(_) => self.returned += 1,
            Unconfirmed::Unknown(_) => self.unknown += 1,
            Unconfirmed::Withdrawn => self.withdrawn += 1,
        }
    }

    pub(crate) fn add(&mut self, other: Unheard) {
        self.rejected += other.rejected;
        self.returned += other.returned;
        self.unknown += other.unknown;
        self.withdrawn += other.withdrawn;
    }
}

/// A message that was not sent: nothing of it has left, and it is handed back.
#[derive(Debug, Clone, PartialEq)]
pub struct NotPublished {
    /// Why.
    pub reason: NotPublishedReason,
    /// The message.
    pub message: Message,
}

/// Why a message was not sent.
#[derive(Debug, Clone, PartialEq)]
pub enum NotPublishedReason {
    /// The deadline passed before the window had room.
    DeadlinePassed,
    /// One of its names is too long for AMQP, or all its properties together for one of the broker's frames.
    TooLong(TooLong),
    /// More callers wait for the window than [`WAITERS_MAX`](forebay_flow::WAITERS_MAX).
    TooManyWaiting,
    /// The connection is gone for good.
    Lost(Lost),
}

impl fmt::Display for NotPublished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the message was not sent: {}", self.reason)
    }
}

impl fmt::Display for NotPublishedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotPublishedReason::DeadlinePassed => {
                f.write_str("the deadline passed before the publish window had room")
            }
            NotPublishedReason::TooLong(too_long) => too_long.fmt(f),
            NotPublishedReason::TooManyWaiting => write!(
                f,
                "{} callers wait for this publisher already; await each publish before the next",
                forebay_flow::WAITERS_MAX
            ),
            NotPublishedReason::Lost(lost) => lost.fmt(f),
        }
    }
}

impl std::error::Error for NotPublished {}
