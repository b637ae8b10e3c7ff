//! `connection.blocked` and its end: for whom, when, and how often.

use forebay_broker::{Admission, ConnectionId, Input};
use forebay_store::{Lane, Request, perform};
use forebay_wire::{basic, queue};

use crate::rig::{Rig, SMALL_BYTES, declare, short};
use crate::scene::{Scene, one_round};

const BLOCKED: &str = "0 connection.blocked low on memory";
const UNBLOCKED: &str = "0 connection.unblocked";

/// A broker whose log is at one write, which a publisher waits for.
fn stalled() -> (Scene, ConnectionId, Request) {
    let mut scene = Scene::new();
    let id = scene.client();
    scene.rig.publish(id, "q", b"m", true);
    scene.rig.step(Input::Turn { busy: false });
    let request = scene.rig.shard.poll_disk(scene.rig.now_us).expect("a commit");
    assert_eq!(request.lane(), Lane::Log);
    (scene, id, request)
}

fn finish(scene: &mut Scene, request: Request) {
    let completion = perform(&*scene.disk, request);
    scene.rig.step(Input::Disk(completion));
    scene.rig.step(Input::Turn { busy: false });
}

/// Time passes, and the disk works.
fn later(scene: &mut Scene, ms: u64) {
    for _ in 0..ms / 10 {
        one_round(scene).expect("the disk works");
    }
}

#[test]
fn publishers_are_told_of_a_log_that_stalls_and_of_its_end() {
    let (mut scene, id, request) = stalled();
    let consumer = scene.rig.client_that_can(&[]);
    scene.rig.pass(900);
    assert_eq!((scene.rig.sent(id), scene.rig.shard.status().alarm), (vec![], None));
    scene.rig.pass(200);
    assert_eq!(scene.rig.sent(id), ["0 connection.blocked log stalled"]);
    assert_eq!(scene.rig.shard.status().alarm, Some("log stalled"));
    // One who begins to publish now is told at once, and a consumer never.
    let other = scene.rig.client();
    scene.rig.publish(other, "q", b"m", true);
    assert_eq!(scene.rig.sent(other), ["0 connection.blocked log stalled"]);
    assert_eq!(scene.rig.sent(consumer), [""; 0]);
    scene.rig.pass(60_000);
    assert_eq!(scene.rig.sent(id), [""; 0], "it was told once");
    finish(&mut scene, request);
    assert_eq!(scene.rig.shard.status().alarm, None);
    later(&mut scene, 1_000);
    assert_eq!(
        scene.rig.sent(id),
        ["1 basic.ack 1", UNBLOCKED],
        "no confirm waits for the release"
    );
    assert_eq!(scene.rig.sent(other), [UNBLOCKED]);
}

#[test]
fn a_stall_of_less_than_a_second_is_silent() {
    let (mut scene, id, request) = stalled();
    scene.rig.pass(990);
    finish(&mut scene, request);
    later(&mut scene, 3_000);
    assert_eq!(scene.rig.sent(id), ["1 basic.ack 1"]);
}

#[test]
fn a_broker_that_was_stopped_itself_takes_that_for_no_stall() {
    let (mut scene, id, request) = stalled();
    // The disk was done long ago; the first turn comes before that is heard of.
    scene.rig.now_us += 30_000_000;
    scene.rig.step(Input::Turn { busy: false });
    finish(&mut scene, request);
    later(&mut scene, 3_000);
    assert_eq!(scene.rig.sent(id), ["1 basic.ack 1"]);
}

#[test]
fn an_alarm_lasts_a_second_at_least() {
    let (mut scene, id, request) = stalled();
    scene.rig.pass(1_011);
    assert_eq!(scene.rig.sent(id), ["0 connection.blocked log stalled"]);
    finish(&mut scene, request);
    later(&mut scene, 900);
    assert_eq!(scene.rig.sent(id), ["1 basic.ack 1"]);
    assert_eq!(scene.rig.shard.status().alarm, Some("log stalled"));
    later(&mut scene, 1_200);
    assert_eq!(scene.rig.sent(id), [UNBLOCKED]);
}

/// Takes messages until memory is at most at `percent` of the budget.
fn take(rig: &mut Rig, id: ConnectionId, percent: u64) {
    while rig.shard.status().memory_bytes > SMALL_BYTES * percent / 100 {
        rig.method(id, 1, &basic::Get { queue: short("q"), no_ack: true, ..basic::Get::default() });
        rig.sent(id);
    }
}

fn purge(rig: &mut Rig, id: ConnectionId) {
    rig.method(id, 1, &queue::Purge { queue: short("q"), ..queue::Purge::default() });
    rig.step(Input::Turn { busy: false });
}

/// What of alarms was sent to a connection.
fn words(rig: &mut Rig, id: ConnectionId) -> Vec<String> {
    rig.sent(id).into_iter().filter(|line| line.contains("connection.")).collect()
}

#[test]
fn memory_that_swings_between_four_fifths_and_all_of_it_is_told_once() {
    let mut rig = Rig::small();
    let (publisher, consumer) = (rig.client(), rig.client());
    rig.method(publisher, 1, &declare("q", false));
    rig.fill(publisher, "q");
    rig.pass(1_100);
    assert_eq!(words(&mut rig, publisher), [BLOCKED]);
    for _ in 0..100 {
        take(&mut rig, consumer, 85);
        rig.pass(70);
        // Blocked is who was told; there is room, so a publish is taken all the same.
        assert_eq!(rig.shard.admission(publisher), Admission::Open);
        rig.fill(publisher, "q");
        rig.pass(70);
    }
    assert_eq!(words(&mut rig, publisher), [""; 0]);
    take(&mut rig, consumer, 79);
    rig.pass(1_000);
    assert_eq!(words(&mut rig, publisher), [UNBLOCKED]);
}

#[test]
fn however_memory_swings_a_publisher_is_told_once_a_second_at_most() {
    for period_ms in [150, 900, 1_100, 1_300, 2_500] {
        let mut rig = Rig::small();
        let (publisher, consumer) = (rig.client(), rig.client());
        rig.method(publisher, 1, &declare("q", false));
        rig.sent(publisher);
        let mut told: Vec<(u64, bool)> = Vec::new();
        while rig.now_us < 15_000_000 {
            for full in [true, false] {
                if full {
                    rig.fill(publisher, "q");
                } else {
                    purge(&mut rig, consumer);
                }
                for _ in 0..period_ms.min(50) {
                    rig.pass(period_ms / period_ms.min(50));
                    for word in words(&mut rig, publisher) {
                        told.push((rig.now_us / 1000, word == BLOCKED));
                    }
                }
            }
        }
        assert!(told.iter().enumerate().all(|(at, (_, blocked))| *blocked == (at % 2 == 0)));
        let blocked: Vec<u64> = told.iter().step_by(2).map(|(at_ms, _)| *at_ms).collect();
        // To within the step of a pass.
        assert!(blocked.windows(2).all(|two| two[1] - two[0] >= 1_000), "{period_ms}: {told:?}");
        assert_eq!(!blocked.is_empty(), period_ms > 1_000, "{period_ms}: {told:?}");
    }
}

/// Many connections that have published.
fn crowd(rig: &mut Rig, count: usize) -> Vec<ConnectionId> {
    let ids: Vec<_> = (0..count).map(|_| rig.client()).collect();
    rig.method(ids[0], 1, &declare("q", false));
    for id in &ids {
        rig.publish(*id, "q", b"m", false);
    }
    ids
}

/// When each of them hears `word`, in milliseconds from now, within a second and a half.
fn hear(rig: &mut Rig, ids: &[ConnectionId], word: &str) -> Vec<u64> {
    let mut heard: Vec<Option<u64>> = vec![None; ids.len()];
    for ms in (0..1_500).step_by(10) {
        for (id, heard) in ids.iter().zip(&mut heard) {
            for line in words(rig, *id) {
                assert_eq!((line.as_str(), heard.replace(ms)), (word, None));
            }
        }
        rig.pass(10);
    }
    heard.into_iter().map(|ms| ms.expect("everybody hears it")).collect()
}

#[test]
fn publishers_come_back_one_after_another_within_a_second_and_in_another_order_each_time() {
    let mut rig = Rig::small();
    let ids = crowd(&mut rig, 200);
    let mut orders: Vec<Vec<u64>> = Vec::new();
    for _ in 0..2 {
        rig.fill(ids[0], "q");
        let blocked = hear(&mut rig, &ids, BLOCKED);
        assert!(blocked.iter().all(|ms| *ms == blocked[0]), "they are told at once: {blocked:?}");
        rig.pass(1_000);
        purge(&mut rig, ids[0]);
        let released = hear(&mut rig, &ids, UNBLOCKED);
        assert!(released.iter().all(|ms| *ms <= 1_000), "{released:?}");
        for tenth in 0..10 {
            let within = released.iter().filter(|ms| **ms / 100 == tenth).count();
            assert!((5..=40).contains(&within), "{within} of 200 in a tenth: {released:?}");
        }
        orders.push(released);
    }
    assert_ne!(orders[0], orders[1]);
}

#[test]
fn who_was_not_let_go_yet_when_it_begins_again_stays_blocked_without_a_word() {
    let mut rig = Rig::small();
    let ids = crowd(&mut rig, 50);
    rig.fill(ids[0], "q");
    hear(&mut rig, &ids, BLOCKED);
    rig.pass(1_000);
    purge(&mut rig, ids[0]);
    rig.fill(ids[0], "q");
    // Memory is short again at once, and after a second that is an alarm again: all but the last are back.
    rig.pass(990);
    let back: Vec<_> = ids.iter().filter(|id| words(&mut rig, **id) == [UNBLOCKED]).collect();
    assert!((40..=50).contains(&back.len()), "{}", back.len());
    rig.pass(1_500);
    let again: Vec<_> =
        ids.iter().filter(|id| words(&mut rig, **id).ends_with(&[BLOCKED.into()])).collect();
    assert!(back.iter().all(|id| again.contains(id)));
    purge(&mut rig, ids[0]);
    hear(&mut rig, &ids, UNBLOCKED);
}
