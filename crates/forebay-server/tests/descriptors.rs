//! A process without a free descriptor: new peers wait, those inside are served, and nothing spins.
//!
//! Alone in its file, because the limit is the whole process's.

mod rig;

use forebay_store::{Disk, FileDisk};
use rig::*;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

/// Longer than opening a file takes.
const SHORT: Duration = Duration::from_millis(300);

/// As many as are in use, and so many more; what it was before.
fn limit_descriptors(more: u64) -> Rlimit {
    let before = getrlimit(Resource::Nofile);
    let free = std::fs::File::open("/dev/null").unwrap();
    let current = Some(free.as_raw_fd() as u64 + more);
    drop(free);
    setrlimit(Resource::Nofile, Rlimit { current, ..before }).unwrap();
    before
}

/// One after the other: the limit is both's.
#[test]
fn descriptors_that_are_missing_end_nothing() {
    without_descriptors_the_store_waits_until_there_is_one();
    without_descriptors_new_peers_wait_until_there_is_one();
}

fn without_descriptors_the_store_waits_until_there_is_one() {
    let dir = Dir::new();
    let disk = Arc::new(FileDisk::new(dir.path()).unwrap());
    disk.create("open").unwrap();
    disk.write_at("open", 0, b"before").unwrap();
    let before = limit_descriptors(0);
    let (opened, is_open) = std::sync::mpsc::sync_channel(1);
    let waiting = disk.clone();
    let thread = std::thread::spawn(move || opened.send(waiting.create("new")).unwrap());
    assert!(is_open.recv_timeout(SHORT).is_err(), "it waits");
    // What is open needs none: commits go on meanwhile.
    disk.write_at("open", 6, b"and after").unwrap();
    disk.sync_data("open").unwrap();
    setrlimit(Resource::Nofile, before).unwrap();
    is_open.recv_timeout(PATIENCE).unwrap().unwrap();
    thread.join().unwrap();
    assert_eq!((disk.len("new").unwrap(), disk.len("open").unwrap()), (0, 15));
}

fn without_descriptors_new_peers_wait_until_there_is_one() {
    let server = start(in_memory());
    let mut inside = socket(&server);
    let parting = socket(&server);
    until("both are inside", || server.status().unwrap().shell.connections_open == 2);

    // Room for one more: the peer's end of the next connection, and none for the server's.
    let before = limit_descriptors(1);
    let mut waiting = socket(&server);
    waiting.write_all(b"AMQP\x00\x00\x09\x01").unwrap();

    let turns = server.status().unwrap().shell.turns;
    inside.write_all(b"AMQP\x00\x00\x09\x01").unwrap();
    assert_eq!(method_of(&read_frame(&mut inside)), (10, 10), "those inside are served");
    drop(parting);
    assert_eq!(method_of(&read_frame(&mut waiting)), (10, 10), "its turn has come");
    let turns = server.status().unwrap().shell.turns - turns;
    assert!(turns < 200, "{turns} turns");
    setrlimit(Resource::Nofile, before).unwrap();
}
