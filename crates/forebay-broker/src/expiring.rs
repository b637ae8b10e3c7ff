//! Messages and queues whose time is over, and messages that are too many.
//!
//! ```text
//!   timer of a queue ──► nobody uses it, x-expires is over? ──yes──► the queue goes
//!                            │ no
//!                        what is next has expired? ──yes──► out of the queue, to its dead letters, and so on
//! ```
//! A message expires when it is next, like RabbitMQ's of classic queues: one with a shorter time of its own waits behind others. It is
//! not delivered then, however soon somebody asks. One that came since the queue was last visited has not been offered to
//! consumers, so it does not expire before it has: with none to live it reaches who waits for it, and nobody else.
//!
//! Of too many (`x-max-length`) the oldest go, once consumers have taken what they can, or, with `reject-publish`, new ones are refused. What is delivered
//! and not settled does not count.
//!
//! What is next may lie on disk; then it is read like for a consumer.

use std::num::NonZeroU64;

use forebay_store::Seq;
use forebay_wire::{Properties, RawProperties};

use crate::dead_letters::{Death, Reason, goes_round};
use crate::message::Message;
use crate::publish::{PERSISTENT, expiration_ms};
use crate::queue::{Entry, Queue};
use crate::shard::Shard;
use crate::topology::{QueueKey, extra_routing_keys};

/// Times to live go on over a restart: what waits here may wait for long.
pub(crate) const CAPABILITY: &str = "forebay.lasting_expiry";

/// Messages of one queue that expire before others have their turn.
const EXPIRE_MESSAGES: usize = 256;

impl Queue {
    /// Whether its messages, or some of them, may expire.
    fn is_timed(&self) -> bool {
        self.ttl.is_some() || self.has_expirations
    }

    /// A message with a time of its own came.
    pub(crate) fn note_expiration(&mut self) {
        self.has_expirations = true;
        self.limited = true;
    }

    /// When what is next expires; 0 if that has to be found out on disk.
    fn next_due_us(&self) -> Option<u64> {
        if let Some(next) = self.head.first() {
            let of_queue = self.ttl.as_ref().map(|ttl| ttl.due_us(next.seq));
            return of_queue.into_iter().chain(next.message.expires_us()).min();
        }
        let on_disk = self.cold.front().map(|run| run.next_seq);
        let spilling = || self.spilling.iter().filter(|s| !s.purged);
        let next = on_disk.or_else(|| spilling().find_map(|s| Some(s.entries.front()?.seq)))?;
        if self.has_expirations {
            return Some(0);
        }
        self.ttl.as_ref().map(|ttl| ttl.due_us(next))
    }

    /// Whether what is next lies on disk, and has to go or may have to.
    pub(crate) fn goes_from_disk(&self, now_us: u64) -> bool {
        let is_due = || self.is_timed() && self.next_due_us().is_some_and(|us| us <= now_us);
        self.head.is_empty() && (self.is_too_long() || is_due())
    }

    fn is_too_long(&self) -> bool {
        !self.rejects && self.ready_max.is_some_and(|ready_max| self.ready() > ready_max)
    }

    fn is_full(&self) -> bool {
        self.rejects && self.ready_max.is_some_and(|ready_max| self.ready() >= ready_max)
    }

    /// Whether it takes what the broker itself puts into it. What consumers may still take does not make it full, and they are not asked here:
    /// what they leave may die as well, and so on.
    pub(crate) fn takes_more(&self) -> bool {
        self.dirty || !self.is_full()
    }

    /// When something is to be done about it.
    fn due_us(&self) -> Option<u64> {
        let unused = self.expiry.filter(|_| self.consumers.is_empty());
        // What is read from the disk is looked at when it is there.
        let next = (self.is_timed() && !self.loading && !self.hungry).then(|| self.next_due_us());
        unused.map(|expiry| expiry.due_us()).into_iter().chain(next.flatten()).min()
    }

    /// Unless its consumers are still to be offered something, they have been offered all.
    pub(crate) fn note_offered(&mut self) {
        if !self.dirty {
            self.offered_below = self.next_seq;
        }
    }

    /// Somebody uses it.
    pub(crate) fn used(&mut self, now_us: u64) {
        if let Some(expiry) = &mut self.expiry {
            expiry.used(now_us);
        }
    }
}

impl Shard {
    /// The timer of a queue is early enough for what is due there.
    pub(crate) fn plan_queue(&mut self, key: QueueKey) {
        let Some(queue) = self.queues.get_mut(key.0 as usize) else { return };
        let Some(due_us) = queue.due_us() else { return };
        if queue.timer_us.is_none_or(|timer_us| due_us < timer_us) {
            if let Some(timer_us) = queue.timer_us.replace(due_us) {
                self.queue_timers.remove(&(timer_us, key));
            }
            self.queue_timers.insert((due_us, key));
        }
    }

    /// When the first of the queues' timers is due.
    pub(crate) fn queues_deadline_us(&self) -> Option<u64> {
        self.queue_timers.first().map(|(due_us, _)| *due_us)
    }

    /// Looks at the queues whose timers are due, at each once.
    pub(crate) fn tick_queues(&mut self) {
        let due: Vec<QueueKey> = self
            .queue_timers
            .iter()
            .take_while(|(due_us, _)| *due_us <= self.now_us)
            .map(|(_, key)| *key)
            .collect();
        for key in due {
            let Some(queue) = self.queues.get_mut(key.0 as usize) else { continue };
            if let Some(timer_us) = queue.timer_us.take() {
                self.queue_timers.remove(&(timer_us, key));
            }
            let unused = queue.expiry.filter(|_| queue.consumers.is_empty());
            if unused.is_some_and(|expiry| expiry.due_us() <= self.now_us) {
                self.counters.queues_expired += 1;
                self.delete_queue(key);
                continue;
            }
            if self.expire_idle(key) {
                self.mark_queue(key);
            }
            self.answer_pending_gets(key);
            self.plan_queue(key);
        }
    }

    /// The same as [`expire`](Shard::expire), for who is not about to deliver.
    pub(crate) fn expire_idle(&mut self, key: QueueKey) -> bool {
        if let Some(queue) = self.queues.get_mut(key.0 as usize) {
            queue.note_offered();
        }
        self.expire(key)
    }

    /// Takes out what is next, has been offered and has expired, so many messages at most. Returns whether there is no more of it.
    pub(crate) fn expire(&mut self, key: QueueKey) -> bool {
        for _ in 0..EXPIRE_MESSAGES {
            let Some(queue) = self.queues.get_mut(key.0 as usize).filter(|q| q.is_timed()) else {
                return true;
            };
            let is_offered = queue.head.first().is_none_or(|next| next.seq < queue.offered_below);
            if !is_offered || queue.next_due_us().is_none_or(|due_us| due_us > self.now_us) {
                return true;
            }
            if queue.head.is_empty() {
                queue.take_back();
                if queue.head.is_empty() {
                    self.load_cold(key);
                    return true;
                }
                continue;
            }
            self.counters.expired += 1;
            self.bury_next(key, Reason::Expired);
        }
        false
    }

    /// Takes out the oldest of what is too many. Consumers have taken what they can.
    pub(crate) fn shorten(&mut self, key: QueueKey) {
        while let Some(queue) = self.queues.get_mut(key.0 as usize).filter(|q| q.is_too_long()) {
            if queue.head.is_empty() {
                queue.take_back();
            }
            if queue.head.is_empty() {
                return self.load_cold(key);
            }
            self.counters.dropped += 1;
            self.bury_next(key, Reason::MaxLength);
        }
    }

    /// Notes a queue that is too long, for [`shorten_queues`](Shard::shorten_queues).
    pub(crate) fn note_long(&mut self, key: QueueKey) {
        let Some(queue) = self.queues.get_mut(key.0 as usize) else { return };
        if !queue.noted_long && queue.is_too_long() {
            queue.noted_long = true;
            self.long_queues.push(key);
        }
    }

    /// Shortens what was noted since the last time, but for queues whose consumers are still to be offered something. What goes to dead letters may make
    /// other queues too long: they are noted meanwhile.
    pub(crate) fn shorten_queues(&mut self) {
        while let Some(key) = self.long_queues.pop() {
            let Some(queue) = self.queues.get_mut(key.0 as usize) else { continue };
            queue.noted_long = false;
            if !queue.dirty {
                self.shorten(key);
            }
        }
    }

    /// Leaves out the queues that are full and refuse more. Returns whether there were any.
    pub(crate) fn leave_out_full(&mut self, queues: &mut Vec<QueueKey>) -> bool {
        if !queues.iter().any(|key| self.queues[key.0 as usize].rejects) {
            return false;
        }
        let before = queues.len();
        queues.retain(|key| {
            let queue = &self.queues[key.0 as usize];
            if queue.is_full() && queue.dirty {
                // What consumers can take does not make it full.
                let soft_bytes = self.out_soft_bytes();
                while self.visit(*key, soft_bytes).1 {}
            }
            !self.queues[key.0 as usize].is_full()
        });
        queues.len() < before
    }

    /// What is next, and in memory, leaves its queue for good.
    #[inline(never)]
    fn bury_next(&mut self, key: QueueKey, reason: Reason) {
        let queue = &mut self.queues[key.0 as usize];
        let Some(entry) = queue.pop() else { return };
        queue.taken(self.now_us, entry.seq);
        if queue.is_empty() {
            queue.has_expirations &= queue.unacked > 0;
            queue.limited = queue.is_timed() || queue.ready_max.is_some();
            queue.waits.hold(None, self.now_us);
        }
        self.bury(key, entry, reason);
    }

    /// A persistent message is about to be put into a queue: the log says first when it came, or a restart would let it expire with those
    /// before it.
    #[inline(never)]
    pub(crate) fn write_arrival(&mut self, key: QueueKey) {
        let queue = &mut self.queues[key.0 as usize];
        if let (Some(ttl), Some(began_us)) = (&mut queue.ttl, self.clock_began_us)
            && let Some(arrival) =
                ttl.comes_to_stay(self.now_us, began_us, (queue.id, queue.next_seq))
        {
            self.store.put_meta(&arrival.key(), &arrival.value());
        }
    }

    /// When the clock of [`Shard::step`] began, in microseconds since 1970: the shell knows, and may say so again when the
    /// system's clock was set. Until it is said no marks are told, and messages with a time to live count as if they came with the start.
    pub fn set_clock(&mut self, began_us: u64) {
        if self.clock_began_us.replace(began_us).is_some() {
            return;
        }
        let keys: Vec<_> = self.queues.iter().map(|(key, _)| QueueKey(key as u32)).collect();
        for key in keys {
            if let Some(ttl) = &mut self.queues[key.0 as usize].ttl {
                ttl.clock_known(self.now_us, began_us);
                self.plan_queue(key);
            }
        }
    }

    /// A message was put into a queue where it may expire, or be one too many.
    #[inline(never)]
    pub(crate) fn came_to_limited(&mut self, key: QueueKey, seq: Seq) {
        let queue = &mut self.queues[key.0 as usize];
        if let Some(ttl) = &mut queue.ttl {
            ttl.came(self.now_us, seq);
        }
        let last = queue.tail.back().or_else(|| queue.head.last());
        if last.is_some_and(|last| last.message.expires_us().is_some()) {
            queue.note_expiration();
        }
        // A timer that runs is planned anew when it is due.
        if queue.timer_us.is_none() || queue.head.len() <= 1 {
            self.plan_queue(key);
        }
        self.note_long(key);
    }

    /// A message leaves its queue for good: to the dead letters, if the queue has any.
    pub(crate) fn bury(&mut self, key: QueueKey, entry: Entry, reason: Reason) {
        let Some(queue) = self.queues.get(key.0 as usize) else { return };
        let (queue_id, vhost) = (queue.id, queue.vhost);
        let Some(dead) = &queue.dead_letters else { return self.discard(queue_id, entry) };
        let time_s = self.clock_began_us.map_or(0, |began_us| (began_us + self.now_us) / 1_000_000);
        let death = Death { queue: &queue.name, reason, time_s };
        let letter = dead.letter(&entry.message, death);
        // Between requests to the disk, and so in one batch of the log: after a crash it is in one of them.
        self.post(vhost, letter);
        self.discard(queue_id, entry);
    }

    /// Takes a dead letter to its queues; nobody hears of it if there are none.
    fn post(&mut self, vhost: u32, letter: Message) {
        let topology = &self.vhosts[vhost as usize].topology;
        let Some(from) = topology.exchange_key(&letter.exchange()) else { return };
        let raw = RawProperties::trusted(letter.raw_properties());
        let persistent = raw.delivery_mode() == Some(PERSISTENT);
        let headers = raw.headers().unwrap_or_default();
        let extra = extra_routing_keys(headers).unwrap_or_default();
        topology.route(from, &letter.routing_key(), &extra, raw, &mut self.route_set);
        let mut queues = std::mem::take(&mut self.scratch_letters);
        queues.clear();
        let sound = |key: &QueueKey| {
            let queue = &self.queues[key.0 as usize];
            queue.takes_more() && !goes_round(&letter, &queue.name)
        };
        queues.extend(self.route_set.queues().iter().copied().filter(sound));
        self.counters.dead_lettered += u64::from(!queues.is_empty());
        let letter = self.shared(letter);
        // A queue that balances makes those wait who publish, and nobody does here.
        let held_by = self.held_by;
        self.enqueue(letter, persistent, &queues);
        self.held_by = held_by;
        self.scratch_letters = queues;
    }
}

/// When a message with a time of its own expires, if it begins now.
pub(crate) fn expires_us(raw: &[u8], now_us: u64) -> Option<NonZeroU64> {
    if !crate::publish::has_expiration(raw) {
        return None;
    }
    let Properties { expiration, .. } = RawProperties::trusted(raw).parse();
    let after_us = expiration_ms(expiration?).ok()?.saturating_mul(1_000);
    NonZeroU64::new(now_us.saturating_add(after_us).max(1))
}
