//! `/api/forebay/overview` and `/api/forebay/waits`: what the broker does, and who waits for whom, as JSON.
//!
//! All counters grow from the start on; who wants rates asks twice and divides by the difference of
//! `uptime_us`. Times are microseconds, sizes bytes.

use forebay_broker::{Latencies, QueueStatus, WaitReport, Waiter};
use forebay_flow::BalanceState;
use serde_json::{Value, json};

use crate::mailbox::Snapshot;

/// Everything.
pub(super) fn overview(snapshot: &Snapshot) -> Value {
    let (broker, shell) = (&snapshot.broker, &snapshot.shell);
    let (count, store) = (&broker.counters, &broker.store);
    let mut document = waits(snapshot);
    let more = json!({
        "product": "Forebay",
        "version": env!("CARGO_PKG_VERSION"),
        "connections": broker.connections,
        "channels": broker.channels,
        "consumers": broker.consumers,
        "messages": {
            "published": count.published,
            "confirmed": count.confirmed,
            "delivered": count.delivered,
            "acknowledged": count.acknowledged,
            "returned": count.returned,
            "unroutable": count.unroutable,
            "expired": count.expired,
            "dropped": count.dropped,
            "refused": count.refused,
            "dead_lettered": count.dead_lettered,
            "ready": broker.ready,
            "unacked": broker.unacked,
        },
        "bytes": { "received": shell.received_bytes, "sent": shell.sent_bytes },
        "memory": {
            "used": broker.memory_bytes,
            "max": broker.memory_max_bytes,
            "budget": broker.memory_budget_bytes,
        },
        "commits": { "count": store.batches, "mean_us": store.flush_us },
        "sync_latency": latencies(&broker.sync_latencies),
        "queues": broker.queues.iter().map(queue).collect::<Vec<_>>(),
        "queues_left_out": broker.queue_count - broker.queues.len(),
    });
    if let (Value::Object(document), Value::Object(more)) = (&mut document, more) {
        document.extend(more);
    }
    document
}

/// Only the waits, and why publishers were told `connection.blocked`.
pub(super) fn waits(snapshot: &Snapshot) -> Value {
    let WaitReport { gates, edges, edges_left_out } = &snapshot.broker.waits;
    let gates: Vec<Value> = gates
        .iter()
        .map(|gate| {
            json!({
                "gate": gate.gate.name(),
                "waits_for": gate.gate.waits_for(),
                "waited_us": gate.waited_us,
                "waiting": gate.waiting,
            })
        })
        .collect();
    let edges: Vec<Value> = edges
        .iter()
        .map(|edge| {
            json!({
                "waiter": waiter(&edge.waiter),
                "gate": edge.gate.name(),
                "waits_for": edge.gate.waits_for(),
                "waited_us": edge.waited_us,
                "waiting": edge.waiting,
            })
        })
        .collect();
    json!({
        "uptime_us": snapshot.shell.uptime_us,
        "alarm": snapshot.broker.alarm,
        "gates": gates,
        "edges": edges,
        "edges_left_out": edges_left_out,
    })
}

fn waiter(waiter: &Waiter) -> Value {
    match waiter {
        Waiter::Connection { serial, address, user } => {
            json!({ "kind": "connection", "id": serial, "address": address, "user": user })
        }
        Waiter::Queue { vhost, name } => json!({ "kind": "queue", "vhost": vhost, "name": name }),
    }
}

fn queue(queue: &QueueStatus) -> Value {
    json!({
        "vhost": queue.vhost,
        "name": queue.name,
        "durable": queue.durable,
        "consumers": queue.consumers,
        "enqueued": queue.enqueued,
        "ready": queue.ready,
        "unacked": queue.unacked,
        "memory_bytes": queue.ready_bytes,
        "on_disk_only": queue.cold,
        "flow": queue.flow.name(),
        "flow_state": match queue.flow_state {
            BalanceState::Absorbing => "absorbing",
            BalanceState::Following => "following",
            BalanceState::Holding => "holding",
        },
        "standing_wait_us": queue.standing_wait_us,
    })
}

/// Pairs of a time and how many took at most so long and longer than the time before.
fn latencies(latencies: &Latencies) -> Value {
    let buckets: Vec<Value> = latencies.buckets().map(|(us, count)| json!([us, count])).collect();
    json!({ "buckets_us": buckets, "sum_us": latencies.sum_us() })
}
