//! From what the store recovered to queues, exchanges and bindings.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use forebay_store::{Recovered, RecoveredQueue};
use forebay_wire::{Table, TableBuf};
use hashbrown::HashMap;

use crate::ack_timeout::timeout_argument;
use crate::arrivals::Arrival;
use crate::cold_runs::ColdRun;
use crate::levels::max_priority;
use crate::memory::another;
use crate::message::Message;
use crate::notices::Notice;
use crate::queue::{Entry, Queue};
use crate::shard::{Shard, Vhost};
use crate::topology::{MetaWrite, QueueKey, QueueRecord, Record, RecordError, Resource};

/// Why a recovered store cannot be served.
#[derive(Debug)]
pub enum RestoreError {
    /// A record of the topology cannot be read.
    Topology(RecordError),
    /// A stored message is not one.
    Message {
        /// The queue's name.
        queue: String,
        /// Its sequence number there.
        seq: u64,
    },
    /// What says when messages came says nothing.
    Arrival,
}

impl fmt::Display for RestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RestoreError::Topology(error) => {
                write!(f, "the stored topology cannot be read: {error}")
            }
            RestoreError::Message { queue, seq } => write!(
                f,
                "message {seq} of queue '{queue}' has a right checksum but is no message; \
                 another version of Forebay may have written it"
            ),
            RestoreError::Arrival => write!(
                f,
                "a stored time at which messages came has a right checksum and cannot be read; \
                 another version of Forebay may have written it"
            ),
        }
    }
}

impl std::error::Error for RestoreError {}

/// What a store's map says: the topology, and when messages came.
pub(crate) fn read_meta(
    meta: &BTreeMap<Vec<u8>, Vec<u8>>,
) -> Result<(Vec<Record>, Vec<Arrival>), RestoreError> {
    let (mut records, mut arrivals) = (Vec::with_capacity(meta.len()), Vec::new());
    for (key, value) in meta {
        match Arrival::decode(key, value) {
            Some(arrival) => arrivals.push(arrival.map_err(|_| RestoreError::Arrival)?),
            None => records.push(Record::decode(key, value).map_err(RestoreError::Topology)?),
        }
    }
    Ok((records, arrivals))
}

impl Shard {
    /// Takes over what a store recovered. Unless the last stop was clean, every message counts as
    /// possibly delivered: nobody knows which were on their way.
    pub(crate) fn restore(&mut self, recovered: Recovered) -> Result<(), RestoreError> {
        let (records, stored) = read_meta(&recovered.meta)?;
        let mut arrivals = HashMap::<u64, Vec<Arrival>, foldhash::fast::FixedState>::default();
        for arrival in stored {
            arrivals.entry(arrival.queue).or_default().push(arrival);
        }
        let mut keys = HashMap::<u64, QueueKey, foldhash::fast::FixedState>::default();
        let mut of_levels = HashMap::<u64, QueueKey, foldhash::fast::FixedState>::default();
        let mut declared = BTreeMap::new();
        for record in &records {
            if let Record::Queue(record) = record {
                let latest = declared.entry(record.place()).or_insert(record.id);
                *latest = record.id.max(*latest);
            }
        }
        for record in &records {
            match record {
                Record::Exchange(exchange) => {
                    self.vhost_named(&exchange.vhost).topology.restore_exchange(exchange);
                }
                // It was deleted, which was lost: another one has its name since.
                Record::Queue(record) if declared[&record.place()] > record.id => {
                    self.store.delete_meta(&record.key());
                }
                Record::Queue(record) => {
                    let vhost = self.vhost_index(&record.vhost);
                    let policies = &self.vhosts[vhost as usize].topology.policies;
                    let all = policies.queue_arguments(&record.name, record.arguments.as_table());
                    let mut queue = Queue::new(record.id, vhost, &record.name).with_arguments(
                        self.now_us,
                        record.arguments.clone(),
                        all.as_table(),
                    );
                    queue.stored = true;
                    queue.auto_delete = record.auto_delete;
                    let resource = Resource::queue(&record.name, &record.vhost);
                    // It was checked when the queue was declared.
                    queue.ack_timeout_ms =
                        timeout_argument(resource, all.as_table()).unwrap_or(None);
                    let key = QueueKey(self.queues.insert(Box::new(queue)) as u32);
                    self.vhosts[vhost as usize].topology.add_queue(&record.name, key, true);
                    keys.insert(record.id, key);
                    let levels = u64::from(max_priority(record.arguments.as_table()));
                    self.next_queue_id = self.next_queue_id.max(record.id + 1 + levels);
                    for number in 1..=levels {
                        of_levels.insert(record.id + number, key);
                    }
                }
                Record::Binding(_) => {}
            }
        }
        // Bindings last: both of their ends are there now.
        for record in &records {
            if let Record::Binding(binding) = record
                && !self.vhost_named(&binding.vhost).topology.restore_binding(binding)
            {
                // The declaration of one of its ends was lost with a part of the log. Another one may have its name, and would be bound by
                // the next start.
                self.store.delete_meta(&binding.key());
            }
        }
        // Also after an earlier one, which may have ended before its queues for what it had found were written.
        let (clean, salvaged) = (recovered.clean, recovered.salvaged);
        let mut payloads: Vec<Payload> =
            recovered.payloads.into_iter().map(Payload::Stored).collect();
        for queue in recovered.queues {
            self.next_queue_id = self.next_queue_id.max(queue.id + 1);
            let level = || self.stored_level(*of_levels.get(&queue.id)?, queue.id);
            let mut key = keys.get(&queue.id).copied().or_else(level);
            if key.is_none() && salvaged && !(queue.messages.is_empty() && queue.runs.is_empty()) {
                key = Some(self.undeclared_queue(&queue));
                keys.extend(key.map(|key| (queue.id, key)));
            }
            match key {
                Some(key) => {
                    let id = queue.id;
                    self.restore_queue(key, queue, clean, &mut payloads)?;
                    let queue = &mut self.queues[key.0 as usize];
                    if let Some(ttl) = &mut queue.ttl {
                        let is_there = |arrival: &mut Arrival| arrival.first < queue.next_seq;
                        let of_queue = arrivals.entry(id).or_default();
                        ttl.restored(self.now_us, of_queue.extract_if(.., is_there));
                    }
                }
                None => self.drop_contents(queue),
            }
        }
        // Of queues that are gone, or whose messages are numbered anew, or are not timed any more: what comes meanwhile is not written.
        // And of messages that were lost with the power: others will have their numbers, and came at another time.
        for arrival in arrivals.into_values().flatten() {
            self.store.delete_meta(&arrival.key());
        }
        for key in keys.into_values() {
            self.plan_levels(key);
            self.note_long(key);
        }
        // What came before the restart goes on by it, too.
        if let Some(began_us) = self.clock_began_us.take() {
            self.set_clock(began_us);
        }
        Ok(())
    }

    fn restore_queue(
        &mut self,
        key: QueueKey,
        recovered: RecoveredQueue,
        clean: bool,
        payloads: &mut [Payload],
    ) -> Result<(), RestoreError> {
        let queue = &mut self.queues[key.0 as usize];
        let began_us = self.clock_began_us;
        queue.next_seq = recovered.next_seq.max(1);
        queue.redelivered_upto =
            if clean { recovered.delivered_upto } else { queue.next_seq.saturating_sub(1) };
        let mut messages = recovered.messages.into_iter().peekable();
        // Runs do not overlap, and no message lies within one; between two of them there may be some.
        for run in recovered.runs {
            let mut before = VecDeque::new();
            while let Some((seq, home, index)) = messages.next_if(|(seq, ..)| *seq < run.first) {
                let payload = &mut payloads[index];
                before.push_back(restored(
                    queue,
                    seq,
                    home,
                    payload,
                    began_us,
                    &mut self.memory_bytes,
                )?);
            }
            self.runs.insert(run.id, (key, queue.id));
            let (messages, next_seq) = (run.messages, run.first);
            let counted = false;
            queue.cold.push_back(ColdRun { before, run: run.id, messages, next_seq, counted });
        }
        for (seq, home, index) in messages {
            let payload = &mut payloads[index];
            let entry = restored(queue, seq, home, payload, began_us, &mut self.memory_bytes)?;
            queue.tail.push_back(entry);
        }
        if !queue.cold.is_empty() {
            // Some in its runs may have a time of their own.
            queue.note_expiration();
        }
        queue.refill_from_ram();
        queue.delivered_upto = 0;
        if !queue.is_empty() {
            self.hold_without_consumer(key);
        }
        Ok(())
    }

    /// A queue for what a salvage found of one whose declaration is in the part of the log that cannot be read: the messages are as good as
    /// any. It may have been deleted, too; then they are back.
    fn undeclared_queue(&mut self, found: &RecoveredQueue) -> QueueKey {
        let vhost = self.vhosts.first().map_or("/", |vhost| &vhost.name).to_owned();
        let at = self.vhost_index(&vhost);
        let topology = &mut self.vhosts[at as usize].topology;
        let mut name = format!("lost-queue-{}", found.id);
        while topology.queue(name.as_bytes()).is_some() {
            name.push('-');
        }
        let record = QueueRecord {
            vhost,
            name: name.as_bytes().into(),
            id: found.id,
            durable: true,
            auto_delete: false,
            exclusive: false,
            arguments: TableBuf::new(),
        };
        let of_policy = topology.policies.queue_arguments(&record.name, Table::default());
        let mut queue = Queue::new(found.id, at, &record.name).with_arguments(
            self.now_us,
            TableBuf::new(),
            of_policy.as_table(),
        );
        queue.stored = true;
        let key = QueueKey(self.queues.insert(Box::new(queue)) as u32);
        topology.add_queue(&record.name, key, true);
        self.write_meta(MetaWrite::Put { key: record.key(), value: record.encode() });
        let in_runs: u64 = found.runs.iter().map(|run| run.messages).sum();
        let messages = found.messages.len() as u64 + in_runs;
        self.notices.tell(Notice::DeclarationLost { queue: name, messages });
        key
    }

    /// Contents of a queue whose deletion was on disk before they were settled.
    fn drop_contents(&mut self, queue: RecoveredQueue) {
        for (seq, home, _) in queue.messages {
            self.store.settle(queue.id, seq, home);
        }
        for run in queue.runs {
            self.store.settle_run(run.id);
        }
        self.store.forget_queue(queue.id);
    }

    fn vhost_index(&mut self, name: &str) -> u32 {
        if let Some(index) = self.vhosts.iter().position(|vhost| vhost.name == name) {
            return index as u32;
        }
        // A virtual host that the configuration no longer names keeps its contents.
        self.vhosts.push(Vhost::new(name, &self.config));
        self.vhosts.len() as u32 - 1
    }

    fn vhost_named(&mut self, name: &str) -> &mut Vhost {
        let index = self.vhost_index(name);
        &mut self.vhosts[index as usize]
    }
}

/// What was stored, until a queue has it, and the message from then on: others may have it, too.
enum Payload {
    Stored(Vec<u8>),
    Message(Arc<Message>),
}

fn restored(
    queue: &mut Queue,
    seq: u64,
    home: forebay_store::Home,
    payload: &mut Payload,
    clock_began_us: Option<u64>,
    memory_bytes: &mut u64,
) -> Result<Entry, RestoreError> {
    let message = match payload {
        Payload::Message(message) => another(memory_bytes, message),
        Payload::Stored(bytes) => {
            let message = Message::from_stored(std::mem::take(bytes))
                .ok_or_else(|| RestoreError::Message { queue: queue.display_name(), seq })?;
            let message = message.going_on_to_expire(0, clock_began_us);
            *memory_bytes += message.memory_bytes();
            let message = Arc::new(message);
            // This reference is not counted: it goes before any other.
            *payload = Payload::Message(message.clone());
            message
        }
    };
    if message.expires_us().is_some() {
        queue.note_expiration();
    }
    queue.ready_bytes += message.memory_bytes();
    queue.count_body(&message);
    let redelivered = seq <= queue.redelivered_upto;
    Ok(Entry { seq, message, home, redelivered })
}

#[cfg(test)]
mod tests {
    use forebay_store::{MemDisk, Options, Store, open, perform};

    use super::*;
    use crate::config::ShardConfig;

    fn commit(disk: &MemDisk, store: &mut Store) {
        while let Some(request) = store.poll(0) {
            store.complete(0, perform(disk, request)).expect("the disk works");
        }
    }

    /// A disk with a message for each of these queues, which are declared by these numbers, all as `q`.
    fn disk(queues: &[u64], declared: &[u64]) -> Arc<MemDisk> {
        let disk = Arc::new(MemDisk::new());
        let (mut store, _) = open(disk.clone(), Options::default()).expect("it is empty");
        for &id in declared {
            let record = QueueRecord {
                vhost: "/".to_owned(),
                name: b"q".as_slice().into(),
                id,
                durable: true,
                auto_delete: false,
                exclusive: false,
                arguments: TableBuf::new(),
            };
            store.put_meta(&record.key(), &record.encode());
        }
        for &id in queues {
            let message = Message::from_bytes(Message::start(b"", b"q", &[0, 0], 0));
            store.publish(&[(id, 1)], message.as_stored());
        }
        commit(&disk, &mut store);
        disk
    }

    /// The queues of a broker that starts with it, by name, with their messages, and what it tells.
    fn started(disk: &Arc<MemDisk>, salvaged: bool) -> (Vec<(String, u64)>, Vec<Notice>) {
        disk.kill();
        let (store, mut recovered) = open(disk.clone(), Options::default()).expect("it opens");
        recovered.salvaged = salvaged;
        let shard = Shard::new(ShardConfig::default(), store, Some(recovered));
        let mut shard = shard.expect("it is understood");
        commit(disk, &mut shard.store);
        let topology = &shard.vhosts[0].topology;
        let queues = shard
            .queues
            .iter()
            .filter(|(key, queue)| topology.queue(&queue.name) == Some(QueueKey(*key as u32)));
        let mut queues: Vec<_> = queues.map(|(_, q)| (q.display_name(), q.ready())).collect();
        queues.sort_unstable();
        (queues, std::iter::from_fn(|| shard.take_notice()).collect())
    }

    #[test]
    fn what_a_salvage_finds_of_a_queue_without_its_declaration_is_kept() {
        let disk = disk(&[7], &[]);
        let found = ("lost-queue-7".to_owned(), 1);
        let notice = Notice::DeclarationLost { queue: found.0.clone(), messages: 1 };
        assert_eq!(started(&disk, true), (vec![found.clone()], vec![notice]));
        assert_eq!(started(&disk, false), (vec![found], vec![]), "it is declared now");
    }

    #[test]
    fn of_a_sound_log_a_queue_without_a_declaration_was_deleted() {
        let disk = disk(&[7], &[]);
        assert_eq!(started(&disk, false), (vec![], vec![]));
        assert_eq!(started(&disk, true), (vec![], vec![]), "nothing of it is left");
    }

    #[test]
    fn of_two_declarations_of_one_name_the_later_one_holds() {
        // In the order of their keys the later one comes first.
        let disk = disk(&[256, 5], &[256, 5]);
        let found = vec![("lost-queue-5".to_owned(), 1), ("q".to_owned(), 1)];
        assert_eq!(started(&disk, true).0, found);
        assert_eq!(started(&disk, false), (found, vec![]));
    }
}
