//! A channel: its mode, its publish being assembled, its deliveries and its limits.
//!
//! ```text
//!              channel.open          soft error: channel.close sent
//!   (none) ───────────────► open ─────────────────────────────────► closing
//!      ▲                     │ channel.close received, -ok sent        │ channel.close-ok
//!      └─────────────────────┴─────────────────────────────────────────┘
//! ```
//! A closing channel ignores everything but `channel.close` and `channel.close-ok` (0-9-1 section
//! 4.10: "discard all frames except those").

use std::collections::VecDeque;
use std::sync::Arc;

use forebay_store::QueueId;

use crate::ack_timeout::Lease;
use crate::confirm::Confirms;
use crate::consumer::ConsumerKey;
use crate::message::Message;
use crate::publisher::Publisher;
use crate::topology::QueueKey;
use crate::tx::Transaction;
use crate::unacked::{Delivery, Unacked};

/// What publishes on a channel are answered with.
#[derive(Debug)]
pub(crate) enum Mode {
    /// Nothing.
    Plain,
    /// Confirms.
    Confirm(Confirms),
    /// `tx.commit-ok`, all together.
    Tx(Transaction),
}

/// A publish whose content is not complete.
#[derive(Debug, Default)]
pub(crate) struct Assembly {
    /// What has to come next.
    pub(crate) expects: Expects,
    pub(crate) exchange: Vec<u8>,
    pub(crate) routing_key: Vec<u8>,
    pub(crate) mandatory: bool,
    /// Topology version at which the publish was permitted.
    pub(crate) permitted_at: u64,
    /// Exchange and key are those of the channel's remembered route, and stand only there.
    pub(crate) remembered: bool,
    /// The message's bytes from the header frame on.
    pub(crate) bytes: Vec<u8>,
    /// Body bytes still to come.
    pub(crate) missing_bytes: u64,
    pub(crate) persistent: bool,
    /// Its publisher wants to know where its time goes.
    pub(crate) marked: bool,
    /// It has a time to live of its own.
    pub(crate) expires: bool,
}

impl Assembly {
    /// Where the message goes.
    pub(crate) fn aim(&mut self, exchange: &[u8], routing_key: &[u8]) {
        self.exchange.clear();
        self.exchange.extend_from_slice(exchange);
        self.routing_key.clear();
        self.routing_key.extend_from_slice(routing_key);
    }
}

/// 0-9-1 section 4.2.6: a method that carries content, a header, then body frames.
#[derive(Debug, Default, PartialEq, Eq, Clone, Copy)]
pub(crate) enum Expects {
    /// A method.
    #[default]
    Method,
    /// The content header of a publish.
    Header,
    /// A body frame.
    Body,
}

/// The last route of a channel: most channels publish to one place over and over.
#[derive(Debug, Default)]
pub(crate) struct RouteCache {
    /// Topology version it was found at; 0 = empty.
    pub(crate) version: u64,
    pub(crate) exchange: Vec<u8>,
    pub(crate) routing_key: Vec<u8>,
    pub(crate) queues: Vec<QueueKey>,
}

impl RouteCache {
    /// Whether it is the route of this exchange and key.
    pub(crate) fn leads(&self, exchange: &[u8], routing_key: &[u8]) -> bool {
        self.version != 0 && same(&self.routing_key, routing_key) && same(&self.exchange, exchange)
    }
}

/// `a == b`, which for the default exchange's empty name compares no bytes at an address where nothing is: a vectorised
/// `memcmp` loads from there under a mask, and the processor takes 70 ns to suppress the fault (measured on Zen 5).
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && (a.is_empty() || a == b)
}

/// A direct reply-to consumer (RabbitMQ's `amq.rabbitmq.reply-to`).
#[derive(Debug)]
pub(crate) struct ReplyConsumer {
    pub(crate) tag: Box<[u8]>,
    /// What stands after `amq.rabbitmq.reply-to.` in a rewritten `reply-to`.
    pub(crate) token: Vec<u8>,
}

/// A publish held by a transaction, or ready to be routed.
#[derive(Debug)]
pub(crate) struct Publish {
    pub(crate) message: Arc<Message>,
    pub(crate) mandatory: bool,
    pub(crate) persistent: bool,
    /// Topology version at which it was permitted.
    pub(crate) permitted_at: u64,
    /// Goes to a requester's channel instead of queues.
    pub(crate) is_reply: bool,
}

/// A `basic.get` behind another one of its channel: answers come in the order of their questions.
#[derive(Debug)]
pub(crate) struct GetBehind {
    pub(crate) queue: QueueKey,
    pub(crate) queue_id: QueueId,
    pub(crate) no_ack: bool,
}

/// The capability, of a broker and of a client, that `channel.flow` pauses a channel's deliveries.
pub(crate) const PAUSE: &str = "forebay.pause";

/// One channel.
#[derive(Debug)]
pub(crate) struct Channel {
    /// Never reused: the number may be, by a channel that knows nothing of this one.
    pub(crate) serial: u64,
    pub(crate) closing: bool,
    /// `channel.flow` from the client: false = send no deliveries.
    pub(crate) active: bool,
    pub(crate) mode: Mode,
    pub(crate) assembly: Assembly,
    pub(crate) unacked: Unacked,
    /// Some of `unacked` may have other timeouts than the rest.
    pub(crate) mixed_ack_limits: bool,
    pub(crate) lease: Lease,
    /// The last delivery tag given.
    pub(crate) delivery_tag: u64,
    /// For consumers started from now on (`basic.qos`, global=false); 0 = no limit.
    pub(crate) prefetch: u16,
    /// For the channel as a whole (`basic.qos`, global=true); 0 = no limit.
    pub(crate) prefetch_global: u16,
    /// Unsettled deliveries that count against `prefetch_global`.
    pub(crate) unacked_consumed: u32,
    pub(crate) consumers: Vec<ConsumerKey>,
    /// How often their queues were told that there is room.
    pub(crate) rooms_told: usize,
    pub(crate) reply_consumer: Option<ReplyConsumer>,
    /// For an empty queue name (0-9-1: "the last declared queue on the channel").
    pub(crate) last_queue: Option<Vec<u8>>,
    pub(crate) route_cache: RouteCache,
    /// Whose publishes these are, if it has a name.
    pub(crate) publisher: Option<Box<Publisher>>,
    /// A get waits for the disk; those after it wait for their turn.
    pub(crate) get_pending: bool,
    pub(crate) gets_behind: VecDeque<GetBehind>,
    /// In the shard's list of channels with confirms to tell.
    pub(crate) confirms_dirty: bool,
}

impl Channel {
    pub(crate) fn new(serial: u64) -> Channel {
        Channel {
            serial,
            closing: false,
            active: true,
            mode: Mode::Plain,
            assembly: Assembly::default(),
            unacked: Unacked::default(),
            mixed_ack_limits: false,
            lease: Lease::default(),
            delivery_tag: 0,
            prefetch: 0,
            prefetch_global: 0,
            unacked_consumed: 0,
            consumers: Vec::new(),
            rooms_told: 0,
            reply_consumer: None,
            last_queue: None,
            route_cache: RouteCache::default(),
            publisher: None,
            get_pending: false,
            gets_behind: VecDeque::new(),
            confirms_dirty: false,
        }
    }

    /// Whether the channel as a whole may get one more delivery that must be acknowledged.
    pub(crate) fn has_credit(&self) -> bool {
        self.prefetch_global == 0 || self.unacked_consumed < u32::from(self.prefetch_global)
    }

    /// The deliveries that wait for the end of its transaction, in the order in which they came into it.
    pub(crate) fn in_transaction_mut(&mut self) -> impl Iterator<Item = &mut Delivery> {
        let transaction = match &mut self.mode {
            Mode::Tx(transaction) => Some(transaction.deliveries_mut()),
            Mode::Plain | Mode::Confirm(_) => None,
        };
        transaction.into_iter().flatten()
    }

    /// One of them, by its place among them.
    pub(crate) fn in_transaction(&mut self, at: usize) -> Option<&mut Delivery> {
        match &mut self.mode {
            Mode::Tx(transaction) => transaction.delivery_mut(at),
            Mode::Plain | Mode::Confirm(_) => None,
        }
    }

    /// The message being assembled needs a route of its own.
    pub(crate) fn forget_remembered(&mut self) {
        if std::mem::take(&mut self.assembly.remembered) {
            self.assembly.aim(&self.route_cache.exchange, &self.route_cache.routing_key);
        }
    }

    /// The next delivery tag, taken.
    pub(crate) fn take_delivery_tag(&mut self) -> u64 {
        self.delivery_tag += 1;
        self.delivery_tag
    }
}
