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
use crate::baseline::{Baseline, RoundMean, Rule};

const BACKOFF: f64 = 0.9;

/// The baseline of most connection pools.
pub type Aimd = Baseline<AimdRule>;

/// The formula above.
#[derive(Debug, Clone)]
pub struct AimdRule {
    timeout_us: u64,
}

impl Aimd {
    /// Backs off when a round's mean exceeds `timeout_us`; never exceeds `ceiling`.
    #[must_use]
    pub fn new(timeout_us: u64, ceiling: Amount) -> Aimd {
        Baseline::with(AimdRule { timeout_us }, ceiling)
    }
}

impl Rule for AimdRule {
    fn next(&mut self, window: f64, round: &RoundMean, refused: bool) -> f64 {
        if refused || round.mean_us > self.timeout_us as f64 {
            window * BACKOFF
        } else if round.used {
            window + 1.0
        } else {
            window
        }
    }

    fn beliefs_us(&self) -> (f64, f64) {
        (0.0, self.timeout_us as f64)
    }
}
