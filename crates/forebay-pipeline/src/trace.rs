//! Marks on some of a pipeline's messages, for those who ask where their time goes.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_flow::explain::{Explanation, Journey, Mark, Marks, Sample};
use tokio::time::Instant;

/// Tells something of a message.
type Of<T, A> = Box<dyn Fn(&T) -> A + Send + Sync>;
/// Is told of a message that is settled.
type Tell = Arc<dyn Fn(&Journey) + Send + Sync>;

/// Which messages are marked, and who is told what of them.
pub struct Explaining<T> {
    every: u64,
    marks: Of<T, Marks>,
    name: Option<Of<T, Option<String>>>,
    each: Option<Tell>,
}

impl<T> Explaining<T> {
    /// One message in `every`, at least 1, of those that their publishers did not mark. `marks` finds the marks with which
    /// a message comes, in microseconds since 1970.
    #[must_use]
    pub fn new(every: u64, marks: impl Fn(&T) -> Marks + Send + Sync + 'static) -> Explaining<T> {
        Explaining { every: every.max(1), marks: Box::new(marks), name: None, each: None }
    }

    /// What a marked message is called where single ones are told, for instance its message-id; by its number without one.
    #[must_use]
    pub fn named(mut self, name: impl Fn(&T) -> Option<String> + Send + Sync + 'static) -> Self {
        self.name = Some(Box::new(name));
        self
    }

    /// Calls `tell` with each marked message when it is settled, on the worker that does so.
    #[must_use]
    pub fn each(mut self, tell: impl Fn(&Journey) + Send + Sync + 'static) -> Self {
        self.each = Some(Arc::new(tell));
        self
    }
}

impl<T> fmt::Debug for Explaining<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Explaining").field("every", &self.every).finish_non_exhaustive()
    }
}

/// Which messages are marked, and what they add up to.
pub(crate) struct Tracer<T> {
    how: Explaining<T>,
    sample: Arc<Mutex<Sample>>,
}

impl<T> Tracer<T> {
    pub(crate) fn new(how: Explaining<T>) -> Tracer<T> {
        Tracer { how, sample: Arc::new(Mutex::new(Sample::since(since_1970_us()))) }
    }

    /// The marks of message number `number`, which has arrived, if it gets any.
    pub(crate) fn arrived(&self, number: u64, value: &T) -> Option<Box<Trace>> {
        let mut marks = (self.how.marks)(value);
        let chosen = marks.at_us(Mark::Offered).is_some() || number.is_multiple_of(self.how.every);
        if !chosen {
            return None;
        }
        let arrived_us = since_1970_us();
        if marks.at_us(Mark::Delivered).is_none() {
            marks.passed(Mark::Delivered, arrived_us);
        }
        let name = self.how.name.as_ref().and_then(|name| name(value));
        let name = name.unwrap_or_else(|| format!("message {}", number.saturating_add(1)));
        Some(Box::new(Trace {
            journey: Mutex::new(Journey { name, worker: None, marks }),
            arrived: Instant::now(),
            arrived_us,
            sample: self.sample.clone(),
            each: self.how.each.clone(),
        }))
    }

    pub(crate) fn explanation(&self) -> Explanation {
        lock(&self.sample).explanation().clone()
    }
}

/// The marks of one message. The system's clock was asked when it arrived, so that time does not go back from there.
pub(crate) struct Trace {
    journey: Mutex<Journey>,
    arrived: Instant,
    /// Microseconds since 1970.
    arrived_us: u64,
    sample: Arc<Mutex<Sample>>,
    each: Option<Tell>,
}

impl Trace {
    /// The worker in `seat`, from 0, took it.
    pub(crate) fn taken_by(&self, seat: usize) {
        lock(&self.journey).worker = Some(seat as u64 + 1);
        self.passed(Mark::Taken);
    }

    pub(crate) fn passed(&self, mark: Mark) {
        let after_us = u64::try_from(self.arrived.elapsed().as_micros()).unwrap_or(u64::MAX);
        let mut journey = lock(&self.journey);
        journey.marks.passed(mark, self.arrived_us.saturating_add(after_us));
        if mark != Mark::Settled {
            return;
        }
        let settled = journey.clone();
        drop(journey);
        if let Some(tell) = &self.each {
            tell(&settled);
        }
        lock(&self.sample).add(settled);
    }
}

fn since_1970_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
