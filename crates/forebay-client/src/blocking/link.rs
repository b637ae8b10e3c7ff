//! The one owner of a connection's state: machine, transport, and what arrived for each channel.
//!
//! Handles lock it for one operation at a time. While an operation waits, whatever arrives is sorted
//! into the inboxes of the channels it is for; nothing is lost and nothing is handled out of order.

mod inbox;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forebay_wire::Method;

use super::transport::Transport;
use super::{Message, WRITE_TIMEOUT, lock};
use crate::ReceiveBuffer;
use crate::error::{ChannelFault, Lost, Refusal};
use crate::machine::{ChannelError, CloseReason, Event, Machine, State};
use crate::tls::io_reason;

pub(super) use inbox::Inbox;

/// Bound of the deliveries that wait in all inboxes of a connection. Prefetch keeps them far below;
/// only consumers without acknowledgement can reach it.
pub const DELIVERIES_BYTES_MAX: usize = 256 << 20;
/// Size of the receive buffer.
const RECEIVE_BYTES: usize = 256 * 1024;
/// Bytes after which a publish sends what waits.
pub(super) const SEND_BATCH_BYTES: usize = 64 * 1024;

/// An answer, reduced to what somebody may want to know of it.
#[derive(Debug)]
pub(super) enum Reply {
    Done,
    Declared { name: String, message_count: u32, consumer_count: u32 },
    Count(u32),
    Consuming { tag: String, number: u64 },
    Got { message: Message, message_count: u32 },
    Empty,
}

/// A channel: its number, and which of all that have had it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) number: u16,
    life: u64,
}

/// An open channel: it is closed with the last of its handles.
pub(super) struct Life {
    link: Arc<Mutex<Link>>,
    pub(super) place: Place,
}

impl Life {
    pub(super) fn begin(link: Arc<Mutex<Link>>, place: Place) -> Arc<Life> {
        Arc::new(Life { link, place })
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        lock(&self.link).leave(self.place);
    }
}

pub(super) struct Link {
    pub(super) machine: Machine,
    transport: Box<dyn Transport>,
    input: ReceiveBuffer,
    started: Instant,
    inboxes: BTreeMap<u16, Inbox>,
    /// By their lives, those of channels that the broker has closed, that somebody holds, and whose numbers others have.
    past: BTreeMap<u64, Inbox>,
    /// Channels opened so far.
    lives: u64,
    /// Bytes in all `deliveries`; at most `DELIVERIES_BYTES_MAX`.
    pub(super) delivery_bytes: usize,
    pub(super) blocked: Option<String>,
    opened: bool,
    lost: Option<Lost>,
}

impl Link {
    pub(super) fn new(machine: Machine, transport: Box<dyn Transport>) -> Link {
        let input = ReceiveBuffer::new(RECEIVE_BYTES, machine.limits().frame_bytes_max);
        Link {
            machine,
            transport,
            input,
            started: Instant::now(),
            inboxes: BTreeMap::new(),
            past: BTreeMap::new(),
            lives: 0,
            delivery_bytes: 0,
            blocked: None,
            opened: false,
            lost: None,
        }
    }

    /// Drives the handshake to its end, within `patience`.
    pub(super) fn open(&mut self, patience: Duration) -> Result<(), Lost> {
        let deadline = Instant::now() + patience;
        while !self.opened {
            if deadline <= Instant::now() {
                return Err(self.lose(Lost::Io(format!(
                    "the server did not complete the login within {} s",
                    patience.as_secs()
                ))));
            }
            self.pump(Some(deadline))?;
        }
        Ok(())
    }

    /// Says the connection is closed and waits for the answer, within `patience`. It is over in any case.
    pub(super) fn close(&mut self, patience: Duration) -> Result<(), Lost> {
        self.alive()?;
        self.machine.close();
        let deadline = Instant::now() + patience;
        while self.machine.state() == State::Closing {
            if deadline <= Instant::now() {
                return Err(self.lose(Lost::end_unanswered()));
            }
            match self.pump(Some(deadline)) {
                Ok(()) | Err(Lost::ClosedByUs) => {}
                Err(lost) => return Err(lost),
            }
        }
        self.lost = Some(Lost::ClosedByUs);
        Ok(())
    }

    pub(super) fn alive(&self) -> Result<(), Lost> {
        self.lost.clone().map_or(Ok(()), Err)
    }

    /// Asks for a channel. If all are in use it waits for one that is being closed.
    pub(super) fn open_channel(&mut self) -> Result<Place, ChannelFault> {
        self.alive()?;
        while self.machine.check_free_channel().is_err()
            && self.machine.check_channel_soon_free().is_ok()
        {
            self.pump(None)?;
        }
        let number = self.machine.open_channel()?;
        self.lives += 1;
        let place = Place { number, life: self.lives };
        if let Some(past) = self.inboxes.remove(&number) {
            self.past.insert(past.life, past);
        }
        self.inboxes.insert(number, Inbox::new(place.life));
        Ok(place)
    }

    /// Nobody uses the channel any more: its end leaves with the next wait or flush.
    fn leave(&mut self, place: Place) {
        if self.is_current(place) {
            // Fails if the broker has closed it.
            let _ = self.machine.close_channel(place.number);
            self.forget(place.number);
        } else if let Some(past) = self.past.remove(&place.life) {
            self.delivery_bytes -= past.delivery_bytes();
        }
    }

    /// The channel is over, and so is what waits in its inbox.
    pub(super) fn forget(&mut self, number: u16) {
        if let Some(inbox) = self.inboxes.remove(&number) {
            self.delivery_bytes -= inbox.delivery_bytes();
        }
    }

    /// Whether no other channel has its number.
    pub(super) fn is_current(&self, place: Place) -> bool {
        self.inboxes.get(&place.number).is_some_and(|inbox| inbox.life == place.life)
    }

    /// The inbox of a channel, open or not.
    pub(super) fn any_inbox(&mut self, place: Place) -> Option<&mut Inbox> {
        match self.is_current(place) {
            true => self.inboxes.get_mut(&place.number),
            false => self.past.get_mut(&place.life),
        }
    }

    /// The inbox of an open channel, or why there is none.
    pub(super) fn inbox(&mut self, place: Place) -> Result<&mut Inbox, ChannelFault> {
        self.alive()?;
        match self.any_inbox(place) {
            Some(Inbox { closed: Some(refusal), .. }) => {
                Err(ChannelFault::Refused(refusal.clone()))
            }
            Some(inbox) => Ok(inbox),
            None => Err(ChannelError::NotOpen.into()),
        }
    }

    /// Waits for the answer to the request that a channel has just made.
    pub(super) fn reply(&mut self, place: Place) -> Result<Reply, ChannelFault> {
        loop {
            if let Some(reply) = self.inbox(place)?.replies.pop_front() {
                return Ok(reply);
            }
            self.pump(None)?;
        }
    }

    /// Takes the next message of a consumer out of its inbox.
    pub(super) fn take_delivery(&mut self, place: Place, consumer: u64) -> Option<Message> {
        let message = self.any_inbox(place)?.consumer(consumer)?.messages.pop_front()?;
        self.delivery_bytes -= message.size_bytes();
        Some(message)
    }

    /// Nobody asks for a consumer's messages any more.
    pub(super) fn forget_consumer(&mut self, place: Place, consumer: u64) {
        if let Some(inbox) = self.any_inbox(place) {
            let left_bytes = inbox.forget_consumer(consumer);
            self.delivery_bytes -= left_bytes;
        }
    }

    /// Sends what waits, then reads once, until `deadline` at most (`None`: as long as it takes), and sorts
    /// what arrived. Comes back without news when the time is over or a heartbeat is due.
    pub(super) fn pump(&mut self, deadline: Option<Instant>) -> Result<(), Lost> {
        self.alive()?;
        self.tick()?;
        self.flush(deadline)?;
        self.read(deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())))
    }

    /// Sends all that waits. What the socket does not take until `deadline` (`None`: for as long as it takes) is still there
    /// afterwards; it has a moment in any case.
    pub(super) fn flush(&mut self, deadline: Option<Instant>) -> Result<(), Lost> {
        self.alive()?;
        let until = deadline.map(|deadline| deadline.max(Instant::now() + WRITE_TIMEOUT));
        while !self.machine.outgoing().is_empty() {
            if until.is_some_and(|until| until <= Instant::now()) {
                return Ok(());
            }
            match self.transport.write(self.machine.outgoing()) {
                Ok(0) => return Err(self.lose(Lost::Io("the peer takes no more bytes".into()))),
                Ok(count) => self.machine.sent(count),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The peer may be waiting for us to read before it reads again.
                Err(error) if is_timeout(error.kind()) => {
                    self.tick()?;
                    self.read(Some(Duration::from_millis(1)))?;
                }
                // The broker may have said why before it hung up.
                Err(error) => {
                    let _ = self.read(Some(Duration::from_millis(200)));
                    self.alive()?;
                    return Err(self.lose(Lost::Io(error.to_string())));
                }
            }
        }
        Ok(())
    }

    fn tick(&mut self) -> Result<(), Lost> {
        let now_us = self.started.elapsed().as_micros() as u64;
        self.machine.tick(now_us).map_err(|failed| self.lose(Lost::Failed(failed)))
    }

    fn read(&mut self, wait: Option<Duration>) -> Result<(), Lost> {
        let beat = self.machine.tick_interval_us().map(Duration::from_micros);
        let timeout = match (wait, beat) {
            (Some(wait), Some(beat)) => Some(wait.min(beat)),
            (wait, beat) => wait.or(beat),
        };
        let outcome = self
            .transport
            .set_read_timeout(timeout)
            .and_then(|_| self.transport.read(self.input.spare()));
        match outcome {
            Ok(0) => {
                let closing = self.machine.state() == State::Closing;
                Err(match self.machine.hung_up() {
                    Ok(()) if closing => self.lose(Lost::end_cut_off("the peer hung up")),
                    Ok(()) => self.lose(Lost::ClosedByUs),
                    Err(failed) => self.lose(Lost::Failed(failed)),
                })
            }
            Ok(count) => {
                self.input.filled(count);
                self.sort()
            }
            Err(error) if is_timeout(error.kind()) || error.kind() == ErrorKind::Interrupted => {
                Ok(())
            }
            // A reset during the login is how some brokers say no.
            Err(error) if self.opened => Err(self.lose(Lost::Io(io_reason(&error)))),
            Err(error) => match self.machine.hung_up() {
                Err(failed) if error.kind() == ErrorKind::ConnectionReset => {
                    Err(self.lose(Lost::Failed(failed)))
                }
                _ => Err(self.lose(Lost::Io(io_reason(&error)))),
            },
        }
    }

    /// Sorts all whole frames of the receive buffer into the inboxes.
    fn sort(&mut self) -> Result<(), Lost> {
        let mut pending = self.input.pending();
        let before = pending.len();
        let mut lost = None;
        while lost.is_none() {
            match self.machine.poll_event(&mut pending) {
                Ok(Some(event)) => {
                    lost = post(
                        event,
                        &mut self.inboxes,
                        &mut self.delivery_bytes,
                        &mut self.blocked,
                        &mut self.opened,
                    );
                }
                Ok(None) => break,
                Err(failed) => lost = Some(Lost::Failed(failed)),
            }
        }
        let used = before - pending.len();
        self.input.consume(used);
        match lost {
            Some(lost) => {
                // Tell the peer that we agree to its close, or why we leave; it may be gone already.
                let _ = self.transport.write(self.machine.outgoing());
                Err(self.lose(lost))
            }
            None => Ok(()),
        }
    }

    fn lose(&mut self, lost: Lost) -> Lost {
        self.lost.get_or_insert(lost).clone()
    }
}

/// Puts one event into the inbox it belongs to. `Some`: the connection is over.
fn post(
    event: Event<'_>,
    inboxes: &mut BTreeMap<u16, Inbox>,
    delivery_bytes: &mut usize,
    blocked: &mut Option<String>,
    opened: &mut bool,
) -> Option<Lost> {
    match event {
        Event::Opened => *opened = true,
        Event::Delivery(delivery) => {
            let inbox = inboxes.entry(delivery.channel).or_default();
            if let Some(consumer) = inbox.consumer_of(delivery.consumer_tag.as_bytes()) {
                let message = Message::from_delivery(&delivery);
                *delivery_bytes += message.size_bytes();
                consumer.messages.push_back(message);
            }
            if *delivery_bytes > DELIVERIES_BYTES_MAX {
                return Some(Lost::TooManyDeliveries);
            }
        }
        Event::Got { delivery, message_count } => {
            let message = Message::from_delivery(&delivery);
            let inbox = inboxes.entry(delivery.channel).or_default();
            inbox.replies.push_back(Reply::Got { message, message_count });
        }
        Event::Returned(returned) => {
            inboxes.entry(returned.channel).or_default().returns.push(&returned);
        }
        Event::Settled { channel, settled } => {
            let queue = &mut inboxes.entry(channel).or_default().settled;
            match queue.back_mut() {
                Some(back) if back.last + 1 == settled.first && back.acked == settled.acked => {
                    back.last = settled.last;
                }
                _ => queue.push_back(settled),
            }
        }
        Event::Reply { channel, method } => {
            let inbox = inboxes.entry(channel).or_default();
            let reply = reply_of(method, inbox);
            inbox.replies.push_back(reply);
        }
        Event::ConsumerCancelled { channel, consumer_tag } => {
            let inbox = inboxes.entry(channel).or_default();
            if let Some(consumer) = inbox.consumer_of(consumer_tag.as_bytes()) {
                consumer.cancelled = true;
            }
        }
        Event::ChannelClosed { channel, reason } => {
            inboxes.entry(channel).or_default().closed = Some(refusal(reason));
        }
        // Only old brokers send it; they also stop reading, which holds us up all the same.
        Event::Flow { .. } => {}
        Event::Blocked { reason } => *blocked = Some(reason.to_string()),
        Event::Unblocked => *blocked = None,
        Event::CommitTime(_) => {} // there is no window to tune
        Event::Closed { reason } => {
            return Some(reason.map_or(Lost::ClosedByUs, |reason| Lost::Closed(refusal(reason))));
        }
    }
    None
}

fn refusal(reason: CloseReason<'_>) -> Refusal {
    Refusal { code: reason.code, text: reason.text.to_string() }
}

fn reply_of(method: Method<'_>, inbox: &mut Inbox) -> Reply {
    match method {
        Method::QueueDeclareOk(ok) => Reply::Declared {
            name: ok.queue.to_string(),
            message_count: ok.message_count,
            consumer_count: ok.consumer_count,
        },
        Method::QueueDeleteOk(ok) => Reply::Count(ok.message_count),
        Method::QueuePurgeOk(ok) => Reply::Count(ok.message_count),
        Method::BasicConsumeOk(ok) => {
            let number = inbox.begin_consumer(ok.consumer_tag.as_bytes());
            Reply::Consuming { tag: ok.consumer_tag.to_string(), number }
        }
        Method::BasicGetEmpty(_) => Reply::Empty,
        _ => Reply::Done,
    }
}

fn is_timeout(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests;
