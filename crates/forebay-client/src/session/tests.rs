//! A session against a broker in bytes: whatever happens in whatever order, each message has one outcome.

mod channel_numbers;
mod closing;
mod consuming;
mod counted_workers;
mod culprits;
mod exclusive_consumers;
mod expiring;
mod failing_channels;
mod idling;
mod longer_route;
mod pacing;
mod random;
mod redeclaring;
mod sharing;
mod stalled_consumers;
mod user_channels;

use std::task::{Context, Poll, Waker};

use forebay_flow::{Amount, Fixed};
use forebay_wire::{
    FrameKind, Method, Table, WireMethod, basic, connection, read_frame, write_method,
};
use proptest::prelude::*;

use super::*;
use crate::Message;

fn bytes(channel: u16, method: &impl WireMethod) -> Vec<u8> {
    let mut out = Vec::new();
    write_method(&mut out, channel, method);
    out
}

fn feed(session: &mut Session, bytes: &[u8], now_us: u64) {
    let mut rest = bytes;
    session.receive(&mut rest, now_us).unwrap();
    assert!(rest.is_empty());
}

/// Takes the session through a login.
fn connect(session: &mut Session, now_us: u64) {
    connect_with(session, Options::default().outgoing_bytes_max, now_us);
}

fn connect_with(session: &mut Session, outgoing_bytes_max: usize, now_us: u64) {
    let options = Options { heartbeat_s: 0, outgoing_bytes_max, ..Options::default() };
    let tune = connection::Tune { frame_max: 4096, ..Default::default() };
    connect_to(session, options, Table::default(), &tune, now_us);
}

fn connect_to(
    session: &mut Session,
    options: Options,
    server_properties: Table<'_>,
    tune: &connection::Tune,
    now_us: u64,
) {
    log_in(session, options, Topology::new(), server_properties, tune, now_us);
    assert_eq!(*session.phase(), Phase::Up);
}

/// Until the connection is open: what is to be declared is asked for then.
fn log_in(
    session: &mut Session,
    options: Options,
    topology: Topology,
    server_properties: Table<'_>,
    tune: &connection::Tune,
    now_us: u64,
) {
    session.begin(options, topology);
    let start = connection::Start {
        version_major: 0,
        version_minor: 9,
        server_properties,
        mechanisms: b"PLAIN",
        locales: b"en_US",
    };
    feed(session, &bytes(0, &start), now_us);
    feed(session, &bytes(0, tune), now_us);
    feed(session, &bytes(0, &connection::OpenOk::default()), now_us);
}

/// How long a message may be without an outcome; longer than the stall timeout.
const LIMIT_US: u64 = 50_000_000;

/// What a broker has seen of one connection: the bodies of its publishes, in order.
#[derive(Default)]
struct Seen {
    bodies: Vec<Vec<u8>>,
    marked: Vec<bool>,
    channel: u16,
    /// Channels whose end awaits its answer.
    ended: Vec<u16>,
}

impl Seen {
    fn read(&mut self, session: &mut Session, now_us: u64) {
        let mut out = Vec::new();
        session.machine.take_outgoing(&mut out);
        session.drained(now_us);
        let mut rest = out.strip_prefix(&forebay_wire::PROTOCOL_HEADER).unwrap_or(&out);
        while let Some(frame) = read_frame(rest, 1 << 20).unwrap() {
            match frame.kind {
                FrameKind::Method => match Method::parse(frame.payload).unwrap() {
                    Method::ChannelOpen(_) => {
                        self.channel = frame.channel;
                        self.bodies.clear();
                        self.marked.clear();
                    }
                    Method::ChannelClose(_) => self.ended.push(frame.channel),
                    _ => {}
                },
                FrameKind::Header => {
                    let header = forebay_wire::ContentHeader::parse(frame.payload).unwrap();
                    self.marked.push(header.properties.headers().is_some());
                }
                FrameKind::Body => self.bodies.push(frame.payload.to_vec()),
                FrameKind::Heartbeat => {}
            }
            rest = &rest[frame.size_bytes()..];
        }
    }
}

impl Seen {
    fn end_channels(&mut self, session: &mut Session, now_us: u64) {
        for channel in std::mem::take(&mut self.ended) {
            feed(session, &bytes(channel, &forebay_wire::channel::CloseOk::default()), now_us);
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Publish,
    /// Answers some publish of the connection, ack or nack.
    Answer {
        which: usize,
        multiple: bool,
        acked: bool,
    },
    /// The connection breaks and another one begins. By the broker's close with this code, or as it may be.
    Break {
        code: Option<u16>,
    },
    /// Nothing is said for longer than the stall timeout.
    Stall,
    /// The time of everything that is admitted is over, with a connection or while there is none.
    Expire {
        broken: bool,
    },
    Block(bool),
    /// A caller looks at its outcome, or loses interest.
    Look(usize),
    Abandon(usize),
    /// A caller who waits for the window goes away.
    Leave(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => Just(Step::Publish),
        5 => (any::<usize>(), any::<bool>(), prop::bool::weighted(0.8))
            .prop_map(|(which, multiple, acked)| Step::Answer { which, multiple, acked }),
        1 => prop_oneof![Just(None), Just(Some(320)), Just(Some(501)), Just(Some(541))]
            .prop_map(|code| Step::Break { code }),
        1 => Just(Step::Stall),
        1 => any::<bool>().prop_map(|broken| Step::Expire { broken }),
        1 => any::<bool>().prop_map(Step::Block),
        3 => any::<usize>().prop_map(Step::Look),
        1 => any::<usize>().prop_map(Step::Abandon),
        1 => any::<usize>().prop_map(Step::Leave),
    ]
}

proptest! {
    #[test]
    fn each_message_has_exactly_one_outcome_and_no_permit_leaks(
        steps in prop::collection::vec(step(), 0..200)
    ) {
        let mut cx = Context::from_waker(Waker::noop());
        let mut session = Session::new(Options::default());
        let mut now_us = 1;
        connect(&mut session, now_us);
        let target =
            Target { exchange: String::new(), routing_key: "q".into(), mandatory: true };
        let window = || Box::new(Fixed::new(Amount::new(5, u64::MAX))) as Box<_>;
        let mut ledger = Ledger::new(target, "t-", Box::new(window));
        ledger.set_limit_us(Some(LIMIT_US));
        let key = session.add_ledger(ledger, now_us);
        let mut seen = Seen::default();
        let (mut open, mut waiting) = (Vec::new(), Vec::new());
        let (mut told, mut next) = (0_u64, 0_u32);
        for step in steps {
            now_us += 10;
            match step {
                Step::Publish => {
                    next += 1;
                    let message = Message::new(next.to_be_bytes().to_vec());
                    match session.publish(key, message, None, now_us) {
                        Published::Admitted(entry) => open.push(entry),
                        Published::Waiting(id) => waiting.push(id),
                        Published::Refused(reason, _) => panic!("{reason:?}"),
                    }
                }
                Step::Answer { which, multiple, acked } if !seen.bodies.is_empty() => {
                    let delivery_tag = (which % seen.bodies.len()) as u64 + 1;
                    let answer = if acked {
                        bytes(seen.channel, &basic::Ack { delivery_tag, multiple })
                    } else {
                        let nack = basic::Nack { delivery_tag, multiple, requeue: false };
                        bytes(seen.channel, &nack)
                    };
                    feed(&mut session, &answer, now_us);
                }
                Step::Break { code } => {
                    if let Some(reply_code) = code {
                        let close = connection::Close { reply_code, ..Default::default() };
                        feed(&mut session, &bytes(0, &close), now_us);
                    }
                    let lost = session.hung_up(None);
                    session.lost(&lost, now_us);
                    seen = Seen::default();
                    connect(&mut session, now_us);
                }
                Step::Stall => {
                    now_us += 40_000_000;
                    session.tick(now_us).unwrap();
                }
                Step::Expire { broken } => {
                    if broken {
                        session.lost(&Lost::Io("cut".into()), now_us);
                        seen = Seen::default();
                    }
                    now_us += LIMIT_US;
                    session.expire(now_us);
                    // Those are over; others may have been admitted in their places just now.
                    prop_assert!(session.next_expiry_us(now_us).unwrap() == now_us + LIMIT_US);
                    if broken {
                        connect(&mut session, now_us);
                    }
                }
                Step::Block(true) => {
                    feed(&mut session, &bytes(0, &connection::Blocked::default()), now_us);
                }
                Step::Block(false) => {
                    feed(&mut session, &bytes(0, &connection::Unblocked::default()), now_us);
                }
                Step::Look(which) if !open.is_empty() => {
                    let at = which % open.len();
                    if session.ledger(key).0.poll_outcome(open[at], &mut cx).is_ready() {
                        open.swap_remove(at);
                        told += 1;
                    }
                }
                Step::Abandon(which) if !open.is_empty() => {
                    let entry = open.swap_remove(which % open.len());
                    session.abandon_outcome(key, entry);
                }
                Step::Leave(which) if !waiting.is_empty() => {
                    let id = waiting.swap_remove(which % waiting.len());
                    session.stop_waiting(key, id, now_us);
                }
                _ => {}
            }
            seen.read(&mut session, now_us);
            seen.end_channels(&mut session, now_us);
            waiting.retain(|&id| match session.ledger(key).0.poll_admitted(id, &mut cx) {
                Poll::Ready(entry) => {
                    open.push(entry.expect("the connection always comes back"));
                    false
                }
                Poll::Pending => true,
            });
            prop_assert!(session.ledger(key).0.knows_first_open());
            let metrics = session.ledger(key).0.metrics();
            prop_assert!(metrics.in_flight_messages <= 5);
            let over = metrics.unknown + metrics.withdrawn;
            let settled = metrics.confirmed + metrics.rejected + over;
            let in_flight = u64::from(metrics.in_flight_messages);
            prop_assert_eq!(metrics.published, settled + in_flight);
        }
        // The broker takes publishes and answers everything: all who wait get their turn.
        feed(&mut session, &bytes(0, &connection::Unblocked::default()), now_us);
        for turn in 0.. {
            prop_assert!(turn < 1000, "somebody waits for ever");
            seen.read(&mut session, now_us);
            if session.ledger(key).0.is_idle() {
                break;
            }
            let delivery_tag = seen.bodies.len() as u64;
            let ack = basic::Ack { delivery_tag, multiple: true };
            feed(&mut session, &bytes(seen.channel, &ack), now_us);
        }
        for id in waiting {
            match session.ledger(key).0.poll_admitted(id, &mut cx) {
                Poll::Ready(Ok(entry)) => open.push(entry),
                other => panic!("{other:?}"),
            }
        }
        for entry in open {
            prop_assert!(session.ledger(key).0.poll_outcome(entry, &mut cx).is_ready());
            told += 1;
        }
        let metrics = session.ledger(key).0.metrics();
        prop_assert!(told <= metrics.published);
        prop_assert_eq!(metrics.in_flight_messages, 0);
        let over = metrics.unknown + metrics.withdrawn;
        prop_assert_eq!(metrics.published, metrics.confirmed + metrics.rejected + over);
        // What goes out again goes out first, marked, and the rest follows in order.
        let first_unmarked = seen.marked.iter().position(|marked| !marked);
        let tail = &seen.bodies[first_unmarked.unwrap_or(seen.bodies.len())..];
        prop_assert!(tail.is_sorted());
        prop_assert!(seen.marked[first_unmarked.unwrap_or(0)..].iter().all(|marked| !marked)
            || first_unmarked.is_none());
    }
}
