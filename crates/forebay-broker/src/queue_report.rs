//! What a shard tells of one queue: who consumes it, who holds what, and what its messages waited for.

use crate::queue::Queue;
use crate::shard::Shard;
use crate::status::QueueStatus;
use crate::wait_report::GateWaits;

/// Consumers in one report.
const CONSUMERS_MAX: usize = 1_000;

/// A consumer of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerStatus {
    /// Its tag, which need not be UTF-8.
    pub tag: Vec<u8>,
    /// The address of its connection's peer.
    pub address: String,
    /// Who logged in there.
    pub user: String,
    /// Its channel.
    pub channel: u16,
    /// Its deliveries need no acknowledgement.
    pub no_ack: bool,
    /// It gets messages: not so, where only one at a time does, those that wait to be it.
    pub active: bool,
    /// Deliveries that it may hold, the channel's bound included; 0: as many as there are.
    pub prefetch: u16,
    /// Deliveries that it holds.
    pub unacked: u32,
    /// For how long its connection was not read because it publishes as well, in microseconds; never falls.
    pub publishes_held_us: u64,
}

/// One queue.
#[derive(Debug, Clone)]
pub struct QueueReport {
    /// As it is in the status of all.
    pub status: QueueStatus,
    /// Who consumes it, 1000 at most.
    pub consumers: Vec<ConsumerStatus>,
    /// What its messages have waited for since it is there.
    pub waits: Vec<GateWaits>,
    /// Every gate, over all who wait there.
    pub gates: Vec<GateWaits>,
}

impl Shard {
    /// What is known of a queue at `now_us`; `None` if there is none of this name. Costs a visit to every queue and
    /// connection.
    pub fn queue_report(&self, vhost: &str, name: &[u8], now_us: u64) -> Option<QueueReport> {
        let vhost = self.vhosts.iter().find(|known| known.name == vhost)?;
        let queue = self.queues.get(vhost.topology.queue(name)?.0 as usize)?;
        let waits = queue.waits.edges(now_us.max(self.now_us));
        let waits = waits.map(|(gate, waited_us, waiting)| GateWaits {
            gate,
            waited_us,
            waiting: u64::from(waiting),
        });
        Some(QueueReport {
            status: self.queue_status(queue),
            consumers: self.consumers_of(queue, now_us.max(self.now_us)),
            waits: waits.collect(),
            gates: self.wait_report(now_us).gates,
        })
    }

    fn consumers_of(&self, queue: &Queue, now_us: u64) -> Vec<ConsumerStatus> {
        let consumers = queue.consumers.iter().take(CONSUMERS_MAX);
        let status = consumers.filter_map(|key| {
            let consumer = self.consumers.get(key.0 as usize)?;
            let connection = self.connections.get(consumer.connection.0 as usize)?.as_ref()?;
            let channel = connection.channels.get(consumer.channel)?;
            let bounds = [consumer.prefetch, channel.prefetch_global];
            let login = connection.login.as_ref();
            Some(ConsumerStatus {
                tag: consumer.tag.to_vec(),
                address: connection.peer.address.clone(),
                user: login.map(|login| login.user.to_string()).unwrap_or_default(),
                channel: consumer.channel,
                no_ack: consumer.no_ack,
                active: consumer.place == 0 || !queue.consumers.is_single_active(),
                prefetch: bounds.into_iter().filter(|bound| *bound > 0).min().unwrap_or(0),
                unacked: consumer.unacked,
                publishes_held_us: connection.waits.publishes_held_us(now_us),
            })
        });
        status.collect()
    }
}
