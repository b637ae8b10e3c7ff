//! One publisher: how much it may send now, and how long its answers took.
//!
//! ```text
//!              schedule says it is due ── window has room ── socket takes it
//!   message k ──────────┬──────────────────────┴───────────────────┬────────── confirm
//!                  intended time                                 called
//! ```
//! A window set by hand and one that tunes itself (`forebay_flow::Pfw`, as in our client) drive the same
//! publisher, so that nothing but the window differs between the columns of a comparison.

use std::cell::RefCell;
use std::rc::Rc;

use forebay_client::KernelRtt;
use forebay_client::machine::{Machine, PublishError, Settled};
use forebay_flow::{
    Amount, BrokerKind, CommitTime, Load, Pfw, PfwOptions, Sample, Tally, Window as _,
};
use forebay_wire::{Properties, RawProperties, ShortStr};

use crate::in_flight::{InFlight, SentAt};
use crate::latency::Timing;
use crate::plan::Plan;
use crate::schedule::Schedule;
use crate::setting::Window;
use crate::stamp::Mark;

/// Bytes that one turn adds for one publisher, so that a thousand of them take turns.
const TURN_BYTES: usize = 64 * 1024;
/// The kernel is asked for the round trip this often at most, as our client does.
const RTT_INTERVAL_US: u64 = 100_000;

/// What bounds the messages in flight.
#[derive(Debug)]
enum Permits {
    /// Only the socket.
    Unbounded,
    /// So many.
    Fixed(u64),
    /// The window that tunes itself.
    Tuned(Box<Pfw>),
}

/// What settles a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answers {
    /// Nothing: there are no confirms.
    None,
    /// A confirm.
    Confirms,
    /// A reply to the pseudo-queue of direct reply-to.
    Replies,
}

#[derive(Debug)]
pub(crate) struct Publisher {
    pub(crate) channel: u16,
    pub(crate) answers: Answers,
    exchange: String,
    routing_key: String,
    properties: Vec<u8>,
    body: Vec<u8>,
    mark: Mark,
    /// What no queue takes comes back: queues and bindings are somebody's.
    mandatory: bool,
    permits: Permits,
    in_flight: InFlight,
    schedule: Schedule,
    /// Messages it may still publish.
    left: u64,
    /// `connection.blocked` came; a publisher that tunes itself stops, as our client does.
    blocked: bool,
    /// The last message was not taken, as the send buffer was full.
    socket_full: bool,
    kernel_rtt: Option<KernelRtt>,
    next_rtt_us: u64,
    pub(crate) published: u64,
    pub(crate) confirmed: u64,
    /// Those that all publishers have been told of.
    confirmed_before: u64,
    /// Of all publishers, for windows that ask for it, as the client tells them.
    tally: Rc<RefCell<Tally>>,
    /// In it.
    number: u64,
    pub(crate) rejected: u64,
    /// By the broker, as no queue took them.
    pub(crate) returned: u64,
}

impl Publisher {
    pub(crate) fn new(plan: &Plan, number: usize) -> Publisher {
        let mut properties = Vec::new();
        Properties {
            delivery_mode: Some(if plan.persistent { 2 } else { 1 }),
            reply_to: plan.rpc.then(|| ShortStr::new(b"amq.rabbitmq.reply-to").unwrap_or_default()),
            ..Default::default()
        }
        .encode(&mut properties);
        let permits = match plan.window {
            Window::None => Permits::Unbounded,
            Window::Fixed(messages) => Permits::Fixed(u64::from(messages)),
            Window::Auto => {
                let seed = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                Permits::Tuned(Box::new(Pfw::new(PfwOptions { seed, ..PfwOptions::default() })))
            }
        };
        let share = plan.messages / plan.publishers as u64;
        let extra = u64::from((number as u64) < plan.messages % plan.publishers as u64);
        Publisher {
            channel: 0,
            answers: match permits {
                _ if plan.rpc => Answers::Replies,
                Permits::Unbounded => Answers::None,
                _ => Answers::Confirms,
            },
            exchange: plan.exchange().map_or_else(String::new, |(name, _)| name),
            routing_key: plan.routing_key(number),
            properties,
            body: vec![b'.'; plan.size],
            mark: plan.mark,
            mandatory: plan.predeclared,
            permits,
            in_flight: InFlight::default(),
            schedule: Schedule::new(plan.rate, &plan.profile),
            left: if plan.messages > 0 { share + extra } else { u64::MAX },
            blocked: false,
            socket_full: false,
            kernel_rtt: None,
            next_rtt_us: 0,
            published: 0,
            confirmed: 0,
            confirmed_before: 0,
            tally: Rc::default(),
            number: number as u64,
            rejected: 0,
            returned: 0,
        }
    }

    /// Its own start: publishers with a rate are spread over one interval. `kernel_rtt` tells a window that
    /// tunes itself the round trip of the network.
    pub(crate) fn start(
        &mut self,
        now_us: u64,
        number: usize,
        of: usize,
        kernel_rtt: Option<KernelRtt>,
    ) {
        self.schedule.start(now_us, number, of);
        self.kernel_rtt = kernel_rtt.filter(|_| matches!(self.permits, Permits::Tuned(_)));
        self.ask_kernel(now_us);
    }

    /// All publishers count here.
    pub(crate) fn counts_with(&mut self, tally: Rc<RefCell<Tally>>) {
        self.tally = tally;
    }

    /// What is known of the broker.
    pub(crate) fn broker(&mut self, kind: BrokerKind) {
        if let Permits::Tuned(window) = &mut self.permits {
            window.broker(kind);
        }
    }

    /// What the broker tells of its commits.
    pub(crate) fn commit_time(&mut self, told: CommitTime) {
        if let Permits::Tuned(window) = &mut self.permits {
            window.commit_time(told);
        }
    }

    /// Whether it wants to know the round trip of the network.
    pub(crate) fn is_tuned(&self) -> bool {
        matches!(self.permits, Permits::Tuned(_))
    }

    /// When its next message is due; `None`: at once.
    pub(crate) fn due_us(&self) -> Option<u64> {
        self.schedule.due_us(self.published)
    }

    /// Whether it has published and settled all it was asked to.
    pub(crate) fn is_done(&self) -> bool {
        self.left == 0 && (self.answers == Answers::None || self.in_flight.open() == 0)
    }

    /// Whether the window has room and messages are left.
    pub(crate) fn has_room(&self) -> bool {
        self.left > 0 && self.permits()
    }

    /// Messages without an answer.
    pub(crate) fn unanswered(&self) -> u64 {
        self.in_flight.open()
    }

    /// Messages that may be in flight; `None`: any number.
    pub(crate) fn window(&self) -> Option<u64> {
        match &self.permits {
            Permits::Unbounded => None,
            Permits::Fixed(messages) => Some(*messages),
            Permits::Tuned(window) => Some(u64::from(window.window_messages())),
        }
    }

    /// Messages that were due by then, of those it is to publish; `None`: as many as possible.
    pub(crate) fn due_by(&self, now_us: u64) -> Option<u64> {
        Some(self.schedule.due_by(now_us)?.min(self.all()))
    }

    /// Until when they were due: until now, or until the last of all was; `None`: none has a due time.
    pub(crate) fn due_until_us(&self, now_us: u64) -> Option<u64> {
        let due = self.due_by(now_us)?;
        if due < self.all() { Some(now_us) } else { self.schedule.due_us(due.checked_sub(1)?) }
    }

    /// Messages that it is to publish in the whole run.
    fn all(&self) -> u64 {
        self.published.saturating_add(self.left)
    }

    /// Whether there is more to publish, and none of it is due yet.
    pub(crate) fn is_early(&self, now_us: u64) -> bool {
        self.left > 0 && self.due_by(now_us) == Some(self.published)
    }

    /// Writes what is due and fits into the send buffer. True: a turn's share was used up or the
    /// buffer is full, and there is more to do.
    pub(crate) fn publish(&mut self, machine: &mut Machine, now_us: u64) -> bool {
        let turn_bytes_max = machine.outgoing().len() + TURN_BYTES;
        while self.has_room() {
            let intended_us = match self.due_us() {
                Some(due_us) if due_us > now_us => return false,
                Some(due_us) => due_us,
                None => now_us,
            };
            if !self.write(machine, SentAt { intended_us, called_us: now_us }) {
                return true;
            }
            if machine.outgoing().len() >= turn_bytes_max {
                return self.has_room();
            }
        }
        false
    }

    /// False: the send buffer is full.
    fn write(&mut self, machine: &mut Machine, at: SentAt) -> bool {
        self.mark.stamp(&mut self.body, at);
        let published = machine.publish(
            self.channel,
            ShortStr::truncated(&self.exchange),
            ShortStr::truncated(&self.routing_key),
            self.mandatory,
            RawProperties::trusted(&self.properties),
            &self.body,
        );
        self.socket_full = published == Err(PublishError::Full);
        if let Err(PublishError::Full | PublishError::NotOpen) = published {
            return false;
        }
        self.sent(at);
        true
    }

    /// The next message was taken.
    fn sent(&mut self, at: SentAt) {
        self.published += 1;
        self.left -= 1;
        if self.answers != Answers::None {
            self.in_flight.sent(self.published, at);
            if let Permits::Tuned(window) = &mut self.permits {
                // It is asked whether somebody waits; a publisher that is behind always has more.
                let in_flight = amount(self.in_flight.open(), self.body.len());
                window.sent(at.called_us, Load { in_flight, waiting: false });
            }
        }
    }

    /// Takes a confirm; neighbours with the same times are recorded together.
    pub(crate) fn settle(&mut self, settled: Settled, now_us: u64, confirm: &mut Timing) {
        // Who is behind and has room waits for its turn, and learns nothing of a larger window.
        let held = self.socket_full || !self.permits();
        let waiting = held && self.left > 0 && self.due_us().is_none_or(|due_us| due_us <= now_us);
        let bytes = self.body.len();
        let mut open = self.in_flight.open();
        let (mut run_at, mut run) = (SentAt { intended_us: 0, called_us: 0 }, 0);
        let permits = &mut self.permits;
        self.in_flight.settle(settled.first, settled.last, |at| {
            open -= 1;
            if at != run_at {
                if run > 0 && settled.acked {
                    confirm.record(run_at, now_us, run);
                }
                (run_at, run) = (at, 0);
            }
            run += 1;
            if let Permits::Tuned(window) = permits {
                let load = Load { in_flight: amount(open, bytes), waiting };
                let rtt_us = now_us.saturating_sub(at.called_us);
                match settled.acked {
                    true => window.confirmed(now_us, Sample { rtt_us, bytes: bytes as u64 }, load),
                    false => window.rejected(now_us, load),
                }
            }
        });
        if settled.acked {
            confirm.record(run_at, now_us, run);
            self.confirmed += settled.count();
        } else {
            self.rejected += settled.count();
        }
        self.ask_kernel(now_us);
    }

    /// Takes the reply to a call.
    pub(crate) fn replied(&mut self, body: &[u8], now_us: u64, confirm: &mut Timing) {
        self.in_flight.settle_oldest();
        self.confirmed += 1;
        if let Some(at) = self.mark.read(body) {
            confirm.record(at, now_us, 1);
        }
    }

    /// `connection.blocked` or `connection.unblocked` came.
    pub(crate) fn set_blocked(&mut self, blocked: bool, now_us: u64) {
        if let Permits::Tuned(window) = &mut self.permits {
            self.blocked = blocked;
            match blocked {
                true => window.blocked(now_us),
                false => window.unblocked(now_us),
            }
        }
    }

    fn permits(&self) -> bool {
        let open = self.in_flight.open();
        match &self.permits {
            Permits::Unbounded => self.answers != Answers::Replies || open == 0,
            Permits::Fixed(messages) => open < *messages,
            Permits::Tuned(window) => {
                let bytes = self.body.len();
                !self.blocked && window.may_send(amount(open, bytes), amount(1, bytes))
            }
        }
    }

    fn ask_kernel(&mut self, now_us: u64) {
        if let (Permits::Tuned(window), Some(kernel)) = (&mut self.permits, &mut self.kernel_rtt)
            && now_us >= self.next_rtt_us
        {
            self.next_rtt_us = now_us + RTT_INTERVAL_US;
            let confirmed =
                self.confirmed - std::mem::replace(&mut self.confirmed_before, self.confirmed);
            let mut tally = self.tally.borrow_mut();
            window.together(now_us, tally.tell(self.number, confirmed, window.service_us()));
            drop(tally);
            window.network(now_us, kernel.read());
        }
    }
}

fn amount(messages: u64, bytes_each: usize) -> Amount {
    Amount::new(u32::try_from(messages).unwrap_or(u32::MAX), messages * bytes_each as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the window of a publisher is that is always behind its schedule, in messages: it has so many in flight as the window
    /// lets in, `most` at most, and each is confirmed after a tenth of a millisecond, for ten rounds.
    fn window_after_ten_rounds(most: u64, socket_full: bool) -> u64 {
        let plan = Plan { window: Window::Auto, rate: 1_000_000.0, ..Plan::default() };
        let mut publisher = Publisher::new(&plan, 0);
        publisher.start(0, 0, 1, None);
        publisher.socket_full = socket_full;
        let mut confirm = Timing::new(true);
        for round in 1..=10 {
            let now_us = round * 100_000;
            let first = publisher.published + 1;
            while publisher.permits() && publisher.unanswered() < most {
                publisher.sent(SentAt { intended_us: now_us, called_us: now_us });
            }
            let settled = Settled { first, last: publisher.published, acked: true };
            publisher.settle(settled, now_us + 100, &mut confirm);
        }
        publisher.window().unwrap()
    }

    #[test]
    fn who_has_published_all_that_was_asked_for_is_not_behind() {
        let plan = Plan { messages: 10, rate: 100.0, ..Plan::default() };
        let mut publisher = Publisher::new(&plan, 0);
        publisher.start(0, 0, 1, None);
        assert_eq!(publisher.due_by(45_000), Some(5));
        for _ in 0..10 {
            publisher.sent(SentAt { intended_us: 0, called_us: 0 });
        }
        assert_eq!(publisher.due_by(60_000_000), Some(10), "the schedule goes on without it");
        assert!(!publisher.is_early(60_000_000), "there is no more");
        let until_us = |now_us| publisher.due_until_us(now_us);
        assert_eq!((until_us(45_000), until_us(60_000_000)), (Some(45_000), Some(90_000)));
    }

    #[test]
    fn who_is_behind_learns_of_larger_windows_only_while_the_window_or_the_socket_is_why() {
        assert!(window_after_ten_rounds(u64::MAX, false) > 1_000);
        assert_eq!(window_after_ten_rounds(7, false), 8);
        assert!(window_after_ten_rounds(7, true) > 1_000, "as a client's, which waits before it");
    }
}
