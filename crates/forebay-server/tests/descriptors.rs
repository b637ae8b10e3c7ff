//! A process without a free descriptor: new peers wait, those inside are served, and nothing spins.
//!
//! Alone in its file, because the limit is the whole process's.

mod rig;

use rig::*;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::Write;
use std::os::fd::AsRawFd;

#[test]
fn without_descriptors_new_peers_wait_until_there_is_one() {
    let server = start(in_memory());
    let mut inside = socket(&server);
    let parting = socket(&server);
    until("both are inside", || server.status().unwrap().shell.connections_open == 2);

    // Room for one more: the peer's end of the next connection, and none for the server's.
    let free = std::fs::File::open("/dev/null").unwrap();
    let limit =
        Rlimit { current: Some(free.as_raw_fd() as u64 + 1), ..getrlimit(Resource::Nofile) };
    drop(free);
    setrlimit(Resource::Nofile, limit).unwrap();
    let mut waiting = socket(&server);
    waiting.write_all(b"AMQP\x00\x00\x09\x01").unwrap();

    let before = server.status().unwrap().shell;
    inside.write_all(b"AMQP\x00\x00\x09\x01").unwrap();
    assert_eq!(method_of(&read_frame(&mut inside)), (10, 10), "those inside are served");
    drop(parting);
    assert_eq!(method_of(&read_frame(&mut waiting)), (10, 10), "its turn has come");
    let after = server.status().unwrap().shell;
    assert!(after.turns - before.turns < 200, "{} turns", after.turns - before.turns);
}
