//! The self-tuned publisher window: a delay target above a measured base.
//!
//! ```text
//! round   from one message admitted to its confirm, and 5 ms at least once startup is over; per round:
//!   r       mean confirm latency of the round            sig = least of the last 3 means, in startup r
//!   target  base and allowance: [crate::delay_target]
//!
//!   startup   W doubles until something waits: [crate::startup]; then velocity = W/16
//!   after it  sig <= target and limited: W += velocity (1, doubling from the 4th step on, up to W/8;
//!             up to W/32 where r is in the last quarter below the target, slower near the edge; W/8 at once where the target is
//!             what a visit or a commit makes it, so up to that;
//!             W from the second round in a row on with r in the first quarter, if there is no edge)
//!             sig > target: the edge = W if net is 2 ms and most of the base, W *= max(0.7, target / sig),
//!             velocity = 1, then one round without a change
//!   both      W grows no further than a visit, or its part of a commit, while sig is above what the target were without
//!   part      of all that our broker may ask for a part next door: W *= this part / the one before, then one round without a change
//!   longer    a route that is twice as long, and 0.6 of r: startup again, from W, or as before that if it is refuted; a commit: velocity = W/8
//!   pace      our broker apart, net 2 ms and most of the base, startup over: 1.1 W messages in r, taken between base and target, 16 at a time or the eighth
//!             part of r, what is less
//!   always    8 <= W <= 100 000 messages (before RabbitMQ 12 <= W; 1 <= W where the link is narrow, and W += 1 a round from there once it is not), and
//!             max(64 KiB, 2 W * mean size) bytes; 8 messages at first, or 16 KiB of them if that is less
//! ```
//!
//! Where the pieces come from: a delay target with a cut in proportion to the overshoot is Swift's
//! (Kumar et al., SIGCOMM 2020), velocity and standing delay Copa's (Arun and Balakrishnan, NSDI 2018). The
//! rest is ours; what each part is for:
//!
//! - **Latency from admission.** What waits before the socket is in flight as much as what waits behind it.
//! - **net from the kernel.** One latency cannot tell a longer route from a longer queue. Where it doubles,
//!   and our own window cannot be why, the window starts over from where it is, and while it rises nothing
//!   is cut.
//! - **Mean, then least of three.** Rejects one slow commit, and still answers within three round trips.
//! - **Doubling again when it is calm.** TCP starts slowly too, and what waits for it may end our startup early.
//! - **The edge.** Over a distance the window that was cut last is approached slowly: `edge.rs`.
//! - **The pace.** RabbitMQ confirms many messages at once; what is confirmed together would be published together, arrive
//!   together, and be one clump for ever, in whose pauses the broker rests: W in net + W x service time. Ours confirms as it goes, and
//!   what comes little by little makes its visits short.
//! - **The floor.** A visit is shared by the messages it brings, and RabbitMQ's costs more. On a narrow link 20 times 8 of 5 kB would be 6 s.
//! - **limited.** A program that sends little learns nothing about a larger window.
//! - **The drain probe.** Only when no round came near the base for about 10 s: half the window for a
//!   moment, so that a base measured in a queue is measured again. Its time is jittered by the seed, or
//!   many flows would probe together.

use crate::amount::Amount;
use crate::broker_kind::BrokerKind;
use crate::commit_cost::CommitTime;
use crate::delay_target::DelayTarget;
use crate::edge::{Edge, STEPS};
use crate::ewma::Ewma;
use crate::former::Former;
use crate::kernel_reading::KernelReading;
use crate::pfw_options::PfwOptions;
use crate::round::Round;
use crate::startup::{INITIAL_BYTES, Startup, Step};
use crate::together::Together;
use crate::window::{Load, Pace, Phase, Sample, Window, WindowState};

/// The window never falls below this, so that what a visit costs is shared, unless it is a narrow link that messages wait for.
pub const FLOOR_MESSAGES: u32 = 8;
/// The window never exceeds this unless told otherwise.
pub const CEILING_MESSAGES: u32 = 100_000;
/// The window of bytes never falls below this.
pub const FLOOR_BYTES: u64 = 64 * 1024;
/// The window of bytes never exceeds this unless told otherwise.
pub const CEILING_BYTES: u64 = 256 * 1024 * 1024;

/// From here on to the target growth is slow: share of the allowance.
const BRAKE: f64 = 0.75;
/// Growth of a round is one part of the window in so many, at most.
const FASTEST: f64 = 8.0;
const CUT_MIN: f64 = 0.7;
/// Before a narrow link a queue is as long as it seems.
const CUT_MIN_NARROW: f64 = 0.25;
/// What waits in the kernel was counted some time before.
const CUT_MIN_UNSENT: f64 = 0.5;
/// Up to here, as a share of the allowance, nothing waits to speak of.
const CALM: f64 = 0.25;
/// After startup a round lasts at least this long, so that a scheduler's time slices average out.
const ROUND_MIN_US: u64 = 5_000;
/// Over a distance a window leaves so much faster than it is confirmed: over most of a round.
const PACE: f64 = 1.1;
/// It leaves in batches of so many messages, as a visit costs what some of them do, or in so many a round if these are smaller,
const PACE_BATCH: f64 = 16.0;
const PACE_BATCHES: f64 = 8.0;
/// and not more often than timers are exact. So much of what was not sent in time is made up for at once: more would be
/// the next clump.
const PACE_GRAIN_US: f64 = 1_000.0;
const SILENCE_MIN_US: u64 = 1_000_000;
const STALE_US: u64 = 10_000_000;

#[derive(Debug, Clone, Copy, PartialEq)]
struct Probe {
    until_us: u64,
    window_before: f64,
}

/// The self-tuned window of one confirm channel. Formula and reasons: [module](self).
#[derive(Debug)]
pub struct Pfw {
    options: PfwOptions,
    window: f64,
    startup: Option<Startup>, // until it is over
    velocity: f64,
    steps_up: u32,
    calm_rounds: u32,
    edge: Edge,
    former: Option<Former>,
    held: bool,
    history: Vec<f64>, // means of the last rounds, at most 3
    delay: DelayTarget,
    size: Ewma,
    round: Round,
    measured_us: f64,
    busy_since_us: u64,            // last confirm, or the send that ended idleness
    stalled_until_us: Option<u64>, // what was sent before waited for a silent broker
    rejected_round: bool,
    near_base_us: Option<u64>,
    probe: Option<Probe>,
    probe_wait_us: u64,
    random: u64,
    confirmed_since_reading: bool,
    floor_since_us: Option<u64>,
    blocked: bool,
}

impl Pfw {
    /// # Panics
    /// If the floor is 0 or above the ceiling.
    #[must_use]
    pub fn new(options: PfwOptions) -> Pfw {
        assert!(
            (1..=options.ceiling_messages).contains(&options.floor_messages),
            "floor {} and ceiling {} of the window",
            options.floor_messages,
            options.ceiling_messages
        );
        let mut pfw = Pfw {
            options,
            window: f64::from(options.floor_messages),
            startup: Some(Startup::default()),
            velocity: 1.0,
            steps_up: 0,
            calm_rounds: 0,
            edge: Edge::Far,
            former: None,
            held: false,
            history: Vec::with_capacity(3),
            delay: DelayTarget::new(options.local, options.added_delay_max_us),
            size: Ewma::new(1.0 / 64.0),
            round: Round::new(0),
            measured_us: 0.0,
            busy_since_us: 0,
            stalled_until_us: None,
            rejected_round: false,
            near_base_us: None,
            probe: None,
            probe_wait_us: STALE_US,
            random: options.seed,
            confirmed_since_reading: true, // the first reading is the handshake's
            floor_since_us: None,
            blocked: false,
        };
        pfw.probe_wait_us = pfw.jittered(STALE_US);
        pfw
    }

    /// One round is over.
    fn steer(&mut self, now_us: u64) {
        let round = std::mem::replace(&mut self.round, Round::new(now_us));
        let Some(mean_us) = round.mean_us() else { return };
        let stalled = round.stalled();
        self.rejected_round = false;
        self.measured_us = mean_us;
        // Startup asks for two long rounds itself, so it compares each with the target for that very round.
        let recent = if self.startup.is_some() { 0 } else { 2 };
        let standing_us = self.history.iter().rev().take(recent).copied().fold(mean_us, f64::min);
        self.delay.set(mean_us, standing_us, self.window, self.size.get().unwrap_or(0.0));
        let before = self.window;
        if self.probe.is_some() {
            return self.end_probe(now_us, &round);
        }
        if std::mem::take(&mut self.held)
            || (mean_us > self.delay.us() && self.delay.network_rises())
        {
            return;
        }
        if self.history.len() == 3 {
            self.history.remove(0);
        }
        self.history.push(mean_us);
        if let Some(startup) = &mut self.startup {
            let bytes = self.size.get().unwrap_or(0.0);
            match startup.after(mean_us, &round, &self.delay, self.window, bytes) {
                Step::Stay => {}
                Step::Grow(factor) => self.window = self.bounded(factor * self.window),
                Step::End(factor) => self.end_startup(factor),
            }
        } else if let Some(factor) =
            self.too_many().into_iter().chain(self.too_long(standing_us)).reduce(f64::min)
        {
            self.cut(factor);
        } else if round.limited() && !stalled {
            self.grow(mean_us);
        }
        self.start_probe_if_stale(now_us, mean_us, &round);
        self.clamp(before + 1.0);
        self.rebase_at_floor(now_us);
    }

    /// What is left of a window of which messages wait in the kernel for a narrow link.
    fn too_many(&mut self) -> Option<f64> {
        let messages = self.delay.too_many()?;
        Some((1.0 - messages / self.window).max(CUT_MIN_UNSENT))
    }

    /// What is left of one whose confirms take longer than they shall.
    fn too_long(&mut self, standing_us: f64) -> Option<f64> {
        if standing_us <= self.delay.us() {
            return None;
        }
        if self.delay.is_distant() {
            self.edge = Edge::at(self.window);
        }
        let least = if self.delay.is_narrow() { CUT_MIN_NARROW } else { CUT_MIN };
        Some((self.delay.us() / standing_us).max(least))
    }

    /// Without the kernel nobody can see that a route became longer than the cap on `s` allows. Then the
    /// window sits at its floor, with nothing of its own in the queue, and what it measures is the base.
    fn rebase_at_floor(&mut self, now_us: u64) {
        let pinned = !self.delay.knows_network()
            && self.window <= self.floor()
            && self.measured_us > self.delay.us();
        if !pinned {
            self.floor_since_us = None;
            return;
        }
        let since_us = *self.floor_since_us.get_or_insert(now_us);
        if now_us.saturating_sub(since_us) >= STALE_US {
            self.floor_since_us = None;
            self.delay.rebase();
        }
    }

    fn grow(&mut self, mean_us: f64) {
        self.steps_up += 1;
        // Only of a base that is certain can be said that nothing waits above it.
        let calm = self.delay.knows_network() && mean_us < self.delay.part_us(CALM);
        self.calm_rounds = if calm { self.calm_rounds + 1 } else { 0 };
        if self.edge.is_passed_by(self.window) {
            self.edge = Edge::Passed;
            self.calm_rounds = 0;
        }
        if self.edge.lets_double(self.window, self.calm_rounds) {
            self.velocity = self.window;
            if self.edge != Edge::Far {
                self.calm_rounds = 0;
            }
        } else {
            let filling = self.delay.window_max().is_finite();
            let steps = match self.edge.is_near(self.window) {
                true => STEPS,
                false if mean_us > self.delay.part_us(BRAKE) && !filling => 32.0,
                false => FASTEST,
            };
            // One message more is a queue where few of them fill the link.
            let least = if self.delay.is_narrow() { 0.0 } else { 1.0 };
            let fastest = (self.window / steps).max(least);
            let doubled = if self.steps_up > 3 { 2.0 } else { 1.0 };
            self.velocity = if filling { fastest } else { (doubled * self.velocity).min(fastest) };
        }
        self.window = self.bounded(self.window + self.velocity);
    }

    /// As large as the latency allows, and never less than it is: for that there are cuts.
    fn bounded(&self, window: f64) -> f64 {
        window.min(self.delay.window_max().max(self.window))
    }

    fn cut(&mut self, factor: f64) {
        self.window *= factor;
        self.steps_up = 0;
        self.calm_rounds = 0;
        self.velocity = 1.0;
        self.held = true;
        self.history.clear();
    }

    fn end_startup(&mut self, factor: f64) {
        self.startup = None;
        self.cut(factor);
        self.velocity = (self.window / 16.0).max(1.0);
    }

    /// Startup once more, from where it is.
    fn restart(&mut self) {
        let Pfw { window, velocity, startup, edge, .. } = *self;
        self.former = Some(Former { window, velocity, startup, edge });
        self.startup = Some(Startup::default());
        self.edge = Edge::Far;
        self.held = false;
        self.history.clear();
    }

    /// As it was before that, and no larger: what it let in more waits at the broker.
    fn go_back(&mut self) {
        let Some(former) = self.former.take() else { return };
        let window = self.window.min(former.window);
        self.cut(window / self.window);
        (self.velocity, self.startup, self.edge) = (former.velocity, former.startup, former.edge);
        self.probe = None;
        self.clamp(self.window);
    }

    fn start_probe_if_stale(&mut self, now_us: u64, mean_us: f64, round: &Round) {
        let near = self.is_near_base(round);
        let since_us = *self.near_base_us.get_or_insert(now_us);
        if near {
            self.near_base_us = Some(now_us);
        } else if now_us.saturating_sub(since_us) >= self.probe_wait_us
            && self.window > 2.0 * self.floor()
        {
            let until_us = now_us + (1.5 * mean_us) as u64;
            self.probe = Some(Probe { until_us, window_before: self.window });
            self.window /= 2.0;
            self.near_base_us = Some(now_us);
            self.probe_wait_us = self.jittered(STALE_US);
        }
    }

    fn end_probe(&mut self, now_us: u64, round: &Round) {
        if let Some(probe) = self.probe.take_if(|probe| probe.until_us <= now_us) {
            self.window = 0.9 * probe.window_before;
            self.history.clear();
            self.held = true;
            if self.is_near_base(round) {
                self.near_base_us = Some(now_us);
            }
            self.clamp(self.window);
        }
    }

    /// Whether the quickest of a round took about as long as a lonely message does.
    fn is_near_base(&self, round: &Round) -> bool {
        round.least_us() as f64 <= 1.25 * self.delay.base_us() + 250.0
    }

    fn halve(&mut self) {
        self.probe = None;
        self.startup = None;
        let before = self.window;
        self.cut(0.5);
        self.clamp(before);
    }

    /// Between floor and ceiling; from below the floor it rises to `raised` at most.
    fn clamp(&mut self, raised: f64) {
        let floor = if self.delay.is_narrow() { 1.0 } else { self.floor().min(raised).max(1.0) };
        self.window = self.window.clamp(floor, f64::from(self.options.ceiling_messages));
    }

    fn floor(&self) -> f64 {
        let floor = self.options.floor_messages.max(self.delay.floor_messages());
        f64::from(floor.min(self.options.ceiling_messages))
    }

    /// `around_us` more or less a quarter.
    fn jittered(&mut self, around_us: u64) -> u64 {
        // SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let half = around_us / 2;
        around_us - half / 2 + (z ^ (z >> 31)) % half.max(1)
    }

    /// Once is enough for a round: of a busy publisher's messages nearly each would say it again.
    fn look_for_limit(&mut self, load: Load) {
        if self.round.limited() {
            return;
        }
        let (window, now) = (self.window(), load.in_flight);
        if load.waiting || now.messages >= window.messages || now.bytes >= window.bytes {
            self.round.set_limited();
        }
    }
}

impl Window for Pfw {
    fn sent(&mut self, now_us: u64, load: Load) -> bool {
        if load.in_flight.messages <= 1 {
            self.busy_since_us = now_us;
        }
        let first = self.size.get().is_none(); // it goes by the size of what is sent
        if first {
            let size_bytes =
                load.in_flight.bytes as f64 / f64::from(load.in_flight.messages.max(1));
            let most = f64::from(self.options.floor_messages);
            self.window = (INITIAL_BYTES / size_bytes).clamp(1.0, most);
        }
        self.look_for_limit(load);
        first
    }

    fn confirmed(&mut self, now_us: u64, sample: Sample, load: Load) {
        let rtt_us = sample.rtt_us.max(1);
        let sent_us = now_us.saturating_sub(rtt_us);
        let silence_us = now_us.saturating_sub(self.busy_since_us);
        if silence_us > SILENCE_MIN_US && silence_us as f64 > 3.0 * self.measured_us {
            self.stalled_until_us = Some(now_us);
        }
        self.busy_since_us = now_us;
        if self.stalled_until_us.is_some_and(|until_us| sent_us >= until_us) {
            self.stalled_until_us = None;
        }
        let stalled = self.stalled_until_us.is_some();
        if !stalled {
            self.delay.add(now_us, rtt_us);
        }
        self.confirmed_since_reading = true;
        self.size.add(sample.bytes as f64);
        self.round.add(rtt_us, stalled);
        let in_flight = load.in_flight.plus(Amount::message(sample.bytes));
        self.look_for_limit(Load { in_flight, ..load });
        let long_enough = self.startup.is_some() || self.round.lasts_us(now_us) >= ROUND_MIN_US;
        if long_enough && self.round.ends_with(sent_us) {
            self.steer(now_us);
        }
    }

    fn rejected(&mut self, now_us: u64, _load: Load) {
        self.busy_since_us = now_us;
        if !std::mem::replace(&mut self.rejected_round, true) {
            self.halve();
        }
    }

    fn network(&mut self, now_us: u64, reading: Option<KernelReading>) -> bool {
        // A connection that rests shows the same reading again and again, which says nothing about it.
        if reading.is_some() && !std::mem::take(&mut self.confirmed_since_reading) {
            return false;
        }
        let longer = self.delay.set_network(now_us, reading, self.window, self.measured_us);
        if longer {
            // What the window learned was about another route. While the reading lagged it was even cut.
            self.restart();
        }
        longer
    }

    fn route_is_no_longer(&mut self, now_us: u64, rtt_us: u64, rest_us: u64) {
        if self.delay.refute_longer(now_us, rtt_us, rest_us) {
            self.go_back();
        }
    }

    fn broker(&mut self, kind: BrokerKind) {
        self.delay.set_broker(kind);
    }

    fn commit_time(&mut self, told: CommitTime) {
        let before = self.delay.part();
        let slower = self.delay.set_commit(told);
        let changes = self.delay.part() / before;
        if changes != 1.0 && self.startup.is_none() && !slower {
            // At once, and what is in flight from before tells nothing of the new one.
            self.window *= changes;
            self.held = true;
            self.history.clear();
            self.clamp(self.window);
        }
        if slower {
            // It was cut for what was no queue. By startup a window that is large already would overshoot by as much.
            self.velocity = (self.window / FASTEST).max(1.0);
            self.steps_up = 4;
            self.held = false;
            self.history.clear();
        }
    }

    fn together(&mut self, now_us: u64, told: Together) {
        self.delay.set_together(now_us, told);
    }

    fn service_us(&self) -> Option<u64> {
        self.delay.service_us()
    }

    fn wants_full_packets(&self) -> bool {
        self.delay.wants_full_packets()
    }

    fn blocked(&mut self, _now_us: u64) {
        self.blocked = true;
    }

    fn unblocked(&mut self, now_us: u64) {
        if std::mem::take(&mut self.blocked) {
            self.halve();
            self.round = Round::new(now_us);
            self.busy_since_us = now_us;
        }
    }

    fn window(&self) -> Amount {
        let bytes = 2.0 * self.window * self.size.get().unwrap_or(0.0);
        Amount {
            messages: self.window as u32,
            bytes: (bytes as u64)
                .clamp(FLOOR_BYTES.min(self.options.ceiling_bytes), self.options.ceiling_bytes),
        }
    }

    fn pace(&self) -> Option<Pace> {
        // Blocked or rejected in its first round it is no longer starting up, and nothing is measured yet.
        let measured = self.delay.us() > 0.0;
        let spreads = self.delay.is_distant() && !self.delay.has_visits();
        if self.startup.is_some() || !measured || !spreads {
            return None;
        }
        // After a broker stood still the latency is not what comes.
        let round_us = self.measured_us.clamp(self.delay.base_us(), self.delay.us());
        let per_us = PACE * self.window / round_us;
        let grain_us = (PACE_BATCH / per_us).min(round_us / PACE_BATCHES).max(PACE_GRAIN_US);
        Some(Pace {
            messages_per_s: (per_us * 1e6).ceil() as u64,
            burst_messages: (per_us * (grain_us + PACE_GRAIN_US)).ceil() as u64,
            grain_us: grain_us as u64,
        })
    }

    fn state(&self) -> WindowState {
        WindowState {
            window_messages: self.window,
            phase: match (self.blocked, self.startup.is_some(), self.probe) {
                (true, _, _) => Phase::Blocked,
                (_, true, _) => Phase::Startup,
                (_, _, Some(_)) => Phase::Draining,
                (_, _, None) => Phase::Steady,
            },
            network_us: self.delay.network().unwrap_or(0),
            base_us: self.delay.base_us() as u64,
            target_us: self.delay.us() as u64,
            measured_us: self.measured_us as u64,
        }
    }
}
