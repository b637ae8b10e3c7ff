//! The window, in messages, that was too much last, and how it is approached again.
//!
//! ```text
//!   far ── cut, over a distance ──▶ known ── W > 1.05 edge ──▶ passed ── a longer route ──▶ far
//!    │                               │ ▲                        │ │
//!    │ calm for 2 rounds:            │ └───────── cut ──────────┘ │ calm for 8 rounds, either:
//!    ▼ W doubles each round          ▼ W doubles up to the edge   ▼ W doubles once
//!                                      W + W/64 from 0.85 edge on
//! ```
//!
//! Over a distance nothing waits up to the knee, and then all that is more does, as behind TCP's own window. A doubling
//! there has made it four times too much before that is seen. So the window that was cut last is approached slowly, as CUBIC
//! does (Ha, Rhee and Xu, 2008), and beyond it a calm must last. Nearby every publisher would stay where it was, and
//! none get its share.

/// From this share of the edge on growth is slow.
const NEAR: f64 = 0.85;
const PASSED: f64 = 1.05;
/// Then a window grows by itself in so many rounds.
pub(crate) const STEPS: f64 = 64.0;
/// Calm rounds before a doubling, and where there was an edge.
const CALM_ROUNDS: u32 = 2;
const CALM_ROUNDS_BEYOND: u32 = 8;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Edge {
    /// None was met on this route.
    Far,
    /// The window in messages that was cut last.
    Known(f64),
    /// There was one, and a larger window was not cut.
    Passed,
}

impl Edge {
    /// At this window the latency was too long.
    pub(crate) fn at(window: f64) -> Edge {
        Edge::Known(window)
    }

    /// Whether a window of this size shows that it is none any more.
    pub(crate) fn is_passed_by(self, window: f64) -> bool {
        matches!(self, Edge::Known(edge) if window > PASSED * edge)
    }

    /// Whether this window is near it, from below or slightly above.
    pub(crate) fn is_near(self, window: f64) -> bool {
        matches!(self, Edge::Known(edge) if window > NEAR * edge)
    }

    /// Whether a window may double after so many rounds in which nothing waited.
    pub(crate) fn lets_double(self, window: f64, calm_rounds: u32) -> bool {
        match self {
            Edge::Far => calm_rounds >= CALM_ROUNDS,
            Edge::Known(edge) => calm_rounds >= CALM_ROUNDS_BEYOND && 2.0 * window <= edge,
            Edge::Passed => calm_rounds >= CALM_ROUNDS_BEYOND,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edge_is_near_from_below_until_it_is_passed() {
        let edge = Edge::at(1_000.0);
        assert_eq!([840.0, 860.0, 1_040.0].map(|w| edge.is_near(w)), [false, true, true]);
        assert_eq!([860.0, 1_040.0, 1_060.0].map(|w| edge.is_passed_by(w)), [false, false, true]);
        for none in [Edge::Far, Edge::Passed] {
            assert!(!none.is_near(1_000.0) && !none.is_passed_by(1_000.0));
        }
    }

    #[test]
    fn a_window_doubles_up_to_the_edge_and_beyond_it_after_a_longer_calm() {
        assert!(Edge::Far.lets_double(5_000.0, 2) && !Edge::Far.lets_double(5_000.0, 1));
        let known = Edge::at(1_000.0);
        assert!(known.lets_double(500.0, 8) && !known.lets_double(501.0, 8));
        assert!(Edge::Passed.lets_double(5_000.0, 8) && !Edge::Passed.lets_double(5_000.0, 7));
    }
}
