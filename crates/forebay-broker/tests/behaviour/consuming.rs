use forebay_broker::{ConnectionId, Input};
use forebay_wire::{TableBuf, Value, basic, channel, connection, queue};

use crate::expiring::declare_with;
use crate::rig::{Rig, consume, declare, short};

fn filled(count: usize) -> (Rig, ConnectionId) {
    let mut rig = Rig::new();
    let id = rig.client();
    rig.method(id, 1, &declare("q", false));
    for number in 1..=count {
        rig.publish(id, "q", number.to_string().as_bytes(), false);
    }
    rig.trace(id);
    (rig, id)
}

fn qos(count: u16, global: bool) -> basic::Qos {
    basic::Qos { prefetch_size: 0, prefetch_count: count, global }
}

#[test]
fn prefetch_bounds_what_a_consumer_holds() {
    let (mut rig, id) = filled(5);
    rig.method(id, 1, &qos(2, false));
    rig.method(id, 1, &consume("q", "c", false));
    assert_eq!(
        rig.trace(id),
        [
            "1 basic.qos-ok",
            "1 basic.consume-ok",
            "1 basic.deliver c 1 [1]",
            "1 basic.deliver c 2 [2]"
        ]
    );
    rig.method(id, 1, &basic::Ack { delivery_tag: 2, multiple: true });
    assert_eq!(rig.trace(id), ["1 basic.deliver c 3 [3]", "1 basic.deliver c 4 [4]"]);
}

#[test]
fn a_global_prefetch_bounds_the_channel_and_can_be_raised() {
    let (mut rig, id) = filled(5);
    rig.method(id, 1, &qos(1, true));
    rig.method(id, 1, &consume("q", "a", false));
    rig.method(id, 1, &consume("q", "b", false));
    assert_eq!(rig.trace(id)[3..], ["1 basic.deliver a 1 [1]"]);
    rig.method(id, 1, &qos(3, true));
    assert_eq!(
        rig.trace(id),
        ["1 basic.qos-ok", "1 basic.deliver b 2 [2]", "1 basic.deliver a 3 [3]"]
    );
}

#[test]
fn who_says_so_may_pause_its_deliveries_and_others_are_refused_as_by_rabbitmq() {
    let (mut rig, filler) = filled(2);
    let id = rig.client_that_can(&["forebay.pause"]);
    rig.method(id, 1, &channel::Flow { active: false });
    rig.method(id, 1, &consume("q", "c", false));
    assert_eq!(rig.trace(id), ["1 channel.flow-ok", "1 basic.consume-ok"]);
    rig.method(id, 1, &channel::Flow { active: true });
    let first = ["1 channel.flow-ok", "1 basic.deliver c 1 [1]", "1 basic.deliver c 2 [2]"];
    assert_eq!(rig.trace(id), first);
    // What it holds it can settle meanwhile; what goes back is for others.
    rig.method(id, 1, &channel::Flow { active: false });
    rig.method(id, 1, &basic::Nack { delivery_tag: 2, multiple: false, requeue: true });
    assert_eq!(rig.trace(id), ["1 channel.flow-ok"]);
    rig.method(filler, 1, &consume("q", "f", false));
    assert_eq!(rig.trace(filler), ["1 basic.consume-ok", "1 basic.deliver f 1 redelivered [2]"]);
    rig.method(filler, 1, &channel::Flow { active: false });
    assert!(rig.trace(filler)[0].contains("540 NOT_IMPLEMENTED - active=false"));
}

/// These messages are published, and there is more to read.
fn busy_turn(rig: &mut Rig, id: ConnectionId, numbers: std::ops::Range<u32>) {
    for number in numbers {
        rig.publish(id, "q", number.to_string().as_bytes(), false);
    }
    rig.step(Input::Turn { busy: true });
}

#[test]
fn a_busy_broker_gives_working_consumers_several_in_a_row_and_an_idle_one_its_first_soon() {
    let (mut rig, id) = filled(0);
    rig.method(id, 1, &consume("q", "a", false));
    rig.method(id, 1, &consume("q", "b", false));
    rig.trace(id);
    // Forty in a moment: so twenty of each such moment are for each.
    rig.now_us += 5_000;
    busy_turn(&mut rig, id, 1..41);
    let sent = rig.sent(id);
    assert_eq!((sent.len(), &*sent[19]), (40, "1 basic.deliver a 20 [20]"));
    rig.method(id, 1, &basic::Ack { delivery_tag: 40, multiple: true });
    rig.now_us += 5_000;
    busy_turn(&mut rig, id, 41..42);
    assert_eq!(rig.sent(id), ["1 basic.deliver a 41 [41]"], "it waited for a moment");
    busy_turn(&mut rig, id, 42..45);
    assert_eq!(rig.sent(id), [""; 0]);
    // Who is busy because nothing has room is not woken by what it could read.
    assert_eq!(rig.shard.next_deadline_us(), Some(rig.now_us + 500));
    rig.now_us += 1;
    busy_turn(&mut rig, id, 45..46);
    let for_b = |number| format!("1 basic.deliver b {number} [{number}]");
    assert_eq!(rig.sent(id), (42..46).map(for_b).collect::<Vec<_>>(), "it has nothing to do");
    rig.now_us += 1_000;
    busy_turn(&mut rig, id, 46..49);
    assert_eq!(rig.sent(id), [""; 0], "the next one has work");
    rig.now_us += 4_001;
    busy_turn(&mut rig, id, 49..50);
    assert_eq!(
        rig.sent(id),
        [
            "1 basic.deliver a 46 [46]",
            "1 basic.deliver a 47 [47]",
            "1 basic.deliver b 48 [48]",
            "1 basic.deliver b 49 [49]"
        ]
    );
    busy_turn(&mut rig, id, 50..51);
    assert_eq!(rig.sent(id), [""; 0]);
    rig.step(Input::Turn { busy: false });
    assert_eq!(rig.sent(id), ["1 basic.deliver a 50 [50]"], "nothing more is to be read");
    assert!(rig.shard.next_deadline_us() > Some(rig.now_us + 500), "nobody gathers");
}

/// A busy shell asks after each short turn, and the answer was always half a millisecond from then.
#[test]
fn timers_do_not_wait_while_a_busy_broker_gathers() {
    let (mut rig, id) = filled(0);
    rig.method(id, 1, &consume("q", "a", false));
    let expires = TableBuf::new().with("x-expires", Value::I32(1_000));
    declare_with(&mut rig, id, "unused", false, &expires);
    let due_us = rig.now_us + 1_000_000;
    rig.trace(id);
    rig.now_us = due_us - 9_000;
    busy_turn(&mut rig, id, 1..41);
    rig.now_us = due_us - 4_000;
    busy_turn(&mut rig, id, 41..42);
    assert_eq!(rig.sent(id).len(), 41);
    rig.now_us = due_us - 100;
    busy_turn(&mut rig, id, 42..43);
    assert_eq!(rig.sent(id), [""; 0], "it gathers");
    assert_eq!(rig.shard.next_deadline_us(), Some(due_us));
    rig.now_us = due_us;
    rig.step(Input::Turn { busy: true });
    assert!(rig.shard.is_gathering());
    assert!(rig.shard.next_deadline_us() <= Some(due_us), "which is now");
    rig.step(Input::Tick);
    assert_eq!(rig.shard.status().queue_count, 1);
}

#[test]
fn an_overloaded_broker_gathers_for_as_long_as_publishers_wait() {
    let (mut rig, id) = filled(0);
    rig.method(id, 1, &consume("q", "a", false));
    rig.trace(id);
    // Ten in 30 ms, and publishers that wait for 30 until they are read.
    rig.now_us += 30_000;
    busy_turn(&mut rig, id, 1..11);
    for _ in 0..1_000 {
        rig.shard.publisher_waited(30_000);
    }
    rig.now_us += 30_000;
    busy_turn(&mut rig, id, 11..12);
    assert_eq!(rig.sent(id).len(), 11);
    busy_turn(&mut rig, id, 12..13);
    rig.now_us += 29_999;
    busy_turn(&mut rig, id, 13..14);
    assert_eq!(rig.sent(id), [""; 0]);
    rig.now_us += 1;
    rig.step(Input::Turn { busy: true });
    assert_eq!(rig.sent(id), ["1 basic.deliver a 12 [12]", "1 basic.deliver a 13 [13]"]);
}

#[test]
fn nobody_waits_while_a_busy_broker_gathers_for_one_who_may_take_nothing() {
    let (mut rig, id) = filled(0);
    rig.method(id, 1, &qos(1, false));
    rig.method(id, 1, &consume("q", "a", false));
    rig.method(id, 1, &consume("q", "b", false));
    rig.trace(id);
    for number in 1..=2 {
        rig.publish(id, "q", number.to_string().as_bytes(), false);
    }
    rig.now_us += 1_000;
    rig.step(Input::Turn { busy: true });
    rig.method(id, 1, &basic::Ack { delivery_tag: 2, multiple: false });
    rig.publish(id, "q", b"3", false);
    rig.sent(id);
    // It is the turn of a, who has work and no credit; b is idle.
    rig.now_us += 1_000;
    rig.step(Input::Turn { busy: true });
    assert_eq!(rig.sent(id), ["1 basic.deliver b 3 [3]"]);
}

#[test]
fn a_broker_that_is_not_busy_gives_each_in_turn_before_publishers_are_read_too() {
    let (mut rig, id) = filled(0);
    rig.method(id, 1, &consume("q", "a", false));
    rig.method(id, 1, &consume("q", "b", false));
    rig.trace(id);
    // Twenty in a moment, so that of a busy broker each would get two in a row.
    for number in 1..=20u32 {
        rig.publish(id, "q", number.to_string().as_bytes(), false);
    }
    rig.now_us += 5_000;
    rig.step(Input::Turn { busy: false });
    rig.now_us += 5_000;
    for number in 21..=25u32 {
        rig.publish(id, "q", number.to_string().as_bytes(), false);
        if number == 21 {
            rig.step(Input::Turn { busy: false });
            rig.sent(id);
        }
    }
    rig.step(Input::Deliver);
    assert_eq!(
        rig.sent(id),
        [
            "1 basic.deliver b 22 [22]",
            "1 basic.deliver a 23 [23]",
            "1 basic.deliver b 24 [24]",
            "1 basic.deliver a 25 [25]"
        ]
    );
}

#[test]
fn what_acknowledgements_made_room_for_is_delivered_before_publishers_are_read() {
    let (mut rig, id) = filled(3);
    rig.method(id, 1, &qos(1, false));
    rig.method(id, 1, &consume("q", "a", false));
    rig.trace(id);
    rig.method(id, 1, &basic::Ack { delivery_tag: 1, multiple: false });
    rig.now_us += 1_000; // an idle consumer's messages are gathered for no longer
    rig.step(Input::Deliver);
    assert_eq!(rig.sent(id), ["1 basic.deliver a 2 [2]"]);
}

#[test]
fn consumers_take_turns() {
    let (mut rig, id) = filled(0);
    rig.method(id, 1, &consume("q", "a", true));
    rig.method(id, 1, &consume("q", "b", true));
    rig.trace(id);
    for number in 1..=4 {
        rig.publish(id, "q", number.to_string().as_bytes(), false);
    }
    assert_eq!(
        rig.trace(id),
        [
            "1 basic.deliver a 1 [1]",
            "1 basic.deliver b 2 [2]",
            "1 basic.deliver a 3 [3]",
            "1 basic.deliver b 4 [4]"
        ]
    );
}

fn with_priority<'a>(tag: &'static str, arguments: &'a TableBuf) -> basic::Consume<'a> {
    basic::Consume { arguments: arguments.as_table(), ..consume("q", tag, false) }
}

fn priority(priority: i32) -> TableBuf {
    TableBuf::new().with("x-priority", Value::I32(priority))
}

#[test]
fn who_has_a_lower_priority_gets_what_the_others_cannot_take() {
    let (mut rig, id) = filled(0);
    let [low, high] = [priority(-1), priority(10)];
    rig.method(id, 1, &qos(1, false));
    rig.method(id, 1, &with_priority("low", &low));
    rig.method(id, 1, &consume("q", "plain", false));
    rig.method(id, 1, &with_priority("high", &high));
    rig.method(id, 1, &with_priority("also", &high));
    rig.trace(id);
    for number in 1..=5 {
        rig.publish(id, "q", number.to_string().as_bytes(), false);
    }
    assert_eq!(
        rig.trace(id),
        [
            "1 basic.deliver high 1 [1]",
            "1 basic.deliver also 2 [2]",
            "1 basic.deliver plain 3 [3]",
            "1 basic.deliver low 4 [4]"
        ]
    );
    rig.method(id, 1, &basic::Ack { delivery_tag: 4, multiple: false });
    assert_eq!(rig.trace(id), ["1 basic.deliver low 5 [5]"], "better than to wait");
    rig.method(id, 1, &basic::Cancel { consumer_tag: short("high"), no_wait: true });
    rig.method(id, 1, &basic::Ack { delivery_tag: 3, multiple: true });
    for number in 6..=8 {
        rig.publish(id, "q", number.to_string().as_bytes(), false);
    }
    assert_eq!(
        rig.trace(id),
        ["1 basic.deliver also 6 [6]", "1 basic.deliver plain 7 [7]"],
        "and the last one waits"
    );
}

#[test]
fn a_priority_is_a_number() {
    let (mut rig, id) = filled(0);
    let arguments = TableBuf::new().with("x-priority", Value::LongStr(b"high"));
    rig.method(id, 1, &with_priority("c", &arguments));
    let answer = rig.trace(id);
    assert!(answer[0].contains("406") && answer[0].contains("x-priority"), "{answer:?}");
}

/// A queue of which one consumer at a time gets messages, its consumers `a` and `b` on a connection each, and who publishes.
fn single_active() -> (Rig, [ConnectionId; 3]) {
    let mut rig = Rig::new();
    let ids = [(); 3].map(|()| rig.client());
    let arguments = TableBuf::new().with("x-single-active-consumer", Value::Bool(true));
    rig.method(
        ids[2],
        1,
        &queue::Declare { arguments: arguments.as_table(), ..declare("q", false) },
    );
    let high = priority(9);
    rig.method(ids[0], 1, &qos(2, false));
    rig.method(ids[0], 1, &consume("q", "a", false));
    rig.method(ids[1], 1, &with_priority("b", &high));
    for id in ids {
        rig.trace(id);
    }
    (rig, ids)
}

#[test]
fn of_a_single_active_consumer_the_next_is_active_when_it_goes() {
    let (mut rig, [first, second, other]) = single_active();
    for number in 1..=3 {
        rig.publish(other, "q", number.to_string().as_bytes(), false);
    }
    assert_eq!(rig.trace(first), ["1 basic.deliver a 1 [1]", "1 basic.deliver a 2 [2]"]);
    assert!(rig.trace(second).is_empty(), "though the first is full");
    let report = rig.shard.queue_report("/", b"q", rig.now_us).expect("it is there");
    assert_eq!(report.consumers.iter().map(|one| one.active).collect::<Vec<_>>(), [true, false]);
    rig.method(first, 1, &basic::Cancel { consumer_tag: short("a"), no_wait: true });
    assert_eq!(rig.trace(second), ["1 basic.deliver b 1 [3]"], "what the first holds is its own");
    rig.disconnect(first);
    let back = ["1 basic.deliver b 2 redelivered [1]", "1 basic.deliver b 3 redelivered [2]"];
    assert_eq!(rig.trace(second), back);
}

#[test]
fn nobody_is_exclusive_where_one_is_active() {
    let (mut rig, [first, second, other]) = single_active();
    for id in [first, second] {
        rig.disconnect(id);
    }
    let exclusive = basic::Consume { exclusive: true, ..consume("q", "c", false) };
    rig.method(other, 1, &exclusive);
    let answer = rig.trace(other);
    assert!(answer[0].contains("403"), "{answer:?}");
}

#[test]
fn of_many_that_are_full_whoever_acknowledges_gets_the_next_also_when_others_have_gone() {
    const WORKERS: u64 = 130;
    let (mut rig, id) = filled(0);
    rig.method(id, 1, &qos(1, false));
    for worker in 0..WORKERS {
        let tag = worker.to_string().leak();
        rig.method(id, 1, &consume("q", tag, false));
    }
    // One more than they may hold: the last one waits, and each of them was found to be full.
    for number in 0..=WORKERS {
        rig.publish(id, "q", number.to_string().as_bytes(), false);
    }
    rig.trace(id);
    rig.method(id, 1, &basic::Cancel { consumer_tag: short("3"), no_wait: true });
    for (tag, worker) in [(100, 99), (1, 0), (130, 129), (131, 99)] {
        rig.method(id, 1, &basic::Ack { delivery_tag: tag, multiple: false });
        let told = rig.trace(id);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].starts_with(&format!("1 basic.deliver {worker} ")), "{told:?}");
        rig.publish(id, "q", b"next", false);
        assert_eq!(rig.trace(id), [""; 0], "all are full again");
    }
}

#[test]
fn what_is_not_acknowledged_goes_back_to_its_place_marked() {
    let (mut rig, id) = filled(3);
    let other = rig.client();
    rig.method(other, 1, &consume("q", "c", false));
    assert_eq!(rig.trace(other).len(), 4);
    rig.method(other, 1, &basic::Ack { delivery_tag: 2, multiple: false });
    rig.disconnect(other);
    rig.method(id, 1, &consume("q", "d", true));
    assert_eq!(
        rig.trace(id)[1..],
        ["1 basic.deliver d 1 redelivered [1]", "1 basic.deliver d 2 redelivered [3]"]
    );
}

#[test]
fn nack_reject_and_recover_put_back_or_drop() {
    let (mut rig, id) = filled(4);
    rig.method(id, 1, &qos(4, false));
    rig.method(id, 1, &consume("q", "c", false));
    rig.trace(id);
    rig.method(id, 1, &basic::Cancel { consumer_tag: short("c"), no_wait: false });
    rig.method(id, 1, &basic::Reject { delivery_tag: 1, requeue: false });
    rig.method(id, 1, &basic::Nack { delivery_tag: 3, multiple: true, requeue: true });
    rig.method(id, 1, &basic::Recover { requeue: true });
    assert_eq!(rig.trace(id), ["1 basic.cancel-ok", "1 basic.recover-ok"]);
    rig.method(id, 1, &consume("q", "d", true));
    assert_eq!(
        rig.trace(id)[1..],
        [
            "1 basic.deliver d 5 redelivered [2]",
            "1 basic.deliver d 6 redelivered [3]",
            "1 basic.deliver d 7 redelivered [4]"
        ]
    );
}

#[test]
fn an_unknown_delivery_tag_closes_the_channel() {
    for (tag, multiple) in [(1, false), (9, true), (0, false)] {
        let (mut rig, id) = filled(0);
        rig.method(id, 1, &basic::Ack { delivery_tag: tag, multiple });
        let text = format!("1 channel.close 406 PRECONDITION_FAILED - unknown delivery tag {tag}");
        assert_eq!(rig.trace(id), [text]);
    }
    let (mut rig, id) = filled(0);
    rig.method(id, 1, &basic::Ack { delivery_tag: 0, multiple: true });
    assert_eq!(rig.trace(id), [""; 0]);
}

#[test]
fn a_tag_is_used_once_and_an_exclusive_consumer_is_alone() {
    let (mut rig, id) = filled(0);
    rig.method(id, 1, &consume("q", "c", false));
    rig.method(id, 1, &consume("q", "c", false));
    assert_eq!(
        rig.trace(id)[1],
        "0 connection.close 530 NOT_ALLOWED - attempt to reuse consumer tag 'c'"
    );
    let (mut rig, id) = filled(0);
    let mut exclusive = consume("q", "c", false);
    exclusive.exclusive = true;
    rig.method(id, 1, &exclusive);
    let other = rig.client();
    rig.method(other, 1, &consume("q", "d", false));
    assert_eq!(
        rig.trace(other),
        ["1 channel.close 403 ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use"]
    );
}

#[test]
fn a_slow_reader_gets_no_more_than_its_buffer_and_stops_nobody() {
    let (mut rig, slow) = filled(0);
    let fast = rig.client();
    rig.method(slow, 1, &consume("q", "slow", true));
    rig.method(fast, 1, &consume("q", "fast", true));
    rig.settle();
    for _ in 0..2_000 {
        rig.publish(fast, "q", &[7; 1000], false);
        rig.settle();
        rig.sent(fast);
    }
    let held = rig.shard.unsent_bytes(slow);
    assert!(held < 300 * 1024, "{held}");
    assert_eq!(rig.shard.status().ready, 0);
    let sent = rig.sent(slow).len();
    assert!(sent > 100);
}

#[test]
fn who_deletes_the_queue_it_consumes_has_its_answer_first() {
    let (mut rig, id) = filled(0);
    rig.method(id, 1, &consume("q", "c", false));
    rig.trace(id);
    rig.method(id, 1, &queue::Delete { queue: short("q"), ..queue::Delete::default() });
    assert_eq!(rig.trace(id), ["1 queue.delete-ok 0", "1 basic.cancel c"]);
}

#[test]
fn the_end_of_a_queue_is_told_to_its_consumers() {
    let (mut rig, id) = filled(2);
    let consumer = rig.client();
    rig.method(consumer, 1, &consume("q", "c", false));
    rig.trace(consumer);
    rig.method(id, 1, &queue::Delete { queue: short("q"), ..queue::Delete::default() });
    assert_eq!(rig.trace(id), ["1 queue.delete-ok 0"]);
    assert_eq!(rig.trace(consumer), ["1 basic.cancel c"]);
    // What it holds of the deleted queue can still be settled, to no effect.
    rig.method(consumer, 1, &basic::Ack { delivery_tag: 1, multiple: false });
    rig.method(consumer, 1, &basic::Nack { delivery_tag: 2, multiple: false, requeue: true });
    assert_eq!(rig.trace(consumer), [""; 0]);
    assert_eq!(rig.shard.status().memory_bytes, 0);
    rig.method(consumer, 0, &connection::Close::default());
    assert_eq!(rig.trace(consumer), ["0 connection.close-ok"]);
}

#[test]
fn a_consumer_that_takes_its_queue_for_a_stream_loses_its_channel_only() {
    let mut rig = Rig::new();
    let id = rig.client();
    rig.method(id, 1, &declare("q", false));
    rig.trace(id);
    let arguments = TableBuf::new().with("x-stream-offset", Value::LongStr(b"first"));
    let from_the_first =
        basic::Consume { arguments: arguments.as_table(), ..consume("q", "c", false) };
    rig.method(id, 1, &from_the_first);
    assert_eq!(
        rig.trace(id),
        [
            "1 channel.close 406 PRECONDITION_FAILED - invalid arg 'x-stream-offset' for queue 'q' in vhost '/' of \
          queue type rabbit_classic_queue"
        ]
    );
}

#[test]
fn who_comes_when_all_had_their_turn_does_not_take_the_first_ones() {
    // With and without priorities, which have turns of their own.
    for low in [None, Some(-1)] {
        let mut rig = Rig::new();
        let id = rig.client();
        rig.method(id, 1, &declare("q", false));
        if let Some(low) = low {
            let arguments = TableBuf::new().with("x-priority", Value::I32(low));
            let last =
                basic::Consume { arguments: arguments.as_table(), ..consume("q", "low", true) };
            rig.method(id, 1, &last);
        }
        rig.method(id, 1, &consume("q", "a", true));
        rig.publish(id, "q", b"1", false);
        rig.trace(id);
        rig.method(id, 1, &consume("q", "b", true));
        rig.trace(id);
        let mut order = Vec::new();
        for _ in 0..3 {
            rig.publish(id, "q", b"2", false);
            order.extend(rig.trace(id));
        }
        let to = |line: &String| line.split(' ').nth(2).map(str::to_owned);
        let order: Vec<_> = order.iter().filter_map(to).collect();
        assert_eq!(order, ["a", "b", "a"], "{low:?}");
    }
}
