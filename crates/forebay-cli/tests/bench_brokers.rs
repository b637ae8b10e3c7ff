//! `forebay bench` on brokers that are others' as well: what it does not touch, what it does not mistake for its own, and
//! what it keeps when one of them is gone.

use support::bench::{bench, files, read, text};
use support::broker::Start;
use support::dir::Dir;

mod support;

#[test]
fn queues_that_are_somebodys_are_neither_emptied_nor_deleted() {
    use forebay_client::blocking::{DeclareQueue, Publication};
    let home = Dir::new("bench-somebodys");
    let broker = Start::in_memory(home.path()).ready();
    let connection = broker.connect();
    let mut channel = connection.channel().expect("a channel");
    channel.declare_queue("orders-2", DeclareQueue::default()).expect("declared");
    channel.confirm_select(1).expect("confirms");
    let order = Publication {
        routing_key: "orders-2",
        body: b"an order of ours",
        ..Publication::default()
    };
    channel.publish(&order).expect("published");
    channel.wait_settled().expect("confirmed");
    let (json, _) = files(&home);
    let (url, path) = (broker.url(), json.to_str().expect("UTF-8"));
    let pattern = ["--queue-pattern", "orders-%d", "--queue-pattern-to", "3"];
    let run =
        [&["run", "--url", &url, "--seconds", "0.3", "--warm-up", "0"], &pattern[..]].concat();
    let refused = bench(&run);
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused.stderr));
    let said = text(&refused.stderr);
    assert!(said.contains("`orders-2` is there already, with 1 messages"), "{said}");
    // The others were not left behind, and the order is where it was.
    for number in [1, 3] {
        let mut channel = connection.channel().expect("a channel");
        let passive = DeclareQueue { passive: true, ..Default::default() };
        assert!(channel.declare_queue(&format!("orders-{number}"), passive).is_err());
    }
    let passive = DeclareQueue { passive: true, ..Default::default() };
    assert_eq!(channel.declare_queue("orders-2", passive).expect("it is there").message_count, 1);
    // Taken as it is, its message is consumed, and has no times of this run.
    for number in [1, 3] {
        channel
            .declare_queue(&format!("orders-{number}"), DeclareQueue::default())
            .expect("declared");
    }
    let taken = bench(&[&run[..], &["-p", "-y", "3", "--json", path]].concat());
    assert!(taken.status.success(), "{}", text(&taken.stderr));
    let report = &read(&json)["runs"][0]["outcome"]["report"];
    assert_eq!(report["strange"], 1, "{report}");
    assert!(report["end_to_end"]["max_us"].as_u64() < Some(60_000_000), "{report}");
}

#[test]
fn a_number_of_messages_is_counted_from_the_first_of_them() {
    use forebay_client::blocking::{DeclareQueue, Publication};
    let home = Dir::new("bench-counted");
    let broker = Start::in_memory(home.path()).ready();
    let connection = broker.connect();
    let mut channel = connection.channel().expect("a channel");
    channel.declare_queue("orders", DeclareQueue::default()).expect("declared");
    channel.confirm_select(500).expect("confirms");
    for _ in 0..500 {
        let order = Publication { routing_key: "orders", ..Publication::default() };
        channel.publish(&order).expect("published");
    }
    channel.wait_settled().expect("confirmed");
    let (json, _) = files(&home);
    let (url, path) = (broker.url(), json.to_str().expect("UTF-8"));
    // The first of so many consumers takes them all before the last one is there.
    let taking = ["run", "--url", &url, "-p", "-u", "orders", "-x", "0", "-y", "20", "-D", "25"];
    let taken = bench(&[&taking[..], &["--json", path]].concat());
    assert!(taken.status.success(), "{}", text(&taken.stderr));
    let report = &read(&json)["runs"][0]["outcome"]["report"];
    assert_eq!(report["consumed"], 500, "{report}");
    assert!(report["consumed_per_s"].as_f64() > Some(0.0), "{report}");
}

#[test]
fn who_may_not_declare_any_queue_is_told_what_to_do() {
    use forebay_client::blocking::DeclareQueue;
    let home = Dir::new("bench-permissions");
    let user = |name: &str, configure: &str| {
        let may = format!(r#"vhost = "/", configure = "{configure}", write = ".*", read = ".*""#);
        format!(r#"{{ name = "{name}", password = "guest", permissions = [{{ {may} }}] }}"#)
    };
    let users = [user("guest", ".*"), user("team", "^team"), user("app", "")].join(", ");
    let broker = Start::in_memory(home.path()).line(&format!("users = [{users}]")).ready();
    let run = |name: &str, more: &[&str]| {
        let url = broker.url().replacen("guest", name, 1);
        bench(&[&["run", "--url", &url, "--seconds", "0.3", "--warm-up", "0"], more].concat())
    };
    let refused = run("team", &[]);
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused.stderr));
    assert!(text(&refused.stderr).contains("`--queue NAME` calls"), "{}", text(&refused.stderr));
    let named = run("team", &["--queue", "team-load"]);
    assert!(named.status.success(), "{}", text(&named.stderr));
    let connection = broker.connect();
    let mut channel = connection.channel().expect("a channel");
    channel.declare_queue("orders", DeclareQueue::default()).expect("declared");
    let there = run("app", &["--predeclared", "--queue", "orders"]);
    assert!(there.status.success(), "{}", text(&there.stderr));
}

#[test]
fn what_cannot_be_set_up_leaves_nothing_there() {
    use forebay_client::blocking::{DeclareExchange, DeclareQueue};
    let home = Dir::new("bench-not-set-up");
    let broker = Start::in_memory(home.path()).ready();
    let run = ["run", "--url", &broker.url(), "--seconds", "0.3", "-u", "passing", "-e", "events"];
    // A queue that is refused when its exchange would be there, and an exchange whose queue would.
    for more in [["--queue-args", "x-max-length=-1"], ["--type", "nonsense"]] {
        let refused = bench(&[&run[..], &more].concat());
        assert_eq!(refused.status.code(), Some(1), "{more:?}: {}", text(&refused.stderr));
        let connection = broker.connect();
        let mut channel = connection.channel().expect("a channel");
        let passive = DeclareExchange { passive: true, ..Default::default() };
        assert!(channel.declare_exchange("events", "direct", passive).is_err(), "{more:?}");
        let mut channel = connection.channel().expect("a channel");
        let passive = DeclareQueue { passive: true, ..Default::default() };
        assert!(channel.declare_queue("passing.0", passive).is_err(), "{more:?}");
    }
}

#[test]
fn what_waited_in_a_backlog_is_timed_from_when_it_was_published() {
    let home = Dir::new("bench-backlog");
    let broker = Start::in_memory(home.path()).ready();
    let (json, _) = files(&home);
    let path = json.to_str().expect("UTF-8");
    let small = ["--messages", "20000", "--size", "16", "--producers", "1", "--flag", "transient"];
    let slow = ["--consumers", "1", "-R", "5000", "--seconds", "2", "--rate", "20000"];
    let run = ["run", "backlog", "--url", &broker.url(), "--json", path];
    let ran = bench(&[&run[..], &small, &slow].concat());
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let drain = &read(&json)["runs"][1];
    assert_eq!(drain["phase"], "drain");
    let report = &drain["outcome"]["report"];
    let count = |name: &str| report[name].as_u64().expect("a number");
    let known = count("left_over") + count("consumed");
    assert!(known > count("published") + 10_000, "with the rest of the backlog: {report}");
    let latency = &report["end_to_end_from_call"];
    // The later half of what one consumer takes in two seconds has waited for a second and more.
    assert!(latency["p50_us"].as_u64() > Some(500_000), "{latency}");
}

#[test]
fn two_brokers_of_one_version_are_told_apart_and_what_was_measured_is_kept() {
    let home = Dir::new("bench-two");
    let broker = Start::in_memory(home.path()).ready();
    let (json, _) = files(&home);
    let url = broker.url();
    let nobody = "amqp://127.0.0.1:1";
    let run =
        ["run", "--seconds", "0.3", "--warm-up", "0", "--json", json.to_str().expect("UTF-8")];
    let ran = bench(&[&run[..], &["--url", &url, "--url", nobody]].concat());
    assert_eq!(ran.status.code(), Some(1), "{}", text(&ran.stderr));
    assert!(text(&ran.stderr).contains("what was measured until then"), "{}", text(&ran.stderr));
    let runs = read(&json)["runs"].clone();
    assert_eq!(runs.as_array().map(Vec::len), Some(1), "{runs}");
    let label = runs[0]["broker"].as_str().expect("a name");
    assert!(label.contains(" at 127.0.0.1:") && text(&ran.stdout).contains(label), "{label}");
    // One beside itself, to see what is chance: two rows, and no figure of both.
    let ran = bench(&[&run[..], &["--url", &url, "--url", &url]].concat());
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let runs = read(&json)["runs"].clone();
    let labels: Vec<_> = runs.as_array().expect("runs").iter().map(|run| &run["broker"]).collect();
    assert!(labels.len() == 2 && labels[0] != labels[1], "{labels:?}");
}
