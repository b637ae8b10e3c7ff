//! Whether the route has outgrown what the connection's TCP believes of it.
//!
//! ```text
//!            a window: the route became longer          bytes wait for the link, in 2 readings in a row
//!   fits ─────────────────────────────────────▶ asked ──────────────────────────────────────────────▶ outgrown
//!    ▲                                            │
//!    └──────────── 10 readings without ◀──────────┘
//! ```
//! TCP's own window suits the route that it has known. BBR goes on for up to ten seconds with the least round trip that it has seen
//! (draft-ietf-ccwg-bbr, `MinRTTFilterLen`), Cubic leaves slow start once and then takes seconds to where it began (RFC 9438);
//! a new connection begins afresh. Bytes that wait although the peer has room for them say that it is TCP that holds
//! the flow, and not the publishers' windows.

/// Readings in a row with bytes that wait.
const WAITING_READINGS: u8 = 2;
/// After so many readings, one second's, TCP has kept up.
const ASKED_READINGS: u8 = 10;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Outgrown {
    /// Readings left to ask in.
    asked: u8,
    waiting: u8,
    outgrown: bool,
}

impl Outgrown {
    /// What a reading of the kernel's showed: whether to some window the route has become longer with it, and the bytes that
    /// wait for the link.
    pub(super) fn reading(&mut self, longer: bool, unsent_bytes: u64) {
        self.asked = if longer { ASKED_READINGS } else { self.asked.saturating_sub(1) };
        self.waiting = match unsent_bytes {
            0 => 0,
            _ => self.waiting.saturating_add(1),
        };
        if self.asked > 0 && self.waiting >= WAITING_READINGS {
            self.outgrown = true;
        }
    }

    /// From now on another connection would do better.
    pub(super) fn get(&self) -> bool {
        self.outgrown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(readings: &[(bool, u64)]) -> bool {
        let mut outgrown = Outgrown::default();
        readings.iter().for_each(|&(longer, unsent)| outgrown.reading(longer, unsent));
        outgrown.get()
    }

    #[test]
    fn a_longer_route_that_tcp_does_not_fill_has_outgrown_it() {
        assert!(after(&[(false, 0), (true, 9), (false, 9)]));
        assert!(after(&[(false, 9), (true, 9)]), "bytes waited already");
        assert!(after(&[(true, 0), (false, 0), (false, 9), (false, 9)]));
    }

    #[test]
    fn one_that_tcp_fills_has_not() {
        assert!(!after(&[(true, 0); 30]));
        assert!(!after(&[(true, 0), (false, 9), (false, 0), (false, 9), (false, 0)]));
        let mut kept_up = vec![(true, 0)];
        kept_up.extend([(false, 0); 10]);
        kept_up.extend([(false, 9); 10]);
        assert!(!after(&kept_up), "what waits later waits for something else");
    }

    #[test]
    fn bytes_wait_on_a_narrow_link_as_long_as_they_like() {
        assert!(!after(&[(false, 9); 100]));
    }
}
