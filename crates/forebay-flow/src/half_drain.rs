//! A fixed window with hysteresis: once full, nothing more until half of it is confirmed.
//!
//! Publishers of several brokers' clients work like this. It acts as a window of about three quarters of
//! its size: here to measure against.

use crate::amount::Amount;
use crate::window::{Load, Phase, Sample, Window, WindowState};

/// While it drains, its window is the half, which in flight exceeds; so the gate needs no special case.
#[derive(Debug, Clone, Copy)]
pub struct HalfDrain {
    window: Amount,
    draining: bool,
    blocked: bool,
}

impl HalfDrain {
    /// # Panics
    /// If the window has no message.
    #[must_use]
    pub fn new(window: Amount) -> HalfDrain {
        assert!(window.messages > 0, "a window of no messages lets nothing pass");
        HalfDrain { window, draining: false, blocked: false }
    }

    fn half(&self) -> Amount {
        Amount::new((self.window.messages / 2).max(1), (self.window.bytes / 2).max(1))
    }

    fn settled(&mut self, load: Load) {
        if load.in_flight.fits(self.half()) {
            self.draining = false;
        }
    }
}

impl Window for HalfDrain {
    fn sent(&mut self, _now_us: u64, load: Load) -> bool {
        let (full, now) = (self.window, load.in_flight);
        if now.messages >= full.messages || now.bytes >= full.bytes {
            self.draining = true;
        }
        self.draining
    }

    fn confirmed(&mut self, _now_us: u64, _sample: Sample, load: Load) {
        self.settled(load);
    }

    fn rejected(&mut self, _now_us: u64, load: Load) {
        self.settled(load);
    }

    fn blocked(&mut self, _now_us: u64) {
        self.blocked = true;
    }

    fn unblocked(&mut self, _now_us: u64) {
        self.blocked = false;
    }

    fn window(&self) -> Amount {
        if self.draining { self.half() } else { self.window }
    }

    fn state(&self) -> WindowState {
        let phase = match (self.blocked, self.draining) {
            (true, _) => Phase::Blocked,
            (_, true) => Phase::Draining,
            (_, false) => Phase::Steady,
        };
        WindowState::untimed(f64::from(self.window().messages), phase)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn once_full_it_opens_at_the_half() {
        let in_flight = |messages| Load { in_flight: Amount::new(messages, 0), waiting: true };
        let sample = Sample { rtt_us: 1, bytes: 0 };
        let mut window = HalfDrain::new(Amount::new(10, 1_000));
        assert!(!window.sent(0, in_flight(9)));
        assert_eq!(window.window_messages(), 10);
        assert!(window.sent(0, in_flight(10)), "it is another one now");
        window.confirmed(0, sample, in_flight(6));
        assert_eq!(window.window_messages(), 5);
        window.confirmed(0, sample, in_flight(5));
        assert_eq!(window.window_messages(), 10);
    }
}
