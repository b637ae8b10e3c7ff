//! Who has which channel: when there are no more, when an answer comes for somebody who has gone, and when a broker takes them away.

use forebay_wire::{TableBuf, Value, channel};

use super::*;
use crate::machine::ChannelError;
use crate::session::NAMED_PUBLISHERS;

fn ledger() -> Ledger {
    let target = Target { exchange: String::new(), routing_key: "q".into(), mandatory: true };
    Ledger::new(target, "t-", Box::new(|| Box::new(Fixed::new(Amount::new(50, u64::MAX)))))
}

/// A session on a broker with so many channels, which counts publishes under names or does not.
fn connect_to_few(session: &mut Session, channel_max: u16, named: bool, now_us: u64) {
    let mut capabilities = TableBuf::new();
    if named {
        capabilities = capabilities.with(NAMED_PUBLISHERS, Value::Bool(true));
    }
    let properties = TableBuf::new().with("capabilities", Value::Table(capabilities.as_table()));
    let options = Options { heartbeat_s: 0, ..Options::default() };
    let tune = connection::Tune { channel_max, frame_max: 4096, heartbeat: 0 };
    connect_to(session, options, properties.as_table(), &tune, now_us);
    said(session); // the login
}

/// Names of the methods that wait to be sent, and the channels they are for.
fn said(session: &mut Session) -> Vec<(u16, &'static str)> {
    let mut out = Vec::new();
    session.machine.take_outgoing(&mut out);
    let mut rest = out.strip_prefix(&forebay_wire::PROTOCOL_HEADER).unwrap_or(&out);
    let mut said = Vec::new();
    while let Some(frame) = read_frame(rest, 1 << 20).unwrap() {
        if frame.kind == FrameKind::Method {
            said.push((frame.channel, Method::parse(frame.payload).unwrap().name()));
        }
        rest = &rest[frame.size_bytes()..];
    }
    said
}

#[test]
fn a_publisher_without_a_channel_gets_the_next_one_that_is_free() {
    let mut session = Session::new(Options::default());
    connect_to_few(&mut session, 1, false, 1);
    let first = session.add_ledger(ledger(), 1);
    assert_eq!(session.check_fed(first), Ok(()));
    let second = session.add_ledger(ledger(), 1);
    let full = Err(ChannelError::AllInUse { channel_max: 1 });
    assert_eq!(session.check_fed(second), full);
    assert_eq!(session.check_free_channel(), full);
    said(&mut session);
    session.drop_ledger(first);
    assert_eq!(said(&mut session), [(1, "channel.close")]);
    feed(&mut session, &bytes(1, &channel::CloseOk::default()), 2);
    assert_eq!(said(&mut session), [(1, "channel.open"), (1, "confirm.select")]);
    assert_eq!(session.check_fed(second), Ok(()));
    assert!(session.has_room(second));
}

#[test]
fn one_that_waits_for_a_channel_and_goes_gets_none() {
    let mut session = Session::new(Options::default());
    connect_to_few(&mut session, 1, false, 1);
    let first = session.add_ledger(ledger(), 1);
    let second = session.add_ledger(ledger(), 1);
    session.drop_ledger(second);
    session.drop_ledger(first);
    said(&mut session);
    feed(&mut session, &bytes(1, &channel::CloseOk::default()), 2);
    assert_eq!(said(&mut session), []);
}

#[test]
fn an_open_ok_for_a_publisher_that_has_gone_is_for_nobody() {
    let mut session = Session::new(Options::default());
    connect_to_few(&mut session, 10, true, 1);
    let mut limited = ledger();
    limited.set_limit_us(Some(100));
    let key = session.add_ledger(limited, 1);
    let Published::Admitted(entry) = session.publish(key, Message::new("m"), None, 1) else {
        panic!("there is room")
    };
    session.lost(&Lost::Io("cut".into()), 2);
    connect_to_few(&mut session, 10, true, 3); // asks, on channel 1, what it has taken
    // Before the broker says what it has taken the message's time is over, and nobody wants to know.
    session.abandon_outcome(key, entry);
    session.drop_ledger(key);
    session.expire(1_000);
    assert_eq!(said(&mut session), [(1, "channel.close")]);
    feed(&mut session, &bytes(1, &channel::OpenOk::default()), 1_001);
    feed(&mut session, &bytes(1, &channel::CloseOk::default()), 1_002);
    assert_eq!(session.machine.open_channel(), Ok(1));
}

#[test]
fn a_publisher_that_has_gone_gets_no_other_channel_when_the_broker_closes_its_own() {
    let mut session = Session::new(Options::default());
    connect_to_few(&mut session, 10, false, 1);
    let key = session.add_ledger(ledger(), 1);
    let Published::Admitted(entry) = session.publish(key, Message::new("m"), None, 1) else {
        panic!("there is room")
    };
    session.abandon_outcome(key, entry);
    session.drop_ledger(key);
    feed(&mut session, &bytes(1, &channel::OpenOk::default()), 2);
    said(&mut session);
    feed(&mut session, &bytes(1, &channel::Close { reply_code: 404, ..Default::default() }), 2);
    assert_eq!(said(&mut session), [(1, "channel.close-ok")]);
    assert!(!session.has_publishers());
    assert_eq!(session.unheard().unknown, 1);
}

#[test]
fn a_broker_that_lets_nobody_have_replies_is_asked_again_by_the_next_call_only() {
    let mut cx = Context::from_waker(Waker::noop());
    let mut session = Session::new(Options::default());
    connect_to_few(&mut session, 10, false, 1);
    let key = session.add_calls(Calls::default());
    let refused = channel::Close {
        reply_code: 403,
        reply_text: forebay_wire::ShortStr::truncated("ACCESS_REFUSED"),
        ..Default::default()
    };
    for _ in 0..2 {
        let call = session.call(key, "", "q", Message::new("?"), 1).unwrap();
        let asked = said(&mut session);
        assert_eq!(asked[..2], [(1, "channel.open"), (1, "basic.consume")]);
        feed(&mut session, &bytes(1, &channel::OpenOk::default()), 2);
        feed(&mut session, &bytes(1, &refused), 2);
        assert_eq!(said(&mut session), [(1, "channel.close-ok")]);
        let answer = session.calls(key).poll_answer(call, &mut cx);
        assert!(matches!(answer, Poll::Ready(Err(crate::CallError::ChannelClosed(_)))));
    }
    // One that had its replies is opened again at once: what closed it was a request.
    let call = session.call(key, "none", "q", Message::new("?"), 3).unwrap();
    feed(&mut session, &bytes(1, &channel::OpenOk::default()), 4);
    let consume_ok = basic::ConsumeOk { consumer_tag: forebay_wire::ShortStr::truncated("c") };
    feed(&mut session, &bytes(1, &consume_ok), 4);
    said(&mut session);
    feed(&mut session, &bytes(1, &refused), 5);
    assert!(said(&mut session).contains(&(1, "channel.open")));
    assert!(session.calls(key).poll_answer(call, &mut cx).is_ready());
}
