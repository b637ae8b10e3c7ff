//! `forebay publish` and `consume` over a broker that is killed and started again.

mod support;

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use support::broker::{Broker, Start};
use support::dir::Dir;

fn command(broker: &Broker, arguments: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_forebay"))
        .args(arguments)
        .env("FOREBAY_URL", broker.url())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary was built")
}

/// Publishes these lines and waits for their confirms.
fn publish(broker: &Broker, lines: &[u32]) {
    let mut child = command(broker, &["publish", "--queue", "line"]);
    write(&mut child, lines);
    assert!(child.wait_with_output().expect("it ends").status.success());
}

fn write(child: &mut Child, lines: &[u32]) {
    let input = child.stdin.as_mut().expect("it is piped");
    for line in lines {
        writeln!(input, "{line}").expect("it reads");
    }
}

/// Reads lines until this one.
fn until(output: &mut Lines<BufReader<ChildStdout>>, last: u32) -> Vec<u32> {
    let mut seen = Vec::new();
    while seen.last() != Some(&last) {
        let line = output.next().expect("it goes on").expect("it is text");
        seen.push(line.parse().expect("a number"));
    }
    seen
}

fn output(child: &mut Child) -> Lines<BufReader<ChildStdout>> {
    BufReader::new(child.stdout.take().expect("it is piped")).lines()
}

#[test]
fn lines_that_come_while_the_broker_is_away_arrive_when_it_is_back() {
    let dir = Dir::new("reconnecting");
    let start = Start::on_disk(dir.path());
    let broker = start.ready();
    let start = start.flag("--amqp", &broker.amqp.to_string());
    publish(&broker, &[0]);
    let mut consumer = command(&broker, &["consume", "--queue", "line", "--reconnect"]);
    let mut publisher = command(&broker, &["publish", "--queue", "line", "--reconnect"]);
    let mut lines = output(&mut consumer);
    write(&mut publisher, &[1, 2, 3]);
    let mut seen = until(&mut lines, 3);

    broker.kill();
    write(&mut publisher, &[4, 5, 6]);
    let broker = start.ready();
    write(&mut publisher, &[7, 8, 9]);
    seen.extend(until(&mut lines, 9));

    drop(publisher.stdin.take());
    let published = publisher.wait_with_output().expect("it ends");
    let told = String::from_utf8_lossy(&published.stderr).into_owned();
    assert!(published.status.success(), "{told}");
    assert!(told.contains("trying again") && told.contains("connected again"), "{told}");
    assert!(told.contains("published 9, confirmed 9"), "{told}");
    kill_process(Pid::from_child(&consumer), Signal::TERM).expect("it runs");
    let consumed = consumer.wait_with_output().expect("it ends");
    assert!(consumed.status.success(), "{}", String::from_utf8_lossy(&consumed.stderr));
    // Twice is what was written and not acknowledged in time.
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen, (0..=9).collect::<Vec<u32>>());
    assert_eq!(broker.stop().code, Some(0));
}

#[test]
fn what_was_written_and_not_acknowledged_comes_twice_and_is_told() {
    let dir = Dir::new("reconnecting-count");
    let start = Start::on_disk(dir.path());
    let broker = start.ready();
    let start = start.flag("--amqp", &broker.amqp.to_string());
    publish(&broker, &[1, 2]);
    // Of a count acknowledgements wait for the end, as each would let the broker send one more.
    let arguments = ["consume", "--queue", "line", "--reconnect", "--count", "4"];
    let mut consumer = command(&broker, &arguments);
    let mut lines = output(&mut consumer);
    assert_eq!(until(&mut lines, 2), [1, 2]);

    broker.kill();
    let broker = start.ready();
    assert_eq!(until(&mut lines, 2), [1, 2]);
    let consumed = consumer.wait_with_output().expect("it ends");
    let told = String::from_utf8_lossy(&consumed.stderr).into_owned();
    assert!(consumed.status.success(), "{told}");
    assert!(told.contains("2 were written and the connection was lost"), "{told}");

    publish(&broker, &[3]);
    let rest = command(&broker, &["consume", "--queue", "line", "--until-empty", "--reconnect"]);
    assert_eq!(rest.wait_with_output().expect("it ends").stdout, b"3\n");
    assert_eq!(broker.stop().code, Some(0));
}
