//! Times at which a message passed the points of its way, in its headers, for those who ask where its time goes.
//!
//! ```text
//!   publisher that was asked   offered, admitted, written      in the message: encoded last of all, so they are true
//!   broker that can            received, stored, sent          added for a consumer that was asked, never stored
//!   consumer that was asked    delivered                       beside the message, read by Received::marks
//!   pipeline that put it off   all of that, and its detours    in the message that it publishes again, with which its way goes on
//! ```
//! Each is a header `x-forebay-…-us`: microseconds since 1970 by the clock where it was said. Beside them travels what the
//! window was set to, if somebody set it.

use forebay_flow::explain::{Detour, Mark, Marks};
use forebay_wire::{Table, TableBuf, Value};

/// A broker that adds marks of its own announces this, and then this argument of `basic.consume` asks for them.
pub(crate) const MARKS: &str = "forebay.marks";
/// See [`MARKS`].
pub(crate) const MARKS_ARGUMENT: &str = "x-forebay-marks";

/// The header that says when a message was offered to its publisher, in microseconds since 1970.
pub const OFFERED_HEADER: &str = "x-forebay-offered-us";

/// What the publisher's window was set to by hand, in messages; absent where it tunes itself.
const WINDOW_HEADER: &str = "x-forebay-window-messages";

/// What travels, in the order of the way.
const HEADERS: [(Mark, &str); 7] = [
    (Mark::Offered, OFFERED_HEADER),
    (Mark::Admitted, "x-forebay-admitted-us"),
    (Mark::Written, "x-forebay-written-us"),
    (Mark::Received, "x-forebay-received-us"),
    (Mark::Stored, "x-forebay-stored-us"),
    (Mark::Sent, "x-forebay-sent-us"),
    (Mark::Delivered, "x-forebay-delivered-us"),
];

/// What a message that was put off did since it was delivered for the first time, in microseconds.
const DETOURS: [(Detour, &str); 3] = [
    (Detour::Breaker, "x-forebay-breaker-us"),
    (Detour::Attempts, "x-forebay-tried-us"),
    (Detour::Pauses, "x-forebay-paused-us"),
];

/// The marks of a message that its publisher was asked for, as it goes through the window.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Stamps {
    marks: Marks,
    /// When the session's clock began, in microseconds since 1970.
    clock_began_us: u64,
}

impl Stamps {
    /// For a message that was offered at `offered_us` since 1970, and comes to a session now: `now_us` by its clock and
    /// `since_1970_us` by the system's. Its window was set to so many messages, if it was.
    pub(crate) fn new(
        offered_us: u64,
        since_1970_us: u64,
        now_us: u64,
        window_messages: Option<u32>,
    ) -> Box<Stamps> {
        let marks = Marks::new().with(Mark::Offered, offered_us);
        let marks = window_messages.into_iter().fold(marks, Marks::with_window);
        Box::new(Stamps { marks, clock_began_us: since_1970_us.saturating_sub(now_us) })
    }

    /// The same with one mark more, `now_us` by the session's clock.
    pub(crate) fn passed(&mut self, mark: Mark, now_us: u64) {
        self.marks.passed(mark, self.clock_began_us + now_us);
    }

    /// `headers` with these marks, and no others.
    pub(crate) fn on(&self, headers: Table<'_>) -> TableBuf {
        let mut headers = without(headers);
        write(&self.marks, &mut headers);
        headers
    }
}

/// Adds `marks` to headers that have none.
pub(crate) fn write(marks: &Marks, headers: &mut TableBuf) {
    let passed = HEADERS.iter().filter_map(|&(mark, name)| Some((name, marks.at_us(mark)?)));
    let window = marks.window_messages().map(|messages| (WINDOW_HEADER, messages.into()));
    let took = DETOURS.iter().map(|&(detour, name)| (name, marks.detour_us(detour)));
    let took = took.filter(|(_, us)| *us > 0);
    for (name, value) in passed.chain(window).chain(took) {
        headers.push(name, Value::I64(i64::try_from(value).unwrap_or(i64::MAX)));
    }
}

/// The marks that `headers` tell of.
pub(crate) fn read(headers: Table<'_>) -> Marks {
    let mut marks = Marks::new();
    for (name, value) in headers.iter() {
        let mark = HEADERS.iter().find(|(_, header)| header.as_bytes() == name.as_bytes());
        let detour = DETOURS.iter().find(|(_, header)| header.as_bytes() == name.as_bytes());
        let us = || value.as_i64().and_then(|us| u64::try_from(us).ok());
        if let Some((mark, _)) = mark
            && let Some(at_us) = us()
        {
            marks.passed(*mark, at_us);
        }
        if let Some((detour, _)) = detour
            && let Some(took_us) = us()
        {
            marks.detoured(*detour, took_us);
        }
        if name.as_bytes() == WINDOW_HEADER.as_bytes()
            && let Some(messages) = value.as_i64().and_then(|count| u32::try_from(count).ok())
        {
            marks = marks.with_window(messages);
        }
    }
    marks
}

/// `headers` without marks: they are of one way, and the message begins another.
pub(crate) fn without(headers: Table<'_>) -> TableBuf {
    let marks = || HEADERS.iter().map(|(_, name)| *name);
    let detours = || DETOURS.iter().map(|(_, name)| *name);
    let names = || marks().chain(detours()).chain([WINDOW_HEADER]);
    let is_mark = |name: &[u8]| names().any(|header| header.as_bytes() == name);
    let others = headers.iter().filter(|(name, _)| !is_mark(name.as_bytes()));
    others.fold(TableBuf::new(), |table, (name, value)| table.with(name.as_bytes(), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_stamped_is_read_again_by_the_system_s_clock() {
        let mut stamps = Stamps::new(1_700_000_000_000_000, 1_700_000_000_000_020, 500, Some(7));
        stamps.passed(Mark::Admitted, 500);
        stamps.passed(Mark::Written, 530);
        stamps.passed(Mark::Written, 590); // it was sent again
        let headers = stamps.on(TableBuf::new().with("mine", Value::Void).as_table());
        assert_eq!(headers.as_table().get("mine"), Some(Value::Void));
        let marks = read(headers.as_table());
        let times = [Mark::Offered, Mark::Admitted, Mark::Written].map(|mark| marks.at_us(mark));
        assert_eq!(times, [0, 20, 110].map(|us| Some(1_700_000_000_000_000 + us)));
        assert_eq!(marks.at_us(Mark::Received), None);
        assert_eq!(marks.window_messages(), Some(7));
    }

    #[test]
    fn a_message_that_is_published_again_has_the_marks_of_its_new_way_only() {
        let old = TableBuf::new()
            .with("x-forebay-sent-us", Value::I64(5))
            .with("kept", Value::Bool(true))
            .with(WINDOW_HEADER, Value::I64(10))
            .with(OFFERED_HEADER, Value::I64(1));
        let kept = TableBuf::new().with("kept", Value::Bool(true));
        assert_eq!(without(old.as_table()), kept);
        let marks = read(Stamps::new(7, 7, 0, None).on(old.as_table()).as_table());
        assert_eq!((marks.at_us(Mark::Offered), marks.at_us(Mark::Sent)), (Some(7), None));
        assert_eq!(marks.window_messages(), None);
    }

    #[test]
    fn what_is_no_time_is_no_mark() {
        for nonsense in [Value::I64(-1), Value::Bool(true), Value::LongStr(b"noon")] {
            let headers =
                TableBuf::new().with(OFFERED_HEADER, nonsense).with(WINDOW_HEADER, nonsense);
            assert_eq!(read(headers.as_table()), Marks::new());
        }
    }
}
