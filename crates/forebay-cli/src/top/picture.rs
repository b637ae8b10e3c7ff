//! What happened between two looks, a second: rates, latencies, and who waited for whom.

use std::collections::HashMap;

use super::look::{Look, Queue, Waiter};

/// A gate counts as quiet when it held everybody together for less than this, in seconds a second.
const QUIET: f64 = 0.005;

/// Edges of one gate that are named.
const NAMED_MAX: usize = 3;

/// What is shown.
#[derive(Debug, Clone, serde::Serialize)]
pub(super) struct Picture {
    pub(super) version: String,
    pub(super) uptime_s: u64,
    pub(super) alarm: Option<String>,
    pub(super) connections: u64,
    pub(super) consumers: u64,
    pub(super) published_per_s: f64,
    pub(super) confirmed_per_s: f64,
    pub(super) delivered_per_s: f64,
    pub(super) acknowledged_per_s: f64,
    pub(super) ready: u64,
    pub(super) unacked: u64,
    pub(super) memory_bytes: u64,
    pub(super) memory_max_bytes: u64,
    pub(super) commits_per_s: f64,
    /// Moving average of a sync's time.
    pub(super) commit_us: u64,
    /// From a publish to its sync; `None` if nobody waited for one.
    pub(super) sync_p50_us: Option<u64>,
    pub(super) sync_p99_us: Option<u64>,
    /// The fullest first, then the busiest.
    pub(super) queues: Vec<QueueRow>,
    pub(super) queues_left_out: u64,
    /// Those that held somebody, the worst first.
    pub(super) waits: Vec<GateRow>,
}

/// A queue.
#[derive(Debug, Clone, serde::Serialize)]
pub(super) struct QueueRow {
    pub(super) vhost: String,
    pub(super) name: String,
    pub(super) in_per_s: f64,
    pub(super) out_per_s: f64,
    pub(super) ready: u64,
    pub(super) unacked: u64,
    pub(super) on_disk_only: u64,
    pub(super) consumers: u64,
    /// `absorb`, `balance`, or empty if the broker knows no modes.
    pub(super) flow: String,
    /// `holding`: it makes its publishers wait.
    pub(super) flow_state: String,
    pub(super) standing_wait_us: u64,
}

/// A gate that held somebody.
#[derive(Debug, Clone, serde::Serialize)]
pub(super) struct GateRow {
    pub(super) gate: String,
    pub(super) waits_for: String,
    /// All waiters together, in seconds a second.
    pub(super) s_per_s: f64,
    /// How many wait at this moment.
    pub(super) waiting: u64,
    /// How many waited in between, as far as they are known.
    pub(super) waiters: usize,
    /// The longest ones, at most three.
    pub(super) edges: Vec<EdgeRow>,
}

/// Somebody who was held.
#[derive(Debug, Clone, serde::Serialize)]
pub(super) struct EdgeRow {
    pub(super) waiter: Waiter,
    /// 0 to 1: 1 is all the time.
    pub(super) s_per_s: f64,
}

impl Picture {
    /// What happened from `before` to `now`; `None` if the broker was started again in between.
    pub(super) fn between(before: &Look, now: &Look) -> Option<Picture> {
        let passed_us = now.uptime_us.checked_sub(before.uptime_us).filter(|us| *us > 0)?;
        let seconds = passed_us as f64 / 1e6;
        let rate = |before: u64, now: u64| now.saturating_sub(before) as f64 / seconds;
        let (was, is) = (&before.messages, &now.messages);
        let latencies = latencies_between(before, now);
        Some(Picture {
            version: now.version.clone(),
            uptime_s: now.uptime_us / 1_000_000,
            alarm: now.alarm.clone(),
            connections: now.connections,
            consumers: now.consumers,
            published_per_s: rate(was.published, is.published),
            confirmed_per_s: rate(was.confirmed, is.confirmed),
            delivered_per_s: rate(was.delivered, is.delivered),
            acknowledged_per_s: rate(was.acknowledged, is.acknowledged),
            ready: is.ready,
            unacked: is.unacked,
            memory_bytes: now.memory.used,
            memory_max_bytes: now.memory.max,
            commits_per_s: rate(before.commits.count, now.commits.count),
            commit_us: now.commits.mean_us,
            sync_p50_us: quantile(&latencies, 0.5),
            sync_p99_us: quantile(&latencies, 0.99),
            queues: queues_between(before, now, rate),
            queues_left_out: now.queues_left_out,
            waits: waits_between(before, now, passed_us),
        })
    }
}

fn latencies_between(before: &Look, now: &Look) -> Vec<(u64, u64)> {
    let was: HashMap<u64, u64> = before.sync_latency.buckets_us.iter().copied().collect();
    let buckets = now.sync_latency.buckets_us.iter();
    buckets
        .map(|&(us, count)| (us, count.saturating_sub(was.get(&us).copied().unwrap_or(0))))
        .filter(|(_, count)| *count > 0)
        .collect()
}

/// The longest time of the bucket in which the quantile lies.
fn quantile(buckets: &[(u64, u64)], quantile: f64) -> Option<u64> {
    let total: u64 = buckets.iter().map(|(_, count)| count).sum();
    let mut left = (total as f64 * quantile).ceil() as u64;
    for (us, count) in buckets {
        if left <= *count {
            return Some(*us);
        }
        left -= count;
    }
    None
}

fn queues_between(before: &Look, now: &Look, rate: impl Fn(u64, u64) -> f64) -> Vec<QueueRow> {
    let key = |queue: &Queue| (queue.vhost.clone(), queue.name.clone());
    let was: HashMap<_, &Queue> = before.queues.iter().map(|queue| (key(queue), queue)).collect();
    let row = |queue: &Queue| {
        // One that was declared again under its name counts from nothing.
        let was = was.get(&key(queue)).filter(|was| was.enqueued <= queue.enqueued);
        QueueRow {
            vhost: queue.vhost.clone(),
            name: queue.name.clone(),
            in_per_s: rate(was.map_or(0, |was| was.enqueued), queue.enqueued),
            out_per_s: rate(was.map_or(0, |was| was.left()), queue.left()),
            ready: queue.ready,
            unacked: queue.unacked,
            on_disk_only: queue.on_disk_only,
            consumers: queue.consumers,
            flow: queue.flow.clone(),
            flow_state: queue.flow_state.clone(),
            standing_wait_us: queue.standing_wait_us,
        }
    };
    let mut rows: Vec<QueueRow> = now.queues.iter().map(row).collect();
    rows.sort_by(|a, b| {
        let busy = |row: &QueueRow| row.in_per_s + row.out_per_s;
        let full = |row: &QueueRow| row.ready + row.unacked;
        full(b).cmp(&full(a)).then(busy(b).total_cmp(&busy(a))).then(a.name.cmp(&b.name))
    });
    rows
}

fn waits_between(before: &Look, now: &Look, passed_us: u64) -> Vec<GateRow> {
    let was = before.waited();
    let gates_were: HashMap<&str, u64> =
        before.gates.iter().map(|gate| (&*gate.gate, gate.waited_us)).collect();
    let share = |us: u64| us as f64 / passed_us as f64;
    let mut rows: Vec<GateRow> = now
        .gates
        .iter()
        .map(|gate| {
            let was_us = gates_were.get(&*gate.gate).copied().unwrap_or(0);
            let mut edges: Vec<EdgeRow> = now
                .edges
                .iter()
                .filter(|edge| edge.gate == gate.gate)
                .filter_map(|edge| {
                    let was_us = match was.get(&(&edge.waiter, &*edge.gate)) {
                        Some(us) => *us,
                        // New, unless it was left out of the last look.
                        None if before.edges_left_out == 0 => 0,
                        None => return None,
                    };
                    let waited_us = edge.waited_us.saturating_sub(was_us);
                    let row = EdgeRow { waiter: edge.waiter.clone(), s_per_s: share(waited_us) };
                    (waited_us > 0).then_some(row)
                })
                .collect();
            edges.sort_by(|a, b| b.s_per_s.total_cmp(&a.s_per_s));
            let waiters = edges.len();
            edges.truncate(NAMED_MAX);
            GateRow {
                gate: gate.gate.clone(),
                waits_for: gate.waits_for.clone(),
                s_per_s: share(gate.waited_us.saturating_sub(was_us)),
                waiting: gate.waiting,
                waiters: waiters.max(gate.waiting as usize),
                edges,
            }
        })
        .filter(|row| row.s_per_s >= QUIET)
        .collect();
    rows.sort_by(|a, b| b.s_per_s.total_cmp(&a.s_per_s));
    rows
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    pub(in super::super) fn look(uptime_s: u64, more: serde_json::Value) -> Look {
        let mut document = json!({
            "version": "0.1.0", "uptime_us": uptime_s * 1_000_000, "alarm": null,
            "connections": 2, "consumers": 1,
            "messages": { "published": 0, "confirmed": 0, "delivered": 0, "acknowledged": 0,
                          "ready": 0, "unacked": 0 },
            "memory": { "used": 0, "max": 240_000_000, "budget": 256_000_000 },
            "commits": { "count": 0, "mean_us": 0 },
            "sync_latency": { "buckets_us": [] },
            "queues": [], "queues_left_out": 0, "gates": [], "edges": [], "edges_left_out": 0,
        });
        for (key, value) in more.as_object().expect("an object") {
            document[key] = value.clone();
        }
        serde_json::from_value(document).expect("a look")
    }

    fn waiting(waited_ms: &[u64]) -> serde_json::Value {
        let edges: Vec<_> = waited_ms
            .iter()
            .enumerate()
            .map(|(id, ms)| {
                json!({ "waiter": { "kind": "connection", "id": id, "address": "a", "user": "u" },
                        "gate": "sync", "waited_us": ms * 1000 })
            })
            .collect();
        let sum: u64 = waited_ms.iter().sum();
        json!({
            "gates": [{ "gate": "sync", "waits_for": "disk", "waited_us": sum * 1000, "waiting": 1 }],
            "edges": edges,
        })
    }

    #[test]
    fn rates_are_differences_a_second() {
        let queue = |enqueued: u64, ready: u64| {
            json!([{ "vhost": "/", "name": "q", "consumers": 1,
            "enqueued": enqueued, "ready": ready, "unacked": 5, "on_disk_only": 0 }])
        };
        let messages = |published: u64| {
            json!({ "published": published, "confirmed": 0,
            "delivered": 0, "acknowledged": 0, "ready": 0, "unacked": 0 })
        };
        let before = look(10, json!({ "messages": messages(100), "queues": queue(100, 50) }));
        let now = look(12, json!({ "messages": messages(300), "queues": queue(300, 150) }));
        let picture = Picture::between(&before, &now).unwrap();
        assert_eq!(picture.published_per_s, 100.0);
        let row = &picture.queues[0];
        assert_eq!((row.in_per_s, row.out_per_s), (100.0, 50.0));
    }

    #[test]
    fn waits_are_seconds_a_second_and_the_worst_comes_first() {
        let before = look(10, waiting(&[0, 500, 0, 0]));
        let now = look(12, waiting(&[1000, 2500, 10, 400]));
        let picture = Picture::between(&before, &now).unwrap();
        let [gate] = &picture.waits[..] else { panic!("{picture:?}") };
        assert_eq!((gate.s_per_s, gate.waiters), (3.41 / 2.0, 4));
        let shares: Vec<f64> = gate.edges.iter().map(|edge| edge.s_per_s).collect();
        assert_eq!(shares, [1.0, 0.5, 0.2]);
    }

    #[test]
    fn an_edge_that_may_have_been_left_out_before_is_not_taken_for_new() {
        let mut before = look(10, waiting(&[]));
        before.edges_left_out = 7;
        let now = look(12, waiting(&[900_000]));
        let picture = Picture::between(&before, &now).unwrap();
        assert!(picture.waits[0].edges.is_empty());
    }

    #[test]
    fn a_quiet_gate_is_not_shown_and_a_restart_has_no_picture() {
        let before = look(10, waiting(&[500]));
        assert!(Picture::between(&before, &look(12, waiting(&[505]))).unwrap().waits.is_empty());
        assert!(Picture::between(&before, &look(2, waiting(&[5]))).is_none());
    }

    #[test]
    fn latencies_are_those_of_the_time_between() {
        let latency = |counts: [u64; 2]| json!({ "sync_latency": { "buckets_us": [[127, counts[0]], [9_999, counts[1]]] } });
        let picture =
            Picture::between(&look(1, latency([1000, 0])), &look(2, latency([1095, 5]))).unwrap();
        assert_eq!((picture.sync_p50_us, picture.sync_p99_us), (Some(127), Some(9_999)));
        let still = Picture::between(&look(1, latency([9, 9])), &look(2, latency([9, 9]))).unwrap();
        assert_eq!(still.sync_p50_us, None);
    }
}
