//! A publisher's channel comes and goes: with its connection, by the broker's will, or because it is no good.

use forebay_flow::{BrokerKind, CommitTime, KernelReading, Together};

use super::{Ledger, SETTLED, Wakeups};
use crate::error::{Lost, Refusal};
use crate::happening::PublisherChannelFault;
use crate::machine::Machine;
use crate::outcome::{Unconfirmed, UnknownReason};

/// A channel that rejects everything may answer the rest within this time. RabbitMQ 3.10 was seen to take a minute to
/// reject eleven messages, while other channels to the same queue went on.
const RETIRING_US_MAX: u64 = 5_000_000;

impl Ledger {
    pub(crate) fn channel(&self) -> Option<u16> {
        self.channel
    }

    /// After so long without an answer while messages wait for one, the channel is replaced; `None`: never.
    pub(crate) fn set_stall_us(&mut self, stall_us: Option<u64>) {
        self.health.set_stall_us(stall_us);
    }

    /// The channel is no good: another one has to be opened, and everything open goes out on that.
    pub(crate) fn replace(&mut self) {
        self.former = self.channel;
        self.metrics.channels_replaced += 1;
        self.leave_channel();
    }

    /// The broker has ended a channel that we closed; its number may be somebody else's from now on.
    pub(crate) fn channel_ended(&mut self, number: u16) {
        self.former = self.former.filter(|&former| former != number);
    }

    /// There will be no other connection: what was written is unknown, and so is what was to be.
    pub(crate) fn give_up(&mut self, lost: &Lost, wakeups: &mut Wakeups) {
        self.over = Some(lost.clone());
        self.channel = None;
        self.gate.close();
        let unknown = Unconfirmed::Unknown(UnknownReason::Lost(lost.clone()));
        self.settle_all(&unknown, wakeups);
        self.gate.abandon().for_each(drop);
        wakeups.extend(self.waiting.values_mut().filter_map(|waiting| waiting.waker.take()));
        self.wake_idlers(wakeups);
    }

    /// The broker closed the channel. Nobody can tell which messages it had taken by then, and sending
    /// them again may only close the next one.
    pub(crate) fn channel_closed(&mut self, why: &Refusal, wakeups: &mut Wakeups) {
        self.channel = None;
        self.expired = false;
        self.retiring_since_us = None;
        self.gate.close();
        let unknown = Unconfirmed::Unknown(UnknownReason::ChannelClosed(why.clone()));
        let written = std::mem::take(&mut self.by_sequence);
        for entry in written.into_iter().filter(|&entry| entry != SETTLED) {
            self.settle_unknown(entry as usize, &unknown, wakeups);
        }
        self.wake_idlers(wakeups);
    }

    pub(crate) fn blocked(&mut self, now_us: u64) {
        self.blocked = true;
        self.window.blocked(now_us);
        self.gate.close();
    }

    pub(crate) fn unblocked(&mut self, now_us: u64) {
        self.blocked = false;
        self.health.alive(now_us);
        self.window.unblocked(now_us);
        self.follow_window(now_us);
        if self.channel.is_some() {
            self.gate.open();
        }
    }

    /// What is known of the broker of the next channel.
    pub(crate) fn set_broker(&mut self, kind: BrokerKind) {
        self.broker = kind;
    }

    /// What the broker tells of its commits.
    pub(crate) fn commit_time(&mut self, told: CommitTime) {
        self.commit_time = told;
        self.window.commit_time(told);
    }

    /// True if to its window the route has become longer, and somebody had to wait for that window lately.
    pub(crate) fn network(&mut self, now_us: u64, reading: Option<KernelReading>) -> bool {
        let longer = self.window.network(now_us, reading);
        std::mem::take(&mut self.waited) && longer
    }

    /// See [`Window::route_is_no_longer`](forebay_flow::Window::route_is_no_longer).
    pub(crate) fn route_is_no_longer(&mut self, now_us: u64, rtt_us: u64, rest_us: u64) {
        self.window.route_is_no_longer(now_us, rtt_us, rest_us);
        self.follow_window(now_us);
    }

    /// Messages that were confirmed since this was last asked.
    pub(crate) fn take_confirmed(&mut self) -> u64 {
        let confirmed = self.metrics.confirmed;
        confirmed - std::mem::replace(&mut self.confirmed_before, confirmed)
    }

    /// What all publishers of the process see of the broker.
    pub(crate) fn together(&mut self, now_us: u64, told: Together) {
        self.window.together(now_us, told);
    }

    /// The least time that the broker took for a message of it lately, in microseconds.
    pub(crate) fn service_us(&self) -> Option<u64> {
        self.window.service_us()
    }

    pub(crate) fn wants_full_packets(&self) -> bool {
        self.window.wants_full_packets()
    }

    // ---- whether the channel is any good

    /// Whether what is admitted goes out at present.
    pub(crate) fn may_write(&self) -> bool {
        self.channel.is_some() && self.retiring_since_us.is_none() && self.trial != Some(0)
    }

    /// When the channel has to be replaced if no answer comes before.
    pub(crate) fn next_tick_us(&self) -> Option<u64> {
        if self.channel.is_none() || !self.awaits_answers() || self.blocked {
            return None;
        }
        self.retired_at_us().into_iter().chain(self.stalls_at_us()).min()
    }

    /// Whether the broker owes an answer to something that was written to the channel.
    pub(super) fn awaits_answers(&self) -> bool {
        !self.by_sequence.is_empty() || self.expired
    }

    /// A channel of our broker does not stall by itself: a long wait there is that of a queue which balances, for minutes if its
    /// consumers take so long, and another channel would bring every message once more. A broker that hangs is noticed by its
    /// heartbeats, and a disk that hangs is told.
    fn stalls_at_us(&self) -> Option<u64> {
        match self.broker {
            BrokerKind::FairVisits { .. } => None,
            BrokerKind::Unknown | BrokerKind::RabbitMq => self.health.stalls_at_us(),
        }
    }

    fn retired_at_us(&self) -> Option<u64> {
        self.retiring_since_us.map(|since_us| since_us + RETIRING_US_MAX)
    }

    /// Bytes of ours still leave, so an answer cannot be due.
    pub(crate) fn still_writing(&mut self, now_us: u64) {
        self.health.alive(now_us);
    }

    /// Whether the channel has to be replaced now. One that rejects is not while answers are due, or not for
    /// long: what still may be confirmed or rejected gets the outcome that the broker gives it.
    pub(crate) fn fault(&self, now_us: u64) -> Option<PublisherChannelFault> {
        let due = self.next_tick_us().is_some_and(|due_us| due_us <= now_us);
        match self.retiring_since_us {
            Some(_) if due || self.by_sequence.is_empty() => {
                Some(PublisherChannelFault::RejectsEverything)
            }
            None if due => Some(PublisherChannelFault::Silent),
            _ => None,
        }
    }

    /// Whether the broker is silent, and has not even answered the end of the channel before this one.
    pub(crate) fn is_ignored(&self, machine: &Machine) -> bool {
        self.retiring_since_us.is_none()
            && self.former.is_some_and(|former| machine.is_closing(former))
    }
}
