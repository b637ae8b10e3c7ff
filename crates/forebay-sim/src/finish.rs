//! The end of a run: faults stop, and everything must come to rest.

use forebay_broker::ConnectionId;
use forebay_store::{Finding, Lane, check};

use crate::command::{ChannelCommand, Command};
use crate::random::Random;
use crate::violation::violation;
use crate::world::{Step, World};

/// Rounds after which somebody consumes what nobody does.
const PATIENCE_ROUNDS: usize = 400;

/// Rounds in which a world without faults comes to rest.
const ROUNDS_MAX: usize = 20_000;

/// How long a round takes, in microseconds.
const ROUND_US: usize = 500;

impl World {
    /// Lets everything come to rest and looks at what is left: every publish settled, every queue empty
    /// after it was drained, and the store sound and small.
    pub(crate) fn finish(&mut self) -> Step {
        self.trace.note("the faults stop");
        self.disk.set_capacity(None);
        // A fault that has not struck yet would strike now.
        if self.fault_pending {
            self.exit()?;
        }
        for client in 0..self.clients.len() {
            self.clients[client].finishing = true;
            match &mut self.links[client] {
                Some(link) if link.vanished => self.disconnect(client)?,
                Some(link) => link.stalled = false,
                None => {}
            }
        }
        self.come_to_rest()?;
        self.model.check_told()?;
        self.drain()?;
        self.model.check_settled()?;
        self.check_empty()?;
        if self.swarm.in_memory {
            return Ok(());
        }
        self.restart()?;
        self.check_empty()?;
        self.model.check_settled()?;
        self.check_store()
    }

    fn come_to_rest(&mut self) -> Step {
        let mut random = Random::new(self.trace.hash());
        let (mut idle, mut delivered) = (0, 0);
        for round in 0..ROUNDS_MAX {
            // Messages that came back and lie before a run stay in memory until somebody takes them, and
            // publishers may wait for that (docs/guide.md, "Memory").
            if round > PATIENCE_ROUNDS {
                self.take_one()?;
            }
            for client in 0..self.clients.len() {
                if self.links[client].is_some() {
                    for _ in 0..4 {
                        self.act(client, random.next())?;
                    }
                }
            }
            self.round()?;
            // Clients take the highest tag that was confirmed for all of them; the model knows which are open.
            let rest = (0..self.clients.len())
                .all(|client| self.links[client].is_none() || self.clients[client].is_idle())
                && self.model.check_told().is_ok();
            // Who needs no acks takes in silence.
            let takes = self.model.delivered > delivered;
            delivered = self.model.delivered;
            idle = if rest && !takes { idle + 1 } else { 0 };
            if idle > 20 {
                // Acks of others may wait with publishes for room in the memory.
                if self.links.iter().flatten().all(|link| link.upstream_bytes() == 0) {
                    self.check_nobody_is_left_idle()?;
                }
                if self.broker.shard.status().queues_holding == 0 {
                    return Ok(());
                }
                // Consumers that take nothing more are followed for some seconds.
                self.now_us += 100_000;
            }
        }
        self.model.check_told()?;
        let what = format!("{:?}\nclients: {:?}", self.broker.shard.status(), self.clients);
        Ok(violation("without faults everything comes to rest", what)?)
    }

    /// One round of a world in which everything works.
    fn round(&mut self) -> Step {
        for client in 0..self.links.len() {
            self.feed(client, usize::MAX)?;
        }
        self.turn()?;
        for lane in Lane::ALL {
            self.complete(lane)?;
        }
        self.turn()?;
        for client in 0..self.links.len() {
            self.carry(client, usize::MAX)?;
        }
        self.now_us += ROUND_US as u64;
        if self.broker.shard.next_deadline_us().is_some_and(|at| at <= self.now_us) {
            self.tick()?;
        }
        Ok(())
    }

    /// Somebody gets what nobody consumes.
    fn drain(&mut self) -> Step {
        // Consumers have taken what they can; with them gone, what they could not hold comes back.
        for client in 0..self.clients.len() {
            self.disconnect(client)?;
        }
        let mut rounds = 0;
        while !self.model.queues_with_messages().is_empty() || !self.model.is_answered() {
            rounds = if self.take_one()? { 0 } else { rounds + 1 };
            self.round()?;
            if rounds > ROUNDS_MAX {
                let what = format!("{} messages left", self.model.certainly_ready());
                violation("without faults everything comes to rest", what)?;
            }
        }
        self.round()
    }

    /// One more message is asked for by somebody who does nothing else; false while the answer to the
    /// last one is due.
    fn take_one(&mut self) -> Step<bool> {
        let client = self.links.len() - 1;
        if self.links[client].is_none() {
            self.connect(client)?;
            self.say(client, ChannelCommand::Open);
            return Ok(true);
        }
        if self.model.has_failed_channel(client) {
            // Somebody deleted the queue before the question for its message came.
            self.disconnect(client)?;
            return Ok(false);
        }
        let on_its_way = self.links[client].as_ref().is_some_and(|link| link.upstream_bytes() > 0);
        // In turn: a letter that may be in one queue is seen to be there when it is not in the other.
        let queues = self.model.queues_with_messages();
        let queue = queues.get(self.now_us as usize / ROUND_US % queues.len().max(1)).copied();
        match queue {
            Some(queue) if !on_its_way && self.model.is_answered_to(client) => {
                self.say(client, ChannelCommand::Get { queue, no_ack: true });
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    fn say(&mut self, client: usize, command: ChannelCommand) {
        if let Some(link) = &mut self.links[client] {
            link.say(Command::Channel(1, command));
        }
    }

    fn check_empty(&mut self) -> Step {
        let status = self.broker.shard.status();
        if status.ready + status.unacked > 0 || status.memory_bytes > 0 {
            let what = format!(
                "{} ready, {} unacked, {} bytes when all is settled: {:?}",
                status.ready, status.unacked, status.memory_bytes, status.queues
            );
            violation("nothing is invented, nothing leaks", what)?;
        }
        for client in 0..self.links.len() - 1 {
            if !self.broker.shard.outgoing(ConnectionId(client as u32)).is_empty() {
                violation("nothing is invented, nothing leaks", "bytes for nobody")?;
            }
        }
        Ok(())
    }

    /// The store is stopped, sound, and has given back what it no longer needs.
    fn check_store(&mut self) -> Step {
        self.stop()?;
        let segments = self.broker.shard.status().store.segments;
        let runs = self.broker.shard.status().store.runs;
        if segments > 2 || runs > 0 {
            let what = format!("an empty store has {segments} segments and {runs} runs");
            violation("nothing is invented, nothing leaks", what)?;
        }
        self.disk.kill();
        let mut damaged = String::new();
        let report = check(&*self.disk, &mut |finding| {
            if let Finding::Damaged { .. } | Finding::Failed { .. } = finding {
                damaged = format!("{finding:?}");
            }
        });
        if !report.is_sound() {
            violation("a stopped store is sound", damaged)?;
        }
        Ok(())
    }
}
