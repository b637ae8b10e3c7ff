//! Additive increase, multiplicative decrease at a latency that somebody must know.
//!
//! ```text
//! per round:  W *= 0.9 if the mean latency exceeds the timeout or a message was refused
//!             W += 1   else, if at least half of W was in flight
//! ```
//!
//! After Netflix's `concurrency-limits` (`AIMDLimit`), once per round instead of once per sample. A baseline:
//! its threshold is what self-tuning is to replace.

use crate::amount::Amount;
use crate::round::Round;
use crate::window::{Load, Phase, Sample, Window, WindowState};

const INITIAL_MESSAGES: f64 = 20.0;
const BACKOFF: f64 = 0.9;

/// The baseline of most connection pools.
#[derive(Debug, Clone)]
pub struct Aimd {
    timeout_us: u64,
    ceiling: Amount,
    window: f64,
    round: Round,
    measured_us: f64,
    refused: bool,
    blocked: bool,
}

impl Aimd {
    /// Backs off when a round's mean exceeds `timeout_us`; never exceeds `ceiling`.
    #[must_use]
    pub fn new(timeout_us: u64, ceiling: Amount) -> Aimd {
        Aimd {
            timeout_us,
            ceiling,
            window: INITIAL_MESSAGES.min(f64::from(ceiling.messages)),
            round: Round::new(0),
            measured_us: 0.0,
            refused: false,
            blocked: false,
        }
    }

    fn steer(&mut self, now_us: u64) {
        let round = std::mem::replace(&mut self.round, Round::new(now_us));
        let Some(mean_us) = round.mean_us() else { return };
        self.measured_us = mean_us;
        if std::mem::take(&mut self.refused) || mean_us > self.timeout_us as f64 {
            self.window *= BACKOFF;
        } else if 2.0 * round.peak_messages() >= self.window {
            self.window += 1.0;
        }
        self.window = self.window.clamp(1.0, f64::from(self.ceiling.messages));
    }
}

impl Window for Aimd {
    fn sent(&mut self, _now_us: u64, load: Load) {
        self.round.set_in_flight(load.in_flight.messages);
    }

    fn confirmed(&mut self, now_us: u64, sample: Sample, _load: Load) {
        self.round.add(sample.rtt_us, false);
        if self.round.ends_with(now_us.saturating_sub(sample.rtt_us)) {
            self.steer(now_us);
        }
    }

    fn rejected(&mut self, _now_us: u64, _load: Load) {
        self.refused = true;
    }

    fn blocked(&mut self, _now_us: u64) {
        self.blocked = true;
    }

    fn unblocked(&mut self, now_us: u64) {
        self.blocked = false;
        self.round = Round::new(now_us);
    }

    fn window(&self) -> Amount {
        Amount::new(self.window as u32, self.ceiling.bytes)
    }

    fn state(&self) -> WindowState {
        let phase = if self.blocked { Phase::Blocked } else { Phase::Steady };
        WindowState {
            target_us: self.timeout_us,
            measured_us: self.measured_us as u64,
            ..WindowState::untimed(self.window, phase)
        }
    }
}
