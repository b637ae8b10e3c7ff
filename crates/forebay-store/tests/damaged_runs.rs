//! Damaged runs, and runs without their log: what is refused, and what a salvage gives back and keeps.

mod support;

use std::sync::Arc;

use forebay_store::{
    Disk, Event, Finding, Home, MemDisk, OpenError, Options, Recovered, RunBuilder, Store, check,
    open,
};
use support::small_store::{
    QUEUE, contents, expected, filled, opened, payload, place, pump, small, spilled,
};

fn salvage() -> Options {
    Options { salvage: true, ..small() }
}

/// What all runs hold, read to their ends.
fn in_runs(disk: &MemDisk, store: &mut Store, recovered: &Recovered) -> Vec<(u64, Vec<u8>)> {
    let mut found = Vec::new();
    for run in recovered.queues.iter().flat_map(|queue| &queue.runs) {
        let (mut from_seq, mut at_end) = (run.first, false);
        while !at_end {
            store.read_run(run.id, from_seq);
            let events = pump(disk, store, 200_000_000).expect("a rescued run is sound");
            let blocks = events.into_iter().filter_map(|event| match event {
                Event::RunBlock { messages, at_end, .. } => Some((messages, at_end)),
                _ => None,
            });
            for (messages, end) in blocks {
                from_seq = messages.last().map_or(run.last, |message| message.0) + 1;
                at_end = end;
                found.extend(messages.into_iter().map(|(seq, _, payload)| (seq, payload)));
            }
        }
    }
    found
}

/// Ten messages in each of two runs; the second one's sixth message is damaged.
fn damaged() -> Arc<MemDisk> {
    let (disk, mut store, homes) = filled(20);
    for seqs in [1..=10u64, 11..=20] {
        let mut builder = RunBuilder::new();
        for seq in seqs {
            builder.push(seq, homes[seq as usize - 1], &payload(seq));
        }
        store.write_run(QUEUE, builder, true);
    }
    pump(&disk, &mut store, 100_000_000).unwrap();
    pump(&disk, &mut store, 101_000_000).unwrap();
    drop(store);
    let (name, at) = place(&disk, &payload(16));
    assert_eq!(name, "run-0000000002.run");
    disk.flip_bit(&name, at * 8);
    disk.unlock();
    disk
}

/// What is in runs is read when its turn comes: that a start goes well does not say that they are whole.
#[test]
fn a_damaged_run_fails_the_store_each_time_it_is_read_and_gives_the_rest_when_salvaged() {
    let (disk, store, run) = spilled(20);
    drop(store);
    let (name, at) = place(&disk, &payload(15));
    assert_eq!(name, "run-0000000001.run");
    disk.flip_bit(&name, at * 8);
    for _ in 0..2 {
        let (mut store, _) = opened(&disk, small());
        store.read_run(run, 1);
        let failed = pump(&disk, &mut store, 20_000).unwrap_err().to_string();
        let record_at = at - 20;
        for part in [&format!("{name} is damaged at byte {record_at}"), "--salvage"] {
            assert!(failed.contains(part), "{failed}");
        }
    }
    disk.unlock();
    let mut damaged = 0;
    let report = check(&*disk, &mut |finding| {
        damaged += u32::from(matches!(finding, Finding::Damaged { .. }));
    });
    assert_eq!((report.damaged, damaged), (1, 1));

    let (mut store, recovered) = opened(&disk, salvage());
    assert_eq!(in_runs(&disk, &mut store, &recovered), expected(14));
    assert!(recovered.damage[0].what.contains("6 messages of queue 7"), "{recovered:?}");
    assert!(recovered.damage[0].what.contains("kept as lost-run-0000000001.run"), "{recovered:?}");
    drop(store);
    disk.power_loss(3);
    let (mut store, recovered) = opened(&disk, small());
    assert_eq!(in_runs(&disk, &mut store, &recovered), expected(14));
    // For whoever wants to look at the rest.
    let kept = disk.bytes("lost-run-0000000001.run").expect("no start deletes it");
    let last = payload(20);
    assert!(kept.windows(last.len()).any(|window| window == last));
    assert_eq!(disk.bytes(&name), None);
}

/// They were in memory and in one batch, which cannot have 4 GiB.
#[test]
fn what_is_rescued_of_runs_stays_in_runs() {
    let disk = damaged();
    let (mut store, recovered) = opened(&disk, salvage());
    assert_eq!(contents(&recovered), []);
    let runs = &recovered.queues[0].runs;
    assert_eq!(runs.iter().map(|run| run.messages).collect::<Vec<_>>(), [10, 5]);
    assert!(runs[1].id.0 > 2, "{runs:?}");
    assert!(store.statistics().log_written_bytes <= 8192, "{:?}", store.statistics());
    assert_eq!(in_runs(&disk, &mut store, &recovered), expected(15));
}

/// The log knows what header and footer say, and each message has a checksum of its own.
#[test]
fn a_run_whose_header_or_footer_is_damaged_loses_no_message() {
    for from_end in [false, true] {
        let (disk, store, _) = spilled(20);
        drop(store);
        let name = "run-0000000001.run";
        let bytes = disk.bytes(name).unwrap().len();
        disk.flip_bit(name, if from_end { (bytes - 20) * 8 } else { 16 * 8 });
        let error = open(
            {
                disk.unlock();
                disk.clone()
            },
            small(),
        )
        .unwrap_err();
        assert!(matches!(&error, OpenError::Damaged { file, .. } if file == name), "{error}");
        let (mut store, recovered) = opened(&disk, salvage());
        assert!(recovered.damage[0].what.contains("0 messages of queue 7"), "{recovered:?}");
        assert_eq!(in_runs(&disk, &mut store, &recovered), expected(20));
    }
}

/// Its file is all there is of a damaged run until the log knows the one that takes its place.
#[test]
fn a_salvage_that_is_cut_off_anywhere_can_be_repeated() {
    let mut whole = false;
    for calls in 0..100 {
        let disk = damaged();
        disk.stop_after(calls);
        whole = open(disk.clone(), salvage()).is_ok();
        if calls % 2 == 0 {
            disk.kill()
        } else {
            disk.power_loss(calls)
        }
        // An ordinary start reads headers and footers only, and deletes what no log knows.
        drop(opened(&disk, small()));
        let (mut store, recovered) = opened(&disk, salvage());
        let found = in_runs(&disk, &mut store, &recovered);
        assert_eq!(found, expected(15), "after {calls} calls");
        if whole {
            break;
        }
    }
    assert!(whole, "a salvage takes less than a hundred calls");
}

/// Numbers are given again once neither the log nor a file has them.
#[test]
fn the_file_of_a_damaged_run_outlives_later_salvages() {
    let (disk, store, run) = spilled(20);
    drop(store);
    let (name, at) = place(&disk, &payload(15));
    disk.flip_bit(&name, at * 8);
    let (mut store, recovered) = opened(&disk, salvage());
    let kept = disk.bytes("lost-run-0000000001.run").expect("it was set aside");
    // All that the log knew of it goes, and what was rescued of it is settled.
    let rescued = recovered.queues[0].runs[0].id;
    for seq in 1..=14 {
        store.settle(QUEUE, seq, Home::run(rescued));
    }
    for turn in 0..4 {
        pump(&disk, &mut store, 200_000_000 + turn * 20_000).unwrap();
    }
    drop(store);
    let (mut store, recovered) = opened(&disk, small());
    assert_eq!(recovered.queues[0].runs, []);
    let homes: Vec<_> =
        (21..=30).map(|seq| store.publish(&[(QUEUE, seq)], &payload(seq))).collect();
    pump(&disk, &mut store, 250_000_000).unwrap();
    let mut builder = RunBuilder::new();
    for (seq, home) in (21..).zip(homes) {
        builder.push(seq, home, &payload(seq));
    }
    let next = store.write_run(QUEUE, builder, true);
    assert_ne!(next, run);
    pump(&disk, &mut store, 300_000_000).unwrap();
    drop(store);
    let (name, at) = place(&disk, &payload(29));
    assert!(name.starts_with("run-"), "{name}");
    disk.flip_bit(&name, at * 8);
    let (mut store, recovered) = opened(&disk, salvage());
    let found = in_runs(&disk, &mut store, &recovered);
    assert_eq!(found, (21..=28).map(|seq| (seq, payload(seq))).collect::<Vec<_>>());
    assert_eq!(disk.bytes("lost-run-0000000001.run"), Some(kept));
    assert!(disk.bytes(&format!("lost-{name}")).is_some());
}

#[test]
fn a_missing_run_is_damage() {
    let (disk, store, _) = spilled(5);
    drop(store);
    disk.remove("run-0000000001.run").unwrap();
    disk.unlock();
    let error = open(disk.clone(), small()).unwrap_err();
    assert!(
        matches!(&error, OpenError::Damaged { file, .. } if file == "run-0000000001.run"),
        "{error}"
    );
}

/// The medium gives back an error in place of bytes, which each start would meet again.
#[test]
fn of_a_run_that_cannot_be_read_to_its_end_a_salvage_takes_what_comes_before() {
    let name = "run-0000000001.run";
    let (disk, mut store, homes) = filled(20);
    let mut builder = RunBuilder::new();
    for (seq, home) in (1..).zip(homes) {
        builder.push(seq, home, &vec![seq as u8; 100_000]);
    }
    store.write_run(QUEUE, builder, true);
    pump(&disk, &mut store, 100_000_000).unwrap();
    pump(&disk, &mut store, 101_000_000).unwrap();
    drop(store);
    let footer = disk.len(name).unwrap() - 1;
    for (bad, left) in [(0, 20), (1_500_000, 10), (footer, 20)] {
        let disk = Arc::new(disk.copy());
        disk.set_unreadable(name, bad);
        assert!(!check(&*disk, &mut |_| {}).is_sound());
        if left == 20 {
            let error = open(disk.clone(), small()).unwrap_err();
            assert!(matches!(&error, OpenError::Damaged { file, .. } if file == name), "{error}");
            assert!(error.to_string().contains("--salvage"), "{error}");
        } else {
            let (mut store, recovered) = opened(&disk, small());
            store.read_run(recovered.queues[0].runs[0].id, 15);
            let failed = pump(&disk, &mut store, 1_000).unwrap_err();
            assert!(failed.what.contains("--salvage"), "{failed}");
        }
        let (mut store, recovered) = opened(&disk, salvage());
        assert_eq!(recovered.damage.len(), 1);
        let seqs: Vec<u64> =
            in_runs(&disk, &mut store, &recovered).into_iter().map(|(seq, _)| seq).collect();
        assert_eq!(seqs, (1..=left).collect::<Vec<_>>());
        assert!(disk.bytes(&format!("lost-{name}")).is_some());
        drop(store);
        let (_, recovered) = opened(&disk, small());
        assert_eq!(recovered.damage, []);
    }
}

#[test]
fn runs_without_their_log_are_damage_and_a_salvage_keeps_them() {
    let (disk, store, _) = spilled(20);
    drop(store);
    for name in disk.list().unwrap().iter().filter(|name| name.starts_with("log-")) {
        disk.remove(name).unwrap();
    }
    disk.sync_dir().unwrap();
    disk.unlock();
    let mut findings = Vec::new();
    let report = check(&*disk, &mut |finding| findings.push(finding));
    assert!(!report.is_sound());
    let file = "run-0000000001.run".to_owned();
    assert!(findings.contains(&Finding::Unreferenced { file, kept: true }), "{findings:?}");
    let error = open(disk.clone(), small()).unwrap_err();
    assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
    assert!(disk.bytes("run-0000000001.run").is_some(), "it was deleted");

    let (store, recovered) = opened(&disk, Options { salvage: true, ..small() });
    assert_eq!(contents(&recovered), []);
    drop(store);
    disk.power_loss(3);
    // The next start is an ordinary one.
    let (_, recovered) = opened(&disk, small());
    assert_eq!(recovered.damage, []);
    assert!(disk.bytes("lost-run-0000000001.run").is_some());
}
