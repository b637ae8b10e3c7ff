//! RabbitMQ's definitions document: written from what is there, read into what is to be declared.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use forebay_broker::Listed;
use forebay_broker::access::Password;
use forebay_broker::topology::is_reserved;
use forebay_wire::{ShortStr, TableBuf, WireMethod, exchange, queue, write_method};
use serde_json::{Map, Value, json};

use super::declarer::{CHANNEL, Item};
use super::json::{from_table, to_table};
use crate::config::{Config, PasswordSetting};

/// What comes from the configuration and stays as long as the server runs.
pub(super) struct Fixed {
    /// `users`, `vhosts`, `permissions`, `topic_permissions`, `policies`, `parameters`.
    parts: Map<String, Value>,
}

impl Fixed {
    pub(super) fn new(config: &Config) -> Fixed {
        let mut parts = Map::new();
        let users = config.users.iter().map(|user| {
            let hash = match user.password() {
                Some(PasswordSetting::Plain(plain)) => {
                    // Chosen anew at each start; a salt need be different, not secret.
                    let salt = RandomState::new().build_hasher().finish().to_be_bytes();
                    let salt = [salt[0], salt[1], salt[2], salt[3]];
                    Password::salted(plain.as_bytes(), salt).to_base64_hash().unwrap_or_default()
                }
                Some(PasswordSetting::Hash(hash)) => hash.to_owned(),
                None => String::new(),
            };
            json!({
                "name": user.name,
                "password_hash": hash,
                "hashing_algorithm": "rabbit_password_hashing_sha256",
                "tags": user.tags,
            })
        });
        parts.insert("users".to_owned(), users.collect());
        let vhosts = config.vhosts.iter().map(|name| json!({ "name": name }));
        parts.insert("vhosts".to_owned(), vhosts.collect());
        let permissions = config.users.iter().flat_map(|user| {
            user.permissions.iter().map(|it| {
                json!({
                    "user": user.name, "vhost": it.vhost,
                    "configure": it.configure, "write": it.write, "read": it.read,
                })
            })
        });
        parts.insert("permissions".to_owned(), permissions.collect());
        let topics = config.users.iter().flat_map(|user| {
            user.topic_permissions.iter().map(|it| {
                json!({
                    "user": user.name, "vhost": it.vhost, "exchange": it.exchange,
                    "write": it.write, "read": it.read,
                })
            })
        });
        parts.insert("topic_permissions".to_owned(), topics.collect());
        let policies = config.policies.iter().map(|it| {
            json!({
                "vhost": it.vhost, "name": it.name, "pattern": it.pattern, "apply-to": it.apply_to,
                "priority": it.priority, "definition": it.definition,
            })
        });
        parts.insert("policies".to_owned(), policies.collect());
        let limits = config.vhost_limits.iter().map(|it| {
            json!({
                "vhost": it.vhost, "component": "vhost-limits", "name": "limits",
                "value": { "max-connections": it.connections_max },
            })
        });
        parts.insert("parameters".to_owned(), limits.collect());
        Fixed { parts }
    }

    pub(super) fn has_vhost(&self, name: &str) -> bool {
        let vhosts = self.parts["vhosts"].as_array();
        vhosts.is_some_and(|vhosts| vhosts.iter().any(|vhost| vhost["name"] == name))
    }

    /// All of it, or one virtual host's part without the host's name, as RabbitMQ has it.
    pub(super) fn document(&self, listed: &[Listed], vhost: Option<&str>) -> Value {
        let mut document = json!({
            "rabbit_version": forebay_broker::COMPATIBILITY,
            "product_name": "Forebay",
            "product_version": env!("CARGO_PKG_VERSION"),
            "exchanges": [], "queues": [], "bindings": [],
        });
        for (name, entries) in &self.parts {
            if vhost.is_none() || ["policies", "parameters"].contains(&&**name) {
                document[name] = entries.clone();
            }
        }
        if vhost.is_none() {
            document["global_parameters"] = json!([]);
        }
        for each in listed {
            let (part, entry) = entry(each);
            document[part].as_array_mut().expect("it was made above").push(entry);
        }
        if let Some(vhost) = vhost {
            for part in ["exchanges", "queues", "bindings", "policies", "parameters"] {
                let entries = document[part].as_array_mut().expect("it was made above");
                entries.retain(|entry| entry["vhost"] == vhost);
                for entry in entries {
                    entry.as_object_mut().expect("an entry is one").remove("vhost");
                }
            }
        }
        document
    }
}

fn entry(listed: &Listed) -> (&'static str, Value) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match listed {
        Listed::Exchange { vhost, name, kind, durable, auto_delete, internal, arguments } => (
            "exchanges",
            json!({
                "name": text(name), "vhost": vhost, "type": kind.to_string(), "durable": durable,
                "auto_delete": auto_delete, "internal": internal,
                "arguments": from_table(arguments.as_table()),
            }),
        ),
        Listed::Queue { vhost, name, durable, auto_delete, arguments } => (
            "queues",
            json!({
                "name": text(name), "vhost": vhost, "durable": durable, "auto_delete": auto_delete,
                "arguments": from_table(arguments.as_table()),
            }),
        ),
        Listed::Binding { vhost, source, destination, to_exchange, routing_key, arguments } => (
            "bindings",
            json!({
                "source": text(source), "vhost": vhost, "destination": text(destination),
                "destination_type": if *to_exchange { "exchange" } else { "queue" },
                "routing_key": text(routing_key), "arguments": from_table(arguments.as_table()),
            }),
        ),
    }
}

/// What a document asks for.
#[derive(Debug)]
pub(super) struct Wanted {
    /// Exchanges first, then queues, then bindings.
    pub(super) by_vhost: BTreeMap<String, Vec<Item>>,
    /// Entries of each kind that come from the configuration, and from nowhere else.
    pub(super) elsewhere: BTreeMap<String, usize>,
    /// Queues whose names a broker has made up, and bindings to them: no client may declare such a queue, and whoever did so
    /// without a name gets another. An import into a RabbitMQ passes them over, too.
    pub(super) made_up: usize,
}

/// Kinds of entries that the configuration has.
const ELSEWHERE: [&str; 7] = [
    "users",
    "vhosts",
    "permissions",
    "topic_permissions",
    "policies",
    "parameters",
    "global_parameters",
];

impl Wanted {
    /// Reads a document, or one virtual host's part of one. `Err` names what cannot be understood; then
    /// nothing is declared.
    pub(super) fn read(document: &Value, vhost: Option<&str>) -> Result<Wanted, String> {
        if !document.is_object() {
            return Err("definitions are a JSON object".to_owned());
        }
        let mut wanted =
            Wanted { by_vhost: BTreeMap::new(), elsewhere: BTreeMap::new(), made_up: 0 };
        for part in ELSEWHERE {
            let count = document[part].as_array().map_or(0, Vec::len);
            if count > 0 {
                wanted.elsewhere.insert(part.to_owned(), count);
            }
        }
        type Read = fn(&Entry<'_>) -> Result<Vec<u8>, String>;
        let parts: [(&str, Read); 3] =
            [("exchanges", exchange_frame), ("queues", queue_frame), ("bindings", binding_frame)];
        for (part, read) in parts {
            let entries = match &document[part] {
                Value::Null => continue,
                Value::Array(entries) => entries,
                _ => return Err(format!("`{part}` must be a list")),
            };
            for (index, value) in entries.iter().enumerate() {
                let entry = Entry(value);
                let at = |reason: String| format!("{part}[{index}]: {reason}");
                let name = match vhost {
                    Some(vhost) => vhost,
                    None => entry.text("vhost").map_err(at)?,
                };
                let what = if part == "bindings" {
                    let (from, to) = (entry.text("source"), entry.text("destination"));
                    format!("binding of `{}` to `{}`", to.map_err(at)?, from.map_err(at)?)
                } else {
                    format!("{} `{}`", &part[..part.len() - 1], entry.text("name").map_err(at)?)
                };
                let what = format!("{what} in vhost `{name}`");
                let frame = read(&entry).map_err(at)?;
                if entry.is_of_made_up(part) {
                    wanted.made_up += 1;
                    continue;
                }
                wanted.by_vhost.entry(name.to_owned()).or_default().push(Item { what, frame });
            }
        }
        Ok(wanted)
    }
}

/// One entry of a list.
struct Entry<'a>(&'a Value);

impl<'a> Entry<'a> {
    fn text(&self, key: &str) -> Result<&'a str, String> {
        self.0[key].as_str().ok_or_else(|| format!("`{key}` must be a text"))
    }

    fn name(&self, key: &str) -> Result<ShortStr<'a>, String> {
        let text = self.text(key)?;
        ShortStr::new(text.as_bytes()).ok_or_else(|| format!("`{key}` has more than 255 bytes"))
    }

    /// Whether it is a queue with a name that only a broker gives, or a binding to one.
    fn is_of_made_up(&self, part: &str) -> bool {
        let reserved = |key| self.text(key).is_ok_and(|name| is_reserved(name.as_bytes()));
        match part {
            "queues" => reserved("name"),
            "bindings" => self.0["destination_type"] == "queue" && reserved("destination"),
            _ => false,
        }
    }

    fn flag(&self, key: &str) -> Result<bool, String> {
        match &self.0[key] {
            Value::Null => Ok(false),
            Value::Bool(flag) => Ok(*flag),
            _ => Err(format!("`{key}` must be true or false")),
        }
    }

    fn arguments(&self) -> Result<TableBuf, String> {
        to_table(&self.0["arguments"])
    }
}

fn frame(method: &impl WireMethod) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_method(&mut bytes, CHANNEL, method);
    bytes
}

fn exchange_frame(entry: &Entry<'_>) -> Result<Vec<u8>, String> {
    Ok(frame(&exchange::Declare {
        exchange: entry.name("name")?,
        type_name: entry.name("type")?,
        durable: entry.flag("durable")?,
        auto_delete: entry.flag("auto_delete")?,
        internal: entry.flag("internal")?,
        arguments: entry.arguments()?.as_table(),
        ..Default::default()
    }))
}

fn queue_frame(entry: &Entry<'_>) -> Result<Vec<u8>, String> {
    Ok(frame(&queue::Declare {
        queue: entry.name("name")?,
        durable: entry.flag("durable")?,
        auto_delete: entry.flag("auto_delete")?,
        arguments: entry.arguments()?.as_table(),
        ..Default::default()
    }))
}

fn binding_frame(entry: &Entry<'_>) -> Result<Vec<u8>, String> {
    let arguments = entry.arguments()?;
    let (source, destination) = (entry.name("source")?, entry.name("destination")?);
    let routing_key = entry.name("routing_key")?;
    match entry.text("destination_type")? {
        "queue" => Ok(frame(&queue::Bind {
            queue: destination,
            exchange: source,
            routing_key,
            arguments: arguments.as_table(),
            ..Default::default()
        })),
        "exchange" => Ok(frame(&exchange::Bind {
            destination,
            source,
            routing_key,
            arguments: arguments.as_table(),
            ..Default::default()
        })),
        other => Err(format!("`destination_type` is `{other}` instead of queue or exchange")),
    }
}
