use forebay_broker::{Admission, ConnectionId, Input, ShardConfig};
use forebay_wire::{Properties, TableBuf, Value, basic, channel, tx, write_method};

use crate::rig::{Rig, consume, declare, publish_bytes, short};
use crate::scene::Scene;

const TIMED_OUT: &str = "channel.close 406 PRECONDITION_FAILED - delivery acknowledgement on \
                         channel 1 timed out. Timeout value used:";

/// What a look every minute and a timer every half may add to a timeout.
const SLACK_MS: u64 = 100_000;

fn timeout(ms: i64) -> TableBuf {
    TableBuf::new().with("x-consumer-timeout", Value::I64(ms))
}

#[test]
fn after_half_an_hour_the_channel_is_closed_and_the_message_goes_to_somebody_else() {
    let mut rig = Rig::new();
    let (stuck, other) = (rig.client(), rig.client());
    rig.method(stuck, 1, &declare("q", false));
    rig.method(stuck, 1, &consume("q", "c", false));
    rig.method(stuck, 2, &channel::Open::default());
    rig.publish(stuck, "q", b"slow", false);
    rig.trace(stuck);
    rig.method(other, 1, &consume("q", "o", false));
    rig.trace(other);
    rig.pass(1_799_000);
    assert_eq!(rig.sent(stuck), [""; 0]);
    rig.pass(1_000 + SLACK_MS);
    assert_eq!(
        rig.sent(stuck),
        [format!(
            "1 {TIMED_OUT} 1800000 ms. This timeout value can be configured, see consumers doc \
             guide to learn more"
        )]
    );
    assert_eq!(rig.sent(other), ["1 basic.deliver o 1 redelivered [slow]"]);
    assert_eq!(rig.shard.status().counters.ack_timeouts, 1);
    // The connection and its other channels go on.
    rig.method(stuck, 1, &channel::CloseOk::default());
    rig.method(stuck, 2, &basic::Qos { prefetch_count: 1, ..basic::Qos::default() });
    assert_eq!(rig.trace(stuck), ["2 basic.qos-ok"]);
}

#[test]
fn what_is_acknowledged_in_time_counts_from_its_own_delivery() {
    let mut rig = Rig::new();
    let id = rig.client();
    rig.method(id, 1, &declare("q", false));
    rig.method(id, 1, &consume("q", "c", false));
    for tag in 1..=5 {
        rig.publish(id, "q", b"x", false);
        rig.trace(id);
        rig.pass(850_000);
        if tag > 1 {
            rig.method(id, 1, &basic::Ack { delivery_tag: tag - 1, multiple: false });
        }
        assert_eq!(rig.sent(id), [""; 0]);
    }
}

#[test]
fn a_consumer_may_have_its_own_timeout_and_keeps_it_after_its_cancel() {
    let mut rig = Rig::new();
    let id = rig.client();
    for name in ["long", "short"] {
        rig.method(id, 1, &declare(name, false));
        rig.publish(id, name, b"x", false);
    }
    let (long, brief) = (timeout(7_200_000), timeout(5_000));
    let patient = basic::Consume { arguments: long.as_table(), ..consume("long", "p", false) };
    rig.method(id, 1, &patient);
    rig.method(id, 1, &basic::Cancel { consumer_tag: short("p"), no_wait: true });
    rig.trace(id);
    rig.pass(2_000_000);
    assert_eq!(rig.sent(id), [""; 0]);
    // Not the oldest delivery, and the first to be late.
    let hasty = basic::Consume { arguments: brief.as_table(), ..consume("short", "h", false) };
    rig.method(id, 1, &hasty);
    rig.trace(id);
    rig.pass(5_000 + SLACK_MS);
    assert!(rig.sent(id)[0].contains(&format!("{TIMED_OUT} 5000 ms")));
}

#[test]
fn a_queue_may_have_its_own_timeout_also_for_get() {
    let mut rig = Rig::new();
    let id = rig.client();
    let arguments = timeout(5_000);
    let mut queue = declare("q", false);
    queue.arguments = arguments.as_table();
    rig.method(id, 1, &queue);
    rig.publish(id, "q", b"x", false);
    rig.method(id, 1, &basic::Get { queue: short("q"), ..basic::Get::default() });
    rig.trace(id);
    rig.pass(5_000 + SLACK_MS);
    assert!(rig.sent(id)[0].contains(&format!("{TIMED_OUT} 5000 ms")));
}

#[test]
fn slow_heartbeats_do_not_put_it_off() {
    let mut rig = Rig::new();
    let id = rig.client_with(b"\0guest\0guest", 20_000);
    rig.method(id, 1, &declare("q", false));
    rig.method(id, 1, &consume("q", "c", false));
    rig.publish(id, "q", b"x", false);
    rig.trace(id);
    rig.pass(1_800_000 + SLACK_MS);
    assert!(rig.sent(id)[0].contains(TIMED_OUT));
}

#[test]
fn no_timeout_is_zero() {
    let mut rig = Rig::with(ShardConfig { ack_timeout_ms: 0, ..ShardConfig::default() });
    let id = rig.client();
    rig.method(id, 1, &declare("q", false));
    rig.method(id, 1, &consume("q", "c", false));
    rig.publish(id, "q", b"x", false);
    rig.trace(id);
    rig.pass(100_000_000);
    assert_eq!(rig.sent(id), [""; 0]);
    let silly = timeout(-1);
    rig.method(id, 1, &basic::Consume { arguments: silly.as_table(), ..consume("q", "d", false) });
    assert!(
        rig.trace(id)[0].contains("406 PRECONDITION_FAILED - invalid arg 'x-consumer-timeout'")
    );
}

/// What the look at a short timeout may add to it: an eighth, and two started seconds.
const SHORT_SLACK_MS: u64 = 9_500;

/// A worker with a minute's timeout that holds one message, and another worker beside it.
fn job(rig: &mut Rig, leases: bool) -> (ConnectionId, ConnectionId) {
    let capabilities: &[&str] = if leases { &["forebay.leases"] } else { &[] };
    let (worker, other) = (rig.client_that_can(capabilities), rig.client());
    rig.method(worker, 1, &declare("q", false));
    let minute = timeout(60_000);
    let consume = basic::Consume { arguments: minute.as_table(), ..consume("q", "w", false) };
    rig.method(worker, 1, &consume);
    rig.publish(worker, "q", b"job", false);
    rig.trace(worker);
    rig.method(other, 1, &crate::rig::consume("q", "o", false));
    rig.trace(other);
    (worker, other)
}

/// Lets time pass; the client answers what it is asked.
fn work(rig: &mut Rig, worker: ConnectionId, seconds: u64) -> u32 {
    let mut asked = 0;
    for _ in 0..seconds {
        rig.pass(1_000);
        for line in rig.sent(worker) {
            assert_eq!(line, "1 channel.flow");
            rig.method(worker, 1, &channel::FlowOk { active: true });
            asked += 1;
        }
    }
    asked
}

#[test]
fn a_job_of_two_hours_finishes_once_under_a_timeout_of_a_minute() {
    let mut rig = Rig::new();
    let (worker, other) = job(&mut rig, true);
    let asked = work(&mut rig, worker, 7_200);
    assert!((180..=240).contains(&asked), "about twice a minute, not {asked} times");
    rig.method(worker, 1, &basic::Ack { delivery_tag: 1, multiple: false });
    rig.pass(120_000);
    assert_eq!((rig.sent(worker), rig.sent(other)), (vec![], vec![]));
    assert_eq!(rig.shard.status().queues[0].unacked, 0);
}

#[test]
fn the_job_of_a_worker_that_answers_no_more_is_back_within_its_timeout() {
    let mut rig = Rig::new();
    let (worker, other) = job(&mut rig, true);
    work(&mut rig, worker, 600);
    rig.pass(60_000 + SHORT_SLACK_MS);
    let told = rig.sent(worker);
    assert!(told.last().unwrap().contains(TIMED_OUT), "{told:?}");
    assert_eq!(rig.sent(other), ["1 basic.deliver o 1 redelivered [job]"]);
    // Too late.
    rig.method(worker, 1, &channel::FlowOk { active: true });
    assert_eq!(rig.trace(worker), [""; 0]);
}

#[test]
fn an_answer_behind_a_publish_that_is_held_back_is_waited_for() {
    let mut rig = Rig::small();
    let (worker, other) = job(&mut rig, true);
    rig.method(other, 1, &declare("full", false));
    rig.fill(other, "full");
    rig.pass(45_000);
    assert!(rig.sent(worker).contains(&"1 channel.flow".to_owned()));
    let mut bytes = publish_bytes("", "q", false, &Properties::default(), b"next");
    write_method(&mut bytes, 1, &channel::FlowOk { active: true });
    rig.bytes(worker, &bytes);
    assert_eq!(rig.shard.held_bytes(worker), bytes.len());
    // Nobody goes on with what is held, for longer than the timeout.
    for _ in 0..100 {
        rig.now_us += 1_000_000;
        rig.step(Input::Tick);
        rig.step(Input::Turn { busy: false });
    }
    assert_eq!(rig.sent(worker), [""; 0], "it could not be heard");
    assert_eq!(rig.shard.admission(worker), Admission::Resume);
    rig.bytes(worker, &[]);
    assert_eq!(rig.shard.held_bytes(worker), 0, "it has answered");
    rig.pass(2 * (60_000 + SHORT_SLACK_MS));
    let told = rig.sent(worker);
    assert!(told.last().unwrap().contains(TIMED_OUT), "the next time it does not: {told:?}");
}

#[test]
fn a_question_behind_an_answer_that_waits_for_the_disk_has_not_been_asked() {
    let mut scene = Scene::new();
    let rig = &mut scene.rig;
    let (worker, other) = job(rig, true);
    rig.disk_stalled = true;
    rig.method(worker, 1, &declare("durable", true));
    for _ in 0..150 {
        rig.now_us += 1_000_000;
        rig.step(Input::Tick);
        rig.step(Input::Turn { busy: false });
    }
    assert_eq!(rig.sent(worker), [""; 0]);
    rig.disk_stalled = false;
    assert_eq!(scene.answers(worker), ["1 queue.declare-ok durable 0 0", "1 channel.flow"]);
    let rig = &mut scene.rig;
    rig.method(worker, 1, &channel::FlowOk { active: true });
    work(rig, worker, 600);
    assert_eq!(rig.sent(other), [""; 0], "it works on the job all the time");
}

/// Acknowledges the job in a transaction, and two minutes later takes that back.
fn roll_back(rig: &mut Rig, worker: ConnectionId) {
    rig.method(worker, 1, &tx::Select {});
    rig.method(worker, 1, &basic::Ack { delivery_tag: 1, multiple: false });
    rig.trace(worker);
    rig.pass(120_000);
    assert_eq!(rig.sent(worker), [""; 0], "nothing is unacknowledged as long as it may commit");
    rig.method(worker, 1, &tx::Rollback {});
    assert_eq!(rig.trace(worker), ["1 tx.rollback-ok"]);
}

#[test]
fn what_a_rollback_gives_back_late_is_asked_for_first() {
    let mut rig = Rig::new();
    let (worker, other) = job(&mut rig, true);
    roll_back(&mut rig, worker);
    assert!(work(&mut rig, worker, 600) > 0);
    rig.method(worker, 1, &basic::Ack { delivery_tag: 1, multiple: false });
    rig.method(worker, 1, &tx::Commit {});
    assert_eq!(rig.trace(worker), ["1 tx.commit-ok"]);
    assert_eq!(rig.sent(other), [""; 0]);
}

#[test]
fn what_a_rollback_gives_back_late_goes_to_another_if_nobody_answers() {
    let mut rig = Rig::new();
    let (worker, other) = job(&mut rig, true);
    roll_back(&mut rig, worker);
    rig.pass(60_000 + SHORT_SLACK_MS);
    let told = rig.sent(worker);
    assert_eq!(told[0], "1 channel.flow");
    assert!(told[1].contains(TIMED_OUT), "{told:?}");
    assert_eq!(rig.sent(other), ["1 basic.deliver o 1 redelivered [job]"]);
}

#[test]
fn without_leases_what_a_rollback_gives_back_counts_from_its_delivery() {
    let mut rig = Rig::new();
    let (worker, other) = job(&mut rig, false);
    roll_back(&mut rig, worker);
    rig.pass(SHORT_SLACK_MS);
    assert!(rig.sent(worker)[0].contains(TIMED_OUT));
    assert_eq!(rig.sent(other), ["1 basic.deliver o 1 redelivered [job]"]);
}

#[test]
fn who_does_not_know_of_leases_is_not_asked() {
    let mut rig = Rig::new();
    let (worker, other) = job(&mut rig, false);
    rig.pass(30_000);
    rig.method(worker, 1, &channel::FlowOk { active: true });
    rig.pass(30_000 + SHORT_SLACK_MS);
    assert!(rig.sent(worker)[0].contains(TIMED_OUT));
    assert_eq!(rig.sent(other), ["1 basic.deliver o 1 redelivered [job]"]);
}
