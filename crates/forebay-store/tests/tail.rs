//! What the log ends with and nothing vouches for: a start reads it, and from then on it is to stay, whatever a sync that failed
//! had lost of it.

mod support;

use std::io::ErrorKind;
use std::sync::Arc;

use forebay_store::fault_disk::Call;
use forebay_store::{Disk, Durability, MemDisk, Options, Store, check, open};
use support::small_store::{QUEUE, contents, expected, filled, opened, payload, pump, small};

/// Another queue.
const OTHER: u64 = 8;

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
            store.begin_atomic();
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
