//! What `forebay serve` tells in its log, beside why it does not start.

mod support;

use forebay_wire::{TableBuf, Value, queue};
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
    let said = broker.stderr();
    let lines: Vec<&str> = said.lines().filter(|it| it.contains(line)).collect();
    assert_eq!(lines.len(), 1, "{said}");
    assert!(lines[0].contains("WARN") && lines[0].contains("closed 127.0.0.1:"), "{said}");
    let begun = std::time::Instant::now();
    for _ in 0..100 {
        asks_for_a_stream(&broker);
    }
    let seconds = begun.elapsed().as_secs() as usize;
    let said = broker.stderr();
    let lines = said.lines().filter(|it| it.contains(line)).count();
    assert!(lines <= 10 + seconds, "{lines} lines in {seconds} s");
    assert_eq!(broker.stop().code, Some(0));
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
