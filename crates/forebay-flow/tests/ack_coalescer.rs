//! Acknowledgements against a broker's table of what is unsettled.

use std::collections::{BTreeMap, BTreeSet};

use forebay_flow::{AckCoalescer, DELAY_MAX_US, Settlement, UnknownTag};
use proptest::prelude::*;

/// A channel of a broker: what it has delivered and not heard of.
#[derive(Default)]
struct Channel {
    unsettled: BTreeSet<u64>,
    acked: BTreeSet<u64>,
    nacked: BTreeMap<u64, bool>,
}

impl Channel {
    /// As brokers do; a tag that is not unsettled would close the channel.
    fn take(&mut self, settlement: Settlement) {
        match settlement {
            Settlement::Ack { tag, multiple: false } => {
                assert!(self.unsettled.remove(&tag), "tag {tag} acknowledged twice");
                self.acked.insert(tag);
            }
            Settlement::Ack { tag, multiple: true } => {
                assert!(self.unsettled.contains(&tag), "tag {tag} acknowledged twice");
                let above = self.unsettled.split_off(&(tag + 1));
                self.acked.append(&mut self.unsettled);
                self.unsettled = above;
            }
            Settlement::Nack { tag, requeue } => {
                assert!(self.unsettled.remove(&tag), "tag {tag} refused too late");
                self.nacked.insert(tag, requeue);
            }
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Deliver {
        tags: u64,
    },
    Ack {
        place: prop::sample::Index,
    },
    Nack {
        place: prop::sample::Index,
        requeue: bool,
    },
    Pause {
        us: u64,
    },
    Flush,
    /// Write what is ready; without it several flushes share one write.
    Write,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..10u64).prop_map(|tags| Step::Deliver { tags }),
        12 => any::<prop::sample::Index>().prop_map(|place| Step::Ack { place }),
        2 => (any::<prop::sample::Index>(), any::<bool>())
            .prop_map(|(place, requeue)| Step::Nack { place, requeue }),
        3 => (0..5_000u64).prop_map(|us| Step::Pause { us }),
        1 => Just(Step::Flush),
        5 => Just(Step::Write),
    ]
}

proptest! {
    #[test]
    fn what_the_broker_hears_is_what_was_finished(
        prefetch in 0..300u32, rtt_us in 0..200_000u64, steps in prop::collection::vec(step(), 1..300),
    ) {
        let mut acks = AckCoalescer::new(prefetch, rtt_us);
        let mut channel = Channel::default();
        let (mut open, mut acked, mut nacked) = (Vec::new(), BTreeSet::new(), BTreeMap::new());
        let (mut now_us, mut next_tag) = (0, 1);
        for step in steps {
            match step {
                Step::Deliver { tags } => {
                    for tag in next_tag..next_tag + tags {
                        acks.delivered(tag);
                        channel.unsettled.insert(tag);
                        open.push(tag);
                    }
                    next_tag += tags;
                }
                Step::Ack { place } if !open.is_empty() => {
                    let tag = open.remove(place.index(open.len()));
                    prop_assert_eq!(acks.ack(now_us, tag), Ok(()));
                    prop_assert_eq!(acks.ack(now_us, tag), Err(UnknownTag(tag)));
                    acked.insert(tag);
                }
                Step::Nack { place, requeue } if !open.is_empty() => {
                    let tag = open.remove(place.index(open.len()));
                    prop_assert_eq!(acks.nack(tag, requeue), Ok(()));
                    prop_assert_eq!(acks.nack(tag, requeue), Err(UnknownTag(tag)));
                    nacked.insert(tag, requeue);
                }
                Step::Pause { us } => {
                    now_us += us;
                    acks.tick(now_us);
                }
                Step::Flush => acks.flush(),
                Step::Write => {
                    while let Some(settlement) = acks.next_settlement() {
                        channel.take(settlement);
                    }
                    // `multiple` covered nothing else, and a nack has left at once.
                    prop_assert!(channel.acked.is_subset(&acked));
                    prop_assert_eq!(&channel.nacked, &nacked);
                }
                Step::Ack { .. } | Step::Nack { .. } => {}
            }
            prop_assert!(acks.unflushed() < 64);
            prop_assert_eq!(acks.open(), open.len());
            prop_assert!(acks.next_flush_us().is_none_or(|us| us <= now_us + DELAY_MAX_US));
            prop_assert_eq!(acks.next_flush_us().is_some(), acks.unflushed() > 0);
        }
        acks.flush();
        while let Some(settlement) = acks.next_settlement() {
            channel.take(settlement);
        }
        prop_assert_eq!(&channel.acked, &acked);
        prop_assert_eq!(&channel.nacked, &nacked);
        prop_assert_eq!(channel.unsettled.into_iter().collect::<Vec<_>>(), { open.sort_unstable(); open });
    }
}

fn settlements(acks: &mut AckCoalescer) -> Vec<Settlement> {
    std::iter::from_fn(|| acks.next_settlement()).collect()
}

#[test]
fn a_slow_message_does_not_hold_back_those_after_it() {
    let mut acks = AckCoalescer::new(100, 0);
    (1..=6).for_each(|tag| acks.delivered(tag));
    for tag in [2, 1, 6, 4] {
        acks.ack(0, tag).unwrap();
    }
    acks.tick(999);
    assert_eq!(acks.next_settlement(), None);
    acks.tick(1_000);
    assert_eq!(
        settlements(&mut acks),
        [
            Settlement::Ack { tag: 2, multiple: true },
            Settlement::Ack { tag: 4, multiple: false },
            Settlement::Ack { tag: 6, multiple: false },
        ]
    );
}

#[test]
fn nothing_waits_when_nothing_is_left_to_work_on() {
    let mut acks = AckCoalescer::new(100, 50_000);
    acks.delivered(1);
    acks.delivered(2);
    acks.ack(0, 2).unwrap();
    acks.nack(1, true).unwrap();
    assert_eq!(
        settlements(&mut acks),
        [Settlement::Nack { tag: 1, requeue: true }, Settlement::Ack { tag: 2, multiple: false }]
    );
}

#[test]
fn a_quarter_of_the_prefetch_is_a_batch() {
    let mut acks = AckCoalescer::new(16, 10_000);
    (1..=16).for_each(|tag| acks.delivered(tag));
    (1..=3).for_each(|tag| acks.ack(0, tag).unwrap());
    assert_eq!(acks.next_settlement(), None);
    acks.ack(0, 4).unwrap();
    assert_eq!(settlements(&mut acks), [Settlement::Ack { tag: 4, multiple: true }]);
}
