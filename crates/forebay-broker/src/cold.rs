//! Long backlogs: their middle is written to run files and comes back block by block.
//!
//! From half of the memory budget on, the longest queues are spilled, oldest message of the tail
//! first; what a consumer needs next stays in RAM. A message leaves RAM only when its run is synced
//! and the log says so, so at no time is a durable message without a durable copy.

use std::collections::VecDeque;
use std::sync::Arc;

use forebay_store::{Home, QueueId, RunBuilder, RunId, Seq};

use crate::cold_runs::ColdRun;
use crate::memory::release;
use crate::message::Message;
use crate::queue::{Entry, Queue, Spilling};
use crate::shard::Shard;
use crate::topology::QueueKey;

/// Bytes of messages in one run file.
const RUN_MAX_BYTES: u64 = 4 * 1024 * 1024;

/// Bytes being written to runs at one time, over all queues: one part of the budget in so many, since what is written is in
/// memory twice,
const SPILLING_PER_MEMORY: u64 = 16;

/// and these at most,
const SPILLING_MAX_BYTES: u64 = 16 * 1024 * 1024;

/// and at least.
const SPILLING_LEAST_BYTES: u64 = 1024 * 1024;

/// How often the queues are searched for something to spill.
const SPILL_EVERY_US: u64 = 5_000;

/// A queue whose consumers took what was being written before it was is not spilled again for so long: what they take
/// that soon is not worth writing once more. Publishers wait for them meanwhile.
const SPILL_AGAIN_US: u64 = 1_000_000;

/// A block is asked for ahead of need when fewer messages than this are in RAM before a run,
const LOAD_BELOW_MESSAGES: usize = 2_048;

/// and when they take less than this.
const LOAD_BELOW_BYTES: u64 = 1024 * 1024;

/// What a queue takes that reads ahead: what is left when a block is asked for, and the block.
const AHEAD_BYTES: u64 = 2 * LOAD_BELOW_BYTES;

/// Queues read ahead for their consumers although memory is pressed while they all take one part of the budget in so many.
const AHEAD_PER_MEMORY: u64 = 16;

/// A queue whose consumers hold no more than this is not what fills the memory: so many messages, and so many bytes.
const SMALL_UNACKED_MESSAGES: u64 = 64;
const SMALL_UNSETTLED_BYTES: u64 = 1024 * 1024;

/// How hard memory presses: what a queue may keep at its head, and the smallest run worth a file.
struct Pressure {
    keep_messages: usize,
    keep_bytes: u64,
    run_min_bytes: u64,
}

impl Shard {
    /// Spills while memory is above half of its budget.
    pub(crate) fn spill(&mut self) {
        let budget = self.budget_bytes();
        if self.memory_bytes < budget / 2
            || self.now_us < self.spill_checked_us + SPILL_EVERY_US
            || !self.on_disk
        {
            return;
        }
        self.spill_checked_us = self.now_us;
        let spilling_max =
            (budget / SPILLING_PER_MEMORY).clamp(SPILLING_LEAST_BYTES, SPILLING_MAX_BYTES);
        let pressure = match self.memory_bytes * 100 / budget.max(1) {
            0..75 => Pressure {
                keep_messages: 4096,
                keep_bytes: 1024 * 1024,
                run_min_bytes: 1024 * 1024,
            },
            75..90 => {
                Pressure { keep_messages: 256, keep_bytes: 64 * 1024, run_min_bytes: 256 * 1024 }
            }
            _ => Pressure { keep_messages: 16, keep_bytes: 4 * 1024, run_min_bytes: 4 * 1024 },
        };
        if self.memory_bytes >= budget / 4 * 3 {
            let served = |queue: &Queue| !queue.cold.is_empty() && self.is_consumed(queue);
            self.queues_served_cold = self.queues.iter().filter(|(_, queue)| served(queue)).count();
            for index in 0..self.queues.capacity() {
                self.unload(QueueKey(index as u32), &pressure);
            }
        }
        while self.memory_bytes.saturating_sub(self.spilling_bytes) >= budget / 2
            && self.spilling_bytes < spilling_max
        {
            let longest = self
                .queues
                .iter()
                .filter(|(_, queue)| queue.spill_from_us <= self.now_us)
                .filter(|(_, queue)| spillable_bytes(queue) >= pressure.run_min_bytes)
                .max_by_key(|(_, queue)| spillable_bytes(queue))
                .map(|(index, _)| QueueKey(index as u32));
            let Some(key) = longest else { break };
            if !self.spill_run(key, &pressure) {
                // What is in its head has runs already, or was delivered: others are next, until the next search.
                self.queues[key.0 as usize].spill_from_us = self.now_us + SPILL_EVERY_US;
            }
        }
    }

    /// Writes one run from the oldest messages of a queue's tail; false if there is nothing to write.
    fn spill_run(&mut self, key: QueueKey, pressure: &Pressure) -> bool {
        let queue = &mut self.queues[key.0 as usize];
        if queue.is_whole() {
            split_head(queue, pressure);
        }
        let file_bytes = spillable_bytes(queue).min(RUN_MAX_BYTES);
        let mut builder = RunBuilder::with_capacity(file_bytes as usize);
        let mut entries = VecDeque::new();
        let mut bytes = 0;
        while bytes < RUN_MAX_BYTES
            && let Some(entry) = queue.tail.pop_front_if(|entry| entry.home.as_run().is_none())
        {
            bytes += entry.message.memory_bytes();
            builder.push(entry.seq, entry.home, entry.message.as_stored());
            entries.push_back(entry);
        }
        if entries.is_empty() {
            queue.refill_from_ram();
            return false;
        }
        let (queue_id, durable) = (queue.id, queue.stored);
        let run = self.store.write_run(queue_id, builder, durable);
        let queue = &mut self.queues[key.0 as usize];
        queue.spilling.push_back(Spilling { run, entries, bytes, durable: false, purged: false });
        self.spilling_bytes += bytes;
        self.runs.insert(run, (key, queue_id));
        self.counters.runs_written += 1;
        true
    }

    /// Whether there is memory for a block ahead of every queue with one on disk that consumers take from. Overloaded,
    /// memory is pressed all the time: they would wait for each block, and read it again and again.
    fn reads_ahead_pressed(&self) -> bool {
        let queues = self.queues_served_cold.max(1) as u64;
        self.config.memory_budget_bytes / AHEAD_PER_MEMORY >= queues * AHEAD_BYTES
    }

    /// What publishers leave for that.
    pub(crate) fn ahead_bytes(&self) -> u64 {
        let queues = self.queues_served_cold as u64;
        if self.reads_ahead_pressed() { queues * AHEAD_BYTES } else { 0 }
    }

    /// Messages that were read back ahead of need leave RAM again: their runs still have them.
    fn unload(&mut self, key: QueueKey, pressure: &Pressure) {
        let reads_ahead = self.reads_ahead_pressed();
        let Some(queue) = self.queues.get(key.0 as usize) else { return };
        let consumed = self.is_consumed(queue);
        let queue = &mut self.queues[key.0 as usize];
        let in_use =
            reads_ahead && consumed && share_of_ready_bytes(queue, queue.head.len()) <= AHEAD_BYTES;
        // A block on its way continues where the head ends now.
        if queue.loading.is_some() || in_use {
            return;
        }
        let held_upto = queue.held_upto();
        while queue.head.len() > pressure.keep_messages
            && let Some(entry) = queue.head.pop_back_if(|entry| entry.seq > held_upto)
        {
            let synced = |run: &RunId| !queue.is_being_written(*run);
            let Some(run) = entry.home.as_run().filter(synced) else {
                queue.head.push_back(entry);
                return;
            };
            if queue.cold.unread(run, entry.seq) {
                self.runs.insert(run, (key, queue.id));
            }
            if queue.cold.front().is_some_and(|run| !run.counted) {
                // It is counted again with those behind it.
                queue.uncount_body(&entry.message);
            }
            queue.ready_bytes -= entry.message.memory_bytes();
            release(&mut self.memory_bytes, &mut self.warm_messages, entry.message);
        }
    }

    /// A run is synced and the log says so: its messages may leave RAM.
    pub(crate) fn run_durable(&mut self, run: RunId, queue_id: QueueId) {
        let Some((key, id)) = self.runs.get(&run).copied() else {
            // Its queue is gone, and what was in it was settled then.
            return;
        };
        debug_assert_eq!(id, queue_id);
        let Some(queue) = self.queues.get_mut(key.0 as usize).filter(|queue| queue.id == id) else {
            return;
        };
        let Some(spilling) = queue.spilling.iter_mut().find(|spilling| spilling.run == run) else {
            return;
        };
        spilling.durable = true;
        // In order: what is delivered first must not be overtaken by a run that was synced earlier.
        while let Some(Spilling { run, entries, bytes, purged, .. }) =
            queue.spilling.pop_front_if(|spilling| spilling.durable)
        {
            self.spilling_bytes -= bytes;
            if entries.is_empty() {
                self.runs.remove(&run);
                // With more on its way to the disk, or there, they reached no further than what was next.
                if queue.is_whole() {
                    queue.spill_from_us = self.now_us + SPILL_AGAIN_US;
                }
                continue;
            }
            if !purged && queue.cold.is_empty() && queue.head.is_empty() {
                // Wanted at once: no need to read back what is still here.
                let home = Home::run(run);
                queue.head.extend(entries.into_iter().map(|entry| Entry { home, ..entry }));
                self.runs.remove(&run);
                continue;
            }
            if purged {
                self.runs.remove(&run);
            } else {
                queue.ready_bytes -= bytes;
                queue.cold.push_back(ColdRun {
                    before: VecDeque::new(),
                    run,
                    messages: entries.len() as u64,
                    next_seq: entries.front().map_or(0, |entry| entry.seq),
                    counted: true,
                });
            }
            for entry in entries {
                release(&mut self.memory_bytes, &mut self.warm_messages, entry.message);
            }
        }
        self.after_change_of_runs(key);
    }

    fn after_change_of_runs(&mut self, key: QueueKey) {
        if let Some(queue) = self.queues.get_mut(key.0 as usize) {
            queue.refill_from_ram();
        }
        let whole = self.whole(key);
        self.answer_pending_gets(whole);
        self.load_cold(key);
        self.mark_queue(whole);
        self.plan_queue(key);
        self.note_long(whole);
    }

    /// Whether somebody consumes it, or what it is a level of.
    fn is_consumed(&self, queue: &Queue) -> bool {
        let whole = queue.level_of.and_then(|whole| self.queues.get(whole.0 as usize));
        !whole.map_or(queue, |whole| whole).consumers.is_empty()
    }

    /// Whether a block may be read that nobody asked for: one at a time, or a start with many backlogs would read all of them
    /// at once.
    fn may_read_dying(&self) -> bool {
        let reads = self.dying_read.is_some_and(|(key, id)| {
            let queue = self.queues.get(key.0 as usize);
            queue.is_some_and(|queue| queue.id == id && queue.loading.is_some())
        });
        !reads && self.memory_bytes < self.budget_bytes() / 4 * 3
    }

    /// Asks for the next block if the head runs low and somebody is there to take it.
    pub(crate) fn load_cold(&mut self, key: QueueKey) {
        let (budget, reads_ahead) = (self.budget_bytes(), self.reads_ahead_pressed());
        let whole_key = self.whole(key);
        let Some(whole) = self.queues.get(whole_key.0 as usize) else { return };
        let asked = !whole.consumers.is_empty() || !whole.gets.is_empty();
        let may_read_dying = asked || self.may_read_dying();
        let queue = &self.queues[key.0 as usize];
        let goes = || queue.is_due(self.now_us) || self.is_too_long(whole_key);
        let wanted = asked || queue.head.is_empty() && goes();
        let queue = &mut self.queues[key.0 as usize];
        let next = queue.cold.front().map(|run| (run.run, run.next_seq));
        let Some((run, from)) = next.filter(|_| wanted && queue.loading.is_none()) else { return };
        // Ahead of need only while memory is not pressed, or has room for that; an empty head is served all the
        // same, unless what the queue's own consumers hold is what fills the memory.
        let ahead_max = if reads_ahead { budget } else { budget / 4 * 3 };
        let ahead = self.memory_bytes < ahead_max
            && queue.head.len() < LOAD_BELOW_MESSAGES
            && share_of_ready_bytes(queue, queue.head.len()) < LOAD_BELOW_BYTES;
        // Who dies need not be read now.
        let holds_little = asked
            && queue.unacked < SMALL_UNACKED_MESSAGES
            && queue.unsettled_bytes < SMALL_UNSETTLED_BYTES;
        let needed = queue.head.is_empty() && (self.memory_bytes < budget || holds_little);
        if (ahead || needed) && may_read_dying {
            queue.loading = Some(run);
            if !asked {
                self.dying_read = Some((key, queue.id));
            }
            self.store.read_run(run, from);
        } else if queue.head.is_empty() && !queue.hungry {
            queue.hungry = true;
            self.hungry_queues.push(key);
        }
    }

    /// Asks again for the queues that got no block while memory was full.
    pub(crate) fn feed_hungry_queues(&mut self) {
        if self.hungry_queues.is_empty() || self.memory_bytes >= self.budget_bytes() {
            return;
        }
        for key in std::mem::take(&mut self.hungry_queues) {
            if let Some(queue) = self.queues.get_mut(key.0 as usize) {
                queue.hungry = false;
                self.load_cold(key);
                self.plan_queue(key);
            }
        }
    }

    /// A block of a run has been read.
    pub(crate) fn run_block(
        &mut self,
        run: RunId,
        queue_id: QueueId,
        messages: Vec<(Seq, bool, Vec<u8>)>,
        at_end: bool,
    ) {
        let Some((key, id)) = self.runs.get(&run).copied() else { return };
        debug_assert!(
            [0, id].contains(&queue_id),
            "of a run that is gone nobody says whose it was"
        );
        let Some(queue) = self.queues.get_mut(key.0 as usize).filter(|queue| queue.id == id) else {
            self.runs.remove(&run);
            return;
        };
        queue.loading = None;
        let counted = queue.cold.front().is_none_or(|run| run.counted);
        let last = messages.last().map(|(seq, _, _)| *seq);
        if !queue.cold.read(run, messages.len() as u64, last, at_end) {
            // It was purged. What came behind it may lie on disk by now.
            self.runs.remove(&run);
            self.after_change_of_runs(key);
            return;
        }
        if at_end {
            self.runs.remove(&run);
        }
        let home = Home::run(run);
        let was_delivered = queue.known_upto();
        for (seq, _, bytes) in messages {
            match Message::from_stored(bytes) {
                Some(message) => {
                    let message = message.going_on_to_expire(self.now_us, self.clock_began_us);
                    if message.expires_us().is_some() {
                        queue.note_expiration();
                    }
                    let size = message.memory_bytes();
                    self.memory_bytes += size;
                    queue.ready_bytes += size;
                    let redelivered = seq <= was_delivered;
                    if !counted {
                        queue.count_body(&message);
                    }
                    queue.head.push_back(Entry {
                        seq,
                        message: Arc::new(message),
                        home,
                        redelivered,
                    });
                }
                // Its checksum was right, so a broker wrote it that stores messages differently. It is
                // not delivered, and stays in its run for one that understands it.
                None => self.counters.undecodable += 1,
            }
        }
        self.after_change_of_runs(key);
    }
}

/// Bytes of a queue that could go to disk, roughly: what is in RAM and not next to be delivered.
fn spillable_bytes(queue: &Queue) -> u64 {
    let candidates = if queue.is_whole() {
        queue.head.len()
    } else if queue.tail.front().is_some_and(|entry| entry.home.as_run().is_some()) {
        0
    } else {
        queue.tail.len()
    };
    share_of_ready_bytes(queue, candidates)
}

/// What so many of the ready messages in RAM take, roughly.
fn share_of_ready_bytes(queue: &Queue, messages: usize) -> u64 {
    queue.ready_bytes * messages as u64 / queue.ready_in_ram().max(1) as u64
}

/// The head keeps what is needed next, what a run file holds already, and all places to which a delivery
/// may come back. The rest becomes the tail.
fn split_head(queue: &mut Queue, pressure: &Pressure) {
    let held_upto = queue.held_upto();
    let head = queue.head.as_row();
    let must_stay = head
        .iter()
        .rposition(|entry| entry.seq <= held_upto || entry.home.as_run().is_some())
        .map_or(0, |last| last + 1);
    let mut keep = 0;
    let mut bytes = 0;
    for entry in &*head {
        if keep >= must_stay && (keep >= pressure.keep_messages || bytes >= pressure.keep_bytes) {
            break;
        }
        keep += 1;
        bytes += entry.message.memory_bytes();
    }
    let kept = head.drain(..keep).collect();
    queue.tail = std::mem::replace(head, kept);
}
