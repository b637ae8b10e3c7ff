//! Policies, as configured.

use super::error::ConfigError;
use super::slips::nearest;
use forebay_broker::topology::{Policy, QUEUE_POLICY_KEYS};
use forebay_wire::Value;
use serde::Deserialize;

/// Where a policy of exchanges may apply, and where one of queues.
const APPLIES_TO_EXCHANGES: [&str; 2] = ["exchanges", "all"];
const APPLIES_TO_QUEUES: [&str; 3] = ["queues", "classic_queues", "all"];
/// Kinds of queues that this version does not have.
const APPLIES_TO_OTHERS: [&str; 2] = ["quorum_queues", "streams"];
/// The key of exchanges; all others are of queues.
const ALTERNATE_EXCHANGE: &str = "alternate-exchange";

/// A policy, in the words of RabbitMQ's definitions.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicySetting {
    /// Virtual host.
    pub vhost: String,
    /// What it is called; says nothing else.
    pub name: String,
    /// Regular expression over names, matching anywhere unless anchored; an empty one matches all.
    pub pattern: String,
    /// `exchanges`, `queues`, `classic_queues` or `all`.
    #[serde(rename = "apply-to", default = "all")]
    pub apply_to: String,
    /// The highest of those that match holds.
    #[serde(default)]
    pub priority: i64,
    /// What it gives: `alternate-exchange` to exchanges, [`QUEUE_POLICY_KEYS`] to queues.
    pub definition: toml::Table,
}

fn all() -> String {
    "all".to_owned()
}

impl PolicySetting {
    /// As the broker has it: one of exchanges, one of queues, or both. One that applies to all holds for both, also where it gives
    /// nothing to one of them.
    ///
    /// # Errors
    /// What is wrong about it, to follow its name.
    pub fn policies(&self) -> Result<Vec<Policy>, String> {
        let PolicySetting { vhost, pattern, priority, apply_to, definition, .. } = self;
        let apply_to = apply_to.as_str();
        if APPLIES_TO_OTHERS.contains(&apply_to) {
            return Err(format!("applies to {apply_to}, which this version does not have"));
        }
        let (of_exchanges, of_queues) =
            (APPLIES_TO_EXCHANGES.contains(&apply_to), APPLIES_TO_QUEUES.contains(&apply_to));
        if !of_exchanges && !of_queues {
            return Err(format!(
                "has apply-to `{apply_to}`, none of exchanges, queues, classic_queues and all"
            ));
        }
        let known = |key: &str| key == ALTERNATE_EXCHANGE || QUEUE_POLICY_KEYS.contains(&key);
        if let Some(key) = definition.keys().find(|key| !known(key)) {
            let all = [ALTERNATE_EXCHANGE].into_iter().chain(QUEUE_POLICY_KEYS);
            if let Some(meant) = nearest(key, all) {
                return Err(format!("defines `{key}`; is `{meant}` meant?"));
            }
            return Err(format!(
                "defines `{key}`: of definition keys this version has {ALTERNATE_EXCHANGE} and {}",
                QUEUE_POLICY_KEYS.join(", ")
            ));
        }
        if definition.is_empty() {
            return Err(format!("needs {ALTERNATE_EXCHANGE} or keys of queues in its definition"));
        }
        let mut all = Vec::new();
        if of_exchanges && of_queues && !definition.contains_key(ALTERNATE_EXCHANGE) {
            all.push(Policy::new(vhost, pattern, *priority, ""));
        }
        if let Some(exchange) = definition.get(ALTERNATE_EXCHANGE) {
            if !of_exchanges {
                return Err(format!(
                    "applies to {apply_to}, and {ALTERNATE_EXCHANGE} is for exchanges"
                ));
            }
            match exchange.as_str() {
                Some(exchange) if !exchange.is_empty() && exchange.len() <= 255 => {
                    all.push(Policy::new(vhost, pattern, *priority, exchange));
                }
                _ => {
                    return Err(format!(
                        "needs {ALTERNATE_EXCHANGE} in its definition, a name of 1 to 255 bytes"
                    ));
                }
            }
        }
        let of_queue: Vec<_> =
            definition.iter().filter(|(key, _)| *key != ALTERNATE_EXCHANGE).collect();
        if let Some((key, _)) = of_queue.first() {
            if !of_queues {
                return Err(format!("applies to {apply_to}, and {key} is for queues"));
            }
            let mut values = Vec::new();
            for (key, value) in of_queue {
                let value = match value {
                    toml::Value::Integer(number) => Value::I64(*number),
                    toml::Value::String(text) => Value::LongStr(text.as_bytes()),
                    _ => return Err(format!("has a {key} that is neither a number nor a text")),
                };
                values.push((key.as_str(), value));
            }
            all.push(Policy::of_queues(vhost, pattern, *priority, values));
        } else if of_exchanges && of_queues {
            all.push(Policy::of_queues(vhost, pattern, *priority, []));
        }
        all.into_iter().collect::<Result<_, _>>().map_err(|error| format!("is no policy: {error}"))
    }
}

/// Whether all policies mean something.
pub(super) fn check(policies: &[PolicySetting], vhosts: &[String]) -> Result<(), ConfigError> {
    for (index, policy) in policies.iter().enumerate() {
        let PolicySetting { vhost, name, .. } = policy;
        let error = |what: String| Err(ConfigError::value("policies", format!("`{name}` {what}")));
        if name.is_empty() {
            return error("is no name: it must not be empty".to_owned());
        }
        if !vhosts.contains(vhost) {
            return error(format!("is for `{vhost}`, not one of vhosts"));
        }
        if policies[..index].iter().any(|other| other.name == *name && other.vhost == *vhost) {
            return error(format!("is there twice in `{vhost}`"));
        }
        if let Err(what) = policy.policies() {
            return error(what);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, Layer};

    fn read(text: &str) -> Result<Config, String> {
        Layer::from_toml("f.toml", text)
            .and_then(|layer| Config::from_layers(&[layer]))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_policy_reads_as_in_rabbitmqs_definitions() {
        let config = read(
            r#"
            [[policies]]
            vhost = "/"
            name = "unrouted"
            pattern = "^orders"
            apply-to = "exchanges"
            priority = 5
            definition = { alternate-exchange = "unrouted" }

            [[policies]]
            vhost = "/"
            name = "rest"
            pattern = ""
            definition.alternate-exchange = "rest"

            [[policies]]
            vhost = "/"
            name = "flow"
            pattern = "^work"
            apply-to = "queues"
            definition = { flow = "balance", message-ttl = 60000, dead-letter-exchange = "" }

            [[policies]]
            vhost = "/"
            name = "both"
            pattern = ""
            definition = { alternate-exchange = "x", max-length = 5, overflow = "reject-publish" }
            "#,
        )
        .unwrap();
        let [first, second, ..] = &config.policies[..] else { panic!("four") };
        assert_eq!((first.priority, &*first.apply_to), (5, "exchanges"));
        assert_eq!((second.priority, &*second.apply_to), (0, "all"));
        let counts: Vec<_> =
            config.policies.iter().map(|it| it.policies().unwrap().len()).collect();
        assert_eq!(counts, [1, 2, 1, 2], "what is of exchanges and of queues is two");
    }

    #[test]
    fn what_is_not_supported_is_named_with_what_is() {
        let check = |lines: &str, part: &str| {
            let text = read(&format!("[[policies]]\nname = \"p\"\n{lines}")).unwrap_err();
            assert!(text.contains(part), "{text}");
            assert!(!text.contains('\n'), "one sentence: {text}");
        };
        let place = "vhost = \"/\"\npattern = \"\"\n";
        check(
            &format!("{place}definition = {{ max-priority = 5 }}"),
            "configuration key policies: `p` defines `max-priority`: of definition keys this version \
             has alternate-exchange and consumer-timeout, dead-letter-exchange,",
        );
        check(&format!("{place}definition = {{}}"), "needs alternate-exchange or keys of queues");
        check(&format!("{place}definition = {{ max-length = true }}"), "neither a number nor");
        check(
            &format!("{place}definition = {{ max-length = -1 }}"),
            "`p` is no policy: its definition",
        );
        check(
            &format!("{place}definition = {{ message-ttl = \"1\" }}"),
            "message-ttl must be a number",
        );
        check(&format!("{place}definition = {{ alternate-exchange = 1 }}"), "needs alternate");
        check(&format!("{place}definition = {{ alternate-exchange = \"\" }}"), "1 to 255 bytes");
        let rest = "definition = { alternate-exchange = \"x\" }";
        check(&format!("{place}apply-to = \"queues\"\n{rest}"), "is for exchanges");
        check(&format!("{place}apply-to = \"streams\"\n{rest}"), "does not have");
        check(&format!("{place}apply-to = \"streets\"\n{rest}"), "none of exchanges, queues");
        let flow = "definition = { flow = \"balance\" }";
        check(&format!("{place}apply-to = \"exchanges\"\n{flow}"), "is for queues");
        check(
            &format!("{place}definition = {{ flow = \"swing\" }}"),
            "is not usable: flow must be absorb or balance",
        );
        check(
            &format!(
                "{place}definition = {{ dead-letter-exchange = \"x\", dead-letter-routing-key = \"k\", overflow = \"drop\" }}"
            ),
            "usable: overflow must be drop-head, reject-publish or reject-publish-dlx",
        );
        check(
            &format!("{place}definition = {{ dead-letter-routing-key = \"k\" }}"),
            "there must be a dead-letter-exchange beside it",
        );
        check(
            &format!("{place}definition = {{ consumer-timeout = -1 }}"),
            "consumer-timeout must be",
        );
        check(
            &format!("{place}definition = {{ max-lenght = 1 }}"),
            "`p` defines `max-lenght`; is `max-length` meant?",
        );
        check(&format!("vhost = \"/\"\npattern = \"(\"\n{rest}"), "pattern '(' is not usable");
        check(&format!("vhost = \"v\"\npattern = \"\"\n{rest}"), "`v`, not one of vhosts");
        check(&format!("{place}prio = 1\n{rest}"), "prio");
        let whole = format!("{place}{rest}\n");
        check(&format!("{whole}[[policies]]\nname = \"p\"\n{whole}"), "twice");
    }
}
