//! What the store does when the disk fails, fills up, rots or is not ours.

mod support;

use std::io::ErrorKind;
use std::sync::Arc;

use forebay_store::fault_disk::Call;
use forebay_store::{
    Completion, Disk, Durability, Event, FileDisk, Finding, Home, Lane, MemDisk, OpenError,
    Options, RunBuilder, Store, check, open, perform,
};
use support::small_store::{
    QUEUE, contents, expected, filled, opened, payload, place, pump, small,
};

#[test]
fn a_failed_write_or_sync_is_final_and_nothing_after_it_is_durable() {
    for (call, kind) in [
        (Call::Write, ErrorKind::Other),
        (Call::Write, ErrorKind::StorageFull),
        (Call::Sync, ErrorKind::Other),
        (Call::Sync, ErrorKind::StorageFull),
    ] {
        let (disk, mut store, _) = filled(3);
        store.publish(&[(QUEUE, 4)], b"four");
        let durable = store.durable_batch();
        assert!(store.open_batch() > durable);
        disk.fail(call, 0, kind);
        let failed = pump(&disk, &mut store, 1_000_000).unwrap_err();
        assert!(failed.what.contains("log-000000000"), "{failed}");
        // Not even if the disk works again.
        assert_eq!(store.publish(&[(QUEUE, 5)], b"five"), Home::NONE);
        store.add_waiter();
        assert!(store.poll(2_000_000).is_none());
        assert_eq!(store.durable_batch(), durable);
        assert_eq!(store.next_deadline_us(), None);
        // What was durable before is there.
        disk.power_loss(1);
        let (_, recovered) = opened(&disk, small());
        assert_eq!(contents(&recovered)[..3], expected(3));
    }
}

#[test]
fn a_completion_after_a_failure_is_refused() {
    let (disk, mut store, _) = filled(1);
    let mut builder = RunBuilder::new();
    builder.push(9, Home::NONE, b"nine");
    store.write_run(QUEUE, builder, true);
    store.publish(&[(QUEUE, 2)], b"two");
    let commit = store.poll(1_000_000).unwrap();
    let background = store.poll(1_000_000).unwrap();
    assert_eq!((commit.lane(), background.lane()), (Lane::Log, Lane::Background));
    let background: Completion = perform(&*disk, background);
    disk.fail(Call::Sync, 0, ErrorKind::Other);
    let commit = perform(&*disk, commit);
    let failed = store.complete(1_000_100, commit).unwrap_err();
    assert_eq!(store.complete(1_000_100, background).unwrap_err(), failed);
}

/// The process that was told of the failure has ended, and no sync tells of it again.
#[test]
fn what_a_failed_sync_left_to_be_read_is_synced_by_the_next_start_or_refused() {
    for (policy, broken) in [
        (Durability::Always, false),
        (Durability::Always, true),
        (Durability::Interval { ms: 50 }, false),
        (Durability::Interval { ms: 50 }, true),
    ] {
        let (disk, store, _) = filled(3);
        drop(store);
        let options = Options { durability: policy, ..small() };
        let (mut store, _) = opened(&disk, options.clone());
        disk.set_shows_lost(true);
        for seq in 4..=5 {
            store.publish(&[(QUEUE, seq)], &payload(seq));
            if seq == 5 || policy == Durability::Always {
                disk.fail(Call::Sync, 0, ErrorKind::Other);
            }
            let failed = pump(&disk, &mut store, seq * 1_000)
                .and_then(|_| pump(&disk, &mut store, seq * 100_000));
            if failed.is_err() {
                break;
            }
        }
        drop(store);
        disk.kill();
        if broken {
            for _ in 0..2 {
                disk.fail(Call::Sync, 0, ErrorKind::Other);
                let refused = open(disk.clone(), options.clone()).unwrap_err().to_string();
                assert!(refused.contains("sync log-000000000"), "{refused}");
            }
        }
        let (mut store, recovered) = opened(&disk, options.clone());
        let found = contents(&recovered);
        assert!(found.len() > 3);
        pump(&disk, &mut store, 1_000_000).unwrap();
        drop(store);
        disk.power_loss(1);
        // Not less, and no damage.
        let (_, recovered) = opened(&disk, options);
        assert_eq!(contents(&recovered), found, "{policy:?}");
    }
}

/// The copy was believed, and the segment that had the only one on the medium was free to go.
#[test]
fn a_message_outlives_a_copy_forward_whose_sync_failed() {
    let (disk, mut store, homes) = filled(1);
    disk.set_shows_lost(true);
    let (mut seq, mut copied) = (1, false);
    while !copied {
        seq += 1;
        let home = store.publish(&[(QUEUE, seq)], &payload(seq));
        store.settle(QUEUE, seq, home);
        for event in pump(&disk, &mut store, 1_000_000 + seq * 20_000).unwrap() {
            copied |= event == (Event::Evacuate { homes: homes[0] });
        }
        assert!(seq < 5_000, "the log is never too long");
    }
    store.relocate(&[(QUEUE, 1)], &payload(1));
    disk.fail(Call::Sync, 0, ErrorKind::Other);
    pump(&disk, &mut store, 200_000_000).unwrap_err();
    drop(store);
    disk.kill();
    let (mut store, recovered) = opened(&disk, small());
    assert_eq!(contents(&recovered), expected(1));
    for turn in 0..4 {
        pump(&disk, &mut store, turn * 20_000).unwrap();
    }
    assert_eq!(disk.bytes("log-0000000001.seg"), None, "the copy has made it superfluous");
    drop(store);
    disk.power_loss(1);
    let (_, recovered) = opened(&disk, small());
    assert_eq!(contents(&recovered), expected(1));
}

/// The next segment may begin with several batches, and who waits for the one that was open waits for the first of them.
#[test]
fn what_a_large_message_leaves_behind_is_in_the_batch_that_was_open() {
    let disk = Arc::new(MemDisk::new());
    // Each part of a checkpoint is a batch.
    let options = Options { segment_bytes: 16 << 10, batch_max_bytes: 4096, ..small() };
    let (mut store, _) = opened(&disk, options.clone());
    let home = store.publish(&[(QUEUE, 1)], &payload(1));
    pump(&disk, &mut store, 1_000).unwrap();
    store.settle(QUEUE, 1, home);
    let settled = store.open_batch();
    store.publish(&[(QUEUE, 2)], &[2; 10_000]);
    assert!(store.open_batch() > settled, "there was no room for it");
    while store.durable_batch() < settled {
        let request = store.poll(2_000).expect("it is urgent");
        store.complete(2_000, perform(&*disk, request)).unwrap();
    }
    disk.power_loss(4);
    let (_, recovered) = opened(&disk, options);
    assert!(recovered.queues[0].messages.iter().all(|message| message.0 != 1));
}

/// Every bit of every byte that was ever durable, a sample of them: whoever changes it is noticed, or
/// changes nothing.
#[test]
fn a_flipped_bit_is_never_a_wrong_byte_nor_a_silent_loss() {
    let (disk, mut store, homes) = filled(40);
    for seq in (2..=30).step_by(3) {
        store.settle(QUEUE, seq, homes[seq as usize - 1]);
    }
    pump(&disk, &mut store, 10_000_000).unwrap();
    pump(&disk, &mut store, 11_000_000).unwrap();
    pump(&disk, &mut store, 12_000_000).unwrap();
    drop(store);
    let (_, whole) = opened(&Arc::new(disk.copy()), small());
    let whole = contents(&whole);
    assert_eq!(whole.len(), 30);
    let (mut noticed, mut harmless) = (0, 0);
    for name in disk.list().unwrap().into_iter().filter(|name| name.ends_with(".seg")) {
        let bits = disk.bytes(&name).unwrap().len() * 8;
        for bit in (0..bits).step_by(2999) {
            let copy = Arc::new(disk.copy());
            copy.flip_bit(&name, bit);
            let sound = check(&*copy, &mut |_| {}).is_sound();
            match open(copy.clone(), small()) {
                Ok((_, recovered)) => {
                    assert_eq!(contents(&recovered), whole, "{name} bit {bit}");
                    assert!(sound, "{name} bit {bit}");
                    harmless += 1;
                }
                Err(OpenError::Damaged { file, .. }) => {
                    assert_eq!(file, name, "bit {bit}");
                    assert!(!sound, "{name} bit {bit}");
                    noticed += 1;
                }
                Err(error) => panic!("{name} bit {bit}: {error}"),
            }
        }
    }
    assert!(noticed > 20 && harmless > 20, "{noticed} noticed, {harmless} in padding");
}

#[test]
fn salvage_opens_a_damaged_log_says_what_is_missing_and_is_not_asked_again() {
    let (disk, store, _) = filled(40);
    drop(store);
    let whole = expected(40);
    // A payload of message 20: its batch and nothing else is lost.
    let (name, at) = place(&disk, &payload(20));
    disk.flip_bit(&name, (at + 5) * 8);
    disk.unlock();
    let Err(OpenError::Damaged { file, offset, what }) = open(disk.clone(), small()) else {
        panic!("damage is an error")
    };
    assert_eq!(file, name);
    assert!(offset as usize <= at && at < offset as usize + 4096, "{offset} {at}");
    assert!(what.contains("checksum"), "{what}");

    let (store, recovered) = opened(&disk, Options { salvage: true, ..small() });
    let mut remaining = whole;
    remaining.remove(19);
    assert_eq!(contents(&recovered), remaining);
    assert_eq!((recovered.damage.len(), recovered.salvaged), (1, true));
    assert_eq!(recovered.damage[0].file, file);
    let lost = ": 1 of its 1 records cannot be read, each one message at most";
    assert_eq!(recovered.damage[0].what, what + lost);
    assert_eq!(recovered.meta[&b"queue"[..]], b"seven");
    drop(store);
    // The next start is an ordinary one.
    let (_, recovered) = opened(&disk, small());
    assert_eq!(contents(&recovered), remaining);
    assert_eq!((recovered.damage, recovered.salvaged), (vec![], true));
    // And who asks is told all the same, and not that the file is sound.
    disk.unlock();
    let mut told = Vec::new();
    assert!(check(&*disk, &mut |finding| told.push(finding)).is_sound());
    told.retain(|finding| {
        matches!(finding, Finding::Accepted { file, .. } | Finding::Sound { file, .. }
        if *file == name)
    });
    assert!(
        matches!(&told[..], [Finding::Accepted { offset: at, .. }] if *at == offset),
        "{told:?}"
    );
}

#[test]
fn a_segment_missing_from_the_middle_is_damage() {
    let (disk, mut store, _) = filled(1);
    for seq in 2..=900 {
        store.publish(&[(QUEUE, seq)], &payload(seq));
        pump(&disk, &mut store, seq * 20_000).unwrap();
    }
    assert!(store.statistics().segments > 3);
    disk.remove("log-0000000002.seg").unwrap();
    disk.unlock();
    let error = open(disk.clone(), small()).unwrap_err();
    assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
    let (_, recovered) = opened(&disk, Options { salvage: true, ..small() });
    assert!(!recovered.damage.is_empty());
    let found = contents(&recovered);
    assert!(found.len() > 400 && found.iter().all(|(seq, bytes)| *bytes == payload(*seq)));
}

#[test]
fn a_store_of_a_newer_version_is_refused_by_name() {
    let (disk, store, _) = filled(1);
    drop(store);
    let name = "log-0000000001.seg";
    // The header is sound, its version is not ours: only a fixture can hold such a file.
    disk.put(name, include_bytes!("fixtures/newer_format.seg"));
    disk.unlock();
    let error = open(disk.clone(), small()).unwrap_err();
    assert!(matches!(error, OpenError::NewerFormat { found: 4, supported: 3 }), "{error}");
    assert!(error.to_string().contains("format 4"), "{error}");
}

#[test]
fn a_data_directory_is_one_process_s_own() {
    let root = std::env::temp_dir().join(format!("forebay-store-lock-{}", std::process::id()));
    let first = Arc::new(FileDisk::new(&root).unwrap());
    let second = Arc::new(FileDisk::new(&root).unwrap());
    let (store, _) = open(first.clone(), small()).unwrap();
    assert!(matches!(open(second.clone(), small()), Err(OpenError::Locked)));
    drop(store);
    first.unlock();
    open(second, small()).unwrap();
    std::fs::remove_dir_all(&root).unwrap();
}

/// The same on the file system, in short: publish, spill, settle, recycle, stop, start.
#[test]
fn a_directory_of_files_works_like_the_disk_in_memory() {
    let root = std::env::temp_dir().join(format!("forebay-store-files-{}", std::process::id()));
    let disk = Arc::new(FileDisk::new(&root).unwrap());
    let (mut store, _) = open(disk.clone(), small()).unwrap();
    let pump = |store: &mut Store, now_us: u64| {
        let mut events = Vec::new();
        while let Some(request) = store.poll(now_us) {
            store.complete(now_us, perform(&*disk, request)).unwrap();
        }
        while let Some(event) = store.poll_event() {
            events.push(event);
        }
        events
    };
    store.put_meta(b"key", b"value");
    let mut homes = Vec::new();
    for seq in 1..=1500u64 {
        let home = store.publish(&[(QUEUE, seq)], &payload(seq));
        if seq <= 10 || seq > 1490 {
            homes.push((seq, home));
        } else {
            store.settle(QUEUE, seq, home);
        }
        pump(&mut store, seq * 20_000);
    }
    let mut builder = RunBuilder::new();
    for &(seq, home) in &homes[..10] {
        builder.push(seq, home, &payload(seq));
    }
    let run = store.write_run(QUEUE, builder, true);
    assert!(pump(&mut store, 40_000_000).contains(&Event::RunDurable { run, queue: QUEUE }));
    pump(&mut store, 41_000_000);
    assert!(store.statistics().segments <= 3, "{:?}", store.statistics());
    store.note_delivered(QUEUE, 5);
    store.shutdown();
    assert!(pump(&mut store, 42_000_000).contains(&Event::Stopped));
    drop(store);
    disk.unlock();

    let mut damaged = Vec::new();
    let report = check(&*disk, &mut |finding| {
        if !matches!(finding, Finding::Sound { .. }) {
            damaged.push(finding);
        }
    });
    assert_eq!(damaged, []);
    assert!(report.clean && report.is_sound());
    assert_eq!((report.log_messages, report.run_messages, report.meta.len()), (10, 10, 1));

    let (_, recovered) = open(disk, small()).unwrap();
    assert!(recovered.clean && !recovered.torn_tail);
    assert_eq!(recovered.queues[0].delivered_upto, 5);
    assert_eq!(recovered.queues[0].next_seq, 1501);
    assert_eq!(recovered.queues[0].runs[0].messages, 10);
    assert_eq!(contents(&recovered), expected(1500)[1490..]);
    std::fs::remove_dir_all(&root).unwrap();
}

#[test]
fn salvage_takes_the_records_before_the_damage_and_counts_the_others() {
    let (disk, mut store, _) = filled(1);
    for seq in 2..=9 {
        store.publish(&[(QUEUE, seq)], &payload(seq));
    }
    // One batch, and what vouches for it.
    pump(&disk, &mut store, 1_000_000).unwrap();
    pump(&disk, &mut store, 2_000_000).unwrap();
    drop(store);
    let (name, at) = place(&disk, &payload(7));
    disk.flip_bit(&name, at * 8);
    let (_, recovered) = opened(&disk, Options { salvage: true, ..small() });
    assert_eq!(contents(&recovered), expected(6));
    let what = &recovered.damage[0].what;
    assert!(
        what.ends_with(": 3 of its 8 records cannot be read, each one message at most"),
        "{what}"
    );
}
