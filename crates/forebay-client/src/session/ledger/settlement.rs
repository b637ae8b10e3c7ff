//! A message has its outcome, and its caller hears it, or nobody does.
//!
//! ```text
//!   settled ──▶ told             its caller awaits it, now or later
//!           ──▶ dropped unheard  the future is gone: counted, and logged, unless it was confirmed
//! ```

use std::task::{Context, Poll};

use forebay_flow::{Amount, Load, Sample};

use super::{Conclusion, Ledger, Outcome, Wakeups};
use crate::error::Refusal;
use crate::message::Message;
use crate::outcome::{Confirmed, Unconfirmed, Unheard, UnknownReason};
use crate::session::remember;

/// A frame that cannot be (clause 1.1.4).
const FRAME_ERROR: u16 = 501;

impl Ledger {
    /// The outcome of an admitted message, once; the entry is gone with it.
    pub(crate) fn poll_outcome(&mut self, entry: usize, cx: &mut Context<'_>) -> Poll<Outcome> {
        let found = self.entries.get_mut(entry).expect("an outcome is asked for until it is there");
        if found.settled.is_none() {
            remember(&mut found.waker, cx);
            return Poll::Pending;
        }
        let entry = self.entries.remove(entry);
        Poll::Ready(entry.settled.expect("it was looked at above"))
    }

    /// Nobody asks for this outcome any more.
    pub(crate) fn abandon(&mut self, entry: usize, wakeups: &mut Wakeups) {
        match self.entries.get_mut(entry) {
            Some(found) if found.settled.is_some() => {
                if let Some(Err(unconfirmed)) = self.entries.remove(entry).settled {
                    self.not_heard(unconfirmed, wakeups);
                }
            }
            Some(found) => {
                found.abandoned = true;
                found.waker = None;
            }
            None => {}
        }
    }

    pub(super) fn outcome(
        &mut self,
        key: usize,
        acked: bool,
        now_us: u64,
        bytes: u64,
        load: Load,
    ) -> Outcome {
        let entry = &mut self.entries[key];
        let rtt_us = now_us.saturating_sub(entry.sent_at_us);
        if !acked {
            self.window.rejected(now_us, load);
            self.metrics.rejected += 1;
            return Err(Unconfirmed::Rejected);
        }
        // What went nowhere is answered sooner than anything is stored: no measure for what is.
        if entry.returned.is_none() {
            self.window.confirmed(now_us, Sample { rtt_us, bytes }, load);
        }
        self.metrics.confirm_latency.add(rtt_us);
        if let Some(timed) = entry.message.timed() {
            timed.answered(rtt_us);
        }
        match entry.returned.take() {
            Some(why) => {
                self.metrics.returned += 1;
                Err(Unconfirmed::Returned(*why))
            }
            None => {
                self.metrics.confirmed += 1;
                Ok(Confirmed { republished: entry.republished })
            }
        }
    }

    pub(super) fn finish(&mut self, key: usize, outcome: Outcome, wakeups: &mut Wakeups) {
        self.open -= 1;
        let entry = &mut self.entries[key];
        debug_assert!(entry.settled.is_none(), "a message is settled once");
        let span = entry.message.take_span().map(|span| {
            let message_id = match entry.message.own_message_id() {
                Some(own) => String::from_utf8_lossy(own).into_owned(),
                None => self.id.of(entry.number).to_owned(),
            };
            (span, message_id)
        });
        let timed = entry.message.take_timed();
        if span.is_some() || timed.is_some() {
            wakeups.conclude(Conclusion::Spans { span, timed, outcome: outcome.clone() });
        }
        if entry.abandoned {
            self.entries.remove(key);
            if let Err(unconfirmed) = outcome {
                self.not_heard(unconfirmed, wakeups);
            }
        } else {
            entry.settled = Some(outcome);
            // The body is needed no longer; the outcome may be looked at much later.
            entry.message = Message::new(Vec::new());
            entry.awaited = entry.waker.is_some();
            wakeups.extend(entry.waker.take());
        }
    }

    pub(super) fn settle_all(&mut self, unknown: &Unconfirmed, wakeups: &mut Wakeups) {
        self.by_sequence.clear();
        self.doubt = None;
        self.unsent.clear();
        for key in self.open_entries() {
            self.settle_unknown(key, unknown, wakeups);
        }
    }

    pub(super) fn open_entries(&self) -> Vec<usize> {
        self.entries.iter().filter(|(_, e)| e.settled.is_none()).map(|(key, _)| key).collect()
    }

    pub(super) fn settle_unknown(
        &mut self,
        key: usize,
        unknown: &Unconfirmed,
        wakeups: &mut Wakeups,
    ) {
        self.metrics.unknown += 1;
        self.gate.settle(Amount::message(self.entries[key].message.body.len() as u64));
        self.finish(key, Err(unknown.clone()), wakeups);
    }

    /// Its properties do not fit into the frames of this broker, which therefore will not have it; whether the one before has it,
    /// nobody can tell.
    pub(super) fn settle_too_long(&mut self, key: usize) {
        let mut wakeups = std::mem::take(&mut self.too_long);
        if self.entries[key].written {
            let text = "the properties do not fit into the frames of the broker that took over";
            let why = Refusal { code: FRAME_ERROR, text: text.to_owned() };
            let unknown = Unconfirmed::Unknown(UnknownReason::ChannelClosed(why));
            self.settle_unknown(key, &unknown, &mut wakeups);
        } else {
            self.metrics.rejected += 1;
            self.gate.settle(Amount::message(self.entries[key].message.body.len() as u64));
            self.finish(key, Err(Unconfirmed::Rejected), &mut wakeups);
        }
        self.too_long = wakeups;
    }

    /// Of what has its outcome, what is not confirmed and nobody was told of. An outcome that is kept, and that no
    /// task had awaited when it came, counts until it is looked at.
    pub(crate) fn unheard(&self) -> Unheard {
        let mut unheard = self.unheard;
        for (_, entry) in self.entries.iter().filter(|(_, entry)| !entry.awaited) {
            if let Some(Err(unconfirmed)) = &entry.settled {
                unheard.count(unconfirmed);
            }
        }
        unheard
    }

    fn not_heard(&mut self, unconfirmed: Unconfirmed, wakeups: &mut Wakeups) {
        self.unheard.count(&unconfirmed);
        self.metrics.abandoned_unconfirmed += 1;
        wakeups.conclude(Conclusion::NotHeard { target: self.target.clone(), unconfirmed });
    }
}
