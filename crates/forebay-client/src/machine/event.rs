//! What the connection has to say, borrowed from the receive buffer or from the machine.

use forebay_flow::CommitTime;
use forebay_wire::Method;
use forebay_wire::RawProperties;
use forebay_wire::ShortStr;

use super::Settled;

/// One thing that happened. Lives until the machine is asked again; copy what must stay.
#[derive(Debug, Clone, PartialEq)]
pub enum Event<'a> {
    /// The handshake is over: channels can be opened.
    Opened,
    /// A method that answers one of ours: channel.open-ok, queue.declare-ok, basic.get-empty, …
    Reply {
        /// The channel it came on.
        channel: u16,
        /// The whole method.
        method: Method<'a>,
    },
    /// A message for one of our consumers.
    Delivery(Delivery<'a>),
    /// A message that answers our basic.get.
    Got {
        /// The message; its consumer tag is empty.
        delivery: Delivery<'a>,
        /// Messages left in the queue.
        message_count: u32,
    },
    /// A mandatory message of ours that no queue took. Its confirm follows.
    Returned(Returned<'a>),
    /// The broker settled some of our publishes.
    Settled {
        /// The channel they were published on.
        channel: u16,
        /// Which, and how.
        settled: Settled,
    },
    /// The broker cancelled a consumer, for instance because its queue was deleted.
    ConsumerCancelled {
        /// The consumer's channel.
        channel: u16,
        /// Its tag.
        consumer_tag: ShortStr<'a>,
    },
    /// The broker asks to stop or to go on publishing on a channel.
    Flow {
        /// The channel.
        channel: u16,
        /// False: stop publishing.
        active: bool,
    },
    /// The broker closed a channel. Its number is free again.
    ChannelClosed {
        /// The channel.
        channel: u16,
        /// Why.
        reason: CloseReason<'a>,
    },
    /// The broker is short of something: it will read no publishes for now.
    Blocked {
        /// For instance `low on memory`.
        reason: ShortStr<'a>,
    },
    /// The shortage is over.
    Unblocked,
    /// A broker of ours: its commits take another time than it told before, or not next to none.
    CommitTime(CommitTime),
    /// The broker closed the connection, or agreed to our close (`reason` is `None`).
    /// Nothing follows.
    Closed {
        /// Why, if it was the broker's wish.
        reason: Option<CloseReason<'a>>,
    },
}

/// Why a broker closed a channel or connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CloseReason<'a> {
    /// Reply code, for instance 404.
    pub code: u16,
    /// Reply text, for instance `NOT_FOUND - no queue 'q' in vhost '/'`.
    pub text: ShortStr<'a>,
    /// Class of the method at fault; 0 = none.
    pub class_id: u16,
    /// Method at fault; 0 = none.
    pub method_id: u16,
}

/// A message on its way to a consumer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Delivery<'a> {
    /// The channel it came on, where it must be acked.
    pub channel: u16,
    /// The consumer it is for.
    pub consumer_tag: ShortStr<'a>,
    /// Its number on this channel, from 1.
    pub delivery_tag: u64,
    /// It may have been delivered before.
    pub redelivered: bool,
    /// Where it was published.
    pub exchange: ShortStr<'a>,
    /// With which routing key.
    pub routing_key: ShortStr<'a>,
    /// Its properties, validated and not yet parsed.
    pub properties: RawProperties<'a>,
    /// The body.
    pub body: &'a [u8],
}

/// A mandatory message that no queue took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Returned<'a> {
    /// The channel it was published on.
    pub channel: u16,
    /// 312 when no queue was bound.
    pub reply_code: u16,
    /// For instance `NO_ROUTE`.
    pub reply_text: ShortStr<'a>,
    /// Where it was published.
    pub exchange: ShortStr<'a>,
    /// With which routing key.
    pub routing_key: ShortStr<'a>,
    /// Its properties, as we sent them.
    pub properties: RawProperties<'a>,
    /// The body.
    pub body: &'a [u8],
}
