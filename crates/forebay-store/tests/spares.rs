//! Where the next segments come from: room that is allocated at once, and written before it is needed where that
//! takes nothing from commits.

mod support;

use std::sync::Arc;

use forebay_store::fault_disk::{Recorded, RecordingDisk};
use forebay_store::{Disk, Event, Home, Lane, MemDisk, Options, Request, Store, open, perform};
use support::small_store::{QUEUE, contents, expected, opened, payload, pump, small};

/// Larger than what a commit may be for which space is pre-written.
const LARGE_BYTES: usize = 100 << 10;

fn roomy() -> Options {
    Options { segment_bytes: 4 << 20, batch_max_bytes: 256 << 10, ..Options::default() }
}

fn recorded(options: Options) -> (Arc<RecordingDisk>, Store) {
    let disk = Arc::new(RecordingDisk::new(Arc::new(MemDisk::new())).unwrap());
    let (store, _) = open(disk.clone(), options).unwrap_or_else(|error| panic!("{error}"));
    (disk, store)
}

fn perform_all(disk: &dyn Disk, store: &mut Store, now_us: u64) {
    while let Some(request) = store.poll(now_us) {
        store.complete(now_us, perform(disk, request)).unwrap();
    }
    while store.poll_event().is_some() {}
}

fn allocated(disk: &RecordingDisk) -> usize {
    disk.recorded().iter().filter(|call| matches!(call, Recorded::Allocate(..))).count()
}

/// Bytes written to spares.
fn prewritten_bytes(disk: &RecordingDisk) -> usize {
    let calls = disk.recorded();
    let writes = calls.iter().filter_map(|call| match call {
        Recorded::Write(name, _, bytes) if name.starts_with("spare-") => Some(bytes.len()),
        _ => None,
    });
    writes.sum()
}

#[test]
fn nothing_is_pre_written_while_commits_are_large() {
    let (disk, mut store) = recorded(roomy());
    for seq in 1..=60u64 {
        store.publish(&[(QUEUE, seq)], &[seq as u8; LARGE_BYTES]);
        perform_all(&*disk, &mut store, seq * 1_000);
    }
    // 6 MB are in the first segment, which is left at once, and two that had room; for three more there is room.
    assert_eq!((allocated(&disk), prewritten_bytes(&disk)), (5, 0));
    assert_eq!(store.statistics().spares, 3);
    // The log rests: what there is room for is written, and no more.
    for later_ms in 1..=3 {
        perform_all(&*disk, &mut store, 60_000 + later_ms * 20_000);
    }
    assert_eq!((allocated(&disk), prewritten_bytes(&disk)), (5, 3 * (4 << 20)));
}

#[test]
fn a_full_disk_is_noticed_while_nothing_is_pre_written() {
    let disk = Arc::new(MemDisk::new());
    let (mut store, _) = opened(&disk, roomy());
    // For two spares, and not for the third.
    disk.set_capacity(Some(disk.used_bytes() + (11 << 20)));
    let (mut seq, mut low) = (0, false);
    while !low {
        seq += 1;
        store.publish(&[(QUEUE, seq)], &[seq as u8; LARGE_BYTES]);
        let events = pump(&disk, &mut store, seq * 1_000).expect("there is room for the log");
        low = events.contains(&Event::LowSpace(true));
    }
    // What was confirmed until then has its place, and so has more.
    for seq in seq + 1..seq + 40 {
        store.publish(&[(QUEUE, seq)], &[seq as u8; LARGE_BYTES]);
        pump(&disk, &mut store, seq * 1_000).expect("the room was kept");
    }
}

#[test]
fn small_commits_move_to_space_that_was_written() {
    let (disk, mut store) = recorded(roomy());
    let mut seq = 0;
    let renamed = loop {
        seq += 1;
        store.publish(&[(QUEUE, seq)], &payload(seq));
        perform_all(&*disk, &mut store, seq * 1_000);
        let begun = disk.recorded().into_iter().find_map(|call| match call {
            Recorded::Rename(from, _) if from.starts_with("spare-") => Some(from),
            _ => None,
        });
        if let Some(spare) = begun {
            break spare;
        }
        assert!(seq < 1000, "the first segment is never left");
    };
    let calls = disk.recorded();
    let zeros = calls.iter().filter_map(|call| match call {
        Recorded::Write(name, _, bytes) if *name == renamed => Some(bytes.len()),
        _ => None,
    });
    assert_eq!(zeros.sum::<usize>(), 4 << 20);
    // One segment ahead is enough while they go on.
    for seq in seq + 1..seq + 20 {
        store.publish(&[(QUEUE, seq)], &payload(seq));
        perform_all(&*disk, &mut store, seq * 1_000);
    }
    assert_eq!(prewritten_bytes(&disk), 2 * (4 << 20));
}

#[test]
fn a_disk_that_cannot_allocate_is_written_to_instead() {
    let disk = Arc::new(MemDisk::new());
    disk.set_allocates(false);
    let (mut store, _) = opened(&disk, small());
    for seq in 1..=100 {
        store.publish(&[(QUEUE, seq)], &payload(seq));
        pump(&disk, &mut store, seq * 1_000).unwrap();
    }
    assert_eq!(store.statistics().spares, 3);
    let spares = disk.list().unwrap().into_iter().filter(|name| name.starts_with("spare-"));
    let sizes: Vec<_> = spares.map(|name| disk.len(&name).unwrap()).collect();
    assert_eq!(sizes, [64 << 10; 3], "and none that was begun for nothing");
    disk.power_loss(1);
    let (_, recovered) = opened(&disk, small());
    assert_eq!(contents(&recovered), expected(100));
}

/// The slice is on its way while three segments are begun; if one of them were the file that it is for, zeros would lie
/// over what was confirmed.
#[test]
fn a_spare_is_not_taken_while_a_slice_of_it_is_written() {
    let disk = Arc::new(MemDisk::new());
    let (mut store, _) = opened(&disk, small());
    let (mut seq, mut slice): (u64, Option<Request>) = (0, None);
    let publish = |store: &mut Store, slice: &mut Option<Request>, seq: u64| {
        assert_ne!(store.publish(&[(QUEUE, seq)], &payload(seq)), Home::NONE);
        while let Some(request) = store.poll(seq * 1_000) {
            // Of all that is done beside the log only the slice is held back; it is the first that writes.
            if request.lane() == Lane::Background && request.write_bytes() > 0 {
                assert!(slice.replace(request).is_none(), "one at a time");
                continue;
            }
            store.complete(seq * 1_000, perform(&*disk, request)).unwrap();
        }
    };
    while slice.is_none() {
        seq += 1;
        publish(&mut store, &mut slice, seq);
        assert!(seq < 1000, "nothing is ever pre-written");
    }
    let before = store.statistics().segments;
    while store.statistics().segments < before + 4 {
        seq += 1;
        publish(&mut store, &mut slice, seq);
    }
    let slice = slice.expect("it was held back");
    store.complete(seq * 1_000, perform(&*disk, slice)).unwrap();
    pump(&disk, &mut store, seq * 1_000).unwrap();
    disk.power_loss(2);
    let (_, recovered) = opened(&disk, small());
    assert_eq!(contents(&recovered), expected(seq));
}
