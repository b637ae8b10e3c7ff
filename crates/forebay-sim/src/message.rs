//! A simulated message: everything about it follows from a few numbers, so that what comes back can be
//! compared to the byte.

use forebay_wire::Properties;

use crate::names::Name;
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
    /// Wants to come back if no queue takes it.
    pub mandatory: bool,
    /// Where it is published to.
    pub exchange: Name,
    /// Its routing key.
    pub key: Name,
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

    /// The properties.
    pub(crate) fn properties(&self) -> Properties<'static> {
        let priority = (self.priority > 0).then_some(self.priority);
        Properties { priority, ..crate::command::properties(self.persistent) }
    }

    /// The id in a body.
    pub(crate) fn id_in(body: &[u8]) -> Option<u32> {
        Some(u32::from_le_bytes(body.get(..4)?.try_into().ok()?))
    }
}
