//! What was found out about a queue, for people and for machines.

use forebay::pipeline::explain::printable;
use forebay::pipeline::explain::queue::{GateLook, QueueLook};
use serde_json::{Value, json};

use crate::figures::{duration, thousands};

/// A few lines, the last of them the answer.
pub(super) fn lines(vhost: &str, queue: &str, look: &QueueLook) -> Vec<String> {
    let seconds = look.looked_us as f64 / 1e6;
    let rate = |messages: u64| messages as f64 / seconds;
    let (arrives, leaves) = (rate(look.arrived), rate(look.left));
    let (ready, unacked) = (thousands(look.ready), thousands(look.unacked));
    let mut lines = vec![
        format!("queue {queue} in {vhost}, looked at for {seconds:.1} s"),
        format!("  {ready} wait, consumers hold {unacked}; consumers: {}", look.consumers.len()),
        format!("  {arrives:.1} come and {leaves:.1} leave in a second"),
    ];
    if let Some(waits_us) = look.waits_us().filter(|_| look.ready > 0) {
        let wait = duration(waits_us);
        lines.push(format!("  so a message that comes now waits for some {wait}"));
    }
    if let Some(held_us) = look.held_us().filter(|_| look.unacked > 0) {
        lines.push(format!("  and its consumer holds it for some {}", duration(held_us)));
    }
    lines.push(format!("why: {}", look.cause()));
    // Names are the clients', and a terminal would do what stands in them.
    lines.iter().map(|line| printable(line)).collect()
}

/// The same and all that is behind it.
pub(super) fn json(vhost: &str, queue: &str, look: &QueueLook) -> Value {
    let cause = look.cause();
    let gate = |gate: &GateLook| json!({ "gate": gate.gate, "waited_us": gate.waited_us });
    let gates = |gates: &[GateLook]| gates.iter().map(gate).collect::<Vec<_>>();
    let consumers = look.consumers.iter().map(|consumer| {
        json!({ "name": consumer.name, "prefetch": consumer.prefetch, "unacked": consumer.unacked })
    });
    json!({
        "vhost": vhost,
        "queue": queue,
        "looked_us": look.looked_us,
        "arrived": look.arrived,
        "left": look.left,
        "ready": look.ready,
        "unacked": look.unacked,
        "waits_us": look.waits_us(),
        "held_us": look.held_us(),
        "consumers": consumers.collect::<Vec<_>>(),
        "waits": look.waits.as_deref().map(gates),
        "publishers": gates(&look.publishers),
        "cause": cause.name(),
        "says": cause.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use forebay::pipeline::explain::queue::ConsumerLook;

    use super::*;

    #[test]
    fn a_terminal_does_nothing_that_stands_in_a_name() {
        let mut consumer = ConsumerLook::default();
        consumer.name = "consumer c\u{1b}]0;title\u{7}".into();
        (consumer.prefetch, consumer.unacked) = (1, Some(1));
        let mut look = QueueLook::default();
        (look.looked_us, look.ready, look.unacked) = (1_000_000, 5, 1);
        look.consumers = vec![consumer];
        let lines = lines("v\u{9b}2J", "\u{1b}[2J\n", &look);
        assert_eq!(lines[0], "queue \u{FFFD}[2J\u{FFFD} in v\u{FFFD}2J, looked at for 1.0 s");
        assert!(!lines.iter().any(|line| line.contains(char::is_control)), "{lines:?}");
        let document = json("v", "\u{1b}[2J", &look);
        assert_eq!(document["queue"], "\u{1b}[2J");
        assert_eq!(document["consumers"][0]["name"], "consumer c\u{1b}]0;title\u{7}");
    }
}
