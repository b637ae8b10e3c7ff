//! Whom a broker reads, where those it reads come and go, and whoever comes has the key of one who is gone.

use std::collections::BTreeSet;

use forebay_flow::{Gated, VISIT_BYTES, Visits};
use proptest::prelude::*;

const TURN_BYTES: usize = 4 * VISIT_BYTES;
const KEYS: usize = 12;

/// A broker that knows who stands somewhere.
struct Broker {
    visits: Visits,
    standing: BTreeSet<usize>,
}

#[derive(Debug, Clone)]
enum Step {
    Lists {
        key: usize,
        taker: bool,
    },
    Gates {
        key: usize,
        taker: bool,
    },
    Leaves {
        key: usize,
    },
    /// Who may go on, who has to stay, and who waits for something of its own, by their keys.
    Asks {
        by: usize,
    },
    Unparks,
    /// So many visits of a turn.
    Reads {
        visits: usize,
        bytes: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..KEYS, prop::bool::weighted(0.2)).prop_map(|(key, taker)| Step::Lists { key, taker }),
        6 => (0..KEYS, prop::bool::weighted(0.2)).prop_map(|(key, taker)| Step::Gates { key, taker }),
        4 => (0..KEYS).prop_map(|key| Step::Leaves { key }),
        4 => (0..3_usize).prop_map(|by| Step::Asks { by }),
        1 => Just(Step::Unparks),
        4 => (0..KEYS, 0..=VISIT_BYTES).prop_map(|(visits, bytes)| Step::Reads { visits, bytes }),
    ]
}

impl Broker {
    fn new() -> Broker {
        Broker { visits: Visits::new(TURN_BYTES), standing: BTreeSet::new() }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Lists { key, taker } if self.standing.insert(key) => self.visits.list(key, taker),
            Step::Gates { key, taker } if self.standing.insert(key) => self.visits.gate(key, taker),
            Step::Lists { .. } | Step::Gates { .. } => {}
            Step::Leaves { key } => {
                self.standing.remove(&key);
                self.visits.forget(key);
            }
            Step::Asks { by } => self.visits.ask_gate(|key| match (key + by) % 3 {
                0 => Gated::Stays,
                1 => Gated::Parks,
                _ => Gated::Goes { taker: key == 0 },
            }),
            Step::Unparks => self.visits.unpark(),
            Step::Reads { visits, bytes } => self.read(visits, bytes),
        }
    }

    fn read(&mut self, most: usize, bytes: usize) {
        self.visits.begin_turn(0);
        for _ in 0..most {
            let Some((key, _)) = self.visits.next_visit() else { return };
            assert!(self.standing.remove(&key), "{key} is gone, or was read before");
            self.visits.brought(bytes);
        }
    }
}

proptest! {
    #[test]
    fn everybody_who_stands_somewhere_is_read_once_and_nobody_else(
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let mut broker = Broker::new();
        steps.iter().for_each(|step| broker.step(step));
        for _ in 0..KEYS {
            broker.visits.unpark();
            broker.visits.ask_gate(|_| Gated::Goes { taker: false });
            broker.read(usize::MAX, VISIT_BYTES);
        }
        prop_assert!(broker.standing.is_empty(), "{:?} are forgotten", broker.standing);
        prop_assert!(!broker.visits.is_waiting() && !broker.visits.is_gated() && !broker.visits.has_let_go());
    }
}

#[test]
fn who_has_the_key_of_one_who_is_gone_has_one_turn() {
    for gated in [true, false] {
        let mut broker = Broker::new();
        let stands = |broker: &mut Broker, key| match gated {
            true => broker.step(&Step::Gates { key, taker: false }),
            false => broker.step(&Step::Lists { key, taker: false }),
        };
        for key in [7, 8] {
            stands(&mut broker, key);
        }
        broker.step(&Step::Leaves { key: 7 });
        stands(&mut broker, 7);
        broker.visits.ask_gate(|_| Gated::Goes { taker: false });
        broker.visits.begin_turn(0);
        let read: Vec<_> = std::iter::from_fn(|| broker.visits.next_visit()).collect();
        assert_eq!(read, [(8, VISIT_BYTES), (7, VISIT_BYTES)], "behind those who were there");
    }
}
