//! Marks on some of a pipeline's messages, for those who ask where their time goes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_flow::explain::{Explanation, Mark, Marks};
use tokio::time::Instant;

/// Finds the marks with which a message comes: microseconds since 1970.
type MarksOf<T> = Box<dyn Fn(&T) -> Marks + Send + Sync>;

/// Which messages are marked, and what they add up to.
pub(crate) struct Tracer<T> {
    /// One in so many of those that their publishers did not mark.
    every: u64,
    marks_of: MarksOf<T>,
    explained: Arc<Mutex<Explained>>,
}

struct Explained {
    /// Messages that their publishers marked: all their way.
    whole: Explanation,
    /// The others.
    here: Explanation,
}

impl<T> Tracer<T> {
    pub(crate) fn new(every: u64, marks_of: MarksOf<T>) -> Tracer<T> {
        let nothing = Explanation::since(since_1970_us());
        let explained = Explained { whole: nothing.clone(), here: nothing };
        Tracer { every: every.max(1), marks_of, explained: Arc::new(Mutex::new(explained)) }
    }

    /// The marks of message number `number`, which has arrived, if it gets any.
    pub(crate) fn arrived(&self, number: u64, value: &T) -> Option<Box<Trace>> {
        let mut marks = (self.marks_of)(value);
        let chosen = marks.at_us(Mark::Offered).is_some() || number.is_multiple_of(self.every);
        if !chosen {
            return None;
        }
        let arrived_us = since_1970_us();
        if marks.at_us(Mark::Delivered).is_none() {
            marks.passed(Mark::Delivered, arrived_us);
        }
        let explained = self.explained.clone();
        let (marks, arrived) = (Mutex::new(marks), Instant::now());
        Some(Box::new(Trace { marks, arrived, arrived_us, explained }))
    }

    pub(crate) fn explanation(&self) -> Explanation {
        let Explained { whole, here } = &*lock(&self.explained);
        if whole.messages() > 0 { whole.clone() } else { here.clone() }
    }
}

/// The marks of one message. The system's clock was asked when it arrived, so that time does not go back from there.
pub(crate) struct Trace {
    marks: Mutex<Marks>,
    arrived: Instant,
    /// Microseconds since 1970.
    arrived_us: u64,
    explained: Arc<Mutex<Explained>>,
}

impl Trace {
    pub(crate) fn passed(&self, mark: Mark) {
        let after_us = u64::try_from(self.arrived.elapsed().as_micros()).unwrap_or(u64::MAX);
        let mut marks = lock(&self.marks);
        marks.passed(mark, self.arrived_us.saturating_add(after_us));
        if mark == Mark::Settled {
            let mut explained = lock(&self.explained);
            let whole = marks.at_us(Mark::Offered).is_some();
            let explanation = if whole { &mut explained.whole } else { &mut explained.here };
            explanation.add(&marks);
        }
    }
}

fn since_1970_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
