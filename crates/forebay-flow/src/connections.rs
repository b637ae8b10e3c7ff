//! How many connections publishers should share: as many as raise the delivered rate, and no more.
//!
//! A connection is a ceiling of its own: the congestion window and buffers of its TCP flow, one reader in the broker,
//! one lock and one writing task in the client. Behind it are ceilings that more connections do not lift: the disk,
//! the broker, the link. Nothing a client sees tells the two apart for sure, so it tries.
//!
//! ```text
//!            waited on, for a sample of bins             SETTLE             a sample of bins
//!   watch ──────────────────────────────▶ one more ──────────────▶ compare ──┬─▶ worth it: keep, try another
//!     ▲                                   (or one less)                      └─▶ not: undo, rest
//!     └── rest: 10 s, doubled by each trial that came to nothing, up to 10 min, halved by the others ◀──┘
//! ```
//! *Bin*: the rate of outcomes over 100 ms, or two confirm latencies if that is longer (1 s at most), since confirms
//! come in bunches. *Worth it*, for rates `a` with fewer and `b` with more connections, `n` bins each:
//!
//! ```text
//!   mean b − mean a ≥ 0.1 · mean a                                  the gain pays for a connection
//!   mean b − mean a ≥ 3 · sqrt(var a / n_a + var b / n_b)           and is no noise (Welch, 1947)
//! ```
//! If the first holds and the second does not, the trial goes on, up to three samples; after those, things stay as they
//! were. A trial of one less asks the
//! same question of the last connection that was kept, because loads change and trials err; it comes after a trial
//! of one more that was not kept, and where no more are allowed. What a trial changed for good is followed at once
//! by the next in the same direction.
//!
//! Two connections that are not waited on any more are not one too many: they may be what carries the load. So
//! without being waited on a connection goes only when the rate stays below half of what one fewer delivered, for
//! 30 s; an idle client is back at one connection after as many half minutes as it has connections too many. Bins in which
//! somebody waits and nothing is delivered, as by a broker that is blocked, count for nothing, nor do those in which a connection is
//! lost: that it delivers nothing does not tell what it is worth.
//!
//! Hill climbing with a test of significance; where windows are concerned, FLOW says why that alone would be unfair
//! (each of a thousand flows gains by taking more). Here the limit is small and a connection costs the others
//! nothing that its gain does not show.

use std::collections::VecDeque;

use crate::moments::Moments;

/// Length of a bin, unless confirms take longer.
const BIN_US: u64 = 100_000;
/// The longest bin.
const BIN_MAX_US: u64 = 1_000_000;
/// Bins in a sample.
const SAMPLE_BINS: usize = 12;
/// Samples of the longest trial.
const SAMPLES_MAX: usize = 3;
/// Bins of a sample of the state before in which somebody waited, at least.
const WAITED_BINS: usize = 10;
/// What one more connection has to add, as a share.
const GAIN: f64 = 0.1;
/// Standard errors that make a difference.
const SIGNIFICANT: f64 = 3.0;
/// After a change, this time and this many confirm latencies are not looked at: windows start anew.
const SETTLE_US: u64 = 1_000_000;
const SETTLE_LATENCIES: u64 = 20;
/// The first pause between trials, and the longest.
const REST_MIN_US: u64 = 10_000_000;
const REST_MAX_US: u64 = 600_000_000;
/// How long the rate has to stay low before a connection goes without a trial.
const LOW_US: u64 = 30_000_000;
/// Below this share of what one connection fewer delivered, the rate is low.
const LOW_SHARE: f64 = 0.5;

/// What was seen since the last look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivered {
    /// Outcomes that came, over all connections.
    pub messages: u64,
    /// Somebody waits for a window or a socket.
    pub waited: bool,
    /// One of the connections is lost, and not there again yet.
    pub lost: bool,
    /// A recent confirm latency; 0 = not known.
    pub latency_us: u64,
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Open one more connection.
    Grow,
    /// Close one.
    Shrink,
    /// Nothing.
    Hold,
}

/// See the module's documentation. Times are microseconds of the caller's clock.
#[derive(Debug, Clone)]
pub struct Connections {
    count: u32,
    max: u32,
    state: State,
    rest_us: u64,
    /// The last trial of one more was not kept, so the next asks whether the last connection is worth keeping.
    doubt: bool,
    bin: Bin,
    /// Of the last sample, oldest first: rate per second, and whether somebody waited.
    bins: VecDeque<(f64, bool)>,
    /// What `k + 1` connections delivered when another was added to them.
    fewer: Vec<f64>,
    low_since_us: Option<u64>,
    /// After the last change rates are not typical before this time.
    settled_from_us: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Bin {
    since_us: Option<u64>,
    messages: u64,
    waited: bool,
}

#[derive(Debug, Clone)]
enum State {
    /// Trials of one more, and of one less, may begin from these times on.
    Watching { more_from_us: u64, less_from_us: u64 },
    /// One more, or one less, than before.
    Trying { more: bool, before: Moments, after: Moments },
}

impl Connections {
    /// One connection, and never more than `max`, at least 1. The first trial may begin at once.
    #[must_use]
    pub fn new(max: u32) -> Connections {
        Connections {
            count: 1,
            max: max.max(1),
            state: State::Watching { more_from_us: 0, less_from_us: 0 },
            rest_us: REST_MIN_US,
            doubt: false,
            bin: Bin::default(),
            bins: VecDeque::new(),
            fewer: Vec::new(),
            low_since_us: None,
            settled_from_us: 0,
        }
    }

    /// How many there should be.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Whether the last change is still being judged.
    #[must_use]
    pub fn is_trying(&self) -> bool {
        matches!(self.state, State::Trying { .. })
    }

    /// Looks at what was delivered since the last look, best ten times a second. `useful`: more connections than
    /// this cannot help, for instance because there are no more publishers.
    ///
    /// A decision counts as carried out; if one more cannot be had, say so with [`Connections::refused`].
    pub fn look(&mut self, now_us: u64, delivered: Delivered, useful: u32) -> Decision {
        let most = useful.clamp(1, self.max);
        let decision = self.decide(now_us, delivered, most);
        if decision != Decision::Hold {
            self.settled_from_us = settled_from_us(now_us, delivered.latency_us);
            self.bin = Bin::default();
            self.bins.clear();
            self.low_since_us = None;
        }
        decision
    }

    /// The connection asked for could not be opened: as if it had not been worth it.
    pub fn refused(&mut self, now_us: u64) {
        self.count = (self.count - 1).max(1);
        self.fewer.truncate(self.count as usize - 1);
        self.rest(now_us);
    }

    /// What is delivered has become another matter, and so have the connections themselves: what was seen before is forgotten.
    pub fn renewed(&mut self, now_us: u64, latency_us: u64) {
        self.settled_from_us = settled_from_us(now_us, latency_us);
        self.bin = Bin::default();
        let from_us = match self.state {
            State::Watching { more_from_us, less_from_us } => more_from_us.max(less_from_us),
            State::Trying { .. } => now_us + self.rest_us,
        };
        self.watch(from_us, from_us);
    }

    fn decide(&mut self, now_us: u64, delivered: Delivered, most: u32) -> Decision {
        if self.count > most {
            self.watch(now_us + REST_MIN_US, now_us + REST_MIN_US);
            return self.shrink();
        }
        if delivered.lost {
            // When it is back its windows start anew.
            self.settled_from_us = settled_from_us(now_us, delivered.latency_us);
            self.bin = Bin::default();
            self.low_since_us = None;
            return Decision::Hold;
        }
        let since_us = *self.bin.since_us.get_or_insert(now_us);
        self.bin.messages += delivered.messages;
        self.bin.waited |= delivered.waited;
        let bin_us = (2 * delivered.latency_us).clamp(BIN_US, BIN_MAX_US);
        let elapsed_us = now_us.saturating_sub(since_us);
        if elapsed_us < bin_us {
            return Decision::Hold;
        }
        let rate = self.bin.messages as f64 * 1e6 / elapsed_us as f64;
        let waited = self.bin.waited;
        self.bin = Bin { since_us: Some(now_us), ..Bin::default() };
        // A broker that is blocked, or away, says nothing of how many connections help.
        let stands = waited && rate == 0.0;
        if since_us < self.settled_from_us || stands {
            return Decision::Hold;
        }
        match self.state {
            State::Watching { more_from_us, less_from_us } => {
                if self.is_low(now_us, rate) && !waited {
                    self.watch(now_us + REST_MIN_US, now_us + REST_MIN_US);
                    return self.shrink();
                }
                let may_more = now_us >= more_from_us && self.count < most;
                let may_less = now_us >= less_from_us && self.count > 1;
                self.watched(rate, waited, may_more, may_less)
            }
            State::Trying { more, before, mut after } => {
                after.add(rate);
                self.tried(now_us, more, before, after)
            }
        }
    }

    fn watched(&mut self, rate: f64, waited: bool, may_more: bool, may_less: bool) -> Decision {
        self.bins.push_back((rate, waited));
        if self.bins.len() > SAMPLE_BINS {
            self.bins.pop_front();
        }
        let waits = self.bins.iter().filter(|(_, waited)| *waited).count();
        if self.bins.len() < SAMPLE_BINS || waits < WAITED_BINS || !(may_more || may_less) {
            return Decision::Hold;
        }
        let more = may_more && !(may_less && self.doubt);
        let mut before = Moments::default();
        self.bins.iter().for_each(|&(rate, _)| before.add(rate));
        self.state = State::Trying { more, before, after: Moments::default() };
        if more { self.grow(before.mean()) } else { self.shrink() }
    }

    fn tried(&mut self, now_us: u64, more: bool, before: Moments, after: Moments) -> Decision {
        let (few, many) = if more { (before, after) } else { (after, before) };
        let worth = Worth::of(few, many);
        self.state = State::Trying { more, before, after };
        let bins = after.count() as usize;
        let samples = bins / SAMPLE_BINS;
        if !bins.is_multiple_of(SAMPLE_BINS) || (worth == Worth::Unclear && samples < SAMPLES_MAX) {
            return Decision::Hold;
        }
        // What is there stays unless it is clearly not worth it, what is not there has to be clearly worth it.
        let wanted = if more { worth == Worth::Yes } else { worth != Worth::No };
        match (more, wanted) {
            // It helped; another may, too.
            (true, true) => {
                self.doubt = false;
                self.rest_us = (self.rest_us / 2).max(REST_MIN_US);
                self.watch(now_us, now_us + self.rest_us);
                Decision::Hold
            }
            (true, false) => {
                self.doubt = true;
                self.rest(now_us);
                self.shrink()
            }
            (false, true) => {
                self.doubt = false;
                self.rest(now_us);
                self.grow(few.mean())
            }
            // It was one too many; another may be, too.
            (false, false) => {
                self.doubt = true;
                self.watch(now_us + self.rest_us, now_us);
                Decision::Hold
            }
        }
    }

    fn is_low(&mut self, now_us: u64, rate: f64) -> bool {
        let low = self.fewer.last().is_some_and(|&fewer| rate <= LOW_SHARE * fewer);
        if !low {
            self.low_since_us = None;
            return false;
        }
        now_us.saturating_sub(*self.low_since_us.get_or_insert(now_us)) >= LOW_US
    }

    fn grow(&mut self, fewer: f64) -> Decision {
        self.count += 1;
        self.fewer.push(fewer);
        Decision::Grow
    }

    fn shrink(&mut self) -> Decision {
        self.count -= 1;
        self.fewer.truncate(self.count as usize - 1);
        Decision::Shrink
    }

    /// All is as before the trial, so the next one comes later.
    fn rest(&mut self, now_us: u64) {
        self.watch(now_us + self.rest_us, now_us + self.rest_us);
        self.rest_us = (2 * self.rest_us).min(REST_MAX_US);
    }

    fn watch(&mut self, more_from_us: u64, less_from_us: u64) {
        self.state = State::Watching { more_from_us, less_from_us };
        self.low_since_us = None;
        self.bins.clear();
    }
}

/// When the windows of new connections have found what they may have.
fn settled_from_us(now_us: u64, latency_us: u64) -> u64 {
    now_us + SETTLE_US + SETTLE_LATENCIES * latency_us
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Worth {
    Yes,
    No,
    /// Large enough, and perhaps noise.
    Unclear,
}

impl Worth {
    fn of(few: Moments, many: Moments) -> Worth {
        let gain = many.mean() - few.mean();
        if gain < GAIN * few.mean() || gain <= 0.0 {
            return Worth::No;
        }
        let error = (few.variance_of_mean() + many.variance_of_mean()).sqrt();
        if gain >= SIGNIFICANT * error { Worth::Yes } else { Worth::Unclear }
    }
}
