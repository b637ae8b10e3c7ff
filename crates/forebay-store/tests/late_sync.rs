//! Where a commit is not synced: what is, and when.

mod support;

use std::sync::Arc;

use forebay_store::{Disk, Durability, Event, Lane, MemDisk, Options, RunBuilder, perform};
use support::small_store::{QUEUE, contents, expected, opened, payload, pump, small};

#[test]
fn the_weaker_policies_report_after_the_write_and_sync_later() {
    let disk = Arc::new(MemDisk::new());
    let options = Options { durability: Durability::Interval { ms: 50 }, ..small() };
    let (mut store, _) = opened(&disk, options.clone());
    store.publish(&[(QUEUE, 1)], &payload(1));
    let batch = store.open_batch();
    pump(&disk, &mut store, 1000).unwrap();
    assert!(store.durable_batch() >= batch);
    assert!(store.next_deadline_us().is_some_and(|at_us| at_us <= 51_000));
    pump(&disk, &mut store, 51_000).unwrap();
    disk.power_loss(11);
    let (_, recovered) = opened(&disk, options);
    assert_eq!(contents(&recovered), expected(1));
}

/// There is the next batch whenever the lane is free: a sync that waits for its turn behind them never comes.
#[test]
fn an_interval_is_kept_while_there_is_always_something_to_write() {
    let disk = Arc::new(MemDisk::new());
    let interval = Durability::Interval { ms: 50 };
    let options = Options { segment_bytes: 1 << 20, durability: interval, ..small() };
    let (mut store, _) = opened(&disk, options.clone());
    let mut before = None;
    for seq in 1..=120u64 {
        let now_us = seq * 1000;
        store.publish(&[(QUEUE, seq)], &payload(seq));
        store.add_waiter();
        if let Some(request) = before {
            store.complete(now_us, perform(&*disk, request)).unwrap();
        }
        // The other lanes do nothing: the segment stays the one that it is.
        before = store.poll(now_us).filter(|request| request.lane() == Lane::Log);
        assert!(before.is_some(), "{seq} is to be written");
    }
    let segments = disk.list().unwrap().into_iter().filter(|name| name.starts_with("log-"));
    assert_eq!(segments.count(), 1);
    disk.lose_power(|_| forebay_store::fault_disk::Fate::Old);
    let (_, recovered) = opened(&disk, options);
    let found = contents(&recovered);
    assert!(found.len() >= 69, "{} messages of the first 70 ms", found.len());
    assert_eq!(found, expected(found.len() as u64));
}

/// Syncs came with segments only, and on a full disk there is no next segment: what was consumed kept its space, and
/// publishers were held until a restart.
#[test]
fn a_full_disk_has_room_again_when_messages_are_gone_though_commits_are_not_synced() {
    let disk = Arc::new(MemDisk::new());
    let (mut store, _) = opened(&disk, Options { durability: Durability::Os, ..small() });
    disk.set_capacity(Some(600 << 10));
    let (mut now_us, mut homes, mut events) = (0, Vec::new(), Vec::new());
    while !events.contains(&Event::LowSpace(true)) {
        let seq = homes.len() as u64 + 1;
        homes.push(store.publish(&[(QUEUE, seq)], &payload(seq)));
        now_us += 1_000;
        events.extend(pump(&disk, &mut store, now_us).unwrap());
        assert!(seq < 2_000, "the disk is never full");
    }
    for (seq, home) in (1..).zip(homes) {
        store.settle(QUEUE, seq, home);
    }
    let segments = store.statistics().segments;
    assert!(segments > 2);
    for _ in 0..4 {
        now_us += 20_000;
        events.extend(pump(&disk, &mut store, now_us).unwrap());
    }
    assert_eq!(store.statistics().segments, 1);
    assert!(events.contains(&Event::LowSpace(false)), "{events:?}");
    assert_eq!(store.next_deadline_us(), None, "all is synced");
}

/// What makes it dead is in the last batch, which could not know that it would be there.
#[test]
fn a_segment_goes_when_a_run_has_what_was_in_it_though_nothing_more_is_written() {
    for durability in [Durability::Always, Durability::Interval { ms: 50 }, Durability::Os] {
        let disk = Arc::new(MemDisk::new());
        let options = Options { durability, ..small() };
        let (mut store, _) = opened(&disk, options.clone());
        let (mut seq, mut builder) = (0, RunBuilder::new());
        while store.statistics().segments < 2 {
            seq += 1;
            builder.push(seq, store.publish(&[(QUEUE, seq)], &payload(seq)), &payload(seq));
            pump(&disk, &mut store, seq * 1_000).unwrap();
        }
        store.write_run(QUEUE, builder, true);
        for turn in 1..=6 {
            pump(&disk, &mut store, 10_000_000 + turn * 20_000).unwrap();
        }
        assert_eq!(store.statistics().segments, 1, "{durability:?}");
        assert_eq!(store.next_deadline_us(), None, "all is said and synced");
        disk.power_loss(5);
        let (_, recovered) = opened(&disk, options);
        assert_eq!(recovered.queues[0].runs[0].messages, seq);
    }
}

/// The power takes what is written and not synced, and what it acknowledged is needed again.
#[test]
fn a_segment_stays_until_that_is_synced_by_which_it_is_dead() {
    let disk = Arc::new(MemDisk::new());
    let options = Options { durability: Durability::Os, ..small() };
    let (mut store, _) = opened(&disk, options.clone());
    let mut homes = Vec::new();
    while store.statistics().segments < 2 {
        let seq = homes.len() as u64 + 1;
        homes.push((seq, store.publish(&[(QUEUE, seq)], &payload(seq))));
        pump(&disk, &mut store, seq * 1_000).unwrap();
    }
    for &(seq, home) in homes.iter().filter(|message| message.1 == homes[0].1) {
        store.settle(QUEUE, seq, home);
    }
    store.add_waiter();
    let settled = store.open_batch();
    pump(&disk, &mut store, homes.len() as u64 * 1_000).unwrap();
    assert!(store.durable_batch() >= settled, "it is written");
    disk.lose_power(|_| forebay_store::fault_disk::Fate::Old);
    let (_, recovered) = opened(&disk, options);
    assert!(contents(&recovered).starts_with(&expected(homes.len() as u64 - 1)));
}
