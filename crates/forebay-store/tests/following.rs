//! A full batch goes to the disk behind the one that is being written.

mod support;

use std::io::ErrorKind;
use std::sync::Arc;

use forebay_store::fault_disk::Call;
use forebay_store::{
    Disk, Durability, Lane, MemDisk, OpenError, Options, Request, Store, open, perform,
};
use support::small_store::{QUEUE, contents, expected, filled, opened, payload, pump, small};

/// So many messages are more than a batch of these stores holds.
const FULL: u64 = 40;

fn publish(store: &mut Store, seqs: impl IntoIterator<Item = u64>) {
    for seq in seqs {
        store.publish(&[(QUEUE, seq)], &payload(seq));
        store.add_waiter();
    }
}

/// What the log's lane gets, if anything; the other lanes are done with theirs at once.
fn commit(disk: &MemDisk, store: &mut Store, now_us: u64) -> Option<Request> {
    while let Some(request) = store.poll(now_us) {
        if request.lane() == Lane::Log {
            return Some(request);
        }
        store.complete(now_us, perform(disk, request)).unwrap();
    }
    None
}

/// A commit of message 4 in flight, and behind it a full batch that is open.
fn one_in_flight() -> (Arc<MemDisk>, Store, Request) {
    let (disk, mut store, _) = filled(3);
    publish(&mut store, [4]);
    let first = commit(&disk, &mut store, 1_000_000).expect("somebody waits");
    publish(&mut store, 5..5 + FULL);
    (disk, store, first)
}

fn segments(disk: &MemDisk) -> Vec<String> {
    let mut names = disk.list().unwrap();
    names.retain(|name| name.starts_with("log-"));
    names
}

#[test]
fn the_lane_has_two_commits_at_most_and_they_are_done_in_turn() {
    let (disk, mut store, first) = one_in_flight();
    let second = commit(&disk, &mut store, 1_000_100).expect("it is full");
    publish(&mut store, 5 + FULL..5 + 2 * FULL);
    assert!(store.is_full());
    assert!(commit(&disk, &mut store, 1_000_200).is_none(), "two are enough");
    let (durable, before) = (store.durable_batch(), store.commits());
    store.complete(1_000_300, perform(&*disk, first)).unwrap();
    assert_eq!((store.durable_batch(), store.commits().last_us), (durable + 1, 300));
    assert_eq!(store.commits().written_bytes - before.written_bytes, 4096);
    let third = commit(&disk, &mut store, 1_000_300).expect("full, with one before it");
    store.complete(1_000_400, perform(&*disk, second)).unwrap();
    assert_eq!(store.commits().last_us, 100, "since the first was done");
    store.complete(1_000_500, perform(&*disk, third)).unwrap();
    assert_eq!(store.durable_batch(), durable + 3);
    disk.power_loss(1);
    let (_, recovered) = opened(&disk, small());
    assert_eq!(contents(&recovered), expected(4 + 2 * FULL));
}

#[test]
fn what_is_not_full_waits_for_the_lane() {
    let (disk, mut store, _) = filled(3);
    publish(&mut store, [4]);
    let first = commit(&disk, &mut store, 1_000_000).expect("somebody waits");
    publish(&mut store, [5, 6]);
    assert!(commit(&disk, &mut store, 1_000_100).is_none());
    store.complete(1_000_200, perform(&*disk, first)).unwrap();
    assert!(commit(&disk, &mut store, 1_000_200).is_some());
}

#[test]
fn nothing_follows_where_it_was_said_so_or_commits_are_not_synced() {
    let (disk, mut store, _first) = one_in_flight();
    store.set_may_follow(false);
    assert!(commit(&disk, &mut store, 1_000_100).is_none());
    store.set_may_follow(true);
    assert!(commit(&disk, &mut store, 1_000_100).is_some());

    let disk = Arc::new(MemDisk::new());
    let (mut store, _) = opened(&disk, Options { durability: Durability::Os, ..small() });
    publish(&mut store, [1]);
    assert!(commit(&disk, &mut store, 1_000_000).is_some());
    publish(&mut store, 2..2 + FULL);
    assert!(commit(&disk, &mut store, 1_000_100).is_none());
}

/// The one behind is not begun before the first is synced, and says so: where it is found alone, the first was lost later.
#[test]
fn a_batch_that_followed_vouches_for_the_one_before_and_begins_no_segment() {
    let (disk, mut store, _) = filled(3);
    let (mut next, mut followers, mut alone) = (4, 0, 0);
    for round in 1..=60 {
        let now_us = round * 1_000_000;
        publish(&mut store, [next]);
        let first = commit(&disk, &mut store, now_us).expect("somebody waits");
        publish(&mut store, next + 1..=next + FULL);
        if let Some(second) = commit(&disk, &mut store, now_us) {
            followers += 1;
            let found = segments(&disk);
            let second = perform(&*disk, second);
            assert_eq!(segments(&disk), found);
            let without = open(Arc::new(disk.copy()), small());
            assert!(matches!(without, Err(OpenError::Damaged { .. })));
            store.complete(now_us, perform(&*disk, first)).unwrap();
            store.complete(now_us, second).unwrap();
        } else {
            alone += 1;
            store.complete(now_us, perform(&*disk, first)).unwrap();
        }
        pump(&disk, &mut store, now_us + 100).unwrap();
        let (_, recovered) = opened(&Arc::new(disk.copy()), small());
        next += FULL + 1;
        assert_eq!(contents(&recovered), expected(next - 1));
    }
    assert!(followers > 30 && alone > 3, "{followers} and {alone}");
}

#[test]
fn what_was_to_follow_a_failed_commit_is_not_durable() {
    for call in [Call::Write, Call::Sync] {
        let (disk, mut store, first) = one_in_flight();
        drop(commit(&disk, &mut store, 1_000_100).expect("it is full"));
        let durable = store.durable_batch();
        disk.fail(call, 0, ErrorKind::Other);
        let first = perform(&*disk, first);
        assert!(first.is_final());
        store.complete(1_000_200, first).unwrap_err();
        assert!(store.poll(2_000_000).is_none());
        assert_eq!(store.durable_batch(), durable);
        disk.power_loss(1);
        let (_, recovered) = opened(&disk, small());
        assert_eq!(contents(&recovered)[..3], expected(3));
    }
}
