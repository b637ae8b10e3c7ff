//! The bodies of the fuzz targets of the store. `fuzz/fuzz_targets/*` and `fuzz_bodies.rs` (plain
//! `cargo test`) run the same ones.

use std::sync::Arc;

use forebay_store::{Event, MemDisk, OpenError, Options, Recovered, check, open, perform};

use super::decode::decode;
use super::forgery::{forge, small};
use super::world::run;

/// What a target does with one input.
pub type Body = fn(&[u8]);

/// Name and body of every target.
pub const TARGETS: &[(&str, Body)] = &[
    ("recovery_bytes", recovery_bytes),
    ("recovery_forged", recovery_forged),
    ("store_operations", store_operations),
];

/// Any bytes in any file. The first byte of each piece says which, the next two how long it is.
pub fn recovery_bytes(data: &[u8]) {
    let disk = MemDisk::new();
    let mut rest = data;
    while let [file, low, high, bytes @ ..] = rest {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(bytes.len());
        let number = file / 4 % 8;
        let name = match file % 4 {
            0 | 1 => format!("log-{number:010}.seg"),
            2 => format!("run-{number:010}.run"),
            _ => format!("spare-{number:010}.seg"),
        };
        disk.put(&name, &bytes[..length]);
        rest = &bytes[length..];
    }
    recover(disk);
}

/// A sound store with changes, their checksums mended or not.
pub fn recovery_forged(data: &[u8]) {
    recover(forge(data));
}

/// Operations and crashes, against a model.
pub fn store_operations(data: &[u8]) {
    if let Some((options, ops)) = decode(data) {
        run(&ops, options);
    }
}

/// Whatever the files hold: nothing panics, a check changes nothing, and what was opened once opens
/// again with the same in it.
fn recover(disk: MemDisk) {
    let before = disk.fork();
    let report = check(&disk, &mut |_| {});
    assert_eq!(disk.mutations(), before.mutations());
    let strict = Arc::new(disk.fork());
    match open_twice(&strict, &small()) {
        // A check looks into every run, a start only into those it needs.
        Ok(first) => assert!(first.damage.is_empty()),
        Err(_) => assert!(!report.is_sound(), "refused, and the check found nothing"),
    }
    let salvage = Options { salvage: true, ..small() };
    let _ = open_twice(&Arc::new(disk), &salvage);
}

fn open_twice(disk: &Arc<MemDisk>, options: &Options) -> Result<Recovered, OpenError> {
    let (mut store, first) = open(disk.clone(), options.clone())?;
    for queue in &first.queues {
        assert!(queue.messages.is_sorted_by_key(|message| message.0));
        for run in &queue.runs {
            store.read_run(run.id, 0);
        }
    }
    // Runs are read, spares written, dead segments freed; a damaged run ends it.
    'work: for turn in 0..20 {
        while let Some(request) = store.poll(turn * 5000) {
            if store.complete(turn * 5000, perform(&**disk, request)).is_err() {
                break 'work;
            }
        }
        while let Some(event) = store.poll_event() {
            assert!(!matches!(event, Event::Stopped));
        }
    }
    drop(store);
    disk.kill();
    let (_, second) = open(disk.clone(), Options { salvage: false, ..options.clone() })
        .unwrap_or_else(|error| panic!("opened once, then: {error}"));
    assert_eq!(second.meta, first.meta);
    let contents = |recovered: &Recovered| -> Vec<_> {
        let messages = recovered.queues.iter().flat_map(|queue| {
            let payload = |index: &usize| recovered.payloads[*index].clone();
            queue.messages.iter().map(move |(seq, _, index)| (queue.id, *seq, payload(index)))
        });
        messages.collect()
    };
    assert_eq!(contents(&second), contents(&first));
    Ok(first)
}
