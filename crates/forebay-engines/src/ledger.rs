//! What was published, what was confirmed, what arrived.

use std::time::{Duration, Instant};

/// One message.
#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    confirmed: bool,
    rejected: bool,
    /// How often it arrived.
    copies: u32,
    /// Of these, neither marked as republished nor as redelivered.
    plain_copies: u32,
}

/// One publisher's messages, by their number.
#[derive(Debug)]
pub(crate) struct Ledger {
    entries: Vec<Entry>,
    confirmed: u64,
    arrived: u64,
    /// Outcomes other than confirmed and rejected.
    pub(crate) unknown: Vec<String>,
    last_confirm: Instant,
    longest_gap: Duration,
}

/// What all is well with, or not.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Balance {
    pub(crate) confirmed: u64,
    pub(crate) rejected: u64,
    /// Without an outcome.
    pub(crate) open: u64,
    pub(crate) lost: Vec<usize>,
    pub(crate) copies_too_many: u64,
    /// Came more than once, and no mark says that this may be.
    pub(crate) unmarked: Vec<usize>,
}

impl Ledger {
    pub(crate) fn new(now: Instant) -> Ledger {
        Ledger {
            entries: Vec::new(),
            confirmed: 0,
            arrived: 0,
            unknown: Vec::new(),
            last_confirm: now,
            longest_gap: Duration::ZERO,
        }
    }

    /// The number of the next message.
    pub(crate) fn publish(&mut self) -> usize {
        self.entries.push(Entry::default());
        self.entries.len() - 1
    }

    pub(crate) fn confirm(&mut self, now: Instant, number: usize) {
        self.entries[number].confirmed = true;
        self.confirmed += 1;
        self.longest_gap = self.longest_gap.max(now - self.last_confirm);
        self.last_confirm = now;
    }

    /// The broker said that it does not have it.
    pub(crate) fn reject(&mut self, number: usize) {
        self.entries[number].rejected = true;
    }

    pub(crate) fn arrive(&mut self, number: usize, marked: bool) {
        let entry = self.entries.get_mut(number).expect("only what was published arrives");
        self.arrived += u64::from(entry.copies == 0);
        entry.copies += 1;
        entry.plain_copies += u32::from(!marked);
    }

    /// Messages confirmed, and messages arrived, so far.
    pub(crate) fn progress(&self) -> (u64, u64) {
        (self.confirmed, self.arrived)
    }

    /// The longest time between two confirms since it was asked last.
    pub(crate) fn take_longest_gap(&mut self) -> Duration {
        std::mem::take(&mut self.longest_gap)
    }

    pub(crate) fn balance(&self) -> Balance {
        let mut balance = Balance { confirmed: self.confirmed, ..Balance::default() };
        for (number, entry) in self.entries.iter().enumerate() {
            if entry.confirmed && entry.copies == 0 {
                balance.lost.push(number);
            }
            if entry.plain_copies > 1 {
                balance.unmarked.push(number);
            }
            balance.rejected += u64::from(entry.rejected);
            balance.open += u64::from(!entry.confirmed && !entry.rejected);
            balance.copies_too_many += u64::from(entry.copies.saturating_sub(1));
        }
        balance
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_balance_names_what_was_lost_and_what_came_twice_without_a_mark() {
        let now = Instant::now();
        let mut ledger = Ledger::new(now);
        for _ in 0..4 {
            ledger.publish();
        }
        for number in 0..3 {
            ledger.confirm(now, number);
        }
        // 0 is lost; 1 comes again with a mark, 2 without; 3 was never confirmed.
        for (number, marked) in [(1, false), (1, true), (2, false), (2, false)] {
            ledger.arrive(number, marked);
        }
        let balance = ledger.balance();
        assert_eq!(balance.lost, [0]);
        assert_eq!(balance.unmarked, [2]);
        assert_eq!((balance.confirmed, balance.open, balance.copies_too_many), (3, 1, 2));
    }
}
