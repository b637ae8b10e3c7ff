//! What all publishers of this process see of one RabbitMQ, over all their connections.
//!
//! Those of other processes are not counted: RabbitMQ tells nobody how many there are.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use forebay_flow::{BrokerKind, Tally};

use super::Link;
use crate::machine::Server;

/// By the name of the cluster. An entry lives as long as a connection to it.
static BROKERS: Mutex<BTreeMap<String, Weak<Mutex<Tally>>>> = Mutex::new(BTreeMap::new());

/// One connection's part in the tally of its broker; dropped, it counts no more.
pub(crate) struct BrokerTally {
    tally: Arc<Mutex<Tally>>,
    teller: u64,
}

impl BrokerTally {
    /// That of `server`, which all connections of the process to it share; `None`: no window would heed it. Two clusters of one
    /// name count as one: they are then taken for a quicker one, and each is given less to do at a time.
    pub(crate) fn of(server: &Server) -> Option<BrokerTally> {
        static TELLERS: AtomicU64 = AtomicU64::new(0);
        if server.kind() != BrokerKind::RabbitMq {
            return None;
        }
        let teller = TELLERS.fetch_add(1, Ordering::Relaxed);
        let mut brokers = BROKERS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tally) = brokers.get(&server.cluster).and_then(Weak::upgrade) {
            return Some(BrokerTally { tally, teller });
        }
        brokers.retain(|_, tally| tally.strong_count() > 0);
        let tally = Arc::default();
        brokers.insert(server.cluster.clone(), Arc::downgrade(&tally));
        Some(BrokerTally { tally, teller })
    }

    /// Tells what the publishers of a connection have seen since the last time, and tells them of all.
    pub(crate) fn exchange(&self, link: &Link) {
        link.with_now(|session, now_us| {
            let more = session.take_confirmed();
            let service_us = session.service_us();
            let told = self.locked(|tally| tally.tell(self.teller, more, service_us));
            session.together(now_us, told);
        });
    }

    fn locked<R>(&self, work: impl FnOnce(&mut Tally) -> R) -> R {
        work(&mut self.tally.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for BrokerTally {
    fn drop(&mut self) {
        self.locked(|tally| tally.leave(self.teller));
    }
}

#[cfg(test)]
mod tests {
    use forebay_flow::Together;

    use super::*;

    fn server(product: &str, cluster: &str) -> Server {
        Server { product: product.into(), cluster: cluster.into(), ..Server::default() }
    }

    #[test]
    fn connections_to_one_cluster_share_a_tally_while_there_are_any() {
        let of = |cluster| BrokerTally::of(&server("RabbitMQ", cluster)).expect("it is a RabbitMQ");
        let tell = |of: &BrokerTally, more, us| {
            of.locked(|tally| {
                tally.tell(of.teller, more, Some(us));
                tally.tell(of.teller, 0, Some(us))
            })
        };
        let told = |messages, us| Together { messages, least_service_us: Some(us) };
        let first = of("rabbit@tally");
        assert_eq!(tell(&first, 7, 900), told(7, 900));
        let second = of("rabbit@tally");
        assert_eq!(tell(&second, 3, 400), told(10, 400));
        assert_eq!(tell(&of("rabbit@another"), 1, 100), told(1, 100));
        assert_eq!(tell(&first, 0, 900), told(10, 400));
        drop(second);
        assert_eq!(tell(&first, 0, 900), told(10, 900), "the other is gone");
        drop(first);
        assert_eq!(tell(&of("rabbit@tally"), 1, 900).messages, 1, "a new one begins");
    }

    #[test]
    fn other_brokers_have_none() {
        assert!(BrokerTally::of(&server("Forebay", "")).is_none());
    }
}
