//! One broker, its clients, the network between them and the disk below: all of it in one thread.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_broker::{Admission, ConnectionId, Input, Peer};
use forebay_store::fault_disk::Call;
use forebay_store::{Lane, MemDisk, StoreFailed};

use crate::broker::Broker;
use crate::client::Client;
use crate::command::{ChannelCommand, Command};
use crate::event::{DiskError, Event};
use crate::link::{Link, UPSTREAM_MAX_BYTES};
use crate::model::Model;
use crate::names::Name;
use crate::random::Random;
use crate::swarm::Swarm;
use crate::trace::Trace;
use crate::violation::{Violation, violation};

/// What a paused connection that holds deliveries may say at a time, in bytes (the shell's figure).
const TRICKLE_BYTES: usize = 4 * 1024;

/// How long the timer of a queue is put off while the disk is full (`SPACE_AGAIN_US` of the broker).
const LETTERS_WAIT_US: u64 = 101_000;

/// What has happened in a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Events applied.
    pub events: u64,
    /// Deaths, recoveries cut short included.
    pub crashes: u64,
    /// Clean stops and starts.
    pub restarts: u64,
    /// Disk faults that were injected and met.
    pub disk_failures: u64,
    /// Runs that ended because damage was found, as it has to be.
    pub detected: u64,
    /// Messages published.
    pub published: u64,
    /// Deliveries seen.
    pub delivered: u64,
    /// Confirms seen.
    pub confirmed: u64,
    /// Publishes that a full queue refused.
    pub refused: u64,
    /// Run files written.
    pub runs_written: u64,
    /// Messages that expired.
    pub expired: u64,
    /// Queues that went because nobody used them.
    pub queues_expired: u64,
    /// Messages that went because there were too many, or too large ones.
    pub dropped: u64,
    /// How often queues were seen that held their publishers.
    pub held: u64,
    /// How often a client was asked whether it is there.
    pub asked: u64,
    /// Deliveries to one consumer while another one had to stand back for it, by its priority or as it is not active.
    pub preferred: u64,
    /// Direct replies delivered.
    pub replies: u64,
    /// Dead letters delivered.
    pub letters: u64,
    /// Those of them that nobody rejected.
    pub left: u64,
    /// Dead letters that a crash left in doubt, of which both places were seen afterwards.
    pub found_letters: u64,
}

/// Why a run goes no further.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// A promise was broken.
    Violated(Violation),
    /// Bytes were changed behind the broker's back, and it said so.
    Detected(String),
}

impl From<Violation> for Stop {
    fn from(violation: Violation) -> Stop {
        Stop::Violated(violation)
    }
}

/// What a step comes to.
pub(crate) type Step<T = ()> = Result<T, Stop>;

/// The simulated world.
pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) swarm: Swarm,
    /// As the broker's process counts it: from its start on.
    pub(crate) now_us: u64,
    /// How long those before it were there.
    pub(crate) lived_us: u64,
    pub(crate) disk: Arc<MemDisk>,
    pub(crate) broker: Broker,
    pub(crate) model: Model,
    pub(crate) clients: Vec<Client>,
    /// By client; one more than clients, for whoever drains at the end.
    pub(crate) links: Vec<Option<Link>>,
    /// Starts of the broker so far.
    pub(crate) starts: u64,
    /// The broker was asked to stop.
    pub(crate) stopping: bool,
    /// A disk fault was injected since the last start, so the store may fail.
    pub(crate) fault_pending: bool,
    /// Bytes were changed behind the broker's back.
    pub(crate) flipped: bool,
    /// Bytes that paused connections were let say since the memory was last within its budget.
    pub(crate) trickled_bytes: u64,
    /// Since when a queue holds publishers although it need not, by name.
    pub(crate) held_in_vain_us: BTreeMap<String, u64>,
    /// Turns in which the broker had no reason to let deliveries wait for more.
    pub(crate) turns: u64,
    pub(crate) statistics: Statistics,
    pub(crate) trace: Trace,
}

impl World {
    /// Does what an event says; an event that cannot happen now does nothing.
    pub(crate) fn apply(&mut self, event: Event) -> Step {
        self.statistics.events += 1;
        self.trace.event(self.statistics.events, self.now_us, &event);
        // Time goes on a little with everything that happens.
        self.now_us += 1 + self.trace.hash() % self.swarm.step_us;
        match event {
            Event::Act { client, roll } => self.act(client, roll),
            Event::Feed { client, bytes } => self.feed(client, bytes),
            Event::Carry { client, bytes } => self.carry(client, bytes),
            Event::Turn => self.turn(),
            Event::Tick => match self.broker.shard.next_deadline_us() {
                Some(at) if at <= self.now_us => self.tick(),
                _ => Ok(()),
            },
            Event::Wait { us } => {
                let until = self.broker.shard.next_deadline_us().unwrap_or(u64::MAX);
                self.now_us = until.clamp(self.now_us, self.now_us + us);
                self.tick()
            }
            Event::Complete(lane) => self.complete(lane),
            Event::Reset { client } => self.disconnect(client),
            Event::Vanish { client } => {
                if let Some(link) = &mut self.links[client] {
                    link.vanished = true;
                }
                Ok(())
            }
            Event::Stall { client } => {
                if let Some(link) = &mut self.links[client] {
                    link.stalled = !link.stalled;
                }
                Ok(())
            }
            Event::Die { death, seed } => self.die(death, &mut Random::new(seed)),
            Event::Fail(error) => {
                let call = match error {
                    DiskError::Write => Call::Write,
                    DiskError::Sync => Call::Sync,
                    DiskError::Read => Call::Read,
                    DiskError::Create => Call::Create,
                    DiskError::Allocate => Call::Allocate,
                    DiskError::Name => Call::Rename,
                    DiskError::Remove => Call::Remove,
                    DiskError::Names => Call::SyncDir,
                };
                self.disk.fail(call, 0, std::io::ErrorKind::Other);
                self.fault_pending = true;
                Ok(())
            }
            Event::Room { bytes } => {
                self.disk.set_capacity(bytes.map(|bytes| self.disk.used_bytes() + bytes));
                self.fault_pending |= bytes.is_some();
                Ok(())
            }
            Event::Flip { seed } => self.flip(&mut Random::new(seed)),
            Event::Restart => self.restart(),
        }
    }

    pub(crate) fn act(&mut self, client: usize, roll: u64) -> Step {
        if self.links[client].is_none() {
            return self.connect(client);
        }
        let (swarm, next_id, now_us) = (&self.swarm, self.model.next_id(), self.now_us);
        let Some(link) = &mut self.links[client] else { return Ok(()) };
        if link.vanished || link.closing || link.upstream_bytes() > UPSTREAM_MAX_BYTES {
            return Ok(());
        }
        for command in self.clients[client].act(swarm, roll, now_us, next_id) {
            self.trace.says(client, &command);
            if let Command::Channel(_, ChannelCommand::Publish(message)) = command {
                self.model.made(message);
                self.statistics.published += 1;
            }
            link.say(command);
        }
        Ok(())
    }

    pub(crate) fn connect(&mut self, client: usize) -> Step {
        let mut link = Link::new(self.swarm.frame_max, self.now_us);
        let heartbeat_s = self.swarm.heartbeat_s;
        let leases = self.swarm.leases;
        link.say(Command::Handshake { frame_max: link.frame_max, heartbeat_s, leases });
        self.links[client] = Some(link);
        self.model.connected(client);
        if let Some(client) = self.clients.get_mut(client) {
            client.reset();
        }
        let peer = Peer { address: "sim".to_owned(), loopback: true, listener: "sim".to_owned() };
        self.step(Input::Connected { connection: ConnectionId(client as u32), peer })
    }

    /// The connection is gone, on both sides.
    pub(crate) fn disconnect(&mut self, client: usize) -> Step {
        if self.links[client].take().is_none() {
            return Ok(());
        }
        if let Some(client) = self.clients.get_mut(client) {
            client.reset();
        }
        self.tell_time();
        self.model.disconnected(client);
        self.step(Input::Disconnected { connection: ConnectionId(client as u32) })
    }

    /// Bytes reach the broker, as many as it admits.
    pub(crate) fn feed(&mut self, client: usize, mut bytes: usize) -> Step {
        let id = ConnectionId(client as u32);
        let Some(link) = &self.links[client] else { return Ok(()) };
        if link.closing || link.vanished || link.upstream_bytes() == 0 {
            return Ok(());
        }
        match self.broker.shard.admission(id) {
            Admission::Open => {}
            Admission::Trickle => {
                bytes = bytes.min(TRICKLE_BYTES);
                self.trickled_bytes += bytes as u64;
            }
            Admission::Resume => {
                self.trickled_bytes += TRICKLE_BYTES as u64;
                return self.received(client, &[]);
            }
            Admission::Closed => return Ok(()),
        }
        // The shell does so before the first publisher of a turn; here it may be before any, and in any turn.
        if self.statistics.events.is_multiple_of(4) {
            self.step(Input::Deliver)?;
        }
        while bytes > 0
            && let Some(link) = &mut self.links[client]
            && link.upstream_bytes() > 0
            && !link.is_held()
        {
            let piece = link.take(bytes);
            link.heard_us = self.now_us;
            // One that goes whole may be more.
            bytes = bytes.saturating_sub(piece.len());
            self.received(client, &piece)?;
        }
        Ok(())
    }

    /// The broker is given bytes, and the model the commands that it carries out for them.
    fn received(&mut self, client: usize, bytes: &[u8]) -> Step {
        let id = ConnectionId(client as u32);
        let result = self.broker.shard.step(self.now_us, Input::Received { connection: id, bytes });
        let held = self.broker.shard.held_bytes(id);
        let commands =
            self.links[client].as_mut().map_or(Vec::new(), |link| link.carried_out(held));
        for command in &commands {
            self.tell_time();
            self.trace.processed(client, command);
            self.model.process(client, command);
        }
        self.after(result)
    }

    /// Bytes reach a client; a connection that is to be closed closes after the last.
    pub(crate) fn carry(&mut self, client: usize, bytes: usize) -> Step {
        let id = ConnectionId(client as u32);
        let Some(link) = &mut self.links[client] else { return Ok(()) };
        if link.vanished {
            return Ok(());
        }
        let outgoing = self.broker.shard.outgoing(id);
        let count = bytes.min(outgoing.len());
        if count > 0 {
            if let Some(client) = self.clients.get_mut(client) {
                client.receive(&outgoing[..count]);
            }
            link.observed = link.observed.saturating_sub(count);
            let result =
                self.broker.shard.step(self.now_us, Input::Sent { connection: id, bytes: count });
            self.after(result)?;
        }
        match self.clients.get(client) {
            Some(over) if over.over => self.disconnect(client),
            _ => self.close_if_written(client),
        }
    }

    pub(crate) fn close_if_written(&mut self, client: usize) -> Step {
        let id = ConnectionId(client as u32);
        match &self.links[client] {
            Some(link) if link.closing && self.broker.shard.outgoing(id).is_empty() => {
                self.disconnect(client)
            }
            _ => Ok(()),
        }
    }

    /// The end of a turn, as the shell ends it.
    pub(crate) fn turn(&mut self) -> Step {
        if self.swarm.resident {
            self.tell_resident();
        }
        let more = |link: &Link| link.upstream_bytes() > 0 && !link.is_held();
        let busy = self.links.iter().flatten().any(more);
        self.turns += u64::from(!busy);
        self.step(Input::Turn { busy })?;
        for client in 0..self.links.len() {
            if self.links[client].as_ref().is_some_and(|link| link.cut) {
                self.disconnect(client)?;
            }
        }
        self.broker.take_requests(self.now_us);
        if self.statistics.events.is_multiple_of(8) {
            self.check_bounds()?;
            self.check_nobody_idle()?;
            self.check_lengths()?;
            self.check_nobody_held_in_vain()?;
            if self.broker.shard.next_deadline_us().is_none_or(|at| at > self.now_us) {
                // Nor does one wait for a timer that nobody has set.
                self.look_for_unused_queues()?;
            }
        }
        Ok(())
    }

    /// What the process takes, however that swings.
    fn tell_resident(&mut self) {
        let status = self.broker.shard.status();
        let beside = Random::new(self.trace.hash()).below(status.memory_budget_bytes);
        self.broker.shard.set_resident(self.now_us, status.memory_bytes + beside);
    }

    /// A lane is done with its request.
    pub(crate) fn complete(&mut self, lane: Lane) -> Step {
        let result = self.broker.complete(lane, &self.disk, self.now_us);
        self.after(result)
    }

    /// Deadlines have passed.
    pub(crate) fn tick(&mut self) -> Step {
        let result = self.broker.shard.step(self.now_us, Input::Tick);
        if result.is_ok() {
            self.tell_time();
            // Who was silent for too long uses no queue that went after that.
            self.hear_who_leaves()?;
            self.look_for_unused_queues()?;
        }
        self.after(result)
    }

    /// Queues that nobody uses go by a timer, and nobody is told.
    fn look_for_unused_queues(&mut self) -> Step {
        if self.swarm.expires_ms == 0 {
            return Ok(());
        }
        let shard = &self.broker.shard;
        let is_there = |queue: Name| shard.queue_report("/", queue.as_bytes(), 0).is_some();
        let stopping = self.stopping;
        let late_us = |model: &Model, queue: Name| match stopping {
            true => u64::MAX,
            // Its timer was set when its dead letters waited for room on a disk that was full.
            false if model.has_letters(queue) => LETTERS_WAIT_US,
            false => 0,
        };
        Ok(self.model.timers_ran(is_there, late_us)?)
    }

    /// The model knows what time it is.
    pub(crate) fn tell_time(&mut self) {
        self.model.at(self.lived_us + self.now_us, self.turns);
    }

    pub(crate) fn step(&mut self, input: Input<'_>) -> Step {
        let result = self.broker.shard.step(self.now_us, input);
        self.after(result)
    }

    /// After a step of the broker: what it sent is checked, or it has died of its disk.
    pub(crate) fn after(&mut self, result: Result<(), StoreFailed>) -> Step {
        match result {
            Ok(()) => {
                // Letters that are written now come now, not when the model was last told the time.
                self.tell_time();
                let shard = &self.broker.shard;
                self.model.letters_wait(shard.rejected_waiting(), shard.letters_waiting());
                self.observe_all()
            }
            Err(failed) if self.flipped => Err(Stop::Detected(failed.to_string())),
            Err(failed) if self.fault_pending => {
                self.trace.note(&format!("the store failed: {failed}"));
                self.statistics.disk_failures += 1;
                self.exit()
            }
            Err(failed) => {
                Ok(violation("the store works while the disk does", failed.to_string())?)
            }
        }
    }
}
