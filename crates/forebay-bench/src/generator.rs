//! The loop that drives all publishers and consumers in one thread.
//!
//! ```text
//!   connect ─▶ opening ──all ready──▶ warm-up ──▶ measured ──▶ draining ─▶ report
//!
//!   a turn:   wait for sockets (or a due message, or the next second)
//!             readable  → read 256 KB → deliveries, confirms → acks
//!             runnable  → publish what window, rate and buffer allow
//!             once a second: a sample, and a question for the depth of the queues
//! ```
//! A publisher is *runnable* when something gave it room: a confirm, a writable socket, a due time.

mod opening;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fmt;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::LazyLock;
use std::time::Instant;

use forebay_client::machine::ChannelError;
use forebay_client::{Event, KernelRtt};

use crate::actor::{Actor, Role};
use crate::consumer::{Consumer, LIVE_CREDIT};
use crate::depth::Depth;
use crate::latency::Timing;
use crate::peer::{Host, Peer, PeerLost, SHARED_BYTES};
use crate::plan::{Plan, PlanError};
use crate::poller::Poller;
use crate::process;
use crate::publisher::Publisher;
use crate::report::{Report, Sample};
use crate::setting::Credit;
use crate::stamp::Mark;
use crate::step::StepKind;
use crate::topology;
use crate::totals::{Measured, Totals};

/// All runs of a process count from here, so that what one left in a queue has true times in the next.
static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

/// A run that waits for a number of messages ends after so many seconds in which none moved.
const STANDSTILL_SECONDS: f64 = 60.0;
/// With a rate, due messages are looked for at most this often; it bounds what pacing costs, and is
/// part of the latency that is reported.
const PACE_US: u64 = 100;
/// Bytes that all publishers together may add in a turn; then the sockets are looked at again.
/// Otherwise a thousand publishers would keep the consumers, who share the thread, from reading.
const PUBLISHED_BYTES_PER_TURN_MAX: usize = 512 * 1024;
/// Whoever looks on is told this often.
const TELL_US: u64 = 100_000;
/// Longest wait of a turn.
const TURN_US_MAX: u64 = 100_000;

/// Why a run gave no report, as a sentence.
#[derive(Debug)]
pub enum LoadError {
    /// The plan makes no sense.
    Plan(PlanError),
    /// The broker could not be reached or refused something.
    Broker(String),
    /// The system refused something.
    System(std::io::Error),
    /// Whoever watched asked for the end.
    Stopped,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::Plan(error) => error.fmt(f),
            LoadError::Broker(sentence) => f.write_str(sentence),
            LoadError::System(error) => write!(f, "the system refused: {error}"),
            LoadError::Stopped => f.write_str("stopped before the end"),
        }
    }
}

impl std::error::Error for LoadError {}

impl From<std::io::Error> for LoadError {
    fn from(error: std::io::Error) -> Self {
        LoadError::System(error)
    }
}

/// How far a run has come.
#[derive(Debug, Clone, Copy)]
pub struct Progress<'a> {
    /// What it does: `connecting`, `warming up`, `measuring` or `draining`.
    pub doing: &'static str,
    /// Share of that which is done, from 0 to 1.
    pub share: f64,
    /// The last second that was measured.
    pub last: Option<&'a Sample>,
}

/// Whoever looks on, and does what the generator cannot.
pub trait Watch {
    /// Called some times a second; `Break` ends the run.
    fn progress(&mut self, progress: Progress<'_>) -> ControlFlow<()>;

    /// A step of the plan that is not about consumers.
    ///
    /// # Errors
    /// Why it cannot be done, as a sentence; it ends the run.
    fn step(&mut self, what: StepKind) -> Result<(), String>;
}

/// Looks on in silence; has no link and no broker to disturb.
struct Nobody;

impl Watch for Nobody {
    fn progress(&mut self, _: Progress<'_>) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn step(&mut self, what: StepKind) -> Result<(), String> {
        Err(format!("{what:?} needs a broker or a link of our own"))
    }
}

/// Runs a plan to its end.
pub fn run(plan: &Plan) -> Result<Report, LoadError> {
    plan.check().map_err(LoadError::Plan)?;
    let broker = topology::set_up(plan)?;
    let plan = &Plan { mark: Mark::fresh(), ..plan.clone() };
    let mut report = load(plan, &mut Nobody)?;
    report.broker = broker;
    if !plan.keep {
        topology::tear_down(plan)?;
    }
    Ok(report)
}

/// Runs a plan whose queues are there.
pub(crate) fn load(plan: &Plan, watch: &mut dyn Watch) -> Result<Report, LoadError> {
    plan.check().map_err(LoadError::Plan)?;
    process::may_open(plan.publishers + plan.consumers).map_err(LoadError::Broker)?;
    Generator::new(plan, watch)?.run()
}

struct Generator<'a> {
    plan: &'a Plan,
    watch: &'a mut dyn Watch,
    host: Host,
    /// Those that have no connection yet.
    coming: VecDeque<Role>,
    actors: Vec<Actor>,
    poller: Poller,
    shared: Vec<u8>,
    runnable: VecDeque<usize>,
    /// Publishers that wait for a due time, consumers that work.
    paced: BinaryHeap<Reverse<(u64, usize)>>,
    /// What this second showed, until its sample is taken.
    confirm: Timing,
    end_to_end: Timing,
    publishing: bool,
    blocked: u64,
    /// What it does, since when and until when.
    doing: (&'static str, u64, u64),
    last: Option<Sample>,
    next_tell_us: u64,
}

impl<'a> Generator<'a> {
    fn new(plan: &'a Plan, watch: &'a mut dyn Watch) -> Result<Generator<'a>, LoadError> {
        let host = Host::of(&plan.url).map_err(LoadError::Broker)?;
        let consumers =
            (0..plan.consumers).map(|n| Role::Consumer(Box::new(Consumer::new(plan, n))));
        let publishers =
            (0..plan.publishers).map(|n| Role::Publisher(Box::new(Publisher::new(plan, n))));
        let depth = plan.depth.then(|| Role::Depth(Depth::new(plan)));
        Ok(Generator {
            plan,
            watch,
            host,
            coming: consumers.chain(publishers).chain(depth).collect(),
            actors: Vec::new(),
            poller: Poller::new()?,
            shared: vec![0; SHARED_BYTES],
            runnable: VecDeque::new(),
            paced: BinaryHeap::new(),
            confirm: Timing::new(plan.is_paced()),
            end_to_end: Timing::new(plan.is_paced()),
            publishing: false,
            blocked: 0,
            doing: ("connecting", 0, 1),
            last: None,
            next_tell_us: 0,
        })
    }

    fn now_us(&self) -> u64 {
        EPOCH.elapsed().as_micros() as u64
    }

    fn run(&mut self) -> Result<Report, LoadError> {
        let before = Totals::default().with_processes(self.plan, &mut self.actors);
        self.open_all()?;
        self.start_publishing();
        let warm_up_s = if self.plan.is_counted() { 0.0 } else { self.plan.warm_up };
        let until_us = self.now_us() + (warm_up_s * 1e6) as u64;
        self.doing = ("warming up", self.now_us(), until_us);
        self.turns_until(until_us)?;
        let measured = self.measure(before)?;
        self.publishing = false;
        let left_over = self.totals().left_over(self.plan);
        let drained = left_over.saturating_sub(self.drain()?);
        Ok(measured.report(self.plan, &self.actors, self.blocked, (left_over, drained)))
    }

    /// All connections are ready: every publisher may go.
    fn start_publishing(&mut self) {
        self.publishing = true;
        let now_us = self.now_us();
        let (consumers, publishers) = (self.plan.consumers, self.plan.publishers);
        let tally = Rc::default();
        for index in 0..self.actors.len() {
            let actor = &mut self.actors[index];
            if let Role::Publisher(publisher) = &mut actor.role {
                let asked = publisher.is_tuned() && !self.plan.emulated;
                let kernel_rtt = asked.then(|| kernel_rtt(&actor.peer)).flatten();
                publisher.counts_with(Rc::clone(&tally));
                publisher.broker(actor.peer.machine.server().kind());
                publisher.start(now_us, index - consumers, publishers, kernel_rtt);
                self.make_runnable(index);
            }
        }
    }

    fn turns_until(&mut self, until_us: u64) -> Result<(), LoadError> {
        loop {
            let now_us = self.now_us();
            if now_us >= until_us || self.is_done() {
                return Ok(());
            }
            self.turn(until_us - now_us)?;
        }
    }

    fn measure(&mut self, before: Totals) -> Result<Measured, LoadError> {
        if !self.plan.is_counted() {
            self.confirm.clear();
            self.end_to_end.clear();
        }
        let totals = self.totals().with_processes(self.plan, &mut self.actors);
        let begin_us = totals.at_us;
        let mut measured = Measured::new(self.plan, totals.counted_from(self.plan, before));
        let end_us = begin_us + (self.plan.seconds * 1e6) as u64;
        self.doing = ("measuring", begin_us, end_us);
        let at_us = |at_s: f64| begin_us + (at_s * 1e6) as u64;
        let mut steps: Vec<_> = self.plan.steps.clone();
        steps.sort_by(|a, b| b.at_s.total_cmp(&a.at_s));
        let mut still_s = 0.0;
        // A number of messages may have come while the last ones were connecting.
        while measured.last.at_us < end_us && (measured.samples.is_empty() || !self.is_done()) {
            self.ask_depth()?;
            let until_us = end_us.min(measured.last.at_us + 1_000_000);
            while let Some(step) = steps.pop_if(|step| at_us(step.at_s) < until_us) {
                self.turns_until(at_us(step.at_s))?;
                self.step(step.what, &measured)?;
            }
            self.turns_until(until_us)?;
            let totals = self.totals().with_processes(self.plan, &mut self.actors);
            let sample = measured.sample(totals, &mut self.confirm, &mut self.end_to_end);
            self.last = Some(sample);
            let moved = sample.published + sample.confirmed + sample.consumed > 0.0;
            still_s = if moved || totals.are_early() { 0.0 } else { still_s + sample.seconds };
            if self.plan.is_counted() && still_s >= STANDSTILL_SECONDS {
                let blocked = self.blocked;
                return Err(LoadError::Broker(format!(
                    "nothing moved for {STANDSTILL_SECONDS} s; connection.blocked came {blocked} times"
                )));
            }
        }
        Ok(measured)
    }

    fn step(&mut self, what: StepKind, measured: &Measured) -> Result<(), LoadError> {
        let StepKind::Consumers(factor) = what else {
            return self.watch.step(what).map_err(LoadError::Broker);
        };
        let now_us = self.now_us();
        let consumed = measured.samples.iter().rev().map(|sample| sample.consumed);
        let Some(per_s) = consumed.into_iter().find(|per_s| *per_s > 0.0) else {
            return Err(LoadError::Broker(
                "consumers cannot become slower: nothing was consumed before".into(),
            ));
        };
        let each_per_s = per_s / self.plan.consumers.max(1) as f64 / factor;
        let own_us = (self.plan.consumer_rate > 0.0).then(|| 1e6 / self.plan.consumer_rate);
        let work_us = if factor == 1.0 { own_us } else { Some(1e6 / each_per_s.max(1e-3)) };
        for index in 0..self.actors.len() {
            if let Role::Consumer(consumer) = &mut self.actors[index].role {
                consumer.set_work_us(now_us, work_us);
                self.pace(index);
            }
        }
        Ok(())
    }

    /// Whether the asked-for number of messages is through.
    fn is_done(&self) -> bool {
        if !self.plan.is_counted() || !self.publishing {
            return false;
        }
        let to_consume = self.plan.to_consume();
        if to_consume > 0 && self.totals().consumed < to_consume {
            return false;
        }
        self.plan.messages == 0
            || self.actors.iter().all(|actor| match &actor.role {
                Role::Publisher(publisher) => {
                    publisher.is_done() && actor.peer.machine.outgoing().is_empty()
                }
                _ => true,
            })
    }

    /// Waits for what is left over; what is left of it then.
    fn drain(&mut self) -> Result<u64, LoadError> {
        let until_us = self.now_us() + (self.plan.drain * 1e6) as u64;
        self.doing = ("draining", self.now_us(), until_us);
        loop {
            let (now_us, left_over) = (self.now_us(), self.totals().left_over(self.plan));
            if left_over == 0 || now_us >= until_us {
                return Ok(left_over);
            }
            self.turn(until_us - now_us)?;
        }
    }

    /// Tells whoever looks on, some times a second.
    fn tell(&mut self, now_us: u64) -> Result<(), LoadError> {
        if now_us < self.next_tell_us {
            return Ok(());
        }
        self.next_tell_us = now_us + TELL_US;
        let (doing, since_us, until_us) = self.doing;
        let done_us = now_us.saturating_sub(since_us) as f64;
        let share = (done_us / until_us.saturating_sub(since_us).max(1) as f64).min(1.0);
        match self.watch.progress(Progress { doing, share, last: self.last.as_ref() }) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(LoadError::Stopped),
        }
    }

    /// One turn of the loop; waits at most `wait_us`.
    fn turn(&mut self, wait_us: u64) -> Result<(), LoadError> {
        let now_us = self.now_us();
        self.tell(now_us)?;
        let mut wait_us = wait_us.min(TURN_US_MAX);
        if !self.runnable.is_empty() {
            wait_us = 0;
        } else if let Some(Reverse((due_us, _))) = self.paced.peek() {
            wait_us = wait_us.min(due_us.saturating_sub(now_us).max(PACE_US));
        }
        self.poller.wait(wait_us)?;
        for at in 0..self.poller.ready_count() {
            let event = self.poller.ready(at);
            if event.writable {
                let actor = &mut self.actors[event.key];
                actor.peer.writable = true;
                send(actor)?;
                self.make_runnable(event.key);
            }
            if event.readable {
                self.receive(event.key)?;
            }
            self.watch_writing(event.key)?;
        }
        let now_us = self.now_us();
        while let Some(&Reverse((due_us, index))) = self.paced.peek()
            && due_us <= now_us
        {
            self.paced.pop();
            self.actors[index].paced = false;
            self.work(index)?;
            self.make_runnable(index);
        }
        // Those that become runnable again in this turn wait for the next one.
        let mut published_bytes = 0;
        for _ in 0..self.runnable.len() {
            if published_bytes >= PUBLISHED_BYTES_PER_TURN_MAX {
                break;
            }
            if let Some(index) = self.runnable.pop_front() {
                published_bytes += self.publish(index, now_us)?;
            }
        }
        Ok(())
    }

    fn make_runnable(&mut self, index: usize) {
        let actor = &mut self.actors[index];
        let able = match &actor.role {
            Role::Publisher(publisher) => {
                publisher.has_room() && actor.ready && actor.peer.writable && !actor.paced
            }
            _ => false,
        };
        if able && self.publishing && !actor.queued {
            actor.queued = true;
            self.runnable.push_back(index);
        }
    }

    /// Lets one publisher go on; returns how many bytes it added.
    fn publish(&mut self, index: usize, now_us: u64) -> Result<usize, LoadError> {
        let actor = &mut self.actors[index];
        actor.queued = false;
        let Role::Publisher(publisher) = &mut actor.role else { return Ok(0) };
        if !self.publishing {
            return Ok(0);
        }
        let waiting_bytes = actor.peer.machine.outgoing().len();
        let more = publisher.publish(&mut actor.peer.machine, now_us);
        let added_bytes = actor.peer.machine.outgoing().len() - waiting_bytes;
        actor.peer.send().map_err(lost)?;
        if more {
            self.make_runnable(index);
        } else {
            self.pace(index);
        }
        self.watch_writing(index)?;
        Ok(added_bytes)
    }

    /// Remembers when a publisher's next message is due, or when a consumer has done its work.
    fn pace(&mut self, index: usize) {
        let actor = &mut self.actors[index];
        let due_us = match &actor.role {
            Role::Publisher(publisher) if publisher.has_room() => publisher.due_us(),
            Role::Consumer(consumer) => consumer.due_us(),
            _ => None,
        };
        if let Some(due_us) = due_us
            && !actor.paced
        {
            actor.paced = true;
            self.paced.push(Reverse((due_us, index)));
        }
    }

    /// Lets a consumer go on with its work.
    fn work(&mut self, index: usize) -> Result<(), LoadError> {
        let now_us = self.now_us();
        let actor = &mut self.actors[index];
        let Role::Consumer(consumer) = &mut actor.role else { return Ok(()) };
        consumer.work(now_us, &mut self.end_to_end);
        if let Some(tag) = consumer.ack() {
            actor.peer.machine.ack(consumer.channel, tag, true).map_err(not_open)?;
            actor.peer.send().map_err(lost)?;
        }
        self.pace(index);
        self.watch_writing(index)
    }

    /// Reads one socket once.
    fn receive(&mut self, index: usize) -> Result<(), LoadError> {
        let now_us = self.now_us();
        let actor = &mut self.actors[index];
        let (role, confirm, end_to_end) =
            (&mut actor.role, &mut self.confirm, &mut self.end_to_end);
        let mut opened = false;
        let mut ready = false;
        let mut refused = None;
        let mut blocked = 0;
        let received = actor.peer.receive(&mut self.shared, |event| match (event, &mut *role) {
            (Event::Delivery(delivery), Role::Consumer(consumer)) => {
                consumer.take(&delivery, now_us, end_to_end);
            }
            (Event::Settled { settled, .. }, Role::Publisher(publisher)) => {
                publisher.settle(settled, now_us, confirm);
            }
            (Event::Delivery(reply), Role::Publisher(publisher)) => {
                publisher.replied(reply.body, now_us, confirm);
            }
            (Event::Returned(_), Role::Publisher(publisher)) => publisher.returned += 1,
            (Event::Opened, _) => opened = true,
            (Event::Reply { method, .. }, role) => {
                ready |= role.is_last_reply(&method);
                if let Role::Depth(depth) = role {
                    depth.answered(&method);
                }
            }
            (Event::ChannelClosed { reason, .. }, _) => {
                refused = Some(format!("the broker closed a channel: {}", reason.text));
            }
            (Event::Closed { reason }, _) => {
                let text = reason.map_or_else(String::new, |reason| reason.text.to_string());
                refused = Some(format!("the broker closed a connection: {text}"));
            }
            (Event::ConsumerCancelled { .. }, _) => {
                refused = Some("the broker cancelled a consumer".into());
            }
            (Event::Blocked { .. }, role) => {
                blocked += 1;
                if let Role::Publisher(publisher) = role {
                    publisher.set_blocked(true, now_us);
                }
            }
            (Event::Unblocked, Role::Publisher(publisher)) => {
                publisher.set_blocked(false, now_us);
            }
            (Event::CommitTime(told), Role::Publisher(publisher)) => {
                publisher.commit_time(told);
            }
            _ => {}
        });
        received.map_err(lost)?;
        self.blocked += blocked;
        if let Some(sentence) = refused {
            return Err(LoadError::Broker(sentence));
        }
        if opened {
            actor.opened(now_us).map_err(not_open)?;
        }
        let begins = ready && !actor.ready;
        actor.ready |= ready;
        if let Role::Consumer(consumer) = &mut actor.role {
            let machine = &mut actor.peer.machine;
            if begins {
                consumer.began(now_us);
            }
            consumer.reply(machine);
            if actor.ready && self.plan.prefetch == Credit::Auto {
                let live = machine.server().can(LIVE_CREDIT);
                consumer.tune(machine, now_us, live).map_err(not_open)?;
            }
            if let Some(tag) = consumer.ack() {
                machine.ack(consumer.channel, tag, true).map_err(not_open)?;
            }
        }
        send(actor)?;
        self.pace(index);
        self.make_runnable(index);
        Ok(())
    }

    /// Keeps the poller's interest in line with what waits to be sent.
    fn watch_writing(&mut self, index: usize) -> Result<(), LoadError> {
        let peer = &mut self.actors[index].peer;
        if peer.watched_for_writing == peer.writable {
            self.poller.watch_writing(peer.socket(), index, !peer.writable)?;
            peer.watched_for_writing = !peer.writable;
        }
        Ok(())
    }

    /// Asks the broker how many messages lie in the queues; the answer is part of the next sample.
    fn ask_depth(&mut self) -> Result<(), LoadError> {
        let Some(actor) = self.actors.last_mut() else { return Ok(()) };
        if let Role::Depth(depth) = &mut actor.role {
            depth.ask(&mut actor.peer.machine).map_err(not_open)?;
            actor.peer.send().map_err(lost)?;
        }
        Ok(())
    }

    fn totals(&self) -> Totals {
        Totals::of(&self.actors, self.now_us())
    }
}

/// Sends what waits, and the replies for which that makes room: with all of it sent no event would bring their turn.
fn send(actor: &mut Actor) -> Result<(), LoadError> {
    loop {
        let more = match &mut actor.role {
            Role::Consumer(consumer) => consumer.reply(&mut actor.peer.machine),
            _ => false,
        };
        actor.peer.send().map_err(lost)?;
        if !more || !actor.peer.writable {
            return Ok(());
        }
    }
}

fn kernel_rtt(peer: &Peer) -> Option<KernelRtt> {
    KernelRtt::new(peer.socket().local_addr().ok()?, peer.socket().peer_addr().ok()?)
}

fn lost(lost: PeerLost) -> LoadError {
    LoadError::Broker(lost.to_string())
}

fn not_open(error: ChannelError) -> LoadError {
    LoadError::Broker(error.to_string())
}
