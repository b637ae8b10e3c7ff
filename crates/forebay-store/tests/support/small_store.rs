//! A store with small segments over a disk in memory, and what most tests do with it.

use std::sync::Arc;

use forebay_store::{
    Disk, Event, Home, MemDisk, Options, Recovered, RunBuilder, RunId, Store, StoreFailed, open,
    perform,
};

pub const QUEUE: u64 = 7;

pub fn small() -> Options {
    Options {
        segment_bytes: 64 << 10,
        log_cap_bytes: 256 << 10,
        batch_max_bytes: 8192,
        ..Options::default()
    }
}

pub fn payload(seq: u64) -> Vec<u8> {
    (0..200).map(|index| (seq * 31 + index) as u8).collect()
}

/// Polls and performs until nothing more is asked for at this time.
pub fn pump(disk: &MemDisk, store: &mut Store, now_us: u64) -> Result<Vec<Event>, StoreFailed> {
    let mut events = Vec::new();
    while let Some(request) = store.poll(now_us) {
        store.complete(now_us, perform(disk, request))?;
    }
    while let Some(event) = store.poll_event() {
        events.push(event);
    }
    Ok(events)
}

pub fn opened(disk: &Arc<MemDisk>, options: Options) -> (Store, Recovered) {
    disk.unlock();
    open(disk.clone(), options).unwrap_or_else(|error| panic!("{error}"))
}

/// A store with `count` durable messages in `QUEUE`, sealed, and their homes.
pub fn filled(count: u64) -> (Arc<MemDisk>, Store, Vec<Home>) {
    let disk = Arc::new(MemDisk::new());
    disk.set_random(0x5A17_0BAD_CAFE_F00D);
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

pub fn contents(recovered: &Recovered) -> Vec<(u64, Vec<u8>)> {
    recovered
        .queues
        .iter()
        .flat_map(|queue| &queue.messages)
        .map(|(seq, _, payload)| (*seq, recovered.payloads[*payload].clone()))
        .collect()
}

pub fn expected(count: u64) -> Vec<(u64, Vec<u8>)> {
    (1..=count).map(|seq| (seq, payload(seq))).collect()
}

/// The file and the offset in it where these bytes are.
pub fn place(disk: &MemDisk, bytes: &[u8]) -> (String, usize) {
    let names = disk.list().unwrap().into_iter().filter(|name| !name.starts_with("spare"));
    let places = names.filter_map(|name| {
        let file = disk.bytes(&name)?;
        let at = file.windows(bytes.len()).position(|window| window == bytes)?;
        Some((name, at))
    });
    places.last().expect("the bytes are somewhere")
}

/// A store whose `count` messages are in one run.
pub fn spilled(count: u64) -> (Arc<MemDisk>, Store, RunId) {
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
