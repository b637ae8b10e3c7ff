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
use crate::baseline::{Baseline, RoundMean, Rule};
use crate::ewma::Ewma;

const LONG_ROUNDS: f64 = 600.0;
const TOLERANCE: f64 = 1.5;
const QUEUE_MESSAGES: f64 = 4.0;
const SMOOTHING: f64 = 0.2;

/// The baseline without a base.
pub type Gradient2 = Baseline<Gradient2Rule>;

/// The formula above.
#[derive(Debug, Clone)]
pub struct Gradient2Rule {
    long_us: Ewma,
}

impl Gradient2 {
    /// Never exceeds `ceiling`.
    #[must_use]
    pub fn new(ceiling: Amount) -> Gradient2 {
        let long_us = Ewma::new(2.0 / (LONG_ROUNDS + 1.0));
        Baseline::with(Gradient2Rule { long_us }, ceiling)
    }
}

impl Rule for Gradient2Rule {
    fn next(&mut self, window: f64, round: &RoundMean, refused: bool) -> f64 {
        self.long_us.add(round.mean_us);
        let mut long_us = self.long_us.get().unwrap_or(round.mean_us);
        if long_us > 2.0 * round.mean_us {
            long_us *= 0.95;
            self.long_us.set(long_us);
        }
        if !refused && !round.used {
            return window;
        }
        let gradient =
            if refused { 0.5 } else { (TOLERANCE * long_us / round.mean_us).clamp(0.5, 1.0) };
        let wanted = window * gradient + QUEUE_MESSAGES;
        window + SMOOTHING * (wanted - window)
    }

    fn beliefs_us(&self) -> (f64, f64) {
        (self.long_us.get().unwrap_or(0.0), 0.0)
    }
}
