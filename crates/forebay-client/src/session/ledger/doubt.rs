//! A lost connection leaves messages in doubt, and so does a channel that stalled; the next one ends it.
//!
//! ```text
//!   lost ──▶ in doubt ── broker knows no names ───────────▶ all go out again, marked
//!               └─ channel.open names us ─▶ open-ok: taken ─▶ those are confirmed, the others go out again
//!                                                unknown ───▶ all go out again, marked
//! ```

use std::collections::VecDeque;

use forebay_flow::Amount;

use super::super::taken::{Fate, Taken, open_words};
use super::{Ledger, SETTLED, Wakeups};
use crate::outcome::{Confirmed, Unconfirmed};

/// Entries in the order in which they were written.
#[derive(Debug)]
pub(super) struct Doubt {
    /// The first one's place among the writes.
    first: u64,
    entries: VecDeque<u32>,
}

impl Ledger {
    /// What channel.open says to a broker that counts under names.
    pub(crate) fn open_words(&mut self) -> String {
        self.openings += 1;
        open_words(self.openings, self.writes + 1, self.id.prefix())
    }

    /// Whether something was written, and nobody knows what became of it.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.doubt.is_some()
    }

    /// There is a channel, and the broker said what it has taken.
    pub(crate) fn resumed(
        &mut self,
        channel: u16,
        answer: &[u8],
        now_us: u64,
        wakeups: &mut Wakeups,
    ) {
        // A broker that speaks of what we never wrote means somebody else.
        let taken = Taken::parse(answer).filter(|taken| taken.upto() <= self.writes);
        if let Some(taken) = taken
            && let Some(Doubt { first, entries }) = self.doubt.take()
        {
            for (write, key) in (first..).zip(entries) {
                if key == SETTLED {
                    continue;
                }
                match taken.fate(write) {
                    Fate::Taken => self.settle_resumed(key as usize, wakeups),
                    Fate::InDoubt => self.send_again(key as usize, true),
                    Fate::NeverArrived => self.send_again(key as usize, false),
                }
            }
        }
        self.opened(channel, now_us);
    }

    /// There is a channel; everything open goes out on it, in its first order, and what is in doubt marked.
    pub(crate) fn opened(&mut self, channel: u16, now_us: u64) {
        debug_assert!(self.channel.is_none());
        self.health.begin(now_us);
        if let Some(doubt) = self.doubt.take() {
            for key in doubt.entries.into_iter().filter(|&key| key != SETTLED) {
                self.send_again(key as usize, true);
            }
        }
        self.channel = Some(channel);
        self.by_sequence.clear();
        self.base = 1;
        self.window = (self.make_window)();
        self.window.broker(self.broker);
        self.window.commit_time(self.commit_time);
        self.follow_window(now_us);
        if !self.blocked {
            self.gate.open();
        }
        let mut open = self.open_entries();
        open.sort_unstable_by_key(|&key| self.entries[key].number);
        self.unsent = open.into();
    }

    /// The connection broke. What was written may have arrived; nobody is admitted until that is clear.
    pub(crate) fn lost(&mut self) {
        self.blocked = false;
        self.former = None;
        self.leave_channel();
    }

    /// What was written to the channel and has no outcome is in doubt.
    pub(super) fn leave_channel(&mut self) {
        self.channel = None;
        self.expired = false;
        self.retiring_since_us = None;
        self.gate.close();
        let entries = std::mem::take(&mut self.by_sequence);
        if entries.iter().any(|&key| key != SETTLED) {
            debug_assert!(self.doubt.is_none(), "nothing is written before a doubt is over");
            self.doubt = Some(Doubt { first: self.writes + 1 - entries.len() as u64, entries });
        }
    }

    /// What waits for the broker's word on it for too long is not asked about any more.
    pub(super) fn expire_in_doubt(
        &mut self,
        now_us: u64,
        unknown: &Unconfirmed,
        wakeups: &mut Wakeups,
    ) {
        let Some(mut doubt) = self.doubt.take() else { return };
        while let Some(&key) = doubt.entries.front() {
            if key != SETTLED && !self.is_due(key as usize, now_us) {
                break;
            }
            doubt.entries.pop_front();
            doubt.first += 1;
            if key != SETTLED {
                self.settle_unknown(key as usize, unknown, wakeups);
            }
        }
        // Empty or not: a channel that was opened to ask goes on with its answer.
        self.doubt = Some(doubt);
    }

    /// The first of them without an outcome.
    pub(super) fn first_in_doubt(&self) -> Option<usize> {
        let mut entries = self.doubt.iter().flat_map(|doubt| &doubt.entries);
        entries.find(|&&key| key != SETTLED).map(|&key| key as usize)
    }

    fn send_again(&mut self, key: usize, mark: bool) {
        let entry = &mut self.entries[key];
        self.metrics.republished += u64::from(!entry.sent_again);
        entry.sent_again = true;
        entry.republished |= mark;
        entry.returned = None;
    }

    fn settle_resumed(&mut self, key: usize, wakeups: &mut Wakeups) {
        let entry = &self.entries[key];
        let confirmed = Confirmed { republished: entry.republished };
        self.gate.settle(Amount::message(entry.message.body.len() as u64));
        self.metrics.confirmed += 1;
        self.metrics.resumed += 1;
        self.finish(key, Ok(confirmed), wakeups);
    }
}
