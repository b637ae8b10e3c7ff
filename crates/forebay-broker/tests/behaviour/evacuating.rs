//! What holds the oldest end of a long log is copied to its other end.

use forebay_broker::ConnectionId;
use forebay_store::{Disk, open};
use forebay_wire::{Properties, basic, channel, queue, tx};

use crate::rig::{consume, declare, short};
use crate::scene::Scene;

const QUEUES: u64 = 40;
const MESSAGES: u64 = 8;
const BODY_BYTES: u64 = 20_000;

/// Messages come and go until the log is over its cap, and all of its segments are others; how many.
fn renew(scene: &mut Scene, id: ConnectionId) -> u32 {
    let segments = |scene: &Scene| {
        let mut names = scene.disk.list().expect("it works");
        names.retain(|name| name.starts_with("log-"));
        names
    };
    let old = segments(scene);
    let mut churned = 0;
    while segments(scene).iter().any(|name| old.contains(name)) {
        churned += 64;
        scene.fill(id, churned - 64..churned);
        let purge = queue::Purge { queue: short("q"), ..queue::Purge::default() };
        scene.rig.method(id, 1, &purge);
        scene.answers(id);
        assert!(churned < 20_000, "{old:?} are never freed");
    }
    churned
}

/// Each queue had a copy of its own then, and a restart needed the memory for all of them.
#[test]
fn a_message_for_many_queues_is_copied_once_and_takes_the_memory_of_one_after_that() {
    let mut scene = Scene::small(64 << 20);
    let id = scene.client();
    for number in 0..QUEUES {
        let name = format!("q{number}");
        scene.rig.method(id, 1, &declare(&name, true));
        let bind = queue::Bind {
            exchange: short("amq.fanout"),
            queue: short(&name),
            ..Default::default()
        };
        scene.rig.method(id, 1, &bind);
    }
    scene.answers(id);
    let persistent = Properties { delivery_mode: Some(2), ..Properties::default() };
    for _ in 0..MESSAGES {
        let body = [7; BODY_BYTES as usize];
        scene.rig.publish_with(id, "amq.fanout", "", true, &persistent, &body);
    }
    scene.answers(id);
    // Some are not in their queues while they are copied: with a consumer, or in a transaction.
    let holder = scene.rig.client();
    scene.rig.method(holder, 300, &channel::Open::default());
    scene.rig.method(holder, 300, &consume("q3", "holder", false));
    assert_eq!(scene.answers(holder).len() as u64, MESSAGES + 2);
    let settles = scene.rig.client();
    scene.rig.method(settles, 1, &tx::Select::default());
    scene.rig.method(settles, 1, &consume("q5", "settles", false));
    scene.answers(settles);
    scene.rig.method(settles, 1, &basic::Ack { delivery_tag: 3, multiple: true });
    let before = scene.rig.shard.status();
    assert_eq!((before.ready, before.unacked), ((QUEUES - 2) * MESSAGES, 2 * MESSAGES));

    let churned = renew(&mut scene, id);
    let one = MESSAGES * BODY_BYTES;
    let written = scene.rig.shard.status().store.log_written_bytes - before.store.log_written_bytes;
    let copies = written.saturating_sub(u64::from(churned) * 1_200);
    assert!(copies < QUEUES / 4 * one, "{copies} bytes for {one}");

    let mut scene = scene.kill();
    let status = scene.rig.shard.status();
    assert_eq!(status.ready, QUEUES * MESSAGES);
    assert!(status.memory_bytes <= before.memory_bytes, "{} bytes", status.memory_bytes);
    let id = scene.rig.client();
    scene.rig.method(id, 1, &consume("q5", "again", true));
    assert_eq!(scene.answers(id).len() as u64, MESSAGES + 1);
}

/// A copy would be of a queue that nobody has declared, and there again after a crash.
#[test]
fn what_is_held_of_a_deleted_queue_is_not_copied() {
    let mut scene = Scene::small(64 << 20);
    let id = scene.client();
    scene.rig.method(id, 1, &declare("gone", true));
    for _ in 0..3 {
        scene.rig.publish(id, "gone", &[7; 1_000], true);
    }
    scene.answers(id);
    let (holder, settles) = (scene.rig.client(), scene.rig.client());
    scene.rig.method(settles, 1, &tx::Select::default());
    scene.rig.method(settles, 1, &basic::Get { queue: short("gone"), ..basic::Get::default() });
    scene.rig.method(settles, 1, &basic::Ack { delivery_tag: 1, multiple: false });
    scene.answers(settles);
    scene.rig.method(holder, 1, &consume("gone", "holder", false));
    assert_eq!(scene.answers(holder).len(), 3);
    scene.rig.method(id, 1, &queue::Delete { queue: short("gone"), ..queue::Delete::default() });
    scene.answers(id);
    renew(&mut scene, id);
    // It may still be settled, to no effect.
    scene.rig.method(settles, 1, &tx::Commit::default());
    scene.rig.method(holder, 1, &basic::Ack { delivery_tag: 1, multiple: false });
    assert!(scene.answers(settles).concat().contains("tx.commit-ok"));

    let Scene { disk, options, rig, .. } = scene;
    drop(rig);
    disk.kill();
    let (_, recovered) = open(disk, options).expect("it is sound");
    let messages: usize = recovered.queues.iter().map(|queue| queue.messages.len()).sum();
    assert_eq!((messages, recovered.queues.len()), (0, 1), "only those of `q`: {recovered:?}");
}
