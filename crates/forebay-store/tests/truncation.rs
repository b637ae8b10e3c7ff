//! When segments may go, and what a crash in between finds.

mod support;

use std::sync::Arc;

use forebay_store::{
    Disk, Event, Finding, Lane, MemDisk, OpenError, Options, Recovered, check, open, perform,
};
use support::small_store::{QUEUE, contents, expected, filled, opened, payload, pump, small};

#[test]
fn the_log_over_its_cap_asks_for_evacuation_and_shrinks() {
    let (disk, mut store, homes) = filled(1);
    let mut live = vec![(1, homes[0])];
    let mut asked = 0;
    for seq in 2..=4000u64 {
        let home = store.publish(&[(QUEUE, seq)], &payload(seq));
        // One of a hundred stays.
        if seq.is_multiple_of(100) {
            live.push((seq, home));
        } else {
            store.settle(QUEUE, seq, home);
        }
        for event in pump(&disk, &mut store, seq * 20_000).unwrap() {
            if let Event::Evacuate { homes } = event {
                asked += 1;
                for (seq, home) in live.iter_mut().filter(|message| message.1 == homes) {
                    *home = store.relocate(&[(QUEUE, *seq)], &payload(*seq));
                }
            }
        }
        let bytes = store.statistics().log_bytes;
        assert!(bytes <= (256 + 128) << 10, "the log has {bytes} bytes");
    }
    assert!(asked > 3);
    disk.power_loss(4);
    let (_, recovered) = opened(&disk, small());
    let seqs: Vec<_> = recovered.queues[0].messages.iter().map(|message| message.0).collect();
    assert_eq!(seqs, live.iter().map(|message| message.0).collect::<Vec<_>>());
}

#[test]
fn a_segment_outlives_acknowledgements_that_are_not_durable_yet() {
    let (disk, mut store, homes) = filled(40);
    assert_ne!(homes[0], homes[39], "there are two segments");
    store.publish(&[(QUEUE, 41)], &payload(41));
    let commit = store.poll(10_000_000).unwrap();
    assert_eq!(commit.lane(), Lane::Log);
    for (seq, &home) in (1..).zip(&homes).filter(|(_, home)| **home == homes[0]) {
        store.settle(QUEUE, seq, home);
    }
    // This commit does not hold the acknowledgements; they wait for the next one.
    store.complete(10_000_100, perform(&*disk, commit)).unwrap();
    while let Some(request) = store.poll(10_000_200) {
        assert_eq!(request.lane(), Lane::Background);
        store.complete(10_000_200, perform(&*disk, request)).unwrap();
    }
    let copy = Arc::new(disk.copy());
    let (_, recovered) = opened(&copy, small());
    assert_eq!(contents(&recovered), expected(41));
    let segments = store.statistics().segments;
    pump(&disk, &mut store, 11_000_000).unwrap();
    assert!(store.statistics().segments < segments);
}

#[test]
fn a_segment_outlives_its_successor_s_checkpoint() {
    let (disk, mut store, homes) = filled(1);
    let mut now_us = 1_000_000;
    // Everything is settled at once; then the log goes on to the next segment, in the middle of which
    // the power goes: whatever the background lane did meanwhile, topology and numbers are there.
    store.settle(QUEUE, 1, homes[0]);
    for seq in 2..=200 {
        let home = store.publish(&[(QUEUE, seq)], &payload(seq));
        store.settle(QUEUE, seq, home);
        now_us += 1000;
        let commit = store.poll(now_us).expect("something was published");
        assert_eq!(commit.lane(), Lane::Log);
        store.complete(now_us, perform(&*disk, commit)).unwrap();
        let mut commit = None;
        while let Some(request) = store.poll(now_us) {
            match request.lane() {
                Lane::Log => commit = Some(request),
                Lane::Read | Lane::Background => {
                    store.complete(now_us, perform(&*disk, request)).unwrap();
                }
            }
        }
        let copy = Arc::new(disk.copy());
        let (_, recovered) = opened(&copy, small());
        assert_eq!(recovered.meta[&b"queue"[..]], b"seven");
        assert_eq!(recovered.queues[0].next_seq, seq + 1);
        if let Some(commit) = commit {
            store.complete(now_us, perform(&*disk, commit)).unwrap();
        }
    }
}

#[test]
fn a_segment_outlives_copies_forward_that_are_not_durable_yet() {
    let (disk, mut store, homes) = filled(1);
    let (mut old, mut now_us, mut asked) = (homes[0], 1_000_000, 0);
    for seq in 2..=1000 {
        let home = store.publish(&[(QUEUE, seq)], &payload(seq));
        store.settle(QUEUE, seq, home);
        now_us += 1000;
        let commit = store.poll(now_us).expect("something was published");
        assert_eq!(commit.lane(), Lane::Log);
        // The evacuation may be asked for while a commit is in flight that does not hold the copy.
        while let Some(event) = store.poll_event() {
            if event == (Event::Evacuate { homes: old }) {
                asked += 1;
                old = store.relocate(&[(QUEUE, 1)], &payload(1));
            }
        }
        store.complete(now_us, perform(&*disk, commit)).unwrap();
        let mut next = None;
        while let Some(request) = store.poll(now_us) {
            match request.lane() {
                Lane::Log => next = Some(request),
                Lane::Read | Lane::Background => {
                    store.complete(now_us, perform(&*disk, request)).unwrap();
                }
            }
        }
        if seq.is_multiple_of(10) || asked > 0 {
            let (_, recovered) = opened(&Arc::new(disk.copy()), small());
            let first = recovered.queues[0].messages.first();
            let first = first.map(|(seq, _, index)| (*seq, &recovered.payloads[*index]));
            assert_eq!(first, Some((1, &payload(1))));
        }
        if let Some(next) = next {
            store.complete(now_us, perform(&*disk, next)).unwrap();
        }
        if asked == 3 {
            return;
        }
    }
    panic!("asked {asked} times only");
}

#[test]
fn many_restarts_do_not_pile_up_segments() {
    let (disk, store, _) = filled(1);
    drop(store);
    let options = small();
    for _ in 0..60 {
        let (mut store, recovered) = opened(&disk, options.clone());
        assert_eq!(contents(&recovered), expected(1));
        let home = recovered.queues[0].messages[0].1;
        for turn in 0..4 {
            for event in pump(&disk, &mut store, turn * 20_000).unwrap() {
                if event == (Event::Evacuate { homes: home }) {
                    store.relocate(&[(QUEUE, 1)], &payload(1));
                }
            }
        }
    }
    let segments = disk.list().unwrap().iter().filter(|name| name.starts_with("log-")).count();
    assert!(segments < 40, "{segments} segments");
}

#[test]
fn an_atomic_group_is_never_cut() {
    let (disk, mut store, _) = filled(1);
    store.begin_atomic(0);
    for seq in 2..=200 {
        store.publish(&[(QUEUE, seq)], &payload(seq));
        assert!(store.poll(seq * 20_000).is_none_or(|request| request.lane() == Lane::Background));
    }
    assert!(store.is_full());
    let batch = store.open_batch();
    store.end_atomic();
    pump(&disk, &mut store, 1_000_000_000).unwrap();
    assert!(store.durable_batch() >= batch);
    let (_, recovered) = opened(&disk, small());
    assert_eq!(contents(&recovered), expected(200));
}

#[test]
fn a_large_topology_takes_several_batches_and_a_crash_between_them_loses_nothing() {
    let meta: Vec<(Vec<u8>, Vec<u8>)> =
        (0..120u32).map(|key| (key.to_be_bytes().to_vec(), vec![key as u8; 400])).collect();
    for calls in 0..40 {
        let disk = Arc::new(MemDisk::new());
        let (mut store, _) = opened(&disk, small());
        for (key, value) in &meta {
            store.put_meta(key, value);
            pump(&disk, &mut store, 0).unwrap();
        }
        store.publish(&[(QUEUE, 1)], &payload(1));
        pump(&disk, &mut store, 20_000).unwrap();
        drop(store);
        // A start writes a checkpoint; it is interrupted, twice, at another place.
        for again in 0..2u64 {
            disk.unlock();
            disk.stop_after(calls % 13 + again);
            let _ = open(disk.clone(), small());
            disk.power_loss(calls * 2 + again);
        }
        let (mut store, recovered) = opened(&disk, small());
        assert_eq!(recovered.meta.into_iter().collect::<Vec<_>>(), meta);
        assert_eq!(recovered.queues[0].messages.len(), 1);
        let home = recovered.queues[0].messages[0].1;
        store.settle(QUEUE, 1, home);
        for turn in 0..4 {
            pump(&disk, &mut store, 40_000 + turn * 20_000).unwrap();
        }
        let (_, recovered) = opened(&disk, small());
        assert_eq!(recovered.meta.len(), meta.len());
        assert!(recovered.queues[0].messages.is_empty());
    }
}

/// A copy that is not whole. Each batch says where the log begins, so one whose old end was freed looks otherwise.
#[test]
fn an_oldest_segment_that_is_missing_is_damage() {
    let (disk, store, _) = filled(900);
    drop(store);
    let segment = |epoch: u64| format!("log-{epoch:010}.seg");
    // The first one goes as it should, with what was in it.
    let (mut store, recovered) = opened(&disk, small());
    let (first, mut last) = (recovered.queues[0].messages[0].1, 0);
    for &(seq, home, _) in &recovered.queues[0].messages {
        if home == first {
            store.settle(QUEUE, seq, home);
            last = seq;
        }
    }
    for turn in 1..=4 {
        pump(&disk, &mut store, turn * 20_000).unwrap();
    }
    drop(store);
    assert!(disk.bytes(&segment(1)).is_none() && disk.bytes(&segment(2)).is_some());
    let kept = |recovered: &Recovered| -> Vec<u64> {
        recovered.queues[0].messages.iter().map(|message| message.0).collect()
    };
    let (_, recovered) = opened(&Arc::new(disk.copy()), small());
    assert_eq!(kept(&recovered), (last + 1..=900).collect::<Vec<_>>());

    for gone in [2..3, 2..4] {
        let copy = Arc::new(disk.copy());
        gone.clone().for_each(|epoch| copy.remove(&segment(epoch)).unwrap());
        let mut told = Vec::new();
        assert!(!check(&*copy, &mut |finding| told.push(finding)).is_sound());
        assert!(told.iter().any(|finding| matches!(finding, Finding::Damaged { file, .. }
            if *file == segment(2))));
        match open(copy.clone(), small()).unwrap_err() {
            OpenError::Damaged { file, offset: 0, what } if file == segment(2) => {
                assert!(what.contains(&segment(gone.end)), "{what}");
            }
            error => panic!("{error}"),
        }
        let (store, recovered) = opened(&copy, Options { salvage: true, ..small() });
        assert_eq!(recovered.damage.len(), 1);
        let rest = kept(&recovered);
        assert!(rest.len() > 100 && rest.last() == Some(&900));
        drop(store);
        // Accepted; and what is missed later is missed.
        let (_, recovered) = opened(&copy, small());
        assert_eq!((kept(&recovered), recovered.damage), (rest, vec![]));
        copy.remove(&segment(gone.end)).unwrap();
        copy.unlock();
        assert!(matches!(open(copy, small()), Err(OpenError::Damaged { .. })));
    }
}
