//! A message that came as a dead letter, and what it was before.

use forebay_wire::{Properties, RawProperties, Value};

use crate::names::{Name, known};

/// Why it died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    Rejected,
    Expired,
    MaxLength,
}

/// What is written on a dead letter.
#[derive(Debug)]
pub(crate) struct Death {
    /// Where it died, once.
    pub(crate) queue: Name,
    pub(crate) reason: Reason,
    /// The time of its own that it had.
    pub(crate) expiration: Option<Vec<u8>>,
    /// The other properties: without headers, as all letters have only these.
    pub(crate) properties: Vec<u8>,
}

impl Death {
    /// What these properties say, if they are those of a dead letter.
    pub(crate) fn of(properties: &[u8]) -> Option<Death> {
        let properties = RawProperties::validate(properties).ok()?.parse();
        let headers = properties.headers?;
        let Some(Value::Array(deaths)) = headers.get("x-death") else { return None };
        let mut deaths = deaths.iter();
        let (Some(Value::Table(death)), None) = (deaths.next(), deaths.next()) else { return None };
        let queue = death.get("queue")?;
        let reason = death.get("reason")?;
        let died = death.get("count").and_then(|count| count.as_i64()) == Some(1)
            && ["x-first-death-queue", "x-last-death-queue"]
                .iter()
                .all(|name| headers.get(*name) == Some(queue))
            && ["x-first-death-reason", "x-last-death-reason"]
                .iter()
                .all(|name| headers.get(*name) == Some(reason))
            && headers.iter().count() == 7;
        let reason = match reason.as_long_str()? {
            b"rejected" => Reason::Rejected,
            b"expired" => Reason::Expired,
            b"maxlen" => Reason::MaxLength,
            _ => return None,
        };
        let expiration = death.get("original-expiration");
        let expiration = expiration.and_then(|text| Some(text.as_long_str()?.to_vec()));
        let mut raw = Vec::new();
        Properties { headers: None, ..properties }.encode(&mut raw);
        let queue = known(queue.as_long_str()?).filter(|_| died)?;
        Some(Death { queue, reason, expiration, properties: raw })
    }
}
