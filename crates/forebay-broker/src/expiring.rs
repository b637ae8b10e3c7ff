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
//! What is next may lie on disk; then it is read like for a consumer, but not while memory is full.
//!
//! A dead letter is written like a publish, and nobody can be asked to publish it later. So nothing dies of queues that have dead
//! letters while the open batch is full or the disk is: it waits where it is, and is not delivered. What is rejected meanwhile [waits, too](crate::dying).

use std::sync::Arc;

use forebay_store::Seq;
use forebay_wire::RawProperties;

use crate::dead_letters::{Death, Reason, goes_round};
use crate::message::Message;
use crate::publish::PERSISTENT;
use crate::queue::{Entry, Overflow, Queue};
use crate::queue_expiry::QueueExpiry;
use crate::shard::{Shard, Stopping};
use crate::topology::{QueueKey, extra_routing_keys};

/// Times to live go on over a restart: what waits here may wait for long.
pub(crate) const CAPABILITY: &str = "forebay.lasting_expiry";

/// Messages of one queue that expire, or are too many, before others have their turn:
const EXPIRE_MESSAGES: u64 = 256;

/// or, of more, one in so many of those that are left, but no more than this. Publishers bring thousands of small ones in a turn, and however
/// many they are, they do not make a queue longer and longer.
const EXPIRE_ONE_IN: u64 = 8;
const EXPIRE_MOST: u64 = 16_384;

/// Dead letters wait for room: when it is looked for again, in microseconds, as a batch is written and as a disk is full.
const BATCH_AGAIN_US: u64 = 1_000;
const SPACE_AGAIN_US: u64 = 100_000;

impl Queue {
    /// Whether its messages, or some of them, may expire.
    pub(crate) fn is_timed(&self) -> bool {
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

    /// Whether what is next has expired, or that has to be found out on disk.
    pub(crate) fn is_due(&self, now_us: u64) -> bool {
        self.is_timed() && self.next_due_us().is_some_and(|us| us <= now_us)
    }

    /// When it goes unless somebody uses it; who waits for a message of it does.
    fn expires_us(&self) -> Option<u64> {
        let unused = self.expiry.filter(|_| self.consumers.is_empty() && self.gets.is_empty());
        unused.map(QueueExpiry::due_us)
    }

    /// When something is to be done about it.
    fn due_us(&self) -> Option<u64> {
        // What is read from the disk is looked at when it is there.
        let comes_from_disk = self.head.is_empty() && (self.loading.is_some() || self.hungry);
        let next = (self.is_timed() && !comes_from_disk).then(|| self.next_due_us());
        self.expires_us().into_iter().chain(next.flatten()).min()
    }

    /// Somebody uses it.
    pub(crate) fn used(&mut self, now_us: u64) {
        if let Some(expiry) = &mut self.expiry {
            expiry.used(now_us);
        }
    }
}

impl Shard {
    /// When dead letters may go on, if they have to wait, in microseconds of the shell's clock.
    pub fn letters_again_us(&self) -> Option<u64> {
        match (self.is_out_of_reserve(), self.store.is_full()) {
            (true, _) => Some(self.now_us + SPACE_AGAIN_US),
            (false, true) => Some(self.now_us + BATCH_AGAIN_US),
            (false, false) => None,
        }
    }

    /// Whether nothing of a queue may die now.
    pub(crate) fn letters_wait(&self, key: QueueKey) -> bool {
        let queue = self.queues.get(key.0 as usize);
        queue.is_some_and(|queue| queue.dead_letters.is_some()) && self.letters_again_us().is_some()
    }

    /// The timer of a queue is early enough for what is due there.
    pub(crate) fn plan_queue(&mut self, key: QueueKey) {
        let letters_again_us = self.letters_again_us();
        let Some(queue) = self.queues.get_mut(key.0 as usize) else { return };
        let Some(mut due_us) = queue.due_us() else { return };
        if queue.dead_letters.is_some()
            && let Some(again_us) = letters_again_us
        {
            due_us = due_us.max(again_us);
        }
        if queue.timer_us.is_none_or(|timer_us| due_us < timer_us) {
            if let Some(timer_us) = queue.timer_us.replace(due_us) {
                self.queue_timers.remove(&(timer_us, key));
            }
            self.queue_timers.insert((due_us, key));
        }
    }

    /// Whether it has more messages than it may have, of which the oldest go.
    pub(crate) fn is_too_long(&self, key: QueueKey) -> bool {
        let Some(queue) = self.queues.get(key.0 as usize) else { return false };
        !queue.overflow.rejects() && self.has_no_room(queue, 0, 0)
    }

    /// Whether it refuses a message of so many bytes.
    pub(crate) fn is_full(&self, key: QueueKey, body_bytes: u64) -> bool {
        let Some(queue) = self.queues.get(key.0 as usize) else { return false };
        queue.overflow.rejects() && self.has_no_room(queue, 1, body_bytes)
    }

    /// Whether what waits in it, and so much more, is too much.
    fn has_no_room(&self, queue: &Queue, messages: u64, body_bytes: u64) -> bool {
        let bodies = queue.bodies;
        queue.ready_max.is_some_and(|max| self.over_levels(queue, Queue::ready) + messages > max)
            || bodies.is_some_and(|bodies| {
                self.over_levels(queue, Queue::body_bytes) + body_bytes > bodies.bytes_max
            })
    }

    /// Whether it takes what the broker itself puts into it. What its consumers can take, and get for that, does not make it full.
    pub(crate) fn takes_more(&mut self, key: QueueKey, message: &Message) -> bool {
        let body_bytes = message.body().len() as u64;
        while self.is_full(key, body_bytes) {
            if !self.hand_out_next(key) {
                return false;
            }
        }
        true
    }

    /// What is next goes to a consumer, if one takes it. What has expired does not, and stays: what leaves a letter here may come from
    /// another letter, and so on.
    fn hand_out_next(&mut self, key: QueueKey) -> bool {
        let front = self.front(key);
        let waits_for_a_visit = self.queues[key.0 as usize].dirty;
        if !waits_for_a_visit || self.queues[front.0 as usize].is_due(self.now_us) {
            return false;
        }
        self.deliver_one(key, self.out_soft_bytes()).is_ok()
    }

    /// Unless its consumers are still to be offered something, they have been offered all.
    pub(crate) fn note_offered(&mut self, key: QueueKey) {
        if self.was_offered(key) {
            self.offered(key);
        }
    }

    /// Whether its consumers have been offered all there is.
    fn was_offered(&self, key: QueueKey) -> bool {
        let queue = self.queues.get(self.whole(key).0 as usize);
        queue.is_some_and(|q| q.consumers.is_empty() || !q.dirty && !q.unoffered)
    }

    /// All that is in it was offered to all who consume.
    pub(crate) fn offered(&mut self, key: QueueKey) {
        if let Some(queue) = self.queues.get_mut(key.0 as usize) {
            queue.offered_below = queue.next_seq;
        }
    }

    /// When the first of the queues' timers is due.
    pub(crate) fn queues_deadline_us(&self) -> Option<u64> {
        if self.is_at_end() {
            return None;
        }
        let waits = !self.long_queues.is_empty() || !self.dying.is_empty();
        let again = waits.then(|| self.letters_again_us().unwrap_or(self.now_us + BATCH_AGAIN_US));
        self.queue_timers.first().map(|(due_us, _)| *due_us).into_iter().chain(again).min()
    }

    /// Whether the end of the log is written, behind which nothing may stand.
    pub(crate) fn is_at_end(&self) -> bool {
        matches!(self.stopping, Stopping::Checkpoint | Stopping::Stopped)
    }

    /// Looks at the queues whose timers are due, at each once.
    pub(crate) fn tick_queues(&mut self) {
        if self.is_at_end() {
            return;
        }
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
            if queue.expires_us().is_some_and(|due_us| due_us <= self.now_us) {
                self.counters.queues_expired += 1;
                self.delete_queue(key);
                continue;
            }
            let whole = self.whole(key);
            self.note_offered(key);
            if self.expire(key) {
                self.mark_queue(whole);
            }
            self.answer_pending_gets(whole);
            self.plan_queue(key);
        }
    }

    /// The same as [`expire`](Shard::expire) for what is next over all levels; the others have timers of their own.
    pub(crate) fn expire_front(&mut self, key: QueueKey) -> bool {
        self.expire_fronts(key, |_, _| ())
    }

    /// The same for who is not about to deliver.
    pub(crate) fn expire_idle(&mut self, key: QueueKey) -> bool {
        let expired = self.expire_fronts(key, Shard::note_offered);
        if expired && self.queues.get(key.0 as usize).is_some_and(|queue| queue.unoffered) {
            // Consumers are offered what stood behind it now, and not when the timer is due.
            self.mark_queue(key);
        }
        expired
    }

    fn expire_fronts(&mut self, key: QueueKey, before: impl Fn(&mut Shard, QueueKey)) -> bool {
        loop {
            let front = self.front(key);
            before(self, front);
            if !self.expire(front) {
                return false;
            }
            if self.front(key) == front {
                return true;
            }
        }
    }

    /// Takes out what is next, has been offered and has expired, so many messages at most. Returns whether there is no more of it.
    pub(crate) fn expire(&mut self, key: QueueKey) -> bool {
        if self.is_at_end() {
            return true;
        }
        let mut taken = 0;
        loop {
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
            if is_enough(taken, || queue.ready()) || self.letters_wait(key) {
                return false;
            }
            taken += 1;
            self.counters.expired += 1;
            self.bury_next(key, Reason::Expired);
        }
    }

    /// What is too many goes before somebody looks who was not there when it came; what consumers are still to be offered stays.
    pub(crate) fn shorten_idle(&mut self, key: QueueKey) {
        let key = self.whole(key);
        while self.was_offered(key) && !self.letters_wait(key) && self.shorten(key) {}
    }

    /// Takes out what is next of what is too many, so many messages at most. Consumers have taken what they can. Returns whether there
    /// is more.
    fn shorten(&mut self, key: QueueKey) -> bool {
        let dropped = self.counters.dropped;
        let more = self.drop_some(key);
        if self.counters.dropped > dropped {
            // What is next now may expire before what has gone.
            self.plan_levels(key);
        }
        more
    }

    fn drop_some(&mut self, key: QueueKey) -> bool {
        let mut taken = 0;
        loop {
            if !self.is_too_long(key) {
                return false;
            }
            if is_enough(taken, || self.ready_in(key)) || self.letters_wait(key) {
                return true;
            }
            let front = self.front(key);
            let queue = &mut self.queues[front.0 as usize];
            if queue.head.is_empty() {
                queue.take_back();
            }
            if queue.head.is_empty() {
                self.load_cold(front);
                return false;
            }
            taken += 1;
            self.counters.dropped += 1;
            self.bury_next(front, Reason::MaxLength);
        }
    }

    /// Notes a queue that is too long, for [`shorten_queues`](Shard::shorten_queues).
    pub(crate) fn note_long(&mut self, key: QueueKey) {
        let key = self.whole(key);
        if !self.is_too_long(key) {
            return;
        }
        let queue = &mut self.queues[key.0 as usize];
        if !std::mem::replace(&mut queue.noted_long, true) {
            self.long_queues.push(key);
        }
    }

    /// Shortens what was noted since the last time, but for queues whose consumers are still to be offered something: of these only what
    /// has expired before that goes. What goes to dead letters may make other queues too long: they are noted meanwhile.
    pub(crate) fn shorten_queues(&mut self) {
        if self.is_at_end() {
            return;
        }
        let mut later = Vec::new();
        while let Some(key) = self.long_queues.pop() {
            let Some(queue) = self.queues.get_mut(key.0 as usize) else { continue };
            queue.noted_long = false;
            if self.was_offered(key) {
                if self.shorten(key) {
                    later.push(key);
                }
                continue;
            }
            if self.expire_front(key) {
                self.mark_queue(key);
            }
            later.push(key);
        }
        later.into_iter().for_each(|key| self.note_long(key));
    }

    /// Leaves out the queues that are full and refuse more. Returns whether there were any.
    pub(crate) fn leave_out_full(
        &mut self,
        message: &Arc<Message>,
        queues: &mut Vec<QueueKey>,
    ) -> bool {
        if !queues.iter().any(|key| self.queues[key.0 as usize].overflow.rejects()) {
            return false;
        }
        let before = queues.len();
        let body_bytes = message.body().len() as u64;
        queues.retain(|key| {
            if self.is_full(*key, body_bytes) && self.queues[key.0 as usize].dirty {
                // What consumers can take does not make it full.
                let soft_bytes = self.out_soft_bytes();
                while self.visit(*key, soft_bytes).1 {}
            }
            let full = self.is_full(*key, body_bytes);
            if full && self.queues[key.0 as usize].overflow == Overflow::RejectPublishDeadLetter {
                self.refuse_to_letters(*key, message);
            }
            !full
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
            queue.limited = queue.is_limited();
        }
        self.hold_if_empty(key);
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
        let queue_id = queue.id;
        // Between requests to the disk, and so in one batch of the log: after a crash it is in one of them.
        self.write_letter(key, &entry.message, reason);
        self.discard(queue_id, entry);
    }

    /// The dead letter of a message goes its way, if its queue has any.
    pub(crate) fn write_letter(&mut self, key: QueueKey, message: &Message, reason: Reason) {
        let Some(queue) = self.queues.get(key.0 as usize) else { return };
        let Some(dead) = &queue.dead_letters else { return };
        let death = Death { queue: &queue.name, reason, time_s: self.time_s() };
        let (vhost, letter) = (queue.vhost, dead.letter(message, death));
        self.post(vhost, letter);
    }

    /// The time of day in seconds since 1970; 0 if nobody has said it.
    pub(crate) fn time_s(&self) -> u64 {
        self.clock_began_us.map_or(0, |began_us| (began_us + self.now_us) / 1_000_000)
    }

    /// Takes a dead letter to its queues; nobody hears of it if there are none.
    pub(crate) fn post(&mut self, vhost: u32, letter: Message) {
        let topology = &self.vhosts[vhost as usize].topology;
        let Some(from) = topology.exchange_key(&letter.exchange()) else { return };
        let raw = RawProperties::trusted(letter.raw_properties());
        let persistent = raw.delivery_mode() == Some(PERSISTENT);
        let headers = raw.headers().unwrap_or_default();
        let extra = extra_routing_keys(headers).unwrap_or_default();
        topology.route(from, &letter.routing_key(), &extra, raw, &mut self.route_set);
        let mut queues = std::mem::take(&mut self.scratch_letters);
        queues.clear();
        queues.extend(self.route_set.queues());
        queues.retain(|key| {
            !goes_round(&letter, &self.queues[key.0 as usize].name)
                && self.takes_more(*key, &letter)
        });
        self.counters.dead_lettered += u64::from(!queues.is_empty());
        let letter = self.shared(letter);
        // A queue that balances makes those wait who publish, and nobody does here.
        let held_by = self.held_by;
        self.enqueue(letter, persistent, &mut queues);
        self.held_by = held_by;
        self.scratch_letters = queues;
    }
}

/// Whether so many of a queue are enough at a time; `left` tells how many are left in it.
fn is_enough(taken: u64, left: impl FnOnce() -> u64) -> bool {
    taken >= EXPIRE_MESSAGES && taken >= (left() / EXPIRE_ONE_IN).min(EXPIRE_MOST)
}
