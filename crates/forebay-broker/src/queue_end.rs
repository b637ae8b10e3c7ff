//! The end of messages and queues: purging, deleting, and what goes with a connection.

use std::mem;

use forebay_store::QueueId;
use forebay_wire::{ShortStr, basic};

use crate::arrivals::Arrival;
use crate::connection::Stage;
use crate::consumer::Consumer;
use crate::input::ConnectionId;
use crate::memory::release;
use crate::queue::Queue;
use crate::shard::Shard;
use crate::topology::{MetaWrite, QueueKey, QueueRecord};

impl Shard {
    /// Drops all that is ready; what is unsettled stays with its channels.
    pub(crate) fn purge(&mut self, key: QueueKey) -> u32 {
        let count = self.purge_levels(key);
        // What they wait for comes no more.
        let gets = mem::take(&mut self.queues[key.0 as usize].gets);
        if !gets.is_empty() {
            self.waited_for_no_longer(key);
        }
        self.answer_empty(gets);
        count
    }

    fn purge_levels(&mut self, key: QueueKey) -> u32 {
        let count = self.with_levels(key).into_iter().map(|level| self.purge_level(level)).sum();
        self.queues[key.0 as usize].waits.hold(None, self.now_us);
        u64::min(count, u64::from(u32::MAX)) as u32
    }

    fn purge_level(&mut self, key: QueueKey) -> u64 {
        let queue = &mut self.queues[key.0 as usize];
        let count = queue.ready();
        let queue_id = queue.id;
        let head = mem::take(&mut queue.head);
        let tail = mem::take(&mut queue.tail);
        let cold = mem::take(&mut queue.cold);
        queue.ready_bytes = 0;
        let reading = queue.loading;
        // What consumers hold of a run that they took back stays theirs; the rest of it is in the head.
        for spilling in queue.spilling.iter_mut().filter(|spilling| !spilling.entries.is_empty()) {
            spilling.purged = true;
            self.store.settle_run(spilling.run);
        }
        let mut in_ram = head.into_row();
        for run in cold.into_runs() {
            self.store.settle_run_from(run.run, run.next_seq);
            // What is being read comes all the same. Until then nothing of this run is cold again, or the answer would be taken for
            // one about that: consumers may give back what they hold of it.
            if reading != Some(run.run) {
                self.runs.remove(&run.run);
            }
            in_ram.extend(run.before);
        }
        in_ram.extend(tail);
        for entry in in_ram {
            self.store.settle(queue_id, entry.seq, entry.home);
            release(&mut self.memory_bytes, &mut self.warm_messages, entry.message);
        }
        let queue = &mut self.queues[key.0 as usize];
        if let Some(bodies) = &mut queue.bodies {
            bodies.bytes = 0;
        }
        count
    }

    /// Ends a queue, and tells its consumers.
    pub(crate) fn delete_queue(&mut self, key: QueueKey) {
        let (_, consumers) = self.end_queue(key);
        self.tell_cancelled(consumers);
    }

    /// Ends a queue: messages dropped, bindings removed. Returns how many messages were ready, and its consumers, who are
    /// [still to be told](Shard::tell_cancelled).
    pub(crate) fn end_queue(&mut self, key: QueueKey) -> (u32, Vec<Consumer>) {
        let count = self.purge_levels(key);
        self.let_go(key);
        let mut levels = self.with_levels(key);
        levels.retain(|level| *level != key);
        let levels: Vec<Queue> = levels.into_iter().map(|level| self.remove_level(level)).collect();
        let mut queue = self.remove_level(key);
        let gets = mem::take(&mut queue.gets);
        let kept: Vec<(QueueId, Vec<u8>)> = levels
            .iter()
            .chain([&queue])
            .filter(|level| level.stored)
            .map(|level| (level.id, level.ttl.iter().flat_map(|ttl| ttl.slots()).collect()))
            .collect();
        self.past_waits.add(&queue.waits, self.now_us);
        let mut consumers = Vec::with_capacity(queue.consumers.len());
        for consumer_key in queue.consumers.iter() {
            let Some(consumer) = self.consumers.try_remove(consumer_key.0 as usize) else {
                continue;
            };
            let Some(connection) = self.connection(consumer.connection) else { continue };
            connection.consumers -= 1;
            let last = connection.consumers == 0;
            if let Some(channel) = connection.channel(consumer.channel) {
                channel.consumers.retain(|other| *other != consumer_key);
            }
            self.consuming_connections -= usize::from(last);
            consumers.push(consumer);
        }
        if let Some(owner) = queue.owner
            && let Some(connection) = self.connection(owner)
        {
            connection.exclusive_queues.retain(|(other, _)| *other != key);
        }
        let vhost = &mut self.vhosts[queue.vhost as usize];
        let changes = vhost.topology.remove_queue(&queue.name);
        let record = QueueRecord {
            vhost: vhost.name.clone(),
            name: queue.name,
            id: queue.id,
            durable: queue.stored,
            auto_delete: queue.auto_delete,
            exclusive: queue.owner.is_some(),
            arguments: queue.arguments,
        };
        self.write_changes(changes);
        if queue.stored {
            self.write_meta(MetaWrite::Delete { key: record.key() });
        }
        for (id, slots) in kept {
            slots.into_iter().for_each(|slot| self.store.delete_meta(&Arrival::key_of(id, slot)));
            self.store.forget_queue(id);
        }
        // Only now: those behind them go on, and what expires thereby may not come to a queue that is half gone.
        self.answer_empty(gets);
        (count, consumers)
    }

    /// Consumers whose queue has gone hear of it, if they can.
    pub(crate) fn tell_cancelled(&mut self, consumers: Vec<Consumer>) {
        for Consumer { connection: id, channel, tag, .. } in consumers {
            let Some(connection) = self.connection(id) else { continue };
            if connection.stage == Stage::Open && connection.capabilities.consumer_cancel_notify {
                let consumer_tag = ShortStr::new(&tag).unwrap_or_default();
                self.send(id, channel, &basic::Cancel { consumer_tag, no_wait: true });
            }
        }
    }

    /// A level, or a queue without levels, is gone, and what it was is returned. It was purged.
    fn remove_level(&mut self, key: QueueKey) -> Queue {
        let mut queue = *self.queues.remove(key.0 as usize);
        self.dying.queue_went(&mut queue);
        if let Some(timer_us) = queue.timer_us {
            self.queue_timers.remove(&(timer_us, key));
        }
        for spilling in mem::take(&mut queue.spilling) {
            // Its run is dropped when it is written; nobody waits for it here any more.
            self.runs.remove(&spilling.run);
            self.spilling_bytes -= spilling.bytes;
            for entry in spilling.entries {
                release(&mut self.memory_bytes, &mut self.warm_messages, entry.message);
            }
        }
        queue
    }

    /// The queues that go with a connection.
    pub(crate) fn delete_exclusive_queues(&mut self, id: ConnectionId) {
        let Some(connection) = self.connection(id) else { return };
        for (key, queue_id) in mem::take(&mut connection.exclusive_queues) {
            if self.queues.get(key.0 as usize).is_some_and(|queue| queue.id == queue_id) {
                self.delete_queue(key);
            }
        }
    }
}
