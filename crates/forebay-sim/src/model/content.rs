//! What a message says that the broker sent, held against what was published.

use forebay_wire::RawProperties;

use crate::letter::{Death, Reason};
use crate::message::{Published, is_reply_name};
use crate::names::{DEFAULT, LETTERS_TO, Name};
use crate::violation::{Violation, violation};

use super::Model;

/// A message as it came.
#[derive(Debug)]
pub(crate) struct Content<'a> {
    pub(crate) exchange: &'a [u8],
    pub(crate) key: &'a [u8],
    pub(crate) properties: &'a [u8],
    pub(crate) body: &'a [u8],
}

impl Model {
    /// The message that this content is, to the byte, and from where if it came as a dead letter.
    pub(super) fn genuine(
        &mut self,
        content: &Content<'_>,
    ) -> Result<(Published, Option<Name>), Violation> {
        let id = Published::id_in(content.body);
        let Some(message) = id.and_then(|id| self.messages.get(id as usize)).copied() else {
            let what = format!("a body that nobody published, of {} bytes", content.body.len());
            return violation("delivered is published", what);
        };
        let reply_to = RawProperties::validate(content.properties).ok();
        let reply_to = reply_to.and_then(|raw| raw.parse().reply_to);
        let asks = reply_to.is_some_and(|name| is_reply_name(name.as_bytes()));
        let mut properties = Vec::new();
        let death = Death::of(content.properties);
        let from = death.as_ref().map(|death| death.queue);
        let (exchange, key) = match from {
            Some(_) => (DEFAULT, LETTERS_TO),
            None => (message.exchange, message.key),
        };
        let before = match &death {
            Some(death) => {
                message.encode_letter_properties(reply_to, &mut properties);
                &death.properties
            }
            None => {
                message.encode_properties(false, reply_to, &mut properties);
                content.properties
            }
        };
        let same = content.body == message.body()
            && death.as_ref().is_none_or(|death| self.may_have_died(&message, death))
            && message.wants_reply == asks
            && reply_to.is_some() == asks
            && before == properties
            && content.exchange == exchange.as_bytes()
            && content.key == key.as_bytes();
        if !same {
            let what = format!("message {} came back changed", message.id);
            return violation("delivered is published", what);
        }
        if let Some(name) = reply_to {
            self.learn_name(message.id, name.as_bytes())?;
        }
        Ok((message, from))
    }

    /// Whether this message can have died so.
    fn may_have_died(&self, message: &Published, death: &Death) -> bool {
        let reason = self.queues.get(death.queue).is_some_and(|queue| match death.reason {
            Reason::Rejected => true,
            Reason::Expired => queue.ttl_us.is_some() || message.expiration.is_some(),
            Reason::MaxLength => queue.limit.is_some(),
        });
        let expiration = message.expiration.map(str::as_bytes);
        reason
            && self.letters_from.contains(&death.queue)
            && death.expiration.as_deref() == expiration
    }
}
