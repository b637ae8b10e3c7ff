//! A disk that has no room left: publishers are held back or the broker gives up and says so; nothing
//! confirmed is lost, and consumers can always make room.
//!
//! Where mounting is allowed (root on Linux), the disk is a small file system in memory. Where it is
//! not, and in any case, a limit on the size of files makes writes fail.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use forebay_client::blocking::{Channel, ChannelFault, Connection, DeclareQueue, Publication};
use forebay_wire::Properties;
use support::PATIENCE;
use support::broker::{Broker, Start};
use support::dir::Dir;

const BODY_BYTES: usize = 8 * 1024;
/// Room for the segment in use, three kept ready, and as much again for a backlog.
const SMALL_MB: u32 = 500;

fn body(number: u64) -> Vec<u8> {
    let mut body = vec![(number % 251) as u8; BODY_BYTES];
    body[..8].copy_from_slice(&number.to_be_bytes());
    body
}

/// A file system of a certain size, unmounted at the end.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// `None` where nobody may mount.
    fn mount(at: &Path, megabytes: u32) -> Option<SmallDisk> {
        std::fs::create_dir_all(at).unwrap();
        let options = format!("size={megabytes}m");
        let disk = SmallDisk(at.to_owned());
        run("mount", &["-t", "tmpfs", "-o", &options, "tmpfs", at.to_str().unwrap()])
            .then_some(disk)
    }

    fn resize(&self, megabytes: u32) {
        let options = format!("remount,size={megabytes}m");
        assert!(run("mount", &["-o", &options, self.0.to_str().unwrap()]));
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        run("umount", &["-l", self.0.to_str().unwrap()]);
    }
}

fn run(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
}

/// Publishes until the broker holds us back or is gone.
struct Filler {
    connection: Connection,
    channel: Channel,
    published: u64,
    confirmed: Vec<u64>,
}

#[derive(Debug)]
enum Stopped {
    Blocked(String),
    Gone,
}

impl Filler {
    fn new(broker: &Broker) -> Filler {
        let connection = broker.connect();
        let mut channel = connection.channel().unwrap();
        channel.declare_queue("q", DeclareQueue { durable: true, ..Default::default() }).unwrap();
        channel.confirm_select(1_000).unwrap();
        Filler { connection, channel, published: 0, confirmed: Vec::new() }
    }

    fn fill(&mut self, at_most: u64) -> Stopped {
        while self.published < at_most {
            match self.round() {
                Ok(true) => {}
                Ok(false) => return Stopped::Blocked(self.connection.blocked().unwrap()),
                Err(ChannelFault::Lost(_)) => {
                    self.collect();
                    return Stopped::Gone;
                }
                Err(fault) => panic!("{fault}"),
            }
        }
        panic!("{at_most} messages fit a disk that is too small for them");
    }

    /// A few messages and their confirms; false once the broker has said that it is blocked.
    fn round(&mut self) -> Result<bool, ChannelFault> {
        for _ in 0..50 {
            let properties = Properties { delivery_mode: Some(2), ..Properties::default() };
            let body = body(self.published);
            self.published += 1;
            self.channel.publish(&Publication {
                routing_key: "q",
                properties,
                body: &body,
                ..Publication::default()
            })?;
        }
        let deadline = Instant::now() + PATIENCE;
        while self.channel.unconfirmed() > 0 {
            self.channel.pump(Duration::from_millis(50))?;
            if self.connection.blocked().is_some() {
                self.collect();
                return Ok(false);
            }
            assert!(Instant::now() < deadline, "neither confirmed nor told to wait");
        }
        self.collect();
        Ok(true)
    }

    /// Waits until the broker lets us publish again and has confirmed what was held back; false if it
    /// is gone instead.
    fn is_unblocked(&mut self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        while self.connection.blocked().is_some() || self.channel.unconfirmed() > 0 {
            if self.channel.pump(Duration::from_millis(50)).is_err() {
                return false;
            }
            assert!(Instant::now() < deadline, "there is room and nobody says so");
        }
        self.collect();
        true
    }

    fn collect(&mut self) {
        for settled in self.channel.take_settled() {
            assert!(settled.acked, "the broker refused {settled:?}");
            self.confirmed.extend(settled.first - 1..settled.last);
        }
    }
}

/// Takes messages out of the queue, in order, until it is empty (true) or the broker is gone.
fn drain(broker: &Broker, published: u64, found: &mut Vec<u64>) -> bool {
    let mut channel = broker.connect().channel().unwrap();
    loop {
        let message = match channel.get("q", false) {
            Ok(Some((message, _))) => message,
            Ok(None) => return true,
            Err(ChannelFault::Lost(_)) => return false,
            Err(fault) => panic!("{fault}"),
        };
        let number = u64::from_be_bytes(message.body()[..8].try_into().unwrap());
        assert!(message.body() == body(number) && number < published, "{number} is damaged");
        assert!(
            found.last().is_none_or(|last| *last < number),
            "{number} after {:?}",
            found.last()
        );
        found.push(number);
        if channel.ack(message.delivery_tag(), false).is_err() {
            return false;
        }
    }
}

/// Whatever a broker did with a full disk, after a restart with room everything confirmed is there,
/// except for what was taken before.
fn check_after(start: &Start, filler: &Filler, taken: &[u64]) {
    assert!(filler.confirmed.len() > 100, "{} confirmed", filler.confirmed.len());
    let broker = start.ready();
    let mut found = Vec::new();
    assert!(drain(&broker, filler.published, &mut found));
    println!("{} confirmed, {} taken, {} found", filler.confirmed.len(), taken.len(), found.len());
    for number in &filler.confirmed {
        assert!(
            found.binary_search(number).is_ok() || taken.binary_search(number).is_ok(),
            "{number} was confirmed and is lost"
        );
    }
    assert_eq!(broker.stop().code, Some(0));
}

fn assert_gave_up(broker: Broker) {
    let ended = broker.ended();
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    println!("gave up: {}", ended.sentence());
}

#[test]
fn a_full_disk_blocks_publishers_until_consumers_make_room() {
    let dir = Dir::new("full-disk");
    let Some(disk) = SmallDisk::mount(&dir.join("data"), SMALL_MB) else {
        println!("nobody may mount here; the test with a limit on file sizes stands alone");
        return;
    };
    let start = Start::on_disk(dir.path()).flag("--memory-budget", "32MiB");
    let broker = start.ready();
    let mut filler = Filler::new(&broker);
    let mut taken = Vec::new();
    match filler.fill(100_000) {
        Stopped::Blocked(reason) => {
            assert_eq!(reason, "low on disk");
            println!("blocked after {} confirmed", filler.confirmed.len());
            // Consumers go on and make room; then the publisher goes on, too, until it is full again.
            if drain(&broker, filler.published, &mut taken) && filler.is_unblocked() {
                let at_most = filler.published + 100_000;
                println!("then {:?}", filler.fill(at_most));
                broker.kill();
            } else {
                assert_gave_up(broker);
                filler.collect();
            }
        }
        Stopped::Gone => assert_gave_up(broker),
    }
    disk.resize(2_000);
    check_after(&start, &filler, &taken);
}

#[test]
fn a_disk_that_refuses_to_write_ends_the_broker_with_a_sentence_and_loses_nothing() {
    let dir = Dir::new("full-disk");
    let start = Start::on_disk(dir.path());
    let broker = start.clone().file_size_max(24 << 20).ready();
    let mut filler = Filler::new(&broker);
    let stopped = filler.fill(100_000);
    assert!(matches!(stopped, Stopped::Gone), "{stopped:?}");
    assert_gave_up(broker);
    check_after(&start, &filler, &[]);
}
