//! Backlogs on disk: who asks for what lies there, and when it is read.

use forebay_broker::{ConnectionId, Input};
use forebay_store::{Lane, Request, perform};
use forebay_wire::{basic, queue};

use crate::rig::{consume, declare, short};
use crate::scene::{Scene, body, deliveries, numbers, range};

fn get(queue: &str) -> basic::Get<'_> {
    basic::Get { queue: short(queue), no_ack: true, ..basic::Get::default() }
}

/// Takes messages from `q` until one lies on disk and its get waits. Returns how many were in memory.
fn get_until_one_waits(scene: &mut Scene, id: ConnectionId) -> u32 {
    for got in 0..6_000 {
        scene.rig.method(id, 1, &get("q"));
        if scene.rig.sent(id).is_empty() {
            return got;
        }
    }
    panic!("all of it is in memory");
}

/// The simulator's seed 1013983: such a get waited for ever.
#[test]
fn a_get_that_waits_for_the_disk_is_answered_by_a_purge() {
    let mut scene = Scene::small(4 << 20);
    let id = scene.client();
    scene.fill(id, 0..6_000);
    let got = get_until_one_waits(&mut scene, id);
    scene.rig.method(id, 1, &queue::Purge { queue: short("q"), ..queue::Purge::default() });
    let left = 6_000 - got;
    assert_eq!(
        scene.rig.sent(id),
        ["1 basic.get-empty".to_owned(), format!("1 queue.purge-ok {left}")]
    );
}

/// The simulator's seed 202: the answer of a queue in memory came before that of one on disk.
#[test]
fn gets_are_answered_in_the_order_of_their_channel() {
    let mut scene = Scene::small(4 << 20);
    let id = scene.client();
    scene.fill(id, 0..6_000);
    scene.rig.method(id, 1, &declare("short", false));
    scene.rig.publish(id, "short", b"000000 short", false);
    scene.answers(id);
    get_until_one_waits(&mut scene, id);
    scene.rig.method(id, 1, &get("short"));
    scene.rig.method(id, 1, &get("q"));
    scene.rig.method(id, 1, &get("short"));
    assert_eq!(scene.rig.sent(id), Vec::<String>::new());
    let answers = scene.answers(id);
    let order: Vec<&str> = answers
        .iter()
        .map(|line| match line {
            line if line.contains("get-empty") => "empty",
            line if line.contains("000000 short") => "short",
            _ => "q",
        })
        .collect();
    assert_eq!(order, ["q", "short", "q", "empty"]);
}

/// The simulator's seed 17954181201709: it asked the queue that was, not the one that has its name by now.
#[test]
fn a_get_behind_another_whose_queue_was_made_anew_meanwhile_is_answered_empty() {
    let mut scene = Scene::small(4 << 20);
    let (id, other) = (scene.client(), scene.rig.client());
    scene.fill(id, 0..6_000);
    scene.rig.method(other, 1, &declare("short", false));
    scene.rig.publish(other, "short", b"000000 before", false);
    scene.answers(other);
    get_until_one_waits(&mut scene, id);
    scene.rig.method(id, 1, &get("short"));
    let delete = queue::Delete { queue: short("short"), ..queue::Delete::default() };
    scene.rig.method(other, 1, &delete);
    scene.rig.method(other, 1, &declare("short", false));
    scene.rig.publish(other, "short", b"000000 after", false);
    assert_eq!(scene.rig.sent(id), Vec::<String>::new());
    let answers = scene.answers(id);
    assert!(answers.len() == 2 && answers[1].contains("get-empty"), "{answers:?}");
    scene.rig.method(id, 1, &get("short"));
    assert!(scene.answers(id)[0].contains("000000 after"));
}

/// Any of them may hold something that expires, and nobody asked for it: they do not come back all at once.
#[test]
fn a_start_with_many_backlogs_does_not_read_them_all() {
    let mut scene = Scene::small(4 << 20);
    let id = scene.client();
    let names: Vec<String> = (0..10).map(|number| format!("q{number}")).collect();
    for name in &names {
        scene.rig.method(id, 1, &declare(name, true));
        scene.answers(id);
        for number in 0..1_500 {
            scene.rig.publish(id, name, body(number).as_bytes(), true);
            if number.is_multiple_of(16) {
                scene.work().unwrap();
            }
        }
        // What is next is on disk as well.
        for _ in 0..64 {
            scene.rig.method(id, 1, &get(name));
            scene.answers(id);
        }
    }
    let mut scene = scene.stop();
    scene.work().unwrap();
    let status = scene.rig.shard.status();
    let cold = status.queues.iter().filter(|queue| queue.cold > 0).count();
    assert!(cold >= 8, "{cold} have a part on disk");
    assert!(scene.blocks_read < 6, "{} blocks read", scene.blocks_read);
    assert!(status.memory_bytes < status.memory_budget_bytes);
}

/// Overloaded, memory is pressed all the time. A block of a thousand messages was cut to 16 each time somebody looked,
/// and read again for the next ones: 105 reads in place of 29, one or two for each run.
#[test]
fn a_long_queue_is_read_once_while_memory_is_pressed() {
    let mut scene = Scene::small(64 << 20);
    let id = scene.client();
    scene.fill(id, 0..6_000);
    let other = scene.rig.client();
    scene.rig.method(other, 1, &declare("held", false));
    scene.rig.method(other, 1, &consume("held", "holder", false));
    for _ in 0..580 {
        scene.rig.publish(other, "held", &[7; 100_000], false);
        scene.answers(other);
    }
    let pressed = scene.rig.shard.status().memory_bytes;
    assert!(pressed > 58 << 20, "{pressed} bytes, by deliveries that nobody acknowledges");
    scene.blocks_read = 0;
    assert_eq!(numbers(&scene.drain()), range(0..6_000));
    assert!((1..=40).contains(&scene.blocks_read), "{} blocks", scene.blocks_read);
}

/// Rounds in which the lane that writes runs does nothing; what it was to do.
fn while_runs_wait(scene: &mut Scene) -> Vec<Request> {
    while_lane_waits(scene, Lane::Background)
}

/// The same for the lane that reads them.
fn while_reads_wait(scene: &mut Scene) -> Vec<Request> {
    while_lane_waits(scene, Lane::Read)
}

fn while_lane_waits(scene: &mut Scene, lane: Lane) -> Vec<Request> {
    let mut waiting = Vec::new();
    for _ in 0..8 {
        let rig = &mut scene.rig;
        rig.now_us += 10_000;
        rig.step(Input::Tick);
        rig.step(Input::Turn { busy: false });
        while let Some(request) = rig.shard.poll_disk(rig.now_us) {
            if request.lane() == lane {
                waiting.push(request);
            } else {
                rig.step(Input::Disk(perform(&*scene.disk, request)));
            }
        }
        rig.step(Input::Turn { busy: false });
        rig.resume();
    }
    waiting
}

/// And then it does.
fn write_runs(scene: &mut Scene, waiting: Vec<Request>) {
    for request in waiting {
        scene.rig.step(Input::Disk(perform(&*scene.disk, request)));
    }
    scene.work().expect("the disk works");
}

/// 1800 messages, of which hundreds are on their way to a run, and what writes it.
fn half_spilled() -> (Scene, Vec<Request>) {
    let mut scene = Scene::small(4 << 20);
    let id = scene.client();
    scene.fill(id, 0..1_600);
    let mut waiting = Vec::new();
    for number in 1_600..1_800 {
        scene.rig.publish(id, "q", body(number).as_bytes(), true);
        if number.is_multiple_of(16) {
            waiting.extend(while_runs_wait(&mut scene));
        }
    }
    waiting.extend(while_runs_wait(&mut scene));
    let spilling = scene.rig.shard.status().queues[0].spilling;
    assert!(spilling > 500 && !waiting.is_empty(), "{spilling} messages");
    (scene, waiting)
}

/// A consumer takes so many, and acknowledges nothing.
fn take(scene: &mut Scene, messages: u32, waiting: &mut Vec<Request>) -> ConnectionId {
    let id = scene.rig.client();
    let prefetch_count = messages as u16;
    scene.rig.method(id, 1, &basic::Qos { prefetch_count, ..basic::Qos::default() });
    scene.rig.method(id, 1, &consume("q", "taker", false));
    let mut taken = Vec::new();
    loop {
        waiting.extend(while_runs_wait(scene));
        let more = numbers(&deliveries(&scene.rig.sent(id)));
        if more.is_empty() {
            break;
        }
        taken.extend(more);
    }
    assert!(taken == range(0..messages), "{} taken", taken.len());
    id
}

/// Overloaded, a queue's consumers got what the disk had written, and never more: it was written for nothing, and
/// publishers had the rate of the disk.
#[test]
fn consumers_do_not_wait_until_their_messages_are_written_to_disk() {
    let (mut scene, mut waiting) = half_spilled();
    let (id, other) = (take(&mut scene, 1_800, &mut waiting), scene.rig.client());
    scene.rig.publish(other, "q", body(1_800).as_bytes(), true);
    let all = basic::Ack { delivery_tag: 0, multiple: true };
    scene.rig.method(id, 1, &all);
    waiting.extend(while_runs_wait(&mut scene));
    assert_eq!(numbers(&deliveries(&scene.rig.sent(id))), [1_800], "it came behind them");
    scene.rig.method(id, 1, &all);
    write_runs(&mut scene, waiting);
    let status = scene.rig.shard.status();
    assert_eq!((status.memory_bytes, status.queues[0].unacked), (0, 0));
    assert_eq!(scene.blocks_read, 0);
    assert_eq!(scene.kill().drain(), []);
}

#[test]
fn what_was_taken_before_it_was_written_comes_back_to_its_place() {
    for before in [false, true] {
        let (mut scene, mut waiting) = half_spilled();
        let id = take(&mut scene, 1_800, &mut waiting);
        let some = basic::Ack { delivery_tag: 1_000, multiple: true };
        scene.rig.method(id, 1, &some);
        if before {
            write_runs(&mut scene, std::mem::take(&mut waiting));
        }
        scene.rig.disconnect(id);
        write_runs(&mut scene, waiting);
        let again = scene.drain();
        assert!(numbers(&again) == range(1_000..1_800), "{} again", again.len());
        assert!(again.iter().all(|(_, redelivered)| *redelivered));
        assert_eq!(scene.kill().drain(), []);
    }
}

#[test]
fn after_a_kill_what_was_taken_and_written_is_there_once() {
    let (mut scene, mut waiting) = half_spilled();
    let id = take(&mut scene, 1_800, &mut waiting);
    let every_other = (1..=1_800).step_by(2);
    for delivery_tag in every_other {
        scene.rig.method(id, 1, &basic::Ack { delivery_tag, multiple: false });
    }
    write_runs(&mut scene, waiting);
    let left: Vec<u32> = (1..1_800).step_by(2).collect();
    assert!(numbers(&scene.kill().drain()) == left);
}

#[test]
fn a_purge_while_runs_are_written_takes_everything() {
    let (mut scene, waiting) = half_spilled();
    let id = scene.rig.client();
    scene.rig.method(id, 1, &queue::Purge { queue: short("q"), ..queue::Purge::default() });
    assert_eq!(scene.rig.sent(id), ["1 queue.purge-ok 1800"]);
    scene.fill(id, 20_000..20_300);
    write_runs(&mut scene, waiting);
    let mut scene = scene.kill();
    assert_eq!(numbers(&scene.drain()), range(20_000..20_300));
    assert_eq!(scene.kill().drain(), []);
}

#[test]
fn a_queue_deleted_while_runs_are_written_stays_deleted() {
    let (mut scene, mut waiting) = half_spilled();
    let id = scene.rig.client();
    let delete = queue::Delete { queue: short("q"), ..queue::Delete::default() };
    scene.rig.method(id, 1, &delete);
    waiting.extend(while_runs_wait(&mut scene));
    assert_eq!(scene.rig.sent(id), ["1 queue.delete-ok 1800"]);
    // The same name is another queue.
    scene.rig.method(id, 1, &declare("q", true));
    assert_eq!(scene.answers(id), ["1 queue.declare-ok q 0 0"]);
    scene.fill(id, 9_000..9_050);
    write_runs(&mut scene, waiting);
    let mut scene = scene.kill();
    assert_eq!(numbers(&scene.drain()), range(9_000..9_050));
    let store = scene.rig.shard.status().store;
    assert_eq!(store.runs, 0, "{store:?}");
}

#[test]
fn a_purge_leaves_consumers_what_they_took_before_it_was_written() {
    let (mut scene, mut waiting) = half_spilled();
    let id = take(&mut scene, 1_000, &mut waiting);
    scene.rig.method(id, 1, &queue::Purge { queue: short("q"), ..queue::Purge::default() });
    assert_eq!(scene.rig.sent(id), ["1 queue.purge-ok 800"]);
    write_runs(&mut scene, waiting);
    scene.rig.disconnect(id);
    scene.work().expect("the disk works");
    assert!(numbers(&scene.kill().drain()) == range(0..1_000));
}

#[test]
fn a_queue_may_go_while_consumers_hold_what_they_took_before_it_was_written() {
    let (mut scene, mut waiting) = half_spilled();
    let id = take(&mut scene, 1_800, &mut waiting);
    let other = scene.rig.client();
    let delete = queue::Delete { queue: short("q"), ..queue::Delete::default() };
    scene.rig.method(other, 1, &delete);
    write_runs(&mut scene, waiting);
    scene.rig.method(id, 1, &basic::Ack { delivery_tag: 0, multiple: true });
    scene.work().expect("the disk works");
    assert_eq!(scene.rig.shard.status().memory_bytes, 0);
    // The log goes round many times: nothing of it is held, or let go twice.
    let id = scene.client();
    for _ in 0..5 {
        scene.fill(id, 0..1_000);
        assert!(numbers(&scene.drain()) == range(0..1_000));
    }
    assert_eq!(scene.kill().drain(), []);
}

/// The answer of a slow disk to a question of before was taken for one about what had come back to the run meanwhile: that there was
/// no more of it.
#[test]
fn what_comes_back_after_a_purge_is_not_lost_to_a_read_of_before() {
    let mut scene = Scene::small(16 << 20);
    let id = scene.client();
    scene.fill(id, 0..12_000);
    let taker = scene.rig.client();
    scene.rig.method(taker, 1, &basic::Qos { prefetch_count: 4_000, ..basic::Qos::default() });
    scene.rig.method(taker, 1, &consume("q", "taker", false));
    while !scene.answers(taker).is_empty() {}
    // It has the end of what is in memory, which is the first block of a run, and the next one is being read.
    let (mut reading, mut taken) = (Vec::new(), 4_000);
    for delivery_tag in [1_500, 4_100] {
        scene.rig.method(taker, 1, &basic::Ack { delivery_tag, multiple: true });
        reading.extend(while_reads_wait(&mut scene));
        taken += deliveries(&scene.rig.sent(taker)).len() as u32;
    }
    assert_eq!(reading.len(), 1);
    scene.rig.method(id, 1, &queue::Purge { queue: short("q"), ..queue::Purge::default() });
    scene.rig.disconnect(taker);
    // Memory is pressed, so what came back leaves it.
    let other = scene.rig.client();
    scene.rig.method(other, 1, &declare("held", false));
    scene.rig.method(other, 1, &consume("held", "holder", false));
    for _ in 0..110 {
        scene.rig.publish(other, "held", &[7; 100_000], false);
        reading.extend(while_reads_wait(&mut scene));
        scene.rig.sent(other);
    }
    for request in reading {
        scene.rig.step(Input::Disk(perform(&*scene.disk, request)));
    }
    assert!(numbers(&scene.drain()) == range(4_100..taken));
}

/// Publishes 100 kB to a queue that nobody empties until publishers have to wait. Returns what messages take then.
fn publish_until_held(scene: &mut Scene) -> u64 {
    let id = scene.rig.client();
    publish_until_held_by(id, scene)
}

fn publish_until_held_by(id: ConnectionId, scene: &mut Scene) -> u64 {
    scene.rig.method(id, 1, &declare("held", false));
    scene.rig.method(id, 1, &consume("held", "holder", false));
    for _ in 0..1_000 {
        if !scene.rig.shard.takes_publishes() {
            return scene.rig.shard.status().memory_bytes;
        }
        scene.rig.publish(id, "held", &[7; 100_000], false);
        scene.answers(id);
    }
    panic!("nobody waits");
}

#[test]
fn what_is_in_memory_for_the_disk_counts() {
    let (mut scene, _waiting) = half_spilled();
    let held = publish_until_held(&mut scene);
    assert!((3_670_016..3_790_000).contains(&held), "{held} bytes: an eighth of them for the disk");
    let mut scene = Scene::small(4 << 20);
    let held = publish_until_held(&mut scene);
    assert!(held >= (4 << 20) - 50_000, "{held} bytes");
}

/// Or what publishers bring would be in the way of what consumers take.
#[test]
fn publishers_leave_room_for_what_is_read_ahead_for_consumers() {
    let mut scene = Scene::small(64 << 20);
    let id = scene.client();
    scene.fill(id, 0..40_000);
    scene.rig.method(id, 1, &basic::Qos { prefetch_count: 1, ..basic::Qos::default() });
    scene.rig.method(id, 1, &consume("q", "slow", false));
    scene.work().expect("the disk works");
    assert!(scene.rig.shard.status().queues[0].cold > 1_000);
    let held = publish_until_held(&mut scene);
    assert!((61 << 20..=(62 << 20) + 200_000).contains(&held), "{held} bytes");
}

/// It would be written for nothing, and its commits wait for the same disk.
#[test]
fn what_consumers_take_within_a_second_is_not_written_to_runs() {
    let (mut scene, mut waiting) = half_spilled();
    let (taker, id) = (take(&mut scene, 1_800, &mut waiting), scene.rig.client());
    write_runs(&mut scene, waiting);
    scene.rig.disconnect(taker);
    let before = scene.rig.shard.status().counters.runs_written;
    scene.fill(id, 1_800..1_816);
    let status = scene.rig.shard.status();
    assert_eq!(status.counters.runs_written, before);
    assert!(status.memory_bytes > 2 << 20);
    scene.rig.now_us += 1_000_000;
    scene.fill(id, 1_816..2_600);
    assert!(scene.rig.shard.status().counters.runs_written > before);
    assert!(numbers(&scene.drain()) == range(0..2_600));
}

/// Such a head counted as the longest backlog, and nobody else's was spilled while it did.
#[test]
fn what_lies_in_a_run_already_does_not_keep_others_from_being_spilled() {
    let mut scene = Scene::small(8 << 20);
    let id = scene.client();
    scene.fill(id, 0..3_240);
    for number in 3_240..3_265 {
        scene.rig.publish(id, "q", body(number).as_bytes(), true);
    }
    // Half of the memory is full, and all but a megabyte goes to one run.
    let mut waiting = while_runs_wait(&mut scene);
    assert!(scene.rig.shard.status().queues[0].spilling > 2_000);
    let id = take(&mut scene, 3_265, &mut waiting);
    write_runs(&mut scene, waiting);
    scene.rig.disconnect(id);
    let other = scene.rig.client();
    scene.rig.method(other, 1, &declare("other", true));
    for number in 0..1_200 {
        scene.rig.publish(other, "other", body(number).as_bytes(), true);
        scene.answers(other);
    }
    let status = scene.rig.shard.status();
    assert!((4 << 20..6 << 20).contains(&status.memory_bytes), "{}", status.memory_bytes);
    let spilled = status.queues.iter().find(|queue| queue.name == "other").map_or(0, |q| q.cold);
    assert!(spilled > 0, "{status:?}");
}

/// Buffers, tables, and what the allocator keeps: the system counts them, and a budget for messages alone is one that is
/// exceeded by them.
#[test]
fn what_the_process_takes_beside_messages_is_left_free() {
    let held = |resident| {
        let mut scene = Scene::small(12 << 20);
        let now_us = scene.rig.now_us;
        scene.rig.shard.set_resident(now_us, resident);
        publish_until_held(&mut scene) >> 20
    };
    // A twelfth is to spare for what comes between two looks.
    assert_eq!(held(0), 11);
    assert_eq!(held(3 << 20), 8);
    // However much that is: who publishes would wait for memory that no message holds.
    assert_eq!(held(1 << 30), 6);
}

/// It is there for the next messages. Held back for its sake, publishers would stop and go.
#[test]
fn what_messages_gave_back_to_the_allocator_is_no_loss_before_a_second() {
    let held = |later_us| {
        let mut scene = Scene::small(12 << 20);
        let holder = scene.rig.client();
        let filled = publish_until_held_by(holder, &mut scene);
        let now_us = scene.rig.now_us;
        scene.rig.shard.set_resident(now_us, filled);
        scene.rig.disconnect(holder);
        let id = scene.rig.client();
        scene.rig.method(
            id,
            1,
            &queue::Delete { queue: short("held"), ..queue::Delete::default() },
        );
        assert!(scene.rig.shard.status().memory_bytes < 1 << 20);
        scene.rig.now_us += later_us;
        scene.rig.shard.set_resident(now_us + later_us, filled);
        publish_until_held(&mut scene) >> 20
    };
    assert_eq!(held(500_000), 11);
    assert_eq!(held(3_000_000), 6);
}

/// Hard pressed, what is next goes to the disk too, and a consumer is quicker than its run. It was taken for one that is
/// quicker than the disk, and held its publishers to its own pace: 99 k/s in place of 650.
#[test]
fn a_consumer_that_reaches_one_run_does_not_keep_the_rest_in_memory() {
    let mut scene = Scene::small(8 << 20);
    let id = scene.client();
    scene.fill(id, 0..300);
    let holder = scene.rig.client();
    scene.rig.method(holder, 1, &declare("held", false));
    scene.rig.method(holder, 1, &consume("held", "holder", false));
    while scene.rig.shard.status().memory_bytes < (8 << 20) / 100 * 78 {
        scene.rig.publish(holder, "held", &[7; 100_000], false);
        scene.rig.step(Input::Turn { busy: false });
        scene.rig.sent(holder);
    }
    let mut waiting = while_runs_wait(&mut scene);
    let publish = |scene: &mut Scene, numbers: std::ops::Range<u32>| {
        for number in numbers {
            scene.rig.publish(id, "q", body(number).as_bytes(), true);
        }
    };
    publish(&mut scene, 300..520);
    waiting.extend(while_runs_wait(&mut scene));
    assert!(scene.rig.shard.status().queues.iter().any(|q| q.name == "q" && q.spilling > 400));
    take(&mut scene, 100, &mut waiting);
    write_runs(&mut scene, waiting);
    let runs_written = scene.rig.shard.status().counters.runs_written;
    assert_eq!(runs_written, 2);
    publish(&mut scene, 520..740);
    scene.work().expect("the disk works");
    assert_eq!(scene.rig.shard.status().counters.runs_written, 3);
}
