//! What is declared in a store that nobody serves.

use std::collections::BTreeMap;

use crate::restore::{RestoreError, read_meta};
use crate::topology::Record;

/// How much durable topology a store holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Declared {
    /// Durable queues, also those that never held a message.
    pub queues: u64,
    /// Durable exchanges, without those that every virtual host has.
    pub exchanges: u64,
    /// Bindings between them.
    pub bindings: u64,
}

impl Declared {
    /// Counts what a store's map says.
    ///
    /// # Errors
    /// Something that a broker could not take over either.
    pub fn in_store(meta: &BTreeMap<Vec<u8>, Vec<u8>>) -> Result<Declared, RestoreError> {
        let (records, _) = read_meta(meta)?;
        let mut declared = Declared::default();
        for record in records {
            match record {
                Record::Queue(_) => declared.queues += 1,
                Record::Exchange(_) => declared.exchanges += 1,
                Record::Binding(_) => declared.bindings += 1,
            }
        }
        Ok(declared)
    }
}
