//! `forebay pipe` with programs of the shell: what they are given, what becomes of messages, how it ends.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::dir::Dir;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // Gone already is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Broker {
    _process: Killed,
    url: String,
}

fn forebay(url: &str) -> Command {
    let mut command = Command::new(support::forebay());
    command.env("FOREBAY_URL", url).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

impl Broker {
    fn start() -> Broker {
        let mut serve = forebay("");
        serve.args(["serve", "--in-memory", "--amqp", "127.0.0.1:0", "--http", "off"]);
        let mut process = serve.stderr(Stdio::null()).spawn().expect("the binary was built");
        let stdout = process.stdout.take().expect("it is piped");
        let mut ready = String::new();
        BufReader::new(stdout).read_line(&mut ready).expect("it says when it is ready");
        let address = ready.split_once("amqp=").expect("it names its address").1;
        let address = address.split_whitespace().next().unwrap_or_default();
        let url = format!("amqp://guest:guest@{address}/%2f");
        Broker { _process: Killed(process), url }
    }

    fn publish(&self, lines: &str) {
        self.publish_with(&[], lines);
    }

    fn publish_with(&self, arguments: &[&str], lines: &str) {
        let mut command = forebay(&self.url);
        command.args(["publish", "--queue", "q"]).args(arguments).stdin(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        let ended = child.wait_with_output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
    }

    /// All that is left in the queue, in its order.
    fn left(&self) -> String {
        self.consume(&["--until-empty"])
    }

    fn consume(&self, arguments: &[&str]) -> String {
        let mut command = forebay(&self.url);
        let ended = command.args(["consume", "--queue", "q"]).args(arguments).output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
        String::from_utf8(ended.stdout).unwrap()
    }

    fn pipe(&self, arguments: &[&str]) -> Piping {
        self.pipe_as(forebay(&self.url), arguments)
    }

    fn pipe_as(&self, mut command: Command, arguments: &[&str]) -> Piping {
        command.args(["pipe", "--queue", "q"]).args(arguments).stdin(Stdio::null());
        let mut child = command.spawn().unwrap();
        let out = lines_of(child.stdout.take().unwrap());
        let err = lines_of(child.stderr.take().unwrap());
        Piping { child: Killed(child), out, err, said: String::new() }
    }
}

/// Lines as they come, so that a test can give up waiting for them.
fn lines_of(pipe: impl Read + Send + 'static) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::sync_channel(10_000);
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

struct Piping {
    child: Killed,
    out: mpsc::Receiver<String>,
    err: mpsc::Receiver<String>,
    said: String,
}

impl Piping {
    fn lines(&self, count: usize) -> Vec<String> {
        let line = |_| self.out.recv_timeout(PATIENCE).expect("a program writes a line");
        (0..count).map(line).collect()
    }

    /// Waits for so many lines on standard error that are this.
    fn until_said(&mut self, words: &str, times: usize) {
        for _ in 0..times {
            loop {
                let line = self.err.recv_timeout(PATIENCE).expect("it is said");
                self.said.push_str(&line);
                self.said.push('\n');
                if line == words {
                    break;
                }
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child.0), signal).expect("it runs");
    }

    /// SIGTERM; exit code and standard error.
    fn end(mut self) -> (Option<i32>, String) {
        self.signal(Signal::TERM);
        self.ended()
    }

    fn ended(&mut self) -> (Option<i32>, String) {
        let code = self.child.0.wait().unwrap().code();
        for line in self.err.iter() {
            self.said.push_str(&line);
            self.said.push('\n');
        }
        (code, std::mem::take(&mut self.said))
    }
}

/// One program at a time for messages that came together: they wait for each other.
#[test]
fn it_says_where_the_time_of_messages_went() {
    let broker = Broker::start();
    broker.publish("not marked\n");
    let arguments = ["--concurrency", "1", "--explain", "--", "sh", "-c", "sleep 0.1; echo done"];
    let piping = broker.pipe(&arguments);
    piping.lines(1);
    broker.publish_with(&["--explain", "1"], "1\n2\n3\n4\n5\n6\n");
    piping.lines(6);
    let (code, said) = piping.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("6 messages, "), "{said}");
    for segment in ["publisher's window", "way to the broker", "queue", "handler"] {
        assert!(said.lines().any(|line| line.ends_with(&format!("  {segment}"))), "{said}");
    }
    assert!(said.contains("the only worker is busy"), "{said}");
    let slowest = said.lines().skip_while(|line| *line != "slowest:").nth(1).unwrap_or_default();
    assert!(slowest.starts_with("  stdin:6: "), "{said}");
}

#[test]
fn machines_are_told_the_same_and_of_single_messages_and_there_is_a_picture() {
    let broker = Broker::start();
    broker.publish_with(&["--explain", "1"], "1\n2\n3\n");
    let dir = Dir::new("pipe-timeline");
    let picture = dir.path().join("timeline.svg");
    let (ids, file) = ("stdin:2", picture.to_str().unwrap());
    let told = ["--json", "--message", ids, "--timeline", file, "--concurrency", "2"];
    let program = ["--until-empty", "--", "sh", "-c", "echo done"];
    let mut piping = broker.pipe(&[&told[..], &program].concat());
    let (code, said) = piping.ended();
    assert_eq!(code, Some(0), "{said}");
    let last = piping.out.iter().last().expect("it prints an object");
    let object: Value = serde_json::from_str(&last).expect(&last);
    assert_eq!((&object["acked"], &object["failed"]), (&Value::from(3), &Value::from(0)));
    let explanation = &object["explanation"];
    let sum = |object: &Value, each: &str| -> u64 {
        let segments = object["segments"].as_array().expect("segments").iter();
        segments.map(|segment| segment[each].as_u64().expect("a number")).sum()
    };
    assert_eq!(explanation["messages"], 3);
    assert_eq!(explanation["total_us"], sum(explanation, "sum_us"));
    assert_eq!(explanation["settings"]["workers"], 2);
    assert!(explanation["cause"].is_string() && explanation["says"].is_string(), "{last}");
    assert_eq!(explanation["slowest"].as_array().map(Vec::len), Some(3));
    let one = &object["asked"][0];
    assert_eq!((&one["message"], &object["asked"][1]), (&Value::from(ids), &Value::Null));
    assert_eq!(one["total_us"], sum(one, "us"));
    assert!(matches!(one["worker"].as_u64(), Some(1 | 2)), "{one}");
    assert!(said.contains("worker  1, ") && said.contains("█ working"), "{said}");
    let drawn = std::fs::read_to_string(&picture).expect("it was written");
    assert!(drawn.starts_with("<svg ") && drawn.contains("stdin:2"), "{drawn}");
}

#[test]
fn a_picture_that_has_no_place_is_refused_before_any_message_is_taken() {
    let broker = Broker::start();
    broker.publish("1\n");
    let told = ["--timeline", "/no/dir/x.svg", "--until-empty", "--", "cat"];
    let (code, said) = broker.pipe(&told).ended();
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("--timeline: /no/dir/x.svg: No such file"), "{said}");
    let (code, said) = broker.pipe(&["--until-empty", "--", "cat"]).ended();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("acknowledged 1, "), "{said}");
}

#[test]
fn a_pause_before_a_retry_is_told_apart_from_waiting() {
    let broker = Broker::start();
    broker.publish("1\n2\n");
    let dir = Dir::new("pipe-retried");
    let picture = dir.path().join("timeline.svg");
    let told = ["--json", "--timeline", picture.to_str().unwrap(), "--until-empty"];
    let program = ["--", "sh", "-c", "test $FOREBAY_ATTEMPT = 2"];
    let mut piping = broker.pipe(&[&told[..], &program].concat());
    let (code, said) = piping.ended();
    assert_eq!(code, Some(0), "{said}");
    let last = piping.out.iter().last().expect("it prints an object");
    let object: Value = serde_json::from_str(&last).expect(&last);
    let explanation = &object["explanation"];
    assert_eq!((&object["acked"], &object["failed"]), (&Value::from(2), &Value::from(2)));
    assert_eq!(explanation["settings"]["retries"]["count"], 3);
    assert_eq!(explanation["settings"]["breaker"]["max_us"], 60_000_000);
    let segments = explanation["segments"].as_array().expect("segments");
    let detour = |name| segments.iter().find(|segment| segment["detour"] == name);
    let pauses = detour("pauses").expect("they were tried again");
    assert_eq!(pauses["name"], "pauses before retries");
    assert!(pauses["sum_us"].as_u64().is_some_and(|us| us >= 1_000_000), "{pauses}");
    assert!(detour("attempts").is_some() && detour("breaker").is_none(), "{last}");
    assert!(said.contains("▒ retries, breaker"), "{said}");
    let drawn = std::fs::read_to_string(&picture).expect("it was written");
    assert!(drawn.contains("class=\"held\""), "{drawn}");
}

#[test]
fn a_message_that_was_asked_for_is_explained_by_itself() {
    let broker = Broker::start();
    broker.publish("1\n2\n");
    let asked = ["--message", "stdin:2", "--message", "another", "--until-empty"];
    let mut piping = broker.pipe(&[&asked[..], &["--", "true"]].concat());
    let (code, said) = piping.ended();
    assert_eq!(code, Some(0), "{said}");
    let one = said.lines().skip_while(|line| !line.starts_with("message stdin:2, worker"));
    assert!(one.clone().nth(1).is_some_and(|line| line.starts_with("1 message, ")), "{said}");
    assert!(said.contains("message another was not settled here"), "{said}");
}

#[test]
fn each_message_is_given_to_a_program_and_acknowledged_when_it_succeeds() {
    let broker = Broker::start();
    broker.publish("one\ntwo\nthree\n");
    let script =
        "read -r line; echo \"$line $FOREBAY_ROUTING_KEY $FOREBAY_REDELIVERED $FOREBAY_ATTEMPT\"";
    let piping = broker.pipe(&["--concurrency", "2", "--", "sh", "-c", script]);
    let mut lines = piping.lines(3);
    lines.sort_unstable();
    assert_eq!(lines, ["one q 0 1", "three q 0 1", "two q 0 1"]);
    let (code, said) = piping.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("acknowledged 3, rejected 0, requeued 0; 0 attempts failed"), "{said}");
    assert_eq!(broker.left(), "");
}

#[test]
fn exit_codes_say_what_becomes_of_a_message() {
    let broker = Broker::start();
    broker.publish("good\nbad\nlast\nsick\n");
    let script =
        "read -r line; case $line in bad) exit 65;; sick) echo sick; exit 1;; *) echo $line;; esac";
    let arguments =
        ["--concurrency", "1", "--retries", "0", "--reject-on", "65", "--drain-s", "20", "--"];
    let piping = broker.pipe(&[&arguments[..], &["sh", "-c", script]].concat());
    // 'sick' goes back to the queue and comes again.
    let mut seen = piping.lines(4);
    seen.sort_unstable();
    assert!(seen.starts_with(&["good".into(), "last".into(), "sick".into()]), "{seen:?}");
    let (code, said) = piping.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("acknowledged 2, rejected 1, requeued "), "{said}");
    assert!(said.contains("'sh' ended with exit code 1"), "{said}");
    assert_eq!(broker.left(), "sick\n");
}

#[test]
fn a_failure_is_tried_again_and_then_rejected_if_so_told() {
    let broker = Broker::start();
    broker.publish("a\n");
    let script = "echo $FOREBAY_ATTEMPT; exit 3";
    let arguments = ["--retries", "1", "--on-failure", "reject", "--", "sh", "-c", script];
    let piping = broker.pipe(&arguments);
    assert_eq!(piping.lines(2), ["1", "2"]);
    let (_, said) = piping.end();
    assert!(said.contains("acknowledged 0, rejected 1, requeued 0; 2 attempts failed"), "{said}");
    assert_eq!(broker.left(), "");
}

#[test]
fn a_program_that_stays_answers_each_message_with_a_line() {
    let broker = Broker::start();
    let numbers: String = (1..=300).map(|number| format!("{number}\n")).collect();
    broker.publish(&numbers);
    let script = "echo started >&2; while read -r n; do
        if [ $((n % 100)) -eq 0 ]; then echo reject round numbers; else echo ack; fi
        echo answered >&2; done";
    let mut piping = broker.pipe(&["--stream", "--concurrency", "2", "--", "sh", "-c", script]);
    piping.until_said("answered", 300);
    let (code, said) = piping.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("acknowledged 297, rejected 3, requeued 0; 0 attempts failed"), "{said}");
    assert!((1..=2).contains(&said.matches("started").count()), "{said}");
}

#[test]
fn a_program_that_stays_and_dies_is_started_again() {
    let broker = Broker::start();
    broker.publish("a\ndie\nb\n");
    let script = "while read -r line; do
        if [ $line = die ]; then echo dying >&2; exit 9; fi; echo ack; echo answered $line >&2; done";
    let arguments = ["--stream", "--concurrency", "1", "--retries", "0", "--on-failure", "reject"];
    let mut piping = broker.pipe(&[&arguments[..], &["--", "sh", "-c", script]].concat());
    piping.until_said("answered b", 1);
    let (code, said) = piping.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("acknowledged 2, rejected 1"), "{said}");
    assert!(said.contains("'sh' ended with exit code 9 and has not answered"), "{said}");
}

#[test]
fn an_answer_too_many_is_not_taken_for_the_next_message_s() {
    let broker = Broker::start();
    broker.publish("a\nb\nc\n");
    let script = "while read -r line; do case $line in
        a) printf 'ack\nack\n' ;; *) echo reject ;; esac; echo answered $line >&2; done";
    let mut piping = broker.pipe(&["--stream", "--concurrency", "1", "--", "sh", "-c", script]);
    piping.until_said("answered c", 1);
    let (code, said) = piping.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("acknowledged 1, rejected 2"), "{said}");
    assert!(said.contains("'sh' answers a message with more than one line"), "{said}");
}

/// A message that fills its standard input, which it does not read.
#[test]
fn a_program_that_does_not_read_its_message_is_not_fed_for_ever() {
    let broker = Broker::start();
    let message = "x".repeat(1 << 20);
    for (program, sentence) in [
        ("cat", "the answer of 'sh' is longer than 65536 bytes"),
        ("exec >&-; sleep 1000", "'sh' closed its standard output and has not answered"),
        ("echo ack; sleep 1000", "'sh' answers before it has read its message"),
    ] {
        broker.publish_with(&["--whole"], &message);
        let once = ["--until-empty", "--retries", "0", "--on-failure", "reject"];
        // The time limit is for a test that fails.
        let stream = ["--stream", "--timeout-s", "30", "--", "sh", "-c"];
        let mut piping = broker.pipe(&[&once[..], &stream, &[program]].concat());
        let (code, said) = piping.ended();
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains(sentence), "{program}: {said}");
        assert!(said.contains("acknowledged 0, rejected 1, "), "{program}: {said}");
    }
}

#[test]
fn a_program_that_has_ended_is_not_waited_for_while_another_holds_its_input() {
    let broker = Broker::start();
    broker.publish_with(&["--whole"], &"x".repeat(1 << 20));
    // A shell gives what it leaves in the background no standard input of its own accord.
    let script = "exec 3<&0; sleep 1000 <&3 >/dev/null 2>&1 & echo $!";
    let once = ["--until-empty", "--retries", "0", "--on-failure", "reject"];
    // The time limit is for a test that fails.
    let program = ["--timeout-s", "30", "--", "sh", "-c", script];
    let mut piping = broker.pipe(&[&once[..], &program].concat());
    let left = piping.lines(1).remove(0).parse().ok().and_then(Pid::from_raw);
    let (code, said) = piping.ended();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("acknowledged 1, rejected 0, requeued 0; 0 attempts failed"), "{said}");
    kill_process(left.expect("a process"), Signal::KILL).expect("it was left alone");
}

#[test]
fn it_ends_by_itself_when_all_is_done_if_so_told() {
    let broker = Broker::start();
    broker.publish("one\ntwo\nbad\n");
    let mut command = forebay(&broker.url);
    let program = "read line; sleep 0.2; test $line != bad";
    command.args([
        "pipe",
        "--queue",
        "q",
        "--until-empty",
        "--retries",
        "1",
        "--on-failure",
        "reject",
    ]);
    let ended = command.args(["--", "sh", "-c", program]).output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(said.contains("acknowledged 2, rejected 1, requeued 0; 2 attempts failed"), "{said}");
    assert!(!said.contains("signal"), "{said}");
    assert_eq!(broker.left(), "");
}

#[test]
fn sigterm_lets_programs_finish_and_gives_the_rest_back() {
    let broker = Broker::start();
    broker.publish("first\nsecond\nthird\n");
    let script = "read -r line; echo begun; sleep 1; echo done";
    let piping = broker.pipe(&["--concurrency", "1", "--", "sh", "-c", script]);
    assert_eq!(piping.lines(1), ["begun"]);
    let (code, said) = piping.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("acknowledged 1, rejected 0, requeued 0"), "{said}");
    let waits = "forebay: waiting up to 30 s for 1 message at work; a second signal ends at once\n";
    assert!(said.starts_with(waits), "{said}");
    assert_eq!(broker.left(), "second\nthird\n");
}

#[test]
fn a_second_signal_leaves_no_program_behind() {
    let broker = Broker::start();
    for kind in [&[][..], &["--stream"]] {
        broker.publish("endless\n");
        // That it was killed is no failure with its message.
        let once = ["--retries", "0", "--on-failure", "reject"];
        let program = ["--", "sh", "-c", "echo begun >&2; sleep 1000; exit 1"];
        let mut piping = broker.pipe(&[kind, &once, &program].concat());
        piping.until_said("begun", 1);
        // One that comes soon after the first counts as the same.
        while piping.child.0.try_wait().unwrap().is_none() {
            piping.signal(Signal::TERM);
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(piping.child.0.wait().unwrap().code(), Some(130));
        // The shell and its 'sleep' have standard error, too, while they live.
        let closed = std::iter::repeat_with(|| piping.err.recv_timeout(PATIENCE).err());
        let closed = closed.flatten().next();
        assert_eq!(closed, Some(mpsc::RecvTimeoutError::Disconnected), "{kind:?}");
        assert_eq!(broker.consume(&["--count", "1"]), "endless\n");
    }
}

#[test]
fn a_terminal_that_goes_is_a_signal_unless_it_is_ignored() {
    let broker = Broker::start();
    broker.publish("first\nsecond\n");
    let program = ["--concurrency", "1", "--", "sh", "-c", "read -r line; echo $line; sleep 1"];
    let mut piping = broker.pipe(&program);
    assert_eq!(piping.lines(1), ["first"]);
    piping.signal(Signal::HUP);
    let (code, said) = piping.ended();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("acknowledged 1, rejected 0, requeued 0"), "{said}");
    assert_eq!(broker.left(), "second\n");

    let mut nohup = Command::new("sh");
    nohup.args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]).arg(support::forebay());
    nohup.env("FOREBAY_URL", &broker.url).stdout(Stdio::piped()).stderr(Stdio::piped());
    broker.publish("third\n");
    let piping = broker.pipe_as(nohup, &program);
    assert_eq!(piping.lines(1), ["third"]);
    piping.signal(Signal::HUP);
    broker.publish("fourth\n");
    assert_eq!(piping.lines(1), ["fourth"]);
    let (code, said) = piping.end();
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn what_is_not_done_when_patience_ends_is_killed_and_given_back() {
    let broker = Broker::start();
    broker.publish("endless\n");
    let piping = broker.pipe(&["--drain-s", "0", "--", "sh", "-c", "echo begun; exec sleep 1000"]);
    assert_eq!(piping.lines(1), ["begun"]);
    let begun = Instant::now();
    let (code, said) = piping.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(begun.elapsed() < PATIENCE);
    assert_eq!(broker.left(), "endless\n");
}

#[test]
fn a_program_that_dies_at_once_is_not_started_in_a_hot_loop() {
    let broker = Broker::start();
    let many: String = (0..5_000).map(|number| format!("{number}\n")).collect();
    broker.publish(&many);
    let arguments = ["--concurrency", "4", "--retries", "0", "--drain-s", "0", "--"];
    let piping = broker.pipe(&[&arguments[..], &["sh", "-c", "echo dead; exit 1"]].concat());
    // 10 in a row, those at work then, and up to 4 after 1 s and after 2 s more.
    let begun = Instant::now();
    let dead = piping.lines(18).len();
    assert!(begun.elapsed() >= Duration::from_secs(1), "{dead} in {:?}", begun.elapsed());
    let (code, said) = piping.end();
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(broker.left().lines().count(), 5_000);
}

#[test]
fn what_cannot_work_is_refused_with_a_sentence() {
    let broker = Broker::start();
    for (arguments, code, sentence) in [
        (&["--", "no-such-program"][..], 1, "there is no program 'no-such-program'"),
        (&["--", "/etc/passwd"], 1, "there is no program '/etc/passwd' that may be run"),
        (&["--", "cat"], 1, "no queue 'q'"),
        (&[], 2, "COMMAND"),
        (&["--concurrency", "0", "--", "cat"], 2, "from 1 to 1000, or 'auto'"),
        (&["--concurrency", "lots", "--", "cat"], 2, "from 1 to 1000, or 'auto'"),
        (&["--stream", "--reject-on", "3", "--", "cat"], 2, "cannot be used with"),
        (&["--reject-on", "0", "--", "cat"], 2, "1..=255"),
    ] {
        let (ended, said) = broker.pipe(arguments).ended();
        assert_eq!(ended, Some(code), "{arguments:?}: {said}");
        assert!(said.contains(sentence), "{arguments:?}: {said}");
    }
}
