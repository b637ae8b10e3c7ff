//! The flags as people give them.

use clap::Parser;

use super::*;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    flags: Flags,
}

fn flags(line: &str) -> Flags {
    Command::try_parse_from(std::iter::once("run").chain(line.split_whitespace()))
        .unwrap_or_else(|error| panic!("{error}"))
        .flags
}

fn plan(line: &str) -> Plan {
    let flags = flags(line);
    flags.plan(flags.workload().unwrap())
}

#[test]
fn perftests_flags_mean_what_they_mean_there() {
    let plan = plan("-x 3 -y 2 -u orders -r 100 -s 4000 -f persistent -c 50 -q 20 -A 10 -z 5");
    assert_eq!((plan.publishers, plan.consumers, plan.queue(0)), (3, 2, "orders.0".to_owned()));
    assert_eq!((plan.rate, plan.size, plan.persistent), (100.0, 4000, true));
    assert_eq!(
        (plan.window, plan.prefetch, plan.ack_every),
        (Window::Fixed(50), Credit::Fixed(20), 10)
    );
    assert_eq!(plan.seconds, 5.0);
    assert_eq!(plan.check(), Ok(()));
}

#[test]
fn perftests_flags_say_where_to_and_how_many() {
    let counted = plan("-x 3 -y 2 -C 1000 -D 500 --quorum-queue");
    assert_eq!((counted.messages, counted.consumed_messages), (3_000, 1_000));
    assert_eq!((counted.queue_type.as_deref(), counted.durable()), (Some("quorum"), true));
    let named = plan("--queue-pattern orders-%d-x --queue-pattern-from 5 --queue-pattern-to 7");
    let names: Vec<_> = (0..4).map(|number| named.queue(number)).collect();
    assert_eq!(names, ["orders-5-x", "orders-6-x", "orders-7-x", "orders-5-x"]);
    assert_eq!((named.queues, named.check()), (3, Ok(())));
    let ours = plan("-u orders -p -e events -t topic -k a.b --queues 1");
    assert_eq!(
        (ours.queue(0), ours.exchange()),
        ("orders".into(), Some(("events".into(), "topic")))
    );
    assert_eq!((ours.routing_key(0), ours.copies()), ("a.b".into(), 1));
    let each = plan("-e events --queues 3");
    assert_eq!((each.routing_key(1), each.copies()), (each.queue(1), 1));
    assert_eq!(plan("-e events -t fanout --queues 3").copies(), 3);
    assert_eq!(plan("-e events -k a --queues 3").copies(), 3);
    for kind in ["x-consistent-hash", "x-random"] {
        let one_of_them = plan(&format!("-e events -t {kind} -k 1 --queues 3"));
        assert_eq!(one_of_them.copies(), 1, "{kind}");
    }
}

#[test]
fn what_would_name_no_queue_or_the_same_one_twice_is_refused() {
    let why = |line: &str| plan(line).check().unwrap_err().to_string();
    assert!(why("--queue-pattern q --queue-pattern-to 2").contains("orders-%d"));
    assert!(why("--queue-pattern q%d --queue-pattern-to 0").contains("one queue"));
    assert!(why("-D 5 -y 0").contains("needs consumers"));
    assert!(why("fanout -e mine").contains("exchange of its own"));
    for line in ["-k key", "-t topic", "--queue-pattern q%d", "-C 1 --messages 1"] {
        let flags = std::iter::once("run").chain(line.split_whitespace());
        assert!(Command::try_parse_from(flags).is_err(), "{line}");
    }
}

#[test]
fn queues_that_are_there_have_names() {
    let why = |line: &str| flags(line).check().unwrap_err();
    assert!(why("-p").contains("--queue or --queue-pattern"));
    assert!(why("-p -e events -k a -y 0").contains("--queue or --queue-pattern"));
    let backwards = "--queue-pattern q%d --queue-pattern-from 5 --queue-pattern-to 2";
    assert!(why(backwards).contains("below --queue-pattern-from"));
    for line in ["-p -u q", "-p --queue-pattern q%d --queue-pattern-to 2", "-a"] {
        assert_eq!(flags(line).check(), Ok(()), "{line}");
    }
}

#[test]
fn without_flags_nothing_is_set_by_hand() {
    let plan = plan("");
    assert_eq!((plan.window, plan.prefetch), (Window::Auto, Credit::Auto));
    assert_eq!((plan.publishers, plan.consumers, plan.rate), (1, 1, 0.0));
}

#[test]
fn flags_change_a_workload() {
    let plan = plan("stress-2 --producers 5 --confirm none --queue-args x-max-length=10");
    assert_eq!((plan.publishers, plan.consumers, plan.rate), (5, 20, 2000.0));
    assert_eq!(
        (plan.window, plan.queue_args.to_string()),
        (Window::None, "x-max-length=10".into())
    );
}

#[test]
fn a_workload_is_fitted_to_the_broker_unless_a_rate_is_given() {
    let scale = |line: &str| {
        let flags = flags(line);
        flags.scale(flags.workload().unwrap())
    };
    assert_eq!(scale("stress-1"), Scale::Auto);
    assert_eq!(scale("stress-1 --scale 0.1"), Scale::Times(0.1));
    assert_eq!(scale("--rate 7 --scale 80%"), Scale::Share(0.8));
    assert_eq!(scale("stress-1 --rate 7"), Scale::Times(1.0));
    assert_eq!(scale("--rate 7"), Scale::Times(1.0));
}

#[test]
fn a_knee_is_searched_as_fast_as_it_goes_unless_a_rate_is_given() {
    let rate = |line: &str| {
        let flags = flags(line);
        let workload = flags.workload().unwrap();
        (flags.plan(workload).rate, flags.scale(workload), flags.repeat())
    };
    assert_eq!(rate("stress-2 --knee"), (0.0, Scale::Times(1.0), 3));
    assert_eq!(rate("stress-2 --knee --rate 9 --repeat 2"), (9.0, Scale::Times(1.0), 2));
    assert_eq!(rate("stress-1 --knee --scale auto"), (1000.0, Scale::Auto, 3));
    assert_eq!(rate("stress-2"), (2000.0, Scale::Auto, 1));
    assert!(Command::try_parse_from(["run", "--knee", "--grid", "window=1"]).is_err());
}

#[test]
fn an_ack_interval_brings_a_prefetch_with_it() {
    let plan = plan("--multi-ack-every 10");
    assert_eq!((plan.prefetch, plan.check()), (Credit::Fixed(1000), Ok(())));
}

#[test]
fn distance_has_a_link_that_flags_change() {
    let link = |line: &str| {
        let flags = flags(line);
        let flags = flags.with_link_of(flags.workload().unwrap());
        (flags.rtt, flags.mbit)
    };
    assert_eq!(link("distance"), (Some(33.0), Some(10.0)));
    assert_eq!(link("distance --rtt 100"), (Some(100.0), Some(10.0)));
    assert_eq!(link("fanout"), (None, None));
    // Beside the figures, so that `compare` tells of it.
    let plan = plan("--rtt 100");
    assert_eq!((plan.rtt_ms, plan.mbit), (Some(100.0), None));
    assert_eq!(flags("mailbox --rtt 1").asked().rtt_ms, Some(1.0));
}

#[test]
fn what_would_be_cut_or_ignored_is_refused() {
    assert_eq!(flags("--step 1:stall=60").check(), Ok(()));
    let refused = flags("--step 1:stall=120").check().unwrap_err();
    assert!(refused.contains("60 seconds at most"), "{refused}");
    assert!(Command::try_parse_from(["run", "--rate", "5", "--variable-rate", "9:1"]).is_err());
}

#[test]
fn slips_of_the_hand_are_refused() {
    let slips = [
        ("--repeat 1001", "1000 rounds at most"),
        ("--repeat 18446744073709551615", "1000 rounds"),
        ("--grid window=8 --judge 1001", "1000 rounds"),
        ("--step 1:rtt=1e18", "600000 ms at most"),
        ("--seconds 1e7", "1000000 seconds at most"),
    ];
    for (line, told) in slips {
        let refused = flags(line).check().unwrap_err();
        assert!(refused.contains(told), "{line}: {refused}");
    }
    let plans = [
        ("-x 40000 -y 40000", "60000 publishers and consumers"),
        ("-x 18446744073709551615", "60000 publishers and consumers"),
        ("--queues 1000001", "a million queues"),
        ("--warm-up 1e7", "a million seconds"),
        ("--variable-rate 1e300:1", "a thousand million"),
        ("--variable-rate 5:1e9", "a million seconds"),
    ];
    for (line, told) in plans {
        let refused = plan(line).check().unwrap_err().to_string();
        assert!(refused.contains(told), "{line}: {refused}");
    }
    assert_eq!(flags("--repeat 1000 --grid window=8 --judge 1000").check(), Ok(()));
    let many = flags("overhead --messages 100000000");
    let refused = many.check_experiment(many.experiment().unwrap()).unwrap_err();
    assert!(refused.contains("10000000 at most"), "{refused}");
}

#[test]
fn two_flags_of_which_one_would_be_ignored_are_refused() {
    let both = [
        ("--json all --csv all", "one file"),
        ("--repeat 0", "at least 1"),
        ("churn --repeat 0", "at least 1"),
        ("--step 1:stall=1 --url amqp://h", "a broker of our own"),
        ("stress-2 --knee --confirm 50", "leave --confirm out"),
        ("-p -u q --knee -x 0", "there are none"),
        ("stress-1 --rate 5 --scale auto", "leave --rate out"),
        ("--rate 5 --scale 80%", "leave --rate out"),
        ("-C 1000 --warm-up 3", "--warm-up"),
        ("--autoack -q 50", "leave --qos"),
        ("--autoack -A 5", "leave --qos"),
    ];
    for (line, told) in both {
        let refused = flags(line).check().unwrap_err();
        assert!(refused.contains(told), "{line}: {refused}");
    }
    let fits = [
        "--json a --csv b",
        "--rate 5 --scale 2",
        "--variable-rate 9:1 --scale 80%",
        "--knee",
        "-C 1000 --warm-up 0",
    ];
    for line in fits {
        assert_eq!(flags(line).check(), Ok(()), "{line}");
    }
    let names = ["run", "-u", "q", "--queue-pattern", "q%d", "--queue-pattern-to", "2"];
    assert!(Command::try_parse_from(names).is_err());
}

#[test]
fn an_experiment_refuses_what_it_would_leave_out() {
    let flags = flags("mailbox --rate 5");
    let refused = flags.check_experiment(flags.experiment().unwrap()).unwrap_err();
    assert!(refused.starts_with("--rate is for loads"));
}

#[test]
fn an_experiment_without_a_broker_refuses_one() {
    for given in ["--url amqp://h", "--peers", "--rtt 5"] {
        let flags = flags(&format!("overhead {given}"));
        let refused = flags.check_experiment(flags.experiment().unwrap()).unwrap_err();
        assert!(refused.ends_with("overhead asks no broker anything"), "{refused}");
    }
}

#[test]
fn a_directory_that_is_not_there_or_not_used_is_refused() {
    let wrong = |line: &str| flags(line).check().unwrap_err();
    assert!(wrong("--dir / --url amqp://h").starts_with("--dir is for a broker of our own"));
    assert_eq!(wrong("--dir /none/here"), "--dir: there is no directory /none/here");
    assert_eq!(flags("--dir / --url amqp://h --peers").check(), Ok(()));
}

#[test]
fn a_name_that_nobody_knows_says_where_names_are() {
    assert!(flags("stress-9").workload().unwrap_err().contains("bench list"));
}
