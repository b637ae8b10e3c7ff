//! When a circuit breaker was open, for messages that waited meanwhile.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// Times that are remembered; what a message waited behind older ones counts as any other wait.
const REMEMBERED_MAX: usize = 64;

/// From when until when it was open, or will be: in order, and apart.
#[derive(Debug, Default)]
pub(crate) struct Outages(VecDeque<(Instant, Instant)>);

impl Outages {
    /// From `now` on it is open until then, whatever was said before; `None`: closed.
    pub(crate) fn saw(&mut self, now: Instant, open_until: Option<Instant>) {
        let open_until = open_until.filter(|until| *until > now);
        match (self.0.back_mut().filter(|(_, until)| *until > now), open_until) {
            (Some((_, until)), _) => *until = open_until.unwrap_or(now),
            (None, Some(until)) => {
                self.0.push_back((now, until));
                if self.0.len() > REMEMBERED_MAX {
                    self.0.pop_front();
                }
            }
            (None, None) => {}
        }
    }

    /// For how long it was open between the two.
    pub(crate) fn within(&self, from: Instant, until: Instant) -> Duration {
        // Messages wait for the latest ones.
        let recent = self.0.iter().rev().take_while(|(_, closed)| *closed > from);
        let common = |(opened, closed): &(Instant, Instant)| {
            until.min(*closed).saturating_duration_since(from.max(*opened))
        };
        recent.map(common).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_held_against_it_as_far_as_it_was_open() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut outages = Outages::default();
        let ms = |outages: &Outages, from, until| outages.within(at(from), at(until)).as_millis();
        outages.saw(at(0), None);
        assert_eq!(ms(&outages, 0, 50), 0);
        outages.saw(at(100), Some(at(200)));
        outages.saw(at(150), Some(at(200))); // a failure of what was in work
        outages.saw(at(210), Some(at(200))); // one that was too late
        outages.saw(at(300), Some(at(500)));
        outages.saw(at(350), None); // a success
        assert_eq!(outages.0.len(), 2);
        for (from, until, expected) in
            [(0, 1_000, 150), (120, 130, 10), (190, 320, 30), (200, 300, 0), (400, 500, 0)]
        {
            assert_eq!(ms(&outages, from, until), expected, "{from} to {until}");
        }
    }

    #[test]
    fn so_many_are_remembered() {
        let start = Instant::now();
        let at = |second: u64| start + Duration::from_secs(second);
        let mut outages = Outages::default();
        for number in 0..100 {
            outages.saw(at(2 * number), Some(at(2 * number + 1)));
        }
        let open = outages.within(at(0), at(1_000));
        assert_eq!(open, Duration::from_secs(REMEMBERED_MAX as u64));
    }
}
