//! Reads what the broker sends, as it is made, and holds it against the model.

use forebay_broker::{CloseHow, ConnectionId};
use forebay_wire::{ContentHeader, Frame, FrameKind, Method, read_frame};

use crate::link::Assembling;
use crate::model::content::Content;
use crate::model::observe::{Round, Sent};
use crate::violation::{Violation, violation};
use crate::world::{Step, World};

impl World {
    /// Checks everything that the last step of the broker has made ready to send.
    pub(crate) fn observe_all(&mut self) -> Step {
        self.hear_who_leaves()?;
        let mut round = self.model.begin_round();
        while let Some(ConnectionId(client)) = self.broker.shard.next_dirty() {
            self.observe(client as usize, &mut round)?;
        }
        self.check_priorities(&round)?;
        self.model.end_round(round)?;
        self.statistics.delivered = self.model.delivered;
        self.statistics.confirmed = self.model.confirmed;
        self.statistics.letters = self.model.letters;
        self.statistics.refused = self.model.refused;
        self.statistics.left = self.model.left;
        self.statistics.preferred = self.model.preferred;
        self.statistics.replies = self.model.replies;
        self.statistics.found_letters = self.model.found_letters;
        Ok(())
    }

    /// Connections that the broker is done with since the last look.
    pub(crate) fn hear_who_leaves(&mut self) -> Step {
        while let Some((id, how)) = self.broker.shard.next_closed() {
            let client = id.0 as usize;
            self.close(client, how)?;
            self.model.told_to_close(client);
        }
        Ok(())
    }

    /// The broker wants a connection closed: it goes with the end of the turn.
    fn close(&mut self, client: usize, how: CloseHow) -> Result<(), Violation> {
        let Some(link) = &mut self.links[client] else { return Ok(()) };
        link.closing = true;
        if how == CloseHow::Flushed {
            return Ok(());
        }
        link.cut = true;
        let silent_us = self.now_us - link.heard_us;
        let heartbeat_us = u64::from(self.swarm.heartbeat_s) * 1_000_000;
        let late = link.handshake_until_us.is_some_and(|until| until <= self.now_us);
        if !late && (heartbeat_us == 0 || silent_us < 2 * heartbeat_us) {
            let what = format!("client {client} after {silent_us} us of silence");
            return violation("nobody is cut off without a reason", what);
        }
        Ok(())
    }

    fn observe(&mut self, client: usize, round: &mut Round) -> Result<(), Violation> {
        let Some(link) = &mut self.links[client] else { return Ok(()) };
        let fresh = self.broker.shard.unsent(ConnectionId(client as u32), link.observed);
        link.observed += fresh.len();
        self.trace.bytes(&(fresh.len() as u64).to_le_bytes());
        let mut at = 0;
        while at < fresh.len() {
            match read_frame(&fresh[at..], 0) {
                Ok(Some(frame)) => {
                    at += frame.size_bytes();
                    self.frame(client, &frame, round)?;
                }
                other => {
                    let what = format!("client {client} is sent {other:?}");
                    return violation("protocol", what);
                }
            }
        }
        Ok(())
    }

    fn frame(
        &mut self,
        client: usize,
        frame: &Frame<'_>,
        round: &mut Round,
    ) -> Result<(), Violation> {
        let Some(link) = &mut self.links[client] else { return Ok(()) };
        let broken = |what: &str| violation("protocol", format!("client {client}: {what}"));
        match frame.kind {
            FrameKind::Heartbeat => return Ok(()),
            FrameKind::Method => {
                let Ok(method) = Method::parse(frame.payload) else {
                    return broken("a method that cannot be read");
                };
                if link.assembling.is_some() {
                    return broken("a method amid a content");
                }
                if matches!(
                    method,
                    Method::BasicDeliver(_) | Method::BasicGetOk(_) | Method::BasicReturn(_)
                ) {
                    link.assembling = Some(Assembling {
                        channel: frame.channel,
                        method: frame.payload.to_vec(),
                        body_bytes: None,
                        properties: Vec::new(),
                        body: Vec::new(),
                    });
                    return Ok(());
                }
                return self.method(client, frame.channel, &method, round);
            }
            FrameKind::Header | FrameKind::Body => {}
        }
        if frame.size_bytes() > link.frame_max as usize {
            return broken("a frame beyond frame-max");
        }
        let Some(assembling) = link.assembling.as_mut().filter(|a| a.channel == frame.channel)
        else {
            return broken("content without its method");
        };
        if frame.kind == FrameKind::Header {
            let Ok(header) = ContentHeader::parse(frame.payload) else {
                return broken("a header that cannot be read");
            };
            assembling.body_bytes = Some(header.body_size_bytes);
            // Class, weight and size take 12 bytes; the rest is the properties.
            assembling.properties = frame.payload[12..].to_vec();
        } else {
            assembling.body.extend_from_slice(frame.payload);
        }
        if assembling.body_bytes == Some(assembling.body.len() as u64)
            && let Some(whole) = link.assembling.take()
        {
            return self.content(client, &whole, round);
        }
        Ok(())
    }

    fn content(
        &mut self,
        client: usize,
        whole: &Assembling,
        round: &mut Round,
    ) -> Result<(), Violation> {
        let content = |exchange, key| Content {
            exchange,
            key,
            properties: &whole.properties,
            body: &whole.body,
        };
        let Ok(method) = Method::parse(&whole.method) else { return Ok(()) };
        let sent = match &method {
            Method::BasicDeliver(m) => Sent::Deliver {
                tag: m.delivery_tag,
                consumer: m.consumer_tag.as_bytes(),
                redelivered: m.redelivered,
                content: content(m.exchange.as_bytes(), m.routing_key.as_bytes()),
            },
            Method::BasicGetOk(m) => Sent::GetOk {
                tag: m.delivery_tag,
                redelivered: m.redelivered,
                left: m.message_count,
                content: content(m.exchange.as_bytes(), m.routing_key.as_bytes()),
            },
            Method::BasicReturn(m) => Sent::Return {
                code: m.reply_code,
                content: content(m.exchange.as_bytes(), m.routing_key.as_bytes()),
            },
            _ => return Ok(()),
        };
        self.sent(client, whole.channel, sent, round)
    }

    fn sent(
        &mut self,
        client: usize,
        channel: u16,
        sent: Sent<'_>,
        round: &mut Round,
    ) -> Result<(), Violation> {
        self.trace.observed(client, &sent);
        self.model.observe(client, channel, sent, round)
    }

    fn method(
        &mut self,
        client: usize,
        channel: u16,
        method: &Method<'_>,
        round: &mut Round,
    ) -> Result<(), Violation> {
        let sent = match method {
            Method::ConnectionClose(close) if close.reply_code == 320 => {
                self.model.told_to_close(client);
                round.exact = false;
                return Ok(());
            }
            Method::ConnectionClose(close) if self.model.ends_with(client, close.reply_code) => {
                return Ok(());
            }
            Method::ConnectionClose(close) => {
                let what = format!("client {client}: {} {}", close.reply_code, close.reply_text);
                return violation("nobody is cut off without a reason", what);
            }
            Method::ConnectionOpenOk(_) => {
                if let Some(link) = &mut self.links[client] {
                    link.handshake_until_us = None;
                }
                return Ok(());
            }
            _ if channel == 0 => return Ok(()),
            Method::BasicAck(m) => Sent::Confirm { tag: m.delivery_tag, multiple: m.multiple },
            Method::BasicNack(m) => Sent::Refused { tag: m.delivery_tag, multiple: m.multiple },
            Method::BasicGetEmpty(_) => Sent::GetEmpty,
            Method::BasicCancel(m) => Sent::Cancelled(m.consumer_tag.as_bytes()),
            Method::BasicCancelOk(m) => Sent::CancelOk(m.consumer_tag.as_bytes()),
            Method::BasicConsumeOk(m) => Sent::ConsumeOk(m.consumer_tag.as_bytes()),
            Method::QueueDeclareOk(m) => Sent::DeclareOk { count: m.message_count },
            Method::QueueDeleteOk(m) => Sent::DeleteOk { count: m.message_count },
            Method::QueuePurgeOk(m) => Sent::PurgeOk { count: m.message_count },
            Method::ChannelClose(m) => {
                Sent::Error { code: m.reply_code, text: m.reply_text.to_string() }
            }
            // Whether the client is there; it answers when it acts.
            Method::ChannelFlow(_) => {
                self.statistics.asked += 1;
                return Ok(());
            }
            Method::ChannelFlowOk(m) => Sent::FlowOk { active: m.active },
            other => Sent::Ok(other.name()),
        };
        self.sent(client, channel, sent, round)
    }
}
