//! Workers around one source and one buffer.
//!
//! There is no task between a source and the workers: a worker that is idle and finds nothing in the buffer
//! asks the source itself. So a message changes hands once, and is asked for only by somebody who will work
//! on it. Workers who wait are woken by the source, or by one another
//! ([`Seats`](crate::seats::Seats)).
//!
//! Locks: that of the tuning, the source's, then the floor's. What came from a source is on the floor before the source is
//! let go, so messages arrive in their order.

mod controlled;
mod departure;
mod lessons;

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use forebay_flow::Occupancy;
use forebay_flow::explain::Mark;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use crate::ages::Ages;
use crate::concurrency::Concurrency;
use crate::dispatch::{Dispatch, Lane, Started};
use crate::floor::{Floor, Next};
use crate::handler::{Failure, Handler, caught};
use crate::item::Item;
use crate::needs::{Finding, Needs};
use crate::outcome::{Handled, Outcome, Step, Verdict};
use crate::policy::{Policy, conclude, is_done};
use crate::report::Counters;
use crate::running::Control;
use crate::source::{Receipt, Source, SourceError};
use crate::spans;
use crate::stretch::Stretch;
use crate::tuning::Tuning;

pub(crate) use controlled::Controlled;
pub(crate) use departure::Departure;

/// What does not change while it runs, or changes under a lock.
pub(crate) struct Stage<S: Source, H, N> {
    pub(crate) handler: H,
    onward: N,
    policy: Policy<S::Value>,
    begun: Instant,
    /// Until it has no more, or nothing more is wanted.
    source: Mutex<Option<S>>,
    floor: Mutex<Floor<S::Value>>,
    pub(crate) counters: Arc<Counters>,
    tuning: Tuning,
    /// What the breaker was told last was a failure.
    failing: AtomicBool,
    /// For workers who wait with a message: the breaker has closed, or the rate is another.
    sooner: Notify,
    /// Workers whose call has ended and who wait for room further on; or are cancelled there, with the pipeline.
    handing: AtomicUsize,
    stretch: Stretch,
    /// What the source knows of the workers.
    occupancy: Arc<Occupancy>,
    /// There is something for the supervisor to do.
    pub(crate) supervise: Notify,
    /// But for the workers.
    needs: Needs,
    /// Workers for which messages are counted there.
    workers_max: usize,
    /// Messages that may be held beyond it, more than are counted there.
    beyond: AtomicUsize,
    /// What its source has found wrong, each once.
    findings: Mutex<Vec<Finding>>,
    ages: Arc<Ages>,
    /// Pipelines that are its source.
    upstream: OnceLock<Vec<Control>>,
    /// Of its source, as of the last time it was told of workers.
    prefetch: Mutex<Option<u64>>,
    /// Messages that their source takes for later, until somebody sees them off; `None`: nobody does any more.
    departures: Mutex<Option<Vec<Departure<S::Value>>>>,
}

/// What came of an attempt.
pub(crate) struct Attempted<O> {
    result: Result<O, Failure>,
    /// How long it took, where somebody wants to know.
    took_us: Option<u64>,
    /// Where somebody wants one.
    span: Option<spans::Attempt>,
}

/// The work of an attempt, as its span has it if there is one.
async fn within<W: Future>(span: Option<&spans::Attempt>, work: W) -> W::Output {
    match span {
        None => work.await,
        Some(span) => span.around(work).await,
    }
}

/// Where values for batches go.
pub(crate) trait Onward<T, V>: Send + Sync + 'static {
    /// The future waits for room there.
    ///
    /// # Errors
    /// There is no such batcher.
    fn hand_on(
        &self,
        batcher: Option<&'static str>,
        value: V,
        item: Item<T>,
    ) -> Result<impl Future<Output = ()> + Send, String>;
}

/// There are no batches.
pub(crate) struct Nowhere;

impl<T: Send + Sync> Onward<T, Infallible> for Nowhere {
    fn hand_on(
        &self,
        _: Option<&'static str>,
        value: Infallible,
        _: Item<T>,
    ) -> Result<impl Future<Output = ()> + Send, String> {
        Ok(async move { match value {} })
    }
}

impl<S, H, N> Stage<S, H, N>
where
    S: Source,
    H: Handler<S::Value>,
    N: Onward<S::Value, <H::Output as Handled>::Value>,
{
    pub(crate) fn new(
        source: S,
        handler: H,
        onward: N,
        dispatch: Dispatch<Item<S::Value>>,
        concurrency: Concurrency,
        policy: Policy<S::Value>,
        needs: Needs,
    ) -> Arc<Stage<S, H, N>> {
        let concurrency_now = dispatch.concurrency();
        let tuning = Tuning::new(concurrency.tuner(dispatch.concurrency()));
        let mut floor = Floor::new(dispatch);
        floor.set_rate(policy.rate_per_s, 0);
        floor.breaker = policy.breaker;
        let (mut source, occupancy) = (source, Arc::new(Occupancy::default()));
        source.occupancy(&occupancy);
        let stage = Stage {
            handler,
            onward,
            policy,
            begun: Instant::now(),
            counters: Arc::default(),
            tuning,
            failing: AtomicBool::new(false),
            sooner: Notify::new(),
            handing: AtomicUsize::new(0),
            stretch: Stretch::new(),
            occupancy,
            source: Mutex::new(Some(source)),
            floor: Mutex::new(floor),
            supervise: Notify::new(),
            needs,
            workers_max: concurrency.most(),
            beyond: AtomicUsize::new(0),
            findings: Mutex::default(),
            ages: Arc::default(),
            upstream: OnceLock::new(),
            prefetch: Mutex::default(),
            departures: Mutex::new(Some(Vec::new())),
        };
        stage.count(&mut stage.floor());
        stage.tell(&mut stage.source(), stage.needs(concurrency_now));
        let upstream = stage.source().as_ref().map(Source::upstream);
        stage.upstream.get_or_init(|| upstream.unwrap_or_default());
        Arc::new(stage)
    }

    /// The next message for the worker in `seat`; `None`: it is not needed any more, and its seat is gone.
    pub(crate) fn poll_take(
        &self,
        seat: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Started<Item<S::Value>>>> {
        let mut floor = self.floor();
        floor.seats.here(seat);
        if let Some(next) = floor.next(seat, || self.now_us()) {
            return self.go(floor, next);
        }
        drop(floor);
        let mut source = self.source();
        let mut floor = self.floor();
        let mut over = None;
        loop {
            if let Some(next) = floor.next(seat, || self.now_us()) {
                // Counted before anybody else asks the source.
                let gone = self.go(floor, next);
                drop(source);
                return gone;
            }
            let may_start = floor.wants_more(|| self.now_us());
            let wanted = may_start || over != Some(false) && floor.dispatch.demand() > 0;
            let Some(asked) = source.as_mut().filter(|_| wanted) else {
                return self.wait(floor, seat, cx);
            };
            if !may_start && over.is_none() {
                // Its end may be known, which is no message.
                drop(floor);
                over = Some(asked.poll_over(cx).is_ready());
                floor = self.floor();
                continue;
            }
            floor.asks();
            drop(floor);
            let taken = asked.poll_next(cx);
            match taken {
                Poll::Ready(Ok(Some((value, receipt)))) => {
                    let lane = self.policy.ordered_by.as_ref().map(|lane_of| lane_of(&value));
                    let (counters, ages) = (self.counters.clone(), &self.ages);
                    let item = Item::new::<S>(value, receipt, counters, ages, &self.policy);
                    floor = self.floor();
                    floor.has_asked();
                    floor.dispatch.arrived(item, lane);
                    over = None;
                }
                Poll::Ready(last) => {
                    *source = None;
                    floor = self.floor();
                    floor.has_asked();
                    floor.error = last.err();
                    floor.exhausted = true;
                    floor.wake_all();
                }
                Poll::Pending => {
                    floor = self.floor();
                    floor.has_asked();
                    if let Some(next) = floor.next(seat, || self.now_us()) {
                        let gone = self.go(floor, next);
                        drop(source);
                        return gone;
                    }
                    return self.wait(floor, seat, cx);
                }
            }
        }
    }

    fn wait(
        &self,
        mut floor: MutexGuard<'_, Floor<S::Value>>,
        seat: usize,
        cx: &Context<'_>,
    ) -> Poll<Option<Started<Item<S::Value>>>> {
        floor.seats.wait(seat, cx.waker());
        // Nobody begins what came and waits for its key, nor anything while the rate does not let them.
        self.count(&mut floor);
        if floor.next_tick_us().is_some() {
            self.supervise.notify_one();
        }
        Poll::Pending
    }

    /// This worker will not look at the source for a while: somebody else should.
    fn go(
        &self,
        mut floor: MutexGuard<'_, Floor<S::Value>>,
        next: Next<S::Value>,
    ) -> Poll<Option<Started<Item<S::Value>>>> {
        let successor = floor.pass_on();
        self.count(&mut floor);
        drop(floor);
        if let Some(waker) = successor {
            waker.wake();
        }
        Poll::Ready(match next {
            Next::Start(started) => Some(started),
            Next::Leave => None,
        })
    }

    /// One attempt at a message, by the worker in `seat`.
    pub(crate) async fn attempt(&self, item: &Item<S::Value>, seat: usize) -> Attempted<H::Output> {
        self.stretch.after_others().await;
        let timed = S::Receipt::TIMED || self.tuning.is_on();
        let begun_us = timed.then(|| self.now_us());
        let begun = item.begin(seat);
        let described = self.policy.spans.as_ref().zip(item.described());
        let span = described.map(|(spans, described)| spans.begin(described, item.attempt()));
        let work =
            self.stretch.measured(item.number(), within(span.as_ref(), self.handler.handle(begun)));
        let result = match self.policy.timeout {
            None => work.await,
            Some(limit) => timeout(limit, work).await.unwrap_or(Err(Failure::TimedOut(limit))),
        };
        item.passed(Mark::Handled);
        let took_us = begun_us.map(|begun_us| self.now_us().saturating_sub(begun_us));
        if let Some(took_us) = took_us.filter(|_| S::Receipt::TIMED) {
            item.worked(Duration::from_micros(took_us));
        }
        Attempted { result, took_us, span }
    }

    /// A worker is done with what it took: settles it, hands it on, which may have to wait for room there, or
    /// puts it off. Returns what it has to try again itself, after a pause.
    pub(crate) async fn finish(
        &self,
        started: Started<Item<S::Value>>,
        attempted: Attempted<H::Output>,
    ) -> Option<Started<Item<S::Value>>> {
        let item = &started.message;
        let step = attempted.result.and_then(|output| {
            // An error tells what it is in code of its own.
            caught(|| output.handled())?.map_err(Failure::Error)
        });
        // Whether there is such a batcher is known before there is room.
        let mut handing = None;
        let decided = step.and_then(|step| match step {
            Step::Settle(outcome) => Ok(Some(outcome)),
            Step::Batch { batcher, value } => {
                let handed = self.onward.hand_on(batcher, value, item.handle());
                handing = Some(handed.map_err(Failure::Error)?);
                Ok(None)
            }
        });
        let span = attempted.span.as_ref();
        if let Some(span) = span {
            span.ended(decided.as_ref().err());
        }
        if let Some(failed) = self.policy.has_failed(item, &decided) {
            self.tell_breaker(failed);
        }
        self.learn(attempted.took_us, is_done(&decided));
        if let Some(handing) = handing {
            self.handing.fetch_add(1, Ordering::Relaxed);
            handing.await;
            self.handing.fetch_sub(1, Ordering::Relaxed);
        }
        let (outcome, reason) = match decided {
            Ok(outcome) => (outcome, None),
            Err(failure) => {
                self.counters.failed(&failure);
                let (then, attempt) = (self.policy.after(item), item.attempt());
                let last = !self.policy.is_settled(item) && !matches!(then, Outcome::Retry(_));
                let whole = self.policy.whole.as_ref().filter(|_| last);
                if whole.is_some_and(|whole| whole.comes_in_parts(item)) {
                    tracing::warn!(error = %failure, attempt, "a batch failed, and is worked on in halves");
                    (None, None)
                } else {
                    tracing::warn!(error = %failure, attempt, ?then, "a handler failed");
                    (Some(then), Some(failure.to_string()))
                }
            }
        };
        match outcome {
            Some(Outcome::Retry(pause)) if !self.policy.is_settled(item) && !item.is_void() => {
                return self.put_off(started, pause).await;
            }
            Some(outcome) => {
                // Before the lane's next may start, so that verdicts of a key come in its order.
                let reason = reason.as_deref().unwrap_or("its handler said so");
                let dead_letters = self.policy.dead_letters.as_ref();
                let buried = within(span, conclude(item, outcome, reason, dead_letters)).await;
                if let Some(buried) = buried.filter(|_| self.policy.breaks_by_default) {
                    self.tell_breaker(!buried);
                }
            }
            None => {}
        }
        self.done(started.lane);
        None
    }

    /// A worker does not begin what it took: it comes again.
    pub(crate) fn let_go(&self, started: Started<Item<S::Value>>) {
        let successor = self.floor().not_begun();
        successor.into_iter().for_each(Waker::wake);
        let Started { message, lane } = started;
        tracing::debug!(number = message.number(), "it comes again, and is not begun");
        message.settle(Verdict::Requeue);
        self.done(lane);
    }

    /// A worker is done with a message of this lane.
    fn done(&self, lane: Option<Lane>) {
        let mut floor = self.floor();
        floor.dispatch.finished(lane);
        self.count(&mut floor);
        if floor.over() {
            floor.wake_all();
        }
    }

    /// What so many workers need.
    fn needs(&self, workers: usize) -> Needs {
        let beyond = self.beyond.load(Ordering::Relaxed);
        let more = workers.saturating_sub(self.workers_max).saturating_add(beyond);
        let held_messages = self.needs.held_messages.saturating_add(more);
        Needs { workers, held_messages, ..self.needs }
    }

    /// Tells a source what is needed now, and the log what it finds wrong.
    fn tell(&self, source: &mut Option<S>, needs: Needs) {
        let Some(source) = source else { return };
        let found = source.needs(&needs);
        self.ages.watch(source.ack_timeout(), Instant::now());
        *self.prefetch.lock().unwrap_or_else(PoisonError::into_inner) = source.prefetch();
        found.into_iter().for_each(|finding| self.found(finding));
    }

    /// Something is wrong: each name is told once.
    fn found(&self, finding: Finding) {
        let mut findings = self.findings.lock().unwrap_or_else(PoisonError::into_inner);
        if findings.iter().all(|known| known.name != finding.name) {
            tracing::warn!(name = finding.name, "{}", finding.says);
            findings.push(finding);
        }
    }

    /// For the source, what its messages will find here.
    fn count(&self, floor: &mut Floor<S::Value>) {
        floor.tell(&self.occupancy, || self.now_us());
    }

    /// With the lock of the tuning held.
    fn resize(&self, concurrency: usize) {
        self.tell(&mut self.source(), self.needs(concurrency));
        let mut floor = self.floor();
        floor.dispatch.resize(concurrency);
        if self.policy.whole.is_some() {
            // As at the start: there is a place for the batch of each, and for what comes.
            floor.dispatch.make_room(concurrency.saturating_add(1));
        }
        self.count(&mut floor);
        floor.wake_all(); // those too many leave
        drop(floor);
        self.supervise.notify_one();
    }

    /// For another attempt.
    async fn put_off(
        &self,
        started: Started<Item<S::Value>>,
        pause: Duration,
    ) -> Option<Started<Item<S::Value>>> {
        self.counters.retried();
        started.message.put_off(pause);
        if let Some(whole) = &self.policy.whole {
            whole.put_off(&started.message, pause);
        }
        self.wait_for_later(started, pause).await
    }

    /// A seat for one more worker, if there should be one.
    pub(crate) fn hire(&self) -> Option<usize> {
        let mut floor = self.floor();
        let wanted = !floor.over() && floor.workers < floor.dispatch.concurrency();
        floor.workers += usize::from(wanted);
        wanted.then(|| floor.seats.sit())
    }

    /// Why the source ended if it failed.
    pub(crate) fn result(&self) -> Result<(), SourceError> {
        self.floor().error.take().map_or(Ok(()), Err)
    }

    /// When there is something for [`Stage::tick`].
    pub(crate) fn next_tick(&self) -> Option<Instant> {
        let due_us = self.floor().next_tick_us();
        let due = due_us.and_then(|due_us| self.instant(due_us));
        due.into_iter().chain(self.ages.look_at()).min()
    }

    fn instant(&self, at_us: u64) -> Option<Instant> {
        self.begun.checked_add(Duration::from_micros(at_us))
    }

    /// Time has passed.
    pub(crate) fn tick(&self) {
        let successor = {
            let mut floor = self.floor();
            let successor = floor.tick(self.now_us());
            self.count(&mut floor);
            successor
        };
        successor.into_iter().for_each(Waker::wake);
        if let Some(oldest) = self.ages.look(Instant::now()) {
            let needs = Needs { oldest: Some(oldest), ..self.needs(self.concurrency()) };
            self.tell(&mut self.source(), needs);
        }
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn source(&self) -> MutexGuard<'_, Option<S>> {
        self.source.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn floor(&self) -> MutexGuard<'_, Floor<S::Value>> {
        self.floor.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
