//! What the broker says about itself in connection.start.

use forebay_flow::{BrokerKind, FAIR_VISITS, VISIT_BYTES};
use forebay_wire::{Table, Value};

/// The peer's product, version and capabilities.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Server {
    /// For instance `RabbitMQ`.
    pub product: String,
    /// For instance `3.13.7`. Forebay's own, not that of the RabbitMQ whose behaviour it keeps.
    pub version: String,
    /// What its cluster is called, or its only node, for instance `rabbit@host`; empty where it does not say.
    pub cluster: String,
    /// Names of the capabilities it announces as true, for instance `publisher_confirms`.
    pub capabilities: Vec<String>,
}

impl Server {
    pub(super) fn from_table(table: Table<'_>) -> Server {
        let text = |name: &str| match table.get(name) {
            Some(Value::LongStr(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
            _ => String::new(),
        };
        let capabilities = match table.get("capabilities") {
            Some(Value::Table(capabilities)) => capabilities
                .iter()
                .filter(|(_, value)| matches!(value, Value::Bool(true)))
                .map(|(name, _)| name.to_string())
                .collect(),
            _ => Vec::new(),
        };
        let own = Some(text("forebay_version")).filter(|version| !version.is_empty());
        let version = own.unwrap_or_else(|| text("version"));
        Server { product: text("product"), version, cluster: text("cluster_name"), capabilities }
    }

    /// What a publisher's window may know of it.
    pub fn kind(&self) -> BrokerKind {
        // What it says of its visits counts more than its name.
        if self.can(FAIR_VISITS) {
            BrokerKind::FairVisits { bytes: VISIT_BYTES as u64 }
        } else if self.product == "RabbitMQ" {
            BrokerKind::RabbitMq
        } else {
            BrokerKind::Unknown
        }
    }

    /// Whether it announced `capability`.
    pub fn can(&self, capability: &str) -> bool {
        self.capabilities.iter().any(|name| name == capability)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_broker_says_of_its_visits_counts_more_than_its_name() {
        let kind = |product: &str, capabilities: &[&str]| {
            let capabilities = capabilities.iter().map(ToString::to_string).collect();
            Server { product: product.into(), capabilities, ..Server::default() }.kind()
        };
        let fair = BrokerKind::FairVisits { bytes: VISIT_BYTES as u64 };
        assert_eq!(kind("RabbitMQ", &["publisher_confirms"]), BrokerKind::RabbitMq);
        assert_eq!(kind("RabbitMQ", &[FAIR_VISITS]), fair);
        assert_eq!(kind("Broker", &[FAIR_VISITS]), fair);
        assert_eq!(kind("Broker", &[]), BrokerKind::Unknown);
    }
}
