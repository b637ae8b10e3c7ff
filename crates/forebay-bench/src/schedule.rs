//! When the messages of one publisher are due.
//!
//! ```text
//!   rate        1000:2 ──┐     ┌── 1000:2         pieces of RATE:SECONDS, one after the other, and again
//!                        └─────┘ 100:1
//!   message k   is due when the area under the rate since the start has reached k
//! ```
//! A due time does not depend on what happened before: who waits for a broker is late, not rescheduled, and
//! the waiting counts as latency.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A rate for some time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RatePiece {
    /// Messages a second, from 0 on.
    pub rate: f64,
    /// For so many seconds, above 0.
    pub seconds: f64,
}

impl FromStr for RatePiece {
    type Err = String;

    fn from_str(text: &str) -> Result<RatePiece, String> {
        let wrong = || format!("`{text}` is not RATE:SECONDS, for instance 1000:60");
        let (rate, seconds) = text.split_once(':').ok_or_else(wrong)?;
        let rate: f64 = rate.parse().map_err(|_| wrong())?;
        let seconds: f64 = seconds.parse().map_err(|_| wrong())?;
        let sane = rate.is_finite() && rate >= 0.0 && seconds.is_finite() && seconds > 0.0;
        if sane { Ok(RatePiece { rate, seconds }) } else { Err(wrong()) }
    }
}

/// The due times of one publisher.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Schedule {
    start_us: u64,
    /// Empty: every message is due at once.
    pieces: Vec<RatePiece>,
    cycle_messages: f64,
    cycle_us: f64,
}

impl Schedule {
    /// A constant `rate`, or the `profile` if there is one; without either every message is due at once.
    pub(crate) fn new(rate: f64, profile: &[RatePiece]) -> Schedule {
        let pieces = match profile {
            [] if rate > 0.0 => vec![RatePiece { rate, seconds: 1.0 }],
            pieces => pieces.to_vec(),
        };
        let cycle_messages = pieces.iter().map(|piece| piece.rate * piece.seconds).sum();
        let cycle_us = pieces.iter().map(|piece| piece.seconds * 1e6).sum();
        Schedule { start_us: 0, pieces, cycle_messages, cycle_us }
    }

    /// Begins; publisher `number` of so many is shifted so that together they publish evenly.
    pub(crate) fn start(&mut self, now_us: u64, number: usize, of: usize) {
        let first = self.pieces.iter().find(|piece| piece.rate > 0.0);
        let interval_us = first.map_or(0.0, |piece| 1e6 / piece.rate);
        self.start_us = now_us + (interval_us * number as f64 / of as f64) as u64;
    }

    /// Whether messages have due times.
    pub(crate) fn is_paced(&self) -> bool {
        !self.pieces.is_empty()
    }

    /// When message `k`, from 0 on, is due; `None`: at once.
    pub(crate) fn due_us(&self, k: u64) -> Option<u64> {
        if let [only] = self.pieces[..] {
            return Some(self.start_us + (k as f64 * 1e6 / only.rate) as u64);
        }
        if !self.is_paced() {
            return None;
        }
        let cycles = (k as f64 / self.cycle_messages).floor();
        let mut left = k as f64 - cycles * self.cycle_messages;
        let mut at_us = cycles * self.cycle_us;
        for piece in &self.pieces {
            let messages = piece.rate * piece.seconds;
            if left < messages {
                at_us += left * 1e6 / piece.rate;
                break;
            }
            left -= messages;
            at_us += piece.seconds * 1e6;
        }
        Some(self.start_us + at_us as u64)
    }

    /// How many messages are due by then; `None`: any number.
    pub(crate) fn due_by(&self, now_us: u64) -> Option<u64> {
        if !self.is_paced() {
            return None;
        }
        let Some(elapsed_us) = now_us.checked_sub(self.start_us) else { return Some(0) };
        let cycles = (elapsed_us as f64 / self.cycle_us).floor();
        let mut left_us = elapsed_us as f64 - cycles * self.cycle_us;
        let mut messages = cycles * self.cycle_messages;
        for piece in &self.pieces {
            let us = left_us.min(piece.seconds * 1e6);
            messages += piece.rate * us / 1e6;
            left_us -= us;
        }
        // Message 0 is due at the start.
        Some(messages as u64 + 1)
    }

    /// Messages a second over whole cycles; `None`: as many as possible.
    pub(crate) fn mean_rate(&self) -> Option<f64> {
        self.is_paced().then(|| self.cycle_messages * 1e6 / self.cycle_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_constant_rate_is_evenly_spaced_and_publishers_share_the_interval() {
        let mut schedule = Schedule::new(1_000.0, &[]);
        schedule.start(5_000, 1, 4);
        let due: Vec<_> = (0..3).filter_map(|k| schedule.due_us(k)).collect();
        assert_eq!(due, [5_250, 6_250, 7_250]);
        assert_eq!(schedule.due_us(3_600_000), Some(5_250 + 3_600_000_000));
        assert_eq!((schedule.due_by(5_249), schedule.due_by(7_250)), (Some(0), Some(3)));
    }

    #[test]
    fn without_a_rate_everything_is_due_at_once() {
        let schedule = Schedule::new(0.0, &[]);
        assert_eq!(
            (schedule.due_us(7), schedule.due_by(9), schedule.mean_rate()),
            (None, None, None)
        );
    }

    #[test]
    fn a_profile_repeats_and_may_hold_silences() {
        let profile: Vec<RatePiece> =
            ["10:1", "0:2", "20:0.5"].iter().map(|piece| piece.parse().unwrap()).collect();
        let mut schedule = Schedule::new(0.0, &profile);
        schedule.start(0, 0, 1);
        let ms = |k| schedule.due_us(k).unwrap() / 1_000;
        assert_eq!([ms(0), ms(9), ms(10), ms(11), ms(19)], [0, 900, 3_000, 3_050, 3_450]);
        assert_eq!([ms(20), ms(30)], [3_500, 6_500]);
        assert_eq!(schedule.due_by(2_000_000), Some(11));
        assert_eq!(schedule.mean_rate(), Some(20.0 / 3.5));
    }

    #[test]
    fn how_many_are_due_agrees_with_when_they_are() {
        let profile =
            [RatePiece { rate: 70.0, seconds: 1.3 }, RatePiece { rate: 3.0, seconds: 2.0 }];
        let mut schedule = Schedule::new(0.0, &profile);
        schedule.start(123, 0, 1);
        for k in 0..500 {
            let due_us = schedule.due_us(k).unwrap();
            let by = schedule.due_by(due_us + 2).unwrap();
            assert!(by > k && by <= k + 2, "message {k} is due at {due_us}, {by} are by then");
        }
    }

    #[test]
    fn a_piece_is_refused_with_an_example() {
        for text in ["", "5", "x:1", "1:0", "-1:2", "1:inf"] {
            assert!(text.parse::<RatePiece>().unwrap_err().contains("1000:60"), "{text}");
        }
    }
}
