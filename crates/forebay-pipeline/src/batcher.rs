//! When a batch is full: by messages, bytes, time, or because a message says so; whichever comes first.
//!
//! ```text
//!   push ──▶ open (one per key) ──▶ ready (FIFO) ──▶ take
//!              │ messages, bytes, the message's word: at once
//!              │ time: when somebody asks after it has passed, so a batch that nobody can take yet goes on growing
//!              └ too much is held: the fullest, early
//! ```
//! Invariant: what is held, open and ready together, is `held_max` messages at most.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// What ends a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Messages in a batch, at least 1.
    pub messages: usize,
    /// Bytes in a batch; the message that reaches it is its last. Only counted if messages have a size.
    pub bytes: usize,
    /// Microseconds after its first message.
    pub delay_us: u64,
    /// Messages held in all batches, open or ready; at least one batch full.
    pub held_max: usize,
}

/// A message to be put into a batch.
#[derive(Debug, Clone, Copy)]
pub struct Entry<K, M> {
    /// Messages of the same key share a batch.
    pub key: K,
    /// What it is.
    pub message: M,
    /// Its size.
    pub bytes: usize,
    /// Its batch ends with it.
    pub last: bool,
}

/// Makes batches. Time is an argument: microseconds of one clock.
#[derive(Debug)]
pub struct Batcher<K, M> {
    limits: Limits,
    open: HashMap<K, Open<M>>,
    /// Batches in the order in which their time is up; some are no longer open. Twice `held_max` at most.
    due: VecDeque<(u64, K, u64)>,
    ready: VecDeque<Vec<M>>,
    held: usize,
    number: u64,
}

#[derive(Debug)]
struct Open<M> {
    number: u64,
    messages: Vec<M>,
    bytes: usize,
}

impl<K: Hash + Eq + Clone, M> Batcher<K, M> {
    /// With these limits, raised to where each makes sense.
    #[must_use]
    pub fn new(limits: Limits) -> Batcher<K, M> {
        let messages = limits.messages.max(1);
        let limits = Limits { messages, held_max: limits.held_max.max(messages), ..limits };
        Batcher {
            limits,
            open: HashMap::new(),
            due: VecDeque::new(),
            ready: VecDeque::new(),
            held: 0,
            number: 0,
        }
    }

    /// Whether there is room for a message. If not, a batch is ready to be taken.
    pub fn has_room(&mut self) -> bool {
        if self.held < self.limits.held_max {
            return true;
        }
        if self.ready.is_empty() {
            let fullest = self.open.iter().max_by_key(|(_, open)| open.messages.len());
            let key = fullest.expect("what is held is open or ready").0.clone();
            self.close(&key);
        }
        false
    }

    /// A message came. Whether it made a batch ready.
    ///
    /// # Panics
    /// If there is no room.
    pub fn push(&mut self, entry: Entry<K, M>, now_us: u64) -> bool {
        assert!(self.held < self.limits.held_max, "{} messages are held already", self.held);
        self.held += 1;
        let Entry { key, message, bytes, last } = entry;
        self.forget_some();
        let open = self.open.entry(key.clone()).or_insert_with(|| {
            self.number += 1;
            let due_us = now_us.saturating_add(self.limits.delay_us);
            self.due.push_back((due_us, key.clone(), self.number));
            Open { number: self.number, messages: Vec::new(), bytes: 0 }
        });
        open.messages.push(message);
        open.bytes = open.bytes.saturating_add(bytes);
        let full = open.messages.len() >= self.limits.messages || open.bytes >= self.limits.bytes;
        if full || last {
            self.close(&key);
        }
        full || last
    }

    /// The next batch that is ready or whose time is up.
    pub fn take(&mut self, now_us: u64) -> Option<Vec<M>> {
        self.forget_closed();
        while self.due.front().is_some_and(|(due_us, ..)| *due_us <= now_us) {
            let (_, key, _) = self.due.pop_front().expect("there is a front");
            self.close(&key);
            self.forget_closed();
        }
        let batch = self.ready.pop_front()?;
        self.held -= batch.len();
        Some(batch)
    }

    /// When [`Batcher::take`] will have something if nothing comes before.
    #[must_use]
    pub fn next_due_us(&mut self) -> Option<u64> {
        self.forget_closed();
        self.due.front().map(|(due_us, ..)| *due_us)
    }

    /// No more messages come: what is open is ready.
    pub fn flush(&mut self) {
        while let Some((_, key, number)) = self.due.pop_front() {
            if self.is_open(&key, number) {
                self.close(&key);
            }
        }
    }

    /// Messages in open and ready batches.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held
    }

    fn is_open(&self, key: &K, number: u64) -> bool {
        self.open.get(key).is_some_and(|open| open.number == number)
    }

    fn forget_closed(&mut self) {
        while let Some((_, key, number)) = self.due.front() {
            if self.is_open(key, *number) {
                return;
            }
            self.due.pop_front();
        }
    }

    fn close(&mut self, key: &K) {
        if let Some(open) = self.open.remove(key) {
            self.ready.push_back(open.messages);
        }
    }

    /// Batches that fill quickly leave their times behind. Before there are twice as many times as messages may be
    /// held, those of the open batches are picked out: fewer than half, so this is done once in `held_max` batches.
    fn forget_some(&mut self) {
        if self.due.len() >= self.limits.held_max.saturating_mul(2) {
            let open = &self.open;
            self.due.retain(|(_, key, number)| {
                open.get(key).is_some_and(|open| open.number == *number)
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: Limits = Limits { messages: 3, bytes: 100, delay_us: 50, held_max: 10 };

    fn entry(key: u8, message: u32) -> Entry<u8, u32> {
        Entry { key, message, bytes: 1, last: false }
    }

    #[test]
    fn a_batch_ends_by_messages_bytes_time_or_word() {
        let mut batcher = Batcher::new(LIMITS);
        assert!(!batcher.push(entry(0, 1), 0));
        assert!(!batcher.push(entry(1, 2), 0));
        assert!(!batcher.push(entry(0, 3), 1));
        assert!(batcher.push(entry(0, 4), 2), "three");
        assert_eq!(batcher.take(2), Some(vec![1, 3, 4]));
        assert!(batcher.push(Entry { bytes: 100, ..entry(0, 5) }, 3), "a hundred bytes");
        assert_eq!(batcher.take(3), Some(vec![5]));
        assert!(batcher.push(Entry { last: true, ..entry(0, 6) }, 4), "it said so");
        assert_eq!(batcher.take(4), Some(vec![6]));
        assert_eq!((batcher.take(49), batcher.next_due_us()), (None, Some(50)));
        assert_eq!(batcher.take(50), Some(vec![2]));
        assert_eq!((batcher.held(), batcher.next_due_us()), (0, None));
    }

    #[test]
    fn when_too_much_is_held_the_fullest_batch_ends_early() {
        let mut batcher = Batcher::new(Limits { messages: 4, held_max: 4, ..LIMITS });
        for (key, message) in [(0, 1), (1, 2), (1, 3), (2, 4)] {
            assert!(batcher.has_room());
            batcher.push(entry(key, message), 0);
        }
        assert!(!batcher.has_room());
        assert_eq!(batcher.take(0), Some(vec![2, 3]));
        assert!(batcher.has_room());
    }

    #[test]
    fn times_of_ended_batches_do_not_pile_up() {
        let mut batcher = Batcher::new(Limits { messages: 10, held_max: 10, ..LIMITS });
        batcher.push(entry(0, 0), 0);
        for number in 1..20 {
            batcher.push(Entry { last: true, ..entry(1, number) }, 0);
            batcher.take(0);
        }
        for key in 2..11 {
            batcher.push(entry(key, 20), 0);
            assert!(batcher.due.len() <= 20, "{} of {}", batcher.due.len(), batcher.held());
        }
        assert_eq!((batcher.held(), batcher.next_due_us()), (10, Some(50)));
    }

    #[test]
    fn where_nothing_is_limited_all_waits_until_nothing_more_comes() {
        let most = usize::MAX;
        let limits = Limits { messages: most, bytes: most, delay_us: u64::MAX, held_max: most };
        let mut batcher = Batcher::new(limits);
        for number in 1..4 {
            assert!(batcher.has_room() && !batcher.push(entry(0, number), 1));
        }
        assert_eq!(batcher.take(u64::MAX - 1), None);
        batcher.flush();
        assert_eq!(batcher.take(1), Some(vec![1, 2, 3]));
    }

    proptest! {
        #[test]
        fn all_that_goes_in_comes_out_once_in_order_within_the_limits(
            pushes in prop::collection::vec((0..5u8, 0..60usize, any::<bool>(), 0..40u64, 0..3u8), 1..200),
            messages in 1..8usize, held_max in 1..20usize,
        ) {
            let limits = Limits { messages, held_max, ..LIMITS };
            let mut batcher = Batcher::new(limits);
            let (mut now_us, mut out) = (0, Vec::new());
            for (number, (key, bytes, last, pause_us, takes)) in pushes.iter().enumerate() {
                now_us += pause_us;
                for _ in 0..*takes {
                    out.extend(batcher.take(now_us));
                }
                while !batcher.has_room() {
                    let batch = batcher.take(now_us);
                    prop_assert!(batch.is_some(), "no room, and nothing to take");
                    out.extend(batch);
                }
                batcher.push(Entry { key: *key, message: number, bytes: *bytes, last: *last }, now_us);
                prop_assert!(batcher.held() <= held_max.max(messages));
                prop_assert!(batcher.due.len() <= 2 * held_max.max(messages));
                prop_assert!(batcher.next_due_us().is_none_or(|due_us| due_us <= now_us + LIMITS.delay_us));
            }
            batcher.flush();
            while let Some(batch) = batcher.take(now_us) {
                out.push(batch);
            }
            prop_assert_eq!(batcher.held(), 0);
            for batch in &out {
                prop_assert!(!batch.is_empty() && batch.len() <= messages);
                prop_assert!(batch.iter().all(|number| pushes[*number].0 == pushes[batch[0]].0));
                let bytes: usize = batch[..batch.len() - 1].iter().map(|number| pushes[*number].1).sum();
                prop_assert!(bytes < LIMITS.bytes, "it should have ended before");
            }
            for key in 0..5 {
                let of_key = |number: &usize| pushes[*number].0 == key;
                let came: Vec<usize> = out.iter().flatten().copied().filter(of_key).collect();
                let went: Vec<usize> = (0..pushes.len()).filter(of_key).collect();
                prop_assert_eq!(came, went);
            }
        }
    }
}
