//! When marked messages came and went, for consumers that ask.

use forebay_broker::{ConnectionId, Input};
use forebay_wire::{ContentHeader, FrameKind, Properties, TableBuf, Value, basic, read_frame};

use crate::rig::{Rig, consume, declare, publish_bytes};
use crate::scene::Scene;

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
    taken(rig, id)
}

/// The headers of what was sent and not looked at yet.
fn taken(rig: &mut Rig, id: ConnectionId) -> Vec<TableBuf> {
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
    assert_eq!(time(&headers[0], "x-forebay-offered-us"), Some(0));
    assert_eq!(time(&headers[0], "x-forebay-received-us"), Some(5_000));
    assert_eq!(time(&headers[0], "x-forebay-sent-us"), Some(35_000));
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

/// Microseconds of the broker's clock.
fn time(headers: &TableBuf, name: &str) -> Option<u64> {
    let us = headers.as_table().get(name).and_then(|value| value.as_i64());
    us.map(|us| us as u64 - BEGAN_US)
}

/// A broker on a disk with so many marked messages of 1 KB, all confirmed; offered at 0, published after 5 ms.
fn on_disk(messages: u32) -> Scene {
    let mut scene = Scene::small(4 << 20);
    scene.rig.shard.set_clock(BEGAN_US);
    let id = scene.client();
    scene.rig.now_us = scene.rig.now_us.max(5_000);
    let headers = offered();
    for number in 0..messages {
        let properties = Properties {
            headers: Some(headers.as_table()),
            delivery_mode: Some(2),
            ..Properties::default()
        };
        scene.rig.publish_with(id, "", "q", false, &properties, &[7; 1_000]);
        if number.is_multiple_of(16) {
            scene.work().expect("the disk works");
        }
    }
    scene.work().expect("the disk works");
    scene
}

/// What a consumer that asks is told of all messages.
fn told(scene: &mut Scene) -> Vec<TableBuf> {
    let id = scene.rig.client();
    let asks = TableBuf::new().with("x-forebay-marks", Value::Bool(true));
    scene.rig.method(id, 1, &asking(&asks));
    let mut all = Vec::new();
    loop {
        scene.work().expect("the disk works");
        let more = taken(&mut scene.rig, id);
        if more.is_empty() {
            return all;
        }
        all.extend(more);
    }
}

#[test]
fn what_came_back_from_a_run_tells_when_it_was_sent_and_what_stayed_in_memory_when_it_came_too() {
    let mut scene = on_disk(8_000);
    let status = scene.rig.shard.status();
    assert!(status.counters.runs_written > 0 && status.queues[0].cold > 1_000, "{status:?}");
    let published_us = scene.rig.now_us;
    scene.rig.now_us += 1_000_000;
    let all = told(&mut scene);
    assert_eq!(all.len(), 8_000);
    for headers in &all {
        assert_eq!(time(headers, "x-forebay-offered-us"), Some(0));
        assert!(time(headers, "x-forebay-sent-us") > Some(published_us), "{headers:?}");
        let received_us = time(headers, "x-forebay-received-us");
        assert!(received_us.is_none_or(|us| (5_000..=published_us).contains(&us)), "{headers:?}");
    }
    let came = |headers: &&TableBuf| time(headers, "x-forebay-received-us").is_some();
    let known = all.iter().filter(came).count();
    assert!((1..=7_000).contains(&known), "{known} were never on disk only");
}

/// By a broker that was started again, whose clock begins anew.
#[test]
fn what_came_back_over_a_restart_tells_when_it_was_sent() {
    for clean in [true, false] {
        let scene = on_disk(100);
        let mut scene = if clean { scene.stop() } else { scene.kill() };
        scene.rig.shard.set_clock(BEGAN_US + 60_000_000);
        let all = told(&mut scene);
        assert_eq!(all.len(), 100);
        for headers in &all {
            assert_eq!(time(headers, "x-forebay-offered-us"), Some(0));
            assert_eq!(time(headers, "x-forebay-received-us"), None);
            assert!(time(headers, "x-forebay-sent-us") >= Some(60_000_000), "{headers:?}");
        }
    }
}
