//! What a broker left out of an import without a word. RabbitMQ does so with a binding of an exchange that is not there; and
//! `rabbitmqctl export_definitions` leaves internal exchanges out, and their bindings in.

use std::collections::HashSet;

use serde_json::Value;

/// A sentence for each exchange, queue and binding of `document` that is not in `after`, what the broker exports after the
/// import; of one virtual host, whose name is not in them, or of all.
pub(super) fn left_out(document: &Value, after: &Value, one_vhost: bool) -> Vec<String> {
    let there: HashSet<Vec<&str>> = entries(after).map(|it| it.place(one_vhost)).collect();
    let missing = entries(document).filter(|it| !there.contains(&it.place(one_vhost)));
    missing.map(|it| it.sentence()).collect()
}

/// Of one part of a document.
struct Entry<'a> {
    part: &'static str,
    entry: &'a Value,
}

fn entries(document: &Value) -> impl Iterator<Item = Entry<'_>> {
    ["exchanges", "queues", "bindings"].into_iter().flat_map(|part| {
        let entries = document[part].as_array().into_iter().flatten();
        entries.map(move |entry| Entry { part, entry })
    })
}

impl<'a> Entry<'a> {
    fn text(&self, key: &str) -> &'a str {
        self.entry[key].as_str().unwrap_or_default()
    }

    /// What nothing else has.
    fn place(&self, one_vhost: bool) -> Vec<&'a str> {
        let vhost = if one_vhost { "" } else { self.text("vhost") };
        let keys = ["name", "source", "destination", "destination_type", "routing_key"];
        [self.part, vhost].into_iter().chain(keys.map(|key| self.text(key))).collect()
    }

    fn sentence(&self) -> String {
        let what = match self.part {
            "exchanges" => format!("exchange `{}`", self.text("name")),
            "queues" => format!("queue `{}`", self.text("name")),
            _ => format!("binding of `{}` to `{}`", self.text("destination"), self.text("source")),
        };
        let vhost = self.entry["vhost"].as_str();
        let vhost = vhost.map_or_else(String::new, |vhost| format!(" in vhost `{vhost}`"));
        format!("{what}{vhost}: it is not there after the import, and the broker did not say why")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_not_there_is_named() {
        let binding = |source: &str| json!({ "vhost": "/", "source": source, "destination": "q", "destination_type": "queue", "routing_key": "" });
        let document = json!({
            "exchanges": [{ "vhost": "/", "name": "x" }],
            "queues": [{ "vhost": "/", "name": "q" }, { "vhost": "other", "name": "q" }],
            "bindings": [binding("x"), binding("i")],
        });
        let after = json!({
            "exchanges": [{ "vhost": "/", "name": "x" }],
            "queues": [{ "vhost": "/", "name": "q" }],
            "bindings": [binding("x")],
        });
        let said = left_out(&document, &after, false);
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[0].starts_with("queue `q` in vhost `other`: "), "{said:?}");
        assert!(said[1].starts_with("binding of `q` to `i` in vhost `/`: "), "{said:?}");
        let one = json!({ "queues": [{ "name": "q" }, { "name": "r" }] });
        let said = left_out(&one, &after, true);
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].starts_with("queue `r`: "), "{said:?}");
    }
}
