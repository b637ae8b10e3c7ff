//! Numbers of runs: there are 2³¹ − 1 of them, and then they begin at 1 again.

mod support;

use forebay_store::{Disk, Event, Home, MemDisk, RunBuilder, RunId, Store};
use support::small_store::{QUEUE, filled, opened, payload, pump, small};

const OTHER: u64 = 8;
const LAST: RunId = RunId((1 << 31) - 1);

/// Moves a message into a run of its own.
fn spill(
    disk: &MemDisk,
    store: &mut Store,
    queue: u64,
    seq: u64,
    home: Home,
    now_us: u64,
) -> RunId {
    let mut builder = RunBuilder::new();
    builder.push(seq, home, &payload(seq));
    let run = store.write_run(queue, builder, true);
    let events = pump(disk, store, now_us).unwrap();
    assert!(events.contains(&Event::RunDurable { run, queue }), "{events:?}");
    run
}

#[test]
fn numbers_that_come_round_again_pass_over_those_that_have_files() {
    let (disk, mut store, homes) = filled(4);
    let old = spill(&disk, &mut store, QUEUE, 3, homes[2], 1_000_000);
    assert_eq!(old, RunId(1));
    drop(store);
    // As if all but the last one had been given since; and nothing is to be set aside over what was.
    disk.put(&format!("lost-run-{:010}.run", LAST.0 - 1), b"kept");
    disk.put("lost-run-0000000003.run", b"kept");

    let (mut store, _) = opened(&disk, small());
    let homes = [1, 2, 3, 4].map(|seq| (seq, store.publish(&[(OTHER, seq)], &payload(seq))));
    pump(&disk, &mut store, 20_000).unwrap();
    let runs = homes.map(|(seq, home)| spill(&disk, &mut store, OTHER, seq, home, seq * 40_000));
    for (seq, run) in (1..).zip(runs) {
        store.settle(OTHER, seq, Home::run(run));
    }
    for turn in 0..4 {
        pump(&disk, &mut store, 1_000_000 + turn * 20_000).unwrap();
    }
    let files = disk.list().unwrap();
    assert_eq!(files.iter().filter(|name| name.starts_with("run-")).count(), 1, "{files:?}");
    let (mut store, recovered) = opened(&disk, small());
    assert_eq!(recovered.queues[0].runs[0].id, old, "nobody settled what is in it");
    store.read_run(old, 3);
    let events = pump(&disk, &mut store, 20_000).unwrap();
    let block = events.iter().find_map(|event| match event {
        Event::RunBlock { messages, .. } => Some(messages.as_slice()),
        _ => None,
    });
    assert_eq!(block, Some(&[(3, true, payload(3))][..]));
    assert_eq!(runs, [LAST, RunId(2), RunId(4), RunId(5)]);
    let home = store.publish(&[(OTHER, 5)], &payload(5));
    pump(&disk, &mut store, 40_000).unwrap();
    assert_eq!(spill(&disk, &mut store, OTHER, 5, home, 60_000), RunId(2), "its file is gone");
}
