//! Messages over which a broker ends connections, and others beside them.

use std::collections::BTreeMap;

use super::consuming::how;
use super::*;
use crate::outcome::{Unconfirmed, UnknownReason};

const SECOND_US: u64 = 1_000_000;

/// How the broker ends a connection when it meets a culprit.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Ends {
    /// It says by which code, and for which method.
    By(u16, (u16, u16)),
    Cut,
}

const COMPLAINT: Ends = Ends::By(501, (0, 0));

/// A publisher of the rig.
struct Publisher {
    key: usize,
    open: Vec<(Vec<u8>, usize)>,
}

/// A broker that confirms what it takes, in the order in which it came, and ends the connection when it meets a body that
/// begins with a `!`. A body that begins with a `?` is never answered.
struct Rig {
    session: Session,
    publishers: Vec<Publisher>,
    ends: Ends,
    now_us: u64,
    /// Of this connection, by channel.
    confirmed: BTreeMap<u16, u64>,
    /// Bodies that were there before the last end of a connection, and how it ended.
    together: Vec<Vec<u8>>,
    outcomes: BTreeMap<Vec<u8>, crate::session::ledger::Outcome>,
    connections: u32,
    up: bool,
}

impl Rig {
    fn new(ends: Ends, windows: &[u32]) -> Rig {
        let mut rig = Rig {
            session: Session::new(Options::default()),
            publishers: Vec::new(),
            ends,
            now_us: SECOND_US,
            confirmed: BTreeMap::new(),
            together: Vec::new(),
            outcomes: BTreeMap::new(),
            connections: 0,
            up: false,
        };
        rig.connect();
        for &window in windows {
            let target =
                Target { exchange: String::new(), routing_key: "q".into(), mandatory: true };
            let window = move || Box::new(Fixed::new(Amount::new(window, u64::MAX))) as Box<_>;
            let ledger = Ledger::new(target, "t-", Box::new(window));
            let key = rig.session.add_ledger(ledger, rig.now_us);
            rig.publishers.push(Publisher { key, open: Vec::new() });
        }
        rig
    }

    fn connect(&mut self) {
        connect(&mut self.session, self.now_us);
        self.confirmed.clear();
        self.connections += 1;
        self.up = true;
    }

    fn publish(&mut self, publisher: usize, body: &[u8]) {
        let message = Message::new(body.to_vec());
        let Publisher { key, open } = &mut self.publishers[publisher];
        match self.session.publish(*key, message, None, self.now_us) {
            Published::Admitted(entry) => open.push((body.to_vec(), entry)),
            other => panic!("{other:?}"),
        }
    }

    /// The broker reads all there is. It takes what comes before a culprit, but says so only if there is none.
    fn serve(&mut self) {
        let mut out = Vec::new();
        self.session.machine.take_outgoing(&mut out);
        self.session.drained(self.now_us);
        let mut rest = out.strip_prefix(&forebay_wire::PROTOCOL_HEADER).unwrap_or(&out);
        let mut bodies = Vec::new();
        while let Some(frame) = read_frame(rest, 1 << 20).unwrap() {
            if frame.kind == FrameKind::Body {
                bodies.push((frame.channel, frame.payload.to_vec()));
            }
            rest = &rest[frame.size_bytes()..];
        }
        if bodies.iter().any(|(_, body)| body.starts_with(b"!")) {
            self.together = bodies.into_iter().map(|(_, body)| body).collect();
            self.end(self.ends);
            return;
        }
        for (channel, body) in bodies {
            let delivery_tag = self.confirmed.entry(channel).or_default();
            *delivery_tag += 1;
            if !body.starts_with(b"?") {
                let ack = basic::Ack { delivery_tag: *delivery_tag, multiple: false };
                feed(&mut self.session, &bytes(channel, &ack), self.now_us);
            }
        }
        self.look();
    }

    fn end(&mut self, ends: Ends) {
        if let Ends::By(reply_code, (class_id, method_id)) = ends {
            let reply_text = forebay_wire::ShortStr::truncated("over");
            let close = connection::Close { reply_code, reply_text, class_id, method_id };
            feed(&mut self.session, &bytes(0, &close), self.now_us);
        }
        let lost = self.session.hung_up(None);
        self.session.was_at(0);
        self.session.lost(&lost, self.now_us);
        self.up = false;
        self.look();
    }

    /// Goes on until nothing changes any more, or the connection has ended.
    fn settle(&mut self) {
        while self.up {
            let before = self.open();
            self.serve();
            if self.up && self.open() == before {
                return;
            }
        }
    }

    fn look(&mut self) {
        let cx = &mut Context::from_waker(Waker::noop());
        for Publisher { key, open } in &mut self.publishers {
            open.retain(|(body, entry)| {
                match self.session.ledger(*key).0.poll_outcome(*entry, cx) {
                    Poll::Pending => true,
                    Poll::Ready(outcome) => {
                        let twice = self.outcomes.insert(body.clone(), outcome);
                        assert_eq!(twice, None, "an outcome comes once");
                        false
                    }
                }
            });
        }
    }

    fn open(&self) -> usize {
        self.publishers.iter().map(|publisher| publisher.open.len()).sum()
    }

    /// Lost and made again until nothing is open. How many connections it took.
    fn go_on(&mut self, pause_us: u64) -> u32 {
        let before = self.connections;
        self.settle();
        while self.open() > 0 {
            assert!(self.connections - before < 1_000, "{} are open for ever", self.open());
            if self.up {
                self.now_us = self.session.next_tick_us().expect("something is waited for");
                self.session.tick(self.now_us).unwrap();
            } else {
                self.now_us += pause_us;
                self.connect();
            }
            self.settle();
        }
        self.connections - before
    }

    fn is_culprit(&self, body: &[u8]) -> bool {
        let outcome = self.outcomes.get(body);
        matches!(outcome, Some(Err(Unconfirmed::Unknown(UnknownReason::ConnectionsEnded { .. }))))
    }
}

#[test]
fn a_message_that_the_broker_cannot_read_is_found_among_many() {
    for (culprits, at_most) in [(1, 12), (3, 30)] {
        let mut rig = Rig::new(COMPLAINT, &[200, 200]);
        for number in 0..200_u32 {
            rig.publish(0, &number.to_be_bytes());
            let name = if (50..50 + culprits).contains(&number) { "!" } else { "b" };
            rig.publish(1, format!("{name}{number}").as_bytes());
        }
        let connections = rig.go_on(SECOND_US);
        assert!(connections <= at_most, "{connections} connections for {culprits}");
        for (body, outcome) in &rig.outcomes {
            let expected = body.starts_with(b"!");
            assert_eq!(rig.is_culprit(body), expected, "{body:?} {outcome:?}");
            assert_eq!(outcome.is_ok(), !expected, "{body:?} {outcome:?}");
        }
        assert_eq!(rig.together.len(), 1, "what is in doubt is alone at last");
        let told = rig.outcomes[&b"!50"[..]].clone().unwrap_err().to_string();
        assert!(told.contains("3 connections ended over it") && told.contains("501"), "{told}");
        // All goes on as before.
        rig.publish(0, b"later");
        rig.publish(1, b"later still");
        assert_eq!(rig.go_on(SECOND_US), 0);
    }
}

#[test]
fn a_broker_that_fails_or_cuts_is_asked_ten_times_and_for_half_a_minute() {
    for ends in [Ends::By(541, (0, 0)), Ends::By(506, (60, 40)), Ends::Cut] {
        for (pause_us, expected) in [(4 * SECOND_US, 9), (SECOND_US / 10, 300)] {
            let mut rig = Rig::new(ends, &[1]);
            rig.publish(0, b"!");
            let connections = rig.go_on(pause_us);
            assert_eq!(connections, expected, "{ends:?}");
            assert!(rig.is_culprit(b"!"));
        }
    }
}

#[test]
fn what_is_cut_among_many_is_found_as_well() {
    let mut rig = Rig::new(Ends::Cut, &[100]);
    for number in 0..100 {
        let name = if number == 30 { "!" } else { "b" };
        rig.publish(0, format!("{name}{number}").as_bytes());
    }
    let connections = rig.go_on(10 * SECOND_US);
    assert!(connections <= 25, "{connections}");
    assert!(rig.is_culprit(b"!30"));
    assert_eq!(rig.outcomes.values().filter(|outcome| outcome.is_ok()).count(), 99);
}

#[test]
fn an_outage_of_hours_is_no_message_s_fault() {
    let other_method = Ends::By(503, (20, 10));
    let too_many_channels = Ends::By(530, (0, 0));
    for ends in [Ends::By(320, (0, 0)), other_method, too_many_channels] {
        let mut rig = Rig::new(ends, &[1, 1]);
        rig.publish(0, b"!");
        for _ in 0..1_000 {
            rig.settle();
            rig.now_us += 10 * SECOND_US;
            rig.connect();
        }
        assert_eq!(rig.open(), 1, "{ends:?}");
    }
    // A host that is away in between, another one, and silence.
    for case in 0..3 {
        let mut rig = Rig::new(Ends::Cut, &[1]);
        rig.publish(0, b"!");
        for round in 0..1_000 {
            match case {
                0 => rig.settle(),
                1 => {
                    rig.settle();
                    rig.session.was_at(1 + round % 2);
                }
                _ => {
                    let silent = Lost::Failed(crate::machine::Failed::Silent { heartbeat_s: 1 });
                    rig.session.was_at(0);
                    rig.session.lost(&silent, rig.now_us);
                }
            }
            if case == 0 && round % 9 == 8 {
                rig.session.peer_was_away(0);
            }
            rig.now_us += 10 * SECOND_US;
            rig.connect();
        }
        assert_eq!(rig.open(), 1, "case {case}");
    }
}

#[test]
fn what_cuts_connections_of_a_certain_age_is_no_message_s_fault() {
    let mut rig = Rig::new(Ends::Cut, &[1]);
    rig.publish(0, b"?");
    for _ in 0..1_000 {
        rig.settle();
        rig.now_us += 300 * SECOND_US;
        rig.end(Ends::Cut);
        rig.connect();
    }
    assert_eq!(rig.open(), 1);
    // What leaves slowly may be what is waited for.
    for _ in 0..10 {
        rig.settle();
        rig.now_us += 300 * SECOND_US;
        rig.session.still_busy(rig.now_us);
        rig.end(Ends::Cut);
        rig.connect();
    }
    assert!(rig.is_culprit(b"?"));
}

#[test]
fn who_waits_for_a_queue_that_answers_nobody_does_not_hold_the_others() {
    let mut rig = Rig::new(COMPLAINT, &[10, 10]);
    rig.publish(0, b"?");
    rig.publish(1, b"b");
    rig.publish(1, b"!");
    rig.publish(1, b"c");
    rig.settle();
    // The one that is never answered goes out first each time, and is cleared when nothing came of it.
    for _ in 0..20 {
        if !rig.up {
            rig.connect();
        }
        rig.settle();
        if rig.up && rig.open() > 1 {
            rig.now_us = rig.session.next_tick_us().unwrap();
            rig.session.tick(rig.now_us).unwrap();
        }
    }
    assert!(rig.is_culprit(b"!"), "{:?}", rig.outcomes);
    assert_eq!((rig.outcomes.len(), rig.open()), (3, 1));
}

#[test]
fn a_message_beside_a_call_or_a_user_s_channel_is_not_alone() {
    for case in ["a call", "a request", "a user's publish", "nothing"] {
        let mut rig = Rig::new(COMPLAINT, &[1]);
        let call = rig.session.add_calls(Calls::default());
        rig.publish(0, b"!");
        for _ in 0..3 {
            match case {
                "a call" => {
                    let message = Message::new("a question");
                    rig.session.call(call, "", "q", message, rig.now_us).unwrap();
                    let channel = rig.session.calls(call).channel().unwrap();
                    let ok = basic::ConsumeOk::default();
                    feed(&mut rig.session, &bytes(channel, &ok), rig.now_us);
                }
                "a request" => drop(rig.session.open_user_channel().unwrap()),
                "a user's publish" => {
                    let (_, number, _) = rig.session.open_user_channel().unwrap();
                    let ok = forebay_wire::channel::OpenOk::default();
                    feed(&mut rig.session, &bytes(number, &ok), rig.now_us);
                    let machine = &mut rig.session.machine;
                    machine.select_confirms(number).unwrap();
                    let (nowhere, none) = (Default::default(), Default::default());
                    machine.publish(number, nowhere, nowhere, false, none, b"?").unwrap();
                }
                _ => {}
            }
            rig.settle();
            rig.connect();
        }
        assert_eq!(rig.open(), usize::from(case != "nothing"), "{case}");
    }
}

#[test]
fn what_a_proxy_cuts_after_a_while_is_not_suspected() {
    for ends in [Ends::Cut, Ends::By(541, (0, 0))] {
        let mut rig = Rig::new(ends, &[3]);
        for body in [b"?1", b"?2", b"?3"] {
            rig.publish(0, body);
        }
        for _ in 0..10 {
            rig.settle();
            rig.now_us += 300 * SECOND_US;
            rig.end(ends);
            rig.connect();
        }
        assert!(rig.session.trial.is_none(), "{ends:?}: what comes next goes out at once");
    }
}

#[test]
fn ends_are_no_longer_in_a_row_where_nothing_came_of_one_attempt() {
    let mut rig = Rig::new(Ends::Cut, &[1]);
    rig.publish(0, b"?");
    for round in 0..100 {
        rig.settle();
        if round % 9 == 8 {
            // Nothing comes of it for so long that it is cleared, if it was suspected.
            while let Some(due_us) = rig.session.trial_until_us() {
                rig.now_us = due_us;
                rig.session.tick(due_us).unwrap();
            }
        }
        rig.now_us += 4 * SECOND_US;
        rig.end(Ends::Cut);
        rig.connect();
    }
    assert_eq!(rig.open(), 1);
}

#[test]
fn silent_queues_among_others_slow_the_search_no_more_than_others_do() {
    let mut rig = Rig::new(COMPLAINT, &[300]);
    for number in 0..300 {
        let name = if number % 3 == 2 { "?" } else { "b" };
        rig.publish(0, format!("{name}{number}").as_bytes());
    }
    rig.end(COMPLAINT);
    rig.connect();
    let mut rounds = 0;
    rig.settle();
    while rig.open() > 100 {
        rounds += 1;
        assert!(rounds <= 12, "{} are open", rig.open());
        rig.now_us = rig.session.next_tick_us().unwrap();
        rig.session.tick(rig.now_us).unwrap();
        rig.settle();
    }
}

#[test]
fn what_was_cleared_and_goes_first_takes_nobody_s_turn() {
    let mut rig = Rig::new(COMPLAINT, &[20]);
    for body in ["?1", "?2", "?3", "?4", "?5", "?6", "?7", "?8", "b1", "b2", "!", "c"] {
        rig.publish(0, body.as_bytes());
    }
    rig.settle();
    for _ in 0..60 {
        if !rig.up {
            rig.connect();
        }
        rig.settle();
        if rig.up && rig.session.trial.is_some() {
            rig.now_us = rig.session.next_tick_us().unwrap();
            rig.session.tick(rig.now_us).unwrap();
        }
    }
    assert!(rig.is_culprit(b"!"), "{:?}", rig.outcomes);
    assert_eq!((rig.outcomes.len(), rig.open()), (4, 8));
}

#[test]
fn a_broker_that_blocks_publishers_fails_over_no_message() {
    for ends in [COMPLAINT, Ends::By(541, (0, 0)), Ends::Cut] {
        let mut rig = Rig::new(ends, &[1]);
        rig.publish(0, b"!");
        for _ in 0..100 {
            let blocked = connection::Blocked { reason: forebay_wire::ShortStr::truncated("disk") };
            feed(&mut rig.session, &bytes(0, &blocked), rig.now_us);
            rig.settle();
            if rig.up {
                rig.end(ends);
            }
            rig.now_us += 4 * SECOND_US;
            rig.connect();
        }
        assert_eq!(rig.open(), 1, "{ends:?}");
    }
}

/// A consumer of the rig.
fn consume(rig: &mut Rig) -> usize {
    let credit = Credit::new(rig.now_us, 1, 1, None);
    rig.session.add_intake(Intake::new(how(true), credit), rig.now_us)
}

#[test]
fn what_a_broker_does_not_answer_a_consumer_may_be_why_it_fails() {
    // (the broker answers the consumer, how it fails, whether the message is why)
    let nameless = Ends::By(541, (0, 0));
    let named = Ends::By(541, (60, 40));
    for (answers, ends, found) in
        [(false, nameless, false), (true, nameless, true), (false, named, true)]
    {
        let mut rig = Rig::new(ends, &[1]);
        let key = consume(&mut rig);
        rig.publish(0, b"!");
        for _ in 0..40 {
            let channel = rig.session.intake(key).0.channel();
            let served = rig.session.trial.is_some();
            if !served {
                rig.settle();
            }
            if rig.up && served {
                assert_eq!(rig.session.ledger(rig.publishers[0].key).0.in_flight(false).count(), 0);
                if answers {
                    let ok = basic::ConsumeOk::default();
                    feed(&mut rig.session, &bytes(channel.unwrap(), &ok), rig.now_us);
                } else {
                    rig.now_us = rig.session.trial_until_us().unwrap();
                    rig.session.tick(rig.now_us).unwrap();
                }
                rig.settle();
            }
            if rig.up {
                break;
            }
            rig.now_us += 4 * SECOND_US;
            rig.connect();
        }
        assert_eq!(rig.is_culprit(b"!"), found, "{answers} {ends:?}");
    }
}

#[test]
fn what_cannot_be_read_may_be_for_a_consumer() {
    for case in ["a consumer", "a user's channel", "nobody"] {
        let mut rig = Rig::new(COMPLAINT, &[1]);
        match case {
            "a consumer" => drop(consume(&mut rig)),
            "a user's channel" => {
                let (_, number, _) = rig.session.open_user_channel().unwrap();
                let ok = forebay_wire::channel::OpenOk::default();
                feed(&mut rig.session, &bytes(number, &ok), rig.now_us);
            }
            _ => {}
        }
        rig.publish(0, b"?");
        rig.settle();
        let lost = rig.session.receive(&mut &[9_u8; 32][..], rig.now_us).unwrap_err();
        rig.session.was_at(0);
        rig.session.lost(&lost, rig.now_us);
        assert_eq!(rig.session.trial.is_some(), case == "nobody", "{case}: {lost}");
    }
}

proptest! {
    #[test]
    fn culprits_are_found_and_nobody_else_is(
        bodies in prop::collection::vec((0..3_usize, prop::bool::weighted(0.1)), 0..60),
        code in prop_oneof![Just(COMPLAINT), Just(Ends::By(541, (0, 0))), Just(Ends::Cut)],
    ) {
        let mut rig = Rig::new(code, &[60, 60, 60]);
        for (number, (publisher, culprit)) in bodies.iter().enumerate() {
            let name = if *culprit { "!" } else { "b" };
            rig.publish(*publisher, format!("{name}{number}").as_bytes());
        }
        rig.go_on(5 * SECOND_US);
        prop_assert_eq!(rig.outcomes.len(), bodies.len());
        for (body, outcome) in &rig.outcomes {
            prop_assert_eq!(rig.is_culprit(body), body.starts_with(b"!"));
            prop_assert_eq!(outcome.is_ok(), !body.starts_with(b"!"));
        }
        for Publisher { key, .. } in &rig.publishers {
            prop_assert_eq!(rig.session.ledger(*key).0.metrics().in_flight_messages, 0);
        }
    }
}
