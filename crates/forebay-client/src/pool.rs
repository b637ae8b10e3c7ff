//! The connections that publishers share: one, and more while more deliver more.
//!
//! `forebay_flow::connections` decides; here its decisions are carried out. A connection is opened beside the others
//! and publishers move over to it, or it is left by all its publishers and closes once nothing is in flight on it. One
//! whose route has become longer is left for another in its place (`forebay_flow::renewal`): its TCP keeps what suited the
//! route before. BBR goes on for up to ten seconds with the least round trip that it has seen (draft-ietf-ccwg-bbr,
//! `MinRTTFilterLen`), Cubic leaves slow start once and then takes seconds to where it began (RFC 9438).
//! Each connection recovers by itself. Callers, channels and declarations stay on the first there was.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use forebay_flow::{Connections, Decision, Delivered, Renewal};
use tokio::time::Instant;

use crate::connection::{Guard, Setup};
use crate::happening::Happening;
use crate::lanes::Lanes;
use crate::outcome::Unheard;

/// Connections of a pool at most, unless set.
pub(crate) const CONNECTIONS_MAX: u32 = 4;
/// How often the rate is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// The same while nothing is published.
const LOOK_IDLE: Duration = Duration::from_secs(1);

/// See the module's documentation.
pub(crate) struct Pool {
    setup: Setup,
    /// The connection's own, which others may take the place of here.
    main: Arc<Guard>,
    max: u32,
    state: Mutex<State>,
}

struct State {
    /// At first the connection's own. Empty once the pool is closed.
    members: Vec<Arc<Guard>>,
    /// Left by all publishers; each goes when nothing is in flight on it, and no outcome of it is kept.
    retired: Vec<Arc<Guard>>,
    /// Of connections that are gone.
    unheard: Unheard,
    publishers: Vec<Publishing>,
    /// Somebody looks at the rate.
    kept: bool,
}

/// One publisher of the pool.
struct Publishing {
    lanes: Weak<Lanes>,
    /// Its rate as the last look saw it.
    outcomes: u64,
}

impl Pool {
    pub(crate) fn new(setup: Setup, main: Arc<Guard>, max: u32) -> Arc<Pool> {
        let state = State {
            members: vec![main.clone()],
            retired: Vec::new(),
            unheard: Unheard::default(),
            publishers: Vec::new(),
            kept: false,
        };
        Arc::new(Pool { setup, main, max: max.max(1), state: Mutex::new(state) })
    }

    /// A new publisher: `make` gets the connections, the least crowded first. `None`: the pool is closed.
    pub(crate) fn join(
        self: &Arc<Self>,
        make: impl FnOnce(&[Arc<Guard>]) -> Lanes,
    ) -> Option<Arc<Lanes>> {
        let mut state = self.lock();
        let mut guards = state.members.clone();
        if guards.is_empty() {
            return None;
        }
        let crowds = state.crowds(|_| 1);
        let least = (0..guards.len()).min_by_key(|&place| crowds[place]).unwrap_or(0);
        guards.swap(0, least);
        let lanes = Arc::new(make(&guards));
        state.publishers.retain(|publishing| publishing.lanes.strong_count() > 0);
        state.publishers.push(Publishing { lanes: Arc::downgrade(&lanes), outcomes: 0 });
        if self.max > 1 && !std::mem::replace(&mut state.kept, true) {
            tokio::spawn(keep(Arc::downgrade(self)));
        }
        Some(lanes)
    }

    /// Its connections; the first is the connection's own, or what took its place.
    pub(crate) fn members(&self) -> Vec<Arc<Guard>> {
        self.lock().members.clone()
    }

    /// No connection will be opened or left any more; those there were beside the connection's own, and what nobody was told
    /// of on those that are gone.
    pub(crate) fn close(&self) -> (Vec<Arc<Guard>>, Unheard) {
        let mut state = self.lock();
        let mut guards = std::mem::take(&mut state.members);
        guards.append(&mut state.retired);
        guards.retain(|guard| !Arc::ptr_eq(guard, &self.main));
        (guards, state.unheard)
    }

    /// What all publishers did since the last look, and how many connections they could use.
    fn look(&self) -> Option<(Delivered, u32)> {
        let mut state = self.lock();
        if state.members.is_empty() {
            return None;
        }
        let mut delivered = Delivered { messages: 0, waited: false, lost: false, latency_us: 0 };
        let mut useful = 0_u32;
        state.publishers.retain_mut(|publishing| {
            let Some(lanes) = publishing.lanes.upgrade() else { return false };
            let look = lanes.look();
            publishing.outcomes = look.outcomes;
            delivered.messages += look.outcomes;
            delivered.waited |= look.waited;
            if look.outcomes > 0 {
                delivered.latency_us = delivered.latency_us.max(look.latency_us);
            }
            useful = useful.saturating_add(if lanes.is_ordered() { 1 } else { u32::MAX });
            true
        });
        state.forget_retired();
        delivered.waited |= state.members.iter().any(|guard| guard.link.is_behind());
        delivered.lost = state.members.iter().any(|guard| guard.link.is_recovering());
        Some((delivered, useful))
    }

    /// One more connection, and its share of the publishers. False: it cannot be had.
    pub(crate) async fn grow(pool: &Weak<Pool>) -> bool {
        // Not held while a host is waited for: the pool goes with its last user.
        let Some(opening) = pool.upgrade().map(|pool| (pool.setup.clone(), pool.len())) else {
            return false;
        };
        let (setup, count) = opening;
        let guard = match setup.open(&format!(" (publishing {})", count + 1)).await {
            Ok(guard) => guard,
            Err(error) => {
                tracing::info!("no further connection for publishers: {error}");
                return false;
            }
        };
        let Some(pool) = pool.upgrade() else { return false };
        let mut state = pool.lock();
        if state.members.is_empty() {
            return false;
        }
        state.members.push(guard.clone());
        state.share_with(&guard);
        let connections = state.members.len();
        drop(state);
        guard.link.announce(Happening::PublishingOver { connections });
        true
    }

    /// One connection less: the one opened last. The first one stays.
    pub(crate) fn shrink(&self) {
        let mut state = self.lock();
        if state.members.len() < 2 {
            return;
        }
        let Some(guard) = state.members.pop() else { return };
        let mut crowds = state.crowds(|_| 1);
        for publishing in &state.publishers {
            let Some(lanes) = publishing.lanes.upgrade() else { continue };
            let least = (0..crowds.len()).min_by_key(|&place| crowds[place]).unwrap_or(0);
            if lanes.leave(&guard, &state.members[least]) && lanes.is_ordered() {
                crowds[least] += 1;
            }
        }
        state.retired.push(guard.clone());
        let connections = state.members.len();
        drop(state);
        guard.link.announce(Happening::PublishingOver { connections });
    }

    /// A connection whose route has become longer.
    fn outgrown(&self) -> Option<Arc<Guard>> {
        let members = self.members();
        members.into_iter().find(|guard| guard.link.with(|session| session.take_longer_route()))
    }

    /// Another connection in the place of `old`, which its publishers leave. False: it cannot be had, or the route is not as
    /// long as that of `old` seems; that its windows hear if both are to the same host, and for how long it is not looked at again.
    async fn renew(pool: &Weak<Pool>, old: &Arc<Guard>, rest_us: u64) -> bool {
        // What is let in beyond this has to be waited for before they are gone.
        old.link.with(|session| session.hold_windows(true));
        let new = tokio::time::timeout(Renewal::PATIENCE, Pool::another(pool)).await;
        let new = new.ok().flatten();
        let (new_us, old_us) =
            (new.as_ref().map_or(0, |new| new.link.network_us()), old.link.network_us());
        // After a failover another host may be nearer than the one that it was to.
        let same_peer = new.as_ref().is_some_and(|new| new.link.has_peer_of(&old.link));
        let moved = match (new, pool.upgrade()) {
            (Some(new), Some(pool)) if Renewal::is_longer(new_us, old_us) => {
                pool.take_over(old, &new)
            }
            _ => false,
        };
        if !moved {
            old.link.with_now(|session, now_us| {
                if same_peer && new_us > 0 && !Renewal::is_longer(new_us, old_us) {
                    session.route_is_no_longer(now_us, new_us, rest_us);
                }
                session.hold_windows(false);
            });
        }
        moved
    }

    async fn another(pool: &Weak<Pool>) -> Option<Arc<Guard>> {
        let setup = pool.upgrade()?.setup.clone();
        match setup.open(" (publishing anew)").await {
            Ok(new) => Some(new),
            Err(error) => {
                tracing::info!("no other connection for publishers: {error}");
                None
            }
        }
    }

    /// Publishers on `old` go on on `new`. False: it is no member any more.
    fn take_over(&self, old: &Arc<Guard>, new: &Arc<Guard>) -> bool {
        let mut state = self.lock();
        let Some(place) = state.place_of(old) else { return false };
        state.members[place] = new.clone();
        for publishing in &state.publishers {
            let Some(lanes) = publishing.lanes.upgrade() else { continue };
            if !lanes.is_ordered() {
                lanes.enter(new);
            }
            lanes.leave(old, new);
        }
        if !Arc::ptr_eq(old, &self.main) {
            state.retired.push(old.clone());
        }
        drop(state);
        new.link.announce(Happening::LongerRoute { rtt_us: new.link.network_us() });
        true
    }

    fn len(&self) -> usize {
        self.lock().members.len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// A connection that was left goes with the last publisher and outcome on it.
    fn forget_retired(&mut self) {
        let State { retired, unheard, .. } = self;
        retired.retain(|guard| {
            let (used, here) =
                guard.link.with(|session| (session.has_publishers(), session.unheard()));
            if !used {
                unheard.add(here);
            }
            used
        });
    }

    /// For each member, the weight of the ordered publishers on it.
    fn crowds(&self, weight: impl Fn(&Publishing) -> u64) -> Vec<u64> {
        let mut crowds = vec![0; self.members.len()];
        for publishing in &self.publishers {
            let place = publishing.lanes.upgrade().and_then(|lanes| lanes.place());
            let member = place.and_then(|place| self.place_of(&place));
            if let Some(member) = member {
                crowds[member] += weight(publishing);
            }
        }
        crowds
    }

    fn place_of(&self, guard: &Arc<Guard>) -> Option<usize> {
        self.members.iter().position(|member| Arc::ptr_eq(member, guard))
    }

    /// Unordered publishers use the new member, too. Of the ordered ones the busiest move, until it has its share of
    /// what all deliver; a publisher that is just being moved stays where it goes.
    fn share_with(&self, new: &Arc<Guard>) {
        let weight = |publishing: &Publishing| publishing.outcomes + 1;
        let crowds = self.crowds(weight);
        let share = crowds.iter().sum::<u64>() / self.members.len() as u64;
        let mut crowds = crowds;
        let mut moved = 0;
        let mut by_weight: Vec<&Publishing> = self.publishers.iter().collect();
        by_weight.sort_by_key(|publishing| std::cmp::Reverse(publishing.outcomes));
        for publishing in by_weight {
            let Some(lanes) = publishing.lanes.upgrade() else { continue };
            if !lanes.is_ordered() {
                lanes.enter(new);
                continue;
            }
            let from = lanes.place().and_then(|place| self.place_of(&place));
            let (Some(from), weight) = (from, weight(publishing)) else { continue };
            // It has to leave more behind than it takes along, or the crowd only moves.
            if crowds[from] > share && crowds[from] > weight && moved + weight / 2 <= share {
                lanes.enter(new);
                crowds[from] -= weight;
                moved += weight;
            }
        }
    }
}

/// Looks at the rate until the pool is gone.
async fn keep(pool: Weak<Pool>) {
    let started = Instant::now();
    let now_us = || started.elapsed().as_micros() as u64;
    let max = pool.upgrade().map_or(1, |pool| pool.max);
    let mut connections = Connections::new(max);
    let mut pause = LOOK;
    let mut renewal = Renewal::new();
    loop {
        tokio::time::sleep(pause).await;
        if renewal.is_ready(now_us())
            && let Some(outgrown) = pool.upgrade().and_then(|pool| pool.outgrown())
        {
            let moved = Pool::renew(&pool, &outgrown, renewal.rest_if_not_us()).await;
            renewal.tried(now_us(), moved);
            if moved {
                connections.renewed(now_us(), outgrown.link.network_us());
            }
        }
        let Some((delivered, useful)) = pool.upgrade().and_then(|pool| pool.look()) else { return };
        let idle = delivered.messages == 0 && !delivered.waited;
        pause = if idle { LOOK_IDLE } else { LOOK };
        match connections.look(now_us(), delivered, useful) {
            Decision::Hold => {}
            Decision::Grow => {
                if !Pool::grow(&pool).await {
                    connections.refused(now_us());
                }
            }
            Decision::Shrink => {
                if let Some(pool) = pool.upgrade() {
                    pool.shrink();
                }
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
