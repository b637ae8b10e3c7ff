//! Messages that take longer over their link than a command waits before it asks whether there are more.

mod support;

use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;

use forebay_bench::link::{Conditions, LinkProxy};
use forebay_client::blocking::{DeclareQueue, Publication};
use rustix::process::{Pid, Signal, kill_process};
use support::PATIENCE;
use support::broker::{Broker, Start};
use support::dir::Dir;

/// Each of them takes a third of a second.
const MESSAGES: usize = 3;
const BODY_BYTES: usize = 300_000;
const NARROW: Conditions = Conditions { rtt_us: 0, jitter_us: 0, bytes_per_s: Some(900_000) };

fn fill(broker: &Broker) {
    let mut channel = broker.connect().channel().unwrap();
    channel.declare_queue("q", DeclareQueue::default()).unwrap();
    channel.declare_queue("r", DeclareQueue::default()).unwrap();
    channel.confirm_select(10).unwrap();
    for _ in 0..MESSAGES {
        let body = &[b'x'; BODY_BYTES];
        channel.publish(&Publication { routing_key: "q", body, ..Publication::default() }).unwrap();
    }
    channel.wait_settled().unwrap();
}

/// How many messages wait.
fn ready(broker: &Broker, queue: &str) -> usize {
    let mut channel = broker.connect().channel().unwrap();
    let passive = DeclareQueue { passive: true, ..DeclareQueue::default() };
    channel.declare_queue(queue, passive).unwrap().message_count as usize
}

/// Runs a command to its end, which must come.
fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(support::forebay());
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("the binary was built");
    let pid = Pid::from_child(&child);
    let (ended, end) = mpsc::sync_channel(1);
    thread::spawn(move || ended.send(child.wait_with_output().unwrap()));
    end.recv_timeout(PATIENCE).unwrap_or_else(|_| {
        kill_process(pid, Signal::KILL).unwrap();
        panic!("it does not end: {:?}", end.recv().unwrap());
    })
}

#[test]
fn a_queue_is_not_empty_while_its_messages_are_on_their_way() {
    let dir = Dir::new("narrow-link");
    let broker = Start::in_memory(dir.path()).ready();
    let link = LinkProxy::start(broker.amqp, NARROW).unwrap();
    let (near, far) = (broker.url(), format!("amqp://{}", link.address()));

    fill(&broker);
    let consumed = run(&["consume", "--queue", "q", "--until-empty", "--url", &far]);
    assert_eq!(consumed.status.code(), Some(0), "{:?}", consumed.stderr);
    assert_eq!(consumed.stdout.len(), MESSAGES * (BODY_BYTES + 1));
    assert_eq!(ready(&broker, "q"), 0);

    fill(&broker);
    let piped = run(&["pipe", "--queue", "q", "--until-empty", "--url", &far, "--", "true"]);
    let said = String::from_utf8_lossy(&piped.stderr);
    assert!(said.contains("acknowledged 3, rejected 0, requeued 0"), "{said}");
    assert_eq!(ready(&broker, "q"), 0);

    fill(&broker);
    let moved = ["move", "--queue", "q", "--to-queue", "r", "--from", &far, "--to", &near];
    let moved = run(&moved);
    let said = String::from_utf8_lossy(&moved.stderr);
    // Each at the first try: none was given back and came again.
    assert!(said.starts_with("moved 3 in ") && !said.contains("marked"), "{said}");
    assert_eq!((ready(&broker, "q"), ready(&broker, "r")), (0, MESSAGES));
}

#[test]
fn where_the_consumer_has_the_only_channel_the_queue_is_asked_on_another_socket() {
    let dir = Dir::new("one-channel");
    let broker = Start::in_memory(dir.path()).line("channel_max = 1").ready();
    fill(&broker);
    let url = broker.url();
    let consumed = run(&["consume", "--queue", "q", "--until-empty", "--url", &url]);
    assert_eq!(consumed.status.code(), Some(0), "{:?}", consumed.stderr);
    assert_eq!(consumed.stdout.len(), MESSAGES * (BODY_BYTES + 1));
}
