//! Messages over which a connection may have ended, of one publisher ([`culprit`](super::super::culprit)).

use super::super::culprit::{CUTS_MAX, Ending, Evidence};
use super::{Ledger, SETTLED, Wakeups};
use crate::outcome::Unconfirmed;

impl Ledger {
    /// So many suspects may go out, and nothing else; `None`: all may.
    pub(crate) fn set_trial(&mut self, trial: Option<u32>) {
        self.trial = trial;
    }

    /// Written on this connection and not answered: all, or the suspects.
    pub(crate) fn in_flight(&self, suspects: bool) -> impl Iterator<Item = usize> {
        let open = self.by_sequence.iter().filter(|&&key| key != SETTLED).map(|&key| key as usize);
        open.filter(move |&key| !suspects || self.entries[key].suspect)
    }

    /// When it was last written, or asked for.
    pub(crate) fn sent_at_us(&self, key: usize) -> u64 {
        self.entries[key].sent_at_us
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

    /// The connection ended. True: it may be because of something that is in flight here.
    pub(crate) fn suspect(&mut self, ending: Ending) -> bool {
        let mut suspected = false;
        for key in self.in_flight(false).collect::<Vec<_>>() {
            let entry = &mut self.entries[key];
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

    /// What is in flight has been for long enough.
    pub(crate) fn clear_in_flight(&mut self) {
        let keys: Vec<usize> = self.in_flight(true).collect();
        keys.into_iter().for_each(|key| self.entries[key].suspect = false);
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
