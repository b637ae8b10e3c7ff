use forebay_broker::access::{Password, Permissions, User};
use forebay_broker::{ConnectionId, ShardConfig};
use forebay_wire::{
    ArrayBuf, Properties, TableBuf, Value, WireMethod, channel, confirm, exchange, queue, tx,
};

use crate::rig::{Rig, declare, short};

/// A broker with a user `app` who may do everything, but with keys of its own only at `amq.topic`.
fn rig() -> (Rig, ConnectionId) {
    let mut permissions = Permissions::all();
    let own_keys = ("^{username}\\.", "^{username}\\.");
    permissions.topics.limit("amq.topic", own_keys, "app", "/").unwrap();
    let app = User::new("app", Password::Plain("secret".to_owned()));
    let users = vec![User::guest(), app.with_permissions("/", permissions)];
    let mut rig = Rig::with(ShardConfig { users, ..ShardConfig::default() });
    let id = rig.client_as(b"\0app\0secret");
    (rig, id)
}

fn refused(access: &str, key: &str) -> String {
    format!(
        "1 channel.close 403 ACCESS_REFUSED - {access} access to topic '{key}' in exchange \
         'amq.topic' in vhost '/' refused for user 'app'"
    )
}

impl Rig {
    fn reopen(&mut self, id: ConnectionId) {
        self.method(id, 1, &channel::CloseOk::default());
        self.method(id, 1, &channel::Open::default());
        assert_eq!(self.trace(id), ["1 channel.open-ok"]);
    }

    fn publish_to(&mut self, id: ConnectionId, exchange: &str, key: &str) -> Vec<String> {
        self.publish_with(id, exchange, key, false, &Properties::default(), b"x");
        self.trace(id)
    }

    fn answer(&mut self, id: ConnectionId, method: &impl WireMethod) -> Vec<String> {
        self.method(id, 1, method);
        self.trace(id)
    }
}

#[test]
fn keys_of_publishes_and_bindings_are_checked_at_the_topic_exchange() {
    let (mut rig, id) = rig();
    rig.method(id, 1, &declare("q", false));
    let bind = |key| queue::Bind {
        queue: short("q"),
        exchange: short("amq.topic"),
        routing_key: short(key),
        ..queue::Bind::default()
    };
    rig.trace(id);
    assert_eq!(rig.answer(id, &bind("app.#")), ["1 queue.bind-ok"]);
    assert_eq!(rig.answer(id, &bind("#")), [refused("read", "#")]);
    rig.reopen(id);
    let unbind = queue::Unbind {
        queue: short("q"),
        exchange: short("amq.topic"),
        routing_key: short("#"),
        ..queue::Unbind::default()
    };
    assert_eq!(rig.answer(id, &unbind), [refused("read", "#")]);
    rig.reopen(id);
    let source = |exchange: &'static str, key: &'static str| exchange::Bind {
        source: short(exchange),
        destination: short("amq.fanout"),
        routing_key: short(key),
        ..exchange::Bind::default()
    };
    assert_eq!(rig.answer(id, &source("amq.topic", "app.1")), ["1 exchange.bind-ok"]);
    assert_eq!(rig.answer(id, &source("amq.direct", "other")), ["1 exchange.bind-ok"]);
    assert_eq!(rig.answer(id, &source("amq.topic", "other")), [refused("read", "other")]);
    rig.reopen(id);
    rig.method(id, 1, &confirm::Select::default());
    rig.trace(id);
    assert_eq!(rig.publish_to(id, "amq.topic", "app.1"), ["1 basic.ack 1"]);
    assert_eq!(rig.publish_to(id, "amq.direct", "other"), ["1 basic.ack 2"]);
    assert_eq!(rig.publish_to(id, "amq.topic", "other"), [refused("write", "other")]);
    let guest = rig.client();
    rig.method(guest, 1, &confirm::Select::default());
    rig.trace(guest);
    assert_eq!(rig.publish_to(guest, "amq.topic", "other"), ["1 basic.ack 1"]);
}

#[test]
fn keys_in_headers_are_keys_too() {
    let (mut rig, id) = rig();
    for name in ["CC", "BCC"] {
        let keys = ArrayBuf::new().with(Value::LongStr(b"app.2")).with(Value::LongStr(b"other"));
        let headers = TableBuf::new().with(name, Value::Array(keys.as_array()));
        let properties = Properties { headers: Some(headers.as_table()), ..Properties::default() };
        // The route by the plain key is remembered, and headers are looked at all the same.
        assert_eq!(rig.publish_to(id, "amq.topic", "app.1"), [""; 0]);
        rig.publish_with(id, "amq.topic", "app.1", false, &properties, b"x");
        assert_eq!(rig.trace(id), [refused("write", "other")]);
        rig.reopen(id);
    }
}

#[test]
fn an_exchange_that_becomes_a_topic_exchange_is_checked_from_then_on() {
    let mut permissions = Permissions::all();
    permissions.topics.limit("x", ("^in$", ""), "app", "/").unwrap();
    let app = User::new("app", Password::Plain("secret".to_owned()));
    let users = vec![User::guest(), app.with_permissions("/", permissions)];
    let mut rig = Rig::with(ShardConfig { users, ..ShardConfig::default() });
    let (guest, id) = (rig.client(), rig.client_as(b"\0app\0secret"));
    let made = |kind| exchange::Declare {
        exchange: short("x"),
        type_name: short(kind),
        ..exchange::Declare::default()
    };
    rig.method(guest, 1, &made("fanout"));
    rig.method(id, 1, &tx::Select::default());
    rig.trace(id);
    assert_eq!(rig.publish_to(id, "x", "out"), [""; 0]);
    // What the transaction holds was permitted; what comes after it is asked about anew.
    let gone = exchange::Delete { exchange: short("x"), ..exchange::Delete::default() };
    rig.method(guest, 1, &gone);
    rig.method(guest, 1, &made("topic"));
    assert_eq!(rig.answer(id, &tx::Commit::default()), ["1 tx.commit-ok"]);
    let refusal = rig.publish_to(id, "x", "out");
    assert!(refusal[0].contains("write access to topic 'out' in exchange 'x'"), "{refusal:?}");
}

#[test]
fn an_alternate_exchange_asks_for_permission_only_when_it_is_new() {
    let permissions = Permissions::new("^x$", "^other$", "").unwrap();
    let app = User::new("app", Password::Plain("secret".to_owned()));
    let users = vec![User::guest(), app.with_permissions("/", permissions)];
    let mut rig = Rig::with(ShardConfig { users, ..ShardConfig::default() });
    let (guest, id) = (rig.client(), rig.client_as(b"\0app\0secret"));
    let arguments = TableBuf::new().with("alternate-exchange", Value::LongStr(b"amq.fanout"));
    let declare = exchange::Declare {
        exchange: short("x"),
        type_name: short("direct"),
        arguments: arguments.as_table(),
        ..exchange::Declare::default()
    };
    let refused = rig.answer(id, &declare);
    assert!(refused[0].contains("403") && refused[0].contains("read access"), "{refused:?}");
    rig.reopen(id);
    assert_eq!(rig.answer(guest, &declare), ["1 exchange.declare-ok"]);
    assert_eq!(rig.answer(id, &declare), ["1 exchange.declare-ok"]);
    // Another one than it has is refused for that.
    let arguments = TableBuf::new().with("alternate-exchange", Value::LongStr(b"amq.direct"));
    let other = rig.answer(id, &exchange::Declare { arguments: arguments.as_table(), ..declare });
    assert!(other[0].contains("406") && other[0].contains("inequivalent"), "{other:?}");
}
