//! Policies, as configured.

use super::error::ConfigError;
use forebay_broker::QueueFlow;
use serde::Deserialize;

/// Where a policy of exchanges may apply, and where one of queues.
const APPLIES_TO_EXCHANGES: [&str; 2] = ["exchanges", "all"];
const APPLIES_TO_QUEUES: [&str; 3] = ["queues", "classic_queues", "all"];
/// Kinds of queues that this version does not have.
const APPLIES_TO_OTHERS: [&str; 2] = ["quorum_queues", "streams"];
/// The keys of a definition; one has one of them.
const ALTERNATE_EXCHANGE: &str = "alternate-exchange";
const FLOW: &str = "flow";

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
    /// What it gives: `alternate-exchange` or `flow`.
    pub definition: toml::Table,
}

fn all() -> String {
    "all".to_owned()
}

impl PolicySetting {
    /// The alternate exchange it gives, if that is what it gives.
    pub fn alternate_exchange(&self) -> Option<&str> {
        self.definition.get(ALTERNATE_EXCHANGE)?.as_str()
    }

    /// The flow mode it gives, if that is what it gives.
    pub fn flow(&self) -> Option<QueueFlow> {
        QueueFlow::named(self.definition.get(FLOW)?.as_str()?.as_bytes())
    }
}

/// Whether all policies mean something.
pub(super) fn check(policies: &[PolicySetting], vhosts: &[String]) -> Result<(), ConfigError> {
    for (index, policy) in policies.iter().enumerate() {
        let PolicySetting { vhost, name, apply_to, definition, .. } = policy;
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
        let apply_to = apply_to.as_str();
        if APPLIES_TO_OTHERS.contains(&apply_to) {
            return error(format!("applies to {apply_to}, which this version does not have"));
        }
        let (of_exchanges, of_queues) =
            (APPLIES_TO_EXCHANGES.contains(&apply_to), APPLIES_TO_QUEUES.contains(&apply_to));
        if !of_exchanges && !of_queues {
            return error(format!(
                "has apply-to `{apply_to}`, none of exchanges, queues, classic_queues and all"
            ));
        }
        if let Some(key) =
            definition.keys().find(|key| ![ALTERNATE_EXCHANGE, FLOW].contains(&&***key))
        {
            return error(format!(
                "defines `{key}`: of definition keys this version has {ALTERNATE_EXCHANGE} and {FLOW}"
            ));
        }
        match (definition.contains_key(ALTERNATE_EXCHANGE), definition.contains_key(FLOW)) {
            (true, false) if !of_exchanges => {
                return error(format!(
                    "applies to {apply_to}, and {ALTERNATE_EXCHANGE} is for exchanges"
                ));
            }
            (true, false) => match policy.alternate_exchange() {
                Some(exchange) if !exchange.is_empty() && exchange.len() <= 255 => {}
                _ => {
                    return error(format!(
                        "needs {ALTERNATE_EXCHANGE} in its definition, a name of 1 to 255 bytes"
                    ));
                }
            },
            (false, true) if !of_queues => {
                return error(format!("applies to {apply_to}, and {FLOW} is for queues"));
            }
            (false, true) if policy.flow().is_none() => {
                return error(format!("has a {FLOW} that is neither \"absorb\" nor \"balance\""));
            }
            (false, true) => {}
            _ => {
                return error(format!(
                    "needs one of {ALTERNATE_EXCHANGE} and {FLOW} in its definition"
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::QueueFlow;
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
            definition = { flow = "balance" }
            "#,
        )
        .unwrap();
        let [first, second, third] = &config.policies[..] else { panic!("three") };
        assert_eq!(third.flow(), Some(QueueFlow::Balance));
        assert_eq!((first.priority, first.alternate_exchange()), (5, Some("unrouted")));
        assert_eq!((second.priority, &*second.apply_to), (0, "all"));
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
            &format!("{place}definition = {{ max-length = 5 }}"),
            "configuration key policies: `p` defines `max-length`: of definition keys this version \
             has alternate-exchange and flow",
        );
        check(&format!("{place}definition = {{}}"), "needs one of alternate-exchange and flow");
        let both = "definition = { alternate-exchange = \"x\", flow = \"absorb\" }";
        check(&format!("{place}{both}"), "needs one of");
        check(&format!("{place}definition = {{ alternate-exchange = 1 }}"), "needs alternate");
        check(&format!("{place}definition = {{ alternate-exchange = \"\" }}"), "1 to 255 bytes");
        let rest = "definition = { alternate-exchange = \"x\" }";
        check(&format!("{place}apply-to = \"queues\"\n{rest}"), "is for exchanges");
        check(&format!("{place}apply-to = \"streams\"\n{rest}"), "does not have");
        check(&format!("{place}apply-to = \"streets\"\n{rest}"), "none of exchanges, queues");
        let flow = "definition = { flow = \"balance\" }";
        check(&format!("{place}apply-to = \"exchanges\"\n{flow}"), "is for queues");
        check(&format!("{place}definition = {{ flow = \"swing\" }}"), "neither \"absorb\" nor");
        check(&format!("vhost = \"v\"\npattern = \"\"\n{rest}"), "`v`, not one of vhosts");
        check(&format!("{place}prio = 1\n{rest}"), "prio");
        let whole = format!("{place}{rest}\n");
        check(&format!("{whole}[[policies]]\nname = \"p\"\n{whole}"), "twice");
    }
}
