//! Queues with priorities.

use forebay_broker::ConnectionId;
use forebay_wire::{Properties, TableBuf, Value, basic, confirm, queue};

use crate::rig::{Rig, consume, declare, short};
use crate::scene::Scene;

const MAX: u8 = 9;

fn priorities() -> TableBuf {
    TableBuf::new().with("x-max-priority", Value::U8(MAX))
}

fn declare_with(rig: &mut Rig, id: ConnectionId, durable: bool, arguments: &TableBuf) {
    let mut declare = declare("q", durable);
    declare.arguments = arguments.as_table();
    rig.method(id, 1, &declare);
}

fn publish(rig: &mut Rig, id: ConnectionId, priority: Option<u8>, body: &str) {
    let properties = Properties { priority, delivery_mode: Some(2), ..Properties::default() };
    rig.publish_with(id, "", "q", false, &properties, body.as_bytes());
}

fn body_of(line: &str) -> String {
    line.rsplit_once('[').map_or("", |(_, body)| body.trim_end_matches(']')).to_owned()
}

/// Bodies in the order in which they are got, with the number that were left each time.
fn got(scene: &mut Scene, id: ConnectionId) -> Vec<(String, u64)> {
    let mut found = Vec::new();
    loop {
        let get = basic::Get { queue: short("q"), no_ack: true, ..basic::Get::default() };
        scene.rig.method(id, 1, &get);
        let lines = scene.answers(id);
        let Some(line) = lines.iter().find(|line| line.contains("basic.get-ok")) else {
            return found;
        };
        let left = line.split_once("left=").and_then(|(_, rest)| rest.split(' ').next());
        let left = left.and_then(|left| left.parse().ok()).expect("a number");
        found.push((body_of(line), left));
    }
}

#[test]
fn the_highest_comes_first_and_equals_by_age() {
    let mut rig = Rig::new();
    let id = rig.client();
    declare_with(&mut rig, id, false, &priorities());
    for (priority, body) in [
        (Some(1), "1"),
        (None, "none"),
        (Some(200), "above the highest"),
        (Some(MAX), "highest"),
        (Some(0), "0"),
        (Some(1), "1 again"),
    ] {
        publish(&mut rig, id, priority, body);
    }
    rig.method(id, 1, &declare("other", false));
    rig.trace(id);
    rig.method(id, 1, &consume("q", "c", true));
    let order: Vec<String> = rig.trace(id)[1..].iter().map(|line| body_of(line)).collect();
    assert_eq!(order, ["above the highest", "highest", "1", "1 again", "none", "0"]);
    assert_eq!(rig.shard.status().memory_bytes, 0);
}

#[test]
fn what_comes_overtakes_what_waits_and_not_what_was_delivered() {
    let mut rig = Rig::new();
    let id = rig.client();
    declare_with(&mut rig, id, false, &priorities());
    rig.method(id, 1, &basic::Qos { prefetch_count: 2, ..basic::Qos::default() });
    for body in ["a", "b", "c"] {
        publish(&mut rig, id, Some(1), body);
    }
    rig.method(id, 1, &consume("q", "c", false));
    let lines = rig.trace(id);
    assert_eq!(lines.iter().filter(|line| line.contains("basic.deliver")).count(), 2, "{lines:?}");
    publish(&mut rig, id, Some(5), "urgent");
    assert_eq!(rig.trace(id), [""; 0], "no credit is left");
    rig.method(id, 1, &basic::Ack { delivery_tag: 1, multiple: false });
    assert_eq!(rig.trace(id), ["1 basic.deliver c 3 [urgent]"]);
    // It comes back to its place among its like, which is before what is less urgent.
    publish(&mut rig, id, Some(5), "as urgent");
    rig.method(id, 1, &basic::Nack { delivery_tag: 3, multiple: false, requeue: true });
    assert_eq!(rig.trace(id), ["1 basic.deliver c 4 redelivered [urgent]"]);
    rig.method(id, 1, &basic::Ack { delivery_tag: 4, multiple: true });
    let lines = rig.trace(id);
    assert_eq!(lines, ["1 basic.deliver c 5 [as urgent]", "1 basic.deliver c 6 [c]"]);
}

#[test]
fn counts_are_of_all_levels() {
    let mut rig = Rig::new();
    let id = rig.client();
    declare_with(&mut rig, id, false, &priorities());
    for priority in [0, 3, 3, 9] {
        publish(&mut rig, id, Some(priority), "m");
    }
    declare_with(&mut rig, id, false, &priorities());
    let lines = rig.trace(id);
    assert_eq!(lines, ["1 queue.declare-ok q 0 0", "1 queue.declare-ok q 4 0"]);
    rig.method(id, 1, &basic::Get { queue: short("q"), ..basic::Get::default() });
    assert_eq!(rig.trace(id), ["1 basic.get-ok 1 left=3 [m]"]);
    let status = rig.shard.status();
    let q = &status.queues[0];
    assert_eq!((status.queue_count, status.queues.len()), (1, 1));
    assert_eq!((q.enqueued, q.ready, q.unacked, status.ready, status.unacked), (4, 3, 1, 3, 1));
    let if_empty = queue::Delete { queue: short("q"), if_empty: true, ..queue::Delete::default() };
    let other = rig.client();
    rig.method(other, 1, &if_empty);
    assert!(rig.trace(other)[0].contains("406"));
    rig.method(id, 1, &queue::Purge { queue: short("q"), ..queue::Purge::default() });
    assert_eq!(rig.trace(id), ["1 queue.purge-ok 3"]);
    publish(&mut rig, id, Some(7), "m");
    rig.method(id, 1, &queue::Delete { queue: short("q"), ..queue::Delete::default() });
    assert_eq!(rig.trace(id), ["1 queue.delete-ok 1"]);
    rig.method(id, 1, &basic::Ack { delivery_tag: 1, multiple: false });
    rig.trace(id);
    assert_eq!(rig.shard.status().memory_bytes, 0);
}

/// A consumer's place in the turn, prefetch and single activity are those of the whole queue.
#[test]
fn consumers_take_turns_over_all_levels() {
    let mut rig = Rig::new();
    let id = rig.client();
    declare_with(&mut rig, id, false, &priorities());
    rig.method(id, 1, &basic::Qos { prefetch_count: 2, ..basic::Qos::default() });
    rig.method(id, 1, &consume("q", "a", false));
    rig.method(id, 1, &consume("q", "b", false));
    rig.trace(id);
    for priority in [1, 2, 3, 4, 5] {
        publish(&mut rig, id, Some(priority), &priority.to_string());
        rig.step(forebay_broker::Input::Turn { busy: false });
    }
    let takers: Vec<String> = rig
        .trace(id)
        .iter()
        .map(|line| format!("{}{}", line.split(' ').nth(2).unwrap_or_default(), body_of(line)))
        .collect();
    assert_eq!(takers, ["a1", "b2", "a3", "b4"]);
    rig.method(id, 1, &basic::Ack { delivery_tag: 2, multiple: false });
    assert_eq!(rig.trace(id), ["1 basic.deliver b 5 [5]"]);
}

#[test]
fn levels_survive_kills_and_stops_and_go_with_their_queue() {
    let mut scene = Scene::new();
    let id = scene.rig.client();
    scene.rig.method(id, 1, &confirm::Select::default());
    declare_with(&mut scene.rig, id, true, &priorities());
    scene.work().unwrap();
    for round in 0..3 {
        for priority in [0, 4] {
            publish(&mut scene.rig, id, Some(priority), &format!("{priority} {round}"));
        }
    }
    let answers = scene.answers(id);
    assert!(answers.last().is_some_and(|line| line.contains("basic.ack 6")), "{answers:?}");
    let mut scene = scene.kill();
    assert_eq!(scene.rig.shard.status().queues[0].ready, 6);
    // Another queue, which must not have the number of a level that comes later.
    let id = scene.rig.client();
    scene.rig.method(id, 1, &declare("next", true));
    scene.rig.publish(id, "next", b"of another queue", true);
    for priority in 4..=MAX {
        publish(&mut scene.rig, id, Some(priority), &format!("{priority} 3"));
    }
    scene.work().unwrap();
    let mut scene = scene.stop();
    let id = scene.rig.client();
    let order: Vec<String> = got(&mut scene, id).into_iter().map(|(body, _)| body).collect();
    let wanted =
        ["9 3", "8 3", "7 3", "6 3", "5 3", "4 0", "4 1", "4 2", "4 3", "0 0", "0 1", "0 2"];
    assert_eq!(order, wanted.map(str::to_owned));
    publish(&mut scene.rig, id, Some(9), "goes");
    scene.work().unwrap();
    scene.rig.method(id, 1, &queue::Delete { queue: short("q"), ..queue::Delete::default() });
    scene.work().unwrap();
    let mut scene = scene.kill();
    let id = scene.rig.client();
    declare_with(&mut scene.rig, id, true, &priorities());
    scene.work().unwrap();
    let status = scene.rig.shard.status();
    assert_eq!((status.queue_count, status.ready), (2, 1));
    assert_eq!(got(&mut scene, id), [], "of the one before nothing is left");
}

/// What lies on disk is read when it is its turn, and the urgent goes before it.
#[test]
fn a_long_backlog_goes_to_disk_level_by_level() {
    let mut scene = Scene::small(4 << 20);
    let id = scene.rig.client();
    scene.rig.method(id, 1, &confirm::Select::default());
    declare_with(&mut scene.rig, id, true, &priorities());
    scene.work().unwrap();
    let body = |number: usize| format!("{number:06} {}", "x".repeat(1_000));
    for number in 0..6_000 {
        publish(&mut scene.rig, id, Some((number % 3) as u8), &body(number));
        if number.is_multiple_of(16) {
            scene.work().expect("the disk works");
        }
    }
    scene.work().unwrap();
    let status = scene.rig.shard.status();
    assert!(status.queues[0].cold > 1_000, "{:?}", status.queues);
    assert_eq!(status.queues[0].ready, 6_000);
    assert!(status.memory_bytes <= status.memory_budget_bytes);
    publish(&mut scene.rig, id, Some(9), &body(999_999));
    scene.work().unwrap();
    scene.answers(id);
    let mut scene = scene.kill();
    let id = scene.rig.client();
    let got = got(&mut scene, id);
    let numbers: Vec<usize> = got.iter().map(|(body, _)| body[..6].parse().unwrap()).collect();
    let of = |level: usize| (0..6_000).filter(move |number| number % 3 == level);
    let wanted: Vec<usize> = [999_999].into_iter().chain(of(2)).chain(of(1)).chain(of(0)).collect();
    assert!(numbers == wanted, "{} came, some not in order", numbers.len());
    let left: Vec<u64> = got.iter().map(|(_, left)| *left).collect();
    assert!(left.iter().copied().eq((0..=6_000).rev()));
    assert_eq!(scene.rig.shard.status().memory_bytes, 0);
}

/// A consumer has one by one what lies on disk in several levels.
#[test]
fn a_consumer_drains_levels_from_disk() {
    let mut scene = Scene::patient(4 << 20);
    let id = scene.rig.client();
    scene.rig.method(id, 1, &confirm::Select::default());
    declare_with(&mut scene.rig, id, true, &priorities());
    scene.work().unwrap();
    for number in 0..6_000_usize {
        let body = format!("{number:06} {}", "x".repeat(1_000));
        publish(&mut scene.rig, id, Some((number % 2) as u8 * 5), &body);
        if number.is_multiple_of(16) {
            scene.work().expect("the disk works");
        }
    }
    scene.answers(id);
    let consumer = scene.rig.client();
    scene.rig.method(consumer, 1, &basic::Qos { prefetch_count: 50, ..basic::Qos::default() });
    scene.rig.method(consumer, 1, &consume("q", "c", false));
    let mut numbers = Vec::new();
    for _ in 0..1_000 {
        let lines = scene.answers(consumer);
        let came = lines.iter().filter(|line| line.contains("basic.deliver"));
        numbers.extend(came.map(|line| body_of(line)[..6].parse::<usize>().unwrap()));
        if numbers.len() == 6_000 {
            break;
        }
        let ack = basic::Ack { delivery_tag: numbers.len() as u64, multiple: true };
        scene.rig.method(consumer, 1, &ack);
    }
    let of = |level: usize| (0..6_000).filter(move |number| number % 2 == level);
    assert!(numbers.iter().copied().eq(of(1).chain(of(0))), "{} came", numbers.len());
}

#[test]
fn a_queue_with_priorities_does_not_balance() {
    let mut rig = Rig::new();
    let id = rig.client();
    let arguments = priorities().with("x-flow", Value::LongStr(b"balance"));
    declare_with(&mut rig, id, false, &arguments);
    let lines = rig.trace(id);
    let why = "a queue with priorities cannot balance";
    assert!(lines[0].contains("406") && lines[0].contains(why), "{lines:?}");
}

/// What is next goes on, however much has expired behind it.
#[test]
fn what_expires_in_a_low_level_holds_up_no_higher_one() {
    let mut rig = Rig::new();
    let id = rig.client();
    let arguments = priorities().with("x-message-ttl", Value::I32(1_000));
    declare_with(&mut rig, id, false, &arguments);
    for _ in 0..2_000 {
        publish(&mut rig, id, Some(0), "old");
    }
    rig.trace(id);
    // No timer comes meanwhile.
    rig.now_us += 2_000_000;
    rig.method(id, 1, &consume("q", "c", true));
    publish(&mut rig, id, Some(9), "new");
    rig.step(forebay_broker::Input::Turn { busy: false });
    let lines = rig.sent(id);
    assert!(lines.iter().any(|line| line.contains("[new]")), "{lines:?}");
    assert!(rig.shard.status().ready > 1_000, "the others take their time");
}

/// Times to live and dead letters are those of the whole queue.
#[test]
fn messages_expire_in_all_levels() {
    let mut rig = Rig::new();
    let id = rig.client();
    rig.method(id, 1, &declare("dead", false));
    let arguments = priorities()
        .with("x-message-ttl", Value::I32(1_000))
        .with("x-dead-letter-exchange", Value::LongStr(b""))
        .with("x-dead-letter-routing-key", Value::LongStr(b"dead"));
    declare_with(&mut rig, id, false, &arguments);
    publish(&mut rig, id, Some(0), "low");
    rig.pass(500);
    publish(&mut rig, id, Some(9), "high");
    rig.pass(510);
    assert_eq!(rig.shard.status().counters.expired, 1, "the one that came first");
    rig.pass(500);
    assert_eq!(rig.shard.status().counters.expired, 2);
    rig.trace(id);
    rig.method(id, 1, &consume("dead", "c", true));
    let lines = rig.trace(id);
    assert_eq!(lines[1..].iter().map(|line| body_of(line)).collect::<Vec<_>>(), ["low", "high"]);
}
