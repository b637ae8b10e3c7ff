//! `basic.get`: by the hundred, without reading the answers, and among what expires.

use forebay_broker::{Admission, ConnectionId, Input};
use forebay_wire::{Properties, TableBuf, Value, basic, channel, queue, write_method};

use crate::expiring::{declare_with, expiring};
use crate::rig::{Rig, consume, declare, publish_bytes, short};
use crate::scene::{Scene, body, deliveries};

const BODY_BYTES: usize = 100_000;
const MESSAGES: usize = 100;
/// Above so much a connection is not heard any more.
const OUT_HARD_BYTES: usize = 1024 * 1024;

/// A request of some tens of bytes asks for a message of any size.
#[test]
fn who_asks_for_much_and_reads_nothing_is_answered_as_he_reads() {
    for publishes in [false, true] {
        let mut rig = Rig::new();
        let id = rig.client();
        rig.method(id, 1, &declare("q", false));
        for _ in 0..MESSAGES {
            rig.publish(id, "q", &[7; BODY_BYTES], false);
        }
        rig.settle();
        rig.sent(id);
        let mut asked = Vec::new();
        for number in 0..MESSAGES + 1 {
            let get =
                basic::Get { queue: short("q"), no_ack: number % 2 == 0, ..Default::default() };
            write_method(&mut asked, 1, &get);
        }
        if publishes {
            let none = Properties::default();
            asked.extend(publish_bytes("", "q", false, &none, b"the last"));
        }
        // However the bytes are cut.
        let (first, second) = asked.split_at(asked.len() / 3 + 5);
        rig.bytes(id, first);
        rig.bytes(id, second);
        let most = OUT_HARD_BYTES + BODY_BYTES + 1_000;
        assert!(rig.shard.unsent_bytes(id) <= most, "{}", rig.shard.unsent_bytes(id));
        let (mut got, mut empty) = (0, 0);
        for _ in 0..MESSAGES {
            for line in rig.sent(id) {
                got += usize::from(line.contains("basic.get-ok"));
                empty += usize::from(line.contains("basic.get-empty"));
            }
            rig.step(Input::Turn { busy: false });
            rig.resume();
            assert!(rig.shard.unsent_bytes(id) <= most, "{}", rig.shard.unsent_bytes(id));
        }
        assert_eq!((got, empty), (MESSAGES, 1));
        assert_eq!(rig.shard.held_bytes(id), 0);
        assert_eq!(rig.shard.status().ready, u64::from(publishes));
    }
}

/// Its next large message waits until it has written, and that would wait until it has read.
#[test]
fn who_writes_before_it_reads_a_large_delivery_is_heard() {
    let mut rig = Rig::new();
    let id = rig.client();
    for queue in ["q", "results"] {
        rig.method(id, 1, &declare(queue, false));
    }
    rig.trace(id);
    for _ in 0..3 {
        rig.publish(id, "q", &[7; 2 * OUT_HARD_BYTES], false);
    }
    rig.method(id, 1, &consume("q", "c", false));
    rig.settle();
    assert!(rig.shard.unsent_bytes(id) > 2 * OUT_HARD_BYTES);
    assert_eq!(rig.shard.admission(id), Admission::Open);
    rig.publish(id, "results", &[7; 3 * OUT_HARD_BYTES], false);
    assert_eq!((rig.shard.held_bytes(id), rig.shard.status().ready), (0, 3));
    // What it asks for itself is bounded all the same.
    for _ in 0..MESSAGES {
        rig.publish(id, "results", &[7; BODY_BYTES], false);
    }
    for _ in 0..MESSAGES {
        rig.method(id, 1, &basic::Get { queue: short("results"), ..basic::Get::default() });
    }
    assert_eq!(rig.shard.admission(id), Admission::Closed);
    let most = 6 * OUT_HARD_BYTES + BODY_BYTES;
    assert!(rig.shard.unsent_bytes(id) <= most, "{}", rig.shard.unsent_bytes(id));
}

#[test]
fn who_asks_for_much_that_lies_on_disk_is_answered_as_he_reads() {
    const ASKED: u32 = 3_000;
    let mut scene = Scene::small(4 << 20);
    let id = scene.client();
    scene.fill(id, 0..6_000);
    let reader = scene.rig.client();
    let other = scene.rig.client();
    let get = basic::Get { queue: short("q"), no_ack: true, ..Default::default() };
    // On several channels: each may have a thousand behind one that waits.
    let mut asked = Vec::new();
    for channel in 1..=4 {
        if channel > 1 {
            write_method(&mut asked, channel, &channel::Open::default());
        }
        for _ in 0..ASKED / 4 {
            write_method(&mut asked, channel, &get);
        }
    }
    scene.rig.bytes(reader, &asked);
    let most = OUT_HARD_BYTES + 2_000;
    let (mut got, mut elsewhere) = (Vec::new(), 0);
    for _ in 0..200 {
        scene.work().expect("the disk works");
        assert!(scene.rig.shard.unsent_bytes(reader) <= most);
        // Somebody else's is not held up by it.
        scene.rig.method(other, 1, &get);
        elsewhere += deliveries(&scene.answers(other)).len();
        got.extend(deliveries(&scene.rig.sent(reader)));
        if got.len() == ASKED as usize {
            break;
        }
    }
    assert_eq!(got.len(), ASKED as usize);
    assert!(elsewhere > 3, "{elsewhere}");
    assert_eq!(scene.rig.shard.status().ready, u64::from(6_000 - ASKED) - elsewhere as u64);
}

/// Each of those who poll a long queue has a message, however many they are and whoever has gone meanwhile.
#[test]
fn nobody_is_told_that_a_long_queue_is_empty() {
    const CHANNELS: u16 = 1_500;
    let mut scene = Scene::small(4 << 20);
    let id = scene.client();
    scene.fill(id, 0..6_000);
    let reader = scene.rig.client();
    let get = basic::Get { queue: short("q"), no_ack: true, ..Default::default() };
    loop {
        scene.rig.method(reader, 1, &get);
        if scene.rig.sent(reader).is_empty() {
            break;
        }
    }
    // The next lies on disk, and the disk does nothing.
    for channel in 2..=CHANNELS {
        scene.rig.method(reader, channel, &channel::Open::default());
        scene.rig.method(reader, channel, &get);
    }
    for channel in 2..=CHANNELS / 2 {
        scene.rig.method(reader, channel, &channel::Close::default());
        scene.rig.method(reader, channel, &channel::Open::default());
        scene.rig.method(reader, channel, &get);
    }
    let mut got = 0;
    for _ in 0..10 {
        let answers = scene.answers(reader);
        assert!(!answers.iter().any(|line| line.contains("get-empty")), "after {got}");
        got += deliveries(&answers).len();
    }
    assert_eq!(got, usize::from(CHANNELS));
}

/// Also when the last one that is alive comes back, and expires in its turn.
#[test]
fn what_expired_behind_the_head_is_not_left_behind_a_get() {
    for no_ack in [true, false] {
        let mut rig = Rig::new();
        let id = rig.client();
        declare_with(&mut rig, id, "q", false, &TableBuf::new());
        expiring(&mut rig, id, "q", "300", "first");
        expiring(&mut rig, id, "q", "100", "second");
        rig.pass(200);
        let get = basic::Get { queue: short("q"), no_ack, ..basic::Get::default() };
        rig.method(id, 1, &get);
        let lines = rig.trace(id);
        assert!(lines.contains(&"1 basic.get-ok 1 left=0 [first]".to_owned()), "{lines:?}");
        assert_eq!(rig.shard.status().counters.expired, 1);
        if !no_ack {
            rig.method(id, 1, &basic::Nack { delivery_tag: 1, multiple: false, requeue: true });
            rig.pass(200);
            assert_eq!(rig.shard.status().counters.expired, 2);
        }
        let status = rig.shard.status();
        assert_eq!((status.ready, status.unacked, status.memory_bytes), (0, 0, 0));
    }
}

/// A queue with these arguments, somebody who holds what of it fills the memory, and who waits for what is on disk.
fn waiting_for_memory(scene: &mut Scene, arguments: &TableBuf) -> (ConnectionId, ConnectionId) {
    let id = scene.client();
    declare_with(&mut scene.rig, id, "long", true, arguments);
    for number in 0..8_000 {
        scene.rig.publish(id, "long", body(number).as_bytes(), true);
        if number % 16 == 0 {
            scene.work().expect("the disk works");
        }
    }
    let holder = scene.rig.client();
    scene.rig.method(holder, 1, &consume("long", "holder", false));
    while !deliveries(&scene.answers(holder)).is_empty() {}
    let cancel = basic::Cancel { consumer_tag: short("holder"), no_wait: true };
    scene.rig.method(holder, 1, &cancel);
    let waits = scene.rig.client();
    scene.rig.method(waits, 1, &basic::Get { queue: short("long"), ..basic::Get::default() });
    assert_eq!(scene.answers(waits), [""; 0], "it is not read while memory is full");
    (holder, waits)
}

#[test]
fn what_comes_back_is_for_a_get_that_waits_for_memory() {
    let mut scene = Scene::patient(4 << 20);
    let (holder, waits) = waiting_for_memory(&mut scene, &TableBuf::new());
    scene.rig.method(holder, 1, &basic::Reject { delivery_tag: 5, requeue: true });
    assert_eq!(deliveries(&scene.answers(waits)), [(4, true)]);
}

#[test]
fn a_queue_of_which_somebody_waits_for_a_message_is_in_use() {
    for purged in [false, true] {
        let mut scene = Scene::patient(4 << 20);
        let arguments = TableBuf::new().with("x-expires", Value::I32(600_000));
        let (holder, waits) = waiting_for_memory(&mut scene, &arguments);
        let pass = |scene: &mut Scene| {
            scene.rig.now_us += 601_000_000;
            scene.work().expect("the disk works");
            scene.rig.shard.status().queues.len() == 2
        };
        assert!(pass(&mut scene));
        if purged {
            let purge = queue::Purge { queue: short("long"), ..queue::Purge::default() };
            scene.rig.method(holder, 1, &purge);
        } else {
            scene.rig.method(holder, 1, &basic::Reject { delivery_tag: 5, requeue: true });
        }
        assert_eq!(scene.answers(waits).len(), 1, "it is answered");
        assert!(!pass(&mut scene), "nobody uses it any more");
    }
}
