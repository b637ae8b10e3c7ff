//! Every moment of a short history: the store is run over a disk that records each call, and after each
//! of them the process is killed, and the power lost in every way that the unsynced rest allows (in many
//! ways, where those are too many). What recovery finds is a state after a whole batch, the newest durable
//! one or a later one; it finds the same a second time, and after a crash at any point of itself.

mod support;

use std::sync::Arc;

use forebay_store::{Disk, Durability, MemDisk, Options, open};
use support::contents::opened;
use support::op::Op;
use support::state::{Life, State, assert_allowed};
use support::world::{World, options};

/// Ways to lose power tried after each call, or as many as `FOREBAY_TORN` says: up to 4 names and sectors
/// are torn in all combinations of old and new, up to 2 with garbage too. With 512, it is 9 and 5.
const TORN_MOST: usize = 16;

fn publish(queue: u64, bytes: usize) -> Op {
    Op::Publish { queue, fan_out: bytes.is_multiple_of(2), bytes, fill: bytes as u8 }
}

/// Everything that a store does, once or twice: batches of one and of several blocks, topology, atomic
/// groups, runs, a new segment, evacuation, freed segments, a deleted queue, a clean stop, a kill.
fn script() -> Vec<Op> {
    let mut ops = vec![
        Op::Put { key: 1, bytes: 40 },
        publish(0, 100),
        Op::Pump { times: 1 },
        publish(1, 301),
        publish(0, 3000),
        Op::Atomic { queue: 1, count: 3 },
        Op::Pump { times: 2 },
        Op::Settle { queue: 0, pick: 0, streak: 1 },
        Op::Spill { queue: 1, skip: 1, count: 3 },
        Op::Pump { times: 2 },
        Op::Settle { queue: 1, pick: 2, streak: 2 },
        Op::Put { key: 2, bytes: 10 },
        Op::Pump { times: 1 },
        Op::CleanStop,
        publish(2, 55),
        Op::Delete { key: 1 },
        Op::Hold,
        publish(2, 56),
        Op::Kill,
    ];
    // Over the end of the segment, and of the log's cap.
    for index in 0..8 {
        ops.extend([publish(2, 3501), Op::Settle { queue: 2, pick: 0, streak: 1 }]);
        ops.push(Op::Pump { times: 1 + index % 2 });
    }
    ops.extend([
        Op::Settle { queue: 1, pick: 0, streak: 5 },
        Op::Pump { times: 1 },
        Op::Forget { queue: 1 },
        publish(0, 17),
        Op::Pump { times: 3 },
    ]);
    ops
}

/// Opens what a crash left and says what is there.
fn recovered(disk: MemDisk, options: &Options, context: &str) -> (Arc<MemDisk>, State) {
    let disk = Arc::new(disk);
    let medium: Arc<dyn Disk> = disk.clone();
    let (_, _, contents) =
        opened(&medium, options).unwrap_or_else(|error| panic!("{context}: {error}"));
    (disk, contents.state)
}

/// Recovers, again and again, from one crash. Returns how often.
fn survive(disk: MemDisk, life: &Life, durable: u64, crash: bool, context: &str) -> usize {
    let options = small();
    let candidates = life.candidates(durable);
    let before = disk.fork();
    let (after, state) = recovered(disk, &options, context);
    assert_allowed(&candidates, &state, context);
    let (_, again) = recovered(after.fork(), &options, context);
    assert!(again == state, "found something else the second time, {context}");
    if !crash {
        return 2;
    }
    for calls in 0.. {
        let disk = Arc::new(before.fork());
        disk.stop_after(calls);
        let _ = open(disk.clone(), options.clone());
        if !disk.is_stopped() {
            return 2 + 2 * calls as usize;
        }
        for lose_power in [false, true] {
            let disk = disk.fork();
            if lose_power {
                disk.power_loss(calls)
            } else {
                disk.kill()
            }
            let context = format!("{context}, then at call {calls} of recovery");
            let (_, again) = recovered(disk, &options, &context);
            // Recovery syncs what it read before it builds on it, so until then the power may take it.
            assert_allowed(&candidates, &again, &context);
            assert!(lose_power || again == state, "found something else, {context}");
        }
    }
    unreachable!("recovery ends")
}

fn small() -> Options {
    options(true, Durability::Always)
}

#[test]
fn every_moment_of_a_history_can_be_recovered_from() {
    let (mut world, recording) = World::recorded(small());
    for op in &script() {
        world.step(op);
    }
    let segments = world.store.statistics().segments;
    assert!(segments < 6, "some were freed: {segments}");
    let lives = world.into_lives();
    assert_eq!(lives.len(), 4, "an empty directory, and three starts");
    let torn_most = std::env::var("FOREBAY_TORN")
        .map_or(TORN_MOST, |most| most.parse().expect("FOREBAY_TORN is a number"));
    let mut recoveries = 0;
    for (calls, disk) in recording.prefixes().enumerate() {
        let life = lives.iter().rfind(|life| life.began <= calls).expect("the first began at 0");
        let durable = life.durable_at(calls);
        let context = format!("killed after call {calls}");
        recoveries += survive(disk.fork(), life, durable, true, &context);
        for (way, torn) in disk.torn(torn_most).enumerate() {
            let context = format!("power lost after call {calls}, in way {way}");
            recoveries += survive(torn, life, durable, way == calls % 16, &context);
        }
    }
    println!("{} calls, {recoveries} recoveries", recording.calls());
    assert!(recording.calls() > 100 && recoveries > 3_000, "{recoveries} recoveries");
}
