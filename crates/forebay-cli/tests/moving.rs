//! `forebay move` between two brokers: nothing lost, nothing changed, wherever it is killed.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

use forebay_client::blocking::{
    Channel, Connection, ConsumeOptions, DeclareExchange, DeclareQueue, Publication,
};
use forebay_wire::{ArrayBuf, Properties, ShortStr, Table, TableBuf, Value};
use rustix::process::{Pid, Signal, kill_process};
use support::PATIENCE;
use support::broker::{Broker, Start};
use support::dir::Dir;
use support::random::{Random, seed};

/// A message as it lies in a queue.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Stored {
    routing_key: Vec<u8>,
    properties: Vec<u8>,
    body: Vec<u8>,
}

fn moving(from: &str, to: &str, more: &[&str]) -> Command {
    let mut command = Command::new(support::forebay());
    command.args(["move", "--from", from, "--to", to]).args(more);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn output(mut command: Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.output().expect("the binary was built");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (status.code(), text(stdout), text(stderr))
}

fn signal(child: &Child, signal: Signal) {
    // It may have ended by itself.
    let _ = kill_process(Pid::from_child(child), signal);
}

fn declare(broker: &Broker, queue: &str) -> (Connection, Channel) {
    let connection = broker.connect();
    let mut channel = connection.channel().expect("a channel");
    let durable = DeclareQueue { durable: true, ..DeclareQueue::default() };
    channel.declare_queue(queue, durable).expect("declared");
    (connection, channel)
}

fn publish(channel: &mut Channel, routing_key: &str, properties: Properties<'_>, body: &[u8]) {
    let publication = Publication { routing_key, properties, body, ..Publication::default() };
    channel.publish(&publication).expect("published");
}

fn ready(broker: &Broker, queue: &str) -> u32 {
    let mut channel = broker.connect().channel().expect("a channel");
    let passive = DeclareQueue { passive: true, ..DeclareQueue::default() };
    channel.declare_queue(queue, passive).expect("it exists").message_count
}

/// Takes all messages out of a queue.
fn drain(broker: &Broker, queue: &str) -> Vec<Stored> {
    let mut channel = broker.connect().channel().expect("a channel");
    let mut messages = Vec::new();
    while let Some((message, _)) = channel.get(queue, true).expect("it exists") {
        let mut properties = Vec::new();
        message.properties().encode(&mut properties);
        messages.push(Stored {
            routing_key: message.routing_key().to_vec(),
            properties,
            body: message.body().to_vec(),
        });
    }
    messages
}

/// All a message can say, and odd things among it.
fn odd_headers() -> TableBuf {
    let inner = TableBuf::new().with("n", Value::I8(-1)).with("", Value::Void);
    TableBuf::new()
        .with("text", Value::LongStr(b"\xff not UTF-8"))
        .with("table", Value::Table(inner.as_table()))
        .with("u64", Value::I64(i64::MAX))
        .with("decimal", Value::Decimal { scale: 2, value: 5 })
        .with("twice", Value::Bool(true))
        .with("twice", Value::Bool(false))
}

fn odd_properties(headers: Table<'_>) -> [Properties<'_>; 5] {
    let short = |bytes: &'static [u8]| ShortStr::new(bytes);
    [
        Properties::default(),
        Properties { delivery_mode: Some(2), ..Properties::default() },
        Properties {
            headers: Some(headers),
            message_id: short(b"\xfe\0"),
            ..Properties::default()
        },
        Properties { expiration: short(b"600000"), priority: Some(0), ..Properties::default() },
        Properties {
            content_type: short(b"text/plain"),
            content_encoding: short(b""),
            headers: Some(headers),
            delivery_mode: Some(1),
            priority: Some(9),
            correlation_id: short(b"c"),
            reply_to: short(b"elsewhere"),
            expiration: short(b"86400000"),
            message_id: short(b"m"),
            timestamp: Some(u64::MAX),
            type_name: short(b"t"),
            user_id: short(b"guest"),
            app_id: short(b"a"),
            cluster_id: short(b"old"),
        },
    ]
}

#[test]
fn what_arrives_is_what_was_there_in_its_order() {
    let dir = Dir::new("move-whole");
    let (from, to) = (Start::in_memory(dir.path()).ready(), Start::in_memory(dir.path()).ready());
    let headers = odd_headers();
    let mut expected = Vec::new();
    let (connection, mut channel) = declare(&from, "q");
    for number in 0..2_000_u32 {
        let properties = odd_properties(headers.as_table())[number as usize % 5];
        let body = match number % 7 {
            0 => Vec::new(),
            1 => vec![number as u8; 3_000 * (number as usize % 11)],
            _ => number.to_be_bytes().to_vec(),
        };
        publish(&mut channel, "q", properties, &body);
        let mut encoded = Vec::new();
        properties.encode(&mut encoded);
        expected.push(Stored { routing_key: b"other".to_vec(), properties: encoded, body });
    }
    connection.close().expect("closed");
    drop(declare(&to, "other"));
    let (code, out, err) =
        output(moving(&from.url(), &to.url(), &["--queue", "q", "--to-queue", "other", "--json"]));
    assert_eq!(code, Some(0), "{err}");
    let report: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((&report["moved"], &report["marked"]), (&2_000.into(), &0.into()), "{out}");
    assert_eq!(ready(&from, "q"), 0);
    assert!(drain(&to, "other") == expected, "a message was changed, lost or overtaken");
}

#[test]
fn killed_anywhere_it_loses_nothing_and_marks_what_may_be_twice() {
    let messages = support::scaled(20_000, 4_000);
    let dir = Dir::new("move-killed");
    let (from, to) = (Start::in_memory(dir.path()).ready(), Start::in_memory(dir.path()).ready());
    let headers = odd_headers();
    let mut missing = BTreeMap::new();
    let (connection, mut channel) = declare(&from, "q");
    for number in 0..messages {
        let properties = odd_properties(headers.as_table())[number as usize % 5];
        let body = number.to_be_bytes();
        publish(&mut channel, "q", properties, &body);
        let mut encoded = Vec::new();
        properties.encode(&mut encoded);
        missing.insert(body.to_vec(), encoded);
    }
    connection.close().expect("closed");
    drop(declare(&to, "q"));

    let mut random = Random::new(seed());
    let (_watching, mut watcher) = declare(&to, "q");
    let passive = || DeclareQueue { passive: true, ..DeclareQueue::default() };
    let mut arrived = || watcher.declare_queue("q", passive()).expect("it exists").message_count;
    let deadline = Instant::now() + PATIENCE;
    let (mut kills, mut ended) = (0, false);
    while !ended {
        assert!(Instant::now() < deadline, "after {kills} kills there are messages left");
        let mut child = moving(&from.url(), &to.url(), &["--queue", "q", "--prefetch", "200"])
            .spawn()
            .expect("the binary was built");
        // Until so many have arrived, which is anywhere between its start and its end.
        let goal = arrived() + random.below(messages / 12) as u32;
        while arrived() < goal && child.try_wait().expect("a child").is_none() {
            assert!(Instant::now() < deadline, "it moves nothing");
        }
        signal(&child, Signal::KILL);
        let status = child.wait().expect("it ends");
        ended = status.code() == Some(0);
        kills += u32::from(status.code().is_none());
    }
    let mut twice = 0;
    for stored in drain(&to, "q") {
        let parsed =
            forebay_wire::RawProperties::validate(&stored.properties).expect("sound").parse();
        let mark = parsed.headers.and_then(|headers| headers.get("x-republished"));
        let mut plain = TableBuf::new();
        for (name, value) in parsed.headers.iter().flat_map(|headers| headers.iter()) {
            if name != "x-republished" {
                plain.push(name, value);
            }
        }
        let without_mark = (!plain.is_empty()).then(|| plain.as_table());
        let mut unmarked = Vec::new();
        Properties { headers: without_mark, ..parsed }.encode(&mut unmarked);
        let number = u64::from_be_bytes(stored.body[..].try_into().expect("a number"));
        let original = odd_properties(headers.as_table())[number as usize % 5];
        let mut encoded = Vec::new();
        original.encode(&mut encoded);
        assert_eq!(unmarked, encoded, "message {number} was changed");
        if missing.remove(&stored.body).is_none() {
            twice += 1;
            assert_eq!(mark, Some(Value::Bool(true)), "message {number} is there twice, unmarked");
        }
    }
    println!("{kills} kills, {twice} duplicates");
    assert_eq!((missing.len(), ready(&from, "q")), (0, 0));
    assert!(kills > 0, "it was never killed");
}

#[test]
fn a_target_that_is_killed_and_comes_back_gets_everything() {
    const MESSAGES: u32 = 5_000;
    let dir = Dir::new("move-restart");
    let from = Start::in_memory(dir.path()).ready();
    let to = Start::on_disk(dir.path()).ready();
    let (connection, mut channel) = declare(&from, "q");
    for number in 0..MESSAGES {
        let properties = Properties { delivery_mode: Some(2), ..Properties::default() };
        publish(&mut channel, "q", properties, &number.to_be_bytes());
    }
    connection.close().expect("closed");
    drop(declare(&to, "q"));
    let child = moving(&from.url(), &to.url(), &["--queue", "q", "--prefetch", "100", "--json"])
        .spawn()
        .expect("the binary was built");
    while ready(&to, "q") < 500 {}
    let address = to.amqp.to_string();
    to.kill();
    let to = Start::on_disk(dir.path()).flag("--amqp", &address).ready();
    let ended = child.wait_with_output().expect("it ends");
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    let (mut missing, mut twice) = ((0..MESSAGES).collect::<BTreeSet<u32>>(), 0);
    for stored in drain(&to, "q") {
        let number = u32::from_be_bytes(stored.body[..].try_into().expect("a number"));
        if !missing.remove(&number) {
            twice += 1;
            assert!(stored.properties.windows(13).any(|part| part == b"x-republished"));
        }
    }
    println!("{twice} duplicates");
    assert_eq!((missing.len(), ready(&from, "q")), (0, 0));
}

#[test]
fn it_takes_no_more_than_its_count() {
    let dir = Dir::new("move-count");
    let (from, to) = (Start::in_memory(dir.path()).ready(), Start::in_memory(dir.path()).ready());
    let (connection, mut channel) = declare(&from, "q");
    for number in 0..3_000_u32 {
        publish(&mut channel, "q", Properties::default(), &number.to_be_bytes());
    }
    connection.close().expect("closed");
    drop(declare(&to, "q"));
    let more = ["--queue", "q", "--count", "1200", "--prefetch", "100"];
    let (code, _, err) = output(moving(&from.url(), &to.url(), &more));
    assert_eq!(code, Some(0), "{err}");
    assert_eq!((ready(&from, "q"), ready(&to, "q")), (1_800, 1_200));
    let (code, out, err) = output(moving(&from.url(), &to.url(), &["--queue", "q", "--json"]));
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("\"moved\":1800,\"marked\":0"), "more was taken than asked for: {out}");
}

#[test]
fn through_an_exchange_messages_keep_their_keys_or_get_one() {
    let dir = Dir::new("move-exchange");
    let broker = Start::in_memory(dir.path()).ready();
    let (connection, mut channel) = declare(&broker, "q");
    let durable = DeclareExchange { durable: true, ..DeclareExchange::default() };
    channel.declare_exchange("x", "direct", durable).expect("declared");
    for queue in ["a", "b"] {
        channel.declare_queue(queue, DeclareQueue { durable: true, ..Default::default() }).unwrap();
        channel.bind_queue(queue, "x", queue).expect("bound");
        channel.bind_queue("q", "amq.direct", queue).expect("bound");
    }
    let mut fill = |keys: &[&str]| {
        for routing_key in keys {
            let publication =
                Publication { exchange: "amq.direct", routing_key, ..Publication::default() };
            channel.publish(&publication).expect("published");
        }
        let passive = DeclareQueue { passive: true, ..Default::default() };
        channel.declare_queue("q", passive).expect("after all of them");
    };
    fill(&["a", "b", "b"]);
    let url = broker.url();
    let (code, _, err) = output(moving(&url, &url, &["--queue", "q", "--exchange", "x"]));
    assert_eq!((code, ready(&broker, "a"), ready(&broker, "b")), (Some(0), 1, 2), "{err}");
    fill(&["b"]);
    let one_key = ["--queue", "q", "--exchange", "x", "--routing-key", "a"];
    let (code, _, err) = output(moving(&url, &url, &one_key));
    assert_eq!((code, ready(&broker, "a")), (Some(0), 2), "{err}");

    // What no queue takes stays where it is.
    fill(&["a", "b"]);
    let nowhere = ["--queue", "q", "--exchange", "x", "--routing-key", "nowhere", "--json"];
    let (code, out, err) = output(moving(&url, &url, &nowhere));
    assert_eq!(code, Some(3), "{err}");
    assert!(err.contains("no queue took the message"), "{err}");
    assert!(out.contains("\"moved\":0"), "{out}");
    assert_eq!(ready(&broker, "q"), 2);
    connection.close().expect("closed");
}

/// A message that the default exchange would bring back to the queue it was taken from.
#[test]
fn a_message_whose_own_key_is_its_queue_is_not_moved_in_a_circle() {
    let dir = Dir::new("move-circle");
    let broker = Start::in_memory(dir.path()).ready();
    let (_connection, mut channel) = declare(&broker, "dlq");
    channel.declare_queue("jobs", DeclareQueue { durable: true, ..Default::default() }).unwrap();
    channel.bind_queue("dlq", "amq.direct", "jobs").expect("bound");
    let dead = Publication { exchange: "amq.direct", routing_key: "jobs", ..Default::default() };
    channel.publish(&dead).expect("published");
    publish(&mut channel, "dlq", Properties::default(), b"of its own");
    let passive = || DeclareQueue { passive: true, ..Default::default() };
    channel.declare_queue("dlq", passive()).expect("after both of them");
    let url = broker.url();
    let (code, out, err) = output(moving(
        &url,
        &url,
        // In a circle it would go on for ever.
        &["--queue", "dlq", "--exchange", "", "--count", "50", "--json"],
    ));
    assert_eq!((code, ready(&broker, "jobs"), ready(&broker, "dlq")), (Some(3), 1, 1), "{err}");
    let cure = "stopped early: a message's own routing key is `dlq`, the queue it was taken from, to which the \
                default exchange would bring it back; give a key for all with --routing-key, or name a queue \
                with --to-queue";
    assert!(err.contains(cure), "{err}");
    let report: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((&report["moved"], &report["not_confirmed"]), (&1.into(), &1.into()), "{report}");
    // Another broker has another queue of that name.
    let other = Start::in_memory(dir.path()).ready();
    drop(declare(&other, "dlq"));
    let keys = ["--queue", "dlq", "--exchange", ""];
    let (code, _, err) = output(moving(&url, &other.url(), &keys));
    assert_eq!((code, ready(&broker, "dlq"), ready(&other, "dlq")), (Some(0), 0, 1), "{err}");
}

#[test]
fn a_message_whose_copy_would_come_back_is_not_moved_in_a_circle() {
    let dir = Dir::new("move-copies");
    let broker = Start::in_memory(dir.path()).ready();
    let (_connection, mut channel) = declare(&broker, "q");
    channel.declare_queue("r", DeclareQueue { durable: true, ..Default::default() }).unwrap();
    let copied = |to: &[u8]| {
        let keys = ArrayBuf::new().with(Value::LongStr(b"nobody")).with(Value::LongStr(to));
        TableBuf::new().with("CC", Value::Array(keys.as_array()))
    };
    for to in [b"elsewhere", &b"q"[..]] {
        let headers = copied(to);
        let copies = Properties { headers: Some(headers.as_table()), ..Properties::default() };
        publish(&mut channel, if to == b"q" { "away" } else { "q" }, copies, to);
    }
    let passive = || DeclareQueue { passive: true, ..Default::default() };
    channel.declare_queue("q", passive()).expect("after both of them");
    let url = broker.url();
    let more = ["--queue", "q", "--to-queue", "r", "--count", "50"];
    let (code, _, err) = output(moving(&url, &url, &more));
    assert_eq!((code, ready(&broker, "r"), ready(&broker, "q")), (Some(3), 1, 1), "{err}");
    let cure = "a message's header CC names `q`, the queue it was taken from, to which the default exchange would \
                bring it back; name another exchange with --exchange";
    assert!(err.contains(cure), "{err}");
    // There it is a key as any other.
    channel.bind_queue("r", "amq.direct", "away").expect("bound");
    let more = ["--queue", "q", "--exchange", "amq.direct"];
    let (code, _, err) = output(moving(&url, &url, &more));
    assert_eq!((code, ready(&broker, "r"), ready(&broker, "q")), (Some(0), 2, 0), "{err}");
}

#[test]
fn following_ends_with_a_signal_and_has_moved_what_came() {
    let dir = Dir::new("move-follow");
    let (from, to) = (Start::in_memory(dir.path()).ready(), Start::in_memory(dir.path()).ready());
    let (_connection, mut channel) = declare(&from, "q");
    let (_target, mut arrived) = declare(&to, "q");
    let mut arrivals = arrived.consume("q", ConsumeOptions::default()).expect("it exists");
    let child = moving(&from.url(), &to.url(), &["--queue", "q", "--follow"])
        .spawn()
        .expect("the binary was built");
    for body in [b"1", b"2"] {
        publish(&mut channel, "q", Properties::default(), body);
        channel.flush().expect("sent");
        let message = arrivals.next_message(Some(PATIENCE)).expect("served").expect("it arrives");
        assert_eq!(message.body(), body);
    }
    signal(&child, Signal::TERM);
    let ended = child.wait_with_output().expect("it ends");
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    assert_eq!(ready(&from, "q"), 0);
}

#[test]
fn with_idle_seconds_it_ends_by_itself_and_takes_what_comes_until_then() {
    let dir = Dir::new("move-idle");
    let (from, to) = (Start::in_memory(dir.path()).ready(), Start::in_memory(dir.path()).ready());
    let (_connection, mut channel) = declare(&from, "q");
    let (_target, mut arrived) = declare(&to, "q");
    let mut arrivals = arrived.consume("q", ConsumeOptions::default()).expect("it exists");
    let mut child = moving(&from.url(), &to.url(), &["--queue", "q", "--idle-seconds", "1"]);
    let child = child.spawn().expect("the binary was built");
    publish(&mut channel, "q", Properties::default(), b"late");
    channel.flush().expect("sent");
    let message = arrivals.next_message(Some(PATIENCE)).expect("served").expect("it arrives");
    assert_eq!(message.body(), b"late");
    let ended = child.wait_with_output().expect("it ends");
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    assert_eq!(ready(&from, "q"), 0);
}

/// Passes what comes on to a broker, both ways, until both ends have closed.
fn pass_on(left: TcpStream, broker: SocketAddr) {
    let right = TcpStream::connect(broker).expect("the broker accepts");
    let pass = |mut from: TcpStream, mut to: TcpStream| {
        move || {
            // Either end may have gone.
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Write);
        }
    };
    let copy = |socket: &TcpStream| socket.try_clone().expect("a socket");
    std::thread::spawn(pass(copy(&left), copy(&right)));
    std::thread::spawn(pass(right, left));
}

#[test]
fn what_was_moved_is_told_when_the_source_lets_nobody_consume_any_more() {
    let dir = Dir::new("move-refused");
    let (from, to) = (Start::in_memory(dir.path()).ready(), Start::in_memory(dir.path()).ready());
    let (_connection, mut channel) = declare(&from, "q");
    publish(&mut channel, "q", Properties::default(), b"moved");
    channel.flush().expect("sent");
    while ready(&from, "q") != 1 {}
    drop(declare(&to, "q"));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let between = listener.local_addr().expect("bound").to_string();
    let url = from.url().replace(&from.amqp.to_string(), &between);
    let child = moving(&url, &to.url(), &["--queue", "q", "--json"]).spawn().expect("it was built");
    // When it has emptied the queue it connects again to see whether that is still so. By then another one has the queue for itself
    // and leaves a message in it.
    let again = loop {
        let socket = listener.accept().expect("it connects").0;
        if ready(&to, "q") == 1 {
            break socket;
        }
        pass_on(socket, from.amqp);
    };
    let alone = ConsumeOptions { exclusive: true, prefetch: 1, ..ConsumeOptions::default() };
    let mut consumer = channel.consume("q", alone).expect("nobody else consumes");
    let (_other, mut publisher) = declare(&from, "q");
    for body in [b"1", b"2"] {
        publish(&mut publisher, "q", Properties::default(), body);
    }
    publisher.flush().expect("sent");
    consumer.next_message(Some(PATIENCE)).expect("served").expect("it arrives");
    while ready(&from, "q") != 1 {}
    let broker = from.amqp;
    pass_on(again, broker);
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            pass_on(socket.expect("it connects"), broker);
        }
    });
    let ended = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(3), "{said}");
    assert!(said.starts_with("moved 1 in "), "{said}");
    assert!(said.contains("stopped early: the source (--from): "), "{said}");
    let report: serde_json::Value = serde_json::from_slice(&ended.stdout).expect("JSON");
    assert_eq!((&report["moved"], &report["not_confirmed"]), (&1.into(), &0.into()), "{report}");
}

#[test]
fn failures_say_why_in_one_sentence() {
    let dir = Dir::new("move-failures");
    let broker = Start::in_memory(dir.path()).ready();
    drop(declare(&broker, "q"));
    let url = broker.url();
    let wrong = url.replace("guest:guest", "guest:wrong");
    let none = "amqp://127.0.0.1:1";
    for (from, to, more, code, why) in [
        (&*url, &*url, &["--queue", "q"][..], 2, "the same queue"),
        (&url, &url, &["--queue", "q", "--to-queue", "r"], 1, "no queue 'r'"),
        (&url, &url, &["--queue", "absent", "--to-queue", "q"], 1, "no queue 'absent'"),
        (&url, &url, &["--queue", "q", "--exchange", "absent"], 1, "no exchange 'absent'"),
        (&url, none, &["--queue", "q"], 1, "the target (--to): cannot connect to 127.0.0.1:1"),
        (none, &url, &["--queue", "q"], 1, "the source (--from): cannot connect to 127.0.0.1:1"),
        (&wrong, &url, &["--queue", "q", "--to-queue", "q"], 2, "the same queue"),
        (&wrong, &url, &["--queue", "x", "--to-queue", "q"], 1, "refused the login"),
        ("http://x", &url, &["--queue", "q"], 2, "cannot read the URL"),
        (&url, &url, &["--queue", "q", "--to-queue", "r", "--exchange", "x"], 2, "cannot be used"),
        (&url, &url, &["--queue", "q", "--routing-key", "x"], 2, "required"),
        (&url, &url, &[], 2, "required"),
    ] {
        let (ended, out, err) = output(moving(from, to, more));
        assert_eq!(ended, Some(code), "{more:?} {err}");
        assert!(err.contains(why), "{more:?} {err}");
        assert!(code == 2 || err.lines().count() == 1, "{more:?} {err}");
        assert!(out.is_empty() && !err.contains("guest:"), "{more:?} {out} {err}");
    }
}
