use forebay_broker::{ConnectionId, ShardConfig};
use forebay_wire::{
    ArrayBuf, ContentHeader, FrameKind, Method, Properties, RawProperties, TableBuf, Value, basic,
    exchange, queue, read_frame,
};

use crate::expiring::declare_with;
use crate::rig::{Rig, SMALL_BYTES, consume, declare, publish_bytes, short};

/// A trace as a consumer sees it.
#[derive(Debug, Default)]
struct Trace {
    key: String,
    raw: Vec<u8>,
    body: Vec<u8>,
}

impl Trace {
    fn properties(&self) -> Properties<'_> {
        RawProperties::validate(&self.raw).expect("the broker speaks AMQP").parse()
    }

    fn header(&self, name: &str) -> Value<'_> {
        self.properties().headers.and_then(|headers| headers.get(name)).unwrap_or(Value::Void)
    }

    fn text(&self, name: &str) -> String {
        let bytes = self.header(name).as_long_str().unwrap_or_default().to_vec();
        String::from_utf8(bytes).unwrap()
    }

    fn list(&self, name: &str) -> Vec<String> {
        let Value::Array(array) = self.header(name) else { panic!("no list {name} in {self:?}") };
        let text = |value: Value<'_>| value.as_long_str().map(|text| text.to_vec());
        array.iter().filter_map(text).map(|text| String::from_utf8(text).unwrap()).collect()
    }
}

/// A broker with the firehose on, and a client that reads it: from a queue of its own, without acks.
fn rig() -> (Rig, ConnectionId, ConnectionId) {
    let trace_vhosts = vec!["/".to_owned()];
    let mut rig = Rig::with(ShardConfig { trace_vhosts, ..ShardConfig::default() });
    let (id, watcher) = (rig.client(), rig.client());
    rig.method(watcher, 1, &declare("traces", false));
    let bind = queue::Bind {
        queue: short("traces"),
        exchange: short("amq.rabbitmq.trace"),
        routing_key: short("#"),
        ..queue::Bind::default()
    };
    rig.method(watcher, 1, &bind);
    rig.method(watcher, 1, &consume("traces", "t", true));
    rig.trace(watcher);
    rig.method(id, 1, &declare("q", false));
    rig.trace(id);
    (rig, id, watcher)
}

fn traces(rig: &mut Rig, watcher: ConnectionId) -> Vec<Trace> {
    rig.settle();
    rig.settle();
    let out = rig.shard.outgoing(watcher).to_vec();
    let mut traces: Vec<Trace> = Vec::new();
    let mut at = 0;
    while let Ok(Some(frame)) = read_frame(&out[at..], 0) {
        at += frame.size_bytes();
        match frame.kind {
            FrameKind::Method => {
                let Ok(Method::BasicDeliver(deliver)) = Method::parse(frame.payload) else {
                    continue;
                };
                assert_eq!(deliver.exchange.as_bytes(), b"amq.rabbitmq.trace");
                let key = deliver.routing_key.to_string();
                traces.push(Trace { key, ..Trace::default() });
            }
            FrameKind::Header => {
                let header = ContentHeader::parse(frame.payload).unwrap();
                traces.last_mut().unwrap().raw = header.properties.raw().to_vec();
            }
            FrameKind::Body => {
                traces.last_mut().unwrap().body.extend_from_slice(frame.payload);
            }
            FrameKind::Heartbeat => {}
        }
    }
    rig.sent(watcher);
    traces
}

fn keys(traces: &[Trace]) -> Vec<&str> {
    traces.iter().map(|trace| trace.key.as_str()).collect()
}

#[test]
fn a_publish_and_its_delivery_are_told_with_all_that_is_known() {
    let (mut rig, id, watcher) = rig();
    let cc = ArrayBuf::new().with(Value::LongStr(b"also"));
    let bcc = ArrayBuf::new().with(Value::LongStr(b"q"));
    let headers = TableBuf::new()
        .with("CC", Value::Array(cc.as_array()))
        .with("BCC", Value::Array(bcc.as_array()));
    let properties = Properties {
        headers: Some(headers.as_table()),
        content_type: Some(short("text/plain")),
        type_name: Some(short("greeting")),
        delivery_mode: Some(2),
        timestamp: Some(1_700_000_000),
        ..Properties::default()
    };
    rig.publish_with(id, "", "nowhere", false, &properties, b"hello");
    let told = traces(&mut rig, watcher);
    assert_eq!(keys(&told), ["publish."]);
    let trace = &told[0];
    assert_eq!(trace.body, b"hello");
    assert_eq!(trace.text("exchange_name"), "");
    assert_eq!(trace.list("routing_keys"), ["nowhere", "also", "q"]);
    assert_eq!(trace.list("routed_queues"), ["q"]);
    assert_eq!(trace.text("node"), "forebay@localhost");
    assert_eq!(trace.text("vhost"), "/");
    assert_eq!(trace.text("user"), "guest");
    assert_eq!(trace.text("connection"), "test:1 -> test");
    assert_eq!(trace.header("channel"), Value::I32(1));
    assert_eq!(trace.header("redelivered"), Value::Void);
    assert_eq!(trace.properties().delivery_mode, None, "traces are transient");
    let Value::Table(table) = trace.header("properties") else { panic!("{trace:?}") };
    assert_eq!(table.get("content_type"), Some(Value::LongStr(b"text/plain")));
    assert_eq!(table.get("type"), Some(Value::LongStr(b"greeting")));
    assert_eq!(table.get("delivery_mode"), Some(Value::I32(2)));
    assert_eq!(table.get("timestamp"), Some(Value::I32(1_700_000_000)));
    assert_eq!(table.get("priority"), None);
    let Some(Value::Table(inner)) = table.get("headers") else { panic!("{trace:?}") };
    assert!(inner.get("CC").is_some() && inner.get("BCC").is_none());

    rig.method(id, 1, &consume("q", "c", false));
    let told = traces(&mut rig, watcher);
    assert_eq!(keys(&told), ["deliver.q"]);
    assert_eq!(told[0].body, b"hello");
    assert_eq!(told[0].header("redelivered"), Value::I32(0));
    assert_eq!(told[0].list("routing_keys"), ["nowhere", "also"]);
    assert_eq!(told[0].header("routed_queues"), Value::Void);
}

#[test]
fn every_way_out_of_a_queue_is_told_and_a_second_one_as_redelivered() {
    let (mut rig, id, watcher) = rig();
    rig.publish_with(id, "amq.direct", "lost", false, &Properties::default(), b"1");
    rig.publish(id, "q", b"2", false);
    rig.method(id, 1, &basic::Get { queue: short("q"), ..basic::Get::default() });
    rig.method(id, 1, &basic::Reject { delivery_tag: 1, requeue: true });
    rig.method(id, 1, &consume("q", "c", true));
    let told = traces(&mut rig, watcher);
    assert_eq!(keys(&told), ["publish.amq.direct", "publish.", "deliver.q", "deliver.q"]);
    assert_eq!(told[0].list("routed_queues"), [""; 0]);
    assert_eq!(told[2].header("redelivered"), Value::I32(0));
    assert_eq!(told[3].header("redelivered"), Value::I32(1));
}

#[test]
fn traces_are_not_traced_whatever_way_they_take() {
    let (mut rig, id, watcher) = rig();
    // From the trace exchange over another one back into a queue that is read.
    rig.method(
        id,
        1,
        &exchange::Bind {
            source: short("amq.rabbitmq.trace"),
            destination: short("amq.fanout"),
            routing_key: short("publish.#"),
            ..exchange::Bind::default()
        },
    );
    let bind =
        queue::Bind { queue: short("q"), exchange: short("amq.fanout"), ..queue::Bind::default() };
    rig.method(id, 1, &bind);
    rig.method(id, 1, &consume("q", "c", true));
    rig.publish(id, "q", b"once", false);
    assert_eq!(keys(&traces(&mut rig, watcher)), ["publish.", "deliver.q"]);
    let delivered = rig.trace(id);
    let count = delivered.iter().filter(|line| line.contains("basic.deliver c")).count();
    assert_eq!(count, 2, "{delivered:?}");
}

#[test]
fn nothing_is_told_where_it_is_off_or_nobody_listens() {
    let mut rig = Rig::new();
    let id = rig.client();
    rig.method(id, 1, &declare("q", false));
    rig.method(id, 1, &declare("traces", false));
    let bind = queue::Bind {
        queue: short("traces"),
        exchange: short("amq.rabbitmq.trace"),
        routing_key: short("#"),
        ..queue::Bind::default()
    };
    rig.method(id, 1, &bind);
    rig.publish(id, "q", b"x", false);
    rig.trace(id);
    rig.method(id, 1, &queue::Purge { queue: short("traces"), ..queue::Purge::default() });
    assert_eq!(rig.trace(id), ["1 queue.purge-ok 0"]);

    let trace_vhosts = vec!["/".to_owned()];
    let mut rig = Rig::with(ShardConfig { trace_vhosts, ..ShardConfig::default() });
    let id = rig.client();
    rig.publish(id, "nowhere", b"x", false);
    rig.settle();
    assert_eq!(rig.shard.status().memory_bytes, 0);
}

#[test]
fn a_trace_fits_its_frame_whatever_it_is_of() {
    let (mut rig, id, watcher) = rig();
    let large = vec![7; 130_900];
    let headers = TableBuf::new().with("large", Value::LongStr(&large));
    let properties = Properties { headers: Some(headers.as_table()), ..Properties::default() };
    rig.publish_with(id, "", "q", false, &properties, b"x");
    let mut deepest = TableBuf::new();
    for _ in 1..forebay_wire::TABLE_DEPTH_MAX {
        deepest = TableBuf::new().with("t", Value::Table(deepest.as_table()));
    }
    let properties = Properties {
        headers: Some(deepest.as_table()),
        content_type: Some(short("deep")),
        ..Properties::default()
    };
    rig.publish_with(id, "", "q", false, &properties, b"x");
    let told = traces(&mut rig, watcher);
    assert_eq!(keys(&told), ["publish.", "publish."]);
    for trace in &told {
        assert!(trace.raw.len() < 131_000);
        let Value::Table(table) = trace.header("properties") else { panic!("{}", trace.key) };
        assert!(table.get("headers").is_none());
    }
}

#[test]
fn at_the_end_of_the_budget_traces_are_dropped_and_all_memory_comes_back() {
    let trace_vhosts = vec!["/".to_owned()];
    let config =
        ShardConfig { trace_vhosts, memory_budget_bytes: SMALL_BYTES, ..ShardConfig::default() };
    let mut rig = Rig::with(config);
    let id = rig.client();
    for name in ["q", "traces"] {
        rig.method(id, 1, &declare(name, false));
    }
    let bind = queue::Bind {
        queue: short("traces"),
        exchange: short("amq.rabbitmq.trace"),
        routing_key: short("#"),
        ..queue::Bind::default()
    };
    rig.method(id, 1, &bind);
    rig.fill(id, "q");
    rig.trace(id);
    // Somebody who gives everything back again and again makes a trace each time.
    let dropped = rig.shard.status().counters.traces_dropped;
    let other = rig.client();
    for tag in 1..=50 {
        rig.method(other, 1, &basic::Get { queue: short("q"), ..basic::Get::default() });
        rig.method(other, 1, &basic::Reject { delivery_tag: tag, requeue: true });
    }
    rig.trace(other);
    assert_eq!(rig.shard.status().counters.traces_dropped, dropped + 50);
    for name in ["q", "traces"] {
        rig.method(id, 1, &queue::Purge { queue: short(name), ..queue::Purge::default() });
    }
    rig.trace(id);
    assert_eq!(rig.shard.status().memory_bytes, 0);
}

/// A queue of traces that refuses more, and holds more than it may: each that leaves it makes a trace for it.
#[test]
fn what_leaves_a_full_queue_of_traces_makes_no_room_for_its_own_trace() {
    let trace_vhosts = vec!["/".to_owned()];
    let mut rig = Rig::with(ShardConfig { trace_vhosts, ..ShardConfig::default() });
    let id = rig.client();
    let arguments = TableBuf::new()
        .with("x-max-length", Value::I32(10))
        .with("x-overflow", Value::LongStr(b"reject-publish"));
    declare_with(&mut rig, id, "q", false, &arguments);
    let reader = rig.client();
    rig.method(reader, 1, &consume("q", "c", false));
    for _ in 0..2_000 {
        rig.publish(id, "q", b"x", false);
    }
    rig.settle();
    rig.disconnect(reader);
    assert_eq!(rig.shard.status().ready, 2_000, "it comes back however many may be there");
    let bind = queue::Bind {
        queue: short("q"),
        exchange: short("amq.rabbitmq.trace"),
        routing_key: short("#"),
        ..queue::Bind::default()
    };
    rig.method(id, 1, &bind);
    rig.trace(id);
    // In one piece, so that the publish finds what the consumer has not been offered yet.
    let mut piece = Vec::new();
    forebay_wire::write_method(&mut piece, 1, &consume("q", "c", true));
    piece.extend(publish_bytes("", "q", false, &Properties::default(), b"x"));
    rig.bytes(id, &piece);
    rig.settle();
    let delivered = rig.trace(id).iter().filter(|line| line.contains("basic.deliver")).count();
    assert!(delivered >= 2_000, "{delivered}");
}
