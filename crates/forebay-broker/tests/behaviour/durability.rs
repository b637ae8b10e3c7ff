//! What a broker keeps when its disk stalls, breaks, or loses power, and when memory is short.

use forebay_broker::{Admission, Input};
use forebay_store::fault_disk::Call;
use forebay_store::{Disk, Options, StoreFailed, open, perform};
use forebay_wire::{Properties, basic, exchange, queue, tx};

use crate::expiring::bind_to_fanout;
use crate::rig::{Rig, consume, declare, publish_bytes, short};
use crate::scene::{Scene, body, deliveries, numbers, one_round, range};

#[test]
fn a_confirm_waits_for_the_sync_and_a_delivery_does_not() {
    let mut scene = Scene::new();
    let id = scene.client();
    let consumer = scene.rig.client();
    scene.rig.method(consumer, 1, &consume("q", "c", false));
    scene.answers(consumer);
    scene.rig.disk_stalled = true;
    scene.rig.publish(id, "q", body(1).as_bytes(), true);
    scene.wait_for_the_disk();
    assert_eq!(scene.rig.sent(id), [""; 0]);
    assert_eq!(deliveries(&scene.answers(consumer)), [(1, false)]);
    // Neither an ack nor a new publish makes it come earlier.
    scene.rig.method(consumer, 1, &basic::Ack { delivery_tag: 1, multiple: false });
    scene.rig.publish(id, "q", body(2).as_bytes(), true);
    scene.wait_for_the_disk();
    assert_eq!(scene.rig.sent(id), [""; 0]);
    scene.rig.disk_stalled = false;
    assert_eq!(scene.answers(id), ["1 basic.ack 2 multiple"]);
}

#[test]
fn a_transient_message_is_confirmed_without_the_disk() {
    let mut scene = Scene::new();
    let id = scene.client();
    scene.rig.disk_stalled = true;
    scene.rig.publish(id, "q", body(1).as_bytes(), false);
    scene.rig.method(id, 1, &declare("fleeting", false));
    scene.rig.publish(id, "fleeting", body(2).as_bytes(), true);
    let answers = scene.answers(id);
    let acks = answers.iter().filter(|line| line.contains("basic.ack")).count();
    assert!(acks > 0 && answers.iter().any(|line| line.contains("declare-ok")), "{answers:?}");
}

#[test]
fn the_ok_of_a_durable_declaration_waits_for_the_disk() {
    let mut scene = Scene::new();
    let id = scene.rig.client();
    scene.rig.disk_stalled = true;
    scene.rig.method(id, 1, &declare("q", true));
    scene.wait_for_the_disk();
    assert_eq!(scene.rig.sent(id), [""; 0]);
    scene.rig.disk_stalled = false;
    assert_eq!(scene.answers(id), ["1 queue.declare-ok q 0 0"]);
    scene.rig.disk_stalled = true;
    scene.rig.method(
        id,
        1,
        &queue::Bind { queue: short("q"), exchange: short("amq.fanout"), ..queue::Bind::default() },
    );
    scene.rig.method(id, 1, &queue::Delete { queue: short("q"), ..queue::Delete::default() });
    scene.wait_for_the_disk();
    assert_eq!(scene.rig.sent(id), [""; 0]);
    scene.rig.disk_stalled = false;
    assert_eq!(scene.answers(id), ["1 queue.bind-ok", "1 queue.delete-ok 0"]);
}

#[test]
fn a_delivery_mode_that_means_nothing_is_taken_as_transient() {
    let mut scene = Scene::new();
    let id = scene.client();
    for (number, delivery_mode) in
        [None, Some(0), Some(1), Some(2), Some(3), Some(255)].iter().enumerate()
    {
        let properties = Properties { delivery_mode: *delivery_mode, ..Properties::default() };
        scene.rig.publish_with(id, "", "q", false, &properties, body(number as u32).as_bytes());
    }
    let answers = scene.answers(id);
    assert!(answers.iter().all(|line| line.contains("basic.ack")), "{answers:?}");
    let get = basic::Get { queue: short("q"), ..basic::Get::default() };
    let mut got = Vec::new();
    for _ in 0..6 {
        scene.rig.method(id, 1, &get);
        got.extend(deliveries(&scene.answers(id)));
    }
    assert_eq!(numbers(&got), range(0..6));
    assert_eq!(numbers(&scene.kill().drain()), [3]);
}

#[test]
fn a_failed_write_or_sync_is_the_end_and_nothing_is_confirmed_by_it() {
    for call in [Call::Write, Call::Sync] {
        let mut scene = Scene::new();
        let id = scene.client();
        scene.fill(id, 0..50);
        scene.rig.publish(id, "q", body(50).as_bytes(), true);
        scene.disk.fail(call, 0, std::io::ErrorKind::Other);
        let failed = scene.work().expect_err("the store fails");
        assert!(failed.to_string().contains("the store failed"), "{failed}");
        assert!(!failed.to_string().contains('\n'), "{failed}");
        // Nor is anything taken from then on, as if it needed no disk.
        let publish = publish_bytes(
            "",
            "q",
            false,
            &Properties { delivery_mode: Some(2), ..Properties::default() },
            b"too late",
        );
        let now_us = scene.rig.now_us;
        for input in
            [Input::Received { connection: id, bytes: &publish }, Input::Turn { busy: false }]
        {
            assert_eq!(scene.rig.shard.step(now_us, input), Err(failed.clone()));
        }
        let out = scene.rig.shard.outgoing(id).to_vec();
        assert!(out.is_empty(), "{out:?} was said after the disk had failed");
        let mut scene = scene.lose_power(7);
        let found = numbers(&scene.drain());
        assert_eq!(found[..50], range(0..50));
        assert!(found.len() <= 51, "{found:?}");
    }
}

#[test]
fn a_full_disk_keeps_publishers_out_until_there_is_room() {
    let mut scene = Scene::small(64 << 20);
    let (id, other) = (scene.client(), scene.rig.client());
    // Room for the segment there is, not for those that are to be pre-written.
    scene.disk.set_capacity(Some(scene.disk.used_bytes() + (150 << 10)));
    let mut told = Vec::new();
    for number in 0..1_000 {
        scene.rig.publish(id, "q", body(number).as_bytes(), true);
        told = scene.answers(id);
        if scene.rig.shard.admission(id) != Admission::Open {
            break;
        }
    }
    assert!(told.contains(&"0 connection.blocked low on disk".to_owned()), "{told:?}");
    assert_eq!(scene.rig.shard.admission(other), Admission::Open);
    scene.disk.set_capacity(None);
    // A full disk is tried again every 30 s.
    scene.rig.now_us += 31_000_000;
    assert_eq!(scene.answers(id), [""; 0]);
    scene.rig.pass(1_000);
    assert_eq!(scene.rig.sent(id), ["0 connection.unblocked"]);
    assert_eq!(scene.rig.shard.admission(id), Admission::Open);
}

/// What it holds is written by its commit, which waits like a publish.
#[test]
fn on_a_full_disk_a_commit_waits() {
    let mut scene = Scene::small(64 << 20);
    let (id, other) = (scene.client(), scene.rig.client());
    scene.rig.method(other, 1, &tx::Select::default());
    scene.rig.publish(other, "q", b"held", true);
    scene.answers(other);
    scene.disk.set_capacity(Some(scene.disk.used_bytes() + (150 << 10)));
    while scene.rig.shard.admission(id) == Admission::Open {
        scene.rig.publish(id, "q", body(0).as_bytes(), true);
        scene.answers(id);
    }
    scene.rig.method(other, 1, &tx::Commit::default());
    let told = scene.answers(other);
    assert!(!told.iter().any(|line| line.contains("commit-ok")), "{told:?}");
    scene.disk.set_capacity(None);
    scene.rig.now_us += 31_000_000;
    scene.work().unwrap();
    scene.rig.pass(1_000);
    assert!(scene.answers(other).contains(&"1 tx.commit-ok".to_owned()));
}

/// Consumes until the disk fails; what was delivered by then.
fn consume_until_failure(scene: &mut Scene) -> (Vec<u32>, StoreFailed) {
    let id = scene.rig.client();
    scene.rig.method(id, 1, &consume("q", "c", true));
    let mut found = Vec::new();
    for _ in 0..10_000 {
        let failed = one_round(scene).err();
        found.extend(numbers(&deliveries(&scene.rig.sent(id))));
        if let Some(failed) = failed {
            return (found, failed);
        }
    }
    panic!("the disk never failed, {} were delivered", found.len());
}

#[test]
fn a_read_error_ends_the_broker_before_it_delivers_anything_else() {
    let mut scene = Scene::small(4 << 20);
    let id = scene.client();
    scene.fill(id, 0..8_000);
    assert!(scene.rig.shard.status().queues[0].cold > 1_000);
    scene.disk.fail(Call::Read, 2, std::io::ErrorKind::Other);
    let (found, failed) = consume_until_failure(&mut scene);
    assert!(failed.to_string().contains("read"), "{failed}");
    assert_eq!(found, range(0..found.len() as u32));
    // The same while it starts: a sentence, and nothing is changed.
    let Scene { disk, config, options, rig, .. } = scene;
    drop(rig);
    disk.kill();
    for skip in [0, 5] {
        disk.fail(Call::Read, skip, std::io::ErrorKind::Other);
        let error = forebay_store::open(disk.clone(), options.clone()).expect_err("reads fail");
        assert!(error.to_string().starts_with("cannot read"), "{error}");
        disk.kill();
    }
    let rig = Rig::on_disk(config.clone(), disk.clone(), options.clone());
    let mut scene = Scene { disk, config, options, rig, blocks_read: 0 };
    let left = numbers(&scene.drain());
    let first = left.first().copied().expect("most of it is there");
    assert!(first as usize <= found.len(), "{first} after {} were delivered", found.len());
    assert_eq!(left, range(first..8_000));
}

#[test]
fn a_rotten_run_is_found_and_never_delivered() {
    let mut scene = Scene::small(4 << 20);
    let id = scene.client();
    scene.fill(id, 0..8_000);
    let run = "run-0000000001.run";
    let bytes = scene.disk.bytes(run).expect("the first run");
    let needle = body(3_000).into_bytes();
    let at = bytes.windows(8).position(|window| window == &needle[..8]).unwrap_or(bytes.len() / 2);
    scene.disk.flip_bit(run, (at + 500) * 8);
    let (found, failed) = consume_until_failure(&mut scene);
    assert!(failed.to_string().contains(run), "{failed}");
    assert_eq!(found, range(0..found.len() as u32));
}

#[test]
fn after_a_kill_the_durable_is_there_and_the_transient_is_not() {
    let mut scene = Scene::new();
    let id = scene.client();
    scene.rig.method(id, 1, &declare("fleeting", false));
    scene.rig.method(
        id,
        1,
        &exchange::Declare {
            exchange: short("x"),
            type_name: short("topic"),
            durable: true,
            ..exchange::Declare::default()
        },
    );
    scene.rig.method(
        id,
        1,
        &queue::Bind {
            queue: short("q"),
            exchange: short("x"),
            routing_key: short("a.*"),
            ..queue::Bind::default()
        },
    );
    scene.rig.publish_with(
        id,
        "x",
        "a.b",
        false,
        &forebay_wire::Properties { delivery_mode: Some(2), ..Default::default() },
        body(1).as_bytes(),
    );
    scene.rig.publish(id, "q", body(2).as_bytes(), false);
    scene.rig.publish(id, "q", body(3).as_bytes(), true);
    scene.answers(id);
    let mut scene = scene.kill();
    assert_eq!(scene.drain(), [(1, true), (3, true)]);
    let id = scene.rig.client();
    scene.rig.publish_with(id, "x", "a.c", false, &Default::default(), body(4).as_bytes());
    scene.rig.method(id, 1, &queue::Declare { passive: true, ..declare("fleeting", false) });
    let answer = scene.answers(id);
    assert!(answer[0].starts_with("1 channel.close 404"), "{answer:?}");
    assert_eq!(scene.drain(), [(4, false)]);
}

#[test]
fn after_a_clean_stop_only_what_was_delivered_is_flagged() {
    let mut scene = Scene::new();
    let id = scene.client();
    scene.fill(id, 0..10);
    for _ in 0..3 {
        scene.rig.method(id, 1, &basic::Get { queue: short("q"), ..basic::Get::default() });
    }
    scene.rig.method(id, 1, &basic::Ack { delivery_tag: 1, multiple: false });
    scene.answers(id);
    let mut scene = scene.stop();
    let found = scene.drain();
    assert_eq!(numbers(&found), range(1..10));
    let flags: Vec<bool> = found.iter().map(|(_, redelivered)| *redelivered).collect();
    assert_eq!(flags, [[true; 2].as_slice(), &[false; 7]].concat());
}

#[test]
fn the_power_may_go_at_any_moment() {
    for seed in 0..200u64 {
        let mut scene = Scene::small(1 << 20);
        let id = scene.client();
        let getter = scene.rig.client();
        // The disk stops somewhere on the way, in the middle of a call.
        scene.disk.stop_after(3 + seed * 2);
        let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut confirmed = 0;
        let (mut published, mut acked) = (0, 0);
        let mut failed = None;
        while failed.is_none() && published < 2_000 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            for _ in 0..(random >> 60) + 1 {
                scene.rig.publish(id, "q", body(published).as_bytes(), true);
                published += 1;
            }
            if random >> 33 & 7 == 0 {
                scene.rig.method(
                    getter,
                    1,
                    &basic::Get { queue: short("q"), no_ack: true, ..basic::Get::default() },
                );
                acked += 1;
            }
            failed = one_round(&mut scene).err();
            confirmed = confirmed.max(confirmed_upto(&scene.rig.sent(id), confirmed));
        }
        assert!(failed.is_some() || published == 2_000);
        let mut scene = scene.lose_power(seed);
        let found = numbers(&scene.drain());
        let first = found.first().copied().unwrap_or(published);
        assert!(first <= acked, "seed {seed}: {first} messages are gone, {acked} were taken");
        let last = first + found.len() as u32;
        assert_eq!(found, range(first..last), "seed {seed}");
        assert!(last >= confirmed, "seed {seed}: {confirmed} were confirmed, {last} are there");
        assert!(last <= published, "seed {seed}");
    }
}

/// How many publishes are confirmed after these lines: all come in order on this channel.
fn confirmed_upto(lines: &[String], before: u32) -> u32 {
    lines
        .iter()
        .filter_map(|line| line.strip_prefix("1 basic.ack "))
        .filter_map(|rest| rest.split(' ').next()?.parse().ok())
        .fold(before, u32::max)
}

/// A message in many queues is in memory once, and its places there count: before a restart and after it.
#[test]
fn a_message_for_many_queues_takes_the_memory_of_one_and_its_places() {
    const QUEUES: u64 = 50;
    const MESSAGES: u64 = 20;
    const BODY_BYTES: u64 = 10_000;
    let mut scene = Scene::new();
    let id = scene.client();
    for number in 0..QUEUES {
        let name = format!("q{number}");
        scene.rig.method(id, 1, &declare(&name, true));
        let bind = queue::Bind {
            exchange: short("amq.fanout"),
            queue: short(&name),
            ..Default::default()
        };
        scene.rig.method(id, 1, &bind);
    }
    scene.answers(id);
    let persistent = Properties { delivery_mode: Some(2), ..Properties::default() };
    for _ in 0..MESSAGES {
        let body = [7; BODY_BYTES as usize];
        scene.rig.publish_with(id, "amq.fanout", "", true, &persistent, &body);
    }
    scene.answers(id);
    let before = scene.rig.shard.status().memory_bytes;
    let one = MESSAGES * BODY_BYTES;
    assert!(before > one + MESSAGES * (QUEUES - 1) * 32, "{before} bytes");
    assert!(before < 2 * one, "{before} bytes");
    let mut scene = scene.kill();
    let status = scene.rig.shard.status();
    assert_eq!(status.ready, QUEUES * MESSAGES);
    assert!(status.memory_bytes <= before, "{} bytes, before {before}", status.memory_bytes);
    // In whatever order they go, nothing is left of them and nothing is counted twice.
    let id = scene.rig.client();
    for number in (0..QUEUES).rev() {
        let name = format!("q{number}");
        if number % 2 == 0 {
            scene.rig.method(id, 1, &queue::Purge { queue: short(&name), ..Default::default() });
        } else {
            scene.rig.method(id, 1, &queue::Delete { queue: short(&name), ..Default::default() });
        }
        scene.answers(id);
    }
    assert_eq!(scene.rig.shard.status().memory_bytes, 0);
}

#[test]
fn a_long_backlog_goes_to_disk_and_comes_back_in_order() {
    let mut scene = Scene::small(4 << 20);
    let id = scene.client();
    for part in 0..20 {
        scene.fill(id, part * 500..(part + 1) * 500);
        let memory_bytes = scene.rig.shard.status().memory_bytes;
        assert!(memory_bytes <= 4 << 20, "{memory_bytes} bytes after {part} parts");
    }
    let status = scene.rig.shard.status();
    assert!(status.counters.runs_written > 0 && status.queues[0].cold > 1_000, "{status:?}");
    assert_eq!(status.ready, 10_000);
    let found = scene.drain();
    assert_eq!(numbers(&found), range(0..10_000));
    assert!(found.iter().all(|(_, redelivered)| !redelivered));
    assert_eq!(scene.rig.shard.status().memory_bytes, 0);
    // The disk is given back as well.
    let (used_bytes, store) = (scene.disk.used_bytes(), scene.rig.shard.status().store);
    assert_eq!(store.runs, 0, "{store:?}");
    assert!(used_bytes < 4 << 20, "{used_bytes} bytes for nothing: {store:?}");
}

#[test]
fn a_backlog_in_runs_survives_kill_after_kill() {
    let mut scene = Scene::small(4 << 20);
    let id = scene.client();
    scene.fill(id, 0..8_000);
    let mut first = 0;
    for round in 0..8u64 {
        scene = if round % 2 == 0 { scene.kill() } else { scene.lose_power(round) };
        assert_eq!(scene.rig.shard.status().ready, u64::from(8_000 - first), "round {round}");
        // Some are read from runs, and some of those acked; new ones press the others out of memory.
        let id = scene.client();
        scene.rig.method(id, 1, &basic::Qos { prefetch_count: 200, ..basic::Qos::default() });
        scene.rig.method(id, 1, &consume("q", "c", false));
        let got = deliveries(&scene.answers(id));
        assert_eq!(numbers(&got), range(first..first + 200), "round {round}");
        assert!(got.iter().all(|(_, redelivered)| *redelivered));
        scene.rig.method(id, 1, &basic::Ack { delivery_tag: 100, multiple: true });
        first += 100;
        scene.work().expect("the disk works");
        scene.rig.disconnect(id);
        scene.work().expect("the disk works");
    }
    let mut scene = scene.kill();
    assert_eq!(numbers(&scene.drain()), range(first..8_000));
    let mut scene = scene.kill();
    assert_eq!(scene.drain(), []);
}

#[test]
fn a_message_may_move_from_run_to_run() {
    let mut scene = Scene::small(4 << 20);
    let id = scene.client();
    scene.fill(id, 0..6_000);
    for round in 0..4u32 {
        // Read back to the head, because the queue in front of it is consumed …
        let other = scene.rig.client();
        scene.rig.method(other, 1, &basic::Qos { prefetch_count: 100, ..basic::Qos::default() });
        scene.rig.method(other, 1, &consume("q", "c", false));
        assert_eq!(deliveries(&scene.answers(other)).len(), 100);
        scene.rig.method(other, 1, &basic::Ack { delivery_tag: 100, multiple: true });
        scene.work().expect("the disk works");
        scene.rig.disconnect(other);
        scene.work().expect("the disk works");
        // … and out again, because memory is short.
        scene.fill(id, 6_000 + round * 1_000..7_000 + round * 1_000);
    }
    let mut scene = scene.kill();
    assert_eq!(numbers(&scene.drain()), range(400..10_000));
    assert_eq!(scene.kill().drain(), []);
}

/// The simulator's seed 628: what was read from a run and not acknowledged went with the rest of it.
#[test]
fn a_purge_leaves_alone_what_consumers_hold_also_when_it_came_from_disk() {
    // Some of these end in the middle of a run.
    for prefetch in (2_000..3_500).step_by(300) {
        purge_while_held(prefetch);
    }
}

fn purge_while_held(prefetch: u16) {
    let mut scene = Scene::small(4 << 20);
    let id = scene.client();
    scene.fill(id, 0..6_000);
    let other = scene.rig.client();
    scene.rig.method(other, 1, &basic::Qos { prefetch_count: prefetch, ..basic::Qos::default() });
    scene.rig.method(other, 1, &consume("q", "c", false));
    let mut held = 0;
    loop {
        match deliveries(&scene.answers(other)).len() as u32 {
            0 => break,
            more => held += more,
        }
    }
    scene.rig.method(id, 1, &queue::Purge { queue: short("q"), ..queue::Purge::default() });
    assert_eq!(scene.answers(id), [format!("1 queue.purge-ok {}", 6_000 - held)]);
    let mut scene = scene.kill();
    assert_eq!(numbers(&scene.drain()), range(0..held));
    assert_eq!(scene.kill().drain(), []);
}

/// The declaration of a queue is among what a salvage does not find, and that of its binding is not.
#[test]
fn a_binding_whose_queue_is_lost_is_not_one_of_the_next_queue_with_its_name() {
    let mut scene = Scene::new();
    let id = scene.client();
    bind_to_fanout(&mut scene.rig, id, &["q"]);
    scene.answers(id);
    scene.disk.kill();
    let (mut store, recovered) = open(scene.disk.clone(), Options::default()).expect("it opens");
    let declaration = recovered.meta.keys().find(|key| key[0] == b'q').expect("it was declared");
    store.delete_meta(declaration);
    while let Some(request) = store.poll(0) {
        store.complete(0, perform(&*scene.disk, request)).expect("the disk works");
    }
    drop(store);
    let mut scene = scene.kill();
    scene.client();
    let mut scene = scene.kill();
    let id = scene.client();
    scene.rig.publish_with(id, "amq.fanout", "", false, &Properties::default(), b"for others");
    scene.answers(id);
    assert_eq!(scene.rig.shard.status().ready, 0);
}

/// The salvage is accepted with the first batch of its start, and what the broker makes of it comes after that.
#[test]
fn what_a_salvage_finds_without_its_declaration_outlives_a_power_loss_at_once() {
    let mut scene = Scene::new();
    let id = scene.rig.client();
    let name = "declared-where-it-is-damaged";
    scene.rig.method(id, 1, &declare(name, true));
    scene.answers(id);
    scene.rig.publish(id, name, b"found", true);
    scene.answers(id);
    let file = "log-0000000001.seg";
    let mut log = vec![0; scene.disk.len(file).expect("it is there") as usize];
    scene.disk.read_at(file, 0, &mut log).expect("the disk works");
    let at = log.windows(name.len()).position(|bytes| bytes == name.as_bytes());
    scene.disk.flip_bit(file, 8 * at.expect("it was declared"));
    scene.disk.kill();
    scene.options.salvage = true;
    let mut scene = scene.open_again();
    assert_eq!(scene.rig.shard.status().ready, 1);
    scene.options.salvage = false;
    let mut scene = scene.lose_power(1);
    assert_eq!(scene.rig.shard.status().ready, 1);
    scene.work().expect("the disk works");
    assert_eq!(scene.lose_power(2).rig.shard.status().ready, 1);
}

#[test]
fn old_messages_hold_no_log_back() {
    let mut scene = Scene::small(64 << 20);
    let id = scene.client();
    // Twenty that nobody takes, somebody holding five of them, and a flood behind them.
    scene.rig.method(id, 1, &declare("old", true));
    scene.answers(id);
    for number in 0..20 {
        scene.rig.publish(id, "old", body(number).as_bytes(), true);
    }
    scene.work().expect("the disk works");
    let holder = scene.rig.client();
    for _ in 0..5 {
        scene.rig.method(holder, 1, &basic::Get { queue: short("old"), ..basic::Get::default() });
    }
    scene.answers(holder);
    scene.rig.method(id, 1, &consume("q", "c", true));
    let mut delivered = 0;
    for number in 0..10_000 {
        scene.rig.publish(id, "q", body(number).as_bytes(), true);
        if number % 20 == 0 {
            delivered += deliveries(&scene.answers(id)).len();
            let log_bytes = scene.rig.shard.status().store.log_bytes;
            assert!(log_bytes <= 3 << 20, "{log_bytes} bytes of log for 20 messages");
        }
    }
    delivered += deliveries(&scene.answers(id)).len();
    assert_eq!(delivered, 10_000);
    let written = scene.rig.shard.status().store.log_written_bytes;
    assert!(written > 8 << 20, "{written} bytes: the log never went round");
    let mut scene = scene.kill();
    let id = scene.rig.client();
    scene.rig.method(id, 1, &consume("old", "c", true));
    assert_eq!(numbers(&deliveries(&scene.answers(id))), range(0..20));
}

/// A small generator: the histories below are numbers drawn from it.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % u64::from(bound.max(1))) as u32
    }
}

/// Publishes, takes, acks some, gives some back, and is killed, with far too little memory. All work is
/// done before each kill, so what must be there afterwards is known exactly.
#[test]
fn a_queue_is_the_same_after_any_history() {
    for seed in 0..6u64 {
        let mut dice = Dice(seed);
        let mut scene = Scene::small(2 << 20);
        // Number and persistence of what is in the queue, in order.
        let mut model: Vec<(u32, bool)> = Vec::new();
        let mut next = 0;
        for round in 0..6 {
            let id = scene.client();
            for _ in 0..dice.below(3_000) {
                let persistent = dice.below(5) > 0;
                scene.rig.publish(id, "q", body(next).as_bytes(), persistent);
                model.push((next, persistent));
                next += 1;
                if next.is_multiple_of(32) {
                    scene.work().expect("the disk works");
                }
            }
            scene.work().expect("the disk works");
            scene.rig.sent(id);
            for _ in 0..dice.below(3) {
                take_some(&mut scene, &mut dice, &mut model, seed);
            }
            scene = match dice.below(6) {
                0..3 => scene.kill(),
                3 => scene.lose_power(seed + round),
                _ => continue,
            };
            model.retain(|(_, persistent)| *persistent);
            assert_eq!(scene.rig.shard.status().ready, model.len() as u64, "seed {seed}");
        }
        let found = numbers(&scene.drain());
        let expected: Vec<u32> = model.iter().map(|(number, _)| *number).collect();
        let differs = found.iter().zip(&expected).position(|(found, expected)| found != expected);
        assert_eq!(differs.map(|at| (at, found[at], expected[at])), None, "seed {seed}");
        assert_eq!(found.len(), expected.len(), "seed {seed}");
    }
}

/// A consumer takes a part of the queue, acks most of it, and hangs up.
fn take_some(scene: &mut Scene, dice: &mut Dice, model: &mut Vec<(u32, bool)>, seed: u64) {
    let id = scene.rig.client();
    scene.rig.method(id, 1, &basic::Qos { prefetch_count: 400, ..basic::Qos::default() });
    scene.rig.method(id, 1, &consume("q", "c", false));
    let wanted = dice.below(3_000) as usize;
    let mut got = Vec::new();
    let (mut kept, mut acked) = (0, Vec::new());
    while got.len() < wanted && kept < 100 {
        let part = numbers(&deliveries(&scene.answers(id)));
        if part.is_empty() {
            break;
        }
        for number in part {
            got.push(number);
            if dice.below(24) == 0 {
                kept += 1;
            } else {
                let ack = basic::Ack { delivery_tag: got.len() as u64, multiple: false };
                scene.rig.method(id, 1, &ack);
                acked.push(number);
            }
        }
    }
    let expected: Vec<u32> = model.iter().take(got.len()).map(|(number, _)| *number).collect();
    let differs = got.iter().zip(&expected).position(|(got, expected)| got != expected);
    assert_eq!(differs.map(|at| (at, got[at], expected[at])), None, "seed {seed}");
    assert!(got.len() == model.len() || got.len() >= wanted || kept >= 100, "seed {seed}");
    model.retain(|(number, _)| acked.binary_search(number).is_err());
    scene.work().expect("the disk works");
    scene.rig.disconnect(id);
    scene.work().expect("the disk works");
}
