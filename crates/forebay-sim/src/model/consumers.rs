//! Who may be given a message: a consumer with credit, of those the ones with the highest priority (`x-priority`), and of a queue with a
//! single active consumer only the one that came first.

use crate::names::Name;
use crate::violation::{Violation, violation};

use super::Model;
use super::channel::{Channel, Consumer};
use super::observe::Round;
use super::queue::Queue;

/// A consumer: its client, channel and tag.
pub(crate) type Who = (usize, u16, Name);

impl Queue {
    /// Those who may get something.
    fn active(&self) -> &[Who] {
        match self.single_active {
            true => &self.consumers[..self.consumers.len().min(1)],
            false => &self.consumers,
        }
    }
}

impl Model {
    fn consumer(&self, (client, number, tag): Who) -> Option<(&Channel, &Consumer)> {
        let channel = self.connections.get(&client)?.channels.get(&number)?;
        Some((channel, channel.consumers.get(tag)?))
    }

    /// Whether a consumer has credit, its own and its channel's.
    fn is_free(&self, who: Who) -> bool {
        let Some((channel, consumer)) = self.consumer(who) else { return false };
        let below = |limit: u16, held: usize| limit == 0 || held < usize::from(limit);
        let this = Some((who.2, consumer.serial));
        let dying = self.dying.iter().filter(|dying| dying.unacked.consumer == this).count();
        let free = consumer.no_ack
            || below(consumer.prefetch, channel.held_by(this) + dying)
                && below(channel.prefetch_global, channel.held_by(None));
        free && !consumer.cancelled && !channel.failed && !channel.paused
    }

    /// A consumer of this queue that could take a message.
    pub(crate) fn idle_consumer(&self, queue: &str) -> Option<Who> {
        if !self.certain() {
            return None;
        }
        self.queues.get(queue)?.active().iter().copied().find(|who| self.is_free(*who))
    }

    /// A queue has served a consumer: it was one that may get something.
    pub(super) fn serves(
        &mut self,
        name: Name,
        who: Who,
        round: &mut Round,
    ) -> Result<(), Violation> {
        let priority = self.consumer(who).map_or(0, |(_, consumer)| consumer.priority);
        let Some(queue) = self.queues.get(name) else { return Ok(()) };
        if queue.consumers.contains(&who) && !queue.active().contains(&who) {
            let what = format!("{name} serves {who:?}, and {:?} is before it", queue.active());
            return violation("one consumer is active", what);
        }
        let stands_back = |other: &Who| {
            queue.single_active
                || self.consumer(*other).is_some_and(|(_, other)| other.priority < priority)
        };
        let preferred = queue.consumers.iter().any(|other| *other != who && stands_back(other));
        self.preferred += u64::from(preferred);
        let lowest = round.served.entry(name).or_insert(priority);
        *lowest = priority.min(*lowest);
        Ok(())
    }

    /// Consumers that had credit all the time while others of a lower priority were served.
    pub(crate) fn passed_over(&self, round: &Round) -> Vec<Who> {
        if self.credit_came || !round.exact {
            return Vec::new();
        }
        let of_queue = |(name, lowest): (&Name, &i16)| {
            let queue = self.queues.get(name)?;
            let is_higher =
                |who: &Who| self.consumer(*who).is_some_and(|(_, c)| c.priority > *lowest);
            // Priorities do not count where one is active.
            let mut higher =
                queue.consumers.iter().filter(|who| !queue.single_active && is_higher(who));
            higher.find(|who| self.is_free(**who)).copied()
        };
        round.served.iter().filter_map(of_queue).collect()
    }
}
