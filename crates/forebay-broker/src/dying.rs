//! What is rejected or refused and whose dead letter waits for room.
//!
//! ```text
//!   reject, nack ─────────────────► there is room, and nobody waits? ──yes──► its letter is written at once
//!   x-overflow, queue is full ──►        │ no
//!                                        ▼
//!                                     waits here ──a turn with room, or a part of each commit──► written
//! ```
//! A client says in one method that it will not have a thousand large messages, and each letter is a copy: nobody else writes so much at
//! once, so these wait for room in the open batch as publishes do, and on a full disk as all letters do. Who is rejected stays what its
//! consumer holds meanwhile, in its queue's counts and for the consumer's prefetch, and comes back after a restart.
//!
//! In a transaction letters are part of the commit, and [count for its bound](crate::tx).
//!
//! Their queue may go meanwhile. It does with a consumer that rejects what it has and leaves, if it is that consumer's own. They were rejected before,
//! so their letters go their way all the same; only a crash before that takes them along.
//!
//! Memory: nothing that was not there before. A delivery was held by its channel, a refused message is counted until its letter is written.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use forebay_store::{Home, QueueId};

use crate::dead_letters::{DeadLetters, Death, Reason};
use crate::message::Message;
use crate::queue::{Entry, Queue};
use crate::shard::Shard;
use crate::topology::QueueKey;
use crate::tx::Outcome;
use crate::unacked::Delivery;

/// Letters of those who wait may take so much of each commit before publishers have their turn, in bytes; one in any case. All of it, and
/// a consumer that rejects what comes round again and again would keep every publisher waiting; none, and publishers would keep the
/// letters.
pub(crate) const COMMIT_BYTES: u64 = 128 * 1024;

/// Whose letter waits.
#[derive(Debug)]
enum Dying {
    /// Its consumer would not have it.
    Rejected(Delivery),
    /// Its queue was full.
    Refused { queue: QueueKey, queue_id: QueueId, message: Arc<Message> },
}

impl Dying {
    fn queue_id(&self) -> QueueId {
        match self {
            Dying::Rejected(delivery) => delivery.queue_id,
            Dying::Refused { queue_id, .. } => *queue_id,
        }
    }
}

/// A queue that is no longer there, and what its letters need of it.
#[derive(Debug)]
struct PastQueue {
    vhost: u32,
    name: Box<[u8]>,
    dead_letters: Box<DeadLetters>,
    /// How many of it wait.
    waiting: usize,
}

/// Those whose letters wait, in their order.
#[derive(Debug, Default)]
pub(crate) struct DyingMessages {
    waiting: VecDeque<Dying>,
    /// So many waited and do no longer: the number of the first of them.
    gone: u64,
    /// How many wait of each queue that has some.
    of_queue: BTreeMap<QueueId, usize>,
    /// Queues that went before the letters of some that wait were written.
    past_queues: BTreeMap<QueueId, PastQueue>,
}

impl DyingMessages {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Deliveries among them, with numbers that stay theirs.
    pub(crate) fn deliveries(&self) -> impl Iterator<Item = (u64, &Delivery)> {
        self.waiting.iter().zip(self.gone..).filter_map(|(dying, number)| match dying {
            Dying::Rejected(delivery) => Some((number, delivery)),
            Dying::Refused { .. } => None,
        })
    }

    /// The delivery with this number, if it still waits.
    pub(crate) fn delivery_mut(&mut self, number: u64) -> Option<&mut Delivery> {
        let at = usize::try_from(number.checked_sub(self.gone)?).ok()?;
        match self.waiting.get_mut(at)? {
            Dying::Rejected(delivery) => Some(delivery),
            Dying::Refused { .. } => None,
        }
    }

    fn push(&mut self, dying: Dying) {
        *self.of_queue.entry(dying.queue_id()).or_default() += 1;
        self.waiting.push_back(dying);
    }

    fn pop(&mut self) -> Option<Dying> {
        let first = self.waiting.pop_front()?;
        self.gone += 1;
        let id = first.queue_id();
        if let Some(waiting) = self.of_queue.get_mut(&id) {
            *waiting -= 1;
            if *waiting == 0 {
                self.of_queue.remove(&id);
            }
        }
        Some(first)
    }

    /// A queue, or one of its levels, is no longer there.
    pub(crate) fn queue_went(&mut self, queue: &mut Queue) {
        if let Some(&waiting) = self.of_queue.get(&queue.id)
            && let Some(dead_letters) = queue.dead_letters.take()
        {
            let (vhost, name) = (queue.vhost, queue.name.clone());
            let past = PastQueue { vhost, name, dead_letters, waiting };
            self.past_queues.insert(queue.id, past);
        }
    }

    /// The letter of one that waited, if its queue is no longer there, and the virtual host in which it goes its way.
    fn past_letter(
        &mut self,
        id: QueueId,
        message: &Message,
        reason: Reason,
        time_s: u64,
    ) -> Option<(u32, Message)> {
        let past = self.past_queues.get_mut(&id)?;
        let death = Death { queue: &past.name, reason, time_s };
        let letter = (past.vhost, past.dead_letters.letter(message, death));
        past.waiting -= 1;
        if past.waiting == 0 {
            self.past_queues.remove(&id);
        }
        Some(letter)
    }
}

impl Shard {
    /// Whether what leaves a queue for its dead letters has to wait here.
    fn has_to_wait(&self, key: QueueKey) -> bool {
        let has_letters =
            self.queues.get(key.0 as usize).is_some_and(|queue| queue.dead_letters.is_some());
        has_letters && (!self.dying.is_empty() || self.letters_again_us().is_some())
    }

    /// A consumer would not have it.
    pub(crate) fn reject(&mut self, delivery: Delivery) {
        if self.has_to_wait(delivery.queue) {
            self.dying.push(Dying::Rejected(delivery));
        } else {
            self.conclude(delivery, Outcome::Reject);
        }
    }

    /// A full queue refuses it, and has dead letters.
    pub(crate) fn refuse_to_letters(&mut self, key: QueueKey, message: &Arc<Message>) {
        if self.has_to_wait(key) {
            let (queue_id, message) = (self.queues[key.0 as usize].id, self.another(message));
            self.dying.push(Dying::Refused { queue: key, queue_id, message });
        } else {
            self.write_letter(key, message, Reason::MaxLength);
        }
    }

    /// Writes letters of those who wait, while there is room.
    pub(crate) fn write_waiting_letters(&mut self) {
        while !self.is_at_end() && self.letters_again_us().is_none() && self.write_first().is_some()
        {
        }
    }

    /// A batch is committed: some of them go into the next one, before publishers fill it.
    pub(crate) fn write_some_letters(&mut self) {
        let mut bytes = 0;
        while bytes < COMMIT_BYTES && !self.is_at_end() && !self.is_out_of_reserve() {
            let Some(more_bytes) = self.write_first() else { break };
            bytes += more_bytes;
        }
    }

    /// Writes the first letter; returns its size.
    fn write_first(&mut self) -> Option<u64> {
        match self.dying.pop()? {
            Dying::Rejected(delivery) => {
                let bytes = delivery.entry.message.memory_bytes();
                self.write_past_letter(
                    delivery.queue_id,
                    &delivery.entry.message,
                    Reason::Rejected,
                );
                self.conclude(delivery, Outcome::Reject);
                Some(bytes)
            }
            Dying::Refused { queue, queue_id, message } => {
                let bytes = message.memory_bytes();
                if self.queues.get(queue.0 as usize).is_some_and(|queue| queue.id == queue_id) {
                    self.write_letter(queue, &message, Reason::MaxLength);
                }
                self.write_past_letter(queue_id, &message, Reason::MaxLength);
                self.release(message);
                Some(bytes)
            }
        }
    }

    /// Writes the letter of one whose queue is no longer there.
    fn write_past_letter(&mut self, id: QueueId, message: &Message, reason: Reason) {
        let time_s = self.time_s();
        if let Some((vhost, letter)) = self.dying.past_letter(id, message, reason, time_s) {
            self.post(vhost, letter);
        }
    }

    /// Messages that were rejected and whose dead letters wait for room.
    pub fn rejected_waiting(&self) -> usize {
        self.dying.deliveries().count()
    }

    /// Whether all letters are written that can be: on a full disk what is rejected comes back after the next start.
    pub(crate) fn letters_are_written(&self) -> bool {
        self.dying.is_empty() || self.is_out_of_reserve()
    }

    /// Deliveries that wait here and have their copy in `segment`.
    pub(crate) fn dying_in(&self, segment: Home) -> impl Iterator<Item = (u64, &Entry)> {
        let deliveries =
            self.dying.deliveries().map(|(number, delivery)| (number, &delivery.entry));
        deliveries.filter(move |(_, entry)| entry.home == segment)
    }
}

#[cfg(test)]
mod tests {
    use forebay_store::{MemDisk, Options, RunId, open};

    use super::*;
    use crate::ack_timeout::AckLimit;
    use crate::config::ShardConfig;
    use crate::queue::{Queue, test_entry};

    #[test]
    fn what_waits_is_copied_when_its_segment_is_to_go() {
        let (store, recovered) =
            open(Arc::new(MemDisk::new()), Options::default()).expect("it is empty");
        let mut shard = Shard::new(ShardConfig::default(), store, Some(recovered)).expect("empty");
        let key = QueueKey(shard.queues.insert(Box::new(Queue::new(1, 0, b"q"))) as u32);
        // Any home will do that no copy gets.
        let segment = Home::run(RunId(1));
        for seq in 1..=3 {
            let message = shard.shared(Message::from_bytes(Message::start(b"", b"q", &[0, 0], 0)));
            let entry = Entry { home: segment, message, ..test_entry(seq) };
            let limit = AckLimit::from(0, 0);
            let rejected = Delivery { queue: key, queue_id: 1, entry, consumer: None, limit };
            shard.queues[key.0 as usize].unacked += 1;
            let bytes = rejected.entry.message.memory_bytes();
            shard.queues[key.0 as usize].unsettled_bytes += bytes;
            shard.dying.push(Dying::Rejected(rejected));
        }
        assert!(shard.write_first().is_some(), "the others keep their numbers");
        assert_eq!(shard.dying_in(segment).map(|(number, _)| number).collect::<Vec<_>>(), [1, 2]);
        shard.evacuate(segment);
        assert_eq!(shard.dying_in(segment).count(), 0);
        assert_eq!(shard.dying.deliveries().count(), 2);
    }
}
