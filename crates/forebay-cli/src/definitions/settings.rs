//! What a Forebay takes from its configuration file and nowhere else: users, virtual hosts, policies.

use std::collections::BTreeSet;

use serde_json::Value;
use toml::{Table, Value as Toml};

/// What an import leaves to people.
pub(super) struct Settings {
    /// `vhosts`, `users` and `policies` as they should be; `None` if they are.
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
    let permissions = merged(document, there, "permissions", &["user", "vhost"]);
    let topics = merged(document, there, "topic_permissions", &["user", "vhost", "exchange"]);
    let known = |entry: &&Value| users.iter().any(|user| user["name"] == entry["user"]);
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
        impossible.push(format!("parameter `{name}` of {component}: there are none here"));
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
        toml::to_string(&root).expect("tables of text and numbers")
    });
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

/// What policies may say here, of exchanges and of queues.
const POLICY_KEYS: [&str; 2] = ["alternate-exchange", "flow"];

fn unknown_policy(policy: &Value) -> Option<String> {
    let applies = text(policy, "apply-to");
    let known: &[&str] = match applies {
        "exchanges" => &["alternate-exchange"],
        "queues" => &["flow"],
        "all" => &POLICY_KEYS,
        _ => return Some(format!("it applies to {applies}, which means nothing to this version")),
    };
    let definition = policy["definition"].as_object()?;
    let unknown = definition.keys().find(|key| !known.contains(&key.as_str()))?;
    Some(format!("`{unknown}` of {applies} means nothing to this version"))
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
    let definition = POLICY_KEYS.iter().filter_map(|key| {
        let value = policy["definition"][*key].as_str()?;
        Some(((*key).to_owned(), Toml::from(value)))
    });
    let definition = Table::from_iter(definition);
    table.insert("definition".to_owned(), definition.into());
    table.into()
}
