//! One direction of one connection: bytes that are on their way.
//!
//! ```text
//!  push ──▶ [ on the way, each chunk with the time of its arrival ] ──release──▶ [ arrived ] ──taken──▶
//!           └───────────────────── held_bytes_max ─────────────────────────────────────────┘
//! ```

use std::collections::VecDeque;

/// Bytes that have arrived and that nobody has taken, at most; like a receiver's window, so that what is
/// not read does not empty the link.
pub(super) const ARRIVED_BYTES_MAX: usize = 64 << 10;

#[derive(Debug, Default)]
pub(super) struct Lane {
    bytes: VecDeque<u8>,
    /// When each part of `bytes` beyond the arrived ones arrives at the soonest, and how long it is.
    chunks: VecDeque<(u64, usize)>,
    /// At the front of `bytes`.
    arrived: usize,
    /// Of the last chunk: nothing overtakes it.
    last_us: u64,
    /// When the end of the stream arrives, if it was sent; `u64::MAX` once it was taken.
    end_us: Option<u64>,
}

impl Lane {
    pub(super) fn held_bytes(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn push(&mut self, arrival_us: u64, bytes: &[u8]) {
        assert!(self.end_us.is_none(), "bytes after the end of their stream");
        self.last_us = self.last_us.max(arrival_us);
        self.bytes.extend(bytes);
        match self.chunks.back_mut() {
            Some((us, len)) if *us == self.last_us => *len += bytes.len(),
            _ if bytes.is_empty() => {}
            _ => self.chunks.push_back((self.last_us, bytes.len())),
        }
    }

    pub(super) fn push_end(&mut self, arrival_us: u64) {
        self.end_us.get_or_insert(arrival_us.max(self.last_us));
    }

    /// How much of the first chunk could arrive now.
    pub(super) fn due_bytes(&self, now_us: u64) -> usize {
        let room = ARRIVED_BYTES_MAX - self.arrived;
        match self.chunks.front() {
            Some(&(us, len)) if us <= now_us => len.min(room),
            _ => 0,
        }
    }

    /// When something more is due; `None` while there is nothing, or no room for it to arrive.
    pub(super) fn due_us(&self) -> Option<u64> {
        let &(us, _) = self.chunks.front()?;
        (self.arrived < ARRIVED_BYTES_MAX).then_some(us)
    }

    pub(super) fn release(&mut self, bytes: usize) {
        self.arrived += bytes;
        assert!(self.arrived <= ARRIVED_BYTES_MAX);
        let (_, len) = self.chunks.front_mut().expect("what is released was on the way");
        *len -= bytes;
        if *len == 0 {
            self.chunks.pop_front();
        }
    }

    /// The first bytes that have arrived.
    pub(super) fn arrived(&self) -> &[u8] {
        let (front, _) = self.bytes.as_slices();
        &front[..front.len().min(self.arrived)]
    }

    pub(super) fn take(&mut self, bytes: usize) {
        self.arrived = self.arrived.checked_sub(bytes).expect("only what has arrived is taken");
        self.bytes.drain(..bytes);
    }

    /// Whether the end has come and all before it was taken; says so once.
    pub(super) fn take_end(&mut self, now_us: u64) -> bool {
        let over = self.end_us().is_some_and(|us| us <= now_us);
        if over {
            self.end_us = Some(u64::MAX);
        }
        over
    }

    /// When the end comes, if nothing is before it any more and nobody was told of it.
    pub(super) fn end_us(&self) -> Option<u64> {
        self.end_us.filter(|&us| us < u64::MAX && self.bytes.is_empty())
    }
}
