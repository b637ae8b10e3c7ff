//! When and where to connect again after a connection broke.
//!
//! ```text
//! round k: every host once, starting with one that differs between clients; before the round a pause of
//!          a random part, half at least, of min(100 ms * 2^k, 10 s), unless it begins with another than 100 ms
//! after a connection that ended: another host first, and the same only while it is asked over which message it ends
//! ```
//! A host that lets in and closes at once would otherwise be the only one that is ever tried. All clients of a broker lose it at the same moment; the random part keeps them from coming back at the
//! same moment ("Exponential Backoff And Jitter", AWS Architecture Blog, 2015).

/// The pause before the first round, in milliseconds.
const PAUSE_FIRST_MS: u64 = 100;
/// What follows on a loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Recovery {
    /// Rounds over all hosts before it gives up.
    pub(crate) rounds_max: Option<u32>,
    /// The pause before the first round at most.
    pub(crate) pause_first_ms: u64,
}

impl Default for Recovery {
    fn default() -> Self {
        Recovery { rounds_max: None, pause_first_ms: PAUSE_FIRST_MS }
    }
}

/// The longest pause.
const PAUSE_MAX_MS: u64 = 10_000;

/// How long a host that keeps ending connections is asked over which message, before another is. Longer than it takes for one.
const SUSPECTS_PATIENCE_US: u64 = 120_000_000;

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attempt {
    /// From 1.
    pub(crate) number: u32,
    pub(crate) pause_ms: u64,
    /// Which host, as an index.
    pub(crate) place: usize,
}

/// The attempts after one loss.
#[derive(Debug)]
pub(crate) struct Retry {
    places: usize,
    recovery: Recovery,
    made: u32,
    /// The round from which rounds are counted.
    first_round: u32,
    random: u64,
    start: usize,
    /// Since when the same host is asked over which message connections end.
    stays_since_us: Option<u64>,
}

impl Retry {
    /// For `places` hosts; `seed` differs between clients.
    pub(crate) fn new(places: usize, recovery: Recovery, seed: u64) -> Retry {
        let places = places.max(1);
        let mut retry = Retry {
            places,
            recovery,
            made: 0,
            first_round: 0,
            random: seed | 1,
            start: 0,
            stays_since_us: None,
        };
        retry.start = (retry.next_random() % retry.places as u64) as usize;
        retry
    }

    /// The next attempt; `None` after the last round.
    pub(crate) fn next(&mut self) -> Option<Attempt> {
        let Recovery { rounds_max, pause_first_ms } = self.recovery;
        let round = self.made / self.places as u32;
        if rounds_max.is_some_and(|max| round - self.first_round >= max) {
            return None;
        }
        let first_of_round = self.made.is_multiple_of(self.places as u32);
        let pause_ms = if first_of_round {
            let most = (pause_first_ms << round.min(16)).min(PAUSE_MAX_MS);
            most / 2 + self.next_random() % (most / 2 + 1)
        } else {
            0
        };
        let place = (self.start + self.made as usize) % self.places;
        self.made = self.made.saturating_add(1);
        Some(Attempt { number: self.made, pause_ms, place })
    }

    /// A connection was made and is gone again. One that was of use, or lasted, is followed by attempts as after the first loss; one
    /// that the broker closed when it began by as many, after pauses that go on growing.
    pub(crate) fn connected(&mut self, was_of_use: bool, lasted_ms: u64) {
        let round = self.made.div_ceil(self.places as u32);
        (self.made, self.first_round) = if was_of_use || lasted_ms >= PAUSE_MAX_MS {
            (0, 0)
        } else {
            (round * self.places as u32, round)
        };
    }

    /// It was to `place`. Another host is next; which differs, as all clients of a host lose it at once. But while suspects are
    /// tried it is the same, as over which message connections end one host alone can tell, if it is not ill itself.
    pub(crate) fn ended_at(&mut self, place: usize, tries_suspects: bool, now_us: u64) {
        let since_us = self.stays_since_us.take().unwrap_or(now_us);
        if tries_suspects && now_us - since_us < SUSPECTS_PATIENCE_US {
            self.stays_since_us = Some(since_us);
            self.start = place;
            return;
        }
        let others = (self.places - 1).max(1) as u64;
        self.start = place + 1 + (self.next_random() % others) as usize;
    }

    /// xorshift64: any spread will do.
    fn next_random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_round_tries_every_host_once_after_one_pause() {
        let mut retry = Retry::new(3, Recovery::default(), 7);
        for round in 0..5 {
            let attempts: Vec<Attempt> = (0..3).map(|_| retry.next().unwrap()).collect();
            let mut places: Vec<usize> = attempts.iter().map(|attempt| attempt.place).collect();
            places.sort_unstable();
            assert_eq!(places, [0, 1, 2]);
            let most = 100 << round;
            assert!((most / 2..=most).contains(&attempts[0].pause_ms));
            assert!(attempts[1..].iter().all(|attempt| attempt.pause_ms == 0));
        }
    }

    #[test]
    fn pauses_are_bounded_and_rounds_end_when_told_to() {
        let mut retry = Retry::new(2, Recovery::default(), 1);
        for _ in 0..1000 {
            assert!(retry.next().unwrap().pause_ms <= PAUSE_MAX_MS);
        }
        let recovery = Recovery { rounds_max: Some(2), ..Recovery::default() };
        let mut retry = Retry::new(2, recovery, 1);
        assert_eq!((0..10).map_while(|_| retry.next()).count(), 4);
    }

    #[test]
    fn what_follows_on_a_connection_depends_on_what_it_was() {
        let recovery = Recovery { rounds_max: Some(2), ..Recovery::default() };
        for places in 1..=3 {
            let rounds = |retry: &mut Retry| std::iter::from_fn(|| retry.next()).count();
            let mut retry = Retry::new(places, recovery, 5);
            // As often as it happens: attempts are not used up by those that succeeded.
            for _ in 0..50 {
                retry.next().unwrap();
                retry.connected(false, 20);
            }
            let slow = retry.next().unwrap();
            assert!(slow.pause_ms >= PAUSE_MAX_MS / 2, "{slow:?}");
            assert_eq!(rounds(&mut retry), 2 * places - 1);
            for (was_of_use, lasted_ms) in [(true, 0), (false, PAUSE_MAX_MS)] {
                retry.connected(was_of_use, lasted_ms);
                let quick = retry.next().unwrap();
                assert!(quick.pause_ms <= PAUSE_FIRST_MS && quick.number == 1, "{quick:?}");
            }
        }
    }

    /// One that is stopping lets in and closes, and so does what stands before one that is away.
    #[test]
    fn a_host_that_keeps_hanging_up_leaves_the_others_their_turn() {
        for (places, was_of_use) in [(1, true), (2, false), (2, true), (3, false), (3, true)] {
            let mut retry = Retry::new(places, Recovery::default(), 5);
            let mut tried = vec![0; places];
            let mut last = None;
            for _ in 0..30 {
                let place = retry.next().unwrap().place;
                assert!(last != Some(place) || places == 1);
                last = Some(place);
                tried[place] += 1;
                retry.connected(was_of_use, 20);
                retry.ended_at(place, false, 0);
            }
            assert!(tried.iter().all(|times| *times >= 5), "{tried:?}");
            // Whoever looks for a message does so at one host, and not for ever.
            let mut stays = 0;
            let place = retry.next().unwrap().place;
            for turn in 0..100 {
                retry.connected(was_of_use, 20);
                retry.ended_at(place, true, turn * 10_000_000);
                stays += u32::from(retry.next().unwrap().place == place);
                if stays < turn as u32 + 1 {
                    break;
                }
            }
            assert_eq!(stays, if places == 1 { 100 } else { 12 });
        }
    }

    #[test]
    fn clients_start_at_different_hosts() {
        let starts: std::collections::BTreeSet<usize> = (1..40)
            .map(|seed| {
                Retry::new(3, Recovery::default(), seed * 0x9e37_79b9).next().unwrap().place
            })
            .collect();
        assert_eq!(starts.len(), 3);
    }
}
