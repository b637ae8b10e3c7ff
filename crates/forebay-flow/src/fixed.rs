//! A window that somebody set by hand.

use crate::amount::Amount;
use crate::window::{Load, Phase, Sample, Window, WindowState};

/// Never changes, whatever happens. For those who know better, and to measure against.
#[derive(Debug, Clone, Copy)]
pub struct Fixed {
    window: Amount,
    blocked: bool,
}

impl Fixed {
    /// # Panics
    /// If the window has no message.
    #[must_use]
    pub fn new(window: Amount) -> Fixed {
        assert!(window.messages > 0, "a window of no messages lets nothing pass");
        Fixed { window, blocked: false }
    }
}

impl Window for Fixed {
    fn sent(&mut self, _now_us: u64, _load: Load) -> bool {
        false
    }

    fn confirmed(&mut self, _now_us: u64, _sample: Sample, _load: Load) {}

    fn rejected(&mut self, _now_us: u64, _load: Load) {}

    fn blocked(&mut self, _now_us: u64) {
        self.blocked = true;
    }

    fn unblocked(&mut self, _now_us: u64) {
        self.blocked = false;
    }

    fn window(&self) -> Amount {
        self.window
    }

    fn state(&self) -> WindowState {
        let phase = if self.blocked { Phase::Blocked } else { Phase::Steady };
        WindowState::untimed(f64::from(self.window.messages), phase)
    }
}
