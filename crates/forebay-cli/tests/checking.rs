//! `forebay check` on directories of all sorts: what it says of them, and that it leaves them as they are.

mod support;

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use forebay_client::blocking::{DeclareExchange, DeclareQueue, Publication};
use forebay_store::{Disk, FileDisk, Options, open, perform};
use forebay_wire::Properties;
use serde_json::Value;
use support::broker::{Broker, Start};
use support::dir::Dir;

const NOBODY: u32 = 65_534;

struct Checked {
    code: Option<i32>,
    out: String,
    err: String,
}

fn check(data: &Path, more: &[&str]) -> Checked {
    run(Command::new(support::forebay()).arg("check").arg("--data-dir").arg(data).args(more))
        .unwrap()
}

/// As somebody whom permissions bind. `None` if such a user cannot reach the binary.
fn check_unprivileged(data: &Path) -> Option<Checked> {
    let mut command = Command::new(support::forebay());
    command.arg("check").arg("--data-dir").arg(data);
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    match run(&mut command) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => None,
        checked => Some(checked.unwrap()),
    }
}

fn run(command: &mut Command) -> io::Result<Checked> {
    let output = command.output()?;
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ok(Checked { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) })
}

/// Two durable queues, an exchange and a binding; only one queue is given messages.
fn fill(broker: &Broker) {
    let connection = broker.connect();
    let mut channel = connection.channel().unwrap();
    let durable = || DeclareQueue { durable: true, ..DeclareQueue::default() };
    for queue in ["full", "empty"] {
        channel.declare_queue(queue, durable()).unwrap();
    }
    let exchange = DeclareExchange { durable: true, ..DeclareExchange::default() };
    channel.declare_exchange("orders", "topic", exchange).unwrap();
    channel.bind_queue("empty", "orders", "#").unwrap();
    channel.confirm_select(1).unwrap();
    let properties = Properties { delivery_mode: Some(2), ..Properties::default() };
    let message =
        Publication { routing_key: "full", properties, body: b"one", ..Publication::default() };
    channel.publish(&message).unwrap();
    channel.wait_settled().unwrap();
}

/// A store whose broker has stopped.
fn stopped(dir: &Dir) -> std::path::PathBuf {
    let broker = Start::on_disk(dir.path()).ready();
    fill(&broker);
    assert_eq!(broker.stop().code, Some(0));
    dir.join("data")
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Takes everybody's leave to write.
fn make_read_only(data: &Path) {
    for entry in fs::read_dir(data).unwrap() {
        set_mode(&entry.unwrap().path(), 0o444);
    }
    set_mode(data, 0o555);
}

#[test]
fn queues_that_never_held_a_message_are_counted_too() {
    let dir = Dir::new("check-counts");
    let data = stopped(&dir);
    let checked = check(&data, &[]);
    assert_eq!(checked.code, Some(0), "{}", checked.err);
    let summary = checked.out.lines().last().unwrap();
    let expected = "sound, stopped cleanly: 2 durable queues, 1 exchange and 1 binding declared; 1 message in \
                    the log, 0 in run files; 1 segment with ";
    assert!(summary.starts_with(expected), "{summary}");
    let json: Value = serde_json::from_str(&check(&data, &["--json"]).out).unwrap();
    assert_eq!(json["declared"]["queues"], 2, "{json}");
    // As it ever was: those that held one.
    assert_eq!((&json["queues"], &json["sound"]), (&1.into(), &true.into()), "{json}");
}

#[test]
fn a_copy_that_cannot_be_written_is_read() {
    let dir = Dir::new("check-copy");
    let data = stopped(&dir);
    make_read_only(&data);
    let with_lock = check_unprivileged(&data);
    set_mode(&data, 0o755);
    fs::remove_file(data.join("LOCK")).unwrap();
    make_read_only(&data);
    let without_lock = check_unprivileged(&data);
    // Whoever may write leaves none there either.
    set_mode(&data, 0o755);
    let checked = check(&data, &[]);
    assert!(!data.join("LOCK").exists());
    for checked in [with_lock, without_lock, Some(checked)].into_iter().flatten() {
        assert_eq!(checked.code, Some(0), "{}", checked.err);
        assert!(checked.out.contains("sound, stopped cleanly") && checked.err.is_empty());
        assert!(!checked.out.contains("LOCK"), "{}", checked.out);
    }
}

#[test]
fn a_lock_that_cannot_be_looked_at_is_told() {
    let dir = Dir::new("check-lock");
    let data = stopped(&dir);
    set_mode(&data.join("LOCK"), 0);
    let Some(checked) = check_unprivileged(&data) else { return };
    assert_eq!(checked.code, Some(0), "{}", checked.err);
    let first = checked.out.lines().next().unwrap();
    assert!(first.starts_with("the LOCK file cannot be used (Permission denied"), "{first}");
}

#[test]
fn why_a_directory_is_not_checked_is_said_as_it_is() {
    let dir = Dir::new("check-why");
    let start = Start::on_disk(dir.path());
    let broker = start.ready();
    let data = dir.join("data");
    let in_use = check(&data, &[]);
    assert_eq!((in_use.code, in_use.out.as_str()), (Some(1), ""), "no check was begun");
    assert!(in_use.err.contains("is in use by another process"), "{}", in_use.err);
    assert_eq!(broker.stop().code, Some(0));

    let file = dir.join("file");
    fs::write(&file, b"").unwrap();
    let checked = check(&file, &[]);
    assert!(checked.err.contains("file: it is a file, not a directory"), "{}", checked.err);
    let checked = check(&dir.join("nowhere"), &[]);
    assert!(checked.err.contains("there is no data directory"), "{}", checked.err);

    let segment = data.join("log-0000000001.seg");
    set_mode(&segment, 0);
    let unreadable = check_unprivileged(&data);
    set_mode(&segment, 0o644);
    set_mode(&data, 0);
    let closed = check_unprivileged(&data);
    set_mode(&data, 0o755);
    for (checked, what) in
        [(closed, "cannot check"), (unreadable, "cannot read log-0000000001.seg")]
    {
        let Some(Checked { code, err, .. }) = checked else { continue };
        assert_eq!(code, Some(1), "{err}");
        assert!(err.contains(what) && err.contains("Permission denied"), "{err}");
    }
}

#[test]
fn a_newer_format_is_no_damage() {
    let dir = Dir::new("check-newer");
    let newer = include_bytes!("../../forebay-store/tests/fixtures/newer_format.seg");
    fs::write(dir.path().join("log-0000000001.seg"), newer).unwrap();
    let why = "the data directory has format 4, this program reads up to 3: use the newer Forebay that wrote it";
    let text = check(dir.path(), &[]);
    assert_eq!((text.code, text.out.as_str()), (Some(1), ""));
    assert!(text.err.contains(why), "{}", text.err);
    let checked = check(dir.path(), &["--json"]);
    assert_eq!(checked.code, Some(1), "{}", checked.err);
    let json: Value = serde_json::from_str(&checked.out).unwrap();
    assert_eq!((&json["failed"], &json["sound"]), (&why.into(), &false.into()), "{json}");
    assert_eq!((&json["damaged"], &json["declared"]), (&0.into(), &Value::Null), "{json}");
}

#[test]
fn a_topology_that_no_broker_reads_is_not_sound() {
    let dir = Dir::new("check-topology");
    let disk = Arc::new(FileDisk::new(dir.path()).unwrap());
    let options = Options { segment_bytes: 64 << 10, ..Options::default() };
    let (mut store, _) = open(disk.clone(), options).unwrap();
    store.put_meta(b"?", b"of a version to come");
    store.shutdown();
    for now_us in (0..).step_by(20_000).take(5) {
        while let Some(request) = store.poll(now_us) {
            store.complete(now_us, perform(&*disk, request)).unwrap();
        }
    }
    disk.unlock();
    let checked = check(dir.path(), &[]);
    assert_eq!(checked.code, Some(1), "{}", checked.out);
    assert!(checked.out.contains("the stored topology cannot be read: no topology record"));
    assert!(checked.out.contains("\nNOT SOUND: "), "{}", checked.out);
}
