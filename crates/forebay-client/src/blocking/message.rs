//! Messages on their way out.

use forebay_wire::Properties;

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
