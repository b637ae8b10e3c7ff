//! Which acknowledgements go out, and when.
//!
//! ```text
//! A = clamp(prefetch / 4, 1, 64)        T = clamp(round trip, 1 ms, 10 ms)
//! flush when  A are finished | T since the first of them | nothing is left to work on | told so
//! flush:      p = the last finished tag before the first unfinished one: ack(p, multiple)
//!             then every other finished tag in order: ack(tag)
//! nack:       at once, alone
//! ```
//!
//! Why the singles: with `multiple` alone, one slow message holds back the acks of all that came after it,
//! until the prefetch is used up and the consumer stands still.
//!
//! `multiple` covers every tag up to its own (0-9-1 section 1.8.3.13). It is sent only where nothing below
//! it is unfinished, and a nack leaves before it, so that no refused message is acknowledged by it.
//!
//! One coalescer per channel: delivery tags and `multiple` are the channel's. The acks of a connection that
//! broke are void; make a new coalescer.

use std::collections::{BTreeSet, VecDeque};

/// Finished tags that may wait for a flush, at most.
pub const BATCH_MAX: u32 = 64;
/// A finished tag waits this long at most.
pub const DELAY_MAX_US: u64 = 10_000;
const DELAY_MIN_US: u64 = 1_000;

/// One settlement to write. All of one flush belong into one write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settlement {
    /// `basic.ack`.
    Ack {
        /// The tag, or with `multiple` the last of the tags.
        tag: u64,
        /// Whether it covers all tags below, too.
        multiple: bool,
    },
    /// `basic.nack` of this tag alone.
    Nack {
        /// The tag.
        tag: u64,
        /// Whether the message goes back into its queue.
        requeue: bool,
    },
}

/// A tag that was not delivered here, or is settled already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownTag(pub u64);

impl std::fmt::Display for UnknownTag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "delivery tag {} is not open on this channel: settle each delivery once, where it came from",
            self.0
        )
    }
}

impl std::error::Error for UnknownTag {}

/// The open deliveries of one channel. Bounded by the channel's prefetch: a tag is held from delivery to
/// its settlement.
#[derive(Debug)]
pub struct AckCoalescer {
    open: BTreeSet<u64>,     // delivered, not finished
    finished: BTreeSet<u64>, // finished, not yet acknowledged
    ready: VecDeque<Settlement>,
    first_finished_us: Option<u64>,
    batch: u32,
    delay_us: u64,
}

impl AckCoalescer {
    /// For a channel with this prefetch (0: none) and round trip (0: not known).
    #[must_use]
    pub fn new(prefetch: u32, rtt_us: u64) -> AckCoalescer {
        let mut coalescer = AckCoalescer {
            open: BTreeSet::new(),
            finished: BTreeSet::new(),
            ready: VecDeque::new(),
            first_finished_us: None,
            batch: 1,
            delay_us: DELAY_MIN_US,
        };
        coalescer.tune(prefetch, rtt_us);
        coalescer
    }

    /// The prefetch or the round trip has changed. A prefetch of 0 (no bound) batches most.
    pub fn tune(&mut self, prefetch: u32, rtt_us: u64) {
        self.batch = if prefetch == 0 { BATCH_MAX } else { (prefetch / 4).clamp(1, BATCH_MAX) };
        self.delay_us = rtt_us.clamp(DELAY_MIN_US, DELAY_MAX_US);
    }

    /// A message arrived that wants an acknowledgement.
    ///
    /// # Panics
    /// If the tag is open already: brokers number deliveries of a channel upwards.
    pub fn delivered(&mut self, tag: u64) {
        assert!(!self.finished.contains(&tag) && self.open.insert(tag), "tag {tag} came twice");
    }

    /// The message is done and may be forgotten by the broker.
    ///
    /// # Errors
    /// If the tag is not open; nothing has changed then.
    pub fn ack(&mut self, now_us: u64, tag: u64) -> Result<(), UnknownTag> {
        if !self.open.remove(&tag) {
            return Err(UnknownTag(tag));
        }
        self.finished.insert(tag);
        self.first_finished_us.get_or_insert(now_us);
        if self.finished.len() >= self.batch as usize || self.open.is_empty() {
            self.flush();
        }
        Ok(())
    }

    /// The message is refused. Leaves at once and alone.
    ///
    /// # Errors
    /// If the tag is not open; nothing has changed then.
    pub fn nack(&mut self, tag: u64, requeue: bool) -> Result<(), UnknownTag> {
        if !self.open.remove(&tag) {
            return Err(UnknownTag(tag));
        }
        self.ready.push_back(Settlement::Nack { tag, requeue });
        if self.open.is_empty() {
            self.flush();
        }
        Ok(())
    }

    /// Time passes: flushes what has waited long enough.
    pub fn tick(&mut self, now_us: u64) {
        if self.next_flush_us().is_some_and(|due_us| due_us <= now_us) {
            self.flush();
        }
    }

    /// When [`AckCoalescer::tick`] would flush.
    #[must_use]
    pub fn next_flush_us(&self) -> Option<u64> {
        self.first_finished_us.map(|first_us| first_us.saturating_add(self.delay_us))
    }

    /// Acknowledges all that is finished: no message waits for a worker any more, or the consumer ends.
    pub fn flush(&mut self) {
        self.first_finished_us = None;
        if self.finished.is_empty() {
            return;
        }
        let stragglers = match self.open.first() {
            Some(&unfinished) => self.finished.split_off(&unfinished),
            None => BTreeSet::new(),
        };
        let prefix = std::mem::take(&mut self.finished);
        if let Some(&tag) = prefix.last() {
            self.ready.push_back(Settlement::Ack { tag, multiple: prefix.len() > 1 });
        }
        self.ready.extend(stragglers.iter().map(|&tag| Settlement::Ack { tag, multiple: false }));
    }

    /// The next settlement to write, in this order. Call until `None` after every other call.
    pub fn next_settlement(&mut self) -> Option<Settlement> {
        self.ready.pop_front()
    }

    /// Delivered and not finished.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// Of [`AckCoalescer::open`], those with this tag or a later one. Linear in them.
    #[must_use]
    pub fn open_from(&self, tag: u64) -> usize {
        self.open.range(tag..).count()
    }

    /// Delivered with this tag or a later one, finished or not, and in no settlement yet. Linear in them.
    #[must_use]
    pub fn unsettled_from(&self, tag: u64) -> usize {
        self.open_from(tag) + self.finished.range(tag..).count()
    }

    /// Finished and not yet acknowledged: what would be delivered twice if the connection broke now.
    #[must_use]
    pub fn unflushed(&self) -> usize {
        self.finished.len()
    }
}
