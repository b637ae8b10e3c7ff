//! One connection and all that its users do on it, as a state machine: no sockets, no clock, no threads.
//!
//! ```text
//!            begin                 Opened             topology is declared
//!   Down ───────────▶ LoggingIn ───────────▶ Restoring ───────────────────▶ Up
//!    ▲                    │                      │                           │
//!    └────────────────────┴───────── lost ───────┴───────────────────────────┘
//!                                      │ for good
//!                                      ▼
//!                                     Over
//! ```
//! A session outlives its connections. Publishers and consumers stay and go on after a reconnect; channels
//! that a user drives end with their connection, as the protocol has it.
//!
//! Whoever changes something holds the session alone (the shell's one mutex), encodes straight into the
//! machine's send buffer, and leaves in [`Session::wakeups`] those to wake and what to tell afterwards.

mod callers;
mod calls;
mod channel_health;
mod consumer_health;
mod credit;
mod culprit;
mod events;
mod exclusion;
mod how;
mod intake;
mod ledger;
mod message_id;
mod owner;
mod present_tap;
mod publishers;
mod requests;
mod seen_workers;
mod subscriptions;
mod taken;
mod tap;
mod target;
mod topology;
mod user_channels;
mod wakeups;
mod work_limit;

use std::collections::BTreeMap;
use std::task::{Context, Waker};

use culprit::{Ending, Trial};
use events::Todo;
use forebay_flow::{CommitTime, KernelReading};
use slab::Slab;

use crate::error::{Lost, Refusal};
use crate::happening::Happening;
use crate::machine::{Machine, Options, State};
use crate::outcome::Unheard;

pub use calls::CALLS_MAX;
pub(crate) use calls::Calls;
pub(crate) use channel_health::STALL_US;
pub use credit::{CREDIT_MAX, Credit};
pub(crate) use how::How;
pub(crate) use intake::{DeliveryKey, Intake, Ready, Verdict};
pub(crate) use ledger::{Idler, Ledger, MakeWindow, NotAdmitted, Published};
use owner::{Owner, owner};
pub(crate) use present_tap::PresentTap;
pub(crate) use requests::{Reply, Ticket, UserChannel, Wants};
pub(crate) use taken::NAMED_PUBLISHERS;
pub(crate) use tap::LIVE_CREDIT;
pub(crate) use target::Target;
pub use topology::{Binding, Exchange, Queue, Topology};
pub(crate) use topology::{Declaration, Redeclaring};
pub(crate) use wakeups::Wakeups;

/// Bytes of deliveries that wait in a connection's user channels, beyond which it is not read any more.
/// A prefetch keeps them far below; only consumers without one, or without acknowledgement, reach it.
pub const INBOX_BYTES_MAX: usize = 64 << 20;

/// Where the session is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Phase {
    Down,
    LoggingIn,
    Restoring,
    Up,
    Over(Lost),
}

/// See the module's documentation.
pub(crate) struct Session {
    pub(crate) machine: Machine,
    phase: Phase,
    /// Index = channel number − 1.
    owners: Vec<Owner>,
    users: Slab<UserChannel>,
    ledgers: Slab<Ledger>,
    /// Of ledgers that are gone.
    unheard: Unheard,
    /// The connection is to be closed once all that was published has its outcome.
    closing: bool,
    intakes: Slab<Intake>,
    calls: Slab<Calls>,
    /// To be declared once the login is through.
    topology: Topology,
    redeclaring: Option<Redeclaring>,
    /// What the broker closed the connection for while it was declared again: left out until a connection is up.
    left_out: Vec<Declaration>,
    /// There is something more to be left out than when this was last asked.
    leaves_out_more: bool,
    next_tap: u64,
    /// Bytes in user channels' inboxes.
    inbox_bytes: usize,
    blocked: Option<String>,
    /// What the broker tells of its commits.
    commit_time: CommitTime,
    /// The route became longer while somebody waited for his window, and nobody has asked since.
    longer_route: bool,
    /// Why the broker closed the connection; told when the stream ends.
    closed: Option<Refusal>,
    /// How the connection ended, where that may be because of a message.
    ending: Option<Ending>,
    /// A message over which connections end is looked for.
    trial: Option<Trial>,
    /// Which host the last connection was to, as an index.
    last_place: Option<usize>,
    /// When the socket last took no more.
    busy_at_us: u64,
    todo: Vec<Todo>,
    arrived: Vec<usize>,
    settled_ledgers: Vec<usize>,
    /// The login is through, and so many declarations are answered.
    login_steps: u64,
    /// The connection settled something or brought a message.
    of_use: bool,
    /// Some ledger could not write all it may.
    backlog: bool,
    /// The first of the publishers that were not done when the send buffer was last full.
    cut_off: usize,
    /// Who could have no channel, because all numbers are in use; each once.
    starved: Vec<Owner>,
    /// Who waits for room in the send buffer, each task once: by what its waker points to, of which it is one.
    room_wakers: BTreeMap<(usize, usize), Waker>,
    pub(crate) wakeups: Wakeups,
    pub(crate) happenings: Vec<Happening>,
    pub(crate) reconnects: u64,
}

impl Session {
    pub(crate) fn new(options: Options) -> Session {
        Session {
            machine: Machine::new(options),
            phase: Phase::Down,
            owners: Vec::new(),
            users: Slab::new(),
            ledgers: Slab::new(),
            unheard: Unheard::default(),
            closing: false,
            intakes: Slab::new(),
            calls: Slab::new(),
            topology: Topology::new(),
            redeclaring: None,
            left_out: Vec::new(),
            leaves_out_more: false,
            next_tap: 0,
            inbox_bytes: 0,
            blocked: None,
            commit_time: CommitTime::default(),
            longer_route: false,
            closed: None,
            ending: None,
            trial: None,
            last_place: None,
            busy_at_us: 0,
            todo: Vec::new(),
            arrived: Vec::new(),
            settled_ledgers: Vec::new(),
            login_steps: 0,
            of_use: false,
            backlog: false,
            cut_off: 0,
            starved: Vec::new(),
            room_wakers: BTreeMap::new(),
            wakeups: Wakeups::default(),
            happenings: Vec::new(),
            reconnects: 0,
        }
    }

    pub(crate) fn phase(&self) -> &Phase {
        &self.phase
    }

    /// Why there is no connection and will be none, if so.
    pub(crate) fn over(&self) -> Option<&Lost> {
        match &self.phase {
            Phase::Over(lost) => Some(lost),
            _ => None,
        }
    }

    pub(crate) fn blocked(&self) -> Option<&str> {
        self.blocked.as_deref()
    }

    /// Grows with the login and with each declaration that is answered.
    pub(crate) fn login_steps(&self) -> u64 {
        self.login_steps
    }

    /// Whether the connection that ended has settled a publish or brought a message; asked once.
    pub(crate) fn take_was_of_use(&mut self) -> bool {
        std::mem::take(&mut self.of_use)
    }

    /// Whether the peer's bytes should be read now.
    pub(crate) fn wants_bytes(&self) -> bool {
        self.inbox_bytes < INBOX_BYTES_MAX
    }

    // ---- the connection's life

    /// There is a stream: a new connection begins on it. `topology` is declared before anything else is
    /// restored.
    pub(crate) fn begin(&mut self, options: Options, topology: Topology) {
        debug_assert_eq!(self.phase, Phase::Down);
        self.topology = topology;
        self.topology.leave_out(&self.left_out);
        self.machine = Machine::new(options);
        self.login_steps = 0;
        self.longer_route = false;
        self.phase = Phase::LoggingIn;
    }

    /// Whether the connection that ended was closed for something that the next one goes without; asked once.
    pub(crate) fn take_leaves_out_more(&mut self) -> bool {
        std::mem::take(&mut self.leaves_out_more)
    }

    /// Takes what arrived. `Err`: the connection is over; [`Session::lost`] or
    /// [`Session::give_up`] comes next.
    pub(crate) fn receive(&mut self, input: &mut &[u8], now_us: u64) -> Result<(), Lost> {
        let outcome = self.read_events(input, now_us);
        self.act(now_us);
        outcome
    }

    /// The peer sends no more, or the stream failed for `reason`.
    pub(crate) fn hung_up(&mut self, reason: Option<String>) -> Lost {
        if let Some(refusal) = self.closed.take() {
            return Lost::Closed(refusal);
        }
        if self.machine.state() == State::Closing {
            let how = reason.unwrap_or_else(|| "the peer hung up".into());
            let _ = self.machine.hung_up();
            return Lost::end_cut_off(&how);
        }
        self.ending = Some(Ending::Cut);
        match (self.machine.hung_up(), reason) {
            (Ok(()), _) => Lost::ClosedByUs,
            (Err(_), Some(reason)) => Lost::Io(reason),
            (Err(failed), None) => Lost::Failed(failed),
        }
    }

    /// The connection broke, and another one will be tried.
    pub(crate) fn lost(&mut self, lost: &Lost, now_us: u64) {
        let ending = self.ending.take();
        if std::mem::replace(&mut self.phase, Phase::Down) == Phase::Up {
            self.judge(ending, lost, now_us);
        }
        self.end_connection(lost);
        for (_, ledger) in &mut self.ledgers {
            ledger.lost();
            ledger.turn_away(&mut self.wakeups);
        }
        for (_, intake) in &mut self.intakes {
            intake.lost(now_us);
        }
        for (_, calls) in &mut self.calls {
            calls.lost(lost, &mut self.wakeups);
        }
        for key in self.ledgers.iter().map(|(key, _)| key).collect::<Vec<_>>() {
            self.sweep_ledger(key);
        }
    }

    /// The connection is over, and there will be no other.
    pub(crate) fn give_up(&mut self, lost: &Lost) {
        self.phase = Phase::Over(lost.clone());
        self.end_connection(lost);
        for (_, ledger) in &mut self.ledgers {
            ledger.give_up(lost, &mut self.wakeups);
        }
        for (_, intake) in &mut self.intakes {
            intake.give_up(lost, &mut self.wakeups);
        }
        for (_, calls) in &mut self.calls {
            calls.give_up(lost, &mut self.wakeups);
        }
    }

    /// Time passes.
    pub(crate) fn tick(&mut self, now_us: u64) -> Result<(), Lost> {
        self.machine.tick(now_us).map_err(Lost::Failed)?;
        for (_, intake) in &mut self.intakes {
            intake.tick(&mut self.machine, now_us);
        }
        let excluded =
            |(key, intake): (usize, &mut Intake)| intake.asks_again(now_us).then_some(key);
        for key in self.intakes.iter_mut().filter_map(excluded).collect::<Vec<_>>() {
            self.open_intake(key, now_us);
        }
        let paced = |(key, ledger): (usize, &Ledger)| {
            ledger.next_paced_us().is_some_and(|due_us| due_us <= now_us).then_some(key)
        };
        for key in self.ledgers.iter().filter_map(paced).collect::<Vec<_>>() {
            let ledger = &mut self.ledgers[key];
            self.backlog |= ledger.pump(&mut self.machine, now_us, &mut self.wakeups);
            self.sweep_ledger(key);
        }
        let stalled =
            |(key, ledger): (usize, &Ledger)| ledger.fault(now_us).is_some().then_some(key);
        for key in self.ledgers.iter().filter_map(stalled).collect::<Vec<_>>() {
            if self.ledgers[key].is_ignored(&self.machine) {
                return Err(Lost::Io(
                    "it answers neither publishes nor the end of a channel".into(),
                ));
            }
            self.replace_faulty(key, now_us);
        }
        self.try_suspects(now_us);
        Ok(())
    }

    /// It is to be closed when what was published so far has its outcomes: no more of that is taken, or it might never come to that.
    pub(crate) fn begin_closing(&mut self) {
        self.closing = true;
    }

    /// Nothing more is wanted: consumers give back what waits, acks go out, the connection closes.
    pub(crate) fn close_now(&mut self) {
        for (_, intake) in &mut self.intakes {
            intake.close(&mut self.machine, &mut self.wakeups);
        }
        self.machine.close();
    }

    /// When something other than a heartbeat is due.
    pub(crate) fn next_tick_us(&self) -> Option<u64> {
        if self.phase != Phase::Up {
            return None;
        }
        let intakes = self.intakes.iter().filter_map(|(_, intake)| intake.next_tick_us());
        let ledgers = self.ledgers.iter().flat_map(|(_, ledger)| {
            ledger.next_tick_us().into_iter().chain(ledger.next_paced_us())
        });
        intakes.chain(ledgers).chain(self.trial_until_us()).min()
    }

    /// The socket takes no more at present, so answers to what waits for it cannot be due; or nobody takes what came, so
    /// they may lie there unread, and heartbeats with them.
    pub(crate) fn still_busy(&mut self, now_us: u64) {
        if !self.wants_bytes() {
            self.machine.not_reading();
        }
        for (_, ledger) in &mut self.ledgers {
            ledger.still_writing(now_us);
        }
        self.still_writing(now_us);
    }

    /// Wakes the caller when there is room in the send buffer again.
    pub(crate) fn wait_for_room(&mut self, cx: &Context<'_>) {
        // Who waits together with something else asks each time that comes.
        let waker = cx.waker();
        let task = (waker.data() as usize, std::ptr::from_ref(waker.vtable()) as usize);
        self.room_wakers.entry(task).or_insert_with(|| waker.clone());
    }

    /// There is room in the send buffer again.
    pub(crate) fn drained(&mut self, now_us: u64) {
        self.wakeups.extend(std::mem::take(&mut self.room_wakers).into_values());
        if std::mem::take(&mut self.backlog) {
            // Calls are few: whoever made one waits for its reply.
            let mut calls_wait = false;
            for (_, calls) in &mut self.calls {
                calls_wait |= calls.pump(&mut self.machine, &mut self.wakeups);
            }
            self.pump_in_turn(now_us);
            self.backlog |= calls_wait;
        }
    }

    /// What the kernel tells of the connection, if it does.
    pub(crate) fn network(&mut self, now_us: u64, reading: Option<KernelReading>) {
        for (_, ledger) in &mut self.ledgers {
            self.longer_route |= ledger.network(now_us, reading);
        }
        if let Some(reading) = reading {
            for (_, intake) in &mut self.intakes {
                intake.network(reading.rtt_us);
            }
        }
    }

    /// Whether what publishers send should leave in full packets; the others who share their connection wait for it.
    pub(crate) fn wants_full_packets(&self) -> bool {
        self.ledgers.iter().any(|(_, ledger)| ledger.wants_full_packets())
    }

    /// Whether the route has become longer for publishers who wait, and TCP, which suits the one before, may hold them. Told once.
    pub(crate) fn take_longer_route(&mut self) -> bool {
        std::mem::take(&mut self.longer_route)
    }

    /// Another connection, with this round trip, shows that it has not, whatever the kernel tells of this one; nobody looks again for
    /// so long.
    pub(crate) fn route_is_no_longer(&mut self, now_us: u64, rtt_us: u64, rest_us: u64) {
        self.longer_route = false;
        for (_, ledger) in &mut self.ledgers {
            ledger.route_is_no_longer(now_us, rtt_us, rest_us);
        }
    }

    /// As if a window had told so.
    #[cfg(test)]
    pub(crate) fn set_longer_route(&mut self) {
        self.longer_route = true;
    }

    // ---- consumers

    pub(crate) fn add_intake(&mut self, intake: Intake, now_us: u64) -> usize {
        let key = self.intakes.insert(intake);
        if let Phase::Over(lost) = self.phase.clone() {
            self.intakes[key].give_up(&lost, &mut self.wakeups);
        } else if self.phase == Phase::Up {
            self.open_intake(key, now_us);
        }
        key
    }

    pub(crate) fn intake(&mut self, key: usize) -> (&mut Intake, &mut Machine) {
        (&mut self.intakes[key], &mut self.machine)
    }

    /// The consumer's handle and all its deliveries are gone.
    pub(crate) fn drop_intake(&mut self, key: usize) {
        let mut intake = self.intakes.remove(key);
        self.starved.retain(|&starved| starved != Owner::Intake(key));
        intake.stop(&mut self.machine);
        // Closing gives back what is left; the machine drops what is still on its way.
        if let Some(number) = intake.channel() {
            let _ = self.machine.close_channel(number);
        }
        for owner in self.owners.iter_mut().filter(|owner| **owner == Owner::Intake(key)) {
            *owner = Owner::Nobody;
        }
    }

    fn restored(&mut self, now_us: u64) {
        self.login_steps += 1;
        if self.phase == Phase::Restoring
            && self.redeclaring.as_ref().is_none_or(Redeclaring::is_done)
        {
            self.redeclaring = None;
            self.up(now_us);
        }
    }

    /// Everything is declared: publishers and consumers get their channels.
    fn up(&mut self, now_us: u64) {
        self.phase = Phase::Up;
        self.left_out.clear();
        for key in self.ledgers.iter().map(|(key, _)| key).collect::<Vec<_>>() {
            self.open_ledger(key, now_us);
        }
        for key in self.intakes.iter().map(|(key, _)| key).collect::<Vec<_>>() {
            self.open_intake(key, now_us);
        }
        for key in self.calls.iter().map(|(key, _)| key).collect::<Vec<_>>() {
            self.open_calls(key);
        }
        self.go_on_trying(now_us);
    }

    fn open_intake(&mut self, key: usize, now_us: u64) {
        if self.is_starved(Owner::Intake(key)) {
            return;
        }
        let tap = self.next_tap;
        self.next_tap += 1;
        if let Some(number) = self.intakes[key].open(&mut self.machine, tap, now_us) {
            self.own(number, Owner::Intake(key));
        }
    }

    /// A consumer that gets nothing although messages wait goes on with another channel.
    fn replace_stuck(&mut self, key: usize, now_us: u64) {
        let Some(intake) = self.intakes.get_mut(key) else { return };
        let Some(stuck) = intake.leave_stuck(now_us) else { return };
        let queue = intake.queue().to_owned();
        self.happenings.push(Happening::ConsumerChannelReplaced { queue });
        let _ = self.machine.close_channel(stuck);
        self.own(stuck, Owner::Nobody);
        self.open_intake(key, now_us);
    }

    /// User channels end; the rest is decided by the caller.
    fn end_connection(&mut self, lost: &Lost) {
        self.owners.clear();
        self.redeclaring = None;
        self.blocked = None;
        self.commit_time = CommitTime::default();
        self.closed = None;
        self.todo.clear();
        self.settled_ledgers.clear();
        self.arrived.clear();
        self.backlog = false;
        self.starved.clear();
        self.wakeups.extend(std::mem::take(&mut self.room_wakers).into_values());
        for (_, user) in &mut self.users {
            user.lost(lost.clone(), &mut self.wakeups);
        }
        // What they still have is of a connection that is gone; the next one is read whether somebody takes it or not.
        self.inbox_bytes = 0;
    }
}

/// Keeps the waker of whoever asked last.
pub(crate) fn remember(slot: &mut Option<Waker>, cx: &Context<'_>) {
    match slot {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *slot = Some(cx.waker().clone()),
    }
}

#[cfg(test)]
mod broker_tests;
#[cfg(test)]
mod tests;
