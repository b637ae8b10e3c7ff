//! What holds of every window, whatever happens to it: any order of events on the real gate.

use std::collections::VecDeque;

use forebay_flow::{
    Admission, Aimd, Amount, BrokerKind, CommitTime, Fixed, Gate, Gradient2, HalfDrain,
    KernelReading, Pfw, PfwOptions, Phase, Sample, Vegas, Window,
};
use proptest::prelude::*;

const CEILING: Amount = Amount::new(500, 1 << 20);

fn windows() -> Vec<(&'static str, Box<dyn Window>)> {
    let options = PfwOptions {
        ceiling_messages: CEILING.messages,
        ceiling_bytes: CEILING.bytes,
        ..PfwOptions::default()
    };
    vec![
        ("pfw", Box::new(Pfw::new(options))),
        ("fixed", Box::new(Fixed::new(Amount::new(20, 10_000)))),
        ("half drain", Box::new(HalfDrain::new(Amount::new(20, 10_000)))),
        ("aimd", Box::new(Aimd::new(5_000, CEILING))),
        ("vegas", Box::new(Vegas::new(CEILING))),
        ("gradient2", Box::new(Gradient2::new(CEILING))),
    ]
}

#[derive(Debug, Clone)]
enum Event {
    Publish {
        bytes: u64,
    },
    /// Up to so many, oldest first, as one `multiple`.
    Confirm {
        messages: usize,
    },
    Reject {
        place: usize,
    },
    Pause {
        us: u64,
    },
    Network {
        us: Option<u64>,
    },
    /// Another connection shows that it has not become longer.
    NoLonger {
        rtt_us: u64,
        rest_us: u64,
    },
    Commits(CommitTime),
    Block,
    Unblock,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => (1..5_000u64).prop_map(|bytes| Event::Publish { bytes }),
        1 => Just(Event::Publish { bytes: 10 << 20 }),
        4 => (1..60usize).prop_map(|messages| Event::Confirm { messages }),
        1 => any::<prop::sample::Index>().prop_map(|i| Event::Reject { place: i.index(1_000) }),
        4 => (0..200_000u64).prop_map(|us| Event::Pause { us }),
        1 => (0..10_000_000u64).prop_map(|us| Event::Pause { us }),
        1 => prop::option::of(0..1_000_000u64).prop_map(|us| Event::Network { us }),
        1 => (0..1_000_000u64, 0..10_000_000u64)
            .prop_map(|(rtt_us, rest_us)| Event::NoLonger { rtt_us, rest_us }),
        1 => any::<(u32, u32)>().prop_map(|(us, publishers)| {
            Event::Commits(CommitTime { us: u64::from(us), publishers, ..CommitTime::default() })
        }),
        1 => Just(Event::Block),
        1 => Just(Event::Unblock),
    ]
}

/// Publishes, admits and settles as a client does.
struct Client {
    gate: Gate,
    window: Box<dyn Window>,
    in_flight: VecDeque<(u64, u64)>, // sent, bytes
    now_us: u64,
}

impl Client {
    fn new(window: Box<dyn Window>) -> Client {
        let gate = Gate::new(window.window(), 100);
        Client { gate, window, in_flight: VecDeque::new(), now_us: 0 }
    }

    fn sent(&mut self, amount: Amount) {
        self.in_flight.push_back((self.now_us, amount.bytes));
        self.window.sent(self.now_us, self.gate.load());
    }

    fn admit(&mut self) {
        self.gate.set_window(self.window.window());
        while let Some((_, amount)) = self.gate.next_admitted(self.now_us) {
            self.sent(amount);
            self.gate.set_window(self.window.window());
        }
    }

    fn settle(&mut self, place: usize, confirmed: bool) {
        let Some((sent_us, bytes)) = self.in_flight.remove(place) else { return };
        self.gate.settle(Amount::message(bytes));
        let sample = Sample { rtt_us: self.now_us - sent_us, bytes };
        if confirmed {
            self.window.confirmed(self.now_us, sample, self.gate.load());
        } else {
            self.window.rejected(self.now_us, self.gate.load());
        }
    }

    fn step(&mut self, event: &Event) {
        match *event {
            Event::Publish { bytes } => {
                if self.gate.ask(self.now_us, Amount::message(bytes), None) == Admission::Admitted {
                    self.sent(Amount::message(bytes));
                }
            }
            Event::Confirm { messages } => {
                for _ in 0..messages.min(self.in_flight.len()) {
                    self.settle(0, true);
                }
            }
            Event::Reject { place } => self.settle(place % self.in_flight.len().max(1), false),
            Event::Pause { us } => self.now_us += us,
            Event::Network { us } => {
                self.window.network(self.now_us, us.map(KernelReading::of));
            }
            Event::NoLonger { rtt_us, rest_us } => {
                self.window.route_is_no_longer(self.now_us, rtt_us, rest_us);
            }
            Event::Commits(told) => self.window.commit_time(told),
            Event::Block => {
                self.gate.close();
                self.window.blocked(self.now_us);
            }
            Event::Unblock => {
                self.gate.open();
                self.window.unblocked(self.now_us);
            }
        }
        self.admit();
    }

    /// Publishes as much as may be, confirms all of it `rtt_us` later; so often.
    fn rounds(&mut self, rounds: usize, rtt_us: u64) {
        for _ in 0..rounds {
            while self.window.may_send(self.gate.in_flight(), Amount::message(200)) {
                self.step(&Event::Publish { bytes: 200 });
            }
            self.step(&Event::Pause { us: rtt_us });
            self.step(&Event::Confirm { messages: usize::MAX });
        }
    }
}

proptest! {
    #[test]
    fn a_window_stays_finite_and_between_its_bounds(events in prop::collection::vec(event(), 1..300)) {
        for (name, window) in windows() {
            let mut client = Client::new(window);
            for event in &events {
                client.step(event);
                let (window, state) = (client.window.window(), client.window.state());
                prop_assert!((1..=CEILING.messages).contains(&window.messages), "{}: {:?}", name, state);
                prop_assert!((1..=CEILING.bytes).contains(&window.bytes), "{}: {:?}", name, state);
                prop_assert!(state.window_messages.is_finite(), "{}: {:?}", name, state);
                if let Some(pace) = client.window.pace() {
                    prop_assert!((1..u64::MAX).contains(&pace.messages_per_s), "{}: {:?}", name, pace);
                    prop_assert!(pace.burst_messages > 0, "{}: {:?}", name, pace);
                    prop_assert!(pace.grain_us <= 1_000.max(state.target_us / 8), "{}: {:?}", name, pace);
                }
                prop_assert_eq!(client.gate.in_flight().messages as usize, client.in_flight.len());
            }
        }
    }

    #[test]
    fn whoever_waits_is_admitted_once_all_is_confirmed(events in prop::collection::vec(event(), 1..200)) {
        for (name, window) in windows() {
            let mut client = Client::new(window);
            for event in &events {
                client.step(event);
            }
            client.step(&Event::Unblock);
            for _ in 0..50 {
                client.step(&Event::Pause { us: 1_000 });
                client.step(&Event::Confirm { messages: usize::MAX });
            }
            prop_assert_eq!(client.gate.waiting(), 0, "{}", name);
            prop_assert_eq!(client.gate.in_flight(), Amount::ZERO, "{}", name);
        }
    }

    #[test]
    fn nothing_grows_unless_the_window_limits(rtts in prop::collection::vec(1..100_000u64, 1..200)) {
        // Half drain opens again when it has drained, which is no growth.
        for (name, window) in windows().into_iter().filter(|(name, _)| *name != "half drain") {
            let mut client = Client::new(window);
            let before = client.window.window_messages();
            for rtt_us in &rtts {
                client.step(&Event::Publish { bytes: 100 });
                client.step(&Event::Pause { us: *rtt_us });
                client.step(&Event::Confirm { messages: 1 });
            }
            prop_assert!(client.window.window_messages() <= before, "{}", name);
        }
    }
}

fn pfw() -> Client {
    Client::new(Box::new(Pfw::new(PfwOptions::default())))
}

#[test]
fn startup_doubles_until_rounds_stay_above_the_target() {
    let mut client = pfw();
    client.rounds(3, 1_000);
    let doubled = client.window.window_messages();
    assert!(doubled >= 32, "{doubled}");
    client.rounds(20, 50_000);
    assert_eq!(client.window.state().phase, Phase::Steady);
    assert!(client.window.window_messages() < doubled);
}

#[test]
fn a_window_goes_back_when_another_connection_refutes_its_longer_route() {
    let mut client = pfw();
    let mut seen = 0;
    let mut round = |client: &mut Client, route_us: u64, rtt_us| {
        seen += 1;
        client.step(&Event::Network { us: Some(route_us + seen % 7) });
        client.rounds(1, rtt_us);
    };
    (0..6).for_each(|_| round(&mut client, 10_000, 12_000));
    (0..6).for_each(|_| round(&mut client, 10_000, 60_000));
    // It grows slowly, so that what the readings show is not its own.
    (0..30).for_each(|_| round(&mut client, 10_000, 19_000));
    let (before, state) = (client.window.window_messages(), client.window.state());
    assert_eq!(state.phase, Phase::Steady);
    // The broker's machine acknowledges late, and its window believes in a longer route.
    (0..20).for_each(|_| round(&mut client, 50_000, 52_000));
    assert!(client.window.window_messages() > 2 * before);
    assert_eq!(client.window.state().phase, Phase::Startup);
    let refuted = Event::NoLonger { rtt_us: 10_200, rest_us: 6_000_000 };
    client.step(&refuted);
    assert!(client.window.window_messages() <= before, "{before}");
    let state = client.window.state();
    assert!(state.phase == Phase::Steady && state.network_us < 12_000, "{state:?}");
    // It is believed no more, so what waits is cut.
    (0..20).for_each(|_| round(&mut client, 50_000, 52_000));
    let state = client.window.state();
    assert!(state.phase == Phase::Steady && state.network_us < 12_000, "{state:?}");
    assert!(client.window.window_messages() < before / 2);
    // Nothing is left to go back to.
    let window = client.window.window_messages();
    client.step(&refuted);
    assert_eq!(client.window.window_messages(), window);
}

#[test]
fn one_slow_round_does_not_end_startup() {
    let mut client = pfw();
    client.rounds(3, 1_000);
    client.rounds(1, 50_000);
    client.rounds(3, 1_000);
    assert_eq!(client.window.state().phase, Phase::Startup);
}

#[test]
fn a_window_begins_with_what_tcp_begins_with() {
    for (bytes, messages) in [(200, 8), (2_000, 8), (5_000, 3), (100_000, 1)] {
        let mut client = pfw();
        for _ in 0..10 {
            client.step(&Event::Publish { bytes });
        }
        assert_eq!(client.in_flight.len(), messages, "of {bytes} bytes");
    }
}

#[test]
fn one_message_passes_however_large() {
    let client = pfw();
    let large = Amount::message(1 << 40);
    assert!(client.window.may_send(Amount::ZERO, large));
    assert!(!client.window.may_send(Amount::message(1), large));
}

#[test]
fn the_window_of_bytes_follows_the_size_of_messages() {
    let mut client = pfw();
    assert_eq!(client.window.window_bytes(), 64 * 1024);
    for _ in 0..500 {
        client.step(&Event::Publish { bytes: 1 << 20 });
        client.step(&Event::Pause { us: 1_000 });
        client.step(&Event::Confirm { messages: 1 });
    }
    let (bytes, messages) = (client.window.window_bytes(), client.window.window_messages());
    assert!(bytes >= u64::from(messages) << 20, "{bytes} bytes for {messages} messages");
}

#[test]
fn refusals_of_one_round_halve_the_window_once() {
    let mut client = pfw();
    client.rounds(5, 1_000);
    let before = client.window.window_messages();
    for _ in 0..20 {
        client.step(&Event::Publish { bytes: 200 });
    }
    for _ in 0..20 {
        client.step(&Event::Reject { place: 0 });
    }
    assert_eq!(client.window.window_messages(), before / 2);
}

#[test]
fn after_blocking_it_continues_with_half() {
    let mut client = pfw();
    client.rounds(5, 1_000);
    let before = client.window.window_messages();
    client.step(&Event::Block);
    assert!(!client.window.may_send(Amount::ZERO, Amount::message(1)));
    assert_eq!(client.window.state().phase, Phase::Blocked);
    client.step(&Event::Unblock);
    assert_eq!(client.window.window_messages(), before / 2);
}

#[test]
fn a_silence_neither_grows_the_window_nor_becomes_the_base() {
    let mut client = pfw();
    client.rounds(200, 1_000);
    let before = (client.window.window_messages(), client.window.state().base_us);
    client.rounds(1, 20_000_000);
    let after = (client.window.window_messages(), client.window.state().base_us);
    assert!(after.0 <= before.0 && after.1 <= before.1 + 1, "{before:?}, {after:?}");
}

/// A way of 100 ms that takes 10 messages a millisecond, and 7 where it is overfull.
#[test]
fn the_window_that_was_too_large_is_approached_slowly() {
    let mut client = pfw();
    let mut on_the_way = VecDeque::from([0; 100]);
    let mut largest = 0;
    for ms in 0..60_000 {
        client.now_us += 1_000;
        for _ in 0..on_the_way.pop_front().unwrap_or(0) {
            client.settle(0, true);
        }
        if ms % 100 == 0 {
            let moves_us = ms / 100 % 2; // or it were not believed
            client.step(&Event::Network { us: Some(100_000 + moves_us) });
        }
        while client.window.may_send(client.gate.in_flight(), Amount::message(200)) {
            client.step(&Event::Publish { bytes: 200 });
        }
        let waiting = client.in_flight.len() - on_the_way.iter().sum::<usize>();
        let carried = if waiting > 200 { 7 } else { 10 };
        on_the_way.push_back(waiting.min(carried));
        if ms >= 10_000 {
            largest = largest.max(client.window.window_messages());
        }
    }
    let last = client.window.window_messages();
    assert!(last >= 900 && largest <= 1_600, "{largest} messages at most, {last} in the end");
}

/// A window of 8 and more next door to a broker of ours, which reads 64 KiB in a visit: 163 messages of 200 bytes, and 204 with a quarter more.
fn beside_many() -> Client {
    let mut client = pfw();
    client.window.broker(BrokerKind::FairVisits { bytes: 65_536 });
    client.window.network(0, Some(KernelReading::of(50)));
    client.window.commit_time(CommitTime { us: 0, publishers: 500, ..CommitTime::default() });
    client
}

/// The broker counts from 20 ms on.
#[test]
fn a_window_follows_the_part_that_its_broker_asks_for_at_once() {
    let mut client = pfw();
    client.window.broker(BrokerKind::FairVisits { bytes: 65_536 });
    client.window.network(0, Some(KernelReading::of(50)));
    let told = |part_permille| CommitTime { us: 0, publishers: 4, part_permille };
    client.window.commit_time(told(1_000));
    for _ in 0..300 {
        let rtt_us = 300 + 4 * u64::from(client.window.window_messages());
        client.rounds(1, rtt_us);
    }
    let all = f64::from(client.window.window_messages());
    assert!((1_050.0..=1_350.0).contains(&all), "{all}: its part of a commit");
    for part_permille in [700, 1_100, 500] {
        client.window.commit_time(told(part_permille));
        let part = f64::from(client.window.window_messages()) / all;
        assert!((1_000.0 * part - f64::from(part_permille)).abs() < 20.0, "{part}");
        // What comes now was in flight before.
        client.rounds(1, 40_000);
        let kept = f64::from(client.window.window_messages()) / all;
        assert!((kept - part).abs() < 0.02, "{kept}");
    }
}

/// Where many begin together, rounds are as uneven as they are long, and none of that is a window's own doing.
#[test]
fn who_begins_among_many_keeps_what_fills_a_visit() {
    let mut client = beside_many();
    for rtt_us in [60_000, 50_000, 20_000, 14_000, 9_000] {
        client.rounds(1, rtt_us);
    }
    let filled = client.window.window_messages();
    assert!((160..=205).contains(&filled), "{:?}", client.window.state());
    for rtt_us in [16_000, 81_000, 140_000, 70_000, 130_000] {
        client.rounds(1, rtt_us);
        assert!(client.window.window_messages() >= 160, "{:?}", client.window.state());
    }
}

/// Or one quick round would double what fills a visit.
#[test]
fn startup_ends_among_many_where_a_visit_is_full() {
    let mut client = beside_many();
    for rtt_us in [60_000, 50_000, 20_000, 14_000, 13_000, 14_000, 13_000] {
        client.rounds(1, rtt_us);
    }
    let state = client.window.state();
    assert_eq!(state.phase, Phase::Steady, "{state:?}");
    assert!((160.0..=205.0).contains(&state.window_messages), "{state:?}");
}

/// It was halved, and what fills a visit is not far.
#[test]
fn up_to_what_fills_a_visit_a_window_grows_quickly() {
    let mut client = beside_many();
    client.rounds(12, 50_000);
    client.step(&Event::Publish { bytes: 200 });
    client.step(&Event::Reject { place: 0 });
    let halved = client.window.window_messages();
    let mut rounds = 0;
    while client.window.window_messages() < 3 * halved / 2 {
        client.rounds(1, 40_000 + 20_000 * (rounds % 2));
        rounds += 1;
        assert!(rounds < 8, "{:?}", client.window.state());
    }
}

#[test]
fn the_floor_of_a_window_is_what_a_visit_costs_the_broker() {
    let rabbitmq = BrokerKind::RabbitMq;
    for (broker, ceiling, least) in
        [(BrokerKind::Unknown, 500, 8), (rabbitmq, 500, 12), (rabbitmq, 10, 10)]
    {
        let options = PfwOptions { ceiling_messages: ceiling, ..PfwOptions::default() };
        let mut client = Client::new(Box::new(Pfw::new(options)));
        client.window.broker(broker);
        client.rounds(8, 1_000);
        client.rounds(40, 100_000);
        assert_eq!(client.window.window_messages(), least, "{broker:?}, {ceiling} at most");
    }
}
