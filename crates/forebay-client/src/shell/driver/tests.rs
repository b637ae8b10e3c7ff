//! A stream that is served, and a session that is used, one step at a time.

use std::io;
use std::task::Waker;

use forebay_flow::{Amount, Fixed};
use forebay_wire::{
    Table, WireMethod, basic, channel, connection, write_body_frame, write_method,
    write_properties_frame,
};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::broadcast;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::*;
use crate::machine::Limits;
use crate::message::Message;
use crate::session::{INBOX_BYTES_MAX, Ledger, Published, Target};
use crate::timed::TimedPublish;

fn bytes(channel: u16, method: &impl WireMethod) -> Vec<u8> {
    let mut out = Vec::new();
    write_method(&mut out, channel, method);
    out
}

fn receive(link: &Link, bytes: &[u8]) {
    link.with_now(|session, now_us| {
        let mut rest = bytes;
        session.receive(&mut rest, now_us).unwrap();
        assert!(rest.is_empty());
    });
}

/// A driver whose session is logged in.
fn logged_in() -> Driver {
    let options = Options { heartbeat_s: 0, ..Options::default() };
    let link = Link::new(options.clone(), broadcast::channel(1).0);
    link.with(|session| session.begin(options.clone(), Topology::new()));
    let start = connection::Start {
        version_major: 0,
        version_minor: 9,
        server_properties: Table::default(),
        mechanisms: b"PLAIN",
        locales: b"en_US",
    };
    receive(&link, &bytes(0, &start));
    receive(&link, &bytes(0, &connection::Tune::default()));
    receive(&link, &bytes(0, &connection::OpenOk::default()));
    let make = |_| -> crate::StreamFuture { Box::pin(std::future::pending()) };
    Driver {
        link,
        dialer: Dialer::Made { addresses: vec!["nowhere".into()], make: Arc::new(make) },
        options,
        topology: Arc::default(),
        place: Arc::default(),
        recovery: None,
        close_patience_us: 0,
    }
}

/// A channel with as much for its user as is kept. Its key.
fn with_full_inbox(link: &Link) -> usize {
    let (key, number, _) = link.with(|session| session.open_user_channel().unwrap());
    receive(link, &bytes(number, &channel::OpenOk::default()));
    let mut out = bytes(number, &basic::Deliver { delivery_tag: 1, ..Default::default() });
    write_properties_frame(&mut out, number, 60, INBOX_BYTES_MAX as u64, &Default::default());
    let limits: Limits = link.with(|session| session.machine.limits());
    for part in vec![0; INBOX_BYTES_MAX].chunks(limits.frame_bytes_max as usize - 8) {
        write_body_frame(&mut out, number, part);
    }
    receive(link, &out);
    key
}

fn take(link: &Link, key: usize, cx: &mut Context<'_>) {
    link.with(|session| match session.user(key).0.poll_delivery("", 1, cx) {
        Poll::Ready(Ok(Some(message))) => session.taken(key, message.size_bytes()),
        other => panic!("{other:?}"),
    });
}

#[tokio::test]
async fn a_stream_is_read_again_if_the_full_inbox_was_emptied_before_its_driver_slept() {
    let driver = logged_in();
    let key = with_full_inbox(&driver.link);
    let (ours, _theirs) = tokio::io::duplex(1 << 20);
    let mut serving = Serving::new(&driver, Stream::Other(Box::new(ours)));
    serving.up = true;
    let mut cx = Context::from_waker(Waker::noop());
    while serving.write(&mut cx) {}
    assert_eq!(serving.read(&mut cx), Ok(false));
    take(&driver.link, key, &mut cx);
    assert_eq!(serving.sleep(&mut cx), Ok(false), "the stream would wake nobody");
    assert_eq!(serving.read(&mut cx), Ok(false));
    assert_eq!(serving.sleep(&mut cx), Ok(true));
}

#[tokio::test]
async fn agreement_is_waited_for_from_the_close_on_however_long_outcomes_might_have_taken() {
    let driver = Driver { close_patience_us: 3_600_000_000, ..logged_in() };
    let (ours, _theirs) = tokio::io::duplex(1 << 20);
    let mut serving = Serving::new(&driver, Stream::Other(Box::new(ours)));
    serving.up = true;
    let mut cx = Context::from_waker(Waker::noop());
    driver.link.close();
    assert!(
        serving.poll(&mut cx).is_pending(),
        "the close is out, and there are no outcomes to wait for"
    );
    let wakes_at_us = driver.link.lock().wakes_at_us;
    assert!(wakes_at_us <= driver.link.now_us() + AGREEMENT_PATIENCE_US, "{wakes_at_us}");
    serving.agree_until_us = serving.agree_until_us.map(|_| driver.link.now_us());
    assert_eq!(serving.on_time(), Err(Lost::end_unanswered()));
}

/// A stream whose end cannot be sent, as that of TLS over a socket that takes nothing any more.
struct Endless(tokio::io::DuplexStream);

impl AsyncRead for Endless {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, into)
    }
}

impl AsyncWrite for Endless {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Pending
    }
}

#[tokio::test]
async fn a_stream_whose_end_does_not_leave_is_left_in_time_when_the_broker_closes_the_connection() {
    let driver = logged_in();
    let (ours, mut theirs) = tokio::io::duplex(1 << 20);
    let mut serving = Serving::new(&driver, Stream::Other(Box::new(Endless(ours))));
    serving.up = true;
    let close = connection::Close { reply_code: 320, ..Default::default() };
    theirs.write_all(&bytes(0, &close)).await.unwrap();
    let mut cx = Context::from_waker(Waker::noop());
    assert!(serving.poll(&mut cx).is_pending(), "the end may leave yet");
    assert!(
        serving
            .leave_at_us
            .is_some_and(|at_us| at_us <= driver.link.now_us() + AGREEMENT_PATIENCE_US)
    );
    serving.leave_at_us = Some(driver.link.now_us());
    let left = serving.poll(&mut cx);
    assert!(matches!(left, Poll::Ready(Lost::Closed(_))), "{left:?}");
}

/// Looks whether the session is free, at each event and at the end of each span.
struct Curious {
    link: Arc<Link>,
    found_free: Arc<Mutex<Vec<bool>>>,
}

impl Curious {
    fn look(&self) {
        self.found_free.lock().unwrap().push(self.link.is_free());
    }
}

impl Subscriber for Curious {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        self.look();
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}

    fn try_close(&self, _: Id) -> bool {
        self.look();
        true
    }
}

/// A publisher with a window of one message, on a link whose spans and log say whether the session is free.
fn watched_publisher(link: &Arc<Link>) -> (usize, Curious) {
    let curious = Curious { link: link.clone(), found_free: Arc::default() };
    let window = || Box::new(Fixed::new(Amount::new(1, 1_000))) as Box<_>;
    let ledger = Ledger::new(target(), "t-", Box::new(window));
    (link.with_now(|session, now_us| session.add_ledger(ledger, now_us)), curious)
}

fn target() -> Target {
    Target { exchange: String::new(), routing_key: "q".into(), mandatory: true }
}

fn publish_timed(link: &Link, key: usize) -> Published {
    let mut message = Message::new("m");
    message.set_timed(TimedPublish::begin(&target(), &message).expect("somebody sees it"));
    link.with_now(|session, now_us| session.publish(key, message, None, now_us))
}

#[tokio::test]
async fn who_hears_of_an_outcome_may_use_the_session() {
    let Driver { link, .. } = logged_in();
    let (key, curious) = watched_publisher(&link);
    let found_free = curious.found_free.clone();
    let _watching = tracing::subscriber::set_default(curious);
    let Published::Admitted(entry) = publish_timed(&link, key) else { panic!("there is room") };
    let nack = basic::Nack { delivery_tag: 1, ..Default::default() };
    receive(&link, &bytes(1, &nack));
    assert_eq!(*found_free.lock().unwrap(), [true], "its span has ended");
    link.with(|session| session.abandon_outcome(key, entry));
    assert_eq!(*found_free.lock().unwrap(), [true, true], "the log has it");
}

#[tokio::test]
async fn who_hears_that_a_caller_waits_no_longer_may_use_the_session() {
    let Driver { link, .. } = logged_in();
    let (key, curious) = watched_publisher(&link);
    let found_free = curious.found_free.clone();
    let _watching = tracing::subscriber::set_default(curious);
    let Published::Admitted(_) = publish_timed(&link, key) else { panic!("there is room") };
    let Published::Waiting(id) = publish_timed(&link, key) else { panic!("for one message") };
    drop(link.with_now(|session, now_us| session.stop_waiting(key, id, now_us)));
    assert_eq!(*found_free.lock().unwrap(), [true], "its span has ended");
}
