//! One consumer: counts, measures, and decides when to ack and how much to hold.

use std::collections::VecDeque;

use forebay_client::machine::{ChannelError, Delivery, Machine, PublishError};
use forebay_client::{CREDIT_MAX, Credit as TunedCredit};
use forebay_wire::{RawProperties, ShortStr, basic};

use crate::in_flight::SentAt;
use crate::latency::Timing;
use crate::plan::Plan;
use crate::setting::Credit;
use crate::stamp::{Mark, STAMP_BYTES};

/// Where a live consumer's credit cannot change, it is replaced at most this often, as in our client.
const RAISE_INTERVAL_US: u64 = 250_000;

/// The capability of a broker whose channel-wide `basic.qos` holds at once.
pub(crate) const LIVE_CREDIT: &str = "forebay.live_credit";

#[derive(Debug)]
pub(crate) struct Consumer {
    pub(crate) channel: u16,
    queue: String,
    /// Deliveries an ack; 0 = one ack a read. `None`: no acks.
    ack_every: Option<u64>,
    /// Of the messages that are timed; `None`: nobody publishes here, so all are of another process.
    mark: Option<Mark>,
    /// What it asked the broker for; 0 = no bound.
    prefetch: u16,
    tuned: Option<TunedCredit>,
    /// Microseconds of work a message; `None`: none.
    work_us: Option<f64>,
    /// How many consumers it has been: where a credit cannot change, another takes over.
    generation: u32,
    changed_us: u64,
    /// When it asked for messages; the answer tells how long the way is, as it does our client.
    asked_us: u64,
    /// Calls that wait for room to be answered. Bounded by the prefetch. `None`: no calls come.
    replies: Option<VecDeque<Reply>>,
    /// Waits for work. Bounded by the prefetch.
    held: VecDeque<Held>,
    /// When the message in work is done.
    done_us: f64,
    worked: u64,
    last_tag: u64,
    acked_tag: u64,
    delivered_tag: u64,
    pub(crate) consumed: u64,
    /// When the first of them came.
    pub(crate) first_us: Option<u64>,
    pub(crate) redelivered: u64,
    /// Of all consumed, those that are not of this run.
    pub(crate) strange: u64,
}

/// An answer to a call: the same times, back to where it came from.
#[derive(Debug)]
struct Reply {
    to: Vec<u8>,
    body: [u8; STAMP_BYTES],
}

#[derive(Debug, Clone, Copy)]
struct Held {
    tag: u64,
    sent: Option<SentAt>,
    /// It is not of this run.
    strange: bool,
}

impl Consumer {
    pub(crate) fn new(plan: &Plan, number: usize) -> Consumer {
        let tuned = (plan.prefetch == Credit::Auto)
            .then(|| TunedCredit::new(0, 1, CREDIT_MAX.into(), None));
        let prefetch = match (plan.prefetch, &tuned) {
            (Credit::Fixed(messages), _) => messages,
            (_, Some(credit)) => credit.wanted() as u16,
            _ => 0,
        };
        Consumer {
            channel: 0,
            queue: plan.queue(number),
            ack_every: (!plan.no_ack).then_some(plan.ack_every),
            mark: (plan.publishers > 0).then_some(plan.mark),
            prefetch,
            tuned,
            work_us: (plan.consumer_rate > 0.0).then(|| 1e6 / plan.consumer_rate),
            generation: 0,
            changed_us: 0,
            asked_us: 0,
            replies: plan.rpc.then(VecDeque::new),
            held: VecDeque::new(),
            done_us: 0.0,
            worked: 0,
            last_tag: 0,
            acked_tag: 0,
            delivered_tag: 0,
            consumed: 0,
            first_us: None,
            redelivered: 0,
            strange: 0,
        }
    }

    /// Takes one delivery, and works on it at once if it needs no time.
    pub(crate) fn take(&mut self, delivery: &Delivery<'_>, now_us: u64, latency: &mut Timing) {
        self.first_us.get_or_insert(now_us);
        self.redelivered += u64::from(delivery.redelivered);
        self.delivered_tag = delivery.delivery_tag;
        if let (Some(replies), Some(body)) = (&mut self.replies, delivery.body.first_chunk()) {
            let to = delivery.properties.parse().reply_to.unwrap_or_default();
            replies.push_back(Reply { to: to.as_bytes().to_vec(), body: *body });
        }
        let sent = self.mark.and_then(|mark| mark.read(delivery.body));
        let stamped = self.mark.is_some() && delivery.body.len() >= size_of::<u64>();
        let strange = stamped && sent.is_none();
        let held = Held { tag: delivery.delivery_tag, sent, strange };
        if self.work_us.is_none() {
            return self.finish(held, now_us, 0, latency);
        }
        if self.held.is_empty() {
            self.done_us = self.done_us.max(now_us as f64);
        }
        self.held.push_back(held);
    }

    /// Works until now; latency ends where work begins.
    pub(crate) fn work(&mut self, now_us: u64, latency: &mut Timing) {
        while let Some(work_us) = self.work_us
            && let Some(&held) = self.held.front()
            && self.done_us + work_us <= now_us as f64
        {
            self.held.pop_front();
            let began_us = self.done_us;
            self.done_us += work_us;
            self.finish(held, began_us as u64, work_us as u64, latency);
        }
    }

    /// When it has finished what it works on.
    pub(crate) fn due_us(&self) -> Option<u64> {
        self.held.front()?;
        Some((self.done_us + self.work_us?) as u64 + 1)
    }

    /// From now on a message takes so long; `None`: no time.
    pub(crate) fn set_work_us(&mut self, now_us: u64, work_us: Option<f64>) {
        self.work_us = work_us;
        self.done_us = self.done_us.max(now_us as f64);
        if work_us.is_none() {
            // The next turn finds them done.
            self.work_us = Some(0.0);
        }
    }

    fn finish(&mut self, held: Held, began_us: u64, work_us: u64, latency: &mut Timing) {
        self.consumed += 1;
        self.strange += u64::from(held.strange);
        self.worked += 1;
        self.last_tag = held.tag;
        if let Some(sent) = held.sent {
            latency.record(sent, began_us, 1);
        }
        if let Some(credit) = &mut self.tuned {
            credit.started(began_us);
            credit.completed(began_us + work_us, work_us);
        }
    }

    /// Answers the calls that it took. True: the send buffer is full, and there are more.
    pub(crate) fn reply(&mut self, machine: &mut Machine) -> bool {
        let Some(replies) = &mut self.replies else { return false };
        while let Some(Reply { to, body }) = replies.front() {
            let key = ShortStr::new(to).unwrap_or_default();
            let properties = RawProperties::default();
            let exchange = ShortStr::default();
            match machine.publish(self.channel, exchange, key, false, properties, body) {
                Ok(_) => replies.pop_front(),
                Err(refused) => return refused == PublishError::Full,
            };
        }
        false
    }

    /// Delivered and not acknowledged.
    pub(crate) fn unacked(&self) -> u64 {
        if self.ack_every.is_none() { 0 } else { self.delivered_tag - self.acked_tag }
    }

    /// After a read or after work: the tag to ack with `multiple`, if it is time.
    pub(crate) fn ack(&mut self) -> Option<u64> {
        let every = self.ack_every?;
        if self.worked == 0 || self.worked < every {
            return None;
        }
        self.worked = 0;
        self.acked_tag = self.last_tag;
        Some(self.last_tag)
    }

    /// After a read: asks for another prefetch if the credit has outgrown it. `live`: the broker changes
    /// it at once (`forebay.live_credit`); elsewhere another consumer takes over, as in our client.
    pub(crate) fn tune(
        &mut self,
        machine: &mut Machine,
        now_us: u64,
        live: bool,
    ) -> Result<(), ChannelError> {
        let (unacked, idle) = (self.unacked(), self.held.is_empty());
        let Some(credit) = &mut self.tuned else { return Ok(()) };
        credit.delivered(now_us, unacked as u32);
        if idle {
            credit.starved(now_us);
        }
        let soon = !live && now_us < self.changed_us + RAISE_INTERVAL_US;
        if soon || !credit.outgrown(u32::from(self.prefetch), live) {
            return Ok(());
        }
        self.prefetch = credit.wanted() as u16;
        self.changed_us = now_us;
        self.set_prefetch(machine, live)?;
        if live {
            return Ok(());
        }
        let before = self.tag();
        self.generation += 1;
        self.consume(machine)?;
        let cancel = basic::Cancel { consumer_tag: ShortStr::truncated(&before), no_wait: true };
        machine.send(self.channel, &cancel)
    }

    /// On a new channel: asks for messages.
    pub(crate) fn begin(
        &mut self,
        machine: &mut Machine,
        channel: u16,
        now_us: u64,
    ) -> Result<(), ChannelError> {
        self.channel = channel;
        self.asked_us = now_us;
        let live = self.tuned.is_some() && machine.server().can(LIVE_CREDIT);
        self.set_prefetch(machine, live)?;
        self.consume(machine)
    }

    /// The broker has answered that it consumes.
    pub(crate) fn began(&mut self, now_us: u64) {
        if let Some(credit) = &mut self.tuned {
            credit.set_rtt(now_us.saturating_sub(self.asked_us));
        }
    }

    fn set_prefetch(&self, machine: &mut Machine, live: bool) -> Result<(), ChannelError> {
        let qos = basic::Qos { prefetch_count: self.prefetch, global: live, ..Default::default() };
        machine.send(self.channel, &qos)
    }

    fn consume(&self, machine: &mut Machine) -> Result<(), ChannelError> {
        let tag = self.tag();
        let consume = basic::Consume {
            queue: ShortStr::truncated(&self.queue),
            consumer_tag: ShortStr::truncated(&tag),
            no_ack: self.ack_every.is_none(),
            ..Default::default()
        };
        machine.send(self.channel, &consume)
    }

    fn tag(&self) -> String {
        format!("load-{}", self.generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credit_that_tunes_itself_knows_how_long_the_way_is() {
        let plan = Plan { prefetch: Credit::Auto, ..Plan::default() };
        let wanted_after = |rtt_us: u64| {
            let mut consumer = Consumer::new(&plan, 0);
            consumer.began(rtt_us);
            consumer.finish(
                Held { tag: 1, sent: None, strange: false },
                rtt_us,
                100,
                &mut Timing::new(false),
            );
            consumer.tuned.expect("it is auto").wanted()
        };
        let (near, far) = (wanted_after(100), wanted_after(20_000));
        assert!(near < 10 && far >= 200, "{near} near, {far} far");
    }

    #[test]
    fn work_takes_its_time_and_latency_ends_where_it_begins() {
        let plan = Plan { consumer_rate: 10.0, ..Plan::default() };
        let mut consumer = Consumer::new(&plan, 0);
        let mut latency = Timing::new(false);
        let sent = Some(SentAt { intended_us: 0, called_us: 0 });
        consumer.held.extend([1, 2].map(|tag| Held { tag, sent, strange: false }));
        assert_eq!(consumer.due_us(), Some(100_001));
        consumer.work(99_999, &mut latency);
        assert_eq!(consumer.consumed, 0);
        consumer.work(250_000, &mut latency);
        assert_eq!((consumer.consumed, latency.called().max() / 1_000), (2, 100));
    }

    #[test]
    fn what_is_of_another_run_counts_as_that_when_it_is_consumed() {
        let plan = Plan { consumer_rate: 10.0, ..Plan::default() };
        let mut consumer = Consumer::new(&plan, 0);
        let mut latency = Timing::new(false);
        for delivery_tag in 1..=2 {
            let delivery = Delivery {
                channel: 1,
                consumer_tag: ShortStr::default(),
                delivery_tag,
                redelivered: false,
                exchange: ShortStr::default(),
                routing_key: ShortStr::default(),
                properties: RawProperties::default(),
                body: &[0xff; STAMP_BYTES],
            };
            consumer.take(&delivery, 0, &mut latency);
        }
        assert_eq!((consumer.consumed, consumer.strange), (0, 0));
        consumer.work(150_000, &mut latency);
        assert_eq!((consumer.consumed, consumer.strange), (1, 1));
    }
}
