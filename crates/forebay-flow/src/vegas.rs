//! Vegas: estimate the queue from the least and the present latency, and hold it between two bounds.
//!
//! ```text
//! per round:  queue = W * (1 - least / latency)        step = log10 W
//!             queue <= step         W += beta          alpha = 3 step
//!             queue <  alpha        W += step          beta  = 6 step
//!             queue >  beta         W -= step
//! ```
//!
//! Brakmo and Peterson, "TCP Vegas" (1995), with the bounds of Netflix's `concurrency-limits` (`VegasLimit`),
//! which forgets the least latency every 30 W samples or so. A baseline: under group commit a healthy
//! confirm takes twice the least latency, which Vegas takes for a queue.

use crate::amount::Amount;
use crate::round::Round;
use crate::window::{Load, Phase, Sample, Window, WindowState};

const INITIAL_MESSAGES: f64 = 20.0;
const REBASE_SAMPLES_PER_MESSAGE: f64 = 30.0;

/// The baseline with a measured base and no target.
#[derive(Debug, Clone)]
pub struct Vegas {
    ceiling: Amount,
    window: f64,
    least_us: f64,
    samples: f64, // since the least was forgotten last
    round: Round,
    measured_us: f64,
    refused: bool,
    blocked: bool,
}

impl Vegas {
    /// Never exceeds `ceiling`.
    #[must_use]
    pub fn new(ceiling: Amount) -> Vegas {
        Vegas {
            ceiling,
            window: INITIAL_MESSAGES.min(f64::from(ceiling.messages)),
            least_us: f64::INFINITY,
            samples: 0.0,
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
        if self.samples >= REBASE_SAMPLES_PER_MESSAGE * self.window {
            self.samples = 0.0;
            self.least_us = mean_us;
            return;
        }
        self.least_us = self.least_us.min(mean_us);
        let step = self.window.log10().max(1.0);
        let queue = (self.window * (1.0 - self.least_us / mean_us)).ceil();
        if std::mem::take(&mut self.refused) {
            self.window -= step;
        } else if 2.0 * round.peak_messages() < self.window {
            return;
        } else if queue <= step {
            self.window += 6.0 * step;
        } else if queue < 3.0 * step {
            self.window += step;
        } else if queue > 6.0 * step {
            self.window -= step;
        }
        self.window = self.window.clamp(1.0, f64::from(self.ceiling.messages));
    }
}

impl Window for Vegas {
    fn sent(&mut self, _now_us: u64, load: Load) {
        self.round.set_in_flight(load.in_flight.messages);
    }

    fn confirmed(&mut self, now_us: u64, sample: Sample, _load: Load) {
        self.samples += 1.0;
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
            base_us: if self.least_us.is_finite() { self.least_us as u64 } else { 0 },
            measured_us: self.measured_us as u64,
            ..WindowState::untimed(self.window, phase)
        }
    }
}
