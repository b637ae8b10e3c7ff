//! What the owner of a connection can ask of it. Each command appends to the send buffer.

use std::fmt;

use forebay_wire::RawProperties;
use forebay_wire::ShortStr;
use forebay_wire::{FRAME_OVERHEAD_BYTES, write_body_frame, write_header_frame};
use forebay_wire::{WireMethod, basic, channel as amqp_channel, confirm, connection};

use super::channel::{Channel, ChannelState};
use super::confirms::Confirms;
use super::{Limits, Machine, State, slot};

/// Class id of basic, which every content header carries.
const BASIC_CLASS_ID: u16 = 60;

/// Why a message was not taken. Nothing of it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublishError {
    /// The send buffer is at its bound: let the peer read first.
    Full,
    /// The channel or the connection is not open.
    NotOpen,
    /// The properties do not fit into a frame, and unlike a body they cannot be split.
    PropertiesTooLong {
        /// Their size.
        bytes: usize,
        /// What the frames of this connection allow.
        bytes_max: usize,
    },
}

impl fmt::Display for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PublishError::Full => {
                f.write_str("the send buffer is full: the broker reads slower than we publish")
            }
            PublishError::NotOpen => f.write_str("the channel is not open"),
            PublishError::PropertiesTooLong { bytes, bytes_max } => {
                write!(
                    f,
                    "properties of {bytes} bytes are too long: the broker's frames allow {bytes_max}"
                )
            }
        }
    }
}

impl std::error::Error for PublishError {}

/// Why a channel cannot be had or used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelError {
    /// The connection is not open.
    ConnectionNotOpen,
    /// This channel is not open.
    NotOpen,
    /// All numbers up to the negotiated `channel_max` are in use.
    AllInUse {
        /// The highest number.
        channel_max: u16,
    },
}

impl fmt::Display for ChannelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChannelError::ConnectionNotOpen => f.write_str("the connection is not open"),
            ChannelError::NotOpen => f.write_str("the channel is not open"),
            ChannelError::AllInUse { channel_max } => {
                write!(f, "all {channel_max} channels of the connection are in use")
            }
        }
    }
}

impl std::error::Error for ChannelError {}

/// Of a content header that are no properties: class, weight, size of the body.
const HEADER_FIXED_BYTES: usize = 12;

fn properties_bytes_max(limits: Limits) -> usize {
    (limits.frame_bytes_max as usize).saturating_sub(FRAME_OVERHEAD_BYTES + HEADER_FIXED_BYTES)
}

impl Machine {
    /// Whether a channel can be opened now.
    pub(crate) fn check_free_channel(&self) -> Result<(), ChannelError> {
        self.check_channels(|_| true)
    }

    /// Whether one can be opened now, or when one that is being closed is.
    pub(crate) fn check_channel_soon_free(&self) -> Result<(), ChannelError> {
        self.check_channels(|channel| channel.state != ChannelState::Closing)
    }

    fn check_channels(&self, counts: impl Fn(&Channel) -> bool) -> Result<(), ChannelError> {
        let channel_max = self.limits.channel_max;
        let in_use = self.channels.iter().flatten().filter(|channel| counts(channel)).count();
        if in_use < usize::from(channel_max) {
            Ok(())
        } else {
            Err(ChannelError::AllInUse { channel_max })
        }
    }

    /// Asks for a channel and returns its number. It can be used at once; the answer comes as
    /// `Event::Reply` with channel.open-ok.
    pub fn open_channel(&mut self) -> Result<u16, ChannelError> {
        self.open_channel_with("")
    }

    /// The same with words in the reserved field of channel.open, for brokers that have a use for them;
    /// cut after 255 bytes.
    pub(crate) fn open_channel_with(&mut self, words: &str) -> Result<u16, ChannelError> {
        if self.state != State::Open {
            return Err(ChannelError::ConnectionNotOpen);
        }
        let channel_max = self.limits.channel_max;
        let free = self.channels.iter().position(Option::is_none);
        let index = free.unwrap_or(self.channels.len());
        if index >= usize::from(channel_max) {
            return Err(ChannelError::AllInUse { channel_max });
        }
        if index == self.channels.len() {
            self.channels.push(None);
        }
        self.channels[index] = Some(Channel::opening());
        let number = index as u16 + 1;
        self.write(number, &amqp_channel::Open { reserved_1: ShortStr::truncated(words) });
        Ok(number)
    }

    /// Sends any method without content on an open channel; its answer comes as `Event::Reply`.
    /// Confirms, publishes and closes have commands of their own, which keep count.
    pub fn send(&mut self, channel: u16, method: &impl WireMethod) -> Result<(), ChannelError> {
        self.usable(channel)?;
        self.write(channel, method);
        Ok(())
    }

    /// Asks for confirms on a channel (confirm.select); publishes are numbered from here, from 1.
    pub fn select_confirms(&mut self, channel: u16) -> Result<(), ChannelError> {
        let confirms = &mut self.usable(channel)?.confirms;
        if confirms.is_none() {
            *confirms = Some(Confirms::new());
        }
        self.write(channel, &confirm::Select::default());
        Ok(())
    }

    /// Publishes one message and returns its sequence number, or 0 on a channel without confirms.
    /// Bodies larger than a frame are split. Allocates nothing but the growth of the send buffer.
    pub fn publish(
        &mut self,
        channel: u16,
        exchange: ShortStr<'_>,
        routing_key: ShortStr<'_>,
        mandatory: bool,
        properties: RawProperties<'_>,
        body: &[u8],
    ) -> Result<u64, PublishError> {
        if self.outgoing.len() >= self.options.outgoing_bytes_max {
            return Err(PublishError::Full);
        }
        let target = match slot(&mut self.channels, channel) {
            Some(target) if self.state == State::Open && target.state != ChannelState::Closing => {
                target
            }
            _ => return Err(PublishError::NotOpen),
        };
        let (bytes, bytes_max) = (properties.raw().len(), properties_bytes_max(self.limits));
        if bytes > bytes_max {
            return Err(PublishError::PropertiesTooLong { bytes, bytes_max });
        }
        let sequence = target.confirms.as_mut().map_or(0, Confirms::publish);
        let out = self.outgoing.tail();
        let publish = basic::Publish { exchange, routing_key, mandatory, ..Default::default() };
        forebay_wire::write_method(out, channel, &publish);
        write_header_frame(out, channel, BASIC_CLASS_ID, body.len() as u64, properties);
        let payload_bytes_max = self.limits.frame_bytes_max as usize - FRAME_OVERHEAD_BYTES;
        for payload in body.chunks(payload_bytes_max) {
            write_body_frame(out, channel, payload);
        }
        Ok(sequence)
    }

    /// The longest properties, flags included, that a message may have: clause 4.2.6.1 lets a header have one frame.
    pub fn properties_bytes_max(&self) -> usize {
        properties_bytes_max(self.limits)
    }

    /// Acknowledges one delivery, or with `multiple` all of its channel up to it.
    pub fn ack(
        &mut self,
        channel: u16,
        delivery_tag: u64,
        multiple: bool,
    ) -> Result<(), ChannelError> {
        self.send(channel, &basic::Ack { delivery_tag, multiple })
    }

    /// Refuses one delivery, or with `multiple` all of its channel up to it. With `requeue` they go
    /// back to their queue; otherwise they are dropped or dead-lettered.
    pub fn nack(
        &mut self,
        channel: u16,
        delivery_tag: u64,
        multiple: bool,
        requeue: bool,
    ) -> Result<(), ChannelError> {
        self.send(channel, &basic::Nack { delivery_tag, multiple, requeue })
    }

    /// How many publishes of a channel have no outcome yet; 0 without confirms.
    pub fn unconfirmed(&self, channel: u16) -> u64 {
        self.channels
            .get(usize::from(channel).wrapping_sub(1))
            .and_then(|slot| slot.as_deref()?.confirms.as_ref())
            .map_or(0, Confirms::open_count)
    }

    /// Whether our close of a channel has no answer yet.
    pub fn is_closing(&self, channel: u16) -> bool {
        let slot = self.channels.get(usize::from(channel).wrapping_sub(1));
        slot.and_then(Option::as_deref).is_some_and(|open| open.state == ChannelState::Closing)
    }

    /// Closes a channel; the answer comes as `Event::Reply` with channel.close-ok. Unsettled
    /// publishes will have no outcome, unacked deliveries go back to their queues.
    pub fn close_channel(&mut self, channel: u16) -> Result<(), ChannelError> {
        self.usable(channel)?.state = ChannelState::Closing;
        let close = amqp_channel::Close {
            reply_code: 200,
            reply_text: ShortStr::truncated("Goodbye"),
            ..Default::default()
        };
        self.write(channel, &close);
        Ok(())
    }

    /// Closes the connection; `Event::Closed` follows. Does nothing if it is not open.
    pub fn close(&mut self) {
        if self.state == State::Open {
            self.state = State::Closing;
            let close = connection::Close {
                reply_code: 200,
                reply_text: ShortStr::truncated("Goodbye"),
                ..Default::default()
            };
            self.write(0, &close);
        }
    }

    pub(super) fn write(&mut self, channel: u16, method: &impl WireMethod) {
        forebay_wire::write_method(self.outgoing.tail(), channel, method);
    }

    fn usable(&mut self, channel: u16) -> Result<&mut Channel, ChannelError> {
        if self.state != State::Open {
            return Err(ChannelError::ConnectionNotOpen);
        }
        match slot(&mut self.channels, channel) {
            Some(usable) if usable.state != ChannelState::Closing => Ok(usable),
            _ => Err(ChannelError::NotOpen),
        }
    }
}
