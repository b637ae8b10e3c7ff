//! What the log ends with and nothing vouches for: a start reads it, and from then on it is to stay, whatever a sync that failed
//! had lost of it.

mod support;

use std::io::ErrorKind;
use std::sync::Arc;

use forebay_store::fault_disk::Call;
use forebay_store::{
    Disk, Durability, Lane, MemDisk, Options, RunBuilder, Store, check, open, perform,
};
use support::small_store::{
    QUEUE, contents, expected, filled, opened, payload, pump, small, spilled,
};

/// Another queue.
const OTHER: u64 = 8;

/// The newest segment's file.
fn newest(disk: &MemDisk) -> String {
    let names = disk.list().unwrap().into_iter().filter(|name| name.starts_with("log-"));
    names.max().expect("there is one")
}

/// All is written, and vouched for.
fn seal(disk: &MemDisk, store: &mut Store) {
    for later_ms in 1..4 {
        pump(disk, store, 2_000_000 + later_ms * 20_000).unwrap();
    }
}

/// The next sync fails and loses what it was about, which can be read until the power goes, and the process ends.
fn end_in_a_failed_sync(disk: &MemDisk, mut store: Store, now_us: u64) {
    disk.set_shows_lost(true);
    disk.fail(Call::Sync, 0, ErrorKind::Other);
    pump(disk, &mut store, now_us).unwrap_err();
    drop(store);
    disk.kill();
}

#[test]
fn what_a_failed_sync_left_to_be_read_stays() {
    for starts in 1..=3 {
        let (disk, mut store, homes) = filled(3);
        store.settle(QUEUE, 1, homes[0]);
        store.publish(&[(QUEUE, 4)], &payload(4));
        store.put_meta(b"queue", b"eight");
        end_in_a_failed_sync(&disk, store, 1_000_000);
        let there = expected(4)[1..].to_vec();
        for _ in 0..starts {
            let (_, recovered) = opened(&disk, small());
            assert_eq!(contents(&recovered), there);
            disk.kill();
        }
        disk.power_loss(starts);
        assert!(check(&*disk, &mut |_| {}).is_sound());
        let (_, recovered) = opened(&disk, small());
        assert_eq!(contents(&recovered), there, "after {starts} starts");
        assert_eq!(recovered.meta[&b"queue"[..]], b"eight");
    }
}

#[test]
fn what_a_store_that_does_not_sync_left_is_synced_by_the_next_start() {
    for batches in 1..5 {
        let (disk, store, _) = filled(1);
        drop(store);
        let options = Options { durability: Durability::Os, ..small() };
        let (mut store, _) = opened(&disk, options.clone());
        for seq in 2..2 + batches {
            store.publish(&[(QUEUE, seq)], &payload(seq));
            pump(&disk, &mut store, seq * 20_000).unwrap();
        }
        drop(store);
        disk.kill();
        drop(opened(&disk, options.clone()));
        disk.power_loss(batches);
        let (_, recovered) = opened(&disk, options);
        assert_eq!(contents(&recovered), expected(1 + batches));
    }
}

/// A message for which the segment has no room begins the next one, behind many batches that were not synced: whichever sync
/// fails then.
#[test]
fn what_a_failed_sync_lost_of_a_store_that_syncs_seldom_is_kept() {
    for policy in [Durability::Os, Durability::Interval { ms: 30 }] {
        let options = Options { durability: policy, ..small() };
        for skip in 0..6 {
            let (disk, store, _) = filled(1);
            drop(store);
            let (mut store, _) = opened(&disk, options.clone());
            for seq in 1..=8 {
                store.publish(&[(OTHER, seq)], &payload(seq));
                pump(&disk, &mut store, seq * 1_000).unwrap();
            }
            disk.set_shows_lost(true);
            disk.fail(Call::Sync, skip, ErrorKind::Other);
            for seq in 9.. {
                store.publish(&[(OTHER, seq)], &[seq as u8; 30_000]);
                if pump(&disk, &mut store, seq * 1_000).is_err() {
                    break;
                }
            }
            drop(store);
            disk.kill();
            let (mut store, recovered) = opened(&disk, options.clone());
            let there = contents(&recovered);
            pump(&disk, &mut store, 1_000).unwrap();
            drop(store);
            disk.power_loss(skip);
            let (_, recovered) = opened(&disk, options.clone());
            assert_eq!(contents(&recovered), there, "{policy:?}, after {skip} syncs");
        }
    }
}

/// What emptied the run may be lost with the power, and the run is needed then.
#[test]
fn a_run_is_there_until_a_new_segment_says_that_it_is_empty() {
    for (calls, seed) in (0..24).flat_map(|calls| [(calls, 1), (calls, 2)]) {
        let (disk, mut store, run) = spilled(2);
        store.settle_run(run);
        store.put_meta(b"queue", b"eight");
        end_in_a_failed_sync(&disk, store, 102_000_000);
        disk.stop_after(calls);
        let begun = open(disk.clone(), small()).is_ok();
        disk.power_loss(seed);
        let (_, recovered) = opened(&disk, small());
        let found = recovered.queues.iter().flat_map(|queue| &queue.runs).map(|run| run.messages);
        let found = found.sum::<u64>();
        assert!(found == 0 || found == 2 && !begun, "{found} after {calls} calls");
    }
}

/// What is there of the directory may be of any time since it was synced.
#[test]
fn segments_of_which_nothing_is_proven_go_the_newest_first() {
    for (calls, seed) in (0..40).flat_map(|calls| (0..16).map(move |seed| (calls, seed))) {
        let (disk, mut store, homes) = filled(1);
        store.settle(QUEUE, 1, homes[0]);
        store.shutdown();
        pump(&disk, &mut store, 1_000_000).unwrap();
        // Alone with its checkpoint: nothing is behind it, and what was before it is not needed.
        let (mut store, _) = opened(&disk, small());
        while let Some(request) = store.poll(0).filter(|request| request.lane() != Lane::Log) {
            store.complete(0, perform(&*disk, request)).unwrap();
        }
        drop(store);
        disk.kill();
        disk.set_shows_lost(true);
        let of_the_old_segment = 1;
        disk.fail(Call::Sync, of_the_old_segment, ErrorKind::Other);
        assert!(open(disk.clone(), small()).is_err());
        disk.kill();
        disk.stop_after(calls);
        let _ = open(disk.clone(), small());
        disk.power_loss(seed);
        let (_, recovered) = opened(&disk, small());
        assert_eq!(recovered.meta.len(), 1, "{calls} calls, seed {seed}");
    }
}

/// A start that found room for a header and no more is no burden for the next one.
#[test]
fn what_starts_leave_that_find_the_disk_full_does_not_add_up() {
    let (disk, mut store, _) = filled(1);
    store.publish(&[(OTHER, 1)], &[1; 100_000]);
    end_in_a_failed_sync(&disk, store, 1_000_000);
    for _ in 0..5 {
        // Half of it is there.
        disk.fail(Call::Write, 0, ErrorKind::StorageFull);
        disk.unlock();
        assert!(open(disk.clone(), small()).is_err());
        disk.kill();
        let segments = disk.list().unwrap().iter().filter(|name| name.starts_with("log-")).count();
        assert!(segments <= 3, "{segments} segments");
    }
    let (_, recovered) = opened(&disk, small());
    assert_eq!(recovered.payloads.len(), 2);
}

/// A checkpoint of several batches, and behind it more than a segment has room for.
#[test]
fn what_the_last_batch_says_is_carried_in_one() {
    for calls in 0..24 {
        for seed in 0..4 {
            let (disk, mut store, homes) = filled(1);
            for key in 0..120u32 {
                store.put_meta(&key.to_be_bytes(), &[key as u8; 400]);
                pump(&disk, &mut store, 100_000).unwrap();
            }
            store.begin_atomic(0);
            for seq in 1..=600 {
                store.publish(&[(OTHER, seq)], &payload(seq));
            }
            store.settle(QUEUE, 1, homes[0]);
            store.end_atomic();
            end_in_a_failed_sync(&disk, store, 1_000_000);
            disk.stop_after(calls);
            let begun = open(disk.clone(), small()).is_ok();
            disk.power_loss(seed);
            let (_, recovered) = opened(&disk, small());
            let count = |id| {
                let queue = recovered.queues.iter().find(|queue| queue.id == id);
                queue.map_or(0, |queue| queue.messages.len())
            };
            let found = (count(QUEUE), count(OTHER));
            assert!(found == (0, 600) || found == (1, 0) && !begun, "{found:?}, {calls} calls");
        }
    }
}

/// The copy was lost likewise, with the header of its segment.
#[test]
fn a_copy_that_is_lost_is_carried_in_its_turn_and_its_segment_never_becomes_the_oldest() {
    for calls in 0..24 {
        let (disk, mut store, homes) = filled(1);
        store.settle(QUEUE, 1, homes[0]);
        store.publish(&[(QUEUE, 2)], &payload(2));
        end_in_a_failed_sync(&disk, store, 1_000_000);
        disk.unlock();
        let of_the_old_segment = 1;
        disk.fail(Call::Sync, of_the_old_segment, ErrorKind::Other);
        assert!(open(disk.clone(), small()).is_err());
        disk.kill();
        let (mut store, recovered) = opened(&disk, small());
        let there = contents(&recovered);
        assert_eq!(there, expected(2)[1..]);
        disk.stop_after(calls);
        let _ = pump(&disk, &mut store, 1_000_000);
        drop(store);
        disk.power_loss(calls);
        let (_, recovered) = opened(&disk, small());
        assert_eq!(contents(&recovered), there, "after {calls} calls");
    }
}

/// Nothing was synced of the first segment of all.
#[test]
fn a_first_segment_that_is_lost_is_not_missed_where_a_later_one_says_what_it_said() {
    for (calls, seed) in (0..24).flat_map(|calls| [(calls, 1), (calls, 2)]) {
        let disk = Arc::new(MemDisk::new());
        disk.set_shows_lost(true);
        disk.fail(Call::Sync, 0, ErrorKind::Other);
        assert!(open(disk.clone(), small()).is_err());
        disk.kill();
        disk.stop_after(calls);
        let _ = open(disk.clone(), small());
        disk.power_loss(seed);
        let (_, recovered) = opened(&disk, small());
        assert!(recovered.queues.is_empty() && recovered.damage.is_empty());
    }
}

/// A segment that says little goes at the next start; that a run has messages is said by a checkpoint alone then.
#[test]
fn what_was_in_a_run_that_is_gone_does_not_come_back() {
    let disk = filled(1).0;
    let (mut store, _) = opened(&disk, small());
    for seq in 2..=60 {
        store.publish(&[(QUEUE, seq)], &payload(seq));
    }
    seal(&disk, &mut store);
    drop(store);
    // Their segment is too large to be carried.
    let (mut store, recovered) = opened(&disk, small());
    let mut run = RunBuilder::new();
    for (seq, home, payload) in &recovered.queues[0].messages[1..31] {
        run.push(*seq, *home, &recovered.payloads[*payload]);
    }
    let run = store.write_run(QUEUE, run, true);
    seal(&disk, &mut store);
    drop(store);
    let said = newest(&disk);
    let (mut store, _) = opened(&disk, small());
    assert!(!disk.list().unwrap().contains(&said), "it is carried");
    store.settle_run(run);
    seal(&disk, &mut store);
    drop(store);
    for _ in 0..2 {
        let (_, recovered) = opened(&disk, small());
        assert!(recovered.queues[0].runs.is_empty());
        let seqs: Vec<u64> = contents(&recovered).iter().map(|message| message.0).collect();
        assert_eq!(seqs, [1].into_iter().chain(32..=60).collect::<Vec<_>>());
        disk.power_loss(1);
    }
}

/// Numbers of queues are given again after a restart, if theirs were the last ones.
#[test]
fn a_queue_with_the_number_of_one_that_was_deleted_keeps_its_messages() {
    let disk = filled(1).0;
    let (mut store, _) = opened(&disk, small());
    let home = store.publish(&[(OTHER, 1)], &payload(9));
    store.settle(OTHER, 1, home);
    store.forget_queue(OTHER);
    pump(&disk, &mut store, 20_000).unwrap();
    drop(store);
    let (mut store, _) = opened(&disk, small());
    store.publish(&[(OTHER, 1)], &payload(2));
    pump(&disk, &mut store, 20_000).unwrap();
    drop(store);
    for _ in 0..2 {
        let (_, recovered) = opened(&disk, small());
        assert_eq!(contents(&recovered), [(1, payload(1)), (1, payload(2))]);
        disk.power_loss(1);
    }
}

/// Consumers held them when it was deleted, so nobody acknowledged them, and the segment that said that it is gone is gone itself.
#[test]
fn a_queue_with_the_number_of_one_that_was_deleted_has_none_of_its_messages() {
    let disk = filled(60).0;
    let (mut store, _) = opened(&disk, small());
    // Too many to be carried.
    for seq in 1..=60 {
        store.publish(&[(OTHER, seq)], &payload(seq));
    }
    seal(&disk, &mut store);
    drop(store);
    let (mut store, _) = opened(&disk, small());
    store.forget_queue(OTHER);
    seal(&disk, &mut store);
    drop(store);
    let said = newest(&disk);
    let (mut store, _) = opened(&disk, small());
    assert!(!disk.list().unwrap().contains(&said), "it is carried");
    store.publish(&[(OTHER, 7)], &payload(100));
    pump(&disk, &mut store, 20_000).unwrap();
    drop(store);
    for _ in 0..2 {
        let (_, recovered) = opened(&disk, small());
        let other = recovered.queues.iter().find(|queue| queue.id == OTHER).expect("there is one");
        let seqs: Vec<u64> = other.messages.iter().map(|message| message.0).collect();
        assert_eq!(seqs, [7]);
        assert_eq!(recovered.payloads[other.messages[0].2], payload(100));
        disk.power_loss(1);
    }
}
