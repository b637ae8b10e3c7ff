//! Sectors of the log that the medium does not give back (`EIO`).

mod support;

use std::sync::Arc;

use forebay_store::{Disk, Finding, MemDisk, OpenError, Options, check, open, perform};
use support::small_store::{contents, expected, filled, opened, place, small};

const FIRST: &str = "log-0000000001.seg";
const BLOCK: u64 = 4096;

fn salvaging() -> Options {
    Options { salvage: true, ..small() }
}

fn findings(disk: &MemDisk) -> (bool, Vec<Finding>) {
    disk.unlock();
    let mut findings = Vec::new();
    let report = check(disk, &mut |finding| findings.push(finding));
    (report.is_sound(), findings)
}

#[test]
fn a_block_that_cannot_be_read_is_refused_with_its_place_and_passed_over_on_request() {
    let disk = filled(6).0;
    for block in 0..disk.len(FIRST).unwrap() / BLOCK {
        let disk = Arc::new(disk.copy());
        disk.unlock();
        disk.set_unreadable(FIRST, block * BLOCK + 17);
        let error = open(disk.clone(), small()).unwrap_err();
        assert!(
            matches!(&error, OpenError::Damaged { file, offset, .. }
                if file == FIRST && *offset == block * BLOCK),
            "block {block}: {error}"
        );
        let (is_sound, found) = findings(&disk);
        let is_told = |finding: &Finding| {
            matches!(finding, Finding::Damaged { file, offset, .. }
                if file == FIRST && *offset == block * BLOCK)
        };
        assert!(!is_sound && found.iter().any(is_told), "block {block}: {found:?}");

        let (store, recovered) = opened(&disk, salvaging());
        drop(store);
        assert!(recovered.damage.iter().any(|damage| damage.offset == block * BLOCK));
        let there = contents(&recovered);
        let all = expected(6);
        assert!(there.iter().all(|message| all.contains(message)) && there.len() >= 5, "{block}");
        // From then on it is accepted, though it is met again.
        let (_, recovered) = opened(&disk, small());
        assert_eq!((contents(&recovered), recovered.damage), (there, vec![]), "block {block}");
        let (is_sound, found) = findings(&disk);
        assert!(is_sound, "block {block}: {found:?}");
        assert!(found.iter().any(|finding| matches!(finding, Finding::Accepted { .. })));
    }
}

/// Nothing vouches for the end of the log, and whether it was there cannot be seen.
#[test]
fn an_end_of_the_log_that_cannot_be_read_is_no_torn_one() {
    let (disk, mut store, _) = filled(1);
    store.put_meta(b"queue", b"eight");
    let request = store.poll(1_000_000).expect("a commit");
    store.complete(1_000_000, perform(&*disk, request)).unwrap();
    drop(store);
    disk.unlock();
    let (file, at) = place(&disk, b"eight");
    disk.set_unreadable(&file, at as u64);
    let error = open(disk.clone(), small()).unwrap_err();
    assert!(error.to_string().contains("at byte"), "{error}");
    let (_, recovered) = opened(&disk, salvaging());
    assert_eq!((contents(&recovered), recovered.damage.len()), (expected(1), 1));
    assert_eq!(recovered.meta[&b"queue"[..]], b"seven");
}

#[test]
fn what_nobody_has_to_read_need_not_be_readable() {
    let disk = filled(60).0;
    let used = disk.len(FIRST).unwrap();
    // Another segment behind it says where it ends; it has to be larger than what a start carries.
    drop(opened(&disk, small()));
    assert!(disk.list().unwrap().contains(&FIRST.to_owned()));
    disk.write_at(FIRST, used, &[0; BLOCK as usize]).unwrap();
    disk.set_unreadable(FIRST, used);
    let (_, recovered) = opened(&disk, small());
    assert_eq!(contents(&recovered), expected(60));
    assert!(findings(&disk).0);
}
