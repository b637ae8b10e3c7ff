//! When a connection whose route became longer is left for another, and whether the route was longer at all.
//!
//! A window believes in a longer route when the kernel's round trips say so (`network_rtt`). A broker that acknowledges
//! late looks the same, and only another connection tells them apart: its first round trip has no queue of ours in it.
//!
//! ```text
//!           a window saw a longer route                    first round trip ≥ LONGER_SHARE · the old one's
//!   ready ─────────────────────────────▶ another opened ──────┬─▶ moved: rest 3 s
//!     ▲                                  (PATIENCE at most)   └─▶ not, or none to be had: rest twice as long
//!     └──────────────── rest: 3 s, doubled by each that came to nothing, up to 10 min ◀──┘
//! ```
//! Where it was not longer the old connection's windows forget that it was, and do not believe it again before the rest, or a minute, is over.
//! The rest bounds what a route that keeps changing, or a broker that is mistaken for one, costs: a login at most every 3 s,
//! and soon one every ten minutes.

use std::time::Duration;

/// After a connection took another's place, none does for so long.
const REST_MIN_US: u64 = 3_000_000;
/// The longest pause.
const REST_MAX_US: u64 = 600_000_000;
/// A new connection's first round trip is at least this share of what the other one has, if the route is long.
const LONGER_SHARE: f64 = 0.5;

/// See the module's documentation. Times are microseconds of the caller's clock.
#[derive(Debug, Clone)]
pub struct Renewal {
    from_us: u64,
    rest_us: u64,
}

impl Renewal {
    /// How long another connection may take to be there, while windows are held for it.
    pub const PATIENCE: Duration = Duration::from_secs(10);

    /// Ready.
    #[must_use]
    pub fn new() -> Renewal {
        Renewal { from_us: 0, rest_us: REST_MIN_US }
    }

    /// Whether another connection may be tried now. What windows saw before waits until then.
    #[must_use]
    pub fn is_ready(&self, now_us: u64) -> bool {
        now_us >= self.from_us
    }

    /// Whether the route is as long as the old connection's round trip says, by the new one's first. 0 = not known: of the
    /// new one alone that is no proof.
    #[must_use]
    pub fn is_longer(new_us: u64, old_us: u64) -> bool {
        new_us as f64 >= LONGER_SHARE * old_us as f64
    }

    /// How long it rests, in microseconds, if the next try comes to nothing.
    #[must_use]
    pub fn rest_if_not_us(&self) -> u64 {
        REST_MAX_US.min(2 * self.rest_us)
    }

    /// Another connection took the old one's place, or (`moved` is false) was not to be had or showed that the route is no
    /// longer.
    pub fn tried(&mut self, now_us: u64, moved: bool) {
        self.rest_us = if moved { REST_MIN_US } else { self.rest_if_not_us() };
        self.from_us = now_us + self.rest_us;
    }
}

impl Default for Renewal {
    fn default() -> Renewal {
        Renewal::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_US: u64 = 1_000_000;

    /// When it is ready again after a try at `now_us`.
    fn rest_s(renewal: &mut Renewal, now_us: u64, moved: bool) -> u64 {
        let rest_us = if moved { REST_MIN_US } else { renewal.rest_if_not_us() };
        renewal.tried(now_us, moved);
        assert!(!renewal.is_ready(now_us + rest_us - 1) && renewal.is_ready(now_us + rest_us));
        let mut later_us = now_us;
        while !renewal.is_ready(later_us) {
            later_us += SECOND_US;
        }
        assert!(renewal.is_ready(later_us + SECOND_US), "once ready it stays so");
        (later_us - now_us) / SECOND_US
    }

    #[test]
    fn who_moved_rests_a_little_and_who_erred_twice_as_long_each_time() {
        let mut renewal = Renewal::new();
        assert!(renewal.is_ready(0), "the first is not waited for");
        assert_eq!(rest_s(&mut renewal, 0, true), 3);
        assert_eq!(rest_s(&mut renewal, 3 * SECOND_US, true), 3, "moves do not add up");
        let rests: Vec<u64> = (0..9).map(|_| rest_s(&mut renewal, 10 * SECOND_US, false)).collect();
        assert_eq!(rests, [6, 12, 24, 48, 96, 192, 384, 600, 600]);
        assert_eq!(rest_s(&mut renewal, 20 * SECOND_US, true), 3, "a longer route ends that");
    }

    #[test]
    fn a_first_round_trip_tells_a_long_route_from_a_late_broker() {
        assert!(Renewal::is_longer(100_000, 100_000));
        assert!(Renewal::is_longer(50_000, 100_000), "the old one's has a queue in it");
        assert!(!Renewal::is_longer(49_000, 100_000));
        assert!(Renewal::is_longer(120_000, 10_000));
        assert!(!Renewal::is_longer(0, 100_000));
        assert!(Renewal::is_longer(0, 0), "streams that no kernel is asked about");
    }
}
