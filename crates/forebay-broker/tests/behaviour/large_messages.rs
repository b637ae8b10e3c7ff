//! Messages far larger than what may wait for a socket.

use forebay_broker::{ConnectionId, Input, ShardConfig};
use forebay_wire::{
    ContentHeader, FrameKind, Method, Properties, basic, channel, read_frame, write_method,
};

use crate::rig::{Rig, consume, declare, publish_bytes, short};
use crate::scene::Scene;

const LARGE_BYTES: usize = 1_000_000;
/// What a connection may have outgoing, and a piece of a message beyond it.
const OUT_BYTES: u64 = (256 + 128) * 1024;

fn body(number: usize) -> Vec<u8> {
    (0..LARGE_BYTES).map(|at| (at * 7 + number) as u8).collect()
}

/// A queue `q` with so many large messages, and who published them.
fn filled(messages: usize) -> (Rig, ConnectionId) {
    let mut rig = Rig::with(ShardConfig { memory_budget_bytes: 1 << 30, ..ShardConfig::default() });
    let id = rig.client();
    rig.method(id, 1, &declare("q", false));
    for number in 0..messages {
        rig.publish(id, "q", &body(number), false);
    }
    rig.settle();
    rig.sent(id);
    (rig, id)
}

/// What a client reads, in pieces of at most so many bytes: names of methods, and whole bodies.
fn read(rig: &mut Rig, id: ConnectionId, most_bytes: usize) -> Vec<(u16, String, Vec<u8>)> {
    let mut bytes = Vec::new();
    loop {
        let out = rig.shard.outgoing(id);
        let count = out.len().min(most_bytes);
        bytes.extend_from_slice(&out[..count]);
        if count == 0 {
            break;
        }
        rig.step(Input::Sent { connection: id, bytes: count });
    }
    let (mut said, mut at) = (Vec::<(u16, String, Vec<u8>)>::new(), 0);
    while let Some(frame) = read_frame(&bytes[at..], 131_072).expect("frames that may be") {
        at += frame.size_bytes();
        match frame.kind {
            FrameKind::Method => {
                let method = Method::parse(frame.payload).expect("a method");
                said.push((frame.channel, method.name().to_owned(), Vec::new()));
            }
            FrameKind::Header => {
                ContentHeader::parse(frame.payload).expect("a header");
            }
            FrameKind::Body => {
                let (channel, _, body) = said.last_mut().expect("a method before");
                assert_eq!(*channel, frame.channel, "nothing comes amid a content");
                body.extend_from_slice(frame.payload);
            }
            FrameKind::Heartbeat => {}
        }
    }
    assert_eq!(at, bytes.len(), "whole frames");
    said
}

#[test]
fn for_clients_that_do_not_read_a_message_is_in_memory_once() {
    const CLIENTS: usize = 40;
    for no_ack in [false, true] {
        let (mut rig, _) = filled(CLIENTS);
        let held_bytes = rig.shard.status().memory_bytes;
        let clients: Vec<_> = (0..CLIENTS).map(|_| rig.client()).collect();
        for &id in &clients {
            rig.method(id, 1, &consume("q", "c", no_ack));
            rig.settle();
        }
        let status = rig.shard.status();
        assert_eq!(status.ready, 0, "each has one");
        // A vector may have twice what is in it.
        let most_bytes = CLIENTS as u64 * 2 * OUT_BYTES;
        assert!(status.outgoing_bytes <= most_bytes, "{}", status.outgoing_bytes);
        assert!(status.memory_bytes >= held_bytes, "it counts until it is sent");
        let mut bodies = Vec::new();
        for &id in &clients {
            let said = read(&mut rig, id, 100_000);
            bodies.extend(said.into_iter().filter(|(_, name, _)| name == "basic.deliver"));
        }
        for (number, (_, _, got)) in bodies.iter().enumerate() {
            assert!(*got == body(number), "message {number}");
        }
        assert_eq!(bodies.len(), CLIENTS);
        for &id in clients.iter().filter(|_| !no_ack) {
            rig.method(id, 1, &basic::Ack { delivery_tag: 1, multiple: false });
        }
        assert_eq!(rig.shard.status().memory_bytes, 0);
    }
}

#[test]
fn what_a_client_did_not_read_goes_with_it() {
    for (no_ack, left) in [(true, 1), (false, 2)] {
        let (mut rig, _) = filled(2);
        let id = rig.client();
        rig.method(id, 1, &consume("q", "c", no_ack));
        rig.settle();
        let out = rig.shard.outgoing(id).len();
        rig.step(Input::Sent { connection: id, bytes: out / 2 });
        rig.step(Input::Disconnected { connection: id });
        assert_eq!(rig.shard.status().ready, left);
        let id = rig.client();
        rig.method(id, 1, &consume("q", "c", true));
        rig.settle();
        let deliveries = read(&mut rig, id, usize::MAX);
        assert_eq!(deliveries.iter().filter(|(_, name, _)| name == "basic.deliver").count(), 1);
        rig.step(Input::Turn { busy: false });
        read(&mut rig, id, usize::MAX);
        assert_eq!((rig.shard.status().ready, rig.shard.status().memory_bytes), (0, 0));
    }
}

#[test]
fn what_comes_later_comes_after_it() {
    let (mut rig, other) = filled(1);
    let id = rig.client();
    rig.method(id, 2, &channel::Open::default());
    read(&mut rig, id, usize::MAX);
    rig.method(id, 1, &basic::Get { queue: short("q"), no_ack: true, ..basic::Get::default() });
    rig.method(id, 2, &declare("r", false));
    rig.publish(other, "r", &body(1), false);
    rig.publish(other, "r", b"small", false);
    rig.method(id, 2, &consume("r", "c", true));
    rig.settle();
    rig.method(id, 1, &declare("s", false));
    let mut said = Vec::new();
    for _ in 0..3 {
        said.extend(read(&mut rig, id, 70_000));
        rig.settle();
    }
    let said: Vec<_> =
        said.iter().map(|(channel, name, body)| (*channel, name.as_str(), body.len())).collect();
    assert_eq!(
        said,
        [
            (1, "basic.get-ok", LARGE_BYTES),
            (2, "queue.declare-ok", 0),
            (2, "basic.consume-ok", 0),
            (1, "queue.declare-ok", 0),
            (2, "basic.deliver", LARGE_BYTES),
            (2, "basic.deliver", 5),
        ]
    );
    assert_eq!(rig.shard.status().memory_bytes, 0);
}

#[test]
fn what_nobody_wanted_comes_back_whole_before_its_confirm() {
    let (mut rig, _) = filled(0);
    let id = rig.client();
    rig.method(id, 1, &forebay_wire::confirm::Select::default());
    let none = Properties::default();
    let mut bytes = publish_bytes("", "nowhere", true, &none, &body(3));
    write_method(&mut bytes, 1, &declare("here", false));
    rig.bytes(id, &bytes);
    rig.settle();
    let said = read(&mut rig, id, 50_000);
    let names: Vec<_> = said.iter().map(|(_, name, _)| name.as_str()).collect();
    let tail = &names[names.len() - 3..];
    assert_eq!(tail, ["basic.return", "queue.declare-ok", "basic.ack"]);
    let returned = said.iter().find(|(_, name, _)| name == "basic.return").expect("it came back");
    assert!(returned.2 == body(3));
    assert_eq!(rig.shard.status().memory_bytes, 0);
}

/// As many as the memory holds, whoever holds them: those who read go on, one at a time if need be.
#[test]
fn clients_that_do_not_read_are_given_what_fits_into_the_memory() {
    const BUDGET_BYTES: u64 = 16 << 20;
    const MESSAGES: usize = 50;
    for no_ack in [false, true] {
        // While a disk works time flies here: nobody is late with an acknowledgement.
        let mut scene = Scene::patient(BUDGET_BYTES);
        let publisher = scene.client();
        for number in 0..MESSAGES {
            scene.rig.publish(publisher, "q", &body(number), true);
            scene.work().expect("the disk works");
            scene.answers(publisher);
        }
        scene.work().expect("the disk works");
        assert_eq!(scene.rig.shard.status().ready, MESSAGES as u64);
        let mut clients = Vec::new();
        for _ in 0..MESSAGES {
            let id = scene.rig.client();
            scene.rig.method(id, 1, &basic::Qos { prefetch_count: 1, ..basic::Qos::default() });
            scene.rig.method(id, 1, &consume("q", "c", no_ack));
            scene.work().expect("the disk works");
            clients.push(id);
        }
        let status = scene.rig.shard.status();
        let most_bytes = BUDGET_BYTES + 3 * LARGE_BYTES as u64;
        assert!(status.memory_bytes <= most_bytes, "{}", status.memory_bytes);
        assert!(status.ready > 0, "not all of them have one");
        let mut got = 0;
        for _ in 0..MESSAGES {
            for &id in &clients {
                for (_, name, _) in read(&mut scene.rig, id, usize::MAX) {
                    got += usize::from(name == "basic.deliver");
                }
                if !no_ack && got < MESSAGES {
                    let all = basic::Ack { delivery_tag: 0, multiple: true };
                    scene.rig.method(id, 1, &all);
                }
            }
            scene.work().expect("the disk works");
        }
        assert_eq!(got, MESSAGES);
    }
}

/// Somebody else's deliveries fill the memory, and stay. What lies on disk comes to who holds nothing, a message at a time.
#[test]
fn who_has_settled_a_large_message_gets_the_next_though_the_memory_is_full() {
    let mut scene = Scene::patient(16 << 20);
    let publisher = scene.client();
    scene.rig.method(publisher, 1, &declare("hoarded", true));
    for number in 0..46 {
        let queue = if number < 6 { "q" } else { "hoarded" };
        scene.rig.publish(publisher, queue, &body(number), true);
        scene.work().expect("the disk works");
        scene.answers(publisher);
    }
    let hoarder = scene.rig.client();
    scene.rig.method(hoarder, 1, &consume("hoarded", "c", false));
    for _ in 0..60 {
        scene.work().expect("the disk works");
        read(&mut scene.rig, hoarder, usize::MAX);
    }
    let status = scene.rig.shard.status();
    assert!(status.memory_bytes >= 16 << 20 && status.unacked < 40, "{}", status.memory_bytes);
    let id = scene.rig.client();
    let get = basic::Get { queue: short("q"), ..basic::Get::default() };
    let mut got = Vec::new();
    for number in 0..4 {
        // Whose client still holds the one before waits.
        scene.rig.method(id, 1, &get);
        scene.work().expect("the disk works");
        let said = read(&mut scene.rig, id, usize::MAX);
        got.push(said.iter().filter(|(_, name, _)| name == "basic.get-ok").count());
        if number > 0 {
            scene.rig.method(id, 1, &basic::Ack { delivery_tag: 0, multiple: true });
            scene.work().expect("the disk works");
        }
    }
    let said = read(&mut scene.rig, id, usize::MAX);
    got.push(said.iter().filter(|(_, name, _)| name == "basic.get-ok").count());
    assert_eq!(got[..2], [1, 0], "the second has to wait");
    assert_eq!(got.iter().sum::<usize>(), 4, "{got:?}");
    scene.rig.method(id, 1, &basic::Ack { delivery_tag: 0, multiple: true });
    assert_eq!(scene.rig.shard.status().unacked, status.unacked, "the hoarder has what it had");
}
