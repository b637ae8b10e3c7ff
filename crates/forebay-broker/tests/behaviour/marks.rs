//! When marked messages came and went, for consumers that ask.

use forebay_broker::{ConnectionId, Input};
use forebay_wire::{ContentHeader, FrameKind, Properties, TableBuf, Value, basic, read_frame};

use crate::rig::{Rig, consume, declare, publish_bytes};

/// 2020-09-13.
const BEGAN_US: u64 = 1_600_000_000_000_000;

/// A queue with a marked message, and one that is not, published after 5 ms; it is 30 ms later.
fn waiting() -> (Rig, ConnectionId) {
    let mut rig = Rig::new();
    rig.shard.set_clock(BEGAN_US);
    let id = rig.client();
    rig.method(id, 1, &declare("q", false));
    rig.trace(id);
    rig.now_us = 5_000;
    for headers in [offered(), TableBuf::new().with("mine", Value::I32(1))] {
        let properties = Properties { headers: Some(headers.as_table()), ..Properties::default() };
        rig.bytes(id, &publish_bytes("", "q", false, &properties, b"m"));
    }
    rig.trace(id);
    rig.now_us = 35_000;
    (rig, id)
}

fn offered() -> TableBuf {
    TableBuf::new().with("x-forebay-offered-us", Value::I64(BEGAN_US as i64))
}

/// The headers of the deliveries so far.
fn delivered(rig: &mut Rig, id: ConnectionId) -> Vec<TableBuf> {
    rig.step(Input::Turn { busy: false });
    let out = rig.shard.outgoing(id).to_vec();
    let (mut headers, mut at) = (Vec::new(), 0);
    while let Ok(Some(frame)) = read_frame(&out[at..], 0) {
        at += frame.size_bytes();
        if frame.kind == FrameKind::Header {
            let header = ContentHeader::parse(frame.payload).expect("it is one");
            headers.push(TableBuf::from(header.properties.headers().expect("all have some")));
        }
    }
    rig.step(Input::Sent { connection: id, bytes: out.len() });
    headers
}

fn asking(asks: &TableBuf) -> basic::Consume<'_> {
    basic::Consume { arguments: asks.as_table(), ..consume("q", "c", true) }
}

#[test]
fn a_consumer_that_asks_is_told_when_a_marked_message_came_and_went() {
    let (mut rig, id) = waiting();
    let asks = TableBuf::new().with("x-forebay-marks", Value::Bool(true));
    rig.method(id, 1, &asking(&asks));
    let headers = delivered(&mut rig, id);
    let time = |name: &str| {
        let us = headers[0].as_table().get(name).and_then(|value| value.as_i64());
        us.map(|us| us as u64 - BEGAN_US)
    };
    assert_eq!(time("x-forebay-offered-us"), Some(0));
    assert_eq!(time("x-forebay-received-us"), Some(5_000));
    assert_eq!(time("x-forebay-sent-us"), Some(35_000));
    assert_eq!(headers[1], TableBuf::new().with("mine", Value::I32(1)));
}

#[test]
fn a_consumer_that_does_not_ask_gets_what_was_published() {
    for asks in [TableBuf::new(), TableBuf::new().with("x-forebay-marks", Value::Bool(false))] {
        let (mut rig, id) = waiting();
        rig.method(id, 1, &asking(&asks));
        assert_eq!(delivered(&mut rig, id)[0], offered());
    }
}

#[test]
fn a_broker_that_does_not_know_the_time_tells_none() {
    let mut rig = Rig::new();
    let id = rig.client();
    rig.method(id, 1, &declare("q", false));
    let headers = offered();
    let properties = Properties { headers: Some(headers.as_table()), ..Properties::default() };
    rig.bytes(id, &publish_bytes("", "q", false, &properties, b"m"));
    rig.trace(id);
    let asks = TableBuf::new().with("x-forebay-marks", Value::Bool(true));
    rig.method(id, 1, &asking(&asks));
    assert_eq!(delivered(&mut rig, id), [headers]);
}

#[test]
fn what_is_no_answer_to_whether_it_asks_is_refused() {
    let (mut rig, id) = waiting();
    let asks = TableBuf::new().with("x-forebay-marks", Value::I32(1));
    rig.method(id, 1, &asking(&asks));
    let refused = rig.trace(id);
    assert!(refused[0].contains("406") && refused[0].contains("x-forebay-marks"), "{refused:?}");
}
