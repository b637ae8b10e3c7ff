//! When a message passed the broker, told to consumers that asked, of messages that their publishers marked.
//!
//! A publisher that wants to know where the time of a message goes says in a header when it offered it
//! ([`OFFERED`]). Of such a message the broker remembers when it had read it, and adds that and the time of the delivery to
//! the headers that a consumer gets who asked with [`ARGUMENT`]. What is stored, and what anybody else gets, is the
//! message byte for byte. A message that was on disk only meanwhile, in a run or over a restart, has no time at which it
//! came any more.

use forebay_wire::{
    FRAME_OVERHEAD_BYTES, Properties, RawProperties, ShortStr, Table, TableBuf, Value,
};

use crate::message::Message;

/// What a broker calls it.
pub(crate) const CAPABILITY: &str = "forebay.marks";
/// Argument of `basic.consume`, a boolean.
pub(crate) const ARGUMENT: &str = "x-forebay-marks";

/// Microseconds since 1970, as all of these.
const OFFERED: &str = "x-forebay-offered-us";
const RECEIVED: &str = "x-forebay-received-us";
const SENT: &str = "x-forebay-sent-us";
/// Told by a client that publishes it again, to wait for another attempt: its way is known up to there, and what follows is a pause.
const DELIVERED: &str = "x-forebay-delivered-us";

/// Bytes of a header frame before its properties.
const HEADER_BYTES: usize = 12;

/// Whether a message's publisher wants to know where its time goes.
pub(crate) fn is_marked(headers: Table<'_>) -> bool {
    headers.get(OFFERED).is_some()
}

/// Microseconds since 1970 at the beginning of the broker's clock, and by that clock now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    pub(crate) began_us: u64,
    pub(crate) now_us: u64,
}

/// The properties with which a marked message is delivered now; `None`: as they are, for it is not marked, or was delivered before, or a
/// frame has no room for more.
pub(crate) fn told(message: &Message, clock: Clock, frame_max_bytes: u32) -> Option<Vec<u8>> {
    let properties = RawProperties::trusted(message.raw_properties());
    let headers = properties.headers()?;
    let unmarked = message.received_us().is_none() && !is_marked(headers);
    if unmarked || headers.get(DELIVERED).is_some() {
        return None;
    }
    let since_1970 = |us: u64| Value::I64((clock.began_us + us) as i64);
    let mut marks = TableBuf::new();
    if let Some(received_us) = message.received_us() {
        marks.push(RECEIVED, since_1970(received_us));
    }
    marks.push(SENT, since_1970(clock.now_us));
    let raw = if headers.iter().any(|(name, _)| is_ours(name)) {
        // It was here before, or elsewhere: what was said there goes.
        let others = headers.iter().filter(|(name, _)| !is_ours(*name));
        let others = others.fold(TableBuf::new(), |table, (name, value)| table.with(name, value));
        let mut raw = Vec::new();
        let properties = Properties { headers: Some(others.as_table()), ..properties.parse() };
        properties.encode(&mut raw);
        RawProperties::trusted(&raw).with_more_headers(marks.as_table())
    } else {
        properties.with_more_headers(marks.as_table())
    }?;
    let frame_bytes = FRAME_OVERHEAD_BYTES + HEADER_BYTES + raw.len();
    (frame_max_bytes == 0 || frame_bytes <= frame_max_bytes as usize).then_some(raw)
}

/// Whether a header is one of those that [`told`] adds.
fn is_ours(name: ShortStr<'_>) -> bool {
    [RECEIVED, SENT].iter().any(|mark| name.as_bytes() == mark.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLOCK: Clock = Clock { began_us: 1_000_000, now_us: 70 };

    fn message(headers: &TableBuf, received_us: Option<u64>) -> Message {
        let mut raw = Vec::new();
        Properties {
            headers: Some(headers.as_table()),
            priority: Some(3),
            ..Properties::default()
        }
        .encode(&mut raw);
        let message = Message::from_bytes(Message::start(b"", b"q", &raw, 0));
        received_us.into_iter().fold(message, Message::received_at)
    }

    fn marks(raw: &[u8]) -> (Option<i64>, Option<i64>) {
        let properties = RawProperties::validate(raw).unwrap().parse();
        assert_eq!(properties.priority, Some(3), "the others are as they were");
        let headers = properties.headers.unwrap();
        let time = |name| headers.get(name).and_then(|value: Value<'_>| value.as_i64());
        assert!(time(OFFERED).is_some());
        (time(RECEIVED), time(SENT))
    }

    #[test]
    fn a_marked_message_tells_when_it_came_and_when_it_went() {
        let headers = TableBuf::new().with(OFFERED, Value::I64(5));
        let raw = told(&message(&headers, Some(20)), CLOCK, 0).unwrap();
        assert_eq!(marks(&raw), (Some(1_000_020), Some(1_000_070)));
        let raw = told(&message(&headers, None), CLOCK, 0).unwrap();
        assert_eq!(marks(&raw), (None, Some(1_000_070)), "it was on disk meanwhile");
    }

    #[test]
    fn times_of_another_broker_are_replaced() {
        let before = TableBuf::new().with(RECEIVED, Value::I64(1)).with(SENT, Value::I64(2));
        let headers = before.with(OFFERED, Value::I64(5));
        let raw = told(&message(&headers, Some(20)), CLOCK, 0).unwrap();
        assert_eq!(marks(&raw), (Some(1_000_020), Some(1_000_070)));
        let names = RawProperties::trusted(&raw).headers().unwrap().iter().count();
        assert_eq!(names, 3);
    }

    #[test]
    fn what_waited_for_another_attempt_tells_of_its_first_way() {
        let before = TableBuf::new().with(RECEIVED, Value::I64(1)).with(SENT, Value::I64(2));
        let headers = before.with(OFFERED, Value::I64(5)).with(DELIVERED, Value::I64(3));
        assert_eq!(told(&message(&headers, Some(20)), CLOCK, 0), None);
    }

    #[test]
    fn others_stay_as_they_are_and_so_does_what_fills_its_frame() {
        let headers = TableBuf::new().with("mine", Value::Void);
        assert_eq!(told(&message(&headers, None), CLOCK, 0), None);
        let headers = TableBuf::new().with(OFFERED, Value::I64(5));
        let raw = told(&message(&headers, Some(20)), CLOCK, 0).unwrap();
        let fits = (FRAME_OVERHEAD_BYTES + HEADER_BYTES + raw.len()) as u32;
        assert!(told(&message(&headers, Some(20)), CLOCK, fits).is_some());
        assert_eq!(told(&message(&headers, Some(20)), CLOCK, fits - 1), None);
    }
}
