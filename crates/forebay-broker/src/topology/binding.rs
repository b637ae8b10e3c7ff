//! A binding: from an exchange to a queue or another exchange, by a key and arguments.

use std::hash::BuildHasher;

use forebay_wire::{Table, TableBuf};
use hashbrown::HashTable;

use super::destination::{Destination, ExchangeKey};

/// A binding of one virtual host, by its index there. Reused after a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct BindingKey(pub(crate) u32);

/// All four parts together are what a binding is: the same key with other arguments is another
/// binding (as in RabbitMQ, for all types of exchange).
#[derive(Clone, Debug)]
pub(crate) struct Binding {
    pub(crate) source: ExchangeKey,
    pub(crate) destination: Destination,
    pub(crate) key: Box<[u8]>,
    /// Sorted by name, so that order does not make a difference.
    pub(crate) arguments: TableBuf,
}

/// What identifies a binding, borrowed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Identity<'a> {
    pub(crate) source: ExchangeKey,
    pub(crate) destination: Destination,
    pub(crate) key: &'a [u8],
    pub(crate) arguments: Table<'a>,
}

impl Binding {
    pub(crate) fn identity(&self) -> Identity<'_> {
        Identity {
            source: self.source,
            destination: self.destination,
            key: &self.key,
            arguments: self.arguments.as_table(),
        }
    }
}

/// All bindings of a virtual host, found by key or by identity.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bindings {
    slots: Vec<Option<Binding>>,
    free: Vec<u32>,
    by_identity: HashTable<BindingKey>,
    hasher: foldhash::fast::RandomState,
}

impl Bindings {
    fn hash(hasher: &foldhash::fast::RandomState, identity: Identity<'_>) -> u64 {
        hasher.hash_one(identity)
    }

    pub(crate) fn find(&self, identity: Identity<'_>) -> Option<BindingKey> {
        let hash = Self::hash(&self.hasher, identity);
        self.by_identity.find(hash, |&key| self.is(key, identity)).copied()
    }

    fn is(&self, key: BindingKey, identity: Identity<'_>) -> bool {
        self.get(key).is_some_and(|binding| binding.identity() == identity)
    }

    pub(crate) fn get(&self, key: BindingKey) -> Option<&Binding> {
        self.slots.get(key.0 as usize)?.as_ref()
    }

    /// Adds a binding that is not there yet.
    pub(crate) fn insert(&mut self, binding: Binding) -> BindingKey {
        let hash = Self::hash(&self.hasher, binding.identity());
        let key = match self.free.pop() {
            Some(at) => {
                self.slots[at as usize] = Some(binding);
                BindingKey(at)
            }
            None => {
                self.slots.push(Some(binding));
                BindingKey(self.slots.len() as u32 - 1)
            }
        };
        let (slots, hasher) = (&self.slots, &self.hasher);
        self.by_identity.insert_unique(hash, key, |each| match &slots[each.0 as usize] {
            Some(binding) => Self::hash(hasher, binding.identity()),
            None => 0,
        });
        key
    }

    pub(crate) fn remove(&mut self, key: BindingKey) -> Option<Binding> {
        let binding = self.slots.get_mut(key.0 as usize)?.take()?;
        let hash = Self::hash(&self.hasher, binding.identity());
        if let Ok(entry) = self.by_identity.find_entry(hash, |&each| each == key) {
            entry.remove();
        }
        self.free.push(key.0);
        Some(binding)
    }

    /// Slots, used or not.
    pub(crate) fn places(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Binding> {
        self.slots.iter().flatten()
    }
}
