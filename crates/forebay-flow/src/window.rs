//! How much may be in flight: the events a window hears and the questions it answers.
//!
//! A window says how many messages and bytes may be published and not yet confirmed. It counts nothing
//! itself: permits are the [gate](crate::Gate)'s, so that two counters can never disagree. One confirm
//! channel drives its pair like this:
//!
//! ```text
//!   publish    gate.ask ── admitted ──► write ──► window.sent(now_us, gate.load())
//!                          ──► if true gate.set_window(window.window())
//!   confirm    gate.settle ──► window.confirmed(now_us, sample, gate.load())
//!                          ──► gate.set_window(window.window()), gate.set_pace(now_us, window.pace())
//!                          ──► gate.next_admitted until None, and at gate.next_paced_us again
//! ```
//!
//! Times are microseconds of one monotonic clock, the caller's; that is also the unit of the kernel's
//! `tcpi_rtt`. No event of a window needs a timer: nothing grows without confirms, and a silence is seen as the
//! gap before the confirm that ends it.

use crate::amount::Amount;
use crate::broker_kind::BrokerKind;
use crate::commit_cost::CommitTime;
use crate::kernel_reading::KernelReading;
use crate::together::Together;

/// What the gate held at the moment of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    /// Published and not yet settled.
    pub in_flight: Amount,
    /// Whether somebody waits for a permit, and not only for the pace: it is the window that limits the flow.
    pub waiting: bool,
}

/// How fast what the window lets in may leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Messages a second, at least 1.
    pub messages_per_s: u64,
    /// So many at once after a pause, at least 1.
    pub burst_messages: u64,
    /// Who has to wait waits for so long at least, and leaves with those who came meanwhile.
    pub grain_us: u64,
}

/// One settled message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// From the message's admission to its confirm, in microseconds: what waits before the socket counts.
    pub rtt_us: u64,
    /// Bytes of the message's body.
    pub bytes: u64,
}

/// What a window does at present; for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Doubling, until the second round in a row above the target.
    Startup,
    /// Following its signal.
    Steady,
    /// Held low for a moment: a probe for the base, or a drain that a full window waits for.
    Draining,
    /// The broker has asked for no more publishes.
    Blocked,
}

/// What a window believes; for metrics. Microseconds, 0 where an algorithm has no such value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WindowState {
    /// The window before rounding down, in messages.
    pub window_messages: f64,
    /// What it does.
    pub phase: Phase,
    /// Round trip of the network, as last told and believed.
    pub network_us: u64,
    /// Network and the broker's service, without queueing.
    pub base_us: u64,
    /// The confirm latency that it steers for.
    pub target_us: u64,
    /// The confirm latency that it compares with the target.
    pub measured_us: u64,
}

impl WindowState {
    /// Of a window that measures nothing.
    pub(crate) fn untimed(window_messages: f64, phase: Phase) -> WindowState {
        WindowState {
            window_messages,
            phase,
            network_us: 0,
            base_us: 0,
            target_us: 0,
            measured_us: 0,
        }
    }
}

/// An algorithm that says how much may be in flight on one confirm channel.
///
/// After a reconnect make a new one: what the old one knew was about another path.
pub trait Window {
    /// A message was written; `load` counts it. True if the [window](Window::window) may be another one now: at a million messages a
    /// second it is not to be asked for each.
    fn sent(&mut self, now_us: u64, load: Load) -> bool;

    /// A message was confirmed. Call it for each message of a `multiple`, oldest first; `load` no longer
    /// counts the message, and nobody has been admitted in its place yet.
    fn confirmed(&mut self, now_us: u64, sample: Sample, load: Load);

    /// The broker refused a message (`basic.nack`); `load` as in [`Window::confirmed`].
    fn rejected(&mut self, now_us: u64, load: Load);

    /// What the kernel tells of the connection, at most ten times a second; `None` where it tells nothing, as over TLS proxies or in
    /// memory. True if with this reading the route has become much longer, which is told once.
    fn network(&mut self, now_us: u64, reading: Option<KernelReading>) -> bool {
        let _ = (now_us, reading);
        false
    }

    /// Another connection to the same peer has a round trip of `rtt_us`, so no route became longer up to what the kernel tells of
    /// this one: what was concluded from that is undone, and not concluded again for `rest_us` (our own windows: a minute at most),
    /// unless the kernel tells of twice as much.
    fn route_is_no_longer(&mut self, now_us: u64, rtt_us: u64, rest_us: u64) {
        let _ = (now_us, rtt_us, rest_us);
    }

    /// Whether messages should leave in full packets: so small are they, and a link that carries little is what they wait
    /// for, that the headers of a packet for each would be a good part of it. Changes with the readings of the network.
    fn wants_full_packets(&self) -> bool {
        false
    }

    /// What is known of the broker. Told once, before anything is sent.
    fn broker(&mut self, kind: BrokerKind) {
        let _ = kind;
    }

    /// What the broker tells of its commits. Before anything is sent, and whenever it changes.
    fn commit_time(&mut self, told: CommitTime) {
        let _ = told;
    }

    /// What all publishers of this process see of the broker; told about ten times a second, or never.
    fn together(&mut self, now_us: u64, told: Together) {
        let _ = (now_us, told);
    }

    /// The least time that the broker took for a message in the last 5 to 10 s, without the network's, in microseconds, for
    /// [`together`](Window::together); `None`: it does not look.
    fn service_us(&self) -> Option<u64> {
        None
    }

    /// `connection.blocked` arrived. Close the gate as well.
    fn blocked(&mut self, now_us: u64);

    /// `connection.unblocked` arrived. Open the gate again.
    fn unblocked(&mut self, now_us: u64);

    /// What may be in flight together; at least one message.
    fn window(&self) -> Amount;

    /// How fast that may leave; `None`: at once.
    fn pace(&self) -> Option<Pace> {
        None
    }

    /// What it believes.
    fn state(&self) -> WindowState;

    /// Messages that may be in flight together.
    fn window_messages(&self) -> u32 {
        self.window().messages
    }

    /// Bytes that may be in flight together.
    fn window_bytes(&self) -> u64 {
        self.window().bytes
    }

    /// Whether `more` may be written while `in_flight` is. With nothing in flight one message always
    /// passes, however large: a window of bytes must not shut out what is larger than itself.
    fn may_send(&self, in_flight: Amount, more: Amount) -> bool {
        self.state().phase != Phase::Blocked && admits(self.window(), in_flight, more)
    }
}

/// The rule of [`Window::may_send`], which the gate follows too.
pub(crate) fn admits(window: Amount, in_flight: Amount, more: Amount) -> bool {
    (in_flight.messages == 0 && more.messages <= 1) || in_flight.plus(more).fits(window)
}
