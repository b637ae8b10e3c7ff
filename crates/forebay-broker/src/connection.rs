//! A connection: where it stands, its channels, its partial frame and its outgoing bytes.
//!
//! ```text
//!                protocol header      start-ok        tune-ok, open
//!   Header ────────────────► Start ──────────► Tune ──────────────► Open ──► Closing ──► gone
//!      │ wrong header          │ bad login       │ bad tune            │ error, or   ▲ close-ok
//!      ▼                       ▼                 ▼                     │ close       │
//!    gone                   Refused ── 3 s ──► gone                    └─────────────┘
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_flow::CommitTime;
use forebay_wire::FRAME_MIN_SIZE_BYTES;

use crate::access::Permissions;
use crate::ack_timeout::CHECK_EVERY_S;
use crate::channel::{Channel, Expects, Mode};
use crate::channels::Channels;
use crate::input::{CloseHow, Peer};
use crate::outgoing::Outgoing;
use crate::topology::QueueKey;
use crate::waits::Waits;

/// Above this many outgoing bytes that a connection asked for it is not read any more: they would pile up. What is delivered
/// to it does not count, or who writes a large result before it reads the next large message would wait for us and we for it.
pub(crate) const OUT_HARD_BYTES: usize = 1024 * 1024;

/// The largest frame before tune (RabbitMQ's limit before authentication is a start-ok of 4096).
pub(crate) const FRAME_MAX_BEFORE_TUNE_BYTES: u32 = FRAME_MIN_SIZE_BYTES;

/// Where a connection stands.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(crate) enum Stage {
    /// The protocol header is awaited.
    Header,
    /// `connection.start` was sent.
    Start,
    /// `connection.tune` was sent.
    Tune,
    /// `connection.tune-ok` came, `connection.open` is awaited.
    Tuned,
    /// In use.
    Open,
    /// `connection.close` was sent; only its answer counts.
    Closing,
    /// A login was refused and the client cannot be told: the socket closes a little later.
    Refused,
    /// Nothing is read any more; what is outgoing may still be written.
    Done,
}

/// Who has logged in.
#[derive(Debug, Clone)]
pub(crate) struct Login {
    pub(crate) user: Arc<str>,
    /// Impersonators may set `user-id` freely.
    pub(crate) impersonator: bool,
}

/// What a client can do, from its `capabilities`.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Capabilities {
    pub(crate) authentication_failure_close: bool,
    pub(crate) consumer_cancel_notify: bool,
    pub(crate) connection_blocked: bool,
    pub(crate) named_publishers: bool,
    pub(crate) leases: bool,
    pub(crate) pause: bool,
    pub(crate) commit_times: bool,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Never reused; tells a stale index from a live one.
    pub(crate) serial: u64,
    pub(crate) peer: Peer,
    pub(crate) stage: Stage,
    /// Counts among those that have not logged in.
    pub(crate) handshaking: bool,
    pub(crate) frame_max_bytes: u32,
    pub(crate) channel_max: u16,
    /// Negotiated; 0 = none.
    pub(crate) heartbeat_s: u16,
    pub(crate) capabilities: Capabilities,
    pub(crate) login: Option<Login>,
    pub(crate) vhost: u32,
    /// Counted among the connections of `vhost`.
    pub(crate) in_vhost: bool,
    pub(crate) permissions: Option<Arc<Permissions>>,
    /// The beginning of a frame, at most one; or, while `held` or `brimming`, what waits and what came behind it.
    pub(crate) partial: Vec<u8>,
    /// There is no room for the publish at the beginning of `partial`.
    pub(crate) held: bool,
    /// Some `basic.get` of it waits until it has read its answers.
    pub(crate) gets_wait: bool,
    /// Answers to what it asked fill `out`: the rest of what it asks stays in `partial` until it has read them.
    pub(crate) brimming: bool,
    /// When a publish was last held, in seconds on the shard's clock.
    pub(crate) held_s: u32,
    /// So much of `partial` may pass all the same, once.
    pub(crate) pass_bytes: usize,
    pub(crate) out: Outgoing,
    /// What it was told of commits.
    pub(crate) commit_told: CommitTime,
    pub(crate) channels: Channels,
    pub(crate) channels_open: u16,
    /// Numbers of channels that the client has closed and not opened since, and when: what it sends on them may have been under way then.
    pub(crate) channels_left: BTreeMap<u16, u64>,
    pub(crate) received_us: u64,
    /// When its deliveries were last looked at for their timeouts, in seconds.
    pub(crate) acks_checked_s: u32,
    /// How often they are.
    pub(crate) ack_check_s: u32,
    pub(crate) sent_us: u64,
    /// Its place in the timer heap is at this time; an older entry is stale.
    pub(crate) timer_us: u64,
    pub(crate) connected_us: u64,
    /// When the current stage began; bounds Closing and Refused.
    pub(crate) stage_us: u64,
    /// Has published: flow control concerns it.
    pub(crate) publisher: bool,
    /// What its socket's receive buffer was asked to be.
    pub(crate) receive_bytes: u64,
    /// When `connection.blocked` was sent, if `unblocked` was not yet.
    pub(crate) blocked_us: Option<u64>,
    /// Queues (by their numbers) that hold its publishes.
    pub(crate) waits_for: Vec<u64>,
    /// Too many of its publishes are unconfirmed.
    pub(crate) confirms_full: bool,
    /// When a paused connection was last heard a little, so that its acks arrive.
    pub(crate) trickle_us: u64,
    /// When the shell last asked, nothing was to be read of it.
    pub(crate) unheard: bool,
    /// See [`ActivePublishers`](crate::active_publishers::ActivePublishers).
    pub(crate) published_in: u64,
    /// Channels that consume (their queues are looked at when the socket drains).
    pub(crate) consumers: u32,
    /// Queues that go with it, with their durable identity.
    pub(crate) exclusive_queues: Vec<(QueueKey, u64)>,
    /// It was over its outgoing limit; its queues wait for the socket.
    pub(crate) starved: bool,
    /// How often the queues of its consumers were told that it has room.
    pub(crate) rooms_told: usize,
    /// In the shard's list of connections to send to.
    pub(crate) dirty: bool,
    /// What it waited for.
    pub(crate) waits: Waits,
    /// Its end was reported to the shell.
    pub(crate) close_how: Option<CloseHow>,
}

impl Connection {
    pub(crate) fn new(serial: u64, peer: Peer, now_us: u64) -> Connection {
        Connection {
            serial,
            peer,
            stage: Stage::Header,
            handshaking: true,
            frame_max_bytes: FRAME_MAX_BEFORE_TUNE_BYTES,
            channel_max: 0,
            heartbeat_s: 0,
            capabilities: Capabilities::default(),
            login: None,
            vhost: 0,
            in_vhost: false,
            permissions: None,
            partial: Vec::new(),
            held: false,
            brimming: false,
            gets_wait: false,
            held_s: 0,
            pass_bytes: 0,
            out: Outgoing::default(),
            commit_told: CommitTime::default(),
            channels: Channels::default(),
            channels_open: 0,
            channels_left: BTreeMap::new(),
            received_us: now_us,
            acks_checked_s: 0,
            ack_check_s: CHECK_EVERY_S,
            sent_us: now_us,
            timer_us: u64::MAX,
            connected_us: now_us,
            stage_us: now_us,
            publisher: false,
            receive_bytes: 0,
            blocked_us: None,
            waits_for: Vec::new(),
            confirms_full: false,
            trickle_us: 0,
            unheard: false,
            published_in: 0,
            consumers: 0,
            exclusive_queues: Vec::new(),
            starved: false,
            rooms_told: 0,
            dirty: false,
            waits: Waits::default(),
            close_how: None,
        }
    }

    /// The open or closing channel with this number.
    pub(crate) fn channel(&mut self, number: u16) -> Option<&mut Channel> {
        self.channels.get_mut(number)
    }

    /// Enters a stage.
    pub(crate) fn enter(&mut self, stage: Stage, now_us: u64) {
        self.stage = stage;
        self.stage_us = now_us;
    }

    /// Whether as much as may waits for it to read.
    #[inline]
    pub(crate) fn is_brimful(&self) -> bool {
        self.out.asked() >= OUT_HARD_BYTES
    }

    /// Whether something that came waits in `partial` although it is whole.
    pub(crate) fn keeps_back(&self) -> bool {
        self.held || self.brimming
    }

    /// Whether any of its channels has as many unconfirmed publishes as one may have.
    pub(crate) fn has_full_channel(&self) -> bool {
        let is_full = |mode: &Mode| matches!(mode, Mode::Confirm(confirms) if confirms.is_full());
        self.channels.iter().any(|channel| is_full(&channel.mode))
    }

    /// Whether it is in the middle of a message's content.
    pub(crate) fn is_assembling(&self) -> bool {
        self.channels.iter().any(|channel| channel.assembly.expects == Expects::Body)
    }

    /// Whether any of its channels holds unacknowledged deliveries.
    pub(crate) fn has_unacked(&self) -> bool {
        self.channels.iter().any(|channel| channel.unacked.len() > 0)
    }
}
