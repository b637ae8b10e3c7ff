//! Recovery of segments that are many times what it has in memory of them.

mod support;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_store::{Disk, MemDisk, Options, Store, check, open};
use support::small_store::{QUEUE, contents, opened, place, pump};

/// What recovery reads at a time, if no batch or record is larger.
const WINDOW_BYTES: usize = 4 << 20;
/// Longer than a window.
const LARGE_BYTES: usize = WINDOW_BYTES + 70_001;

/// A disk that keeps how much was read at once.
struct Reads {
    inner: Arc<MemDisk>,
    most_bytes: AtomicUsize,
}

impl Reads {
    fn of(inner: &Arc<MemDisk>) -> Arc<Reads> {
        inner.unlock();
        Arc::new(Reads { inner: inner.clone(), most_bytes: AtomicUsize::new(0) })
    }

    fn most_bytes(&self) -> usize {
        self.most_bytes.load(Ordering::Relaxed)
    }
}

impl Disk for Reads {
    fn lock(&self) -> io::Result<()> {
        self.inner.lock()
    }

    fn unlock(&self) {
        self.inner.unlock();
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.inner.list()
    }

    fn len(&self, name: &str) -> io::Result<u64> {
        self.inner.len(name)
    }

    fn create(&self, name: &str) -> io::Result<()> {
        self.inner.create(name)
    }

    fn write_at(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.inner.write_at(name, offset, bytes)
    }

    fn allocate(&self, name: &str, bytes: u64) -> io::Result<()> {
        self.inner.allocate(name, bytes)
    }

    fn read_at(&self, name: &str, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.most_bytes.fetch_max(buffer.len(), Ordering::Relaxed);
        self.inner.read_at(name, offset, buffer)
    }

    fn sync_data(&self, name: &str) -> io::Result<()> {
        self.inner.sync_data(name)
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.inner.sync_dir()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.inner.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.inner.remove(name)
    }
}

/// No two of them are alike in any hundred bytes.
fn payload(seq: u64, bytes: usize) -> Vec<u8> {
    (0..bytes.div_ceil(8) as u64)
        .flat_map(|word| (word << 32 | seq).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes())
        .take(bytes)
        .collect()
}

/// Messages of these sizes from 1 on, a batch of up to fifty at a time, all durable.
fn filled(sizes: &[usize]) -> (Arc<MemDisk>, Store) {
    let disk = Arc::new(MemDisk::new());
    let (mut store, _) = opened(&disk, Options::default());
    for (seq, &bytes) in (1..).zip(sizes) {
        store.publish(&[(QUEUE, seq)], &payload(seq, bytes));
        if seq.is_multiple_of(50) {
            pump(&disk, &mut store, seq * 20_000).unwrap();
        }
    }
    for round in 1..=3 {
        pump(&disk, &mut store, (sizes.len() as u64 + 50 * round) * 20_000).unwrap();
    }
    (disk, store)
}

fn expected(sizes: &[usize]) -> Vec<(u64, Vec<u8>)> {
    (1..).zip(sizes).map(|(seq, &bytes)| (seq, payload(seq, bytes))).collect()
}

#[test]
fn recovery_has_a_window_of_a_segment_in_memory() {
    let sizes: Vec<_> = (0..4_000).map(|index| 2_000 + index % 3_001).collect();
    let (disk, store) = filled(&sizes);
    assert!(store.statistics().log_bytes > 3 * WINDOW_BYTES as u64);
    let reads = Reads::of(&disk);
    let (_, recovered) = open(reads.clone(), Options::default()).unwrap();
    assert!(contents(&recovered) == expected(&sizes));
    assert_eq!(reads.most_bytes(), WINDOW_BYTES);
}

#[test]
fn what_is_larger_than_a_window_is_read_whole() {
    let mut sizes = vec![3_000; 1_000];
    for large in [0, 499, 500, 501, 999] {
        sizes[large] = LARGE_BYTES;
    }
    let (disk, _) = filled(&sizes);
    let reads = Reads::of(&disk);
    let (_, recovered) = open(reads.clone(), Options::default()).unwrap();
    assert!(contents(&recovered) == expected(&sizes));
    assert!(reads.most_bytes() > LARGE_BYTES && reads.most_bytes() < 3 * LARGE_BYTES);
    disk.unlock();
    assert!(check(&*disk, &mut |_| {}).is_sound());
}

#[test]
fn damage_behind_the_first_window_costs_what_lies_there() {
    let sizes = vec![3_000; 4_000];
    let (disk, _) = filled(&sizes);
    let whole = payload(3_210, 3_000);
    let (name, at) = place(&disk, &whole);
    assert!(at > 2 * WINDOW_BYTES);
    disk.flip_bit(&name, 8 * (at + 1_500));
    disk.unlock();
    let refused = open(disk.clone(), Options::default()).expect_err("it is damaged").to_string();
    assert!(refused.contains(&name), "{refused}");
    let salvage = Options { salvage: true, ..Options::default() };
    let (_, recovered) = opened(&disk, salvage);
    let found: Vec<_> = contents(&recovered).into_iter().map(|(seq, _)| seq).collect();
    // Of its batch what lies before it.
    assert_eq!(found, (1..3_210).chain(3_251..=4_000).collect::<Vec<_>>());
}
