//! What one publisher owes its callers: an outcome for each message, exactly one.
//!
//! ```text
//!             gate                    machine                confirm, nack
//!   publish ───────▶ admitted ─────────────────────▶ sent ──────────────────▶ settled ──▶ taken
//!      │               │  send buffer full, or no channel      │
//!      ▼               └──────────▶ unsent ◀───────────────────┘ connection lost
//!   waiting (FIFO)                    └─ in order, once there is a channel and room
//! ```
//! Where the publisher has a limit, a message is settled by then, from whichever state it is in ([`expiry`]).
//!
//! `by_sequence` maps what the broker counts (the channel's publishes, from 1) to entries. After a reconnect
//! a broker that can is asked which of them it has taken ([`doubt`]); those are confirmed. The other open
//! entries go out again in their first order, with their first ids; marked, unless the broker said that they
//! never arrived.
//!
//! Memory: an entry for each message in flight (the window bounds them) and each outcome not looked at.

mod channel;
mod doubt;
mod expiry;
mod idling;
mod settlement;
mod suspects;
mod waiting;

use std::collections::{BTreeMap, VecDeque};
use std::task::Waker;

use forebay_flow::explain::Mark;
use forebay_flow::{
    Admission, Amount, BrokerKind, CommitTime, Gate, WAITERS_MAX, WaiterId, Window, WindowState,
};
use forebay_wire::{RawProperties, ShortStr};
use slab::Slab;

pub(crate) use self::idling::Idler;
use self::idling::Idlers;
pub(crate) use self::waiting::NotAdmitted;
use self::waiting::Waiting;
use super::channel_health::ChannelHealth;
use super::culprit::Evidence;
use super::message_id::MessageId;
use super::remember;
use super::target::Target;
use super::wakeups::{Conclusion, Wakeups};
use crate::error::{Lost, Refusal};
use crate::machine::{Machine, PublishError, Returned, Settled};
use crate::marks::Stamps;
use crate::message::Message;
use crate::metrics::PublisherMetrics;
use crate::outcome::{Confirmed, NotPublishedReason, Unconfirmed, Unheard};
use crate::too_long::TooLong;

/// What became of one message.
pub(crate) type Outcome = Result<Confirmed, Unconfirmed>;

/// Makes a window, for the first connection and for each one after it.
pub(crate) type MakeWindow = Box<dyn Fn() -> Box<dyn Window + Send> + Send>;

/// All properties but headers have fewer bytes: nine texts of 255, and our own.
const BOUNDED_PROPERTIES_BYTES: usize = 3_000;
/// The marks of a message that is explained have fewer.
const MARKS_BYTES: usize = 256;

/// No entry: this publish of the channel was settled.
const SETTLED: u32 = u32::MAX;

/// The answer to a caller who wants to publish.
#[derive(Debug)]
pub(crate) enum Published {
    /// It has a permit and is written, or will be.
    Admitted(usize),
    /// It waits its turn.
    Waiting(WaiterId),
    /// It cannot be.
    Refused(NotPublishedReason, Message),
}

/// One message with a permit.
#[derive(Debug)]
struct Entry {
    /// Its place among all messages that were asked for of this publisher, from 1.
    number: u64,
    message: Message,
    /// For a publisher that was asked, of some.
    stamps: Option<Box<Stamps>>,
    sent_at_us: u64,
    /// When its outcome comes, one way or another; never = `u64::MAX`.
    until_us: u64,
    /// Something of it may have left.
    written: bool,
    /// It may be there twice.
    republished: bool,
    sent_again: bool,
    returned: Option<Box<Refusal>>,
    settled: Option<Outcome>,
    abandoned: bool, // its caller no longer asks
    /// Its caller waited when it was settled, and was woken.
    awaited: bool,
    /// A connection may have ended over it.
    suspect: bool,
    /// It was in flight when so many connections were cut.
    cuts: u8,
    evidence: Option<Box<Evidence>>,
    waker: Option<Waker>,
}

/// See the module's documentation.
pub(crate) struct Ledger {
    target: Target,
    id: MessageId,
    make_window: MakeWindow,
    /// What is known of the broker.
    broker: BrokerKind,
    /// What it tells of its commits.
    commit_time: CommitTime,
    window: Box<dyn Window + Send>,
    /// The window admits no more than this, as its publisher is about to leave.
    held: Option<Amount>,
    gate: Gate,
    /// Its messages are to stay in order, so callers wait where they are.
    ordered: bool,
    channel: Option<u16>,
    health: ChannelHealth,
    /// How long a message may be without an outcome, from its admission.
    limit_us: Option<u64>,
    /// Of the channel's publishes one got its outcome by that limit, and there was no answer since.
    expired: bool,
    /// While a culprit is looked for, so many messages may go out.
    trial: Option<u32>,
    /// Since when nothing more is written to the channel: it is replaced when all on it is settled, or soon.
    retiring_since_us: Option<u64>,
    /// The channel before it, whose end the broker may not have heard of yet.
    former: Option<u16>,
    entries: Slab<Entry>,
    /// Of the channel's publishes from `base` on.
    by_sequence: VecDeque<u32>,
    base: u64,
    /// Messages written so far, on all channels; a message that goes out again counts again.
    writes: u64,
    /// Channels opened under its name.
    openings: u64,
    /// What was written to a channel that is lost, before anybody said what became of it.
    doubt: Option<doubt::Doubt>,
    unsent: VecDeque<usize>,
    waiting: BTreeMap<WaiterId, Waiting>,
    /// Somebody had to wait since the last reading of the kernel's.
    waited: bool,
    next_number: u64,
    /// Admitted and not settled.
    open: usize,
    idlers: Idlers,
    over: Option<Lost>,
    blocked: bool,
    handle_gone: bool,
    metrics: PublisherMetrics,
    /// Of its messages so many were confirmed when this was last asked.
    confirmed_before: u64,
    /// Outcomes whose futures were dropped.
    unheard: Unheard,
    /// Of messages that turned out to be too long when they were to be written.
    too_long: Wakeups,
    properties: Vec<u8>,
}

impl Ledger {
    /// A publisher without a channel; no other publisher has its `id_prefix` (at most 40 bytes).
    pub(crate) fn new(target: Target, id_prefix: &str, make_window: MakeWindow) -> Ledger {
        let window = make_window();
        let mut gate = Gate::new(window.window(), WAITERS_MAX);
        gate.close();
        Ledger {
            target,
            id: MessageId::new(id_prefix),
            make_window,
            broker: BrokerKind::Unknown,
            commit_time: CommitTime::default(),
            window,
            held: None,
            gate,
            channel: None,
            health: ChannelHealth::default(),
            limit_us: None,
            expired: false,
            trial: None,
            retiring_since_us: None,
            former: None,
            entries: Slab::new(),
            by_sequence: VecDeque::new(),
            base: 1,
            writes: 0,
            openings: 0,
            doubt: None,
            unsent: VecDeque::new(),
            waiting: BTreeMap::new(),
            ordered: true,
            waited: false,
            next_number: 1,
            open: 0,
            idlers: Idlers::default(),
            over: None,
            blocked: false,
            handle_gone: false,
            metrics: PublisherMetrics::default(),
            confirmed_before: 0,
            unheard: Unheard::default(),
            too_long: Wakeups::default(),
            properties: Vec::new(),
        }
    }

    // ---- callers

    /// Asks for a permit, and sends if there is one.
    pub(crate) fn publish(
        &mut self,
        machine: &mut Machine,
        message: Message,
        stamps: Option<Box<Stamps>>,
        now_us: u64,
    ) -> Published {
        if let Err(too_long) =
            message.check().and_then(|()| self.check_properties(machine, &message))
        {
            return Published::Refused(NotPublishedReason::TooLong(too_long), message);
        }
        if let Some(lost) = self.over.clone() {
            return Published::Refused(lost.into(), message);
        }
        let number = self.next_number;
        match self.gate.ask(now_us, Amount::message(message.body.len() as u64), None) {
            Admission::Admitted => {
                self.next_number += 1;
                Published::Admitted(self.admit(machine, number, message, stamps, 0, now_us))
            }
            Admission::Refused => Published::Refused(NotPublishedReason::TooManyWaiting, message),
            Admission::Waiting(id) => {
                self.next_number += 1;
                let waiting = Waiting {
                    number,
                    message: Some(message),
                    stamps,
                    asked_at_us: now_us,
                    entry: None,
                    elsewhere: false,
                    waker: None,
                };
                self.waiting.insert(id, waiting);
                self.waited = true;
                Published::Waiting(id)
            }
        }
    }

    /// Whether every admitted message has its outcome, and nobody waits to be admitted.
    pub(crate) fn is_idle(&self) -> bool {
        self.open == 0 && self.gate.waiting() == 0
    }

    /// No more than now is let in, or again what the window lets in.
    pub(crate) fn hold_window(&mut self, hold: bool) {
        self.held = hold.then(|| self.window.window());
    }

    /// Whether a message would be admitted at once, as far as messages are counted.
    pub(crate) fn has_room(&self) -> bool {
        self.may_write() && self.gate.waiting() == 0 && self.gate.room_messages() > 0
    }

    /// Whether callers wait where they are, so that their messages stay in order; else they go elsewhere when the connection is
    /// gone.
    pub(crate) fn set_ordered(&mut self, ordered: bool) {
        self.ordered = ordered;
    }

    /// The last handle is gone; what is in flight is still brought to its end.
    pub(crate) fn handle_dropped(&mut self) {
        self.handle_gone = true;
    }

    /// Whether nobody needs it any more.
    pub(crate) fn is_over(&self) -> bool {
        self.handle_gone && self.open == 0 && self.entries.is_empty() && self.waiting.is_empty()
    }

    pub(crate) fn metrics(&self) -> PublisherMetrics {
        let WindowState { base_us, target_us, measured_us, network_us, .. } = self.window.state();
        PublisherMetrics {
            window_messages: self.window.window_messages(),
            window_bytes: self.window.window_bytes(),
            in_flight_messages: self.gate.in_flight().messages,
            in_flight_bytes: self.gate.in_flight().bytes,
            waiting: self.gate.waiting() as u32,
            network_us,
            base_us,
            target_us,
            measured_us,
            ..self.metrics
        }
    }

    // ---- answers

    /// A mandatory message came back; its ack follows.
    pub(crate) fn returned(&mut self, returned: &Returned<'_>) {
        let id = returned.properties.parse().message_id.unwrap_or_default();
        let number = self.id.number_of(&id);
        // The broker works from the front, so the search is short.
        let find = |exactly: bool| {
            self.by_sequence.iter().copied().filter(|&entry| entry != SETTLED).find(|&entry| {
                let entry = &self.entries[entry as usize];
                match (entry.message.own_message_id(), number) {
                    (None, Some(number)) => entry.number == number,
                    (Some(_), _) => {
                        entry.returned.is_none() && entry.message.came_back(returned, exactly)
                    }
                    (None, None) => false,
                }
            })
        };
        // A broker may write the same properties in other bytes, or without BCC.
        let found = find(true).or_else(|| find(false));
        if let Some(entry) = found {
            let why = Refusal { code: returned.reply_code, text: returned.reply_text.to_string() };
            self.entries[entry as usize].returned = Some(Box::new(why));
        }
    }

    /// The broker settled some of this channel's publishes. Callers are admitted by [`Ledger::pump`].
    pub(crate) fn settled(&mut self, settled: Settled, now_us: u64, wakeups: &mut Wakeups) {
        if std::mem::take(&mut self.expired) {
            self.health.alive(now_us);
        }
        for sequence in settled.first..=settled.last {
            let Some(place) = sequence.checked_sub(self.base) else { continue };
            let Some(place) = self.by_sequence.get_mut(place as usize) else { continue };
            let entry = std::mem::replace(place, SETTLED);
            if entry == SETTLED {
                continue;
            }
            self.health.answered(settled.acked, now_us);
            let entry = entry as usize;
            let bytes = self.entries[entry].message.body.len() as u64;
            self.gate.settle(Amount::message(bytes));
            let load = self.gate.load();
            let outcome = self.outcome(entry, settled.acked, now_us, bytes, load);
            self.finish(entry, outcome, wakeups);
        }
        while self.by_sequence.front() == Some(&SETTLED) {
            self.by_sequence.pop_front();
            self.base += 1;
        }
        if self.health.rejects_everything(now_us) {
            self.retiring_since_us.get_or_insert(now_us);
        }
        self.follow_window(now_us);
    }

    /// What may be in flight.
    fn allowed(&self) -> Amount {
        let window = self.window.window();
        self.held.map_or(window, |held| Amount {
            messages: held.messages.min(window.messages),
            bytes: held.bytes.min(window.bytes),
        })
    }

    /// The gate lets pass what the window does.
    fn follow_window(&mut self, now_us: u64) {
        self.gate.set_window(self.allowed());
        self.gate.set_pace(now_us, self.window.pace());
    }

    /// When the window's pace lets the next caller pass, if nothing else holds it.
    pub(crate) fn next_paced_us(&self) -> Option<u64> {
        // What has its permit goes first, and somebody is told when there is room for it.
        self.gate.next_paced_us().filter(|_| self.unsent.is_empty())
    }

    /// Sends what has a permit and could not go out before, then admits who waits. Stops when the send
    /// buffer is full; true if something is left for when it is not.
    pub(crate) fn pump(
        &mut self,
        machine: &mut Machine,
        now_us: u64,
        wakeups: &mut Wakeups,
    ) -> bool {
        if self.write_unsent(machine, now_us) {
            self.admit_waiting(machine, now_us, wakeups);
        }
        wakeups.append(&mut self.too_long);
        self.wake_idlers(wakeups);
        !self.unsent.is_empty() && self.may_write()
    }

    /// False: there is no channel, or no room, and something is left.
    fn write_unsent(&mut self, machine: &mut Machine, now_us: u64) -> bool {
        while let Some(&entry) = self.unsent.front() {
            if !self.write(machine, entry, now_us) {
                return false;
            }
            self.unsent.pop_front();
        }
        true
    }

    fn admit_waiting(&mut self, machine: &mut Machine, now_us: u64, wakeups: &mut Wakeups) {
        while let Some((id, _)) = self.gate.next_admitted(now_us) {
            let waiting = self.waiting.get_mut(&id).expect("the gate knows nobody else");
            let message = waiting.message.take().expect("it is admitted once");
            let waited_us = now_us.saturating_sub(waiting.asked_at_us);
            let stamps = waiting.stamps.take();
            wakeups.extend(waiting.waker.take());
            self.metrics.admission_wait.add(waited_us);
            let number = waiting.number;
            let entry = self.admit(machine, number, message, stamps, waited_us, now_us);
            self.waiting.get_mut(&id).expect("it was there above").entry = Some(entry);
        }
    }

    /// Takes a message that has its permit on board, and sends it if nothing stands in its way.
    fn admit(
        &mut self,
        machine: &mut Machine,
        number: u64,
        message: Message,
        mut stamps: Option<Box<Stamps>>,
        waited_us: u64,
        now_us: u64,
    ) -> usize {
        if let Some(stamps) = &mut stamps {
            stamps.passed(Mark::Admitted, now_us);
        }
        if let Some(timed) = message.timed() {
            let in_flight = self.gate.in_flight().messages;
            timed.admitted(waited_us, self.window.window_messages(), in_flight);
        }
        self.open += 1;
        self.metrics.published += 1;
        let entry = self.entries.insert(Entry {
            number,
            message,
            stamps,
            sent_at_us: now_us,
            until_us: self.limit_us.map_or(u64::MAX, |limit_us| now_us.saturating_add(limit_us)),
            written: false,
            republished: false,
            sent_again: false,
            returned: None,
            settled: None,
            abandoned: false,
            awaited: false,
            suspect: false,
            cuts: 0,
            evidence: None,
            waker: None,
        });
        if !self.unsent.is_empty() || !self.write(machine, entry, now_us) {
            self.unsent.push_back(entry);
        }
        entry
    }

    /// False: there is no channel, or no room.
    fn write(&mut self, machine: &mut Machine, key: usize, now_us: u64) -> bool {
        let Some(channel) = self.channel.filter(|_| self.may_write()) else { return false };
        let entry = &mut self.entries[key];
        if let Some(stamps) = &mut entry.stamps {
            stamps.passed(Mark::Written, now_us);
        }
        let (message, stamps) = (&entry.message, entry.stamps.as_deref());
        self.properties.clear();
        let id = self.id.of(entry.number);
        message.encode_properties(&mut self.properties, id, entry.republished, stamps);
        let key_of_message = message.own_routing_key().unwrap_or(&self.target.routing_key);
        let written = machine.publish(
            channel,
            ShortStr::truncated(&self.target.exchange),
            ShortStr::truncated(key_of_message),
            self.target.mandatory,
            RawProperties::trusted(&self.properties),
            &message.body,
        );
        match written {
            Ok(sequence) => {
                debug_assert_eq!(sequence, self.base + self.by_sequence.len() as u64);
                // A queue before the socket is as much in flight as one behind it. Sent again, it starts again.
                if entry.sent_again {
                    entry.sent_at_us = now_us;
                }
                entry.written = true;
                self.trial = self.trial.map(|left| left - 1);
                if !self.awaits_answers() {
                    self.health.alive(now_us);
                }
                self.by_sequence.push_back(key as u32);
                self.writes += 1;
                if self.window.sent(now_us, self.gate.load()) {
                    self.gate.set_window(self.allowed());
                }
                true
            }
            Err(PublishError::Full | PublishError::NotOpen) => false,
            // It was refused before it was admitted, unless another broker took over whose frames are smaller.
            Err(PublishError::PropertiesTooLong { .. }) => {
                self.settle_too_long(key);
                true
            }
        }
    }

    /// Whether its properties fit into a frame, with what is added to them on the way.
    fn check_properties(&mut self, machine: &Machine, message: &Message) -> Result<(), TooLong> {
        let bytes_max = machine.properties_bytes_max();
        if message.unbounded_bytes() + BOUNDED_PROPERTIES_BYTES <= bytes_max {
            return Ok(());
        }
        self.properties.clear();
        let id = self.id.of(u64::MAX);
        message.encode_properties(&mut self.properties, id, true, None);
        let bytes = self.properties.len() + MARKS_BYTES;
        if bytes > bytes_max { Err(TooLong::properties(bytes, bytes_max)) } else { Ok(()) }
    }
}
