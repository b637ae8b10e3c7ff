//! Queues with priorities (`x-max-priority`): a level of its own for each priority that was published with.
//!
//! ```text
//!   publish, priority 9 ──► level 9 ────────────┐
//!                     5 ──► level 5 ────────────┼──► front: the highest that has any ──► consumers, gets
//!             0 or none ──► the queue itself ───┘
//! ```
//! A level is a queue, with messages, a part on disk and times to live like any other, and without a name of its own in the topology:
//! who consumes or gets, and whatever else is asked of all levels, is the affair of the *whole*, which is level 0. Messages have
//! their order within their level, and come back to their places there.
//!
//! In the store level `n` of queue `id` is queue `id + n`; no other queue has these numbers. A level is there from its first message until
//! the whole is deleted.

use std::sync::Arc;

use forebay_store::QueueId;
use forebay_wire::{RawProperties, Table};

use crate::message::Message;
use crate::queue::Queue;
use crate::shard::Shard;
use crate::topology::QueueKey;

/// The argument that says how many there may be.
pub(crate) const MAX_PRIORITY: &str = "x-max-priority";

/// The levels of one queue above 0.
#[derive(Debug)]
pub(crate) struct Levels {
    /// The highest one.
    max: u8,
    /// Those that are there, the highest first.
    keys: Vec<(u8, QueueKey)>,
}

impl Levels {
    /// For a queue that was declared with these arguments; `None`: it has no priorities.
    pub(crate) fn of(arguments: Table<'_>) -> Option<Box<Levels>> {
        let max = max_priority(arguments);
        (max > 0).then(|| Box::new(Levels { max, keys: Vec::new() }))
    }

    /// Those that are there, the highest first.
    pub(crate) fn keys(&self) -> impl Iterator<Item = QueueKey> + '_ {
        self.keys.iter().map(|(_, key)| *key)
    }
}

/// The highest priority that these arguments allow; 0: there are none. They were checked.
pub(crate) fn max_priority(arguments: Table<'_>) -> u8 {
    let max = arguments.get(MAX_PRIORITY).and_then(|value| value.as_i64());
    max.and_then(|max| u8::try_from(max).ok()).unwrap_or(0)
}

/// A message's priority (0-9-1 section 1.8, basic properties); none is 0.
fn priority(message: &Message) -> u8 {
    RawProperties::trusted(message.raw_properties()).parse().priority.unwrap_or(0)
}

impl Shard {
    /// The queue that this is a level of, or itself.
    #[inline]
    pub(crate) fn whole(&self, key: QueueKey) -> QueueKey {
        self.queues.get(key.0 as usize).and_then(|queue| queue.level_of).unwrap_or(key)
    }

    /// The highest level of a queue with something to deliver; itself if there is none.
    #[inline]
    pub(crate) fn front(&self, key: QueueKey) -> QueueKey {
        let levels = self.queues.get(key.0 as usize).and_then(|queue| queue.levels.as_ref());
        let has_any = |key: &QueueKey| !self.queues[key.0 as usize].is_empty();
        levels.and_then(|levels| levels.keys().find(has_any)).unwrap_or(key)
    }

    /// A queue, and its levels before it.
    pub(crate) fn with_levels(&self, key: QueueKey) -> Vec<QueueKey> {
        let levels = self.queues.get(key.0 as usize).and_then(|queue| queue.levels.as_ref());
        levels.into_iter().flat_map(|levels| levels.keys()).chain([key]).collect()
    }

    /// Does something for each level and the queue itself, until it says `false`. Returns whether it never did.
    #[inline]
    pub(crate) fn each_level(
        &mut self,
        key: QueueKey,
        mut of: impl FnMut(&mut Shard, QueueKey) -> bool,
    ) -> bool {
        let levels = self.queues.get(key.0 as usize).is_some_and(|queue| queue.levels.is_some());
        if !levels {
            return of(self, key);
        }
        self.with_levels(key).into_iter().all(|level| of(self, level))
    }

    /// Who takes from a queue, or from one of its levels, holds less of it.
    #[inline(never)]
    pub(crate) fn levels_hold_less(&mut self, key: QueueKey) {
        let key = self.whole(key);
        let front = self.front(key);
        let Some(queue) = self.queues.get(key.0 as usize) else { return };
        let asked = !queue.gets.is_empty();
        // What is being written is taken back for whoever consumes.
        if !self.queues[front.0 as usize].is_empty() {
            self.mark_queue(key);
        }
        if asked {
            self.load_cold(front);
        }
    }

    /// The timers of all levels are early enough for what is due there.
    pub(crate) fn plan_levels(&mut self, key: QueueKey) {
        self.each_level(key, |shard, level| {
            shard.plan_queue(level);
            true
        });
    }

    /// With nothing to deliver, nothing waits in it.
    #[inline]
    pub(crate) fn hold_if_empty(&mut self, key: QueueKey) {
        let whole = self.whole(key);
        let front = self.front(whole);
        if self.queues.get(front.0 as usize).is_some_and(|queue| queue.is_empty())
            && let Some(queue) = self.queues.get_mut(whole.0 as usize)
        {
            queue.waits.hold(None, self.now_us);
        }
    }

    /// With messages and without consumers, they wait for one.
    pub(crate) fn hold_without_consumer(&mut self, key: QueueKey) {
        let whole = self.whole(key);
        if let Some(queue) = self.queues.get_mut(whole.0 as usize) {
            queue.hold_without_consumer(self.now_us);
        }
    }

    /// The sum over a queue and its levels.
    pub(crate) fn over_levels(&self, queue: &Queue, of: impl Fn(&Queue) -> u64) -> u64 {
        let levels = queue.levels.iter().flat_map(|levels| levels.keys());
        of(queue) + levels.map(|key| of(&self.queues[key.0 as usize])).sum::<u64>()
    }

    /// Messages of all levels that wait to be delivered.
    pub(crate) fn ready_in(&self, key: QueueKey) -> u64 {
        self.queues.get(key.0 as usize).map_or(0, |queue| self.over_levels(queue, Queue::ready))
    }

    /// Puts the levels that a message belongs to in place of their queues.
    #[inline]
    pub(crate) fn find_levels(&mut self, message: &Arc<Message>, queues: &mut [QueueKey]) {
        for key in queues {
            if self.queues[key.0 as usize].levels.is_some() {
                *key = self.level(*key, priority(message));
            }
        }
    }

    /// The level for this priority, which is there from now on.
    #[inline(never)]
    fn level(&mut self, key: QueueKey, priority: u8) -> QueueKey {
        let whole = &self.queues[key.0 as usize];
        let Some(levels) = &whole.levels else { return key };
        let number = priority.min(levels.max);
        if number == 0 {
            return key;
        }
        let place = levels.keys.partition_point(|(other, _)| *other > number);
        if let Some((_, level)) = levels.keys.get(place).filter(|(other, _)| *other == number) {
            return *level;
        }
        let level = Queue::new_level(whole, key, number);
        let level = QueueKey(self.queues.insert(Box::new(level)) as u32);
        if let Some(levels) = &mut self.queues[key.0 as usize].levels {
            levels.keys.insert(place, (number, level));
        }
        level
    }

    /// The level that the store knows by this number, if it is one of this queue's.
    pub(crate) fn stored_level(&mut self, key: QueueKey, id: QueueId) -> Option<QueueKey> {
        let queue = self.queues.get(key.0 as usize)?;
        let max = queue.levels.as_ref()?.max;
        let number =
            u8::try_from(id.checked_sub(queue.id)?).ok().filter(|number| *number <= max)?;
        Some(self.level(key, number))
    }
}
