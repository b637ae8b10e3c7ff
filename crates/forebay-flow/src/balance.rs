//! A queue whose publishers follow its consumers.
//!
//! ```text
//!                 every message of the last second            depth ≥ what is drained in 100 ms
//!                 waited 100 ms or more                       ┌──────────────────────────────┐
//!   Absorbing ──────────────────────────────► Holding ◄───────┘                           Following
//!       ▲  ▲                                     │  depth ≤ half of that ────────────────────► │
//!       │  └── no consumer, or none has settled ─┘                                             │
//!       │      anything for 10 s                                                               │
//!       └── for 10 s nobody had to be held ────────────────────────────────────────────────────┘
//! ```
//! Confirms do not see a queue: a consumer that slows down is invisible to every window that confirms
//! drive, and a backlog grows at full speed. What counts is the *standing* wait, the least of a second
//! (Nichols and Jacobson, "Controlling Queue Delay", 2012): a burst that is gone within a second is what a
//! queue is for. Once it has stood, the depth is held between half and all of what is drained in
//! 100 ms, without waiting for another second each time.

use crate::WindowedMin;

/// The standing wait a queue may have, in microseconds.
pub const TARGET_US: u64 = 100_000;
/// Over how long the wait must stand, in microseconds.
const STANDING_US: u64 = 1_000_000;
/// Publishers are let go when at most so many messages wait, however slow the consumers are.
pub const FLOOR_MESSAGES: u64 = 64;
/// Consumers that have settled nothing for so long are not there, in microseconds.
pub const SILENT_US: u64 = 10_000_000;
/// After so long without holding anybody, only a standing wait counts again, in microseconds.
const QUIET_US: u64 = 10_000_000;
/// Length of a bin of the rate, in microseconds.
const BIN_US: u64 = 250_000;
/// Full bins that are remembered.
const BINS: usize = 4;

/// See the drawing above.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BalanceState {
    /// Takes what comes: the wait is within its target, or nobody is there to be followed.
    Absorbing,
    /// The wait has stood above its target lately; publishers go on.
    Following,
    /// Publishers wait.
    Holding,
}

/// The machine of one queue.
#[derive(Debug, Clone)]
pub struct Balance {
    state: BalanceState,
    /// Least waits of halves of [`STANDING_US`].
    wait_us: WindowedMin,
    /// When the wait began to be at or above the target all the time.
    above_since_us: Option<u64>,
    /// The message whose wait is being measured: its number, and since when.
    probe: Option<(u64, u64)>,
    newest: u64,
    settled_us: Option<u64>,
    held_us: u64,
    bins: [u64; BINS],
    running: u64,
    bin_began_us: u64,
}

impl Default for Balance {
    fn default() -> Balance {
        Balance::new()
    }
}

impl Balance {
    /// Of an empty queue.
    #[must_use]
    pub fn new() -> Balance {
        Balance {
            state: BalanceState::Absorbing,
            wait_us: WindowedMin::new(STANDING_US / 2),
            above_since_us: None,
            probe: None,
            newest: 0,
            settled_us: None,
            held_us: 0,
            bins: [0; BINS],
            running: 0,
            bin_began_us: 0,
        }
    }

    /// Where it stands.
    #[must_use]
    pub fn state(&self) -> BalanceState {
        self.state
    }

    /// Message number `seq` has come; numbers rise.
    pub fn came(&mut self, now_us: u64, seq: u64) {
        self.probe.get_or_insert((seq, now_us));
        self.newest = seq;
    }

    /// Message number `seq` was taken by a consumer.
    pub fn taken(&mut self, now_us: u64, seq: u64) {
        self.running += 1;
        if let Some((probe, came_us)) = self.probe
            && seq >= probe
        {
            self.waited(now_us, now_us.saturating_sub(came_us));
            // The last one there: what it has waited already is not known, so this is a lower bound.
            self.probe = (self.newest > seq).then_some((self.newest, now_us));
        }
    }

    /// A consumer has settled something: it is alive.
    pub fn settled(&mut self, now_us: u64) {
        self.settled_us = Some(now_us);
    }

    /// Consumers are drained of `depth` messages; `consumed` says whether there are any. To be called
    /// every 10 to 100 ms while the queue has messages or holds publishers, and when it was emptied.
    /// Returns the state.
    pub fn look(&mut self, now_us: u64, depth: u64, consumed: bool) -> BalanceState {
        self.turn_bins(now_us);
        if depth == 0 {
            self.probe = None;
            self.waited(now_us, 0);
        } else if let Some((_, came_us)) = self.probe
            && now_us.saturating_sub(came_us) >= TARGET_US
        {
            // It has not been taken yet and is late already.
            self.waited(now_us, now_us - came_us);
        }
        let alive = consumed
            && self
                .settled_us
                .is_some_and(|settled_us| now_us < settled_us.saturating_add(SILENT_US));
        if !alive {
            self.state = BalanceState::Absorbing;
            self.above_since_us = None;
            return self.state;
        }
        let stands = self
            .above_since_us
            .is_some_and(|since_us| now_us >= since_us.saturating_add(STANDING_US));
        let most = self.depth_max();
        self.state = match self.state {
            BalanceState::Absorbing if stands && depth > most / 2 => BalanceState::Holding,
            BalanceState::Following if depth >= most => BalanceState::Holding,
            BalanceState::Holding if depth <= most / 2 => BalanceState::Following,
            BalanceState::Following if now_us >= self.held_us.saturating_add(QUIET_US) => {
                BalanceState::Absorbing
            }
            state => state,
        };
        if self.state == BalanceState::Holding {
            self.held_us = now_us;
        }
        self.state
    }

    /// The least wait of the last second or so, in microseconds; 0 before anything waited.
    #[must_use]
    pub fn standing_wait_us(&self) -> u64 {
        self.wait_us.get().unwrap_or(0)
    }

    /// Messages drained in [`TARGET_US`]; twice the floor at least.
    #[must_use]
    pub fn depth_max(&self) -> u64 {
        let best = self.bins.iter().copied().max().unwrap_or(0);
        (best * TARGET_US / BIN_US).max(2 * FLOOR_MESSAGES)
    }

    fn waited(&mut self, now_us: u64, wait_us: u64) {
        self.wait_us.add(now_us, wait_us);
        if wait_us < TARGET_US {
            self.above_since_us = None;
        } else {
            self.above_since_us.get_or_insert(now_us);
        }
    }

    fn turn_bins(&mut self, now_us: u64) {
        let bins = now_us.saturating_sub(self.bin_began_us) / BIN_US;
        if bins == 0 {
            return;
        }
        let passed = (bins as usize).min(BINS);
        self.bins.rotate_right(passed);
        self.bins[..passed].fill(0);
        // What was counted belongs to the oldest of those that passed; nothing came in the others.
        self.bins[passed - 1] = std::mem::take(&mut self.running);
        self.bin_began_us += bins * BIN_US;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    /// A queue under a virtual clock, 1 ms a step: `offered` messages come a millisecond unless held,
    /// `drained` go.
    struct Queue {
        balance: Balance,
        now_us: u64,
        came: VecDeque<(u64, u64)>,
        next: u64,
        /// Thousandths of a message that are still to go.
        credit: u64,
        worst_wait_us: u64,
        taken: u64,
    }

    impl Queue {
        fn new() -> Queue {
            Queue {
                balance: Balance::new(),
                now_us: 0,
                came: VecDeque::new(),
                next: 1,
                credit: 0,
                worst_wait_us: 0,
                taken: 0,
            }
        }

        fn run(&mut self, ms: u64, offered: u64, drained_per_s: u64) {
            for _ in 0..ms {
                self.now_us += 1_000;
                if self.balance.state() != BalanceState::Holding {
                    for _ in 0..offered {
                        self.came.push_back((self.next, self.now_us));
                        self.balance.came(self.now_us, self.next);
                        self.next += 1;
                    }
                }
                self.credit = (self.credit + drained_per_s).min(drained_per_s.max(1_000));
                while self.credit >= 1_000
                    && let Some((seq, came_us)) = self.came.pop_front()
                {
                    self.credit -= 1_000;
                    self.taken += 1;
                    self.worst_wait_us = self.worst_wait_us.max(self.now_us - came_us);
                    self.balance.taken(self.now_us, seq);
                    self.balance.settled(self.now_us);
                }
                if self.now_us.is_multiple_of(20_000) {
                    self.balance.look(self.now_us, self.came.len() as u64, drained_per_s > 0);
                }
            }
        }
    }

    #[test]
    fn consumers_ten_times_slower_bound_the_wait_and_lose_nothing() {
        let mut queue = Queue::new();
        queue.run(5_000, 10, 20_000);
        assert_eq!(queue.balance.state(), BalanceState::Absorbing);
        // The second in which the wait is found to stand passes, and what came in it drains.
        queue.run(20_000, 10, 2_000);
        queue.worst_wait_us = 0;
        let taken = queue.taken;
        queue.run(10_000, 10, 2_000);
        assert!(queue.worst_wait_us <= 3 * TARGET_US / 2, "{} us", queue.worst_wait_us);
        assert!(queue.taken - taken >= 19_500, "{} of 20 000", queue.taken - taken);
        assert_ne!(queue.balance.state(), BalanceState::Absorbing);
        // When they are fast again nobody is held.
        queue.run(12_000, 10, 20_000);
        assert_eq!(queue.balance.state(), BalanceState::Absorbing);
        assert_eq!(queue.balance.standing_wait_us(), 0);
    }

    #[test]
    fn a_burst_that_is_gone_within_a_second_holds_nobody() {
        let mut queue = Queue::new();
        for _ in 0..20 {
            queue.run(100, 50, 10_000);
            assert_eq!(queue.balance.state(), BalanceState::Absorbing);
            queue.run(900, 0, 10_000);
            assert_eq!(queue.balance.state(), BalanceState::Absorbing);
        }
    }

    #[test]
    fn without_consumers_or_with_silent_ones_everything_is_taken() {
        let mut queue = Queue::new();
        queue.run(5_000, 10, 0);
        assert_eq!(queue.balance.state(), BalanceState::Absorbing);
        queue.run(5_000, 10, 1_000);
        assert_eq!(queue.balance.state(), BalanceState::Holding);
        // Nothing is settled any more, though there are consumers.
        let depth = queue.came.len() as u64;
        let silent_us = queue.now_us + SILENT_US;
        assert_eq!(queue.balance.look(silent_us - 1_000, depth, true), BalanceState::Holding);
        assert_eq!(queue.balance.look(silent_us, depth, true), BalanceState::Absorbing);
    }

    #[test]
    fn one_message_a_second_is_followed_from_the_floor() {
        let mut queue = Queue::new();
        queue.run(10_000, 1, 10);
        assert_eq!(queue.balance.state(), BalanceState::Holding);
        assert_eq!(queue.balance.depth_max(), 2 * FLOOR_MESSAGES);
        assert_eq!(queue.balance.look(queue.now_us, FLOOR_MESSAGES, true), BalanceState::Following);
        assert_eq!(queue.balance.look(queue.now_us, 127, true), BalanceState::Following);
        assert_eq!(queue.balance.look(queue.now_us, 128, true), BalanceState::Holding);
    }

    proptest! {
        #[test]
        fn nobody_is_held_at_half_the_depth_nor_for_consumers_that_are_not_there(
            steps in prop::collection::vec((0..2_000u64, 0..30u64, 0..30_000u64, any::<bool>()), 1..20),
        ) {
            let mut queue = Queue::new();
            for (ms, offered, drained, there) in steps {
                queue.run(ms, offered, if there { drained } else { 0 });
                let depth = queue.came.len() as u64;
                let state = queue.balance.look(queue.now_us, depth, there);
                if !there || depth <= queue.balance.depth_max() / 2 {
                    prop_assert_ne!(state, BalanceState::Holding);
                }
                prop_assert!(queue.balance.depth_max() >= 2 * FLOOR_MESSAGES);
            }
        }
    }
}
