//! Where received bytes wait until they make whole frames.
//!
//! ```text
//!   0        start              end            capacity (fixed)
//!   ├─ spent ──┼─ pending frames ─┼─ spare ───────┤
//! ```
//! The buffer never grows: a frame is at most `frame_bytes_max`, and room for one is kept by moving
//! the (short) rest to the front when less than half is spare.

/// A fixed buffer between a socket and [`Machine::poll_event`](crate::machine::Machine::poll_event).
#[derive(Debug)]
pub struct ReceiveBuffer {
    bytes: Vec<u8>,
    /// start ≤ end ≤ bytes.len()
    start: usize,
    end: usize,
}

impl ReceiveBuffer {
    /// A buffer of at least `capacity_bytes`, and of at least two frames of `frame_bytes_max`.
    pub fn new(capacity_bytes: usize, frame_bytes_max: u32) -> ReceiveBuffer {
        let capacity_bytes = capacity_bytes.max(2 * frame_bytes_max as usize);
        ReceiveBuffer { bytes: vec![0; capacity_bytes], start: 0, end: 0 }
    }

    /// What was received and not yet consumed.
    pub fn pending(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// The first `count` pending bytes were used.
    pub fn consume(&mut self, count: usize) {
        self.start = (self.start + count).min(self.end);
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
    }

    /// Room for the next read; never empty while less than half of the capacity is pending.
    pub fn spare(&mut self) -> &mut [u8] {
        if self.bytes.len() - self.end < self.bytes.len() / 2 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        &mut self.bytes[self.end..]
    }

    /// A read put `count` bytes into the spare room.
    pub fn filled(&mut self, count: usize) {
        self.end = (self.end + count).min(self.bytes.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rest_survives_and_room_never_ends() {
        let mut buffer = ReceiveBuffer::new(64, 8);
        let mut fed = 0_u8;
        let mut seen = 0_u8;
        for _ in 0..1000 {
            let spare = buffer.spare();
            assert!(!spare.is_empty());
            let count = spare.len().min(7);
            for byte in &mut spare[..count] {
                *byte = fed;
                fed = fed.wrapping_add(1);
            }
            buffer.filled(count);
            let take = buffer.pending().len().saturating_sub(3);
            for &byte in &buffer.pending()[..take] {
                assert_eq!(byte, seen);
                seen = seen.wrapping_add(1);
            }
            buffer.consume(take);
        }
    }
}
