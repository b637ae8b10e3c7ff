//! A message that came as a dead letter, and what it was before.

use forebay_wire::{Properties, RawProperties, Value};

use crate::names::{Name, known};

/// Where a dead letter was rejected, once, and its properties before that: without headers, as all have only these.
pub(crate) fn before_death(properties: &[u8]) -> Option<(Name, Vec<u8>)> {
    let properties = RawProperties::validate(properties).ok()?.parse();
    let headers = properties.headers?;
    let Some(Value::Array(deaths)) = headers.get("x-death") else { return None };
    let mut deaths = deaths.iter();
    let (Some(Value::Table(death)), None) = (deaths.next(), deaths.next()) else { return None };
    let from = death.get("queue")?;
    let died = death.get("reason") == Some(Value::LongStr(b"rejected"))
        && death.get("count").and_then(|count| count.as_i64()) == Some(1)
        && headers.get("x-first-death-queue") == Some(from)
        && headers.get("x-last-death-queue") == Some(from)
        && headers.iter().count() == 7;
    let mut raw = Vec::new();
    Properties { headers: None, ..properties }.encode(&mut raw);
    known(from.as_long_str()?).filter(|_| died).map(|from| (from, raw))
}
