//! Buffers that were in use a moment ago, for the next ones who need some.
//!
//! An allocator hands out what was free for longest, or whatever its pages hold: with a thousand publishers a message's
//! memory had left the processor's caches before it was used again, and each of its lines was fetched anew. The last
//! one given back is the first one taken here, so a broker that keeps up works in as much memory as it holds messages
//! (measured: decision 34).
//!
//! ```text
//!   give ──► [64..128 B] [128..256 B] … [32..64 KiB]   stacks by capacity, 1 MiB together
//!   take ◄──  the last one of the stack of its size, if it is large enough; else a new one
//! ```
//! Beyond that bound the bottom of the stack with most in it goes, which was not needed for longest.

use std::collections::VecDeque;

/// What all that wait take together at most, in bytes: about as much as stays in a processor's own cache.
const WARM_BYTES: usize = 1024 * 1024;
/// Smaller ones are the allocator's.
const LEAST_BYTES: usize = 64;
/// Larger ones, too: what is long moves all else out of the cache.
const MOST_BYTES: usize = 64 * 1024;
const CLASSES: usize = (MOST_BYTES.ilog2() - LEAST_BYTES.ilog2()) as usize + 1;

/// Empty buffers.
#[derive(Debug, Default)]
pub(crate) struct Warm {
    stacks: [VecDeque<Vec<u8>>; CLASSES],
    bytes: usize,
}

impl Warm {
    /// An empty buffer with room for so many bytes, and for less than twice as many if it was used before.
    pub(crate) fn take(&mut self, least_bytes: usize) -> Vec<u8> {
        if let Some(class) = class(least_bytes)
            && let Some(buffer) = self.stacks[class].pop_back()
        {
            self.bytes -= buffer.capacity();
            // One too small goes, and in time those of the stack are large enough for all of its size.
            if buffer.capacity() >= least_bytes {
                return buffer;
            }
        }
        Vec::with_capacity(least_bytes)
    }

    /// Nobody needs what is in it any more.
    pub(crate) fn give(&mut self, mut buffer: Vec<u8>) {
        let capacity = buffer.capacity();
        let Some(class) = class(capacity) else { return };
        while self.bytes + capacity > WARM_BYTES {
            let fullest = (0..CLASSES).max_by_key(|&class| self.stacks[class].len() << class);
            let oldest = fullest.and_then(|class| self.stacks[class].pop_front());
            self.bytes -= oldest.map_or(self.bytes, |oldest| oldest.capacity());
        }
        buffer.clear();
        self.bytes += capacity;
        self.stacks[class].push_back(buffer);
    }
}

/// Which stack holds buffers of this capacity.
fn class(bytes: usize) -> Option<usize> {
    (LEAST_BYTES..=MOST_BYTES)
        .contains(&bytes)
        .then(|| (bytes.ilog2() - LEAST_BYTES.ilog2()) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn holding(capacities: impl IntoIterator<Item = usize>) -> Warm {
        let mut warm = Warm::default();
        capacities.into_iter().for_each(|capacity| warm.give(vec![7; capacity]));
        warm
    }

    #[test]
    fn the_last_one_given_is_the_first_one_taken() {
        let mut warm = holding([1_100, 1_101]);
        let taken = warm.take(1_030);
        assert_eq!((taken.capacity(), taken.len()), (1_101, 0));
        assert_eq!(warm.take(1_030).capacity(), 1_100);
        assert_eq!(warm.take(1_030).capacity(), 1_030, "a new one");
    }

    #[test]
    fn sizes_do_not_stand_in_each_others_way() {
        assert_eq!(holding([200, 5_000]).take(190).capacity(), 200);
    }

    #[test]
    fn one_too_small_is_not_found_again() {
        let mut warm = holding([1_030]);
        assert_eq!(warm.take(1_100).capacity(), 1_100);
        assert_eq!(warm.bytes, 0);
    }

    #[test]
    fn what_is_very_small_or_large_is_the_allocators() {
        assert_eq!(holding([0, LEAST_BYTES - 1, MOST_BYTES + 1]).bytes, 0);
        assert_eq!(holding([LEAST_BYTES, MOST_BYTES]).bytes, LEAST_BYTES + MOST_BYTES);
    }

    #[test]
    fn what_nobody_takes_makes_room_for_what_is_needed() {
        let large = 40_300..40_326;
        assert!(large.clone().sum::<usize>() < WARM_BYTES);
        let mut warm = holding(large.clone().chain([1_030]));
        assert_eq!(warm.take(1_030).capacity(), 1_030);
        let left: Vec<usize> = warm.stacks.iter().flatten().map(Vec::capacity).collect();
        assert_eq!(left, large.skip(1).collect::<Vec<_>>());
    }

    proptest! {
        #[test]
        fn there_is_room_for_what_was_asked_and_never_more_kept_than_the_bound(
            steps in prop::collection::vec((any::<bool>(), 0..100_000usize), 1..300)
        ) {
            let mut warm = Warm::default();
            for (give, bytes) in steps {
                if give {
                    warm.give(vec![1; bytes]);
                } else {
                    let buffer = warm.take(bytes);
                    prop_assert!(buffer.is_empty() && buffer.capacity() >= bytes);
                    prop_assert!(bytes == 0 || buffer.capacity() < 2 * bytes.max(8));
                }
                let held: usize = warm.stacks.iter().flatten().map(Vec::capacity).sum();
                prop_assert_eq!(held, warm.bytes);
                prop_assert!(held <= WARM_BYTES);
            }
        }
    }
}
