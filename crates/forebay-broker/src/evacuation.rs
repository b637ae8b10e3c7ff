//! Evacuation: what is alive in the log's oldest segment is copied to its end, so that the segment can go.
//!
//! ```text
//!   all in RAM ──looked through──► places, by message ──one message at a time──► copied, for all its queues
//!       ▲                               │ the open batch is full: in later turns
//!       └──────── all done ─────────────┘ until nothing is found
//! ```
//!
//! A message that went to many queues is in the log once, and is copied once: its queues would have a copy each, in the log
//! and, after a restart, in memory. What is looked for through all of RAM is looked for seldom: not in each turn that has
//! room for a few messages. Meanwhile messages are delivered, come back, and go, so each is looked up again in its place
//! when its turn comes; the next search finds what moved.

use std::collections::VecDeque;
use std::sync::Arc;

use forebay_store::{Home, QueueId, Seq};
use hashbrown::HashMap;

use crate::message::Message;
use crate::queue::Entry;
use crate::shard::{Shard, Stopping};
use crate::topology::QueueKey;

/// Places that one search remembers; with all that the last message has beyond.
const PLACES_MAX: usize = 128 * 1024;

/// Where an entry was found.
#[derive(Debug, Clone, Copy)]
enum Place {
    Queue { key: QueueKey, seq: Seq },
    Channel { connection: u32, number: u16, tag: u64 },
    Transaction { connection: u32, number: u16, at: u32 },
    Dying { number: u64 },
}

/// A segment that is being emptied.
#[derive(Debug)]
pub(crate) struct Evacuation {
    segment: Home,
    /// What is to be copied, with a number for each message. The places of one follow each other.
    planned: VecDeque<(u32, Place)>,
}

/// What a search has found so far.
#[derive(Default)]
struct Search {
    found: Vec<(u32, Place)>,
    /// Messages with several references, by address: nobody gives them up during a search.
    shared: HashMap<*const Message, u32, foldhash::fast::FixedState>,
    messages: u32,
    /// Places that all of them may have.
    places: usize,
    /// There is more than it may remember.
    cut: bool,
}

impl Search {
    fn add(&mut self, message: &Arc<Message>, place: Place) {
        let references = Arc::strong_count(message);
        let known = self.shared.get(&Arc::as_ptr(message)).filter(|_| references > 1);
        let number = match known {
            Some(number) => *number,
            None if self.places >= PLACES_MAX => {
                self.cut = true;
                return;
            }
            None => {
                self.messages += 1;
                self.places += references;
                if references > 1 {
                    self.shared.insert(Arc::as_ptr(message), self.messages);
                }
                self.messages
            }
        };
        self.found.push((number, place));
    }
}

impl Shard {
    /// The log wants to free its oldest segment: live messages in it are copied forward, as many as
    /// the open batch takes; the rest in later turns.
    pub(crate) fn evacuate(&mut self, segment: Home) {
        self.evacuating = Some(Evacuation { segment, planned: VecDeque::new() });
        self.evacuate_some();
    }

    pub(crate) fn evacuate_some(&mut self) {
        // Nothing may follow the end of the log.
        if self.store.is_full() || matches!(self.stopping, Stopping::Checkpoint | Stopping::Stopped)
        {
            return;
        }
        let Some(Evacuation { segment, mut planned }) = self.evacuating.take() else { return };
        let mut complete = false;
        if planned.is_empty() {
            let Search { mut found, cut, .. } = self.places_in(segment);
            if found.is_empty() {
                return;
            }
            found.sort_by_key(|(message, _)| *message);
            planned = found.into();
            complete = !cut;
        }
        let mut places = Vec::new();
        while let Some((message, place)) = planned.pop_front() {
            places.push(place);
            if planned.front().is_none_or(|(next, _)| *next != message) {
                self.copy_forward(segment, &places);
                places.clear();
                if self.store.is_full() {
                    break;
                }
            }
        }
        // What was found in this turn had no time to move.
        if !(complete && planned.is_empty()) {
            self.evacuating = Some(Evacuation { segment, planned });
        }
    }

    /// What has its copy in a segment. What is being written to a run has it there soon.
    fn places_in(&mut self, segment: Home) -> Search {
        let mut search = Search::default();
        for (index, queue) in &self.queues {
            let key = QueueKey(index as u32);
            for entry in queue.not_spilling().filter(|entry| entry.home == segment) {
                search.add(&entry.message, Place::Queue { key, seq: entry.seq });
            }
        }
        for (connection, open) in self.connections.iter_mut().enumerate() {
            let connection = connection as u32;
            for (number, channel) in open.iter_mut().flat_map(|open| open.channels.numbered_mut()) {
                for (tag, delivery) in channel.unacked.tagged() {
                    if delivery.entry.home == segment {
                        let place = Place::Channel { connection, number, tag };
                        search.add(&delivery.entry.message, place);
                    }
                }
                for (at, delivery) in channel.in_transaction_mut().enumerate() {
                    if delivery.entry.home == segment {
                        let place = Place::Transaction { connection, number, at: at as u32 };
                        search.add(&delivery.entry.message, place);
                    }
                }
            }
        }
        for (number, entry) in self.dying_in(segment) {
            search.add(&entry.message, Place::Dying { number });
        }
        search
    }

    /// Copies one message for all of these places where it still is. What is held of a queue that was deleted never comes back there, and
    /// is done with: a copy would be of a queue that nobody has declared.
    fn copy_forward(&mut self, segment: Home, places: &[Place]) {
        let mut message: Option<Arc<Message>> = None;
        let (mut messages, mut found) = (Vec::new(), Vec::new());
        for place in places {
            let Some((key, queue_id, entry)) = self.entry_at(place) else { continue };
            if entry.home != segment {
                continue;
            }
            // This reference is not counted: it goes before any other.
            let message = message.get_or_insert_with(|| entry.message.clone());
            if !Arc::ptr_eq(message, &entry.message) {
                continue;
            }
            let seq = entry.seq;
            if self.queues.get(key.0 as usize).is_some_and(|queue| queue.id == queue_id) {
                messages.push((queue_id, seq));
                found.push(place);
            } else if let Some((.., entry)) = self.entry_at(place) {
                entry.home = Home::NONE;
                self.store.settle(queue_id, seq, segment);
            }
        }
        let Some(message) = message.filter(|_| !messages.is_empty()) else { return };
        let home = self.store.relocate(&messages, message.as_stored());
        for place in found {
            if let Some((.., entry)) = self.entry_at(place) {
                entry.home = home;
            }
        }
    }

    fn entry_at(&mut self, place: &Place) -> Option<(QueueKey, QueueId, &mut Entry)> {
        let (connection, number) = match *place {
            Place::Queue { key, seq } => {
                let queue = self.queues.get_mut(key.0 as usize)?;
                let id = queue.id;
                return Some((key, id, queue.not_spilling_mut(seq)?));
            }
            Place::Dying { number } => {
                let delivery = self.dying.delivery_mut(number)?;
                return Some((delivery.queue, delivery.queue_id, &mut delivery.entry));
            }
            Place::Channel { connection, number, .. }
            | Place::Transaction { connection, number, .. } => (connection, number),
        };
        let connection = self.connections.get_mut(connection as usize)?.as_mut()?;
        let channel = connection.channel(number)?;
        let delivery = match *place {
            Place::Transaction { at, .. } => channel.in_transaction(at as usize)?,
            Place::Channel { tag, .. } => channel.unacked.get_mut(tag)?,
            Place::Queue { .. } | Place::Dying { .. } => return None,
        };
        Some((delivery.queue, delivery.queue_id, &mut delivery.entry))
    }
}

#[cfg(test)]
mod tests {
    use forebay_store::{MemDisk, Options, RunId, open, perform};

    use super::*;
    use crate::config::ShardConfig;
    use crate::queue::{Queue, test_entry};

    #[test]
    fn the_places_of_one_message_are_found_together_and_there_is_a_bound() {
        let mut search = Search::default();
        let many = Arc::new(Message::from_bytes(Message::start(b"", b"q", &[0, 0], 0)));
        let held: Vec<_> = (1..PLACES_MAX).map(|_| many.clone()).collect();
        let place = |seq| Place::Queue { key: QueueKey(0), seq };
        let alone = test_entry(1).message;
        search.add(&alone, place(1));
        search.add(&many, place(2));
        // There might be one too many: all of those that are known, and no other.
        search.add(&test_entry(3).message, place(3));
        held.iter().for_each(|again| search.add(again, place(4)));
        assert_eq!((search.found.len(), search.messages, search.cut), (1 + PLACES_MAX, 2, true));
        assert!(search.found[1..].iter().all(|(message, _)| *message == 2));
    }

    #[test]
    fn memory_is_looked_through_again_when_all_that_was_found_is_copied() {
        let disk = Arc::new(MemDisk::new());
        let options = Options { batch_max_bytes: 4096, ..Options::default() };
        let (store, recovered) = open(disk.clone(), options).expect("it is empty");
        let mut shard = Shard::new(ShardConfig::default(), store, Some(recovered)).expect("empty");
        let key = shard.queues.insert(Box::new(Queue::new(1, 0, b"q")));
        // Any home will do that no copy gets.
        let segment = Home::run(RunId(1));
        for seq in 1..=1_000 {
            shard.queues[key].push(Entry { home: segment, ..test_entry(seq) });
        }
        let mut now_us = 0;
        let mut commit = |shard: &mut Shard| {
            now_us += 1_000;
            while let Some(request) = shard.store.poll(now_us) {
                shard.store.complete(now_us, perform(&*disk, request)).expect("the disk works");
            }
        };
        shard.evacuate(segment);
        let planned = |shard: &Shard| shard.evacuating.as_ref().map(|left| left.planned.len());
        let here = |shard: &Shard| {
            let entries = shard.queues[key].not_spilling();
            entries.filter(|entry| entry.home == segment).count()
        };
        let mut turns = 0;
        while here(&shard) > 1 {
            // What comes now, with more of its kind to do, is found by the next search.
            if turns == 0 {
                shard.queues[key].push(Entry { home: segment, ..test_entry(1_001) });
            }
            assert_eq!(planned(&shard), Some(here(&shard) - 1), "after {turns} turns");
            commit(&mut shard);
            shard.evacuate_some();
            turns += 1;
            assert!(turns < 100, "each turn does something");
        }
        assert!(turns > 5);
        commit(&mut shard);
        shard.evacuate_some();
        assert_eq!((here(&shard), planned(&shard)), (0, None));
    }
}
