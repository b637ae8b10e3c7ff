//! Messages and queues whose time is over, and dead letters.

use forebay_broker::access::{Password, Permissions, User};
use forebay_broker::{ConnectionId, Input, ShardConfig};
use forebay_wire::{Properties, TableBuf, Value, basic, exchange, queue, tx};

use crate::rig::{Rig, consume, declare, short};
use crate::scene::{Scene, range};

/// The queue `name` with these arguments.
pub fn declare_with(
    rig: &mut Rig,
    id: ConnectionId,
    name: &str,
    durable: bool,
    arguments: &TableBuf,
) {
    let mut declare = declare(name, durable);
    declare.arguments = arguments.as_table();
    rig.method(id, 1, &declare);
}

/// Is it there? A closed channel is opened again.
fn is_there(rig: &mut Rig, name: &str) -> bool {
    let id = rig.client();
    let passive = queue::Declare { passive: true, ..declare(name, false) };
    rig.method(id, 1, &passive);
    let there = rig.trace(id).iter().any(|line| line.contains("queue.declare-ok"));
    rig.disconnect(id);
    there
}

pub fn ttl(ms: i32) -> TableBuf {
    TableBuf::new().with("x-message-ttl", Value::I32(ms))
}

pub fn to_dead(arguments: TableBuf) -> TableBuf {
    arguments
        .with("x-dead-letter-exchange", Value::LongStr(b""))
        .with("x-dead-letter-routing-key", Value::LongStr(b"dead"))
}

/// The bodies in a queue, which are taken.
pub fn bodies(rig: &mut Rig, id: ConnectionId, name: &str) -> Vec<String> {
    let mut found = Vec::new();
    loop {
        let get = basic::Get { queue: short(name), no_ack: true, ..basic::Get::default() };
        rig.method(id, 1, &get);
        let lines = rig.trace(id);
        let Some(line) = lines.iter().find(|line| line.contains("basic.get-ok")) else {
            return found;
        };
        let body = line.rsplit_once('[').map_or("", |(_, body)| body.trim_end_matches(']'));
        found.push(body.to_owned());
    }
}

pub fn bind_to_fanout(rig: &mut Rig, id: ConnectionId, names: &[&str]) {
    for name in names {
        let (queue, exchange) = (short(name), short("amq.fanout"));
        rig.method(id, 1, &queue::Bind { queue, exchange, ..queue::Bind::default() });
    }
}

pub fn expiring(rig: &mut Rig, id: ConnectionId, queue: &str, expiration: &str, body: &str) {
    let expiration = Some(short(expiration));
    let properties = Properties { expiration, ..Properties::default() };
    rig.publish_with(id, "", queue, false, &properties, body.as_bytes());
}

/// Time passes for a broker with a disk.
fn pass(scene: &mut Scene, ms: u64) {
    scene.rig.now_us += ms * 1_000;
    scene.work().expect("the disk works");
}

#[test]
fn a_queue_that_nobody_uses_goes() {
    let mut rig = Rig::new();
    let id = rig.client();
    let arguments = TableBuf::new().with("x-expires", Value::I32(1_000));
    declare_with(&mut rig, id, "q", false, &arguments);
    rig.publish(id, "q", b"does not keep it", false);
    rig.pass(900);
    assert!(is_there(&mut rig, "q"), "and asking for it is a use");
    rig.pass(900);
    let get = basic::Get { queue: short("q"), no_ack: true, ..basic::Get::default() };
    rig.method(id, 1, &get);
    rig.pass(900);
    rig.method(id, 1, &consume("q", "c", true));
    rig.pass(5_000);
    rig.method(id, 1, &basic::Cancel { consumer_tag: short("c"), no_wait: false });
    rig.pass(900);
    declare_with(&mut rig, id, "q", false, &arguments);
    rig.pass(999);
    assert_eq!(rig.shard.status().queue_count, 1);
    rig.pass(2);
    assert_eq!(rig.shard.status().queue_count, 0);
    assert_eq!(rig.shard.status().counters.queues_expired, 1);
    assert!(!is_there(&mut rig, "q"));
}

#[test]
fn a_durable_queue_that_goes_is_gone_after_a_restart() {
    let mut scene = Scene::new();
    let id = scene.rig.client();
    let arguments = TableBuf::new().with("x-expires", Value::I32(10_000));
    declare_with(&mut scene.rig, id, "gone", true, &arguments);
    scene.work().unwrap();
    pass(&mut scene, 20_000);
    declare_with(&mut scene.rig, id, "young", true, &arguments);
    scene.work().unwrap();
    let mut scene = scene.kill();
    assert_eq!(scene.rig.shard.status().queue_count, 1);
    pass(&mut scene, 9_000);
    assert_eq!(scene.rig.shard.status().queue_count, 1, "its time began anew");
    pass(&mut scene, 2_000);
    assert_eq!(scene.rig.shard.status().queue_count, 0);
}

#[test]
fn messages_expire_in_their_queue_and_no_earlier() {
    let mut rig = Rig::new();
    let id = rig.client();
    declare_with(&mut rig, id, "q", false, &ttl(1_280));
    rig.publish(id, "q", b"old", false);
    rig.pass(1_000);
    rig.publish(id, "q", b"young", false);
    rig.pass(279);
    assert_eq!(rig.shard.status().ready, 2);
    rig.pass(11);
    assert_eq!(rig.shard.status().ready, 1, "a step later at most");
    assert_eq!(bodies(&mut rig, id, "q"), ["young"]);
    assert_eq!(rig.shard.status().counters.expired, 1);
}

#[test]
fn with_none_to_live_a_message_reaches_who_waits_and_nobody_else() {
    let mut rig = Rig::new();
    let id = rig.client();
    declare_with(&mut rig, id, "q", false, &ttl(0));
    declare_with(&mut rig, id, "plain", false, &TableBuf::new());
    rig.publish(id, "q", b"nobody waits", false);
    expiring(&mut rig, id, "plain", "0", "nobody waits");
    rig.pass(1);
    assert_eq!(rig.shard.status().ready, 0);
    rig.method(id, 1, &consume("q", "c", true));
    rig.method(id, 1, &consume("plain", "d", true));
    rig.trace(id);
    rig.publish(id, "q", b"somebody waits", false);
    expiring(&mut rig, id, "plain", "0", "somebody waits");
    let lines = rig.trace(id);
    assert_eq!(
        lines.iter().filter(|line| line.contains("[somebody waits]")).count(),
        2,
        "{lines:?}"
    );
}

/// It was delivered, and its time went on meanwhile.
/// More than a queue delivers at a time.
#[test]
fn with_none_to_live_a_burst_reaches_who_has_credit_for_it() {
    for expiration in [None, Some("0")] {
        let mut rig = Rig::new();
        let id = rig.client();
        let arguments = if expiration.is_none() { ttl(0) } else { TableBuf::new() };
        declare_with(&mut rig, id, "q", false, &arguments);
        rig.method(id, 1, &consume("q", "c", true));
        rig.trace(id);
        let properties = Properties { expiration: expiration.map(short), ..Properties::default() };
        let one = crate::rig::publish_bytes("", "q", false, &properties, b"x");
        rig.bytes(id, &one.repeat(300));
        let lines = rig.trace(id);
        let came = lines.iter().filter(|line| line.contains("basic.deliver")).count();
        assert_eq!((came, rig.shard.status().counters.expired), (300, 0));
    }
}

/// Those that were offered die over some ticks, and one that comes meanwhile is not one of them.
#[test]
fn what_comes_while_others_expire_is_offered_first() {
    let mut rig = Rig::new();
    let id = rig.client();
    declare_with(&mut rig, id, "q", false, &ttl(0));
    rig.method(id, 1, &basic::Qos { prefetch_count: 1, ..basic::Qos::default() });
    rig.method(id, 1, &consume("q", "c", false));
    rig.trace(id);
    let other = rig.client();
    rig.publish(other, "q", b"held", false);
    rig.trace(id);
    // So many that some are left when it comes.
    for _ in 0..900 {
        rig.publish(other, "q", b"too many", false);
    }
    rig.step(Input::Turn { busy: false });
    rig.step(Input::Tick);
    rig.method(id, 1, &basic::Ack { delivery_tag: 1, multiple: false });
    rig.publish(other, "q", b"wanted", false);
    rig.step(Input::Turn { busy: false });
    let lines = rig.trace(id);
    assert!(lines.iter().any(|line| line.contains("[wanted]")), "{lines:?}");
}

/// However long its body took to come.
#[test]
fn the_time_of_a_message_begins_when_it_is_complete() {
    let mut rig = Rig::new();
    let id = rig.client();
    declare_with(&mut rig, id, "q", false, &TableBuf::new());
    let properties = Properties { expiration: Some(short("1000")), ..Properties::default() };
    let bytes = crate::rig::publish_bytes("", "q", false, &properties, b"slow");
    let (head, body) = bytes.split_at(bytes.len() - 10);
    rig.bytes(id, head);
    rig.pass(5_000);
    rig.bytes(id, body);
    rig.pass(900);
    assert_eq!(rig.shard.status().ready, 1);
    // In a transaction it begins with the commit.
    rig.method(id, 1, &tx::Select::default());
    expiring(&mut rig, id, "q", "1000", "committed late");
    rig.pass(5_000);
    rig.method(id, 1, &tx::Commit::default());
    rig.pass(900);
    let reader = rig.client();
    assert_eq!(bodies(&mut rig, reader, "q"), ["committed late"]);
}

#[test]
fn a_message_that_comes_back_late_expires() {
    let mut rig = Rig::new();
    let id = rig.client();
    declare_with(&mut rig, id, "q", false, &ttl(1_000));
    rig.publish(id, "q", b"x", false);
    rig.method(id, 1, &basic::Get { queue: short("q"), ..basic::Get::default() });
    rig.pass(5_000);
    assert_eq!(rig.shard.status().unacked, 1, "who holds it, has it");
    rig.method(id, 1, &basic::Nack { delivery_tag: 1, multiple: false, requeue: true });
    rig.pass(1);
    assert_eq!((rig.shard.status().ready, rig.shard.status().unacked), (0, 0));
}

#[test]
fn the_smaller_of_two_times_holds_and_only_at_the_head() {
    let mut rig = Rig::new();
    let id = rig.client();
    declare_with(&mut rig, id, "dead", false, &TableBuf::new());
    declare_with(&mut rig, id, "q", false, &to_dead(ttl(1_000)));
    expiring(&mut rig, id, "q", "60000", "the queue's");
    expiring(&mut rig, id, "q", "10", "its own, behind it");
    rig.pass(500);
    assert_eq!(rig.shard.status().ready, 2);
    rig.pass(510);
    assert_eq!(bodies(&mut rig, id, "dead"), ["the queue's", "its own, behind it"]);
    expiring(&mut rig, id, "q", "10", "its own");
    rig.pass(11);
    assert_eq!(bodies(&mut rig, id, "dead"), ["its own"]);
}

#[test]
fn what_expired_behind_the_head_is_not_delivered() {
    let mut rig = Rig::new();
    let id = rig.client();
    declare_with(&mut rig, id, "q", false, &TableBuf::new());
    rig.publish(id, "q", b"first", false);
    expiring(&mut rig, id, "q", "100", "second");
    rig.publish(id, "q", b"third", false);
    rig.pass(200);
    assert_eq!(rig.shard.status().ready, 3);
    rig.method(id, 1, &consume("q", "c", true));
    let lines = rig.trace(id);
    let told = |body: &str| lines.iter().any(|line| line.contains(body));
    assert!(told("[first]") && told("[third]") && !told("[second]"), "{lines:?}");
}

/// They go some at a time, others have their turn in between, and what is behind them is delivered.
#[test]
fn many_that_expired_do_not_hold_up_everybody_else() {
    let mut rig = Rig::new();
    let id = rig.client();
    declare_with(&mut rig, id, "q", false, &TableBuf::new());
    rig.publish(id, "q", b"first", false);
    for _ in 0..1_000 {
        expiring(&mut rig, id, "q", "100", "gone");
    }
    rig.publish(id, "q", b"last", false);
    rig.pass(200);
    assert_eq!(rig.shard.status().ready, 1_002);
    rig.method(id, 1, &consume("q", "c", true));
    rig.step(Input::Turn { busy: false });
    let gone = rig.shard.status().counters.expired;
    assert!((1..1_000).contains(&gone), "{gone} in one turn");
    rig.pass(1);
    let lines = rig.trace(id);
    let delivered = |body: &str| lines.iter().filter(|line| line.contains(body)).count();
    assert_eq!(["[first]", "[gone]", "[last]"].map(delivered), [1, 0, 1]);
}

/// As many expire as come, however many: what has expired does not fill the memory.
#[test]
fn thousands_that_expire_in_a_turn_are_soon_gone() {
    let mut rig = Rig::new();
    let id = rig.client();
    declare_with(&mut rig, id, "q", false, &ttl(20));
    rig.trace(id);
    let one = crate::rig::publish_bytes("", "q", false, &Properties::default(), b"x");
    for _ in 0..100 {
        rig.now_us += 1_000;
        rig.step(Input::Tick);
        rig.bytes(id, &one.repeat(1_000));
        rig.step(Input::Turn { busy: true });
    }
    let ready = rig.shard.status().ready;
    assert!((20_000..30_000).contains(&ready), "{ready} of 100000 are there");
}

#[test]
fn a_rejected_message_goes_to_the_dead_letters() {
    let mut rig = Rig::new();
    let id = rig.client();
    let fanout = exchange::Declare {
        exchange: short("graves"),
        type_name: short("fanout"),
        ..exchange::Declare::default()
    };
    rig.method(id, 1, &fanout);
    for name in ["dead", "dead too"] {
        declare_with(&mut rig, id, name, false, &TableBuf::new());
        let bind =
            queue::Bind { queue: short(name), exchange: short("graves"), ..queue::Bind::default() };
        rig.method(id, 1, &bind);
    }
    let arguments = TableBuf::new().with("x-dead-letter-exchange", Value::LongStr(b"graves"));
    declare_with(&mut rig, id, "q", false, &arguments);
    for body in ["nacked", "rejected", "acked"] {
        rig.publish(id, "q", body.as_bytes(), false);
        rig.method(id, 1, &basic::Get { queue: short("q"), ..basic::Get::default() });
    }
    rig.method(id, 1, &basic::Nack { delivery_tag: 1, multiple: false, requeue: false });
    rig.method(id, 1, &basic::Reject { delivery_tag: 2, requeue: false });
    rig.method(id, 1, &basic::Ack { delivery_tag: 3, multiple: false });
    rig.trace(id);
    let reader = rig.client();
    assert_eq!(bodies(&mut rig, reader, "dead"), ["nacked", "rejected"]);
    assert_eq!(bodies(&mut rig, reader, "dead too"), ["nacked", "rejected"]);
    assert_eq!(rig.shard.status().counters.dead_lettered, 2);
    // Without an exchange they are gone, and nothing else happens.
    rig.method(
        id,
        1,
        &exchange::Delete { exchange: short("graves"), ..exchange::Delete::default() },
    );
    rig.publish(id, "q", b"nowhere", false);
    rig.method(id, 1, &basic::Get { queue: short("q"), ..basic::Get::default() });
    rig.method(id, 1, &basic::Reject { delivery_tag: 4, requeue: false });
    rig.trace(id);
    assert_eq!((rig.shard.status().ready, rig.shard.status().unacked), (0, 0));
    assert_eq!(rig.shard.status().memory_bytes, 0);
}

/// A retry queue: what is rejected waits in another queue, and comes back when its time there is over.
#[test]
fn what_goes_round_by_rejections_goes_on_and_by_itself_it_does_not() {
    let mut rig = Rig::new();
    let id = rig.client();
    let to = |name: &str, arguments: TableBuf| {
        arguments
            .with("x-dead-letter-exchange", Value::LongStr(b""))
            .with("x-dead-letter-routing-key", Value::LongStr(name.as_bytes()))
    };
    declare_with(&mut rig, id, "work", false, &to("wait", TableBuf::new()));
    declare_with(&mut rig, id, "wait", false, &to("work", ttl(100)));
    rig.publish(id, "work", b"job", false);
    for round in 1..=3 {
        let get = basic::Get { queue: short("work"), ..basic::Get::default() };
        rig.method(id, 1, &get);
        rig.method(id, 1, &basic::Reject { delivery_tag: round, requeue: false });
        rig.trace(id);
        assert_eq!(rig.shard.status().ready, 1, "it waits");
        rig.pass(110);
    }
    assert_eq!(bodies(&mut rig, id, "work"), ["job"]);
    // Two queues that only wait would have it for ever.
    declare_with(&mut rig, id, "round", false, &to("about", ttl(100)));
    declare_with(&mut rig, id, "about", false, &to("round", ttl(100)));
    rig.publish(id, "round", b"x", false);
    rig.pass(110);
    assert_eq!(rig.shard.status().ready, 1);
    rig.pass(110);
    assert_eq!(rig.shard.status().ready, 0);
}

/// Whatever is cut off in between: the message is in the one queue or in the other.
#[test]
fn a_dead_letter_is_in_one_queue_after_a_crash() {
    for rejected_is_synced in [false, true] {
        let mut scene = Scene::new();
        let id = scene.client();
        declare_with(&mut scene.rig, id, "dead", true, &TableBuf::new());
        declare_with(&mut scene.rig, id, "letters", true, &to_dead(TableBuf::new()));
        scene.work().unwrap();
        scene.rig.publish(id, "letters", b"x", true);
        scene.work().unwrap();
        let get = basic::Get { queue: short("letters"), ..basic::Get::default() };
        scene.rig.method(id, 1, &get);
        scene.rig.method(id, 1, &basic::Reject { delivery_tag: 1, requeue: false });
        if rejected_is_synced {
            scene.work().unwrap();
        }
        let mut scene = scene.lose_power(7);
        let id = scene.rig.client();
        let found = ["letters", "dead"].map(|name| bodies(&mut scene.rig, id, name).len());
        assert_eq!(found, if rejected_is_synced { [0, 1] } else { [1, 0] });
    }
}

/// Nobody consumes, and most of it is on disk.
/// Those that may expire are all on disk, and nothing in memory says so.
#[test]
fn what_lies_on_disk_with_a_time_of_its_own_expires_after_a_restart() {
    let mut scene = Scene::small(4 << 20);
    let id = scene.client();
    for number in range(0..6_000) {
        let body = crate::scene::body(number);
        let expiration = (number < 3_000).then(|| short("600000"));
        let properties = Properties { expiration, delivery_mode: Some(2), ..Properties::default() };
        scene.rig.publish_with(id, "", "q", false, &properties, body.as_bytes());
        if number % 16 == 0 {
            scene.work().unwrap();
        }
    }
    scene.work().unwrap();
    // What is next came back from a run.
    let reader = scene.rig.client();
    for _ in 0..2_000 {
        let get = basic::Get { queue: short("q"), no_ack: true, ..basic::Get::default() };
        scene.rig.method(reader, 1, &get);
        scene.answers(reader);
    }
    let mut scene = scene.stop();
    assert_eq!(scene.rig.shard.status().ready, 4_000);
    // The time of each block begins when it is read.
    for _ in 0..10 {
        pass(&mut scene, 610_000);
    }
    assert_eq!(scene.rig.shard.status().ready, 3_000);
}

/// Letters are written like publishes, which have to wait for room.
#[test]
fn nothing_dies_while_its_letter_has_no_room() {
    let mut scene = Scene::small(64 << 20);
    let id = scene.client();
    scene.rig.method(id, 1, &declare("dead", true));
    declare_with(&mut scene.rig, id, "fleeting", true, &to_dead(ttl(60_000)));
    // Another queue keeps them all: no letter gives room back.
    bind_to_fanout(&mut scene.rig, id, &["fleeting", "q"]);
    let persistent = Properties { delivery_mode: Some(2), ..Properties::default() };
    for _ in 0..30 {
        let body = [7; 100_000];
        scene.rig.publish_with(id, "amq.fanout", "", false, &persistent, &body);
        scene.answers(id);
    }
    scene.disk.set_capacity(Some(scene.disk.used_bytes() + (150 << 10)));
    while scene.rig.shard.admission(id) == forebay_broker::Admission::Open {
        scene.rig.publish(id, "q", crate::scene::body(0).as_bytes(), true);
        scene.answers(id);
    }
    pass(&mut scene, 61_000);
    let dead = |scene: &Scene| scene.rig.shard.status().counters.dead_lettered;
    assert!(dead(&scene) < 15, "{} letters on a full disk", dead(&scene));
    // Nor is it delivered.
    let reader = scene.rig.client();
    scene.rig.method(reader, 1, &consume("fleeting", "c", true));
    let lines = scene.answers(reader);
    assert!(!lines.iter().any(|line| line.contains("basic.deliver")), "{lines:?}");
    scene.disk.set_capacity(None);
    pass(&mut scene, 31_000);
    pass(&mut scene, 1_000);
    assert_eq!(dead(&scene), 30);
}

#[test]
fn what_lies_on_disk_expires_too() {
    let mut scene = Scene::small(4 << 20);
    let id = scene.client();
    let arguments = ttl(600_000);
    declare_with(&mut scene.rig, id, "fleeting", true, &arguments);
    scene.answers(id);
    for number in range(0..6_000) {
        scene.rig.publish(id, "fleeting", crate::scene::body(number).as_bytes(), true);
        if number % 16 == 0 {
            scene.work().unwrap();
        }
    }
    scene.work().unwrap();
    let cold: u64 = scene.rig.shard.status().queues.iter().map(|queue| queue.cold).sum();
    assert!(cold > 1_000, "{cold} on disk");
    pass(&mut scene, 700_000);
    for _ in 0..2_000 {
        if scene.rig.shard.status().ready == 0 {
            break;
        }
        pass(&mut scene, 10);
    }
    let status = scene.rig.shard.status();
    assert_eq!((status.ready, status.counters.expired), (0, 6_000));
}

#[test]
fn a_dead_letter_exchange_wants_permission_to_read_and_to_write() {
    let arguments = |exchange: &'static [u8]| {
        TableBuf::new().with("x-dead-letter-exchange", Value::LongStr(exchange))
    };
    for (write, read, refused) in [
        ("^graves$", "^q$", None),
        ("^graves$", "", Some("read access to queue 'q'")),
        ("", "^q$", Some("write access to exchange 'graves'")),
    ] {
        let permissions = Permissions::new("^q$", write, read).unwrap();
        let app = User::new("app", Password::Plain("secret".to_owned()));
        let users = vec![User::guest(), app.with_permissions("/", permissions)];
        let mut rig = Rig::with(ShardConfig { users, ..ShardConfig::default() });
        let id = rig.client_as(b"\0app\0secret");
        declare_with(&mut rig, id, "q", false, &arguments(b"graves"));
        let answer = rig.trace(id).join("");
        assert!(answer.contains(refused.unwrap_or("queue.declare-ok q")), "{answer}");
    }
}
