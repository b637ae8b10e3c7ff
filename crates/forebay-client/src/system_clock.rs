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

/// The system's clock of a test whose time is turned by hand: it goes with tokio's. And what is drawn is the same each time.
#[cfg(test)]
pub(crate) mod by_hand {
    use std::cell::Cell;

    use tokio::time::Instant;

    thread_local! {
        static BEGAN: Cell<Option<Instant>> = const { Cell::new(None) };
        static DRAWN: Cell<u64> = const { Cell::new(0) };
    }

    /// From now on, on this thread, to the end of what is given back.
    pub(crate) fn turn(seed: u64) -> Turned {
        BEGAN.set(Some(Instant::now()));
        DRAWN.set(seed);
        Turned
    }

    pub(crate) struct Turned;

    impl Drop for Turned {
        fn drop(&mut self) {
            BEGAN.set(None);
        }
    }

    pub(crate) fn draw() -> Option<u64> {
        BEGAN.get()?;
        DRAWN.set(DRAWN.get().wrapping_add(1));
        Some(DRAWN.get().wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    pub(crate) fn now_us() -> Option<u64> {
        let began = BEGAN.get()?;
        Some(1_700_000_000_000_000 + began.elapsed().as_micros() as u64)
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
