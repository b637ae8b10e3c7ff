//! Bodies that come mixed, on many channels of one connection, while memory is short.

use forebay_broker::{ConnectionId, ShardConfig};
use forebay_wire::{
    Properties, RawProperties, basic, channel, write_body_frame, write_header_frame, write_method,
};

use crate::rig::{Rig, declare, short};

const BUDGET_BYTES: u64 = 2 << 20;
const BODY_BYTES: usize = 1_000_000;
/// What of each body comes first: as much as its vector grows to.
const HALF_BYTES: usize = 900_000;

/// A queue `q` and a connection with so many channels.
fn client(rig: &mut Rig, channels: u16) -> ConnectionId {
    let id = rig.client();
    rig.method(id, 1, &declare("q", false));
    for number in 2..=channels {
        rig.method(id, number, &channel::Open::default());
    }
    rig.trace(id);
    id
}

fn publish(number: u16, body_bytes: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let publish = basic::Publish { routing_key: short("q"), ..basic::Publish::default() };
    write_method(&mut bytes, number, &publish);
    let mut raw = Vec::new();
    Properties::default().encode(&mut raw);
    write_header_frame(&mut bytes, number, 60, body_bytes as u64, RawProperties::trusted(&raw));
    bytes
}

fn body(number: u16, body_bytes: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in vec![7; body_bytes].chunks(100_000) {
        write_body_frame(&mut bytes, number, part);
    }
    bytes
}

#[test]
fn what_is_missing_comes_though_the_publish_of_another_channel_waits_before_it() {
    let mut rig =
        Rig::with(ShardConfig { memory_budget_bytes: BUDGET_BYTES, ..ShardConfig::default() });
    let id = client(&mut rig, 4);
    for number in 1..=3 {
        rig.bytes(id, &[publish(number, BODY_BYTES), body(number, HALF_BYTES)].concat());
    }
    assert!(rig.shard.status().memory_bytes >= BUDGET_BYTES, "they take all there is");
    let mut behind = [publish(4, 5), body(4, 5)].concat();
    for number in 1..=3 {
        behind.extend(body(number, BODY_BYTES - HALF_BYTES));
    }
    rig.bytes(id, &behind);
    assert!(rig.shard.held_bytes(id) > 0, "the publish has to wait");
    rig.pass(100);
    assert_eq!(rig.shard.status().ready, 4);
    assert_eq!(rig.shard.held_bytes(id), 0);
}

#[test]
fn more_than_can_come_to_an_end_loses_its_connection_and_nobody_else_waits() {
    let config = ShardConfig {
        memory_budget_bytes: BUDGET_BYTES,
        message_max_bytes: BODY_BYTES as u64,
        ..ShardConfig::default()
    };
    let mut rig = Rig::with(config);
    let id = client(&mut rig, 8);
    let other = rig.client();
    let mut most_bytes = 0;
    for number in 1..=8 {
        rig.bytes(id, &[publish(number, BODY_BYTES), body(number, HALF_BYTES)].concat());
        rig.pass(100);
        most_bytes = most_bytes.max(rig.shard.status().memory_bytes);
    }
    let said = rig.trace(id).concat();
    let told =
        "connection.close 506 RESOURCE_ERROR - messages that have not come to their end take";
    assert!(said.contains(told), "{said}");
    assert!(most_bytes <= BUDGET_BYTES + 3 * (2 * BODY_BYTES as u64), "{most_bytes}");
    assert_eq!(rig.shard.status().memory_bytes, 0, "what it had begun is gone");
    rig.publish(other, "q", b"small", false);
    rig.settle();
    assert_eq!(rig.shard.status().ready, 1);
}
