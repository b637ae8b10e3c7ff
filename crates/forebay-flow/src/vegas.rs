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
use crate::baseline::{Baseline, RoundMean, Rule};

const REBASE_SAMPLES_PER_MESSAGE: f64 = 30.0;

/// The baseline with a measured base and no target.
pub type Vegas = Baseline<VegasRule>;

/// The formula above.
#[derive(Debug, Clone)]
pub struct VegasRule {
    least_us: f64,
    samples: f64, // since the least was forgotten last
}

impl Vegas {
    /// Never exceeds `ceiling`.
    #[must_use]
    pub fn new(ceiling: Amount) -> Vegas {
        Baseline::with(VegasRule { least_us: f64::INFINITY, samples: 0.0 }, ceiling)
    }
}

impl Rule for VegasRule {
    fn next(&mut self, window: f64, round: &RoundMean, refused: bool) -> f64 {
        self.samples += f64::from(round.samples);
        if self.samples >= REBASE_SAMPLES_PER_MESSAGE * window {
            self.samples = 0.0;
            self.least_us = round.mean_us;
            return window;
        }
        self.least_us = self.least_us.min(round.mean_us);
        let step = window.log10().max(1.0);
        let queue = (window * (1.0 - self.least_us / round.mean_us)).ceil();
        if refused {
            window - step
        } else if !round.used {
            window
        } else if queue <= step {
            window + 6.0 * step
        } else if queue < 3.0 * step {
            window + step
        } else if queue > 6.0 * step {
            window - step
        } else {
            window
        }
    }

    fn beliefs_us(&self) -> (f64, f64) {
        (if self.least_us.is_finite() { self.least_us } else { 0.0 }, 0.0)
    }
}
