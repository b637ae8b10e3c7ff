//! Several queues share what one client takes.

use forebay_broker::{ConnectionId, Input};
use forebay_wire::basic;

use crate::rig::{Rig, consume, declare};

/// A queue with a long backlog and one with a short one, and a client that consumes both, the long one first.
fn backlogs(long: usize, short: usize, body: &[u8]) -> (Rig, ConnectionId) {
    let mut rig = Rig::new();
    let id = rig.client();
    for (name, messages) in [("long", long), ("short", short)] {
        rig.method(id, 1, &declare(name, false));
        (0..messages).for_each(|_| rig.publish(id, name, body, false));
    }
    rig.trace(id);
    (rig, id)
}

fn of_short(lines: &[String]) -> usize {
    lines.iter().filter(|line| line.contains("basic.deliver short ")).count()
}

#[test]
fn a_channels_prefetch_is_for_all_its_queues() {
    let (mut rig, id) = backlogs(1_000, 10, b"x");
    rig.method(id, 1, &basic::Qos { prefetch_size: 0, prefetch_count: 10, global: true });
    rig.method(id, 1, &consume("long", "long", false));
    rig.method(id, 1, &consume("short", "short", false));
    let mut got = of_short(&rig.trace(id));
    for tag in 1..=40 {
        rig.method(id, 1, &basic::Ack { delivery_tag: tag, multiple: false });
        got += of_short(&rig.trace(id));
    }
    assert_eq!(got, 10, "of the short one while the long one has hundreds");
}

#[test]
fn what_a_client_reads_is_for_all_its_queues() {
    // So large that a few of them are all that may wait for a socket.
    let (mut rig, id) = backlogs(1_000, 10, &[7; 20_000]);
    rig.method(id, 1, &consume("long", "long", true));
    rig.method(id, 1, &consume("short", "short", true));
    let mut got = 0;
    for _ in 0..20 {
        rig.step(Input::Turn { busy: false });
        got += of_short(&rig.sent(id));
    }
    assert_eq!(got, 10);
    assert!(rig.shard.status().ready > 100, "the long one has more");
}

#[test]
fn who_left_queues_with_many_consumers_leaves_those_of_others_in_their_places() {
    let (mut rig, id) = backlogs(0, 0, b"");
    let other = rig.client();
    for number in 0..40 {
        let who = if number % 4 == 0 { other } else { id };
        let tag: &'static str = Box::leak(format!("c{number}").into_boxed_str());
        rig.method(who, 1, &consume("long", tag, true));
    }
    rig.trace(other);
    rig.disconnect(id);
    for number in 0..20_u8 {
        rig.publish(other, "long", &[b'a' + number], false);
        rig.step(Input::Turn { busy: false });
    }
    let tags: Vec<_> = rig
        .trace(other)
        .iter()
        .map(|line| line.split(' ').nth(2).unwrap_or("").to_owned())
        .collect();
    let once: Vec<_> = (0..10).map(|number| format!("c{}", 4 * number)).collect();
    assert_eq!(tags, [once.clone(), once].concat());
}
