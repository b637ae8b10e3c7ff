//! Callers who wait until everything that was published before they asked has its outcome, whatever is published meanwhile.
//!
//! Messages are numbered as they are asked for and admitted in that order, so such a caller waits for all numbers below the
//! one that was next when it came.

use std::collections::BTreeMap;
use std::task::{Context, Poll, Waker};

use super::{Ledger, SETTLED, Wakeups};

/// One who waits. The first of several is ready first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Idler {
    /// The first message that it does not wait for.
    upto: u64,
    /// There may be more who came between the same messages.
    id: u64,
}

/// Those who wait, and their wakers.
#[derive(Debug, Default)]
pub(super) struct Idlers {
    wakers: BTreeMap<Idler, Waker>,
    next_id: u64,
}

impl Ledger {
    /// Somebody is about to wait for what was published so far, and says so when it waits no longer.
    pub(crate) fn begin_idling(&mut self) -> Idler {
        let id = self.idlers.next_id;
        self.idlers.next_id += 1;
        Idler { upto: self.next_number, id }
    }

    /// Ready once all that was published before has its outcome, and nobody waits to be admitted who did then.
    pub(crate) fn poll_idle(&mut self, idler: Idler, cx: &Context<'_>) -> Poll<()> {
        if self.first_open_number() >= idler.upto {
            return Poll::Ready(());
        }
        self.idlers.wakers.insert(idler, cx.waker().clone());
        Poll::Pending
    }

    pub(crate) fn stop_idling(&mut self, idler: Idler) {
        self.idlers.wakers.remove(&idler);
    }

    /// Messages had their outcomes, or callers gave up.
    pub(super) fn wake_idlers(&mut self, wakeups: &mut Wakeups) {
        if self.idlers.wakers.is_empty() {
            return;
        }
        let open = self.first_open_number();
        while let Some(first) = self.idlers.wakers.first_entry()
            && first.key().upto <= open
        {
            wakeups.extend([first.remove()]);
        }
    }

    /// Of the messages without an outcome, in each place where they are, the one that was asked for first.
    pub(super) fn first_open(&self) -> impl Iterator<Item = usize> {
        let written = self.by_sequence.iter().find(|&&key| key != SETTLED);
        let places =
            [written.map(|&key| key as usize), self.first_in_doubt(), self.unsent.front().copied()];
        places.into_iter().flatten()
    }

    /// All messages below it have their outcomes, or will not be sent.
    fn first_open_number(&self) -> u64 {
        let admitted = self.first_open().map(|key| self.entries[key].number).min();
        // Who waits came after all who were admitted.
        let waits = || self.waiting.values().find(|waiting| waiting.is_at_gate());
        match admitted {
            Some(number) => number,
            None if self.gate.waiting() == 0 => self.next_number,
            None => waits().map_or(self.next_number, |first| first.number),
        }
    }

    /// Whether that is so, by looking at all of them.
    #[cfg(test)]
    pub(crate) fn knows_first_open(&self) -> bool {
        let open = self.entries.iter().filter(|(_, entry)| entry.settled.is_none());
        let waiting = self.waiting.values().filter(|waiting| waiting.is_at_gate());
        let numbers = open.map(|(_, entry)| entry.number).chain(waiting.map(|each| each.number));
        self.first_open_number() == numbers.min().unwrap_or(self.next_number)
    }
}
