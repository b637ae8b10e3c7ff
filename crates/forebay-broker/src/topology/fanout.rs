//! The fanout exchange: every binding matches, whatever its key.

use super::destination::{Destination, DestinationSet};

/// All destinations.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fanout {
    all: DestinationSet,
}

impl Fanout {
    pub(crate) fn add(&mut self, destination: Destination) {
        self.all.add(destination);
    }

    pub(crate) fn remove(&mut self, destination: Destination) {
        self.all.remove(destination);
    }

    pub(crate) fn route(&self, found: impl FnMut(Destination)) {
        self.all.iter().for_each(found);
    }
}
