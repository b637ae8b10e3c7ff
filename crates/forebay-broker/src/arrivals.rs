//! When messages of a queue came, on disk: what its time to live needs after a restart.
//!
//! ```text
//!   key    'a'  queue u64  slot u8                                    10 bytes, slots 0 to 19 of each queue
//!   value  version u8 = 1  first u64  by u64                          17 bytes, integers are little-endian
//!
//!   messages   1 ...... 99 │ 100 ...... 380 │ 381 ...
//!   slots          7       │      8         │ 9            before the first message of each in the log
//!                  by 12 s │      by 19 s   │ by 25 s      microseconds since 1970
//! ```
//! All from `first` on, up to the next slot's, had come by `by`. A slot covers a sixteenth of the time to live, and a second at least,
//! so the messages of a slot have expired when it is used again. What is on disk is later than the truth, and never earlier.

use forebay_store::Seq;

/// The version written, and the only one that is read.
const VERSION: u8 = 1;
const KIND: u8 = b'a';
/// Slots in a time to live.
const SPANS: u64 = 16;
/// What a slot covers at least, in microseconds: a queue is written no more often.
const SPAN_MIN_US: u64 = 1_000_000;
/// Slots of a queue: those of a time to live, of what comes meanwhile, and one that is written.
pub(crate) const SLOTS: u8 = 20;

/// What one slot says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(crate) queue: u64,
    pub(crate) slot: u8,
    pub(crate) first: Seq,
    /// Microseconds since 1970.
    pub(crate) by_us: u64,
}

/// A key of an arrival whose value is none, or of another version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoArrival;

impl Arrival {
    pub(crate) fn key_of(queue: u64, slot: u8) -> [u8; 10] {
        let mut key = [KIND; 10];
        key[1..9].copy_from_slice(&queue.to_le_bytes());
        key[9] = slot;
        key
    }

    pub(crate) fn key(&self) -> [u8; 10] {
        Arrival::key_of(self.queue, self.slot)
    }

    pub(crate) fn value(&self) -> [u8; 17] {
        let mut value = [VERSION; 17];
        value[1..9].copy_from_slice(&self.first.to_le_bytes());
        value[9..].copy_from_slice(&self.by_us.to_le_bytes());
        value
    }

    /// `None`: the key is of something else.
    pub(crate) fn decode(key: &[u8], value: &[u8]) -> Option<Result<Arrival, NoArrival>> {
        let (&KIND, key) = key.split_first()? else { return None };
        let read = || {
            let (queue, [slot]) = key.split_first_chunk::<8>()? else { return None };
            let (&VERSION, value) = value.split_first()? else { return None };
            let (first, by) = value.split_first_chunk::<8>()?;
            let arrival = Arrival {
                queue: u64::from_le_bytes(*queue),
                slot: *slot,
                first: u64::from_le_bytes(*first),
                by_us: u64::from_le_bytes(by.try_into().ok()?),
            };
            (arrival.slot < SLOTS).then_some(arrival)
        };
        Some(read().ok_or(NoArrival))
    }
}

/// What is on disk of one queue's arrivals. Times are in microseconds of one monotonic clock, unless said.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    /// What comes up to then is covered by what was written last.
    covered_us: Option<u64>,
    next_slot: u8,
    /// A bit for each slot that is on disk.
    slots: u32,
    /// Those that a start found, in the order of their messages, until the time of day is known.
    found: Vec<Arrival>,
}

impl Arrivals {
    /// One that was there when the broker started; in any order.
    pub(crate) fn found(&mut self, arrival: Arrival) {
        self.slots |= 1 << arrival.slot;
        self.found.push(arrival);
        self.found.sort_unstable_by_key(|it| (it.first, it.by_us));
        self.next_slot = self.found.last().map_or(0, |last| (last.slot + 1) % SLOTS);
    }

    /// What was found, once the time of day is known: from which message on, and by when they had come, in `i64` as that was before
    /// the clock began. Never later than as if they came now, whatever became of the system's clock.
    pub(crate) fn take_found(
        &mut self,
        now_us: u64,
        began_us: u64,
        ttl_us: u64,
    ) -> Vec<(Seq, i64)> {
        let latest_us = i128::from(now_us.saturating_add(span_us(ttl_us)));
        let since_began = |arrival: &Arrival| i128::from(arrival.by_us) - i128::from(began_us);
        // What a clock that was set back would cover is no time at which anything comes.
        let covered_us = self.found.last().map(since_began).filter(|by_us| *by_us <= latest_us);
        self.covered_us = covered_us.and_then(|by_us| u64::try_from(by_us).ok());
        let mut least_us = i64::MIN;
        let by_us = |arrival: Arrival| {
            let by_us = i64::try_from(since_began(&arrival).min(latest_us)).unwrap_or(i64::MIN);
            least_us = least_us.max(by_us);
            (arrival.first, least_us)
        };
        std::mem::take(&mut self.found).into_iter().map(by_us).collect()
    }

    /// Message `first` comes, behind all others: what is to be written before it is. Without an answer it is covered.
    pub(crate) fn comes(
        &mut self,
        now_us: u64,
        began_us: u64,
        ttl_us: u64,
        (queue, first): (u64, Seq),
    ) -> Option<Arrival> {
        if self.covered_us.is_some_and(|covered_us| now_us <= covered_us) {
            return None;
        }
        let covered_us = now_us.saturating_add(span_us(ttl_us));
        let slot = self.next_slot;
        self.covered_us = Some(covered_us);
        self.next_slot = (slot + 1) % SLOTS;
        self.slots |= 1 << slot;
        Some(Arrival { queue, slot, first, by_us: began_us.saturating_add(covered_us) })
    }

    /// The slots that are on disk.
    pub(crate) fn slots(&self) -> impl Iterator<Item = u8> + use<> {
        let slots = self.slots;
        (0..SLOTS).filter(move |slot| slots & 1 << slot != 0)
    }
}

/// What a slot covers.
fn span_us(ttl_us: u64) -> u64 {
    ttl_us.div_ceil(SPANS).max(SPAN_MIN_US)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const BEGAN_US: u64 = 1_600_000_000_000_000;

    #[test]
    fn an_arrival_reads_as_what_was_written_and_nothing_else_does() {
        let arrival = Arrival { queue: 0x0102, slot: 19, first: 77, by_us: BEGAN_US };
        let (key, value) = (arrival.key(), arrival.value());
        assert_eq!(Arrival::decode(&key, &value), Some(Ok(arrival)));
        assert_eq!(key, *b"a\x02\x01\0\0\0\0\0\0\x13");
        for cut in 0..value.len() {
            assert_eq!(Arrival::decode(&key, &value[..cut]), Some(Err(NoArrival)));
        }
        let newer = [&[2], &value[1..]].concat();
        assert_eq!(Arrival::decode(&key, &newer), Some(Err(NoArrival)));
        assert_eq!(Arrival::decode(&key[..9], &value), Some(Err(NoArrival)));
        assert_eq!(Arrival::decode(&Arrival::key_of(1, SLOTS), &value), Some(Err(NoArrival)));
        assert_eq!(Arrival::decode(b"q12345678", &value), None);
        assert_eq!(Arrival::decode(b"", &value), None);
    }

    #[test]
    fn a_clock_that_was_set_back_keeps_nothing_for_longer_than_a_new_time() {
        let mut arrivals = Arrivals::default();
        for (slot, by_us) in [(3, BEGAN_US + 50_000_000), (4, BEGAN_US + 10_000_000)] {
            arrivals.found(Arrival { queue: 1, slot, first: slot.into(), by_us });
        }
        let found = arrivals.take_found(2_000_000, BEGAN_US, 32_000_000);
        assert_eq!(found, [(3, 4_000_000), (4, 4_000_000)], "in their order, and soon");
        let next = arrivals.comes(2_000_000, BEGAN_US, 32_000_000, (1, 9)).expect("not covered");
        assert_eq!((next.slot, next.by_us), (5, BEGAN_US + 4_000_000));
        assert_eq!(arrivals.comes(4_000_000, BEGAN_US, 32_000_000, (1, 10)), None);
        assert_eq!(arrivals.slots().collect::<Vec<_>>(), [3, 4, 5]);
    }

    #[test]
    fn what_comes_soon_after_a_restart_is_covered_by_what_was_written_before() {
        let mut arrivals = Arrivals::default();
        arrivals.found(Arrival { queue: 1, slot: 3, first: 7, by_us: BEGAN_US + 1_500_000 });
        assert_eq!(arrivals.take_found(0, BEGAN_US, 32_000_000), [(7, 1_500_000)]);
        assert_eq!(arrivals.comes(1_500_000, BEGAN_US, 32_000_000, (1, 9)), None);
        assert!(arrivals.comes(1_500_001, BEGAN_US, 32_000_000, (1, 9)).is_some());
    }

    /// One each half a second, for a time to live of 32 s: as many slots as it can have are in use.
    #[test]
    fn a_slot_is_used_again_when_its_messages_have_expired() {
        const TTL_US: u64 = 32_000_000;
        let (mut arrivals, mut disk) = (Arrivals::default(), BTreeMap::new());
        for seq in 1..400 {
            let now_us = seq * 500_000;
            if let Some(arrival) = arrivals.comes(now_us, BEGAN_US, TTL_US, (1, seq)) {
                disk.insert(arrival.slot, arrival);
            }
            let first = disk.values().map(|arrival| arrival.first).min().expect("one");
            let oldest = seq.saturating_sub(TTL_US / 500_000).max(1);
            assert!(
                first <= oldest,
                "message {oldest} is still there, and {first} the first known"
            );
        }
    }

    proptest! {
        /// Whatever is on disk at any time: for every message that has not expired it says when it came, at most a span late.
        #[test]
        fn what_is_on_disk_is_enough(
            ttl_ms in prop_oneof![Just(0), 1u64..5_000, 1_000u64..1_000_000],
            pauses_us in prop::collection::vec(prop_oneof![0u64..2_000, 0u64..3_000_000, 0u64..90_000_000], 1..300),
            restarts in prop::collection::vec(0usize..300, 0..4),
        ) {
            let ttl_us = ttl_ms * 1_000;
            let (mut arrivals, mut disk) = (Arrivals::default(), BTreeMap::<Vec<u8>, Vec<u8>>::new());
            let (mut began_us, mut now_us, mut came_us) = (BEGAN_US, 0, Vec::new());
            for (at, pause_us) in pauses_us.into_iter().enumerate() {
                now_us += pause_us;
                if restarts.contains(&at) {
                    (began_us, now_us) = (began_us + now_us, 0);
                    arrivals = Arrivals::default();
                    for (key, value) in &disk {
                        arrivals.found(Arrival::decode(key, value).expect("its own").expect("sound"));
                    }
                    let found = arrivals.take_found(now_us, began_us, ttl_us);
                    for (seq, &came_us) in (1..).zip(&came_us) {
                        let by_us = found.iter().rev().find(|(first, _)| *first <= seq);
                        let by_us = by_us.or(found.first()).expect("something came").1 as i128 + i128::from(began_us);
                        let came_us = i128::from(came_us);
                        prop_assert!(by_us >= came_us, "early");
                        let expired = came_us + i128::from(ttl_us) < i128::from(began_us);
                        prop_assert!(expired || by_us <= came_us + i128::from(span_us(ttl_us)), "late");
                    }
                }
                came_us.push(began_us + now_us);
                let seq = came_us.len() as Seq;
                if let Some(arrival) = arrivals.comes(now_us, began_us, ttl_us, (1, seq)) {
                    disk.insert(arrival.key().to_vec(), arrival.value().to_vec());
                }
                prop_assert!(disk.len() <= usize::from(SLOTS));
            }
        }
    }
}
