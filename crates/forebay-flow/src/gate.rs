//! Permits over messages and bytes, handed out first come, first served, and no faster than a pace if there is one.
//!
//! Room = window - in flight, and it **may be negative**: a window that is cut takes nothing back from
//! messages that are on their way already, so what is in flight can exceed it. New permits wait until
//! confirms have brought it below. HTTP/2 has the same rule for the same reason (RFC 9113 section 6.9.2).
//!
//! ```text
//!   ask ──► admitted ─────────────────────────► settle (confirm, nack, or a permit not used)
//!    │         ▲ next_admitted, oldest first; while a pace holds it, at next_paced_us
//!    └──► waiting ──► next_expired (deadline) | cancel | abandon (close)
//!    └──► refused (WAITERS_MAX)
//! ```
//!
//! Strictly first come, first served: a small message does not overtake a large one, or the large one
//! would wait for ever. Admission costs O(1) amortised; a deadline O(log waiters).

use std::collections::{BTreeSet, VecDeque};

use crate::amount::Amount;
use crate::token_bucket::{NotYet, TokenBucket};
use crate::window::{Load, Pace, admits};

/// Waiters of one gate unless told otherwise; one costs 40 bytes here, its message is its owner's.
pub const WAITERS_MAX: usize = 65_536;

/// Cancelled waiters that may stand in the queue beyond as many as live ones before it is swept.
const CANCELLED_SLACK: usize = 64;

/// While the pace holds, the window limits the flow if so much of it is in flight. Less, and it would grow though
/// nothing fills it; all of it, and it might never grow, as the pace is taken from an estimate.
const LIMITED_SHARE: f64 = 0.75;

/// A caller that waits at one gate. Numbers rise and are never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaiterId(pub u64);

/// The gate's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// The permit is the caller's; give it back with [`Gate::settle`].
    Admitted,
    /// [`Gate::next_admitted`] or [`Gate::next_expired`] will name this waiter, unless it is cancelled.
    Waiting(WaiterId),
    /// As many wait as may.
    Refused,
}

#[derive(Debug)]
struct Waiter {
    id: WaiterId,
    amount: Amount,
    deadline_us: Option<u64>,
    cancelled: bool,
}

/// Permits and those who wait for them. Times are microseconds of the caller's clock.
#[derive(Debug)]
pub struct Gate {
    window: Amount,
    in_flight: Amount,
    open: bool,
    pace: Option<(TokenBucket, Pace)>,
    paced_until_us: Option<u64>, // it was the pace that held who asked last
    paced_since_us: u64,         // if so
    queue: VecDeque<Waiter>,     // sorted by id; its front is never cancelled
    waiting: usize,              // without the cancelled
    waiters_max: usize,
    deadlines: BTreeSet<(u64, WaiterId)>,
    next_id: u64,
}

impl Gate {
    /// An open gate with `window` permits and room for `waiters_max` waiters.
    #[must_use]
    pub fn new(window: Amount, waiters_max: usize) -> Gate {
        Gate {
            window,
            in_flight: Amount::ZERO,
            open: true,
            pace: None,
            paced_until_us: None,
            paced_since_us: 0,
            queue: VecDeque::new(),
            waiting: 0,
            waiters_max,
            deadlines: BTreeSet::new(),
            next_id: 0,
        }
    }

    /// Asks for a permit for `amount`. If there is none, waits until `deadline_us`, for ever if `None`.
    pub fn ask(&mut self, now_us: u64, amount: Amount, deadline_us: Option<u64>) -> Admission {
        if self.waiting == 0 && self.pass(now_us, amount) {
            return Admission::Admitted;
        }
        if self.waiting >= self.waiters_max {
            return Admission::Refused;
        }
        let id = WaiterId(self.next_id);
        self.next_id += 1;
        self.queue.push_back(Waiter { id, amount, deadline_us, cancelled: false });
        self.waiting += 1;
        if let Some(deadline_us) = deadline_us {
            self.deadlines.insert((deadline_us, id));
        }
        Admission::Waiting(id)
    }

    /// Gives permits back: confirmed, refused by the broker, or never used.
    ///
    /// # Panics
    /// If more comes back than was given out: a message was settled twice.
    pub fn settle(&mut self, amount: Amount) {
        self.in_flight =
            self.in_flight.minus(amount).expect("no more is settled than was admitted");
    }

    /// Sets the window; it may be smaller than what is in flight. Ask [`Gate::next_admitted`] afterwards.
    pub fn set_window(&mut self, window: Amount) {
        self.window = window;
    }

    /// From now on permits are given out at this pace; `None`: as fast as they are asked for. Whom the last one holds is
    /// held as this one would. Ask [`Gate::next_admitted`] afterwards.
    ///
    /// # Panics
    /// If the rate or the burst is 0.
    pub fn set_pace(&mut self, now_us: u64, pace: Option<Pace>) {
        match (pace, &mut self.pace) {
            (None, held) => {
                *held = None;
                self.paced_until_us = None;
            }
            (Some(pace), Some((_, held))) if pace == *held => {}
            (Some(pace), Some((bucket, held))) => {
                bucket.set_rate(now_us, pace.messages_per_s, pace.burst_messages);
                *held = pace;
                if let (Some(until_us), Some(front)) =
                    (&mut self.paced_until_us, self.queue.front())
                {
                    let looked = bucket.look(now_us, u64::from(front.amount.messages));
                    let ready_us = looked.map_or_else(|not_yet| not_yet.retry_us, |()| now_us);
                    // Its grain goes on: a pace that changes with each confirm must not wake one at a time.
                    *until_us = ready_us.max(self.paced_since_us.saturating_add(pace.grain_us));
                }
            }
            (Some(pace), held) => {
                let bucket = TokenBucket::new(now_us, pace.messages_per_s, pace.burst_messages);
                *held = Some((bucket, pace));
            }
        }
    }

    /// Admits nobody any more (`connection.blocked`, reconnecting); waiters keep their places.
    pub fn close(&mut self) {
        self.open = false;
    }

    /// Admits again. Ask [`Gate::next_admitted`] afterwards.
    pub fn open(&mut self) {
        self.open = true;
    }

    /// The oldest waiter, if it passes now; the permit is its own from here on. Call until `None` after
    /// [`Gate::settle`], [`Gate::set_window`], [`Gate::set_pace`], [`Gate::open`], [`Gate::cancel`] and
    /// [`Gate::next_expired`], and at [`Gate::next_paced_us`].
    pub fn next_admitted(&mut self, now_us: u64) -> Option<(WaiterId, Amount)> {
        let Some(front) = self.queue.front() else {
            self.paced_until_us = None;
            return None;
        };
        let (id, amount) = (front.id, front.amount);
        if !self.pass(now_us, amount) {
            return None;
        }
        self.remove(id);
        Some((id, amount))
    }

    /// When the oldest waiter may pass, if it is the pace that holds it: nothing else need happen.
    #[must_use]
    pub fn next_paced_us(&self) -> Option<u64> {
        self.paced_until_us
    }

    /// A waiter whose deadline is `now_us` or earlier; it waits no longer. Call until `None`. Until it is
    /// named here it may still be admitted.
    pub fn next_expired(&mut self, now_us: u64) -> Option<WaiterId> {
        let &(deadline_us, id) = self.deadlines.first()?;
        if deadline_us > now_us {
            return None;
        }
        self.remove(id);
        Some(id)
    }

    /// The earliest deadline of a waiter.
    #[must_use]
    pub fn next_deadline_us(&self) -> Option<u64> {
        self.deadlines.first().map(|&(deadline_us, _)| deadline_us)
    }

    /// The caller waits no longer. `false` if it does not wait: it was admitted or has expired; an
    /// admitted one's permit is still to be settled.
    pub fn cancel(&mut self, id: WaiterId) -> bool {
        self.remove(id)
    }

    /// Nobody waits any longer; yields all who did, oldest first.
    pub fn abandon(&mut self) -> impl Iterator<Item = WaiterId> + use<> {
        self.waiting = 0;
        self.deadlines.clear();
        std::mem::take(&mut self.queue).into_iter().filter(|w| !w.cancelled).map(|w| w.id)
    }

    /// Admitted and not settled.
    #[must_use]
    pub fn in_flight(&self) -> Amount {
        self.in_flight
    }

    /// Callers that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Window less what is in flight, in messages; negative after a cut.
    #[must_use]
    pub fn room_messages(&self) -> i64 {
        i64::from(self.window.messages) - i64::from(self.in_flight.messages)
    }

    /// What a [window](crate::Window) wants to know with an event.
    #[must_use]
    pub fn load(&self) -> Load {
        let filled =
            f64::from(self.in_flight.messages) >= LIMITED_SHARE * f64::from(self.window.messages);
        let waiting = self.waiting > 0 && (filled || self.paced_until_us.is_none());
        Load { in_flight: self.in_flight, waiting }
    }

    /// Takes a permit, if there is one and the pace allows it.
    fn pass(&mut self, now_us: u64, amount: Amount) -> bool {
        let paced_until_us = self.paced_until_us.take();
        if !self.open || !admits(self.window, self.in_flight, amount) {
            return false;
        }
        if let Some((bucket, pace)) = &mut self.pace {
            if paced_until_us.is_some_and(|until_us| now_us < until_us) {
                self.paced_until_us = paced_until_us;
                return false;
            }
            if let Err(NotYet { retry_us }) = bucket.take(now_us, u64::from(amount.messages)) {
                self.paced_until_us = Some(retry_us.max(now_us.saturating_add(pace.grain_us)));
                self.paced_since_us = now_us;
                return false;
            }
        }
        self.in_flight = self.in_flight.plus(amount);
        true
    }

    fn remove(&mut self, id: WaiterId) -> bool {
        let Ok(place) = self.queue.binary_search_by_key(&id, |waiter| waiter.id) else {
            return false;
        };
        let waiter = &mut self.queue[place];
        if waiter.cancelled {
            return false;
        }
        waiter.cancelled = true;
        if let Some(deadline_us) = waiter.deadline_us {
            self.deadlines.remove(&(deadline_us, id));
        }
        self.waiting -= 1;
        while self.queue.front().is_some_and(|waiter| waiter.cancelled) {
            self.queue.pop_front();
        }
        // Each sweep is paid for by as many cancellations before it.
        if self.queue.len() - self.waiting > self.waiting + CANCELLED_SLACK {
            self.queue.retain(|waiter| !waiter.cancelled);
        }
        true
    }
}
