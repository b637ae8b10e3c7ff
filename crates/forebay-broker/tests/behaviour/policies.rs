use std::sync::Arc;

use forebay_broker::topology::Policy;
use forebay_broker::{ConnectionId, Input, ShardConfig};
use forebay_store::{MemDisk, Options};
use forebay_wire::{Properties, TableBuf, Value, exchange, queue};

use crate::rig::{Rig, declare, short};

/// Unrouted messages of exchanges under `orders` go to `lost`.
fn config() -> ShardConfig {
    let policies = vec![
        Policy::new("/", "^orders", 1, "lost").unwrap(),
        Policy::new("/", "^amq\\.topic$", 1, "lost").unwrap(),
        Policy::new("other", "", 9, "nowhere").unwrap(),
    ];
    ShardConfig { policies, ..ShardConfig::default() }
}

fn declare_exchange(rig: &mut Rig, id: ConnectionId, name: &str, alternate: Option<&str>) {
    let mut arguments = TableBuf::new();
    if let Some(alternate) = alternate {
        arguments.push(short("alternate-exchange"), Value::LongStr(alternate.as_bytes()));
    }
    let declare = exchange::Declare {
        exchange: short(name),
        type_name: short("fanout"),
        durable: true,
        arguments: arguments.as_table(),
        ..exchange::Declare::default()
    };
    rig.method(id, 1, &declare);
    assert_eq!(rig.trace(id), ["1 exchange.declare-ok"], "{name}");
}

/// Queues `lost` and `own` behind exchanges of the same names.
fn with_queues(rig: &mut Rig, id: ConnectionId) {
    for name in ["lost", "own"] {
        declare_exchange(rig, id, name, None);
        rig.method(id, 1, &declare(name, true));
        let bind =
            queue::Bind { queue: short(name), exchange: short(name), ..queue::Bind::default() };
        rig.method(id, 1, &bind);
        rig.trace(id);
    }
}

/// Whether a mandatory message comes back; otherwise which of the queues has it.
fn where_it_went(rig: &mut Rig, id: ConnectionId, exchange: &str) -> &'static str {
    rig.publish_with(id, exchange, "k", true, &Properties::default(), b"m");
    if !rig.trace(id).is_empty() {
        return "returned";
    }
    ["lost", "own"]
        .into_iter()
        .find(|name| {
            rig.method(id, 1, &queue::Purge { queue: short(name), ..queue::Purge::default() });
            rig.trace(id) == ["1 queue.purge-ok 1"]
        })
        .unwrap_or("dropped")
}

#[test]
fn a_policy_gives_an_alternate_exchange_and_the_argument_goes_before_it() {
    let mut rig = Rig::with(config());
    let id = rig.client();
    with_queues(&mut rig, id);
    declare_exchange(&mut rig, id, "orders.1", None);
    declare_exchange(&mut rig, id, "orders.2", Some("own"));
    declare_exchange(&mut rig, id, "others", None);
    assert_eq!(where_it_went(&mut rig, id, "orders.1"), "lost");
    assert_eq!(where_it_went(&mut rig, id, "orders.2"), "own");
    assert_eq!(where_it_went(&mut rig, id, "others"), "returned");
    assert_eq!(where_it_went(&mut rig, id, "amq.topic"), "lost");
    assert_eq!(where_it_went(&mut rig, id, ""), "returned");
    // A policy is no argument: a declaration without one is equivalent to itself.
    declare_exchange(&mut rig, id, "orders.1", None);
}

#[test]
fn a_policy_gives_queues_what_arguments_would() {
    let dead = Value::LongStr(b"");
    let definition = [
        ("message-ttl", Value::I32(100_000)),
        ("max-length", Value::I32(2)),
        ("dead-letter-exchange", dead),
        ("dead-letter-routing-key", Value::LongStr(b"dead")),
    ];
    let policies = vec![Policy::of_queues("/", "^work", 0, definition).unwrap()];
    let disk = Arc::new(MemDisk::default());
    let config = ShardConfig { policies, ..ShardConfig::default() };
    let mut rig = Rig::on_disk(config.clone(), disk.clone(), Options::default());
    let id = rig.client();
    for name in ["work", "dead", "other"] {
        rig.method(id, 1, &declare(name, true));
    }
    rig.settle();
    for (name, count) in [("work", 3), ("other", 3)] {
        for _ in 0..count {
            rig.publish(id, name, b"m", true);
        }
    }
    rig.settle();
    let ready = |rig: &Rig| {
        let status = rig.shard.status();
        let of = |name: &str| status.queues.iter().find(|q| q.name == name).map(|q| q.ready);
        ["work", "dead", "other"].map(|name| of(name).expect("it is there"))
    };
    assert_eq!(ready(&rig), [2, 1, 3], "the oldest is one too many");
    // A declaration without arguments is equivalent to itself, and the policy is there after a restart.
    rig.method(id, 1, &declare("work", true));
    assert!(rig.trace(id).iter().any(|line| line.contains("queue.declare-ok work 2")));
    rig.stop();
    disk.kill();
    let mut rig = Rig::on_disk(config, disk, Options::default());
    let id = rig.client();
    rig.publish(id, "work", b"m", true);
    rig.settle();
    assert_eq!(ready(&rig), [2, 2, 3]);
    rig.now_us += 110_000_000;
    rig.step(Input::Tick);
    rig.settle();
    assert_eq!(ready(&rig), [0, 4, 3]);
}

#[test]
fn a_policy_holds_for_exchanges_from_before_the_restart_and_goes_with_the_configuration() {
    let disk = Arc::new(MemDisk::default());
    let mut rig = Rig::on_disk(ShardConfig::default(), disk.clone(), Options::default());
    let id = rig.client();
    with_queues(&mut rig, id);
    declare_exchange(&mut rig, id, "orders", None);
    assert_eq!(where_it_went(&mut rig, id, "orders"), "returned");
    rig.stop();
    disk.kill();
    let mut rig = Rig::on_disk(config(), disk.clone(), Options::default());
    let id = rig.client();
    assert_eq!(where_it_went(&mut rig, id, "orders"), "lost");
    rig.stop();
    disk.kill();
    let mut rig = Rig::on_disk(ShardConfig::default(), disk, Options::default());
    let id = rig.client();
    assert_eq!(where_it_went(&mut rig, id, "orders"), "returned");
}
