//! `forebay explain` against `forebay serve`: queues whose messages wait, for reasons made on purpose.

mod support;

use std::process::{Command, Stdio};

use forebay_client::blocking::{Channel, Connection, ConsumeOptions, DeclareQueue, Publication};
use serde_json::Value;
use support::broker::{Broker, Start};
use support::dir::Dir;

fn start(dir: &Dir) -> Broker {
    let start = Start::silent(dir.path()).switch("--in-memory");
    start.flag("--amqp", "127.0.0.1:0").flag("--http", "127.0.0.1:0").ready()
}

fn explain(broker: &Broker, args: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(support::forebay());
    command.arg("explain").args(["--seconds", "1", "--http", &broker.http()]).args(args);
    let ended = command.stdin(Stdio::null()).output().expect("it runs");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (ended.status.code(), text(ended.stdout), text(ended.stderr))
}

fn cause(broker: &Broker, queue: &str) -> (String, Value) {
    let (code, out, err) = explain(broker, &["--queue", queue, "--json"]);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    let found: Value = serde_json::from_str(&out).expect("one object");
    (found["cause"].as_str().expect("a name").to_owned(), found)
}

/// A queue with so many messages.
fn filled(connection: &Connection, queue: &str, messages: u32) -> Channel {
    let mut channel = connection.channel().expect("a channel");
    channel.declare_queue(queue, DeclareQueue::default()).expect("declared");
    channel.confirm_select(100).expect("confirms");
    for _ in 0..messages {
        let publication = Publication { routing_key: queue, body: b"m", ..Default::default() };
        channel.publish(&publication).expect("published");
    }
    channel.wait_settled().expect("confirmed");
    channel
}

/// Takes so many messages, and acknowledges none.
fn hold(connection: &Connection, queue: &str, prefetch: u16, messages: u32) {
    let mut channel = connection.channel().expect("a channel");
    let options = ConsumeOptions { prefetch, ..ConsumeOptions::default() };
    let mut consumer = channel.consume(queue, options).expect("a consumer");
    for _ in 0..messages {
        consumer.next_message(Some(support::PATIENCE)).expect("open").expect("a message");
    }
    // It goes on consuming as long as its connection lives.
}

#[test]
fn causes_made_on_purpose_are_named() {
    let dir = Dir::new("explain-causes");
    let broker = start(&dir);
    let connection = broker.connect();
    drop(filled(&connection, "empty", 0));
    assert_eq!(cause(&broker, "empty").0, "nothing");

    drop(filled(&connection, "lonely orders", 3));
    let (name, found) = cause(&broker, "lonely orders");
    assert_eq!((name.as_str(), &found["ready"]), ("no-consumer", &Value::from(3)));

    drop(filled(&connection, "stuck", 5));
    hold(&connection, "stuck", 2, 2);
    let (name, found) = cause(&broker, "stuck");
    assert_eq!((name.as_str(), &found["unacked"]), ("stuck", &Value::from(2)));
    let waits = found["waits"].as_array().expect("a Forebay counts");
    let credit = waits.iter().find(|wait| wait["gate"] == "credit").expect("it waits there");
    assert!(credit["waited_us"].as_u64().expect("a number") > 500_000, "{credit}");
    assert_eq!(found["consumers"][0]["prefetch"], 2);
    assert_eq!(found["consumers"][0]["unacked"], 2);
}

#[test]
fn people_read_why_and_what_to_change() {
    let dir = Dir::new("explain-text");
    let broker = start(&dir);
    let connection = broker.connect();
    drop(filled(&connection, "q", 3));
    let (code, out, _) = explain(&broker, &["--queue", "q"]);
    assert_eq!(code, Some(0));
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[0].starts_with("queue q in /, looked at for 1."), "{out}");
    assert_eq!(lines[1], "  3 wait, consumers hold 0; consumers: 0");
    assert_eq!(*lines.last().unwrap(), "why: nobody consumes the queue; start a consumer");
}

#[test]
fn what_cannot_be_explained_is_said() {
    let dir = Dir::new("explain-wrong");
    let broker = start(&dir);
    let (code, out, err) = explain(&broker, &["--queue", "nowhere"]);
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(err.contains("has no queue 'nowhere' in vhost '/'"), "{err}");
    let (code, _, err) = explain(&broker, &["--queue", "q", "--http", "ftp://x"]);
    assert_eq!(code, Some(2), "{err}");
    let (code, _, err) = explain(&broker, &[]);
    assert_eq!(code, Some(2), "{err}");
}
