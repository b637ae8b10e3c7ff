//! Deliveries: messages from queues to consumers with credit, round robin.
//!
//! Deliveries do not wait for the disk (confirms do). A queue is visited when something changed for it:
//! a message came, credit came back, a socket drained. A visit is bounded, and so is what one turn
//! delivers, so that nobody waits long for anybody.

use forebay_wire::{RawProperties, ShortStr, basic};

use crate::ack_timeout::AckLimit;
use crate::connection::Stage;
use crate::content::Way;
use crate::marks::{Clock, told};
use crate::memory::{another, release};
use crate::outgoing::OUT_SOFT_MAX_BYTES;
use crate::queue::Entry;
use crate::queue_consumers::Round;
use crate::round_robin::Gathers;
use crate::shard::Shard;
use crate::topology::QueueKey;
use crate::unacked::Delivery;
use crate::waits::Gate;

/// Messages delivered from one queue before the next one has its turn.
const VISIT_MESSAGES: usize = 64;

/// Bytes delivered in one turn; the rest goes on in the next.
const TURN_BYTES: usize = 4 * 1024 * 1024;

/// Outgoing bytes of all consuming connections together at which deliveries stop: one part of the memory budget in so many,
const OUT_PER_MEMORY: u64 = 8;

/// and no more than this.
const OUT_TOTAL_BYTES: u64 = 32 * 1024 * 1024;

/// Every consuming connection may have this much outgoing, however many there are.
const OUT_SOFT_MIN_BYTES: usize = 16 * 1024;

/// Why a queue's head stays.
pub(crate) enum Undelivered {
    /// The queue is empty, or what is next lies on disk.
    NotInRam,
    /// No consumer can take it; what the last hope waits for.
    NobodyFor(Gate),
}

impl Shard {
    /// Outgoing bytes above which a connection gets no more deliveries, for now.
    pub(crate) fn out_soft_bytes(&self) -> usize {
        let together = (self.config.memory_budget_bytes / OUT_PER_MEMORY).min(OUT_TOTAL_BYTES);
        (together as usize / self.consuming_connections.max(1))
            .clamp(OUT_SOFT_MIN_BYTES, OUT_SOFT_MAX_BYTES)
    }

    /// Visits the queues that have something to deliver until they are done or the turn is. While the shell
    /// is `busy`, queues may gather first (see [`RoundRobin`]).
    ///
    /// [`RoundRobin`]: crate::round_robin::RoundRobin
    pub(crate) fn deliver_dirty_queues(&mut self, busy: bool) {
        let soft = self.out_soft_bytes();
        let mut budget = TURN_BYTES as isize;
        let mut gathering = std::mem::take(&mut self.scratch_gathering);
        let working_us = self.gather.working_us();
        while budget > 0
            && let Some(key) = self.dirty_queues.pop_front()
        {
            let Some(queue) = self.queues.get_mut(key.0 as usize) else { continue };
            if !queue.dirty {
                continue;
            }
            if !queue.gets.is_empty() {
                // They wait for the disk, and what came back is in memory.
                self.answer_pending_gets(key);
            }
            let Ok(portion) = (if busy { self.portion(key, working_us) } else { Ok(1) }) else {
                // Out of the way: those that do not gather go on until the budget is used up.
                gathering.push(key);
                continue;
            };
            let queue = &mut self.queues[key.0 as usize];
            queue.dirty = false;
            queue.turns.cut(self.now_us, portion, working_us);
            let (bytes, more) = self.visit(key, soft);
            budget -= bytes as isize;
            if more {
                self.mark_queue(key);
            }
        }
        self.gathering = !gathering.is_empty() && self.dirty_queues.is_empty();
        self.dirty_queues.extend(gathering.drain(..));
        self.scratch_gathering = gathering;
    }

    /// How many messages in a row consumers of a queue get now, or that it waits for more before its next consumer gets some.
    fn portion(&self, key: QueueKey, working_us: u64) -> Result<usize, Gathers> {
        let queue = &self.queues[key.0 as usize];
        let ready = self.queues[self.front(key).0 as usize].head.len();
        let count = queue.consumers.sharers();
        // Before the consumers are looked at: they may be many, and none of them may have credit.
        if let Ok(portion) = queue.turns.portion(self.now_us, ready, count, working_us) {
            return Ok(portion);
        }
        let mut round = Round::from(queue.turns.at(), &queue.consumers);
        let in_turn = std::iter::from_fn(|| round.next(&queue.consumers));
        let mut in_turn = in_turn.map(|at| &self.consumers[queue.consumers.at(at).0 as usize]);
        match in_turn.find(|next| next.has_credit()) {
            Some(next) if next.unacked > 0 => Err(Gathers),
            Some(_) => queue.turns.portion(self.now_us, ready, count, self.gather.idle_us()),
            None => Ok(1),
        }
    }

    /// Delivers up to [`VISIT_MESSAGES`]; returns the bytes and whether it could go on.
    pub(crate) fn visit(&mut self, key: QueueKey, soft: usize) -> (usize, bool) {
        let mut bytes = 0;
        let (mut held, mut expires) = (None, false);
        let limited = self.queues.get(key.0 as usize).is_some_and(|queue| queue.limited);
        for _ in 0..VISIT_MESSAGES {
            if limited && !self.expire_front(key) {
                // Its timer goes on with that, and then marks it again.
                expires = true;
                break;
            }
            match self.deliver_one(key, soft) {
                Ok(size) => bytes += size,
                Err(why) => {
                    held = Some(why);
                    break;
                }
            }
        }
        let front = if limited { self.front(key) } else { key };
        self.load_cold(front);
        let now_us = self.now_us;
        let next = self.queues.get(front.0 as usize);
        let hungry = next.is_some_and(|next| next.hungry);
        let empty = || next.is_none_or(|next| next.is_empty());
        let on_disk = matches!(held, Some(Undelivered::NotInRam)) && !empty();
        if let Some(queue) = self.queues.get_mut(key.0 as usize) {
            let gate = match held {
                Some(Undelivered::NobodyFor(gate)) => Some(gate),
                Some(Undelivered::NotInRam) if hungry => Some(Gate::Room),
                Some(Undelivered::NotInRam) if on_disk => Some(Gate::Run),
                _ => None,
            };
            queue.waits.hold(gate, now_us);
            queue.unoffered = held.is_none() && (queue.unoffered || expires);
        }
        if limited {
            // Nobody takes more; until then what is left has not been offered. What stands behind a letter without room has had its chance:
            // it may wait there for long, and is not delivered when its time is over.
            if held.is_some() || expires && self.letters_wait(front) {
                self.each_level(key, |shard, level| {
                    shard.offered(level);
                    true
                });
            }
            if held.is_some() {
                self.note_long(key);
            }
            self.plan_levels(key);
        }
        (bytes, held.is_none() && !expires)
    }

    /// Delivers the head of a queue to the next consumer with credit.
    pub(crate) fn deliver_one(&mut self, key: QueueKey, soft: usize) -> Result<usize, Undelivered> {
        let Some(queue) = self.queues.get_mut(key.0 as usize) else {
            return Err(Undelivered::NotInRam);
        };
        let consumed = !queue.consumers.is_empty();
        let has_levels = queue.levels.is_some();
        let from = if has_levels { self.front(key) } else { key };
        let front = &mut self.queues[from.0 as usize];
        if consumed {
            front.take_back();
        }
        if front.head.is_empty() {
            return Err(Undelivered::NotInRam);
        }
        let queue = &mut self.queues[key.0 as usize];
        let clock = self.clock_began_us.map(|began_us| Clock { began_us, now_us: self.now_us });
        let mut gate = if queue.consumers.is_empty() { Gate::NoConsumer } else { Gate::Credit };
        let mut round = Round::from(queue.turns.at(), &queue.consumers);
        while let Some(at) = round.next(&queue.consumers) {
            let consumer_key = queue.consumers.at(at);
            let consumer = &mut self.consumers[consumer_key.0 as usize];
            debug_assert_eq!(consumer.place, at);
            if !consumer.has_credit() {
                queue.consumers.full(at);
                continue;
            }
            let Some(Some(connection)) = self.connections.get_mut(consumer.connection.0 as usize)
            else {
                continue;
            };
            if connection.stage != Stage::Open {
                continue;
            }
            if connection.out.len() >= soft {
                if !connection.starved {
                    connection.starved = true;
                    connection.waits.begin(Gate::Socket, self.now_us);
                }
                gate = Gate::Delivery;
                continue;
            }
            let frame_max_bytes = connection.frame_max_bytes;
            let Some(channel) = connection.channels.get_mut(consumer.channel) else {
                continue;
            };
            if !channel.active || !(consumer.no_ack || channel.has_credit()) {
                continue;
            }
            queue.turns.served(at);
            queue.consumers.served(at, queue.turns.at());
            let queue = if has_levels { &mut self.queues[from.0 as usize] } else { queue };
            let Some(entry) = queue.pop() else { return Err(Undelivered::NotInRam) };
            queue.taken(self.now_us, entry.seq);
            let delivery_tag = channel.take_delivery_tag();
            let out = &mut connection.out;
            out.make_room(&mut self.warm_out);
            let before = out.end();
            let deliver = basic::Deliver {
                consumer_tag: ShortStr::new(&consumer.tag).unwrap_or_default(),
                delivery_tag,
                redelivered: entry.redelivered,
                exchange: entry.message.exchange(),
                routing_key: entry.message.routing_key(),
            };
            let way = Way::new(consumer.channel, frame_max_bytes, soft);
            let marks = clock.filter(|_| consumer.marks);
            let marked = marks.and_then(|clock| told(&entry.message, clock, frame_max_bytes));
            let raw = marked.as_deref().map(RawProperties::trusted);
            let left = consumer.no_ack.then_some((from, queue.id));
            let sent = (&entry.message, left);
            let waits = out.message(way, &deliver, raw, sent, &mut self.memory_bytes);
            if waits || !consumer.no_ack {
                queue.unsettled_bytes += entry.message.memory_bytes();
            }
            let size = out.delivered(before);
            let number = consumer.channel;
            let traced = self
                .tracing
                .then(|| (another(&mut self.memory_bytes, &entry.message), entry.redelivered));
            self.counters.delivered += 1;
            if consumer.no_ack {
                queue.settled(self.now_us);
                self.store.settle(queue.id, entry.seq, entry.home);
                release(&mut self.memory_bytes, &mut self.warm_messages, entry.message);
            } else {
                consumer.unacked += 1;
                channel.unacked_consumed += 1;
                queue.unacked += 1;
                let ack_timeout_ms = consumer.ack_timeout_ms;
                let consumer = Some((consumer_key, consumer.serial));
                let limit = AckLimit::from(self.now_us, ack_timeout_ms);
                let delivery = Delivery { queue: from, queue_id: queue.id, entry, consumer, limit };
                channel.unacked.push(delivery_tag, delivery);
            }
            let id = self.consumers[consumer_key.0 as usize].connection;
            self.mark_connection(id);
            if let Some((message, redelivered)) = traced {
                self.trace_delivery(id, number, key, &message, redelivered);
                self.release(message);
            }
            return Ok(size);
        }
        Err(Undelivered::NobodyFor(gate))
    }

    /// A message is done with: acknowledged, rejected, or not to be acknowledged.
    pub(crate) fn discard(&mut self, queue_id: u64, entry: Entry) {
        self.store.settle(queue_id, entry.seq, entry.home);
        self.release(entry.message);
    }

    /// A delivery has left its channel: its consumer and queue may go on.
    /// The caller decides what becomes of the entry.
    pub(crate) fn delivery_left(&mut self, delivery: &Delivery) {
        let mut place = None;
        if let Some((key, serial)) = delivery.consumer
            && let Some(consumer) = self.consumers.get_mut(key.0 as usize)
            && consumer.serial == serial
        {
            consumer.unacked -= 1;
            place = Some(consumer.place);
        }
        if let Some(queue) = self.queues.get_mut(delivery.queue.0 as usize)
            && queue.id == delivery.queue_id
        {
            queue.unacked -= 1;
            queue.unsettled_bytes -= delivery.entry.message.memory_bytes();
            let queue = match queue.level_of {
                Some(whole) => &mut self.queues[whole.0 as usize],
                None => queue,
            };
            if let Some(place) = place {
                queue.consumers.freed(place);
            }
            self.holds_less(delivery.queue);
        }
    }

    /// Who takes from a queue holds less of it: more may be delivered, and come from disk for it.
    pub(crate) fn holds_less(&mut self, key: QueueKey) {
        let Some(queue) = self.queues.get(key.0 as usize) else { return };
        if queue.levels.is_some() || queue.level_of.is_some() {
            return self.levels_hold_less(key);
        }
        let asked = !queue.gets.is_empty();
        if !queue.head.is_empty() || !queue.cold.is_empty() {
            self.mark_queue(key);
        }
        if asked {
            self.load_cold(key);
        }
    }

    /// Puts a delivery back at its place, or drops it if its queue is gone.
    pub(crate) fn requeue(&mut self, delivery: Delivery) {
        self.delivery_left(&delivery);
        match self.queues.get_mut(delivery.queue.0 as usize) {
            Some(queue) if queue.id == delivery.queue_id => {
                queue.requeue(delivery.entry);
                self.hold_without_consumer(delivery.queue);
                let whole = self.whole(delivery.queue);
                self.mark_queue(whole);
                if self.queues[delivery.queue.0 as usize].limited {
                    self.plan_queue(delivery.queue);
                    self.note_long(delivery.queue);
                }
            }
            _ => self.discard(delivery.queue_id, delivery.entry),
        }
    }
}
