//! The direct exchange: binding key equal to routing key.

use super::Map;
use super::destination::{Destination, DestinationSet};

/// Destinations by binding key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Direct {
    by_key: Map<Box<[u8]>, DestinationSet>,
}

impl Direct {
    pub(crate) fn add(&mut self, key: &[u8], destination: Destination) {
        match self.by_key.get_mut(key) {
            Some(set) => set.add(destination),
            None => {
                let mut set = DestinationSet::default();
                set.add(destination);
                self.by_key.insert(key.into(), set);
            }
        }
    }

    pub(crate) fn remove(&mut self, key: &[u8], destination: Destination) {
        if let Some(set) = self.by_key.get_mut(key) {
            set.remove(destination);
            if set.is_empty() {
                self.by_key.remove(key);
            }
        }
    }

    pub(crate) fn route(&self, key: &[u8], found: impl FnMut(Destination)) {
        if let Some(set) = self.by_key.get(key) {
            set.iter().for_each(found);
        }
    }
}
