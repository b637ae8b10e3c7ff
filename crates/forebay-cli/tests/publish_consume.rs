//! `forebay publish` and `consume` as people and scripts use them: processes, pipes, signals,
//! exit codes.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Output, Stdio};

/// A broker in memory on a free port, killed when dropped.
struct Broker {
    process: Child,
    url: String,
}

impl Broker {
    fn start() -> Broker {
        Broker::start_with("16MiB")
    }

    /// That takes messages of so many bytes.
    fn start_with(message_max: &str) -> Broker {
        let mut process = forebay()
            .env("FOREBAY_MESSAGE_MAX", message_max)
            .args(["serve", "--in-memory", "--amqp", "127.0.0.1:0", "--http", "off"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary was built");
        let stdout = process.stdout.take().expect("it is piped");
        let mut ready = String::new();
        BufReader::new(stdout).read_line(&mut ready).expect("it says when it is ready");
        let address = ready.split_once("amqp=").expect("it names its address").1;
        let address = address.split_whitespace().next().unwrap_or_default();
        Broker { process, url: format!("amqp://guest:guest@{address}/%2f") }
    }

    /// Runs a command to its end.
    fn run(&self, args: &[&str], input: &str) -> Ended {
        let mut child = self.spawn(args);
        let mut stdin = child.stdin.take().expect("it is piped");
        // A command that reads no input may be gone already.
        let _ = stdin.write_all(input.as_bytes());
        drop(stdin);
        Ended::of(child.wait_with_output().expect("it ends"))
    }

    fn spawn(&self, args: &[&str]) -> Child {
        forebay()
            .args(args)
            .env("FOREBAY_URL", &self.url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary was built")
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // Gone already is as good.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Ended {
    fn of(output: Output) -> Ended {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ended { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

fn forebay() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.env_remove("FOREBAY_URL");
    command
}

fn lines(range: std::ops::RangeInclusive<u32>) -> String {
    range.map(|number| format!("{number}\n")).collect()
}

fn terminate(child: &Child) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
}

#[test]
fn consume_says_where_the_time_of_messages_went() {
    let broker = Broker::start();
    broker.run(&["publish", "--queue", "q"], "one\ntwo\nthree\n");
    let consume = ["consume", "--queue", "q", "--until-empty", "--explain"];
    let ended = broker.run(&consume, "");
    assert_eq!((ended.code, &*ended.out), (Some(0), "one\ntwo\nthree\n"));
    assert!(ended.err.contains("3 messages, "), "{}", ended.err);
    assert!(ended.err.contains("  stdin:3: "), "{}", ended.err);

    let publish = ["publish", "--queue", "q", "--explain", "1", "--window", "1"];
    let told = broker.run(&[&publish[..], &["--json"]].concat(), "four\n").out;
    let told: serde_json::Value = serde_json::from_str(&told).expect("one object");
    let (confirms, window) =
        (&told["explanation"]["confirms"]["count"], &told["explanation"]["window_set_to"]);
    assert_eq!((confirms, window), (&1.into(), &1.into()), "{told}");
    assert!(broker.run(&publish, "").err.contains("0 messages, a window of 1"));
    let ended = broker.run(&[&consume[..], &["100", "--json"]].concat(), "");
    let told: serde_json::Value = serde_json::from_str(&ended.err).expect("one object");
    assert_eq!((&told["messages"], &told["cause"]), (&1.into(), &"no-consumer".into()));
    let segments = told["segments"].as_array().expect("segments").iter();
    let names: Vec<_> = segments.map(|segment| segment["name"].as_str().unwrap_or("")).collect();
    assert_eq!(names.first(), Some(&"publisher's window"), "{names:?}");
    assert_eq!(names.last(), Some(&"acknowledgement"), "{names:?}");
    assert!(ended.out.contains("\"four\"") && ended.out.lines().count() == 1);
}

#[test]
fn lines_make_the_round_trip() {
    let broker = Broker::start();
    let input = format!("{}\n\nno end", lines(1..=20_000).replace('\n', "\r\n"));
    let published = broker.run(&["publish", "--queue", "q"], &input);
    assert_eq!(published.code, Some(0), "{published:?}");
    assert!(published.err.contains("confirmed 20003"), "{published:?}");
    let consumed = broker.run(&["consume", "--queue", "q", "--until-empty"], "");
    assert_eq!(consumed.code, Some(0), "{consumed:?}");
    assert_eq!(consumed.out, format!("{}\n\nno end\n", lines(1..=20_000)));
    let again = broker.run(&["consume", "--queue", "q", "--until-empty"], "");
    assert_eq!((again.code, again.out.as_str()), (Some(0), ""));
}

#[test]
fn a_whole_input_is_one_message() {
    let broker = Broker::start();
    let published = broker.run(&["publish", "--queue", "q", "--whole", "--json"], "a\nb\n");
    assert_eq!(published.code, Some(0), "{published:?}");
    let report: serde_json::Value = serde_json::from_str(&published.out).unwrap();
    assert_eq!((&report["published"], &report["confirmed"]), (&1.into(), &1.into()));
    let consumed = broker.run(&["consume", "--queue", "q", "--count", "1", "--json"], "");
    let message: serde_json::Value = serde_json::from_str(&consumed.out).unwrap();
    assert_eq!(message["body"], "a\nb\n");
    assert_eq!(message["properties"]["delivery_mode"], 2);
}

#[test]
fn unroutable_lines_are_named_and_exit_with_3() {
    let broker = Broker::start();
    let args = ["publish", "--exchange", "amq.direct", "--routing-key", "nowhere"];
    let published = broker.run(&args, "a\nb\n");
    assert_eq!(published.code, Some(3), "{published:?}");
    for line in ["lines 1 to 2: returned", "confirmed 0"] {
        assert!(published.err.contains(line), "{published:?}");
    }
}

#[test]
fn a_line_that_is_too_large_for_the_broker_is_known_to_be_refused() {
    let broker = Broker::start_with("1KiB");
    let input = format!("one\n{}\n", "x".repeat(1_025));
    let published = broker.run(&["publish", "--queue", "q", "--window", "1"], &input);
    assert_eq!(published.code, Some(3), "{published:?}");
    let line = "line 2: refused by the broker: PRECONDITION_FAILED - message size 1025";
    assert!(published.err.starts_with(line), "{published:?}");
    assert!(published.err.contains("published 2, confirmed 1 "), "{published:?}");
    assert!(published.err.ends_with(", 1 rejected\n"), "{published:?}");
}

#[test]
fn who_loses_the_broker_is_told_from_which_line_to_go_on() {
    let mut broker = Broker::start();
    assert_eq!(broker.run(&["publish", "--queue", "q"], "").code, Some(0));
    let mut publisher = broker.spawn(&["publish", "--queue", "q", "--json"]);
    let mut stdin = publisher.stdin.take().expect("it is piped");
    stdin.write_all(b"one\n").expect("it reads");
    assert_eq!(broker.run(&["consume", "--queue", "q", "--count", "1"], "").out, "one\n");
    broker.process.kill().and_then(|()| broker.process.wait()).expect("it ran");
    stdin.write_all(b"two\n").expect("it reads");
    let ended = Ended::of(publisher.wait_with_output().expect("it ends"));
    assert_eq!(ended.code, Some(3), "{ended:?}");
    let report: serde_json::Value = serde_json::from_str(&ended.out).expect("one object");
    let next = report["not_sent_from"].as_u64().expect("a line");
    // Whether the loss was noticed before the second line came.
    assert!(matches!(next, 2 | 3) && report["published"] == next - 1, "{ended:?}");
    assert!(ended.err.contains(&format!("from line {next} on: not sent\n")), "{ended:?}");
}

#[test]
fn failures_say_why_in_one_sentence() {
    let broker = Broker::start();
    for (args, code, why) in [
        (&["publish", "--exchange", "absent", "--routing-key", "x"][..], 1, "no exchange 'absent'"),
        (
            &["publish", "--url", "amqp://127.0.0.1:1", "--queue", "q"],
            1,
            "cannot connect to 127.0.0.1:1: Connection refused (os error 111); is a broker running there? \
             `forebay serve` starts one; `--url` or FOREBAY_URL names another",
        ),
        (&["publish", "--url", "http://h", "--queue", "q"], 2, "http://h"),
        (&["consume", "--url", "amqp://h:port", "--queue", "q"], 2, "amqp://h:port"),
        (&["consume", "--url", "amqp://h?heartbeat=often", "--queue", "q"], 2, "heartbeat"),
        (
            &["consume", "--url", "amqps://h?cacertfiel=ca.pem", "--queue", "q"],
            2,
            "the URL has an unknown parameter `cacertfiel`; there are heartbeat, ",
        ),
        (&["publish", "--queue", "q", "/does/not/exist"], 1, "cannot open /does/not/exist"),
        (
            &["publish", "--queue", "q", "hello"],
            1,
            "it is read as a file; to send text: echo TEXT | forebay publish …",
        ),
        (
            &["publish", "--queue", "q", "--exchange", "x", "--routing-key", "k"],
            2,
            "cannot be used",
        ),
        (
            &["publish", "--routing-key", "x"],
            2,
            "--routing-key goes with --exchange; with --queue none is needed",
        ),
        (&["publish", "--queue", "q", "--routing-key", "x"], 2, "with --queue none is needed"),
        (&["publish"], 2, "--queue QUEUE, or --exchange EXCHANGE with --routing-key KEY"),
        (&["publish", "--exchange", "x"], 2, "  --routing-key <KEY>"),
        (&["consume", "--queue", "absent"], 1, "no queue 'absent'"),
        // As where the URL is not from the environment.
        (&["consume"], 2, "Usage: forebay consume [OPTIONS] --queue <QUEUE>\n"),
        (&["pipe", "--queue", "q", "true"], 2, "tip: put '--' before the program"),
    ] {
        let ended = broker.run(args, "x\n");
        assert_eq!(ended.code, Some(code), "{args:?} {ended:?}");
        assert!(ended.err.contains(why), "{args:?} {ended:?}");
        assert!(!ended.err.contains("guest:guest"), "{args:?} {ended:?}");
    }
    let nameless = broker.url.replace("/%2f", "/");
    let ended = broker.run(&["consume", "--queue", "q", "--url", &nameless], "");
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let why = "which names the virtual host with the empty name: leave it off, or write /%2f";
    assert!(ended.err.contains(why), "{ended:?}");
}

/// On the default port there may be a broker or none: both are exit code 1, and a URL that cannot be read is 2.
#[test]
fn a_variable_that_is_empty_is_not_set() {
    for (variable, command) in [("FOREBAY_URL", "consume"), ("FOREBAY_HTTP_URL", "explain")] {
        let output = forebay().args([command, "--queue", "none"]).env(variable, "").output();
        let ended = Ended::of(output.expect("the binary was built"));
        assert_eq!(ended.code, Some(1), "{ended:?}");
    }
}

#[test]
fn consume_takes_no_more_than_its_count() {
    let broker = Broker::start();
    assert_eq!(broker.run(&["publish", "--queue", "q"], &lines(1..=3_000)).code, Some(0));
    let first =
        broker.run(&["consume", "--queue", "q", "--count", "1200", "--prefetch", "100"], "");
    assert_eq!((first.code, first.out), (Some(0), lines(1..=1_200)));
    let rest = broker.run(&["consume", "--queue", "q", "--until-empty", "--json"], "");
    assert_eq!(rest.out.lines().count(), 1_800);
    assert!(!rest.out.contains("\"redelivered\":true"), "more was taken than asked for");
}

#[test]
fn a_closed_pipe_is_a_clean_end_and_loses_nothing() {
    let broker = Broker::start();
    assert_eq!(broker.run(&["publish", "--queue", "q"], &lines(1..=200_000)).code, Some(0));
    let mut consumer = broker.spawn(&["consume", "--queue", "q"]);
    let mut read = vec![0; 10_000];
    let mut stdout = consumer.stdout.take().expect("it is piped");
    stdout.read_exact(&mut read).expect("messages flow");
    drop(stdout);
    let ended = Ended::of(consumer.wait_with_output().expect("it ends"));
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));

    let rest = broker.run(&["consume", "--queue", "q", "--until-empty"], "");
    let first: u32 = rest.out.lines().next().unwrap().parse().unwrap();
    let expected: Vec<String> = (first..=200_000).map(|number| number.to_string()).collect();
    assert!(rest.out.lines().eq(expected.iter().map(String::as_str)), "a gap in the rest");
}

/// A shell runs it with this redirection.
fn redirected(broker: &Broker, args: &[&str], redirection: &str) -> Ended {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("exec \"$0\" \"$@\" {redirection}")]);
    command.arg(env!("CARGO_BIN_EXE_forebay")).args(args).env("FOREBAY_URL", &broker.url);
    Ended::of(command.stdin(Stdio::null()).output().expect("there is a shell"))
}

#[test]
fn nothing_is_taken_for_a_standard_output_that_is_closed() {
    let broker = Broker::start();
    assert_eq!(broker.run(&["publish", "--queue", "q"], "one\n").code, Some(0));
    let consume = ["consume", "--queue", "q", "--count", "1"];
    for args in [&consume[..], &["definitions", "export"]] {
        let ended = redirected(&broker, args, ">&-");
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert!(ended.err.starts_with("forebay: standard output is closed"), "{ended:?}");
    }
    // On purpose it may be.
    let ended = redirected(&broker, &consume, ">/dev/null");
    assert_eq!((ended.code, &*ended.err), (Some(0), ""));
    assert_eq!(broker.run(&["consume", "--queue", "q", "--until-empty"], "").out, "");
}

/// No ack goes out before the end when no more may be taken than is counted.
#[test]
fn what_was_read_of_a_count_before_the_pipe_closed_does_not_come_again() {
    let broker = Broker::start();
    assert_eq!(broker.run(&["publish", "--queue", "q"], &lines(1..=3)).code, Some(0));
    let mut consumer = broker.spawn(&["consume", "--queue", "q", "--count", "100"]);
    let mut read = vec![0; lines(1..=3).len()];
    let mut stdout = consumer.stdout.take().expect("it is piped");
    stdout.read_exact(&mut read).expect("messages flow");
    drop(stdout);
    assert_eq!(broker.run(&["publish", "--queue", "q"], &lines(4..=5)).code, Some(0));
    let ended = Ended::of(consumer.wait_with_output().expect("it ends"));
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
    let rest = broker.run(&["consume", "--queue", "q", "--until-empty"], "");
    assert_eq!(rest.out, lines(4..=5));
}

#[test]
fn a_signal_ends_a_waiting_consumer_cleanly() {
    let broker = Broker::start();
    assert_eq!(broker.run(&["publish", "--queue", "q"], "one\n").code, Some(0));
    let mut consumer = broker.spawn(&["consume", "--queue", "q"]);
    let mut line = String::new();
    let mut stdout = BufReader::new(consumer.stdout.take().expect("it is piped"));
    stdout.read_line(&mut line).expect("the message comes although more could follow");
    assert_eq!(line, "one\n");
    terminate(&consumer);
    assert_eq!(consumer.wait().expect("it ends").code(), Some(0));
    assert_eq!(broker.run(&["consume", "--queue", "q", "--until-empty"], "").out, "");
}

#[test]
fn a_line_is_published_before_the_next_one_comes() {
    let broker = Broker::start();
    assert_eq!(broker.run(&["publish", "--queue", "q"], "").code, Some(0));
    let mut publisher = broker.spawn(&["publish", "--queue", "q"]);
    let mut stdin = publisher.stdin.take().expect("it is piped");
    for line in ["one\n", "two\n"] {
        stdin.write_all(line.as_bytes()).expect("it reads");
        let consumed = broker.run(&["consume", "--queue", "q", "--count", "1"], "");
        assert_eq!(consumed.out, line);
    }
    drop(stdin);
    let ended = Ended::of(publisher.wait_with_output().expect("it ends"));
    assert_eq!(ended.code, Some(0), "{ended:?}");
}
