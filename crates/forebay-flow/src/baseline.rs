//! What the baselines share: a window that is set anew once per round, from the round's mean latency.

use crate::amount::Amount;
use crate::round::Round;
use crate::window::{Load, Phase, Sample, Window, WindowState};

const INITIAL_MESSAGES: f64 = 20.0;

/// How one baseline sets its window.
pub trait Rule {
    /// The window after a round, before it is bounded. `refused`: the broker rejected a message meanwhile.
    #[doc(hidden)]
    fn next(&mut self, window: f64, round: &RoundMean, refused: bool) -> f64;

    /// What it believes: base and target, in microseconds, 0 where it has none.
    #[doc(hidden)]
    fn beliefs_us(&self) -> (f64, f64);
}

/// What a [`Rule`] is told of a round.
#[derive(Debug, Clone, Copy)]
#[doc(hidden)]
pub struct RoundMean {
    pub(crate) mean_us: f64,
    pub(crate) samples: u32,
    /// At least half of the window was in flight: the program used what it had.
    pub(crate) used: bool,
}

/// A window that follows a [`Rule`]. A baseline to measure [`Pfw`](crate::Pfw) against.
#[derive(Debug, Clone)]
pub struct Baseline<R> {
    rule: R,
    ceiling: Amount,
    window: f64,
    round: Round,
    measured_us: f64,
    refused: bool,
    blocked: bool,
}

impl<R: Rule> Baseline<R> {
    pub(crate) fn with(rule: R, ceiling: Amount) -> Baseline<R> {
        Baseline {
            rule,
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
        let used = 2.0 * round.peak_messages() >= self.window;
        let seen = RoundMean { mean_us, samples: round.samples(), used };
        let next = self.rule.next(self.window, &seen, std::mem::take(&mut self.refused));
        self.window = next.clamp(1.0, f64::from(self.ceiling.messages));
    }
}

impl<R: Rule> Window for Baseline<R> {
    fn sent(&mut self, _now_us: u64, load: Load) -> bool {
        self.round.set_in_flight(load.in_flight.messages);
        false
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
        let (base_us, target_us) = self.rule.beliefs_us();
        WindowState {
            base_us: base_us as u64,
            target_us: target_us as u64,
            measured_us: self.measured_us as u64,
            ..WindowState::untimed(self.window, phase)
        }
    }
}
