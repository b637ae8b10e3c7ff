//! `import --vhost`: one virtual host's part of a document, be it an export of that one or of a whole broker.

use std::collections::BTreeSet;

use serde_json::Value;

/// Parts whose entries are of a virtual host. Users and their permissions are of the broker, also for a RabbitMQ, which takes
/// none of them from such an import.
const PARTS: [&str; 5] = ["exchanges", "queues", "bindings", "policies", "parameters"];
/// Of these, where a RabbitMQ leaves the name of the virtual host also in an export of one.
const NAMED_ANYWAY: [&str; 2] = ["policies", "parameters"];
const PARTS_OF_THE_BROKER: [&str; 5] =
    ["users", "vhosts", "permissions", "topic_permissions", "global_parameters"];

/// Leaves in `document` what is of `vhost`, which is everything that names no other, and names it in each entry. Returns how many
/// entries of which part are gone.
pub(super) fn keep(document: &mut Value, vhost: &str) -> Vec<(&'static str, usize)> {
    let mut left_aside = Vec::new();
    let is_of_one = is_of_one(document);
    for part in PARTS {
        let entries = document.get_mut(part).and_then(Value::as_array_mut);
        let Some(entries) = entries else { continue };
        let before = entries.len();
        let is_taken = |entry: &Value| match entry["vhost"].as_str() {
            Some(other) if !is_of_one => other == vhost,
            _ => true,
        };
        entries.retain(is_taken);
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

/// Whether it is an export of one virtual host, whatever its name, and not of a broker.
fn is_of_one(document: &Value) -> bool {
    let names = |part: &&str| {
        let entries = document[*part].as_array().into_iter().flatten();
        entries.filter_map(|entry| entry["vhost"].as_str()).collect::<Vec<_>>()
    };
    let (anyway, others): (Vec<&str>, Vec<&str>) =
        PARTS.iter().partition(|part| NAMED_ANYWAY.contains(part));
    let anyway: BTreeSet<&str> = anyway.iter().flat_map(names).collect();
    document.get("vhosts").is_none()
        && others.iter().all(|part| names(part).is_empty())
        && anyway.len() <= 1
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

    /// As a RabbitMQ 3.10.8 answers for one virtual host.
    #[test]
    fn an_export_of_one_virtual_host_comes_whole_into_another() {
        let of_one = json!({
            "queues": [{ "name": "q" }],
            "policies": [{ "vhost": "shop", "name": "p" }],
            "parameters": [{ "vhost": "shop", "component": "vhost-limits", "name": "limits" }],
        });
        let mut document = of_one.clone();
        assert_eq!(keep(&mut document, "new"), []);
        for (part, vhost) in [("queues", "new"), ("policies", "new"), ("parameters", "new")] {
            assert_eq!(document[part][0]["vhost"], vhost, "{part}");
        }
        // These are of a broker.
        let mut whole = of_one.clone();
        whole["vhosts"] = json!([{ "name": "shop" }]);
        assert_eq!(keep(&mut whole, "new"), [("policies", 1), ("parameters", 1), ("vhosts", 1)]);
        let mut some = of_one.clone();
        some["parameters"][0]["vhost"] = "/".into();
        assert_eq!(keep(&mut some, "shop"), [("parameters", 1)]);
        let mut queues = of_one;
        queues["queues"][0]["vhost"] = "shop".into();
        assert_eq!(keep(&mut queues, "new"), [("queues", 1), ("policies", 1), ("parameters", 1)]);
    }

    #[test]
    fn what_is_no_list_is_left_to_the_broker() {
        let mut document = json!({ "queues": 1, "bindings": ["x"] });
        assert_eq!(keep(&mut document, "/"), []);
        assert_eq!(document, json!({ "queues": 1, "bindings": ["x"] }));
    }
}
