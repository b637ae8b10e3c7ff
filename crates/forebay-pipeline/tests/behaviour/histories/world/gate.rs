//! What keeps messages from being begun: a breaker and a rate.

use std::time::Duration;

use forebay_pipeline::{Breaker, Outcome};

use crate::histories::plan::Plan;

/// What the breaker of a stage should have been told.
pub(super) struct Gate {
    pub(super) breaker: Option<Breaker>,
    pub(super) by_default: bool,
    pub(super) told: u64,
}

impl Gate {
    pub(super) fn new(plan: &Plan) -> Gate {
        let unasked = match plan.on_failure {
            None => true,
            Some(Outcome::Requeue) => false,
            Some(_) => plan.dead_letters.is_some(),
        };
        let breaker = match plan.breaker {
            Some((after, pause)) => {
                let pause = Duration::from_millis(pause);
                Some(Breaker::new(after, pause, pause * 4))
            }
            None if unasked => {
                Some(Breaker::new(10, Duration::from_secs(1), Duration::from_secs(60)))
            }
            None => None,
        };
        Gate { breaker, by_default: plan.breaker.is_none() && unasked, told: 0 }
    }

    pub(super) fn tell(&mut self, now: u64, failed: bool) {
        if let Some(breaker) = &mut self.breaker {
            breaker.tick(now * 1_000);
            if failed {
                breaker.failed(now * 1_000)
            } else {
                breaker.succeeded()
            }
            self.told = now;
        }
    }

    /// It is, and not only since a moment ago, when somebody may have been about to begin.
    pub(super) fn was_open(&self, now: u64) -> bool {
        self.breaker.is_some_and(|breaker| breaker.is_open(now * 1_000)) && self.told < now
    }

    pub(super) fn open_until(&self) -> u64 {
        let until = self.breaker.as_ref().and_then(Breaker::open_until_us);
        until.map_or(0, |us| us / 1_000)
    }
}

/// A rate that was set.
#[derive(Clone, Copy)]
pub(super) struct Rate {
    pub(super) per_s: Option<u64>,
    pub(super) since: u64,
    /// Attempts before.
    pub(super) begun: usize,
}
