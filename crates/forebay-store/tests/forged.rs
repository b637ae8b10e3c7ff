//! Batches that nobody wrote as such: what was published may be bytes that look like one, and lies where recovery looks.

mod support;

use std::sync::Arc;

use forebay_store::fault_disk::{Fate, Unsynced};
use forebay_store::{Disk, Lane, MemDisk, OpenError, Options, Store, check, open, perform};
use support::forgery;
use support::small_store::{QUEUE, contents, expected, opened, payload, pump, small};

const BLOCK: usize = 4096;
const SALT: u64 = 0x5A17_0BAD_CAFE_F00D;
const SEGMENT: &str = "log-0000000001.seg";

/// Behind the last batch of a segment, if that is a small one.
fn end_of(disk: &MemDisk, segment: &str) -> usize {
    let bytes = disk.bytes(segment).unwrap();
    let mut blocks = (BLOCK..bytes.len()).step_by(BLOCK);
    let last = blocks.rfind(|&at| bytes[at..at + 4] == *b"FBAT").unwrap();
    last + BLOCK
}

/// So much that the log stays in its first segment.
fn roomy() -> Options {
    Options { segment_bytes: 1 << 20, ..small() }
}

/// A store with three messages in its only segment, sealed.
fn three(random: u64) -> (Arc<MemDisk>, Store) {
    let disk = Arc::new(MemDisk::new());
    disk.set_random(random);
    let (mut store, _) = opened(&disk, roomy());
    for seq in 1..=3 {
        store.publish(&[(QUEUE, seq)], &payload(seq));
    }
    for turn in 1..4 {
        pump(&disk, &mut store, turn * 20_000).unwrap();
    }
    let segments = disk.list().unwrap().into_iter().filter(|name| name.starts_with("log-"));
    assert_eq!(segments.collect::<Vec<_>>(), [SEGMENT]);
    (disk, store)
}

/// The publisher knows where its bytes are going to lie, and of the write the power leaves all but the batch's own head.
#[test]
fn what_was_published_is_not_taken_for_a_batch() {
    const BYTES: usize = 20_000;
    for guessed in [0, 7] {
        let (disk, mut store) = three(SALT);
        let (at, number) = (end_of(&disk, SEGMENT), store.open_batch());
        let mut body = vec![b'.'; BYTES];
        let before_body = at + 64 + 12 + 16;
        for block in (at + BLOCK..before_body + BYTES - 64).step_by(BLOCK) {
            let head = forgery::head((1, guessed), block, number + 1, number);
            body[block - before_body..][..64].copy_from_slice(&head);
        }
        store.publish(&[(QUEUE, 4)], &body);
        let commit = store.poll(10_000_000).unwrap();
        assert_eq!(commit.lane(), Lane::Log);
        disk.stop_after(1);
        store.complete(10_000_000, perform(&*disk, commit)).unwrap_err();
        assert!(disk.bytes(SEGMENT).unwrap()[before_body..].starts_with(&body));
        disk.lose_power(|thing| match thing {
            Unsynced::Sector(_, sector) if sector * 512 / BLOCK == at / BLOCK => Fate::Old,
            _ => Fate::New,
        });
        let (_, recovered) = opened(&disk, roomy());
        assert_eq!(contents(&recovered), expected(3), "{guessed}");
    }
}

/// Nothing of a batch has reached the disk, and where it was to begin lies what was published in the file's earlier life.
#[test]
fn what_was_published_long_ago_is_not_taken_for_the_next_batch() {
    let (disk, store) = three(SALT);
    let (at, last) = (end_of(&disk, SEGMENT), store.durable_batch());
    drop(store);
    disk.unlock();
    let batches = check(&*disk, &mut |_| {}).batches;
    for (guessed, more) in [(0, 0), (7, 0), (SALT, 1)] {
        let head = forgery::head((1, guessed), at, last + 1, last);
        disk.write_at(SEGMENT, at as u64, &head).unwrap();
        let report = check(&*disk, &mut |_| {});
        assert_eq!((report.batches, report.damaged), (batches + more, 0), "{guessed}");
    }
}

#[test]
fn heads_with_numbers_that_cannot_be_are_none() {
    for (number, durable_upto) in [
        (|last| last + 2, |_| u64::MAX),
        (|_| u64::MAX, |_| u64::MAX - 1),
        (|last| last + 2, |last| last + 2),
        (|last| last + 100, |last| last + 99),
    ] as [(fn(u64) -> u64, fn(u64) -> u64); 4]
    {
        let (disk, store) = three(SALT);
        let last = store.durable_batch();
        let (number, durable_upto) = (number(last), durable_upto(last));
        let at = end_of(&disk, SEGMENT) + BLOCK;
        let head = forgery::head((1, SALT), at, number, durable_upto);
        disk.write_at(SEGMENT, at as u64, &head).unwrap();
        for salvage in [false, true] {
            let (_, recovered) = opened(&Arc::new(disk.copy()), Options { salvage, ..roomy() });
            assert_eq!(recovered.damage, []);
            assert_eq!(contents(&recovered), expected(3), "{number} {durable_upto}");
        }
    }
}

/// Its salt is nowhere but in the heads of its batches then.
#[test]
fn an_only_segment_whose_header_is_damaged_is_missed_and_salvaged() {
    for bit in [3, 30, 320, 350, 500] {
        let (disk, store) = three(SALT);
        drop(store);
        let at = end_of(&disk, SEGMENT);
        disk.write_at(SEGMENT, at as u64, &forgery::head((1, 7), at, 99, 98)).unwrap();
        disk.flip_bit(SEGMENT, bit);
        disk.unlock();
        let error = open(disk.clone(), roomy()).unwrap_err();
        assert!(matches!(&error, OpenError::Damaged { file, .. } if file == SEGMENT), "{error}");
        disk.set_random(99);
        let (store, recovered) = opened(&disk, Options { salvage: true, ..roomy() });
        assert_eq!((contents(&recovered), recovered.damage.len()), (expected(3), 1), "{bit}");
        drop(store);
        // Whatever else is in the directory now, it is read as it was.
        let (_, recovered) = opened(&disk, roomy());
        assert_eq!(contents(&recovered), expected(3), "{bit}");
        let newest = disk.list().unwrap().into_iter().rfind(|name| name.starts_with("log-"));
        assert_eq!(forgery::salt(&disk.bytes(&newest.unwrap()).unwrap()), SALT);
    }
}

#[test]
fn a_directory_without_a_salt_has_one_from_its_next_segment_on() {
    let (disk, mut store) = three(0);
    // So much that no start carries it.
    let much = |store: &mut Store| {
        let home = store.publish(&[(8, 1)], &[1; 9_000]);
        store.settle(8, 1, home);
        pump(&disk, store, 80_000).unwrap();
    };
    much(&mut store);
    drop(store);
    for random in [7, 8] {
        disk.set_random(random);
        let (mut store, recovered) = opened(&disk, roomy());
        assert_eq!(contents(&recovered), expected(3));
        much(&mut store);
        for turn in 1..4 {
            pump(&disk, &mut store, turn * 20_000).unwrap();
        }
    }
    let names = disk.list().unwrap();
    let segments: Vec<_> = names.iter().filter(|name| name.starts_with("log-")).collect();
    let salts = segments.iter().map(|name| forgery::salt(&disk.bytes(name).unwrap()));
    let mut salts: Vec<_> = salts.collect();
    assert_eq!((salts[0], &salts[segments.len() - 2..]), (0, &[7, 7][..]));
    salts.dedup();
    assert_eq!(salts, [0, 7]);
    // The damage of each is noticed, and costs nothing.
    for name in segments {
        let copy = Arc::new(disk.copy());
        copy.flip_bit(name, 20);
        let error = open(copy.clone(), roomy()).unwrap_err();
        assert!(matches!(&error, OpenError::Damaged { file, .. } if file == name), "{error}");
        let (_, recovered) = opened(&copy, Options { salvage: true, ..roomy() });
        assert_eq!(contents(&recovered), expected(3), "{name}");
    }
}
