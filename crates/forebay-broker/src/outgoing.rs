//! What waits for a client to read it: answers to what it asked, and deliveries.

use std::collections::VecDeque;
use std::sync::Arc;

use forebay_store::BatchNo;
use forebay_wire::{RawProperties, WireMethod};

use crate::content::{BodyRest, Way};
use crate::input::ConnectionId;
use crate::memory::another;
use crate::message::Message;
use crate::shard::Shard;
use crate::topology::QueueKey;
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
///
/// ```text
///   begun      begun + sent                                              end     places in all that it was ever sent
///     │ written     │ bytes         │ rest of a body │ bytes │ …          │
///     └──────── `bytes` ────────────┘ └──────────── `behind` ────────────┘
/// ```
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    bytes: Vec<u8>,
    /// `0 ≤ sent ≤ bytes.len()`, and less while something is behind.
    sent: usize,
    /// What follows `bytes`, in turn.
    behind: VecDeque<Behind>,
    /// Where `bytes` begin.
    begun: u64,
    /// What it held when it was last emptied, in bytes, as far as it may be kept: as much as it will need again.
    needed: usize,
    /// (batch, place), both rising.
    barriers: VecDeque<(BatchNo, u64)>,
    /// The last delivery, from where to where. Nothing is delivered while there is as much as
    /// [`OUT_SOFT_MAX_BYTES`], so those before it have less than that left, and need not be known.
    delivery: (u64, u64),
}

#[derive(Debug)]
enum Behind {
    Body(BodyRest),
    Bytes(Vec<u8>),
}

impl Behind {
    fn len(&self) -> usize {
        match self {
            Behind::Body(rest) => rest.len(),
            Behind::Bytes(bytes) => bytes.len(),
        }
    }
}

impl Outgoing {
    /// Where to encode into.
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        if let Some(Behind::Body(_)) = self.behind.back() {
            self.behind.push_back(Behind::Bytes(Vec::new()));
        }
        match self.behind.back_mut() {
            Some(Behind::Bytes(bytes)) => bytes,
            _ => &mut self.bytes,
        }
    }

    /// Before deliveries, which need room: where somebody else's were a moment ago.
    pub(crate) fn make_room(&mut self, warm: &mut Warm) {
        if self.bytes.capacity() == 0 && self.needed > 0 {
            self.bytes = warm.take(self.needed);
        }
    }

    /// Encodes a method with a message as its content. What does not fit into a piece is a reference to it, counted in
    /// `memory_bytes` until it is written; true if there is one. `left`: see [`BodyRest`].
    #[inline]
    pub(crate) fn message(
        &mut self,
        way: Way,
        method: &impl WireMethod,
        raw: Option<RawProperties<'_>>,
        (message, left): (&Arc<Message>, Option<(QueueKey, u64)>),
        memory_bytes: &mut u64,
    ) -> bool {
        let raw = raw.unwrap_or_else(|| RawProperties::trusted(message.raw_properties()));
        let Some(rest) = way.write(self.buffer(), method, raw, message.body()) else {
            return false;
        };
        let rest = rest.of(another(memory_bytes, message), left);
        self.behind.push_back(Behind::Body(rest));
        true
    }

    /// The end of all that it was ever sent, and is to be.
    #[inline]
    pub(crate) fn end(&self) -> u64 {
        self.begun + (self.bytes.len() + self.behind_bytes()) as u64
    }

    #[inline]
    fn behind_bytes(&self) -> usize {
        if self.behind.is_empty() {
            return 0;
        }
        self.behind.iter().map(Behind::len).sum()
    }

    /// What was encoded from `at` on is a delivery; of how many bytes.
    pub(crate) fn delivered(&mut self, at: u64) -> usize {
        let end = self.end();
        debug_assert!(self.begun + self.sent as u64 <= at && at <= end);
        self.delivery = (at, end);
        (end - at) as usize
    }

    /// Bytes not written that are no delivery: answers to what the client asked. Less than [`OUT_SOFT_MAX_BYTES`] of it may
    /// be deliveries all the same.
    #[inline]
    pub(crate) fn asked(&self) -> usize {
        let (from, to) = self.delivery;
        self.len() - to.saturating_sub(from.max(self.begun + self.sent as u64)) as usize
    }

    /// What follows waits for `batch`.
    pub(crate) fn raise_barrier(&mut self, batch: BatchNo) {
        if self.barriers.back().is_none_or(|(last, _)| *last < batch) {
            self.barriers.push_back((batch, self.end()));
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
        let end = self.barriers.front().map_or(usize::MAX, |(_, at)| (at - self.begun) as usize);
        &self.bytes[self.sent..end.min(self.bytes.len())]
    }

    /// All that may leave before anything more is synced, without the first `from` bytes of it.
    fn ready_from(&self, from: usize) -> Vec<u8> {
        let mut ready = self.bytes[self.sent..].to_vec();
        for behind in &self.behind {
            match behind {
                Behind::Body(rest) => rest.write_all(&mut ready),
                Behind::Bytes(bytes) => ready.extend_from_slice(bytes),
            }
        }
        debug_assert_eq!(ready.len(), self.len());
        if let Some((_, at)) = self.barriers.front() {
            ready.truncate((at - self.begun) as usize - self.sent);
        }
        ready.split_off(from.min(ready.len()))
    }

    /// Bytes not written, whether they may be or not.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.sent + self.behind_bytes()
    }

    /// The first `count` bytes of [`Outgoing::ready`] were written, after which what comes behind them is. Bodies that are
    /// sent go to `sent`. Returns the buffer if nothing is left: others may have it meanwhile.
    pub(crate) fn written(&mut self, count: usize, sent: &mut Vec<BodyRest>) -> Option<Vec<u8>> {
        debug_assert!(count <= self.ready().len());
        self.sent += count;
        while self.sent == self.bytes.len()
            && let Some(next) = self.behind.pop_front()
        {
            self.begin_at_sent();
            match next {
                Behind::Bytes(bytes) => self.bytes = bytes,
                Behind::Body(mut rest) => match rest.write_piece(&mut self.bytes) {
                    true => self.behind.push_front(Behind::Body(rest)),
                    false => sent.push(rest),
                },
            }
        }
        if self.sent == self.bytes.len() {
            self.needed = self.bytes.len().min(OUT_KEEP_BYTES);
            self.begin_at_sent();
            let buffer = std::mem::take(&mut self.bytes);
            // Who sends so little has little to gain, and the others' would be among many.
            return (buffer.capacity() > OUT_SMALL_BYTES).then_some(buffer);
        } else if self.sent >= OUT_SOFT_MAX_BYTES && self.sent * 2 >= self.bytes.len() {
            self.begin_at_sent();
        }
        None
    }

    /// What was written is no longer in `bytes`. Moves the rest: at most as many bytes as were written since the last move.
    fn begin_at_sent(&mut self) {
        self.begun += self.sent as u64;
        self.bytes.drain(..self.sent);
        self.sent = 0;
    }

    /// Nothing more is written: the bodies that were not sent.
    pub(crate) fn into_unsent(self) -> impl Iterator<Item = BodyRest> {
        self.behind.into_iter().filter_map(|behind| match behind {
            Behind::Body(rest) => Some(rest),
            Behind::Bytes(_) => None,
        })
    }

    /// Capacity held, in bytes.
    pub(crate) fn capacity(&self) -> usize {
        let behind = self.behind.iter().map(|behind| match behind {
            Behind::Body(_) => 0,
            Behind::Bytes(bytes) => bytes.capacity(),
        });
        self.bytes.capacity() + behind.sum::<usize>()
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

    /// Bytes that wait for a connection, whether they may be written now or not.
    pub fn unsent_bytes(&self, id: ConnectionId) -> usize {
        match self.connections.get(id.0 as usize) {
            Some(Some(connection)) => connection.out.len(),
            _ => 0,
        }
    }

    /// What will be [`Shard::outgoing`], piece after piece, if nothing more comes of the disk, without its first `from` bytes. It is
    /// copied: for tests, which look at all that is said as soon as it is.
    pub fn unsent(&self, id: ConnectionId, from: usize) -> Vec<u8> {
        match self.connections.get(id.0 as usize) {
            Some(Some(connection)) => connection.out.ready_from(from),
            _ => Vec::new(),
        }
    }

    /// The shell has written so much.
    pub(crate) fn sent(&mut self, id: ConnectionId, bytes: usize) {
        let now_us = self.now_us;
        let soft = self.out_soft_bytes();
        let mut bodies = Vec::new();
        let Some(connection) = self.connection(id) else { return };
        if connection.is_brimful() {
            // All that can be heard of it, because it is not read.
            connection.received_us = now_us;
        }
        if let Some(spare) = connection.out.written(bytes, &mut bodies) {
            self.warm_out.give(spare);
        }
        bodies.into_iter().for_each(|body| self.body_left(body));
        let Some(connection) = self.connection(id) else { return };
        connection.sent_us = now_us;
        if connection.starved && connection.out.len() < soft {
            connection.starved = false;
            connection.waits.end(Gate::Socket, now_us);
            self.mark_queues_of(id);
        }
        self.resume_gets(id);
    }

    /// A body is sent, or nobody is there to read it any more.
    pub(crate) fn body_left(&mut self, body: BodyRest) {
        if let Some((key, id)) = body.left
            && let Some(queue) = self.queues.get_mut(key.0 as usize)
            && queue.id == id
        {
            queue.unsettled_bytes -= body.message.memory_bytes();
            self.holds_less(key);
        }
        self.release(body.message);
    }

    /// The queues that this connection consumes from may go on.
    fn mark_queues_of(&mut self, id: ConnectionId) {
        let Some(connection) = self.connection(id) else { return };
        connection.rooms_told = connection.rooms_told.wrapping_add(1);
        let first = connection.rooms_told;
        let keys: Vec<_> =
            connection.channels.iter().flat_map(|c| c.consumers.iter().copied()).collect();
        self.mark_queues_in_turn(&keys, first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::release;
    use proptest::prelude::*;

    #[test]
    fn nothing_overtakes_a_reply_that_waits_for_the_disk() {
        let mut out = Outgoing::default();
        out.buffer().extend_from_slice(b"before");
        out.raise_barrier(4);
        out.buffer().extend_from_slice(b"declare-ok");
        out.raise_barrier(5);
        out.buffer().extend_from_slice(b"commit-ok");
        assert_eq!(out.ready(), b"before");
        out.written(6, &mut Vec::new());
        assert_eq!(out.ready(), b"");
        assert!(out.durable(4));
        assert_eq!(out.ready(), b"declare-ok");
        assert!(out.durable(9));
        assert_eq!(out.ready(), b"declare-okcommit-ok");
        out.written(19, &mut Vec::new());
        assert_eq!(out.len(), 0);
    }

    #[test]
    fn what_is_asked_for_is_counted_apart_from_what_is_delivered() {
        let mut out = Outgoing::default();
        let write = |out: &mut Outgoing, bytes: usize, delivers: bool| {
            let at = out.end();
            let buffer = out.buffer();
            buffer.resize(buffer.len() + bytes, 7);
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
            out.written(written, &mut Vec::new());
            assert_eq!(out.asked(), asked);
        }
        write(&mut out, 400_000, true);
        assert_eq!((out.asked(), out.len()), (3_000, 403_000));
        out.written(403_000, &mut Vec::new());
        write(&mut out, 9_000, false);
        assert_eq!(out.asked(), 9_000);
    }

    proptest! {
        /// Whatever is said, synced and read in which order: it arrives as it was said, in pieces, and messages are counted
        /// until they have left.
        #[test]
        fn all_arrives_in_order_and_in_pieces(
            steps in prop::collection::vec((0..5_u8, 0..60_000_usize), 1..80),
            frame_max in prop::sample::select(vec![0_u32, 4_096, 20_000, 131_072]),
            soft in prop::sample::select(vec![16_384_usize, 50_000, 262_144]),
        ) {
            let (mut out, mut memory, mut warm) = (Outgoing::default(), 0_u64, Warm::default());
            let (mut said, mut arrived, mut sent) = (Vec::new(), Vec::new(), Vec::new());
            let (mut batch, mut synced, mut barriers) = (0, 0, Vec::new());
            for (step, size) in steps {
                match step {
                    0 => {
                        let byte = size as u8;
                        let buffer = out.buffer();
                        buffer.resize(buffer.len() + size % 300, byte);
                        said.resize(said.len() + size % 300, byte);
                    }
                    1 | 2 => {
                        let mut bytes = Message::start(b"", b"q", &[0, 0], size);
                        bytes.extend((0..size).map(|at| (at ^ size) as u8));
                        let message = Message::from_bytes(bytes);
                        memory += message.memory_bytes();
                        let message = Arc::new(message);
                        let way = Way::new(3, frame_max, soft);
                        let method = forebay_wire::basic::GetEmpty::default();
                        let before = out.end();
                        out.message(way, &method, None, (&message, None), &mut memory);
                        prop_assert_eq!(out.end(), before + encoded(&message, way, &mut said));
                        release(&mut memory, &mut warm, message);
                    }
                    3 => {
                        batch += 1;
                        out.raise_barrier(batch);
                        barriers.push((batch, said.len()));
                    }
                    _ => {
                        if size % 3 == 0 && synced < batch {
                            synced += 1;
                            out.durable(synced);
                        }
                        let ready = out.ready();
                        prop_assert!(
                            ready.len() <= said.len() - arrived.len() && ready.len() <= out.len()
                        );
                        let count = ready.len().min(size);
                        arrived.extend_from_slice(&ready[..count]);
                        out.written(count, &mut sent);
                    }
                }
                prop_assert_eq!(out.len(), said.len() - arrived.len());
                let until = barriers.iter().find(|(waits, _)| *waits > synced);
                let until = until.map_or(said.len(), |(_, at)| *at);
                prop_assert_eq!(&out.ready_from(0), &said[arrived.len()..until]);
                prop_assert!(!out.ready().is_empty() || arrived.len() == until);
            }
            out.durable(batch);
            while out.len() > 0 {
                arrived.extend_from_slice(out.ready());
                out.written(out.ready().len(), &mut sent);
            }
            prop_assert_eq!(arrived, said);
            for body in sent {
                release(&mut memory, &mut warm, body.message);
            }
            prop_assert_eq!(memory, 0);
        }
    }

    /// The same at once; how much it is.
    fn encoded(message: &Message, way: Way, out: &mut Vec<u8>) -> u64 {
        let before = out.len();
        let method = forebay_wire::basic::GetEmpty::default();
        let raw = RawProperties::trusted(message.raw_properties());
        if let Some(rest) = way.write(out, &method, raw, message.body()) {
            let bytes = message.as_stored().to_vec();
            rest.of(Arc::new(Message::from_bytes(bytes)), None).write_all(out);
        }
        (out.len() - before) as u64
    }
}
