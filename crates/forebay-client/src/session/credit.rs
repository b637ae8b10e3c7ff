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
//!   credit    in work + free workers + parked + look-ahead
//! ```
//! All workers are busy and something waits here: it goes back, and the credit with it.

use forebay_flow::{Demand, Occupied};

use super::seen_workers::SeenWorkers;

/// Deliveries that a consumer holds at most unless told otherwise.
pub const CREDIT_MAX: u16 = 1000;
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
        self.demand.set_busy(occupied.busy);
        if occupied.stuck && self.demand.free() == 0 && self.fixed.is_none() {
            self.stuck = true;
            self.demand.give_up();
        }
        self.told = Some(occupied);
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
            self.demand.set_busy(told.busy);
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
                let beside = (self.held - in_work).saturating_add(ahead);
                // What went back shall not come again.
                let beside = if self.stuck { beside } else { step_up(beside) };
                in_work.saturating_add(told.free()).saturating_add(beside)
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
mod tests {
    use super::*;

    #[test]
    fn a_loop_that_settles_before_it_asks_is_one_worker() {
        let mut credit = Credit::new(0, 1, 1000, None);
        for turn in 0..100_u64 {
            let now_us = turn * 1_000_000;
            credit.started(now_us);
            credit.completed(now_us + 900_000, 900_000);
        }
        assert_eq!(credit.wanted(), 1, "a second of work hides any round trip");
    }

    #[test]
    fn thirteen_workers_with_long_jobs_hold_thirteen_messages() {
        let mut credit = Credit::new(0, 13, 1000, None);
        credit.set_rtt(200);
        for round in 0..5_u64 {
            for _ in 0..13 {
                credit.started(round * 1_000_000);
            }
            for _ in 0..13 {
                credit.completed(round * 1_000_000 + 500_000, 500_000);
            }
            assert_eq!(credit.wanted(), 13, "the fourteenth would wait behind a busy worker");
        }
    }

    /// Told of so many workers, of whom `busy` are at work with messages of this consumer or another.
    fn told(credit: &mut Credit, now_us: u64, workers: u32, busy: u32) {
        let turns = credit.told.map_or(0, |told| told.turns) + 1;
        credit.see(now_us, Occupied { workers, busy, turns, stuck: false });
    }

    #[test]
    fn who_counts_the_workers_is_given_one_for_each_that_is_free_beside_what_is_parked() {
        let mut credit = Credit::new(0, 1, 1000, None);
        told(&mut credit, 0, 25, 0);
        assert_eq!(credit.wanted(), 25);
        for busy in 0..25 {
            told(&mut credit, 0, 25, busy);
            credit.started(0);
            assert_eq!(
                credit.wanted(),
                25,
                "the one who took it is not free, though not counted yet"
            );
        }
        // One is put off, and its worker free: one more message, and none for asking.
        told(&mut credit, 0, 25, 24);
        assert_eq!(credit.wanted(), 26);
        credit.starved(0);
        assert_eq!(credit.wanted(), 26);
        // It goes on.
        told(&mut credit, 0, 25, 25);
        assert_eq!(credit.wanted(), 25);
        // There are fewer workers: nothing for those who are to leave.
        told(&mut credit, 0, 5, 25);
        assert_eq!(credit.wanted(), 25);
        for busy in (5..25).rev() {
            told(&mut credit, 0, 5, busy);
            credit.completed(0, 1_000);
            assert_eq!(credit.wanted(), credit.held());
        }
    }

    #[test]
    fn workers_that_are_busy_with_what_others_brought_are_not_free() {
        let mut credit = Credit::new(0, 1, 1000, None);
        told(&mut credit, 0, 25, 25);
        assert_eq!(credit.wanted(), 1, "0 would be without bound");
        credit.set_pauses(true);
        assert_eq!(credit.wanted(), 0);
        assert_eq!(credit.wanted_for_long(), 25);
        told(&mut credit, 0, 25, 20);
        credit.started(0);
        assert_eq!(credit.wanted(), 1 + 4);
    }

    #[test]
    fn what_waits_behind_the_counted_goes_back_however_they_became_busy() {
        let mut credit = Credit::new(0, 1, 1000, None);
        told(&mut credit, 0, 2, 1);
        assert_eq!(credit.next_hand_back_us(0), None);
        let look_us = credit.next_hand_back_us(1).unwrap();
        assert!(!credit.hand_back(look_us, 1), "the other worker will take it");
        assert!(credit.next_hand_back_us(1).unwrap() > look_us);
        told(&mut credit, look_us, 2, 2);
        let due_us = credit.next_hand_back_us(1).unwrap();
        assert!(credit.hand_back(due_us, 1));
        assert_eq!(credit.next_hand_back_us(0), None);
        assert_eq!(credit.next_hand_back_us(1), Some(0), "it was on its way");
        assert!(credit.hand_back(due_us + 1, 1));
        told(&mut credit, due_us + 2, 2, 1);
        assert!(credit.next_hand_back_us(1).unwrap() > due_us, "the free one will take it");
    }

    #[test]
    fn what_one_consumer_of_the_workers_found_the_others_know() {
        let (mut first, mut second) = (Credit::new(0, 1, 100, None), Credit::new(0, 1, 100, None));
        let busy = Occupied { workers: 2, busy: 2, turns: 7, stuck: false };
        first.see(0, busy);
        assert_eq!(first.stuck_turn(), None);
        assert!(first.hand_back(first.next_hand_back_us(1).unwrap(), 1));
        assert_eq!(first.stuck_turn(), Some(7));
        second.see(1_000_000, Occupied { stuck: true, ..busy });
        assert_eq!(second.next_hand_back_us(1), Some(0));
        assert!(second.hand_back(1_000_000, 1));
        second.see(1_000_001, Occupied { busy: 1, turns: 8, ..busy });
        assert_eq!(second.stuck_turn(), None);
        assert_eq!(second.wanted(), 1);
    }

    #[test]
    fn looking_ahead_for_fast_work_ends_with_it() {
        let mut credit = Credit::new(0, 1, 1000, None);
        credit.set_rtt(100);
        let mut now_us = 0;
        while now_us < 200_000 {
            credit.delivered(now_us, credit.wanted());
            credit.started(now_us);
            credit.completed(now_us, 50);
            credit.starved(now_us);
            now_us += 300;
        }
        assert!(credit.wanted() > 50, "{}", credit.wanted());
        for _ in 0..32 {
            credit.started(now_us);
            now_us += 1_000_000;
            credit.completed(now_us, 1_000_000);
        }
        assert_eq!(credit.wanted(), 1);
    }

    #[test]
    fn fast_work_over_a_long_line_looks_ahead() {
        let mut credit = Credit::new(0, 1, 1000, None);
        credit.set_rtt(10_000);
        credit.started(0);
        credit.completed(100, 100);
        assert!(credit.wanted() >= 100, "{}", credit.wanted());
    }

    #[test]
    fn whoever_collects_a_batch_never_stands_still() {
        let mut credit = Credit::new(0, 1, 1000, None);
        let mut held = 0;
        while held < 700 {
            let ready = credit.wanted() - held;
            for _ in 0..ready {
                credit.started(0);
                held += 1;
            }
            let before = credit.wanted();
            credit.starved(0);
            assert!(credit.wanted() > before || held >= 700, "stuck at {before}");
        }
    }

    #[test]
    fn workers_of_a_batch_are_forgotten_when_one_by_one_is_enough() {
        let mut credit = Credit::new(0, 2, 1000, None);
        for _ in 0..100 {
            credit.started(0);
            credit.starved(0);
        }
        assert!(credit.wanted() >= 100);
        for _ in 0..100 {
            credit.completed(500_000, 500_000);
        }
        assert!(credit.wanted() >= 100, "the next batch may come");
        let mut now_us = 500_000;
        for _ in 0..100 {
            credit.started(now_us);
            now_us += 200_000;
            credit.completed(now_us, 200_000);
        }
        assert_eq!(credit.wanted(), 2, "those it was told of");
    }

    #[test]
    fn credit_stays_within_its_bound() {
        let mut credit = Credit::new(0, 10, 50, None);
        credit.set_rtt(1_000_000);
        for _ in 0..200 {
            credit.started(0);
            credit.starved(0);
        }
        assert_eq!(credit.wanted(), 50);
        assert_eq!(Credit::new(0, 1, 1000, Some(7)).wanted(), 7);
    }

    #[test]
    fn a_worker_that_starves_while_the_credit_is_used_up_gets_more() {
        let mut credit = Credit::new(0, 1, 1000, None);
        credit.set_rtt(100);
        credit.started(0);
        credit.completed(50, 50);
        let before = credit.wanted();
        let mut now_us = 100;
        while now_us < 200_000 {
            credit.delivered(now_us, before);
            credit.starved(now_us);
            now_us += 300;
        }
        assert!(credit.wanted() > before);
    }
}
