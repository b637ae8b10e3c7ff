//! `import --vhost`: one virtual host's part of a document, be it an export of that one or of a whole broker.

use serde_json::Value;

/// Parts whose entries are of a virtual host. Users and their permissions are of the broker, also for a RabbitMQ, which takes
/// none of them from such an import.
const PARTS: [&str; 5] = ["exchanges", "queues", "bindings", "policies", "parameters"];
const PARTS_OF_THE_BROKER: [&str; 5] =
    ["users", "vhosts", "permissions", "topic_permissions", "global_parameters"];

/// Leaves in `document` what is of `vhost`, which is everything that names no other, and names it in each entry. Returns how many
/// entries of which part are gone.
pub(super) fn keep(document: &mut Value, vhost: &str) -> Vec<(&'static str, usize)> {
    let mut left_aside = Vec::new();
    for part in PARTS {
        let entries = document.get_mut(part).and_then(Value::as_array_mut);
        let Some(entries) = entries else { continue };
        let before = entries.len();
        entries.retain(|entry| entry["vhost"].as_str().is_none_or(|other| other == vhost));
        left_aside.push((part, before - entries.len()));
        for entry in entries.iter_mut().filter_map(Value::as_object_mut) {
            entry.insert("vhost".to_owned(), vhost.into());
        }
    }
    for part in PARTS_OF_THE_BROKER {
        let gone = document.as_object_mut().and_then(|parts| parts.remove(part));
        let entries = gone.as_ref().and_then(Value::as_array).into_iter().flatten();
        // The virtual host itself is there, or the import is refused.
        left_aside.push((
            part,
            entries.filter(|entry| entry["name"] != vhost || part != "vhosts").count(),
        ));
    }
    left_aside.retain(|(_, count)| *count > 0);
    left_aside
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_names_another_virtual_host_is_left_aside_and_what_names_none_is_kept() {
        let mut document = json!({
            "rabbit_version": "3.10.8",
            "exchanges": [{ "vhost": "/", "name": "x" }],
            "queues": [
                { "vhost": "/", "name": "a" }, { "vhost": "shop", "name": "b" }, { "name": "c" }
            ],
            "policies": [{ "name": "p" }],
            "users": [{ "name": "u" }, { "name": "shop" }],
            "vhosts": [{ "name": "/" }, { "name": "shop" }],
            "global_parameters": [],
        });
        let left_aside = keep(&mut document, "shop");
        assert_eq!(left_aside, [("exchanges", 1), ("queues", 1), ("users", 2), ("vhosts", 1)]);
        let expected = json!({
            "rabbit_version": "3.10.8",
            "exchanges": [],
            "queues": [{ "vhost": "shop", "name": "b" }, { "vhost": "shop", "name": "c" }],
            "policies": [{ "vhost": "shop", "name": "p" }],
        });
        assert_eq!(document, expected);
    }

    #[test]
    fn what_is_no_list_is_left_to_the_broker() {
        let mut document = json!({ "queues": 1, "bindings": ["x"] });
        assert_eq!(keep(&mut document, "/"), []);
        assert_eq!(document, json!({ "queues": 1, "bindings": ["x"] }));
    }
}
