//! One channel of a connection: confirms of what we publish, assembly of what we receive.

use forebay_wire::Method;
use forebay_wire::RawProperties;

use super::confirms::Confirms;
use super::content::Content;
use super::{Event, content_event};

/// Where a channel is in its life; a channel that is not in use has no `Channel` at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChannelState {
    /// Our open is out. Commands may follow it at once: the broker takes them in order.
    Opening,
    /// open-ok came.
    Open,
    /// Our close is out.
    Closing,
}

/// One channel.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) state: ChannelState,
    /// Present once confirms were asked for.
    pub(super) confirms: Option<Confirms>,
    pub(super) content: Content,
}

impl Channel {
    pub(super) fn opening() -> Box<Channel> {
        Box::new(Channel {
            state: ChannelState::Opening,
            confirms: None,
            content: Content::default(),
        })
    }

    /// The message that its content buffers hold, all parts of which were validated on arrival.
    pub(super) fn assembled(&self, number: u16) -> Option<Event<'_>> {
        let method = Method::parse(&self.content.method).ok()?;
        let properties = RawProperties::trusted(&self.content.properties);
        content_event(number, method, properties, &self.content.body)
    }
}
