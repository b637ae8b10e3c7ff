//! Gates in plain words: who waits for what.

use super::look::Waiter;

/// What `count` waiters at a gate wait for, as the rest of a sentence about them; `waits_for` for gates
/// that a newer broker has.
pub(super) fn many(gate: &str, waits_for: &str, count: usize) -> String {
    let (one, several, what) = match words(gate) {
        Some((one, several, what)) => (one, several, what.to_owned()),
        None => ("somebody waits", "wait", format!("for {waits_for} ({gate})")),
    };
    if count == 1 { format!("{one} {what}") } else { format!("{count} {several} {what}") }
}

/// The same of one whose name is known.
pub(super) fn one(gate: &str, waits_for: &str, waiter: &Waiter) -> String {
    let name = name(waiter);
    let Some((_, _, what)) = words(gate) else {
        return format!("{name} waits for {waits_for} ({gate})");
    };
    let subject = match gate {
        "sync" => format!("confirms of {name} wait"),
        "socket" => format!("deliveries to {name} wait"),
        "batch" | "memory" | "space" | "unconfirmed" | "balance" => {
            format!("the publisher on {name} waits")
        }
        "credit" | "delivery" | "no_consumer" | "run" | "room" => {
            format!("messages of {name} wait")
        }
        _ => format!("{name} waits"),
    };
    format!("{subject} {what}")
}

/// `connection 127.0.0.1:5000 (guest)`, `queue orders`
pub(super) fn name(waiter: &Waiter) -> String {
    match waiter {
        Waiter::Connection { address, user, .. } if user.is_empty() => {
            format!("connection {address}")
        }
        Waiter::Connection { address, user, .. } => format!("connection {address} ({user})"),
        Waiter::Queue { vhost, name } if vhost == "/" => format!("queue {name}"),
        Waiter::Queue { vhost, name } => format!("queue {name} in {vhost}"),
    }
}

/// One who waits, several who wait, and for what.
fn words(gate: &str) -> Option<(&'static str, &'static str, &'static str)> {
    let publishers = ("a publisher waits", "publishers wait");
    let queues = ("messages of a queue wait", "queues have messages that wait");
    let connections = ("a connection waits", "connections wait");
    let ((one, several), what) = match gate {
        "turn" => (connections, "for the broker's processor"),
        "batch" => (publishers, "for the disk: the log cannot be written faster"),
        "unconfirmed" => (publishers, "for the disk: too much of theirs is unconfirmed"),
        "sync" => (
            ("confirms of a connection wait", "connections have confirms that wait"),
            "for the disk to sync",
        ),
        "space" => (publishers, "for room on the disk"),
        "memory" => (publishers, "for memory: the budget is full"),
        "outgoing" => (connections, "until their own client takes its answers"),
        "stop" => (connections, "for the broker, which stops"),
        "socket" => (
            ("deliveries to a connection wait", "connections have deliveries that wait"),
            "for their client to read",
        ),
        "credit" => (queues, "for consumers to acknowledge what they hold"),
        "delivery" => (queues, "for consumers' clients to read"),
        "no_consumer" => (queues, "for a consumer, and there is none"),
        "run" => (queues, "to be read back from disk"),
        "room" => (queues, "for memory to be read back into"),
        "balance" => (publishers, "for the consumers of a queue that balances"),
        _ => return None,
    };
    Some((one, several, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_gate_of_this_version_has_words() {
        for gate in forebay_server::Gate::ALL.map(forebay_server::Gate::name) {
            assert!(words(gate).is_some(), "{gate}");
        }
    }

    #[test]
    fn what_a_newer_broker_counts_is_shown_all_the_same() {
        let waiter = Waiter::Queue { vhost: "/".into(), name: "q".into() };
        assert_eq!(one("moon", "broker", &waiter), "queue q waits for broker (moon)");
        assert_eq!(many("moon", "broker", 3), "3 wait for broker (moon)");
    }
}
