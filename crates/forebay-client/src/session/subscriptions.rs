//! The consumers of one channel: what arrived for each and was not taken.
//!
//! A tag may be used again once its consumer was cancelled, while somebody still holds that one and takes what it left. A
//! number tells them apart.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::task::Waker;

use super::wakeups::Wakeups;
use crate::received::Received;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    /// By consumer tag, the latest last: what comes is for that one.
    by_tag: BTreeMap<String, Vec<Subscription>>,
    begun: u64,
    /// Consumers nobody listens to: what still comes for them is dropped.
    forgotten: BTreeSet<String>,
}

#[derive(Debug)]
pub(super) struct Subscription {
    number: u64,
    pub(super) ready: VecDeque<Received>,
    pub(super) cancelled: bool,
    pub(super) waker: Option<Waker>,
}

impl Subscriptions {
    /// The broker has begun a consumer. Its number.
    pub(super) fn begin(&mut self, tag: &str) -> u64 {
        self.forgotten.remove(tag);
        self.latest(tag).number
    }

    /// True if somebody listens.
    pub(super) fn deliver(&mut self, tag: &str, message: Received, wakeups: &mut Wakeups) -> bool {
        if self.forgotten.contains(tag) {
            return false;
        }
        let subscription = match self.by_tag.get_mut(tag).and_then(|same| same.last_mut()) {
            Some(subscription) => subscription,
            None => self.latest(tag),
        };
        subscription.ready.push_back(message);
        wakeups.extend(subscription.waker.take());
        true
    }

    pub(super) fn find(&mut self, tag: &str, number: u64) -> Option<&mut Subscription> {
        self.by_tag.get_mut(tag)?.iter_mut().find(|subscription| subscription.number == number)
    }

    /// Nothing more comes for the consumer that has this tag.
    pub(super) fn cancelled(&mut self, tag: &str, wakeups: &mut Wakeups) {
        self.forgotten.remove(tag);
        if let Some(subscription) = self.by_tag.get_mut(tag).and_then(|same| same.last_mut()) {
            subscription.cancelled = true;
            wakeups.extend(subscription.waker.take());
        }
    }

    /// Nobody will take what waits for it; how many bytes that is.
    pub(super) fn remove(&mut self, tag: &str, number: u64) -> usize {
        let Some(same) = self.by_tag.get_mut(tag) else { return 0 };
        let gone: Vec<_> = same.extract_if(.., |each| each.number == number).collect();
        if same.is_empty() {
            self.by_tag.remove(tag);
        }
        gone.iter().map(Subscription::ready_bytes).sum()
    }

    /// What still comes for the consumer that has this tag, until the broker agrees to its end, is dropped.
    pub(super) fn forget(&mut self, tag: &str) {
        self.forgotten.insert(tag.to_owned());
    }

    /// What waits to be taken.
    pub(super) fn ready_bytes(&self) -> usize {
        self.by_tag.values().flatten().map(Subscription::ready_bytes).sum()
    }

    /// Those who wait for messages.
    pub(super) fn take_wakers(&mut self) -> impl Iterator<Item = Waker> {
        self.by_tag.values_mut().flatten().filter_map(|subscription| subscription.waker.take())
    }

    /// The one that has the tag now.
    fn latest(&mut self, tag: &str) -> &mut Subscription {
        let same = self.by_tag.entry(tag.to_owned()).or_default();
        if same.last().is_none_or(|latest| latest.cancelled) {
            self.begun += 1;
            same.push(Subscription {
                number: self.begun,
                ready: VecDeque::new(),
                cancelled: false,
                waker: None,
            });
        }
        same.last_mut().expect("it was pushed if there was none")
    }
}

impl Subscription {
    fn ready_bytes(&self) -> usize {
        self.ready.iter().map(Received::size_bytes).sum()
    }
}
