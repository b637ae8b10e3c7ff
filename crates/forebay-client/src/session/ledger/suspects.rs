//! Messages over which a connection may have ended, of one publisher ([`culprit`](super::super::culprit)).

use super::super::culprit::{CUTS_MAX, Ending, Evidence, PATIENCE_US};
use super::{Ledger, SETTLED, Wakeups};
use crate::outcome::Unconfirmed;

impl Ledger {
    /// So many messages may go out; `None`: all may.
    pub(crate) fn set_trial(&mut self, trial: Option<u32>) {
        self.trial = trial;
    }

    /// So many suspects may go out, at most [`Ledger::suspects_to_send`], and what stands before them.
    pub(crate) fn let_suspects_out(&mut self, count: u32) {
        let mut left = count;
        let is_before = |&&key: &&usize| {
            let goes = left > 0;
            left -= u32::from(goes && self.entries[key].suspect);
            goes
        };
        self.trial = Some(self.unsent.iter().take_while(is_before).count() as u32);
    }

    /// Written on this connection and not answered: all, or the suspects.
    pub(crate) fn in_flight(&self, suspects: bool) -> impl Iterator<Item = usize> {
        let open = self.by_sequence.iter().filter(|&&key| key != SETTLED).map(|&key| key as usize);
        open.filter(move |&key| !suspects || self.entries[key].suspect)
    }

    /// Whether an end may be for this message by the time. `busy_at_us` is when the socket last took no more.
    pub(crate) fn left_soon_before(
        &self,
        key: usize,
        ending: Ending,
        now_us: u64,
        busy_at_us: u64,
    ) -> bool {
        // What ends a connection in between does so whatever is in flight; and where nothing is confirmed all is in flight for long.
        let left_us = self.entries[key].sent_at_us.max(busy_at_us);
        ending == Ending::Complaint || now_us.saturating_sub(left_us) <= PATIENCE_US
    }

    pub(crate) fn has_suspects(&self) -> bool {
        self.entries.iter().any(|(_, entry)| entry.suspect && entry.settled.is_none())
    }

    /// Suspects that can go out once they may.
    pub(crate) fn suspects_to_send(&self) -> u32 {
        if self.channel.is_none() || self.retiring_since_us.is_some() {
            return 0;
        }
        self.unsent.iter().filter(|&&key| self.entries[key].suspect).count() as u32
    }

    /// Some may, and the send buffer is full.
    pub(crate) fn is_writing_suspects(&self) -> bool {
        self.trial.is_some_and(|left| left > 0) && self.suspects_to_send() > 0
    }

    /// The connection ended. True: it may be because of something that is in flight here, of suspects only if some were tried.
    pub(crate) fn suspect(
        &mut self,
        ending: Ending,
        tried: bool,
        now_us: u64,
        busy_at_us: u64,
    ) -> bool {
        let mut suspected = false;
        for key in self.in_flight(tried).collect::<Vec<_>>() {
            let soon = self.left_soon_before(key, ending, now_us, busy_at_us);
            let entry = &mut self.entries[key];
            if !soon {
                entry.suspect = false;
                continue;
            }
            if ending == Ending::Cut {
                entry.cuts = entry.cuts.saturating_add(1);
            }
            entry.suspect |= ending != Ending::Cut || entry.cuts >= CUTS_MAX;
            suspected |= entry.suspect;
        }
        suspected
    }

    /// Nothing else was in flight. How often that was so, if it is enough.
    pub(crate) fn accuse(&mut self, key: usize, ending: Ending, now_us: u64) -> Option<u32> {
        let evidence = self.entries[key].evidence.get_or_insert_default();
        evidence.add(ending, now_us)
    }

    pub(crate) fn peer_was_away(&mut self) {
        let open = self.entries.iter_mut().filter_map(|(_, entry)| entry.evidence.as_deref_mut());
        open.for_each(Evidence::was_away);
    }

    /// What is in flight has been for long enough: ends before are not in a row with what comes.
    pub(crate) fn clear_in_flight(&mut self) {
        for key in self.in_flight(true).collect::<Vec<_>>() {
            let entry = &mut self.entries[key];
            entry.suspect = false;
            entry.cuts = 0;
            entry.evidence.as_deref_mut().into_iter().for_each(Evidence::was_away);
        }
    }

    /// Connections end over it, so it is not sent again.
    pub(crate) fn settle_culprit(
        &mut self,
        key: usize,
        unknown: &Unconfirmed,
        wakeups: &mut Wakeups,
    ) {
        for place in &mut self.by_sequence {
            if *place == key as u32 {
                *place = SETTLED;
            }
        }
        self.settle_unknown(key, unknown, wakeups);
        self.wake_idlers(wakeups);
    }
}
