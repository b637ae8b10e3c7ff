//! What `forebay serve` tells in its log, beside why it does not start.

mod support;

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use forebay_client::blocking::Connection;
use forebay_wire::{TableBuf, Value, queue};
use rustix::process::{Pid, Signal, kill_process};
use support::PATIENCE;
use support::broker::{Broker, Start};
use support::dir::Dir;
use support::peer::{Answer, Peer, short};

/// Asks for a queue of a type that is not there; the answer closes the connection.
fn asks_for_a_stream(broker: &Broker) {
    let mut peer = Peer::open(broker.amqp, 0);
    let arguments = TableBuf::new().with("x-queue-type", Value::LongStr(b"stream"));
    let stream = queue::Declare {
        queue: short("s"),
        durable: true,
        arguments: arguments.as_table(),
        ..queue::Declare::default()
    };
    peer.method(1, &stream);
    let answer = peer.verdict();
    assert!(matches!(answer, Answer::Connection(540, _)), "{answer:?}");
}

#[test]
fn a_connection_that_is_closed_for_an_error_is_one_line_and_a_thousand_are_few() {
    let dir = Dir::new("log-closed");
    let broker = Start::in_memory(dir.path()).ready();
    asks_for_a_stream(&broker);
    let line = "(user guest): 540 NOT_IMPLEMENTED - queue type 'stream'";
    let ended = broker.stop();
    assert_eq!(ended.code, Some(0));
    let said = ended.stderr;
    let lines: Vec<&str> = said.lines().filter(|it| it.contains(line)).collect();
    assert_eq!(lines.len(), 1, "{said}");
    assert!(lines[0].contains("WARN") && lines[0].contains("closed 127.0.0.1:"), "{said}");
    let broker = Start::in_memory(dir.path()).ready();
    let begun = std::time::Instant::now();
    for _ in 0..100 {
        asks_for_a_stream(&broker);
    }
    let seconds = begun.elapsed().as_secs() as usize;
    let said = broker.stop().stderr;
    let lines = said.lines().filter(|it| it.contains(line)).count();
    assert!(lines <= 10 + seconds, "{lines} lines in {seconds} s");
}

#[test]
fn what_is_set_and_opens_or_means_nothing_is_a_line() {
    let dir = Dir::new("log-doubts");
    let start = Start::in_memory(dir.path())
        .variable("FOREBAY_MEMORY_BUGDET", "64MB")
        .variable("FOREBAY_URL", "amqp://elsewhere")
        .line("users = [{ name = \"a\", password = \"a\", tags = [\"admin\"] }]");
    let said = start.ready().stop().stderr;
    let warnings: Vec<&str> = said.lines().filter(|line| line.contains("WARN")).collect();
    assert_eq!(warnings.len(), 2, "{said}");
    let variables = "unknown environment variables, which set nothing: FOREBAY_MEMORY_BUGDET";
    assert!(warnings[0].ends_with(variables), "{said}");
    let tag = "users: `a` has the tag `admin`, which opens nothing; is `administrator` meant?";
    assert!(warnings[1].ends_with(tag), "{said}");
}

#[test]
fn whoever_has_stopped_reading_the_log_holds_up_nobody_and_misses_nothing() {
    let (reader, log) = std::io::pipe().unwrap();
    let mut serve = Command::new(support::forebay());
    serve.args(["serve", "--in-memory", "--amqp", "127.0.0.1:0", "--http", "off"]);
    serve.args(["--log-level", "debug"]).stderr(log).stdout(Stdio::piped());
    let mut broker = serve.spawn().expect("the binary was built");
    // It has the other end of the pipe.
    drop(serve);
    let mut ready = String::new();
    let mut out = BufReader::new(broker.stdout.take().expect("it is piped"));
    out.read_line(&mut ready).expect("it says when it is ready");
    let address = ready.split_once("amqp=").expect("it names its address").1;
    let address = address.split_whitespace().next().unwrap_or_default();
    // Each is two lines of more than 50 bytes, and the pipe holds 64 KiB.
    let listener = address.parse().expect("an address");
    for _ in 0..2000 {
        TcpStream::connect_timeout(&listener, PATIENCE).expect("it goes on accepting");
    }
    let url = format!("amqp://guest:guest@{address}/%2f");
    Connection::open(&url).expect("it serves whether somebody reads its log or not");
    let pid = Pid::from_raw(broker.id() as i32).expect("it has one");
    kill_process(pid, Signal::TERM).expect("it runs");
    let lines: Vec<String> = BufReader::new(reader).lines().map(|line| line.unwrap()).collect();
    let connected = lines.iter().filter(|line| line.contains(" connected key=")).count();
    assert_eq!(connected, 2001);
    assert!(lines.last().is_some_and(|line| line.ends_with("INFO stopped")), "{lines:?}");
    assert_eq!(broker.wait().expect("it ends").code(), Some(0));
}
