//! How the broker dies, stops and comes back.

use forebay_broker::{ConnectionId, Input};
use forebay_store::{Disk, Lane, OpenError};
use forebay_wire::{Method, read_frame};

use crate::broker::Broker;
use crate::command::{ChannelCommand, Command};
use crate::event::{Death, End};
use crate::model::base_queues;
use crate::names::{
    BASE_EXCHANGES, FANOUT, Name, PASSING_EXCHANGES, PASSING_QUEUES, PATTERNS, TOPIC,
};
use crate::random::Random;
use crate::violation::violation;
use crate::world::{Step, Stop, World};

/// Rounds in which a stop, or the declarations after a start, must be done.
const ROUNDS_MAX: usize = 5_000;

/// `connection.close-ok` on channel 0 (0-9-1 section 1.4.2.10).
const CLOSE_OK_FRAME: [u8; 12] = [1, 0, 0, 0, 0, 0, 4, 0, 10, 0, 51, 0xCE];

/// Somewhen in 2023, in microseconds since 1970.
const CLOCK_BEGAN_US: u64 = 1_700_000_000_000_000;

/// Recoveries that are cut short one after the other.
const RECOVERY_CRASHES_MAX: usize = 4;

impl World {
    /// The broker dies in the middle of everything and is started again.
    pub(crate) fn die(&mut self, death: Death, random: &mut Random) -> Step {
        self.statistics.crashes += 1;
        self.leave(random);
        self.lose(death, random);
        self.start(death, random, End::Died)
    }

    /// The store has failed and the process ends, as it must.
    pub(crate) fn exit(&mut self) -> Step {
        self.statistics.crashes += 1;
        let end = if self.stopping { End::DiedStopping } else { End::Died };
        let mut random = Random::new(self.trace.hash());
        self.leave(&mut random);
        self.lose(Death::Kill, &mut random);
        self.start(Death::Kill, &mut random, end)
    }

    /// A bit of a run file, or of a segment before the newest two, changes while the broker is down.
    ///
    /// The newest batches are left alone: the last one cannot be told from a torn one
    /// (docs/storage-format.md), and the store's own tests know which is which.
    pub(crate) fn flip(&mut self, random: &mut Random) -> Step {
        self.leave(random);
        self.lose(Death::Kill, random);
        let names = self.disk.list().unwrap_or_default();
        let mut segments: Vec<&String> =
            names.iter().filter(|name| name.starts_with("log-")).collect();
        segments.truncate(segments.len().saturating_sub(2));
        let files: Vec<&String> =
            names.iter().filter(|name| name.starts_with("run-")).chain(segments).collect();
        if !files.is_empty() {
            let file = files[random.index(files.len())];
            let bits = 8 * self.disk.len(file).unwrap_or(0);
            if bits > 0 {
                self.trace.note(&format!("a bit of {file} changes"));
                self.disk.flip_bit(file, random.below(bits) as usize);
                self.flipped = true;
            }
        }
        self.start(Death::Kill, random, End::Died)
    }

    /// The broker is asked to stop, everybody is told, and it is started again.
    pub(crate) fn restart(&mut self) -> Step {
        let starts = self.starts;
        if self.stop()? && self.starts == starts {
            self.statistics.restarts += 1;
            let mut random = Random::new(self.trace.hash());
            self.leave(&mut random);
            self.disk.kill();
            self.start(Death::Kill, &mut random, End::Stopped)?;
        }
        Ok(())
    }

    /// Stops the broker cleanly; false if its disk failed on the way and it was started again.
    pub(crate) fn stop(&mut self) -> Step<bool> {
        let starts = self.starts;
        self.disk.set_capacity(None);
        self.stopping = true;
        self.step(Input::Shutdown)?;
        for round in 0..ROUNDS_MAX {
            if self.starts != starts {
                return Ok(false);
            }
            if self.broker.shard.stopped() {
                return Ok(true);
            }
            self.turn()?;
            for lane in Lane::ALL {
                self.complete(lane)?;
            }
            for client in 0..self.links.len() {
                self.carry(client, usize::MAX)?;
                // The shell's patience with peers that do not answer.
                let silent = self.broker.shard.outgoing(ConnectionId(client as u32)).is_empty();
                if self.model.is_closing(client) && silent || round > 200 {
                    self.disconnect(client)?;
                }
            }
            self.now_us += 1_000;
            self.tick()?;
        }
        Ok(violation("it stops when asked", format!("not within {ROUNDS_MAX} rounds"))?)
    }

    /// Whatever the process had is gone; of requests in flight a part may be done.
    fn leave(&mut self, random: &mut Random) {
        for link in &mut self.links {
            *link = None;
        }
        for client in &mut self.clients {
            client.reset();
        }
        let counters = self.broker.shard.status().counters;
        self.statistics.runs_written += counters.runs_written;
        self.statistics.expired += counters.expired;
        self.statistics.dropped += counters.dropped;
        self.statistics.queues_expired += counters.queues_expired;
        self.broker.die(&self.disk, random);
    }

    fn lose(&mut self, death: Death, random: &mut Random) {
        match death {
            Death::Kill => self.disk.kill(),
            Death::PowerLoss => self.disk.power_loss(random.next()),
        }
    }

    /// Starts on what is there, as often as it takes.
    pub(crate) fn start(&mut self, death: Death, random: &mut Random, end: End) -> Step {
        self.starts += 1;
        self.fault_pending = false;
        self.lived_us += std::mem::take(&mut self.now_us);
        self.held_in_vain_us.clear();
        let crashes = match (end == End::Stopped, self.swarm.recovery_crash_one_in) {
            (false, one_in) if one_in > 0 && random.one_in(one_in) => RECOVERY_CRASHES_MAX,
            _ => 0,
        };
        for _ in 0..random.below(crashes as u64 + 1) {
            self.disk.stop_after(random.below(30));
            let config = self.config();
            if let Ok(mut broker) = self.start_broker(config) {
                // It got as far as its first requests.
                broker.take_requests(self.now_us);
                broker.die(&self.disk, random);
            }
            self.statistics.crashes += 1;
            self.lose(death, random);
        }
        let config = self.config();
        let started = match self.start_broker(config.clone()) {
            Err(OpenError::Io { source, .. })
                if source.kind() == std::io::ErrorKind::StorageFull =>
            {
                self.disk.set_capacity(None);
                self.disk.kill();
                self.start_broker(config)
            }
            started => started,
        };
        self.disk.set_capacity(None);
        self.broker = match started {
            Ok(broker) => broker,
            Err(error) if self.flipped => return Err(Stop::Detected(error.to_string())),
            Err(error) => violation("it starts on what it wrote", error.to_string())?,
        };
        self.stopping = false;
        self.model.restarted(end);
        self.trace.note("started");
        self.declare_base()
    }

    /// The system's clock, when the process began. In half of the worlds it was set back since the last start.
    fn clock_began_us(&self) -> u64 {
        let back_s = if self.seed.is_multiple_of(2) { 0 } else { self.starts };
        CLOCK_BEGAN_US + self.lived_us - back_s * 1_000_000
    }

    fn config(&self) -> forebay_broker::ShardConfig {
        let clock_began_us = Some(self.clock_began_us());
        let config = self.swarm.config(self.seed ^ self.starts);
        forebay_broker::ShardConfig { clock_began_us, ..config }
    }

    fn start_broker(&self, config: forebay_broker::ShardConfig) -> Result<Broker, OpenError> {
        Broker::start(&self.disk, &self.swarm.options, config, self.swarm.in_memory)
    }

    /// Somebody declares the base topology, deletes what came and went, and counts what is there.
    fn declare_base(&mut self) -> Step {
        self.tell_time();
        self.model.base_declared(&self.swarm);
        let mut commands = vec![ChannelCommand::Open];
        for queue in PASSING_QUEUES {
            commands.push(ChannelCommand::DeleteQueue { queue, if_unused: false });
        }
        for exchange in PASSING_EXCHANGES {
            commands.push(ChannelCommand::DeleteExchange { exchange, if_unused: false });
        }
        for exchange in BASE_EXCHANGES {
            let made = self.swarm.exchange(exchange);
            commands.push(ChannelCommand::DeclareExchange { exchange, made, passive: false });
        }
        commands.push(ChannelCommand::BindExchange { destination: TOPIC, source: FANOUT, key: "" });
        let mut counted: Vec<Name> = Vec::new();
        for (queue, durable) in base_queues() {
            counted.push(queue);
            commands.push(ChannelCommand::DeclareQueue {
                queue,
                durable,
                exclusive: false,
                auto_delete: false,
                passive: false,
                max_priority: self.swarm.max_priority(queue),
                single_active: self.swarm.is_single_active(queue),
            });
            for key in PATTERNS {
                let wanted = self.swarm.bindings.contains(&(TOPIC, key, queue));
                commands.push(match wanted {
                    true => ChannelCommand::Bind { queue, exchange: TOPIC, key },
                    false => ChannelCommand::Unbind { queue, exchange: TOPIC, key },
                });
            }
            for (exchange, key, _) in self
                .swarm
                .bindings
                .iter()
                .filter(|(exchange, _, to)| *to == queue && *exchange != TOPIC)
            {
                commands.push(ChannelCommand::Bind { queue, exchange, key });
            }
        }
        let counts = self.converse(commands)?;
        self.tell_time();
        self.model.base_was_used();
        for (queue, count) in counted.into_iter().zip(counts) {
            let (least, most) = self.model.ready_range(queue);
            if !(least..=most).contains(&(count as usize)) {
                let what = format!("queue {queue} has {count} messages, not {least} to {most}");
                violation("confirmed is never lost", what)?;
            }
        }
        Ok(())
    }

    /// Says all of it on a connection of its own and waits for the end; the model looks away. Returns the
    /// counts of declare-ok.
    fn converse(&mut self, commands: Vec<ChannelCommand>) -> Step<Vec<u32>> {
        let client = self.links.len() - 1;
        let id = ConnectionId(client as u32);
        let peer = forebay_broker::Peer {
            address: "sim".to_owned(),
            loopback: true,
            listener: "sim".to_owned(),
        };
        let mut bytes = Vec::new();
        let frame_max = 131_072;
        Command::Handshake { frame_max, heartbeat_s: 0, leases: false }
            .encode(frame_max, &mut bytes);
        for command in commands {
            Command::Channel(1, command).encode(frame_max, &mut bytes);
        }
        Command::CloseConnection.encode(frame_max, &mut bytes);
        self.quiet(Input::Connected { connection: id, peer })?;
        self.quiet(Input::Received { connection: id, bytes: &bytes })?;
        let mut received = Vec::new();
        let mut closed = false;
        for _ in 0..ROUNDS_MAX {
            self.quiet(Input::Turn { busy: false })?;
            let outgoing = self.broker.shard.outgoing(id).to_vec();
            received.extend_from_slice(&outgoing);
            self.quiet(Input::Sent { connection: id, bytes: outgoing.len() })?;
            if received.ends_with(&CLOSE_OK_FRAME) {
                closed = true;
                break;
            }
            self.broker.take_requests(self.now_us);
            for lane in Lane::ALL {
                let result = self.broker.complete(lane, &self.disk, self.now_us);
                self.must(result)?;
            }
            self.now_us += 100;
            self.quiet(Input::Tick)?;
        }
        self.quiet(Input::Disconnected { connection: id })?;
        while self.broker.shard.next_dirty().is_some() {}
        let mut counts = Vec::new();
        let mut at = 0;
        while let Ok(Some(frame)) = read_frame(&received[at..], 0) {
            at += frame.size_bytes();
            match Method::parse(frame.payload) {
                Ok(Method::QueueDeclareOk(ok)) => counts.push(ok.message_count),
                Ok(Method::ChannelClose(close)) => {
                    let what = format!("{} {}", close.reply_code, close.reply_text);
                    violation("what was declared can be declared again", what)?;
                }
                _ => {}
            }
        }
        if !closed {
            let what = format!("the declarations after a start, {} answered", counts.len());
            violation("every request is answered", what)?;
        }
        Ok(counts)
    }

    fn quiet(&mut self, input: Input<'_>) -> Step {
        let result = self.broker.shard.step(self.now_us, input);
        self.must(result)
    }

    fn must(&mut self, result: Result<(), forebay_store::StoreFailed>) -> Step {
        match result {
            Ok(()) => Ok(()),
            Err(failed) if self.flipped => Err(Stop::Detected(failed.to_string())),
            Err(failed) => {
                Ok(violation("the store works while the disk does", failed.to_string())?)
            }
        }
    }
}
