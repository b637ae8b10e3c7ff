//! Consumers that get nothing although messages wait, as on RabbitMQ after a node was away for a while.

use super::consuming::{Broker, how, number};
use super::*;

const SECOND_US: u64 = 1_000_000;
const STALL_US: u64 = 30 * SECOND_US;

struct Rig {
    session: Session,
    broker: Broker,
    key: usize,
    now_us: u64,
    unread: Vec<u8>,
    taken: Vec<u32>,
}

impl Rig {
    /// A consumer with a credit of 10, and a queue in which so many messages wait.
    fn new(messages: u32, sole: bool) -> Rig {
        let now_us = 1;
        let mut session = Session::new(Options::default());
        connect(&mut session, now_us);
        session.machine.take_outgoing(&mut Vec::new());
        let how = How { stall_us: Some(STALL_US), ..how(sole) };
        let credit = Credit::new(now_us, 1, 10, Some(10));
        let key = session.add_intake(Intake::new(how, credit), now_us);
        let broker = Broker::with(messages);
        let mut rig = Rig { session, broker, key, now_us, unread: Vec::new(), taken: Vec::new() };
        rig.talk();
        rig
    }

    /// Both hear what the other one said until nobody says more.
    fn talk(&mut self) {
        for _ in 0..8 {
            self.broker.hear(&mut self.session, self.now_us);
            while self.broker.work() {}
            self.broker.tell(&mut self.session, &mut self.unread, usize::MAX, self.now_us);
        }
    }

    /// The queue gives all that it may, and it comes or is lost.
    fn deliver(&mut self, lost: bool) {
        while self.broker.assign(0) {}
        if lost {
            self.broker.lose();
        }
        self.broker.send(0);
        self.talk();
    }

    fn work(&mut self) {
        let (intake, machine) = self.session.intake(self.key);
        while let Some(ready) = intake.take_ready(machine, self.now_us) {
            self.taken.push(number(&ready.message));
            assert!(intake.settle(machine, ready.key, Verdict::Ack, 10, self.now_us));
        }
    }

    /// As long as something comes.
    fn work_all(&mut self) {
        loop {
            let before = self.taken.len();
            self.deliver(false);
            self.work();
            self.talk();
            if self.taken.len() == before {
                return;
            }
        }
    }

    /// Until nothing is due before `end_us`; work is done where `works`.
    fn run_until(&mut self, end_us: u64, works: bool) {
        while let Some(due_us) = self.session.next_tick_us().filter(|&due_us| due_us <= end_us) {
            self.now_us = self.now_us.max(due_us);
            self.session.tick(self.now_us).unwrap();
            self.talk();
            if works {
                self.work_all();
            }
        }
        self.now_us = end_us;
    }

    fn replaced(&mut self) -> u64 {
        self.session.intake(self.key).0.metrics().channels_replaced
    }
}

#[test]
fn what_was_lost_on_its_way_comes_on_another_channel() {
    let mut rig = Rig::new(100, false);
    rig.deliver(true);
    rig.run_until(STALL_US, false);
    assert_eq!(rig.replaced(), 0, "the stall timeout is not over");
    rig.run_until(STALL_US + 2 * SECOND_US, true);
    assert_eq!(rig.replaced(), 1);
    assert_eq!(rig.taken, (0..100).collect::<Vec<_>>());
    let told = Happening::ConsumerChannelReplaced { queue: "q".into() };
    assert_eq!(rig.session.happenings, [told]);
    rig.run_until(1000 * SECOND_US, true);
    assert_eq!((rig.replaced(), rig.broker.acked), (1, 100));
}

#[test]
fn the_rest_of_what_was_lost_comes_when_the_credit_was_not_used_up() {
    let mut rig = Rig::new(5, false);
    rig.deliver(true);
    // Nothing waits as the broker sees it; with the next messages it does.
    rig.run_until(100 * SECOND_US, true);
    assert_eq!(rig.replaced(), 0);
    rig.broker.messages = 20;
    rig.deliver(true);
    rig.run_until(rig.now_us + STALL_US + 2 * SECOND_US, true);
    assert_eq!((rig.replaced(), rig.taken.len()), (1, 20));
}

#[test]
fn an_empty_queue_is_asked_for_and_nothing_else_happens() {
    let mut rig = Rig::new(0, false);
    rig.run_until(1000 * SECOND_US, true);
    // Once whether it is there, then after every stall timeout.
    assert_eq!((rig.broker.asked, rig.replaced()), (1 + 33, 0));
}

#[test]
fn a_message_between_the_questions_is_a_sign_of_life() {
    let mut rig = Rig::new(100, false);
    for _ in 0..20 {
        rig.run_until(rig.now_us + STALL_US + SECOND_US / 2, false);
        rig.deliver(false);
        rig.work();
        rig.talk();
    }
    assert_eq!(rig.replaced(), 0);
    // Once whether it is there, and once after each stall timeout.
    assert_eq!(rig.broker.asked, 21);
}

#[test]
fn work_that_takes_long_is_no_stall() {
    let mut rig = Rig::new(100, false);
    rig.deliver(false);
    rig.run_until(1000 * SECOND_US, false);
    assert_eq!((rig.broker.asked, rig.replaced()), (1, 0), "all the credit is used up");
    rig.work();
    rig.talk();
    rig.run_until(rig.now_us + STALL_US - SECOND_US, false);
    assert_eq!(rig.broker.asked, 1, "the broker knows of the acks only now");
}

#[test]
fn where_no_channel_gets_anything_the_next_is_tried_later_and_later() {
    // Another consumer's turn: messages wait, and none is for us.
    let mut rig = Rig::new(100, false);
    rig.run_until(3600 * SECOND_US, false);
    let hour = rig.replaced();
    assert!((6..=9).contains(&hour), "{hour}");
    rig.run_until(7200 * SECOND_US, false);
    let next = rig.replaced() - hour;
    assert!((5..=6).contains(&next), "{next}");
    // Our turn, for one message: it begins anew.
    rig.broker.assign(0);
    rig.broker.send(0);
    rig.talk();
    rig.work();
    rig.talk();
    let (before, now_us) = (rig.replaced(), rig.now_us);
    rig.run_until(now_us + STALL_US + 2 * SECOND_US, false);
    assert_eq!(rig.replaced(), before + 1);
}

#[test]
fn a_consumer_that_has_its_queue_alone_is_left_where_it_is() {
    let mut rig = Rig::new(100, true);
    rig.deliver(true);
    rig.run_until(1000 * SECOND_US, true);
    assert_eq!((rig.broker.asked, rig.replaced()), (1, 0));
}

#[test]
fn a_message_that_comes_with_the_answer_keeps_the_channel() {
    let mut rig = Rig::new(100, false);
    // The first answer says that messages wait, the second one as well, and right behind it comes one.
    while rig.broker.asked < 3 {
        rig.now_us = rig.session.next_tick_us().unwrap();
        rig.session.tick(rig.now_us).unwrap();
        rig.broker.hear(&mut rig.session, rig.now_us);
        while rig.broker.work() {}
        if rig.broker.asked == 3 {
            rig.broker.assign(0);
            rig.broker.send(0);
        }
        rig.broker.tell(&mut rig.session, &mut rig.unread, usize::MAX, rig.now_us);
    }
    rig.work();
    assert_eq!((rig.replaced(), rig.taken.len()), (0, 1));
}
