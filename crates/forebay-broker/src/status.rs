//! What a shard tells of itself, for metrics and live views.

use forebay_flow::{Balance, BalanceState};

use crate::balancing::QueueFlow;
use crate::latencies::Latencies;
use crate::queue::Queue;
use crate::shard::Shard;
use crate::wait_report::WaitReport;

/// Running totals since the start.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Counters {
    /// Connections accepted.
    pub connections_opened: u64,
    /// Connections that were told an error.
    pub connection_errors: u64,
    /// Channels that were told an error.
    pub channel_errors: u64,
    /// Connections that did not finish their handshake in time.
    pub handshake_timeouts: u64,
    /// Connections closed at once because too many others had not finished theirs.
    pub handshakes_refused: u64,
    /// Connections that missed their heartbeats.
    pub heartbeat_timeouts: u64,
    /// Channels closed because a delivery was not acknowledged in time.
    pub ack_timeouts: u64,
    /// Bytes read.
    pub received_bytes: u64,
    /// Messages published.
    pub published: u64,
    /// Messages that no queue took.
    pub unroutable: u64,
    /// Messages given back to their publisher.
    pub returned: u64,
    /// Publishes confirmed.
    pub confirmed: u64,
    /// Messages delivered, redeliveries included.
    pub delivered: u64,
    /// Deliveries acknowledged or rejected for good.
    pub acknowledged: u64,
    /// Messages that expired in a queue.
    pub expired: u64,
    /// Publishes that a full queue did not take.
    pub refused: u64,
    /// Messages that left a queue because it was longer than it may be.
    pub dropped: u64,
    /// Messages that dead-letter exchanges took to a queue.
    pub dead_lettered: u64,
    /// Queues that nobody used for as long as they allow.
    pub queues_expired: u64,
    /// Direct replies dropped because their requester did not read.
    pub replies_dropped: u64,
    /// Traces of the firehose dropped because memory was short.
    pub traces_dropped: u64,
    /// Run files written.
    pub runs_written: u64,
    /// Stored messages that could not be understood.
    pub undecodable: u64,
}

/// One queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueStatus {
    /// Virtual host.
    pub vhost: String,
    /// Name.
    pub name: String,
    /// Messages ever put into it, requeued ones not again.
    pub enqueued: u64,
    /// Messages to be delivered, in RAM and on disk.
    pub ready: u64,
    /// Messages delivered and not settled.
    pub unacked: u64,
    /// Consumers.
    pub consumers: usize,
    /// Memory of ready messages, in bytes.
    pub ready_bytes: u64,
    /// Messages that are only on disk.
    pub cold: u64,
    /// Messages that are being written to disk to make room, and wait for it.
    pub spilling: u64,
    /// Survives a restart.
    pub durable: bool,
    /// What it does with publishers that are faster than its consumers.
    pub flow: QueueFlow,
    /// Where it stands, if it balances.
    pub flow_state: BalanceState,
    /// How long messages have waited at least in the last second, in microseconds, if it balances.
    pub standing_wait_us: u64,
}

/// A snapshot of a shard.
#[derive(Debug, Clone)]
pub struct Status {
    /// Connections open.
    pub connections: usize,
    /// Channels open.
    pub channels: usize,
    /// Consumers.
    pub consumers: usize,
    /// Exchanges, the predeclared ones included.
    pub exchanges: usize,
    /// Queues, at most as many as were asked for.
    pub queues: Vec<QueueStatus>,
    /// How many queues there are.
    pub queue_count: usize,
    /// Messages ready in all queues.
    pub ready: u64,
    /// Messages unsettled in all queues.
    pub unacked: u64,
    /// Memory of messages, in bytes.
    pub memory_bytes: u64,
    /// The memory budget, in bytes.
    pub memory_budget_bytes: u64,
    /// What messages may take of it now while publishes are taken, in bytes.
    pub memory_max_bytes: u64,
    /// Outgoing buffers, in bytes.
    pub outgoing_bytes: u64,
    /// Bytes that wait behind publishes for which there is no room.
    pub held_bytes: u64,
    /// What the receive buffers of publishers' sockets were asked to be, in bytes.
    pub receive_bytes: u64,
    /// Queues that hold publishers, because their consumers are slower.
    pub queues_holding: usize,
    /// Why publishers were told `connection.blocked`; `None` once it is over, though some may hear of that a second later.
    pub alarm: Option<&'static str>,
    /// Totals.
    pub counters: Counters,
    /// Who waits for whom.
    pub waits: WaitReport,
    /// How long publishes waited for their sync: from the first one of a batch, for each channel and batch.
    pub sync_latencies: Latencies,
    /// Of what windows of publishers next door may have in flight, the part that they are asked for, in thousandths.
    pub window_part_permille: u32,
    /// What the store says.
    pub store: forebay_store::Statistics,
}

/// Queues named in a [`Status`]; a snapshot of more would cost the shard a long turn.
const QUEUES_MAX: usize = 1_000;

impl Shard {
    /// A snapshot, as of the last step. Costs a visit to every queue and connection.
    pub fn status(&self) -> Status {
        self.status_at(self.now_us)
    }

    /// The same at `now_us`: waits go on while nothing is stepped.
    pub fn status_at(&self, now_us: u64) -> Status {
        let whole = || self.queues.iter().filter(|(_, queue)| queue.level_of.is_none());
        let queues = whole().take(QUEUES_MAX).map(|(_, queue)| self.queue_status(queue)).collect();
        let open = || self.connections.iter().flatten();
        Status {
            connections: self.connections_open,
            channels: open().map(|c| usize::from(c.channels_open)).sum(),
            consumers: self.consumers.len(),
            exchanges: self.vhosts.iter().map(|v| v.topology.exchanges().count()).sum(),
            queues,
            queue_count: whole().count(),
            ready: self.queues.iter().map(|(_, queue)| queue.ready()).sum(),
            unacked: self.queues.iter().map(|(_, queue)| queue.unacked).sum(),
            memory_bytes: self.memory_bytes,
            memory_budget_bytes: self.config.memory_budget_bytes,
            memory_max_bytes: self.memory_max_bytes(),
            outgoing_bytes: open().map(|c| c.out.capacity() as u64).sum(),
            held_bytes: open().filter(|c| c.held).map(|c| c.partial.len() as u64).sum(),
            receive_bytes: self.receive_bytes,
            queues_holding: self
                .balanced_queues
                .iter()
                .filter_map(|(key, id)| {
                    let queue = self.queues.get(key.0 as usize).filter(|queue| queue.id == *id);
                    balance(queue?)
                })
                .filter(|balance| balance.state() == BalanceState::Holding)
                .count(),
            alarm: self.alarms.reason(),
            counters: self.counters.clone(),
            waits: self.wait_report(now_us),
            sync_latencies: self.sync_latencies.clone(),
            window_part_permille: self.fill_trial.part_permille(),
            store: self.store.statistics(),
        }
    }

    pub(crate) fn queue_status(&self, queue: &Queue) -> QueueStatus {
        QueueStatus {
            vhost: self.vhosts[queue.vhost as usize].name.clone(),
            name: queue.display_name(),
            enqueued: self.over_levels(queue, |level| level.next_seq - 1),
            ready: self.over_levels(queue, Queue::ready),
            unacked: self.over_levels(queue, |level| level.unacked),
            consumers: queue.consumers.len(),
            ready_bytes: self.over_levels(queue, |level| level.ready_bytes),
            cold: self.over_levels(queue, |level| level.cold.messages()),
            spilling: self.over_levels(queue, |level| {
                level.spilling.iter().map(|run| run.entries.len() as u64).sum()
            }),
            durable: queue.stored,
            flow: queue.flow(),
            flow_state: balance(queue).map_or(BalanceState::Absorbing, Balance::state),
            standing_wait_us: balance(queue).map_or(0, Balance::standing_wait_us),
        }
    }
}

fn balance(queue: &Queue) -> Option<&Balance> {
    queue.balanced.as_ref().map(|balanced| &balanced.balance)
}
