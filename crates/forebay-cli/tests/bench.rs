//! `forebay bench` as people and scripts use it: against a broker that runs, and with one of its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use support::bench::{bench, files, read, text};
use support::broker::Start;
use support::dir::Dir;
use support::tls::Terminator;

mod support;

#[test]
fn a_load_on_a_running_broker_is_measured_and_leaves_nothing_there() {
    let home = Dir::new("bench-url");
    let broker = Start::in_memory(home.path()).ready();
    let (json, csv) = files(&home);
    let ran = bench(&[
        "run",
        "--url",
        &broker.url(),
        "-x",
        "2",
        "-y",
        "2",
        "--rate",
        "200",
        "--seconds",
        "2",
        "--warm-up",
        "0.2",
        "--grid",
        "window=5",
        "--judge",
        "1",
        "--json",
        json.to_str().expect("UTF-8"),
        "--csv",
        csv.to_str().expect("UTF-8"),
    ]);
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    assert!(text(&ran.stdout).contains("knee"), "{}", text(&ran.stdout));
    let record = read(&json);
    let runs = record["runs"].as_array().expect("runs");
    let settings =
        |window: &str| runs.iter().filter(|run| run["setting"]["window"] == window).count();
    assert_eq!(
        (runs.len(), settings("auto")),
        (3, 1),
        "that of the grid, then both in the round that judges"
    );
    assert_eq!(record["judged_from"], 1);
    for run in runs {
        let report = &run["outcome"]["report"];
        let number = |name: &str| report[name].as_f64().expect("a number");
        assert!(number("consumed") > 100.0 && number("confirmed") > 100.0, "{report}");
        assert_eq!(report["target_per_s"].as_f64(), Some(400.0));
        assert!(report["end_to_end"]["p99_us"].as_u64() > Some(0));
        let p99_us = |name: &str| report[name]["p99_us"].as_u64().expect("a number");
        assert!(p99_us("end_to_end_from_call") <= p99_us("end_to_end"));
        let samples = report["samples"].as_array().expect("samples");
        assert!(samples.len() >= 2 && samples.iter().any(|sample| sample["depth"].is_u64()));
        assert!(
            samples.iter().all(|sample| sample["broker_bytes"].is_u64()),
            "it is on this machine"
        );
    }
    let lines = std::fs::read_to_string(&csv).expect("it was written").lines().count();
    assert!(lines >= 5, "a head and two seconds of three runs, not {lines}");
    let mut connection = broker.connect();
    assert!(!has_queue(&mut connection, "forebay-bench.0"), "its queues are gone");
}

fn has_queue(connection: &mut forebay_client::blocking::Connection, name: &str) -> bool {
    use forebay_client::blocking::DeclareQueue;
    let mut channel = connection.channel().expect("a channel");
    channel.declare_queue(name, DeclareQueue { passive: true, ..Default::default() }).is_ok()
}

#[test]
fn the_knee_is_searched_and_told_in_plain_words() {
    let home = Dir::new("bench-knee");
    let broker = Start::in_memory(home.path()).ready();
    let (json, _) = files(&home);
    let path = json.to_str().expect("UTF-8");
    let quick = ["--seconds", "0.2", "--warm-up", "0.1", "--repeat", "1", "--json", path];
    let ran = bench(&[&["run", "stress-2", "--knee", "--url", &broker.url()], &quick[..]].concat());
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    assert!(text(&ran.stdout).contains("This broker carries"), "{}", text(&ran.stdout));
    let record = read(&json);
    let runs = record["runs"].as_array().expect("runs");
    let windows: Vec<_> =
        runs.iter().map(|run| run["setting"]["window"].as_str().expect("a window")).collect();
    assert_eq!(windows[..3], ["1", "4", "16"], "it climbs");
    assert!(windows.contains(&"auto") && windows.len() <= 48, "{windows:?}");
    let target = &runs[0]["outcome"]["report"]["target_per_s"];
    assert!(target.is_null(), "as fast as it goes, not {target}");
}

#[test]
fn a_broker_behind_tls_is_loaded_and_asked() {
    let home = Dir::new("bench-tls");
    let broker = Start::in_memory(home.path()).ready();
    let address = broker.url().split(['@', '/']).nth(3).expect("an address").to_owned();
    let terminator = Terminator::start(home.path(), address);
    let (json, _) = files(&home);
    let path = json.to_str().expect("UTF-8");
    let run = |more: &[&str]| {
        let ran = bench(&[&["run", "--url", &terminator.url(), "--json", path], more].concat());
        assert!(ran.status.success(), "{}", text(&ran.stderr));
        read(&json)
    };
    let quick = ["--seconds", "1", "--warm-up", "0.2", "-x", "3", "-y", "3"];
    // Large bodies and windows: sockets fill, and what TLS took has to wait.
    let large = ["--size", "100000", "--confirm", "200"];
    for more in [[].as_slice(), &large, &["--rtt", "1"]] {
        let record = run(&[&quick[..], more].concat());
        let report = &record["runs"][0]["outcome"]["report"];
        let number = |name: &str| report[name].as_u64().expect("a number");
        assert!(number("confirmed") > 50 && number("consumed") > 50, "{more:?}: {report}");
    }
    let record = run(&["connections", "--producers", "5"]);
    assert!(record["found"][0]["answers"][0]["Ok"].is_object(), "{record}");
}

#[test]
fn two_runs_are_set_side_by_side_and_a_report_is_one_file() {
    let home = Dir::new("bench-compare");
    let broker = Start::in_memory(home.path()).ready();
    let (json, _) = files(&home);
    let (path, html) = (json.to_str().expect("UTF-8"), home.join("report.html"));
    let url = broker.url();
    let page = html.to_str().expect("UTF-8");
    let ran = bench(&[
        "run",
        "--url",
        &url,
        "--seconds",
        "1",
        "--warm-up",
        "0",
        "--json",
        path,
        "--html",
        page,
    ]);
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let compared = bench(&["compare", path, path]);
    assert!(compared.status.success(), "{}", text(&compared.stderr));
    assert!(text(&compared.stdout).contains("1.00"), "{}", text(&compared.stdout));
    let page = std::fs::read_to_string(&html).expect("it was written");
    assert!(page.starts_with("<!doctype html>") && page.contains("\"consumed_per_s\""));
    let both = home.join("both.html");
    let drawn = bench(&["report", path, path, "--html", both.to_str().expect("UTF-8")]);
    assert!(drawn.status.success(), "{}", text(&drawn.stderr));
    let both = std::fs::read_to_string(&both).expect("it was written");
    assert_eq!(both.matches("\"timelines\"").count(), 2, "a record each");
    let wrong = bench(&["compare", path, page_of_nothing(&home).to_str().expect("UTF-8")]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(text(&wrong.stderr).contains("bench run --json"), "{}", text(&wrong.stderr));
}

#[test]
fn a_share_of_the_capacity_is_a_rate() {
    let home = Dir::new("bench-scale");
    let broker = Start::in_memory(home.path()).ready();
    let (json, _) = files(&home);
    let path = json.to_str().expect("UTF-8");
    let url = broker.url();
    let command =
        "run --producers 4 --consumers 4 --scale 10% --seconds 1 --warm-up 0 --grid window=100%";
    let mut arguments: Vec<&str> = command.split(' ').collect();
    arguments.extend(["--url", &url, "--json", path]);
    let ran = bench(&arguments);
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let record: Value =
        serde_json::from_str(&std::fs::read_to_string(&json).expect("it was written"))
            .expect("JSON");
    for run in record["runs"].as_array().expect("runs") {
        let capacity = run["capacity_per_s"].as_f64().expect("it was measured");
        let asked = 4.0 * run["outcome"]["report"]["plan"]["rate"].as_f64().expect("a rate");
        assert!((asked / capacity - 0.1).abs() < 1e-6, "{asked} of {capacity}");
    }
}

fn page_of_nothing(home: &Dir) -> PathBuf {
    let path = home.join("nothing.json");
    std::fs::write(&path, "{}").expect("it is written");
    path
}

#[test]
fn without_a_url_it_brings_its_own_broker_and_takes_it_away_again() {
    let home = Dir::new("bench-own");
    let (json, _) = files(&home);
    let ran = bench(&[
        "run",
        "backlog",
        "--messages",
        "2000",
        "--seconds",
        "1",
        "--dir",
        home.path().to_str().expect("UTF-8"),
        "--json",
        json.to_str().expect("UTF-8"),
    ]);
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let record = read(&json);
    let phases: Vec<_> =
        record["runs"].as_array().expect("runs").iter().map(|run| &run["phase"]).collect();
    assert_eq!(phases, ["fill", "drain"]);
    let report = |index: usize| &record["runs"][index]["outcome"]["report"];
    assert_eq!(report(0)["confirmed"].as_u64(), Some(2_000));
    assert!(report(1)["consumed"].as_u64() >= Some(2_000), "{}", report(1));
    let left: Vec<_> = std::fs::read_dir(home.path()).expect("it is there").flatten().collect();
    assert_eq!(left.len(), 1, "the record alone: {left:?}");
}

#[test]
fn calls_get_replies_and_a_fan_out_reaches_every_queue() {
    let home = Dir::new("bench-shapes");
    let broker = Start::in_memory(home.path()).ready();
    let (json, _) = files(&home);
    let path = json.to_str().expect("UTF-8");
    let url = broker.url();
    let report = |name: &str| {
        let ran = bench(&[
            "run",
            name,
            "--url",
            &url,
            "--seconds",
            "1",
            "--warm-up",
            "0.2",
            "--json",
            path,
        ]);
        assert!(ran.status.success(), "{}", text(&ran.stderr));
        read(&json)["runs"][0]["outcome"]["report"].clone()
    };
    let calls = report("rpc");
    assert!(calls["confirmed"].as_u64() > Some(10), "{calls}");
    let fanout = report("fanout");
    let count = |name: &str| fanout[name].as_u64().expect("a number");
    assert!(count("consumed") > 2 * count("published"), "{fanout}");
}

#[test]
fn a_number_of_messages_goes_through_an_exchange_into_queues_that_stay_what_they_were() {
    use forebay_client::blocking::{DeclareExchange, DeclareQueue};
    let home = Dir::new("bench-perftest");
    let broker = Start::in_memory(home.path()).ready();
    let connection = broker.connect();
    let mut channel = connection.channel().expect("a channel");
    channel.declare_exchange("events", "topic", DeclareExchange::default()).expect("declared");
    for queue in ["orders-1", "orders-2"] {
        channel.declare_queue(queue, DeclareQueue::default()).expect("declared");
        channel.bind_queue(queue, "events", "a.*").expect("bound");
    }
    let (json, _) = files(&home);
    let path = json.to_str().expect("UTF-8");
    let url = broker.url();
    let run = |more: &[&str]| {
        let ran =
            bench(&[&["run", "--url", &url, "--seconds", "30", "--json", path], more].concat());
        assert!(ran.status.success(), "{}", text(&ran.stderr));
        read(&json)["runs"][0]["outcome"]["report"].clone()
    };
    let pattern = ["--queue-pattern", "orders-%d", "--queue-pattern-to", "2"];
    let theirs =
        ["-x", "2", "-y", "0", "-C", "50", "-f", "transient", "-e", "events", "-t", "topic"];
    let report = run(&[&theirs[..], &pattern, &["-k", "a.b", "--predeclared"]].concat());
    assert_eq!(report["published"].as_u64(), Some(100), "{report}");
    for queue in ["orders-1", "orders-2"] {
        assert_eq!(channel.purge_queue(queue).expect("it is there"), 100, "{queue}");
    }
    // With a key that leads nowhere a broker confirms all of it, and none is anywhere.
    let missing = run(&[&theirs[..], &pattern, &["-k", "b.a", "--predeclared"]].concat());
    assert_eq!((&missing["confirmed"], &missing["returned"]), (&100.into(), &100.into()));
    // Its own are gone afterwards, and the exchange with them.
    let report = run(&["-D", "200", "-e", "passing", "--queues", "2", "-x", "2", "-y", "2"]);
    assert!(report["consumed"].as_u64() >= Some(400), "{report}");
    let passive = DeclareExchange { passive: true, ..Default::default() };
    assert!(channel.declare_exchange("passing", "direct", passive).is_err());
    // Somebody else's exchange is not taken, and is there still.
    let refused = bench(&["run", "--url", &url, "-e", "events", "-t", "topic", "--seconds", "1"]);
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused.stderr));
    assert!(text(&refused.stderr).contains("--predeclared takes it"), "{}", text(&refused.stderr));
    let mut channel = connection.channel().expect("a channel");
    channel
        .declare_exchange("events", "topic", DeclareExchange::default())
        .expect("it is what it was");
}

/// The samples of a short paced run on a broker of its own, in the middle of which something happens.
fn samples_with(step: &str) -> Vec<Value> {
    let home = Dir::new("bench-step");
    let (json, _) = files(&home);
    let [dir, path] = [home.path(), &json].map(|path| path.to_str().expect("UTF-8"));
    let load = ["run", "--rate", "400", "--seconds", "5", "--warm-up", "0.5", "--step", step];
    let ran = bench(&[&load[..], &["--dir", dir, "--json", path]].concat());
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let record = read(&json);
    let report = &record["runs"][0]["outcome"]["report"];
    assert_eq!(report["plan"]["steps"], serde_json::json!([step]), "the record says what happened");
    report["samples"].as_array().expect("samples").clone()
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

#[test]
fn consumers_that_slow_down_in_the_middle_leave_a_queue() {
    let samples = samples_with("2:consumers/10");
    let (before, after) = (&samples[1], samples.last().expect("samples"));
    let consumed = [before, after].map(|sample| number(&sample["consumed"]));
    assert!(consumed[1] < consumed[0] / 3.0, "{consumed:?} a second");
    assert!(number(&after["published"]) > 2.0 * consumed[1], "publishers go on: {after}");
    assert!(number(&after["depth"]) > 10.0 * number(&before["depth"]).max(1.0), "{after}");
}

#[test]
fn a_broker_that_stands_still_in_the_middle_confirms_nothing_then_and_goes_on() {
    let samples = samples_with("2:stall=1.5");
    let stood = &samples[2];
    assert!(number(&stood["confirmed"]) < number(&samples[1]["confirmed"]) / 3.0, "{stood}");
    let latencies = samples.iter().map(|sample| number(&sample["end_to_end_intended"]["max_us"]));
    assert!(latencies.fold(0.0, f64::max) >= 1e6, "what was due then came after it: {samples:?}");
    assert!(number(&samples.last().expect("samples")["confirmed"]) > 0.0, "{samples:?}");
}

#[test]
fn a_link_that_gets_longer_in_the_middle_is_seen_in_the_confirms() {
    let samples = samples_with("2:rtt=250");
    let p50_us = |sample: &Value| number(&sample["confirm"]["p50_us"]);
    let (before, after) = (p50_us(&samples[1]), p50_us(samples.last().expect("samples")));
    assert!(after >= 250_000.0 && before < after, "{before} and {after} us");
}

#[test]
fn peers_are_measured_beside_it_or_it_is_said_that_there_are_none() {
    let home = Dir::new("bench-peers");
    let (json, _) = files(&home);
    let [dir, path] = [home.path(), &json].map(|path| path.to_str().expect("UTF-8"));
    let load = ["run", "--peers", "--rate", "100", "--seconds", "1", "--warm-up", "0.2"];
    let ran = bench(&[&load[..], &["--dir", dir, "--json", path]].concat());
    if !Path::new("/usr/lib/rabbitmq/bin/rabbitmq-server").exists() {
        assert_eq!(ran.status.code(), Some(2));
        return assert!(text(&ran.stderr).contains("rabbitmq-server"), "{}", text(&ran.stderr));
    }
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let record = read(&json);
    let runs = record["runs"].as_array().expect("runs");
    let brokers: Vec<_> = runs.iter().map(|run| run["broker"].as_str().expect("a name")).collect();
    assert!(brokers[0].starts_with("Forebay"), "{brokers:?}");
    assert!(brokers[1].starts_with("RabbitMQ") && brokers[1].contains("classic"), "{brokers:?}");
    assert!(brokers[2].starts_with("RabbitMQ") && brokers[2].contains("quorum"), "{brokers:?}");
    for run in runs {
        let report = &run["outcome"]["report"];
        for count in ["published", "confirmed", "consumed", "broker_bytes_max"] {
            assert!(number(&report[count]) > 0.0, "{count}: {report}");
        }
        assert!(text(&ran.stdout).contains(run["broker"].as_str().expect("a name")));
    }
    let left: Vec<_> = std::fs::read_dir(home.path()).expect("it is there").flatten().collect();
    assert_eq!(left.len(), 1, "the record alone: {left:?}");
}

#[test]
fn what_makes_no_sense_is_refused_with_code_2() {
    for (arguments, expected) in [
        (&["run", "stress-9"][..], "bench list"),
        (&["run", "--grid", "window=10%"], "rate"),
        (&["run", "--judge", "3"], "--grid"),
        (&["run", "--judge", "3", "--grid", "window=10", "--qos", "5"], "leave --confirm"),
        (&["run", "--consumers", "0", "--producers", "0"], "nothing to do"),
        (&["run", "--producers", "0"], "--predeclared takes what is in queues"),
        (&["run", "--dir", "/none/here"], "--dir: there is no directory /none/here"),
        (&["run", "--dir", "/", "--url", "amqp://h"], "--url or FOREBAY_URL names another"),
        (&["run", "backlog", "--scale", "auto"], "--scale 80%"),
        (&["run", "backlog", "--scale", "80%"], "this workload says itself"),
        (&["run", "fanout", "--scale", "2"], "this load has none"),
        (&["run", "--size", "1000000000000000"], "512 MiB at most"),
        (&["run", "-x", "100000000000000"], "60000 publishers"),
        (&["run", "--repeat", "900000", "--url", "amqp://h"], "1000 rounds at most"),
        (&["run", "--repeat", "1000", "--seconds", "9000"], "take 104 days, and 31"),
        (&["run", "churn", "--size", "1000000000000000"], "512 MiB at most"),
        (&["report", "Cargo.toml", "--html", "report.html"], "Cargo.toml: "),
        (&["report", "--html", "report.html"], "FILES"),
        (&["run", "--url", "http://localhost"], "cannot read the URL"),
        (&["run", "--step", "20:stall=2"], "before the end"),
        (&["run", "--step", "0.5:consumers/10"], "from the first second on"),
        (&["run", "-R", "100", "-q", "none"], "have a bound"),
        (&["run", "enqueue", "--consumers", "3"], "--consumers is for loads"),
        (&["run", "hoarding", "--size", "3"], "--size is for loads"),
        (&["run", "enqueue", "--seconds", "1e20"], "1000000 seconds"),
        (&["run", "--mbit", "0"], "--mbit"),
        (&["run", "--rtt", "inf"], "--rtt"),
        (&["run", "stress-1", "--svg", "x.svg"], "hoarding"),
        (&["run", "--json", "no/such/directory/a.json"], "cannot write no/such/directory/a.json: "),
    ] {
        let ran = bench(arguments);
        assert_eq!(ran.status.code(), Some(2), "{arguments:?}");
        assert!(text(&ran.stderr).contains(expected), "{arguments:?}: {}", text(&ran.stderr));
    }
    assert!(!Path::new("/none").exists(), "it was made");
    let nobody = bench(&["run", "--url", "amqp://127.0.0.1:1"]);
    assert_eq!(nobody.status.code(), Some(1), "{}", text(&nobody.stderr));
    let cure = "`forebay serve` starts one; `--url` or FOREBAY_URL names another";
    assert!(text(&nobody.stderr).contains(cure), "{}", text(&nobody.stderr));
}

/// A disk without room for the report, and one file of several that cannot be written.
#[test]
fn a_file_that_cannot_be_written_costs_neither_the_one_before_nor_the_others() {
    let home = Dir::new("bench-unwritten");
    let (json, csv) = files(&home);
    let html = home.join("report.html");
    let [path, table, page] = [&json, &csv, &html].map(|path| path.to_str().expect("UTF-8"));
    let quick = ["run", "overhead", "--messages", "100", "--repeat", "1", "--csv", table];
    let full = ["--html", page, "--json", "/dev/full"];
    let ran = bench(&[&quick[..], &full].concat());
    assert_eq!(ran.status.code(), Some(1), "{}", text(&ran.stderr));
    assert!(
        text(&ran.stderr).contains("cannot write /dev/full: No space left"),
        "{}",
        text(&ran.stderr)
    );
    assert!(csv.exists() && html.exists(), "the others are written");
    let written = bench(&[&quick[..], &["--json", path]].concat());
    assert!(written.status.success(), "{}", text(&written.stderr));
    let before = std::fs::read(&html).expect("it was written");
    // 4 KiB for any file; SIGXFSZ is ignored, so that a write fails.
    let script = "trap '' XFSZ; ulimit -f 8; exec \"$0\" bench report \"$1\" --html \"$2\"";
    let mut limited = Command::new("sh");
    limited.arg("-c").arg(script).arg(support::forebay()).args([path, page]);
    let ended = limited.output().expect("it runs");
    assert_eq!(ended.status.code(), Some(1), "{}", text(&ended.stderr));
    assert!(text(&ended.stderr).contains("report.html: File too large"), "{}", text(&ended.stderr));
    assert!(std::fs::read(&html).expect("it is there") == before, "the report before is gone");
}

#[test]
fn the_list_names_every_workload() {
    let listed = text(&bench(&["list"]).stdout);
    let loads = ["stress-1", "stress-5", "backlog", "fanout", "rpc", "distance"];
    let experiments =
        ["connections", "churn", "enqueue", "hoarding", "mailbox", "overhead", "marks", "machine"];
    for name in loads.into_iter().chain(experiments) {
        assert!(listed.contains(name), "{listed}");
    }
}
