//! `forebay demo` as people run it: to its end, cut short, and on a broker that is killed meanwhile.
#![cfg(feature = "demo")]

mod support;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};

use forebay_client::blocking::{DeclareQueue, Publication};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::PATIENCE;
use support::broker::{Broker, Start};
use support::dir::Dir;

const QUEUES: [&str; 4] =
    ["forebay-demo.north", "forebay-demo.east", "forebay-demo.south", "forebay-demo.west"];

fn demo(arguments: &[&str]) -> Command {
    let mut command = Command::new(support::forebay());
    command.arg("demo").args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn terminate(child: &Child) {
    kill_process(Pid::from_child(child), Signal::TERM).expect("it runs");
}

/// The summary of a run in which all checks hold.
fn sound(output: &Output) -> Value {
    let said = || String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        said()
    );
    let summary: Value = serde_json::from_slice(&output.stdout).expect("a summary");
    assert_eq!(summary["holds"], true, "{summary}");
    assert_eq!(summary["published"], summary["stored"]);
    assert!(summary["published"].as_u64() > Some(0));
    summary
}

#[test]
fn it_carries_everything_and_checks_it() {
    let dir = Dir::new("demo");
    let file = dir.join("weather.sqlite");
    let arguments = ["--seconds", "1", "--json", "--database", file.to_str().expect("UTF-8")];
    let summary = sound(&demo(&arguments).output().expect("it runs"));
    assert_eq!(summary["months"].as_array().map(Vec::len), Some(12));
    assert!(summary["transactions"].as_u64() > Some(0));
    assert_eq!(std::fs::read(&file).expect("it is kept").get(..15), Some(&b"SQLite format 3"[..]));

    let again = demo(&arguments).output().expect("it runs");
    assert_eq!(again.status.code(), Some(1), "an earlier run's counts are nobody's to add to");
    assert!(String::from_utf8_lossy(&again.stderr).contains("exists already"));
}

#[test]
fn it_ends_early_and_still_counts() {
    let mut child = demo(&["--seconds", "600"]).spawn().expect("it runs");
    let mut stdout = BufReader::new(child.stdout.take().expect("it is piped"));
    let mut text = String::new();
    while !text.contains("published ") {
        assert!(stdout.read_line(&mut text).expect("it draws") > 0, "{text}");
    }
    terminate(&child);
    stdout.read_to_string(&mut text).expect("it sums up");
    let ended = child.wait_with_output().expect("it ends");
    assert_eq!(ended.status.code(), Some(0), "{text}");
    assert!(text.contains("✓ every queue is empty again"), "{text}");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    let ending = "forebay: no more is published, and what was is still counted; a second signal ends at once\n";
    assert_eq!(said, ending);
}

#[test]
fn a_second_signal_leaves_no_data_behind() {
    let (home, temporary) = (Dir::new("demo-broker"), Dir::new("demo-second"));
    let broker = Start::in_memory(home.path()).ready();
    let mut child = demo(&["--seconds", "600", "--json", "--url", &broker.url()]);
    let mut child = child.env("TMPDIR", temporary.path()).spawn().expect("it runs");
    let mut view = BufReader::new(child.stderr.take().expect("it is piped")).lines();
    let mut draws = |what: &str| view.any(|line| line.expect("it draws").contains(what));
    assert!(draws("published "));
    assert!(std::fs::read_dir(temporary.path()).expect("it is there").count() > 0);
    // Nothing is counted to its end any more.
    broker.signal(Signal::STOP);
    terminate(&child);
    assert!(draws("a second signal"));
    // It may come before the first one was long enough ago, and is the same then.
    while child.try_wait().expect("a child can be waited for").is_none() {
        terminate(&child);
        std::thread::yield_now();
    }
    broker.kill();
    assert_eq!(child.wait().expect("it ended").code(), Some(130));
    assert_eq!(std::fs::read_dir(temporary.path()).expect("it is there").count(), 0);
}

#[test]
fn a_signal_before_the_broker_answers_is_enough() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("amqp://{}", silent.local_addr().expect("it has one"));
    let child = demo(&["--url", &url]).spawn().expect("it runs");
    // It asks, and waits.
    let asked = silent.accept().expect("it connects");
    terminate(&child);
    let ended = child.wait_with_output().expect("it ends");
    drop(asked);
    assert_eq!(ended.status.code(), Some(1));
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(said, "forebay: a signal came before the broker had answered\n");
}

/// What a relay does with what was sent.
enum Does {
    Pass,
    /// Tells, and passes that and what follows no further.
    Hold,
    /// Ends the connection.
    Cut,
}

/// Where a relay to `broker` listens, which `does` so with what somebody sent on a connection of this number.
fn relay(
    broker: SocketAddr,
    does: impl Fn(usize, &[u8]) -> Does + Copy + Send + 'static,
) -> (SocketAddr, Receiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it has one");
    let (tell, told) = sync_channel(1);
    std::thread::spawn(move || {
        for (number, peer) in listener.incoming().enumerate() {
            let mut peer = peer.expect("it connects");
            let mut upstream = TcpStream::connect(broker).expect("it accepts");
            let clones = (upstream.try_clone(), peer.try_clone());
            std::thread::spawn(move || {
                io::copy(&mut clones.0.expect("a descriptor"), &mut clones.1.expect("another"))
            });
            let tell = tell.clone();
            std::thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok(count @ 1..) = peer.read(&mut bytes) {
                    match does(number, &bytes[..count]) {
                        Does::Pass => upstream.write_all(&bytes[..count]).expect("it reads"),
                        Does::Hold => return tell.send(()).expect("the test waits for it"),
                        Does::Cut => return peer.shutdown(Shutdown::Both).expect("it is open"),
                    }
                }
            });
        }
    });
    (address, told)
}

fn is_there(broker: &Broker, name: &str) -> bool {
    let passive = DeclareQueue { passive: true, ..DeclareQueue::default() };
    broker.connect().channel().expect("it serves").declare_queue(name, passive).is_ok()
}

#[test]
fn a_demo_that_cannot_begin_leaves_nothing_of_its_own_on_the_broker() {
    let dir = Dir::new("demo-refused");
    let broker = Start::in_memory(dir.path()).ready();
    // The queues are there when the pipeline's connection cannot be opened.
    let (address, _held) =
        relay(broker.amqp, |number, _| if number == 1 { Does::Cut } else { Does::Pass });
    let cut = demo(&["--url", &format!("amqp://{address}")]).output().expect("it runs");
    assert_eq!(cut.status.code(), Some(1), "{}", String::from_utf8_lossy(&cut.stderr));
    assert!(!QUEUES.into_iter().any(|name| is_there(&broker, name)));

    // Somebody else's of this name stays, with what is in it.
    let mut channel = broker.connect().channel().expect("it serves");
    channel.declare_queue(QUEUES[2], DeclareQueue::default()).expect("it is new");
    let one = Publication { routing_key: QUEUES[2], body: b"theirs", ..Publication::default() };
    channel.confirm_select(1).expect("it serves");
    channel.publish(&one).expect("it serves");
    channel.wait_settled().expect("it serves");
    let refused = demo(&["--url", &broker.url()]).output().expect("it runs");
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains(QUEUES[2]), "{said}");
    let [north, east, _, west] = QUEUES;
    assert!(![north, east, west].into_iter().any(|name| is_there(&broker, name)));
    assert_eq!(channel.purge_queue(QUEUES[2]), Ok(1));
}

#[test]
fn a_signal_before_anything_is_carried_leaves_nothing_on_the_broker() {
    let dir = Dir::new("demo-early");
    let broker = Start::in_memory(dir.path()).ready();
    let there = |name: &str| is_there(&broker, name);
    const PURGE: [u8; 4] = [0, 50, 0, 30];
    let ways: [fn(usize, &[u8]) -> Does; 2] = [
        // While queues are set up, of which all are declared before one is purged.
        |number, bytes| match number == 0 && bytes.windows(4).any(|method| method == PURGE) {
            true => Does::Hold,
            false => Does::Pass,
        },
        // While the pipeline connects.
        |number, _| if number == 1 { Does::Hold } else { Does::Pass },
    ];
    for way in ways {
        let (address, held) = relay(broker.amqp, way);
        let url = format!("amqp://guest:guest@{address}/%2f");
        let child = demo(&["--url", &url]).spawn().expect("it runs");
        held.recv_timeout(PATIENCE).expect("it comes so far");
        assert!(QUEUES.into_iter().all(there));
        terminate(&child);
        let ended = child.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(said, "forebay: a signal came before the broker had answered\n");
        assert_eq!(ended.status.code(), Some(1));
        assert!(!QUEUES.into_iter().any(there));
    }
}

#[test]
fn a_broker_that_is_killed_and_started_again_changes_no_count() {
    let dir = Dir::new("demo");
    let start = Start::on_disk(dir.path());
    let mut broker = start.ready();
    let start = start.flag("--amqp", &broker.amqp.to_string());
    let arguments = ["--seconds", "600", "--json", "--url", &broker.url()];
    let mut child = demo(&arguments).spawn().expect("it runs");
    let mut view = BufReader::new(child.stderr.take().expect("it is piped")).lines();
    let mut until_readings_are_stored = || {
        let line = view.find(|line| {
            let line = line.as_ref().expect("it draws");
            let stored = line.split("stored ").nth(1);
            stored.is_some_and(|rate| !rate.starts_with("0/s"))
        });
        assert!(line.is_some(), "it ended by itself");
    };
    for _ in 0..2 {
        until_readings_are_stored();
        broker.kill();
        broker = start.ready();
        // The line of the second in which it was killed, and one from after it.
        until_readings_are_stored();
        until_readings_are_stored();
    }
    terminate(&child);
    drop(view); // a broken pipe is no reason to stop
    let summary = sound(&child.wait_with_output().expect("it ends"));
    assert_eq!(broker.stop().code, Some(0));
    println!("{} duplicates told apart", summary["duplicates"]);
}
