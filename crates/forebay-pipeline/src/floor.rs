//! What the workers of a stage share, under one lock. Times are microseconds of the stage's clock.

use std::collections::BTreeMap;
use std::task::Waker;

use forebay_flow::{NotYet, Occupancy, TokenBucket};

use crate::breaker::Breaker;
use crate::dispatch::{Dispatch, Started};
use crate::item::Item;
use crate::seats::Seats;
use crate::source::SourceError;

/// See the module's documentation.
pub(crate) struct Floor<T> {
    pub(crate) dispatch: Dispatch<Item<T>>,
    pub(crate) seats: Seats,
    pub(crate) workers: usize,
    /// The source has no more, or is not to be asked any more.
    pub(crate) exhausted: bool,
    /// Nobody works any more.
    closed: bool,
    /// A worker asks the source, and what it gets has a place here: one asks at a time.
    asking: bool,
    pub(crate) error: Option<SourceError>,
    rate: Option<Rate>,
    pub(crate) breaker: Option<Breaker>,
    /// Messages that wait for their next attempt, by its time and their number.
    put_off: BTreeMap<(u64, u64), Started<Item<T>>>,
}

/// How often a message may start.
struct Rate {
    per_s: u64,
    bucket: TokenBucket,
    /// Tokens that were taken for messages that have not been found yet, or did not begin: one at most for each worker.
    in_hand: u64,
    /// Nobody may start before.
    not_before_us: Option<u64>,
}

/// What a worker does next.
pub(crate) enum Next<T> {
    Start(Started<Item<T>>),
    Leave,
}

impl<T> Floor<T> {
    pub(crate) fn new(dispatch: Dispatch<Item<T>>) -> Floor<T> {
        Floor {
            dispatch,
            seats: Seats::default(),
            workers: 0,
            exhausted: false,
            closed: false,
            asking: false,
            error: None,
            rate: None,
            breaker: None,
            put_off: BTreeMap::new(),
        }
    }

    pub(crate) fn over(&self) -> bool {
        self.exhausted && self.dispatch.is_empty()
    }

    /// What the worker in `seat` does; `None`: nothing that is here.
    pub(crate) fn next(&mut self, seat: usize, now_us: impl Fn() -> u64) -> Option<Next<T>> {
        if self.workers > self.dispatch.concurrency() || self.over() {
            self.workers -= 1;
            self.seats.leave(seat);
            return Some(Next::Leave);
        }
        if !self.dispatch.has_ready() || !self.may_start(now_us) {
            return None;
        }
        self.spend();
        self.dispatch.take().map(Next::Start)
    }

    /// Whether a worker should ask the source: not before it may start what it gets.
    pub(crate) fn wants_more(&mut self, now_us: impl Fn() -> u64) -> bool {
        self.dispatch.demand() > 0 && self.may_start(now_us)
    }

    /// Who was told to ask does so now, without this lock.
    pub(crate) fn asks(&mut self) {
        self.asking = true;
    }

    /// It has its answer. One that panics has none, which ends the pipeline.
    pub(crate) fn has_asked(&mut self) {
        self.asking = false;
    }

    fn may_start(&mut self, now_us: impl Fn() -> u64) -> bool {
        if self.breaker.is_some_and(|breaker| breaker.is_open(now_us())) {
            return false;
        }
        let Some(rate) = &mut self.rate else { return true };
        if rate.in_hand == 0 {
            match rate.bucket.take(now_us(), 1) {
                Ok(()) => (rate.in_hand, rate.not_before_us) = (1, None),
                Err(NotYet { retry_us }) => rate.not_before_us = Some(retry_us),
            }
        }
        rate.in_hand > 0
    }

    /// Whether the breaker is open, as far as anybody has looked.
    pub(crate) fn is_broken(&self) -> bool {
        self.breaker.is_some_and(|breaker| breaker.open_until_us().is_some())
    }

    /// For the source, what its messages will find here.
    pub(crate) fn tell(&mut self, occupancy: &Occupancy, now_us: impl Fn() -> u64) {
        let of = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let admits = if self.is_broken() { 0 } else { self.dispatch.admits() };
        let (mut limit, mut limit_per_s) = (of(admits), 0);
        if let Some(rate) = &mut self.rate {
            // What is ready here comes before what comes.
            let tokens = rate.bucket.available(now_us()).saturating_add(rate.in_hand);
            let tokens =
                u32::try_from(tokens).unwrap_or(u32::MAX).saturating_sub(of(self.dispatch.ready()));
            limit = limit.min(tokens);
            limit_per_s =
                if admits == 0 { 0 } else { u32::try_from(rate.per_s).unwrap_or(u32::MAX) };
        }
        let busy = self.dispatch.busy() + self.dispatch.ready();
        occupancy.set_limited(of(self.dispatch.concurrency()), of(busy), limit, limit_per_s);
    }

    /// Everybody looks again. Wakers only schedule tasks, so the lock may be held.
    pub(crate) fn wake_all(&mut self) {
        self.seats.all().into_iter().for_each(Waker::wake);
    }

    /// If there is more to do and somebody idle, let him look.
    pub(crate) fn pass_on(&mut self) -> Option<Waker> {
        let held_back = self.rate.as_ref().is_some_and(|rate| rate.not_before_us.is_some());
        let asks = !self.exhausted && self.dispatch.demand() > 0;
        let wanted = !(held_back || self.is_broken()) && (asks || self.dispatch.has_ready());
        if wanted { self.seats.search() } else { None }
    }

    /// Whether a worker may go on with a message that it has; `Err`: when to ask again.
    pub(crate) fn go_on(&mut self, now_us: u64) -> Result<(), u64> {
        if self.may_start(|| now_us) {
            self.spend();
            return Ok(());
        }
        let open = self.breaker.filter(|breaker| breaker.is_open(now_us));
        let open_until_us = open.and_then(|breaker| breaker.open_until_us());
        let not_before_us = self.rate.as_ref().and_then(|rate| rate.not_before_us);
        Err(open_until_us.or(not_before_us).expect("who may not start knows when"))
    }

    /// A message starts.
    fn spend(&mut self) {
        if let Some(rate) = &mut self.rate {
            rate.in_hand = rate.in_hand.saturating_sub(1);
        }
    }

    /// It does not, though it was taken: another one may in its place. Whom to wake for that.
    pub(crate) fn not_begun(&mut self) -> Option<Waker> {
        let rate = self.rate.as_mut()?;
        rate.in_hand += 1;
        rate.not_before_us = None;
        self.pass_on()
    }

    /// Starts `per_s` messages a second, a tenth of them at once; `None`: as many as there are.
    pub(crate) fn set_rate(&mut self, per_s: Option<u64>, now_us: u64) {
        self.rate = per_s.map(|per_s| {
            let per_s = per_s.max(1);
            let burst = (per_s / 10).max(1);
            match self.rate.take() {
                // What was used up stays so: whoever sets it again and again gets no more by that.
                Some(mut rate) => {
                    rate.bucket.set_rate(now_us, per_s, burst);
                    Rate { per_s, not_before_us: None, ..rate }
                }
                None => {
                    let bucket = TokenBucket::new(now_us, per_s, burst);
                    Rate { per_s, bucket, in_hand: 0, not_before_us: None }
                }
            }
        });
        self.wake_all();
    }

    /// Messages that may start in a second, if that is limited.
    pub(crate) fn rate_per_s(&self) -> Option<u64> {
        self.rate.as_ref().map(|rate| rate.per_s)
    }

    /// Whether a worker may be done with a message for now: then it is counted here, until it is [held](Floor::hold) or
    /// [has left](Floor::left). `others_pass`: what comes finds a place yet, however many are put off.
    pub(crate) fn put_off(&mut self, others_pass: bool) -> bool {
        let room = self.dispatch.room() > usize::from(self.asking || others_pass);
        if room {
            self.dispatch.put_off();
        }
        room
    }

    /// A message that was put off waits here until `due_us`.
    pub(crate) fn hold(&mut self, started: Started<Item<T>>, due_us: u64) {
        // Otherwise it goes back to its source.
        if !self.closed {
            self.put_off.insert((due_us, started.message.number()), started);
        }
    }

    /// A message that was put off does not come again.
    pub(crate) fn left(&mut self) {
        if !self.closed {
            self.dispatch.left();
        }
    }

    /// When there is something for [`Floor::tick`].
    pub(crate) fn next_tick_us(&self) -> Option<u64> {
        let put_off = self.put_off.first_key_value().map(|((due_us, _), _)| *due_us);
        let rate = self.rate.as_ref().and_then(|rate| rate.not_before_us);
        let breaker = self.breaker.and_then(|breaker| breaker.open_until_us());
        put_off.into_iter().chain(rate).chain(breaker).min()
    }

    /// Time has passed: what was put off may start.
    pub(crate) fn tick(&mut self, now_us: u64) -> Option<Waker> {
        while let Some(first) = self.put_off.first_entry().filter(|first| first.key().0 <= now_us) {
            self.dispatch.again(first.remove());
        }
        if let Some(rate) = &mut self.rate {
            rate.not_before_us = rate.not_before_us.filter(|not_before_us| *not_before_us > now_us);
        }
        if let Some(breaker) = &mut self.breaker {
            breaker.tick(now_us);
        }
        self.pass_on()
    }

    /// Takes out all that waits, and lets nothing more wait.
    pub(crate) fn clear(&mut self) -> Vec<Item<T>> {
        self.closed = true;
        let put_off = std::mem::take(&mut self.put_off);
        let mut cleared = self.dispatch.clear();
        cleared.extend(put_off.into_values().map(|started| started.message));
        cleared
    }
}
