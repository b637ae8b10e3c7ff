//! A connection: where it stands, its channels, its partial frame and its outgoing bytes.
//!
//! ```text
//!                protocol header      start-ok        tune-ok, open
//!   Header ────────────────► Start ──────────► Tune ──────────────► Open ──► Closing ──► gone
//!      │ wrong header          │ bad login       │ bad tune            │ error, or   ▲ close-ok
//!      ▼                       ▼                 ▼                     │ close       │
//!    gone                   Refused ── 3 s ──► gone                    └─────────────┘
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use forebay_flow::CommitTime;
use forebay_store::BatchNo;
use forebay_wire::FRAME_MIN_SIZE_BYTES;

use crate::access::Permissions;
use crate::ack_timeout::CHECK_EVERY_S;
use crate::channel::{Channel, Expects, Mode};
use crate::confirm::UNCONFIRMED_MAX;
use crate::input::{CloseHow, Peer};
use crate::topology::QueueKey;
use crate::waits::Waits;
use crate::warm::Warm;

/// Above this many outgoing bytes a connection gets no more deliveries (when few connections consume;
/// see `Shard::out_soft_bytes`).
pub(crate) const OUT_SOFT_MAX_BYTES: usize = 256 * 1024;

/// Above this many outgoing bytes a connection is not read any more: its replies would pile up.
pub(crate) const OUT_HARD_BYTES: usize = 1024 * 1024;

/// A connection that sent more at a time begins with a buffer of this size.
const OUT_KEEP_BYTES: usize = 64 * 1024;

/// A buffer this small is not kept for the next.
const OUT_SMALL_BYTES: usize = 4 * 1024;

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

/// Outgoing bytes, with places before which they must wait for a batch to be synced.
///
/// A reply that promises durability (`queue.declare-ok`, `tx.commit-ok`) must not leave before its
/// batch is on disk, and nothing may overtake it; so it raises a barrier and all that follows waits.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    bytes: Vec<u8>,
    /// `0 ≤ sent ≤ bytes.len()`.
    sent: usize,
    /// What it held when it was last emptied, in bytes, as far as it may be kept: as much as it will need again.
    needed: usize,
    /// (batch, position in `bytes`), both rising.
    barriers: VecDeque<(BatchNo, usize)>,
}

impl Outgoing {
    /// Where to encode into.
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// The same for deliveries, which need room: where somebody else's were a moment ago.
    pub(crate) fn buffer_in(&mut self, warm: &mut Warm) -> &mut Vec<u8> {
        if self.bytes.capacity() == 0 && self.needed > 0 {
            self.bytes = warm.take(self.needed);
        }
        &mut self.bytes
    }

    /// What follows waits for `batch`.
    pub(crate) fn raise_barrier(&mut self, batch: BatchNo) {
        if self.barriers.back().is_none_or(|(last, _)| *last < batch) {
            self.barriers.push_back((batch, self.bytes.len()));
        }
    }

    /// `batch` and all before it are synced. Returns whether something may go now.
    pub(crate) fn durable(&mut self, batch: BatchNo) -> bool {
        let before = self.barriers.len();
        while self.barriers.front().is_some_and(|(waits, _)| *waits <= batch) {
            self.barriers.pop_front();
        }
        self.barriers.len() < before
    }

    /// Bytes that may be written now.
    pub(crate) fn ready(&self) -> &[u8] {
        let end = self.barriers.front().map_or(self.bytes.len(), |(_, at)| *at);
        &self.bytes[self.sent..end]
    }

    /// Bytes not written, whether they may be or not.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// The first `count` bytes of [`Outgoing::ready`] were written. Returns the buffer if it is empty now: others may
    /// have it meanwhile.
    pub(crate) fn written(&mut self, count: usize) -> Option<Vec<u8>> {
        debug_assert!(count <= self.ready().len());
        self.sent += count;
        if self.sent == self.bytes.len() {
            for (_, at) in &mut self.barriers {
                *at -= self.sent;
            }
            self.needed = self.bytes.len().min(OUT_KEEP_BYTES);
            self.sent = 0;
            let buffer = std::mem::take(&mut self.bytes);
            // Who sends so little has little to gain, and the others' would be among many.
            return (buffer.capacity() > OUT_SMALL_BYTES).then_some(buffer);
        } else if self.sent >= OUT_SOFT_MAX_BYTES && self.sent * 2 >= self.bytes.len() {
            // Moves at most as many bytes as were written since the last move.
            self.bytes.drain(..self.sent);
            for (_, at) in &mut self.barriers {
                *at -= self.sent;
            }
            self.sent = 0;
        }
        None
    }

    /// Capacity held, in bytes.
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }
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
    /// By channel number; grows with the highest one opened.
    pub(crate) channels: Vec<Option<Box<Channel>>>,
    pub(crate) channels_open: u16,
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
    /// See [`ActivePublishers`](crate::active_publishers::ActivePublishers).
    pub(crate) published_in: u64,
    /// Channels that consume (their queues are looked at when the socket drains).
    pub(crate) consumers: u32,
    /// Queues that go with it, with their durable identity.
    pub(crate) exclusive_queues: Vec<(QueueKey, u64)>,
    /// It was over its outgoing limit; its queues wait for the socket.
    pub(crate) starved: bool,
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
            channels: Vec::new(),
            channels_open: 0,
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
            published_in: 0,
            consumers: 0,
            exclusive_queues: Vec::new(),
            starved: false,
            dirty: false,
            waits: Waits::default(),
            close_how: None,
        }
    }

    /// The open or closing channel with this number.
    pub(crate) fn channel(&mut self, number: u16) -> Option<&mut Channel> {
        self.channels.get_mut(usize::from(number))?.as_deref_mut()
    }

    /// Enters a stage.
    pub(crate) fn enter(&mut self, stage: Stage, now_us: u64) {
        self.stage = stage;
        self.stage_us = now_us;
    }

    /// Whether as much as may waits for it to read.
    pub(crate) fn is_brimful(&self) -> bool {
        self.out.len() >= OUT_HARD_BYTES
    }

    /// Whether something that came waits in `partial` although it is whole.
    pub(crate) fn keeps_back(&self) -> bool {
        self.held || self.brimming
    }

    /// Whether any of its channels has as many unconfirmed publishes as one may have.
    pub(crate) fn has_full_channel(&self) -> bool {
        let is_full = |mode: &Mode| matches!(mode, Mode::Confirm(confirms) if confirms.unconfirmed() >= UNCONFIRMED_MAX);
        self.channels.iter().flatten().any(|channel| is_full(&channel.mode))
    }

    /// Whether it is in the middle of a message's content.
    pub(crate) fn is_assembling(&self) -> bool {
        self.channels.iter().flatten().any(|channel| channel.assembly.expects == Expects::Body)
    }

    /// Whether any of its channels holds unacknowledged deliveries.
    pub(crate) fn has_unacked(&self) -> bool {
        self.channels.iter().flatten().any(|channel| channel.unacked.len() > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_overtakes_a_reply_that_waits_for_the_disk() {
        let mut out = Outgoing::default();
        out.buffer().extend_from_slice(b"before");
        out.raise_barrier(4);
        out.buffer().extend_from_slice(b"declare-ok");
        out.raise_barrier(5);
        out.buffer().extend_from_slice(b"commit-ok");
        assert_eq!(out.ready(), b"before");
        out.written(6);
        assert_eq!(out.ready(), b"");
        assert!(out.durable(4));
        assert_eq!(out.ready(), b"declare-ok");
        assert!(out.durable(9));
        assert_eq!(out.ready(), b"declare-okcommit-ok");
        out.written(19);
        assert_eq!(out.len(), 0);
    }
}
