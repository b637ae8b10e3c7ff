//! The experiments of `forebay bench`: their figures everywhere, and nothing of theirs left on a broker.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use forebay_client::blocking::{DeclareQueue, Publication};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::bench::{bench, files, read, text};
use support::broker::{Broker, Start};
use support::dir::Dir;

mod support;

#[test]
fn an_experiment_has_cases_and_demands_and_leaves_nothing_there() {
    let home = Dir::new("bench-experiment");
    let broker = in_sight(&home);
    let connection = broker.connect();
    let mut channel = connection.channel().expect("a channel");
    channel.declare_queue("forebay-enqueue", DeclareQueue::default()).expect("declared");
    channel.confirm_select(1).expect("confirms");
    let theirs = Publication { routing_key: "forebay-enqueue", ..Publication::default() };
    channel.publish(&theirs).expect("published");
    channel.wait_settled().expect("confirmed");
    let (json, csv) = files(&home);
    let html = home.join("report.html");
    for (name, more, cases) in [
        ("connections", ["--producers", "20"], 5),
        ("churn", ["--seconds", "0.2"], 5),
        ("enqueue", ["--seconds", "0.2"], 6),
        ("mailbox", ["--messages", "1000"], 3), // and more where there is an Erlang
        ("marks", ["--messages", "500"], 8),
    ] {
        let [path, table, page] = [&json, &csv, &html].map(|path| path.to_str().expect("UTF-8"));
        let written = ["--json", path, "--csv", table, "--html", page];
        let ran = bench(
            &[&["run", name, "--url", &broker.url()], &written[..], &more[..]].concat(), //
        );
        assert!(ran.status.success(), "{name}: {}", text(&ran.stderr));
        let found = &read(&json)["found"][0];
        assert!(found["broker"].as_str().expect("a name").starts_with("Forebay"), "{found}");
        let answer = &found["answers"][0]["Ok"];
        let all = answer["cases"].as_array().into_iter().flatten();
        let theirs =
            |case: &&Value| case["name"].as_str().is_some_and(|name| name.starts_with("Erlang"));
        assert_eq!(all.filter(|case| !theirs(case)).count(), cases, "{name}: {answer}");
        let table = text(&ran.stdout);
        let case = answer["cases"][0]["name"].as_str().expect("a name");
        let written = |path: &Path| std::fs::read_to_string(path).expect("it was written");
        for text in [table, written(&csv), written(&html)] {
            assert!(text.contains(case), "{name}, {case}: {text}");
        }
        let compared = text(&bench(&["compare", path, path]).stdout);
        assert!(compared.contains(case) && compared.contains("1.00"), "{compared}");
    }
    assert_eq!(queues(&broker), ["forebay-enqueue"], "somebody's, and none of the experiments'");
    let passive = DeclareQueue { passive: true, ..Default::default() };
    let there = channel.declare_queue("forebay-enqueue", passive).expect("it is there");
    assert_eq!(there.message_count, 1, "and what was in it");
}

/// What they are called, by the broker's own account.
fn queues(broker: &Broker) -> Vec<String> {
    let mut top = Command::new(support::forebay());
    let told = top.args(["top", "--once", "--json", "--http", &broker.http()]).output();
    let picture: Value = serde_json::from_slice(&told.expect("it runs").stdout).expect("JSON");
    let all = picture["queues"].as_array().expect("queues").iter();
    all.map(|queue| queue["name"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn an_experiment_that_is_stopped_leaves_nothing_there() {
    let home = Dir::new("bench-stopped");
    let broker = in_sight(&home);
    let mut churning = Command::new(support::forebay());
    churning.args(["bench", "run", "churn", "--seconds", "1", "--repeat", "1000", "--url"]);
    let mut churning = churning.arg(broker.url()).stderr(Stdio::null()).spawn().expect("it runs");
    // Those of its clients are declared and deleted without end.
    let began = Instant::now();
    while !queues(&broker).iter().any(|queue| queue.starts_with("forebay-churn.")) {
        assert!(began.elapsed() < support::PATIENCE, "it declares nothing");
    }
    let pid = Pid::from_raw(churning.id() as i32).expect("a process");
    kill_process(pid, Signal::INT).expect("it runs");
    assert_eq!(churning.wait().expect("it ends").code(), Some(1));
    assert_eq!(queues(&broker), [""; 0]);
}

fn in_sight(home: &Dir) -> Broker {
    let start = Start::silent(home.path()).switch("--in-memory").flag("--amqp", "127.0.0.1:0");
    start.flag("--http", "127.0.0.1:0").ready()
}

#[test]
fn a_pipelines_overhead_is_measured_without_a_broker() {
    let home = Dir::new("bench-overhead");
    let (json, _) = files(&home);
    let path = json.to_str().expect("UTF-8");
    let ran = bench(&["run", "overhead", "--messages", "2000", "--repeat", "2", "--json", path]);
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let record = read(&json);
    let answers = record["found"][0]["answers"].as_array().expect("answers");
    assert_eq!(answers.len(), 2);
    let cases = answers[0]["Ok"]["cases"].as_array().expect("cases");
    assert_eq!(cases.len(), 6, "1 and 25 workers, thrice: {cases:?}");
    for case in cases {
        let figures = case["figures"].as_array().expect("figures");
        assert!(
            figures.iter().all(|figure| figure["value"].as_f64().expect("a number") > 0.0),
            "{case}"
        );
    }
    assert!(
        text(&ran.stdout).contains("25 workers, ordered by 1000 keys"),
        "{}",
        text(&ran.stdout)
    );
    let refused = bench(&["run", "overhead", "--url", "amqp://localhost"]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
}

#[test]
fn a_machine_is_measured_without_a_broker_and_its_disk_where_it_is_told() {
    let home = Dir::new("bench-machine");
    let (json, _) = files(&home);
    let [path, dir] = [&json, home.path()].map(|path| path.to_str().expect("UTF-8"));
    let ran = bench(&["run", "machine", "--seconds", "0.2", "--dir", dir, "--json", path]);
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let answer = &read(&json)["found"][0]["answers"][0]["Ok"];
    let cases = answer["cases"].as_array().expect("cases").iter();
    let names: Vec<&str> = cases.map(|case| case["name"].as_str().expect("a name")).collect();
    assert_eq!(names, ["arithmetic", "memory", "loopback", "disk"], "{answer}");
    assert!(text(&ran.stdout).contains(dir), "{}", text(&ran.stdout));
    let left = std::fs::read_dir(home.path()).expect("it is there").count();
    assert_eq!(left, 1, "the record, and nothing of the disk's");
}
