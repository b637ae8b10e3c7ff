//! The kernel's round trip time, and whether to believe it.
//!
//! It is the round trip as it is, so a queue in the link, or a machine that is slow to acknowledge, is in it. Where
//! that queue is ours, a base that follows the reading feeds itself. So what counts is at most 1.15 times the
//! least of the last 10 to 20 s (1 ms more if that is longer), and from 1.3 times on it is a queue. A route that is really
//! longer is told from a queue by our window: it has not grown since the route was last seen without one, or, far away, half as long; by its lasting; and
//! by its being most of what a confirm takes, since a longer route lets our own queue run empty. A busy broker's kernel
//! acknowledges when the broker reads: twenty publishers on one machine read 2 to 3 ms there, of the 5 to 8 ms that a
//! confirm took. A thousand read 40 ms, the time after which Linux acknowledges by itself, of the 40 to 70 of a confirm, and one
//! connection cannot tell that from a route. So none to this very machine is taken for a longer one. But where bytes lately waited here though the peer had room, the queue may be TCP's, whose own window still
//! suits the route before: 3000 messages took 25 ms on a route of 10, and that was not seen for six seconds.
//!
//! RabbitMQ's kernel acknowledges when a process of RabbitMQ gets round to reading: after 13 ms on one machine, as long as a confirm
//! took. So what counts is also at most twice the least that the kernel has seen in minutes (1 ms more), and half of the
//! readings of a longer route are at most a quarter above the quickest confirm, which is never quicker than a round
//! trip, and twice what the peer lately showed at least. Until the kernel forgets the route before, which takes minutes, its
//! least is not believed then, unless confirms come that are quicker.
//!
//! Where the queue is on the way, and is most of what a message waits for, the link is full ([`NetworkRtt::is_full`]): no
//! broker's visits are dear there, however many messages they bring. TCP that fills a router's queue (Cubic) shows it by
//! the round trip; one that does not (BBR) by the bytes that it has not sent yet.
//!
//! Before such a link a longer round trip is a queue, ours or that of others who publish there: it is no longer route where the link
//! was full and narrow as it began to rise, unless the broker tells that nobody else publishes and a single message is in flight. Who
//! took it for one began startup anew, with a hundred times the knee's window, on a new connection that had not seen the route empty.
//! Nor is it one within the first twenty readings: twenty who begin together never see a short one.
//!
//! Another connection's first round trip tells a longer route from a late peer after all ([`crate::Renewal`]). One that is refuted is
//! forgotten ([`NetworkRtt::refute`]): that round trip is the least there is then.
//!
//! `tcpi_rtt` is a smoothed value that moves with every acknowledged segment, by microseconds at least. One
//! that stands still comes from something that is not measuring, such as a tunnel's end, and then none is
//! better: see [`crate::pfw`] on what changes without it.

use std::collections::VecDeque;

use crate::kernel_reading::KernelReading;
use crate::renewal::Renewal;
use crate::windowed_min::WindowedMin;

/// Readings in a row, all the same, after which they are not believed: 2 s at ten a second.
const FROZEN_READINGS: u32 = 20;
/// Recent readings, of which the second largest counts. One outlier does not move it, a longer route is
/// seen with its second reading, a shorter one with its fourth. Of noise it shows the upper side, which costs
/// some delay; the lower side would cost throughput.
const READINGS: usize = 5;
const RECENT_BITS: u8 = (1 << READINGS) - 1;
/// A route is taken for another one when it is longer by this factor, and by this time.
const LONGER_FACTOR: u64 = 2;
const LONGER_MIN_US: u64 = 1_000;
/// And for so many readings: what other publishers put into a queue goes sooner.
const LONGER_READINGS: u32 = 8;
/// And it is at least this share of the latency, unless with so many of the recent readings TCP held back what the peer had
/// room for.
const LONGER_SHARE: f64 = 0.6;
const HELD_BACK_READINGS: u32 = 3;
/// A link is full where its queue is this share of what a message waits beside the route's own time, or any where the broker tells
/// that it cannot take half of that,
const FULL_SHARE: f64 = 0.75;
/// or bytes that are not sent yet wait for it; and for so long after that was last seen, or windows of one message would
/// be eight again and fill the queue.
const FULL_US: u64 = 10_000_000;
/// A queue lasts for so many readings.
const STANDING_READINGS: usize = 3;
/// A route is not taken for a longer one before that: who begins does not know yet how long it is without a queue.
const SETTLED_READINGS: usize = 20;
/// On one machine the kernel's round trip is a scheduler's turn, and says nothing of a link.
pub(crate) const DISTANT_MIN_US: u64 = 2_000;
/// Readings over which a rise is seen.
const RISE_READINGS: usize = 3;
/// The quickest confirm is of the last second or two. Half of the readings of a longer route are not above it, but for noise;
const QUICKEST_BUCKET_US: u64 = 1_000_000;
const LONGER_QUICKEST: f64 = 1.25;
/// and what is so far above it never was a longer route.
const NEVER_QUICKEST: f64 = 1.5;
/// A refuted round trip may be the route's own soon, however long nobody looks again.
const REFUTED_MAX_US: u64 = 60_000_000;
/// A route varies so much, in minutes.
const KERNEL_FACTOR: u64 = 2;

/// A reading counts as the route's own up to the least one by this much. What is above it is a queue.
const QUEUE_FACTOR: f64 = 1.3;
/// Of a queue this much is taken for noise.
const COUNTS_FACTOR: f64 = 1.15;
const QUEUE_MIN_US: u64 = 1_000;
/// The least reading is forgotten after one to two of these.
const LEAST_BUCKET_US: u64 = 10_000_000;
/// A rise is our own queue if the window grew by this since the route was last seen without one.
const GREW_FACTOR: f64 = 1.25;
/// Or since it was half as long: of so many readings, 10 s of a busy connection, the window is remembered. A machine whose queue
/// is always a little longer than the least shows no route without one. Not next door, where what becomes twice as long is the time
/// until a crowded broker reads.
const REMEMBERED: usize = 100;
/// A queue of our own is thought to last for so long after the window that made it.
const OWN_QUEUE_US: u64 = 2_000_000;

#[derive(Debug)]
pub(crate) struct NetworkRtt {
    route_us: u64, // average since the last change of route
    recent: [u64; READINGS],
    taken: usize,
    same: u32,
    long: u32,
    least: WindowedMin,
    least_seen: WindowedMin, // of [NetworkRtt::seen], on which noise shows less
    calm_window: f64,        // the largest window at which the route showed no queue
    under: VecDeque<Under>,  // the last readings, at most REMEMBERED
    grew: bool,              // the window has since the route showed no queue, or was larger lately
    own: bool,               // and since a reading was half as long
    /// As the kernel tells it, of some minutes; 0: it does not. Not believed while it is of the route before.
    kernel_least_us: u64,
    former_least_us: u64,
    former: Option<Former>,
    refuted: Option<Refuted>,
    quickest: WindowedMin, // confirm
    unsent_bytes: u64,
    held_back: u8, // a bit for each of the recent readings, the last one's lowest
    full: bool,
    full_until_us: u64,
    /// The link was full and narrow when readings began to be those of a longer route.
    long_for_queue: bool,
    /// [NetworkRtt::get]: each message asks for it, and it changes with a reading.
    believed_us: Option<u64>,
}

/// What else is known as a reading is taken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known {
    /// Messages wait for a link that carries little.
    pub(crate) narrow: bool,
    /// The broker tells that nobody else publishes.
    pub(crate) alone: bool,
    /// What it may take at most by what it tells; infinite if it does not.
    pub(crate) broker_most_us: f64,
}

/// A reading and the window under which it was taken.
#[derive(Debug, Clone, Copy)]
struct Under {
    now_us: u64,
    rtt_us: u64,
    window: f64,
}

/// What was known of the route before it became longer.
#[derive(Debug, Clone, Copy)]
struct Former {
    calm_window: f64,
    former_least_us: u64,
}

/// Another connection has shown that such readings are no longer route.
#[derive(Debug, Clone, Copy)]
struct Refuted {
    rtt_us: u64,
    until_us: u64,
}

impl Default for NetworkRtt {
    fn default() -> NetworkRtt {
        NetworkRtt {
            route_us: 0,
            recent: [0; READINGS],
            taken: 0,
            same: 0,
            long: 0,
            least: WindowedMin::new(LEAST_BUCKET_US),
            least_seen: WindowedMin::new(LEAST_BUCKET_US),
            calm_window: 0.0,
            under: VecDeque::new(),
            grew: false,
            own: false,
            kernel_least_us: 0,
            former_least_us: 0,
            former: None,
            refuted: None,
            quickest: WindowedMin::new(QUICKEST_BUCKET_US),
            unsent_bytes: 0,
            held_back: 0,
            full: false,
            full_until_us: 0,
            long_for_queue: false,
            believed_us: None,
        }
    }
}

impl NetworkRtt {
    /// Takes a reading in, the window in messages that it was taken under, and the mean latency of that; true if the
    /// route has become much longer.
    pub(crate) fn set(
        &mut self,
        now_us: u64,
        reading: Option<KernelReading>,
        window: f64,
        latency_us: f64,
        known: Known,
    ) -> bool {
        let Some(reading) = reading.filter(|reading| reading.rtt_us > 0) else {
            *self = NetworkRtt::default();
            return false;
        };
        let rtt_us = reading.rtt_us;
        (self.kernel_least_us, self.unsent_bytes) = (reading.least_rtt_us, reading.unsent_bytes);
        let last = (self.taken > 0).then(|| self.recent[(self.taken - 1) % READINGS]);
        self.same = if last == Some(rtt_us) { self.same.saturating_add(1) } else { 0 };
        self.recent[self.taken % READINGS] = rtt_us;
        self.held_back = (self.held_back << 1 | u8::from(self.unsent_bytes > 0)) & RECENT_BITS;
        self.taken += 1;
        self.least.add(now_us, rtt_us);
        // A busy machine that always acknowledges late shows no queue of ours by that.
        if rtt_us <= longer_by(QUEUE_FACTOR, &self.least) {
            self.calm_window = self.calm_window.max(window);
        }
        if self.under.len() == REMEMBERED {
            self.under.pop_front();
        }
        self.under.push_back(Under { now_us, rtt_us, window });
        let lately = self.largest_window(|under| under.now_us + OWN_QUEUE_US > now_us);
        let far = self.believed_us.unwrap_or(0) >= DISTANT_MIN_US;
        let at_half = match far {
            true => self.largest_window(|under| 2 * under.rtt_us <= rtt_us),
            false => 0.0,
        };
        self.grew = lately > GREW_FACTOR * self.calm_window;
        self.own = lately > GREW_FACTOR * self.calm_window.max(at_half);
        let Some(seen_us) = self.seen() else {
            self.believed_us = None;
            return false;
        };
        if self.taken >= READINGS {
            self.least_seen.add(now_us, seen_us);
        }
        // What the peer always adds before it acknowledges makes no route longer.
        let refuted = self.refuted.filter(|refuted| now_us < refuted.until_us);
        let refuted_us = refuted.map_or(0, |refuted| refuted.rtt_us);
        let shown_us = self.route_us.max(self.least.get().unwrap_or(0)).max(refuted_us);
        let longest_us = (LONGER_FACTOR * shown_us).max(shown_us + LONGER_MIN_US);
        let held_back = self.held_back.count_ones() >= HELD_BACK_READINGS;
        let is_most = held_back || seen_us as f64 >= LONGER_SHARE * latency_us;
        let long = !reading.same_machine && seen_us >= longest_us && is_most && !self.own;
        if long && self.long == 0 {
            // What was confirmed before says nothing of a route that has only just become longer.
            self.quickest = WindowedMin::new(QUICKEST_BUCKET_US);
            self.long_for_queue = self.full && known.narrow;
        }
        let own_queue = self.long_for_queue && !(known.alone && window < 2.0);
        let long = long && !own_queue && self.taken >= SETTLED_READINGS;
        self.long =
            if long && !self.outlasts_confirms(LONGER_QUICKEST) { self.long + 1 } else { 0 };
        let longer = self.taken > 1 && self.long >= LONGER_READINGS;
        if longer {
            let Self { calm_window, former_least_us, .. } = *self;
            self.former = Some(Former { calm_window, former_least_us });
            self.least = WindowedMin::new(LEAST_BUCKET_US);
            self.least.add(now_us, seen_us);
            self.least_seen = self.least;
            self.calm_window = window;
            self.under.clear();
            self.former_least_us = self.kernel_least_us;
        } else if self.outlasts_confirms(NEVER_QUICKEST) {
            self.former_least_us = 0;
        }
        self.route_us = match longer || self.taken == 1 {
            true => seen_us,
            // A slow average, so that noise does not look like a change, and a gradual change does.
            false => (15 * self.route_us + seen_us.min(self.longest_own_us())) / 16,
        };
        self.believed_us = self.believed_us();
        let route_us = self.believed_us.unwrap_or(0);
        let waits_us = (latency_us - route_us as f64).max(0.0);
        let standing_us = self.standing_us();
        let queued_us = standing_us.saturating_sub(route_us) as f64;
        let is_the_links =
            queued_us >= FULL_SHARE * waits_us || waits_us > 2.0 * known.broker_most_us;
        let queues = standing_us > self.longest_own_us() && is_the_links;
        if route_us >= DISTANT_MIN_US && (queues || self.unsent_bytes > 0) {
            self.full_until_us = now_us + FULL_US;
        }
        self.full = now_us < self.full_until_us;
        longer
    }

    /// Another connection has this round trip, and was asked because of readings like the last ones: those are no longer route, for
    /// so long, but for a minute at most. True if one was believed in until now that this refutes.
    pub(crate) fn refute(&mut self, now_us: u64, rtt_us: u64, rest_us: u64) -> bool {
        let Some(seen_us) = self.seen() else { return false };
        let until_us = now_us.saturating_add(rest_us.min(REFUTED_MAX_US));
        self.refuted = Some(Refuted { rtt_us: seen_us, until_us });
        self.long = 0;
        let is_refuted = !Renewal::is_longer(rtt_us, self.route_us);
        let Some(former) = self.former.take_if(|_| is_refuted) else { return false };
        self.least = WindowedMin::new(LEAST_BUCKET_US);
        self.least.add(now_us, rtt_us);
        self.least_seen = self.least;
        self.calm_window = former.calm_window;
        self.former_least_us = former.former_least_us;
        self.under.clear();
        self.route_us = rtt_us;
        self.believed_us = self.believed_us();
        true
    }

    /// A message was confirmed after so long, which is not less than a round trip.
    pub(crate) fn confirmed(&mut self, now_us: u64, latency_us: u64) {
        self.quickest.add(now_us, latency_us);
    }

    /// The largest window of the remembered readings for which this holds.
    fn largest_window(&self, which: impl Fn(&Under) -> bool) -> f64 {
        let windows = self.under.iter().filter(|under| which(under)).map(|under| under.window);
        windows.fold(0.0, f64::max)
    }

    /// Whether most readings are longer than the quickest confirm, by this factor: what they show is no route.
    fn outlasts_confirms(&self, factor: f64) -> bool {
        let quickest_us = self.quickest.get().unwrap_or(u64::MAX);
        let (sorted, known) = self.sorted();
        sorted[known / 2] as f64 > factor * quickest_us as f64
    }

    /// The recent readings, least first, and how many there are.
    fn sorted(&self) -> ([u64; READINGS], usize) {
        let (mut recent, known) = (self.recent, self.taken.min(READINGS));
        recent[..known].sort_unstable();
        (recent, known)
    }

    /// The least of the last readings; 0 until there are as many, which is more than the handshake's.
    fn standing_us(&self) -> u64 {
        if self.taken <= STANDING_READINGS {
            return 0;
        }
        let last = (1..=STANDING_READINGS).map(|back| self.recent[(self.taken - back) % READINGS]);
        last.min().unwrap_or(0)
    }

    /// The last reading, a queue and all.
    pub(crate) fn last_us(&self) -> u64 {
        if self.taken == 0 { 0 } else { self.recent[(self.taken - 1) % READINGS] }
    }

    /// As of the last reading, once.
    pub(crate) fn take_unsent(&mut self) -> u64 {
        std::mem::take(&mut self.unsent_bytes)
    }

    /// Whether messages wait for the link, and not for the broker.
    pub(crate) fn is_full(&self) -> bool {
        self.full
    }

    /// Beyond this a reading has a queue in it.
    fn longest_own_us(&self) -> u64 {
        longer_by(QUEUE_FACTOR, &self.least).min(self.longest_known_us())
    }

    /// What the kernel's own least makes likely.
    fn longest_known_us(&self) -> u64 {
        match self.kernel_least_us {
            us if us == 0 || us == self.former_least_us => u64::MAX,
            us => KERNEL_FACTOR * us + QUEUE_MIN_US,
        }
    }

    /// Whether the last readings rise: the kernel smooths, so that after a change of route they lag.
    pub(crate) fn rises(&self) -> bool {
        if self.taken <= RISE_READINGS || self.grew {
            return false;
        }
        let last_us = self.recent[(self.taken - 1) % READINGS];
        let before_us = self.recent[(self.taken - 1 - RISE_READINGS) % READINGS];
        last_us > before_us + (before_us / 10).max(LONGER_MIN_US)
    }

    /// The route's round trip, without what our own queue adds.
    pub(crate) fn get(&self) -> Option<u64> {
        self.believed_us
    }

    /// The same, of the readings there are.
    fn believed_us(&self) -> Option<u64> {
        let counts_us = longer_by(COUNTS_FACTOR, &self.least_seen).min(self.longest_own_us());
        self.seen().map(|us| us.min(counts_us))
    }

    fn seen(&self) -> Option<u64> {
        if self.taken == 0 || self.same >= FROZEN_READINGS {
            return None;
        }
        let (sorted, known) = self.sorted();
        Some(sorted[known.saturating_sub(2)])
    }
}

fn longer_by(factor: f64, least: &WindowedMin) -> u64 {
    let least_us = least.get().unwrap_or(u64::MAX / 2);
    ((factor * least_us as f64) as u64).max(least_us + QUEUE_MIN_US)
}

#[cfg(test)]
mod tests;
