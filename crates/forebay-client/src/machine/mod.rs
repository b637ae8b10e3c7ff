//! One AMQP 0-9-1 connection as seen by a client, without sockets, clock or threads.
//!
//! ```text
//!              start /            tune /                  open-ok /
//!              start-ok           tune-ok, open           Opened
//!   Starting ───────────▶ Tuning ─────────────▶ Opening ───────────▶ Open
//!      │                    │                      │                  │ close()
//!      └──────── close from the broker, or failure ┴──────┐           ▼
//!                                                       Over ◀──── Closing
//! ```
//!
//! A shell drives it in three moves, in any order:
//!
//! - **in**: put received bytes into a [`ReceiveBuffer`](crate::ReceiveBuffer) and call
//!   [`Machine::poll_event`] until it returns `None`; it takes whole frames off the front of its input
//!   and leaves the rest, so no byte is copied on the way of an ordinary message;
//! - **out**: write [`Machine::outgoing`] to the peer, then tell [`Machine::sent`] how much went;
//! - **time**: call [`Machine::tick`] at least every [`Machine::tick_interval_us`].
//!
//! Commands ([`Machine::publish`], [`Machine::ack`], [`Machine::send`], …) append to the send buffer.
//! The hot ones allocate nothing.

mod channel;
mod commands;
mod confirms;
mod content;
mod event;
mod failed;
mod handshake;
mod heartbeat;
mod options;
mod outgoing;
mod server;

use std::collections::VecDeque;

use forebay_wire::ReplyCode;
use forebay_wire::ShortStr;
use forebay_wire::{ContentHeader, RawProperties};
use forebay_wire::{Frame, FrameKind, read_frame};
use forebay_wire::{Method, MethodError, basic, channel as amqp_channel, connection};

use channel::{Channel, ChannelState};
use heartbeat::{Due, Heartbeat};
use outgoing::Outgoing;

pub use commands::{ChannelError, PublishError};
pub use confirms::Settled;
pub use event::{CloseReason, Delivery, Event, Returned};
pub use failed::Failed;
pub(crate) use handshake::PAUSE;
pub use options::{
    CHANNEL_MAX, FRAME_BYTES_MAX, HEARTBEAT_S, Login, MESSAGE_BYTES_MAX, OUTGOING_BYTES_MAX,
    Options,
};
pub use server::Server;

/// Where the connection is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Our protocol header is out; connection.start is awaited.
    Starting,
    /// start-ok is out; tune (or a close) is awaited.
    Tuning,
    /// tune-ok and open are out; open-ok is awaited.
    Opening,
    /// Channels can be used.
    Open,
    /// Our close is out; only close-ok matters now.
    Closing,
    /// Nothing more will happen.
    Over,
}

/// What both sides agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Highest channel number.
    pub channel_max: u16,
    /// Largest frame in bytes, head and end octet included.
    pub frame_bytes_max: u32,
    /// Heartbeat interval in seconds; 0 = none.
    pub heartbeat_s: u16,
}

/// The connection machine. See the module's documentation for the order of calls.
#[derive(Debug)]
pub struct Machine {
    options: Options,
    state: State,
    limits: Limits,
    server: Server,
    outgoing: Outgoing,
    /// Index = channel number − 1; grows to the highest number used, at most `channel_max`.
    channels: Vec<Option<Box<Channel>>>,
    /// Ranges of an answer that settled several; bounded by the islands of one channel.
    settled: VecDeque<(u16, Settled)>,
    heartbeat: Heartbeat,
    failed: Option<Failed>,
}

/// One frame's meaning, borrowed from the input only.
enum Step<'i> {
    /// The input holds no whole frame.
    Starved,
    /// Nothing to tell; go on.
    Silent,
    /// A method to be told as it is.
    Tell(Event<'i>),
    /// A message was assembled in this channel's buffers.
    Assembled(u16),
}

impl Machine {
    /// A connection whose protocol header already waits to be sent.
    pub fn new(options: Options) -> Machine {
        let limits = Limits {
            channel_max: options.channel_max.max(1),
            frame_bytes_max: options.bounded_frame_bytes(),
            heartbeat_s: options.heartbeat_s,
        };
        let mut outgoing = Outgoing::default();
        outgoing.tail().extend_from_slice(&forebay_wire::PROTOCOL_HEADER);
        Machine {
            options,
            state: State::Starting,
            limits,
            server: Server::default(),
            outgoing,
            channels: Vec::new(),
            settled: VecDeque::new(),
            heartbeat: Heartbeat::default(),
            failed: None,
        }
    }

    /// Where the connection is in its life.
    pub fn state(&self) -> State {
        self.state
    }

    /// What was agreed on; before `Opened` what we propose.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// What the broker said about itself; empty before its connection.start.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Bound of the send buffer in bytes, see [`Options::outgoing_bytes_max`].
    pub fn outgoing_bytes_max(&self) -> usize {
        self.options.outgoing_bytes_max
    }

    /// Bytes for the peer, oldest first.
    pub fn outgoing(&self) -> &[u8] {
        self.outgoing.waiting()
    }

    /// The first `count` bytes of [`Machine::outgoing`] were written to the peer.
    pub fn sent(&mut self, count: usize) {
        if count > 0 {
            self.heartbeat.spoke();
            self.outgoing.sent(count);
        }
    }

    /// Takes all of [`Machine::outgoing`] at once, for shells that write without holding the machine;
    /// `into` must be empty, and its memory becomes the new send buffer. The bytes count as sent.
    pub fn take_outgoing(&mut self, into: &mut Vec<u8>) {
        if self.outgoing.len() > 0 {
            self.heartbeat.spoke();
            self.outgoing.swap(into);
        }
    }

    /// Nothing is read for now, by our own will: silence means nothing.
    pub(crate) fn not_reading(&mut self) {
        self.heartbeat.heard();
    }

    /// How often to [`tick`](Machine::tick); `None` before the handshake and without heartbeats.
    pub fn tick_interval_us(&self) -> Option<u64> {
        self.heartbeat.interval_us()
    }

    /// Tells the time: writes a heartbeat when one is due, fails when the peer fell silent.
    /// `now_us` is monotonic, in microseconds, from any start.
    pub fn tick(&mut self, now_us: u64) -> Result<(), Failed> {
        if !matches!(self.state, State::Opening | State::Open | State::Closing) {
            return Ok(());
        }
        match self.heartbeat.tick(now_us) {
            Due::Nothing => Ok(()),
            Due::Beat => {
                // Waiting bytes will tell the peer as much, as soon as it reads again.
                if self.outgoing.len() == 0 {
                    forebay_wire::write_heartbeat(self.outgoing.tail());
                }
                Ok(())
            }
            Due::PeerSilent => {
                Err(self.give_up(Failed::Silent { heartbeat_s: self.limits.heartbeat_s }))
            }
        }
    }

    /// The peer will send no more bytes. `Ok` if that was to be expected.
    pub fn hung_up(&mut self) -> Result<(), Failed> {
        match self.state {
            State::Over => self.failed.clone().map_or(Ok(()), Err),
            State::Closing => {
                self.state = State::Over;
                Ok(())
            }
            State::Starting | State::Tuning | State::Opening => {
                Err(self.give_up(Failed::HungUpAtLogin))
            }
            State::Open => Err(self.give_up(Failed::HungUp)),
        }
    }

    /// Takes frames off the front of `input` until one means something to the caller.
    /// `Ok(None)`: more bytes are needed; what is left of `input` must be offered again with them.
    pub fn poll_event<'a, 'i: 'a>(
        &'a mut self,
        input: &mut &'i [u8],
    ) -> Result<Option<Event<'a>>, Failed> {
        if let Some((channel, settled)) = self.settled.pop_front() {
            return Ok(Some(Event::Settled { channel, settled }));
        }
        loop {
            if self.state == State::Over {
                *input = &input[input.len()..];
                return self.failed.clone().map_or(Ok(None), Err);
            }
            match self.step(input) {
                Ok(Step::Silent) => {}
                Ok(Step::Starved) => return Ok(None),
                Ok(Step::Tell(event)) => return Ok(Some(event)),
                Ok(Step::Assembled(number)) => {
                    return Ok(Some(
                        self.channels[usize::from(number) - 1]
                            .as_deref()
                            .and_then(|channel| channel.assembled(number))
                            .expect(
                                "the channel has just assembled a message from validated parts",
                            ),
                    ));
                }
                Err(failed) => return Err(self.give_up(failed)),
            }
        }
    }

    /// Reads one frame, or one whole message.
    fn step<'i>(&mut self, input: &mut &'i [u8]) -> Result<Step<'i>, Failed> {
        let frame = match read_frame(input, self.limits.frame_bytes_max) {
            Ok(Some(frame)) => frame,
            Ok(None) => return Ok(Step::Starved),
            Err(error) => return Err(self.unreadable(input, error)),
        };
        *input = &input[frame.size_bytes()..];
        self.heartbeat.heard();
        match frame.kind {
            FrameKind::Heartbeat => Ok(Step::Silent),
            FrameKind::Method => self.method(frame, input),
            FrameKind::Header => self.header(frame),
            FrameKind::Body => self.body(frame),
        }
    }

    fn method<'i>(&mut self, frame: Frame<'i>, rest: &mut &'i [u8]) -> Result<Step<'i>, Failed> {
        let method = Method::parse(frame.payload).map_err(Failed::Method)?;
        if frame.channel == 0 {
            return self.connection_method(method);
        }
        let number = frame.channel;
        let Some(channel) = slot(&mut self.channels, number) else {
            return Err(misbehaved("a method on a channel that is not open", number));
        };
        if channel.state == ChannelState::Closing {
            return Ok(self.method_while_closing(number, method));
        }
        if !channel.content.is_idle() {
            return Err(misbehaved("a method in the middle of a message", number));
        }
        if method.has_content() {
            if let Some((header, body, used)) =
                whole_content(rest, number, self.limits.frame_bytes_max)
                && header.body_size_bytes <= self.options.message_bytes_max
            {
                *rest = &rest[used..];
                return match content_event(number, method, header.properties, body) {
                    Some(event) => Ok(Step::Tell(event)),
                    None => Err(misbehaved("a message that is no delivery and no return", number)),
                };
            }
            if !matches!(
                method,
                Method::BasicDeliver(_) | Method::BasicReturn(_) | Method::BasicGetOk(_)
            ) {
                return Err(misbehaved("a message that is no delivery and no return", number));
            }
            channel.content.begin(frame.payload);
            return Ok(Step::Silent);
        }
        self.channel_method(number, method)
    }

    fn channel_method<'i>(&mut self, number: u16, method: Method<'i>) -> Result<Step<'i>, Failed> {
        match method {
            Method::BasicAck(basic::Ack { delivery_tag, multiple }) => {
                self.settle(number, delivery_tag, multiple, true)
            }
            Method::BasicNack(basic::Nack { delivery_tag, multiple, .. }) => {
                self.settle(number, delivery_tag, multiple, false)
            }
            Method::BasicCancel(cancel) => Ok(Step::Tell(Event::ConsumerCancelled {
                channel: number,
                consumer_tag: cancel.consumer_tag,
            })),
            Method::ChannelFlow(flow) => {
                let ok = amqp_channel::FlowOk { active: flow.active };
                self.write(number, &ok);
                Ok(Step::Tell(Event::Flow { channel: number, active: flow.active }))
            }
            Method::ChannelClose(close) => {
                self.write(number, &amqp_channel::CloseOk::default());
                self.channels[usize::from(number) - 1] = None;
                self.settled.retain(|&(channel, _)| channel != number);
                Ok(Step::Tell(Event::ChannelClosed {
                    channel: number,
                    reason: CloseReason {
                        code: close.reply_code,
                        text: close.reply_text,
                        class_id: close.class_id,
                        method_id: close.method_id,
                    },
                }))
            }
            Method::ChannelOpenOk(_) => {
                if let Some(channel) = slot(&mut self.channels, number) {
                    channel.state = ChannelState::Open;
                }
                Ok(Step::Tell(Event::Reply { channel: number, method }))
            }
            _ => Ok(Step::Tell(Event::Reply { channel: number, method })),
        }
    }

    /// After our channel.close everything is dropped but close-ok, and a close that crossed ours.
    fn method_while_closing<'i>(&mut self, number: u16, method: Method<'i>) -> Step<'i> {
        match method {
            Method::ChannelCloseOk(_) => {
                self.channels[usize::from(number) - 1] = None;
                Step::Tell(Event::Reply { channel: number, method })
            }
            Method::ChannelClose(_) => {
                self.write(number, &amqp_channel::CloseOk::default());
                Step::Silent
            }
            _ => Step::Silent,
        }
    }

    fn settle<'i>(
        &mut self,
        number: u16,
        tag: u64,
        multiple: bool,
        acked: bool,
    ) -> Result<Step<'i>, Failed> {
        let confirms = slot(&mut self.channels, number).and_then(|c| c.confirms.as_mut());
        let Some(confirms) = confirms else {
            return Err(misbehaved("a confirm although none was asked for", number));
        };
        let mut first_range = None;
        let queue = &mut self.settled;
        let known = confirms.settle(tag, multiple, |first, last| {
            let settled = Settled { first, last, acked };
            if first_range.is_none() {
                first_range = Some(settled);
            } else {
                queue.push_back((number, settled));
            }
        });
        match first_range {
            _ if !known => Err(misbehaved("a confirm of a message never published", number)),
            Some(settled) => Ok(Step::Tell(Event::Settled { channel: number, settled })),
            None => Ok(Step::Silent),
        }
    }

    fn header<'i>(&mut self, frame: Frame<'i>) -> Result<Step<'i>, Failed> {
        let number = frame.channel;
        let bytes_max = self.options.message_bytes_max;
        let Some(channel) = slot(&mut self.channels, number) else {
            return Err(misbehaved("a content header on a channel that is not open", number));
        };
        if channel.state == ChannelState::Closing {
            return Ok(Step::Silent);
        }
        let header = ContentHeader::parse(frame.payload).map_err(Failed::Method)?;
        if header.body_size_bytes > bytes_max {
            return Err(Failed::MessageTooLarge {
                size_bytes: header.body_size_bytes,
                max_bytes: bytes_max,
            });
        }
        let complete = channel.content.header(&header).map_err(|what| misbehaved(what, number))?;
        Ok(if complete { Step::Assembled(number) } else { Step::Silent })
    }

    fn body<'i>(&mut self, frame: Frame<'i>) -> Result<Step<'i>, Failed> {
        let number = frame.channel;
        let Some(channel) = slot(&mut self.channels, number) else {
            return Err(misbehaved("a content body on a channel that is not open", number));
        };
        if channel.state == ChannelState::Closing {
            return Ok(Step::Silent);
        }
        let complete =
            channel.content.body(frame.payload).map_err(|what| misbehaved(what, number))?;
        Ok(if complete { Step::Assembled(number) } else { Step::Silent })
    }

    /// The connection is lost: remember why, and tell the peer as far as it may still listen.
    fn give_up(&mut self, failed: Failed) -> Failed {
        let code = match &failed {
            Failed::Frame(_) => Some(ReplyCode::FrameError),
            Failed::Method(MethodError::Unknown { .. }) => Some(ReplyCode::CommandInvalid),
            Failed::Method(_) => Some(ReplyCode::SyntaxError),
            Failed::Misbehaved { .. } => Some(ReplyCode::UnexpectedFrame),
            Failed::MessageTooLarge { .. } => Some(ReplyCode::ResourceError),
            _ => None,
        };
        if let Some(code) = code
            && matches!(self.state, State::Open | State::Opening | State::Tuning)
        {
            let text = failed.to_string();
            let close = connection::Close {
                reply_code: code.code(),
                reply_text: ShortStr::truncated(&text),
                ..Default::default()
            };
            forebay_wire::write_method(self.outgoing.tail(), 0, &close);
        }
        self.state = State::Over;
        self.failed = Some(failed.clone());
        failed
    }
}

/// The channel with this number, if it is in use.
fn slot(channels: &mut [Option<Box<Channel>>], number: u16) -> Option<&mut Channel> {
    channels.get_mut(usize::from(number).wrapping_sub(1))?.as_deref_mut()
}

fn misbehaved(what: &'static str, channel: u16) -> Failed {
    Failed::Misbehaved { what, channel }
}

/// Header and body when both stand at the front of `input`, with their size in bytes; this is the
/// way of nearly every message. `None`: not all here, or not in one body frame, or not well-formed;
/// then the frames are taken one by one, which also finds the error.
fn whole_content(
    input: &[u8],
    channel: u16,
    frame_bytes_max: u32,
) -> Option<(ContentHeader<'_>, &[u8], usize)> {
    let frame = read_frame(input, frame_bytes_max).ok()??;
    if frame.kind != FrameKind::Header || frame.channel != channel {
        return None;
    }
    let header = ContentHeader::parse(frame.payload).ok()?;
    let mut used = frame.size_bytes();
    if header.body_size_bytes == 0 {
        return Some((header, &[], used));
    }
    let frame = read_frame(&input[used..], frame_bytes_max).ok()??;
    if frame.kind != FrameKind::Body
        || frame.channel != channel
        || frame.payload.len() as u64 != header.body_size_bytes
    {
        return None;
    }
    used += frame.size_bytes();
    Some((header, frame.payload, used))
}

/// The event for a method with its content; `None` if the method has none of ours.
fn content_event<'a>(
    channel: u16,
    method: Method<'a>,
    properties: RawProperties<'a>,
    body: &'a [u8],
) -> Option<Event<'a>> {
    match method {
        Method::BasicDeliver(deliver) => Some(Event::Delivery(Delivery {
            channel,
            consumer_tag: deliver.consumer_tag,
            delivery_tag: deliver.delivery_tag,
            redelivered: deliver.redelivered,
            exchange: deliver.exchange,
            routing_key: deliver.routing_key,
            properties,
            body,
        })),
        Method::BasicReturn(returned) => Some(Event::Returned(Returned {
            channel,
            reply_code: returned.reply_code,
            reply_text: returned.reply_text,
            exchange: returned.exchange,
            routing_key: returned.routing_key,
            properties,
            body,
        })),
        Method::BasicGetOk(got) => Some(Event::Got {
            delivery: Delivery {
                channel,
                consumer_tag: ShortStr::default(),
                delivery_tag: got.delivery_tag,
                redelivered: got.redelivered,
                exchange: got.exchange,
                routing_key: got.routing_key,
                properties,
                body,
            },
            message_count: got.message_count,
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
