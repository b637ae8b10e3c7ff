//! One direction of a link: a delay for each connection, and one bandwidth for all of them.
//!
//! A pure machine: bytes go in at one time and come out at a later one. The delay comes first and the
//! bandwidth second, which together do the same as the other way round, and what comes out never exceeds
//! the bandwidth, whatever the jitter.

use forebay_flow::TokenBucket;
use slab::Slab;

use super::conditions::Conditions;
use super::lane::Lane;

/// Bytes that one connection gets before the next one's turn: a TCP segment over Ethernet.
pub(super) const SEGMENT_BYTES: usize = 1448;
/// A bandwidth may be exceeded by what it lets through in this time, or by two segments.
pub(super) const BURST_US: u64 = 1_000;

/// Identifies a connection.
pub(super) type Key = usize;

#[derive(Debug)]
pub(super) struct Direction {
    conditions: Conditions,
    bucket: Option<TokenBucket>,
    /// The bucket has nothing before.
    bucket_us: u64,
    /// Nothing arrives before.
    stalled_until_us: u64,
    lanes: Slab<Lane>,
    /// The slot of the connection whose turn comes first.
    first: usize,
    random: u64,
}

impl Direction {
    /// An empty one; `seed` chooses the jitter.
    pub(super) fn new(now_us: u64, conditions: Conditions, seed: u64) -> Direction {
        let mut this = Direction {
            conditions,
            bucket: None,
            bucket_us: 0,
            stalled_until_us: 0,
            lanes: Slab::new(),
            first: 0,
            random: seed | 1,
        };
        this.set(now_us, conditions);
        this
    }

    /// Changes it for what comes from now on; what is on the way keeps its delay.
    pub(super) fn set(&mut self, now_us: u64, conditions: Conditions) {
        self.conditions = conditions;
        self.bucket_us = 0;
        self.bucket = conditions
            .bytes_per_s
            .map(|rate| TokenBucket::new(now_us, rate, burst_bytes(rate) as u64));
    }

    /// Nothing arrives before `until_us`.
    pub(super) fn stall(&mut self, until_us: u64) {
        self.stalled_until_us = until_us;
    }

    pub(super) fn open(&mut self) -> Key {
        self.lanes.insert(Lane::default())
    }

    /// Whatever is on its way is lost.
    pub(super) fn close(&mut self, key: Key) {
        self.lanes.remove(key);
    }

    /// Bytes that may be pushed.
    pub(super) fn room_bytes(&self, key: Key) -> usize {
        self.conditions.held_bytes_max().saturating_sub(self.lanes[key].held_bytes())
    }

    pub(super) fn push(&mut self, now_us: u64, key: Key, bytes: &[u8]) {
        assert!(bytes.len() <= self.room_bytes(key), "more than the link holds");
        let arrival_us = self.arrival_us(now_us);
        self.lanes[key].push(arrival_us, bytes);
    }

    /// The stream ends after what was pushed.
    pub(super) fn push_end(&mut self, now_us: u64, key: Key) {
        let arrival_us = self.arrival_us(now_us);
        self.lanes[key].push_end(arrival_us);
    }

    /// Lets arrive what is due, one segment a connection in turn.
    pub(super) fn turn(&mut self, now_us: u64) {
        if now_us < self.stalled_until_us || now_us < self.bucket_us {
            return;
        }
        let slots = self.lanes.capacity().max(1);
        let mut idle = 0;
        // Ends when a whole round of slots had nothing, or the bucket is empty.
        while idle < slots {
            let slot = self.first % slots;
            let due = self.lanes.get(slot).map_or(0, |lane| lane.due_bytes(now_us));
            if due == 0 {
                idle += 1;
                self.first = slot + 1;
                continue;
            }
            let bytes = if self.bucket.is_some() { due.min(SEGMENT_BYTES) } else { due };
            if let Some(bucket) = &mut self.bucket
                && let Err(not_yet) = bucket.take(now_us, bytes as u64)
            {
                self.bucket_us = not_yet.retry_us;
                return;
            }
            self.lanes[slot].release(bytes);
            idle = 0;
            self.first = slot + 1;
        }
    }

    /// Some of the bytes that have arrived; the rest after they were taken.
    pub(super) fn arrived(&self, key: Key) -> &[u8] {
        self.lanes[key].arrived()
    }

    pub(super) fn take(&mut self, key: Key, bytes: usize) {
        self.lanes[key].take(bytes);
    }

    /// Whether the stream has ended and all of it was taken; says so once.
    pub(super) fn take_end(&mut self, now_us: u64, key: Key) -> bool {
        now_us >= self.stalled_until_us && self.lanes[key].take_end(now_us)
    }

    /// When the next turn can do something, if time alone can bring that about.
    pub(super) fn next_us(&self) -> Option<u64> {
        let bytes_us = self.lanes.iter().filter_map(|(_, lane)| lane.due_us()).min();
        let bytes_us = bytes_us.map(|us| us.max(self.bucket_us));
        let end_us = self.lanes.iter().filter_map(|(_, lane)| lane.end_us()).min();
        let next_us = [bytes_us, end_us].into_iter().flatten().min()?;
        Some(next_us.max(self.stalled_until_us))
    }

    fn arrival_us(&mut self, now_us: u64) -> u64 {
        let jitter_us = match self.conditions.jitter_us {
            0 => 0,
            most => self.next_random() % (most + 1),
        };
        now_us + self.conditions.one_way_us() + jitter_us
    }

    /// xorshift64: any spread will do.
    fn next_random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

/// What may arrive at once.
pub(super) fn burst_bytes(bytes_per_s: u64) -> usize {
    (bytes_per_s.saturating_mul(BURST_US) / 1_000_000).max(2 * SEGMENT_BYTES as u64) as usize
}
