//! A session and a real broker, as machines. Over a wire that breaks at any byte every message is in the queue
//! exactly once, and nobody is told otherwise; work may take as long as its client lives.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use forebay_broker::{ConnectionId, Input, Peer, Shard, ShardConfig};
use forebay_flow::{Amount, Fixed};
use forebay_store::{MemDisk, Options as StoreOptions, perform};
use forebay_wire::{RawProperties, ShortStr, TableBuf, Value, basic, queue};
use proptest::prelude::*;

use super::*;
use crate::Message;
use crate::machine::{Event, State};
use crate::outcome::{Unconfirmed, UnknownReason};

struct World {
    shard: Shard,
    disk: Arc<MemDisk>,
    now_us: u64,
    connections: u32,
}

impl World {
    fn new() -> World {
        let disk = Arc::new(MemDisk::default());
        let (store, recovered) =
            forebay_store::open(disk.clone(), StoreOptions::default()).unwrap();
        let shard = Shard::new(ShardConfig::default(), store, Some(recovered)).unwrap();
        World { shard, disk, now_us: 1, connections: 0 }
    }

    fn step(&mut self, input: Input<'_>) {
        self.now_us += 1;
        self.shard.step(self.now_us, input).unwrap();
    }

    fn connect(&mut self) -> ConnectionId {
        let connection = ConnectionId(self.connections);
        self.connections += 1;
        let peer = Peer { address: "test:1".into(), loopback: true, listener: "test".into() };
        self.step(Input::Connected { connection, peer });
        connection
    }

    fn turn(&mut self, disk_works: bool) {
        self.step(Input::Tick);
        self.step(Input::Turn { busy: false });
        while disk_works && let Some(request) = self.shard.poll_disk(self.now_us) {
            let completion = perform(&*self.disk, request);
            self.step(Input::Disk(completion));
        }
        self.step(Input::Turn { busy: false });
        while self.shard.next_dirty().is_some() {}
        self.now_us += 1000;
    }

    /// The first `count` of the bytes that the broker has for this connection.
    fn take(&mut self, connection: ConnectionId, count: usize) -> Vec<u8> {
        let out = self.shard.outgoing(connection);
        let taken = out[..count.min(out.len())].to_vec();
        self.step(Input::Sent { connection, bytes: taken.len() });
        taken
    }

    /// Everything in the queue, each body with how often it is there and how often marked.
    fn drain(&mut self, name: &'static str) -> BTreeMap<Vec<u8>, (u32, u32)> {
        let connection = self.connect();
        let mut machine = Machine::new(Options { heartbeat_s: 0, ..Options::default() });
        let mut consuming = false;
        let mut found: BTreeMap<Vec<u8>, (u32, u32)> = BTreeMap::new();
        let mut buffer = Vec::new();
        for _ in 0..50 {
            let mut out = Vec::new();
            machine.take_outgoing(&mut out);
            self.step(Input::Received { connection, bytes: &out });
            self.turn(true);
            buffer.extend(self.take(connection, usize::MAX));
            let mut rest = buffer.as_slice();
            while let Some(event) = machine.poll_event(&mut rest).unwrap() {
                if let Event::Delivery(delivery) = event {
                    let (copies, marks) = found.entry(delivery.body.to_vec()).or_default();
                    *copies += 1;
                    *marks += u32::from(delivery.properties.parse().headers.is_some());
                }
            }
            buffer = rest.to_vec();
            if machine.state() == State::Open && !std::mem::replace(&mut consuming, true) {
                let channel = machine.open_channel().unwrap();
                let queue = ShortStr::truncated(name);
                let consume = basic::Consume { queue, no_ack: true, ..Default::default() };
                machine.send(channel, &consume).unwrap();
            }
        }
        found
    }
}

/// The wire between them: bytes that were written and have not arrived.
struct Wire {
    connection: ConnectionId,
    to_broker: Vec<u8>,
    to_client: Vec<u8>,
}

#[derive(Debug, Clone)]
enum Move {
    Publish {
        routable: bool,
    },
    /// So many bytes arrive at the broker.
    Up(usize),
    /// So many bytes arrive at the client.
    Down(usize),
    Turn {
        disk_works: bool,
    },
    /// The client sees its connection break. What it had written is lost from there, or arrives later.
    Cut {
        late: bool,
    },
    /// Of what comes late, so many bytes arrive.
    Late(usize),
    /// Time passes, of which messages have [`LIMIT_US`]; without a connection if it is cut first.
    Pass {
        us: u64,
        cut: bool,
    },
}

/// How long a message may be without an outcome.
const LIMIT_US: u64 = 1_000_000;

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        6 => prop::bool::weighted(0.8).prop_map(|routable| Move::Publish { routable }),
        6 => (0_usize..400).prop_map(Move::Up),
        6 => (0_usize..400).prop_map(Move::Down),
        6 => any::<bool>().prop_map(|disk_works| Move::Turn { disk_works }),
        2 => any::<bool>().prop_map(|late| Move::Cut { late }),
        2 => (0_usize..400).prop_map(Move::Late),
        1 => (0..LIMIT_US, any::<bool>()).prop_map(|(us, cut)| Move::Pass { us, cut }),
    ];
    prop::collection::vec(one, 0..150)
}

fn connect(world: &mut World, session: &mut Session) -> Wire {
    let connection = world.connect();
    session.begin(Options { heartbeat_s: 0, ..Options::default() }, Topology::new());
    let mut wire = Wire { connection, to_broker: Vec::new(), to_client: Vec::new() };
    // Far enough that the login is not what most cuts hit.
    for _ in 0..4 {
        up(world, session, &mut wire, usize::MAX);
        world.turn(true);
        down(world, session, &mut wire, usize::MAX);
    }
    wire
}

fn up(world: &mut World, session: &mut Session, wire: &mut Wire, count: usize) {
    let mut out = Vec::new();
    session.machine.take_outgoing(&mut out);
    session.drained(world.now_us);
    wire.to_broker.extend(out);
    let arriving: Vec<u8> = wire.to_broker.drain(..count.min(wire.to_broker.len())).collect();
    world.step(Input::Received { connection: wire.connection, bytes: &arriving });
}

fn down(world: &mut World, session: &mut Session, wire: &mut Wire, count: usize) {
    wire.to_client.extend(world.take(wire.connection, count));
    let mut rest = wire.to_client.as_slice();
    session.receive(&mut rest, world.now_us).unwrap();
    wire.to_client = rest.to_vec();
}

proptest! {
    #[test]
    fn every_message_is_in_the_queue_once_wherever_the_wire_breaks(moves in moves()) {
        let mut cx = Context::from_waker(Waker::noop());
        let mut world = World::new();
        let mut session = Session::new(Options::default());
        let mut wire = connect(&mut world, &mut session);
        let channel = session.machine.open_channel().unwrap();
        let declare =
            queue::Declare { queue: ShortStr::truncated("q"), durable: true, ..Default::default() };
        session.machine.send(channel, &declare).unwrap();
        session.machine.close_channel(channel).unwrap();
        up(&mut world, &mut session, &mut wire, usize::MAX);
        let target = Target { exchange: String::new(), routing_key: "q".into(), mandatory: true };
        let window = || Box::new(Fixed::new(Amount::new(1000, u64::MAX))) as Box<_>;
        let mut ledger = Ledger::new(target, "p-", Box::new(window));
        ledger.set_limit_us(Some(LIMIT_US));
        let key = session.add_ledger(ledger, world.now_us);
        let mut late: Vec<Wire> = Vec::new();
        let (mut waiting, mut open) = (Vec::new(), Vec::new());
        let mut next = 0_u32;
        for step in moves {
            match step {
                Move::Publish { routable } => {
                    next += 1;
                    let message = Message::new(next.to_be_bytes().to_vec());
                    let message =
                        if routable { message } else { message.routing_key("nowhere") };
                    match session.publish(key, message, None, world.now_us) {
                        Published::Admitted(entry) => open.push((next, routable, entry)),
                        Published::Waiting(id) => waiting.push((next, routable, id)),
                        Published::Refused(reason, _) => panic!("{reason:?}"),
                    }
                }
                Move::Up(count) => up(&mut world, &mut session, &mut wire, count),
                Move::Down(count) => down(&mut world, &mut session, &mut wire, count),
                Move::Turn { disk_works } => world.turn(disk_works),
                Move::Cut { late: comes_late } => {
                    let mut out = Vec::new();
                    session.machine.take_outgoing(&mut out);
                    wire.to_broker.extend(out);
                    let lost = session.hung_up(None);
                        session.lost(&lost, world.now_us);
                    if comes_late {
                        late.push(wire);
                    } else {
                        world.step(Input::Disconnected { connection: wire.connection });
                    }
                    wire = connect(&mut world, &mut session);
                }
                Move::Pass { us, cut } => {
                    if cut {
                        let lost = session.hung_up(None);
                        session.lost(&lost, world.now_us);
                        world.step(Input::Disconnected { connection: wire.connection });
                    }
                    world.now_us += us;
                    session.expire(world.now_us);
                    if cut {
                        // Once more while the broker is asked what it has taken.
                        wire = connect(&mut world, &mut session);
                        session.expire(world.now_us);
                    }
                }
                Move::Late(count) => if let Some(wire) = late.first_mut() {
                    let count = count.min(wire.to_broker.len());
                    let bytes: Vec<u8> = wire.to_broker.drain(..count).collect();
                    let connection = wire.connection;
                    world.step(Input::Received { connection, bytes: &bytes });
                    if wire.to_broker.is_empty() {
                        world.step(Input::Disconnected { connection });
                        late.remove(0);
                    }
                }
            }
            prop_assert!(session.ledger(key).0.knows_first_open());
        }
        for turn in 0.. {
            prop_assert!(turn < 100, "somebody waits for ever");
            up(&mut world, &mut session, &mut wire, usize::MAX);
            world.turn(true);
            down(&mut world, &mut session, &mut wire, usize::MAX);
            if session.ledger(key).0.is_idle() {
                break;
            }
        }
        for Wire { connection, to_broker, .. } in late {
            world.step(Input::Received { connection, bytes: &to_broker });
        }
        for (number, routable, id) in waiting {
            match session.ledger(key).0.poll_admitted(id, &mut cx) {
                Poll::Ready(Ok(entry)) => open.push((number, routable, entry)),
                other => panic!("{other:?}"),
            }
        }
        let found = world.drain("q");
        let (mut expected, mut unknown) = (BTreeMap::new(), Vec::new());
        for (number, routable, entry) in open {
            match session.ledger(key).0.poll_outcome(entry, &mut cx) {
                Poll::Ready(Ok(_)) if routable => {
                    expected.insert(number.to_be_bytes().to_vec(), 1);
                }
                Poll::Ready(Err(Unconfirmed::Returned(_))) if !routable => {}
                Poll::Ready(Err(Unconfirmed::Unknown(UnknownReason::TimeOver))) => {
                    unknown.push(number.to_be_bytes().to_vec());
                }
                Poll::Ready(Err(Unconfirmed::Withdrawn)) => {}
                other => prop_assert!(false, "message {}: {:?}", number, other),
            }
        }
        let mut copies: BTreeMap<_, _> =
            found.into_iter().map(|(body, (copies, _))| (body, copies)).collect();
        for body in unknown {
            prop_assert!(copies.remove(&body).is_none_or(|copies| copies == 1));
        }
        prop_assert_eq!(copies, expected);
    }
}

#[derive(Debug, Clone)]
enum Work {
    /// So many bytes arrive at the broker, or at the client.
    Up(usize),
    Down(usize),
    Turn,
    /// Somebody publishes the next message.
    Publish,
    /// The one worker takes a message if it has none, or is done with the one it has.
    Take,
    Done,
    /// The client's task runs after so long.
    Pass(u64),
}

fn works() -> impl Strategy<Value = Vec<Work>> {
    let one = prop_oneof![
        4 => (0_usize..300).prop_map(Work::Up),
        4 => (0_usize..300).prop_map(Work::Down),
        4 => Just(Work::Turn),
        2 => Just(Work::Publish),
        6 => Just(Work::Take),
        6 => Just(Work::Done),
        2 => (0_u64..3_000_000).prop_map(Work::Pass),
    ];
    prop::collection::vec(one, 0..300)
}

proptest! {
    /// Messages that wait behind a worker which takes long go back to their queue, while others are on their way here.
    #[test]
    fn one_worker_gets_its_queue_in_order_however_much_went_back(moves in works()) {
        const MESSAGES: u32 = 60;
        let mut cx = Context::from_waker(Waker::noop());
        let mut world = World::new();
        let mut session = Session::new(Options::default());
        let mut wire = connect(&mut world, &mut session);
        let channel = session.machine.open_channel().unwrap();
        let queue = ShortStr::truncated("q");
        session.machine.send(channel, &queue::Declare { queue, ..Default::default() }).unwrap();
        let plain = RawProperties::trusted(&[0, 0]);
        let mut published = 0_u32;
        let publish = |session: &mut Session, published: &mut u32| {
            let (none, body) = (ShortStr::default(), published.to_be_bytes());
            session.machine.publish(channel, none, queue, false, plain, &body).unwrap();
            *published += 1;
        };
        for _ in 0..MESSAGES / 2 {
            publish(&mut session, &mut published);
        }
        up(&mut world, &mut session, &mut wire, usize::MAX);
        let how = How {
            queue: "q".into(),
            tag: "worker".into(),
            exclusive: false,
            sole: false,
            arguments: Default::default(),
            marks: false,
            work_limit_us: None,
            occupancy: None,
            stall_us: None,
        };
        let intake = Intake::new(how, Credit::new(world.now_us, 1, 20, None));
        let key = session.add_intake(intake, world.now_us);
        let (mut held, mut taken) = (None, 0);
        let rest = (0..3_000).flat_map(|_| {
            let all = usize::MAX;
            let end = [Work::Down(all), Work::Take, Work::Done, Work::Pass(500_000)];
            [Work::Publish, Work::Up(all), Work::Turn].into_iter().chain(end)
        });
        for step in moves.into_iter().chain(rest) {
            match step {
                Work::Up(count) => up(&mut world, &mut session, &mut wire, count),
                Work::Down(count) => down(&mut world, &mut session, &mut wire, count),
                Work::Turn => world.turn(true),
                Work::Publish if published < MESSAGES => publish(&mut session, &mut published),
                Work::Publish => {}
                Work::Take if held.is_none() => {
                    let (intake, machine) = session.intake(key);
                    if let Poll::Ready(next) = intake.poll_next(machine, world.now_us, &mut cx) {
                        let next = next.unwrap().unwrap();
                        let number = u32::from_be_bytes(next.message.body().try_into().unwrap());
                        prop_assert_eq!(number, taken);
                        taken += 1;
                        held = Some((next.key, world.now_us));
                    }
                }
                Work::Done => if let Some((delivery, since_us)) = held.take() {
                    let (now_us, (intake, machine)) = (world.now_us, session.intake(key));
                    let us = now_us - since_us;
                    prop_assert!(intake.settle(machine, delivery, Verdict::Ack, us, now_us));
                },
                Work::Take => {}
                Work::Pass(us) => {
                    world.now_us += us;
                    session.tick(world.now_us).unwrap();
                }
            }
            if taken == MESSAGES && held.is_none() {
                break;
            }
        }
        prop_assert_eq!(taken, MESSAGES);
    }
}

/// A session that consumes `q`, with one message in work.
fn at_work(world: &mut World, work_limit_us: Option<u64>) -> (Session, Wire, usize, DeliveryKey) {
    let mut session = Session::new(Options::default());
    let mut wire = connect(world, &mut session);
    let channel = session.machine.open_channel().unwrap();
    let queue = ShortStr::truncated("q");
    let machine = &mut session.machine;
    machine.send(channel, &queue::Declare { queue, ..Default::default() }).unwrap();
    let plain = RawProperties::trusted(&[0, 0]);
    machine.publish(channel, ShortStr::default(), queue, false, plain, b"job").unwrap();
    let timeout = TableBuf::new().with("x-consumer-timeout", Value::I32(60_000));
    let how = How {
        queue: "q".into(),
        tag: "worker".into(),
        exclusive: false,
        sole: false,
        arguments: timeout,
        marks: false,
        work_limit_us,
        occupancy: None,
        stall_us: Some(STALL_US),
    };
    let intake = Intake::new(how, Credit::new(world.now_us, 1, 10, Some(1)));
    let key = session.add_intake(intake, world.now_us);
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..10 {
        second(world, &mut session, &mut wire);
        let (intake, machine) = session.intake(key);
        if let Poll::Ready(taken) = intake.poll_next(machine, world.now_us, &mut cx) {
            return (session, wire, key, taken.unwrap().unwrap().key);
        }
    }
    panic!("the message does not come");
}

/// A second passes, in which the client's task runs.
fn second(world: &mut World, session: &mut Session, wire: &mut Wire) {
    world.now_us += 1_000_000;
    session.tick(world.now_us).unwrap();
    up(world, session, wire, usize::MAX);
    world.turn(true);
    down(world, session, wire, usize::MAX);
}

fn unacked(world: &World) -> (u64, u64) {
    let queue = &world.shard.status().queues[0];
    (queue.unacked, queue.ready)
}

#[test]
fn a_job_of_two_hours_finishes_once_under_a_timeout_of_a_minute() {
    let mut world = World::new();
    let (mut session, mut wire, key, job) = at_work(&mut world, None);
    for _ in 0..7_200 {
        second(&mut world, &mut session, &mut wire);
        assert_eq!(unacked(&world), (1, 0));
    }
    let (intake, machine) = session.intake(key);
    assert!(intake.settle(machine, job, Verdict::Ack, 7_200_000_000, world.now_us));
    second(&mut world, &mut session, &mut wire);
    assert_eq!(unacked(&world), (0, 0));
    assert_eq!(world.shard.status().counters.ack_timeouts, 0);
}

#[test]
fn the_job_of_a_client_whose_task_stands_still_goes_back() {
    let mut world = World::new();
    let (mut session, mut wire, _, _) = at_work(&mut world, None);
    for _ in 0..600 {
        second(&mut world, &mut session, &mut wire);
    }
    for _ in 0..70 {
        world.now_us += 1_000_000;
        world.turn(true);
    }
    assert_eq!(unacked(&world), (0, 1));
    assert_eq!(world.shard.status().counters.ack_timeouts, 1);
}

#[test]
fn work_beyond_the_programs_own_limit_is_given_back_and_settled_too_late() {
    let mut world = World::new();
    let (mut session, mut wire, key, job) = at_work(&mut world, Some(600_000_000));
    for _ in 0..595 {
        second(&mut world, &mut session, &mut wire);
        assert_eq!(unacked(&world), (1, 0));
    }
    for _ in 0..10 {
        second(&mut world, &mut session, &mut wire);
    }
    // Its consumer has room again, so it came a second time.
    assert_eq!(session.intake(key).0.metrics().redelivered, 1);
    let (intake, machine) = session.intake(key);
    assert!(!intake.settle(machine, job, Verdict::Ack, 0, world.now_us));
    assert_eq!((intake.metrics().overdue, intake.metrics().stale), (1, 1));
    second(&mut world, &mut session, &mut wire);
    assert_eq!(unacked(&world), (1, 0));
}
