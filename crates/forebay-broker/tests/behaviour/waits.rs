//! Why am I slow? Who waits for whom, as the broker counts it.

use forebay_broker::{Admission, Input, ShardConfig, Waiter};
use forebay_store::{MemDisk, Options};
use forebay_wire::{basic, confirm, queue};

use crate::rig::{Rig, consume, declare, short};
use crate::scene::Scene;

/// Every edge, a line each: who, at which gate, for how many milliseconds, and whether it still waits.
fn edges(rig: &Rig) -> Vec<String> {
    let edges = rig.shard.status_at(rig.now_us).waits.edges;
    let line = |edge: forebay_broker::WaitEdge| {
        let who = match edge.waiter {
            Waiter::Connection { user, .. } => user,
            Waiter::Queue { name, .. } => format!("queue {name}"),
        };
        let now = if edge.waiting { " now" } else { "" };
        format!("{who} {} {}{now}", edge.gate.name(), edge.waited_us / 1000)
    };
    let mut lines: Vec<String> = edges.into_iter().map(line).collect();
    lines.sort();
    lines
}

/// Milliseconds that all who waited at a gate have waited there, and how many do.
pub(crate) fn gate(rig: &Rig, name: &str) -> (u64, u64) {
    let gates = rig.shard.status_at(rig.now_us).waits.gates;
    let gate = gates.iter().find(|gate| gate.gate.name() == name).expect("a gate");
    (gate.waited_us / 1000, gate.waiting)
}

fn on_disk() -> Rig {
    let disk = std::sync::Arc::new(MemDisk::new());
    Rig::on_disk(ShardConfig::default(), disk, Options::default())
}

#[test]
fn whoever_waits_for_nobody_has_no_edge() {
    let mut rig = Rig::new();
    let id = rig.client();
    rig.method(id, 1, &confirm::Select::default());
    rig.method(id, 1, &declare("q", false));
    rig.method(id, 1, &consume("q", "c", true));
    for _ in 0..100 {
        rig.publish(id, "q", b"m", false);
        rig.trace(id);
    }
    assert_eq!(rig.shard.admission(id), Admission::Open);
    assert_eq!(edges(&rig), [""; 0]);
}

#[test]
fn a_confirm_waits_for_the_disk_from_its_publish_to_its_sync() {
    let mut rig = on_disk();
    let id = rig.client();
    rig.method(id, 1, &confirm::Select::default());
    rig.method(id, 1, &declare("q", true));
    rig.trace(id);
    let before = gate(&rig, "sync").0;
    rig.disk_stalled = true;
    rig.publish(id, "q", b"m", true);
    rig.now_us += 40_000;
    assert_eq!(gate(&rig, "sync"), (before + 40, 1));
    rig.disk_stalled = false;
    assert!(rig.trace(id).contains(&"1 basic.ack 1".to_owned()));
    let (waited_ms, waiting) = gate(&rig, "sync");
    assert_eq!(waiting, 0);
    rig.pass(500);
    assert_eq!(gate(&rig, "sync"), (waited_ms, 0));
    let latencies = rig.shard.status().sync_latencies;
    assert_eq!(latencies.buckets().map(|(_, count)| count).sum::<u64>(), 1);
    assert!(latencies.sum_us() >= 40_000);
}

#[test]
fn a_publish_at_the_end_of_the_memory_waits_for_memory() {
    let mut rig = Rig::small();
    let (publisher, consumer) = (rig.client(), rig.client());
    rig.method(publisher, 1, &declare("q", false));
    rig.fill(publisher, "q");
    rig.settle();
    rig.pass(1000);
    assert_eq!(gate(&rig, "memory"), (0, 0), "nobody has anything to say");
    rig.publish(publisher, "q", &[7; 1000], false);
    assert_eq!(rig.shard.admission(publisher), Admission::Closed);
    assert_eq!(rig.shard.admission(consumer), Admission::Open);
    rig.pass(300);
    assert_eq!(gate(&rig, "memory"), (300, 1));
    rig.method(consumer, 1, &consume("q", "c", true));
    rig.trace(consumer);
    rig.trace(consumer);
    assert_eq!(rig.shard.admission(publisher), Admission::Open);
    let (waited_ms, waiting) = gate(&rig, "memory");
    assert_eq!(waiting, 0);
    rig.disconnect(publisher);
    rig.pass(100);
    assert_eq!(gate(&rig, "memory"), (waited_ms, 0), "totals outlive their waiters");
}

#[test]
fn a_consumer_that_publishes_is_told_of_its_publishes_that_were_held() {
    let mut rig = Rig::small();
    let (both, other) = (rig.client(), rig.client());
    rig.method(both, 1, &declare("jobs", false));
    for id in [both, other] {
        rig.method(id, 1, &basic::Qos { prefetch_size: 0, prefetch_count: 1, global: false });
        rig.method(id, 1, &consume("jobs", "c", false));
    }
    (0..3).for_each(|_| rig.publish(other, "jobs", b"job", false));
    let filler = rig.client();
    rig.method(filler, 1, &declare("full", false));
    for id in [both, other] {
        rig.trace(id);
    }
    rig.fill(filler, "full");
    rig.settle();
    // The acknowledgement stands behind publishes that go on one by one, because there may be one behind them.
    (0..1000).for_each(|_| rig.publish(both, "full", &[7; 1000], false));
    rig.method(both, 1, &basic::Ack { delivery_tag: 1, multiple: false });
    rig.pass(300);
    let report = rig.shard.queue_report("/", b"jobs", rig.now_us).expect("it is there");
    let held_ms: Vec<_> =
        report.consumers.iter().map(|one| (one.unacked, one.publishes_held_us / 1000)).collect();
    assert!(matches!(held_ms[..], [(1, 200..=300), (1, 0)]), "{held_ms:?}");
}

#[test]
fn a_full_batch_is_a_wait_for_the_disk() {
    let mut scene = Scene::small(1 << 20);
    let id = scene.client();
    scene.rig.disk_stalled = true;
    for _ in 0..64 {
        scene.rig.publish(id, "q", &[7; 1000], true);
    }
    assert_eq!(scene.rig.shard.admission(id), Admission::Closed);
    scene.rig.now_us += 20_000;
    scene.rig.step(Input::Turn { busy: false });
    assert_eq!(gate(&scene.rig, "batch"), (20, 1));
    assert_eq!(gate(&scene.rig, "memory"), (0, 0));
}

#[test]
fn messages_wait_for_consumers_that_hold_all_they_may() {
    let mut rig = Rig::new();
    let id = rig.client();
    rig.method(id, 1, &declare("q", false));
    rig.method(id, 1, &basic::Qos { prefetch_size: 0, prefetch_count: 2, global: false });
    rig.method(id, 1, &consume("q", "c", false));
    for _ in 0..3 {
        rig.publish(id, "q", b"m", false);
    }
    rig.trace(id);
    rig.pass(250);
    assert_eq!(edges(&rig), ["queue q credit 250 now"]);
    rig.method(id, 1, &basic::Ack { delivery_tag: 1, multiple: false });
    rig.trace(id);
    rig.pass(250);
    assert_eq!(edges(&rig), ["queue q credit 250"]);
}

#[test]
fn messages_wait_for_a_consumer_while_there_is_none() {
    let mut rig = Rig::new();
    let id = rig.client();
    rig.method(id, 1, &declare("q", false));
    rig.pass(100);
    rig.publish(id, "q", b"m", false);
    rig.settle();
    rig.pass(30);
    assert_eq!(edges(&rig), ["queue q no_consumer 30 now"]);
    rig.method(id, 1, &consume("q", "c", false));
    rig.trace(id);
    assert_eq!(gate(&rig, "no_consumer").1, 0);
    rig.method(id, 1, &basic::Cancel { consumer_tag: short("c"), no_wait: false });
    rig.trace(id);
    assert_eq!(gate(&rig, "no_consumer").1, 0, "it is empty");
    rig.method(id, 1, &basic::Nack { delivery_tag: 1, multiple: false, requeue: true });
    rig.trace(id);
    assert_eq!(gate(&rig, "no_consumer").1, 1);
    rig.method(id, 1, &queue::Purge { queue: short("q"), ..queue::Purge::default() });
    assert_eq!(gate(&rig, "no_consumer").1, 0);
}

#[test]
fn deliveries_wait_for_a_client_that_does_not_read_and_its_queue_for_them() {
    let mut rig = Rig::new();
    let (publisher, consumer) = (rig.client(), rig.client());
    rig.method(publisher, 1, &declare("q", false));
    rig.method(consumer, 1, &consume("q", "c", true));
    rig.trace(consumer);
    for _ in 0..5 {
        rig.publish(publisher, "q", &[7; 100_000], false);
    }
    rig.settle();
    rig.pass(70);
    assert_eq!(edges(&rig), ["guest socket 70 now", "queue q delivery 70 now"]);
    while !rig.trace(consumer).is_empty() {}
    assert_eq!((gate(&rig, "socket").1, gate(&rig, "delivery").1), (0, 0));
}

#[test]
fn what_the_shell_saw_waiting_for_its_turn_is_counted() {
    let mut rig = Rig::new();
    let id = rig.client();
    rig.shard.waited_for_turn(id, 3_000);
    rig.shard.waited_for_turn(id, 4_000);
    assert_eq!(edges(&rig), ["guest turn 7"]);
}

#[test]
fn a_report_of_many_waits_names_the_longest_and_counts_the_rest() {
    let mut rig = Rig::new();
    let ids: Vec<_> = (0..250).map(|_| rig.socket(true)).collect();
    for (index, id) in ids.into_iter().enumerate() {
        rig.shard.waited_for_turn(id, 1_000 * (index as u64 + 1));
    }
    let report = rig.shard.status().waits;
    assert_eq!((report.edges.len(), report.edges_left_out), (200, 50));
    assert_eq!(report.edges[0].waited_us, 250_000);
    assert_eq!(report.edges[199].waited_us, 51_000);
    assert_eq!(gate(&rig, "turn").0, 250 * 251 / 2);
}
