//! A message on its way through a pipeline.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebay_flow::explain::{Detour, Mark};
use tokio::time::Instant;

use crate::ages::{Age, Ages};
use crate::outcome::Verdict;
use crate::policy::Policy;
use crate::report::Counters;
use crate::source::{Later, Leaving, Receipt, Source};
use crate::spans::Described;
use crate::trace::Trace;

/// A message, as handlers get it: what it carries by `Deref`, and a way to acknowledge it early.
///
/// The pipeline settles it when the handler has returned, failed or panicked. If the pipeline is dropped before
/// that, the message goes back to its source with the last `Item` of it.
pub struct Item<T> {
    inner: Arc<Inner<T>>,
}

/// One allocation for both, and no type parameter for the receipt in handlers' signatures.
struct Inner<T, R: ?Sized = dyn Slot<T>> {
    value: T,
    number: u64,
    attempt: AtomicU32,
    /// Not to be begun before.
    not_before: Option<Instant>,
    receipt: R,
}

/// A receipt until it is used.
trait Slot<T>: Send + Sync {
    /// False: it was used before.
    fn settle(&self, verdict: Verdict) -> bool;
    fn is_settled(&self) -> bool;
    /// It comes again, whatever is done about it.
    fn is_void(&self) -> bool;
    /// An attempt kept a worker busy.
    fn worked(&self, time: Duration);
    /// It passed a point of its way.
    fn passed(&self, mark: Mark);
    /// The worker in this seat took it.
    fn taken_by(&self, seat: usize);
    /// It is tried again after so long.
    fn put_off(&self, pause: Duration);
    /// It took a detour for so long.
    fn detoured(&self, detour: Detour, time: Duration);
    /// It is where dead letters go.
    fn buried(&self);
    /// Its source takes it for later, if it does.
    fn later(&self, value: &T, attempts: u32, pause: Duration) -> Option<Leaving>;
    /// Its source has taken it for later.
    fn left(&self);
    /// Its span, where somebody wants one.
    fn described(&self) -> Option<&Described>;
}

struct Unsettled<S: Source> {
    receipt: Mutex<Option<S::Receipt>>,
    age: Option<Age>,
    counters: Arc<Counters>,
    trace: Option<Box<Trace>>,
    described: Option<Box<Described>>,
}

impl<S: Source> Unsettled<S> {
    fn receipt(&self) -> MutexGuard<'_, Option<S::Receipt>> {
        self.receipt.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// With what follows for others of it.
    fn settle_and(&self, verdict: Verdict, then: impl FnOnce()) -> bool {
        let receipt = self.receipt().take();
        let Some(receipt) = receipt else { return false };
        self.counters.settled(verdict);
        then();
        if let Some(age) = &self.age {
            age.end();
        }
        receipt.settle(verdict);
        true
    }
}

impl<S: Source> Slot<S::Value> for Unsettled<S> {
    fn settle(&self, verdict: Verdict) -> bool {
        self.settle_and(verdict, || self.passed(Mark::Settled))
    }

    fn worked(&self, time: Duration) {
        if let Some(receipt) = &mut *self.receipt() {
            receipt.worked(time);
        }
    }

    fn passed(&self, mark: Mark) {
        if let Some(trace) = &self.trace {
            trace.passed(mark);
        }
    }

    fn taken_by(&self, seat: usize) {
        if let Some(trace) = &self.trace {
            trace.taken_by(seat);
        }
    }

    fn put_off(&self, pause: Duration) {
        if let Some(trace) = &self.trace {
            trace.put_off(pause);
        }
    }

    fn detoured(&self, detour: Detour, time: Duration) {
        if let Some(trace) = &self.trace {
            trace.detoured(detour, time);
        }
    }

    fn buried(&self) {
        if self.settle(Verdict::Ack) {
            self.counters.dead_lettered();
        }
    }

    fn later(&self, value: &S::Value, attempts: u32, pause: Duration) -> Option<Leaving> {
        let marks = self.trace.as_ref().map(|trace| trace.so_far());
        S::later(value, self.receipt().as_ref()?, Later { attempts, pause, marks })
    }

    fn left(&self) {
        // Its way goes on, and is told when it ends.
        if self.settle_and(Verdict::Ack, || ()) {
            self.counters.postponed();
        }
    }

    fn described(&self) -> Option<&Described> {
        self.described.as_deref()
    }

    fn is_settled(&self) -> bool {
        self.receipt().is_none()
    }

    fn is_void(&self) -> bool {
        self.receipt().as_ref().is_some_and(Receipt::is_void)
    }
}

impl<T> Item<T> {
    pub(crate) fn new<S: Source<Value = T>>(
        value: T,
        receipt: S::Receipt,
        counters: Arc<Counters>,
        ages: &Arc<Ages>,
        policy: &Policy<T>,
    ) -> Item<T> {
        let past = S::past(&value, &receipt);
        let not_before = past.rest.and_then(|rest| Instant::now().checked_add(rest));
        let retries = policy.retries.map_or(0, |backoff| backoff.retries());
        let anew = past.given_back && past.attempts >= retries;
        let before = if anew { 0 } else { past.attempts };
        let attempts = policy.whole.as_ref().map_or(before, |whole| whole.attempts(&value));
        let (number, attempt) = (counters.taken(), AtomicU32::new(attempts));
        let trace = policy.tracer.as_ref().and_then(|tracer| tracer.arrived(number, &value));
        let described = policy.spans.as_ref().map(|spans| spans.described(&value));
        let age = ages.begin(number, Instant::now);
        let receipt = Mutex::new(Some(receipt));
        let receipt: Unsettled<S> = Unsettled { receipt, age, counters, trace, described };
        Item { inner: Arc::new(Inner { value, number, attempt, not_before, receipt }) }
    }

    /// Which attempt this is: 1 for the first. A message that waited here and was never begun has had none. One that its source
    /// held since an earlier attempt, of whatever process, counts on.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.inner.attempt.load(Ordering::Relaxed)
    }

    /// Acknowledges now instead of after the handler: from here on it is done, whatever happens. False if that
    /// was said before.
    pub fn ack_now(&self) -> bool {
        self.settle(Verdict::Ack)
    }

    pub(crate) fn settle(&self, verdict: Verdict) -> bool {
        self.inner.receipt.settle(verdict)
    }

    /// An attempt kept a worker busy.
    pub(crate) fn worked(&self, time: Duration) {
        self.inner.receipt.worked(time);
    }

    pub(crate) fn buried(&self) {
        self.inner.receipt.buried();
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.inner.receipt.is_settled()
    }

    /// It comes again, whatever is done about it.
    pub(crate) fn is_void(&self) -> bool {
        self.inner.receipt.is_void()
    }

    /// It passed a point of its way.
    pub(crate) fn passed(&self, mark: Mark) {
        self.inner.receipt.passed(mark);
    }

    /// For how long it is not to be begun yet, if it came before its time.
    pub(crate) fn rest(&self) -> Option<Duration> {
        let rest = self.inner.not_before?.saturating_duration_since(Instant::now());
        (!rest.is_zero()).then_some(rest)
    }

    /// Its source takes it for later, if it does.
    pub(crate) fn later(&self, pause: Duration) -> Option<Leaving> {
        self.inner.receipt.later(&self.inner.value, self.attempt(), pause)
    }

    /// Its source has taken it for later.
    pub(crate) fn left(&self) {
        self.inner.receipt.left();
    }

    /// It is tried again after so long.
    pub(crate) fn put_off(&self, pause: Duration) {
        self.inner.receipt.put_off(pause);
    }

    /// It took a detour for so long.
    pub(crate) fn detoured(&self, detour: Detour, time: Duration) {
        self.inner.receipt.detoured(detour, time);
    }

    /// Its span, where somebody wants one.
    pub(crate) fn described(&self) -> Option<&Described> {
        self.inner.receipt.described()
    }

    /// The worker in `seat` begins.
    pub(crate) fn begin(&self, seat: usize) -> Item<T> {
        self.inner.receipt.taken_by(seat);
        self.inner.attempt.fetch_add(1, Ordering::Relaxed);
        self.handle()
    }

    /// The how-manieth message of its pipeline it is.
    pub(crate) fn number(&self) -> u64 {
        self.inner.number
    }

    /// Another handle to the same message. Not `Clone`: a copy that a handler kept would look like a message.
    pub(crate) fn handle(&self) -> Item<T> {
        Item { inner: self.inner.clone() }
    }
}

impl<T> Deref for Item<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner.value
    }
}

impl<T: fmt::Debug> fmt::Debug for Item<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Item").field(&self.inner.value).finish()
    }
}
