//! The oracle: a broker so simple that one sees it is right, fed with the same commands in the same order.
//!
//! A command is [processed](Model::process) when its last byte has been given to the real broker, so the
//! model knows the order in which the broker met them, of all connections. What the real broker sends is
//! [observed](observe) and must be what this one could have sent. Only two things are not known exactly:
//! what a crash left of work that was not yet known to be durable ([`queue`]), and deliveries behind a
//! reply that waits for the disk, which exist before they can be seen ([`Model::certain`]).

mod channel;
mod consumers;
pub(crate) mod content;
mod counts;
mod declare;
mod letters;
pub(crate) mod limit;
pub(crate) mod observe;
mod order;
mod process;
pub(crate) mod queue;
mod refusal;
mod replies;
mod topology;
mod unused;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::event::End;
use crate::message::Published;
use crate::names::{DURABLE_QUEUES, Name, PASSING_QUEUES, TRANSIENT_QUEUES};
use crate::swarm::Swarm;
use crate::violation::{Violation, violation};
use channel::{Channel, Connection, Dying};
use queue::Queue;
use replies::Requester;
use topology::{Target, Topology};

/// A binding between a base exchange and a base queue.
pub(crate) type BaseBinding = (Name, Name, Name);

/// The oracle.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    /// Operations processed; numbers them.
    op: u64,
    /// The last one before the step of the broker that is observed.
    step_op: u64,
    /// All operations up to this one are known to be on disk.
    durable_op: u64,
    /// Every message ever published, by id.
    messages: Vec<Published>,
    queues: BTreeMap<Name, Queue>,
    topology: Topology,
    connections: BTreeMap<usize, Connection>,
    /// What is rejected from these queues goes to another.
    letters_from: &'static [Name],
    /// Rejected, and their letters may wait for room; in order.
    dying: VecDeque<Dying>,
    /// Messages that a queue may have refused, and whose letters may come from there.
    refused_letters: BTreeSet<(Name, u32)>,
    /// Messages that want replies, and who published them.
    requesters: BTreeMap<u32, Requester>,
    /// The names of those who get them.
    reply_names: BTreeMap<Vec<u8>, Requester>,
    /// In this step of the broker somebody may have got credit, or gone, after others were served.
    credit_came: bool,
    /// What went back with a connection may have been delivered in this very step.
    someone_left: bool,
    /// Dead letters delivered.
    pub(crate) letters: u64,
    /// Those of them that nobody rejected.
    pub(crate) left: u64,
    /// Messages that a crash left in doubt, in their queue or in that of their letter, and that were found in one of them.
    pub(crate) found_letters: u64,
    /// Deliveries observed.
    pub(crate) delivered: u64,
    /// Confirms observed, one for each message.
    pub(crate) confirmed: u64,
    /// Publishes that a full queue refused.
    pub(crate) refused: u64,
    /// Deliveries to one consumer while another one had to stand back for it.
    pub(crate) preferred: u64,
    /// Direct replies observed.
    pub(crate) replies: u64,
}

impl Model {
    pub(crate) fn new(swarm: &Swarm) -> Model {
        let queues = DURABLE_QUEUES
            .iter()
            .chain(&TRANSIENT_QUEUES)
            .chain(&PASSING_QUEUES)
            .chain(&crate::names::EXCLUSIVE_QUEUES)
            .map(|name| (*name, Queue::new(name, swarm)))
            .collect();
        Model {
            op: 0,
            step_op: 0,
            durable_op: 0,
            messages: Vec::new(),
            queues,
            topology: Topology::default(),
            connections: BTreeMap::new(),
            letters_from: swarm.letters_from(),
            dying: VecDeque::new(),
            refused_letters: BTreeSet::new(),
            requesters: BTreeMap::new(),
            reply_names: BTreeMap::new(),
            credit_came: false,
            someone_left: false,
            letters: 0,
            left: 0,
            found_letters: 0,
            delivered: 0,
            confirmed: 0,
            refused: 0,
            preferred: 0,
            replies: 0,
        }
    }

    /// It is this time now, and the broker has taken so many turns in which deliveries do not wait.
    pub(crate) fn at(&mut self, now_us: u64, turn: u64) {
        self.queues.values_mut().for_each(|queue| queue.at(now_us, turn));
        self.send_those_that_left();
    }

    /// The id of the next message.
    pub(crate) fn next_id(&self) -> u32 {
        self.messages.len() as u32
    }

    /// A client has made a message; it need not arrive.
    pub(crate) fn made(&mut self, message: Published) {
        debug_assert_eq!(message.id, self.next_id());
        self.messages.push(message);
    }

    /// Whether everything delivered so far has been observed: nobody's deliveries wait for the disk.
    fn certain(&self) -> bool {
        self.connections.values().all(|connection| connection.barriers == 0)
    }

    pub(crate) fn connected(&mut self, client: usize) {
        self.connections.insert(client, Connection::default());
    }

    /// A connection is gone: what it had not settled goes back.
    pub(crate) fn disconnected(&mut self, client: usize) {
        self.leaves(client, |_| false);
    }

    /// The same, where the step may have delivered something on these channels before.
    fn leaves(&mut self, client: usize, unseen: fn(&Channel) -> bool) {
        self.op += 1;
        let Some(connection) = self.connections.remove(&client) else { return };
        let barriers = connection.barriers;
        for (number, channel) in connection.channels {
            let unseen = barriers > 0 || unseen(&channel);
            self.close_channel(client, number, channel, unseen);
        }
        let owned: Vec<Name> = self
            .queues
            .values()
            .filter(|queue| queue.exists && queue.exclusive == Some(client))
            .map(|queue| queue.name)
            .collect();
        for queue in owned {
            self.delete_queue(queue);
        }
    }

    /// The broker is up again.
    ///
    /// What it recovered is durable from now on: nothing recovered may be lost later.
    pub(crate) fn restarted(&mut self, end: End) {
        self.op += 1;
        if end == End::Stopped {
            self.durable_op = self.op;
        }
        for connection in std::mem::take(&mut self.connections).into_values() {
            if connection.barriers > 0 {
                connection.channels.values().for_each(|channel| self.doubt_unseen(channel));
            }
        }
        self.topology = Topology::default();
        self.dying.clear();
        self.refused_letters.clear();
        for queue in self.queues.values_mut() {
            queue.restart(self.durable_op, self.op, end);
            queue.exists = false;
        }
        self.durable_op = self.op;
    }

    /// After a restart somebody has declared the base topology and deleted what came and went.
    pub(crate) fn base_declared(&mut self, swarm: &Swarm) {
        self.topology.declare_base(swarm);
        for (name, durable) in base_queues() {
            if let Some(queue) = self.queues.get_mut(name) {
                queue.exists = true;
                queue.durable = durable;
                queue.used();
            }
        }
        for (exchange, key, queue) in &swarm.bindings {
            self.topology.bind(exchange, key, Target::Queue(queue));
        }
        for name in PASSING_QUEUES {
            if let Some(queue) = self.queues.get_mut(name) {
                let op = self.op;
                queue.delete(op);
                queue.durable(op);
            }
        }
    }

    /// What must be in a base queue after a restart, and what may be.
    pub(crate) fn ready_range(&self, queue: Name) -> (usize, usize) {
        self.queues.get(queue).map_or((0, 0), Queue::ready_range)
    }

    /// Everything up to this operation is durable.
    fn durable(&mut self, op: u64) {
        if op > self.durable_op {
            self.durable_op = op;
            for queue in self.queues.values_mut() {
                queue.durable(op);
            }
        }
    }

    /// Messages that are certainly in queues and not delivered.
    pub(crate) fn certainly_ready(&self) -> usize {
        self.queues.values().filter(|queue| queue.exists).map(|queue| queue.ready_range().0).sum()
    }

    /// Whether every request has its answer.
    pub(crate) fn is_answered(&self) -> bool {
        self.connections.keys().all(|client| self.is_answered_to(*client))
    }

    /// Whether every request of this client has its answer.
    pub(crate) fn is_answered_to(&self, client: usize) -> bool {
        let connection = self.connections.get(&client);
        connection.is_none_or(|c| c.channels.values().all(|channel| channel.replies.is_empty()))
    }

    /// Whether the broker closed a channel of this client for an error.
    pub(crate) fn has_failed_channel(&self, client: usize) -> bool {
        let connection = self.connections.get(&client);
        connection.is_some_and(|c| c.channels.values().any(|channel| channel.failed))
    }

    /// The broker is done with a connection and listens to nothing more.
    pub(crate) fn told_to_close(&mut self, client: usize) {
        self.op += 1;
        self.someone_left = true;
        if self.is_closing(client) {
            return;
        }
        self.disconnected(client);
        self.connected(client);
        if let Some(connection) = self.connections.get_mut(&client) {
            connection.closing = true;
        }
    }

    /// Queues in which something may wait.
    pub(crate) fn queues_with_messages(&self) -> Vec<Name> {
        self.queues
            .values()
            .filter(|queue| queue.exists && queue.exclusive.is_none() && queue.ready_count() > 0)
            .map(|queue| queue.name)
            .collect()
    }

    /// At rest nothing is due any more on the connections that are left.
    pub(crate) fn check_told(&self) -> Result<(), Violation> {
        for (client, connection) in &self.connections {
            if let Some(code) = connection.refused {
                let what = format!("client {client}: connection.close with {code}");
                return violation("every request is answered", what);
            }
            for (number, channel) in &connection.channels {
                let at = format!("client {client}, channel {number}");
                if let channel::Mode::Confirm { outstanding, .. } = &channel.mode
                    && let Some((sequence, pending)) = outstanding.first_key_value()
                {
                    let what = format!(
                        "{at}: publish {sequence} of {} open: {pending:?}",
                        outstanding.len()
                    );
                    return violation("every publish settles", what);
                }
                if let Some(reply) = channel.replies.front() {
                    return violation("every request is answered", format!("{at}: {reply:?}"));
                }
                if let Some(tag) = channel.cancels_due.first() {
                    return violation("consumers learn of their end", format!("{at}: {tag}"));
                }
            }
        }
        Ok(())
    }

    /// At the end nothing is left, either.
    pub(crate) fn check_settled(&self) -> Result<(), Violation> {
        self.check_told()?;
        if let Some(queue) = self.queues.values().find(|queue| queue.first_certain().is_some()) {
            let instance = queue.first_certain();
            return violation(
                "confirmed is never lost",
                format!("queue {} is empty and should hold {instance:?}", queue.name),
            );
        }
        Ok(())
    }
}

/// The queues of every world, and which survive a restart.
pub(crate) fn base_queues() -> impl Iterator<Item = (Name, bool)> {
    let durable = DURABLE_QUEUES.iter().map(|name| (*name, true));
    durable.chain(TRANSIENT_QUEUES.iter().map(|name| (*name, false)))
}
