//! One consumer: what was delivered and waits for a worker, what is in work, which acks go out.
//!
//! ```text
//!   broker ──▶ tap (one channel) ──▶ ready (FIFO) ──▶ worker ──▶ settle ──▶ the same tap's acks
//! ```
//! A *tap* is one channel with one broker-side consumer. Where a broker cannot change the credit of a live
//! consumer, a second tap is opened before the first is cancelled; the first stays until the last of its
//! deliveries is settled, since delivery tags are its channel's. A tap ends with its connection: acks of its
//! deliveries are then void, and the broker delivers them again.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use forebay_flow::{AckCoalescer, Settlement};
use forebay_wire::{ShortStr, TableBuf, basic};

use super::credit::Credit;
use super::remember;
use crate::error::{ChannelFault, ConsumeError, Lost, Refusal};
use crate::machine::{Delivery, Machine};
use crate::metrics::ConsumerMetrics;
use crate::received::Received;

/// Where a live consumer's credit cannot change, it is replaced at most this often to lower it.
const LOWER_INTERVAL_US: u64 = 5_000_000;
/// And this often to raise it.
const RAISE_INTERVAL_US: u64 = 250_000;

/// How a queue is consumed.
#[derive(Debug, Clone)]
pub(crate) struct How {
    pub(crate) queue: String,
    /// Tags are this and a number.
    pub(crate) tag: String,
    pub(crate) exclusive: bool,
    pub(crate) arguments: TableBuf,
}

/// Which delivery, for good: a tap's number is never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeliveryKey {
    pub(crate) tap: u64,
    pub(crate) tag: u64,
}

/// What becomes of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Ack,
    Refuse { requeue: bool },
}

#[derive(Debug)]
struct Tap {
    number: u64,
    channel: u16,
    acks: AckCoalescer,
    credit: u32,
    opened_us: u64,
    /// Its credit can be changed by one method.
    live: bool,
    consuming: bool,
    /// Our cancel is out, or the broker ended it.
    cancelled: bool,
}

#[derive(Debug)]
struct Ready {
    key: DeliveryKey,
    message: Received,
}

/// One consumer. See the module's documentation.
#[derive(Debug)]
pub(crate) struct Intake {
    how: How,
    credit: Credit,
    /// The last one takes messages, those before it wait for their last settlements.
    taps: Vec<Tap>,
    ready: VecDeque<Ready>,
    /// Of `ready`, those never given back before as far as can be told.
    fresh: usize,
    waker: Option<Waker>,
    over: Option<ConsumeError>,
    /// The user wants no more messages.
    stopping: bool,
    /// A credit change awaits its turn.
    changed_us: u64,
    metrics: ConsumerMetrics,
}

impl Intake {
    pub(crate) fn new(how: How, credit: Credit) -> Intake {
        Intake {
            how,
            credit,
            taps: Vec::new(),
            ready: VecDeque::new(),
            fresh: 0,
            waker: None,
            over: None,
            stopping: false,
            changed_us: 0,
            metrics: ConsumerMetrics::default(),
        }
    }

    // ---- the user

    /// Whether the broker has agreed, or has not.
    pub(crate) fn poll_consuming(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), ConsumeError>> {
        if let Some(error) = &self.over {
            return Poll::Ready(Err(error.clone()));
        }
        if self.taps.last().is_some_and(|tap| tap.consuming) {
            return Poll::Ready(Ok(()));
        }
        remember(&mut self.waker, cx);
        Poll::Pending
    }

    /// The next message; `None` after [`Intake::stop`], once the broker has sent its last.
    pub(crate) fn poll_next(
        &mut self,
        machine: &mut Machine,
        now_us: u64,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<(DeliveryKey, Received)>, ConsumeError>> {
        if let Some(taken) = self.take_ready(machine, now_us) {
            return Poll::Ready(Ok(Some(taken)));
        }
        if let Some(error) = &self.over {
            return Poll::Ready(Err(error.clone()));
        }
        if self.stopping {
            return Poll::Ready(Ok(None));
        }
        self.credit.starved(now_us);
        self.flush(machine);
        self.tune(machine, now_us);
        remember(&mut self.waker, cx);
        Poll::Pending
    }

    /// A message that is here, if one is.
    pub(crate) fn take_ready(
        &mut self,
        machine: &mut Machine,
        now_us: u64,
    ) -> Option<(DeliveryKey, Received)> {
        let ready = self.ready.pop_front()?;
        self.fresh -= usize::from(!ready.message.redelivered());
        self.credit.started(now_us);
        self.tune(machine, now_us);
        Some((ready.key, ready.message))
    }

    /// Says what becomes of a delivery. False: its connection is gone, and it will come again.
    pub(crate) fn settle(
        &mut self,
        machine: &mut Machine,
        key: DeliveryKey,
        verdict: Verdict,
        service_us: u64,
        now_us: u64,
    ) -> bool {
        let Some(tap) = self.taps.iter_mut().find(|tap| tap.number == key.tap) else {
            self.metrics.stale += 1;
            return false;
        };
        let known = match verdict {
            Verdict::Ack => tap.acks.ack(now_us, key.tag),
            Verdict::Refuse { requeue } => tap.acks.nack(key.tag, requeue),
        };
        if known.is_err() {
            debug_assert!(false, "a delivery is settled once");
            return false;
        }
        match verdict {
            Verdict::Ack => self.metrics.acked += 1,
            Verdict::Refuse { .. } => self.metrics.refused += 1,
        }
        self.metrics.service.add(service_us);
        self.credit.completed(now_us, service_us);
        self.write_acks(machine);
        if self.taps.len() > 1 || self.stopping {
            self.close_done(machine);
        }
        self.tune(machine, now_us);
        true
    }

    /// Takes no more messages; those that wait here go back to their queue, those in work can be settled.
    pub(crate) fn stop(&mut self, machine: &mut Machine) {
        if std::mem::replace(&mut self.stopping, true) {
            return;
        }
        for tap in &mut self.taps {
            cancel(machine, tap, &self.how);
        }
        self.hand_back(machine);
        self.flush(machine);
    }

    pub(crate) fn queue(&self) -> &str {
        &self.how.queue
    }

    pub(crate) fn metrics(&self) -> ConsumerMetrics {
        ConsumerMetrics {
            credit: self.taps.last().map_or(0, |tap| tap.credit),
            ready: self.ready.len() as u32,
            in_work: self.credit.held(),
            ..self.metrics
        }
    }

    // ---- the connection

    /// Opens a tap with the credit that is wanted now. `number` is one that no tap had before; returns the
    /// channel, which is the new tap's.
    pub(crate) fn open(&mut self, machine: &mut Machine, number: u64, now_us: u64) -> Option<u16> {
        if self.stopping || self.over.is_some() {
            return None;
        }
        let channel = machine.open_channel().ok()?;
        let credit = self.credit.wanted();
        let live = can_change_live(machine);
        let qos = basic::Qos { prefetch_count: credit as u16, global: live, ..Default::default() };
        let tag = tag_of(&self.how, number);
        let consume = basic::Consume {
            queue: ShortStr::truncated(&self.how.queue),
            consumer_tag: ShortStr::truncated(&tag),
            exclusive: self.how.exclusive,
            arguments: self.how.arguments.as_table(),
            ..Default::default()
        };
        machine.send(channel, &qos).ok()?;
        machine.send(channel, &consume).ok()?;
        self.taps.push(Tap {
            number,
            channel,
            acks: AckCoalescer::new(credit, self.credit.rtt_us()),
            credit,
            opened_us: now_us,
            live,
            consuming: false,
            cancelled: false,
        });
        self.changed_us = now_us;
        Some(channel)
    }

    /// consume-ok came: the former tap may go.
    pub(crate) fn consuming(
        &mut self,
        machine: &mut Machine,
        channel: u16,
        now_us: u64,
        wakeups: &mut Vec<Waker>,
    ) {
        let rtt_known = self.credit.rtt_us() > 0;
        let how = &self.how;
        for tap in &mut self.taps {
            if tap.channel == channel {
                tap.consuming = true;
                if !rtt_known {
                    self.credit.set_rtt(now_us.saturating_sub(tap.opened_us));
                }
            } else {
                cancel(machine, tap, how);
            }
        }
        wakeups.extend(self.waker.take());
    }

    /// A message came.
    pub(crate) fn delivered(&mut self, delivery: &Delivery<'_>) {
        let Some(tap) = self.taps.iter_mut().find(|tap| tap.channel == delivery.channel) else {
            return;
        };
        tap.acks.delivered(delivery.delivery_tag);
        self.metrics.delivered += 1;
        self.metrics.redelivered += u64::from(delivery.redelivered);
        let key = DeliveryKey { tap: tap.number, tag: delivery.delivery_tag };
        self.fresh += usize::from(!delivery.redelivered);
        self.ready.push_back(Ready { key, message: Received::from_delivery(delivery) });
    }

    /// All that came at once was handed to [`Intake::delivered`].
    pub(crate) fn arrived(&mut self, machine: &mut Machine, now_us: u64, wakeups: &mut Vec<Waker>) {
        if self.stopping {
            // It was on its way when we asked for no more.
            self.hand_back(machine);
            return;
        }
        let outstanding: usize =
            self.taps.iter().map(|tap| tap.acks.open() + tap.acks.unflushed()).sum();
        self.credit.delivered(now_us, outstanding as u32);
        if !self.ready.is_empty() {
            wakeups.extend(self.waker.take());
        }
    }

    /// The network's round trip.
    pub(crate) fn network(&mut self, rtt_us: u64) {
        self.credit.set_rtt(rtt_us);
        for tap in &mut self.taps {
            tap.acks.tune(tap.credit, rtt_us);
        }
    }

    /// The broker ended the consumer of this tag. True: it was the one that takes messages.
    pub(crate) fn cancelled(&mut self, tag: &str, wakeups: &mut Vec<Waker>) -> bool {
        let how = &self.how;
        let Some(tap) = self.taps.iter_mut().find(|tap| tag_of(how, tap.number) == tag) else {
            return false;
        };
        let unexpected = !tap.cancelled;
        tap.cancelled = true;
        if unexpected {
            self.over = Some(ConsumeError::Cancelled);
            wakeups.extend(self.waker.take());
        }
        unexpected
    }

    /// The broker closed a tap's channel.
    pub(crate) fn channel_closed(&mut self, channel: u16, why: &Refusal, wakeups: &mut Vec<Waker>) {
        self.drop_taps(|tap| tap.channel == channel);
        if self.taps.is_empty() {
            self.over = Some(ConsumeError::Channel(ChannelFault::Refused(why.clone())));
            wakeups.extend(self.waker.take());
        }
    }

    /// The connection broke: nothing that it delivered can be settled any more.
    pub(crate) fn lost(&mut self, now_us: u64) {
        self.drop_taps(|_| true);
        self.credit.restart(now_us);
    }

    /// There will be no other connection.
    pub(crate) fn give_up(&mut self, lost: &Lost, wakeups: &mut Vec<Waker>) {
        self.drop_taps(|_| true);
        self.over.get_or_insert(ConsumeError::Channel(ChannelFault::Lost(lost.clone())));
        wakeups.extend(self.waker.take());
    }

    /// Time passes: acks that have waited long enough go out; a tap that is done is closed. Returns whether
    /// another tap is due, to change the credit.
    pub(crate) fn tick(&mut self, machine: &mut Machine, now_us: u64) -> bool {
        for tap in &mut self.taps {
            tap.acks.tick(now_us);
        }
        self.write_acks(machine);
        self.close_done(machine);
        self.hand_back_stuck(machine, now_us);
        let settled = self.taps.len() == 1 && self.taps[0].consuming && !self.taps[0].cancelled;
        if !settled || self.taps[0].live || self.stopping || self.over.is_some() {
            return false;
        }
        let credit = self.taps[0].credit;
        let since_us = now_us.saturating_sub(self.changed_us);
        let interval_us =
            if self.credit.wanted() > credit { RAISE_INTERVAL_US } else { LOWER_INTERVAL_US };
        let due = self.credit.outgrown(credit, false) && since_us >= interval_us;
        self.metrics.reconsumed += u64::from(due);
        due
    }

    /// When [`Intake::tick`] has something to do.
    pub(crate) fn next_tick_us(&self) -> Option<u64> {
        let flush_us = self.taps.iter().filter_map(|tap| tap.acks.next_flush_us()).min();
        let raise_us = self.taps.last().and_then(|tap| {
            let raises = tap.consuming
                && !tap.live
                && !tap.cancelled
                && self.taps.len() == 1
                && self.credit.wanted() > tap.credit;
            raises.then_some(self.changed_us + RAISE_INTERVAL_US)
        });
        let stuck_us = self.credit.next_hand_back_us(self.fresh).filter(|_| self.hands_back());
        flush_us.into_iter().chain(raise_us).chain(stuck_us).min()
    }

    /// Only where it is safe: on brokers that count a requeue as a failed delivery it could end in the dead
    /// letters.
    fn hands_back(&self) -> bool {
        !self.stopping && self.taps.last().is_some_and(|tap| tap.live)
    }

    /// Messages that wait behind busy workers go back, newest first, so that they keep their order; each at
    /// most once, or consumers that are all stuck would hand it round for ever.
    fn hand_back_stuck(&mut self, machine: &mut Machine, now_us: u64) {
        if !self.hands_back() || !self.credit.hand_back(now_us, self.fresh) {
            return;
        }
        self.metrics.handed_back += std::mem::take(&mut self.fresh) as u64;
        // First the credit, or the broker sends them here again.
        self.tune(machine, now_us);
        for ready in std::mem::take(&mut self.ready).into_iter().rev() {
            let tap = self.taps.iter_mut().find(|tap| tap.number == ready.key.tap);
            match tap {
                Some(tap) if !ready.message.redelivered() => {
                    let known = tap.acks.nack(ready.key.tag, true);
                    debug_assert!(known.is_ok(), "what waits is open");
                }
                _ => self.ready.push_front(ready),
            }
        }
        self.write_acks(machine);
    }

    /// The channels of its taps.
    pub(crate) fn has_channel(&self, channel: u16) -> bool {
        self.taps.iter().any(|tap| tap.channel == channel)
    }

    /// Changes the credit where one method does it.
    fn tune(&mut self, machine: &mut Machine, now_us: u64) {
        let Some(tap) = self.taps.last_mut() else { return };
        if tap.cancelled || !tap.live || !self.credit.outgrown(tap.credit, true) {
            return;
        }
        tap.credit = self.credit.wanted();
        tap.acks.tune(tap.credit, self.credit.rtt_us());
        let qos =
            basic::Qos { prefetch_count: tap.credit as u16, global: true, ..Default::default() };
        let _ = machine.send(tap.channel, &qos);
        self.changed_us = now_us;
    }

    fn flush(&mut self, machine: &mut Machine) {
        for tap in &mut self.taps {
            tap.acks.flush();
        }
        self.write_acks(machine);
        self.close_done(machine);
    }

    fn write_acks(&mut self, machine: &mut Machine) {
        for tap in &mut self.taps {
            while let Some(settlement) = tap.acks.next_settlement() {
                self.metrics.ack_frames += 1;
                // Fails only when the connection is closing; then the broker takes them back.
                let _ = match settlement {
                    Settlement::Ack { tag, multiple } => machine.ack(tap.channel, tag, multiple),
                    Settlement::Nack { tag, requeue } => {
                        machine.nack(tap.channel, tag, false, requeue)
                    }
                };
            }
        }
    }

    /// A tap that takes no messages and has nothing left to settle.
    fn close_done(&mut self, machine: &mut Machine) {
        let last = self.taps.last().map(|tap| tap.number);
        let stopping = self.stopping;
        self.taps.retain(|tap| {
            let done = tap.cancelled
                && tap.acks.open() == 0
                && tap.acks.unflushed() == 0
                && (Some(tap.number) != last || stopping);
            if done {
                let _ = machine.close_channel(tap.channel);
            }
            !done
        });
    }

    /// What waits here for a worker goes back to the queue, newest first, so that it keeps its order.
    fn hand_back(&mut self, machine: &mut Machine) {
        self.fresh = 0;
        while let Some(ready) = self.ready.pop_back() {
            if let Some(tap) = self.taps.iter_mut().find(|tap| tap.number == ready.key.tap) {
                let known = tap.acks.nack(ready.key.tag, true);
                debug_assert!(known.is_ok(), "what waits is open");
            }
        }
        self.write_acks(machine);
    }

    fn drop_taps(&mut self, gone: impl Fn(&Tap) -> bool) {
        self.taps.retain(|tap| !gone(tap));
        let taps = &self.taps;
        self.ready.retain(|ready| taps.iter().any(|tap| tap.number == ready.key.tap));
        self.fresh = self.ready.iter().filter(|ready| !ready.message.redelivered()).count();
    }
}

fn tag_of(how: &How, number: u64) -> String {
    format!("{}-{number}", how.tag)
}

fn cancel(machine: &mut Machine, tap: &mut Tap, how: &How) {
    if !std::mem::replace(&mut tap.cancelled, true) {
        let tag = tag_of(how, tap.number);
        let cancel =
            basic::Cancel { consumer_tag: ShortStr::truncated(&tag), ..Default::default() };
        let _ = machine.send(tap.channel, &cancel);
    }
}

/// Whether `basic.qos` with `global` bounds a channel's consumers from then on, live.
///
/// RabbitMQ does it for classic queues, refuses it for quorum queues and deprecates it; so only where the
/// broker says so itself.
fn can_change_live(machine: &Machine) -> bool {
    machine.server().can(LIVE_CREDIT)
}

/// The capability of a broker whose channel-wide `basic.qos` holds at once, for every kind of queue.
pub(crate) const LIVE_CREDIT: &str = "forebay.live_credit";
