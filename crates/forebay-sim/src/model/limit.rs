//! What may wait in a queue (`x-max-length`, `x-max-length-bytes`): messages, and bytes of their bodies.

use super::Model;
use super::queue::{Instance, Queue};

/// No more may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    /// Messages, if they are counted.
    pub(crate) messages: Option<u64>,
    /// Bytes of bodies, if they are.
    pub(crate) bytes: Option<u64>,
}

/// Messages, and the bytes of their bodies.
#[derive(Clone, Copy, Debug, Default)]
struct Waiting {
    messages: u64,
    bytes: u64,
}

impl Waiting {
    fn of<'a>(instances: impl Iterator<Item = &'a Instance>) -> Waiting {
        instances.fold(Waiting::default(), |waiting, instance| waiting.and(instance.body_bytes))
    }

    /// With one more, of so many bytes.
    fn and(self, bytes: u64) -> Waiting {
        Waiting { messages: self.messages + 1, bytes: self.bytes + bytes }
    }
}

impl Limit {
    fn is_kept(self, waiting: Waiting) -> bool {
        self.messages.is_none_or(|most| waiting.messages <= most)
            && self.bytes.is_none_or(|most| waiting.bytes <= most)
    }

    /// How many of these may wait together, from the first on.
    pub(super) fn fit<'a>(self, instances: impl Iterator<Item = &'a Instance>) -> usize {
        let mut waiting = Waiting::default();
        let fits = |instance: &&Instance| {
            waiting = waiting.and(instance.body_bytes);
            self.is_kept(waiting)
        };
        instances.take_while(fits).count()
    }
}

impl Queue {
    /// Whether one more body of so many bytes may be too much, of what may be there.
    pub(super) fn may_be_full(&self, body_bytes: u64) -> bool {
        let limit = self.limit.filter(|_| self.refuses);
        limit.is_some_and(|limit| !limit.is_kept(Waiting::of(self.ready()).and(body_bytes)))
    }

    /// Whether it is too much, however little is there. What consumers take in the same step nobody has seen yet, so where there are any
    /// only one that is too much by itself is. Of what a start found the bytes count when it is read.
    pub(super) fn is_full(&self, body_bytes: u64, certain: bool) -> bool {
        let Some(limit) = self.limit.filter(|_| self.refuses) else { return false };
        let known = certain && self.consumers.is_empty();
        let there = || self.ready().filter(|instance| known && !instance.may);
        let Waiting { messages, .. } = Waiting::of(there());
        let came_since = |instance: &&Instance| instance.published_op > self.started_op;
        let Waiting { bytes, .. } = Waiting::of(there().filter(came_since));
        !limit.is_kept(Waiting { messages, bytes }.and(body_bytes))
    }
}

impl Model {
    /// Whether so many messages of a queue are more than may wait there, whichever they are.
    pub(crate) fn are_too_many(&self, queue: &str, ready: u64) -> bool {
        let Some(queue) = self.queues.get(queue) else { return false };
        let Some(limit) = queue.limit else { return false };
        let certain = self.certain();
        let mut doubtful: Vec<u64> =
            queue.ready().filter(|i| i.may || !certain).map(|i| i.body_bytes).collect();
        doubtful.sort_unstable();
        let least = Waiting::of(queue.ready().filter(|i| !i.may && certain));
        let others = ready.saturating_sub(least.messages) as usize;
        !limit.is_kept(doubtful.into_iter().take(others).fold(least, Waiting::and))
    }
}
