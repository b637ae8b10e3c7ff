//! A consumer: who gets a queue's messages, and how many it may hold.

use std::num::NonZeroU64;

use crate::input::ConnectionId;
use crate::topology::QueueKey;

/// Index of a consumer in the shard's slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ConsumerKey(pub(crate) u32);

/// One `basic.consume`.
#[derive(Debug)]
pub(crate) struct Consumer {
    /// Never reused; tells a stale key from a live one.
    pub(crate) serial: NonZeroU64,
    pub(crate) connection: ConnectionId,
    pub(crate) channel: u16,
    pub(crate) tag: Box<[u8]>,
    pub(crate) queue: QueueKey,
    /// Its place among the queue's consumers.
    pub(crate) place: usize,
    pub(crate) no_ack: bool,
    /// How long it may keep a delivery unacknowledged, in milliseconds; 0 = for ever.
    pub(crate) ack_timeout_ms: u32,
    /// It wants to know when marked messages came and went.
    pub(crate) marks: bool,
    /// Deliveries it may hold unacknowledged; 0 = no limit of its own.
    pub(crate) prefetch: u16,
    /// 0 ≤ unacked; ≤ prefetch when prefetch > 0, but for `basic.qos` never taking effect on a live
    /// consumer.
    pub(crate) unacked: u32,
}

impl Consumer {
    /// Whether its own prefetch leaves room for one more.
    pub(crate) fn has_credit(&self) -> bool {
        self.no_ack || self.prefetch == 0 || self.unacked < u32::from(self.prefetch)
    }
}
