//! Limits of virtual hosts, as configured.

use super::error::ConfigError;
use serde::Deserialize;

/// What a virtual host may have, in the words of RabbitMQ's `set_vhost_limits`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VhostLimitSetting {
    /// Virtual host.
    pub vhost: String,
    /// Connections at one time; 0 admits none.
    #[serde(rename = "max-connections")]
    pub connections_max: usize,
}

/// Whether each is for a virtual host of its own.
pub(super) fn check(limits: &[VhostLimitSetting], vhosts: &[String]) -> Result<(), ConfigError> {
    for (index, limit) in limits.iter().enumerate() {
        let vhost = &limit.vhost;
        let error = |what: String| Err(ConfigError::value("vhost_limits", what));
        if !vhosts.contains(vhost) {
            return error(format!("`{vhost}` is not one of vhosts"));
        }
        if limits[..index].iter().any(|other| other.vhost == *vhost) {
            return error(format!("`{vhost}` is there twice"));
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
    fn a_limit_is_for_one_virtual_host_that_exists() {
        let config = read("vhost_limits = [{ vhost = \"/\", max-connections = 5 }]").unwrap();
        assert_eq!(config.vhost_limits[0].connections_max, 5);
        let check = |limits: &str, part: &str| {
            let text = read(&format!("vhost_limits = [{limits}]")).unwrap_err();
            assert!(text.contains(part), "{text}");
        };
        let limit = "{ vhost = \"/\", max-connections = 5 }";
        check("{ vhost = \"v\", max-connections = 5 }", "vhost_limits: `v` is not one of vhosts");
        check(&format!("{limit}, {limit}"), "`/` is there twice");
        check("{ vhost = \"/\", max-connections = -1 }", "line 1, max-connections: ");
        check("{ vhost = \"/\", max-queues = 1 }", "max-queues");
    }
}
