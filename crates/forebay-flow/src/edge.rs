//! The window, in messages, that was too much last, by its latency or for the socket, and how it is approached again.
//!
//! ```text
//!   far ── cut, over a distance ──▶ known ── W > 1.05 edge ──▶ passed ── a longer route ──▶ far
//!    │                               │ ▲                        │ │
//!    │ calm for 2 rounds:            │ └───────── cut ──────────┘ │ calm for 8 rounds, either:
//!    ▼ W doubles each round          ▼ W doubles up to the edge   ▼ W doubles once
//!                                      W + W/64 from 0.85 edge on,
//!                                      W + W/256 if it is the socket's
//! ```
//!
//! Over a distance nothing waits up to the knee, and then all that is more does, as behind TCP's own window. A doubling
//! there has made it four times too much before that is seen. So the window that was cut last is approached slowly, as CUBIC
//! does (Ha, Rhee and Xu, 2008), and beyond it a calm must last. Nearby every publisher would stay where it was, and
//! none get its share.
//!
//! A full socket is an edge that stands still, so nearly all of it can be used, if it is touched seldom: what it has
//! no room for waits until a third of it is empty, which is a third of a round trip and up to all of one.

/// From this share of the edge on growth is slow: W over the edge's steps a round.
const NEAR: f64 = 0.85;
const PASSED: f64 = 1.05;
/// Rounds to grow by the window itself: towards what a latency was too long for, and towards a full socket.
const STEPS: f64 = 64.0;
const STEPS_OF_SOCKET: f64 = 256.0;
/// Calm rounds before a doubling, and where there was an edge.
const CALM_ROUNDS: u32 = 2;
const CALM_ROUNDS_BEYOND: u32 = 8;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Edge {
    /// None was met on this route.
    Far,
    /// The window in messages that was cut last, and in how many rounds a window may grow by itself beside it.
    Known { window: f64, steps: f64 },
    /// There was one, and a larger window was not cut.
    Passed,
}

impl Edge {
    /// At this window the latency was too long.
    pub(crate) fn of_latency(window: f64) -> Edge {
        Edge::Known { window, steps: STEPS }
    }

    /// This window has no room in the socket.
    pub(crate) fn of_socket(window: f64) -> Edge {
        Edge::Known { window, steps: STEPS_OF_SOCKET }
    }

    /// Whether a window of this size shows that it is none any more.
    pub(crate) fn is_passed_by(self, window: f64) -> bool {
        matches!(self, Edge::Known { window: edge, .. } if window > PASSED * edge)
    }

    /// In how many rounds a window may grow by itself that is near it, from below or slightly above; `None`: it is not.
    pub(crate) fn steps(self, window: f64) -> Option<f64> {
        match self {
            Edge::Known { window: edge, steps } => (window > NEAR * edge).then_some(steps),
            Edge::Far | Edge::Passed => None,
        }
    }

    /// Whether a window may double after so many rounds in which nothing waited.
    pub(crate) fn lets_double(self, window: f64, calm_rounds: u32) -> bool {
        match self {
            Edge::Far => calm_rounds >= CALM_ROUNDS,
            Edge::Known { window: edge, .. } => {
                calm_rounds >= CALM_ROUNDS_BEYOND && 2.0 * window <= edge
            }
            Edge::Passed => calm_rounds >= CALM_ROUNDS_BEYOND,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edge_is_near_from_below_until_it_is_passed() {
        let edge = Edge::of_latency(1_000.0);
        assert_eq!([840.0, 860.0, 1_040.0].map(|w| edge.steps(w)), [None, Some(64.0), Some(64.0)]);
        assert_eq!(Edge::of_socket(1_000.0).steps(860.0), Some(256.0));
        assert_eq!([860.0, 1_040.0, 1_060.0].map(|w| edge.is_passed_by(w)), [false, false, true]);
        for none in [Edge::Far, Edge::Passed] {
            assert!(none.steps(1_000.0).is_none() && !none.is_passed_by(1_000.0));
        }
    }

    #[test]
    fn a_window_doubles_up_to_the_edge_and_beyond_it_after_a_longer_calm() {
        assert!(Edge::Far.lets_double(5_000.0, 2) && !Edge::Far.lets_double(5_000.0, 1));
        let known = Edge::of_latency(1_000.0);
        assert!(known.lets_double(500.0, 8) && !known.lets_double(501.0, 8));
        assert!(Edge::Passed.lets_double(5_000.0, 8) && !Edge::Passed.lets_double(5_000.0, 7));
    }
}
