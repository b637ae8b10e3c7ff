//! What happens to a connection, for those who watch it.

use std::fmt;

use crate::error::{Lost, Refusal};

/// Why a publisher's channel was replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublisherChannelFault {
    /// For a second or more it rejected every message.
    RejectsEverything,
    /// For the stall timeout it answered nothing.
    Silent,
}

impl fmt::Display for PublisherChannelFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PublisherChannelFault::RejectsEverything => "the broker rejects everything on it",
            PublisherChannelFault::Silent => {
                "the broker neither confirms nor rejects anything on it"
            }
        })
    }
}

/// One thing that happened. Each is also a `tracing` event.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Happening {
    /// A connection is up and everything is restored on it.
    Connected {
        /// Host and port, or `in-process`.
        address: String,
        /// 0 for the first one, then how many came before it.
        reconnects: u64,
    },
    /// Publishers use another number of connections from now on: one more because that may deliver more, or one less.
    PublishingOver {
        /// How many.
        connections: usize,
    },
    /// The route to the broker became longer: what was published over one connection goes over another, whose TCP begins afresh.
    LongerRoute {
        /// Its round trip in microseconds.
        rtt_us: u64,
    },
    /// A connection broke.
    Lost {
        /// Why.
        lost: Lost,
    },
    /// It will be tried again.
    Retrying {
        /// From 1.
        attempt: u32,
        /// After this time, in milliseconds.
        delay_ms: u64,
        /// Why the last attempt failed, or why the connection was lost.
        reason: String,
    },
    /// The broker takes no publishes for now. Everything else goes on.
    Blocked {
        /// For instance `low on memory`.
        reason: String,
    },
    /// The broker takes publishes again.
    Unblocked,
    /// The broker ended a consumer, for instance because its queue was deleted.
    ConsumerCancelled {
        /// The queue.
        queue: String,
    },
    /// After a reconnect a consumer's queue is on a node of the cluster that is down. The consumer asks every second until it is back.
    QueueAway {
        /// The queue.
        queue: String,
        /// What the broker says.
        why: Refusal,
    },
    /// The broker closed a publisher's channel; it goes on with a new one.
    PublisherChannelClosed {
        /// Why.
        why: Refusal,
    },
    /// A publisher's channel was no good; it goes on with a new one. What waited for its outcome is sent again.
    PublisherChannelReplaced {
        /// What was wrong with it.
        fault: PublisherChannelFault,
    },
    /// For its stall timeout a consumer got nothing although messages waited in its queue; it goes on with a new channel.
    ConsumerChannelReplaced {
        /// The queue.
        queue: String,
    },
    /// Something could not be declared again after a reconnect, or on a further socket, which goes on without it.
    TopologyRefused {
        /// What, for instance `queue 'orders'`.
        what: String,
        /// Why.
        why: Refusal,
    },
}
