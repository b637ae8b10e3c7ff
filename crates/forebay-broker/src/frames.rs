//! From bytes to frames to channels: what arrives, in which stage, and what is wrong with it.

use forebay_wire::{
    ContentHeader, Frame, FrameError, FrameKind, Method, MethodError, frame_size_bytes, method_ids,
    read_frame, read_protocol_header,
};

use crate::channel::Expects;
use crate::connection::Stage;
use crate::error::AmqpError;
use crate::input::{CloseHow, ConnectionId};
use crate::shard::Shard;

/// Bytes of a protocol header (0-9-1 section 4.2.2).
const PROTOCOL_HEADER_BYTES: usize = 8;

/// Bytes from which a frame's size is known (0-9-1 section 4.2.3).
const FRAME_HEAD_BYTES: usize = 7;

/// Some clients count frame-max without head and end; RabbitMQ lets them, and so do we.
const FRAME_MAX_FUDGE_BYTES: u32 = 8;

/// A publish on a channel that its client has closed was under way then if it comes within this time, in microseconds; later ones are a
/// mistake of the program, which is to hear of it.
const UNDER_WAY_US: u64 = 1_000_000;

impl Shard {
    /// Takes bytes that may begin and end anywhere. Whole frames are read where they are; only the
    /// beginning of an incomplete one is kept, so an idle connection holds nothing.
    pub(crate) fn received(&mut self, id: ConnectionId, mut bytes: &[u8]) {
        let now_us = self.now_us;
        let Some(connection) = self.connection(id) else { return };
        connection.received_us = now_us;
        self.counters.received_bytes += bytes.len() as u64;
        let Some(connection) = self.connection(id) else { return };
        let mut partial = std::mem::take(&mut connection.partial);
        if std::mem::take(&mut connection.held) | std::mem::take(&mut connection.brimming) {
            let pass_bytes = std::mem::take(&mut connection.pass_bytes);
            partial.extend_from_slice(bytes);
            bytes = &[];
            let consumed = self.frames(id, &partial, pass_bytes);
            partial.drain(..consumed);
        }
        while !partial.is_empty() && !bytes.is_empty() {
            let wanted = match self.connection(id).map(|connection| connection.stage) {
                Some(Stage::Header) => PROTOCOL_HEADER_BYTES,
                Some(_) => frame_size_bytes(&partial).unwrap_or(FRAME_HEAD_BYTES),
                None => return,
            };
            let take = wanted.saturating_sub(partial.len()).min(bytes.len());
            partial.extend_from_slice(&bytes[..take]);
            bytes = &bytes[take..];
            if self.frames(id, &partial, 0) > 0 {
                partial.clear();
            } else if self.connection(id).is_some_and(|connection| connection.keeps_back()) {
                partial.extend_from_slice(bytes);
                bytes = &[];
            } else if take == 0 {
                // Cannot happen: a whole frame is consumed or refused.
                debug_assert!(false, "a whole frame was neither consumed nor refused");
                return;
            }
        }
        if partial.is_empty() && !bytes.is_empty() {
            let consumed = self.frames(id, bytes, 0);
            partial.extend_from_slice(&bytes[consumed..]);
        }
        if let Some(connection) = self.connection(id) {
            if !connection.held {
                connection.waits.hold(None, now_us);
            }
            // An idle connection holds no buffer.
            connection.partial = if partial.is_empty() { Vec::new() } else { partial };
        }
    }

    /// Handles every whole frame of `bytes`, up to a publish that has to wait and does not begin within
    /// the first `pass_bytes`, or until the answers are as many as may wait; returns how many bytes were used.
    fn frames(&mut self, id: ConnectionId, bytes: &[u8], pass_bytes: usize) -> usize {
        let mut at = 0;
        loop {
            let Some(connection) = self.connection(id) else { return bytes.len() };
            let stage = connection.stage;
            let readable_max_bytes =
                connection.frame_max_bytes.saturating_add(FRAME_MAX_FUDGE_BYTES);
            match stage {
                Stage::Done | Stage::Refused => return bytes.len(),
                Stage::Header => match read_protocol_header(&bytes[at..]) {
                    Ok(None) => return at,
                    Ok(Some(())) => {
                        at += PROTOCOL_HEADER_BYTES;
                        self.start(id);
                        continue;
                    }
                    Err(_) => {
                        self.wrong_protocol(id);
                        return bytes.len();
                    }
                },
                _ => {}
            }
            match read_frame(&bytes[at..], readable_max_bytes) {
                Ok(Some(frame)) => {
                    let is_held =
                        is_publish(&frame) && at >= pass_bytes && self.holds_publishes(id)
                            || is_commit(&frame) && self.holds_commit(id, frame.channel);
                    if is_held {
                        self.hold(id);
                        return at;
                    }
                    if self.stops_at_brim(id) {
                        return at;
                    }
                    at += frame.size_bytes();
                    self.frame(id, stage, &frame);
                }
                Ok(None) => return at,
                Err(error) => {
                    self.unreadable(id, stage, &error);
                    return bytes.len();
                }
            }
        }
    }

    fn frame(&mut self, id: ConnectionId, stage: Stage, frame: &Frame<'_>) {
        match stage {
            Stage::Open if frame.channel != 0 => {
                if let Err((error, class_id, method_id)) = self.channel_frame(id, frame) {
                    self.channel_error(id, frame.channel, error, class_id, method_id);
                }
            }
            _ => self.connection_frame(id, stage, frame),
        }
    }

    fn connection_frame(&mut self, id: ConnectionId, stage: Stage, frame: &Frame<'_>) {
        match frame.kind {
            FrameKind::Heartbeat if frame.channel == 0 && frame.payload.is_empty() => {}
            FrameKind::Heartbeat if frame.channel == 0 => {
                let error = AmqpError::frame("a heartbeat frame carries no payload");
                self.connection_error(id, error, 0, 0);
            }
            FrameKind::Method if frame.channel == 0 => match Method::parse_request(frame.payload) {
                Ok(method) if stage == Stage::Closing => self.closing_method(id, &method),
                Ok(method) if stage == Stage::Open => {
                    if let Err(error) = self.connection_method(id, &method) {
                        let (class_id, method_id) = (method.class_id(), method.method_id());
                        self.connection_error(id, error, class_id, method_id);
                    }
                }
                Ok(method) => self.handshake_method(id, stage, &method),
                Err(_) if stage == Stage::Closing => {}
                Err(error) => {
                    let (error, class_id, method_id) = unparsed(&error, frame.payload);
                    self.refuse_frame(id, stage, error, (class_id, method_id));
                }
            },
            _ if stage == Stage::Closing => {}
            _ => {
                let error = AmqpError::unexpected_frame(format!(
                    "unexpected {} frame on channel {}; channel 0 and a connection that is not open take \
                     methods only",
                    kind_name(frame.kind),
                    frame.channel
                ));
                self.refuse_frame(id, stage, error, (0, 0));
            }
        }
    }

    /// A frame on a channel of an open connection. The error comes with class and method of its cause.
    fn channel_frame(
        &mut self,
        id: ConnectionId,
        frame: &Frame<'_>,
    ) -> Result<(), (AmqpError, u16, u16)> {
        let Some(connection) = self.connection(id) else { return Ok(()) };
        let Some(channel) = connection.channel(frame.channel) else {
            return self.frame_without_channel(id, frame);
        };
        if channel.closing {
            self.closing_channel_frame(id, frame);
            return Ok(());
        }
        let expects = channel.assembly.expects;
        match (frame.kind, expects) {
            (FrameKind::Method, Expects::Method) => {
                let method = Method::parse_request(frame.payload)
                    .map_err(|error| unparsed(&error, frame.payload))?;
                self.channel_method(id, frame.channel, &method)
                    .map_err(|error| (error, method.class_id(), method.method_id()))
            }
            (FrameKind::Header, Expects::Header) => {
                let header = ContentHeader::parse(frame.payload)
                    .map_err(|error| unparsed(&error, frame.payload))?;
                self.publish_header(id, frame.channel, &header).map_err(in_publish)
            }
            (FrameKind::Body, Expects::Body) => {
                self.publish_body(id, frame.channel, frame.payload).map_err(in_publish)
            }
            (FrameKind::Heartbeat, _) => Err((
                AmqpError::unexpected_frame("heartbeat frame on a channel other than 0".to_owned()),
                0,
                0,
            )),
            (_, Expects::Method) => Err((
                AmqpError::unexpected_frame(
                    "expected method frame, got non method frame instead".to_owned(),
                ),
                0,
                0,
            )),
            (_, Expects::Header) => Err(in_publish(AmqpError::unexpected_frame(
                "expected content header for class 60, got non content header frame instead",
            ))),
            (_, Expects::Body) => Err(in_publish(AmqpError::unexpected_frame(
                "expected content body, got non content body frame instead",
            ))),
        }
    }

    fn frame_without_channel(
        &mut self,
        id: ConnectionId,
        frame: &Frame<'_>,
    ) -> Result<(), (AmqpError, u16, u16)> {
        let now_us = self.now_us;
        let left_us =
            self.connection(id).and_then(|c| c.channels_left.get(&frame.channel).copied());
        let ignored = |method: &Method<'_>| match method {
            Method::BasicPublish(_) => left_us.is_some_and(|us| now_us < us + UNDER_WAY_US),
            method => left_us.is_some() && settles(method),
        };
        if frame.kind == FrameKind::Method {
            let method = Method::parse_request(frame.payload)
                .map_err(|error| unparsed(&error, frame.payload))?;
            return match method {
                Method::ChannelOpen(open) => {
                    self.open_channel(id, frame.channel, &open).map_err(|error| (error, 0, 0))
                }
                method if ignored(&method) => Ok(()),
                _ => Err((AmqpError::channel_not_open(), method.class_id(), method.method_id())),
            };
        }
        let reason = match frame.kind {
            FrameKind::Header | FrameKind::Body if left_us.is_some() => return Ok(()),
            FrameKind::Heartbeat => "heartbeat frame on a channel other than 0",
            _ => "expected method frame, got non method frame instead",
        };
        Err((AmqpError::unexpected_frame(reason), 0, 0))
    }

    fn closing_channel_frame(&mut self, id: ConnectionId, frame: &Frame<'_>) {
        if frame.kind != FrameKind::Method {
            return;
        }
        match Method::parse_request(frame.payload) {
            Ok(Method::ChannelCloseOk(_)) => self.forget_channel(id, frame.channel),
            Ok(Method::ChannelClose(_)) => {
                self.send(id, frame.channel, &forebay_wire::channel::CloseOk::default());
            }
            // The client counts the close as answered by its own and uses the number again.
            Ok(Method::ChannelOpen(open)) => {
                self.forget_channel(id, frame.channel);
                if let Err(error) = self.open_channel(id, frame.channel, &open) {
                    self.channel_error(id, frame.channel, error, 20, 10);
                }
            }
            _ => {}
        }
    }

    /// 0-9-1 section 4.2.2: answer with the header we speak, then close.
    fn wrong_protocol(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connection(id) {
            connection.out.buffer().extend_from_slice(&forebay_wire::PROTOCOL_HEADER);
        }
        self.mark_connection(id);
        self.close_socket(id, CloseHow::Flushed);
    }

    /// What comes after is out of step, so nothing more is read.
    fn unreadable(&mut self, id: ConnectionId, stage: Stage, error: &FrameError) {
        if stage == Stage::Closing {
            self.close_socket(id, CloseHow::Flushed);
            return;
        }
        self.refuse_frame(id, stage, AmqpError::frame(error), (0, 0));
    }

    /// The end of a connection; of one that is not open at once, as nobody has said who is there.
    fn refuse_frame(&mut self, id: ConnectionId, stage: Stage, error: AmqpError, of: (u16, u16)) {
        self.connection_error(id, error, of.0, of.1);
        if stage != Stage::Open {
            self.close_socket(id, CloseHow::Flushed);
        }
    }
}

/// Whether a frame begins a publish (0-9-1 section 1.8.3.7).
fn is_publish(frame: &Frame<'_>) -> bool {
    frame.kind == FrameKind::Method && frame.payload.starts_with(&[0, 60, 0, 40])
}

/// What one thread of a client may send while another closes the channel, for as long as anybody likes: nobody waits for an answer to it,
/// and there is nothing left that it could settle. RabbitMQ ignores it as well, for as long as the close takes it.
fn settles(method: &Method<'_>) -> bool {
    matches!(
        method,
        Method::BasicAck(_)
            | Method::BasicNack(_)
            | Method::BasicReject(_)
            | Method::BasicCancelOk(_)
            | Method::ChannelFlowOk(_)
    )
}

/// Whether it is `tx.commit` (section 1.9.2.5).
fn is_commit(frame: &Frame<'_>) -> bool {
    frame.kind == FrameKind::Method && frame.payload.starts_with(&[0, 90, 0, 20])
}

fn in_publish(error: AmqpError) -> (AmqpError, u16, u16) {
    (error, 60, 40)
}

fn unparsed(error: &MethodError, payload: &[u8]) -> (AmqpError, u16, u16) {
    let (class_id, method_id) = method_ids(payload);
    (AmqpError::method(error), class_id, method_id)
}

fn kind_name(kind: FrameKind) -> &'static str {
    match kind {
        FrameKind::Method => "method",
        FrameKind::Header => "content header",
        FrameKind::Body => "content body",
        FrameKind::Heartbeat => "heartbeat",
    }
}
