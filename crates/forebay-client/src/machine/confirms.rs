//! Which publishes of a channel are not settled yet.
//!
//! ```text
//!   1 ....... base ............................ next
//!   ├─ settled ─┼─ open ──[island]── open ──[island]── open ─┤ not published yet
//! ```
//! `base` is the oldest open sequence number. Brokers confirm out of order, so there may be settled
//! islands above it. An answer is turned into the exact ranges it settles, each number once.
//! Memory: 16 bytes an island; islands ≤ open publishes, which the publisher's window bounds.

/// Consecutive publishes of one channel with the same outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settled {
    /// First sequence number, from 1.
    pub first: u64,
    /// Last sequence number; never below `first`.
    pub last: u64,
    /// True: the broker took responsibility. False: it refused (basic.nack).
    pub acked: bool,
}

impl Settled {
    /// How many publishes are settled by it; at least 1.
    pub fn count(&self) -> u64 {
        self.last - self.first + 1
    }
}

/// The confirm state of one channel.
#[derive(Debug)]
pub(super) struct Confirms {
    /// Oldest open sequence number; base ≤ next.
    base: u64,
    /// What the next publish gets.
    next: u64,
    /// Sorted, disjoint, not touching, all above base.
    islands: Vec<(u64, u64)>,
    /// Of `islands`, how many numbers they hold.
    island_count: u64,
}

impl Confirms {
    pub(super) fn new() -> Confirms {
        Confirms { base: 1, next: 1, islands: Vec::new(), island_count: 0 }
    }

    /// Takes the next sequence number.
    pub(super) fn publish(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// How many publishes have no outcome yet.
    pub(super) fn open_count(&self) -> u64 {
        self.next - self.base - self.island_count
    }

    /// Applies an ack or nack; `each` gets the ranges that it settles, in ascending order.
    /// False: it speaks of a message that was never published.
    pub(super) fn settle(
        &mut self,
        tag: u64,
        multiple: bool,
        mut each: impl FnMut(u64, u64),
    ) -> bool {
        // Clause 1.8.3.13: tag 0 with multiple means all that is open.
        let tag = if multiple && tag == 0 { self.next - 1 } else { tag };
        if tag >= self.next || (tag == 0 && !multiple) {
            return false;
        }
        if multiple {
            self.settle_upto(tag, each);
        } else if tag == self.base {
            each(tag, tag);
            self.base += 1;
            self.absorb();
        } else if tag > self.base {
            let at = self.islands.partition_point(|&(_, last)| last < tag);
            let inside = self.islands.get(at).is_some_and(|&(first, _)| first <= tag);
            if !inside {
                each(tag, tag);
                self.add_island(at, tag);
            }
        }
        true
    }

    fn settle_upto(&mut self, tag: u64, mut each: impl FnMut(u64, u64)) {
        let mut from = self.base;
        let mut eaten = 0;
        for &(first, last) in self.islands.iter().take_while(|&&(first, _)| first <= tag) {
            each(from, first - 1);
            from = last + 1;
            self.island_count -= last - first + 1;
            eaten += 1;
        }
        if from <= tag {
            each(from, tag);
            from = tag + 1;
        }
        self.islands.drain(..eaten);
        self.base = from.max(self.base);
        self.absorb();
    }

    /// Inserts `tag` before the island at `at`, joining neighbours that it touches.
    fn add_island(&mut self, at: usize, tag: u64) {
        self.island_count += 1;
        let joins_left = at > 0 && self.islands[at - 1].1 + 1 == tag;
        let joins_right = self.islands.get(at).is_some_and(|&(first, _)| first == tag + 1);
        match (joins_left, joins_right) {
            (true, true) => {
                self.islands[at - 1].1 = self.islands[at].1;
                self.islands.remove(at);
            }
            (true, false) => self.islands[at - 1].1 = tag,
            (false, true) => self.islands[at].0 = tag,
            (false, false) => self.islands.insert(at, (tag, tag)),
        }
    }

    /// The base moved: an island that it reached is solid ground now.
    fn absorb(&mut self) {
        if let Some(&(first, last)) = self.islands.first()
            && first == self.base
        {
            self.base = last + 1;
            self.island_count -= last - first + 1;
            self.islands.remove(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn confirms(published: u64) -> Confirms {
        let mut confirms = Confirms::new();
        for expected in 1..=published {
            assert_eq!(confirms.publish(), expected);
        }
        confirms
    }

    fn settle(confirms: &mut Confirms, tag: u64, multiple: bool) -> Vec<(u64, u64)> {
        let mut ranges = Vec::new();
        assert!(confirms.settle(tag, multiple, |first, last| ranges.push((first, last))));
        ranges
    }

    #[test]
    fn a_multiple_ack_skips_what_was_settled_before() {
        let mut confirms = confirms(10);
        assert_eq!(settle(&mut confirms, 3, false), [(3, 3)]);
        assert_eq!(settle(&mut confirms, 4, false), [(4, 4)]);
        assert_eq!(settle(&mut confirms, 7, false), [(7, 7)]);
        assert_eq!(confirms.open_count(), 7);
        assert_eq!(settle(&mut confirms, 8, true), [(1, 2), (5, 6), (8, 8)]);
        assert_eq!(confirms.open_count(), 2);
        assert_eq!(settle(&mut confirms, 8, true), []);
        assert_eq!(settle(&mut confirms, 0, true), [(9, 10)]);
        assert_eq!(confirms.open_count(), 0);
    }

    #[test]
    fn an_answer_to_nothing_is_refused() {
        let mut confirms = confirms(2);
        assert!(!confirms.settle(3, false, |_, _| ()));
        assert!(!confirms.settle(3, true, |_, _| ()));
        assert!(!confirms.settle(0, false, |_, _| ()));
    }

    proptest! {
        #[test]
        fn each_publish_settles_exactly_once(
            answers in proptest::collection::vec((1_u64..=60, any::<bool>()), 0..80)
        ) {
            let mut confirms = confirms(60);
            let mut open: BTreeSet<u64> = (1..=60).collect();
            for (tag, multiple) in answers {
                let ranges = settle(&mut confirms, tag, multiple);
                let settled: Vec<u64> = ranges.iter().flat_map(|&(a, b)| a..=b).collect();
                let expected: Vec<u64> = open
                    .iter()
                    .copied()
                    .filter(|&n| if multiple { n <= tag } else { n == tag })
                    .collect();
                prop_assert_eq!(&settled, &expected);
                for n in expected {
                    open.remove(&n);
                }
                prop_assert_eq!(confirms.open_count(), open.len() as u64);
                prop_assert_eq!(Some(confirms.base), open.first().copied().or(Some(61)));
            }
        }
    }
}
