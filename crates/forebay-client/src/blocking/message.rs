//! Messages on their way out, and those that came back.

use forebay_wire::Properties;

use super::Message;

/// A mandatory message of ours that no queue took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReturnedMessage {
    /// 312 when no queue was bound.
    pub reply_code: u16,
    /// For instance `NO_ROUTE`.
    pub reply_text: String,
    /// What we published.
    pub message: Message,
}

/// A message to publish.
#[derive(Debug, Clone, Copy, Default)]
pub struct Publication<'a> {
    /// Where to; empty is the default exchange, which takes a queue's name as routing key.
    pub exchange: &'a str,
    /// The routing key.
    pub routing_key: &'a str,
    /// Send it back if no queue takes it.
    pub mandatory: bool,
    /// Its properties; `delivery_mode: Some(2)` makes it persistent.
    pub properties: Properties<'a>,
    /// Its body.
    pub body: &'a [u8],
}
