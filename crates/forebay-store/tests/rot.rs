//! A medium that changes bytes, loses writes and puts them in wrong places: each byte of a small store in
//! turn, and each write of a short history. Either the store refuses and names file and offset, or all of
//! it is there; what nothing vouches for, which is the newest batch until the seal after it, is the one
//! exception, and is looked at by itself.

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_store::fault_disk::Stray;
use forebay_store::{Disk, Durability, MemDisk, Options, check, open};
use support::contents::opened;
use support::op::Op;
use support::state::{State, assert_allowed};
use support::world::{World, options};

fn small() -> Options {
    Options {
        segment_bytes: 48 << 10,
        log_cap_bytes: 160 << 10,
        ..options(true, Durability::Always)
    }
}

/// Two queues, two runs, topology, settled messages and a second segment, without a restart.
fn history() -> Vec<Op> {
    let publish = |queue, bytes, fill| Op::Publish { queue, fan_out: fill % 3 == 0, bytes, fill };
    let mut ops = vec![Op::Put { key: 1, bytes: 30 }, Op::Put { key: 2, bytes: 3 }];
    for fill in 0..6 {
        ops.extend([publish(u64::from(fill % 2), 40 + usize::from(fill), fill)]);
        ops.extend([Op::Pump { times: u8::from(fill != 2) }]);
    }
    ops.extend([
        Op::Spill { queue: 1, skip: 0, count: 3 },
        Op::Pump { times: 2 },
        Op::Settle { queue: 1, pick: 1, streak: 1 },
        publish(0, 3000, 7),
        Op::Spill { queue: 0, skip: 1, count: 2 },
        Op::Pump { times: 2 },
        // By this a segment goes, and nobody need vouch for that batch any more.
        Op::Settle { queue: 0, pick: 0, streak: 1 },
        Op::Pump { times: 4 },
        Op::Settle { queue: 1, pick: 0, streak: 1 },
        publish(2, 60, 8),
        Op::Pump { times: 1 },
    ]);
    ops
}

/// The history on this disk, which may have something in store; then idle for a seal, or not.
fn played(prepare: impl FnOnce(&MemDisk), sealed: bool) -> World {
    let mut world = World::new(small());
    prepare(&world.disk);
    for op in history() {
        world.step(&op);
    }
    if sealed {
        world.pump(8);
    }
    world
}

/// All of it, and as it was before the last batch that changed something.
fn states(world: World) -> (State, State) {
    let durable = world.store.durable_batch();
    let lives = world.into_lives();
    let life = lives.last().expect("at least one");
    let last = life.changes.last().expect("something was done").0;
    assert!(last <= durable, "all is durable");
    let whole = life.candidates(durable).pop_last().expect("the last").1;
    let before = life.candidates(last - 1).remove(&(last - 1)).expect("one before");
    assert_ne!(whole, before);
    (whole, before)
}

/// What recovery makes of these bytes, runs and all. A refusal must say where.
fn outcome(disk: MemDisk) -> Option<State> {
    let medium: Arc<dyn Disk> = Arc::new(disk);
    match opened(&medium, &small()) {
        Ok((_, _, contents)) => Some(contents.state),
        Err(sentence) => {
            let names_file = sentence.contains(".seg ") || sentence.contains(".run ");
            assert!(names_file && sentence.contains("at byte"), "{sentence}");
            None
        }
    }
}

/// Positions that mean something, all of them, and a sample of the zeros far from any.
fn positions(name: &str, bytes: &[u8]) -> Vec<usize> {
    if name.starts_with("spare-") {
        return (0..bytes.len()).step_by(997).collect();
    }
    let near =
        |at: usize| bytes[at.saturating_sub(8)..bytes.len().min(at + 9)].iter().any(|b| *b != 0);
    (0..bytes.len()).filter(|&at| near(at) || at % 509 == 0).collect()
}

#[test]
fn no_byte_of_a_sealed_store_changes_unnoticed() {
    let world = played(|_| {}, true);
    let disk = world.disk.copy();
    let (whole, _) = states(world);
    let mut noticed: BTreeMap<String, usize> = BTreeMap::new();
    let mut harmless = 0;
    for name in disk.list().unwrap() {
        for at in positions(&name, &disk.bytes(&name).unwrap()) {
            let rotten = disk.fork();
            rotten.flip_bit(&name, at * 8 + at % 8);
            match outcome(rotten) {
                None => *noticed.entry(name.clone()).or_default() += 1,
                Some(found) => {
                    let context = format!("{name} byte {at}");
                    assert_allowed(&BTreeMap::from([(0, whole.clone())]), &found, &context);
                    harmless += 1;
                }
            }
        }
    }
    println!("{noticed:?}, harmless: {harmless}");
    let runs = noticed.iter().filter(|(name, _)| name.starts_with("run-")).count();
    let segments = noticed.iter().filter(|(name, _)| name.starts_with("log-")).count();
    assert!(runs == 2 && segments == 2, "{noticed:?}");
    assert!(noticed.values().all(|count| *count > 100), "{noticed:?}");
}

#[test]
fn before_the_seal_rot_can_take_the_newest_batch_and_no_other() {
    let world = played(|_| {}, false);
    let disk = world.disk.copy();
    let (whole, before) = states(world);
    let newest = disk.list().unwrap().into_iter().rfind(|name| name.starts_with("log-")).unwrap();
    let bytes = disk.bytes(&newest).unwrap();
    let mut heads = (4096..bytes.len()).step_by(4096).filter(|&at| bytes[at..at + 4] == *b"FBAT");
    let last_head = heads.next_back().expect("there are batches");
    let mut taken = 0;
    for at in positions(&newest, &bytes) {
        let rotten = disk.fork();
        rotten.flip_bit(&newest, at * 8 + at % 8);
        match outcome(rotten) {
            Some(found) if whole.allows(&found) => {}
            Some(found) => {
                assert!(at >= last_head, "byte {at} is vouched for by the batch at {last_head}");
                // What the batch acknowledged may be gone, and what it published.
                let kept =
                    before.messages.iter().filter(|(key, _)| whole.messages.contains_key(key));
                for (key, payload) in kept {
                    assert_eq!(found.messages.get(key), Some(payload), "byte {at}");
                }
                assert!(found.messages.keys().all(|key| before.messages.contains_key(key)));
                taken += 1;
            }
            None => assert!(at < last_head, "byte {at}: nobody knows whether it was durable"),
        }
    }
    assert!(taken > 100, "{taken} bytes");
}

#[test]
fn no_write_goes_astray_unnoticed() {
    let writes = (0..).take_while(|&skip| {
        let world = played(|disk| disk.stray_write(skip, Stray::Lost), true);
        world.disk.strays() == 0
    });
    let writes = writes.count() as u64;
    assert!(writes > 15, "{writes} writes");
    let (whole, _) = states(played(|_| {}, true));
    let (mut noticed, mut harmless) = (0, 0);
    for skip in 0..writes {
        let mut strays = vec![Stray::Lost];
        strays.extend((0..6).map(|seed| Stray::Seeded(skip * 6 + seed)));
        for block in [0, 1, 3] {
            strays.push(Stray::To("log-0000000001.seg".to_owned(), block * 4096));
            strays.push(Stray::To("log-0000000002.seg".to_owned(), block * 4096));
        }
        strays.push(Stray::To("run-0000000001.run".to_owned(), 0));
        for stray in strays {
            let world = played(|disk| disk.stray_write(skip, stray.clone()), true);
            match outcome(world.disk.fork()) {
                None => noticed += 1,
                Some(found) => {
                    let context = format!("write {skip} astray: {stray:?}");
                    assert_allowed(&BTreeMap::from([(0, whole.clone())]), &found, &context);
                    harmless += 1;
                }
            }
        }
    }
    println!("{writes} writes: {noticed} strays noticed, {harmless} harmless");
    assert!(noticed > 50 && harmless > 10, "{noticed} noticed, {harmless} harmless");
}

/// Zeros over a whole file, as a misdirected pre-write leaves them.
fn wipe(disk: &MemDisk, name: &str) {
    let length = disk.bytes(name).expect("there is such a file").len();
    disk.write_at(name, 0, &vec![0; length]).unwrap();
}

/// The log can be read from any segment on, so nothing after the oldest one proves what was in it; that it
/// is there, without a header, does.
#[test]
fn an_oldest_segment_without_a_header_is_damage() {
    let disk = played(|_| {}, true).disk.fork();
    let segments: Vec<_> =
        disk.list().unwrap().into_iter().filter(|name| name.starts_with("log-")).collect();
    assert!(segments.len() > 1 && !segments[0].contains("0001"), "{segments:?}");
    wipe(&disk, &segments[0]);
    assert_eq!(outcome(disk.fork()), None);
    let salvage = Options { salvage: true, ..small() };
    let medium: Arc<dyn Disk> = Arc::new(disk);
    let (_, recovered, _) = opened(&medium, &salvage).expect("salvage opens it");
    assert_eq!(recovered.damage[0].file, segments[0]);
    opened(&medium, &small()).expect("and it is not damage again");
}

/// As in a copy for which somebody has left out what is called a log.
#[test]
fn a_log_that_is_missing_is_damage_as_long_as_anything_is_left_that_came_after_it() {
    let disk = played(|_| {}, true).disk.fork();
    for gone in ["log-", "run-"] {
        disk.list()
            .unwrap()
            .iter()
            .filter(|name| name.starts_with(gone))
            .for_each(|name| disk.remove(name).unwrap());
        let disk = Arc::new(disk.copy());
        assert!(!check(&*disk, &mut |_| {}).is_sound());
        let error = open(disk.clone(), small()).unwrap_err().to_string();
        assert!(error.contains("the log is missing"), "{error}");
        let (_, recovered) = open(disk.clone(), Options { salvage: true, ..small() }).unwrap();
        assert!(recovered.queues.is_empty() && !recovered.damage.is_empty());
        disk.unlock();
        open(disk, small()).expect("and it is not damage again");
    }
}

#[test]
fn a_start_that_is_interrupted_again_and_again_leaves_nothing_behind() {
    for filled in [false, true] {
        let disk = Arc::new(if filled { played(|_| {}, true).disk.fork() } else { MemDisk::new() });
        for calls in 0..40 {
            disk.stop_after(calls % 5);
            disk.unlock();
            let _ = open(disk.clone(), small());
            if calls % 2 == 0 {
                disk.kill()
            } else {
                disk.power_loss(calls)
            }
            let report = check(&*disk, &mut |_| {});
            assert!(report.is_sound(), "{report:?}");
        }
        let segments = disk.list().unwrap().iter().filter(|name| name.starts_with("log-")).count();
        assert!(segments < 40, "{segments} segments");
        let medium: Arc<dyn Disk> = disk;
        let (_, _, contents) = opened(&medium, &small()).expect("nothing is damaged");
        assert_eq!(!contents.state.messages.is_empty(), filled);
    }
}
