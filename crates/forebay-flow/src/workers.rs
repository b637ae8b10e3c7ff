//! How many calls of a handler at a time: as many as make it faster, where each call waits for something else.
//!
//! What it waits for (a database, a web service, a disk) has a knee. Below it a call takes as long as ever and twice
//! the workers do twice the work; above it they only wait for one another. Where workers are never idle, Little's
//! law (1961) ties the two together: rate = workers / latency. So the latency alone says which side it is:
//!
//! ```text
//!            all workers busy, for a sample             a latency later, a sample
//!   watch ──────────────────────────────▶ some more ──────────────────────────▶ compare ──┬─▶ right: again, same way
//!     ▲                                   (or some fewer)                                 └─▶ wrong: undo, other way
//!     └── both ways were wrong: rest, 2 s at first, doubled up to 5 min, halved by what was right ◀──┘
//! ```
//! *Worth it*, for `a` workers with mean latency `la` and `b` > `a` workers with `lb`: at least half of what was
//! added arrives as rate, `(b / lb) / (a / la) ≥ 1 + (b / a − 1) / 2`.
//!
//! Steps are a factor of two until neither way helps, then a quarter. A trial ends when the comparison is clear by three
//! standard errors, or long enough (`COARSE`, `FINE`); what is within one standard error then is not done, unless it is
//! doubling. While it rests, a latency that has clearly changed by half ends the rest, and steps of two begin anew: fewer
//! first when calls take longer, more first when they take less.
//!
//! *Failures* count by the time they cost: the mean is all time over successful calls, so a service that refuses quickly
//! does not look fast. Where *nothing* succeeds there is no latency to compare: half of the workers go at a time, down to
//! `min`, and with the first success steps of two begin anew. So they do, upwards and whatever was on its way, when most calls
//! failed and nearly all succeed with no fewer workers: what few successes taught was of a service that was ill. *Idle workers*
//! are no reason to have fewer, and end a trial of more: only what is used can be judged.
//!
//! Bounds: from `min` to `max`; each decision needs a sample, so it changes once in two latencies at most. Hill
//! climbing, as of [connections](crate::Connections); a latency target like the publisher's window would need to know what a
//! call costs on an idle service, which handlers that differ from message to message do not tell.

use crate::moments::Moments;

/// What a trial needs.
struct Effort {
    /// Samples of the state before.
    before: u64,
    /// Samples of the state after: at the first look, and at the last. Each look doubles them, since every look is one
    /// more occasion to err.
    after: (u64, u64),
}

const COARSE: Effort = Effort { before: 2, after: (1, 8) };
const FINE: Effort = Effort { before: 32, after: (4, 64) };
/// Calls in a sample, unless two for each worker are more.
const SAMPLE_CALLS: u64 = 32;
/// Standard errors that end a trial, that decide it at its last look, and that end a rest.
const CLEAR: f64 = 3.0;
const LIKELY: f64 = 1.0;
const CHANGED: f64 = 4.0;
/// The latency has changed when it is so many times what it was, or that part of it.
const CHANGE: f64 = 1.5;
/// A state before is known well enough when its standard error is this share.
const KNOWN: f64 = 0.02;
/// The share of what was added that has to arrive as rate.
const WORTH: f64 = 0.5;
/// One step finer than doubling.
const FINE_STEP: f64 = 1.25;
/// Of which most calls failed: then the service is ill. One may be what a trial of more has left behind.
const ILL_SAMPLES: u32 = 2;
/// The first pause between trials, and the longest.
const REST_MIN_US: u64 = 2_000_000;
const REST_MAX_US: u64 = 300_000_000;

/// One call of a handler that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// How long it took.
    pub took_us: u64,
    /// It did what it was for. False for errors, panics, time limits.
    pub succeeded: bool,
    /// When it ended no worker was idle.
    pub full: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    More,
    Fewer,
}

/// See the module's documentation. Times are microseconds of the caller's clock.
#[derive(Debug, Clone)]
pub struct Workers {
    count: u32,
    min: u32,
    max: u32,
    coarse: bool,
    /// With the present count and step: what was found not to help.
    more_tried: bool,
    fewer_tried: bool,
    state: State,
    rest_us: u64,
    sample: Sample,
    /// The part of it that is less than one.
    latest: Sample,
    /// Samples in a row of which most calls failed, with the present count.
    ill_samples: u32,
    /// With so many workers the service was ill when it was last.
    ill_at: Option<u32>,
    /// Calls that began before this time tell about another count.
    typical_from_us: u64,
}

#[derive(Debug, Clone)]
enum State {
    Watching,
    Trying { way: Way, before_count: u32, before: Moments },
    Resting { until_us: u64, usual: Moments },
}

/// Latencies, with what failures cost added to the successes that follow.
#[derive(Debug, Clone, Copy, Default)]
struct Sample {
    successes: Moments,
    calls: u64,
    full: u64,
    failed_us: u64,
}

impl Sample {
    fn add(&mut self, call: Call) {
        self.calls += 1;
        self.full += u64::from(call.full);
        self.failed_us = self.failed_us.saturating_add(call.took_us);
        if call.succeeded {
            self.successes.add(self.failed_us as f64);
            self.failed_us = 0;
        }
    }

    /// Most of its calls failed.
    fn is_ill(&self) -> bool {
        self.successes.count() * 2 < self.calls
    }

    /// Nearly none did.
    fn is_well(&self) -> bool {
        self.successes.count() * 10 >= self.calls * 9
    }

    /// Its mean tells about its count of workers, since they were busy.
    fn is_full(&self) -> bool {
        self.full * 10 >= self.calls * 8
    }
}

impl Workers {
    /// Begins with `start` and stays between `min` and `max`. What is out of bounds is moved to the next that is not;
    /// `min` is at least 1.
    #[must_use]
    pub fn new(start: u32, min: u32, max: u32) -> Workers {
        let min = min.max(1);
        let max = max.max(min);
        Workers {
            count: start.clamp(min, max),
            min,
            max,
            coarse: true,
            more_tried: false,
            fewer_tried: false,
            state: State::Watching,
            rest_us: REST_MIN_US,
            sample: Sample::default(),
            latest: Sample::default(),
            ill_samples: 0,
            ill_at: None,
            typical_from_us: 0,
        }
    }

    /// How many there should be.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Whether a trial is on its way.
    #[must_use]
    pub fn is_trying(&self) -> bool {
        matches!(self.state, State::Trying { .. })
    }

    /// A call has ended. How many workers there should be from now on, if that has changed.
    pub fn ended(&mut self, now_us: u64, call: Call) -> Option<u32> {
        if now_us.saturating_sub(call.took_us) < self.typical_from_us {
            return None;
        }
        self.sample.add(call);
        self.latest.add(call);
        let sample_calls = SAMPLE_CALLS.max(2 * u64::from(self.count));
        if !self.sample.calls.is_multiple_of(sample_calls) {
            return None;
        }
        let samples = self.sample.calls / sample_calls;
        let count = self.count;
        let latest = std::mem::take(&mut self.latest);
        if self.has_recovered(latest) {
            (self.coarse, self.more_tried, self.fewer_tried) = (true, false, false);
            self.rest_us = REST_MIN_US;
            self.watch();
            return None;
        }
        match self.state.clone() {
            State::Watching => self.watched(now_us, samples),
            State::Trying { way, before_count, before } => {
                self.tried(now_us, samples, way, before_count, before);
            }
            State::Resting { until_us, usual } => self.rested(now_us, until_us, usual),
        }
        (count != self.count).then_some(self.count)
    }

    /// Whether the service was ill, and is well again.
    fn has_recovered(&mut self, latest: Sample) -> bool {
        self.ill_samples = if latest.is_ill() { self.ill_samples + 1 } else { 0 };
        if self.ill_samples >= ILL_SAMPLES {
            self.ill_at = Some(self.count);
        }
        let recovered = latest.is_well() && self.ill_at.is_some_and(|ill_at| self.count >= ill_at);
        self.ill_at = self.ill_at.filter(|_| !recovered);
        recovered
    }

    fn effort(&self) -> Effort {
        if self.coarse { COARSE } else { FINE }
    }

    fn watched(&mut self, now_us: u64, samples: u64) {
        let Sample { successes, .. } = self.sample;
        if !self.sample.is_full() {
            self.sample = Sample::default();
        } else if samples >= self.effort().before
            || successes.is_known_to(KNOWN)
            || nothing_succeeded(successes)
        {
            self.next(now_us, successes);
        }
    }

    /// Begins the next trial, or the rest; with `usual` latencies.
    fn next(&mut self, now_us: u64, usual: Moments) {
        let fails = nothing_succeeded(usual);
        self.coarse |= fails;
        let way = if !fails && !self.more_tried && self.count < self.max {
            Way::More
        } else if (fails || !self.fewer_tried) && self.count > self.min {
            Way::Fewer
        } else if self.coarse && !fails {
            (self.coarse, self.more_tried, self.fewer_tried) = (false, false, false);
            self.watch();
            return;
        } else {
            self.state = State::Resting { until_us: now_us.saturating_add(self.rest_us), usual };
            // What was learned of a service that failed is not true of it when it works again.
            self.rest_us = if fails { REST_MIN_US } else { (2 * self.rest_us).min(REST_MAX_US) };
            self.sample = Sample::default();
            return;
        };
        self.state = State::Trying { way, before_count: self.count, before: usual };
        let count = self.step(way);
        self.set(now_us, count, usual);
    }

    fn step(&self, way: Way) -> u32 {
        let factor = if self.coarse { 2.0 } else { FINE_STEP };
        let count = f64::from(self.count);
        let stepped = match way {
            Way::More => (count * factor).floor().max(count + 1.0),
            Way::Fewer => (count / factor).ceil().min(count - 1.0),
        };
        (stepped as u32).clamp(self.min, self.max)
    }

    fn tried(&mut self, now_us: u64, samples: u64, way: Way, before_count: u32, before: Moments) {
        let after = self.sample.successes;
        let Effort { after: (first, last), .. } = self.effort();
        if samples < first || !samples.is_power_of_two() {
            return;
        }
        if !self.sample.is_full() {
            // Fewer are enough, or nothing can be said about more.
            if way == Way::More {
                self.set(now_us, before_count, after);
            }
            self.watch();
            return;
        }
        let ((few, few_latency), (many, many_latency)) = match way {
            Way::More => ((before_count, before), (self.count, after)),
            Way::Fewer => ((self.count, after), (before_count, before)),
        };
        let ratio = f64::from(many) / f64::from(few);
        let longest = ratio / (1.0 + WORTH * (ratio - 1.0));
        let margin = longest * few_latency.mean() - many_latency.mean();
        let error = (longest * few_latency.error()).hypot(many_latency.error());
        if margin.abs() < CLEAR * error && samples < last {
            return;
        }
        let likely = margin.abs() >= LIKELY * error;
        let right = match way {
            // Nothing but failures, before or now: gently.
            _ if nothing_succeeded(before) || nothing_succeeded(after) => way == Way::Fewer,
            Way::More => margin >= 0.0 && (likely || self.coarse),
            Way::Fewer => margin < 0.0 && likely,
        };
        if right {
            // The other way leads back.
            (self.more_tried, self.fewer_tried) = (way == Way::Fewer, way == Way::More);
            // Unless little succeeded there, but may now: the service may have recovered by itself.
            self.more_tried &= !nothing_succeeded(before) && self.ill_at.is_none();
            self.rest_us = (self.rest_us / 2).max(REST_MIN_US);
            self.next(now_us, after);
            return;
        }
        match way {
            Way::More => self.more_tried = true,
            Way::Fewer => self.fewer_tried = true,
        }
        self.set(now_us, before_count, after);
        self.watch();
    }

    fn rested(&mut self, now_us: u64, until_us: u64, usual: Moments) {
        let (full, now) = (self.sample.is_full(), self.sample.successes);
        self.sample = Sample::default();
        if !full {
            return;
        }
        let error = CHANGED * usual.error().hypot(now.error());
        let off = now.mean() - usual.mean();
        let (failed, fails) = (nothing_succeeded(usual), nothing_succeeded(now));
        let changed = !failed && !fails && off.abs() > error;
        let slower = fails && !failed || changed && now.mean() > CHANGE * usual.mean();
        let quicker = failed && !fails || changed && now.mean() < usual.mean() / CHANGE;
        if slower || quicker {
            (self.coarse, self.more_tried, self.fewer_tried) = (true, slower, quicker);
            self.next(now_us, now);
        } else if now_us >= until_us && !fails {
            (self.coarse, self.more_tried, self.fewer_tried) = (false, false, false);
            self.watch();
        }
    }

    fn watch(&mut self) {
        self.state = State::Watching;
        self.forget();
    }

    fn forget(&mut self) {
        (self.sample, self.latest) = Default::default();
    }

    fn set(&mut self, now_us: u64, count: u32, usual: Moments) {
        (self.count, self.ill_samples) = (count, 0);
        self.forget();
        // What was begun before, and what these leave behind in a queue, is not typical of the new count.
        self.typical_from_us = now_us.saturating_add(usual.mean() as u64);
    }
}

/// Calls of which all failed.
fn nothing_succeeded(successes: Moments) -> bool {
    successes.count() == 0
}
