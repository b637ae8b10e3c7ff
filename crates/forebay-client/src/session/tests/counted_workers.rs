//! A consumer whose workers somebody counts, on a broker whose credit changes live and may be 0.

use std::sync::Arc;

use forebay_flow::Occupancy;
use forebay_wire::{ShortStr, TableBuf, Value, channel, write_properties_frame};

use super::consuming::how;
use super::*;
use crate::machine::PAUSE;

const CHANNEL: u16 = 1;

/// `channel.flow` that waits to be sent, in order; what else waits goes with it.
fn flows(session: &mut Session) -> Vec<bool> {
    let mut out = Vec::new();
    session.machine.take_outgoing(&mut out);
    let mut rest = out.strip_prefix(&forebay_wire::PROTOCOL_HEADER).unwrap_or(&out);
    let mut flows = Vec::new();
    while let Some(frame) = read_frame(rest, 1 << 20).unwrap() {
        if frame.kind == FrameKind::Method
            && let Method::ChannelFlow(flow) = Method::parse(frame.payload).unwrap()
        {
            flows.push(flow.active);
        }
        rest = &rest[frame.size_bytes()..];
    }
    flows
}

/// A session with a consumer of these workers, whose credit may be 0.
fn consuming(occupancy: &Arc<Occupancy>, now_us: u64) -> (Session, usize) {
    let mut session = Session::new(Options::default());
    let capabilities =
        TableBuf::new().with(LIVE_CREDIT, Value::Bool(true)).with(PAUSE, Value::Bool(true));
    let properties = TableBuf::new().with("capabilities", Value::Table(capabilities.as_table()));
    let options = Options { heartbeat_s: 0, ..Options::default() };
    connect_to(&mut session, options, properties.as_table(), &Default::default(), now_us);
    let how = How { occupancy: Some(occupancy.clone()), ..how(false) };
    let key = session.add_intake(Intake::new(how, Credit::new(now_us, 1, 1000, None)), now_us);
    feed(&mut session, &bytes(CHANNEL, &channel::OpenOk::default()), now_us);
    feed(&mut session, &bytes(CHANNEL, &basic::QosOk::default()), now_us);
    feed(&mut session, &bytes(CHANNEL, &basic::ConsumeOk::default()), now_us);
    (session, key)
}

fn deliver(session: &mut Session, delivery_tag: u64, now_us: u64) {
    let mut out = bytes(CHANNEL, &basic::Deliver { delivery_tag, ..Default::default() });
    write_properties_frame(&mut out, CHANNEL, 60, 0, &Default::default());
    feed(session, &out, now_us);
}

fn next(session: &mut Session, key: usize, now_us: u64) -> Option<DeliveryKey> {
    let (intake, machine) = session.intake(key);
    match intake.poll_next(machine, now_us, &mut Context::from_waker(Waker::noop())) {
        Poll::Ready(taken) => Some(taken.unwrap().unwrap().key),
        Poll::Pending => None,
    }
}

/// Nobody tells the consumer of a worker who is free.
#[test]
fn a_consumer_goes_on_when_a_worker_is_said_to_be_free_after_the_last_ack() {
    let occupancy = Arc::new(Occupancy::default());
    occupancy.set(1, 0);
    let (mut session, key) = consuming(&occupancy, 1);
    deliver(&mut session, 1, 2);
    let job = next(&mut session, key, 3).unwrap();
    occupancy.set(1, 1);
    assert_eq!(next(&mut session, key, 4), None);
    assert!(flows(&mut session).is_empty());

    // Long work, for which nothing is fetched ahead.
    let mut now_us = 500_000;
    let (intake, machine) = session.intake(key);
    assert!(intake.settle(machine, job, Verdict::Ack, 499_000, now_us));
    assert_eq!(
        flows(&mut session),
        [false],
        "the worker is busy with something, as far as is known"
    );
    feed(&mut session, &bytes(CHANNEL, &channel::FlowOk { active: false }), now_us);

    // He is busy with it for a while.
    for _ in 0..3 {
        let due_us = session.next_tick_us().expect("somebody looks");
        assert!((1_000..=50_000).contains(&(due_us - now_us)), "{}", due_us - now_us);
        now_us = due_us;
        session.tick(now_us).unwrap();
        assert!(flows(&mut session).is_empty());
    }
    occupancy.set(1, 0);
    now_us = session.next_tick_us().unwrap();
    session.tick(now_us).unwrap();
    assert_eq!(flows(&mut session), [true]);
}

#[test]
fn a_consumer_that_is_over_looks_for_no_free_worker() {
    let occupancy = Arc::new(Occupancy::default());
    occupancy.set(1, 1);
    let (mut session, key) = consuming(&occupancy, 1);
    assert_eq!(next(&mut session, key, 2), None);
    assert_eq!(flows(&mut session), [false]);
    assert!(session.next_tick_us().is_some());
    let cancel = basic::Cancel { consumer_tag: ShortStr::truncated("t-0-0"), no_wait: true };
    feed(&mut session, &bytes(CHANNEL, &cancel), 4);
    assert_eq!(session.next_tick_us(), None);
}
