//! Channels that users drive, and the connection they are on.

use forebay_wire::{channel, write_body_frame, write_properties_frame};

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
    let message = user.poll_delivery("", &mut Context::from_waker(Waker::noop()));
    let Poll::Ready(Ok(Some(message))) = message else { panic!("{message:?}") };
    session.taken(key, message.size_bytes());
    session.drop_user_channel(key, number);
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
