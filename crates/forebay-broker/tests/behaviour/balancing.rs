//! Queues whose publishers follow their consumers.

use forebay_broker::topology::{Policy, PolicyError};
use forebay_broker::{Admission, ConnectionId, QueueFlow, QueueStatus, ShardConfig};
use forebay_flow::BalanceState;
use forebay_wire::{Properties, TableBuf, Value, basic, channel, confirm, queue};

use crate::rig::{Rig, consume, declare, publish_bytes, short};
use crate::waits::gate;

/// `queue.declare` with `x-flow`.
fn declare_with_flow(rig: &mut Rig, id: ConnectionId, name: &str, flow: &str) {
    let arguments = TableBuf::new().with("x-flow", Value::LongStr(flow.as_bytes()));
    let declare = queue::Declare {
        queue: short(name),
        arguments: arguments.as_table(),
        ..queue::Declare::default()
    };
    rig.method(id, 1, &declare);
}

/// A consumer of a queue with at most so many unacknowledged.
fn consumer_of(rig: &mut Rig, name: &str, prefetch: u16) -> ConnectionId {
    let id = rig.client();
    rig.method(id, 1, &basic::Qos { prefetch_count: prefetch, ..basic::Qos::default() });
    rig.method(id, 1, &consume(name, "c", false));
    id
}

fn status(rig: &Rig, name: &str) -> QueueStatus {
    let found = rig.shard.status().queues.into_iter().find(|queue| queue.name == name);
    found.expect("declared")
}

/// A consumer takes and acknowledges one message every `every_ms`, for `ms`.
fn take_slowly(rig: &mut Rig, consumer: ConnectionId, every_ms: u64, ms: u64) {
    for _ in 0..ms / every_ms {
        rig.pass(every_ms);
        if let Some(tag) = rig.sent(consumer).iter().rev().find_map(|line| tag_of(line)) {
            rig.method(consumer, 1, &basic::Ack { delivery_tag: tag, multiple: true });
        }
    }
}

fn tag_of(line: &str) -> Option<u64> {
    line.strip_prefix("1 basic.deliver c ")?.split_whitespace().next()?.parse().ok()
}

/// A queue that holds: 300 messages wait, and one is taken every 20 ms.
fn holding(rig: &mut Rig, publisher: ConnectionId) -> ConnectionId {
    declare_with_flow(rig, publisher, "q", "balance");
    for _ in 0..300 {
        rig.publish(publisher, "q", b"x", false);
    }
    rig.trace(publisher);
    let consumer = consumer_of(rig, "q", 1);
    take_slowly(rig, consumer, 20, 2_000);
    assert_eq!(status(rig, "q").flow_state, BalanceState::Holding);
    consumer
}

#[test]
fn a_confirm_is_held_until_the_queue_has_drained_and_the_message_is_there_all_the_same() {
    let mut rig = Rig::new();
    let publisher = rig.client();
    rig.method(publisher, 1, &confirm::Select::default());
    let consumer = holding(&mut rig, publisher);
    let before = status(&rig, "q");
    assert!(before.standing_wait_us >= 100_000, "{before:?}");
    rig.publish(publisher, "q", b"held", false);
    rig.publish(publisher, "elsewhere", b"unroutable", false);
    // In the queue, not confirmed; what has nothing to do with the queue is.
    assert_eq!(rig.trace(publisher), ["1 basic.ack 302"]);
    assert_eq!(rig.shard.admission(publisher), Admission::Open);
    assert_eq!(gate(&rig, "balance").1, 1);
    let after = status(&rig, "q");
    assert_eq!(after.ready + after.unacked, before.ready + before.unacked + 1);
    take_slowly(&mut rig, consumer, 20, 200 * 20);
    assert_eq!(status(&rig, "q").flow_state, BalanceState::Following);
    assert_eq!(rig.trace(publisher), ["1 basic.ack 301"]);
    assert!(status(&rig, "q").ready <= 64);
    let (waited_ms, waiting) = gate(&rig, "balance");
    assert!((1_000..=4_000).contains(&waited_ms), "{waited_ms}");
    assert_eq!(waiting, 0);
}

#[test]
fn without_confirms_the_next_publish_is_held_and_other_methods_are_not() {
    let mut rig = Rig::new();
    let publisher = rig.client();
    let consumer = holding(&mut rig, publisher);
    let before = status(&rig, "q").ready;
    for _ in 0..10 {
        rig.publish(publisher, "q", b"x", false);
    }
    // One was needed to find out where they go.
    assert_eq!(status(&rig, "q").ready, before + 1);
    assert!(rig.shard.held_bytes(publisher) > 0);
    assert_eq!(rig.shard.admission(publisher), Admission::Closed);
    assert_eq!(gate(&rig, "balance").1, 1);
    let other = rig.client();
    rig.method(other, 1, &declare("other", false));
    rig.publish(other, "other", b"x", false);
    assert_eq!(rig.trace(other), ["1 queue.declare-ok other 0 0"]);
    assert_eq!(rig.shard.admission(other), Admission::Open);
    take_slowly(&mut rig, consumer, 20, 250 * 20);
    rig.trace(publisher);
    assert_eq!(rig.shard.held_bytes(publisher), 0);
    assert_eq!(rig.shard.admission(publisher), Admission::Open);
    let (waited_ms, waiting) = gate(&rig, "balance");
    assert!((1_000..=5_000).contains(&waited_ms), "{waited_ms}");
    assert_eq!(waiting, 0);
}

#[test]
fn nobody_is_held_for_consumers_that_are_silent_or_gone_nor_for_a_queue_that_is_deleted() {
    for end in 0..4 {
        let mut rig = Rig::new();
        let publisher = rig.client();
        rig.method(publisher, 1, &confirm::Select::default());
        let consumer = holding(&mut rig, publisher);
        rig.publish(publisher, "q", b"held", false);
        assert_eq!(rig.trace(publisher), [""; 0]);
        match end {
            0 => rig.pass(10_100),
            1 => rig.disconnect(consumer),
            2 => {
                let delete = queue::Delete { queue: short("q"), ..queue::Delete::default() };
                rig.method(consumer, 1, &delete);
            }
            _ => {
                let purge = queue::Purge { queue: short("q"), ..queue::Purge::default() };
                rig.method(consumer, 1, &purge);
            }
        }
        rig.pass(50);
        assert_eq!(rig.sent(publisher), ["1 basic.ack 301"], "{end}");
    }
}

/// Whoever only gives back what he gets is no consumer for whom publishers should wait.
#[test]
fn nobody_is_held_for_consumers_that_put_everything_back() {
    let mut rig = Rig::new();
    let publisher = rig.client();
    rig.method(publisher, 1, &confirm::Select::default());
    let consumer = holding(&mut rig, publisher);
    rig.publish(publisher, "q", b"held", false);
    assert_eq!(rig.trace(publisher), [""; 0]);
    for _ in 0..103 {
        rig.pass(100);
        if let Some(delivery_tag) = rig.sent(consumer).iter().rev().find_map(|line| tag_of(line)) {
            let back = basic::Nack { delivery_tag, multiple: true, requeue: true };
            rig.method(consumer, 1, &back);
        }
    }
    rig.pass(50);
    assert_eq!(rig.sent(publisher), ["1 basic.ack 301"]);
}

/// What is confirmed one by one behind a held one counts as confirmed.
#[test]
fn one_held_confirm_does_not_count_those_behind_it() {
    let mut rig = Rig::new();
    let publisher = rig.client();
    rig.method(publisher, 1, &declare("other", false));
    rig.method(publisher, 1, &confirm::Select::default());
    holding(&mut rig, publisher);
    rig.publish(publisher, "q", b"held", false);
    for _ in 0..70_000 {
        rig.publish(publisher, "other", b"x", false);
        rig.step(forebay_broker::Input::Turn { busy: false });
        rig.sent(publisher);
        assert_eq!(rig.shard.held_bytes(publisher), 0);
    }
    assert_eq!(status(&rig, "other").ready, 70_000);
}

/// As many publishes are unconfirmed as a channel may have, and it ends before they are confirmed.
#[test]
fn a_channel_that_ends_with_all_confirms_it_may_wait_for_leaves_its_connection_free_to_publish() {
    let mut rig = Rig::new();
    let publisher = rig.client();
    rig.method(publisher, 1, &declare("other", false));
    rig.method(publisher, 1, &confirm::Select::default());
    holding(&mut rig, publisher);
    let mut published = 0;
    while rig.shard.admission(publisher) == Admission::Open {
        rig.publish(publisher, "q", b"x", false);
        published += 1;
        assert!(published <= 65_536, "it may have more unconfirmed than that");
    }
    rig.sent(publisher);
    let missing = queue::Declare { passive: true, ..declare("missing", false) };
    rig.method(publisher, 1, &missing);
    let answers = rig.sent(publisher);
    assert!(answers.iter().any(|line| line.contains("channel.close 404")), "{answers:?}");
    rig.method(publisher, 1, &channel::CloseOk::default());
    rig.method(publisher, 1, &channel::Open::default());
    rig.publish(publisher, "other", b"x", false);
    rig.settle();
    assert_eq!(rig.shard.held_bytes(publisher), 0);
    assert_eq!(status(&rig, "other").ready, 1);
}

#[test]
fn confirms_are_not_held_over_a_stop() {
    let mut rig = Rig::new();
    let publisher = rig.client();
    rig.method(publisher, 1, &confirm::Select::default());
    holding(&mut rig, publisher);
    rig.publish(publisher, "q", b"held", false);
    rig.trace(publisher);
    rig.step(forebay_broker::Input::Shutdown);
    let told = rig.trace(publisher);
    assert_eq!(told.first().map(String::as_str), Some("1 basic.ack 301"), "{told:?}");
}

#[test]
fn what_a_transaction_brings_is_committed_and_the_next_waits() {
    let mut rig = Rig::new();
    let publisher = rig.client();
    holding(&mut rig, publisher);
    let other = rig.client();
    rig.method(other, 1, &forebay_wire::tx::Select::default());
    rig.publish(other, "q", b"1", false);
    rig.publish(other, "q", b"2", false);
    let before = status(&rig, "q").ready;
    rig.method(other, 1, &forebay_wire::tx::Commit::default());
    assert_eq!(rig.trace(other), ["1 tx.select-ok", "1 tx.commit-ok"]);
    assert_eq!(status(&rig, "q").ready, before + 2);
    let next = publish_bytes("", "q", false, &Properties::default(), b"3");
    rig.bytes(other, &next);
    assert_eq!(rig.shard.held_bytes(other), next.len());
}

#[test]
fn a_queue_absorbs_unless_its_argument_or_else_a_policy_says_balance() -> Result<(), PolicyError> {
    let balance = [("flow", Value::LongStr(b"balance"))];
    let policies = vec![Policy::of_queues("/", "^work", 0, balance)?];
    let mut rig = Rig::with(ShardConfig { policies, ..ShardConfig::default() });
    let id = rig.client();
    rig.method(id, 1, &declare("work.1", false));
    rig.method(id, 1, &declare("other", false));
    declare_with_flow(&mut rig, id, "work.2", "absorb");
    declare_with_flow(&mut rig, id, "mine", "balance");
    rig.trace(id);
    let flow = |name| status(&rig, name).flow;
    assert_eq!(flow("work.1"), QueueFlow::Balance);
    assert_eq!(flow("other"), QueueFlow::Absorb);
    assert_eq!(flow("work.2"), QueueFlow::Absorb);
    assert_eq!(flow("mine"), QueueFlow::Balance);
    declare_with_flow(&mut rig, id, "mine", "swing");
    let told = rig.trace(id).join("\n");
    assert!(told.contains("406") && told.contains("x-flow"), "{told}");
    Ok(())
}
