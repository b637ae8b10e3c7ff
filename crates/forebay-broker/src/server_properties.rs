//! What the broker says of itself in `connection.start`.
//!
//! Clients read `version` and change what they expect with it, so it is the level of RabbitMQ whose
//! behaviour is kept; `product` and `forebay_version` tell what it really is.

use forebay_wire::{TableBuf, Value};

/// The RabbitMQ behaviour that is kept.
pub const COMPATIBILITY: &str = "3.13.0";

const CAPABILITIES: [&str; 17] = [
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
    // basic.qos with `global` bounds a channel's live consumers from then on, for every kind of queue.
    "forebay.live_credit",
    crate::publisher::CAPABILITY,
    crate::ack_timeout::LEASES,
    crate::marks::CAPABILITY,
    crate::expiring::CAPABILITY,
    crate::channel::PAUSE,
    forebay_flow::FAIR_VISITS,
    forebay_flow::COMMIT_TIMES,
];

pub(crate) fn server_properties(node_name: &str) -> TableBuf {
    let mut capabilities = TableBuf::new();
    for name in CAPABILITIES {
        capabilities.push(name.as_bytes(), Value::Bool(true));
    }
    let text = |text: &'static str| Value::LongStr(text.as_bytes());
    let mut table = TableBuf::new();
    table.push(b"capabilities", Value::Table(capabilities.as_table()));
    table.push(b"cluster_name", Value::LongStr(node_name.as_bytes()));
    table.push(b"copyright", text("The Forebay authors"));
    table.push(b"forebay_version", text(env!("CARGO_PKG_VERSION")));
    table.push(b"information", text("Licensed under the Apache License 2.0"));
    table.push(b"platform", text("Rust"));
    table.push(b"product", text("Forebay"));
    table.push(b"version", text(COMPATIBILITY));
    table
}
