//! From a long run that fails to a short one that fails the same way.
//!
//! Delta debugging (Zeller and Hildebrandt 2002): leave out ever smaller pieces of the event list and
//! keep what still breaks the same rule.

use crate::event::Event;
use crate::run::replay;
use crate::swarm::Swarm;
use crate::violation::Violation;

/// Replays that shrinking may take.
const REPLAYS_MAX: usize = 3_000;

/// The events that are left, and how they fail.
pub fn shrink(
    seed: u64,
    swarm: &Swarm,
    events: Vec<Event>,
    violation: Violation,
) -> (Vec<Event>, Violation) {
    let mut best = (events, violation);
    let mut piece = best.0.len().div_ceil(2);
    let mut replays = 0;
    while piece > 0 {
        let mut at = 0;
        while at < best.0.len() && replays < REPLAYS_MAX {
            let mut events = best.0.clone();
            events.drain(at..(at + piece).min(best.0.len()));
            replays += 1;
            let report = replay(seed, swarm, &events, false);
            match report.violation {
                // What happened after the failure is not needed either.
                Some(violation) if violation.rule == best.1.rule => {
                    best = (report.events, violation);
                }
                _ => at += piece,
            }
        }
        piece /= 2;
    }
    best
}
