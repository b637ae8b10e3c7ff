//! How many deliveries a consumer may hold, from how it is used.
//!
//! ```text
//!   workers   those it was told of, or as many as were seen to hold a message and ask for another
//!   credit    workers + look-ahead (forebay-flow's Demand; that part rounded up to a few steps)
//!   starved   a worker asked, nothing was there, and the credit had been used up: look further ahead
//! ```
//! Asking for a message is the one sign of a free worker that cannot lie, so whoever collects a batch
//! before settling it never stands still, whatever the credit was.

use forebay_flow::Demand;

/// Deliveries that a consumer holds at most unless told otherwise.
pub const CREDIT_MAX: u16 = 1000;
/// What starving may multiply the look-ahead by.
const STRETCH_MAX: u32 = 64;
/// Time over which starving is added up.
const STARVED_ROUND_US: u64 = 20_000;
/// A longer gap says that the queue was empty.
const GAP_SLACK_US: u64 = 2_000;

/// One consumer's credit, also for those who drive a [machine](crate::machine) themselves. Times are microseconds of the caller's clock.
#[derive(Debug)]
pub struct Credit {
    demand: Demand,
    workers: u32,
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
}

impl Credit {
    /// For `workers` at once (at least 1); `fixed` sets the credit by hand.
    pub fn new(now_us: u64, workers: u32, max: u32, fixed: Option<u32>) -> Credit {
        let max = max.max(1);
        let workers = workers.clamp(1, max);
        Credit {
            demand: Demand::new(now_us, workers),
            workers,
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
        }
    }

    /// The connection is another one: nothing is in work as far as the broker knows.
    pub fn restart(&mut self, now_us: u64) {
        *self = Credit::new(now_us, self.workers, self.max, self.fixed);
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
        self.make_room(now_us);
        if self.demand.free() > 0 {
            self.demand.started(now_us);
        }
    }

    /// A worker is done with one after `service_us`.
    pub fn completed(&mut self, now_us: u64, service_us: u64) {
        self.held = self.held.saturating_sub(1);
        self.stuck = false;
        if self.demand.free() < self.workers {
            self.demand.completed(now_us, service_us);
        }
    }

    /// A worker asks, and there is nothing for it.
    pub fn starved(&mut self, now_us: u64) {
        if self.held >= self.workers {
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
        self.stuck |= stuck;
        stuck || late
    }

    /// When [`Credit::hand_back`] would say so if nothing happens before.
    pub fn next_hand_back_us(&self, waiting: usize) -> Option<u64> {
        let late_us = self.next_late_us(waiting);
        late_us.or_else(|| self.fixed.is_none().then(|| self.demand.next_hand_back_us(waiting))?)
    }

    /// At once, for what was on its way here when the others went back.
    fn next_late_us(&self, waiting: usize) -> Option<u64> {
        (self.stuck && waiting > 0 && self.held >= self.workers).then_some(0)
    }

    /// Deliveries to hold at a time, in work and waiting together.
    pub fn wanted(&self) -> u32 {
        if let Some(fixed) = self.fixed {
            return fixed;
        }
        let ahead = self.demand.wanted().saturating_sub(self.workers);
        let ahead = if ahead == 0 && self.stretch > 1 && !self.stuck { 1 } else { ahead };
        // Workers are not rounded: what is held beyond them without need waits while others may be free.
        self.workers.saturating_add(step_up(ahead.saturating_mul(self.stretch))).min(self.max)
    }

    /// The most it may ever be.
    pub(crate) fn most(&self) -> u32 {
        self.fixed.unwrap_or(self.max)
    }

    /// Whether `credit` is far enough from what is wanted to be worth a change; `cheap`: one method is all
    /// it takes.
    pub fn outgrown(&self, credit: u32, cheap: bool) -> bool {
        let wanted = self.wanted();
        if cheap {
            wanted > credit || wanted * 2 < credit
        } else {
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
