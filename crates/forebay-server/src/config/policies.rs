//! Policies, as configured.

use super::error::ConfigError;
use serde::Deserialize;

/// Where a policy may apply and mean something.
const APPLIES_TO: [&str; 2] = ["exchanges", "all"];
/// Where one may apply that has a definition of another kind than this version knows.
const APPLIES_TO_QUEUES: [&str; 4] = ["queues", "classic_queues", "quorum_queues", "streams"];
/// The one key of a definition.
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
    /// `exchanges` or `all`.
    #[serde(rename = "apply-to", default = "all")]
    pub apply_to: String,
    /// The highest of those that match holds.
    #[serde(default)]
    pub priority: i64,
    /// What it gives: `alternate-exchange`.
    pub definition: toml::Table,
}

fn all() -> String {
    "all".to_owned()
}

impl PolicySetting {
    /// The alternate exchange it gives; `None` if it has none, which a checked configuration excludes.
    pub fn alternate_exchange(&self) -> Option<&str> {
        self.definition.get(ALTERNATE_EXCHANGE)?.as_str()
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
        if APPLIES_TO_QUEUES.contains(&apply_to.as_str()) {
            return error(format!(
                "applies to {apply_to}: this version has policies for exchanges only"
            ));
        }
        if !APPLIES_TO.contains(&apply_to.as_str()) {
            return error(format!("has apply-to `{apply_to}`, neither exchanges nor all"));
        }
        if let Some(key) = definition.keys().find(|key| *key != ALTERNATE_EXCHANGE) {
            return error(format!(
                "defines `{key}`: of definition keys this version has {ALTERNATE_EXCHANGE} only"
            ));
        }
        match policy.alternate_exchange() {
            Some(exchange) if !exchange.is_empty() && exchange.len() <= 255 => {}
            _ => {
                return error(format!(
                    "needs {ALTERNATE_EXCHANGE} in its definition, a name of 1 to 255 bytes"
                ));
            }
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
            "#,
        )
        .unwrap();
        let [first, second] = &config.policies[..] else { panic!("two") };
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
             has alternate-exchange only",
        );
        check(&format!("{place}definition = {{}}"), "needs alternate-exchange");
        check(&format!("{place}definition = {{ alternate-exchange = 1 }}"), "needs alternate");
        check(&format!("{place}definition = {{ alternate-exchange = \"\" }}"), "1 to 255 bytes");
        let rest = "definition = { alternate-exchange = \"x\" }";
        check(&format!("{place}apply-to = \"queues\"\n{rest}"), "policies for exchanges only");
        check(&format!("{place}apply-to = \"streets\"\n{rest}"), "neither exchanges nor all");
        check(&format!("vhost = \"v\"\npattern = \"\"\n{rest}"), "`v`, not one of vhosts");
        check(&format!("{place}prio = 1\n{rest}"), "prio");
        let whole = format!("{place}{rest}\n");
        check(&format!("{whole}[[policies]]\nname = \"p\"\n{whole}"), "twice");
    }
}
