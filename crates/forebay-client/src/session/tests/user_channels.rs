//! Channels that users drive, and the connection they are on.

use std::sync::Arc;
use std::task::Wake;

use forebay_wire::{
    RawProperties, ShortStr, channel, confirm, write_body_frame, write_properties_frame,
};

use super::*;

#[test]
fn what_nobody_took_of_a_connection_that_is_gone_does_not_keep_the_next_one_from_being_read() {
    const BODY_BYTES: usize = 1 << 20;
    let mut session = Session::new(Options::default());
    connect(&mut session, 1);
    let (key, number, _) = session.open_user_channel().unwrap();
    feed(&mut session, &bytes(number, &channel::OpenOk::default()), 1);
    let body = vec![0; BODY_BYTES];
    for delivery_tag in 1..=(INBOX_BYTES_MAX / BODY_BYTES) as u64 {
        let mut out = bytes(number, &basic::Deliver { delivery_tag, ..Default::default() });
        write_properties_frame(&mut out, number, 60, BODY_BYTES as u64, &Default::default());
        for part in body.chunks(4_000) {
            write_body_frame(&mut out, number, part);
        }
        feed(&mut session, &out, 1);
    }
    assert!(!session.wants_bytes());

    session.lost(&Lost::Io("cut".into()), 1);
    assert!(session.wants_bytes(), "the answer to the next login lies there");
    connect(&mut session, 1);
    let (user, _) = session.user(key);
    let message = user.poll_delivery("", 1, &mut Context::from_waker(Waker::noop()));
    let Poll::Ready(Ok(Some(message))) = message else { panic!("{message:?}") };
    session.taken(key, message.size_bytes());
    session.drop_user_channel(key, number);
    assert_eq!(session.inbox_bytes, 0);
}

#[test]
fn publishes_of_who_has_the_number_now_do_not_count_for_a_channel_that_was_closed() {
    let mut session = Session::new(Options::default());
    connect(&mut session, 1);
    let open = |session: &mut Session| {
        let (key, number, _) = session.open_user_channel().unwrap();
        feed(session, &bytes(number, &channel::OpenOk::default()), 1);
        session.machine.select_confirms(number).unwrap();
        feed(session, &bytes(number, &confirm::SelectOk::default()), 1);
        let (none, empty) = (ShortStr::truncated(""), RawProperties::validate(&[0, 0]).unwrap());
        session.machine.publish(number, none, none, false, empty, b"m").unwrap();
        (key, number)
    };
    let (old, number) = open(&mut session);
    assert_eq!(session.unconfirmed(old, number), 1);
    feed(&mut session, &bytes(number, &channel::Close::default()), 1);
    assert_eq!(session.unconfirmed(old, number), 0);
    session.machine.take_outgoing(&mut Vec::new());
    let (new, same_number) = open(&mut session);
    assert_eq!(same_number, number);
    assert_eq!((session.unconfirmed(old, number), session.unconfirmed(new, number)), (0, 1));
}

/// Woken, it does nothing.
struct Task;

impl Wake for Task {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn who_asks_for_room_again_and_again_waits_once() {
    let mut session = Session::new(Options::default());
    let tasks: [Waker; 2] = [Arc::new(Task).into(), Arc::new(Task).into()];
    for _ in 0..100 {
        for task in &tasks {
            // Of another poll, as with a timer beside it.
            session.wait_for_room(&Context::from_waker(&task.clone()));
        }
    }
    assert_eq!(session.room_wakers.len(), 2);
}

/// A consumer that the broker has begun.
fn consume(session: &mut Session, key: usize, number: u16, tag: &str) -> u64 {
    let ticket = session.user(key).0.ask(Wants::Answer);
    let consumer_tag = ShortStr::truncated(tag);
    feed(session, &bytes(number, &basic::ConsumeOk { consumer_tag }), 1);
    let mut cx = Context::from_waker(Waker::noop());
    match session.user(key).0.poll_reply(ticket, &mut cx) {
        Poll::Ready(Ok(Reply::Consuming { subscription, .. })) => subscription,
        other => panic!("{other:?}"),
    }
}

fn deliver(session: &mut Session, number: u16, tag: &str, delivery_tag: u64) {
    let consumer_tag = ShortStr::truncated(tag);
    let deliver = basic::Deliver { consumer_tag, delivery_tag, ..Default::default() };
    let mut out = bytes(number, &deliver);
    write_properties_frame(&mut out, number, 60, 1, &Default::default());
    write_body_frame(&mut out, number, b"m");
    feed(session, &out, 1);
}

#[test]
fn who_had_a_tag_before_neither_takes_nor_ends_what_the_new_consumer_has() {
    const TAG: &str = "again";
    let mut session = Session::new(Options::default());
    connect(&mut session, 1);
    let (key, number, _) = session.open_user_channel().unwrap();
    feed(&mut session, &bytes(number, &channel::OpenOk::default()), 1);
    let taken = |session: &mut Session, subscription| {
        let mut cx = Context::from_waker(Waker::noop());
        match session.user(key).0.poll_delivery(TAG, subscription, &mut cx) {
            Poll::Ready(Ok(message)) => message.map(|message| {
                session.taken(key, message.size_bytes());
                message.delivery_tag()
            }),
            other => panic!("{other:?}"),
        }
    };
    let old = consume(&mut session, key, number, TAG);
    deliver(&mut session, number, TAG, 1);
    deliver(&mut session, number, TAG, 2);
    let consumer_tag = ShortStr::truncated(TAG);
    feed(&mut session, &bytes(number, &basic::CancelOk { consumer_tag }), 1);
    let new = consume(&mut session, key, number, TAG);
    deliver(&mut session, number, TAG, 3);
    assert_eq!(taken(&mut session, old), Some(1));

    session.machine.take_outgoing(&mut Vec::new());
    session.end_subscription(key, number, TAG, old);
    assert!(session.machine.outgoing().is_empty(), "nothing is cancelled");
    assert_eq!((taken(&mut session, old), taken(&mut session, new)), (None, Some(3)));
    deliver(&mut session, number, TAG, 4);
    session.end_subscription(key, number, TAG, new);
    assert!(!session.machine.outgoing().is_empty(), "it is cancelled");
    assert_eq!(session.inbox_bytes, 0);
}

#[test]
fn a_connection_that_breaks_before_its_end_was_agreed_to_says_so() {
    for reason in [Some("reset".to_owned()), None] {
        let mut session = Session::new(Options::default());
        connect(&mut session, 1);
        session.close_now();
        assert!(matches!(session.hung_up(reason), Lost::Io(_)));
    }
    let mut session = Session::new(Options::default());
    connect(&mut session, 1);
    session.close_now();
    feed(&mut session, &bytes(0, &connection::CloseOk::default()), 1);
    assert_eq!(session.hung_up(None), Lost::ClosedByUs);
}
