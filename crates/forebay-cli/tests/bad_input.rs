//! What peers may do to the binary that they should not: each gets AMQP's own answer, everybody else
//! is served, and nothing is lost. In every test a witness publishes and consumes all along.

mod support;

use std::net::SocketAddr;

use forebay_client::blocking::{Connection, ConsumeOptions, DeclareQueue, OpenError, Publication};
use forebay_wire::{
    PROTOCOL_HEADER, Properties, RawProperties, basic, channel, connection, write_header_frame,
};
use support::broker::{Broker, Start};
use support::dir::Dir;
use support::peer::{Answer, Peer, frame, payload, short};
use support::random::{Random, seed};
use support::witness::Witness;
use support::{PATIENCE, scaled};

/// What the process has besides the budget for messages: runs that are being written, the
/// log's batches, segments being made ready, the program itself, and what the allocator keeps.
const OVERHEAD_MIB: u64 = 96;

/// A broker on disk and its witness.
struct Scene {
    broker: Broker,
    witness: Witness,
    _dir: Dir,
}

impl Scene {
    fn new() -> Scene {
        Scene::with(|start| start)
    }

    fn with(how: impl FnOnce(Start) -> Start) -> Scene {
        let dir = Dir::new("bad-input");
        let broker = how(Start::on_disk(dir.path())).ready();
        let witness = Witness::start(&broker.url());
        witness.goes_on("before anything happens");
        Scene { broker, witness, _dir: dir }
    }

    fn at(&self) -> SocketAddr {
        self.broker.amqp
    }

    fn goes_on(&self, during: &str) {
        self.witness.goes_on(during);
    }

    fn end(self) {
        self.witness.finish();
        let ended = self.broker.stop();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    }
}

#[test]
fn wrong_protocol_headers_get_the_right_one_and_the_end() {
    let scene = Scene::new();
    let headers: [&[u8]; 7] = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"AMQP\x00\x01\x00\x00",
        b"AMQP\x03\x01\x00\x00",
        b"AMQP\x00\x00\x09\x02",
        b"AMQX",
        &[0; 4096],
    ];
    for header in headers {
        let mut peer = Peer::connect(scene.at());
        peer.send(header);
        let answer = peer.rest();
        // The rest of a long header may turn the close into a reset, which eats the answer.
        assert!(answer == PROTOCOL_HEADER || answer.is_empty() && header.len() > 8, "{answer:?}");
        scene.goes_on("wrong headers");
    }
    scene.end();
}

#[test]
fn malformed_frames_end_their_connection_with_the_right_code() {
    let scene = Scene::new();
    let declare = payload(&forebay_wire::queue::Declare::default());
    let mut no_end = frame(1, 1, &declare);
    *no_end.last_mut().unwrap() = 0;
    let mut announced_only = vec![3, 0, 1];
    announced_only.extend(200_000u32.to_be_bytes());
    let cases: [(&str, Vec<u8>, u16, &str); 11] = [
        ("an unknown kind of frame", frame(9, 1, b"x"), 501, "FRAME_ERROR"),
        ("a wrong end", no_end, 501, "FRAME_ERROR"),
        ("a frame above frame_max", frame(3, 1, &[0; 140_000]), 501, "FRAME_ERROR"),
        ("the head of such a frame", announced_only, 501, "FRAME_ERROR"),
        ("a body of nothing", frame(3, 1, b"body"), 505, "UNEXPECTED_FRAME"),
        ("a header of nothing", frame(2, 1, &[0; 14]), 505, "UNEXPECTED_FRAME"),
        ("a heartbeat on a channel", frame(8, 1, b""), 505, "UNEXPECTED_FRAME"),
        ("an unknown method", frame(1, 1, &[0, 99, 0, 99]), 503, "COMMAND_INVALID"),
        ("half a method", frame(1, 1, &declare[..6]), 502, "SYNTAX_ERROR"),
        ("a channel that is not open", frame(1, 7, &declare), 504, "CHANNEL_ERROR"),
        ("a second open", frame(1, 1, &payload(&channel::Open::default())), 504, "CHANNEL_ERROR"),
    ];
    for (what, bytes, code, name) in cases {
        let mut peer = Peer::open(scene.at(), 0);
        peer.send(&bytes);
        println!("{what}");
        peer.verdict().is_connection_error(code, name);
        scene.goes_on(what);
    }
    scene.end();
}

#[test]
fn contents_that_lie_about_themselves_are_refused() {
    let scene = Scene::new();
    let publish = payload(&basic::Publish { routing_key: short("q"), ..Default::default() });
    let header = |class_id, size| {
        let mut bytes = frame(1, 1, &publish);
        write_header_frame(&mut bytes, 1, class_id, size, RawProperties::trusted(&[0, 0]));
        bytes
    };

    let mut peer = Peer::open(scene.at(), 0);
    peer.send(&frame(1, 1, &publish));
    peer.send(&frame(1, 1, &publish));
    peer.verdict().is_connection_error(505, "UNEXPECTED_FRAME");

    let mut peer = Peer::open(scene.at(), 0);
    peer.send(&header(60, 4));
    peer.send(&frame(3, 1, b"five!"));
    peer.verdict().is_connection_error(505, "UNEXPECTED_FRAME");

    let mut peer = Peer::open(scene.at(), 0);
    peer.send(&header(61, 4));
    peer.verdict().is_connection_error(505, "UNEXPECTED_FRAME");

    for size in [16 * 1024 * 1024 + 1, u64::MAX] {
        let mut peer = Peer::open(scene.at(), 0);
        peer.send(&header(60, size));
        peer.verdict().is_channel_error(406, "PRECONDITION_FAILED");
        // Only the channel: the connection goes on.
        peer.method(2, &channel::Open::default());
        peer.expect("channel.open-ok");
    }

    let mut peer = Peer::open(scene.at(), 0);
    let mut bytes = frame(1, 1, &publish);
    // Property flags that never end.
    bytes.extend(frame(2, 1, &[&[0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], &[255; 2000]].concat()));
    peer.send(&bytes);
    match peer.verdict() {
        Answer::Connection(501 | 502, _) => {}
        other => panic!("{other:?}"),
    }
    scene.goes_on("lying contents");
    scene.end();
}

/// A field table in a field table in a field table …
fn nested_tables(depth: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for level in 0..depth {
        let left = (depth - level - 1) * 7;
        bytes.extend([1, b'k', b'F']);
        bytes.extend((left as u32).to_be_bytes());
    }
    bytes
}

/// An array in an array in an array …, as the value of one key.
fn nested_arrays(depth: usize) -> Vec<u8> {
    let mut bytes = vec![1, b'k'];
    for level in 0..depth {
        let left = (depth - level - 1) * 5;
        bytes.push(b'A');
        bytes.extend((left as u32).to_be_bytes());
    }
    bytes
}

#[test]
fn tables_nested_without_end_are_refused_and_overflow_no_stack() {
    let scene = Scene::new();
    let declare = |table: &[u8]| {
        let mut bytes = vec![0, 50, 0, 10, 0, 0, 1, b'q', 0];
        bytes.extend((table.len() as u32).to_be_bytes());
        bytes.extend(table);
        frame(1, 1, &bytes)
    };
    for table in [nested_tables(18_000), nested_arrays(26_000), nested_tables(65)] {
        let mut peer = Peer::open(scene.at(), 0);
        peer.send(&declare(&table));
        peer.verdict().is_connection_error(502, "SYNTAX_ERROR");
        scene.goes_on("nested tables");
    }
    // The same from somebody who has not logged in.
    let table = nested_tables(500);
    let mut start_ok = vec![0, 10, 0, 11];
    start_ok.extend((table.len() as u32).to_be_bytes());
    start_ok.extend(&table);
    start_ok.extend(b"\x05PLAIN\0\0\0\x0c\0guest\0guest\x05en_US");
    let mut peer = Peer::start(scene.at());
    peer.frame(1, 0, &start_ok);
    assert!(matches!(peer.verdict(), Answer::Connection(502, _) | Answer::End));
    scene.goes_on("nested tables before the login");
    scene.end();
}

#[test]
fn what_comes_before_the_login_is_small_and_in_order() {
    let scene = Scene::new();
    // Frames are limited to 4096 bytes by then (0-9-1 section 4.2.3 with RabbitMQ's limit).
    let mut peer = Peer::start(scene.at());
    peer.frame(1, 0, &[0; 5000]);
    assert!(matches!(peer.verdict(), Answer::Connection(501, _) | Answer::End));
    // A method out of its turn.
    let mut peer = Peer::start(scene.at());
    peer.vhost("/");
    assert!(matches!(peer.verdict(), Answer::Connection(503 | 504, _) | Answer::End));
    // Content, a channel, and nonsense.
    for bytes in [frame(2, 0, &[0; 14]), frame(1, 1, &[0, 20, 0, 10, 0]), vec![0xEE; 3000]] {
        let mut peer = Peer::start(scene.at());
        peer.send(&bytes);
        assert!(matches!(peer.verdict(), Answer::Connection(501..=505, _) | Answer::End));
    }
    // Limits above ours, and below what AMQP needs.
    for (channel_max, frame_max) in [(0xFFFF, 131_072), (2047, u32::MAX), (2047, 100)] {
        let mut peer = Peer::start(scene.at());
        peer.login("guest", "guest", true);
        peer.expect("connection.tune");
        peer.method(0, &connection::TuneOk { channel_max, frame_max, heartbeat: 0 });
        peer.verdict().is_connection_error(530, "NOT_ALLOWED");
    }
    scene.goes_on("bad handshakes");
    scene.end();
}

#[test]
fn wrong_logins_and_unknown_vhosts_are_refused() {
    let scene = Scene::new();
    let address = scene.at();
    for (user, password) in [("guest", "wrong"), ("nobody", "guest"), ("", "")] {
        match Connection::open(&format!("amqp://{user}:{password}@{address}/%2f")) {
            Err(OpenError::Refused(refusal)) => {
                assert_eq!(refusal.code, 403);
                assert!(
                    refusal.text.starts_with("ACCESS_REFUSED - Login was refused"),
                    "{refusal}"
                );
            }
            other => panic!("{other:?}"),
        }
    }
    match Connection::open(&format!("amqp://guest:guest@{address}/nowhere")) {
        Err(OpenError::Refused(refusal)) => {
            assert_eq!(
                (refusal.code, &refusal.text[..]),
                (530, "NOT_ALLOWED - vhost nowhere not found")
            );
        }
        other => panic!("{other:?}"),
    }
    // Those who cannot be told wait for a while and then see the end; many at once hold up nobody.
    let mut untold: Vec<Peer> = (0..100)
        .map(|number| {
            let mut peer = Peer::start(address);
            peer.login("guest", &format!("guess {number}"), false);
            peer
        })
        .collect();
    scene.goes_on("a hundred wrong logins");
    for peer in &mut untold {
        assert_eq!(peer.verdict(), Answer::End);
    }
    // A mechanism that was not offered, and an answer that is none.
    for (mechanism, response) in [("CRAM-MD5", &b"x"[..]), ("PLAIN", b"no zeros"), ("", b"")] {
        let mut peer = Peer::start(address);
        peer.method(
            0,
            &connection::StartOk {
                mechanism: short(mechanism),
                response,
                locale: short("en_US"),
                ..connection::StartOk::default()
            },
        );
        assert!(matches!(peer.verdict(), Answer::Connection(502 | 503 | 403, _) | Answer::End));
    }
    scene.goes_on("wrong logins");
    scene.end();
}

#[test]
fn a_flood_of_channels_ends_at_the_limit() {
    let scene = Scene::new();
    let mut peer = Peer::open(scene.at(), 0);
    let mut all = Vec::new();
    for number in 2..=2048 {
        all.extend(frame(1, number, &payload(&channel::Open::default())));
    }
    peer.send(&all);
    peer.verdict().is_connection_error(530, "NOT_ALLOWED");
    scene.goes_on("2048 channels");
    // Opened and closed for as long as one likes.
    let mut peer = Peer::open(scene.at(), 0);
    let mut churn = Vec::new();
    for _ in 0..2000 {
        churn.extend(frame(1, 2, &payload(&channel::Open::default())));
        churn.extend(frame(1, 2, &payload(&channel::Close::default())));
    }
    peer.send(&churn);
    for _ in 0..2000 {
        peer.expect("channel.open-ok");
        peer.expect("channel.close-ok");
    }
    scene.goes_on("channel churn");
    scene.end();
}

#[test]
fn half_open_connections_are_given_up_in_time() {
    let scene = Scene::with(|start| start.line("handshake_timeout_ms = 300"));
    let half_a_frame = {
        let mut bytes = vec![1, 0, 0];
        bytes.extend(3000u32.to_be_bytes());
        bytes.extend([0; 1000]);
        bytes
    };
    let mut peers: Vec<Peer> = (0..200)
        .map(|number| match number % 4 {
            0 => Peer::connect(scene.at()),
            1 => {
                let mut peer = Peer::connect(scene.at());
                peer.send(b"AMQ");
                peer
            }
            2 => Peer::start(scene.at()),
            _ => {
                let mut peer = Peer::start(scene.at());
                peer.send(&half_a_frame);
                peer
            }
        })
        .collect();
    // One that says a byte now and then does not win time by it.
    let mut slow = Peer::start(scene.at());
    slow.send(&half_a_frame);
    let began = std::time::Instant::now();
    while slow.try_send(&[0]).is_ok() {
        assert!(began.elapsed() < PATIENCE, "a trickle keeps a login open");
        scene.goes_on("a trickle before the login");
    }
    for peer in &mut peers {
        peer.rest();
    }
    scene.goes_on("half-open connections");
    // Logged in, with a heartbeat of a second and a message in hand, and then as good as dead.
    let mut channel = scene.broker.connect().channel().unwrap();
    channel.declare_queue("held", DeclareQueue::default()).unwrap();
    channel.confirm_select(1).unwrap();
    let body = b"held";
    channel.publish(&Publication { routing_key: "held", body, ..Default::default() }).unwrap();
    channel.wait_settled().unwrap();
    let mut dead = Peer::open(scene.at(), 1);
    dead.method(1, &basic::Get { queue: short("held"), ..basic::Get::default() });
    dead.expect("basic.get-ok");
    let mut consumer = channel.consume("held", ConsumeOptions::default()).unwrap();
    let message = consumer.next_message(Some(PATIENCE)).unwrap().expect("it comes back");
    assert!(message.redelivered() && message.body() == body);
    scene.goes_on("a missed heartbeat");
    scene.end();
}

#[test]
fn more_connections_than_allowed_are_closed_at_once_and_room_is_found_again() {
    let scene = Scene::with(|start| start.line("connections_max = 20"));
    let held: Vec<Peer> = (0..19).map(|_| Peer::open(scene.at(), 0)).collect();
    for _ in 0..200 {
        let mut peer = Peer::connect(scene.at());
        peer.send(&PROTOCOL_HEADER);
        assert!(peer.rest().is_empty(), "the twenty-first is let in");
    }
    scene.goes_on("a flood of connections");
    for mut peer in held {
        peer.method(0, &connection::Close { reply_code: 200, ..connection::Close::default() });
        peer.expect("connection.close-ok");
    }
    let deadline = std::time::Instant::now() + PATIENCE;
    while Connection::open(&scene.broker.url()).is_err() {
        assert!(std::time::Instant::now() < deadline, "no room again");
    }
    scene.end();
}

#[test]
fn slow_readers_hold_up_nobody_and_fill_no_memory() {
    let scene = Scene::with(|start| start.flag("--memory-budget", "32MiB"));
    let mut channel = scene.broker.connect().channel().unwrap();
    channel.declare_queue("slow", DeclareQueue { durable: true, ..Default::default() }).unwrap();
    // Twenty of them ask for everything and read nothing.
    let deaf: Vec<Peer> = (0..20)
        .map(|_| {
            let mut peer = Peer::open(scene.at(), 0);
            let consume =
                basic::Consume { queue: short("slow"), no_ack: true, ..Default::default() };
            peer.method(1, &consume);
            peer.expect("basic.consume-ok");
            peer
        })
        .collect();
    channel.confirm_select(50).unwrap();
    let body = vec![7; 100_000];
    for number in 0..scaled(1500, 300) {
        let properties = Properties { delivery_mode: Some(2), ..Properties::default() };
        channel
            .publish(&Publication {
                routing_key: "slow",
                properties,
                body: &body,
                ..Default::default()
            })
            .unwrap();
        if number % 100 == 0 {
            scene.goes_on("slow readers");
        }
    }
    channel.wait_settled().unwrap();
    scene.goes_on("slow readers");
    let (_, highest_kib) = scene.broker.resident_kib();
    println!("resident at most {} MiB", highest_kib / 1024);
    // Above that, 20 outgoing buffers with a message more than their bound of 1 MiB each.
    assert!(highest_kib < (32 + 20 * 2 + OVERHEAD_MIB) * 1024, "{highest_kib} KiB");
    drop(deaf);
    scene.end();
}

#[test]
fn a_publisher_without_confirms_or_consumers_fills_the_disk_and_not_the_memory() {
    let scene = Scene::with(|start| start.flag("--memory-budget", "32MiB"));
    let mut channel = scene.broker.connect().channel().unwrap();
    channel.declare_queue("flood", DeclareQueue { durable: true, ..Default::default() }).unwrap();
    let body = vec![1; 10_000];
    let count = scaled(30_000, 3_000);
    for number in 0..count {
        let message = Publication { routing_key: "flood", body: &body, ..Default::default() };
        channel.publish(&message).unwrap();
        if number % 5_000 == 0 {
            scene.goes_on("a flood of messages");
        }
    }
    channel.flush().unwrap();
    // A request behind them on the same channel: they are all in when it is answered.
    let passive = DeclareQueue { passive: true, ..DeclareQueue::default() };
    let there = channel.declare_queue("flood", passive).unwrap();
    assert_eq!(u64::from(there.message_count), count);
    let (_, highest_kib) = scene.broker.resident_kib();
    println!("resident at most {} MiB", highest_kib / 1024);
    assert!(highest_kib < (32 + OVERHEAD_MIB) * 1024, "{highest_kib} KiB");
    scene.end();
}

#[test]
fn noise_of_every_kind_is_survived() {
    let seed = seed();
    let mut random = Random::new(seed);
    let scene = Scene::new();
    let sound: Vec<Vec<u8>> = vec![
        payload(&forebay_wire::queue::Declare { queue: short("n"), ..Default::default() }),
        payload(&forebay_wire::exchange::Declare {
            exchange: short("x"),
            type_name: short("topic"),
            ..Default::default()
        }),
        payload(&forebay_wire::queue::Bind {
            queue: short("n"),
            exchange: short("x"),
            routing_key: short("a.#.b"),
            ..Default::default()
        }),
        payload(&basic::Consume { queue: short("n"), ..Default::default() }),
        payload(&basic::Ack { delivery_tag: 1, multiple: true }),
        payload(&basic::Publish { routing_key: short("n"), ..Default::default() }),
        payload(&forebay_wire::tx::Select::default()),
        payload(&forebay_wire::tx::Commit::default()),
    ];
    for number in 0..scaled(600, 100) {
        let mut peer = match random.below(4) {
            0 => Peer::connect(scene.at()),
            1 => Peer::start(scene.at()),
            _ => Peer::open(scene.at(), 0),
        };
        for _ in 0..random.between(1, 30) {
            let mut bytes = match random.below(4) {
                // Any bytes.
                0 => (0..random.below(300)).map(|_| random.bits() as u8).collect(),
                // A sound frame with a damaged payload.
                1 => {
                    let mut payload = sound[random.below(sound.len() as u64) as usize].clone();
                    let at = random.below(payload.len() as u64) as usize;
                    payload[at] ^= 1 << random.below(8);
                    frame(1, 1, &payload)
                }
                // Sound frames in an order that makes no sense.
                2 => frame(1, 1, &sound[random.below(sound.len() as u64) as usize]),
                _ => {
                    let kind = random.between(1, 8) as u8;
                    let payload: Vec<u8> =
                        (0..random.below(60)).map(|_| random.bits() as u8).collect();
                    frame(kind, random.below(3) as u16, &payload)
                }
            };
            if random.percent(5) {
                bytes.truncate(random.below(bytes.len() as u64 + 1) as usize);
            }
            if peer.try_send(&bytes).is_err() {
                break;
            }
        }
        drop(peer);
        if number % 20 == 0 {
            scene.goes_on("noise");
        }
    }
    scene.goes_on("noise");
    scene.end();
}
