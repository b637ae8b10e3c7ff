//! Publishers with names, which come back and ask what was taken of them.

use std::sync::Arc;

use forebay_broker::{ConnectionId, ShardConfig};
use forebay_store::{MemDisk, Options};
use forebay_wire::{
    FrameKind, Method, PROTOCOL_HEADER, Properties, TableBuf, Value, channel, confirm, connection,
    read_frame,
};

use crate::rig::{Rig, declare, short};

/// A connection of a client that knows of names, without a channel.
fn client(rig: &mut Rig) -> ConnectionId {
    let id = rig.socket(true);
    rig.bytes(id, &PROTOCOL_HEADER);
    let capabilities = TableBuf::new().with("forebay.named_publishers", Value::Bool(true));
    let properties = TableBuf::new().with("capabilities", Value::Table(capabilities.as_table()));
    let start_ok = connection::StartOk {
        client_properties: properties.as_table(),
        mechanism: short("PLAIN"),
        response: b"\0guest\0guest",
        locale: short("en_US"),
    };
    rig.method(id, 0, &start_ok);
    let tune = connection::TuneOk { channel_max: 2047, frame_max: 131_072, heartbeat: 0 };
    rig.method(id, 0, &tune);
    rig.method(id, 0, &connection::Open { virtual_host: short("/"), ..Default::default() });
    rig.trace(id);
    id
}

/// Opens channel 1 for a publisher; what was taken of it, once that is told.
fn open(rig: &mut Rig, id: ConnectionId, words: &str) -> Option<Vec<u64>> {
    rig.method(id, 1, &channel::Open { reserved_1: short(words) });
    rig.method(id, 1, &confirm::Select::default());
    rig.settle();
    answer(rig, id)
}

fn answer(rig: &mut Rig, id: ConnectionId) -> Option<Vec<u64>> {
    let out = rig.shard.outgoing(id).to_vec();
    rig.sent(id);
    let frame = read_frame(&out, 0).unwrap()?;
    assert_eq!(frame.kind, FrameKind::Method);
    match Method::parse(frame.payload).unwrap() {
        Method::ChannelOpenOk(ok) => {
            let numbers = ok.reserved_1.chunks(8).map(|eight| eight.try_into().unwrap());
            Some(numbers.map(u64::from_be_bytes).collect())
        }
        other => panic!("{}", other.name()),
    }
}

fn publish(rig: &mut Rig, id: ConnectionId, queue: &str, count: u32) {
    let properties = Properties { delivery_mode: Some(2), ..Properties::default() };
    for _ in 0..count {
        rig.publish_with(id, "", queue, true, &properties, b"x");
    }
}

#[test]
fn who_comes_back_is_told_what_was_taken_and_what_was_returned() {
    let mut rig = Rig::new();
    let first = client(&mut rig);
    assert_eq!(open(&mut rig, first, "1 1 p"), Some(vec![]));
    rig.method(first, 1, &declare("q", false));
    publish(&mut rig, first, "q", 3);
    publish(&mut rig, first, "nowhere", 2);
    publish(&mut rig, first, "q", 1);
    rig.trace(first);
    rig.disconnect(first);
    let second = client(&mut rig);
    assert_eq!(open(&mut rig, second, "2 9 p"), Some(vec![6, 4, 5]));
    // Nothing of its new channel arrives: the answer stays.
    rig.disconnect(second);
    let third = client(&mut rig);
    assert_eq!(open(&mut rig, third, "3 20 p"), Some(vec![6, 4, 5]));
    publish(&mut rig, third, "q", 2);
    rig.trace(third);
    rig.disconnect(third);
    let fourth = client(&mut rig);
    assert_eq!(open(&mut rig, fourth, "4 30 p"), Some(vec![21]));
}

/// What a full queue refused was not taken, though nobody was there to hear it.
#[test]
fn who_comes_back_is_told_what_was_refused() {
    let mut rig = Rig::new();
    let first = client(&mut rig);
    open(&mut rig, first, "1 1 p");
    let arguments = TableBuf::new()
        .with("x-max-length", Value::I32(2))
        .with("x-overflow", Value::LongStr(b"reject-publish"));
    let mut full = declare("q", false);
    full.arguments = arguments.as_table();
    rig.method(first, 1, &full);
    publish(&mut rig, first, "q", 4);
    rig.settle();
    rig.disconnect(first);
    let second = client(&mut rig);
    assert_eq!(open(&mut rig, second, "2 5 p"), Some(vec![4, 3, 4]));
}

#[test]
fn the_answer_waits_for_the_disk_like_a_confirm() {
    let disk = Arc::new(MemDisk::default());
    let mut rig = Rig::on_disk(ShardConfig::default(), disk, Options::default());
    let first = client(&mut rig);
    open(&mut rig, first, "1 1 p");
    rig.method(first, 1, &declare("q", true));
    rig.trace(first);
    rig.disk_stalled = true;
    publish(&mut rig, first, "q", 3);
    rig.disconnect(first);
    let second = client(&mut rig);
    assert_eq!(open(&mut rig, second, "2 4 p"), None, "nothing of it is durable");
    rig.disk_stalled = false;
    rig.settle();
    assert_eq!(answer(&mut rig, second), Some(vec![3]));
}

#[test]
fn what_is_still_on_its_way_on_the_old_channel_is_not_taken() {
    let mut rig = Rig::new();
    let (old, new) = (client(&mut rig), client(&mut rig));
    open(&mut rig, old, "1 1 p");
    rig.method(old, 1, &declare("q", false));
    publish(&mut rig, old, "q", 2);
    rig.trace(old);
    assert_eq!(open(&mut rig, new, "2 5 p"), Some(vec![2]));
    assert_eq!(
        rig.trace(old),
        [
            "1 channel.close 405 RESOURCE_LOCKED - the publisher of this channel goes on at another one"
        ]
    );
    publish(&mut rig, old, "q", 2);
    publish(&mut rig, new, "q", 1);
    // Not even if it is a channel whose opening was still on its way.
    let late = client(&mut rig);
    rig.method(late, 1, &channel::Open { reserved_1: short("1 1 p") });
    assert!(rig.trace(late)[0].starts_with("1 channel.close 405"));
    publish(&mut rig, late, "q", 2);
    rig.settle();
    assert_eq!(rig.shard.status().queues[0].ready, 3);
}

#[test]
fn names_are_a_users_own_and_end_with_an_orderly_close() {
    let mut rig = Rig::new();
    let first = client(&mut rig);
    open(&mut rig, first, "1 1 p");
    rig.method(first, 1, &declare("q", false));
    publish(&mut rig, first, "q", 2);
    rig.trace(first);
    rig.method(first, 1, &channel::Close::default());
    rig.trace(first);
    assert_eq!(open(&mut rig, first, "2 3 p"), Some(vec![]));
    publish(&mut rig, first, "q", 2);
    rig.trace(first);
    rig.method(first, 0, &connection::Close::default());
    rig.trace(first);
    let second = client(&mut rig);
    assert_eq!(open(&mut rig, second, "3 5 p"), Some(vec![]));
}

#[test]
fn a_client_that_does_not_know_of_names_may_say_anything() {
    let mut rig = Rig::new();
    let id = rig.client();
    rig.method(id, 2, &channel::Open { reserved_1: short("none of your business") });
    assert_eq!(rig.trace(id), ["2 channel.open-ok"]);
    let knowing = client(&mut rig);
    rig.method(knowing, 1, &channel::Open { reserved_1: short("none of your business") });
    assert!(rig.trace(knowing)[0].starts_with("0 connection.close 502 SYNTAX_ERROR"));
}
