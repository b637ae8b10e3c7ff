//! How many messages a consumer wants to hold, and when it gives some back.
//!
//! ```text
//! med    median of the last 32 service times, known after as many completions as there are workers; one that
//!        was long enough to be stuck behind, max(10 med, 20 ms), forgets those before it
//! rtt    from an acknowledgement to the delivery that it makes room for
//! L      0 if rtt < med / 20, else ceil(workers * rtt / med) + ceil(workers / 4); at most 2 s of work
//! wanted workers + L, at most 5000
//! stuck  a message waits, and no worker has started or completed one for max(10 med, 20 ms), or for 20 ms where
//!        L is 0 and nothing should wait: give back what waits, wanted = workers until a completion
//! ```
//!
//! A message that waits here waits behind these workers, though others may be free: look-ahead is for
//! hiding the round trip and for nothing else. What is stuck is told by silence, not by a message's age,
//! which misjudges any mix of short and long work. A message is given back three times at most and then
//! kept, or consumers that are all stuck would hand it round for ever.
//!
//! One `Demand` per process and queue, however many consumers and workers share it: demand is counted once.

use crate::recent_median::RecentMedian;

/// Largest demand, in messages.
pub const WANTED_MAX: u32 = 5_000;
/// A message that was given back this often is kept.
pub const HAND_BACKS_MAX: u32 = 3;
/// Where a live consumer's prefetch cannot change, it is replaced at most this often.
pub const RECONSUME_INTERVAL_US: u64 = 5_000_000;

const SERVICE_TIMES: usize = 32;
const LOOK_AHEAD_MAX_US: u64 = 2_000_000;
const STUCK_MIN_US: u64 = 20_000;

/// Workers of one process on one queue, and what they need. Times are microseconds of the caller's clock.
#[derive(Debug)]
pub struct Demand {
    workers: u32,
    busy: u32, // more than `workers` while some of those that were too many still work
    service: RecentMedian,
    completions: u32, // up to `workers`
    rtt_us: u64,
    progress_us: u64,  // last start or completion
    handed_back: bool, // and nothing completed since
}

impl Demand {
    /// # Panics
    /// If there is no worker.
    #[must_use]
    pub fn new(now_us: u64, workers: u32) -> Demand {
        assert!(workers > 0, "a consumer without workers");
        Demand {
            workers,
            busy: 0,
            service: RecentMedian::new(SERVICE_TIMES),
            completions: 0,
            rtt_us: 0,
            progress_us: now_us,
            handed_back: false,
        }
    }

    /// The time from an acknowledgement to the delivery that it makes room for, or the network's round trip.
    pub fn set_rtt(&mut self, rtt_us: u64) {
        self.rtt_us = rtt_us;
    }

    /// From now on so many workers. Those too many finish what they have.
    ///
    /// # Panics
    /// If that is none.
    pub fn set_workers(&mut self, workers: u32) {
        assert!(workers > 0, "a consumer without workers");
        self.workers = workers;
        self.completions = self.completions.min(workers);
    }

    /// So many workers are busy, from somebody who counts them and calls neither [`Demand::started`] nor
    /// [`Demand::completed`]; more than there are count as all.
    pub fn set_busy(&mut self, busy: u32) {
        self.busy = busy.min(self.workers);
    }

    /// The same somebody: a worker began or ended something, or nothing waits behind them.
    pub fn progressed(&mut self, now_us: u64) {
        self.progress_us = self.progress_us.max(now_us);
    }

    /// The same somebody: a worker was at a message for `service_us`.
    pub fn served(&mut self, now_us: u64, service_us: u64) {
        self.completions = (self.completions + 1).min(self.workers);
        if self.service.get().is_some_and(|median_us| service_us >= long_us(median_us)) {
            // Work has changed, or may have: three short ones are believed again, and until then nothing waits behind long ones.
            self.service = RecentMedian::new(SERVICE_TIMES);
        }
        self.service.add(service_us);
        self.progressed(now_us);
        self.handed_back = false;
    }

    /// The same somebody: what waits has to go back, as another consumer of theirs has found.
    pub fn give_up(&mut self) {
        self.handed_back = true;
    }

    /// The same somebody: what was given back may be asked for again.
    pub fn go_on(&mut self) {
        self.handed_back = false;
    }

    /// A worker took a message.
    ///
    /// # Panics
    /// If all workers are busy.
    pub fn started(&mut self, now_us: u64) {
        assert!(self.busy < self.workers, "{} workers are busy already", self.workers);
        self.busy += 1;
        self.progress_us = now_us;
    }

    /// A worker finished its message after `service_us`.
    ///
    /// # Panics
    /// If no worker is busy.
    pub fn completed(&mut self, now_us: u64, service_us: u64) {
        self.busy = self.busy.checked_sub(1).expect("who completes has started");
        self.served(now_us, service_us);
    }

    /// Workers that have no message.
    #[must_use]
    pub fn free(&self) -> u32 {
        self.workers.saturating_sub(self.busy)
    }

    /// Messages to hold, in work and waiting together: the prefetch.
    #[must_use]
    pub fn wanted(&self) -> u32 {
        let look_ahead = if self.handed_back { 0 } else { self.look_ahead() };
        self.workers.saturating_add(look_ahead).min(WANTED_MAX.max(self.workers))
    }

    /// Whether `prefetch` is so far from the demand that replacing the consumer is worth it, on brokers where
    /// a live one's prefetch cannot change. Leave [`RECONSUME_INTERVAL_US`] between two replacements.
    #[must_use]
    pub fn outgrown(&self, prefetch: u32) -> bool {
        let wanted = u64::from(self.wanted());
        wanted * 2 < u64::from(prefetch) || wanted > 2 * u64::from(prefetch)
    }

    /// Whether the `waiting` messages should go back now; if so, return those that [`may_hand_back`].
    /// True once, until a worker completes.
    pub fn hand_back(&mut self, now_us: u64, waiting: usize) -> bool {
        let stuck = self.next_hand_back_us(waiting).is_some_and(|due_us| due_us <= now_us);
        self.handed_back |= stuck;
        stuck
    }

    /// When [`Demand::hand_back`] would say so if nothing happens before.
    #[must_use]
    pub fn next_hand_back_us(&self, waiting: usize) -> Option<u64> {
        let possible = waiting > 0 && self.free() == 0 && !self.handed_back;
        possible.then(|| self.stuck_us())
    }

    /// When there has been no progress for so long that what waits is stuck.
    #[must_use]
    pub fn stuck_us(&self) -> u64 {
        let median_us = self.service.get().filter(|_| self.look_ahead() > 0).unwrap_or(0);
        self.progress_us.saturating_add(long_us(median_us))
    }

    /// Whether what waited was given back, and no worker has completed one since.
    #[must_use]
    pub fn has_handed_back(&self) -> bool {
        self.handed_back
    }

    /// Messages that the workers are done with in `time_us`; `None`: not known yet.
    #[must_use]
    pub fn worked_off_in(&self, time_us: u64) -> Option<u32> {
        let median_us = self.service.get()?.max(1);
        let messages = u64::from(self.workers).saturating_mul(time_us) / median_us;
        Some(u32::try_from(messages).unwrap_or(u32::MAX))
    }

    fn look_ahead(&self) -> u32 {
        let Some(median_us) = self.service.get().filter(|_| self.completions >= self.workers)
        else {
            return 0;
        };
        let (median_us, workers) = (median_us.max(1), u64::from(self.workers));
        if self.rtt_us < median_us / 20 {
            return 0;
        }
        let hides_rtt = (workers.saturating_mul(self.rtt_us)).div_ceil(median_us);
        let most = workers.saturating_mul(LOOK_AHEAD_MAX_US) / median_us;
        let look_ahead = hides_rtt.saturating_add(workers.div_ceil(4)).min(most);
        u32::try_from(look_ahead).unwrap_or(u32::MAX)
    }
}

/// From when on work is so long that nothing should wait behind it.
fn long_us(median_us: u64) -> u64 {
    median_us.saturating_mul(10).max(STUCK_MIN_US)
}

/// Whether a message that was given back `times` times already may be given back once more.
#[must_use]
pub fn may_hand_back(times: u32) -> bool {
    times < HAND_BACKS_MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// `workers` workers that have each done one message of `service_us`.
    fn busy(workers: u32, service_us: u64, rtt_us: u64) -> Demand {
        let mut demand = Demand::new(0, workers);
        demand.set_rtt(rtt_us);
        for _ in 0..workers {
            demand.started(0);
            demand.completed(service_us, service_us);
        }
        demand
    }

    #[test]
    fn look_ahead_hides_the_round_trip_and_no_more() {
        assert_eq!(Demand::new(0, 4).wanted(), 4);
        assert_eq!(busy(4, 10_000, 200).wanted(), 4);
        assert_eq!(busy(4, 1_000, 10_000).wanted(), 4 + 40 + 1);
        assert_eq!(busy(4, 1, 100_000).wanted(), WANTED_MAX);
        assert_eq!(busy(4, 1_500_000, 60_000_000).wanted(), 4 + 5); // 2 s of work
        assert_eq!(busy(6_000, 1, 100_000).wanted(), 6_000);
    }

    #[test]
    fn what_waits_behind_a_stuck_worker_goes_back_once() {
        let mut demand = busy(1, 1_000, 10_000);
        demand.started(5_000);
        assert_eq!(demand.next_hand_back_us(0), None);
        assert_eq!(demand.next_hand_back_us(3), Some(25_000));
        assert!(!demand.hand_back(24_999, 3));
        assert!(demand.hand_back(25_000, 3));
        assert_eq!(demand.wanted(), 1);
        assert!(!demand.hand_back(90_000, 3));
        demand.completed(95_000, 90_000);
        assert!(demand.wanted() > 1);
    }

    #[test]
    fn behind_the_first_long_work_nothing_is_taken_ahead_until_some_is_short_again() {
        let mut demand = busy(1, 1_000, 10_000);
        for _ in 0..SERVICE_TIMES {
            demand.served(1_000, 1_000);
        }
        let short = demand.wanted();
        assert!(short > 1);
        demand.started(1_000);
        demand.completed(20_001_000, 20_000_000);
        assert_eq!(demand.wanted(), 1);
        for _ in 0..2 {
            demand.started(20_001_000);
            demand.completed(20_002_000, 1_000);
        }
        assert_eq!(demand.wanted(), short);
    }

    #[test]
    fn workers_too_many_finish_what_they_have_and_start_nothing() {
        let mut demand = Demand::new(0, 5);
        for _ in 0..5 {
            demand.started(0);
        }
        demand.set_workers(2);
        for free in [0, 0, 0, 1, 2] {
            assert!(free > 0 || demand.next_hand_back_us(1).is_some(), "all are busy");
            demand.completed(0, 1_000);
            assert_eq!(demand.free(), free);
        }
        assert_eq!(demand.wanted(), 2);
    }

    proptest! {
        #[test]
        fn free_are_those_who_have_nothing_however_many_there_are_to_be(
            steps in prop::collection::vec((0..3u8, 1..8u32), 1..100),
        ) {
            let (mut demand, mut workers, mut busy) = (Demand::new(0, 4), 4, 0u32);
            for (step, count) in steps {
                match step {
                    0 if busy < workers => {
                        busy += 1;
                        demand.started(0);
                    }
                    1 if busy > 0 => {
                        busy -= 1;
                        demand.completed(0, 1_000);
                    }
                    2 => {
                        workers = count;
                        demand.set_workers(workers);
                    }
                    _ => {}
                }
                prop_assert_eq!(demand.free(), workers.saturating_sub(busy));
                prop_assert_eq!(demand.next_hand_back_us(1).is_some(), busy >= workers);
            }
        }
    }

    #[test]
    fn a_consumer_is_replaced_only_far_from_its_demand() {
        let demand = busy(4, 10_000, 0);
        assert!(!demand.outgrown(4) && !demand.outgrown(8) && !demand.outgrown(2));
        assert!(demand.outgrown(9) && demand.outgrown(1));
    }
}
