//! When the unconfirmed messages of one publisher were due and when they were handed over.

use std::collections::VecDeque;

/// The two moments from which a latency can be counted, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SentAt {
    /// When it was due.
    pub(crate) intended_us: u64,
    /// When it was written to the connection's buffer.
    pub(crate) called_us: u64,
}

/// Marks a message that was settled before an older one.
const SETTLED: SentAt = SentAt { intended_us: u64::MAX, called_us: u64::MAX };

/// Bounded by the publisher's window, and by how far confirms come out of order.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    /// Of the sequence numbers from `base` on; the first is not settled.
    sent: VecDeque<SentAt>,
    base: u64,
    open: u64,
}

impl InFlight {
    /// The message with this sequence number, the next one, was written.
    pub(crate) fn sent(&mut self, sequence: u64, at: SentAt) {
        if self.sent.is_empty() {
            self.base = sequence;
        }
        debug_assert_eq!(
            sequence,
            self.base + self.sent.len() as u64,
            "sequence numbers have no gaps"
        );
        self.sent.push_back(at);
        self.open += 1;
    }

    /// Not settled yet.
    pub(crate) fn open(&self) -> u64 {
        self.open
    }

    /// These were settled; `each` hears of every one, oldest first.
    pub(crate) fn settle(&mut self, first: u64, last: u64, mut each: impl FnMut(SentAt)) {
        for sequence in first..=last {
            let index = (sequence - self.base) as usize;
            each(std::mem::replace(&mut self.sent[index], SETTLED));
            self.open -= 1;
        }
        while self.sent.front() == Some(&SETTLED) {
            self.sent.pop_front();
            self.base += 1;
        }
    }

    /// The oldest one was answered.
    pub(crate) fn settle_oldest(&mut self) {
        if self.open > 0 {
            self.settle(self.base, self.base, drop);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> SentAt {
        SentAt { intended_us: us, called_us: us + 1 }
    }

    #[test]
    fn confirms_in_any_order_find_their_times() {
        let mut in_flight = InFlight::default();
        for sequence in 1..=5 {
            in_flight.sent(sequence, at(sequence * 10));
        }
        let mut seen = Vec::new();
        in_flight.settle(3, 4, |at| seen.push(at.intended_us));
        assert_eq!((in_flight.open(), in_flight.sent.len()), (3, 5));
        in_flight.settle(1, 2, |at| seen.push(at.intended_us));
        assert_eq!((in_flight.open(), in_flight.sent.len()), (1, 1), "nothing settled is kept");
        in_flight.sent(6, at(60));
        in_flight.settle(5, 6, |at| seen.push(at.called_us));
        assert_eq!(seen, [30, 40, 10, 20, 51, 61]);
        assert_eq!(in_flight.open(), 0);
        in_flight.settle_oldest();
        in_flight.sent(7, at(70));
        in_flight.settle_oldest();
        assert_eq!(in_flight.open(), 0);
    }
}
