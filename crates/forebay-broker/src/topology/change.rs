//! What a call changed in the topology, and what of it has to be made durable.

use super::record::{BindingRecord, ExchangeRecord};

/// One thing added or removed, in the order it happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// An exchange was declared.
    ExchangeAdded(ExchangeRecord),
    /// An exchange was deleted, or deleted itself.
    ExchangeRemoved(ExchangeRecord),
    /// A binding was made. `durable` if both of its ends are.
    BindingAdded {
        /// The binding.
        binding: BindingRecord,
        /// Whether it survives a restart.
        durable: bool,
    },
    /// A binding was removed, by itself or with one of its ends.
    BindingRemoved {
        /// The binding.
        binding: BindingRecord,
        /// Whether it would have survived a restart.
        durable: bool,
    },
}

/// A write to the store's map of durable topology.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetaWrite {
    /// Set.
    Put {
        /// At most a few hundred bytes.
        key: Vec<u8>,
        /// The encoded record.
        value: Vec<u8>,
    },
    /// Remove.
    Delete {
        /// As it was put.
        key: Vec<u8>,
    },
}

impl Change {
    /// What to write so that the change survives a restart; `None` if it is not meant to.
    pub fn meta_write(&self) -> Option<MetaWrite> {
        match self {
            Change::ExchangeAdded(exchange) => exchange
                .durable
                .then(|| MetaWrite::Put { key: exchange.key(), value: exchange.encode() }),
            Change::ExchangeRemoved(exchange) => {
                exchange.durable.then(|| MetaWrite::Delete { key: exchange.key() })
            }
            Change::BindingAdded { binding, durable } => {
                durable.then(|| MetaWrite::Put { key: binding.key(), value: binding.encode() })
            }
            Change::BindingRemoved { binding, durable } => {
                durable.then(|| MetaWrite::Delete { key: binding.key() })
            }
        }
    }
}
