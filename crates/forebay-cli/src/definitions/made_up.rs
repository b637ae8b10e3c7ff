//! Queues whose names a broker has made up, `amq.gen-…`: no client may declare them, and whoever declared one without a name declares
//! another one at another broker. An export has them, also a RabbitMQ's; an import into one passes them over in silence.

use serde_json::Value;

/// What begins so is a broker's to declare.
const PREFIX: &str = "amq.";

/// Takes such queues out of `document`, and bindings to them. Returns how many entries of which part are gone.
pub(super) fn take_out(document: &mut Value) -> Vec<(&'static str, usize)> {
    let is_made_up =
        |entry: &Value, key: &str| entry[key].as_str().is_some_and(|it| it.starts_with(PREFIX));
    let mut taken_out = Vec::new();
    for part in ["queues", "bindings"] {
        let entries = document.get_mut(part).and_then(Value::as_array_mut);
        let Some(entries) = entries else { continue };
        let before = entries.len();
        entries.retain(|entry| match part {
            "queues" => !is_made_up(entry, "name"),
            _ => entry["destination_type"] != "queue" || !is_made_up(entry, "destination"),
        });
        taken_out.push((part, before - entries.len()));
    }
    taken_out.retain(|(_, count)| *count > 0);
    taken_out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn queues_with_names_of_a_broker_go_with_their_bindings() {
        let binding = |destination: &str, to: &str| json!({ "source": "amq.topic", "destination": destination, "destination_type": to });
        let mut document = json!({
            "exchanges": [{ "name": "x" }],
            "queues": [{ "name": "amq.gen-Xa" }, { "name": "amqp" }],
            "bindings": [
                binding("amq.gen-Xa", "queue"), binding("amq.gen-Xa", "queue"),
                binding("amqp", "queue"), binding("amq.fanout", "exchange"),
            ],
        });
        assert_eq!(take_out(&mut document), [("queues", 1), ("bindings", 2)]);
        let left = json!({
            "exchanges": [{ "name": "x" }],
            "queues": [{ "name": "amqp" }],
            "bindings": [binding("amqp", "queue"), binding("amq.fanout", "exchange")],
        });
        assert_eq!(document, left);
        assert_eq!(take_out(&mut document), []);
        // The broker says what is wrong with it.
        assert_eq!(take_out(&mut json!({ "queues": 1, "bindings": ["x"] })), []);
    }
}
