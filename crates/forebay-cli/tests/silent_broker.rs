//! A signal ends a command also while it waits for a broker that says nothing.

mod support;

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use forebay_client::blocking::{ConsumeOptions, DeclareQueue, Publication};
use forebay_wire::{TableBuf, Value};
use rustix::process::{Pid, Signal, kill_process};
use support::PATIENCE;
use support::broker::Start;
use support::dir::Dir;

fn forebay(arguments: &[&str]) -> Child {
    let mut command = Command::new(support::forebay());
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().expect("the binary was built")
}

/// How it ends by a signal: its exit code.
fn terminated(mut child: Child) -> Option<i32> {
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let Some(status) = support::ended(&mut child) else {
        child.kill().unwrap();
        panic!("it does not end: {:?}", child.wait_with_output().unwrap());
    };
    status.code()
}

#[test]
fn one_that_accepts_and_does_not_greet_is_not_waited_for_after_a_signal() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("amqp://{}?connection_timeout=3600000", silent.local_addr().unwrap());
    let http = format!("http://{}", silent.local_addr().unwrap());
    let other = url.replace("127.0.0.1", "guest:guest@127.0.0.1");
    for (code, arguments) in [
        (0, &["consume", "--queue", "q", "--url", &url][..]),
        (0, &["pipe", "--queue", "q", "--url", &url, "--", "true"]),
        (1, &["publish", "--queue", "q", "--url", &url]),
        (1, &["move", "--queue", "q", "--to-queue", "r", "--from", &url, "--to", &other]),
        (0, &["explain", "--queue", "q", "--http", &http]),
        (0, &["top", "--once", "--http", &http]),
    ] {
        let child = forebay(arguments);
        let _connected = silent.accept().unwrap();
        assert_eq!(terminated(child), Some(code), "{arguments:?}");
    }
}

#[test]
fn one_that_stands_still_is_not_waited_for_after_a_signal() {
    let dir = Dir::new("silent-broker");
    let broker = Start::in_memory(dir.path()).ready();
    let connection = broker.connect();
    let mut channel = connection.channel().unwrap();
    let one_active = TableBuf::new().with("x-single-active-consumer", Value::Bool(true));
    let one_active = DeclareQueue { arguments: one_active, ..DeclareQueue::default() };
    channel.declare_queue("q", one_active).unwrap();
    channel.declare_queue("r", DeclareQueue::default()).unwrap();
    // Who is active takes one and no more, so that nobody else gets any, and the queue is asked for what is left again and again.
    channel.confirm_select(10).unwrap();
    for _ in 0..2 {
        let message = Publication { routing_key: "q", body: b"m", ..Publication::default() };
        channel.publish(&message).unwrap();
    }
    channel.wait_settled().unwrap();
    channel.qos(1).unwrap();
    channel.consume("q", ConsumeOptions::default()).unwrap();
    let url = broker.url();
    for arguments in [
        &["consume", "--queue", "q", "--until-empty", "--url", &url][..],
        &["move", "--queue", "q", "--to-queue", "r", "--from", &url, "--to", &url],
    ] {
        let child = forebay(arguments);
        let consumers = |channel: &mut forebay_client::blocking::Channel| {
            let passive = DeclareQueue { passive: true, ..DeclareQueue::default() };
            channel.declare_queue("q", passive).unwrap().consumer_count
        };
        let deadline = Instant::now() + PATIENCE;
        while consumers(&mut channel) < 2 {
            assert!(Instant::now() < deadline, "it never consumes: {arguments:?}");
        }
        broker.signal(Signal::STOP);
        assert!(terminated(child).is_some(), "{arguments:?}");
        broker.signal(Signal::CONT);
        while consumers(&mut channel) > 1 {
            assert!(Instant::now() < deadline, "it still consumes: {arguments:?}");
        }
    }
}
