//! A message over which connections end is told apart from those that were in flight beside it, and has an outcome.
//!
//! ```text
//!   ended over a message, perhaps ──▶ all in flight are suspects, all else waits
//!        ▲                                │ one suspect goes out; each time all are answered 2, 4, 8, ...
//!        │                                ├─ all answered ───────────────▶ nothing waits any more
//!        └──── ended again ◀──────────────┤
//!                                         └─ ended, with one in flight ──▶ counted; at the bound: unknown
//! ```
//! What an end says:
//! - *a complaint*: the broker closes for what was sent (a code of 402 and 501 to 540 but 506, for basic.publish or for no
//!   method; not 530 for no method, which says that there is a channel too many). A message is settled after [`COMPLAINTS_MAX`] with nothing else in flight.
//! - *unclear*: it closes by another code (541, 506) or sends what cannot be read, to a connection without consumers, calls and
//!   channels of the user's. Its own illness may last for hours, so there
//!   are to be [`ENDS_MAX`] in a row and over [`ENDS_SPAN_US`] at least, each within [`PATIENCE_US`] after the message left. What
//!   left before is no suspect, either. An attempt in between that failed, that another host took, or that came to nothing for so
//!   long begins the count anew.
//! - *a failure*: 541 for no method. Then as unclear, but while the broker owes a consumer its answer it counts against nobody, and suspects wait for that.
//! - *a cut*: the stream ended without a word. As a network does the same, one alone makes no suspects; that a message was in flight
//!   at [`CUTS_MAX`] of them does. Then as unclear: in an outage the peer cannot be reached, or not at once.
//! - *nothing*: connection-forced (320), silence, our own end, and any end while the broker has blocked us. Such ends count neither for nor against.
//!
//! What the user's own channels publish without confirms nobody sees here. What is in flight for [`PATIENCE_US`] without an end is
//! cleared, so that a queue that answers nobody does not hold others: it goes out beside the next suspects, and is suspected again only by an end with none of them in flight.

use super::{Owner, Phase, Session};
use crate::error::Lost;
use crate::machine::CloseReason;
use crate::outcome::{Unconfirmed, UnknownReason};

/// So often the broker complains of one message.
const COMPLAINTS_MAX: u32 = 3;
/// So often a connection ends in another way with nothing but one message in flight, ...
const ENDS_MAX: u32 = 10;
/// ... and over this time at least.
const ENDS_SPAN_US: u64 = 30_000_000;
/// A message that was in flight at so many cuts may be why.
pub(super) const CUTS_MAX: u8 = 3;
/// How long an end may follow on the message that it is over.
pub(super) const PATIENCE_US: u64 = 5_000_000;

const CONNECTION_FORCED: u16 = 320;
const NOT_ALLOWED: u16 = 530;
const INTERNAL_ERROR: u16 = 541;
const BASIC: u16 = 60;
const PUBLISH: u16 = 40;

/// How a connection ended, if that may be because of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Complaint,
    Unclear,
    /// The broker failed, and does not say over what.
    Failure,
    Cut,
}

impl Ending {
    pub(super) fn of_close(reason: &CloseReason<'_>) -> Option<Ending> {
        // Where a frame is meant it is that of no method, or of no method that is known.
        let published = match reason.class_id {
            0 => true,
            class_id => class_id == BASIC && [0, PUBLISH].contains(&reason.method_id),
        };
        if reason.code == CONNECTION_FORCED || !published {
            return None;
        }
        match reason.code {
            // One channel too many for the user or the node. No publish draws it without its method.
            NOT_ALLOWED if reason.class_id == 0 => None,
            INTERNAL_ERROR if reason.class_id == 0 => Some(Ending::Failure),
            506 | INTERNAL_ERROR => Some(Ending::Unclear),
            402 | 501..=540 => Some(Ending::Complaint),
            _ => Some(Ending::Unclear),
        }
    }
}

/// What speaks against one message: ends at which nothing else was in flight.
#[derive(Debug, Clone, Default)]
pub(super) struct Evidence {
    complaints: u32,
    /// Others, in a row.
    ends: u32,
    /// When the first of those was.
    since_us: u64,
}

impl Evidence {
    /// One more. How many there are, if they are enough.
    pub(super) fn add(&mut self, ending: Ending, now_us: u64) -> Option<u32> {
        if ending == Ending::Complaint {
            self.complaints += 1;
            return (self.complaints >= COMPLAINTS_MAX).then_some(self.complaints);
        }
        if self.ends == 0 {
            self.since_us = now_us;
        }
        self.ends += 1;
        let lasted_us = now_us.saturating_sub(self.since_us);
        (self.ends >= ENDS_MAX && lasted_us >= ENDS_SPAN_US).then_some(self.ends)
    }

    /// The peer was away, so what has another reason may have had that before.
    pub(super) fn was_away(&mut self) {
        self.ends = 0;
    }
}

/// Suspects go out, few at a time.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Trial {
    /// How many may be in flight.
    most: u32,
    /// Rounds on this connection that were not answered.
    unanswered: u32,
    /// What is in flight then is cleared.
    until_us: u64,
}

impl Trial {
    fn new() -> Trial {
        Trial { most: 0, unanswered: 0, until_us: u64::MAX }
    }

    /// What was in flight is answered, or cleared: how many more may go out.
    fn next(&mut self, answered: bool, now_us: u64) -> u32 {
        if answered {
            // Not anew where some are answered and some are not.
            self.most = self.most.saturating_mul(2).max(self.after_unanswered());
        } else {
            // One again, as what is behind it was not tried yet; but not for each of many.
            self.most = self.after_unanswered();
            self.unanswered += 1;
        }
        self.wait(now_us);
        self.most
    }

    fn after_unanswered(&self) -> u32 {
        1 << self.unanswered.min(31)
    }

    /// No end can be due before.
    fn wait(&mut self, now_us: u64) {
        self.until_us = now_us.saturating_add(PATIENCE_US);
    }
}

impl Session {
    /// A host could not be reached, or did not complete the login.
    pub(crate) fn peer_was_away(&mut self, place: usize) {
        if self.last_place == Some(place) {
            self.ledgers.iter_mut().for_each(|(_, ledger)| ledger.peer_was_away());
        }
    }

    /// Messages go out few at a time, to see over which one connections end.
    pub(crate) fn is_trying_suspects(&self) -> bool {
        self.trial.is_some()
    }

    /// Which host the connection was to that is about to be lost.
    pub(crate) fn was_at(&mut self, place: usize) {
        if self.last_place.replace(place) != Some(place) {
            self.ledgers.iter_mut().for_each(|(_, ledger)| ledger.peer_was_away());
        }
    }

    /// A connection that was up has ended; its messages are still in flight. If one of them has now been alone often enough it is
    /// settled.
    pub(super) fn judge(&mut self, ending: Option<Ending>, lost: &Lost, now_us: u64) {
        // What a blocked broker has not read it does not answer, and it may be ill for hours.
        if let Some(ending) = ending.filter(|_| self.blocked.is_none()) {
            let alone = self.alone(ending, now_us);
            // What was cleared is so for as long as others are left that it may be.
            let tried =
                self.ledgers.iter().any(|(_, ledger)| ledger.in_flight(true).next().is_some());
            let tried = tried && self.trial.is_some();
            let mut suspected = false;
            for (_, ledger) in &mut self.ledgers {
                suspected |= ledger.suspect(ending, tried, now_us, self.busy_at_us);
            }
            if suspected && self.trial.is_none() {
                self.trial = Some(Trial::new());
            }
            if let Some((ledger, entry)) = alone
                && let Some(times) = self.ledgers[ledger].accuse(entry, ending, now_us)
            {
                let why = UnknownReason::ConnectionsEnded { times, last: lost.clone() };
                let unknown = Unconfirmed::Unknown(why);
                self.ledgers[ledger].settle_culprit(entry, &unknown, &mut self.wakeups);
            }
        }
        if self.trial.is_some() {
            self.trial = Some(Trial::new());
        }
    }

    /// The only message in flight that is not cleared, if nothing else is under way either.
    fn alone(&self, ending: Ending, now_us: u64) -> Option<(usize, usize)> {
        let tried = self.trial.is_some();
        let asks = self.users.iter().any(|(_, user)| user.is_busy());
        let publishes = |(place, owner): (usize, &Owner)| {
            matches!(owner, Owner::User(_)) && self.machine.unconfirmed(place as u16 + 1) > 0
        };
        let users = asks || self.owners.iter().enumerate().any(publishes);
        if users || self.calls.iter().any(|(_, calls)| calls.awaits_replies()) {
            return None;
        }
        // That may be the consumer's.
        if ending == Ending::Failure && self.awaits_consumers() {
            return None;
        }
        let each = |(key, ledger): (usize, _)| {
            let ledger: &super::Ledger = ledger;
            ledger.in_flight(tried).map(move |entry| (key, entry))
        };
        let mut in_flight = self.ledgers.iter().flat_map(each);
        let (key, entry) = in_flight.next().filter(|_| in_flight.next().is_none())?;
        let ledger = &self.ledgers[key];
        ledger.left_soon_before(entry, ending, now_us, self.busy_at_us).then_some((key, entry))
    }

    fn awaits_consumers(&self) -> bool {
        self.intakes.iter().any(|(_, intake)| intake.awaits_consume_ok())
    }

    /// Something was answered, or time passed, or there is a connection again.
    pub(super) fn try_suspects(&mut self, now_us: u64) {
        let Some(trial) = self.trial.as_mut().filter(|_| self.phase == Phase::Up) else { return };
        let ledgers = || self.ledgers.iter().map(|(_, ledger)| ledger);
        if self.blocked.is_some() {
            trial.wait(now_us);
        }
        let is_over = trial.until_us <= now_us;
        let mut nobody = true;
        if ledgers().any(|ledger| ledger.in_flight(true).next().is_some()) {
            if !is_over {
                return;
            }
            self.ledgers.iter_mut().for_each(|(_, ledger)| ledger.clear_in_flight());
            nobody = false;
        }
        let suspects = self.ledgers.iter().any(|(_, ledger)| ledger.has_suspects());
        let to_send = self.ledgers.iter().any(|(_, ledger)| ledger.suspects_to_send() > 0);
        // Who gets no channel holds nobody for longer.
        if !suspects || is_over && nobody && !to_send {
            self.end_trial(now_us);
            return;
        }
        let is_writing = self.ledgers.iter().any(|(_, ledger)| ledger.is_writing_suspects());
        // The broker may fail over a consumer; by itself it does so before suspects go out.
        if !to_send || (is_writing || self.awaits_consumers()) && !is_over {
            return;
        }
        let Some(trial) = &mut self.trial else { return };
        let mut left = trial.next(nobody, now_us);
        for (_, ledger) in &mut self.ledgers {
            let count = ledger.suspects_to_send().min(left);
            left -= count;
            ledger.let_suspects_out(count);
            self.backlog |= ledger.pump(&mut self.machine, now_us, &mut self.wakeups);
        }
    }

    fn end_trial(&mut self, now_us: u64) {
        self.trial = None;
        for (_, ledger) in &mut self.ledgers {
            ledger.set_trial(None);
            self.backlog |= ledger.pump(&mut self.machine, now_us, &mut self.wakeups);
        }
    }

    /// The socket takes no more, so no end can be due.
    pub(super) fn still_writing(&mut self, now_us: u64) {
        self.busy_at_us = now_us;
        if let Some(trial) = &mut self.trial {
            trial.wait(now_us);
        }
    }

    /// There is a connection again, and suspects may go out.
    pub(super) fn go_on_trying(&mut self, now_us: u64) {
        if let Some(trial) = &mut self.trial {
            trial.wait(now_us);
            self.try_suspects(now_us);
        }
    }

    pub(super) fn trial_until_us(&self) -> Option<u64> {
        self.trial.as_ref().map(|trial| trial.until_us)
    }
}
