//! What all publishers of this process have had confirmed by one RabbitMQ, over all their connections.
//!
//! One of twenty publishers that keep a broker busy has a twentieth of what it carries, and by itself cannot tell that from a
//! slower broker. Those of other processes are not counted: RabbitMQ tells nobody how many there are.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use forebay_flow::BrokerKind;

use super::Link;
use crate::machine::Server;

/// By the name of the cluster. An entry lives as long as a connection to it.
static BROKERS: Mutex<BTreeMap<String, Weak<BrokerTally>>> = Mutex::new(BTreeMap::new());

/// Messages confirmed by one broker.
#[derive(Default)]
pub(crate) struct BrokerTally {
    messages: AtomicU64,
}

impl BrokerTally {
    /// That of `server`, which all connections of the process to it share; `None`: no window would heed it. Two clusters of one
    /// name count as one: they are then taken for a quicker one, and each is given less to do at a time.
    pub(crate) fn of(server: &Server) -> Option<Arc<BrokerTally>> {
        if server.kind() != BrokerKind::RabbitMq {
            return None;
        }
        let mut brokers = BROKERS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tally) = brokers.get(&server.cluster).and_then(Weak::upgrade) {
            return Some(tally);
        }
        brokers.retain(|_, tally| tally.strong_count() > 0);
        let tally = Arc::new(BrokerTally::default());
        brokers.insert(server.cluster.clone(), Arc::downgrade(&tally));
        Some(tally)
    }

    /// Adds what the publishers of a connection have had confirmed since the last time, and tells them of all.
    pub(crate) fn exchange(&self, link: &Link) {
        link.with_now(|session, now_us| {
            let more = session.take_confirmed();
            let messages = self.messages.fetch_add(more, Ordering::Relaxed) + more;
            session.carried(now_us, messages);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(product: &str, cluster: &str) -> Server {
        Server { product: product.into(), cluster: cluster.into(), ..Server::default() }
    }

    #[test]
    fn connections_to_one_cluster_share_a_tally_while_there_are_any() {
        let of = |cluster| BrokerTally::of(&server("RabbitMQ", cluster)).expect("it is a RabbitMQ");
        let first = of("rabbit@tally");
        assert!(Arc::ptr_eq(&first, &of("rabbit@tally")));
        assert!(!Arc::ptr_eq(&first, &of("rabbit@another")));
        first.messages.store(7, Ordering::Relaxed);
        drop(first);
        assert_eq!(of("rabbit@tally").messages.load(Ordering::Relaxed), 0, "a new one begins");
    }

    #[test]
    fn other_brokers_have_none() {
        assert!(BrokerTally::of(&server("Forebay", "")).is_none());
    }
}
