//! Marks on some of a pipeline's messages, for those who ask where their time goes.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_flow::explain::{Detour, Explanation, Journey, MARKS, Mark, Marks, Sample, Sampling};
use tokio::time::Instant;

use crate::handler::caught;
use crate::outages::Outages;

/// Tells something of a message.
type Of<T, A> = Box<dyn Fn(&T) -> A + Send + Sync>;
/// Is told of a message that is settled.
type Tell = Arc<dyn Fn(&Journey) + Send + Sync>;

/// Which messages are marked, and who is told what of them.
pub struct Explaining<T> {
    sampling: Sampling,
    marks: Of<T, Marks>,
    name: Option<Of<T, Option<String>>>,
    each: Option<Tell>,
}

impl<T> Explaining<T> {
    /// One message in `every`, at least 1, where their publishers marked fewer. `marks` finds the marks with which
    /// a message comes, in microseconds since 1970.
    #[must_use]
    pub fn new(every: u64, marks: impl Fn(&T) -> Marks + Send + Sync + 'static) -> Explaining<T> {
        Explaining {
            sampling: Sampling::new(every),
            marks: Box::new(marks),
            name: None,
            each: None,
        }
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
        f.debug_struct("Explaining").field("every", &self.sampling.every()).finish_non_exhaustive()
    }
}

/// Which messages are marked, and what they add up to.
pub(crate) struct Tracer<T> {
    how: Explaining<T>,
    sample: Arc<Mutex<Sample>>,
    outages: Arc<Mutex<Outages>>,
}

impl<T> Tracer<T> {
    pub(crate) fn new(how: Explaining<T>) -> Tracer<T> {
        let sample = Arc::new(Mutex::new(Sample::since(since_1970_us())));
        Tracer { how, sample, outages: Arc::default() }
    }

    /// From now on nothing begins until then; `None`: what is there may.
    pub(crate) fn breaker(&self, open_until: Option<Instant>) {
        lock(&self.outages).saw(Instant::now(), open_until);
    }

    /// The marks of message number `number`, which has arrived, if it gets any.
    pub(crate) fn arrived(&self, number: u64, value: &T) -> Option<Box<Trace>> {
        let mut marks = (self.how.marks)(value);
        // One that was put off, by whomever, was chosen before.
        let put_off = marks.detour_us(Detour::Pauses) > 0;
        let chosen = marks.at_us(Mark::Offered).is_some() || put_off;
        if chosen {
            self.how.sampling.chosen();
        } else if !self.how.sampling.choose() {
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
            pause: Mutex::default(),
            put_off,
            arrived: Instant::now(),
            arrived_us,
            sample: self.sample.clone(),
            outages: self.outages.clone(),
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
    /// Before the attempt to come.
    pause: Mutex<Option<Pause>>,
    /// It comes again, and what was before it came is not for this pipeline's breaker to explain.
    put_off: bool,
    arrived: Instant,
    /// Microseconds since 1970.
    arrived_us: u64,
    sample: Arc<Mutex<Sample>>,
    outages: Arc<Mutex<Outages>>,
    each: Option<Tell>,
}

/// Of a message that was put off. Times are microseconds since 1970, as all of a [`Trace`].
#[derive(Clone, Copy)]
struct Pause {
    detour: Detour,
    from_us: u64,
    until_us: u64,
}

impl Trace {
    /// The worker in `seat`, from 0, took it.
    pub(crate) fn taken_by(&self, seat: usize) {
        let (now_us, mut journey) = (self.now_us(), lock(&self.journey));
        journey.worker = Some(seat as u64 + 1);
        self.behind_breaker(&mut journey.marks, now_us);
        drop(journey);
        self.passed(Mark::Taken);
    }

    /// An attempt at it, or at its batch, was in vain; the next is `pause` from now.
    pub(crate) fn put_off(&self, pause: Duration) {
        let from_us = self.now_us();
        let marks = &mut lock(&self.journey).marks;
        let (begun, ended, attempts, detour) = match marks.at_us(Mark::Begun) {
            None => (Mark::Taken, Mark::Handled, Detour::Attempts, Detour::Pauses),
            Some(_) => (Mark::Begun, Mark::Done, Detour::BatchAttempts, Detour::BatchPauses),
        };
        let begun_us = marks.at_us(begun).unwrap_or(from_us);
        marks.detoured(attempts, from_us.saturating_sub(begun_us));
        marks.forget(begun);
        marks.forget(ended);
        let until_us = from_us.saturating_add(micros(pause));
        *lock(&self.pause) = Some(Pause { detour, from_us, until_us });
    }

    /// Its way, as it is when the pause before the attempt to come is over.
    pub(crate) fn so_far(&self) -> Marks {
        let mut marks = lock(&self.journey).marks;
        if let Some(pause) = *lock(&self.pause) {
            marks.detoured(pause.detour, pause.until_us.saturating_sub(pause.from_us));
        }
        marks
    }

    /// It took a detour for so long.
    pub(crate) fn detoured(&self, detour: Detour, time: Duration) {
        lock(&self.journey).marks.detoured(detour, micros(time));
    }

    /// How long it could not begin, of the time for which it waited for that.
    fn behind_breaker(&self, marks: &mut Marks, now_us: u64) {
        let outages = lock(&self.outages);
        let open_us = |from_us, until_us| {
            micros(outages.within(self.instant(from_us), self.instant(until_us)))
        };
        let delivered_us = marks.at_us(Mark::Delivered).unwrap_or(self.arrived_us);
        if let Some(pause) = *lock(&self.pause) {
            marks.detoured(Detour::Breaker, open_us(pause.until_us, now_us));
            return;
        }
        if self.put_off {
            marks.detoured(Detour::Breaker, open_us(self.arrived_us, now_us));
            return;
        }
        marks.detoured(Detour::Breaker, open_us(delivered_us, now_us));
        let before = MARKS.iter().rev().skip_while(|mark| **mark >= Mark::Sent);
        if let Some(queued_us) = before.copied().find_map(|mark| marks.at_us(mark)) {
            let sent_us = marks.at_us(Mark::Sent).unwrap_or(delivered_us);
            marks.queued_behind_breaker(open_us(queued_us, sent_us));
        }
    }

    fn now_us(&self) -> u64 {
        self.arrived_us.saturating_add(micros(self.arrived.elapsed()))
    }

    /// By the clock of the process.
    fn instant(&self, at_us: u64) -> Instant {
        let after = Duration::from_micros(at_us.saturating_sub(self.arrived_us));
        let before = Duration::from_micros(self.arrived_us.saturating_sub(at_us));
        let at = self.arrived.checked_sub(before).and_then(|at| at.checked_add(after));
        at.unwrap_or(self.arrived)
    }

    pub(crate) fn passed(&self, mark: Mark) {
        let now_us = self.now_us();
        let mut journey = lock(&self.journey);
        if let Some(pause) = lock(&self.pause).take_if(|pause| pause.detour.before() == mark) {
            let pause_us = now_us.min(pause.until_us).saturating_sub(pause.from_us);
            journey.marks.detoured(pause.detour, pause_us);
        }
        journey.marks.passed(mark, now_us);
        if mark != Mark::Settled {
            return;
        }
        // Nobody else asks for it any more.
        let nobody = Journey { name: String::new(), worker: None, marks: Marks::new() };
        let settled = std::mem::replace(&mut *journey, nobody);
        drop(journey);
        // It is the message's end that is told, so nobody could make up for a panic here.
        if let Some(tell) = &self.each
            && let Err(failure) = caught(|| tell(&settled))
        {
            tracing::error!(error = %failure, name = settled.name, "whoever is told of messages failed");
        }
        lock(&self.sample).add(settled);
    }
}

fn since_1970_us() -> u64 {
    micros(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
