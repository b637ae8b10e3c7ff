//! Another broker-side consumer takes the place of the present one: on the same channel where its credit cannot change
//! live, on another one where it gets nothing any more.

use super::Intake;
use crate::machine::Machine;
use crate::session::tap::Tap;

/// Where a live consumer's credit cannot change, it is replaced at most this often to lower it.
const LOWER_INTERVAL_US: u64 = 5_000_000;
/// And this often to raise it.
const RAISE_INTERVAL_US: u64 = 250_000;

impl Intake {
    pub(super) fn may_replace(&self) -> bool {
        let tap = self.tap.as_ref();
        !self.how.sole && !self.stopping && tap.is_some_and(Tap::is_replaceable)
    }

    /// Begins to replace the consumer if that is due, ends it if it takes too long.
    pub(super) fn consider_replacing(&mut self, machine: &mut Machine, now_us: u64) {
        if !self.may_replace() {
            return;
        }
        let Some(tap) = &mut self.tap else { return };
        if let Some(until_us) = tap.held_until_us() {
            if now_us >= until_us {
                self.give_up_replacing(machine, now_us);
            }
            return;
        }
        let (wanted, credit) = (self.credit.wanted_for_long(), tap.credit);
        // What is in work of an earlier consumer leaves the present one's credit alone.
        let raise = wanted > credit && wanted > credit + tap.older();
        let interval_us = if raise { RAISE_INTERVAL_US } else { LOWER_INTERVAL_US };
        if now_us.saturating_sub(self.changed_us) < interval_us {
            return;
        }
        self.changed_us = now_us;
        if raise || self.credit.outgrown(credit, false) && wanted < credit {
            tap.hold(self.credit.rtt_us(), now_us);
            self.replace_full(machine, now_us);
        }
    }

    /// Replaces the consumer if that was begun and the broker can give the present one nothing more.
    pub(super) fn replace_full(&mut self, machine: &mut Machine, now_us: u64) {
        let Some(tap) = self.tap.as_mut().filter(|tap| tap.is_full()) else { return };
        // What is not settled yet counts, too: together they stay within the bound.
        let room = self.credit.most().saturating_sub(tap.acks.open() as u32);
        let wanted = self.credit.wanted_for_long();
        let credit = wanted.min(room);
        let all_in_work = self.ready.is_empty();
        let worth_it = credit > tap.credit || credit > 0 && all_in_work;
        let lowers = wanted < tap.credit && credit > 0;
        if !tap.is_replaceable() || !(worth_it || lowers) {
            self.give_up_replacing(machine, now_us);
            return;
        }
        tap.replace(machine, &self.how, credit, self.credit.rtt_us());
        self.metrics.reconsumed += 1;
        self.changed_us = now_us;
        self.write_acks(machine);
    }

    fn give_up_replacing(&mut self, machine: &mut Machine, now_us: u64) {
        self.changed_us = now_us;
        if let Some(tap) = &mut self.tap {
            tap.release();
        }
        self.write_acks(machine);
    }

    /// When the least time to the next raise is over, if one is wanted.
    pub(super) fn raises_at_us(&self) -> Option<u64> {
        let tap = self.tap.as_ref()?;
        // As above: what is wanted beside those at work for an earlier consumer.
        let wanted = self.credit.wanted_for_long();
        let raises = self.may_replace() && wanted > tap.credit && wanted > tap.credit + tap.older();
        raises.then_some(self.changed_us + RAISE_INTERVAL_US)
    }

    // ---- on another channel

    /// Whether the broker has every reason to send what waits: all of the credit is free.
    fn is_idle(&self) -> bool {
        let idle = |tap: &Tap| {
            let settled = tap.acks.open() == 0 && tap.acks.unflushed() == 0;
            tap.is_replaceable() && tap.held_until_us().is_none() && settled
        };
        !self.how.sole && !self.stopping && self.tap.as_ref().is_some_and(idle)
    }

    /// When the broker is asked how many messages wait.
    pub(super) fn asks_at_us(&self) -> Option<u64> {
        self.health.asks_at_us().filter(|_| self.is_idle())
    }

    /// Asks, if that is due.
    pub(super) fn ask_how_many(&mut self, machine: &mut Machine, now_us: u64) {
        if self.asks_at_us().is_some_and(|due_us| due_us <= now_us)
            && let Some(tap) = &mut self.tap
        {
            tap.ask(machine, &self.how);
            self.health.asked();
        }
    }

    /// The broker says how many messages wait. True: [`Intake::leave_stuck`] should be called.
    pub(crate) fn queue_told(&mut self, ready_messages: u32, now_us: u64) -> bool {
        if self.tap.as_mut().is_some_and(Tap::was_last_answer) {
            self.health.answered(ready_messages, now_us);
        }
        self.health.is_stuck()
    }

    /// Gives the channel up on which nothing comes any more, if it is still so; the caller closes it and opens another.
    pub(crate) fn leave_stuck(&mut self, now_us: u64) -> Option<u16> {
        let tap = self.tap.take_if(|_| self.health.is_stuck())?;
        self.present.set(None);
        debug_assert!(self.ready.is_empty(), "what came ended the suspicion");
        self.health.replaced(now_us);
        self.metrics.channels_replaced += 1;
        Some(tap.channel)
    }
}
