//! How many deliveries a consumer may hold, from how it is used.
//!
//! ```text
//!   workers   those it was told of, or as many as were seen to hold a message and ask for another; half as many
//!             after a second in which no more than that held one
//!   credit    workers + look-ahead (forebay-flow's Demand; that part rounded up to a few steps)
//!   starved   a worker asked, nothing was there, and the credit had been used up: look further ahead, as far as
//!             what waits here is worked off within 20 ms, or four round trips
//! ```
//! Asking for a message is the one sign of a free worker that cannot lie, so whoever collects a batch
//! before settling it never stands still, whatever the credit was.
//!
//! It can be told more (forebay-flow's Occupancy): how many workers there are *now*, and how many are busy. Then it
//! knows what is held without a worker at it, and that several consumers serve the same workers:
//!
//! ```text
//!   in work   min(held, busy workers)
//!   parked    held - in work: pauses before another attempt, waits for its key, for its batch
//!   allowed   what may begin now, or by the time it comes: a rate, a breaker, or a full buffer limits that
//!   credit    in work + free workers + parked + look-ahead; free workers and look-ahead at most what is allowed
//! ```
//! All workers are busy, or may begin nothing, and something waits here: it goes back, and the credit with it.

use forebay_flow::{Demand, Occupied, WANTED_MAX};

use super::seen_workers::SeenWorkers;

/// Deliveries that a consumer holds at most unless told otherwise: as many as `forebay-flow` ever wants. One that is 33 ms away carries
/// 150 000 messages a second with them.
pub const CREDIT_MAX: u16 = WANTED_MAX as u16;
/// What starving may multiply the look-ahead by.
const STRETCH_MAX: u32 = 64;
/// Time over which starving is added up.
const STARVED_ROUND_US: u64 = 20_000;
/// A longer gap says that the queue was empty.
const GAP_SLACK_US: u64 = 2_000;
/// What starving adds to the look-ahead waits no longer than this, or [`AHEAD_ROUND_TRIPS`].
const AHEAD_US: u64 = 20_000;
const AHEAD_ROUND_TRIPS: u64 = 4;

/// One consumer's credit, also for those who drive a [machine](crate::machine) themselves. Times are microseconds of the caller's clock.
#[derive(Debug)]
pub struct Credit {
    demand: Demand,
    workers: u32,
    seen: SeenWorkers,
    max: u32,
    fixed: Option<u32>,
    /// Messages in work.
    held: u32,
    rtt_us: u64,
    stretch: u32,
    /// Most that was outstanding since a worker last starved.
    peak: u32,
    starved_at_us: Option<u64>,
    starved_us: u64,
    round_since_us: u64,
    /// What waited was given back, and nothing completed since.
    stuck: bool,
    /// The broker can be asked for nothing at all.
    pauses: bool,
    /// What whoever counts the workers said last, and what was taken since.
    told: Option<Occupied>,
}

impl Credit {
    /// For `workers` at once (at least 1); `fixed` sets the credit by hand.
    pub fn new(now_us: u64, workers: u32, max: u32, fixed: Option<u32>) -> Credit {
        let max = max.max(1);
        let workers = workers.clamp(1, max);
        Credit {
            demand: Demand::new(now_us, workers),
            workers,
            seen: SeenWorkers::new(now_us, workers),
            max,
            fixed,
            held: 0,
            rtt_us: 0,
            stretch: 1,
            peak: 0,
            starved_at_us: None,
            starved_us: 0,
            round_since_us: now_us,
            stuck: false,
            pauses: false,
            told: None,
        }
    }

    /// Whether the credit may be 0, which as a prefetch would be none at all.
    pub fn set_pauses(&mut self, pauses: bool) {
        self.pauses = pauses;
    }

    /// It may be so many, if that is more than it was.
    pub fn raise_max(&mut self, max: u32) {
        self.max = self.max.max(max);
    }

    /// The workers as they are now, from somebody who counts them. Asking is then no sign of more of them.
    pub fn see(&mut self, now_us: u64, occupied: Occupied) {
        let workers = occupied.workers.clamp(1, self.max);
        if workers != self.workers || self.told.is_none() {
            self.workers = workers;
            self.demand.set_workers(workers);
        }
        if self.told.is_none_or(|told| told.turns != occupied.turns) {
            self.demand.progressed(now_us);
            self.demand.go_on();
            self.stuck = false;
        }
        self.set_busy(occupied);
        if occupied.stuck && self.demand.free() == 0 && self.fixed.is_none() {
            self.stuck = true;
            self.demand.give_up();
        }
        self.told = Some(occupied);
    }

    /// Those that are at something, and those that may not begin anything.
    fn set_busy(&mut self, occupied: Occupied) {
        let held_back = self.workers.saturating_sub(self.allowed(occupied));
        self.demand.set_busy(occupied.busy.max(held_back));
    }

    /// Messages that may begin when they have come, if they are asked for now.
    fn allowed(&self, occupied: Occupied) -> u32 {
        let meanwhile = u64::from(occupied.limit_per_s).saturating_mul(self.rtt_us) / 1_000_000;
        occupied.limit.saturating_add(u32::try_from(meanwhile).unwrap_or(u32::MAX))
    }

    /// The turn at which the workers were found stuck, for the other consumers that serve them.
    pub fn stuck_turn(&self) -> Option<u64> {
        self.told.filter(|_| self.stuck).map(|told| told.turns)
    }

    /// Whether what goes back cannot come again before a worker is free: then it may go back however often it has.
    pub fn gives_up_all(&self) -> bool {
        self.told.is_some() && self.pauses
    }

    /// The connection is another one: nothing is in work as far as the broker knows.
    pub fn restart(&mut self, now_us: u64) {
        let (told, pauses) = (self.told, self.pauses);
        let seen = self.seen.restarted(now_us);
        *self = Credit::new(now_us, self.workers, self.max, self.fixed);
        (self.pauses, self.seen) = (pauses, seen);
        if let Some(occupied) = told {
            self.see(now_us, occupied);
        }
    }

    /// The network's round trip, or the time an answer took.
    pub fn set_rtt(&mut self, rtt_us: u64) {
        self.rtt_us = rtt_us;
        self.demand.set_rtt(rtt_us);
    }

    /// What [`Credit::set_rtt`] was told last; 0: nothing yet.
    pub fn rtt_us(&self) -> u64 {
        self.rtt_us
    }

    /// Messages in work.
    pub fn held(&self) -> u32 {
        self.held
    }

    /// Messages arrived; `outstanding` of them are not acknowledged.
    pub fn delivered(&mut self, now_us: u64, outstanding: u32) {
        self.peak = self.peak.max(outstanding);
        let Some(starved_at_us) = self.starved_at_us.take() else { return };
        let gap_us = now_us.saturating_sub(starved_at_us);
        if gap_us <= 4 * self.rtt_us + GAP_SLACK_US {
            self.starved_us += gap_us;
        }
        let round_us = now_us.saturating_sub(self.round_since_us);
        if round_us >= STARVED_ROUND_US {
            if self.starved_us > round_us / 20 {
                self.stretch = (self.stretch * 2).min(STRETCH_MAX);
            }
            self.round_since_us = now_us;
            self.starved_us = 0;
        }
    }

    /// A worker takes a message.
    pub fn started(&mut self, now_us: u64) {
        self.held += 1;
        self.seen.hold(self.held);
        if let Some(told) = &mut self.told {
            // Whoever took it is not counted yet.
            told.busy = told.busy.saturating_add(1);
            if told.limit < u32::MAX {
                told.limit = told.limit.saturating_sub(1);
            }
            let told = *told;
            self.set_busy(told);
            self.demand.progressed(now_us);
            return;
        }
        self.make_room(now_us);
        if self.demand.free() > 0 {
            self.demand.started(now_us);
        }
    }

    /// A worker is done with one after `service_us`.
    pub fn completed(&mut self, now_us: u64, service_us: u64) {
        self.held = self.held.saturating_sub(1);
        self.stuck = false;
        if self.told.is_some() {
            self.demand.served(now_us, service_us);
        } else if self.demand.free() < self.workers {
            self.demand.completed(now_us, service_us);
        }
        let fewer = self.seen.completed(now_us, self.held, self.workers);
        if let Some(workers) = fewer.filter(|_| self.told.is_none()) {
            self.workers = workers;
            self.demand.set_workers(workers);
        }
    }

    /// A worker asks, and there is nothing for it.
    pub fn starved(&mut self, now_us: u64) {
        if self.told.is_none() && self.held >= self.workers {
            // More workers than we knew of, or one that collects.
            self.grow(now_us, self.held + 1);
        }
        if self.peak * 4 >= self.wanted() * 3 {
            self.starved_at_us.get_or_insert(now_us);
        }
        self.peak = 0;
    }

    /// Whether the `waiting` messages should go back to their queue: all workers have been busy with something
    /// long, and others may be free. So does what comes after that, until a worker completes.
    pub fn hand_back(&mut self, now_us: u64, waiting: usize) -> bool {
        let late = self.next_late_us(waiting).is_some();
        let stuck = self.fixed.is_none() && self.demand.hand_back(now_us, waiting);
        let free = self.told.is_some() && self.demand.free() > 0;
        if free && self.demand.stuck_us() <= now_us {
            // Somebody is free and will take it: look again later.
            self.demand.progressed(now_us);
        }
        self.stuck |= stuck;
        stuck || late
    }

    /// When [`Credit::hand_back`] would say so if nothing happens before.
    pub fn next_hand_back_us(&self, waiting: usize) -> Option<u64> {
        let late_us = self.next_late_us(waiting);
        late_us.or_else(|| {
            if self.fixed.is_some() {
                None
            } else if self.told.is_some() {
                // Also while somebody is free: that he took something else nobody will tell.
                let looks = waiting > 0 && !self.demand.has_handed_back();
                looks.then(|| self.demand.stuck_us())
            } else {
                self.demand.next_hand_back_us(waiting)
            }
        })
    }

    /// At once, for what was on its way here when the others went back.
    fn next_late_us(&self, waiting: usize) -> Option<u64> {
        let all_busy =
            if self.told.is_some() { self.demand.free() == 0 } else { self.held >= self.workers };
        (self.stuck && waiting > 0 && all_busy).then_some(0)
    }

    /// Deliveries to hold at a time, in work and waiting together; 0 only where that [may be](Credit::set_pauses).
    pub fn wanted(&self) -> u32 {
        if let Some(fixed) = self.fixed {
            return fixed;
        }
        let ahead = self.ahead();
        // Workers are not rounded: what is held beyond them without need waits while others may be free.
        let wanted = match &self.told {
            None => self.workers.saturating_add(step_up(ahead)),
            Some(told) => {
                let in_work = self.held.min(told.busy);
                let allowed = self.allowed(*told);
                let free = told.free().min(allowed);
                let beside = (self.held - in_work).saturating_add(ahead.min(allowed - free));
                // What went back shall not come again.
                let beside = if self.stuck { beside } else { step_up(beside) };
                in_work.saturating_add(free).saturating_add(beside)
            }
        };
        wanted.clamp(u32::from(!self.pauses), self.max)
    }

    /// The same for a broker where a change takes another consumer: room for all workers, though they may be busy
    /// with what others brought.
    pub fn wanted_for_long(&self) -> u32 {
        if self.fixed.is_some() { self.wanted() } else { self.wanted().max(self.workers) }
    }

    fn ahead(&self) -> u32 {
        let ahead = self.demand.wanted().saturating_sub(self.workers);
        if self.stuck || self.stretch == 1 {
            return ahead;
        }
        let most_us = AHEAD_US.max(AHEAD_ROUND_TRIPS.saturating_mul(self.rtt_us));
        let most = self.demand.worked_off_in(most_us).unwrap_or(u32::MAX);
        ahead.max(1).saturating_mul(self.stretch).min(most).max(ahead)
    }

    /// The most it may ever be.
    pub(crate) fn most(&self) -> u32 {
        self.fixed.unwrap_or(self.max)
    }

    /// Whether `credit` is far enough from what is wanted to be worth a change; `cheap`: one method is all
    /// it takes.
    pub fn outgrown(&self, credit: u32, cheap: bool) -> bool {
        if cheap {
            let wanted = self.wanted();
            wanted > credit || wanted * 2 < credit
        } else {
            let wanted = self.wanted_for_long();
            wanted > credit || wanted * 4 < credit
        }
    }

    fn make_room(&mut self, now_us: u64) {
        if self.held > self.workers {
            self.grow(now_us, self.held);
        }
    }

    fn grow(&mut self, now_us: u64, least: u32) {
        let workers = least.max(self.workers * 2).min(self.max);
        if workers <= self.workers {
            return;
        }
        self.workers = workers;
        self.demand = Demand::new(now_us, workers);
        self.demand.set_rtt(self.rtt_us);
        for _ in 0..self.held.min(workers) {
            self.demand.started(now_us);
        }
    }
}

/// The next of 0, 1, 2, 3, 4, 6, 8, 12, 16, …: changes are worth telling the broker.
fn step_up(wanted: u32) -> u32 {
    if wanted == 0 {
        return 0;
    }
    let power = wanted.next_power_of_two();
    let between = power / 4 * 3;
    if wanted <= between { between } else { power }
}

#[cfg(test)]
mod tests;
