//! Dead letters of what is rejected or refused, more at once than the log takes.

use forebay_broker::{ConnectionId, Input, ShardConfig};
use forebay_store::perform;
use forebay_wire::{Properties, TableBuf, Value, basic, queue, tx};

use crate::expiring::{bind_to_fanout, bodies, declare_with, expiring, to_dead, ttl};
use crate::rig::{Rig, consume, declare, short};
use crate::scene::{Scene, body, one_round};

const LARGE_BYTES: usize = 100_000;

fn ready(rig: &Rig, name: &str) -> u64 {
    let status = rig.shard.status();
    status.queues.iter().find(|queue| queue.name == name).map_or(0, |queue| queue.ready)
}

fn unacked(scene: &Scene) -> u64 {
    scene.rig.shard.status().unacked
}

/// Durable queues `letters`, with dead letters, and `dead`, and a consumer that holds so many large messages.
fn holding(scene: &mut Scene, messages: u8) -> ConnectionId {
    let id = scene.client();
    scene.rig.method(id, 1, &declare("dead", true));
    declare_with(&mut scene.rig, id, "letters", true, &to_dead(TableBuf::new()));
    let consumer = scene.rig.client();
    scene.rig.method(consumer, 1, &consume("letters", "c", false));
    for number in 0..messages {
        let body = format!("{number:03}{}", "x".repeat(LARGE_BYTES));
        scene.rig.publish(id, "letters", body.as_bytes(), true);
        scene.answers(id);
        scene.answers(consumer);
    }
    assert_eq!(unacked(scene), u64::from(messages));
    consumer
}

fn persistent() -> Properties<'static> {
    Properties { delivery_mode: Some(2), ..Properties::default() }
}

fn nack_all(rig: &mut Rig, id: ConnectionId) {
    rig.method(id, 1, &basic::Nack { delivery_tag: 0, multiple: true, requeue: false });
}

#[test]
fn what_one_nack_rejects_is_written_as_the_log_takes_it_and_in_order() {
    let mut scene = Scene::patient(64 << 20);
    let consumer = holding(&mut scene, 200);
    let held_bytes = scene.rig.shard.status().memory_bytes;
    nack_all(&mut scene.rig, consumer);
    assert!(unacked(&scene) >= 195, "{} wait", unacked(&scene));
    assert!(ready(&scene.rig, "dead") <= 5);
    assert!(scene.rig.shard.status().memory_bytes <= held_bytes + 5 * LARGE_BYTES as u64);
    scene.work().expect("the disk works");
    assert_eq!((unacked(&scene), ready(&scene.rig, "dead")), (0, 200));
    let reader = scene.rig.client();
    let found = bodies(&mut scene.rig, reader, "dead");
    assert!(found.len() == 200 && found.is_sorted());
}

#[test]
fn letters_are_written_though_publishers_fill_every_batch() {
    let mut scene = Scene::patient(64 << 20);
    let consumer = holding(&mut scene, 100);
    let publisher = scene.client();
    nack_all(&mut scene.rig, consumer);
    let number = scene.overfill(publisher, "q", |number| body(number).into_bytes());
    assert!(number > 1_000, "{number} were published");
    assert_eq!((unacked(&scene), ready(&scene.rig, "dead")), (0, 100));
}

#[test]
fn whose_letter_waits_comes_back_after_a_crash_and_not_after_a_stop() {
    for is_killed in [true, false] {
        let mut scene = Scene::patient(64 << 20);
        let consumer = holding(&mut scene, 50);
        nack_all(&mut scene.rig, consumer);
        assert!(unacked(&scene) >= 45);
        // Everybody is gone before the disk does anything.
        scene.rig.disk_stalled = true;
        if !is_killed {
            scene.rig.step(Input::Shutdown);
            scene.rig.settle();
            (0..=consumer.0).for_each(|id| scene.rig.disconnect(ConnectionId(id)));
            scene.rig.settle();
        }
        scene.rig.disk_stalled = false;
        let mut scene = if is_killed { scene.kill() } else { scene.stop() };
        let id = scene.rig.client();
        let found = ["letters", "dead"].map(|name| bodies(&mut scene.rig, id, name).len());
        assert_eq!(found, if is_killed { [50, 0] } else { [0, 50] });
    }
}

/// It may be the consumer's own, or one that goes with its last consumer.
#[test]
fn what_was_rejected_or_refused_before_its_queue_went_goes_to_the_dead_letters() {
    let mut scene = Scene::patient(64 << 20);
    let consumer = holding(&mut scene, 50);
    let (id, other) = (scene.client(), scene.rig.client());
    let refuses = TableBuf::new()
        .with("x-max-length", Value::I32(0))
        .with("x-overflow", Value::LongStr(b"reject-publish-dlx"));
    for name in ["full", "full too"] {
        declare_with(&mut scene.rig, id, name, true, &to_dead(refuses.clone()));
        bind_to_fanout(&mut scene.rig, id, &[name]);
    }
    scene.work().expect("the disk works");
    scene.rig.publish_with(id, "amq.fanout", "", false, &persistent(), &[b'r'; LARGE_BYTES]);
    nack_all(&mut scene.rig, consumer);
    assert_eq!(scene.rig.shard.letters_waiting(), 51, "one had room");
    for name in ["letters", "full", "full too"] {
        let delete = queue::Delete { queue: short(name), ..queue::Delete::default() };
        scene.rig.method(other, 1, &delete);
    }
    // Another one takes its place, to which none of them belongs.
    declare_with(&mut scene.rig, other, "letters", true, &TableBuf::new());
    assert_eq!(scene.rig.shard.letters_waiting(), 51);
    scene.work().expect("the disk works");
    let reader = scene.rig.client();
    let found = bodies(&mut scene.rig, reader, "dead");
    let refused = found.iter().filter(|body| body.starts_with('r')).count();
    assert_eq!((found.len(), refused), (52, 2));
    let status = scene.rig.shard.status();
    assert_eq!((status.ready, status.unacked, status.memory_bytes), (0, 0, 0));
    // What is rejected when its queue is gone goes nowhere, as with RabbitMQ.
    declare_with(&mut scene.rig, id, "past", true, &to_dead(TableBuf::new()));
    scene.rig.publish(id, "past", b"late", true);
    scene.rig.method(consumer, 1, &consume("past", "d", false));
    scene.answers(consumer);
    let delete = queue::Delete { queue: short("past"), ..queue::Delete::default() };
    scene.rig.method(id, 1, &delete);
    nack_all(&mut scene.rig, consumer);
    scene.work().expect("the disk works");
    assert_eq!(scene.rig.shard.status().memory_bytes, 0);
}

/// A publisher who has filled the disk: there is no room for another segment.
fn full_disk(scene: &mut Scene, room_bytes: u64, queue: &str) -> u32 {
    let publisher = scene.client();
    scene.disk.set_capacity(Some(scene.disk.used_bytes() + room_bytes));
    for number in 0.. {
        scene.rig.publish(publisher, queue, body(number).as_bytes(), true);
        let told = scene.answers(publisher);
        if told.iter().any(|line| line.contains("connection.blocked low on disk")) {
            return number;
        }
    }
    unreachable!("a disk that is never full");
}

/// The consumer has thirty large messages. Another queue keeps them all, too: no letter gives room back.
fn thirty_on_a_full_disk(scene: &mut Scene, publisher: ConnectionId, consumer: ConnectionId) {
    bind_to_fanout(&mut scene.rig, publisher, &["letters", "q"]);
    for _ in 0..30 {
        let body = [7; LARGE_BYTES];
        scene.rig.publish_with(publisher, "amq.fanout", "", false, &persistent(), &body);
        scene.answers(publisher);
        scene.answers(consumer);
    }
    full_disk(scene, 150 << 10, "q");
}

#[test]
fn on_a_full_disk_letters_leave_the_last_of_the_reserve_to_acknowledgements() {
    let mut scene = Scene::patient(64 << 20);
    let publisher = scene.client();
    let consumer = holding(&mut scene, 0);
    thirty_on_a_full_disk(&mut scene, publisher, consumer);
    let reject = basic::Nack { delivery_tag: 20, multiple: true, requeue: false };
    scene.rig.method(consumer, 1, &reject);
    scene.work().expect("a full disk is no reason to end");
    let wait = unacked(&scene) - 10;
    assert!((10..20).contains(&wait), "{wait} of 20 wait");
    for left in (0..10).rev() {
        scene.rig.method(consumer, 1, &basic::Ack { delivery_tag: 30 - left, multiple: false });
        assert!(unacked(&scene) <= wait + left, "acknowledgements do not wait");
    }
    scene.work().expect("a full disk is no reason to end");
    scene.disk.set_capacity(None);
    scene.rig.now_us += 31_000_000;
    scene.work().expect("the disk works");
    assert_eq!((unacked(&scene), ready(&scene.rig, "dead")), (0, 20));
}

/// All of its letters are one batch, however many they are.
#[test]
fn on_a_full_disk_a_commit_that_writes_letters_waits() {
    let mut scene = Scene::patient(64 << 20);
    let consumer = holding(&mut scene, 20);
    scene.rig.method(consumer, 1, &tx::Select::default());
    nack_all(&mut scene.rig, consumer);
    scene.answers(consumer);
    full_disk(&mut scene, 150 << 10, "q");
    scene.rig.method(consumer, 1, &tx::Commit::default());
    scene.work().expect("a full disk is no reason to end");
    assert_eq!((unacked(&scene), ready(&scene.rig, "dead")), (20, 0));
    scene.disk.set_capacity(None);
    scene.rig.now_us += 31_000_000;
    scene.work().expect("the disk works");
    scene.rig.pass(1_000);
    assert!(scene.answers(consumer).contains(&"1 tx.commit-ok".to_owned()));
    assert_eq!((unacked(&scene), ready(&scene.rig, "dead")), (0, 20));
}

/// The last of it is for acknowledgements, and those of a transaction cannot go before its commit.
#[test]
fn out_of_the_reserve_a_commit_goes_on_that_frees_more_than_it_writes() {
    let mut scene = Scene::patient(64 << 20);
    let publisher = scene.client();
    let consumer = holding(&mut scene, 0);
    declare_with(&mut scene.rig, publisher, "more", true, &to_dead(TableBuf::new()));
    for _ in 0..20 {
        let body = [7; 20_000];
        scene.rig.publish_with(publisher, "", "more", false, &persistent(), &body);
        scene.answers(publisher);
    }
    thirty_on_a_full_disk(&mut scene, publisher, consumer);
    scene.rig.method(consumer, 1, &basic::Nack { delivery_tag: 0, multiple: true, requeue: false });
    scene.work().expect("a full disk is no reason to end");
    assert!(unacked(&scene) > 0, "some letters wait");

    // One that acknowledges so many and rejects one, as letters that all take the same.
    let commits = |scene: &mut Scene, acknowledged: u64| {
        let id = scene.rig.client();
        scene.rig.method(id, 1, &tx::Select::default());
        for _ in 0..=acknowledged {
            scene.rig.method(id, 1, &basic::Get { queue: short("more"), ..basic::Get::default() });
        }
        let ack = basic::Ack { delivery_tag: acknowledged, multiple: true };
        if acknowledged > 0 {
            scene.rig.method(id, 1, &ack);
        }
        let delivery_tag = acknowledged + 1;
        scene.rig.method(id, 1, &basic::Nack { delivery_tag, multiple: false, requeue: false });
        scene.rig.method(id, 1, &tx::Commit::default());
        scene.work().expect("a full disk is no reason to end");
        scene.rig.pass(1_000);
        let told = scene.answers(id);
        (id, told.contains(&"1 tx.commit-ok".to_owned()))
    };
    let (useless, goes_on) = commits(&mut scene, 0);
    assert!(!goes_on, "it would only write");
    let dead = ready(&scene.rig, "dead");
    let went: Vec<_> = (0..6).map(|_| commits(&mut scene, 2)).collect();
    let free = went.iter().filter(|(_, goes_on)| *goes_on).count();
    assert!((1..6).contains(&free), "{free} of 6, as letters are to be few");
    assert!(ready(&scene.rig, "dead") >= dead + free as u64);
    scene.disk.set_capacity(None);
    scene.rig.now_us += 31_000_000;
    scene.work().expect("the disk works");
    scene.rig.pass(1_000);
    for (id, _) in went.into_iter().filter(|(_, goes_on)| !goes_on).chain([(useless, false)]) {
        assert!(scene.answers(id).contains(&"1 tx.commit-ok".to_owned()));
    }
    assert_eq!(ready(&scene.rig, "more"), 1);
}

/// Of what fills the disk nothing is consumed: its room comes back as it is moved, a segment after the other.
#[test]
fn what_alone_fills_the_disk_goes_to_its_dead_letters_when_it_expires() {
    let mut scene = Scene::patient(64 << 20);
    let id = scene.client();
    scene.rig.method(id, 1, &declare("dead", true));
    declare_with(&mut scene.rig, id, "letters", true, &to_dead(ttl(3_600_000)));
    let messages = full_disk(&mut scene, 3 << 20, "letters");
    assert!(messages > 200, "{messages} fill it");
    scene.rig.now_us += 3_600_000_000;
    // Not as long as it takes until a full disk is tried again: nobody gave it more room.
    for _ in 0..2_000 {
        one_round(&mut scene).expect("a full disk is no reason to end");
        if ready(&scene.rig, "letters") == 0 {
            break;
        }
    }
    assert_eq!(ready(&scene.rig, "letters"), 0);
    assert!(ready(&scene.rig, "dead") >= u64::from(messages));
    scene.work().expect("the disk works");
    let scene = scene.kill();
    assert_eq!(ready(&scene.rig, "letters"), 0);
    assert!(ready(&scene.rig, "dead") >= u64::from(messages));
}

#[test]
fn what_many_full_queues_refuse_is_written_as_the_log_takes_it() {
    const QUEUES: usize = 50;
    let mut scene = Scene::patient(64 << 20);
    let id = scene.client();
    scene.rig.method(id, 1, &declare("dead", true));
    for number in 0..QUEUES {
        let arguments = to_dead(
            TableBuf::new()
                .with("x-max-length", Value::I32(0))
                .with("x-overflow", Value::LongStr(b"reject-publish-dlx")),
        );
        let name = format!("full{number}");
        declare_with(&mut scene.rig, id, &name, true, &arguments);
        bind_to_fanout(&mut scene.rig, id, &[&name]);
    }
    scene.work().expect("the disk works");
    scene.rig.publish_with(id, "amq.fanout", "", false, &persistent(), &[7; LARGE_BYTES]);
    assert!(ready(&scene.rig, "dead") <= 5);
    let answers = scene.answers(id);
    assert!(answers.iter().any(|line| line.contains("basic.nack")), "{answers:?}");
    assert_eq!(ready(&scene.rig, "dead"), QUEUES as u64);
    assert_eq!(scene.rig.shard.status().unacked, 0);
}

#[test]
fn a_transaction_that_rejects_more_than_one_commit_may_write_is_refused() {
    let config = ShardConfig { memory_budget_bytes: 1 << 30, ..ShardConfig::default() };
    for (letters, refused) in [(true, true), (false, false)] {
        let mut rig = Rig::with(config.clone());
        let id = rig.client();
        let arguments = if letters { to_dead(TableBuf::new()) } else { TableBuf::new() };
        declare_with(&mut rig, id, "q", false, &arguments);
        let other = rig.client();
        rig.method(other, 1, &tx::Select::default());
        rig.method(other, 1, &consume("q", "c", false));
        for _ in 0..70 {
            rig.publish(id, "q", &vec![7; 1_000_000], false);
            rig.trace(other);
        }
        nack_all(&mut rig, other);
        let said = rig.trace(other).concat();
        assert_eq!(said.contains("channel.close 406"), refused, "{said}");
    }
}

/// The queue `letters` and the clients that consume it and that look: of `texts` the first has expired, and the log has no room for its
/// letter, so the consumer was offered none.
fn behind_a_letter_without_room(
    scene: &mut Scene,
    arguments: TableBuf,
    texts: &[&str],
) -> (ConnectionId, ConnectionId) {
    let id = scene.client();
    let (consumer, other) = (scene.rig.client(), scene.rig.client());
    scene.rig.method(id, 1, &declare("dead", true));
    declare_with(&mut scene.rig, id, "letters", true, &to_dead(arguments));
    scene.answers(id);
    scene.rig.disk_stalled = true;
    for text in texts {
        let expiration = if *text == texts[0] { "1000" } else { "60000" };
        expiring(&mut scene.rig, id, "letters", expiration, text);
    }
    while scene.rig.shard.letters_again_us().is_none() {
        scene.rig.publish(id, "q", body(0).as_bytes(), true);
    }
    scene.rig.now_us += 1_000_000;
    scene.rig.method(consumer, 1, &consume("letters", "c", true));
    scene.rig.step(Input::Turn { busy: false });
    let lines = scene.rig.sent(consumer);
    assert!(!lines.iter().any(|line| line.contains("basic.deliver")), "{lines:?}");
    (consumer, other)
}

/// The log takes what waits.
fn there_is_room(scene: &mut Scene) {
    while let Some(request) = scene.rig.shard.poll_disk(scene.rig.now_us) {
        let completion = perform(&*scene.disk, request);
        scene.rig.step(Input::Disk(completion));
    }
    assert_eq!(scene.rig.shard.letters_again_us(), None);
}

/// No timer need be waited for.
#[test]
fn what_stands_behind_a_letter_is_offered_when_somebody_else_sees_that_it_has_room() {
    let mut scene = Scene::patient(64 << 20);
    let texts = ["expired", "got", "waited for"];
    let (consumer, other) = behind_a_letter_without_room(&mut scene, TableBuf::new(), &texts);
    there_is_room(&mut scene);
    let get = basic::Get { queue: short("letters"), no_ack: true, ..basic::Get::default() };
    scene.rig.method(other, 1, &get);
    let lines = scene.rig.sent(other);
    assert!(lines.iter().any(|line| line.contains("[got]")), "{lines:?}");
    scene.rig.step(Input::Turn { busy: false });
    let lines = scene.rig.sent(consumer);
    assert!(lines.iter().any(|line| line.contains("[waited for]")), "{lines:?}");
}

#[test]
fn what_stands_behind_a_letter_is_not_too_many_before_it_was_offered() {
    let mut scene = Scene::patient(64 << 20);
    let arguments = TableBuf::new().with("x-max-length", Value::I32(1));
    let (consumer, _) = behind_a_letter_without_room(&mut scene, arguments, &["expired", "1", "2"]);
    there_is_room(&mut scene);
    scene.rig.step(Input::Turn { busy: false });
    let lines = scene.answers(consumer);
    let delivered = lines.iter().filter(|line| line.contains("basic.deliver"));
    assert_eq!(delivered.count(), 2, "{lines:?}");
    let lines = bodies(&mut scene.rig, consumer, "dead");
    assert_eq!(lines, ["expired"]);
}

/// It came since the last visit, and would have been offered in time, had there been room.
#[test]
fn what_expires_behind_a_letter_without_room_is_not_delivered_afterwards() {
    for (wait_s, delivered) in [(59, true), (61, false)] {
        let mut scene = Scene::patient(64 << 20);
        let id = scene.client();
        let consumer = scene.rig.client();
        scene.rig.method(id, 1, &declare("dead", true));
        declare_with(&mut scene.rig, id, "letters", true, &to_dead(TableBuf::new()));
        scene.rig.method(consumer, 1, &basic::Qos { prefetch_count: 1, ..basic::Qos::default() });
        scene.rig.method(consumer, 1, &consume("letters", "c", false));
        scene.rig.publish(id, "letters", b"held", true);
        expiring(&mut scene.rig, id, "letters", "1000", "expired");
        scene.rig.step(Input::Turn { busy: false });
        scene.rig.sent(consumer);
        scene.rig.now_us += 1_000_000;
        expiring(&mut scene.rig, id, "letters", "60000", "behind it");
        while scene.rig.shard.letters_again_us().is_none() {
            scene.rig.publish(id, "q", body(0).as_bytes(), true);
        }
        scene.rig.method(consumer, 1, &basic::Ack { delivery_tag: 1, multiple: false });
        scene.rig.step(Input::Turn { busy: false });
        assert_eq!(scene.rig.sent(consumer), [""; 0]);
        scene.rig.now_us += wait_s * 1_000_000;
        there_is_room(&mut scene);
        let lines = scene.answers(consumer);
        let came = lines.iter().any(|line| line.contains("[behind it]"));
        assert_eq!(came, delivered, "{lines:?}");
        let dead = bodies(&mut scene.rig, id, "dead");
        assert_eq!(dead.len(), if delivered { 1 } else { 2 });
    }
}
