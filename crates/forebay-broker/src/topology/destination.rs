//! Where a binding leads, and sets of such places.

use super::Map;
use super::resource::ResourceKind;

/// A queue, by its index in the broker's table of queues. Dense: marks are kept per index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueKey(pub u32);

/// An exchange of one virtual host, by its index there. Reused after a deletion, so it is only
/// valid while [`VhostTopology::version`](super::VhostTopology::version) stays the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExchangeKey(pub(crate) u32);

/// What a binding leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Destination {
    /// A queue.
    Queue(QueueKey),
    /// Another exchange.
    Exchange(ExchangeKey),
}

impl Destination {
    pub(crate) fn resource_kind(self) -> ResourceKind {
        match self {
            Destination::Queue(_) => ResourceKind::Queue,
            Destination::Exchange(_) => ResourceKind::Exchange,
        }
    }
}

/// Distinct destinations, each with the number of bindings that lead to it (bindings that differ
/// only in their arguments are different, but route once).
///
/// Small sets are searched from front to back; large ones keep an index beside the list.
#[derive(Clone, Debug, Default)]
pub(crate) struct DestinationSet {
    list: Vec<(Destination, u32)>,
    index: Option<Box<Map<Destination, u32>>>,
}

/// From this many destinations on, a set has an index.
const INDEX_FROM: usize = 32;

impl DestinationSet {
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Destination> + '_ {
        self.list.iter().map(|&(destination, _)| destination)
    }

    fn position(&self, destination: Destination) -> Option<usize> {
        match &self.index {
            Some(index) => index.get(&destination).map(|&at| at as usize),
            None => self.list.iter().position(|&(each, _)| each == destination),
        }
    }

    /// One more binding leads there.
    pub(crate) fn add(&mut self, destination: Destination) {
        if let Some(at) = self.position(destination) {
            self.list[at].1 += 1;
            return;
        }
        self.list.push((destination, 1));
        if let Some(index) = &mut self.index {
            index.insert(destination, self.list.len() as u32 - 1);
        } else if self.list.len() >= INDEX_FROM {
            let index =
                self.list.iter().enumerate().map(|(at, &(each, _))| (each, at as u32)).collect();
            self.index = Some(Box::new(index));
        }
    }

    /// One binding less leads there.
    pub(crate) fn remove(&mut self, destination: Destination) {
        let Some(at) = self.position(destination) else { return };
        self.list[at].1 -= 1;
        if self.list[at].1 > 0 {
            return;
        }
        self.list.swap_remove(at);
        if let Some(index) = &mut self.index {
            index.remove(&destination);
            if let Some(&(moved, _)) = self.list.get(at) {
                index.insert(moved, at as u32);
            }
        }
        if self.list.len() < INDEX_FROM / 2 {
            self.index = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_set_counts_like_a_map(steps in prop::collection::vec((any::<bool>(), 0u32..80), 0..400)) {
            let mut set = DestinationSet::default();
            let mut model = BTreeMap::<Destination, u32>::new();
            for (add, key) in steps {
                let destination = Destination::Queue(QueueKey(key));
                if add {
                    set.add(destination);
                    *model.entry(destination).or_default() += 1;
                } else {
                    set.remove(destination);
                    if let Some(count) = model.get_mut(&destination) {
                        *count -= 1;
                    }
                    model.retain(|_, count| *count > 0);
                }
                let mut held = set.list.clone();
                held.sort();
                prop_assert_eq!(held, model.clone().into_iter().collect::<Vec<_>>());
                prop_assert_eq!(set.is_empty(), model.is_empty());
            }
        }
    }
}
