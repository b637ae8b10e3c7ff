//! Runs: how they are written, read, moved to, damaged, and when they leave the disk.

mod support;

use std::sync::Arc;

use forebay_store::{
    Disk, Event, Home, Lane, MemDisk, Options, Request, RunBuilder, RunId, Store, perform,
};
use support::small_store::{
    QUEUE, contents, expected, filled, opened, payload, pump, small, spilled,
};

#[test]
fn a_run_that_finds_the_disk_full_is_written_when_there_is_room() {
    let (disk, mut store, homes) = filled(4);
    let mut builder = RunBuilder::new();
    for seq in 1..=4 {
        builder.push(seq, homes[seq as usize - 1], &payload(seq));
    }
    disk.set_capacity(Some(disk.used_bytes()));
    let run = store.write_run(QUEUE, builder, true);
    let events = pump(&disk, &mut store, 1_000_000).unwrap();
    assert!(events.contains(&Event::LowSpace(true)));
    assert!(store.next_deadline_us().is_some_and(|at_us| at_us > 1_000_000));
    disk.set_capacity(None);
    let events = pump(&disk, &mut store, 3_000_000).unwrap();
    assert!(events.contains(&Event::RunDurable { run, queue: QUEUE }), "{events:?}");
    disk.power_loss(2);
    let (_, recovered) = opened(&disk, small());
    assert_eq!(recovered.queues[0].runs[0].messages, 4);
}

/// Whether the next segments had their room before the disk was full, or have it only now.
#[test]
fn space_is_low_until_runs_and_segments_have_theirs() {
    for count in [4, 300] {
        let (disk, mut store, homes) = filled(count);
        pump(&disk, &mut store, 500_000).unwrap();
        let mut builder = RunBuilder::new();
        for seq in 1..=4 {
            builder.push(seq, homes[seq as usize - 1], &payload(seq));
        }
        disk.set_capacity(Some(disk.used_bytes()));
        store.write_run(QUEUE, builder, true);
        let events = pump(&disk, &mut store, 1_000_000).unwrap();
        let told = |events: &[Event]| {
            let low = events.iter().filter_map(|event| match event {
                Event::LowSpace(low) => Some(*low),
                _ => None,
            });
            low.collect::<Vec<_>>()
        };
        assert_eq!(told(&events), [true], "{count}");
        disk.set_capacity(None);
        let mut events = Vec::new();
        for turn in 0..10 {
            events.extend(pump(&disk, &mut store, 3_000_000 * (turn + 1)).unwrap());
        }
        assert_eq!(told(&events), [false], "{count}");
    }
}

/// Its owner was quicker than the disk.
#[test]
fn a_run_whose_messages_are_all_settled_before_its_turn_is_not_written() {
    let (disk, mut store, homes) = filled(300);
    let mut runs = Vec::new();
    for seqs in [1..=100, 101..=200, 201..=300] {
        let mut builder = RunBuilder::new();
        for seq in seqs {
            builder.push(seq, homes[seq as usize - 1], &payload(seq));
        }
        runs.push(store.write_run(QUEUE, builder, true));
    }
    let one_bytes = 200 * 100;
    assert!(store.buffered_bytes() > 3 * one_bytes);
    let first = store.poll(10_000_000).expect("the first run's turn");
    assert_eq!(first.lane(), Lane::Background);
    for seq in 1..=200 {
        let run = runs[(seq as usize - 1) / 100];
        store.settle(
            QUEUE,
            seq,
            if seq.is_multiple_of(2) { Home::run(run) } else { homes[seq as usize - 1] },
        );
    }
    store.complete(10_000_000, perform(&*disk, first)).unwrap();
    let events = pump(&disk, &mut store, 20_000_000).unwrap();
    let durable = |run| events.contains(&Event::RunDurable { run, queue: QUEUE });
    assert!(runs.iter().all(|run| durable(*run)), "{events:?}");
    pump(&disk, &mut store, 30_000_000).unwrap();
    assert!((2 * one_bytes..3 * one_bytes).contains(&store.statistics().run_written_bytes));
    assert_eq!(store.statistics().runs, 1);
    assert!(store.buffered_bytes() < 1_000);
    disk.power_loss(5);
    let (_, recovered) = opened(&disk, small());
    assert_eq!(recovered.queues[0].runs.iter().map(|run| run.messages).sum::<u64>(), 100);
}

/// What takes a transient message out of a run is not in the log: a file that waited for the log to say so stayed, and
/// those of all later runs with it.
#[test]
fn a_run_of_transient_messages_goes_though_nothing_else_is_committed() {
    let (disk, mut store, _) = filled(1);
    let mut builder = RunBuilder::new();
    for seq in 2..=3 {
        builder.push(seq, Home::NONE, &payload(seq));
    }
    let run = store.write_run(QUEUE, builder, true);
    let written = store.poll(10_000_000).expect("the run's turn");
    assert_eq!(written.lane(), Lane::Background);
    for seq in 2..=3 {
        store.settle(QUEUE, seq, Home::NONE);
    }
    store.complete(10_000_000, perform(&*disk, written)).unwrap();
    let is_run = |name: &String| name.starts_with("run-");
    assert!(disk.list().unwrap().iter().any(is_run));
    let events = pump(&disk, &mut store, 20_000_000).unwrap();
    assert!(events.contains(&Event::RunDurable { run, queue: QUEUE }));
    pump(&disk, &mut store, 30_000_000).unwrap();
    assert!(!disk.list().unwrap().iter().any(is_run));
}

/// The lane may be writing a run when the log ends: the run is not worth an end that looks like a crash.
#[test]
fn a_run_that_is_written_while_the_store_stops_does_not_make_the_stop_unclean() {
    for steps in 1..=2 {
        let (disk, mut store, homes) = filled(4);
        let mut builder = RunBuilder::new();
        for seq in 1..=4 {
            builder.push(seq, homes[seq as usize - 1], &payload(seq));
        }
        store.write_run(QUEUE, builder, true);
        let written = store.poll(10_000_000).expect("the run's turn");
        assert_eq!(written.lane(), Lane::Background);
        store.shutdown();
        // The last batch, and then the seal that vouches for it.
        let mut last = store.poll(10_000_100).expect("the end of the log");
        for _ in 1..steps {
            store.complete(10_000_200, perform(&*disk, last)).unwrap();
            last = store.poll(10_000_300).expect("the seal");
        }
        store.complete(10_000_400, perform(&*disk, written)).unwrap();
        store.complete(10_000_500, perform(&*disk, last)).unwrap();
        assert!(pump(&disk, &mut store, 10_000_600).unwrap().contains(&Event::Stopped));
        drop(store);
        let (_, recovered) = opened(&disk, small());
        assert!(recovered.clean, "{steps}");
        assert_eq!(contents(&recovered), expected(4));
        assert!(!disk.list().unwrap().iter().any(|name| name.starts_with("run-")));
    }
}

#[test]
fn a_run_with_a_message_of_the_log_inside_it_is_loaded_and_others_stay_cold() {
    let (disk, mut store, homes) = filled(9);
    for seqs in [[1u64, 3], [4, 5], [6, 8]] {
        let mut builder = RunBuilder::new();
        for seq in seqs {
            builder.push(seq, homes[seq as usize - 1], &payload(seq));
        }
        store.write_run(QUEUE, builder, true);
    }
    pump(&disk, &mut store, 1_000_000_000).unwrap();
    drop(store);
    let (_, recovered) = opened(&disk, small());
    let queue = &recovered.queues[0];
    let seqs: Vec<_> = queue.messages.iter().map(|message| message.0).collect();
    assert_eq!(seqs, [1, 2, 3, 6, 7, 8, 9]);
    assert_eq!(queue.messages[0].1.as_run(), Some(RunId(1)));
    assert_eq!(queue.runs.len(), 1);
    assert_eq!((queue.runs[0].first, queue.runs[0].last, queue.runs[0].bytes), (4, 5, 400));
}

#[test]
fn transient_messages_of_a_run_are_read_back_until_the_next_start_only() {
    let (disk, mut store, homes) = filled(2);
    let mut builder = RunBuilder::new();
    builder.push(1, homes[0], &payload(1));
    builder.push(2, homes[1], &payload(2));
    builder.push(3, Home::NONE, &payload(3));
    let run = store.write_run(QUEUE, builder, true);
    pump(&disk, &mut store, 1_000_000).unwrap();
    store.read_run(run, 2);
    let events = pump(&disk, &mut store, 1_000_001).unwrap();
    let messages = vec![(2, true, payload(2)), (3, false, payload(3))];
    assert!(events.contains(&Event::RunBlock { run, queue: QUEUE, messages, at_end: true }));
    store.settle(QUEUE, 1, Home::run(run));
    pump(&disk, &mut store, 2_000_000).unwrap();
    drop(store);
    let (mut store, recovered) = opened(&disk, small());
    let info = &recovered.queues[0].runs[0];
    assert_eq!((info.first, info.last, info.messages), (2, 2, 1));
    store.read_run(run, 0);
    let events = pump(&disk, &mut store, 1).unwrap();
    let messages = vec![(2, true, payload(2))];
    assert!(events.contains(&Event::RunBlock { run, queue: QUEUE, messages, at_end: true }));
}

#[test]
fn a_transient_queue_spills_without_a_trace_in_the_log() {
    let (disk, mut store, _) = filled(1);
    let mut builder = RunBuilder::new();
    for seq in 1..=3 {
        builder.push(seq, Home::NONE, &payload(seq));
    }
    let batches = store.statistics().batches;
    let run = store.write_run(99, builder, false);
    let events = pump(&disk, &mut store, 1_000_000).unwrap();
    assert_eq!(events, [Event::RunDurable { run, queue: 99 }]);
    store.settle(99, 1, Home::run(run));
    store.settle(99, 2, Home::run(run));
    assert_eq!(store.statistics().batches, batches);
    drop(store);
    let (_, recovered) = opened(&disk, small());
    assert!(recovered.queues.iter().all(|queue| queue.id != 99));
    assert_eq!(disk.bytes("run-0000000001.run"), None);
}

/// Does what the lanes beside the log's have to do; a commit that is due meanwhile is handed out undone.
fn background_of(disk: &MemDisk, store: &mut Store, now_us: u64) -> Option<Request> {
    let mut commit = None;
    while let Some(request) = store.poll(now_us) {
        match request.lane() {
            Lane::Log => commit = Some(request),
            Lane::Read | Lane::Background => {
                store.complete(now_us, perform(disk, request)).unwrap()
            }
        }
    }
    commit
}

#[test]
fn a_segment_stays_until_the_log_durably_says_that_its_messages_are_in_a_run() {
    let (disk, mut store, homes) = filled(1000); // several segments
    for seq in 2..=1000 {
        store.settle(QUEUE, seq, homes[seq as usize - 1]);
    }
    let mut now_us = 30_000_000;
    for _ in 0..4 {
        now_us += 20_000;
        pump(&disk, &mut store, now_us).unwrap();
    }
    assert!(disk.bytes("log-0000000001.seg").is_some(), "message 1 lives there");
    // While a commit runs, the run's file is finished: its record waits for the next commit.
    let mut builder = RunBuilder::new();
    builder.push(1, homes[0], &payload(1));
    store.write_run(QUEUE, builder, true);
    store.publish(&[(QUEUE, 1001)], &payload(1001));
    let commit = store.poll(now_us + 20_000).unwrap();
    assert_eq!(commit.lane(), Lane::Log);
    assert!(background_of(&disk, &mut store, now_us + 20_000).is_none(), "one commit at a time");
    assert!(disk.bytes("run-0000000001.run").is_some());
    store.complete(now_us + 40_000, perform(&*disk, commit)).unwrap();
    let told = background_of(&disk, &mut store, now_us + 60_000);
    assert!(told.is_some(), "the record is to be committed");
    drop((store, told));
    disk.power_loss(1);
    let (_, recovered) = opened(&disk, small());
    assert_eq!(contents(&recovered), [(1, payload(1)), (1001, payload(1001))]);
}

#[test]
fn a_run_leaves_the_disk_when_its_last_message_is_settled_durably() {
    let (disk, mut store, run) = spilled(3);
    for seq in 1..=3 {
        store.settle(QUEUE, seq, Home::run(run));
    }
    // Not before the acknowledgement is durable: until then a crash needs the file.
    let commit = store.poll(200_000_000);
    assert!(commit.is_none_or(|request| request.lane() == Lane::Log));
    assert!(disk.bytes("run-0000000001.run").is_some());
    let (disk, mut store, run) = spilled(3);
    store.settle_run(run);
    for turn in 0..3 {
        pump(&disk, &mut store, 300_000_000 + turn * 20_000).unwrap();
    }
    assert_eq!(disk.bytes("run-0000000001.run"), None);
}

#[test]
fn a_read_does_not_wait_for_a_run_that_is_being_written() {
    let (disk, mut store, run) = spilled(3);
    let mut builder = RunBuilder::new();
    builder.push(9, Home::NONE, b"nine");
    store.write_run(QUEUE, builder, true);
    let write = store.poll(200_000_000).unwrap();
    assert_eq!(write.lane(), Lane::Background);
    store.read_run(run, 1);
    let read = store.poll(200_000_000).unwrap();
    assert_eq!(read.lane(), Lane::Read);
    store.read_run(run, 2);
    assert!(store.poll(200_000_000).is_none(), "one read at a time");
    store.complete(200_000_000, perform(&*disk, read)).unwrap();
    let Some(Event::RunBlock { messages, .. }) = store.poll_event() else { panic!("no block") };
    assert_eq!(messages.len(), 3);
    store.complete(200_000_000, perform(&*disk, write)).unwrap();
}

/// Or the read would find no file, which ends the store.
#[test]
fn a_run_that_is_being_read_leaves_the_disk_after_that() {
    let (disk, mut store, run) = spilled(3);
    store.read_run(run, 1);
    let read = store.poll(200_000_000).unwrap();
    assert_eq!(read.lane(), Lane::Read);
    store.settle_run(run);
    let mut now_us = 200_000_000;
    for _ in 0..6 {
        now_us += 20_000;
        if let Some(commit) = background_of(&disk, &mut store, now_us) {
            store.complete(now_us, perform(&*disk, commit)).unwrap();
        }
    }
    assert!(disk.bytes("run-0000000001.run").is_some());
    store.complete(now_us, perform(&*disk, read)).unwrap();
    background_of(&disk, &mut store, now_us);
    assert_eq!(disk.bytes("run-0000000001.run"), None);
    let events: Vec<Event> = std::iter::from_fn(|| store.poll_event()).collect();
    let empty = |event: &Event| matches!(event, Event::RunBlock { messages, at_end: true, .. } if messages.is_empty());
    assert!(events.iter().any(empty), "{events:?}");
}

#[test]
fn a_large_run_is_read_in_blocks_without_what_was_settled() {
    let disk = Arc::new(MemDisk::new());
    let (mut store, _) = opened(&disk, Options::default());
    let mut builder = RunBuilder::new();
    let body = vec![9; 100_000];
    for seq in 1..=40 {
        builder.push(seq, Home::NONE, &body);
    }
    let run = store.write_run(QUEUE, builder, false);
    pump(&disk, &mut store, 1).unwrap();
    for seq in 12..=30 {
        store.settle(QUEUE, seq, Home::run(run));
    }
    let (mut from, mut seqs, mut blocks) = (1, Vec::new(), 0);
    loop {
        store.read_run(run, from);
        let events = pump(&disk, &mut store, 1).unwrap();
        let [Event::RunBlock { messages, at_end, .. }] = &events[..] else { panic!("{events:?}") };
        seqs.extend(messages.iter().map(|message| message.0));
        blocks += 1;
        from = seqs.last().unwrap() + 1;
        if *at_end {
            break;
        }
    }
    assert_eq!(seqs, (1..=11).chain(31..=40).collect::<Vec<_>>());
    assert!((2..=5).contains(&blocks), "{blocks} blocks");
}
