//! A queue: messages in order, those in RAM and those in run files, and who consumes them.
//!
//! ```text
//!   next to deliver                                                     newest
//!   ┌───────────────┐  ┌───────┬───────┬─────┐  ┌──────────────┐  ┌──────────────┐
//!   │ head (RAM)    │  │ run 1 │ run 2 │ ... │  │ spilling     │  │ tail (RAM)   │
//!   └───────────────┘  └───────┴───────┴─────┘  └──────────────┘  └──────────────┘
//!      requeues go       cold: on disk only       being written      publishes go
//!      here, by seq                               to a run           here
//! ```
//! Sequence numbers rise from left to right, and are unique within the queue. While nothing is cold or
//! spilling the tail is empty and publishes go to the head. Only messages that were never delivered
//! are spilled, so everything requeued belongs into the head.

use std::collections::VecDeque;
use std::sync::Arc;

use forebay_store::{Home, QueueId, RunId, Seq};
use forebay_wire::{Table, TableBuf, Value};

use crate::balancing::{Balanced, QueueFlow};
use crate::cold_runs::ColdRuns;
use crate::dead_letters::DeadLetters;
use crate::head::Head;
use crate::input::ConnectionId;
use crate::levels::Levels;
use crate::message::Message;
use crate::queue_consumers::QueueConsumers;
use crate::queue_expiry::QueueExpiry;
use crate::round_robin::RoundRobin;
use crate::time_to_live::TimeToLive;
use crate::topology::QueueKey;
use crate::waits::{Gate, Waits};

/// The argument that says how long a message may stay, in milliseconds.
const MESSAGE_TTL: &str = "x-message-ttl";
const SINGLE_ACTIVE_CONSUMER: &str = "x-single-active-consumer";
/// The one that says how many may wait in it.
const MAX_LENGTH: &str = "x-max-length";
/// The one that says how many bytes their bodies may have together.
const MAX_LENGTH_BYTES: &str = "x-max-length-bytes";
/// The one that says what becomes of more.
const OVERFLOW: &str = "x-overflow";
/// The one that says how long a queue stays that nobody uses, in milliseconds.
const EXPIRES: &str = "x-expires";

/// One message's place in one queue.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) seq: Seq,
    pub(crate) message: Arc<Message>,
    /// Where its durable copy is; [`Home::NONE`] if it has none.
    pub(crate) home: Home,
    pub(crate) redelivered: bool,
}

/// Messages that are being written to a run; they stay in RAM until it is synced.
#[derive(Debug)]
pub(crate) struct Spilling {
    pub(crate) run: RunId,
    /// None of them when they were wanted before that, and went [back to the head](Queue::take_back).
    pub(crate) entries: VecDeque<Entry>,
    /// Memory of those it began with.
    pub(crate) bytes: u64,
    /// Synced, but a run before it is not.
    pub(crate) durable: bool,
    /// Purged while it was being written: drop the run when it is there.
    pub(crate) purged: bool,
}

/// What the bodies that wait in a queue may have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bodies {
    pub(crate) bytes_max: u64,
    /// What they have, but for those of a run that a restart found, of which nothing was read yet.
    pub(crate) bytes: u64,
}

/// What becomes of messages for which a queue has no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Overflow {
    /// The oldest go.
    #[default]
    DropHead,
    /// New ones are refused.
    RejectPublish,
    /// They are refused, and go to the dead letters.
    RejectPublishDeadLetter,
}

impl Overflow {
    fn of(arguments: Table<'_>) -> Overflow {
        match arguments.get(OVERFLOW) {
            Some(Value::LongStr(b"reject-publish")) => Overflow::RejectPublish,
            Some(Value::LongStr(b"reject-publish-dlx")) => Overflow::RejectPublishDeadLetter,
            _ => Overflow::DropHead,
        }
    }

    /// Whether who publishes is refused.
    pub(crate) fn rejects(self) -> bool {
        self != Overflow::DropHead
    }
}

/// A `basic.get` that waits for its message to be read from a run.
#[derive(Debug)]
pub(crate) struct PendingGet {
    pub(crate) connection: ConnectionId,
    pub(crate) channel: u16,
    /// Of the channel.
    pub(crate) serial: u64,
    pub(crate) no_ack: bool,
}

/// A queue.
#[derive(Debug)]
pub(crate) struct Queue {
    /// Never reused while the broker runs; after a start the highest one may be, if its queue was deleted.
    pub(crate) id: QueueId,
    pub(crate) vhost: u32,
    pub(crate) name: Box<[u8]>,
    /// Its declaration and persistent messages are in the store: durable, and nobody's own.
    pub(crate) stored: bool,
    pub(crate) auto_delete: bool,
    /// The connection that alone may use it; the queue goes with it.
    pub(crate) owner: Option<ConnectionId>,
    /// As declared.
    pub(crate) arguments: TableBuf,
    /// Its `x-consumer-timeout`.
    pub(crate) ack_timeout_ms: Option<u32>,
    /// There if its publishers follow its consumers.
    pub(crate) balanced: Option<Box<Balanced>>,
    pub(crate) next_seq: Seq,
    pub(crate) head: Head,
    pub(crate) cold: ColdRuns,
    pub(crate) spilling: VecDeque<Spilling>,
    pub(crate) tail: VecDeque<Entry>,
    /// Memory of head, spilling and tail, in bytes.
    pub(crate) ready_bytes: u64,
    /// Delivered and not settled.
    pub(crate) unacked: u64,
    /// Memory of what its consumers hold: delivered and not settled, or not sent.
    pub(crate) unsettled_bytes: u64,
    /// Highest sequence number delivered.
    pub(crate) delivered_upto: Seq,
    /// Messages up to this number may have been delivered before the broker was started.
    pub(crate) redelivered_upto: Seq,
    /// Of which run a block has been asked for; the first cold one, unless that was purged meanwhile.
    pub(crate) loading: Option<RunId>,
    /// In the shard's list of queues that wait for memory to read a block.
    pub(crate) hungry: bool,
    /// Not spilled before: consumers were quicker than the disk, or there was nothing to spill.
    pub(crate) spill_from_us: u64,
    /// Its messages may expire or be too many, by one of those that follow: else nobody looks at them.
    pub(crate) limited: bool,
    /// Its `x-message-ttl`.
    pub(crate) ttl: Option<Box<TimeToLive>>,
    /// Its `x-max-length`: more do not wait here.
    pub(crate) ready_max: Option<u64>,
    /// Its `x-max-length-bytes`, and what counts for that.
    pub(crate) bodies: Option<Bodies>,
    /// Its `x-overflow`.
    pub(crate) overflow: Overflow,
    /// Some message may have come with a time to live of its own since it was last empty.
    pub(crate) has_expirations: bool,
    /// In the shard's list of queues that are longer.
    pub(crate) noted_long: bool,
    /// Its `x-expires`.
    pub(crate) expiry: Option<QueueExpiry>,
    /// Its last visit came to its end before what is in it was offered.
    pub(crate) unoffered: bool,
    /// What has a lower number has been offered to all who consume.
    pub(crate) offered_below: Seq,
    /// Its place in the shard's timers of queues.
    pub(crate) timer_us: Option<u64>,
    /// Its `x-dead-letter-exchange`.
    pub(crate) dead_letters: Option<Box<DeadLetters>>,
    /// Everybody who consumes, in round-robin order.
    pub(crate) consumers: QueueConsumers,
    pub(crate) turns: RoundRobin,
    pub(crate) exclusive_consumer: bool,
    /// An auto-delete queue goes when its last consumer does, and not before it had one.
    pub(crate) had_consumer: bool,
    pub(crate) gets: VecDeque<PendingGet>,
    /// There if it has priorities.
    pub(crate) levels: Option<Box<Levels>>,
    /// What it is a level of.
    pub(crate) level_of: Option<QueueKey>,
    /// In the shard's list of queues to look at.
    pub(crate) dirty: bool,
    /// What its messages waited for.
    pub(crate) waits: Waits,
}

impl Queue {
    /// An empty queue.
    pub(crate) fn new(id: QueueId, vhost: u32, name: &[u8]) -> Queue {
        Queue {
            id,
            vhost,
            name: name.into(),
            stored: false,
            auto_delete: false,
            owner: None,
            arguments: TableBuf::new(),
            ack_timeout_ms: None,
            balanced: None,
            next_seq: 1,
            head: Head::default(),
            cold: ColdRuns::default(),
            spilling: VecDeque::new(),
            tail: VecDeque::new(),
            ready_bytes: 0,
            unacked: 0,
            unsettled_bytes: 0,
            delivered_upto: 0,
            redelivered_upto: 0,
            loading: None,
            hungry: false,
            spill_from_us: 0,
            limited: false,
            ttl: None,
            ready_max: None,
            bodies: None,
            overflow: Overflow::default(),
            noted_long: false,
            has_expirations: false,
            expiry: None,
            unoffered: false,
            offered_below: 0,
            timer_us: None,
            dead_letters: None,
            consumers: QueueConsumers::default(),
            turns: RoundRobin::default(),
            exclusive_consumer: false,
            had_consumer: false,
            gets: VecDeque::new(),
            levels: None,
            level_of: None,
            dirty: false,
            waits: Waits::default(),
        }
    }

    /// Declared with these arguments, and what they and its policy ask of it together; all were checked.
    pub(crate) fn with_arguments(
        mut self,
        now_us: u64,
        declared: TableBuf,
        table: Table<'_>,
    ) -> Queue {
        let number = |name| table.get(name).and_then(|value| u64::try_from(value.as_i64()?).ok());
        self.ttl = number(MESSAGE_TTL).map(|ms| Box::new(TimeToLive::of_ms(ms)));
        self.ready_max = number(MAX_LENGTH);
        self.bodies = number(MAX_LENGTH_BYTES).map(|bytes_max| Bodies { bytes_max, bytes: 0 });
        self.overflow = Overflow::of(table);
        self.expiry = number(EXPIRES).map(|ms| QueueExpiry::after_ms(now_us, ms));
        self.levels = Levels::of(table);
        self.limited = self.is_limited();
        self.dead_letters = DeadLetters::of(table).map(Box::new);
        if table.get(SINGLE_ACTIVE_CONSUMER) == Some(Value::Bool(true)) {
            self.consumers.only_one_active();
        }
        // Who waits for how long says nothing where others go first.
        self.balanced = Balanced::of(table).filter(|_| self.levels.is_none());
        self.arguments = declared;
        self
    }

    /// An empty level of `whole`, whose key that is.
    pub(crate) fn new_level(whole: &Queue, key: QueueKey, number: u8) -> Queue {
        let mut level = Queue::new(whole.id + u64::from(number), whole.vhost, &whole.name);
        level.stored = whole.stored;
        level.ttl = whole.ttl.as_ref().map(|ttl| Box::new(ttl.anew()));
        level.bodies = whole.bodies.map(|bodies| Bodies { bytes: 0, ..bodies });
        level.dead_letters = whole.dead_letters.clone();
        level.limited = true;
        level.level_of = Some(key);
        level
    }

    /// Whether somebody has to look at its messages, as they may expire or be too many, or have levels.
    pub(crate) fn is_limited(&self) -> bool {
        let in_levels = self.levels.is_some() || self.level_of.is_some();
        self.is_timed() || self.ready_max.is_some() || self.bodies.is_some() || in_levels
    }

    /// Up to this number a message may be out and come back to its place: what is between must stay in RAM.
    pub(crate) fn held_upto(&self) -> Seq {
        if self.unacked == 0 { 0 } else { self.delivered_upto }
    }

    /// Up to this number every message here was delivered before, or may have been before a restart:
    /// messages are delivered in order, so what is here below the highest one delivered came back.
    pub(crate) fn known_upto(&self) -> Seq {
        self.delivered_upto.max(self.redelivered_upto)
    }

    /// Messages waiting to be delivered, in RAM and on disk.
    pub(crate) fn ready(&self) -> u64 {
        let spilling: usize =
            self.spilling.iter().filter(|s| !s.purged).map(|s| s.entries.len()).sum();
        let in_ram = self.head.len() + self.cold.between() + spilling + self.tail.len();
        in_ram as u64 + self.cold.messages()
    }

    /// The next sequence number, taken.
    pub(crate) fn take_seq(&mut self) -> Seq {
        let seq = self.next_seq;
        self.next_seq += 1;
        seq
    }

    /// Adds a new message at the end.
    pub(crate) fn push(&mut self, entry: Entry) {
        self.ready_bytes += entry.message.memory_bytes();
        self.count_body(&entry.message);
        if self.is_whole() {
            debug_assert!(self.tail.is_empty());
            self.head.push_back(entry);
        } else {
            self.tail.push_back(entry);
        }
    }

    /// Takes the next message to deliver, if it is in RAM.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Entry> {
        let entry = self.head.pop_front()?;
        self.ready_bytes -= entry.message.memory_bytes();
        self.uncount_body(&entry.message);
        self.delivered_upto = self.delivered_upto.max(entry.seq);
        if self.head.is_empty() {
            self.refill_from_ram();
        }
        Some(entry)
    }

    /// Whether nothing is on disk, or on its way to it, but what is in the head too.
    pub(crate) fn is_whole(&self) -> bool {
        self.cold.is_empty() && self.spilling.iter().all(|s| s.entries.is_empty() || s.purged)
    }

    /// Messages before the first run belong to the head; with nothing on disk any more the tail does.
    pub(crate) fn refill_from_ram(&mut self) {
        self.head.append(self.cold.take_before());
        if !self.consumers.is_empty() || !self.gets.is_empty() {
            self.take_back();
        }
        self.join_tail();
    }

    fn join_tail(&mut self) {
        if self.is_whole() && !self.tail.is_empty() {
            self.head.append(std::mem::take(&mut self.tail));
        }
    }

    /// Somebody takes what is next, and that is being written: consumers do not wait for the disk. What
    /// they settle is settled in the run, and the run is written to its end.
    pub(crate) fn take_back(&mut self) {
        if !self.head.is_empty() || !self.cold.is_empty() {
            return;
        }
        let wanted = self.spilling.iter_mut().find(|s| !s.entries.is_empty() && !s.purged);
        if let Some(Spilling { run, entries, .. }) = wanted {
            let home = Home::run(*run);
            self.head.extend(entries.drain(..).map(|entry| Entry { home, ..entry }));
            self.join_tail();
        }
    }

    /// Whether a run is not synced yet.
    pub(crate) fn is_being_written(&self, run: RunId) -> bool {
        self.spilling.iter().any(|spilling| spilling.run == run)
    }

    /// Ready messages that are in RAM.
    pub(crate) fn ready_in_ram(&self) -> usize {
        let spilling: usize = self.spilling.iter().map(|spilling| spilling.entries.len()).sum();
        self.head.len() + self.cold.between() + spilling + self.tail.len()
    }

    /// What it does with publishers that are faster than its consumers.
    pub(crate) fn flow(&self) -> QueueFlow {
        if self.balanced.is_some() { QueueFlow::Balance } else { QueueFlow::Absorb }
    }

    /// A consumer took message `seq`.
    pub(crate) fn taken(&mut self, now_us: u64, seq: Seq) {
        if let Some(balanced) = &mut self.balanced {
            balanced.balance.taken(now_us, seq);
        }
    }

    /// A consumer settled something.
    pub(crate) fn settled(&mut self, now_us: u64) {
        if let Some(balanced) = &mut self.balanced {
            balanced.balance.settled(now_us);
        }
    }

    /// Puts a message back at its original place (0-9-1 section 4.7; RabbitMQ does the same).
    pub(crate) fn requeue(&mut self, mut entry: Entry) {
        entry.redelivered = true;
        self.ready_bytes += entry.message.memory_bytes();
        self.count_body(&entry.message);
        self.head.put_back(entry);
    }

    /// A message waits here, in memory.
    #[inline]
    pub(crate) fn count_body(&mut self, message: &Message) {
        if let Some(bodies) = &mut self.bodies {
            bodies.bytes += message.body().len() as u64;
        }
    }

    /// One does no longer.
    #[inline]
    pub(crate) fn uncount_body(&mut self, message: &Message) {
        if let Some(bodies) = &mut self.bodies {
            bodies.bytes -= message.body().len() as u64;
        }
    }

    /// Bytes of the bodies that wait here, where somebody counts them.
    pub(crate) fn body_bytes(&self) -> u64 {
        self.bodies.map_or(0, |bodies| bodies.bytes)
    }

    /// All in RAM but what is on its way to a run.
    pub(crate) fn not_spilling(&self) -> impl Iterator<Item = &Entry> {
        self.head.entries().chain(self.cold.entries_between()).chain(&self.tail)
    }

    /// The one of these with this number.
    pub(crate) fn not_spilling_mut(&mut self, seq: Seq) -> Option<&mut Entry> {
        let head = self.head.get_mut(seq);
        head.or_else(|| self.cold.get_mut(seq)).or_else(|| find(&mut self.tail, seq))
    }

    /// Whether nobody holds or waits for anything here.
    pub(crate) fn is_empty(&self) -> bool {
        self.ready() == 0
    }

    /// With messages and without consumers, the messages wait for one. Of levels the whole knows.
    pub(crate) fn hold_without_consumer(&mut self, now_us: u64) {
        if self.consumers.is_empty() && self.level_of.is_none() {
            self.waits.hold(Some(Gate::NoConsumer), now_us);
        }
    }

    /// Name for texts.
    pub(crate) fn display_name(&self) -> String {
        String::from_utf8_lossy(&self.name).into_owned()
    }
}

/// The entry of this number in a row of them.
pub(crate) fn find(row: &mut VecDeque<Entry>, seq: Seq) -> Option<&mut Entry> {
    let at = row.binary_search_by_key(&seq, |entry| entry.seq).ok()?;
    row.get_mut(at)
}

/// An entry for tests of what holds them.
#[cfg(test)]
pub(crate) fn test_entry(seq: Seq) -> Entry {
    let message = Arc::new(Message::from_bytes(Message::start(b"", b"q", &[0, 0], 0)));
    Entry { seq, message, home: Home::NONE, redelivered: false }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::head::ROOM_MIN_ENTRIES;

    #[test]
    fn a_queue_that_became_short_keeps_no_room_for_its_backlog() {
        let mut queue = Queue::new(1, 0, b"q");
        for _ in 0..100_000 {
            let seq = queue.take_seq();
            queue.push(test_entry(seq));
        }
        for seq in 1..=99_000 {
            assert_eq!(queue.pop().map(|entry| entry.seq), Some(seq));
            assert!(queue.head.room() <= ROOM_MIN_ENTRIES.max(4 * queue.head.len() + 4));
        }
    }

    #[test]
    fn requeued_messages_return_to_their_places() {
        let mut queue = Queue::new(1, 0, b"q");
        for _ in 0..6 {
            let seq = queue.take_seq();
            queue.push(test_entry(seq));
        }
        let mut taken: Vec<Entry> = (0..5).filter_map(|_| queue.pop()).collect();
        for at in [3, 0, 2] {
            queue.requeue(taken.remove(at));
        }
        let order: Vec<(Seq, bool)> =
            std::iter::from_fn(|| queue.pop()).map(|e| (e.seq, e.redelivered)).collect();
        assert_eq!(order, [(1, true), (4, true), (5, true), (6, false)]);
        assert_eq!(queue.ready_bytes, 0);
    }
}
