//! The system's time for what a session's clock says, without asking the system for each message.

use std::sync::atomic::{AtomicU64, Ordering};

/// For so long the two are taken to go together, in microseconds: the system's may be set while we run.
const TOGETHER_US: u64 = 1_000_000;

/// How far the system's clock is ahead of a session's.
#[derive(Debug, Default)]
pub(crate) struct SystemClock {
    ahead_us: AtomicU64,
    /// Until then, by the session's clock; 0: it was never asked.
    until_us: AtomicU64,
}

impl SystemClock {
    /// Microseconds since 1970 at `at_us` of the session's clock, which says `now_us`. Who asks at the same moment from
    /// another thread may get the answer of a second ago.
    pub(crate) fn at(&self, at_us: u64, now_us: u64, since_1970_us: impl Fn() -> u64) -> u64 {
        if now_us >= self.until_us.load(Ordering::Acquire) {
            self.ahead_us.store(since_1970_us().saturating_sub(now_us), Ordering::Relaxed);
            self.until_us.store(now_us + TOGETHER_US, Ordering::Release);
        }
        self.ahead_us.load(Ordering::Relaxed) + at_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_is_asked_once_a_second() {
        let clock = SystemClock::default();
        assert_eq!(clock.at(40, 50, || 1_000_050), 1_000_040);
        assert_eq!(clock.at(1_000_000, 1_000_049, || panic!("asked again")), 2_000_000);
        assert_eq!(clock.at(1_000_050, 1_000_051, || 7_000_051), 7_000_050, "it was set");
    }
}
