//! The machine: all state of one shard, and the dispatch of its inputs.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};

use forebay_flow::{CommitCost, CommitSize, FillTrial, Gathering, IngressBudget};
use forebay_store::{BatchNo, Event, Recovered, Request, RunId, Store, StoreFailed};
use forebay_wire::WireMethod;
use hashbrown::HashMap;
use sha2::{Digest, Sha256};
use slab::Slab;

use crate::active_publishers::ActivePublishers;
use crate::alarms::Alarms;
use crate::config::ShardConfig;
use crate::confirm::Ack;
use crate::connection::{Connection, Stage};
use crate::consumer::Consumer;
use crate::dying::DyingMessages;
use crate::evacuation::Evacuation;
use crate::flow::{Assembling, INGRESS_PER_MEMORY};
use crate::input::{CloseHow, ConnectionId, Input};
use crate::latencies::Latencies;
use crate::memory::Beside;
use crate::notices::Notices;
use crate::publisher::Publishers;
use crate::queue::Queue;
use crate::restore::RestoreError;
use crate::round_robin::GATHER_LOOK_US;
use crate::status::Counters;
use crate::topology::{QueueKey, RouteSet, VhostTopology};
use crate::waits::{Gate, PastWaits};
use crate::warm::Warm;

/// A virtual host: a name and the topology under it.
#[derive(Debug)]
pub(crate) struct Vhost {
    pub(crate) name: String,
    pub(crate) topology: VhostTopology,
    /// Publishes and deliveries are told to its trace exchange.
    pub(crate) traced: bool,
    /// Open in it, until their sockets are gone.
    pub(crate) connections: usize,
    pub(crate) connections_max: Option<usize>,
}

impl Vhost {
    /// An empty one, with what the configuration says of it.
    pub(crate) fn new(name: &str, config: &ShardConfig) -> Vhost {
        let policies = config.policies.iter().filter(|policy| policy.vhost == name).cloned();
        let topology = VhostTopology::new(name).with_policies(policies.collect());
        let traced = config.trace_vhosts.iter().any(|each| each == name);
        let limits = &config.vhost_connections_max;
        let connections_max = limits.iter().find(|(each, _)| each == name).map(|(_, max)| *max);
        Vhost { name: name.to_owned(), topology, traced, connections: 0, connections_max }
    }
}

/// A channel that waits for a batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConfirmWaiter {
    pub(crate) batch: BatchNo,
    pub(crate) connection: ConnectionId,
    pub(crate) serial: u64,
    pub(crate) channel: u16,
    /// When the first of its publishes came.
    pub(crate) since_us: u64,
}

/// How far a stop has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stopping {
    /// Not asked for.
    No,
    /// What was received is being synced; confirms still go out.
    Settling,
    /// Connections were told 320 and are being closed.
    Closing,
    /// The final checkpoint is being written.
    Checkpoint,
    /// Synced.
    Stopped,
}

/// A broker shard. See the crate's documentation for the polling order.
#[derive(Debug)]
pub struct Shard {
    pub(crate) config: ShardConfig,
    pub(crate) store: Store,
    pub(crate) now_us: u64,
    /// When this clock began, in microseconds since 1970, if the shell has said so.
    pub(crate) clock_began_us: Option<u64>,
    /// Names made up so far.
    pub(crate) names: u64,
    pub(crate) connections: Vec<Option<Box<Connection>>>,
    pub(crate) connections_open: usize,
    /// Connections that have not logged in.
    pub(crate) handshaking: usize,
    pub(crate) consuming_connections: usize,
    pub(crate) publishing_connections: usize,
    pub(crate) active: ActivePublishers,
    pub(crate) assembling: Assembling,
    /// What the receive buffers of their sockets were asked to be, together.
    pub(crate) receive_bytes: u64,
    pub(crate) serial: u64,
    pub(crate) vhosts: Vec<Vhost>,
    /// Those that have a name.
    pub(crate) publishers: Publishers,
    /// Whether any of them is traced.
    pub(crate) tracing: bool,
    /// Boxed, because a slab grows by doubling: 10 000 queues need not have the room of 16 384.
    pub(crate) queues: Slab<Box<Queue>>,
    pub(crate) consumers: Slab<Consumer>,
    pub(crate) next_queue_id: u64,
    /// The last batch that changed the durable topology.
    pub(crate) topology_batch: BatchNo,
    /// Whether there is a disk to store and spill to.
    pub(crate) on_disk: bool,
    pub(crate) dirty_queues: VecDeque<QueueKey>,
    /// A queue whose block is read only because what is in it may die.
    pub(crate) dying_read: Option<(QueueKey, u64)>,
    /// Queues that wait for memory to read a block of a run; each once.
    pub(crate) hungry_queues: Vec<QueueKey>,
    pub(crate) dirty_connections: VecDeque<ConnectionId>,
    pub(crate) dirty_confirms: Vec<(ConnectionId, u16)>,
    /// Channels with publishes in unsynced batches, oldest batch first; ≤ one per channel and batch.
    pub(crate) confirm_waiters: VecDeque<ConfirmWaiter>,
    /// Connections with barriers, oldest batch first; ≤ one per connection and batch.
    pub(crate) barrier_waiters: VecDeque<(BatchNo, ConnectionId, u64)>,
    pub(crate) closed: VecDeque<(ConnectionId, CloseHow)>,
    /// One live entry per connection; older ones are recognised by `Connection::timer_us`.
    pub(crate) timers: BinaryHeap<Reverse<(u64, u32)>>,
    /// When something is due in a queue, at most once for each.
    pub(crate) queue_timers: BTreeSet<(u64, QueueKey)>,
    /// Queues that are longer than they may be, each once.
    pub(crate) long_queues: Vec<QueueKey>,
    /// Rejected or refused, and their dead letters wait for room.
    pub(crate) dying: DyingMessages,
    /// Live reply-to consumers by token.
    pub(crate) reply_tokens: HashMap<Vec<u8>, (ConnectionId, u16), foldhash::fast::FixedState>,
    /// Memory of all messages, in bytes.
    pub(crate) memory_bytes: u64,
    /// What open transactions have of it.
    pub(crate) transactions_bytes: u64,
    /// What letters of commits have taken of the last of the disk's reserve.
    pub(crate) reserve_letters_bytes: u64,
    /// Of messages that are gone, for the next ones; of what was sent, for what is sent next.
    pub(crate) warm_messages: Warm,
    pub(crate) warm_out: Warm,
    pub(crate) beside: Beside,
    /// Which queue a run being written or read belongs to.
    pub(crate) runs: HashMap<RunId, (QueueKey, u64), foldhash::fast::FixedState>,
    pub(crate) spill_checked_us: u64,
    /// Queues with consumers and a part on disk, when memory was last found pressed.
    pub(crate) queues_served_cold: usize,
    pub(crate) spilling_bytes: u64,
    /// A segment of the log that is being emptied.
    pub(crate) evacuating: Option<Evacuation>,
    pub(crate) low_space: bool,
    /// Queues that balance and have something to be looked at; each once.
    pub(crate) balanced_queues: Vec<(QueueKey, u64)>,
    pub(crate) balanced_looked_us: u64,
    /// A full queue did not take the message that was published last.
    pub(crate) refused: bool,
    /// A queue that holds the message that is being published.
    pub(crate) held_by: Option<QueueKey>,
    pub(crate) ingress: IngressBudget,
    pub(crate) commit_cost: CommitCost,
    pub(crate) fill_trial: FillTrial,
    pub(crate) commit_size: CommitSize,
    /// All queues with something to deliver wait for more of it; how long they may.
    pub(crate) gathering: bool,
    /// Queues that gather, while the others are visited; empty between visits.
    pub(crate) scratch_gathering: Vec<QueueKey>,
    pub(crate) gather: Gathering,
    /// Bytes committed, as far as `ingress` knows.
    pub(crate) committed_bytes: u64,
    /// Since when publishes have been held, as of the end of the last turn.
    pub(crate) paused_since_us: Option<u64>,
    pub(crate) alarms: Alarms,
    pub(crate) notices: Notices,
    pub(crate) stopping: Stopping,
    /// The disk has failed: every step says so from then on.
    pub(crate) failed: Option<StoreFailed>,
    pub(crate) counters: Counters,
    pub(crate) past_waits: PastWaits,
    /// From the first publish of a batch until it is synced, for each channel and batch.
    pub(crate) sync_latencies: Latencies,
    /// Reused by every publish.
    pub(crate) route_set: RouteSet,
    pub(crate) scratch_queues: Vec<QueueKey>,
    pub(crate) scratch_letters: Vec<QueueKey>,
    pub(crate) scratch_places: Vec<(u64, u64)>,
    pub(crate) scratch_acks: Vec<Ack>,
}

impl Shard {
    /// Makes a shard over a store, with what the store recovered.
    pub fn new(
        config: ShardConfig,
        store: Store,
        recovered: Option<Recovered>,
    ) -> Result<Shard, RestoreError> {
        let vhosts = config.vhosts.iter().map(|name| Vhost::new(name, &config)).collect();
        let ingress = IngressBudget::new(config.memory_budget_bytes / INGRESS_PER_MEMORY);
        let mut shard = Shard {
            names: 0,
            tracing: !config.trace_vhosts.is_empty(),
            clock_began_us: config.clock_began_us,
            config,
            store,
            now_us: 0,
            connections: Vec::new(),
            connections_open: 0,
            handshaking: 0,
            consuming_connections: 0,
            publishing_connections: 0,
            active: ActivePublishers::default(),
            assembling: Assembling::default(),
            receive_bytes: 0,
            serial: 0,
            vhosts,
            publishers: Publishers::default(),
            queues: Slab::new(),
            consumers: Slab::new(),
            next_queue_id: 1,
            topology_batch: 0,
            on_disk: recovered.is_some(),
            dirty_queues: VecDeque::new(),
            dying_read: None,
            hungry_queues: Vec::new(),
            dirty_connections: VecDeque::new(),
            dirty_confirms: Vec::new(),
            confirm_waiters: VecDeque::new(),
            barrier_waiters: VecDeque::new(),
            closed: VecDeque::new(),
            timers: BinaryHeap::new(),
            queue_timers: BTreeSet::new(),
            long_queues: Vec::new(),
            dying: DyingMessages::default(),
            reply_tokens: HashMap::default(),
            memory_bytes: 0,
            transactions_bytes: 0,
            reserve_letters_bytes: 0,
            warm_messages: Warm::default(),
            warm_out: Warm::default(),
            beside: Beside::default(),
            runs: HashMap::default(),
            spill_checked_us: 0,
            queues_served_cold: 0,
            spilling_bytes: 0,
            evacuating: None,
            low_space: false,
            balanced_queues: Vec::new(),
            balanced_looked_us: 0,
            refused: false,
            held_by: None,
            ingress,
            commit_cost: CommitCost::default(),
            fill_trial: FillTrial::default(),
            commit_size: CommitSize::default(),
            gathering: false,
            scratch_gathering: Vec::new(),
            gather: Gathering::default(),
            committed_bytes: 0,
            paused_since_us: None,
            alarms: Alarms::default(),
            notices: Notices::default(),
            stopping: Stopping::No,
            failed: None,
            counters: Counters::default(),
            past_waits: PastWaits::default(),
            sync_latencies: Latencies::default(),
            route_set: RouteSet::new(),
            scratch_queues: Vec::new(),
            scratch_letters: Vec::new(),
            scratch_places: Vec::new(),
            scratch_acks: Vec::new(),
        };
        if let Some(recovered) = recovered {
            shard.restore(recovered)?;
        }
        Ok(shard)
    }

    /// Takes one input at `now_us` (monotonic microseconds; never less than before).
    ///
    /// An error is final: the disk has failed, nothing more will be confirmed, and the process should
    /// end and say so.
    pub fn step(&mut self, now_us: u64, input: Input<'_>) -> Result<(), StoreFailed> {
        debug_assert!(now_us >= self.now_us, "time went backwards");
        // Without a store nothing may be taken, or a persistent message would be confirmed like one
        // that needs no disk. What was said before may still be written.
        if let Some(failed) = &self.failed
            && !matches!(input, Input::Sent { .. } | Input::Disconnected { .. })
        {
            return Err(failed.clone());
        }
        self.now_us = now_us;
        match input {
            Input::Received { connection, bytes } => self.received(connection, bytes),
            Input::Sent { connection, bytes } => self.sent(connection, bytes),
            Input::Deliver => self.deliver_dirty_queues(self.gather.is_busy()),
            Input::Turn { busy } => self.turn(busy),
            Input::Disk(completion) => {
                if let Err(failed) = self.store.complete(now_us, completion) {
                    self.failed = Some(failed.clone());
                    return Err(failed);
                }
                self.store_events();
            }
            Input::Tick => {
                self.tick();
                self.tick_queues();
            }
            Input::Connected { connection, peer } => self.connected(connection, peer),
            Input::Disconnected { connection } => self.disconnected(connection),
            Input::Shutdown => self.shutdown(),
            Input::FromShard { mail, .. } => match mail {},
        }
        Ok(())
    }

    /// The end of a turn: confirms, then deliveries, then what flow control has to do.
    fn turn(&mut self, busy: bool) {
        self.store_events();
        self.gather.turn(busy);
        self.deliver_dirty_queues(busy);
        self.write_waiting_letters();
        self.shorten_queues();
        self.look_at_balanced_queues();
        self.tell_confirms();
        self.balance_memory();
        self.advance_stop();
    }

    /// A connection that has bytes to send; each is named once until more is queued for it.
    pub fn next_dirty(&mut self) -> Option<ConnectionId> {
        while let Some(id) = self.dirty_connections.pop_front() {
            if let Some(connection) = self.connection(id) {
                connection.dirty = false;
                if !connection.out.ready().is_empty() {
                    return Some(id);
                }
            }
        }
        None
    }

    /// What may be written to a connection now. Follow every write with [`Input::Sent`].
    pub fn outgoing(&self, id: ConnectionId) -> &[u8] {
        match self.connections.get(id.0 as usize) {
            Some(Some(connection)) => connection.out.ready(),
            _ => &[],
        }
    }

    /// The next disk request; ask until `None`.
    pub fn poll_disk(&mut self, now_us: u64) -> Option<Request> {
        self.store.poll(now_us)
    }

    /// When [`Input::Tick`] is due at the latest; a time that has passed means at once.
    pub fn next_deadline_us(&self) -> Option<u64> {
        let has_more = !self.dirty_queues.is_empty();
        if has_more && !self.gathering {
            return Some(self.now_us);
        }
        let gathered = has_more.then(|| self.now_us + GATHER_LOOK_US);
        let timer = self.timers.peek().map(|Reverse((at, _))| *at);
        let store = self.store.next_deadline_us();
        let flow = self.flow_deadline_us();
        let balance = self.balance_deadline_us();
        let alarms = self.alarms_deadline_us();
        let queues = self.queues_deadline_us();
        [gathered, timer, store, flow, balance, alarms, queues].into_iter().flatten().min()
    }

    /// Whether all that could be delivered waits for a moment for more to go with it, as it may while the shell is busy.
    pub fn is_gathering(&self) -> bool {
        self.gathering
    }

    /// Whether the next turn shortens queues in which very many came at once: one turn takes out only some of them.
    pub fn is_shortening(&self) -> bool {
        !self.long_queues.is_empty()
    }

    /// Messages that were rejected or refused and whose dead letters wait for room.
    pub fn letters_waiting(&self) -> usize {
        self.dying.len()
    }

    /// After [`Input::Shutdown`]: everything is told, closed and on disk.
    pub fn stopped(&self) -> bool {
        self.stopping == Stopping::Stopped
    }

    pub(crate) fn connection(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.connections.get_mut(id.0 as usize)?.as_deref_mut()
    }

    pub(crate) fn take_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// Sends a method.
    pub(crate) fn send(&mut self, id: ConnectionId, channel: u16, method: &impl WireMethod) {
        if let Some(connection) = self.connection(id) {
            forebay_wire::write_method(connection.out.buffer(), channel, method);
            self.mark_connection(id);
        }
    }

    /// All that is sent to this connection from now on waits for `batch`.
    pub(crate) fn raise_barrier(&mut self, id: ConnectionId, batch: BatchNo) {
        if self.store.durable_batch() >= batch {
            return;
        }
        let now_us = self.now_us;
        let Some(connection) = self.connection(id) else { return };
        connection.out.raise_barrier(batch);
        connection.waits.begin(Gate::Sync, now_us);
        let serial = connection.serial;
        self.barrier_waiters.push_back((batch, id, serial));
        self.store.add_waiter();
    }

    /// This queue may have something to deliver.
    pub(crate) fn mark_queue(&mut self, key: QueueKey) {
        if let Some(queue) = self.queues.get_mut(key.0 as usize)
            && !queue.dirty
            && !(queue.consumers.is_empty() && queue.gets.is_empty())
        {
            queue.dirty = true;
            self.dirty_queues.push_back(key);
            self.gathering = false;
        }
    }

    /// A name nobody else has, and nobody can guess from others: `prefix` and 22 characters, 128 bits of SHA-256 over a
    /// secret and a count.
    pub(crate) fn made_up_name(&mut self, prefix: &str) -> Vec<u8> {
        const DIGITS: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        self.names += 1;
        let hash = Sha256::new()
            .chain_update(self.config.secret.to_be_bytes())
            .chain_update(self.names.to_be_bytes())
            .finalize();
        let mut bits =
            hash.iter().take(16).fold(0_u128, |bits, byte| bits << 8 | u128::from(*byte));
        let mut name = prefix.as_bytes().to_vec();
        for _ in 0..22 {
            name.push(DIGITS[(bits & 63) as usize]);
            bits >>= 6;
        }
        name
    }

    fn store_events(&mut self) {
        while let Some(event) = self.store.poll_event() {
            match event {
                Event::Durable(batch) => {
                    self.batch_durable(batch);
                    self.budget_ingress();
                    self.write_some_letters();
                    // Of what is too many some have room for their letters before publishers fill the next batch.
                    self.shorten_queues();
                }
                Event::RunDurable { run, queue } => self.run_durable(run, queue),
                Event::RunBlock { run, queue, messages, at_end } => {
                    self.run_block(run, queue, messages, at_end);
                }
                Event::Evacuate { homes } => self.evacuate(homes),
                Event::LowSpace(low) => self.low_space = low,
                Event::Stopped => self.stopping = Stopping::Stopped,
            }
        }
    }

    fn batch_durable(&mut self, batch: BatchNo) {
        while self.confirm_waiters.front().is_some_and(|waiter| waiter.batch <= batch) {
            let Some(waiter) = self.confirm_waiters.pop_front() else { break };
            self.confirm_durable(waiter, batch);
        }
        while self.barrier_waiters.front().is_some_and(|(waits, _, _)| *waits <= batch) {
            let Some((_, id, serial)) = self.barrier_waiters.pop_front() else { break };
            let now_us = self.now_us;
            if let Some(connection) = self.connection(id)
                && connection.serial == serial
            {
                connection.waits.end(Gate::Sync, now_us);
                if connection.out.durable(batch) {
                    self.mark_connection(id);
                }
            }
        }
    }

    fn shutdown(&mut self) {
        if self.stopping == Stopping::No {
            self.stopping = Stopping::Settling;
            self.let_all_go();
        }
    }

    fn advance_stop(&mut self) {
        match self.stopping {
            Stopping::Settling => {
                if self.confirm_waiters.is_empty() && self.barrier_waiters.is_empty() {
                    self.stopping = Stopping::Closing;
                    self.close_all_connections("shutdown");
                }
            }
            Stopping::Closing => {
                if self.connections_open == 0 && self.letters_are_written() {
                    for (_, queue) in &self.queues {
                        if queue.stored {
                            // A crash before this life made them doubtful, and they still are.
                            self.store.note_delivered(queue.id, queue.known_upto());
                        }
                    }
                    self.store.shutdown();
                    self.stopping = Stopping::Checkpoint;
                }
            }
            Stopping::No | Stopping::Checkpoint | Stopping::Stopped => {}
        }
    }

    fn close_all_connections(&mut self, why: &str) {
        for index in 0..self.connections.len() {
            let id = ConnectionId(index as u32);
            match self.connection(id).map(|connection| connection.stage) {
                Some(Stage::Open) => {
                    self.connection_error(id, crate::error::AmqpError::forced(why), 0, 0);
                }
                Some(Stage::Closing) | None => {}
                Some(_) => self.close_socket(id, CloseHow::Flushed),
            }
        }
    }
}
