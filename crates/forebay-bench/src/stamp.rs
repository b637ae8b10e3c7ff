//! What a body carries: which run it is of, and when it was due and left.
//!
//! ```text
//!   byte 0                8               16
//!        ┌───────────────┬───────────────┬────────────
//!        │ due           │ left          │ filling …      each 8 bytes, lowest first:
//!        └───────────────┴───────────────┴────────────    mark << 44 | microseconds
//! ```
//! A queue may hold messages of another run, or somebody's own: they have no times, or times of another clock. So a run
//! has a mark of 20 bits, and what does not bear it is consumed and not timed.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::in_flight::SentAt;
use crate::spread::Random;

/// Where a body carries its two times.
pub(crate) const STAMP_BYTES: usize = 16;

/// Microseconds of 203 days.
const TIME_BITS: u32 = 44;
const TIME_MASK: u64 = (1 << TIME_BITS) - 1;

/// Which run a message is of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mark(u32);

impl Mark {
    const BITS: u32 = u64::BITS - TIME_BITS;

    /// One that hardly any other run has.
    pub(crate) fn fresh() -> Mark {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let seed = since.as_nanos() as u64 ^ u64::from(std::process::id()) << 32;
        Mark(Random::new(seed).below(1 << Mark::BITS) as u32)
    }

    /// For names.
    pub(crate) fn hex(self) -> String {
        format!("{:05x}", self.0)
    }

    fn with(self, time_us: u64) -> u64 {
        u64::from(self.0) << TIME_BITS | time_us & TIME_MASK
    }

    fn time_of(self, stamp: u64) -> Option<u64> {
        (stamp >> TIME_BITS == u64::from(self.0)).then_some(stamp & TIME_MASK)
    }

    /// Writes both times into a body, or the intended one where there is room for one.
    pub(crate) fn stamp(self, body: &mut [u8], at: SentAt) {
        if body.len() >= 8 {
            body[..8].copy_from_slice(&self.with(at.intended_us).to_le_bytes());
        }
        if body.len() >= STAMP_BYTES {
            body[8..STAMP_BYTES].copy_from_slice(&self.with(at.called_us).to_le_bytes());
        }
    }

    /// Reads what [`stamp`](Self::stamp) wrote; `None`: there was no room for it, or it is not of this run.
    pub(crate) fn read(self, body: &[u8]) -> Option<SentAt> {
        let intended_us = self.time_of(u64::from_le_bytes(*body.first_chunk::<8>()?))?;
        let called = body.get(8..).and_then(|rest| rest.first_chunk::<8>());
        let called_us = match called {
            Some(bytes) => self.time_of(u64::from_le_bytes(*bytes))?,
            None => intended_us,
        };
        Some(SentAt { intended_us, called_us })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_carries_both_times_or_what_fits() {
        let mark = Mark(7);
        let at = SentAt { intended_us: 5, called_us: 9 };
        let mut body = vec![0; 20];
        mark.stamp(&mut body, at);
        assert_eq!(mark.read(&body), Some(at));
        let mut short = vec![0; 8];
        mark.stamp(&mut short, at);
        assert_eq!(mark.read(&short), Some(SentAt { intended_us: 5, called_us: 5 }));
        assert_eq!(mark.read(&[0; 7]), None);
    }

    #[test]
    fn what_another_run_left_and_what_is_somebodys_own_has_no_times() {
        let mut body = vec![0; 16];
        Mark(1).stamp(&mut body, SentAt { intended_us: 5, called_us: 9 });
        assert_eq!(Mark(2).read(&body), None);
        assert_eq!(Mark(1).read(b"{\"order\": 12345678}"), None);
        assert!(Mark(1).read(&[0xff; 16]).is_none() && Mark(1).read(&[b'.'; 16]).is_none());
        let late = SentAt { intended_us: TIME_MASK, called_us: TIME_MASK };
        Mark((1 << Mark::BITS) - 1).stamp(&mut body, late);
        assert_eq!(Mark((1 << Mark::BITS) - 1).read(&body), Some(late));
    }
}
