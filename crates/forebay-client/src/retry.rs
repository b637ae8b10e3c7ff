//! When and where to connect again after a connection broke.
//!
//! ```text
//! round k: every host once, starting with one that differs between clients; before the round a pause of
//!          a random part, half at least, of min(100 ms * 2^k, 10 s)
//! ```
//! All clients of a broker lose it at the same moment; the random part keeps them from coming back at the
//! same moment ("Exponential Backoff And Jitter", AWS Architecture Blog, 2015).

/// The pause before the first round, in milliseconds.
const PAUSE_FIRST_MS: u64 = 100;
/// The longest pause.
const PAUSE_MAX_MS: u64 = 10_000;

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
    made: u32,
    random: u64,
    start: usize,
}

impl Retry {
    /// For `places` hosts; `seed` differs between clients.
    pub(crate) fn new(places: usize, seed: u64) -> Retry {
        let mut retry = Retry { places: places.max(1), made: 0, random: seed | 1, start: 0 };
        retry.start = (retry.next_random() % retry.places as u64) as usize;
        retry
    }

    /// The next attempt; `None` after `rounds_max` rounds over all hosts.
    pub(crate) fn next(&mut self, rounds_max: Option<u32>) -> Option<Attempt> {
        let round = self.made / self.places as u32;
        if rounds_max.is_some_and(|max| round >= max) {
            return None;
        }
        let first_of_round = self.made.is_multiple_of(self.places as u32);
        let pause_ms = if first_of_round {
            let most = (PAUSE_FIRST_MS << round.min(16)).min(PAUSE_MAX_MS);
            most / 2 + self.next_random() % (most / 2 + 1)
        } else {
            0
        };
        let place = (self.start + self.made as usize) % self.places;
        self.made = self.made.saturating_add(1);
        Some(Attempt { number: self.made, pause_ms, place })
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
        let mut retry = Retry::new(3, 7);
        for round in 0..5 {
            let attempts: Vec<Attempt> = (0..3).map(|_| retry.next(None).unwrap()).collect();
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
        let mut retry = Retry::new(2, 1);
        for _ in 0..1000 {
            assert!(retry.next(None).unwrap().pause_ms <= PAUSE_MAX_MS);
        }
        let mut retry = Retry::new(2, 1);
        assert_eq!((0..10).map_while(|_| retry.next(Some(2))).count(), 4);
    }

    #[test]
    fn clients_start_at_different_hosts() {
        let starts: std::collections::BTreeSet<usize> = (1..40)
            .map(|seed| Retry::new(3, seed * 0x9e37_79b9).next(None).unwrap().place)
            .collect();
        assert_eq!(starts.len(), 3);
    }
}
