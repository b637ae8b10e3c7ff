//! Heartbeats (clause 4.2.7): prove that we live, notice that the peer does not.
//!
//! A heartbeat is written when nothing was sent for half the interval. The peer counts as gone when
//! nothing was heard for two intervals. Activity is noted as a flag on the hot path and dated by
//! the next `tick`, so it is at most half an interval younger than it seems.

/// The two timers of one connection.
#[derive(Debug, Default)]
pub(super) struct Heartbeat {
    /// Negotiated interval in microseconds; 0 = none.
    interval_us: u64,
    spoke: bool,
    heard: bool,
    spoke_at_us: u64,
    heard_at_us: u64,
}

/// What a tick calls for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// Nothing.
    Nothing,
    /// Write a heartbeat.
    Beat,
    /// The peer was silent for two intervals.
    PeerSilent,
}

impl Heartbeat {
    /// Starts with the negotiated interval; the first tick dates the start.
    pub(super) fn start(&mut self, interval_s: u16) {
        *self = Heartbeat {
            interval_us: u64::from(interval_s) * 1_000_000,
            spoke: true,
            heard: true,
            ..Heartbeat::default()
        };
    }

    /// Bytes went out.
    pub(super) fn spoke(&mut self) {
        self.spoke = true;
    }

    /// Bytes came in.
    pub(super) fn heard(&mut self) {
        self.heard = true;
    }

    /// When to tick next, if ever: at half the interval, which serves both timers.
    pub(super) fn interval_us(&self) -> Option<u64> {
        (self.interval_us > 0).then_some(self.interval_us / 2)
    }

    /// Dates what was noted and says what is due.
    pub(super) fn tick(&mut self, now_us: u64) -> Due {
        if std::mem::take(&mut self.spoke) {
            self.spoke_at_us = now_us;
        }
        if std::mem::take(&mut self.heard) {
            self.heard_at_us = now_us;
        }
        if self.interval_us == 0 {
            Due::Nothing
        } else if now_us.saturating_sub(self.heard_at_us) >= 2 * self.interval_us {
            Due::PeerSilent
        } else if now_us.saturating_sub(self.spoke_at_us) >= self.interval_us / 2 {
            self.spoke_at_us = now_us;
            Due::Beat
        } else {
            Due::Nothing
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beats_at_half_the_interval_and_notices_silence_after_two() {
        let mut heartbeat = Heartbeat::default();
        heartbeat.start(10);
        assert_eq!(heartbeat.tick(0), Due::Nothing);
        assert_eq!(heartbeat.tick(4_999_999), Due::Nothing);
        assert_eq!(heartbeat.tick(5_000_000), Due::Beat);
        heartbeat.heard();
        assert_eq!(heartbeat.tick(10_000_000), Due::Beat);
        heartbeat.spoke();
        assert_eq!(heartbeat.tick(12_000_000), Due::Nothing);
        assert_eq!(heartbeat.tick(29_999_999), Due::Beat);
        assert_eq!(heartbeat.tick(30_000_000), Due::PeerSilent);
    }

    #[test]
    fn no_interval_means_no_heartbeats() {
        let mut heartbeat = Heartbeat::default();
        heartbeat.start(0);
        assert_eq!(heartbeat.interval_us(), None);
        assert_eq!(heartbeat.tick(u64::MAX), Due::Nothing);
    }
}
