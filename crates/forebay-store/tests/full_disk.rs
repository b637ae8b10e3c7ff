//! A full disk: it is noticed before the log needs it, and what is reserved serves acknowledgements.

mod support;

use std::sync::Arc;

use forebay_store::{ACK_BYTES, Disk, Event, MemDisk, Options};
use support::small_store::{QUEUE, contents, expected, filled, opened, payload, pump, small};

#[test]
fn a_full_disk_is_noticed_before_the_log_needs_it_and_acks_still_drain() {
    let (disk, mut store, first) = filled(1);
    // Room for the segments there are, not for those that are to be pre-written.
    let mut now_us = 1_000_000;
    let mut homes = Vec::new();
    let mut next = 2;
    let mut low = false;
    disk.set_capacity(Some(disk.used_bytes() + (150 << 10)));
    while !low {
        homes.push((next, store.publish(&[(QUEUE, next)], &payload(next))));
        next += 1;
        now_us += 20_000;
        for event in pump(&disk, &mut store, now_us).unwrap() {
            assert!(!matches!(event, Event::LowSpace(false)));
            low |= event == Event::LowSpace(true);
        }
        assert!(next < 2000, "pre-writing was never tried");
    }
    // Publishers are stopped; what is there is consumed, batch by batch.
    store.settle(QUEUE, 1, first[0]);
    let mut events = Vec::new();
    for (seq, home) in homes {
        store.settle(QUEUE, seq, home);
        now_us += 20_000;
        events.extend(pump(&disk, &mut store, now_us).unwrap());
    }
    assert_eq!(store.durable_batch(), store.open_batch() - 1);
    disk.set_capacity(None);
    for _ in 0..4 {
        now_us += 1_000_000;
        events.extend(pump(&disk, &mut store, now_us).unwrap());
    }
    assert!(events.contains(&Event::LowSpace(false)), "there is room again");
    disk.power_loss(3);
    let (_, recovered) = opened(&disk, small());
    assert_eq!(contents(&recovered), []);
}

/// A segment ended where the last batch did, and one message may be larger than what was kept for that.
#[test]
fn a_full_disk_is_not_the_end_for_messages_larger_than_a_batch() {
    let disk = Arc::new(MemDisk::new());
    let options = Options { spare_segments_max: 3, ..small() };
    let (mut store, _) = opened(&disk, options.clone());
    let large = |seq: u64| vec![seq as u8; 20_000];
    disk.set_capacity(Some(900 << 10));
    let (mut seq, mut low) = (0, false);
    while !low {
        seq += 1;
        // Behind some that are small, every other time.
        store.publish(
            &[(QUEUE, seq)],
            &if seq.is_multiple_of(3) { large(seq) } else { payload(seq) },
        );
        if seq.is_multiple_of(2) {
            let events = pump(&disk, &mut store, seq * 1_000).expect("the log has its room");
            low = events.contains(&Event::LowSpace(true));
        }
        assert!(seq < 1_000, "the disk is never full");
    }
    // What was on its way then.
    for _ in 0..4 {
        seq += 1;
        store.publish(&[(QUEUE, seq)], &large(seq));
        pump(&disk, &mut store, seq * 1_000).expect("the log has its room");
    }
    for name in disk.list().unwrap() {
        assert!(disk.len(&name).unwrap() <= options.segment_bytes, "{name}");
    }
    disk.power_loss(9);
    disk.set_capacity(None);
    let (_, recovered) = opened(&disk, options);
    let seqs: Vec<u64> = recovered.queues[0].messages.iter().map(|message| message.0).collect();
    assert_eq!(seqs, (1..=seq).collect::<Vec<_>>());
}

/// Publishers are held; those who consume acknowledge some now and then, and each time costs two blocks.
#[test]
fn one_old_message_does_not_take_the_log_s_last_room() {
    const GROUP: u64 = 32;
    let disk = filled(1).0;
    let (mut store, recovered) = opened(&disk, Options { log_cap_bytes: 1 << 30, ..small() });
    let first = recovered.queues[0].messages[0].1;
    let (mut now_us, mut next, mut events) = (1_000_000, 2, Vec::new());
    disk.set_capacity(Some(900 << 10));
    let mut homes = Vec::new();
    while !events.contains(&Event::LowSpace(true)) {
        for seq in next..next + GROUP {
            homes.push((seq, store.publish(&[(QUEUE, seq)], &payload(seq))));
        }
        (next, now_us) = (next + GROUP, now_us + 20_000);
        events.extend(pump(&disk, &mut store, now_us).unwrap());
        assert!(next < 5_000, "the disk is never full");
    }
    let newest = || disk.list().unwrap().into_iter().filter(|name| name.starts_with("log-")).max();
    let (mut old, mut there, mut begun) = (first, newest(), Vec::new());
    for group in homes.chunks(GROUP as usize).chain([&[][..]; 2]) {
        for &(seq, home) in group {
            store.settle(QUEUE, seq, home);
        }
        for _ in 0..2 {
            now_us += 20_000;
            for event in pump(&disk, &mut store, now_us).expect("there is room for acks") {
                if event == (Event::Evacuate { homes: old }) {
                    old = store.relocate(&[(QUEUE, 1)], &payload(1));
                }
                events.push(event);
            }
            if newest() != there {
                there = newest();
                begun.push(store.statistics().log_written_bytes);
            }
        }
    }
    assert_ne!(old, first);
    // Segments that have room and were not written are left for written ones, as these are quicker, and not here.
    let most = small().segment_bytes / 2;
    assert!(begun.len() > 2 && begun.windows(2).all(|of| of[1] - of[0] > most), "{begun:?}");
    assert!(events.contains(&Event::LowSpace(false)), "what was settled has given its room back");
    disk.power_loss(3);
    let (_, recovered) = opened(&disk, small());
    assert_eq!(contents(&recovered), expected(1));
}

/// Everybody acknowledges at once what was consumed long ago, one here, one there, so that each takes a range of its own.
#[test]
fn acknowledgements_of_one_commit_take_all_the_room_that_was_kept_for_them() {
    for allocates in [true, false] {
        let disk = filled(1).0;
        disk.set_allocates(allocates);
        let (mut store, recovered) = opened(&disk, Options { log_cap_bytes: 1 << 30, ..small() });
        let mut homes = vec![(1, recovered.queues[0].messages[0].1)];
        let (mut next, mut now_us) = (2, 1_000_000);
        disk.set_capacity(Some(1 << 20));
        let mut low = false;
        while !low {
            for seq in next..next + 60 {
                homes.push((seq, store.publish(&[(QUEUE, seq)], &payload(seq)[..100])));
            }
            (next, now_us) = (next + 60, now_us + 20_000);
            low = pump(&disk, &mut store, now_us).unwrap().contains(&Event::LowSpace(true));
            assert!(next < 50_000, "the disk is never full");
        }
        // Not a byte for anything to grow.
        disk.set_capacity(Some(disk.used_bytes()));
        let settled_bytes = homes.len() * 16;
        assert!(settled_bytes > small().segment_bytes as usize, "more than a segment of them");
        for odd in [1, 0] {
            for &(seq, home) in homes.iter().filter(|(seq, _)| seq % 2 == odd) {
                store.settle(QUEUE, seq, home);
            }
        }
        let settled = store.open_batch();
        pump(&disk, &mut store, now_us + 20_000).expect("there is room for acks");
        assert!(store.durable_batch() >= settled);
        disk.power_loss(3);
        disk.set_capacity(None);
        let (_, recovered) = opened(&disk, small());
        assert_eq!(contents(&recovered), []);
    }
}

/// A dead letter and the acknowledgement of what it is made of: a crash between the two would leave both.
#[test]
fn what_goes_with_a_message_is_in_its_batch() {
    let (disk, store, _) = filled(1);
    drop(store);
    let options = Options { segment_bytes: 32 << 10, ..small() };
    // Whatever room there is left for both.
    let mut begun = 0;
    for bytes in (19_900..20_900).step_by(12) {
        let (mut store, recovered) = opened(&Arc::new(disk.copy()), options.clone());
        store.publish(&[(2, 1)], &vec![1; bytes]);
        let before = store.open_batch();
        store.publish(&[(2, 2)], &[2; 4_000]);
        let batch = store.open_batch();
        begun += batch - before;
        store.settle(QUEUE, 1, recovered.queues[0].messages[0].1);
        assert_eq!(store.open_batch(), batch, "{bytes}");
    }
    assert!((10..100).contains(&begun), "{begun} letters had no room");
}

/// For what is larger than a segment the file becomes longer, and it is no longer for what goes with that.
#[test]
fn what_goes_with_a_message_that_is_larger_than_a_segment_is_in_its_batch() {
    let (disk, store, _) = filled(1);
    drop(store);
    let options = Options { segment_bytes: 32 << 10, ..small() };
    let (mut store, recovered) = opened(&Arc::new(disk.copy()), options);
    store.publish(&[(2, 1)], &[1; 200]);
    store.publish(&[(2, 2)], &[2; 40_000]);
    let batch = store.open_batch();
    store.settle(QUEUE, 1, recovered.queues[0].messages[0].1);
    assert_eq!(store.open_batch(), batch);
}

/// What a transaction acknowledges is one batch, and no segment can become longer for it.
#[test]
fn a_group_has_its_room_on_a_full_disk() {
    // Wherever in its segment the log is then.
    for more in 0..8 {
        let disk = Arc::new(MemDisk::new());
        let (mut store, _) = opened(&disk, small());
        let (mut homes, mut now_us, mut low, mut left) = (Vec::new(), 0, false, more);
        disk.set_capacity(Some(700 << 10));
        while !low || left > 0 {
            for _ in 0..50 {
                let seq = homes.len() as u64 + 1;
                homes.push((seq, store.publish(&[(QUEUE, seq)], &payload(seq)[..100])));
            }
            now_us += 20_000;
            left -= u64::from(low);
            low |= pump(&disk, &mut store, now_us).unwrap().contains(&Event::LowSpace(true));
            assert!(homes.len() < 50_000, "the disk is never full");
        }
        disk.set_capacity(Some(disk.used_bytes()));
        // Not the first of its batch.
        store.settle(QUEUE, 2, homes[1].1);
        let group: Vec<_> = homes.into_iter().step_by(2).take(1_500).collect();
        let bytes = group.len() * ACK_BYTES;
        assert!(bytes > small().segment_bytes as usize / 2, "{bytes}");
        store.begin_atomic(bytes);
        let batch = store.open_batch();
        for &(seq, home) in &group {
            store.settle(QUEUE, seq, home);
        }
        assert_eq!(store.open_batch(), batch, "it is one");
        store.end_atomic();
        pump(&disk, &mut store, now_us + 20_000).expect("there is room for acks");
        assert!(store.durable_batch() >= batch);
        disk.power_loss(3);
        disk.set_capacity(None);
        let (_, recovered) = opened(&disk, small());
        let left = contents(&recovered);
        assert!(group.iter().all(|(seq, _)| left.iter().all(|message| message.0 != *seq)));
    }
}

/// What lies behind a message of long ago stays, however little it says, and each start begins a segment.
#[test]
fn a_start_on_a_full_disk_takes_nothing_of_the_reserve_for_good() {
    for clean in [true, false] {
        let disk = filled(1).0;
        let options = Options { log_cap_bytes: 1 << 30, ..small() };
        let (mut store, _) = opened(&disk, options.clone());
        let (mut next, mut now_us, mut low) = (2, 1_000_000, false);
        disk.set_capacity(Some(900 << 10));
        while !low {
            for seq in next..next + 32 {
                store.publish(&[(QUEUE, seq)], &payload(seq));
            }
            (next, now_us) = (next + 32, now_us + 20_000);
            low = pump(&disk, &mut store, now_us).unwrap().contains(&Event::LowSpace(true));
            assert!(next < 5_000, "the disk is never full");
        }
        drop(store);
        disk.kill();
        let mut there = Vec::new();
        for life in 0..6 {
            disk.set_capacity(Some(disk.used_bytes()));
            let (mut store, recovered) = opened(&disk, options.clone());
            // What a start gives back somebody else takes.
            disk.set_capacity(Some(disk.used_bytes()));
            let gone = life.min(1);
            assert_eq!(contents(&recovered), expected(next - 1)[..(next - 1 - gone) as usize]);
            // Somebody acknowledges one of the newest, and nobody the oldest.
            let last = recovered.queues[0].messages.last().expect("there are some");
            if life == 0 {
                store.settle(QUEUE, last.0, last.1);
            }
            for later_ms in [20, 40, 60] {
                pump(&disk, &mut store, later_ms * 1_000).expect("there is room for this");
            }
            there.push((store.statistics().segments, store.statistics().spares, disk.used_bytes()));
            if clean {
                store.shutdown();
                pump(&disk, &mut store, 100_000).unwrap();
            }
            drop(store);
            disk.kill();
        }
        assert!(there[0].1 >= 1, "one is taken while that is more than a start's: {there:?}");
        assert!(there.iter().all(|now| *now == there[0]), "{there:?}");
    }
}

/// Publishers are held, and all but the oldest segment's messages is consumed. To copy these makes room, once there are others behind it
/// that are dead, and takes some: where too little was left the store ended.
#[test]
fn what_is_copied_on_a_full_disk_leaves_room_for_acknowledgements() {
    for group in [48, 64, 96, 128, 200] {
        let disk = filled(1).0;
        let (mut store, recovered) = opened(&disk, small());
        store.settle(QUEUE, 1, recovered.queues[0].messages[0].1);
        let (mut now_us, mut next, mut low) = (1_000_000, 2, false);
        disk.set_capacity(Some(900 << 10));
        let mut homes = Vec::new();
        while !low {
            for seq in next..next + 32 {
                homes.push((seq, store.publish(&[(QUEUE, seq)], &payload(seq))));
            }
            (next, now_us) = (next + 32, now_us + 20_000);
            low = pump(&disk, &mut store, now_us).unwrap().contains(&Event::LowSpace(true));
            assert!(next < 5_000, "the disk is never full");
        }
        let kept = homes.iter().filter(|(_, home)| *home == homes[0].1).count();
        let consumed = homes.split_off(kept);
        let mut copied = 0;
        for settled in consumed.chunks(group).chain([&[][..]; 10]) {
            for &(seq, home) in settled {
                store.settle(QUEUE, seq, home);
            }
            for _ in 0..3 {
                now_us += 20_000;
                let events = pump(&disk, &mut store, now_us);
                for event in events.unwrap_or_else(|error| panic!("{group}: {error}")) {
                    let Event::Evacuate { homes: old } = event else { continue };
                    for (seq, home) in homes.iter_mut().filter(|(_, home)| *home == old) {
                        *home = store.relocate(&[(QUEUE, *seq)], &payload(*seq));
                        copied += 1;
                    }
                }
            }
        }
        assert!((kept..=3 * kept).contains(&copied), "{group}: {copied} copies of {kept}");
        disk.power_loss(3);
        let (_, recovered) = opened(&disk, small());
        assert_eq!(contents(&recovered), expected(kept as u64 + 1)[1..], "{group}");
    }
}
