//! The loop that drives all publishers and consumers in one thread.
//!
//! ```text
//!   connect ─▶ opening ──all ready──▶ warm-up ──▶ measured ──▶ draining ─▶ report
//!
//!   a turn:   wait for sockets (or a due message, or the next second)
//!             readable  → read 256 KB → deliveries, confirms → acks
//!             runnable  → publish what window, rate and buffer allow
//!             dirty     → write
//! ```
//! A publisher is *runnable* when something gave it room: a confirm, a writable socket, a due time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fmt;
use std::time::Instant;

use forebay_client::Event;
use forebay_client::blocking::{Connection, DeclareQueue};
use forebay_client::machine::ChannelError;
use forebay_wire::{AmqpUri, Method, ShortStr, TableBuf, Value, basic};

use crate::consumer::Consumer;
use crate::latency::Latency;
use crate::peer::{Peer, PeerLost, SHARED_BYTES};
use crate::plan::{Plan, PlanError};
use crate::poller::Poller;
use crate::process;
use crate::publisher::Publisher;
use crate::report::{LatencyReport, Report, Sample, fairness, variation};

/// How long all connections together may take to be ready.
const OPENING_PATIENCE_US: u64 = 60_000_000;
/// With a rate, due messages are looked for at most this often; it bounds what pacing costs, and is
/// part of the latency that is reported.
const PACE_US: u64 = 100;
/// Bytes that all publishers together may add in a turn; then the sockets are looked at again.
/// Otherwise a thousand publishers would keep the consumers, who share the thread, from reading.
const PUBLISHED_BYTES_PER_TURN_MAX: usize = 512 * 1024;
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
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::Plan(error) => error.fmt(f),
            LoadError::Broker(sentence) => f.write_str(sentence),
            LoadError::System(error) => write!(f, "the system refused: {error}"),
        }
    }
}

impl std::error::Error for LoadError {}

impl From<std::io::Error> for LoadError {
    fn from(error: std::io::Error) -> Self {
        LoadError::System(error)
    }
}

enum Role {
    Publisher(Publisher),
    Consumer(Consumer),
}

/// One connection and what it is for.
struct Actor {
    peer: Peer,
    role: Role,
    ready: bool,
    /// In the runnable queue.
    queued: bool,
    /// In the heap of due times.
    paced: bool,
}

/// Runs a plan to its end.
pub fn run(plan: &Plan) -> Result<Report, LoadError> {
    plan.check().map_err(LoadError::Plan)?;
    process::raise_open_files();
    let broker = set_up(plan)?;
    let mut generator = Generator::new(plan)?;
    let mut report = generator.run()?;
    drop(generator);
    report.broker = broker;
    if !plan.keep {
        tear_down(plan)?;
    }
    Ok(report)
}

/// Declares the queues; returns what the broker calls itself.
fn set_up(plan: &Plan) -> Result<String, LoadError> {
    with_connection(plan, |connection| {
        let mut channel = connection.channel().map_err(|fault| fault.to_string())?;
        for number in 0..plan.queues {
            let mut arguments = TableBuf::new();
            if let Some(kind) = &plan.queue_type {
                arguments.push("x-queue-type", Value::LongStr(kind.as_bytes()));
            }
            let durable = plan.persistent || plan.queue_type.as_deref() == Some("quorum");
            let how = DeclareQueue { durable, arguments, ..Default::default() };
            let name = plan.queue(number);
            channel.declare_queue(&name, how).map_err(|fault| fault.to_string())?;
            if !plan.keep {
                channel.purge_queue(&name).map_err(|fault| fault.to_string())?;
            }
        }
        let server = connection.server();
        Ok(format!("{} {}", server.product, server.version))
    })
}

fn tear_down(plan: &Plan) -> Result<(), LoadError> {
    with_connection(plan, |connection| {
        let mut channel = connection.channel().map_err(|fault| fault.to_string())?;
        for number in 0..plan.queues {
            channel.delete_queue(&plan.queue(number)).map_err(|fault| fault.to_string())?;
        }
        Ok(())
    })
}

fn with_connection<T>(
    plan: &Plan,
    work: impl FnOnce(&Connection) -> Result<T, String>,
) -> Result<T, LoadError> {
    let connection = Connection::open_named(&plan.url, Some("forebay-load"))
        .map_err(|error| LoadError::Broker(error.to_string()))?;
    let done = work(&connection).map_err(LoadError::Broker)?;
    // Everything was answered; how the farewell goes does not matter.
    let _ = connection.close();
    Ok(done)
}

/// Totals at a moment.
#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    at_us: u64,
    published: u64,
    confirmed: u64,
    consumed: u64,
    own_cpu_s: f64,
    broker_cpu_s: Option<f64>,
}

struct Generator<'a> {
    plan: &'a Plan,
    actors: Vec<Actor>,
    poller: Poller,
    shared: Vec<u8>,
    started: Instant,
    runnable: VecDeque<usize>,
    /// Publishers that wait for a due time.
    paced: BinaryHeap<Reverse<(u64, usize)>>,
    confirm: Latency,
    end_to_end: Latency,
    publishing: bool,
    blocked: u64,
}

impl<'a> Generator<'a> {
    fn new(plan: &'a Plan) -> Result<Generator<'a>, LoadError> {
        let uri: AmqpUri = AmqpUri::parse(&plan.url)
            .map_err(|error| LoadError::Broker(format!("cannot read the URL: {error}")))?;
        let poller = Poller::new()?;
        let mut actors = Vec::new();
        let consumers = (0..plan.consumers).map(|n| Role::Consumer(Consumer::new(plan, n)));
        let publishers = (0..plan.publishers).map(|n| Role::Publisher(Publisher::new(plan, n)));
        for role in consumers.chain(publishers) {
            let name = match &role {
                Role::Publisher(_) => "forebay-load publisher",
                Role::Consumer(_) => "forebay-load consumer",
            };
            let peer = Peer::connect(&uri, name)?;
            poller.add(&peer.stream, actors.len())?;
            actors.push(Actor { peer, role, ready: false, queued: false, paced: false });
        }
        Ok(Generator {
            plan,
            actors,
            poller,
            shared: vec![0; SHARED_BYTES],
            started: Instant::now(),
            runnable: VecDeque::new(),
            paced: BinaryHeap::new(),
            confirm: Latency::new(),
            end_to_end: Latency::new(),
            publishing: false,
            blocked: 0,
        })
    }

    fn now_us(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }

    fn run(&mut self) -> Result<Report, LoadError> {
        for actor in &mut self.actors {
            actor.peer.send().map_err(lost)?;
        }
        while !self.actors.iter().all(|actor| actor.ready) {
            self.turn(TURN_US_MAX)?;
            if self.now_us() > OPENING_PATIENCE_US {
                return Err(LoadError::Broker("the broker did not open all connections".into()));
            }
        }
        self.start_publishing();
        let warm_up_s = if self.plan.messages > 0 { 0.0 } else { self.plan.warm_up };
        self.turns_until(self.now_us() + (warm_up_s * 1e6) as u64)?;
        self.confirm = Latency::new();
        self.end_to_end = Latency::new();
        let (first, last, samples) = self.measure()?;
        self.publishing = false;
        let confirm = LatencyReport::of(&self.confirm.0);
        let end_to_end = LatencyReport::of(&self.end_to_end.0);
        let left_over = self.drain()?;
        Ok(self.report(first, last, samples, confirm, end_to_end, left_over))
    }

    /// All connections are ready: every publisher may go.
    fn start_publishing(&mut self) {
        self.publishing = true;
        let now_us = self.now_us();
        for index in 0..self.actors.len() {
            if let Role::Publisher(publisher) = &mut self.actors[index].role {
                publisher.start(now_us, index - self.plan.consumers, self.plan.publishers);
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

    fn measure(&mut self) -> Result<(Totals, Totals, Vec<Sample>), LoadError> {
        let first = self.totals();
        let end_us = first.at_us + (self.plan.seconds * 1e6) as u64;
        let mut samples = Vec::new();
        let mut last = first;
        while last.at_us < end_us && !self.is_done() {
            self.turns_until(end_us.min(last.at_us + 1_000_000))?;
            let now = self.totals();
            let seconds = (now.at_us - last.at_us) as f64 / 1e6;
            samples.push(Sample {
                seconds,
                published: (now.published - last.published) as f64 / seconds,
                confirmed: (now.confirmed - last.confirmed) as f64 / seconds,
                consumed: (now.consumed - last.consumed) as f64 / seconds,
                broker_bytes: self.plan.broker_pid.and_then(process::resident_bytes),
            });
            last = now;
        }
        Ok((first, last, samples))
    }

    /// Whether the asked-for number of messages is through.
    fn is_done(&self) -> bool {
        if self.plan.messages == 0 || !self.publishing {
            return false;
        }
        if self.plan.publishers == 0 {
            return self.consumed() >= self.plan.messages;
        }
        self.actors.iter().all(|actor| match &actor.role {
            Role::Publisher(publisher) => {
                publisher.is_done() && actor.peer.machine.outgoing().is_empty()
            }
            Role::Consumer(_) => true,
        })
    }

    fn drain(&mut self) -> Result<u64, LoadError> {
        if self.plan.consumers == 0 || self.plan.publishers == 0 {
            return Ok(0);
        }
        let until_us = self.now_us() + (self.plan.drain * 1e6) as u64;
        loop {
            let totals = self.totals();
            let left_over = totals.published.saturating_sub(totals.consumed);
            if left_over == 0 || totals.at_us >= until_us {
                return Ok(left_over);
            }
            self.turn(until_us - totals.at_us)?;
        }
    }

    /// One turn of the loop; waits at most `wait_us`.
    fn turn(&mut self, wait_us: u64) -> Result<(), LoadError> {
        let now_us = self.now_us();
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
                actor.peer.send().map_err(lost)?;
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
            Role::Consumer(_) => false,
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
        } else if let Some(due_us) = publisher.due_us()
            && publisher.has_room()
            && !actor.paced
        {
            actor.paced = true;
            self.paced.push(Reverse((due_us, index)));
        }
        self.watch_writing(index)?;
        Ok(added_bytes)
    }

    /// Reads one socket once.
    fn receive(&mut self, index: usize) -> Result<(), LoadError> {
        let now_us = self.started.elapsed().as_micros() as u64;
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
            (Event::Opened, _) => opened = true,
            (Event::Reply { method, .. }, role) => ready |= is_last_reply(&method, role, self.plan),
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
            (Event::Blocked { .. }, _) => blocked += 1,
            _ => {}
        });
        received.map_err(lost)?;
        self.blocked += blocked;
        if let Some(sentence) = refused {
            return Err(LoadError::Broker(sentence));
        }
        if opened {
            open_role(&mut actor.peer, &mut actor.role, self.plan)?;
        }
        actor.ready |= ready;
        if let Role::Consumer(consumer) = &mut actor.role
            && let Some(tag) = consumer.ack()
        {
            actor.peer.machine.ack(consumer.channel, tag, true).map_err(not_open)?;
        }
        actor.peer.send().map_err(lost)?;
        self.make_runnable(index);
        Ok(())
    }

    /// Keeps the poller's interest in line with what waits to be sent.
    fn watch_writing(&mut self, index: usize) -> Result<(), LoadError> {
        let peer = &mut self.actors[index].peer;
        if peer.watched_for_writing == peer.writable {
            self.poller.watch_writing(&peer.stream, index, !peer.writable)?;
            peer.watched_for_writing = !peer.writable;
        }
        Ok(())
    }

    fn consumed(&self) -> u64 {
        let consumed = |actor: &Actor| match &actor.role {
            Role::Publisher(_) => 0,
            Role::Consumer(consumer) => consumer.consumed,
        };
        self.actors.iter().map(consumed).sum()
    }

    fn totals(&self) -> Totals {
        let mut totals = Totals {
            at_us: self.now_us(),
            own_cpu_s: process::own_cpu_seconds(),
            broker_cpu_s: self.plan.broker_pid.and_then(process::cpu_seconds),
            ..Totals::default()
        };
        for actor in &self.actors {
            match &actor.role {
                Role::Publisher(publisher) => {
                    totals.published += publisher.published;
                    totals.confirmed += publisher.confirmed;
                }
                Role::Consumer(consumer) => totals.consumed += consumer.consumed,
            }
        }
        totals
    }

    fn report(
        &self,
        first: Totals,
        last: Totals,
        samples: Vec<Sample>,
        confirm: LatencyReport,
        end_to_end: LatencyReport,
        left_over: u64,
    ) -> Report {
        let seconds = ((last.at_us - first.at_us) as f64 / 1e6).max(1e-6);
        let (mut shares, mut rejected, mut redelivered) = (Vec::new(), 0, 0);
        for actor in &self.actors {
            match &actor.role {
                Role::Publisher(publisher) => {
                    shares.push(publisher.published);
                    rejected += publisher.rejected;
                }
                Role::Consumer(consumer) => redelivered += consumer.redelivered,
            }
        }
        let published = last.published - first.published;
        let confirmed = last.confirmed - first.confirmed;
        let consumed = last.consumed - first.consumed;
        let rates: Vec<f64> = samples
            .iter()
            .map(|sample| if self.plan.consumers > 0 { sample.consumed } else { sample.published })
            .collect();
        let broker_cpu_s = last.broker_cpu_s.zip(first.broker_cpu_s).map(|(to, from)| to - from);
        let messages = published.max(consumed).max(1) as f64;
        Report {
            plan: self.plan.clone(),
            broker: String::new(),
            seconds,
            published,
            confirmed,
            rejected,
            consumed,
            redelivered,
            published_per_s: published as f64 / seconds,
            confirmed_per_s: confirmed as f64 / seconds,
            consumed_per_s: consumed as f64 / seconds,
            variation: variation(&rates),
            fairness: fairness(&shares),
            confirm,
            end_to_end,
            generator_cores: (last.own_cpu_s - first.own_cpu_s) / seconds,
            broker_cores: broker_cpu_s.map(|cpu_s| cpu_s / seconds),
            broker_cpu_us_per_message: broker_cpu_s.map(|cpu_s| cpu_s * 1e6 / messages),
            broker_bytes_max: samples.iter().filter_map(|sample| sample.broker_bytes).max(),
            blocked: self.blocked,
            left_over,
            samples,
        }
    }
}

/// The connection is open: ask for everything the role needs, in one go.
fn open_role(peer: &mut Peer, role: &mut Role, plan: &Plan) -> Result<(), LoadError> {
    let machine = &mut peer.machine;
    let channel = machine.open_channel().map_err(not_open)?;
    match role {
        Role::Publisher(publisher) => {
            publisher.channel = channel;
            if plan.window > 0 {
                machine.select_confirms(channel).map_err(not_open)?;
            }
        }
        Role::Consumer(consumer) => {
            consumer.channel = channel;
            let qos = basic::Qos { prefetch_count: plan.prefetch, ..Default::default() };
            machine.send(channel, &qos).map_err(not_open)?;
            let consume = basic::Consume {
                queue: ShortStr::truncated(&consumer.queue),
                no_ack: plan.no_ack,
                ..Default::default()
            };
            machine.send(channel, &consume).map_err(not_open)?;
        }
    }
    Ok(())
}

/// Whether this answer is the last one of `open_role`.
fn is_last_reply(method: &Method<'_>, role: &Role, plan: &Plan) -> bool {
    match role {
        Role::Publisher(_) if plan.window > 0 => matches!(method, Method::ConfirmSelectOk(_)),
        Role::Publisher(_) => matches!(method, Method::ChannelOpenOk(_)),
        Role::Consumer(_) => matches!(method, Method::BasicConsumeOk(_)),
    }
}

fn lost(lost: PeerLost) -> LoadError {
    LoadError::Broker(lost.to_string())
}

fn not_open(error: ChannelError) -> LoadError {
    LoadError::Broker(error.to_string())
}
