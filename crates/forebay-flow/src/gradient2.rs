//! Gradient2: let the window follow the ratio of the long average latency to the present one.
//!
//! ```text
//! per round:  long      EWMA of the latency over 600 rounds; * 0.95 while it is twice the present one
//!             gradient  clamp(1.5 * long / latency, 0.5, 1)
//!             W         = 0.8 W + 0.2 (W * gradient + 4), if at least half of W was in flight
//! ```
//!
//! After Netflix's `concurrency-limits` (`Gradient2Limit`). A baseline: its base is an average of what it
//! causes itself, so in permanent overload both rise for ever.

use crate::amount::Amount;
use crate::ewma::Ewma;
use crate::round::Round;
use crate::window::{Load, Phase, Sample, Window, WindowState};

const INITIAL_MESSAGES: f64 = 20.0;
const LONG_ROUNDS: f64 = 600.0;
const TOLERANCE: f64 = 1.5;
const QUEUE_MESSAGES: f64 = 4.0;
const SMOOTHING: f64 = 0.2;

/// The baseline without a base.
#[derive(Debug, Clone)]
pub struct Gradient2 {
    ceiling: Amount,
    window: f64,
    long_us: Ewma,
    round: Round,
    measured_us: f64,
    refused: bool,
    blocked: bool,
}

impl Gradient2 {
    /// Never exceeds `ceiling`.
    #[must_use]
    pub fn new(ceiling: Amount) -> Gradient2 {
        Gradient2 {
            ceiling,
            window: INITIAL_MESSAGES.min(f64::from(ceiling.messages)),
            long_us: Ewma::new(2.0 / (LONG_ROUNDS + 1.0)),
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
        self.long_us.add(mean_us);
        let mut long_us = self.long_us.get().unwrap_or(mean_us);
        if long_us > 2.0 * mean_us {
            long_us *= 0.95;
            self.long_us.set(long_us);
        }
        let refused = std::mem::take(&mut self.refused);
        if !refused && 2.0 * round.peak_messages() < self.window {
            return;
        }
        let gradient = if refused { 0.5 } else { (TOLERANCE * long_us / mean_us).clamp(0.5, 1.0) };
        let wanted = self.window * gradient + QUEUE_MESSAGES;
        self.window += SMOOTHING * (wanted - self.window);
        self.window = self.window.clamp(1.0, f64::from(self.ceiling.messages));
    }
}

impl Window for Gradient2 {
    fn sent(&mut self, _now_us: u64, load: Load) {
        self.round.set_in_flight(load.in_flight.messages);
    }

    fn confirmed(&mut self, now_us: u64, sample: Sample, _load: Load) {
        self.round.add(sample.rtt_us.max(1), false);
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
            base_us: self.long_us.get().unwrap_or(0.0) as u64,
            measured_us: self.measured_us as u64,
            ..WindowState::untimed(self.window, phase)
        }
    }
}
