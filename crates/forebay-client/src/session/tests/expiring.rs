//! Messages whose time is over before the broker says what became of them.

use super::*;
use crate::outcome::{Unconfirmed, UnknownReason};

const LIMIT_US: u64 = 2_000_000;

struct Rig {
    session: Session,
    seen: Seen,
    key: usize,
    now_us: u64,
    cx: Context<'static>,
}

impl Rig {
    /// A publisher with room for two messages in flight, and a send buffer of so many bytes.
    fn new(outgoing_bytes_max: usize) -> Rig {
        let now_us = 1_000_000;
        let mut session = Session::new(Options::default());
        connect_with(&mut session, outgoing_bytes_max, now_us);
        let target = Target { exchange: String::new(), routing_key: "q".into(), mandatory: true };
        let window = || Box::new(Fixed::new(Amount::new(2, u64::MAX))) as Box<_>;
        let mut ledger = Ledger::new(target, "t-", Box::new(window));
        ledger.set_limit_us(Some(LIMIT_US));
        let key = session.add_ledger(ledger, now_us);
        let mut seen = Seen::default();
        seen.read(&mut session, now_us);
        Rig { session, seen, key, now_us, cx: Context::from_waker(Waker::noop()) }
    }

    fn publish(&mut self, body: &'static str) -> Published {
        self.session.publish(self.key, Message::new(body), None, self.now_us)
    }

    fn admitted(&mut self, body: &'static str) -> usize {
        match self.publish(body) {
            Published::Admitted(entry) => entry,
            other => panic!("{other:?}"),
        }
    }

    fn read(&mut self) {
        self.seen.read(&mut self.session, self.now_us);
    }

    fn ack(&mut self, delivery_tag: u64) {
        let ack = basic::Ack { delivery_tag, multiple: false };
        feed(&mut self.session, &bytes(self.seen.channel, &ack), self.now_us);
    }

    fn pass(&mut self, us: u64) {
        self.now_us += us;
        self.session.expire(self.now_us);
    }

    fn lose(&mut self) {
        self.session.lost(&Lost::Io("cut".into()), self.now_us);
        self.seen = Seen::default();
    }

    fn outcome(&mut self, entry: usize) -> Poll<crate::session::ledger::Outcome> {
        self.session.ledger(self.key).0.poll_outcome(entry, &mut self.cx)
    }

    fn in_flight(&mut self) -> u32 {
        self.session.ledger(self.key).0.metrics().in_flight_messages
    }
}

fn time_over() -> Poll<crate::session::ledger::Outcome> {
    Poll::Ready(Err(Unconfirmed::Unknown(UnknownReason::TimeOver)))
}

#[test]
fn what_was_sent_is_unknown_when_its_time_is_over_and_a_late_answer_is_ignored() {
    let mut rig = Rig::new(1 << 20);
    let first = rig.admitted("first");
    rig.pass(LIMIT_US / 2);
    let second = rig.admitted("second");
    let Published::Waiting(third) = rig.publish("third") else { panic!("there is room for two") };
    rig.pass(LIMIT_US / 2 - 1);
    assert!(rig.outcome(first).is_pending());
    rig.pass(1);
    assert_eq!(rig.outcome(first), time_over());
    // Its place is taken by who waited, once.
    let cx = &mut Context::from_waker(Waker::noop());
    let Poll::Ready(Ok(third)) = rig.session.ledger(rig.key).0.poll_admitted(third, cx) else {
        panic!("there is room again")
    };
    assert_eq!(rig.in_flight(), 2);
    rig.read();
    assert_eq!(rig.seen.bodies, [&b"first"[..], b"second", b"third"]);
    rig.ack(1);
    assert_eq!(rig.in_flight(), 2, "a late answer gives nothing back");
    assert!(rig.outcome(second).is_pending());
    rig.ack(3);
    assert!(matches!(rig.outcome(third), Poll::Ready(Ok(_))));
    rig.pass(LIMIT_US / 2);
    assert_eq!(rig.outcome(second), time_over());
    assert_eq!(rig.in_flight(), 0);
}

#[test]
fn in_an_outage_what_never_left_is_withdrawn_and_nothing_of_both_is_sent_later() {
    let mut rig = Rig::new(1);
    let sent = rig.admitted("sent");
    let held = rig.admitted("held"); // the send buffer is full
    rig.lose();
    rig.pass(LIMIT_US);
    assert_eq!(rig.outcome(sent), time_over());
    assert_eq!(rig.outcome(held), Poll::Ready(Err(Unconfirmed::Withdrawn)));
    assert_eq!(rig.in_flight(), 0);
    connect_with(&mut rig.session, 1 << 20, rig.now_us);
    rig.read();
    let after = rig.admitted("after");
    rig.read();
    assert_eq!(rig.seen.bodies, [b"after"]);
    rig.ack(1);
    assert!(matches!(rig.outcome(after), Poll::Ready(Ok(_))));
    let metrics = rig.session.ledger(rig.key).0.metrics();
    assert_eq!((metrics.published, metrics.unknown, metrics.withdrawn), (3, 1, 1));
}

#[test]
fn a_silent_channel_is_replaced_although_all_that_waited_on_it_has_expired() {
    let mut rig = Rig::new(1 << 20);
    let first = rig.seen.channel;
    let until_us = rig.now_us + STALL_US;
    while rig.now_us < until_us {
        rig.admitted("unanswered");
        rig.read();
        assert_eq!(rig.seen.channel, first);
        rig.pass(LIMIT_US);
        rig.session.tick(rig.now_us).unwrap();
    }
    rig.read();
    assert_ne!(rig.seen.channel, first);
    let metrics = rig.session.ledger(rig.key).0.metrics();
    assert_eq!((metrics.channels_replaced, metrics.in_flight_messages), (1, 0));
}
