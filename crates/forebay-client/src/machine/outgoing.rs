//! Bytes on their way to the peer.
//!
//! ```text
//!   0          sent                 len        capacity (kept between uses)
//!   ├── gone ───┼── waiting ─────────┼── spare ──┤
//! ```
//! Encoders append at the end and the shell takes from `sent`. What is gone is cut off once it is
//! both large and at least half of the buffer, so each byte is moved at most once on average.

/// Gone bytes below which the buffer is not worth compacting.
const COMPACT_BYTES_MIN: usize = 64 * 1024;

/// The send buffer. Its bound is kept by [`Machine::publish`](super::Machine::publish).
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    bytes: Vec<u8>,
    /// 0 ≤ sent ≤ bytes.len()
    sent: usize,
}

impl Outgoing {
    /// Where encoders append.
    pub(super) fn tail(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// What waits to be sent, oldest first.
    pub(super) fn waiting(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    /// How many bytes wait.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Hands all that waits over in exchange for `empty`, whose memory is used from here on.
    pub(super) fn swap(&mut self, empty: &mut Vec<u8>) {
        debug_assert!(empty.is_empty());
        self.bytes.drain(..self.sent);
        self.sent = 0;
        std::mem::swap(&mut self.bytes, empty);
    }

    /// The first `count` waiting bytes are with the peer now.
    pub(super) fn sent(&mut self, count: usize) {
        self.sent = (self.sent + count).min(self.bytes.len());
        if self.sent == self.bytes.len() {
            self.bytes.clear();
            self.sent = 0;
        } else if self.sent >= COMPACT_BYTES_MIN && self.sent * 2 >= self.bytes.len() {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_sends_keep_the_order_and_lose_nothing() {
        let mut outgoing = Outgoing::default();
        let mut seen = Vec::new();
        let mut next = 0_u32;
        for round in 0..2000_usize {
            for _ in 0..100 {
                outgoing.tail().extend_from_slice(&next.to_be_bytes());
                next += 1;
            }
            let take = outgoing.len().min(round % 801);
            seen.extend_from_slice(&outgoing.waiting()[..take]);
            outgoing.sent(take);
        }
        seen.extend_from_slice(outgoing.waiting());
        let numbers: Vec<u32> =
            seen.chunks(4).map(|four| u32::from_be_bytes(four.try_into().unwrap())).collect();
        assert_eq!(numbers, (0..next).collect::<Vec<_>>());
    }
}
