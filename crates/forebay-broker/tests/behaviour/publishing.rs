use forebay_broker::{Admission, Input, Notice, ShardConfig};
use forebay_wire::{
    ArrayBuf, Properties, RawProperties, TableBuf, Value, basic, confirm, exchange, queue, tx,
    write_body_frame, write_header_frame, write_method,
};

use crate::rig::{Rig, consume, declare, publish_bytes, short};

fn get(queue: &str) -> basic::Get<'_> {
    basic::Get { queue: short(queue), no_ack: true, ..basic::Get::default() }
}

#[test]
fn what_is_published_is_delivered_byte_for_byte_and_in_order() {
    let mut rig = Rig::new();
    let id = rig.client();
    rig.method(id, 1, &declare("q", false));
    rig.method(id, 1, &consume("q", "c", true));
    for body in ["one", "", "three"] {
        rig.publish(id, "q", body.as_bytes(), false);
    }
    assert_eq!(
        rig.trace(id)[2..],
        ["1 basic.deliver c 1 [one]", "1 basic.deliver c 2", "1 basic.deliver c 3 [three]"]
    );
}

#[test]
fn large_bodies_are_split_at_the_negotiated_frame_size() {
    let mut rig = Rig::new();
    let id = rig.client();
    rig.method(id, 1, &declare("q", false));
    let body = vec![b'x'; 300_000];
    rig.publish(id, "q", &body, false);
    rig.trace(id);
    rig.method(id, 1, &get("q"));
    let line = rig.trace(id).remove(0);
    let lengths: Vec<usize> = line.split(" [").skip(1).map(|part| part.len() - 1).collect();
    assert_eq!(lengths, [131_064, 131_064, 37_872]);
}

#[test]
fn confirms_are_merged_and_a_return_comes_before_its_ack() {
    let mut rig = Rig::new();
    let id = rig.client();
    rig.method(id, 1, &confirm::Select::default());
    rig.method(id, 1, &declare("q", false));
    rig.trace(id);
    for _ in 0..3 {
        rig.publish(id, "q", b"x", true);
    }
    assert_eq!(rig.trace(id), ["1 basic.ack 3 multiple"]);
    rig.publish_with(id, "", "nowhere", true, &Properties::default(), b"back");
    assert_eq!(rig.trace(id), ["1 basic.return 312 NO_ROUTE [back]", "1 basic.ack 4"]);
    rig.publish(id, "nowhere", b"x", false);
    assert_eq!(rig.trace(id), ["1 basic.ack 5"]);
}

#[test]
fn a_message_over_the_limit_closes_the_channel_and_only_it() {
    let config = ShardConfig { message_max_bytes: 10, ..ShardConfig::default() };
    let mut rig = Rig::with(config);
    let id = rig.client();
    rig.publish(id, "q", &[0; 11], false);
    assert_eq!(
        rig.trace(id),
        ["1 channel.close 406 PRECONDITION_FAILED - message size 11 is larger than configured \
          max size 10"]
    );
}

#[test]
fn a_limit_at_the_ceiling_is_nobodys_configuration() {
    let config = ShardConfig { message_max_bytes: 512 << 20, ..ShardConfig::default() };
    let mut rig = Rig::with(config);
    let id = rig.client();
    let mut bytes = publish_bytes("", "q", false, &Properties::default(), b"x");
    // The header's body size, 8 bytes after class and weight: nobody has to send that much to be told.
    let at = bytes.windows(4).position(|four| four == [0, 60, 0, 0]).expect("a header frame") + 4;
    bytes[at..at + 8].copy_from_slice(&((512u64 << 20) + 1).to_be_bytes());
    rig.bytes(id, &bytes);
    assert_eq!(
        rig.trace(id),
        ["1 channel.close 406 PRECONDITION_FAILED - message size 536870913 is larger than max \
          size 536870912"]
    );
}

#[test]
fn a_body_longer_than_its_header_says_closes_the_connection() {
    let mut rig = Rig::new();
    let id = rig.client();
    rig.method(id, 1, &declare("q", false));
    rig.trace(id);
    let mut bytes = publish_bytes("", "q", false, &Properties::default(), b"body");
    let at = bytes.windows(4).position(|four| four == [0, 60, 0, 0]).expect("a header frame") + 4;
    bytes[at..at + 8].copy_from_slice(&3u64.to_be_bytes());
    rig.bytes(id, &bytes);
    assert_eq!(
        rig.trace(id),
        ["0 connection.close 505 UNEXPECTED_FRAME - the content body is longer than its header \
          announced"]
    );
}

#[test]
fn cc_and_bcc_add_keys_and_bcc_stays_secret() {
    let mut rig = Rig::new();
    let id = rig.client();
    for name in ["a", "b", "c"] {
        rig.method(id, 1, &declare(name, false));
    }
    let cc = ArrayBuf::new().with(Value::LongStr(b"b"));
    let bcc = ArrayBuf::new().with(Value::LongStr(b"c")).with(Value::LongStr(b"a"));
    let headers = TableBuf::new()
        .with("CC", Value::Array(cc.as_array()))
        .with("BCC", Value::Array(bcc.as_array()));
    let properties = Properties { headers: Some(headers.as_table()), ..Properties::default() };
    rig.publish_with(id, "", "a", false, &properties, b"x");
    rig.trace(id);
    for name in ["a", "b", "c"] {
        rig.method(id, 1, &get(name));
    }
    rig.settle();
    let out = rig.shard.outgoing(id).to_vec();
    assert!(out.windows(2).any(|pair| pair == b"CC"));
    assert!(!out.windows(3).any(|three| three == b"BCC"));
    assert_eq!(rig.trace(id).len(), 3);
}

#[test]
fn a_wrong_expiration_or_user_is_refused() {
    let cases = [
        (
            Properties { expiration: Some(short("1x")), ..Properties::default() },
            "invalid expiration",
        ),
        (
            Properties { expiration: Some(short("-1")), ..Properties::default() },
            "invalid expiration",
        ),
        (
            Properties { user_id: Some(short("bob")), ..Properties::default() },
            "user_id property set",
        ),
    ];
    for (properties, text) in cases {
        let mut rig = Rig::new();
        let id = rig.client();
        rig.publish_with(id, "", "q", false, &properties, b"x");
        let trace = rig.trace(id);
        assert!(trace[0].contains("406") && trace[0].contains(text), "{trace:?}");
    }
}

#[test]
fn a_transaction_is_all_or_nothing() {
    let mut rig = Rig::new();
    let id = rig.client();
    rig.method(id, 1, &declare("q", false));
    rig.publish(id, "q", b"before", false);
    rig.trace(id);
    rig.method(id, 1, &tx::Select::default());
    let take = basic::Get { queue: short("q"), ..basic::Get::default() };
    rig.method(id, 1, &take);
    rig.publish(id, "q", b"within", false);
    rig.method(id, 1, &basic::Ack { delivery_tag: 1, multiple: false });
    rig.method(id, 1, &tx::Rollback::default());
    assert_eq!(
        rig.trace(id),
        ["1 tx.select-ok", "1 basic.get-ok 1 left=0 [before]", "1 tx.rollback-ok"]
    );
    // The ack was undone and can be given again.
    rig.publish(id, "q", b"again", false);
    rig.method(id, 1, &basic::Ack { delivery_tag: 1, multiple: false });
    rig.method(id, 1, &tx::Commit::default());
    rig.method(id, 1, &get("q"));
    assert_eq!(rig.trace(id), ["1 tx.commit-ok", "1 basic.get-ok 2 left=0 [again]"]);
    rig.method(id, 1, &confirm::Select::default());
    assert!(rig.trace(id)[0].contains("cannot switch from tx to confirm mode"));
}

#[test]
fn exchanges_route_and_a_remembered_route_follows_every_change() {
    let mut rig = Rig::new();
    let id = rig.client();
    let declare_exchange = exchange::Declare {
        exchange: short("x"),
        type_name: short("topic"),
        ..exchange::Declare::default()
    };
    rig.method(id, 1, &declare_exchange);
    for name in ["a", "b"] {
        rig.method(id, 1, &declare(name, false));
    }
    let bind = |name| queue::Bind {
        queue: short(name),
        exchange: short("x"),
        routing_key: short("k.#"),
        ..queue::Bind::default()
    };
    rig.method(id, 1, &bind("a"));
    let none = Properties::default();
    rig.publish_with(id, "x", "k.1", false, &none, b"1");
    rig.publish_with(id, "x", "k.1", false, &none, b"2");
    rig.method(id, 1, &bind("b"));
    rig.publish_with(id, "x", "k.1", false, &none, b"3");
    let unbind = queue::Unbind {
        queue: short("a"),
        exchange: short("x"),
        routing_key: short("k.#"),
        ..queue::Unbind::default()
    };
    rig.method(id, 1, &unbind);
    rig.publish_with(id, "x", "k.1", false, &none, b"4");
    rig.trace(id);
    for (name, count) in [("a", 3), ("b", 2)] {
        let mut passive = declare(name, false);
        passive.passive = true;
        rig.method(id, 1, &passive);
        assert_eq!(rig.trace(id), [format!("1 queue.declare-ok {name} {count} 0")]);
    }
}

#[test]
fn extra_keys_are_seen_behind_a_remembered_route_and_not_remembered_themselves() {
    let mut rig = Rig::new();
    let id = rig.client();
    for name in ["a", "b"] {
        rig.method(id, 1, &declare(name, false));
    }
    let to_b = ArrayBuf::new().with(Value::LongStr(b"b"));
    let plain = TableBuf::new().with("mine", Value::Bool(true));
    let extra = ["CC", "BCC"].map(|name| TableBuf::new().with(name, Value::Array(to_b.as_array())));
    let none = TableBuf::new();
    for headers in [&none, &plain, &extra[0], &plain, &extra[1], &none] {
        let properties = Properties { headers: Some(headers.as_table()), ..Properties::default() };
        rig.publish_with(id, "", "a", false, &properties, b"");
    }
    rig.trace(id);
    for (name, count) in [("a", 6), ("b", 2)] {
        let passive = queue::Declare { passive: true, ..declare(name, false) };
        rig.method(id, 1, &passive);
        assert_eq!(rig.trace(id), [format!("1 queue.declare-ok {name} {count} 0")]);
    }
}

#[test]
fn replies_go_straight_to_the_requester() {
    let mut rig = Rig::new();
    let (requester, server) = (rig.client(), rig.client());
    rig.method(server, 1, &declare("rpc", false));
    rig.method(server, 1, &consume("rpc", "s", true));
    rig.method(requester, 1, &consume("amq.rabbitmq.reply-to", "r", true));
    rig.trace(server);
    let ask =
        Properties { reply_to: Some(short("amq.rabbitmq.reply-to")), ..Properties::default() };
    rig.publish_with(requester, "", "rpc", false, &ask, b"question");
    rig.settle();
    let out = String::from_utf8_lossy(rig.shard.outgoing(server)).into_owned();
    let at = out.find("amq.rabbitmq.reply-to.").expect("rewritten");
    let name: String = out[at..].chars().take("amq.rabbitmq.reply-to.".len() + 22).collect();
    rig.publish(server, &name, b"answer", false);
    assert_eq!(rig.trace(requester), ["1 basic.consume-ok", "1 basic.deliver r 1 [answer]"]);
    rig.disconnect(requester);
    rig.trace(server);
    rig.publish_with(server, "", &name, true, &Properties::default(), b"late");
    assert_eq!(rig.trace(server), ["1 basic.return 312 NO_ROUTE [late]"]);
}

#[test]
fn memory_comes_back_when_messages_go() {
    let mut rig = Rig::new();
    let id = rig.client();
    rig.method(id, 1, &declare("q", false));
    for _ in 0..100 {
        rig.publish(id, "q", &[7; 1000], false);
    }
    rig.publish(id, "nowhere", &[7; 1000], false);
    rig.settle();
    assert!(rig.shard.status().memory_bytes > 100_000);
    rig.method(id, 1, &queue::Purge { queue: short("q"), ..queue::Purge::default() });
    rig.settle();
    assert_eq!(rig.shard.status().memory_bytes, 0);
}

#[test]
fn at_the_end_of_the_budget_publishers_wait_and_consumers_do_not() {
    let mut rig = Rig::small();
    let (publisher, consumer) = (rig.client(), rig.client());
    rig.method(publisher, 1, &declare("q", false));
    rig.fill(publisher, "q");
    rig.settle();
    assert_eq!(rig.shard.admission(publisher), Admission::Closed);
    assert_eq!(rig.shard.admission(consumer), Admission::Open);
    rig.trace(publisher);
    rig.pass(1_500);
    assert_eq!(rig.sent(publisher), ["0 connection.blocked low on memory"]);
    assert_eq!(rig.shard.take_notice(), Some(Notice::Alarm("low on memory")));
    assert_eq!(rig.sent(consumer), [""; 0]);
    rig.method(consumer, 1, &consume("q", "c", true));
    rig.trace(consumer);
    rig.trace(consumer);
    assert_eq!(rig.shard.admission(publisher), Admission::Open);
    rig.pass(1_500);
    assert_eq!(rig.sent(publisher), ["0 connection.unblocked"]);
    assert_eq!(rig.shard.take_notice(), Some(Notice::AlarmOver));
}

#[test]
fn while_memory_is_short_one_body_at_a_time_comes_to_its_end() {
    const BODY_BYTES: usize = 4_000;
    let mut rig = Rig::small();
    let other = rig.client();
    rig.method(other, 1, &declare("q", false));
    let mut begun = Vec::new();
    write_method(&mut begun, 1, &basic::Publish { routing_key: short("q"), ..Default::default() });
    write_header_frame(&mut begun, 1, 60, BODY_BYTES as u64, RawProperties::default());
    write_body_frame(&mut begun, 1, &[7; BODY_BYTES / 2]);
    let mut end = Vec::new();
    write_body_frame(&mut end, 1, &[8; BODY_BYTES / 2]);
    let mut halfway = Vec::new();
    while rig.shard.takes_publishes() {
        let id = rig.client();
        rig.bytes(id, &begun);
        halfway.push(id);
    }
    let (first, second) = (halfway[0], halfway[1]);
    assert_eq!(rig.shard.admission(first), Admission::Open);
    assert_eq!(rig.shard.admission(second), Admission::Closed, "one at a time");
    rig.bytes(first, &end);
    assert_eq!(rig.shard.admission(second), Admission::Open);
    assert_eq!(rig.shard.admission(halfway[2]), Admission::Closed);
    // Whoever has nothing to say leaves it to another.
    rig.now_us += 60_000;
    rig.step(Input::Tick);
    assert_eq!(rig.shard.admission(halfway[2]), Admission::Open);
    // When what is complete takes a part of the memory that has to go first.
    for id in halfway.iter().skip(2).take(halfway.len() / 2) {
        rig.bytes(*id, &end);
    }
    let last = halfway[halfway.len() - 1];
    rig.now_us += 60_000;
    rig.step(Input::Tick);
    assert!(!rig.shard.takes_publishes());
    assert_eq!(rig.shard.admission(last), Admission::Closed);
    for id in halfway.into_iter().skip(1) {
        rig.disconnect(id);
    }
    rig.method(other, 1, &queue::Purge { queue: short("q"), ..queue::Purge::default() });
    rig.settle();
    assert_eq!(rig.shard.status().memory_bytes, 0, "what was half there is all accounted for");
}

#[test]
fn a_publish_without_room_is_held_and_what_comes_before_it_is_served() {
    let mut rig = Rig::small();
    let id = rig.client();
    rig.method(id, 1, &declare("q", false));
    rig.fill(id, "q");
    rig.trace(id);
    let full_bytes = rig.shard.status().memory_bytes;
    // Ten publishes in one piece, and something else before and behind them.
    let mut bytes = Vec::new();
    write_method(&mut bytes, 1, &declare("before", false));
    let first = bytes.len();
    for _ in 0..10 {
        bytes.extend(publish_bytes("", "q", false, &Properties::default(), &[7; 1000]));
    }
    write_method(&mut bytes, 1, &declare("behind", false));
    rig.bytes(id, &bytes);
    assert_eq!(rig.sent(id), ["1 queue.declare-ok before 0 0"]);
    assert_eq!(rig.shard.held_bytes(id), bytes.len() - first);
    assert_eq!(rig.shard.admission(id), Admission::Closed);
    assert_eq!(rig.shard.status().memory_bytes, full_bytes);
    let consumer = rig.client();
    rig.method(consumer, 1, &queue::Purge { queue: short("q"), ..queue::Purge::default() });
    assert_eq!(rig.shard.admission(id), Admission::Resume);
    assert_eq!(rig.trace(id), ["1 queue.declare-ok behind 0 0"]);
    assert_eq!(rig.shard.held_bytes(id), 0);
    assert_eq!(rig.shard.status().ready, 10);
}

#[test]
fn acknowledgements_behind_a_held_publish_arrive_a_few_at_a_time() {
    let mut rig = Rig::small();
    let id = rig.client();
    rig.method(id, 1, &declare("q", false));
    rig.method(id, 1, &consume("q", "c", false));
    rig.fill(id, "q");
    while rig.shard.status().ready > 0 {
        rig.trace(id);
    }
    // All the memory is with this very connection, and its acknowledgement comes last.
    let mut bytes = Vec::new();
    for _ in 0..20 {
        bytes.extend(publish_bytes("", "q", false, &Properties::default(), &[7; 1000]));
    }
    write_method(&mut bytes, 1, &basic::Ack { delivery_tag: 0, multiple: true });
    rig.bytes(id, &bytes);
    assert_eq!(rig.shard.held_bytes(id), bytes.len());
    rig.pass(100);
    assert_eq!(rig.shard.held_bytes(id), 0);
    let status = rig.shard.status();
    assert!(status.unacked + status.ready <= 20, "{status:?}");
}
