//! What is told before a connection is closed.

use forebay_wire::{channel, write_properties_frame};

use super::consuming::how;
use super::*;
use crate::error::ChannelFault;
use crate::outcome::NotPublishedReason;

const CHANNEL: u16 = 1;

/// The names of the methods that wait to be sent.
fn said(session: &mut Session) -> Vec<&'static str> {
    let mut out = Vec::new();
    session.machine.take_outgoing(&mut out);
    let mut rest = out.strip_prefix(&forebay_wire::PROTOCOL_HEADER).unwrap_or(&out);
    let mut said = Vec::new();
    while let Some(frame) = read_frame(rest, 1 << 20).unwrap() {
        said.push(Method::parse(frame.payload).unwrap().name());
        rest = &rest[frame.size_bytes()..];
    }
    said
}

/// A session with a consumer that has been given so many messages. Its key.
fn with_deliveries(count: u64) -> (Session, usize) {
    let mut session = Session::new(Options::default());
    connect(&mut session, 1);
    let credit = Credit::new(1, 2, 10, Some(10));
    let key = session.add_intake(Intake::new(how(false), credit), 1);
    feed(&mut session, &bytes(CHANNEL, &channel::OpenOk::default()), 1);
    feed(&mut session, &bytes(CHANNEL, &basic::QosOk::default()), 1);
    feed(&mut session, &bytes(CHANNEL, &basic::ConsumeOk::default()), 1);
    for delivery_tag in 1..=count {
        let mut out = bytes(CHANNEL, &basic::Deliver { delivery_tag, ..Default::default() });
        write_properties_frame(&mut out, CHANNEL, 60, 0, &Default::default());
        feed(&mut session, &out, 1);
    }
    (session, key)
}

#[test]
fn what_a_consumer_that_was_stopped_finished_is_acknowledged_before_the_end() {
    let (mut session, key) = with_deliveries(2);
    let (intake, machine) = session.intake(key);
    let finished = intake.take_ready(machine, 1).unwrap().key;
    let _in_work = intake.take_ready(machine, 1).unwrap();
    intake.stop(machine);
    said(&mut session);

    let (intake, machine) = session.intake(key);
    assert!(intake.settle(machine, finished, Verdict::Ack, 10, 2));
    assert!(said(&mut session).is_empty(), "it waits for the other one");
    session.close_now();
    assert_eq!(said(&mut session), ["basic.ack", "connection.close"]);
}

#[test]
fn what_is_finished_after_the_end_was_said_comes_too_late_and_is_told_so() {
    for by_us in [true, false] {
        let (mut session, key) = with_deliveries(1);
        let (intake, machine) = session.intake(key);
        let in_work = intake.take_ready(machine, 1).unwrap().key;
        said(&mut session);
        if by_us {
            session.close_now();
        } else {
            feed(&mut session, &bytes(0, &connection::Close::default()), 2);
        }
        said(&mut session);

        let (intake, machine) = session.intake(key);
        let in_time = intake.settle(machine, in_work, Verdict::Ack, 10, 3);
        assert!(said(&mut session).is_empty(), "nothing may follow the end");
        assert!(!in_time, "the broker delivers it again; by us: {by_us}");
        let metrics = session.intake(key).0.metrics();
        assert_eq!((metrics.acked, metrics.stale), (0, 1));
    }
}

fn next(session: &mut Session, key: usize) -> Poll<Result<bool, crate::ConsumeError>> {
    let (intake, machine) = session.intake(key);
    let polled = intake.poll_next(machine, 3, &mut Context::from_waker(Waker::noop()));
    polled.map_ok(|message| message.is_some())
}

#[test]
fn who_asks_for_messages_while_the_connection_closes_hears_that_it_is_closed() {
    let (mut session, key) = with_deliveries(0);
    assert!(next(&mut session, key).is_pending());
    session.close_now();
    let closed = ChannelFault::Lost(Lost::ClosedByUs).into();
    let closed: Poll<Result<bool, crate::ConsumeError>> = Poll::Ready(Err(closed));
    assert_eq!(next(&mut session, key), closed);
    session.give_up(&Lost::ClosedByUs);
    assert_eq!(next(&mut session, key), closed);
}

#[test]
fn who_stopped_a_consumer_hears_of_no_error_that_came_later() {
    let stopped = || {
        let (mut session, key) = with_deliveries(1);
        let (intake, machine) = session.intake(key);
        let _in_work = intake.take_ready(machine, 1).unwrap();
        intake.stop(machine);
        assert_eq!(next(&mut session, key), Poll::Ready(Ok(false)));
        (session, key)
    };
    let (mut session, key) = stopped();
    session.close_now();
    session.give_up(&Lost::ClosedByUs);
    assert_eq!(next(&mut session, key), Poll::Ready(Ok(false)));
    let (mut session, key) = stopped();
    feed(
        &mut session,
        &bytes(CHANNEL, &channel::Close { reply_code: 406, ..Default::default() }),
        2,
    );
    assert_eq!(next(&mut session, key), Poll::Ready(Ok(false)));
}

#[test]
fn what_was_asked_for_before_the_close_is_waited_for_and_nothing_after_it() {
    let mut session = Session::new(Options::default());
    connect(&mut session, 1);
    let target = Target { exchange: String::new(), routing_key: "q".into(), mandatory: true };
    let window = || Box::new(Fixed::new(Amount::new(1, u64::MAX))) as Box<_>;
    let key = session.add_ledger(Ledger::new(target, "t-", Box::new(window)), 1);
    let publish = |session: &mut Session| session.publish(key, Message::new("m"), None, 1);
    assert!(matches!(publish(&mut session), Published::Admitted(_)));
    assert!(matches!(publish(&mut session), Published::Waiting(_)));
    session.begin_closing();
    let late = publish(&mut session);
    assert!(matches!(
        late,
        Published::Refused(NotPublishedReason::Lost(Lost::ClosedByUs), message) if message.body() == b"m"
    ));
    for delivery_tag in [1, 2] {
        assert!(!session.is_quiet());
        feed(&mut session, &bytes(CHANNEL, &basic::Ack { delivery_tag, multiple: false }), 1);
    }
    assert!(session.is_quiet(), "nothing is left to wait for");
}
