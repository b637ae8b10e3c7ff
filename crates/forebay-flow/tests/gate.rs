//! The gate against a plain list of what should wait.

use std::collections::HashMap;

use forebay_flow::{Admission, Amount, Gate, Pace, WaiterId};
use proptest::prelude::*;

const WAITERS: usize = 12;

#[derive(Debug, Clone)]
enum Step {
    Ask { amount: Amount, patience_us: Option<u64> },
    Settle { place: prop::sample::Index },
    Window { window: Amount },
    Cancel { place: prop::sample::Index },
    Pause { us: u64 },
    Close,
    Open,
}

fn step() -> impl Strategy<Value = Step> {
    let amount = (1..3u32, 0..2_000u64).prop_map(|(messages, bytes)| Amount { messages, bytes });
    let window = (1..10u32, 1..5_000u64).prop_map(|(messages, bytes)| Amount { messages, bytes });
    prop_oneof![
        8 => (amount, prop::option::of(0..100u64))
            .prop_map(|(amount, patience_us)| Step::Ask { amount, patience_us }),
        6 => any::<prop::sample::Index>().prop_map(|place| Step::Settle { place }),
        2 => window.prop_map(|window| Step::Window { window }),
        3 => any::<prop::sample::Index>().prop_map(|place| Step::Cancel { place }),
        3 => (0..50u64).prop_map(|us| Step::Pause { us }),
        1 => Just(Step::Close),
        3 => Just(Step::Open),
    ]
}

/// What the gate should be: waiters in order, permits that are out.
struct Model {
    window: Amount,
    open: bool,
    waiters: Vec<(WaiterId, Amount, Option<u64>)>,
    permits: Vec<Amount>,
}

impl Model {
    fn in_flight(&self) -> Amount {
        self.permits.iter().fold(Amount::ZERO, |sum, amount| sum.plus(*amount))
    }

    fn passes(&self, amount: Amount) -> bool {
        let alone = self.permits.is_empty() && amount.messages == 1;
        self.open && (alone || self.in_flight().plus(amount).fits(self.window))
    }
}

proptest! {
    #[test]
    fn permits_and_waiters_are_those_of_a_plain_list(steps in prop::collection::vec(step(), 1..300)) {
        let window = Amount::new(4, 3_000);
        let mut gate = Gate::new(window, WAITERS);
        let mut model = Model { window, open: true, waiters: Vec::new(), permits: Vec::new() };
        let mut now_us = 0;
        for step in steps {
            match step {
                Step::Ask { amount, patience_us } => {
                    let deadline_us = patience_us.map(|us| now_us + us);
                    let passes = model.waiters.is_empty() && model.passes(amount);
                    match gate.ask(now_us, amount, deadline_us) {
                        Admission::Admitted => {
                            prop_assert!(passes);
                            model.permits.push(amount);
                        }
                        Admission::Waiting(id) => {
                            prop_assert!(!passes && model.waiters.len() < WAITERS);
                            model.waiters.push((id, amount, deadline_us));
                        }
                        Admission::Refused => prop_assert_eq!(model.waiters.len(), WAITERS),
                    }
                }
                Step::Settle { place } if !model.permits.is_empty() => {
                    let place = place.index(model.permits.len());
                    gate.settle(model.permits.remove(place));
                }
                Step::Window { window } => {
                    model.window = window;
                    gate.set_window(window);
                }
                Step::Cancel { place } if !model.waiters.is_empty() => {
                    let (id, ..) = model.waiters.remove(place.index(model.waiters.len()));
                    prop_assert!(gate.cancel(id));
                    prop_assert!(!gate.cancel(id));
                }
                Step::Pause { us } => now_us += us,
                Step::Close => {
                    model.open = false;
                    gate.close();
                }
                Step::Open => {
                    model.open = true;
                    gate.open();
                }
                Step::Settle { .. } | Step::Cancel { .. } => {}
            }
            while let Some(id) = gate.next_expired(now_us) {
                let place = model.waiters.iter().position(|waiter| waiter.0 == id).unwrap();
                let (.., deadline_us) = model.waiters.remove(place);
                prop_assert!(deadline_us.unwrap() <= now_us);
            }
            prop_assert!(model.waiters.iter().all(|waiter| waiter.2.is_none_or(|us| us > now_us)));
            while let Some((id, amount)) = gate.next_admitted(now_us) {
                prop_assert!(model.passes(amount));
                let (first, expected, _) = model.waiters.remove(0);
                prop_assert_eq!((id, amount), (first, expected));
                model.permits.push(amount);
            }
            prop_assert!(model.waiters.first().is_none_or(|waiter| !model.passes(waiter.1)));
            prop_assert_eq!(gate.in_flight(), model.in_flight());
            prop_assert_eq!(gate.waiting(), model.waiters.len());
            let room = i64::from(model.window.messages) - i64::from(model.in_flight().messages);
            prop_assert_eq!(gate.room_messages(), room);
            prop_assert_eq!(gate.next_deadline_us(), model.waiters.iter().filter_map(|waiter| waiter.2).min());
        }
    }
}

#[test]
fn a_window_below_what_is_in_flight_takes_nothing_back() {
    let mut gate = Gate::new(Amount::new(10, 1_000), WAITERS);
    for _ in 0..10 {
        assert_eq!(gate.ask(0, Amount::message(1), None), Admission::Admitted);
    }
    gate.set_window(Amount::new(4, 1_000));
    assert_eq!(gate.room_messages(), -6);
    let Admission::Waiting(id) = gate.ask(0, Amount::message(1), None) else { panic!("no room") };
    gate.settle(Amount::new(6, 6));
    assert_eq!(gate.next_admitted(0), None);
    gate.settle(Amount::message(1));
    assert_eq!(gate.next_admitted(0), Some((id, Amount::message(1))));
}

#[test]
fn a_small_message_does_not_overtake_a_large_one() {
    let mut gate = Gate::new(Amount::new(10, 100), WAITERS);
    assert_eq!(gate.ask(0, Amount::message(60), None), Admission::Admitted);
    let Admission::Waiting(large) = gate.ask(0, Amount::message(60), None) else {
        panic!("no room")
    };
    let Admission::Waiting(small) = gate.ask(0, Amount::message(1), None) else {
        panic!("overtook")
    };
    gate.settle(Amount::message(60));
    assert_eq!(gate.next_admitted(0), Some((large, Amount::message(60))));
    assert_eq!(gate.next_admitted(0), Some((small, Amount::message(1))));
}

#[test]
fn many_cancellations_behind_one_who_waits_leave_nothing_behind() {
    let mut gate = Gate::new(Amount::new(1, 100), usize::MAX);
    assert_eq!(gate.ask(0, Amount::message(1), None), Admission::Admitted);
    let mut waiting = HashMap::new();
    for round in 0..10_000u64 {
        let Admission::Waiting(id) = gate.ask(0, Amount::message(round), None) else {
            panic!("no room")
        };
        if round % 100 == 0 {
            waiting.insert(id, round);
        } else {
            assert!(gate.cancel(id));
        }
    }
    assert_eq!(gate.waiting(), 100);
    let mut abandoned = 0;
    for id in gate.abandon() {
        assert!(waiting.remove(&id).is_some());
        abandoned += 1;
    }
    assert_eq!((abandoned, gate.waiting()), (100, 0));
}

fn paced(messages_per_s: u64, burst_messages: u64) -> Gate {
    let mut gate = Gate::new(Amount::new(8, 1_000), WAITERS);
    gate.set_pace(0, Some(Pace { messages_per_s, burst_messages, grain_us: 1_000 }));
    gate
}

#[test]
fn a_pace_limits_the_flow_only_where_most_of_the_window_is_in_flight() {
    let mut gate = paced(1_000, 5);
    for _ in 0..5 {
        assert_eq!(gate.ask(0, Amount::message(1), None), Admission::Admitted);
    }
    let Admission::Waiting(sixth) = gate.ask(0, Amount::message(1), None) else {
        panic!("no pace")
    };
    assert!(!gate.load().waiting, "there is room for three more");
    assert_eq!(gate.next_paced_us(), Some(1_000));
    assert_eq!(gate.next_admitted(999), None);
    assert_eq!(gate.next_admitted(1_999), Some((sixth, Amount::message(1))));
    let Admission::Waiting(_) = gate.ask(1_999, Amount::message(1), None) else {
        panic!("no pace")
    };
    assert!(gate.load().waiting, "six of eight");
    gate.set_pace(1_999, None);
    assert!(gate.next_admitted(1_999).is_some());
}

#[test]
fn who_waits_for_the_pace_leaves_with_those_who_came_meanwhile() {
    let mut gate = Gate::new(Amount::new(8, 1_000), WAITERS);
    gate.set_pace(0, Some(Pace { messages_per_s: 1_000, burst_messages: 3, grain_us: 2_500 }));
    for _ in 0..3 {
        assert_eq!(gate.ask(0, Amount::message(1), None), Admission::Admitted);
    }
    for _ in 0..3 {
        assert!(matches!(gate.ask(0, Amount::message(1), None), Admission::Waiting(_)));
    }
    assert_eq!(gate.next_paced_us(), Some(2_500));
    gate.settle(Amount::message(1));
    assert_eq!(gate.next_admitted(2_499), None, "there is a token, but not for one alone");
    gate.set_pace(2_499, Some(Pace { messages_per_s: 1_001, burst_messages: 3, grain_us: 2_500 }));
    assert_eq!(gate.next_admitted(2_499), None, "not either at another pace");
    assert!(gate.next_admitted(2_500).is_some() && gate.next_admitted(2_500).is_some());
    assert_eq!(gate.next_admitted(2_500), None);
    assert_eq!(gate.next_paced_us(), Some(5_000));
}

#[test]
fn another_pace_holds_from_when_it_is_set_and_the_same_one_changes_nothing() {
    let pace = |messages_per_s| Pace { messages_per_s, burst_messages: 1, grain_us: 1_000 };
    let mut gate = Gate::new(Amount::new(8, 1_000), WAITERS);
    gate.set_pace(0, Some(pace(1)));
    assert_eq!(gate.ask(0, Amount::message(1), None), Admission::Admitted);
    let Admission::Waiting(second) = gate.ask(0, Amount::message(1), None) else {
        panic!("no pace")
    };
    gate.set_pace(400_000, Some(pace(1)));
    assert_eq!((gate.next_paced_us(), gate.next_admitted(400_000)), (Some(1_000_000), None));
    // Less than half a message was to come yet.
    gate.set_pace(600_000, Some(pace(100)));
    assert_eq!((gate.next_admitted(600_000), gate.next_paced_us()), (None, Some(604_000)));
    gate.set_pace(600_500, Some(pace(100)));
    assert_eq!((gate.next_admitted(602_000), gate.next_paced_us()), (None, Some(604_000)));
    assert_eq!(gate.next_admitted(604_000), Some((second, Amount::message(1))));
}

#[test]
fn a_pace_may_wait_for_ever() {
    let pace = Pace { messages_per_s: 1, burst_messages: 1, grain_us: u64::MAX };
    let mut gate = Gate::new(Amount::new(8, 1_000), WAITERS);
    gate.set_pace(1, Some(pace));
    assert_eq!(gate.ask(1, Amount::message(1), None), Admission::Admitted);
    assert!(matches!(gate.ask(1, Amount::message(1), None), Admission::Waiting(_)));
    assert_eq!(gate.next_paced_us(), Some(u64::MAX));
}

#[test]
fn who_left_is_not_waited_for() {
    let mut gate = paced(1_000, 1);
    assert_eq!(gate.ask(0, Amount::message(1), None), Admission::Admitted);
    let Admission::Waiting(second) = gate.ask(0, Amount::message(1), None) else {
        panic!("no pace")
    };
    assert!(gate.cancel(second));
    assert_eq!(gate.next_admitted(1_000), None);
    assert_eq!(gate.next_paced_us(), None);
}

proptest! {
    #[test]
    fn a_pace_lets_no_more_pass_than_it_says_and_holds_nobody_longer(
        messages_per_s in 1..100_000u64,
        burst_messages in 1..50u64,
        pauses_us in prop::collection::vec(0..5_000u64, 1..200),
    ) {
        let mut gate = Gate::new(Amount::new(u32::MAX, u64::MAX), WAITERS);
        gate.set_pace(0, Some(Pace { messages_per_s, burst_messages, grain_us: 1_000 }));
        let (mut now_us, mut passed) = (0, 0);
        for pause_us in pauses_us {
            now_us += pause_us;
            let asked_us = now_us;
            if let Admission::Waiting(id) = gate.ask(now_us, Amount::message(1), None) {
                now_us = gate.next_paced_us().expect("nothing else can hold it");
                prop_assert_eq!(gate.next_admitted(now_us), Some((id, Amount::message(1))));
                let longest_us = 1_000.max(1_000_000u64.div_ceil(messages_per_s));
                prop_assert!(now_us - asked_us <= longest_us);
            }
            passed += 1;
            let allowed = u128::from(burst_messages) * 1_000_000 + u128::from(messages_per_s) * u128::from(now_us);
            prop_assert!(passed * 1_000_000 <= allowed);
        }
    }
}
