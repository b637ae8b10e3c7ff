//! One channel of a consumer, and the broker-side consumer on it.
//!
//! Where a broker cannot change the credit of a live consumer, the consumer is replaced, on the same channel:
//!
//! ```text
//!   acks are held ──▶ the old one is full ──▶ qos, consume (new), cancel (old) ──▶ acks go out again
//! ```
//! While no ack leaves, the broker fills the old consumer up to its credit. Once as many are here, it can give
//! it nothing more until it hears an ack, and a channel's methods are worked off in order: the old consumer is
//! gone by then. So no two consumers ever get messages beside each other, and order is kept. The queue is never
//! without a consumer, which would be the end of one that is auto-delete.
//!
//! If the old one does not fill up in time, its credit is not what is short; the acks go out, and it stays.

use forebay_flow::{AckCoalescer, Settlement};
use forebay_wire::{ShortStr, Value, basic, channel, queue};

use super::how::How;
use crate::machine::{Machine, PAUSE};
use crate::marks::{MARKS, MARKS_ARGUMENT};

/// Acks are held for a round trip and this, at most: what was on its way when the first was held is here then.
const HOLD_SLACK_US: u64 = 20_000;

/// RabbitMQ 3.10 does not tell a consumer of a quorum queue that the queue was deleted if that was in the moment in which
/// the consumer began. So the queue is asked for once, this much later, when deletions are told.
const ASK_AFTER_US: u64 = 1_000_000;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Tap {
    /// No tap had it before.
    pub(super) number: u64,
    pub(super) channel: u16,
    pub(super) acks: AckCoalescer,
    /// Of the consumer that takes messages.
    pub(super) credit: u32,
    pub(super) opened_us: u64,
    /// Its credit can be changed by one method.
    pub(super) live: bool,
    /// Its credit can be 0.
    pub(super) pauses: bool,
    pub(super) consuming: bool,
    /// Our cancel is out, or the broker ended it.
    pub(super) cancelled: bool,
    /// Consumers that were here before the one that takes messages.
    replaced: u32,
    /// The first delivery tag that can be the present consumer's; those of a channel only grow.
    first_tag: u64,
    last_tag: u64,
    hold: Option<Hold>,
    /// How often the credit was set or the channel paused, and how often that was answered: in order, as everything here.
    set: u64,
    answered: u64,
    /// Messages went back to their queue; what comes before this answer was on its way by then, ahead of them.
    returned_until: Option<u64>,
    /// When the queue is asked for.
    ask_at_us: Option<u64>,
    /// Questions for the queue that are not answered yet.
    asked: u32,
}

/// Acks are held.
#[derive(Debug)]
struct Hold {
    /// Deliveries of the present consumer for which the broker has no ack.
    outstanding: u32,
    until_us: u64,
}

impl Tap {
    /// Consumes on a new channel; `number` is one that no tap had before. `None`: there is no channel.
    pub(super) fn open(
        machine: &mut Machine,
        how: &How,
        number: u64,
        credit: u32,
        rtt_us: u64,
        now_us: u64,
    ) -> Option<Tap> {
        let mut tap = Tap {
            number,
            channel: machine.open_channel().ok()?,
            acks: AckCoalescer::new(credit, rtt_us),
            credit,
            opened_us: now_us,
            live: machine.server().can(LIVE_CREDIT),
            pauses: machine.server().can(PAUSE),
            consuming: false,
            cancelled: false,
            replaced: 0,
            first_tag: 0,
            last_tag: 0,
            hold: None,
            set: 0,
            answered: 0,
            returned_until: None,
            ask_at_us: None,
            asked: 0,
        };
        tap.consume(machine, how).then_some(tap)
    }

    /// False: the connection is closing.
    fn consume(&mut self, machine: &mut Machine, how: &How) -> bool {
        let tag = self.consumer_tag(how);
        let mut arguments = how.arguments.clone();
        if how.marks && machine.server().can(MARKS) {
            arguments.push(MARKS_ARGUMENT, Value::Bool(true));
        }
        let consume = basic::Consume {
            queue: ShortStr::truncated(&how.queue),
            consumer_tag: ShortStr::truncated(&tag),
            exclusive: how.exclusive,
            arguments: arguments.as_table(),
            ..Default::default()
        };
        self.qos(machine) && machine.send(self.channel, &consume).is_ok()
    }

    fn qos(&mut self, machine: &mut Machine) -> bool {
        let qos = basic::Qos {
            prefetch_count: self.credit as u16,
            global: self.live,
            ..Default::default()
        };
        let sent = machine.send(self.channel, &qos).is_ok();
        self.set += u64::from(sent);
        sent
    }

    /// qos-ok or flow-ok came. True: from now on what comes is for the workers again.
    pub(super) fn is_set(&mut self) -> bool {
        self.answered += 1;
        self.returned_until.take_if(|until| *until <= self.answered).is_some()
    }

    /// Messages are about to go back to their queue. Others that come behind them in it may be on their way here: they go back, too,
    /// and the channel is paused until they have, or the broker would send what comes behind these.
    ///
    /// ```text
    ///   flow off ─▶ nacks ─▶            what comes is nacked            ─▶ flow on
    ///        └───────────── the last that was sent, flow-ok ◀──────────────┘
    /// ```
    pub(super) fn returns(&mut self, machine: &mut Machine) {
        if self.credit > 0 {
            self.flow(machine, false);
        }
        self.returned_until = (self.set > self.answered).then_some(self.set);
    }

    /// All that was on its way has gone back.
    pub(super) fn has_returned(&mut self, machine: &mut Machine) {
        if self.credit > 0 {
            self.flow(machine, true);
        }
    }

    fn flow(&mut self, machine: &mut Machine, active: bool) {
        self.set += u64::from(machine.send(self.channel, &channel::Flow { active }).is_ok());
    }

    /// Whether what comes now was sent before the broker heard that messages before it went back.
    pub(super) fn returns_what_comes(&self) -> bool {
        self.returned_until.is_some()
    }

    /// A consumer was asked for, and there is no answer.
    pub(super) fn awaits_consume_ok(&self) -> bool {
        !self.consuming && !self.cancelled
    }

    /// consume-ok came.
    pub(super) fn began(&mut self, now_us: u64) {
        self.consuming = true;
        self.ask_at_us = (!self.live).then_some(now_us + ASK_AFTER_US);
    }

    /// When [`Tap::ask_for_queue`] has something to do.
    pub(super) fn asks_at_us(&self) -> Option<u64> {
        self.ask_at_us.filter(|_| !self.cancelled)
    }

    /// Asks, if that is due, whether the queue is there; if not, the broker closes the channel with 404.
    pub(super) fn ask_for_queue(&mut self, machine: &mut Machine, how: &How, now_us: u64) {
        if self.asks_at_us().is_some_and(|due_us| due_us <= now_us) {
            self.ask_at_us = None;
            self.ask(machine, how);
        }
    }

    /// Asks for the queue: the answer says how many messages wait in it.
    pub(super) fn ask(&mut self, machine: &mut Machine, how: &How) {
        let name = ShortStr::truncated(&how.queue);
        let passive = queue::Declare { queue: name, passive: true, ..Default::default() };
        self.asked += u32::from(machine.send(self.channel, &passive).is_ok());
    }

    /// An answer came; whether it was the last one that is due.
    pub(super) fn was_last_answer(&mut self) -> bool {
        self.asked = self.asked.saturating_sub(1);
        self.asked == 0
    }

    /// Of the consumer that takes messages.
    pub(super) fn consumer_tag(&self, how: &How) -> String {
        format!("{}-{}-{}", how.tag, self.number, self.replaced)
    }

    pub(super) fn cancel(&mut self, machine: &mut Machine, how: &How) {
        if !std::mem::replace(&mut self.cancelled, true) {
            self.send_cancel(machine, &self.consumer_tag(how));
        }
    }

    fn send_cancel(&self, machine: &mut Machine, tag: &str) {
        let cancel = basic::Cancel { consumer_tag: ShortStr::truncated(tag), ..Default::default() };
        let _ = machine.send(self.channel, &cancel);
    }

    /// A message came. False: its number was there before, so nobody could say which of the two is settled. Brokers number what they
    /// deliver on a channel upwards, as far as it is to be acknowledged.
    #[must_use]
    pub(super) fn delivered(&mut self, tag: u64) -> bool {
        if tag <= self.last_tag {
            return false;
        }
        self.acks.delivered(tag);
        self.last_tag = tag;
        if let Some(hold) = &mut self.hold {
            hold.outstanding += 1;
        }
        true
    }

    /// Changes the credit live. A prefetch of 0 would be none at all, so for that the channel is paused.
    pub(super) fn tune(&mut self, machine: &mut Machine, credit: u32, rtt_us: u64) {
        debug_assert!(self.live && !self.cancelled && (credit > 0 || self.pauses));
        let before = std::mem::replace(&mut self.credit, credit);
        self.acks.tune(credit.max(1), rtt_us);
        if credit > 0 {
            self.qos(machine);
        }
        if (credit == 0) != (before == 0) {
            self.flow(machine, credit > 0);
        }
    }

    /// Whether its consumer asks for nothing at all for now.
    pub(super) fn is_paused(&self) -> bool {
        self.live && self.credit == 0 && !self.cancelled
    }

    /// Writes the settlements that are due, unless they are held; how many.
    pub(super) fn write_acks(&mut self, machine: &mut Machine) -> u64 {
        let mut frames = 0;
        while self.hold.is_none()
            && let Some(settlement) = self.acks.next_settlement()
        {
            frames += 1;
            // Fails only when the connection is closing; then the broker takes them back.
            let _ = match settlement {
                Settlement::Ack { tag, multiple } => machine.ack(self.channel, tag, multiple),
                Settlement::Nack { tag, requeue } => {
                    machine.nack(self.channel, tag, false, requeue)
                }
            };
        }
        frames
    }

    /// Takes no messages and has nothing left to settle.
    pub(super) fn is_done(&self) -> bool {
        self.cancelled && self.acks.open() == 0 && self.acks.unflushed() == 0
    }

    // ---- replacing the consumer

    /// Whether its consumer can be replaced now.
    pub(super) fn is_replaceable(&self) -> bool {
        !self.live && self.consuming && !self.cancelled
    }

    /// Deliveries of earlier consumers that are in work or wait.
    pub(super) fn older(&self) -> u32 {
        (self.acks.open() - self.acks.open_from(self.first_tag)) as u32
    }

    /// No ack leaves until the consumer was replaced or that was given up. Due ones were written before.
    pub(super) fn hold(&mut self, rtt_us: u64, now_us: u64) {
        let outstanding = self.acks.unsettled_from(self.first_tag) as u32;
        self.hold = Some(Hold { outstanding, until_us: now_us + rtt_us + HOLD_SLACK_US });
    }

    pub(super) fn release(&mut self) {
        self.hold = None;
    }

    pub(super) fn held_until_us(&self) -> Option<u64> {
        self.hold.as_ref().map(|hold| hold.until_us)
    }

    /// Whether acks are held and the broker can give the present consumer nothing more.
    pub(super) fn is_full(&self) -> bool {
        self.hold.as_ref().is_some_and(|hold| hold.outstanding >= self.credit)
    }

    /// Another consumer takes the place of a full one. Acks may be written again.
    pub(super) fn replace(&mut self, machine: &mut Machine, how: &How, credit: u32, rtt_us: u64) {
        debug_assert!(self.is_full() && self.is_replaceable());
        let old_tag = self.consumer_tag(how);
        self.hold = None;
        self.replaced += 1;
        self.consuming = false;
        self.credit = credit;
        self.first_tag = self.last_tag + 1;
        self.acks.tune(credit, rtt_us);
        self.consume(machine, how);
        self.send_cancel(machine, &old_tag);
    }
}

/// The capability of a broker whose channel-wide `basic.qos` bounds its consumers from then on, for every kind of
/// queue. RabbitMQ does so for classic queues, refuses it for quorum queues and deprecates it; so only where the
/// broker says so itself.
pub(crate) const LIVE_CREDIT: &str = "forebay.live_credit";
