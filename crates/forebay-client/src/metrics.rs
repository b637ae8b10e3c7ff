//! What a connection, its publishers and its consumers count. All times in microseconds.

/// Count, mean, least and most of one measure since its owner was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// How many were measured.
    pub count: u64,
    /// Their sum.
    pub sum_us: u64,
    /// The least; 0 without any.
    pub min_us: u64,
    /// The most.
    pub max_us: u64,
    /// A running mean in which the last 32 count most.
    pub recent_us: u64,
}

impl Summary {
    pub(crate) fn add(&mut self, us: u64) {
        self.min_us = if self.count == 0 { us } else { self.min_us.min(us) };
        self.max_us = self.max_us.max(us);
        self.recent_us = if self.count == 0 { us } else { (self.recent_us * 31 + us) / 32 };
        self.count += 1;
        self.sum_us += us;
    }

    /// Those of another one, too; what was recent is the other's, if it has any.
    fn add_all(&mut self, other: &Summary) {
        if other.count == 0 {
            return;
        }
        let min_us = if self.count == 0 { other.min_us } else { self.min_us.min(other.min_us) };
        *self = Summary {
            count: self.count + other.count,
            sum_us: self.sum_us + other.sum_us,
            min_us,
            max_us: self.max_us.max(other.max_us),
            recent_us: other.recent_us,
        };
    }

    /// The mean, 0 without any.
    pub fn mean_us(&self) -> u64 {
        self.sum_us.checked_div(self.count).unwrap_or(0)
    }
}

/// One publisher. Counts are since it was built and go on over reconnects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct PublisherMetrics {
    /// Messages that may be in flight together at present.
    pub window_messages: u32,
    /// Bytes of bodies that may be in flight together at present.
    pub window_bytes: u64,
    /// Messages in flight: admitted, without an outcome.
    pub in_flight_messages: u32,
    /// Bytes of their bodies.
    pub in_flight_bytes: u64,
    /// Callers who wait for the window.
    pub waiting: u32,
    /// The network's round trip as the kernel sees it; 0 = not known.
    pub network_us: u64,
    /// Network and broker without queueing, as the window believes; 0 with a fixed window.
    pub base_us: u64,
    /// The confirm latency the window steers for; 0 with a fixed window.
    pub target_us: u64,
    /// The confirm latency the window compares with it; 0 with a fixed window.
    pub measured_us: u64,
    /// Messages admitted.
    pub published: u64,
    /// Of these, confirmed.
    pub confirmed: u64,
    /// Of these, refused by the broker.
    pub rejected: u64,
    /// Of these, returned as unroutable.
    pub returned: u64,
    /// Of these, lost sight of.
    pub unknown: u64,
    /// Of these, never sent, because their time was over.
    pub withdrawn: u64,
    /// Of these, sent again after a reconnect, or on another channel.
    pub republished: u64,
    /// Of these, confirmed after a reconnect, by a broker that said it had taken them.
    pub resumed: u64,
    /// Times the channel was no good and another one took its place.
    pub channels_replaced: u64,
    /// Outcomes other than confirmed for which nobody waited; each was logged.
    pub abandoned_unconfirmed: u64,
    /// How long callers waited for the window; those who did not wait are not counted.
    pub admission_wait: Summary,
    /// From admission to the confirm; for a message sent again, from its last writing.
    pub confirm_latency: Summary,
}

impl PublisherMetrics {
    /// What another one counted, too; not what is at present.
    pub(crate) fn add_counts(&mut self, other: &PublisherMetrics) {
        self.published += other.published;
        self.confirmed += other.confirmed;
        self.rejected += other.rejected;
        self.returned += other.returned;
        self.unknown += other.unknown;
        self.withdrawn += other.withdrawn;
        self.republished += other.republished;
        self.resumed += other.resumed;
        self.channels_replaced += other.channels_replaced;
        self.abandoned_unconfirmed += other.abandoned_unconfirmed;
        self.admission_wait.add_all(&other.admission_wait);
        self.confirm_latency.add_all(&other.confirm_latency);
    }

    /// Another window beside this one: sizes add up, of latencies the longer ones stay.
    pub(crate) fn add_window(&mut self, other: &PublisherMetrics) {
        self.window_messages = self.window_messages.saturating_add(other.window_messages);
        self.window_bytes = self.window_bytes.saturating_add(other.window_bytes);
        self.network_us = self.network_us.max(other.network_us);
        self.base_us = self.base_us.max(other.base_us);
        self.target_us = self.target_us.max(other.target_us);
        self.measured_us = self.measured_us.max(other.measured_us);
    }
}

/// One consumer. Counts are since it was built and go on over reconnects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ConsumerMetrics {
    /// Deliveries it may hold at present, in work and waiting together.
    pub credit: u32,
    /// Deliveries that wait in the client for somebody to take them.
    pub ready: u32,
    /// Deliveries taken and not settled.
    pub in_work: u32,
    /// Messages delivered.
    pub delivered: u64,
    /// Of these, marked by the broker as perhaps delivered before.
    pub redelivered: u64,
    /// Acknowledged.
    pub acked: u64,
    /// Refused, with or without requeue.
    pub refused: u64,
    /// Given back unstarted, because all workers were busy with something long.
    pub handed_back: u64,
    /// Taken back from workers that kept them beyond the limit.
    pub overdue: u64,
    /// Acks and nacks that came too late: their connection was gone, or they were overdue.
    pub stale: u64,
    /// Frames that carried the acks.
    pub ack_frames: u64,
    /// Times the consumer was replaced to change its credit.
    pub reconsumed: u64,
    /// Times nothing came although messages waited in the queue, and another channel took the place of the consumer's.
    pub channels_replaced: u64,
    /// From delivery to settlement.
    pub service: Summary,
}

/// One [`Caller`](crate::Caller), over all its clones. Counts are since it was made and go on over reconnects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct CallerMetrics {
    /// Calls that wait for their replies at present, or to be sent.
    pub waiting: u32,
    /// Requests taken.
    pub calls: u64,
    /// Of these, failed: returned as unroutable, or lost with their channel or connection.
    pub failed: u64,
    /// Of these, given up by their callers: their patience was over, or the future was dropped.
    pub given_up: u64,
    /// From the request to its reply, of those that were answered.
    pub reply_latency: Summary,
}

/// One connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ConnectionMetrics {
    /// Whether it is up.
    pub connected: bool,
    /// Whether the broker takes no publishes.
    pub blocked: bool,
    /// Times it was opened again.
    pub reconnects: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// System calls that wrote them.
    pub writes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// System calls that read them.
    pub reads: u64,
    /// The kernel's round trip; 0 = not known.
    pub network_us: u64,
}
