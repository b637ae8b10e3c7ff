//! Workers around one source and one buffer.
//!
//! There is no task between a source and the workers: a worker that is idle and finds nothing in the buffer
//! asks the source itself. So a message changes hands once, and is asked for only by somebody who will work
//! on it. Workers who wait are woken by the source, or by one another ([`Seats`]).
//!
//! Locks: the source's, then the floor's. What came from a source is on the floor before the source is
//! let go, so messages arrive in their order.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::sync::Notify;

use crate::dispatch::{Dispatch, Lane, Started};
use crate::handler::{Handler, Panicked};
use crate::item::Item;
use crate::outcome::{Handled, Outcome, Step};
use crate::report::{Counters, Report};
use crate::seats::Seats;
use crate::source::{Source, SourceError};

/// Finds a value's lane.
pub(crate) type LaneOf<T> = Box<dyn Fn(&T) -> Lane + Send + Sync>;

/// What does not change while it runs, or changes under a lock.
pub(crate) struct Stage<S: Source, H, N> {
    pub(crate) handler: H,
    onward: N,
    ordered_by: Option<LaneOf<S::Value>>,
    on_failure: Outcome,
    /// Until it has no more, or nothing more is wanted.
    source: Mutex<Option<S>>,
    floor: Mutex<Floor<S::Value>>,
    pub(crate) counters: Arc<Counters>,
    /// There is something for the supervisor to do.
    pub(crate) supervise: Notify,
}

/// Where values for batches go.
pub(crate) trait Onward<T, V>: Send + Sync + 'static {
    /// Waits for room there.
    ///
    /// # Errors
    /// There is no such batcher.
    fn hand_on(
        &self,
        batcher: Option<&'static str>,
        value: V,
        item: Item<T>,
    ) -> impl Future<Output = Result<(), String>> + Send;
}

/// There are no batches.
pub(crate) struct Nowhere;

impl<T: Send + Sync> Onward<T, Infallible> for Nowhere {
    async fn hand_on(
        &self,
        _: Option<&'static str>,
        value: Infallible,
        _: Item<T>,
    ) -> Result<(), String> {
        match value {}
    }
}

/// What all workers share.
struct Floor<T> {
    dispatch: Dispatch<Item<T>>,
    seats: Seats,
    workers: usize,
    /// The source has no more, or is not to be asked any more.
    exhausted: bool,
    error: Option<SourceError>,
}

impl<T> Floor<T> {
    fn over(&self) -> bool {
        self.exhausted && self.dispatch.is_empty()
    }

    /// What a worker does next; `None`: nothing that is here.
    fn next(&mut self, seat: usize) -> Option<Next<T>> {
        if self.workers > self.dispatch.concurrency() || self.over() {
            self.workers -= 1;
            self.seats.leave(seat);
            return Some(Next::Leave);
        }
        self.dispatch.take().map(Next::Start)
    }

    /// Everybody looks again. Wakers only schedule tasks, so the lock may be held.
    fn wake_all(&mut self) {
        self.seats.all().into_iter().for_each(Waker::wake);
    }

    /// If there is more to take and somebody idle, let him look.
    fn pass_on(&mut self) -> Option<Waker> {
        let wanted = !self.exhausted && self.dispatch.demand() > 0;
        if wanted { self.seats.search() } else { None }
    }
}

enum Next<T> {
    Start(Started<Item<T>>),
    Leave,
}

impl<S, H, N> Stage<S, H, N>
where
    S: Source,
    H: Handler<S::Value>,
    N: Onward<S::Value, <H::Output as Handled>::Value>,
{
    pub(crate) fn new(
        mut source: S,
        handler: H,
        onward: N,
        dispatch: Dispatch<Item<S::Value>>,
        ordered_by: Option<LaneOf<S::Value>>,
        on_failure: Outcome,
    ) -> Arc<Stage<S, H, N>> {
        source.workers(dispatch.concurrency());
        let floor =
            Floor { dispatch, seats: Seats::default(), workers: 0, exhausted: false, error: None };
        Arc::new(Stage {
            handler,
            onward,
            ordered_by,
            on_failure,
            counters: Arc::default(),
            source: Mutex::new(Some(source)),
            floor: Mutex::new(floor),
            supervise: Notify::new(),
        })
    }

    /// The next message for the worker in `seat`; `None`: it is not needed any more, and its seat is gone.
    pub(crate) fn poll_take(
        &self,
        seat: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Started<Item<S::Value>>>> {
        let mut floor = self.floor();
        floor.seats.here(seat);
        if let Some(next) = floor.next(seat) {
            return Self::go(floor, next);
        }
        drop(floor);
        let mut source = self.source();
        let mut floor = self.floor();
        loop {
            if let Some(next) = floor.next(seat) {
                drop(source);
                return Self::go(floor, next);
            }
            let wanted = floor.dispatch.demand() > 0;
            let Some(asked) = source.as_mut().filter(|_| wanted) else {
                floor.seats.wait(seat, cx.waker());
                return Poll::Pending;
            };
            drop(floor);
            let taken = asked.poll_next(cx);
            match taken {
                Poll::Ready(Ok(Some((value, receipt)))) => {
                    let lane = self.ordered_by.as_ref().map(|lane_of| lane_of(&value));
                    let item = Item::new(value, receipt, self.counters.clone());
                    self.counters.taken();
                    floor = self.floor();
                    floor.dispatch.arrived(item, lane);
                }
                Poll::Ready(last) => {
                    *source = None;
                    floor = self.floor();
                    floor.error = last.err();
                    floor.exhausted = true;
                    floor.wake_all();
                }
                Poll::Pending => {
                    floor = self.floor();
                    if let Some(next) = floor.next(seat) {
                        drop(source);
                        return Self::go(floor, next);
                    }
                    floor.seats.wait(seat, cx.waker());
                    return Poll::Pending;
                }
            }
        }
    }

    /// This worker will not look at the source for a while: somebody else should.
    fn go(
        mut floor: MutexGuard<'_, Floor<S::Value>>,
        next: Next<S::Value>,
    ) -> Poll<Option<Started<Item<S::Value>>>> {
        let successor = floor.pass_on();
        drop(floor);
        if let Some(waker) = successor {
            waker.wake();
        }
        Poll::Ready(match next {
            Next::Start(started) => Some(started),
            Next::Leave => None,
        })
    }

    /// A worker is done with what it took: settles it, or hands it on, which may have to wait for room there.
    pub(crate) async fn finish(
        &self,
        started: Started<Item<S::Value>>,
        result: Result<H::Output, Panicked>,
    ) {
        let Started { message, lane } = started;
        let panicked = result.is_err();
        let result = result.map_err(|panic| format!("panicked: {}", panic.0));
        let step = result.and_then(Handled::handled);
        // Before the lane's next may start, so that verdicts of a key come in its order.
        let result = match step {
            Ok(Step::Settle(outcome)) => {
                message.settle(outcome.verdict());
                Ok(())
            }
            Ok(Step::Batch { batcher, value }) => {
                self.onward.hand_on(batcher, value, message.handle()).await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = result {
            tracing::warn!(error, then = ?self.on_failure, "a handler failed");
            self.counters.failed(panicked);
            message.settle(self.on_failure.verdict());
        }
        let mut floor = self.floor();
        floor.dispatch.finished(lane);
        if floor.over() {
            floor.wake_all();
        }
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

    fn source(&self) -> MutexGuard<'_, Option<S>> {
        self.source.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn floor(&self) -> MutexGuard<'_, Floor<S::Value>> {
        self.floor.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What can be done to a stage from outside, whatever its types.
pub(crate) trait Controlled: Send + Sync {
    fn resize(&self, concurrency: usize);
    fn stop(&self);
    /// The supervisor looks at its deadline again.
    fn look(&self);
    /// Nobody works any more: what was not begun goes back, though a [`Control`](crate::Control) may live on.
    fn close(&self);
    fn report(&self) -> Report;
}

impl<S, H, N> Controlled for Stage<S, H, N>
where
    S: Source,
    H: Handler<S::Value>,
    N: Onward<S::Value, <H::Output as Handled>::Value>,
{
    fn resize(&self, concurrency: usize) {
        let concurrency = concurrency.max(1);
        if let Some(source) = &mut *self.source() {
            source.workers(concurrency);
        }
        let mut floor = self.floor();
        floor.dispatch.resize(concurrency);
        floor.wake_all(); // those too many leave
        drop(floor);
        self.supervise.notify_one();
    }

    fn stop(&self) {
        *self.source() = None;
        let mut floor = self.floor();
        floor.exhausted = true;
        floor.wake_all();
        drop(floor);
        self.supervise.notify_one();
    }

    fn look(&self) {
        self.supervise.notify_one();
    }

    fn close(&self) {
        *self.source() = None;
        let mut floor = self.floor();
        floor.exhausted = true;
        let given_up = floor.dispatch.clear();
        drop(floor);
        drop(given_up);
    }

    fn report(&self) -> Report {
        self.counters.report()
    }
}
