//! The connections that one publisher publishes on.
//!
//! ```text
//!   ordered     one lane. Moved:  old lane ──drains──▶ gone
//!                                 new lane: nothing is admitted before the old one is idle
//!   unordered   a lane on each connection of the pool; each message goes to one that has room
//! ```
//! A lane is a ledger on one connection: its window, its message-ids, its outcomes. Messages of an ordered publisher
//! are never on two connections together, so none overtakes another. A message stays on the lane that admitted it.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use crate::connection::Guard;
use crate::machine::ChannelError;
use crate::marks::Stamps;
use crate::message::{Message, since_1970_us};
use crate::metrics::PublisherMetrics;
use crate::publisher::Window;
use crate::session::{Idler, Ledger, Phase, Published, Target};
use crate::shell::random_u64;

/// A ledger on a connection; it goes when its last user does and nothing is in flight.
pub(crate) struct Lane {
    pub(crate) guard: Arc<Guard>,
    pub(crate) key: usize,
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.guard.link.with(|session| session.drop_ledger(self.key));
    }
}

impl Lane {
    /// Every admitted message has its outcome, and nobody waits.
    fn is_idle(&self) -> bool {
        self.guard.link.with(|session| session.ledger(self.key).0.is_idle())
    }

    fn metrics(&self) -> PublisherMetrics {
        self.guard.link.with(|session| session.ledger(self.key).0.metrics())
    }

    /// `offered_us` of a message that gets marks.
    fn publish(&self, message: Message, offered_us: Option<u64>, window: &Window) -> Published {
        self.guard.link.with_now(|session, now_us| {
            let fixed = window.fixed_messages();
            let stamps = offered_us.map(|us| Stamps::new(us, since_1970_us(), now_us, fixed));
            session.publish(self.key, message, stamps, now_us)
        })
    }

    fn has_room(&self) -> bool {
        self.guard.link.with(|session| session.has_room(self.key))
    }

    fn is_serving(&self) -> bool {
        self.guard.link.with(|session| session.is_serving(self.key))
    }

    /// Who waits here for a connection that is down asks again.
    fn turn_away_if_down(&self) {
        self.guard.link.with(|session| {
            if *session.phase() != Phase::Up {
                session.turn_away(self.key);
            }
        });
    }
}

/// Ready once all that had been published on a lane when it began has its outcome, and nobody waits there who did then.
pub(crate) struct Idle {
    lane: Arc<Lane>,
    idler: Idler,
}

impl Idle {
    pub(crate) fn begin(lane: Arc<Lane>) -> Idle {
        let idler = lane.guard.link.with(|session| session.ledger(lane.key).0.begin_idling());
        Idle { lane, idler }
    }
}

impl Future for Idle {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Lane { guard, key } = &*self.lane;
        guard.link.with(|session| session.ledger(*key).0.poll_idle(self.idler, cx))
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        let Lane { guard, key } = &*self.lane;
        guard.link.with(|session| session.ledger(*key).0.stop_idling(self.idler));
    }
}

/// What each lane is opened with.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) target: Target,
    pub(crate) window: Window,
    pub(crate) stall_us: Option<u64>,
    pub(crate) limit_us: Option<u64>,
    pub(crate) ordered: bool,
}

/// See the module's documentation.
pub(crate) struct Lanes {
    plan: Plan,
    state: Mutex<State>,
}

struct State {
    /// Never empty.
    lanes: Arc<[Arc<Lane>]>,
    /// Nobody publishes there any more.
    leaving: Vec<Arc<Lane>>,
    /// What lanes counted that are gone.
    past: PublisherMetrics,
    /// The lane of the next message.
    next: usize,
    /// Outcomes that [`Lanes::look`] told of.
    looked_at: u64,
}

/// The answer to a caller who wants to publish.
pub(crate) enum Asked {
    /// The ledger's.
    Answered(Arc<Lane>, Published),
    /// The publisher moves; ask again when this lane is idle.
    After(Arc<Lane>, Message),
}

/// What a publisher did since the last look.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Look {
    pub(crate) outcomes: u64,
    pub(crate) waited: bool,
    pub(crate) latency_us: u64,
}

impl Lanes {
    /// Lanes on `guards`: all of them for an unordered publisher, the first one otherwise.
    pub(crate) fn new(plan: Plan, guards: &[Arc<Guard>]) -> Lanes {
        let guards = if plan.ordered { &guards[..1] } else { guards };
        let state = State {
            lanes: guards.iter().map(|guard| plan.open(guard)).collect(),
            leaving: Vec::new(),
            past: PublisherMetrics::default(),
            next: 0,
            looked_at: 0,
        };
        Lanes { plan, state: Mutex::new(state) }
    }

    /// Whether any lane can publish, now or when its connection is there again.
    ///
    /// # Errors
    /// All channels of its connections are in use.
    pub(crate) fn check_free_channel(&self) -> Result<(), ChannelError> {
        let mut full = Ok(());
        for lane in self.lock().lanes.iter() {
            full = lane.guard.link.with(|session| session.check_fed(lane.key));
            if full.is_ok() {
                break;
            }
        }
        full
    }

    pub(crate) fn target(&self) -> &Target {
        &self.plan.target
    }

    pub(crate) fn is_ordered(&self) -> bool {
        self.plan.ordered
    }

    /// Publishes on the lane whose turn it is; with marks if it says when it was offered.
    pub(crate) fn publish(&self, message: Message, offered_us: Option<u64>) -> Asked {
        let mut state = self.lock();
        if self.plan.ordered {
            state.forget_idle(self.plan.ordered);
            if let Some(leaving) = state.leaving.first() {
                return Asked::After(leaving.clone(), message);
            }
            // Asked under the lock: whoever moves the publisher comes before this message or after it.
            let lane = state.lanes[0].clone();
            let published = lane.publish(message, offered_us, &self.plan.window);
            return Asked::Answered(lane, published);
        }
        let lanes = state.lanes.clone();
        let first = state.next % lanes.len();
        state.next = first + 1;
        drop(state);
        let turns = || (0..lanes.len()).map(|turn| &lanes[(first + turn) % lanes.len()]);
        // Who has to wait does so where somebody is served.
        let serving = || turns().find(|lane| lane.is_serving());
        let lane = turns().find(|lane| lane.has_room()).or_else(serving).unwrap_or(&lanes[first]);
        let lane = lane.clone();
        let published = lane.publish(message, offered_us, &self.plan.window);
        Asked::Answered(lane, published)
    }

    /// Waits until every message published so far has its outcome.
    pub(crate) async fn idle(&self) {
        let lanes: Vec<Idle> = {
            let state = self.lock();
            state.leaving.iter().chain(state.lanes.iter()).cloned().map(Idle::begin).collect()
        };
        for idle in lanes {
            idle.await;
        }
    }

    /// Counted over all lanes, past ones too.
    pub(crate) fn metrics(&self) -> PublisherMetrics {
        self.lock().metrics()
    }

    // ---- the pool

    /// The connection of an ordered publisher, unless it is just being moved.
    pub(crate) fn place(&self) -> Option<Arc<Guard>> {
        let mut state = self.lock();
        state.forget_idle(self.plan.ordered);
        (self.plan.ordered && state.leaving.is_empty()).then(|| state.lanes[0].guard.clone())
    }

    /// From now on on `guard` (ordered), or there, too.
    pub(crate) fn enter(&self, guard: &Arc<Guard>) {
        let lane = self.plan.open(guard);
        let mut state = self.lock();
        if self.plan.ordered {
            let before = std::mem::replace(&mut state.lanes, Arc::new([lane]));
            state.leaving.extend(before.iter().cloned());
        } else {
            state.lanes = state.lanes.iter().cloned().chain([lane]).collect();
        }
    }

    /// From now on not on `guard` any more but, if it was the only one, on `instead`. False: it was not there.
    pub(crate) fn leave(&self, guard: &Arc<Guard>, instead: &Arc<Guard>) -> bool {
        let is_there = |lane: &Arc<Lane>| Arc::ptr_eq(&lane.guard, guard);
        let (gone, left): (Vec<_>, Vec<_>) = {
            let state = self.lock();
            state.lanes.iter().cloned().partition(is_there)
        };
        if gone.is_empty() {
            return false;
        }
        if left.is_empty() {
            self.enter(instead);
            if self.plan.ordered {
                return true;
            }
        }
        let mut state = self.lock();
        state.lanes = state.lanes.iter().filter(|lane| !is_there(lane)).cloned().collect();
        state.leaving.extend(gone);
        true
    }

    /// What happened since the last look; drained lanes go, and nobody without order waits for a connection that is down while
    /// another one is there.
    pub(crate) fn look(&self) -> Look {
        let mut state = self.lock();
        state.forget_idle(self.plan.ordered);
        let metrics = state.metrics();
        if metrics.waiting > 0 && !self.plan.ordered {
            state.turn_away();
        }
        let outcomes = metrics.confirmed
            + metrics.rejected
            + metrics.returned
            + metrics.unknown
            + metrics.withdrawn;
        let before = std::mem::replace(&mut state.looked_at, outcomes);
        Look {
            outcomes: outcomes.saturating_sub(before),
            waited: metrics.waiting > 0,
            latency_us: metrics.confirm_latency.recent_us,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Lanes that were left go when nothing is in flight on them. Somebody who publishes without order may have chosen one
    /// before it was left: it stays until he has.
    fn forget_idle(&mut self, ordered: bool) {
        let State { leaving, past, .. } = self;
        leaving.retain(|lane| {
            let idle = (ordered || Arc::strong_count(lane) == 1) && lane.is_idle();
            if idle {
                past.add_counts(&lane.metrics());
            }
            !idle
        });
    }

    /// When they came, no connection may have been there.
    fn turn_away(&self) {
        if self.lanes.iter().any(|lane| lane.is_serving()) {
            self.leaving.iter().chain(self.lanes.iter()).for_each(|lane| lane.turn_away_if_down());
        }
    }

    fn metrics(&self) -> PublisherMetrics {
        let mut sum = self.past;
        for lane in self.leaving.iter().chain(self.lanes.iter()) {
            let metrics = lane.metrics();
            sum.add_counts(&metrics);
            sum.in_flight_messages += metrics.in_flight_messages;
            sum.in_flight_bytes += metrics.in_flight_bytes;
            sum.waiting += metrics.waiting;
        }
        for lane in self.lanes.iter() {
            sum.add_window(&lane.metrics());
        }
        sum
    }
}

impl Plan {
    fn open(&self, guard: &Arc<Guard>) -> Arc<Lane> {
        let id_prefix = format!("{:016x}-", random_u64());
        let mut ledger = Ledger::new(self.target.clone(), &id_prefix, self.window.clone().make());
        ledger.set_stall_us(self.stall_us);
        ledger.set_limit_us(self.limit_us);
        ledger.set_ordered(self.ordered);
        let key = guard.link.with_now(|session, now_us| session.add_ledger(ledger, now_us));
        if self.limit_us.is_some() {
            guard.link.limited();
        }
        Arc::new(Lane { guard: guard.clone(), key })
    }
}
