//! What waits for a client to read it: answers to what it asked, and deliveries.

use std::collections::VecDeque;

use forebay_store::BatchNo;

use crate::input::ConnectionId;
use crate::shard::Shard;
use crate::waits::Gate;
use crate::warm::Warm;

/// Above this many outgoing bytes a connection gets no more deliveries (when few connections consume;
/// see `Shard::out_soft_bytes`).
pub(crate) const OUT_SOFT_MAX_BYTES: usize = 256 * 1024;

/// A connection that sent more at a time begins with a buffer of this size.
const OUT_KEEP_BYTES: usize = 64 * 1024;

/// A buffer this small is not kept for the next.
const OUT_SMALL_BYTES: usize = 4 * 1024;

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
    /// The last delivery, from where to where in `bytes`. Nothing is delivered while there is as much as
    /// [`OUT_SOFT_MAX_BYTES`], so those before it have less than that left, and need not be known.
    delivery: (usize, usize),
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

    /// What was encoded from `at` on is a delivery.
    pub(crate) fn delivered(&mut self, at: usize) {
        debug_assert!(self.sent <= at && at <= self.bytes.len());
        self.delivery = (at, self.bytes.len());
    }

    /// Bytes not written that are no delivery: answers to what the client asked. Less than [`OUT_SOFT_MAX_BYTES`] of it may
    /// be deliveries all the same.
    pub(crate) fn asked(&self) -> usize {
        let (from, to) = self.delivery;
        self.len() - to.saturating_sub(from.max(self.sent))
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

    /// Whether something may not leave before a batch is synced.
    pub(crate) fn waits_for_disk(&self) -> bool {
        !self.barriers.is_empty()
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
            self.needed = self.bytes.len().min(OUT_KEEP_BYTES);
            self.begin_at_sent();
            let buffer = std::mem::take(&mut self.bytes);
            // Who sends so little has little to gain, and the others' would be among many.
            return (buffer.capacity() > OUT_SMALL_BYTES).then_some(buffer);
        } else if self.sent >= OUT_SOFT_MAX_BYTES && self.sent * 2 >= self.bytes.len() {
            // Moves at most as many bytes as were written since the last move.
            self.bytes.drain(..self.sent);
            self.begin_at_sent();
        }
        None
    }

    /// What was written is no longer in `bytes`.
    fn begin_at_sent(&mut self) {
        for (_, at) in &mut self.barriers {
            *at -= self.sent;
        }
        let (from, to) = self.delivery;
        self.delivery = (from.saturating_sub(self.sent), to.saturating_sub(self.sent));
        self.sent = 0;
    }

    /// Capacity held, in bytes.
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }
}

impl Shard {
    /// There is something to send to this connection.
    pub(crate) fn mark_connection(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connection(id)
            && !connection.dirty
        {
            connection.dirty = true;
            self.dirty_connections.push_back(id);
        }
    }

    /// The shell has written so much.
    pub(crate) fn sent(&mut self, id: ConnectionId, bytes: usize) {
        let now_us = self.now_us;
        let soft = self.out_soft_bytes();
        let Some(connection) = self.connection(id) else { return };
        if connection.is_brimful() {
            // All that can be heard of it, because it is not read.
            connection.received_us = now_us;
        }
        if let Some(spare) = connection.out.written(bytes) {
            self.warm_out.give(spare);
        }
        let Some(connection) = self.connection(id) else { return };
        connection.sent_us = now_us;
        if connection.starved && connection.out.len() < soft {
            connection.starved = false;
            connection.waits.end(Gate::Socket, now_us);
            self.mark_queues_of(id);
        }
        self.resume_gets(id);
    }

    /// The queues that this connection consumes from may go on.
    fn mark_queues_of(&mut self, id: ConnectionId) {
        let Some(connection) = self.connection(id) else { return };
        let keys: Vec<_> =
            connection.channels.iter().flat_map(|c| c.consumers.iter().copied()).collect();
        for key in keys {
            if let Some(consumer) = self.consumers.get(key.0 as usize) {
                self.mark_queue(consumer.queue);
            }
        }
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

    #[test]
    fn what_is_asked_for_is_counted_apart_from_what_is_delivered() {
        let mut out = Outgoing::default();
        let write = |out: &mut Outgoing, bytes: usize, delivers: bool| {
            let at = out.buffer().len();
            out.buffer().resize(at + bytes, 7);
            if delivers {
                out.delivered(at);
            }
        };
        write(&mut out, 1_000, false);
        write(&mut out, 2_000_000, true);
        write(&mut out, 5_000, false);
        assert_eq!(out.asked(), 6_000);
        // Half of the buffer goes, with what was written of it.
        for (written, asked) in
            [(1_000, 5_000), (1_500_000, 5_000), (500_000, 5_000), (2_000, 3_000)]
        {
            out.written(written);
            assert_eq!(out.asked(), asked);
        }
        write(&mut out, 400_000, true);
        assert_eq!((out.asked(), out.len()), (3_000, 403_000));
        out.written(403_000);
        write(&mut out, 9_000, false);
        assert_eq!(out.asked(), 9_000);
    }
}
