//! A message that is published again to wait: what is added to it, and what has to be left out.
//!
//! ```text
//!   x-forebay-attempts    attempts so far
//!   x-forebay-due-ms      not before, in milliseconds since 1970
//! ```
//! All other properties and headers stay, but for three that would lead it elsewhere: `expiration` (its rung has its own, and a
//! broker drops the message's when it dead-letters it), the header `CC` (further queues would get a copy), and an `x-death` that
//! names the queue itself, which RabbitMQ takes for a loop and drops the message.

use forebay_flow::explain::Marks;
use forebay_wire::{Properties, ShortStr, Table, TableBuf, Value};

use crate::marks;
use crate::message::Message;
use crate::received::Received;

/// The header that says how many attempts at a message there were before it was put off.
pub const ATTEMPTS_HEADER: &str = "x-forebay-attempts";
/// The header that says before when a message is not to be tried again, in milliseconds since 1970.
pub const DUE_HEADER: &str = "x-forebay-due-ms";

/// What is said of a message that is put off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Again {
    /// Attempts so far.
    pub attempts: u32,
    /// Not before, in milliseconds since 1970.
    pub due_ms: u64,
    /// Its way so far, where that is wanted: instead of the marks with which it came.
    pub marks: Option<Marks>,
}

impl Received {
    /// How many attempts at it there were before it was put off, by its header [`ATTEMPTS_HEADER`]; 0 without one.
    pub fn attempts(&self) -> u32 {
        self.whole_number(ATTEMPTS_HEADER).and_then(|count| u32::try_from(count).ok()).unwrap_or(0)
    }

    /// Before when it is not to be tried again, in milliseconds since 1970, by its header [`DUE_HEADER`].
    pub fn due_ms(&self) -> Option<u64> {
        self.whole_number(DUE_HEADER)
    }

    fn whole_number(&self, header: &str) -> Option<u64> {
        let value = self.raw_properties().headers()?.get(header)?;
        u64::try_from(value.as_i64()?).ok()
    }
}

/// `received`, which came from `queue`, to be published again.
pub(super) fn message(received: &Received, again: &Again, queue: &str) -> Message {
    let properties = received.properties();
    let came = properties.headers.unwrap_or_default();
    let kept = match &again.marks {
        None => TableBuf::from(came),
        Some(_) => marks::without(came),
    };
    let mut headers = TableBuf::new();
    for (name, value) in without(kept.as_table()).as_table().iter() {
        let astray = match name.as_bytes() {
            b"CC" => true,
            b"x-death" => names(value, queue),
            _ => false,
        };
        if !astray {
            headers.push(name.as_bytes(), value);
        }
    }
    headers.push(ATTEMPTS_HEADER, Value::I64(again.attempts.into()));
    headers.push(DUE_HEADER, Value::I64(i64::try_from(again.due_ms).unwrap_or(i64::MAX)));
    if let Some(marks) = &again.marks {
        marks::write(marks, &mut headers);
    }
    let properties =
        Properties { headers: Some(headers.as_table()), expiration: None, ..properties };
    let mut raw = Vec::new();
    properties.encode(&mut raw);
    Message::with_raw_properties(received.body(), raw)
}

/// `headers` without what is said of attempts: they were made at the queue that it came from.
pub(crate) fn without(headers: Table<'_>) -> TableBuf {
    let ours = |name: &[u8]| [ATTEMPTS_HEADER, DUE_HEADER].iter().any(|it| it.as_bytes() == name);
    let others = headers.iter().filter(|(name, _)| !ours(name.as_bytes()));
    others.fold(TableBuf::new(), |table, (name, value)| table.with(name.as_bytes(), value))
}

/// Whether these deaths, or what is said to be some, are among others in `queue`.
fn names(deaths: Value<'_>, queue: &str) -> bool {
    let Value::Array(deaths) = deaths else { return true };
    deaths.iter().any(|death| match death {
        Value::Table(death) => death.get("queue") == Some(Value::LongStr(queue.as_bytes())),
        _ => false,
    })
}

/// Who is said to have published it, which a broker believes that login alone.
pub(super) fn user_id(received: &Received) -> Option<ShortStr<'_>> {
    received.properties().user_id
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_flow::explain::{Detour, Mark};
    use forebay_wire::ArrayBuf;

    const AGAIN: Again = Again { attempts: 3, due_ms: 1_700_000_000_500, marks: None };

    fn death(queue: &str) -> ArrayBuf {
        let death = TableBuf::new()
            .with("queue", Value::LongStr(queue.as_bytes()))
            .with("reason", Value::LongStr(b"expired"));
        ArrayBuf::new().with(Value::Table(death.as_table()))
    }

    fn put_off(message: Message, again: &Again) -> Received {
        Received::from(super::message(&Received::from(message), again, "orders"))
    }

    #[test]
    fn what_is_put_off_stays_what_it_is_and_tells_of_its_attempts() {
        let sent = || {
            Message::from("order")
                .message_id("7")
                .content_type("text/plain")
                .correlation_id("c")
                .priority(4)
                .timestamp_s(9)
                .header("mine", Value::Bool(true))
                .header("x-forebay-offered-us", Value::I64(5))
        };
        let came = sent().expires_after_ms(10).header("CC", Value::Void);
        let once = put_off(came, &AGAIN);
        assert_eq!((once.attempts(), once.due_ms()), (3, Some(1_700_000_000_500)));
        assert_eq!(once.body(), b"order");
        let plain = Received::from(sent());
        let (plain, properties) = (plain.properties(), once.properties());
        let bare = |properties| Properties { headers: None, ..properties };
        assert_eq!(bare(properties), bare(plain));
        let headers = properties.headers.unwrap();
        for (name, value) in plain.headers.unwrap().iter() {
            assert_eq!(headers.get(name.as_bytes()), Some(value));
        }
        assert_eq!(headers.iter().count(), 4, "{headers:?}");
        let twice = super::message(&once, &Again { attempts: 4, ..AGAIN }, "orders");
        let twice = Received::from(twice);
        assert_eq!(twice.attempts(), 4);
        assert_eq!(twice.properties().headers.unwrap().iter().count(), 4, "and not six");
    }

    #[test]
    fn what_a_program_passes_on_begins_anew() {
        let back = put_off(Message::from("").header("mine", Value::Void), &AGAIN);
        let elsewhere = Message::from("").with_properties(&back.properties());
        let elsewhere = Received::from(elsewhere);
        assert_eq!((elsewhere.attempts(), elsewhere.due_ms()), (0, None));
        assert!(elsewhere.properties().headers.unwrap().get("mine").is_some());
    }

    #[test]
    fn a_message_without_an_id_gets_none() {
        let bare = Received::for_test(&[0, 0], b"bare");
        let message = super::message(&bare, &AGAIN, "orders");
        assert_eq!(Received::from(message).properties().message_id, None);
    }

    #[test]
    fn deaths_are_kept_unless_they_look_like_a_loop() {
        for (queue, kept) in [("orders", false), ("orders.retry.8s", true)] {
            let deaths = death(queue);
            let came = Message::from("").header("x-death", Value::Array(deaths.as_array()));
            let put_off = put_off(came, &AGAIN);
            let headers = put_off.properties().headers.unwrap();
            assert_eq!(headers.get("x-death").is_some(), kept, "{queue}");
        }
    }

    #[test]
    fn what_is_explained_goes_on_from_where_it_was() {
        let mut marks = Marks::new().with(Mark::Offered, 10).with(Mark::Delivered, 30);
        marks.detoured(Detour::Attempts, 7);
        marks.detoured(Detour::Pauses, 8_000_000);
        let again = Again { marks: Some(marks), ..AGAIN };
        let came = Message::from("").header("x-forebay-offered-us", Value::I64(11));
        let mut back = put_off(came, &again);
        back.set_delivered(9_000_000);
        assert_eq!(back.marks(), marks);
    }

    #[test]
    fn what_is_no_number_counts_for_nothing() {
        for nonsense in [Value::Bool(true), Value::I64(-1), Value::LongStr(b"3")] {
            let message = Message::from("").header(ATTEMPTS_HEADER, nonsense);
            let received = Received::from(message.header(DUE_HEADER, nonsense));
            assert_eq!((received.attempts(), received.due_ms()), (0, None));
        }
    }
}
