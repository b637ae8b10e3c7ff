//! What a Forebay takes from its configuration file and nowhere else: users, virtual hosts with their limits, policies.

use std::collections::BTreeSet;

use forebay_server::config::{PermissionSetting, PolicySetting, TopicPermissionSetting};
use forebay_server::{Config, Layer, UserSetting};
use serde_json::Value;
use toml::{Table, Value as Toml};

/// What an import leaves to people.
pub(super) struct Settings {
    /// `vhosts`, `users`, `policies` and `vhost_limits` as they should be; `None` if they are.
    pub(super) toml: Option<String>,
    /// What cannot be in the configuration either, a sentence each.
    pub(super) impossible: Vec<String>,
}

/// Parts of permissions, in the order of documents.
const PERMISSION: [&str; 3] = ["configure", "write", "read"];
const TOPIC_PERMISSION: [&str; 2] = ["write", "read"];

/// Compares a document with what the broker has. A user whom the broker has keeps the password there.
pub(super) fn missing(document: &Value, there: &Value) -> Settings {
    let mut impossible = Vec::new();
    let vhosts = vhosts(document, there);
    let mut differs = vhosts.len() > list(there, "vhosts").len();

    let mut users: Vec<&Value> = list(there, "users").iter().collect();
    for user in list(document, "users") {
        let name = text(user, "name");
        let unknown = unknown_limits(&user["limits"], &[]);
        impossible
            .extend(unknown.map(|it| format!("limit `{it}` of user `{name}`: {UNKNOWN_LIMIT}")));
        if users.iter().any(|other| other["name"] == user["name"]) {
            continue;
        }
        let algorithm = user["hashing_algorithm"].as_str();
        if text(user, "password_hash").is_empty() {
            impossible.push(format!("user `{name}`: it has no password, so it cannot log in here"));
        } else if algorithm.is_some_and(|it| it != "rabbit_password_hashing_sha256") {
            impossible.push(format!(
                "user `{name}`: its password must be set anew, as it is hashed by {}",
                algorithm.unwrap_or_default()
            ));
        } else {
            differs = true;
            users.push(user);
        }
    }
    let mut permissions = merged(document, there, "permissions", &["user", "vhost"]);
    let mut topics = merged(document, there, "topic_permissions", &["user", "vhost", "exchange"]);
    let known = |entry: &&Value| users.iter().any(|user| user["name"] == entry["user"]);
    permissions.retain(known);
    permissions.retain(|permission| {
        let Err(why) = permissions_of(permission, &topics).user() else { return true };
        // All of them in this place: without the limits by topic the rest would be more than was given.
        topics.retain(|topic| !is_of_one(topic, permission));
        impossible.push(format!("permissions: {why}; the lines give the user none there"));
        false
    });
    let differ = |entries: &[&Value], part: &str, values: &[&str]| {
        entries.iter().filter(|entry| known(entry)).any(|entry| {
            !list(there, part).iter().any(|other| {
                ["user", "vhost", "exchange"]
                    .iter()
                    .chain(values)
                    .all(|key| other[*key] == entry[*key])
            })
        })
    };
    differs |= differ(&permissions, "permissions", &PERMISSION);
    differs |= differ(&topics, "topic_permissions", &TOPIC_PERMISSION);

    let mut policies: Vec<&Value> = Vec::new();
    for policy in merged(document, there, "policies", &["vhost", "name"]) {
        let is_there = list(there, "policies").contains(policy);
        match unknown_policy(policy) {
            Some(why) => impossible.push(format!("policy `{}`: {why}", text(policy, "name"))),
            None => {
                differs |= !is_there;
                policies.push(policy);
            }
        }
    }
    for parameter in list(document, "parameters") {
        let (component, name) = (text(parameter, "component"), text(parameter, "name"));
        if component != VHOST_LIMITS {
            impossible.push(format!("parameter `{name}` of {component}: there are none here"));
        }
    }
    let mut limits: Vec<Toml> = Vec::new();
    for parameter in merged(document, there, "parameters", &["vhost", "component", "name"]) {
        if text(parameter, "component") != VHOST_LIMITS {
            continue;
        }
        let vhost = text(parameter, "vhost");
        let unknown = unknown_limits(&parameter["value"], &[CONNECTIONS_MAX]);
        impossible
            .extend(unknown.map(|it| format!("limit `{it}` of vhost `{vhost}`: {UNKNOWN_LIMIT}")));
        if let Some(limit) = as_limit(parameter) {
            differs |=
                !list(there, "parameters").iter().any(|it| as_limit(it) == Some(limit.clone()));
            limits.push(limit);
        }
    }

    let toml = differs.then(|| {
        let mut root = Table::new();
        root.insert(
            "vhosts".to_owned(),
            vhosts.iter().map(|name| Toml::from(*name)).collect::<Vec<_>>().into(),
        );
        let users: Vec<Toml> =
            users.iter().map(|user| as_user(user, &permissions, &topics)).collect();
        root.insert("users".to_owned(), users.into());
        if !policies.is_empty() {
            let policies: Vec<Toml> = policies.iter().map(|policy| as_policy(policy)).collect();
            root.insert("policies".to_owned(), policies.into());
        }
        if !limits.is_empty() {
            root.insert("vhost_limits".to_owned(), limits.into());
        }
        toml::to_string(&root).expect("tables of text and numbers")
    });
    let refused = toml.as_ref().and_then(|lines| {
        let layer = Layer::from_toml("the lines", lines);
        layer.and_then(|layer| Config::from_layers(&[layer])).err()
    });
    impossible.extend(refused.map(|why| format!("the lines as they are would be refused: {why}")));
    Settings { toml, impossible }
}

fn list<'a>(document: &'a Value, part: &str) -> &'a [Value] {
    document[part].as_array().map_or(&[], Vec::as_slice)
}

fn text<'a>(entry: &'a Value, key: &str) -> &'a str {
    entry[key].as_str().unwrap_or_default()
}

/// All virtual hosts that are there or needed.
fn vhosts<'a>(document: &'a Value, there: &'a Value) -> Vec<&'a str> {
    let mut seen = BTreeSet::new();
    let of = |document: &'a Value, part: &str, key: &'static str| {
        list(document, part).iter().map(move |entry| text(entry, key)).collect::<Vec<_>>()
    };
    [
        of(there, "vhosts", "name"),
        of(document, "vhosts", "name"),
        of(document, "permissions", "vhost"),
    ]
    .into_iter()
    .flatten()
    .filter(|name| seen.insert(*name))
    .collect()
}

/// The entries of both; where both have one, the document's.
fn merged<'a>(document: &'a Value, there: &'a Value, part: &str, keys: &[&str]) -> Vec<&'a Value> {
    let ours = list(document, part);
    let same = |a: &Value, b: &Value| keys.iter().all(|key| a[*key] == b[*key]);
    let theirs =
        list(there, part).iter().filter(|entry| !ours.iter().any(|other| same(entry, other)));
    theirs.chain(ours).collect()
}

/// What policies may say here of exchanges; and of queues.
const ALTERNATE_EXCHANGE: &str = "alternate-exchange";
const QUEUE_KEYS: [&str; 9] = forebay_server::QUEUE_POLICY_KEYS;

fn unknown_policy(policy: &Value) -> Option<String> {
    let applies = text(policy, "apply-to");
    let (of_exchanges, of_queues) = match applies {
        "exchanges" => (true, false),
        "queues" | "classic_queues" => (false, true),
        "all" => (true, true),
        _ => return Some(format!("it applies to {applies}, which means nothing to this version")),
    };
    let known = |key: &str| {
        of_exchanges && key == ALTERNATE_EXCHANGE || of_queues && QUEUE_KEYS.contains(&key)
    };
    let definition = policy["definition"].as_object()?;
    if let Some(unknown) = definition.keys().find(|key| !known(key)) {
        return Some(format!("`{unknown}` of {applies} means nothing to this version"));
    }
    if let Some((key, _)) = definition.iter().find(|(_, value)| as_toml(value).is_none()) {
        return Some(format!("`{key}` is neither a number nor a text"));
    }
    // As the broker that reads the lines would say it.
    match as_policy(policy).try_into::<PolicySetting>() {
        Ok(setting) => setting.policies().err().map(|why| format!("it {why}")),
        Err(error) => Some(error.message().to_owned()),
    }
}

/// The component of RabbitMQ's parameters that are limits of virtual hosts; below 0 there is none.
const VHOST_LIMITS: &str = "vhost-limits";
const CONNECTIONS_MAX: &str = "max-connections";

/// What is said of a limit that would not be held.
const UNKNOWN_LIMIT: &str = "it means nothing to this version";

/// Limits, of a virtual host or a user, that there are and that are none of `known`.
fn unknown_limits<'a>(limits: &'a Value, known: &'a [&str]) -> impl Iterator<Item = &'a String> {
    let limits = limits.as_object().into_iter().flatten();
    let is_one = |value: &Value| value.as_i64().is_none_or(|it| it >= 0);
    limits
        .filter(move |(key, value)| !known.contains(&key.as_str()) && is_one(value))
        .map(|(key, _)| key)
}

fn as_limit(parameter: &Value) -> Option<Toml> {
    let most = parameter["value"][CONNECTIONS_MAX].as_i64().filter(|most| *most >= 0)?;
    let mut table = Table::new();
    table.insert("vhost".to_owned(), text(parameter, "vhost").into());
    table.insert(CONNECTIONS_MAX.to_owned(), most.into());
    Some(table.into())
}

/// Whether both are about one user in one virtual host.
fn is_of_one(entry: &Value, other: &Value) -> bool {
    ["user", "vhost"].iter().all(|key| entry[*key] == other[*key])
}

/// What a user may do in one virtual host, as the configuration would say it.
fn permissions_of(permission: &Value, topics: &[&Value]) -> UserSetting {
    let [configure, write, read] = PERMISSION.map(|key| text(permission, key).to_owned());
    let vhost = text(permission, "vhost").to_owned();
    let topics = topics.iter().filter(|topic| is_of_one(topic, permission));
    UserSetting {
        permissions: vec![PermissionSetting { vhost: vhost.clone(), configure, write, read }],
        topic_permissions: topics
            .map(|topic| TopicPermissionSetting {
                vhost: vhost.clone(),
                exchange: text(topic, "exchange").to_owned(),
                write: text(topic, "write").to_owned(),
                read: text(topic, "read").to_owned(),
            })
            .collect(),
        ..UserSetting::with_password(text(permission, "user"), "", &vhost)
    }
}

fn as_toml(value: &Value) -> Option<Toml> {
    value.as_str().map(Toml::from).or_else(|| value.as_i64().map(Toml::from))
}

fn as_user(user: &Value, permissions: &[&Value], topics: &[&Value]) -> Toml {
    let name = text(user, "name");
    let mut table = Table::new();
    table.insert("name".to_owned(), name.into());
    table.insert("password_hash".to_owned(), text(user, "password_hash").into());
    let tags: Vec<Toml> = match &user["tags"] {
        Value::Array(tags) => tags.iter().filter_map(Value::as_str).map(Toml::from).collect(),
        // As RabbitMQ wrote them before 3.9.
        tags => {
            let tags = tags.as_str().unwrap_or_default().split(',').map(str::trim);
            tags.filter(|tag| !tag.is_empty()).map(Toml::from).collect()
        }
    };
    table.insert("tags".to_owned(), tags.into());
    let of = |entries: &[&Value], keys: &[&str]| -> Vec<Toml> {
        let mine = entries.iter().filter(|entry| entry["user"] == name);
        let row = |entry: &&Value| {
            keys.iter()
                .map(|key| ((*key).to_owned(), Toml::from(text(entry, key))))
                .collect::<Table>()
        };
        mine.map(row).map(Toml::Table).collect()
    };
    let permissions = of(permissions, &["vhost", "configure", "write", "read"]);
    table.insert("permissions".to_owned(), permissions.into());
    table.insert(
        "topic_permissions".to_owned(),
        of(topics, &["vhost", "exchange", "write", "read"]).into(),
    );
    table.into()
}

fn as_policy(policy: &Value) -> Toml {
    let mut table = Table::new();
    for key in ["vhost", "name", "pattern", "apply-to"] {
        table.insert(key.to_owned(), text(policy, key).into());
    }
    table.insert("priority".to_owned(), policy["priority"].as_i64().unwrap_or(0).into());
    let definition = policy["definition"].as_object().into_iter().flatten();
    let definition = definition.filter_map(|(key, value)| Some((key.clone(), as_toml(value)?)));
    let definition = Table::from_iter(definition);
    table.insert("definition".to_owned(), definition.into());
    table.into()
}
