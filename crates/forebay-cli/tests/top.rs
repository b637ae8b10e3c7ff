//! `forebay top` against `forebay serve`: on a terminal, in a pipe, as JSON, and at the wrong address.

mod support;

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use forebay_client::blocking::{ConsumeOptions, DeclareQueue, Publication};
use forebay_wire::{TableBuf, Value as FieldValue};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::Value;
use support::broker::{Broker, Start};
use support::dir::Dir;

fn start(dir: &Dir) -> Start {
    Start::silent(dir.path())
        .switch("--in-memory")
        .flag("--amqp", "127.0.0.1:0")
        .flag("--http", "127.0.0.1:0")
}

fn top() -> Command {
    let mut command = Command::new(support::forebay());
    command.arg("top").stdin(Stdio::null());
    command
}

fn ended(args: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = top().args(args).output().expect("it runs");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (status.code(), text(stdout), text(stderr))
}

/// A queue with two messages whose consumer holds one of them and may hold no more.
fn hold_back(broker: &Broker) -> forebay_client::blocking::Connection {
    let connection = broker.connect();
    let mut channel = connection.channel().expect("a channel");
    channel.declare_queue("orders", DeclareQueue::default()).expect("declared");
    channel.confirm_select(10).expect("confirms");
    for _ in 0..2 {
        let publication = Publication { routing_key: "orders", body: b"m", ..Default::default() };
        channel.publish(&publication).expect("published");
    }
    channel.wait_settled().expect("confirmed");
    let one = ConsumeOptions { prefetch: 1, ..ConsumeOptions::default() };
    let mut consumer = channel.consume("orders", one).expect("a consumer");
    consumer.next_message(Some(support::PATIENCE)).expect("open").expect("a message");
    connection
}

/// A terminal of 100 columns, its other end, and `forebay top` on it.
fn on_a_terminal(http: &str) -> (Child, File) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&master).and_then(|()| unlockpt(&master)).expect("it may be used");
    let name = ptsname(&master, Vec::new()).expect("it has a name");
    let open = || -> Stdio {
        let path = name.to_str().expect("a path in UTF-8");
        let slave = File::options().read(true).write(true).open(path).expect("its other end");
        Stdio::from(OwnedFd::from(slave))
    };
    let size = Winsize { ws_row: 24, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&master, size).expect("a size");
    let child =
        top().args(["--http", http]).stdout(open()).stderr(open()).spawn().expect("it runs");
    (child, File::from(master))
}

#[test]
fn on_a_terminal_it_shows_who_waits_for_whom_and_leaves_it_as_it_was() {
    let dir = Dir::new("top-terminal");
    let broker = start(&dir).ready();
    let _held = hold_back(&broker);
    let (mut child, mut terminal) = on_a_terminal(&broker.http());
    let mut seen = String::new();
    let mut buffer = [0; 4096];
    let wanted = "s/s  messages of queue orders wait for consumers to acknowledge what they hold";
    while !seen.contains(wanted) {
        let count = terminal.read(&mut buffer).expect("it is still drawing");
        seen.push_str(&String::from_utf8_lossy(&buffer[..count]));
    }
    assert!(seen.starts_with("\x1b[?1049h\x1b[?25l"), "{seen}");
    kill_process(Pid::from_child(&child), Signal::INT).expect("it runs");
    // The last reader of a terminal whose writers are gone is told EIO.
    while let Ok(count @ 1..) = terminal.read(&mut buffer) {
        seen.push_str(&String::from_utf8_lossy(&buffer[..count]));
    }
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    assert!(seen.ends_with("\x1b[?25h\x1b[?1049l"), "{seen}");
}

#[test]
fn while_the_broker_does_not_answer_a_signal_ends_it_and_the_terminal_is_as_it_was() {
    let dir = Dir::new("top-hanging");
    let broker = start(&dir).ready();
    let http = broker.http();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let between = listener.local_addr().expect("it has one").to_string();
    let (hangs, hanging) = std::sync::mpsc::sync_channel(1);
    std::thread::spawn(move || {
        // Two looks, which are a picture; the third has no answer.
        for _ in 0..2 {
            let (mut client, _) = listener.accept().expect("it looks");
            let mut server = TcpStream::connect(&http).expect("it listens");
            let mut asks = client.try_clone().expect("a socket");
            let mut to = server.try_clone().expect("a socket");
            // Either end may have gone.
            std::thread::spawn(move || std::io::copy(&mut asks, &mut to));
            let _ = std::io::copy(&mut server, &mut client);
        }
        hangs.send(listener.accept().expect("it looks")).expect("the test waits");
    });
    let (mut child, mut terminal) = on_a_terminal(&between);
    let _silent = hanging.recv_timeout(support::PATIENCE).expect("it looks thrice");
    let signalled = Instant::now();
    kill_process(Pid::from_child(&child), Signal::INT).expect("it runs");
    let (mut seen, mut buffer) = (String::new(), [0; 4096]);
    while let Ok(count @ 1..) = terminal.read(&mut buffer) {
        seen.push_str(&String::from_utf8_lossy(&buffer[..count]));
    }
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    assert!(seen.starts_with("\x1b[?1049h\x1b[?25l"), "{seen}");
    assert!(seen.ends_with("\x1b[?25h\x1b[?1049l"), "{seen}");
    assert!(signalled.elapsed() < Duration::from_secs(5), "it waited for the answer");
}

#[test]
fn once_prints_a_text_or_an_object_and_ends() {
    let dir = Dir::new("top-once");
    let broker = start(&dir).ready();
    let _held = hold_back(&broker);
    let (code, out, err) = ended(&["--once", "--http", &broker.http()]);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    assert!(out.starts_with("Forebay "), "{out}");
    assert!(out.contains("messages of queue orders wait for consumers"), "{out}");
    assert!(!out.contains('\x1b'), "{out}");

    let (code, out, err) = ended(&["--once", "--json", "--http", &broker.http()]);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    let picture: Value = serde_json::from_str(&out).expect("one object");
    assert_eq!(picture["queues"][0]["name"], "orders");
    assert_eq!(picture["waits"][0]["gate"], "credit");
    assert!(picture["waits"][0]["s_per_s"].as_f64().expect("a number") > 0.5);
}

#[test]
fn a_queue_shows_its_flow_mode_and_whether_it_holds_its_publishers() {
    let dir = Dir::new("top-flow");
    let broker = start(&dir).ready();
    let connection = broker.connect();
    let mut channel = connection.channel().expect("a channel");
    let mut arguments = TableBuf::new();
    arguments.push("x-flow", FieldValue::LongStr(b"balance"));
    let balances = DeclareQueue { arguments, ..DeclareQueue::default() };
    channel.declare_queue("work", balances).expect("declared");
    let (code, out, _) = ended(&["--once", "--http", &broker.http()]);
    assert_eq!(code, Some(0), "{out}");
    let line = out.lines().find(|line| line.starts_with("  work ")).expect("the queue");
    assert!(line.ends_with("balance, open"), "{out}");
    let (_, out, _) = ended(&["--once", "--json", "--http", &broker.http()]);
    let picture: Value = serde_json::from_str(&out).expect("one object");
    let queue = &picture["queues"][0];
    assert_eq!((&queue["flow"], &queue["flow_state"]), (&"balance".into(), &"absorbing".into()));
}

#[test]
fn as_json_it_goes_on_until_nobody_reads() {
    let dir = Dir::new("top-json");
    let broker = start(&dir).ready();
    let mut child = top()
        .args(["--json", "--http", &broker.http()])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    for _ in 0..2 {
        let line = lines.next().expect("a line").expect("text");
        serde_json::from_str::<Value>(&line).expect("an object a line");
    }
    drop(lines);
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}

#[test]
fn what_cannot_be_watched_is_told_in_one_sentence() {
    let dir = Dir::new("top-failures");
    let broker = start(&dir)
        .line(
            "users = [{ name = \"guest\", password = \"guest\", tags = [\"administrator\"] }, \
             { name = \"ops\", password = \"ops\", tags = [\"monitoring\"] }, \
             { name = \"app\", password = \"app\" }]",
        )
        .ready();
    let http = broker.http();
    let (wrong, lesser, ops) =
        (format!("guest:secret@{http}"), format!("app:app@{http}"), format!("ops:ops@{http}"));
    let rabbitmq = answering(|path| match path {
        "/api/overview" => (200, r#"{"rabbitmq_version":"3.10.8","management_version":"3.10.8"}"#),
        _ => (404, r#"{"error":"Object Not Found","reason":"Not Found"}"#),
    });
    let other = answering(|_| (404, "nothing here"));
    let odd = answering(|_| (200, "<html>"));
    let amqp = broker.amqp.to_string();
    for (http, code, why) in [
        ("ftp://h:1", 2, "it must begin with http://"),
        ("nowhere", 2, "it must name HOST:PORT"),
        ("127.0.0.1:1", 1, "cannot reach http://127.0.0.1:1"),
        (
            "127.0.0.1:1",
            1,
            "`forebay serve` starts one; `--http` or FOREBAY_HTTP_URL names another",
        ),
        (&*wrong, 1, "refused the login: login failed"),
        (&*lesser, 1, "has not the tag administrator or monitoring"),
        (&*rabbitmq, 1, "is a RabbitMQ 3.10.8"),
        (&*other, 1, "it is no Forebay"),
        (&*odd, 1, "answers with something else than a Forebay"),
        (&*amqp, 1, "it does not speak HTTP (protocol: "),
        (&*amqp, 1, "); is it the AMQP port? `--http` names the HTTP endpoint"),
        ("amqp://localhost:1", 2, "cannot read the URL amqp://localhost:1: it must begin with"),
    ] {
        let (ended_with, out, err) = ended(&["--once", "--http", http]);
        assert_eq!(ended_with, Some(code), "{http}: {err}");
        assert_eq!(err.lines().count(), 1, "{err}");
        assert!(err.starts_with("forebay: ") && err.contains(why), "{http}: {err}");
        assert_eq!(out, "");
        assert!(!err.contains("secret"), "{err}");
    }
    assert_eq!(ended(&["--once", "--http", &ops]).0, Some(0));
}

/// An HTTP server that answers by path with a code and a body; its address.
fn answering(answer: fn(&str) -> (u16, &'static str)) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("it has one");
    std::thread::spawn(move || {
        for socket in listener.incoming().map_while(Result::ok) {
            let mut lines = BufReader::new(&socket).lines().map_while(Result::ok);
            let first = lines.next().unwrap_or_default();
            lines.take_while(|line| !line.is_empty()).for_each(drop);
            let (code, body) = answer(first.split(' ').nth(1).unwrap_or_default());
            let length = body.len();
            let head = format!("HTTP/1.1 {code} x\r\nContent-Length: {length}\r\n\r\n{body}");
            // The other side may have gone.
            let _ = (&socket).write_all(head.as_bytes());
        }
    });
    address.to_string()
}
