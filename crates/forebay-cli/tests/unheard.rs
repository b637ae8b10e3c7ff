//! Commands whose words nobody reads, who are told twice, and whose programs are left to themselves.

mod support;

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use support::PATIENCE;
use support::broker::Start;
use support::dir::Dir;

/// A disk without room.
fn full() -> File {
    OpenOptions::new().write(true).open("/dev/full").expect("Linux has it")
}

fn forebay(arguments: &[&str]) -> Command {
    let mut command = Command::new(support::forebay());
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A broker whose log lines go nowhere, and its URL.
fn serve(arguments: &[&str]) -> (Child, String) {
    let common = ["serve", "--amqp", "127.0.0.1:0", "--http", "off", "--log-level", "debug"];
    let mut command = forebay(&[&common, arguments].concat());
    let mut broker = command.stderr(full()).spawn().expect("the binary was built");
    let mut ready = String::new();
    let mut out = BufReader::new(broker.stdout.take().expect("it is piped"));
    out.read_line(&mut ready).expect("it says when it is ready");
    let address = ready.split_once("amqp=").expect("it names its address").1;
    let address = address.split_whitespace().next().unwrap_or_default();
    (broker, format!("amqp://guest:guest@{address}/%2f"))
}

fn publish(url: &str, queue: &str, lines: &str) -> Output {
    let mut command = forebay(&["publish", "--queue", queue, "--url", url]);
    let mut child = command.stdin(Stdio::piped()).stderr(full()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn terminate(child: &Child) {
    let pid = Pid::from_raw(child.id() as i32).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
}

#[test]
fn nothing_ends_because_its_words_cannot_be_written() {
    let home = Dir::new("unheard-full");
    let data = home.path().join("data");
    let data = data.to_str().unwrap();
    let (mut broker, url) = serve(&["--data-dir", data, "--durability", "os"]);
    assert!(publish(&url, "q", "one\ntwo\n").status.success());
    let mut consume = forebay(&["consume", "--queue", "q", "--until-empty", "--url", &url]);
    let consumed = consume.stderr(full()).output().unwrap();
    assert_eq!((consumed.status.code(), &consumed.stdout[..]), (Some(0), &b"one\ntwo\n"[..]));
    terminate(&broker);
    assert_eq!(broker.wait().unwrap().code(), Some(0), "it drains as ever");
    let check = forebay(&["check", "--data-dir", data]).stdout(full()).output().unwrap();
    assert_eq!(check.status.code(), Some(0), "the store is sound, whoever hears of it");
}

#[test]
fn what_was_asked_for_and_cannot_be_written_has_failed_unless_a_pipe_was_closed() {
    let home = Dir::new("unheard-asked");
    let start = Start::silent(home.path()).switch("--in-memory");
    let start = start.flag("--amqp", "127.0.0.1:0").flag("--http", "127.0.0.1:0");
    let broker = start.ready();
    let (url, http) = (&*broker.url(), &*broker.http());
    for queue in ["q", "r"] {
        assert!(publish(url, queue, "").status.success());
    }
    for arguments in [
        &["publish", "--queue", "q", "--json", "--url", url][..],
        &["pipe", "--queue", "q", "--until-empty", "--json", "--url", url, "--", "true"],
        &[
            "pipe",
            "--queue",
            "q",
            "--until-empty",
            "--json",
            "--explain",
            "--url",
            url,
            "--",
            "true",
        ],
        &["move", "--queue", "q", "--to-queue", "r", "--json", "--from", url, "--to", url],
        &["explain", "--queue", "q", "--seconds", "1", "--http", http],
        &["explain", "--queue", "q", "--seconds", "1", "--json", "--http", http],
        &["top", "--once", "--http", http],
        &["top", "--json", "--http", http],
        &["definitions", "export", "--http", http],
        &["bench", "list"],
    ] {
        let lost = forebay(arguments).stdout(full()).output().unwrap();
        let said = String::from_utf8(lost.stderr).unwrap();
        assert_eq!(lost.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.contains("cannot write "), "{arguments:?}: {said}");
        assert!(said.contains(": No space left on device"), "{arguments:?}: {said}");
        if ["definitions", "bench"].contains(&arguments[0]) {
            continue;
        }
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let closed = forebay(arguments).stdout(writer).output().unwrap();
        assert_eq!(closed.status.code(), Some(0), "{arguments:?}: {closed:?}");
    }
    assert_eq!(broker.stop().code, Some(0));
}

#[test]
fn a_signal_that_comes_twice_at_once_is_one() {
    let (mut broker, _) = serve(&["--in-memory"]);
    terminate(&broker);
    terminate(&broker);
    assert_eq!(broker.wait().unwrap().code(), Some(0));
}

#[test]
fn a_directory_without_a_store_is_not_sound_and_stays_as_it_is() {
    let home = Dir::new("unheard-empty");
    let checked =
        forebay(&["check", "--data-dir", home.path().to_str().unwrap()]).output().unwrap();
    let said = String::from_utf8(checked.stderr).unwrap();
    assert_eq!(checked.status.code(), Some(1), "{said}");
    assert!(said.contains("no data of a broker"), "{said}");
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
}

#[test]
fn a_log_level_that_is_none_is_refused() {
    let wrong = forebay(&["serve", "--in-memory", "--log-level", "warning"]).output().unwrap();
    let said = String::from_utf8(wrong.stderr).unwrap();
    assert_eq!(wrong.status.code(), Some(2), "{said}");
    assert!(said.contains("log_level") && said.contains("warn"), "{said}");
}

/// A script in the shell.
fn pipe(url: &str, arguments: &[&str], script: &str) -> Output {
    let common = ["pipe", "--queue", "q", "--url", url, "--until-empty"];
    forebay(&[&common, arguments, &["--", "sh", "-c", script]].concat()).output().unwrap()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

#[test]
fn a_program_that_stays_ends_with_its_input_and_keeps_what_it_gathered() {
    let home = Dir::new("unheard-stream");
    let (mut broker, url) = serve(&["--in-memory"]);
    assert!(publish(&url, "q", "one\ntwo\nthree\n").status.success());
    let gathered = home.path().join("gathered");
    let script = format!(
        "all=; while read -r line; do all=\"$all$line \"; echo ack; done; echo \"$all\" > '{}'",
        gathered.display()
    );
    let piped = pipe(&url, &["--stream", "--concurrency", "1"], &script);
    assert!(piped.status.success(), "{piped:?}");
    assert_eq!(read(&gathered), "one two three \n");
    broker.kill().unwrap();
    broker.wait().unwrap();
}

#[test]
fn what_a_program_has_started_ends_with_it_when_its_time_is_over() {
    let home = Dir::new("unheard-group");
    let (mut broker, url) = serve(&["--in-memory"]);
    assert!(publish(&url, "q", "one\n").status.success());
    let number = home.path().join("number");
    let script = format!("sleep 1000 & echo $! > '{}'; wait", number.display());
    let limits = ["--timeout-s", "1", "--retries", "0", "--on-failure", "reject"];
    let piped = pipe(&url, &limits, &script);
    assert!(piped.status.success(), "{piped:?}");
    let stat = format!("/proc/{}/stat", read(&number).trim());
    let until = Instant::now() + PATIENCE;
    // Whoever collects it may take a moment.
    while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
        assert!(Instant::now() < until, "it runs on");
        std::thread::yield_now();
    }
    broker.kill().unwrap();
    broker.wait().unwrap();
}

#[test]
fn what_fails_or_takes_too_long_is_told_with_its_message() {
    let (mut broker, url) = serve(&["--in-memory"]);
    let limits = ["--timeout-s", "1", "--retries", "0", "--on-failure", "reject"];
    for (kind, script) in [
        (&[][..], "read -r line; [ $line != bad ] || exit 4; sleep 1000"),
        (&["--stream"], "while read -r line; do [ $line != bad ] || exit 4; done"),
    ] {
        assert!(publish(&url, "q", "slow\nbad\n").status.success());
        let piped = pipe(&url, &[&limits, kind].concat(), script);
        let said = String::from_utf8(piped.stderr).unwrap();
        assert_eq!(piped.status.code(), Some(0), "{said}");
        for sentence in [
            "forebay: message stdin:1: 'sh' took longer than 1 s and was stopped\n",
            "forebay: message stdin:2: 'sh' ended with exit code 4",
        ] {
            assert_eq!(said.matches(sentence).count(), 1, "{said}");
        }
    }
    broker.kill().unwrap();
    broker.wait().unwrap();
}

#[test]
fn the_log_says_why_somebody_may_not_log_in() {
    let arguments = ["serve", "--in-memory", "--amqp", "127.0.0.1:0", "--http", "off"];
    let mut broker = forebay(&arguments).spawn().expect("the binary was built");
    let mut ready = String::new();
    let mut out = BufReader::new(broker.stdout.take().expect("it is piped"));
    out.read_line(&mut ready).expect("it says when it is ready");
    let address = ready.split_once("amqp=").expect("it names its address").1;
    let address = address.split_whitespace().next().unwrap_or_default();
    for user in ["guest", "joe"] {
        let refused = publish(&format!("amqp://{user}:wrong@{address}"), "q", "one\n");
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    }
    terminate(&broker);
    let said = broker.wait_with_output().unwrap();
    let log = String::from_utf8(said.stderr).unwrap();
    for (user, why) in [("guest", "the password is another one"), ("joe", "no such user")] {
        let line = log.lines().find(|line| line.contains(&format!("as \"{user}\"")));
        assert!(line.is_some_and(|line| line.contains(why) && line.contains("WARN")), "{log}");
    }
    assert!(!log.contains("wrong"), "{log}");
}

#[test]
fn a_move_from_a_queue_to_itself_is_refused_whatever_its_broker_is_called() {
    let here = "amqp://localhost:5672";
    for (from, to, more) in [
        (here, "amqp://127.0.0.1:5672", &[][..]),
        (here, "amqp://127.0.0.1:5672/%2f", &["--exchange", "", "--routing-key", "q"]),
        // Whichever of the hosts answers first.
        (here, "amqp://127.0.0.1:1,127.0.0.1:5672", &[]),
        ("amqp://127.0.0.1:2,localhost:5672", "amqp://127.0.0.1:1,127.0.0.1:5672", &[]),
    ] {
        let arguments = ["move", "--from", from, "--to", to, "--queue", "q"];
        let refused = forebay(&[&arguments, more].concat()).output().unwrap();
        let said = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(said.contains("the same queue"), "{said}");
    }
}
