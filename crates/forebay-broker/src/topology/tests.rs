//! What clients see of exchanges, bindings and routing, line by line.

use forebay_wire::{ReplyCode, Scope, Table, TableBuf, Value};

use super::*;
use crate::error::AmqpError;

fn declaration<'a>(name: &'a str, kind: &'a str) -> ExchangeDeclaration<'a> {
    ExchangeDeclaration {
        name: name.as_bytes(),
        kind: kind.as_bytes(),
        durable: true,
        auto_delete: false,
        internal: false,
        arguments: Table::default(),
    }
}

fn bind<'a>(source: &'a str, destination: BindTo<'a>, key: &'a str) -> Bind<'a> {
    Bind {
        source: source.as_bytes(),
        destination,
        routing_key: key.as_bytes(),
        arguments: Table::default(),
    }
}

fn to_queue(name: &str) -> BindTo<'_> {
    BindTo::Queue(name.as_bytes())
}

fn to_exchange(name: &str) -> BindTo<'_> {
    BindTo::Exchange(name.as_bytes())
}

/// A topology with the queues `q0`, `q1`, `q2` under keys 0, 1, 2; the last is transient.
fn topology() -> VhostTopology {
    let mut topology = VhostTopology::new("/");
    for (name, key, durable) in [("q0", 0, true), ("q1", 1, true), ("q2", 2, false)] {
        topology.add_queue(name.as_bytes(), QueueKey(key), durable);
    }
    topology
}

fn routed_with(
    topology: &VhostTopology,
    exchange: &str,
    key: &str,
    more_keys: &[&[u8]],
    headers: Table<'_>,
) -> Vec<u32> {
    let mut set = RouteSet::new();
    let exchange = topology.exchange_key(exchange.as_bytes()).expect("the exchange is there");
    topology.route(exchange, key.as_bytes(), more_keys, headers, &mut set);
    let mut queues: Vec<u32> = set.queues().iter().map(|queue| queue.0).collect();
    queues.sort_unstable();
    queues
}

fn routed(topology: &VhostTopology, exchange: &str, key: &str) -> Vec<u32> {
    routed_with(topology, exchange, key, &[], Table::default())
}

fn text(result: Result<Vec<Change>, AmqpError>) -> String {
    result.unwrap_err().reply_text()
}

#[test]
fn predeclared_exchanges_are_there() {
    let topology = VhostTopology::new("/");
    let seen: Vec<_> = topology
        .exchanges()
        .map(|each| {
            assert!(each.durable() && !each.auto_delete());
            (String::from_utf8_lossy(each.name()).into_owned(), each.kind().name(), each.internal())
        })
        .collect();
    let expected = [
        ("", "direct", false),
        ("amq.direct", "direct", false),
        ("amq.fanout", "fanout", false),
        ("amq.headers", "headers", false),
        ("amq.match", "headers", false),
        ("amq.rabbitmq.trace", "topic", true),
        ("amq.topic", "topic", false),
    ];
    assert_eq!(seen, expected.map(|(name, kind, internal)| (name.to_owned(), kind, internal)));
}

#[test]
fn the_default_exchange_is_nobodys_to_change() {
    let mut topology = topology();
    let refused = "ACCESS_REFUSED - operation not permitted on the default exchange";
    assert_eq!(text(topology.declare_exchange(&declaration("", "direct"))), refused);
    assert_eq!(topology.check_exchange(b"").unwrap_err().reply_text(), refused);
    assert_eq!(text(topology.delete_exchange(b"", false)), refused);
    assert_eq!(text(topology.bind(&bind("", to_queue("q0"), "k"))), refused);
    assert_eq!(text(topology.unbind(&bind("", to_queue("q0"), "k"))), refused);
    assert_eq!(text(topology.bind(&bind("amq.direct", to_exchange(""), "k"))), refused);
    assert_eq!(text(topology.unbind(&bind("amq.direct", to_exchange("\r\n"), "k"))), refused);
}

#[test]
fn names_under_amq_are_the_brokers() {
    let mut topology = topology();
    assert_eq!(
        text(topology.declare_exchange(&declaration("amq.mine", "direct"))),
        "ACCESS_REFUSED - exchange name 'amq.mine' contains reserved prefix 'amq.*'"
    );
    assert_eq!(topology.declare_exchange(&declaration("amq.direct", "direct")), Ok(vec![]));
    assert_eq!(
        text(topology.delete_exchange(b"amq.direct", false)),
        "ACCESS_REFUSED - deletion of system exchange 'amq.direct' in vhost '/' not allowed"
    );
    assert_eq!(
        topology.exchange_to_publish(b"amq.rabbitmq.trace").unwrap_err().reply_text(),
        "ACCESS_REFUSED - cannot publish to internal exchange 'amq.rabbitmq.trace' in vhost '/'"
    );
}

#[test]
fn redeclaration_compares_everything_known() {
    let mut topology = topology();
    let alternate = TableBuf::new().with("alternate-exchange", Value::LongStr(b"ae"));
    let first =
        ExchangeDeclaration { arguments: alternate.as_table(), ..declaration("x", "fanout") };
    assert_eq!(topology.declare_exchange(&first).map(|changes| changes.len()), Ok(1));
    assert_eq!(topology.declare_exchange(&first), Ok(vec![]));
    let unknown = alternate.clone().with("x-mine", Value::Void);
    let same = ExchangeDeclaration { arguments: unknown.as_table(), ..first };
    assert_eq!(topology.declare_exchange(&same), Ok(vec![]), "unknown arguments do not count");
    let start = "PRECONDITION_FAILED - inequivalent arg";
    let of = "for exchange 'x' in vhost '/': received";
    let cases = [
        (
            ExchangeDeclaration { kind: b"topic", ..first },
            format!("{start} 'type' {of} 'topic' but current is 'fanout'"),
        ),
        (
            ExchangeDeclaration { durable: false, ..first },
            format!("{start} 'durable' {of} 'false' but current is 'true'"),
        ),
        (
            ExchangeDeclaration { auto_delete: true, ..first },
            format!("{start} 'auto_delete' {of} 'true' but current is 'false'"),
        ),
        (
            ExchangeDeclaration { internal: true, ..first },
            format!("{start} 'internal' {of} 'true' but current is 'false'"),
        ),
        (
            ExchangeDeclaration { arguments: Table::default(), ..first },
            format!(
                "{start} 'alternate-exchange' {of} none but current is the value 'ae' of type \
                 'longstr'"
            ),
        ),
    ];
    for (declaration, expected) in cases {
        assert_eq!(text(topology.declare_exchange(&declaration)), expected);
    }
}

#[test]
fn unknown_types_close_the_connection() {
    let mut topology = topology();
    for (kind, what) in [("x-random", "unknown"), ("", "invalid"), ("Direct", "unknown")] {
        let error = topology.declare_exchange(&declaration("x", kind)).unwrap_err();
        assert_eq!((error.code, error.scope()), (ReplyCode::CommandInvalid, Scope::Connection));
        assert_eq!(error.text, format!("{what} exchange type '{kind}'"));
    }
}

#[test]
fn a_passive_declaration_looks_at_the_name_only() {
    let topology = topology();
    assert_eq!(topology.check_exchange(b"amq.topic"), Ok(()));
    assert_eq!(topology.check_exchange(b"amq.to\npic\r"), Ok(()));
    assert_eq!(
        topology.check_exchange(b"none").unwrap_err().reply_text(),
        "NOT_FOUND - no exchange 'none' in vhost '/'"
    );
}

#[test]
fn names_lose_line_ends() {
    let mut topology = topology();
    topology.declare_exchange(&declaration("a\r\nb", "direct")).unwrap();
    assert!(topology.exchange(b"ab").is_some());
    topology.bind(&bind("a\nb", to_queue("q\r0"), "k\n")).unwrap();
    assert_eq!(routed(&topology, "ab", "k\n"), [0], "keys keep theirs");
    assert_eq!(topology.unbind(&bind("ab", to_queue("q0\n"), "k\n")).unwrap().len(), 1);
    assert_eq!(topology.delete_exchange(b"ab\n", false).unwrap().len(), 1);
}

#[test]
fn an_alternate_exchange_must_be_a_name() {
    let mut topology = topology();
    let number = TableBuf::new().with("alternate-exchange", Value::I32(1));
    let declaration =
        ExchangeDeclaration { arguments: number.as_table(), ..declaration("x", "direct") };
    assert_eq!(
        text(topology.declare_exchange(&declaration)),
        "PRECONDITION_FAILED - invalid type 'signedint' for arg 'alternate-exchange' in exchange \
         'x' in vhost '/'"
    );
    assert!(topology.exchange(b"x").is_none());
}

#[test]
fn deletion_respects_if_unused_and_absence() {
    let mut topology = topology();
    topology.declare_exchange(&declaration("x", "direct")).unwrap();
    topology.declare_exchange(&declaration("y", "direct")).unwrap();
    topology.bind(&bind("y", to_exchange("x"), "k")).unwrap();
    topology.bind(&bind("x", to_queue("q0"), "k")).unwrap();
    assert_eq!(
        text(topology.delete_exchange(b"x", true)),
        "PRECONDITION_FAILED - exchange 'x' in vhost '/' in use"
    );
    topology.unbind(&bind("x", to_queue("q0"), "k")).unwrap();
    let changes = topology.delete_exchange(b"x", true).unwrap();
    assert!(
        matches!(&changes[..], [Change::BindingRemoved { .. }, Change::ExchangeRemoved(_)]),
        "bindings to it are no use, and go with it: {changes:?}"
    );
    assert_eq!(topology.delete_exchange(b"x", true), Ok(vec![]));
    assert_eq!(topology.bindings_len(), 0);
}

#[test]
fn both_ends_of_a_binding_must_exist_to_bind_and_neither_to_unbind() {
    let mut topology = topology();
    let no_exchange = "NOT_FOUND - no exchange 'none' in vhost '/'";
    assert_eq!(text(topology.bind(&bind("none", to_queue("q0"), "k"))), no_exchange);
    assert_eq!(text(topology.bind(&bind("none", to_queue("nope"), "k"))), no_exchange);
    assert_eq!(text(topology.bind(&bind("amq.direct", to_exchange("none"), "k"))), no_exchange);
    assert_eq!(
        text(topology.bind(&bind("amq.direct", to_queue("nope"), "k"))),
        "NOT_FOUND - no queue 'nope' in vhost '/'"
    );
    for absent in [
        bind("none", to_queue("q0"), "k"),
        bind("amq.direct", to_queue("nope"), "k"),
        bind("amq.direct", to_exchange("none"), "k"),
        bind("amq.direct", to_queue("q0"), "never bound"),
    ] {
        assert_eq!(topology.unbind(&absent), Ok(vec![]));
    }
}

#[test]
fn an_x_match_that_makes_no_sense_is_refused_by_headers_exchanges_only() {
    let mut topology = topology();
    let odd = TableBuf::new().with("x-match", Value::LongStr(b"most"));
    let bind_to = |source| Bind { arguments: odd.as_table(), ..bind(source, to_queue("q0"), "") };
    assert!(text(topology.bind(&bind_to("amq.match"))).contains("Invalid x-match field value"));
    assert!(topology.bind(&bind_to("amq.direct")).is_ok());
}

#[test]
fn arguments_are_part_of_what_a_binding_is() {
    let mut topology = topology();
    let one = TableBuf::new().with("a", Value::I32(1)).with("b", Value::I32(2));
    let swapped = TableBuf::new().with("b", Value::I32(2)).with("a", Value::I32(1));
    let plain = bind("amq.direct", to_queue("q0"), "k");
    let with_arguments = Bind { arguments: one.as_table(), ..plain };
    assert_eq!(topology.bind(&plain).unwrap().len(), 1);
    assert_eq!(topology.bind(&plain), Ok(vec![]), "the same binding is one binding");
    assert_eq!(topology.bind(&with_arguments).unwrap().len(), 1);
    assert_eq!(topology.bind(&Bind { arguments: swapped.as_table(), ..plain }), Ok(vec![]));
    assert_eq!(routed(&topology, "amq.direct", "k"), [0], "two bindings, one copy");
    assert_eq!(topology.unbind(&plain).unwrap().len(), 1);
    assert_eq!(routed(&topology, "amq.direct", "k"), [0]);
    assert_eq!(topology.unbind(&Bind { arguments: swapped.as_table(), ..plain }).unwrap().len(), 1);
    assert_eq!(routed(&topology, "amq.direct", "k"), [0u32; 0]);
}

#[test]
fn the_default_exchange_routes_by_queue_name() {
    let mut topology = topology();
    assert_eq!(routed(&topology, "", "q1"), [1]);
    assert_eq!(routed(&topology, "", "none"), [0u32; 0]);
    assert_eq!(routed_with(&topology, "", "q1", &[b"q0", b"q1"], Table::default()), [0, 1]);
    topology.remove_queue(b"q1");
    assert_eq!(routed(&topology, "", "q1"), [0u32; 0]);
}

#[test]
fn each_type_routes_in_its_way_and_to_each_queue_once() {
    let mut topology = topology();
    for key in ["a.#", "*.b", "#"] {
        topology.bind(&bind("amq.topic", to_queue("q0"), key)).unwrap();
        topology.bind(&bind("amq.fanout", to_queue("q1"), key)).unwrap();
    }
    topology.bind(&bind("amq.topic", to_queue("q2"), "a.*")).unwrap();
    assert_eq!(routed(&topology, "amq.topic", "a.b"), [0, 2]);
    assert_eq!(routed(&topology, "amq.topic", ""), [0]);
    assert_eq!(routed(&topology, "amq.fanout", "whatever"), [1]);
    assert_eq!(routed_with(&topology, "amq.topic", "", &[b"a.b"], Table::default()), [0, 2]);
}

#[test]
fn a_route_by_headers_says_so() {
    let mut topology = topology();
    let arguments = TableBuf::new().with("a", Value::I32(1));
    let by_headers =
        Bind { arguments: arguments.as_table(), ..bind("amq.match", to_queue("q0"), "") };
    topology.bind(&by_headers).unwrap();
    topology.bind(&bind("amq.fanout", to_exchange("amq.match"), "")).unwrap();
    let headers = TableBuf::new().with("z", Value::Void).with("a", Value::I64(1));
    assert_eq!(routed_with(&topology, "amq.fanout", "", &[], headers.as_table()), [0]);
    assert_eq!(routed(&topology, "amq.fanout", ""), [0u32; 0]);
    let mut set = RouteSet::new();
    for (exchange, depends) in [("amq.fanout", true), ("amq.direct", false), ("amq.match", true)] {
        let key = topology.exchange_key(exchange.as_bytes()).unwrap();
        topology.route(key, b"", &[], Table::default(), &mut set);
        assert_eq!(set.depends_on_headers(), depends, "{exchange}");
    }
}

#[test]
fn exchanges_bound_in_a_circle_are_asked_once() {
    let mut topology = topology();
    for name in ["a", "b", "c"] {
        topology.declare_exchange(&declaration(name, "fanout")).unwrap();
    }
    for (source, destination) in [("a", "b"), ("b", "c"), ("c", "a"), ("a", "a"), ("a", "c")] {
        topology.bind(&bind(source, to_exchange(destination), "")).unwrap();
    }
    topology.bind(&bind("c", to_queue("q0"), "")).unwrap();
    topology.bind(&bind("a", to_queue("q0"), "")).unwrap();
    assert_eq!(routed(&topology, "b", ""), [0]);
    let changes = topology.delete_exchange(b"a", false).unwrap();
    assert_eq!(changes.len(), 6, "five bindings and itself: {changes:?}");
    assert_eq!(routed(&topology, "b", ""), [0]);
}

#[test]
fn the_alternate_exchange_gets_what_did_not_match() {
    let mut topology = topology();
    let mut declare = |name: &str, alternate: &str| {
        let arguments =
            TableBuf::new().with("alternate-exchange", Value::LongStr(alternate.as_bytes()));
        let declaration =
            ExchangeDeclaration { arguments: arguments.as_table(), ..declaration(name, "direct") };
        topology.declare_exchange(&declaration).unwrap();
    };
    declare("x", "y");
    declare("y", "x");
    declare("z", "later");
    topology.bind(&bind("x", to_queue("q0"), "x")).unwrap();
    topology.bind(&bind("y", to_queue("q1"), "y")).unwrap();
    topology.bind(&bind("y", to_queue("q1"), "x")).unwrap();
    assert_eq!(routed(&topology, "x", "x"), [0], "only if nothing matched");
    assert_eq!(routed(&topology, "x", "y"), [1]);
    assert_eq!(routed(&topology, "x", "neither"), [0u32; 0], "the circle is cut");
    assert_eq!(routed(&topology, "z", "k"), [0u32; 0], "it need not exist");
    topology.declare_exchange(&declaration("later", "fanout")).unwrap();
    topology.bind(&bind("later", to_queue("q2"), "")).unwrap();
    assert_eq!(routed(&topology, "z", "k"), [2]);
}

#[test]
fn an_auto_delete_exchange_goes_with_its_last_binding_and_takes_others_along() {
    let mut topology = topology();
    for name in ["a", "b"] {
        let declaration = ExchangeDeclaration { auto_delete: true, ..declaration(name, "fanout") };
        topology.declare_exchange(&declaration).unwrap();
    }
    topology.declare_exchange(&declaration("stays", "fanout")).unwrap();
    assert!(topology.exchange(b"a").is_some(), "not before its first binding");
    topology.bind(&bind("stays", to_exchange("a"), "")).unwrap();
    topology.bind(&bind("a", to_exchange("b"), "")).unwrap();
    topology.bind(&bind("b", to_queue("q0"), "1")).unwrap();
    topology.bind(&bind("b", to_queue("q0"), "2")).unwrap();
    assert_eq!(topology.unbind(&bind("b", to_queue("q0"), "1")).unwrap().len(), 1);
    assert!(topology.exchange(b"b").is_some());
    let changes = topology.remove_queue(b"q0");
    let removed: Vec<_> = changes
        .iter()
        .filter_map(|change| match change {
            Change::ExchangeRemoved(exchange) => Some(String::from_utf8_lossy(&exchange.name)),
            _ => None,
        })
        .collect();
    assert_eq!(removed, ["b", "a"]);
    assert_eq!(changes.len(), 5);
    assert!(topology.exchange(b"stays").is_some());
    assert_eq!(topology.bindings_len(), 0);
}

#[test]
fn being_bound_to_does_not_keep_an_auto_delete_exchange() {
    let mut topology = topology();
    let declaration = ExchangeDeclaration { auto_delete: true, ..declaration("a", "fanout") };
    topology.declare_exchange(&declaration).unwrap();
    topology.bind(&bind("amq.fanout", to_exchange("a"), "")).unwrap();
    topology.unbind(&bind("amq.fanout", to_exchange("a"), "")).unwrap();
    assert!(topology.exchange(b"a").is_some(), "only bindings from it count");
}

#[test]
fn what_is_durable_at_both_ends_is_written_down() {
    let mut topology = topology();
    let writes = |changes: Vec<Change>| changes.iter().filter_map(Change::meta_write).count();
    let transient = ExchangeDeclaration { durable: false, ..declaration("t", "direct") };
    assert_eq!(writes(topology.declare_exchange(&transient).unwrap()), 0);
    assert_eq!(writes(topology.declare_exchange(&declaration("d", "direct")).unwrap()), 1);
    assert_eq!(writes(topology.bind(&bind("t", to_queue("q0"), "k")).unwrap()), 0);
    assert_eq!(writes(topology.bind(&bind("d", to_exchange("t"), "k")).unwrap()), 0);
    assert_eq!(writes(topology.bind(&bind("d", to_queue("q2"), "k")).unwrap()), 0);
    let added = topology.bind(&bind("d", to_queue("q0"), "k")).unwrap();
    let Some(MetaWrite::Put { key, value }) = added[0].meta_write() else { panic!("{added:?}") };
    let removed = topology.unbind(&bind("d", to_queue("q0"), "k")).unwrap();
    assert_eq!(removed[0].meta_write(), Some(MetaWrite::Delete { key: key.clone() }));
    let Ok(Record::Binding(record)) = Record::decode(&key, &value) else { panic!("{value:?}") };
    assert!(topology.restore_binding(&record));
    assert_eq!(routed(&topology, "d", "k"), [0, 2]);
    topology.remove_queue(b"q0");
    assert!(!topology.restore_binding(&record), "an end is gone");
}

#[test]
fn every_change_moves_the_version_and_nothing_else_does() {
    let mut topology = topology();
    let mut version = topology.version();
    let mut moved = |topology: &VhostTopology| {
        let moved = topology.version() != version;
        version = topology.version();
        moved
    };
    topology.declare_exchange(&declaration("x", "direct")).unwrap();
    assert!(moved(&topology));
    topology.declare_exchange(&declaration("x", "direct")).unwrap();
    assert!(!moved(&topology));
    topology.bind(&bind("x", to_queue("q0"), "k")).unwrap();
    assert!(moved(&topology));
    topology.bind(&bind("x", to_queue("q0"), "k")).unwrap();
    topology.unbind(&bind("x", to_queue("q0"), "other")).unwrap();
    topology.delete_exchange(b"none", false).unwrap();
    topology.remove_queue(b"none");
    assert!(!moved(&topology));
    topology.unbind(&bind("x", to_queue("q0"), "k")).unwrap();
    assert!(moved(&topology));
    topology.remove_queue(b"q0");
    assert!(moved(&topology));
    topology.add_queue(b"q0", QueueKey(0), true);
    assert!(moved(&topology));
    topology.delete_exchange(b"x", false).unwrap();
    assert!(moved(&topology));
}
