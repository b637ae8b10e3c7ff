//! Marks on some of a pipeline's messages, for those who ask where their time goes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_flow::explain::{Explanation, Mark, Marks};
use tokio::time::Instant;

/// Finds when a message was offered to its publisher: microseconds since 1970.
type OfferedUs<T> = Box<dyn Fn(&T) -> Option<u64> + Send + Sync>;

/// Which messages are marked, and what they add up to.
pub(crate) struct Tracer<T> {
    /// One in so many.
    every: u64,
    offered_us: OfferedUs<T>,
    clock: Arc<Clock>,
}

/// Microseconds since 1970 that never go back: the system's clock was asked once.
struct Clock {
    begun: Instant,
    begun_us: u64,
    explanation: Mutex<Explanation>,
}

impl Clock {
    fn now_us(&self) -> u64 {
        let elapsed_us = u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.begun_us.saturating_add(elapsed_us)
    }

    fn explanation(&self) -> std::sync::MutexGuard<'_, Explanation> {
        self.explanation.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Tracer<T> {
    pub(crate) fn new(every: u64, offered_us: OfferedUs<T>) -> Tracer<T> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let begun_us = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
        let explanation = Mutex::default();
        let clock = Arc::new(Clock { begun: Instant::now(), begun_us, explanation });
        Tracer { every: every.max(1), offered_us, clock }
    }

    /// The marks of message number `number`, which has arrived, if it gets any.
    pub(crate) fn arrived(&self, number: u64, value: &T) -> Option<Box<Trace>> {
        if !number.is_multiple_of(self.every) {
            return None;
        }
        let mut marks = Marks::new().with(Mark::Delivered, self.clock.now_us());
        if let Some(offered_us) = (self.offered_us)(value) {
            marks.passed(Mark::Offered, offered_us);
        }
        Some(Box::new(Trace { marks: Mutex::new(marks), clock: self.clock.clone() }))
    }

    pub(crate) fn explanation(&self) -> Explanation {
        self.clock.explanation().clone()
    }
}

/// The marks of one message.
pub(crate) struct Trace {
    marks: Mutex<Marks>,
    clock: Arc<Clock>,
}

impl Trace {
    pub(crate) fn passed(&self, mark: Mark) {
        let mut marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        marks.passed(mark, self.clock.now_us());
        if mark == Mark::Settled {
            self.clock.explanation().add(&marks);
        }
    }
}
