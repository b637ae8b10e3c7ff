//! What the store does when the disk fails, fills up, rots or is not ours.

use std::io::ErrorKind;
use std::sync::Arc;

use forebay_store::fault_disk::Call;
use forebay_store::{
    Completion, Disk, Durability, Event, FileDisk, Finding, Home, Lane, MemDisk, OpenError,
    Options, Recovered, Request, RunBuilder, RunId, Store, StoreFailed, check, open, perform,
};

const QUEUE: u64 = 7;

fn small() -> Options {
    Options {
        segment_bytes: 64 << 10,
        log_cap_bytes: 256 << 10,
        batch_max_bytes: 8192,
        ..Options::default()
    }
}

fn payload(seq: u64) -> Vec<u8> {
    (0..200).map(|index| (seq * 31 + index) as u8).collect()
}

/// Polls and performs until nothing more is asked for at this time.
fn pump(disk: &MemDisk, store: &mut Store, now_us: u64) -> Result<Vec<Event>, StoreFailed> {
    let mut events = Vec::new();
    while let Some(request) = store.poll(now_us) {
        store.complete(now_us, perform(disk, request))?;
    }
    while let Some(event) = store.poll_event() {
        events.push(event);
    }
    Ok(events)
}

fn opened(disk: &Arc<MemDisk>, options: Options) -> (Store, Recovered) {
    disk.unlock();
    open(disk.clone(), options).unwrap_or_else(|error| panic!("{error}"))
}

/// A store with `count` durable messages in `QUEUE`, sealed, and their homes.
fn filled(count: u64) -> (Arc<MemDisk>, Store, Vec<Home>) {
    let disk = Arc::new(MemDisk::new());
    let (mut store, _) = opened(&disk, small());
    store.put_meta(b"queue", b"seven");
    let mut homes = Vec::new();
    for seq in 1..=count {
        homes.push(store.publish(&[(QUEUE, seq)], &payload(seq)));
        pump(&disk, &mut store, seq * 20_000).unwrap();
    }
    pump(&disk, &mut store, (count + 1) * 20_000).unwrap();
    pump(&disk, &mut store, (count + 2) * 20_000).unwrap();
    (disk, store, homes)
}

fn contents(recovered: &Recovered) -> Vec<(u64, Vec<u8>)> {
    recovered
        .queues
        .iter()
        .flat_map(|queue| &queue.messages)
        .map(|(seq, _, payload)| (*seq, payload.clone()))
        .collect()
}

fn expected(count: u64) -> Vec<(u64, Vec<u8>)> {
    (1..=count).map(|seq| (seq, payload(seq))).collect()
}

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

/// The file and the offset in it where these bytes are.
fn place(disk: &MemDisk, bytes: &[u8]) -> (String, usize) {
    let names = disk.list().unwrap().into_iter().filter(|name| !name.starts_with("spare"));
    let places = names.filter_map(|name| {
        let file = disk.bytes(&name)?;
        let at = file.windows(bytes.len()).position(|window| window == bytes)?;
        Some((name, at))
    });
    places.last().expect("the bytes are somewhere")
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
    assert_eq!(recovered.damage.len(), 1);
    assert_eq!(recovered.damage[0].file, file);
    assert_eq!(recovered.meta[&b"queue"[..]], b"seven");
    drop(store);
    // The next start is an ordinary one.
    let (_, recovered) = opened(&disk, small());
    assert_eq!(contents(&recovered), remaining);
    assert_eq!(recovered.damage, []);
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

fn spilled(count: u64) -> (Arc<MemDisk>, Store, RunId) {
    let (disk, mut store, homes) = filled(count);
    let mut builder = RunBuilder::new();
    for (seq, home) in (1..).zip(homes) {
        builder.push(seq, home, &payload(seq));
    }
    let run = store.write_run(QUEUE, builder, true);
    let events = pump(&disk, &mut store, 100_000_000).unwrap();
    assert!(events.contains(&Event::RunDurable { run, queue: QUEUE }));
    pump(&disk, &mut store, 101_000_000).unwrap();
    (disk, store, run)
}

#[test]
fn a_damaged_run_fails_the_store_when_read_and_gives_the_rest_when_salvaged() {
    let (disk, mut store, run) = spilled(20);
    let (name, at) = place(&disk, &payload(15));
    assert_eq!(name, "run-0000000001.run");
    disk.flip_bit(&name, at * 8);
    store.read_run(run, 1);
    let failed = pump(&disk, &mut store, 200_000_000).unwrap_err();
    assert!(failed.what.contains("run-0000000001.run"), "{failed}");
    drop(store);
    disk.unlock();
    let mut damaged = 0;
    let report = check(&*disk, &mut |finding| {
        damaged += u32::from(matches!(finding, Finding::Damaged { .. }));
    });
    assert_eq!((report.damaged, damaged), (1, 1));

    let (store, recovered) = opened(&disk, Options { salvage: true, ..small() });
    assert_eq!(contents(&recovered), expected(14));
    assert!(recovered.damage[0].what.contains("6 messages of queue 7"), "{recovered:?}");
    drop(store);
    let (_, recovered) = opened(&disk, small());
    assert_eq!(contents(&recovered), expected(14));
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

/// Does what the background lane has to do; a commit that is due meanwhile is handed out undone.
fn background_of(disk: &MemDisk, store: &mut Store, now_us: u64) -> Option<Request> {
    let mut commit = None;
    while let Some(request) = store.poll(now_us) {
        match request.lane() {
            Lane::Log => commit = Some(request),
            Lane::Background => store.complete(now_us, perform(disk, request)).unwrap(),
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
                    *home = store.relocate(QUEUE, *seq, &payload(*seq));
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
                Lane::Background => {
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
                old = store.relocate(QUEUE, 1, &payload(1));
            }
        }
        store.complete(now_us, perform(&*disk, commit)).unwrap();
        let mut next = None;
        while let Some(request) = store.poll(now_us) {
            match request.lane() {
                Lane::Log => next = Some(request),
                Lane::Background => {
                    store.complete(now_us, perform(&*disk, request)).unwrap();
                }
            }
        }
        if seq.is_multiple_of(10) || asked > 0 {
            let (_, recovered) = opened(&Arc::new(disk.copy()), small());
            let first = recovered.queues[0].messages.first();
            assert_eq!(first.map(|(seq, _, payload)| (*seq, payload)), Some((1, &payload(1))));
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
                    store.relocate(QUEUE, 1, &payload(1));
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
    store.begin_atomic();
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

#[test]
fn a_store_of_a_newer_version_is_refused_by_name() {
    let (disk, store, _) = filled(1);
    drop(store);
    let name = "log-0000000001.seg";
    // The header is sound, its version is not ours: only a fixture can hold such a file.
    disk.put(name, include_bytes!("fixtures/newer_format.seg"));
    disk.unlock();
    let error = open(disk.clone(), small()).unwrap_err();
    assert!(matches!(error, OpenError::NewerFormat { found: 2, supported: 1 }), "{error}");
    assert!(error.to_string().contains("format 2"), "{error}");
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
    assert_eq!((report.log_messages, report.run_messages, report.meta), (10, 10, 1));

    let (_, recovered) = open(disk, small()).unwrap();
    assert!(recovered.clean && !recovered.torn_tail);
    assert_eq!(recovered.queues[0].delivered_upto, 5);
    assert_eq!(recovered.queues[0].next_seq, 1501);
    assert_eq!(recovered.queues[0].runs[0].messages, 10);
    assert_eq!(contents(&recovered), expected(1500)[1490..]);
    std::fs::remove_dir_all(&root).unwrap();
}
