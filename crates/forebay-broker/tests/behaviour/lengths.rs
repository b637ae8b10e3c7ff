//! How much may wait in a queue, in messages and in bytes, and what becomes of more.

use forebay_broker::{ConnectionId, Input};
use forebay_wire::{Properties, TableBuf, Value, basic, confirm, queue, tx};

use crate::expiring::{bodies, declare_with, to_dead};
use crate::rig::{Rig, consume, declare, publish_bytes, short};
use crate::scene::Scene;

#[test]
fn of_too_many_the_oldest_go() {
    let mut rig = Rig::new();
    let id = rig.client();
    declare_with(&mut rig, id, "dead", false, &TableBuf::new());
    let arguments = to_dead(TableBuf::new().with("x-max-length", Value::I32(2)));
    declare_with(&mut rig, id, "q", false, &arguments);
    for body in ["1", "2", "3", "4"] {
        rig.publish(id, "q", body.as_bytes(), false);
    }
    rig.trace(id);
    assert_eq!(rig.shard.status().counters.dropped, 2);
    let reader = rig.client();
    assert_eq!(bodies(&mut rig, reader, "dead"), ["1", "2"]);
    // What somebody holds does not count, until it comes back: then it is the oldest.
    rig.method(id, 1, &basic::Get { queue: short("q"), ..basic::Get::default() });
    rig.publish(id, "q", b"5", false);
    rig.trace(id);
    assert_eq!(rig.shard.status().ready, 2);
    rig.method(id, 1, &basic::Nack { delivery_tag: 1, multiple: false, requeue: true });
    rig.trace(id);
    assert_eq!(bodies(&mut rig, reader, "q"), ["4", "5"]);
    assert_eq!(bodies(&mut rig, reader, "dead"), ["3"]);
}

#[test]
fn of_too_many_bytes_the_oldest_go() {
    let mut rig = Rig::new();
    let id = rig.client();
    declare_with(&mut rig, id, "dead", false, &TableBuf::new());
    let arguments = to_dead(TableBuf::new().with("x-max-length-bytes", Value::I32(10)));
    declare_with(&mut rig, id, "q", false, &arguments);
    for body in ["one", "four", "fifteen", "", "six"] {
        rig.publish(id, "q", body.as_bytes(), false);
    }
    rig.trace(id);
    let reader = rig.client();
    assert_eq!(bodies(&mut rig, reader, "dead"), ["one", "four"]);
    assert_eq!(bodies(&mut rig, reader, "q"), ["fifteen", "", "six"]);
    rig.publish(id, "q", b"longer than all of it", false);
    rig.trace(id);
    assert_eq!(bodies(&mut rig, reader, "dead"), ["longer than all of it"]);
    // After a purge nothing counts.
    rig.publish(id, "q", b"1234567890", false);
    rig.method(id, 1, &queue::Purge { queue: short("q"), ..queue::Purge::default() });
    rig.publish(id, "q", b"0987654321", false);
    rig.trace(id);
    assert_eq!(bodies(&mut rig, reader, "q"), ["0987654321"]);
}

/// Behind one that would have stayed for ever, or for longer.
#[test]
fn what_is_next_when_too_many_have_gone_expires_in_its_time() {
    for first in [None, Some("60000")] {
        for priorities in [0, 3] {
            let mut rig = Rig::new();
            let id = rig.client();
            declare_with(&mut rig, id, "dead", false, &TableBuf::new());
            let arguments = TableBuf::new()
                .with("x-max-length", Value::I32(2))
                .with("x-max-priority", Value::I32(priorities));
            declare_with(&mut rig, id, "q", false, &to_dead(arguments));
            for (body, expiration) in [("goes", first), ("expires", Some("1000")), ("stays", None)]
            {
                let priority = Some(if body == "stays" { 0 } else { 3 });
                let expiration = expiration.map(short);
                let properties = Properties { expiration, priority, ..Properties::default() };
                rig.publish_with(id, "", "q", false, &properties, body.as_bytes());
                rig.trace(id);
            }
            rig.pass(1_100);
            assert_eq!(bodies(&mut rig, id, "dead"), ["goes", "expires"]);
            assert_eq!(bodies(&mut rig, id, "q"), ["stays"]);
        }
    }
}

/// Thousands of small messages come in one turn.
#[test]
fn a_queue_does_not_become_longer_and_longer_however_many_come() {
    let mut rig = Rig::new();
    let id = rig.client();
    let arguments = TableBuf::new().with("x-max-length", Value::I32(10));
    declare_with(&mut rig, id, "q", false, &arguments);
    rig.trace(id);
    let one = publish_bytes("", "q", false, &Properties::default(), b"x");
    for _ in 0..60 {
        rig.bytes(id, &one.repeat(1_000));
        rig.step(Input::Turn { busy: true });
    }
    let ready = rig.shard.status().ready;
    assert!(ready < 10_000, "{ready} of 60000 wait");
    rig.pass(100);
    assert_eq!(rig.shard.status().ready, 10);
}

/// Their dead letters need room in the log, and publishers come before each turn with more than there is.
#[test]
fn what_is_too_many_goes_though_publishers_fill_every_batch() {
    let mut scene = Scene::patient(64 << 20);
    let id = scene.client();
    scene.rig.method(id, 1, &declare("dead", true));
    let arguments = to_dead(TableBuf::new().with("x-max-length", Value::I32(10)));
    declare_with(&mut scene.rig, id, "long", true, &arguments);
    scene.answers(id);
    let published = scene.overfill(id, "long", |_| vec![7; 1_000]);
    let status = scene.rig.shard.status();
    let waiting = status.queues.iter().find(|queue| queue.name == "long").map(|queue| queue.ready);
    assert!(
        published > 300 && waiting.is_some_and(|waiting| waiting < 100),
        "{waiting:?} of {published}"
    );
}

/// The bodies of a backlog on disk count when they are read.
#[test]
fn a_limit_in_bytes_holds_over_restarts_and_for_what_lies_on_disk() {
    let arguments = to_dead(TableBuf::new().with("x-max-length-bytes", Value::I32(3_000_000)));
    let mut scene = Scene::small(4 << 20);
    let id = scene.rig.client();
    scene.rig.method(id, 1, &confirm::Select::default());
    declare_with(&mut scene.rig, id, "q", true, &arguments);
    scene.answers(id);
    scene.fill(id, 0..6_000);
    let ready = |scene: &Scene| scene.rig.shard.status().ready;
    let before = ready(&scene);
    let cold = scene.rig.shard.status().queues[0].cold;
    assert!((2_500..=3_200).contains(&before) && cold > 0, "{before} ready, {cold} on disk");
    let mut scene = scene.kill();
    scene.work().unwrap();
    let counted = ready(&scene);
    let id = scene.rig.client();
    scene.rig.method(id, 1, &confirm::Select::default());
    scene.answers(id);
    scene.fill(id, 6_000..12_000);
    let after = ready(&scene);
    assert!(after >= counted.min(2_500) && after <= before + counted, "{after} ready");
    // All that was in the queue before has gone, or is read and counted.
    let mut got = 0;
    while ready(&scene) > 0 {
        let get = basic::Get { queue: short("q"), no_ack: true, ..basic::Get::default() };
        scene.rig.method(id, 1, &get);
        scene.answers(id);
        got += 1;
    }
    assert!(got <= after);
    scene.fill(id, 12_000..18_000);
    assert_eq!(ready(&scene), before, "the count is right again");
}

/// A hundred come at once, and a consumer takes them all.
#[test]
fn what_consumers_take_is_not_too_many() {
    let mut rig = Rig::new();
    let id = rig.client();
    let arguments = TableBuf::new().with("x-max-length", Value::I32(0));
    declare_with(&mut rig, id, "q", false, &arguments);
    rig.publish(id, "q", b"nobody waits", false);
    rig.trace(id);
    assert_eq!(rig.shard.status().ready, 0);
    rig.method(id, 1, &consume("q", "c", true));
    rig.trace(id);
    for _ in 0..100 {
        rig.publish(id, "q", b"somebody waits", false);
    }
    let lines = rig.trace(id);
    assert_eq!(lines.iter().filter(|line| line.contains("[somebody waits]")).count(), 100);
}

#[test]
fn a_full_queue_refuses_what_its_consumers_cannot_take() {
    let mut rig = Rig::new();
    let id = rig.client();
    let arguments = TableBuf::new()
        .with("x-max-length", Value::I32(2))
        .with("x-overflow", Value::LongStr(b"reject-publish"));
    declare_with(&mut rig, id, "q", false, &arguments);
    rig.method(id, 1, &confirm::Select::default());
    rig.trace(id);
    for body in ["1", "2", "3", "4"] {
        rig.publish(id, "q", body.as_bytes(), false);
    }
    let answers = ["1 basic.ack 2 multiple", "1 basic.nack 3", "1 basic.nack 4"];
    assert_eq!(rig.trace(id), answers);
    assert_eq!(rig.shard.status().counters.refused, 2);
    let reader = rig.client();
    assert_eq!(bodies(&mut rig, reader, "q"), ["1", "2"]);
    // A hundred at once, and a consumer takes them all.
    rig.method(reader, 1, &consume("q", "c", true));
    rig.trace(reader);
    for _ in 0..100 {
        rig.publish(id, "q", b"x", false);
    }
    assert_eq!(rig.trace(id), ["1 basic.ack 104 multiple"]);
    assert_eq!(rig.trace(reader).len(), 100);
}

/// One nack of a hundred, and the queue of their letters has room for five.
#[test]
fn letters_that_come_at_once_fill_a_queue_as_far_as_its_consumers_leave_room() {
    for (no_ack, taken, left) in [(false, 1, 5), (true, 100, 0)] {
        let mut rig = Rig::new();
        let id = rig.client();
        let arguments = TableBuf::new()
            .with("x-max-length", Value::I32(5))
            .with("x-overflow", Value::LongStr(b"reject-publish"));
        declare_with(&mut rig, id, "dead", false, &arguments);
        declare_with(&mut rig, id, "q", false, &to_dead(TableBuf::new()));
        rig.method(id, 1, &consume("q", "c", false));
        for _ in 0..100 {
            rig.publish(id, "q", b"x", false);
        }
        rig.trace(id);
        let reader = rig.client();
        rig.method(reader, 1, &basic::Qos { prefetch_count: 1, ..basic::Qos::default() });
        rig.method(reader, 1, &consume("dead", "d", no_ack));
        rig.trace(reader);
        rig.method(id, 1, &basic::Nack { delivery_tag: 0, multiple: true, requeue: false });
        let lines = rig.trace(reader);
        let came = lines.iter().filter(|line| line.contains("basic.deliver d")).count();
        assert_eq!((came, rig.shard.status().ready), (taken, left));
    }
}

/// It is delivered while the others are being rejected.
#[test]
fn who_rejects_all_and_has_their_letters_on_the_same_channel_keeps_these() {
    let mut rig = Rig::new();
    let id = rig.client();
    let arguments = TableBuf::new()
        .with("x-max-length", Value::I32(1))
        .with("x-overflow", Value::LongStr(b"reject-publish"));
    declare_with(&mut rig, id, "dead", false, &arguments);
    declare_with(&mut rig, id, "q", false, &to_dead(TableBuf::new()));
    rig.method(id, 1, &consume("q", "c", false));
    rig.method(id, 1, &consume("dead", "d", false));
    for _ in 0..100 {
        rig.publish(id, "q", b"x", false);
    }
    rig.trace(id);
    rig.method(id, 1, &basic::Nack { delivery_tag: 0, multiple: true, requeue: false });
    let lines = rig.trace(id);
    assert_eq!(lines.iter().filter(|line| line.contains("basic.deliver d")).count(), 100);
    assert_eq!((rig.shard.status().unacked, rig.shard.status().ready), (100, 0));
}

#[test]
fn what_is_refused_may_go_to_the_dead_letters() {
    let mut rig = Rig::new();
    let id = rig.client();
    declare_with(&mut rig, id, "dead", false, &TableBuf::new());
    let arguments = TableBuf::new()
        .with("x-max-length-bytes", Value::I32(4))
        .with("x-overflow", Value::LongStr(b"reject-publish-dlx"));
    declare_with(&mut rig, id, "q", false, &to_dead(arguments));
    rig.method(id, 1, &confirm::Select::default());
    rig.trace(id);
    for body in ["one", "two", "3", "four"] {
        rig.publish(id, "q", body.as_bytes(), false);
    }
    let answers = ["1 basic.nack 2", "1 basic.nack 4", "1 basic.ack 1", "1 basic.ack 3"];
    let mut told = rig.trace(id);
    told.sort_by_key(|line| !line.contains("nack"));
    assert_eq!(told, answers);
    let reader = rig.client();
    assert_eq!(bodies(&mut rig, reader, "q"), ["one", "3"]);
    assert_eq!(bodies(&mut rig, reader, "dead"), ["two", "four"]);
    assert_eq!(rig.shard.status().counters.dead_lettered, 2);
}

/// The copy of another queue is there all the same, as with RabbitMQ.
#[test]
fn one_full_queue_of_two_is_a_nack() {
    let mut rig = Rig::new();
    let id = rig.client();
    let arguments = TableBuf::new()
        .with("x-max-length", Value::I32(0))
        .with("x-overflow", Value::LongStr(b"reject-publish"));
    declare_with(&mut rig, id, "full", false, &arguments);
    declare_with(&mut rig, id, "other", false, &TableBuf::new());
    for name in ["full", "other"] {
        let exchange = short("amq.fanout");
        let bind = queue::Bind { queue: short(name), exchange, ..queue::Bind::default() };
        rig.method(id, 1, &bind);
    }
    rig.method(id, 1, &confirm::Select::default());
    rig.trace(id);
    rig.publish_with(id, "amq.fanout", "", false, &Properties::default(), b"x");
    assert_eq!(rig.trace(id), ["1 basic.nack 1"]);
    let reader = rig.client();
    assert_eq!(bodies(&mut rig, reader, "other"), ["x"]);
}

/// What a transaction was refused is no news for who publishes next, be it a reply, which goes to no queue.
#[test]
fn a_refusal_is_told_to_nobody_else() {
    let mut rig = Rig::new();
    let (id, requester) = (rig.client(), rig.client());
    let arguments = TableBuf::new()
        .with("x-max-length", Value::I32(0))
        .with("x-overflow", Value::LongStr(b"reject-publish"));
    declare_with(&mut rig, id, "full", false, &arguments);
    declare_with(&mut rig, id, "asked", false, &TableBuf::new());
    rig.method(requester, 1, &consume("amq.rabbitmq.reply-to", "r", true));
    let reply_to = Some(short("amq.rabbitmq.reply-to"));
    let question = Properties { reply_to, ..Properties::default() };
    rig.publish_with(requester, "", "asked", false, &question, b"?");
    rig.method(id, 1, &tx::Select::default());
    rig.publish(id, "full", b"x", false);
    rig.method(id, 1, &tx::Commit::default());
    let answerer = rig.client();
    rig.method(answerer, 1, &confirm::Select::default());
    rig.trace(answerer);
    rig.publish(answerer, "amq.rabbitmq.reply-to.of-nobody", b"!", false);
    assert_eq!(rig.trace(answerer), ["1 basic.ack 1"]);
}

/// Each is too long with one message, and hands it to the next: no matter how many there are.
#[test]
fn a_letter_that_is_too_many_everywhere_goes_through_all() {
    let mut rig = Rig::new();
    let id = rig.client();
    let name = |number: u32| format!("q{number}");
    for number in 0..2_000 {
        let to = name(number + 1);
        let arguments = TableBuf::new()
            .with("x-max-length", Value::I32(0))
            .with("x-dead-letter-exchange", Value::LongStr(b""))
            .with("x-dead-letter-routing-key", Value::LongStr(to.as_bytes()));
        declare_with(&mut rig, id, &name(number), false, &arguments);
    }
    declare_with(&mut rig, id, &name(2_000), false, &TableBuf::new());
    rig.publish(id, &name(1_900), b"x", false);
    rig.trace(id);
    assert_eq!(bodies(&mut rig, id, &name(2_000)), ["x"]);
}

/// Its letters would be messages that cannot be read.
#[test]
fn letters_to_an_exchange_whose_name_none_can_have_are_dropped() {
    let mut rig = Rig::new();
    let id = rig.client();
    let name = [b"victim\x10\x00\x02".as_slice(), &[b'x'; 247]].concat();
    declare_with(&mut rig, id, "victim", true, &TableBuf::new());
    let arguments = TableBuf::new()
        .with("x-max-length", Value::I32(0))
        .with("x-dead-letter-exchange", Value::LongStr(&name));
    declare_with(&mut rig, id, "aaaaaa", false, &arguments);
    rig.publish(id, "aaaaaa", b"dies", true);
    rig.trace(id);
    let status = rig.shard.status();
    assert_eq!((status.ready, status.counters.dropped, status.counters.dead_lettered), (0, 1, 0));
}

/// A queue of one message that refuses more.
fn full(rig: &mut Rig, id: ConnectionId) {
    let arguments = TableBuf::new()
        .with("x-max-length", Value::I32(1))
        .with("x-overflow", Value::LongStr(b"reject-publish"));
    declare_with(rig, id, "full", false, &arguments);
    rig.publish(id, "full", b"the one", false);
    rig.trace(id);
}

/// As RabbitMQ says it.
#[test]
fn a_commit_of_what_is_refused_is_told_so() {
    let mut rig = Rig::new();
    let id = rig.client();
    full(&mut rig, id);
    rig.method(id, 1, &declare("q", false));
    rig.method(id, 1, &tx::Select::default());
    rig.trace(id);
    rig.publish(id, "full", b"one too many", false);
    rig.publish(id, "q", b"taken", false);
    rig.method(id, 1, &tx::Commit::default());
    let lines = rig.trace(id);
    assert_eq!(lines, ["1 channel.close 406 PRECONDITION_FAILED - partial tx completion"]);
    let status = rig.shard.status();
    assert_eq!((status.ready, status.counters.refused), (2, 1), "the rest is there");
}

/// In one piece with the publishes, before the broker has taken a turn.
#[test]
fn who_asks_at_once_sees_no_more_than_may_wait() {
    let arguments = TableBuf::new().with("x-max-length", Value::I32(1));
    let published = |rig: &mut Rig| {
        let id = rig.client();
        declare_with(rig, id, "q", false, &arguments);
        rig.trace(id);
        let none = forebay_wire::Properties::default();
        let bodies = [b"1", b"2", b"3"];
        let bytes = bodies.map(|body| publish_bytes("", "q", false, &none, body));
        (id, bytes.concat())
    };
    let get = basic::Get { queue: short("q"), no_ack: true, ..basic::Get::default() };
    let passive = forebay_wire::queue::Declare { passive: true, ..declare("q", false) };
    let mut seen = Vec::new();
    for asks in 0..3 {
        let mut rig = Rig::new();
        let (id, mut bytes) = published(&mut rig);
        match asks {
            0 => forebay_wire::write_method(&mut bytes, 1, &get),
            1 => forebay_wire::write_method(&mut bytes, 1, &passive),
            _ => forebay_wire::write_method(&mut bytes, 1, &consume("q", "c", true)),
        }
        rig.bytes(id, &bytes);
        seen.extend(rig.trace(id));
    }
    assert_eq!(
        seen,
        [
            "1 basic.get-ok 1 left=0 [3]",
            "1 queue.declare-ok q 1 0",
            "1 basic.consume-ok",
            "1 basic.deliver c 1 [3]"
        ]
    );
}
