//! What the publishers of a process see of one broker, together.
//!
//! ```text
//!   messages        confirmed to all of them so far
//!   least service   the least time, without the network's, that the broker took for a message of any of them in the last 5 to 10 s
//! ```
//!
//! One of twenty that keep a broker busy has a twentieth of what it carries, and by itself cannot tell that from a slower
//! broker. Nor can it tell a queue that it never sees short from what the broker takes by itself; another may have seen it short.

use std::collections::BTreeMap;

/// Hears each publisher and tells it of all. Its size is that of a number for each of them.
#[derive(Debug, Default)]
pub struct Tally {
    messages: u64,
    services_us: BTreeMap<u64, u64>,
    least_service_us: Option<u64>,
    /// Times that it was told something since the least was looked for.
    told: usize,
}

/// What a publisher is told of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Together {
    /// Confirmed to all so far.
    pub messages: u64,
    /// The least time, without the network's, that the broker took for a message of any of them in the last 5 to 10 s, in
    /// microseconds; `None`: nobody knows.
    pub least_service_us: Option<u64>,
}

impl Tally {
    /// `teller`, a publisher or a connection with some, has had so many more messages confirmed, and the broker took so long
    /// for one of its messages at least.
    pub fn tell(&mut self, teller: u64, more: u64, service_us: Option<u64>) -> Together {
        self.messages += more;
        match service_us {
            Some(us) => _ = self.services_us.insert(teller, us),
            None => _ = self.services_us.remove(&teller),
        }
        self.told += 1;
        // When all have told once: a look at each of them every time would be the square of their number.
        if self.told >= self.services_us.len() {
            self.told = 0;
            self.least_service_us = self.services_us.values().copied().min();
        }
        Together { messages: self.messages, least_service_us: self.least_service_us }
    }

    /// `teller` is gone.
    pub fn leave(&mut self, teller: u64) {
        self.services_us.remove(&teller);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_hears_of_all_that_was_confirmed() {
        let mut tally = Tally::default();
        assert_eq!(tally.tell(1, 5, None).messages, 5);
        assert_eq!(tally.tell(2, 3, None).messages, 8);
        assert_eq!(tally.tell(1, 0, None), Together { messages: 8, least_service_us: None });
    }

    #[test]
    fn the_least_is_that_of_those_who_are_there_as_they_told_it_last() {
        let mut tally = Tally::default();
        let mut round = |told: &[(u64, Option<u64>)], gone: &[u64]| {
            gone.iter().for_each(|teller| tally.leave(*teller));
            for _ in 0..2 {
                told.iter().for_each(|&(teller, us)| _ = tally.tell(teller, 0, us));
            }
            tally.tell(0, 0, None).least_service_us
        };
        assert_eq!(round(&[(1, Some(9)), (2, Some(4)), (3, Some(7))], &[]), Some(4));
        assert_eq!(round(&[(1, Some(9)), (2, Some(30)), (3, Some(7))], &[]), Some(7));
        assert_eq!(round(&[(1, Some(9)), (2, Some(30))], &[3]), Some(9));
        assert_eq!(round(&[(1, None), (2, None)], &[]), None);
    }
}
