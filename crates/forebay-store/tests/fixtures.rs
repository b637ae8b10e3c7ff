//! Stores written by each version of the format, kept as files: every later version must read the
//! healthy one and refuse the damaged one. `FOREBAY_WRITE_FIXTURES=1 cargo test -p forebay-store --test
//! fixtures` writes them anew, which only a new version of the format gives a reason for.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_store::{
    Disk, Event, Finding, Home, MemDisk, OpenError, Options, RunBuilder, Store, check, open,
    perform,
};

/// Versions of the format; the last one is written today. Two are no versions of their own, as nobody has to know it: that batches
/// say where the log begins, and that a start carries a segment that says little.
const VERSIONS: [&str; 5] = ["v1", "v2", "v3", "v3-begins", "v3-little"];
const TODAY: &str = VERSIONS[VERSIONS.len() - 1];
/// Those in which no batch says where the log begins.
const WITHOUT_BEGIN: &[&str] = &["v1", "v2", "v3"];

fn directory(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn options() -> Options {
    Options { segment_bytes: 1 << 20, batch_max_bytes: 8192, ..Options::default() }
}

fn pump(disk: &MemDisk, store: &mut Store, now_us: u64) -> Vec<Event> {
    while let Some(request) = store.poll(now_us) {
        store.complete(now_us, perform(disk, request)).expect("this disk has no faults");
    }
    std::iter::from_fn(|| store.poll_event()).collect()
}

/// Two segments (one per start, the first with more than a start carries), a run, every kind of record, a clean stop.
fn written() -> MemDisk {
    let disk = Arc::new(MemDisk::new());
    disk.set_random(0x005E_ED0F_5A17);
    let (mut store, _) = open(disk.clone(), options()).unwrap();
    store.put_meta(b"exchange", b"topic");
    store.put_meta(b"queue/1", b"durable");
    store.put_meta(b"queue/2", b"durable");
    store.delete_meta(b"queue/2");
    let mut homes = Vec::new();
    for seq in 1..=8u64 {
        let queues: &[(u64, u64)] = if seq == 8 { &[(1, 8), (2, 1)] } else { &[(1, seq)] };
        let mut message = format!("message {seq}");
        message.extend((seq == 1).then(|| ".".repeat(options().batch_max_bytes)));
        homes.push(store.publish(queues, message.as_bytes()));
    }
    pump(&disk, &mut store, 1000);
    let mut run = RunBuilder::new();
    for seq in 2..=5u64 {
        run.push(seq, homes[seq as usize - 1], format!("message {seq}").as_bytes());
    }
    run.push(100, Home::NONE, b"transient");
    let run = store.write_run(1, run, true);
    store.settle(1, 1, homes[0]);
    store.settle(1, 7, homes[6]);
    pump(&disk, &mut store, 2000);
    store.settle(1, 3, Home::run(run));
    pump(&disk, &mut store, 20_000);
    // A second start: its segment begins with a checkpoint of all that.
    disk.unlock();
    let (mut store, recovered) = open(disk.clone(), options()).unwrap();
    assert!(!recovered.clean);
    store.publish(&[(3, 1)], b"for a queue that goes");
    store.settle(3, 1, recovered.queues[0].messages[0].1);
    store.forget_queue(3);
    store.publish(&[(1, 9)], b"message 9");
    pump(&disk, &mut store, 1000);
    store.note_delivered(1, 6);
    store.shutdown();
    assert!(pump(&disk, &mut store, 2000).contains(&Event::Stopped));
    disk.copy()
}

fn stored(name: &str) -> MemDisk {
    let disk = MemDisk::new();
    for entry in std::fs::read_dir(directory(name)).unwrap() {
        let entry = entry.unwrap();
        disk.put(&entry.file_name().into_string().unwrap(), &std::fs::read(entry.path()).unwrap());
    }
    disk
}

fn store_files(disk: &MemDisk, name: &str) {
    let directory = directory(name);
    std::fs::create_dir_all(&directory).unwrap();
    for file in disk.list().unwrap() {
        std::fs::write(directory.join(&file), disk.bytes(&file).unwrap()).unwrap();
    }
}

fn damaged(disk: &MemDisk) -> MemDisk {
    let copy = disk.copy();
    let file = "log-0000000001.seg";
    let bytes = copy.bytes(file).unwrap();
    let at = bytes.windows(9).position(|window| window == b"message 6").unwrap();
    copy.flip_bit(file, at * 8);
    copy
}

#[test]
fn what_is_written_today_is_what_was_written_then() {
    let today = written();
    let (healthy_name, damaged_name) = (format!("{TODAY}-healthy"), format!("{TODAY}-damaged"));
    if std::env::var_os("FOREBAY_WRITE_FIXTURES").is_some() {
        let _ = std::fs::remove_dir_all(directory(&healthy_name));
        let _ = std::fs::remove_dir_all(directory(&damaged_name));
        store_files(&today, &healthy_name);
        store_files(&damaged(&today), &damaged_name);
    }
    let then = stored(&healthy_name);
    assert_eq!(today.list().unwrap(), then.list().unwrap());
    for file in then.list().unwrap() {
        assert!(today.bytes(&file) == then.bytes(&file), "{file} differs");
    }
}

#[test]
fn the_healthy_store_opens() {
    VERSIONS.iter().for_each(|version| opens(&format!("{version}-healthy")));
}

fn opens(name: &str) {
    let disk = Arc::new(stored(name));
    let report = check(&*disk, &mut |finding| {
        assert!(matches!(finding, Finding::Sound { .. }), "{finding:?}");
    });
    assert!(report.is_sound() && report.clean);
    assert_eq!((report.segments, report.runs, report.meta.len()), (2, 1, 2));
    let (mut store, recovered) = open(disk.clone(), options()).unwrap();
    assert!(recovered.clean);
    assert_eq!(recovered.meta[&b"exchange"[..]], b"topic");
    assert_eq!(recovered.queues.iter().map(|queue| queue.id).collect::<Vec<_>>(), [1, 2]);
    let first = &recovered.queues[0];
    let messages: Vec<_> = first
        .messages
        .iter()
        .map(|(seq, _, payload)| (*seq, &recovered.payloads[*payload][..]))
        .collect();
    assert_eq!(messages, [(6, &b"message 6"[..]), (8, b"message 8"), (9, b"message 9")]);
    assert_eq!((first.next_seq, first.delivered_upto), (10, 6));
    let run = &first.runs[0];
    assert_eq!((run.first, run.last, run.messages), (2, 5, 3));
    store.read_run(run.id, 0);
    let events = pump(&disk, &mut store, 1000);
    let block = events.iter().find_map(|event| match event {
        Event::RunBlock { messages, at_end: true, .. } => Some(messages.clone()),
        _ => None,
    });
    let expected: Vec<_> =
        [2u64, 4, 5].map(|seq| (seq, true, format!("message {seq}").into_bytes())).into();
    assert_eq!(block, Some(expected));
}

#[test]
fn an_oldest_segment_is_missed_where_it_was_said_that_it_is_needed() {
    for version in VERSIONS {
        let disk = Arc::new(stored(&format!("{version}-healthy")));
        disk.remove("log-0000000001.seg").unwrap();
        let is_sound = check(&*disk, &mut |_| {}).is_sound();
        let is_not_said = WITHOUT_BEGIN.contains(&version);
        assert_eq!((is_sound, open(disk, options()).is_ok()), (is_not_said, is_not_said));
    }
}

#[test]
fn the_damaged_store_is_refused_with_the_place_and_salvaged_on_request() {
    VERSIONS.iter().for_each(|version| is_refused(&format!("{version}-damaged")));
}

fn is_refused(name: &str) {
    let disk = Arc::new(stored(name));
    let error = open(disk.clone(), options()).unwrap_err();
    assert!(
        matches!(&error, OpenError::Damaged { file, offset, .. }
            if file == "log-0000000001.seg" && *offset > 4096),
        "{error}"
    );
    assert!(!check(&*disk, &mut |_| {}).is_sound());
    let (_, recovered) = open(disk, Options { salvage: true, ..options() }).unwrap();
    assert_eq!(recovered.damage.len(), 1);
    // The batch's records before the damage were saved, those behind it were not.
    let first = &recovered.queues[0];
    let seqs: Vec<_> = first.messages.iter().map(|message| message.0).collect();
    assert!(seqs.contains(&9) && !seqs.contains(&6), "{seqs:?}");
    assert_eq!(first.runs[0].messages, 3);
}
