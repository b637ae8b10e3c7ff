//! One consumer: counts, measures, and decides when to ack.

use forebay_client::machine::Delivery;

use crate::latency::Latency;
use crate::plan::Plan;

#[derive(Debug)]
pub(crate) struct Consumer {
    pub(crate) channel: u16,
    pub(crate) queue: String,
    /// Deliveries an ack; 0 = one ack a read. `None`: no acks.
    ack_every: Option<u64>,
    timed: bool,
    unacked: u64,
    last_tag: u64,
    pub(crate) consumed: u64,
    pub(crate) redelivered: u64,
}

impl Consumer {
    pub(crate) fn new(plan: &Plan, number: usize) -> Consumer {
        Consumer {
            channel: 0,
            queue: plan.queue(number),
            ack_every: (!plan.no_ack).then_some(plan.ack_every),
            timed: plan.publishers > 0,
            unacked: 0,
            last_tag: 0,
            consumed: 0,
            redelivered: 0,
        }
    }

    /// Takes one delivery.
    pub(crate) fn take(&mut self, delivery: &Delivery<'_>, now_us: u64, latency: &mut Latency) {
        self.consumed += 1;
        self.unacked += 1;
        self.last_tag = delivery.delivery_tag;
        self.redelivered += u64::from(delivery.redelivered);
        if self.timed
            && let Some(sent_us) = delivery.body.first_chunk::<8>()
        {
            latency.record(u64::from_le_bytes(*sent_us), now_us, 1);
        }
    }

    /// After a read: the tag to ack with `multiple`, if it is time.
    pub(crate) fn ack(&mut self) -> Option<u64> {
        let every = self.ack_every?;
        if self.unacked == 0 || self.unacked < every {
            return None;
        }
        self.unacked = 0;
        Some(self.last_tag)
    }
}
