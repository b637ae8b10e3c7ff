//! `basic.get` (0-9-1 section 1.8.3.10): one message, asked for.
//!
//! A message whose turn it is may lie in a run file; then the answer waits for its block.

use std::collections::VecDeque;
use std::mem;

use forebay_wire::basic;

use crate::access::Access;
use crate::ack_timeout::AckLimit;
use crate::channel::GetBehind;
use crate::content::Way;
use crate::error::AmqpError;
use crate::input::ConnectionId;
use crate::memory::another;
use crate::queue::PendingGet;
use crate::shard::Shard;
use crate::topology::QueueKey;
use crate::unacked::Delivery;

/// One `basic.get` of a channel waits for a block of a long queue. When twice as many wait as at the last look, and these at least,
/// those of channels that have gone are forgotten: what waits of a queue is no more than twice its channels, and so many.
const PENDING_GETS_LOOK: usize = 1_024;

/// `basic.get`s of one channel that may wait behind one that waits for the disk.
const GETS_BEHIND_MAX: usize = 1_000;

impl Shard {
    pub(crate) fn get(
        &mut self,
        id: ConnectionId,
        number: u16,
        get: &basic::Get<'_>,
    ) -> Result<(), AmqpError> {
        let key = self.queue_for(id, number, get.queue, Some(Access::Read))?;
        let queue = &mut self.queues[key.0 as usize];
        queue.used(self.now_us);
        let queue_id = queue.id;
        let Some(channel) = self.connection(id).and_then(|c| c.channel(number)) else {
            return Ok(());
        };
        // Those that wait go first, whatever they wait for.
        if channel.get_pending || !channel.gets_behind.is_empty() {
            if channel.gets_behind.len() >= GETS_BEHIND_MAX {
                let reason = "too many basic.get wait on one channel; await their answers";
                return Err(AmqpError::out_of_resources(reason));
            }
            let behind = GetBehind { queue: key, queue_id, no_ack: get.no_ack };
            channel.gets_behind.push_back(behind);
            return Ok(());
        }
        self.get_or_wait(id, number, key, get.no_ack);
        Ok(())
    }

    fn get_or_wait(&mut self, id: ConnectionId, number: u16, key: QueueKey, no_ack: bool) {
        self.shorten_idle(key);
        let expired = self.expire_idle(key);
        let front = self.front(key);
        let queue = &mut self.queues[front.0 as usize];
        queue.take_back();
        // What is next lies on disk: the answer comes with its block. Or it has expired, like so many that others go first.
        let waits = queue.head.is_empty() && queue.ready() > 0 || !expired;
        if waits {
            self.forget_gone_gets(key);
            let Some(channel) = self.connection(id).and_then(|c| c.channel(number)) else { return };
            channel.get_pending = true;
            let serial = channel.serial;
            let get = PendingGet { connection: id, channel: number, serial, no_ack };
            self.queues[key.0 as usize].gets.push_back(get);
            self.load_cold(front);
            self.plan_levels(key);
            return;
        }
        self.answer_get(id, number, key, no_ack);
    }

    /// A get that had to wait has its answer: those behind it on the channel go on.
    fn get_answered(&mut self, id: ConnectionId, number: u16) {
        if let Some(channel) = self.connection(id).and_then(|c| c.channel(number)) {
            channel.get_pending = false;
        }
        self.go_on_getting(id, number);
    }

    /// Answers what waits on a channel, until one has to wait for the disk, or the client has enough to read.
    fn go_on_getting(&mut self, id: ConnectionId, number: u16) {
        while let Some(connection) = self.connection(id) {
            connection.gets_wait |= connection.is_brimful();
            let gets_wait = connection.gets_wait;
            let Some(channel) = connection.channel(number) else { return };
            if gets_wait || channel.get_pending {
                return;
            }
            let Some(behind) = channel.gets_behind.pop_front() else { return };
            let GetBehind { queue, queue_id, no_ack } = behind;
            match self.queues.get(queue.0 as usize) {
                Some(found) if found.id == queue_id => self.get_or_wait(id, number, queue, no_ack),
                _ => self.send(id, number, &basic::GetEmpty::default()),
            }
        }
    }

    /// Answers the gets that waited for messages to come back to RAM.
    pub(crate) fn answer_pending_gets(&mut self, key: QueueKey) {
        while self.expire_idle(key)
            && let Some(next) = self.queues.get(self.front(key).0 as usize)
            && (!next.head.is_empty() || next.ready() == 0)
            && let Some(get) = self.queues[key.0 as usize].gets.pop_front()
        {
            if !self.is_awaited(&get) {
                self.plan_queue(key);
                continue;
            }
            if !self.puts_off(&get, key) {
                self.answer_get(get.connection, get.channel, key, get.no_ack);
            }
            self.waited_for_no_longer(key);
            self.get_answered(get.connection, get.channel);
        }
    }

    /// Somebody waited for a message of a queue, and used it until now.
    pub(crate) fn waited_for_no_longer(&mut self, key: QueueKey) {
        if let Some(queue) = self.queues.get_mut(key.0 as usize) {
            queue.used(self.now_us);
            self.plan_queue(key);
        }
    }

    /// Whether the client has not read what it has: then its get waits on its channel, first of all there, and no longer for
    /// this queue.
    fn puts_off(&mut self, get: &PendingGet, key: QueueKey) -> bool {
        let queue_id = self.queues[key.0 as usize].id;
        let Some(connection) = self.connection(get.connection).filter(|c| c.is_brimful()) else {
            return false;
        };
        let Some(channel) = connection.channel(get.channel) else { return false };
        let behind = GetBehind { queue: key, queue_id, no_ack: get.no_ack };
        channel.gets_behind.push_front(behind);
        true
    }

    /// A client has read: what it asked for is answered further.
    pub(crate) fn resume_gets(&mut self, id: ConnectionId) {
        let Some(connection) = self.connection(id) else { return };
        if !connection.gets_wait || connection.is_brimful() {
            return;
        }
        connection.gets_wait = false;
        for number in connection.channels.numbers() {
            self.go_on_getting(id, number);
        }
    }

    /// There is nothing to wait for any more.
    pub(crate) fn answer_empty(&mut self, gets: VecDeque<PendingGet>) {
        for get in gets {
            if self.is_awaited(&get) {
                self.send(get.connection, get.channel, &basic::GetEmpty::default());
                self.get_answered(get.connection, get.channel);
            }
        }
    }

    /// Somebody may ask on a channel, close it and ask on the next, while the disk is slow.
    fn forget_gone_gets(&mut self, key: QueueKey) {
        let gets = &mut self.queues[key.0 as usize].gets;
        if gets.len() < PENDING_GETS_LOOK || !gets.len().is_power_of_two() {
            return;
        }
        let mut gets = mem::take(gets);
        gets.retain(|get| self.is_awaited(get));
        self.queues[key.0 as usize].gets = gets;
    }

    /// Whether the channel that asked is still there.
    fn is_awaited(&mut self, get: &PendingGet) -> bool {
        let channel = self.connection(get.connection).and_then(|c| c.channel(get.channel));
        channel.is_some_and(|channel| channel.serial == get.serial && !channel.closing)
    }

    fn answer_get(&mut self, id: ConnectionId, number: u16, key: QueueKey, no_ack: bool) {
        let soft = self.out_soft_bytes();
        let front = self.front(key);
        let ack_timeout_ms = self.queues[key.0 as usize].ack_timeout_ms;
        if self.connection(id).and_then(|c| c.channel(number)).is_none() {
            return;
        }
        let queue = &mut self.queues[front.0 as usize];
        let Some(entry) = queue.pop() else {
            self.send(id, number, &basic::GetEmpty::default());
            return;
        };
        queue.taken(self.now_us, entry.seq);
        queue.unacked += 1;
        // What is next now may have expired before it, and is not left behind then.
        self.expire_idle(key);
        let message_count = self.ready_in(key).min(u64::from(u32::MAX)) as u32;
        let Some(Some(connection)) = self.connections.get_mut(id.0 as usize) else { return };
        let way = Way::new(number, connection.frame_max_bytes, soft);
        let Some(channel) = connection.channels.get_mut(number) else { return };
        let queue = &mut self.queues[front.0 as usize];
        let delivery_tag = channel.take_delivery_tag();
        let get_ok = basic::GetOk {
            delivery_tag,
            redelivered: entry.redelivered,
            exchange: entry.message.exchange(),
            routing_key: entry.message.routing_key(),
            message_count,
        };
        let left = no_ack.then_some((front, queue.id));
        let sent = (&entry.message, left);
        let waits = connection.out.message(way, &get_ok, None, sent, &mut self.memory_bytes);
        if waits || !no_ack {
            queue.unsettled_bytes += entry.message.memory_bytes();
        }
        self.counters.delivered += 1;
        let traced = self
            .tracing
            .then(|| (another(&mut self.memory_bytes, &entry.message), entry.redelivered));
        let queue_id = queue.id;
        if no_ack {
            queue.unacked -= 1;
            self.discard(queue_id, entry);
        } else {
            let ack_timeout_ms = ack_timeout_ms.unwrap_or(self.config.ack_timeout_ms);
            let limit = AckLimit::from(self.now_us, ack_timeout_ms);
            let delivery = Delivery { queue: front, queue_id, entry, consumer: None, limit };
            channel.unacked.push(delivery_tag, delivery);
            self.mix_ack_limits(id, number, ack_timeout_ms);
        }
        self.mark_connection(id);
        if let Some((message, redelivered)) = traced {
            self.trace_delivery(id, number, key, &message, redelivered);
            self.release(message);
        }
        self.hold_if_empty(key);
        let front = self.front(key);
        self.load_cold(front);
        self.plan_levels(key);
    }
}
