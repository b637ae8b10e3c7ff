//! Times to live that go on over a restart.

use forebay_broker::{ConnectionId, Input};
use forebay_store::perform;
use forebay_wire::{Properties, TableBuf, Value, confirm, queue};

use crate::rig::{declare, short};
use crate::scene::{Scene, numbers, range};

/// 2020-09-13.
const BEGAN_US: u64 = 1_600_000_000_000_000;
const SECOND_US: u64 = 1_000_000;
/// After a restart a message of a minute expires up to a 16th part later.
const TTL_S: u64 = 60;
const LATE_S: u64 = 4;

/// A broker whose clock begins now, with the durable queue `q` of messages that live for a minute.
fn minute() -> Scene {
    let mut scene = Scene::new();
    scene.rig.shard.set_clock(BEGAN_US);
    let id = scene.rig.client();
    let arguments = TableBuf::new().with("x-message-ttl", Value::I32(TTL_S as i32 * 1_000));
    let mut declare = declare("q", true);
    declare.arguments = arguments.as_table();
    scene.rig.method(id, 1, &declare);
    scene.work().unwrap();
    scene
}

/// A persistent message is confirmed.
fn publish(scene: &mut Scene) {
    let id = scene.rig.client();
    scene.rig.method(id, 1, &confirm::Select::default());
    scene.rig.publish(id, "q", b"m", true);
    let answers = scene.answers(id);
    assert!(answers.iter().any(|line| line.contains("basic.ack")), "{answers:?}");
    scene.rig.disconnect(id);
}

/// It is so many seconds after its clock began.
fn at(scene: &mut Scene, seconds: u64) {
    scene.rig.now_us = scene.rig.now_us.max(seconds * SECOND_US);
    scene.work().unwrap();
}

fn ready(scene: &Scene) -> u64 {
    scene.rig.shard.status().ready
}

/// It is killed, and started again so many seconds after 2020-09-13.
fn killed(scene: Scene, seconds: u64) -> Scene {
    let mut scene = scene.kill();
    scene.rig.shard.set_clock(BEGAN_US + seconds * SECOND_US);
    scene.work().unwrap();
    scene
}

/// How many entries a store has beside messages.
fn entries(scene: Scene) -> usize {
    let Scene { disk, rig, .. } = scene;
    drop(rig);
    disk.kill();
    let (_, recovered) = forebay_store::open(disk, Default::default()).expect("it opens");
    recovered.meta.len()
}

#[test]
fn a_time_to_live_goes_on_over_a_restart() {
    for killed_after_s in [1, 20, 50] {
        let mut scene = minute();
        publish(&mut scene);
        at(&mut scene, killed_after_s);
        // It was away for 5 s.
        let mut scene = killed(scene, killed_after_s + 5);
        at(&mut scene, TTL_S - killed_after_s - 6);
        assert_eq!(ready(&scene), 1, "{killed_after_s}");
        at(&mut scene, TTL_S - killed_after_s - 5 + LATE_S);
        assert_eq!(ready(&scene), 0, "{killed_after_s}");
        assert_eq!(scene.rig.shard.status().counters.expired, 1);
    }
}

#[test]
fn what_expired_while_the_broker_was_away_is_gone() {
    let mut scene = minute();
    publish(&mut scene);
    let scene = killed(scene, TTL_S + LATE_S + 1);
    assert_eq!(ready(&scene), 0);
}

/// One every 7 s, for ten minutes: more than the slots on disk, and most have expired.
#[test]
fn each_message_has_its_own_time() {
    let mut scene = minute();
    let last_s = 600;
    for second in (0..=last_s).step_by(7) {
        at(&mut scene, second);
        publish(&mut scene);
    }
    let came_s: Vec<u64> = (0..=last_s).step_by(7).collect();
    let began_s = last_s + 1;
    let mut scene = killed(scene, began_s);
    for second in began_s..=last_s + TTL_S + LATE_S + 1 {
        at(&mut scene, second - began_s);
        let ready = ready(&scene) as usize;
        // Working takes up to a second of the rig's time.
        let must = came_s.iter().filter(|came_s| **came_s + TTL_S > second + 1).count();
        let may = came_s.iter().filter(|came_s| **came_s + TTL_S + LATE_S >= second).count();
        assert!((must..=may).contains(&ready), "{second}: {ready} of {must} to {may}");
    }
    assert_eq!(ready(&scene), 0);
}

#[test]
fn it_goes_on_over_many_restarts() {
    let mut scene = minute();
    publish(&mut scene);
    for began_s in [10, 20, 30, 40] {
        scene = killed(scene, began_s);
        publish(&mut scene);
    }
    // A clean stop is no other.
    let mut scene = scene.stop();
    scene.rig.shard.set_clock(BEGAN_US + 50 * SECOND_US);
    at(&mut scene, 8);
    assert_eq!(ready(&scene), 5);
    at(&mut scene, 25);
    assert_eq!(ready(&scene), 3);
    at(&mut scene, 54);
    assert_eq!(ready(&scene), 0);
}

/// A time was written before its messages, and the power went in between. Those before it were transient, and their numbers are given again.
#[test]
fn a_time_whose_messages_were_lost_says_nothing_of_those_that_have_their_numbers() {
    let mut scene = minute();
    publish(&mut scene);
    scene.disk.kill();
    let (mut store, recovered) =
        forebay_store::open(scene.disk.clone(), Default::default()).expect("it opens");
    let id = recovered.queues[0].id;
    for (slot, first) in [(1_u8, 3_u64), (2, 5)] {
        let by_us = BEGAN_US + 62 * SECOND_US + u64::from(slot);
        let key = [b"a", &id.to_le_bytes()[..], &[slot]].concat();
        store.put_meta(&key, &[&[1], &first.to_le_bytes()[..], &by_us.to_le_bytes()].concat());
    }
    while let Some(request) = store.poll(0) {
        store.complete(0, perform(&*scene.disk, request)).expect("the disk works");
    }
    drop(store);
    let mut scene = killed(scene, 59);
    assert_eq!(ready(&scene), 1);
    publish(&mut scene);
    let mut scene = killed(scene, 66);
    assert_eq!(ready(&scene), 1, "that of the first is over, not that of the second");
    at(&mut scene, 59 + TTL_S + LATE_S - 66);
    assert_eq!(ready(&scene), 0);
}

#[test]
fn without_the_time_of_day_a_time_to_live_begins_anew() {
    let mut scene = minute();
    publish(&mut scene);
    at(&mut scene, 50);
    let mut scene = scene.kill();
    at(&mut scene, TTL_S - 1);
    assert_eq!(ready(&scene), 1);
    at(&mut scene, TTL_S + LATE_S);
    assert_eq!(ready(&scene), 0);
}

#[test]
fn a_clock_that_was_set_back_makes_nothing_live_twice_as_long() {
    let mut scene = minute();
    publish(&mut scene);
    let mut scene = scene.kill();
    scene.rig.shard.set_clock(BEGAN_US - 86_400 * SECOND_US);
    at(&mut scene, TTL_S - 1);
    assert_eq!(ready(&scene), 1);
    at(&mut scene, TTL_S + LATE_S);
    assert_eq!(ready(&scene), 0);
}

#[test]
fn a_queue_that_goes_leaves_nothing() {
    for restarted in [false, true] {
        let mut scene = minute();
        for second in [0, 10, 20] {
            at(&mut scene, second);
            publish(&mut scene);
        }
        if restarted {
            scene = killed(scene, 21);
        }
        let id = scene.rig.client();
        scene.rig.method(id, 1, &queue::Delete { queue: short("q"), ..queue::Delete::default() });
        scene.work().unwrap();
        assert_eq!(entries(scene), 0);
    }
}

/// Nothing is written behind the end of the log, which says that the stop was clean.
#[test]
fn what_expires_while_the_broker_stops_is_left_to_the_next_start() {
    let mut scene = minute();
    publish(&mut scene);
    let Scene { disk, mut rig, .. } = scene;
    rig.disconnect(ConnectionId(0));
    rig.step(Input::Shutdown);
    for _ in 0..100 {
        rig.step(Input::Turn { busy: false });
        if rig.shard.stopped() {
            break;
        }
        let Some(request) = rig.shard.poll_disk(rig.now_us) else {
            rig.now_us += 1_000;
            rig.step(Input::Tick);
            continue;
        };
        // Its minute is over while the end is written.
        rig.now_us += 2 * TTL_S * SECOND_US;
        rig.step(Input::Tick);
        rig.step(Input::Turn { busy: false });
        rig.step(Input::Disk(perform(&*disk, request)));
    }
    assert!(rig.shard.stopped());
    drop(rig);
    disk.kill();
    let (_, recovered) = forebay_store::open(disk, Default::default()).expect("it opens");
    assert!(recovered.clean);
    assert_eq!(recovered.queues.iter().map(|queue| queue.messages.len()).sum::<usize>(), 1);
}

/// A message that lives for a minute by itself is confirmed, in a queue where others may live for ever.
fn publish_for_a_minute(scene: &mut Scene, body: &[u8]) {
    let id = scene.client();
    let properties = Properties {
        delivery_mode: Some(2),
        expiration: Some(short("60000")),
        ..Properties::default()
    };
    scene.rig.publish_with(id, "", "q", false, &properties, body);
    let answers = scene.answers(id);
    assert!(answers.iter().any(|line| line.contains("basic.ack")), "{answers:?}");
    scene.rig.disconnect(id);
}

/// It is killed and started again so many seconds after 2020-09-13, which is known from the beginning on.
fn killed_knowing(mut scene: Scene, seconds: i64) -> Scene {
    scene.config.clock_began_us = BEGAN_US.checked_add_signed(seconds * SECOND_US as i64);
    let mut scene = scene.kill();
    scene.work().unwrap();
    scene
}

#[test]
fn a_time_of_its_own_goes_on_over_restarts() {
    for (down_s, left_s) in [(5, 35), (100, 0), (-86_400, 40)] {
        let mut scene = Scene::new();
        scene.rig.shard.set_clock(BEGAN_US);
        publish_for_a_minute(&mut scene, b"m");
        at(&mut scene, 10);
        // The clock of the system may be set back: then it is as if the message came with the start.
        let mut scene = killed_knowing(scene, 10);
        at(&mut scene, 10);
        let mut scene = killed_knowing(scene, 20 + down_s);
        let left_s = if down_s < 0 { TTL_S } else { left_s };
        if left_s > 0 {
            at(&mut scene, left_s - 2);
            assert_eq!(ready(&scene), 1, "{down_s}");
        }
        at(&mut scene, left_s + 2);
        assert_eq!(ready(&scene), 0, "{down_s}");
    }
}

/// Of a long queue the middle lies on disk.
#[test]
fn a_time_of_its_own_goes_on_while_a_message_lies_on_disk() {
    for is_killed in [false, true] {
        let mut scene = Scene::small(4 << 20);
        scene.rig.shard.set_clock(BEGAN_US);
        let id = scene.client();
        scene.fill(id, 0..3_000);
        let published_s = scene.rig.now_us / SECOND_US;
        publish_for_a_minute(&mut scene, &[b'm'; 1_000]);
        scene.fill(id, 3_000..6_000);
        assert!(scene.rig.shard.status().store.runs > 0);
        let began_s = scene.rig.now_us / SECOND_US;
        assert!(began_s < published_s + TTL_S, "{began_s}");
        let mut scene = if is_killed { killed_knowing(scene, began_s as i64) } else { scene };
        at(&mut scene, published_s + TTL_S + 2 - if is_killed { began_s } else { 0 });
        let came = scene.drain();
        assert_eq!(numbers(&came), range(0..6_000), "killed: {is_killed}");
        assert_eq!(scene.rig.shard.status().counters.expired, 1);
    }
}
