use forebay_wire::{TableBuf, Value, basic, queue};

use crate::rig::{Rig, consume, declare, short};

#[test]
fn a_queue_without_a_name_gets_one_and_is_meant_afterwards() {
    let mut rig = Rig::new();
    let id = rig.client();
    rig.method(id, 1, &declare("", false));
    let line = rig.trace(id).remove(0);
    assert!(line.starts_with("1 queue.declare-ok amq.gen-"), "{line}");
    rig.method(id, 1, &basic::Get { no_ack: true, ..basic::Get::default() });
    assert_eq!(rig.trace(id), ["1 basic.get-empty"]);
}

#[test]
fn a_redeclaration_must_agree() {
    let mut rig = Rig::new();
    let id = rig.client();
    rig.method(id, 1, &declare("q", true));
    rig.method(id, 1, &declare("q", true));
    rig.method(id, 1, &declare("q", false));
    assert_eq!(
        rig.trace(id),
        [
            "1 queue.declare-ok q 0 0",
            "1 queue.declare-ok q 0 0",
            "1 channel.close 406 PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'q' in \
             vhost '/': received 'false' but current is 'true'",
        ]
    );
}

#[test]
fn an_exclusive_queue_is_its_connections_own_and_goes_with_it() {
    let mut rig = Rig::new();
    let (owner, other) = (rig.client(), rig.client());
    let mut mine = declare("mine", false);
    mine.exclusive = true;
    rig.method(owner, 1, &mine);
    rig.trace(owner);
    rig.method(other, 1, &consume("mine", "c", false));
    let trace = rig.trace(other);
    assert!(trace[0].starts_with(
        "1 channel.close 405 RESOURCE_LOCKED - cannot obtain exclusive access to locked queue"
    ));
    rig.disconnect(owner);
    assert_eq!(rig.shard.status().queue_count, 0);
}

#[test]
fn what_goes_with_its_connection_is_not_durable_whatever_is_said_of_it() {
    let mut rig = Rig::new();
    let id = rig.client();
    for durable in [true, false, true] {
        rig.method(id, 1, &queue::Declare { exclusive: true, ..declare("mine", durable) });
    }
    assert_eq!(rig.trace(id), ["1 queue.declare-ok mine 0 0"; 3]);
}

#[test]
fn a_bind_names_an_absent_exchange_before_a_queue_that_is_somebody_elses() {
    let mut rig = Rig::new();
    let (owner, other) = (rig.client(), rig.client());
    rig.method(owner, 1, &queue::Declare { exclusive: true, ..declare("mine", false) });
    rig.trace(owner);
    let bind = |exchange| queue::Bind {
        queue: short("mine"),
        exchange: short(exchange),
        ..queue::Bind::default()
    };
    for (channel, exchange, refusal) in [
        (1, "nowhere", "404 NOT_FOUND - no exchange 'nowhere' in vhost '/'"),
        (2, "", "403 ACCESS_REFUSED - operation not permitted on the default exchange"),
        (3, "amq.direct", "405 RESOURCE_LOCKED - cannot obtain exclusive access"),
    ] {
        if channel > 1 {
            rig.method(other, channel, &forebay_wire::channel::Open::default());
            rig.trace(other);
        }
        rig.method(other, channel, &bind(exchange));
        let line = rig.trace(other).remove(0);
        assert!(line.starts_with(&format!("{channel} channel.close {refusal}")), "{line}");
    }
}

#[test]
fn an_auto_delete_queue_goes_with_its_last_consumer_and_not_before() {
    let mut rig = Rig::new();
    let id = rig.client();
    let mut passing = declare("q", false);
    passing.auto_delete = true;
    rig.method(id, 1, &passing);
    rig.settle();
    assert_eq!(rig.shard.status().queue_count, 1);
    rig.method(id, 1, &consume("q", "c", false));
    rig.method(id, 1, &basic::Cancel { consumer_tag: short("c"), no_wait: false });
    rig.settle();
    assert_eq!(rig.shard.status().queue_count, 0);
}

#[test]
fn delete_minds_its_conditions() {
    let mut rig = Rig::new();
    let id = rig.client();
    rig.method(id, 1, &declare("q", false));
    rig.publish(id, "q", b"x", false);
    rig.trace(id);
    let delete = queue::Delete { queue: short("q"), if_empty: true, ..queue::Delete::default() };
    rig.method(id, 1, &delete);
    assert!(
        rig.trace(id)[0].contains("406 PRECONDITION_FAILED - queue 'q' in vhost '/' not empty")
    );
    let other = rig.client();
    rig.method(other, 1, &queue::Delete { queue: short("q"), ..queue::Delete::default() });
    rig.method(other, 1, &queue::Delete { queue: short("q"), ..queue::Delete::default() });
    assert_eq!(rig.trace(other), ["1 queue.delete-ok 1", "1 queue.delete-ok 0"]);
}

#[test]
fn what_this_version_cannot_do_is_refused_not_ignored() {
    let mut rig = Rig::new();
    let id = rig.client();
    let arguments = TableBuf::new().with("x-delayed-retry-max", Value::I32(1000));
    let mut bounded = declare("q", false);
    bounded.arguments = arguments.as_table();
    rig.method(id, 1, &bounded);
    let trace = rig.trace(id);
    assert!(
        trace[0].contains("540 NOT_IMPLEMENTED") && trace[0].contains("x-delayed-retry-max"),
        "{trace:?}"
    );
}
