//! A consumer that has its queue alone, and a broker that still has the one of the connection before; and a queue on a node that is down.

use forebay_wire::{ShortStr, channel};

use super::*;

/// The names of the methods that go out, and the channel of the last one.
fn told(session: &mut Session, now_us: u64) -> (Vec<&'static str>, u16) {
    let (mut out, mut names, mut channel) = (Vec::new(), Vec::new(), 0);
    session.machine.take_outgoing(&mut out);
    session.drained(now_us);
    let mut rest = out.strip_prefix(&forebay_wire::PROTOCOL_HEADER[..]).unwrap_or(&out);
    while let Some(frame) = read_frame(rest, 1 << 20).unwrap() {
        names.push(Method::parse(frame.payload).unwrap().name());
        channel = frame.channel;
        rest = &rest[frame.size_bytes()..];
    }
    (names, channel)
}

fn let_in(session: &mut Session, channel: u16, now_us: u64) {
    feed(session, &bytes(channel, &channel::OpenOk::default()), now_us);
    feed(session, &bytes(channel, &basic::QosOk::default()), now_us);
    let consumer_tag = ShortStr::truncated("t");
    feed(session, &bytes(channel, &basic::ConsumeOk { consumer_tag }), now_us);
}

/// It asks for its channel and to consume, and has the channel, whose number this is.
fn asked(session: &mut Session, now_us: u64) -> u16 {
    let (names, channel) = told(session, now_us);
    assert!(names.ends_with(&["channel.open", "basic.qos", "basic.consume"]), "{names:?}");
    feed(session, &bytes(channel, &channel::OpenOk::default()), now_us);
    channel
}

/// Nobody hears of a refusal, and it is time to ask again: when that is.
fn asks_again(session: &mut Session, key: usize, now_us: u64) -> u64 {
    let mut cx = Context::from_waker(Waker::noop());
    let (intake, machine) = session.intake(key);
    assert!(intake.poll_next(machine, now_us, &mut cx).is_pending());
    let next_us = session.next_tick_us().expect("it asks again");
    session.tick(next_us).unwrap();
    next_us
}

#[test]
fn it_asks_again_until_the_broker_has_noticed_the_loss() {
    let mut cx = Context::from_waker(Waker::noop());
    let mut session = Session::new(Options::default());
    let mut now_us = 1;
    connect(&mut session, now_us);
    told(&mut session, now_us);
    let how = How { exclusive: true, ..consuming::how(false) };
    let intake = Intake::new(how, Credit::new(now_us, 1, 10, Some(1)));
    let key = session.add_intake(intake, now_us);
    let (names, channel) = told(&mut session, now_us);
    assert_eq!(names, ["channel.open", "basic.qos", "basic.consume"]);
    let_in(&mut session, channel, now_us);

    session.lost(&Lost::Io("cut".into()), now_us);
    connect(&mut session, now_us);
    for _ in 0..5 {
        let channel = asked(&mut session, now_us);
        let refusal = channel::Close { reply_code: 403, ..Default::default() };
        feed(&mut session, &bytes(channel, &refusal), now_us);
        now_us = asks_again(&mut session, key, now_us);
    }
    let (_, channel) = told(&mut session, now_us);
    let_in(&mut session, channel, now_us);
    let (intake, _) = session.intake(key);
    assert!(matches!(intake.poll_consuming(&mut cx), Poll::Ready(Ok(()))));
}

#[test]
fn one_whose_queue_is_on_a_node_that_is_down_asks_until_it_is_back() {
    let mut cx = Context::from_waker(Waker::noop());
    let mut session = Session::new(Options::default());
    let mut now_us = 1;
    connect(&mut session, now_us);
    let intake = Intake::new(consuming::how(false), Credit::new(now_us, 1, 10, Some(1)));
    let key = session.add_intake(intake, now_us);
    let (_, channel) = told(&mut session, now_us);
    let_in(&mut session, channel, now_us);

    session.lost(&Lost::Io("cut".into()), now_us);
    connect(&mut session, now_us);
    let refusal = |text| channel::Close {
        reply_code: 404,
        reply_text: ShortStr::truncated(text),
        ..Default::default()
    };
    // For longer than anybody waits for a consumer that was before.
    for round in 0..1_000 {
        let channel = asked(&mut session, now_us);
        let down = refusal(
            "NOT_FOUND - home node 'rabbit@b' of durable queue 'q' in vhost '/' is down or inaccessible",
        );
        session.happenings.clear();
        feed(&mut session, &bytes(channel, &down), now_us);
        assert_eq!(session.happenings.len(), usize::from(round == 0), "told once");
        now_us = asks_again(&mut session, key, now_us);
    }
    let (_, channel) = told(&mut session, now_us);
    let_in(&mut session, channel, now_us);
    let (intake, _) = session.intake(key);
    assert!(matches!(intake.poll_consuming(&mut cx), Poll::Ready(Ok(()))));
    // A queue that is gone is gone.
    let gone = refusal("NOT_FOUND - no queue 'q' in vhost '/'");
    feed(&mut session, &bytes(channel, &gone), now_us);
    let (intake, machine) = session.intake(key);
    let polled = intake.poll_next(machine, now_us, &mut cx);
    assert!(matches!(polled, Poll::Ready(Err(crate::ConsumeError::Cancelled))), "{polled:?}");
}

#[test]
fn one_that_was_never_let_in_is_refused_at_once() {
    let mut cx = Context::from_waker(Waker::noop());
    let mut session = Session::new(Options::default());
    connect(&mut session, 1);
    let how = How { exclusive: true, ..consuming::how(false) };
    let key = session.add_intake(Intake::new(how, Credit::new(1, 1, 10, Some(1))), 1);
    let (_, channel) = told(&mut session, 1);
    feed(&mut session, &bytes(channel, &channel::OpenOk::default()), 1);
    let refusal = channel::Close { reply_code: 403, ..Default::default() };
    feed(&mut session, &bytes(channel, &refusal), 1);
    let (intake, _) = session.intake(key);
    assert!(matches!(intake.poll_consuming(&mut cx), Poll::Ready(Err(_))));
}
