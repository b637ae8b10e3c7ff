//! `/api/queues/VHOST/NAME`: one queue, in the words of RabbitMQ's management as far as we have what they name.
//!
//! Below `forebay` is what only we count: what messages of the queue waited for, who else waits, and how many messages each
//! consumer holds (`unacknowledged`), and for how long its connection was not read because it publishes as well (`publishes_held_us`). Counters grow from the queue's first message on.

use forebay_broker::{ConsumerStatus, GateWaits, QueueReport};
use serde_json::{Value, json};

/// The document.
pub(super) fn queue(report: &QueueReport) -> Value {
    let status = &report.status;
    let messages = status.ready + status.unacked;
    json!({
        "name": status.name,
        "vhost": status.vhost,
        "durable": status.durable,
        "messages": messages,
        "messages_ready": status.ready,
        "messages_unacknowledged": status.unacked,
        "consumers": status.consumers,
        "consumer_details": report.consumers.iter().map(consumer).collect::<Vec<_>>(),
        "message_stats": {
            "publish": status.enqueued,
            // Purged and dropped ones included.
            "ack": status.enqueued.saturating_sub(messages),
        },
        "forebay": {
            "waits": gates(&report.waits),
            "gates": gates(&report.gates),
        },
    })
}

fn consumer(consumer: &ConsumerStatus) -> Value {
    json!({
        "consumer_tag": String::from_utf8_lossy(&consumer.tag),
        "ack_required": !consumer.no_ack,
        "active": consumer.active,
        "prefetch_count": consumer.prefetch,
        "unacknowledged": consumer.unacked,
        "publishes_held_us": consumer.publishes_held_us,
        "channel_details": {
            "name": format!("{} ({})", consumer.address, consumer.channel),
            "number": consumer.channel,
            "connection_name": consumer.address,
            "user": consumer.user,
        },
    })
}

fn gates(gates: &[GateWaits]) -> Value {
    let gate = |gate: &GateWaits| json!({ "gate": gate.gate.name(), "waited_us": gate.waited_us, "waiting": gate.waiting });
    gates.iter().map(gate).collect::<Vec<_>>().into()
}
