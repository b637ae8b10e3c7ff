//! A simulated message: everything about it follows from a few numbers, so that what comes back can be
//! compared to the byte.

use forebay_wire::{ArrayBuf, Properties, ShortStr, TableBuf, Value};

use crate::names::{Name, REPLY_TO};
use crate::random::Random;

/// A message that somebody publishes, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Published {
    /// Unique in its world; the first four bytes of the body.
    pub id: u32,
    /// Size of the body, in bytes; at least 4.
    pub body_bytes: u32,
    /// Delivery mode 2.
    pub persistent: bool,
    /// Its priority; 0: none is said.
    pub priority: u8,
    /// After so many milliseconds it expires, in whatever queue it is.
    pub expiration: Option<Name>,
    /// Wants to come back if no queue takes it.
    pub mandatory: bool,
    /// Where it is published to.
    pub exchange: Name,
    /// Its routing key.
    pub key: Name,
    /// Another one, which consumers see.
    pub cc: Option<Name>,
    /// And one that they do not see.
    pub bcc: Option<Name>,
    /// Its publisher waits for replies.
    pub wants_reply: bool,
}

impl Published {
    /// The body: the id, then bytes that follow from it.
    pub(crate) fn body(&self) -> Vec<u8> {
        let mut body = self.id.to_le_bytes().to_vec();
        let mut random = Random::new(u64::from(self.id));
        while body.len() < self.body_bytes as usize {
            body.extend_from_slice(&random.next().to_le_bytes());
        }
        body.truncate(self.body_bytes as usize);
        body
    }

    /// All its routing keys.
    pub(crate) fn keys(&self) -> impl Iterator<Item = Name> + Clone {
        [Some(self.key), self.cc, self.bcc].into_iter().flatten()
    }

    /// Whether it is a reply to a message that somebody got.
    pub(crate) fn is_reply(&self) -> bool {
        self.exchange.is_empty() && is_reply_name(self.key.as_bytes())
    }

    /// The properties as they are published, or as they are delivered, with the name for replies.
    pub(crate) fn encode_properties(
        &self,
        published: bool,
        reply_to: Option<ShortStr<'_>>,
        out: &mut Vec<u8>,
    ) {
        let mut headers = TableBuf::new();
        for (name, key) in [("CC", self.cc), ("BCC", self.bcc.filter(|_| published))] {
            if let Some(key) = key {
                let keys = ArrayBuf::new().with(Value::LongStr(key.as_bytes()));
                headers.push(name, Value::Array(keys.as_array()));
            }
        }
        let has_headers = self.cc.is_some() || self.bcc.is_some();
        let headers = has_headers.then(|| headers.as_table());
        Properties { headers, reply_to, ..self.properties() }.encode(out);
    }

    /// The properties of a dead letter, but for what is written on it: its own time stays where it died.
    pub(crate) fn encode_letter_properties(
        &self,
        reply_to: Option<ShortStr<'_>>,
        out: &mut Vec<u8>,
    ) {
        Properties { expiration: None, reply_to, ..self.properties() }.encode(out);
    }

    /// The properties without headers.
    fn properties(&self) -> Properties<'static> {
        let priority = (self.priority > 0).then_some(self.priority);
        let expiration = self.expiration.and_then(|text| ShortStr::new(text.as_bytes()));
        Properties { priority, expiration, ..crate::command::properties(self.persistent) }
    }

    /// How long it lives, in microseconds, if it says so.
    pub(crate) fn expires_after_us(&self) -> Option<u64> {
        let ms: u64 = self.expiration?.parse().ok()?;
        Some(ms * 1_000)
    }

    /// The id in a body.
    pub(crate) fn id_in(body: &[u8]) -> Option<u32> {
        Some(u32::from_le_bytes(body.get(..4)?.try_into().ok()?))
    }
}

/// Whether this is the name of somebody who waits for replies.
pub(crate) fn is_reply_name(name: &[u8]) -> bool {
    name.strip_prefix(REPLY_TO.as_bytes()).is_some_and(|token| token.starts_with(b"."))
}
