//! How fast the log takes 1 KiB messages on a real disk, one thread doing both the store's work and the
//! disk's: `cargo run --release -p forebay-store --example log_speed -- [DIR] [SECONDS]`.
//!
//! Prints messages per second and the time of a flush (p50, p99) for several batch sizes, and the time
//! of the calls that are on the broker's path.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_store::{
    Disk, Durability, Event, FileDisk, Home, Lane, Options, Seq, Store, open, perform,
};

const PAYLOAD_BYTES: usize = 1024;
const QUEUE: u64 = 1;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let root = match arguments.next() {
        Some(root) => std::path::PathBuf::from(root),
        None => std::env::temp_dir().join(format!("forebay-log-speed-{}", std::process::id())),
    };
    let seconds: u64 = arguments.next().map_or(Ok(2), |seconds| seconds.parse())?;
    for batch in [1, 8, 64, 256] {
        let dir = root.join(format!("batch-{batch}"));
        measure(&dir, batch, Duration::from_secs(seconds))?;
        std::fs::remove_dir_all(&dir)?;
    }
    calls();
    recovery(&root.join("recovery"))?;
    std::fs::remove_dir(&root)?;
    Ok(())
}

/// Publishes and settles in batches; the previous batch is settled while the next one is filled.
fn measure(
    dir: &std::path::Path,
    batch: u64,
    duration: Duration,
) -> Result<(), Box<dyn std::error::Error>> {
    let disk = Arc::new(FileDisk::new(dir)?);
    let began = Instant::now();
    let (mut store, _) = open(disk.clone(), Options::default())?;
    let opened = began.elapsed();
    let payload = vec![0xA5; PAYLOAD_BYTES];
    let mut flushes_us: Vec<u64> = Vec::new();
    let mut next: Seq = 1;
    let mut previous: Vec<(Seq, Home)> = Vec::new();
    let began = Instant::now();
    let now_us = || began.elapsed().as_micros() as u64;
    // The lane for everything that is not a commit, so that pre-writing does not stand before one.
    let (requests, wanted) = std::sync::mpsc::sync_channel(1);
    let (done, completions) = std::sync::mpsc::sync_channel(1);
    let background_disk = disk.clone();
    let lane = std::thread::spawn(move || {
        while let Ok(request) = wanted.recv() {
            if done.send(perform(&*background_disk, request)).is_err() {
                return;
            }
        }
    });
    while began.elapsed() < duration {
        let mut current = Vec::with_capacity(batch as usize);
        for _ in 0..batch {
            current.push((next, store.publish(&[(QUEUE, next)], &payload)));
            next += 1;
        }
        for (seq, home) in std::mem::replace(&mut previous, current) {
            store.settle(QUEUE, seq, home);
        }
        store.add_waiter();
        let wanted = store.open_batch();
        while store.durable_batch() < wanted {
            while let Ok(completion) = completions.try_recv() {
                store.complete(now_us(), completion)?;
            }
            while let Some(request) = store.poll(now_us()) {
                if request.lane() == Lane::Background {
                    requests.send(request)?;
                    continue;
                }
                let flush = Instant::now();
                let completion = perform(&*disk, request);
                flushes_us.push(flush.elapsed().as_micros() as u64);
                store.complete(now_us(), completion)?;
            }
            while store.poll_event().is_some() {}
        }
    }
    let elapsed = began.elapsed();
    drop(requests);
    lane.join().expect("the lane's thread does not panic");
    flushes_us.sort_unstable();
    let at = |share: f64| flushes_us[((flushes_us.len() - 1) as f64 * share) as usize];
    println!(
        "batch {batch:>4}: {:>9.0} msg/s, flush p50 {:>5} us, p99 {:>6} us (opened in {} ms; {:?})",
        (next - 1) as f64 / elapsed.as_secs_f64(),
        at(0.5),
        at(0.99),
        opened.as_millis(),
        store.statistics(),
    );
    Ok(())
}

/// The cost of `publish` and `settle` alone, on a disk in memory.
fn calls() {
    let disk = Arc::new(forebay_store::MemDisk::new());
    let (mut store, _) = open(disk.clone(), Options::default()).expect("an empty disk opens");
    let payload = vec![0xA5; PAYLOAD_BYTES];
    let (mut publishing, mut settling) = (Vec::new(), Vec::new());
    let mut next: Seq = 1;
    const ROUNDS: u32 = 200;
    const EACH: u32 = 900;
    let mut homes = Vec::with_capacity(EACH as usize);
    for round in 0..ROUNDS {
        let began = Instant::now();
        for _ in 0..EACH {
            homes.push((next, store.publish(&[(QUEUE, next)], &payload)));
            next += 1;
        }
        publishing.push(began.elapsed().as_nanos() / u128::from(EACH));
        let began = Instant::now();
        for (seq, home) in homes.drain(..) {
            store.settle(QUEUE, seq, home);
        }
        settling.push(began.elapsed().as_nanos() / u128::from(EACH));
        drain(&mut store, &*disk, u64::from(round) * 20_000);
    }
    publishing.sort_unstable();
    settling.sort_unstable();
    println!(
        "publish of 1 KiB: {} ns (fastest round {}); settle in order: {} ns (fastest {})",
        publishing[publishing.len() / 2],
        publishing[0],
        settling[settling.len() / 2],
        settling[0],
    );
}

/// How long a start takes with a quarter of a gigabyte in the log, all of it alive, none of it alive.
fn recovery(dir: &std::path::Path) -> Result<(), Box<dyn std::error::Error>> {
    const MESSAGES: u64 = 256 << 10;
    let disk = Arc::new(FileDisk::new(dir)?);
    let options = Options { durability: Durability::Os, ..Options::default() };
    let (mut store, _) = open(disk.clone(), options.clone())?;
    let payload = vec![0xA5; PAYLOAD_BYTES];
    for seq in 1..=MESSAGES {
        store.publish(&[(QUEUE, seq)], &payload);
        if store.is_full() || seq == MESSAGES {
            drain(&mut store, &*disk, seq);
        }
    }
    drop(store);
    disk.unlock();
    let began = Instant::now();
    let (mut store, recovered) = open(disk.clone(), options.clone())?;
    let alive = began.elapsed();
    for (seq, home, _) in &recovered.queues[0].messages {
        store.settle(QUEUE, *seq, *home);
    }
    assert_eq!(recovered.queues[0].messages.len() as u64, MESSAGES);
    store.add_waiter();
    // One commit and no more: the dead segments are still there.
    let commit = store.poll(0).expect("something was settled");
    store.complete(0, perform(&*disk, commit))?;
    drop(store);
    disk.unlock();
    let began = Instant::now();
    let (_, recovered) = open(disk, options)?;
    let dead = began.elapsed();
    assert!(recovered.queues[0].messages.is_empty());
    println!(
        "opening a log of {} MiB: {} ms if all is alive, {} ms if nothing is",
        (MESSAGES * PAYLOAD_BYTES as u64) >> 20,
        alive.as_millis(),
        dead.as_millis(),
    );
    std::fs::remove_dir_all(dir)?;
    Ok(())
}

fn drain(store: &mut Store, disk: &dyn Disk, now_us: u64) {
    while let Some(request) = store.poll(now_us) {
        store.complete(now_us, perform(disk, request)).expect("this disk has no faults");
    }
    while let Some(event) = store.poll_event() {
        assert!(!matches!(event, Event::Stopped));
    }
}
