//! What is varied: the cell (link, publishers, size), and within it the window.

use std::fmt;

use serde::{Serialize, Serializer};

/// One place of the grid.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Cell {
    /// There and back, in milliseconds; 0 = no emulated link, loopback as it is.
    pub(super) rtt_ms: f64,
    /// Megabits a second in each direction; 0 = no bound.
    pub(super) mbit: f64,
    /// What each flush of the broker's disk takes longer, in milliseconds; 0 = the disk as it is.
    pub(super) flush_ms: f64,
    /// Publishers, each with a connection of its own.
    pub(super) publishers: usize,
    /// Of each body.
    pub(super) size_bytes: usize,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rtt_ms {
            0.0 => f.write_str("RTT 0.1 ms")?,
            ms => write!(f, "RTT {ms} ms")?,
        }
        if self.mbit > 0.0 {
            write!(f, ", {} Mbit/s", self.mbit)?;
        }
        if self.flush_ms > 0.0 {
            write!(f, ", flush + {} ms", self.flush_ms)?;
        }
        let plural = if self.publishers == 1 { "" } else { "s" };
        write!(f, ", {} publisher{plural}, {} B", self.publishers, self.size_bytes)
    }
}

/// The window of each publisher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Choice {
    /// So many messages, set by hand.
    Fixed(u32),
    /// No setting: the window tunes itself.
    Tuned,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Fixed(messages) => messages.fmt(f),
            Choice::Tuned => f.write_str("tuned"),
        }
    }
}

impl Serialize for Choice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Choice::Fixed(messages) => serializer.serialize_u32(*messages),
            Choice::Tuned => serializer.serialize_str("tuned"),
        }
    }
}

/// The windows that people set by hand, from one at a time to far too many.
pub(super) const WINDOWS: [u32; 15] =
    [1, 2, 3, 5, 8, 13, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000];

/// Two windows round the best of `windows` that are not among them: the geometric means with its
/// neighbours, or twice or half of it at an end. Without them the grid would be a weak rival.
pub(super) fn round_the_best(windows: &[u32], best: u32) -> Vec<u32> {
    let below = windows.iter().copied().filter(|&window| window < best).max();
    let above = windows.iter().copied().filter(|&window| window > best).min();
    let mean = |other: u32| (f64::from(best) * f64::from(other)).sqrt().round() as u32;
    let mut between = vec![
        below.map_or(best / 2, mean), //
        above.map_or(best.saturating_mul(2), mean),
    ];
    between.retain(|window| *window > 0 && !windows.contains(window));
    between.dedup();
    between
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_window_gets_closer_rivals() {
        assert_eq!(round_the_best(&WINDOWS, 100), [71, 141]);
        assert_eq!(round_the_best(&WINDOWS, 10_000), [7_071, 20_000]);
        assert_eq!(round_the_best(&WINDOWS, 2), [] as [u32; 0]);
        assert_eq!(round_the_best(&[4], 4), [2, 8]);
        assert_eq!(round_the_best(&[1], 1), [2]);
    }
}
