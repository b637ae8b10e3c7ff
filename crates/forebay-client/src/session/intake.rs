//! One consumer: what was delivered and waits for a worker, what is in work, which acks go out.
//!
//! ```text
//!   broker ──▶ tap (one channel) ──▶ ready (FIFO) ──▶ worker ──▶ settle ──▶ the same tap's acks
//! ```
//! A *tap* is one channel with a broker-side consumer. It ends with its connection: acks of its deliveries are then
//! void, and the broker delivers them again.

mod ending;
mod replacing;

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use super::consumer_health::ConsumerHealth;
use super::credit::Credit;
use super::exclusion::Exclusion;
use super::how::How;
use super::present_tap::PresentTap;
use super::remember;
use super::tap::{LIVE_CREDIT, Tap};
use super::wakeups::Wakeups;
use super::work_limit::WorkLimit;
use crate::error::ConsumeError;
use crate::machine::{Delivery, Machine, PAUSE, State};
use crate::metrics::ConsumerMetrics;
use crate::received::Received;

/// How often a consumer that asks for nothing looks whether a worker is free: whoever counts them tells nobody.
const LOOK_INTERVAL_US: u64 = 20_000;

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

/// A message for a worker.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) key: DeliveryKey,
    pub(crate) message: Received,
    /// When it came.
    pub(crate) came_us: u64,
}

/// One consumer. See the module's documentation.
#[derive(Debug)]
pub(crate) struct Intake {
    how: How,
    credit: Credit,
    health: ConsumerHealth,
    tap: Option<Tap>,
    present: PresentTap,
    /// The broker let it consume, some time.
    began: bool,
    exclusion: Exclusion,
    ready: VecDeque<Ready>,
    working: WorkLimit,
    /// Of `ready`, those never given back before as far as can be told.
    fresh: usize,
    waker: Option<Waker>,
    over: Option<ConsumeError>,
    /// The user wants no more messages.
    stopping: bool,
    /// When the credit was last changed, or that was given up.
    changed_us: u64,
    /// When it was last seen whether a worker is free.
    looked_us: u64,
    metrics: ConsumerMetrics,
}

impl Intake {
    pub(crate) fn new(how: How, credit: Credit) -> Intake {
        let working = WorkLimit::new(how.work_limit_us);
        let health = ConsumerHealth::new(how.stall_us);
        Intake {
            how,
            working,
            credit,
            health,
            tap: None,
            present: PresentTap::none(),
            began: false,
            exclusion: Exclusion::default(),
            ready: VecDeque::new(),
            fresh: 0,
            waker: None,
            over: None,
            stopping: false,
            changed_us: 0,
            looked_us: 0,
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
        if self.tap.as_ref().is_some_and(|tap| tap.consuming) {
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
    ) -> Poll<Result<Option<Ready>, ConsumeError>> {
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
    pub(crate) fn take_ready(&mut self, machine: &mut Machine, now_us: u64) -> Option<Ready> {
        self.see_workers(now_us);
        let ready = self.ready.pop_front()?;
        self.fresh -= usize::from(!ready.message.redelivered());
        self.credit.started(now_us);
        self.working.started(ready.key, now_us);
        self.tune(machine, now_us);
        Some(ready)
    }

    /// Says what becomes of a delivery. False: its connection is gone or closes, or it took too long, and it will come again.
    pub(crate) fn settle(
        &mut self,
        machine: &mut Machine,
        key: DeliveryKey,
        verdict: Verdict,
        service_us: u64,
        now_us: u64,
    ) -> bool {
        // What closes takes no more acks, and until it has closed the tap is still there.
        let sends = machine.state() == State::Open;
        let tap = self.tap.as_mut().filter(|tap| sends && tap.number == key.tap);
        let Some(tap) = tap.filter(|_| self.working.done(key)) else {
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
        self.see_workers(now_us);
        self.credit.completed(now_us, service_us);
        self.health.began(now_us);
        self.write_acks(machine);
        self.close_done(machine);
        self.tune(machine, now_us);
        true
    }

    /// Followed when somebody asks for a message.
    pub(crate) fn raise_credit_max(&mut self, max: u32) {
        self.credit.raise_max(max);
    }

    pub(crate) fn queue(&self) -> &str {
        &self.how.queue
    }

    /// For those who hold deliveries.
    pub(crate) fn present_tap(&self) -> PresentTap {
        self.present.clone()
    }

    pub(crate) fn metrics(&self) -> ConsumerMetrics {
        ConsumerMetrics {
            credit: self.tap.as_ref().map_or(0, |tap| tap.credit),
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
        self.see_workers(now_us);
        let rtt_us = self.credit.rtt_us();
        self.credit.set_pauses(machine.server().can(PAUSE));
        let credit = match machine.server().can(LIVE_CREDIT) {
            true => self.credit.wanted().max(1),
            false if self.how.sole => self.credit.most(),
            false => self.credit.wanted_for_long(),
        };
        let tap = Tap::open(machine, &self.how, number, credit, rtt_us, now_us)?;
        self.changed_us = now_us;
        self.present.set(Some(number));
        Some(self.tap.insert(tap).channel)
    }

    /// The broker was asked for a consumer, and has not said that there is one.
    pub(crate) fn awaits_consume_ok(&self) -> bool {
        self.tap.as_ref().is_some_and(Tap::awaits_consume_ok)
    }

    /// consume-ok came.
    pub(crate) fn consuming(&mut self, now_us: u64, wakeups: &mut Wakeups) {
        self.began = true;
        self.exclusion.over();
        self.health.began(now_us);
        if let Some(tap) = &mut self.tap {
            tap.began(now_us);
            if self.credit.rtt_us() == 0 {
                self.credit.set_rtt(now_us.saturating_sub(tap.opened_us));
            }
        }
        wakeups.extend(self.waker.take());
    }

    /// A message came. False: the broker numbers it as one before, which it must not.
    #[must_use]
    pub(crate) fn delivered(&mut self, delivery: &Delivery<'_>, now_us: u64) -> bool {
        let Some(tap) = self.tap.as_mut().filter(|tap| tap.channel == delivery.channel) else {
            return true;
        };
        if !tap.delivered(delivery.delivery_tag) {
            return false;
        }
        self.health.came(now_us);
        self.metrics.delivered += 1;
        self.metrics.redelivered += u64::from(delivery.redelivered);
        let key = DeliveryKey { tap: tap.number, tag: delivery.delivery_tag };
        if tap.returns_what_comes() {
            // Whoever took it now would have it before those that went back.
            let known = tap.acks.nack(key.tag, true);
            debug_assert!(known.is_ok(), "it has just come");
            self.metrics.handed_back += 1;
            return true;
        }
        self.fresh += usize::from(!delivery.redelivered);
        let message = Received::from_delivery(delivery);
        self.ready.push_back(Ready { key, message, came_us: now_us });
        true
    }

    /// All that came at once was handed to [`Intake::delivered`].
    pub(crate) fn arrived(&mut self, machine: &mut Machine, now_us: u64, wakeups: &mut Wakeups) {
        if self.stopping {
            // It was on its way when we asked for no more.
            self.hand_back(machine);
            return;
        }
        self.see_workers(now_us);
        self.write_acks(machine); // of what goes back at once
        let outstanding = self.tap.as_ref().map_or(0, |tap| tap.acks.open() + tap.acks.unflushed());
        self.credit.delivered(now_us, outstanding as u32);
        self.replace_full(machine, now_us);
        if !self.ready.is_empty() {
            wakeups.extend(self.waker.take());
        }
    }

    /// The network's round trip.
    pub(crate) fn network(&mut self, rtt_us: u64) {
        self.credit.set_rtt(rtt_us);
        if let Some(tap) = &mut self.tap {
            tap.acks.tune(tap.credit, rtt_us);
        }
    }

    /// Time passes: acks that have waited long enough go out; a tap that is done is closed; the consumer is
    /// replaced if its credit has to change.
    pub(crate) fn tick(&mut self, machine: &mut Machine, now_us: u64) {
        self.see_workers(now_us);
        if let Some(tap) = &mut self.tap {
            tap.acks.tick(now_us);
            tap.ask_for_queue(machine, &self.how, now_us);
        }
        self.give_back_overdue(now_us);
        self.write_acks(machine);
        self.close_done(machine);
        self.hand_back_stuck(machine, now_us);
        self.consider_replacing(machine, now_us);
        self.ask_how_many(machine, now_us);
        if self.looks_at_us().is_some_and(|due_us| due_us <= now_us) {
            self.looked_us = now_us;
            self.tune(machine, now_us);
        }
    }

    /// When [`Intake::tick`] has something to do.
    pub(crate) fn next_tick_us(&self) -> Option<u64> {
        let Some(tap) = &self.tap else { return self.exclusion.next_us() };
        let replace_us = tap.held_until_us().or_else(|| self.raises_at_us());
        let stuck_us =
            self.credit.next_hand_back_us(self.returnable()).filter(|_| self.hands_back());
        let (flush_us, overdue_us) = (tap.acks.next_flush_us(), self.working.next_us());
        let (there_us, waiting_us) = (tap.asks_at_us(), self.asks_at_us());
        let looks_us = self.looks_at_us();
        let all = [flush_us, replace_us, stuck_us, there_us, waiting_us, overdue_us, looks_us];
        all.into_iter().flatten().min()
    }

    /// Whether it is time to open a tap again that was refused because of one of before.
    pub(crate) fn asks_again(&mut self, now_us: u64) -> bool {
        self.exclusion.take_due(now_us)
    }

    /// What a worker has kept for too long goes to somebody else; its own answer will be too late.
    fn give_back_overdue(&mut self, now_us: u64) {
        while let Some(key) = self.working.next_overdue(now_us) {
            if let Some(tap) = self.tap.as_mut().filter(|tap| tap.number == key.tap) {
                let known = tap.acks.nack(key.tag, true);
                debug_assert!(known.is_ok(), "what is in work is open");
                self.metrics.overdue += 1;
                self.health.began(now_us);
                self.credit.completed(now_us, self.how.work_limit_us.unwrap_or_default());
            }
        }
    }

    /// When a consumer that asked for nothing sees whether a worker is free again. Nothing comes meanwhile that would make it look.
    fn looks_at_us(&self) -> Option<u64> {
        let asks_for_none =
            self.how.occupancy.is_some() && self.tap.as_ref().is_some_and(Tap::is_paused);
        asks_for_none.then_some(self.looked_us.max(self.changed_us) + LOOK_INTERVAL_US)
    }

    fn see_workers(&mut self, now_us: u64) {
        if let Some(occupancy) = &self.how.occupancy {
            self.credit.see(now_us, occupancy.get());
        }
    }

    // ---- settling

    /// Only where it is safe: on brokers that count a requeue as a failed delivery it could end in the dead
    /// letters.
    fn hands_back(&self) -> bool {
        !self.stopping && self.tap.as_ref().is_some_and(|tap| tap.live && tap.pauses)
    }

    /// Waiting messages that may go back. Each once, or consumers that are all stuck would hand it round for ever;
    /// unless these ask for nothing more until a worker is free.
    fn returnable(&self) -> usize {
        if self.credit.gives_up_all() { self.ready.len() } else { self.fresh }
    }

    /// Messages that wait behind busy workers go back, newest first, so that they keep their order.
    fn hand_back_stuck(&mut self, machine: &mut Machine, now_us: u64) {
        if !self.hands_back() || !self.credit.hand_back(now_us, self.returnable()) {
            return;
        }
        if let (Some(occupancy), Some(turn)) = (&self.how.occupancy, self.credit.stuck_turn()) {
            occupancy.stuck(turn);
        }
        let all = self.credit.gives_up_all();
        self.metrics.handed_back += self.returnable() as u64;
        self.fresh = 0;
        // First the credit, or the broker sends them here again; one too many is enough for that.
        let wanted = self.credit.wanted();
        if let Some(tap) = self.tap.as_mut().filter(|tap| !tap.cancelled && wanted < tap.credit) {
            tap.tune(machine, wanted, self.credit.rtt_us());
            self.changed_us = now_us;
        }
        if let Some(tap) = &mut self.tap {
            tap.returns(machine);
        }
        for ready in std::mem::take(&mut self.ready).into_iter().rev() {
            match &mut self.tap {
                Some(tap) if all || !ready.message.redelivered() => {
                    let known = tap.acks.nack(ready.key.tag, true);
                    debug_assert!(known.is_ok(), "what waits is open");
                }
                _ => self.ready.push_front(ready),
            }
        }
        self.write_acks(machine);
    }

    /// qos-ok or flow-ok came. True: [`Intake::has_returned`] comes next.
    pub(crate) fn is_set(&mut self) -> bool {
        self.tap.as_mut().is_some_and(Tap::is_set)
    }

    /// All that was on its way when messages went back has come, and goes back as well; then the broker may go on.
    pub(crate) fn has_returned(&mut self, machine: &mut Machine, now_us: u64) {
        self.write_acks(machine);
        if let Some(tap) = &mut self.tap {
            tap.has_returned(machine);
        }
        self.tune(machine, now_us);
    }

    /// The tap's.
    pub(crate) fn channel(&self) -> Option<u16> {
        self.tap.as_ref().map(|tap| tap.channel)
    }

    /// Changes the credit where one method does it.
    fn tune(&mut self, machine: &mut Machine, now_us: u64) {
        let Some(tap) = &mut self.tap else { return };
        if tap.cancelled || !tap.live || !self.credit.outgrown(tap.credit, true) {
            return;
        }
        // A channel that is paused for what goes back goes on when that has.
        if tap.returns_what_comes() && tap.credit == 0 {
            return;
        }
        tap.tune(machine, self.credit.wanted(), self.credit.rtt_us());
        self.changed_us = now_us;
    }

    /// What is settled is told at once.
    pub(crate) fn flush(&mut self, machine: &mut Machine) {
        if let Some(tap) = &mut self.tap {
            tap.acks.flush();
        }
        self.write_acks(machine);
        self.close_done(machine);
    }

    fn write_acks(&mut self, machine: &mut Machine) {
        if let Some(tap) = &mut self.tap {
            self.metrics.ack_frames += tap.write_acks(machine);
        }
    }

    /// What waits here for a worker goes back to the queue, newest first, so that it keeps its order.
    fn hand_back(&mut self, machine: &mut Machine) {
        self.fresh = 0;
        let waiting = std::mem::take(&mut self.ready);
        if let Some(tap) = &mut self.tap {
            for ready in waiting.into_iter().rev() {
                let known = tap.acks.nack(ready.key.tag, true);
                debug_assert!(known.is_ok(), "what waits is open");
            }
        }
        self.write_acks(machine);
    }
}
