//! Exchanges and bindings.

use forebay::{Binding, Connection, Exchange, Message, Queue, Route, Topology};
use forebay_wire::Value;

use super::{Saw, confirmed, expect};
use crate::engine::{Engine, Failure};

/// Takes what is in a queue, as text, in order.
async fn contents(connection: &Connection, queue: &str) -> Result<Vec<String>, Failure> {
    let channel = connection.channel().await?;
    let mut bodies = Vec::new();
    while let Some((message, _)) = channel.get(queue, true).await? {
        bodies.push(String::from_utf8_lossy(message.body()).into_owned());
    }
    Ok(bodies)
}

pub(super) async fn exchange_kinds(engine: &Engine, _saw: &mut Saw) -> Result<(), Failure> {
    let connection = engine.connect().await?;
    let topology = Topology::new()
        .exchange(Exchange::durable("kinds.direct", "direct"))
        .exchange(Exchange::durable("kinds.fanout", "fanout"))
        .exchange(Exchange::durable("kinds.topic", "topic"))
        .exchange(Exchange::durable("kinds.headers", "headers"))
        .queue(Queue::durable("kinds.one"))
        .queue(Queue::durable("kinds.two"))
        .binding(Binding::new("kinds.one", "kinds.direct", "key"))
        .binding(Binding::new("kinds.one", "kinds.fanout", ""))
        .binding(Binding::new("kinds.two", "kinds.fanout", ""))
        .binding(Binding::new("kinds.one", "kinds.topic", "a.*.c"))
        .binding(Binding::new("kinds.two", "kinds.topic", "a.#"))
        .binding(
            Binding::new("kinds.two", "kinds.headers", "")
                .argument("x-match", Value::LongStr(b"all"))
                .argument("colour", Value::LongStr(b"red")),
        );
    connection.declare(topology).await?;
    let red = |body: &str| {
        Message::new(body.to_owned().into_bytes()).header("colour", Value::LongStr(b"red"))
    };
    for (exchange, key, message) in [
        ("kinds.direct", "key", Message::new("direct")),
        ("kinds.fanout", "any", Message::new("fanout")),
        ("kinds.topic", "a.b.c", Message::new("topic 3")),
        ("kinds.topic", "a.b.c.d", Message::new("topic 4")),
        ("kinds.headers", "", red("headers")),
    ] {
        let publisher = connection.publisher(Route::exchange(exchange, key)).build().await?;
        confirmed(&publisher, message).await?;
    }
    let (one, two) =
        (contents(&connection, "kinds.one").await?, contents(&connection, "kinds.two").await?);
    expect(one == ["direct", "fanout", "topic 3"], || format!("the first queue has {one:?}"))?;
    expect(two == ["fanout", "topic 3", "topic 4", "headers"], || format!("the second has {two:?}"))
}

pub(super) async fn exchanges_bind_to_exchanges(
    engine: &Engine,
    _saw: &mut Saw,
) -> Result<(), Failure> {
    let connection = engine.connect().await?;
    let topology = Topology::new()
        .exchange(Exchange::durable("outer", "fanout"))
        .exchange(Exchange::durable("inner", "fanout"))
        .queue(Queue::durable("through"))
        .binding(Binding::new("through", "inner", ""))
        .binding(Binding::new("through", "outer", ""));
    connection.declare(topology).await?;
    let channel = connection.channel().await?;
    channel.bind_exchange("inner", "outer", "", Default::default()).await?;
    let publisher = connection.publisher(Route::exchange("outer", "")).build().await?;
    confirmed(&publisher, "once").await?;
    let got = contents(&connection, "through").await?;
    expect(got == ["once"], || format!("the queue has {got:?}"))
}

pub(super) async fn an_alternate_exchange_takes_the_rest(
    engine: &Engine,
    _saw: &mut Saw,
) -> Result<(), Failure> {
    let connection = engine.connect().await?;
    let topology = Topology::new()
        .exchange(Exchange::durable("rest", "fanout"))
        .exchange(
            Exchange::durable("picky", "direct")
                .argument("alternate-exchange", Value::LongStr(b"rest")),
        )
        .queue(Queue::durable("leftovers"))
        .binding(Binding::new("leftovers", "rest", ""));
    connection.declare(topology).await?;
    let publisher = connection.publisher(Route::exchange("picky", "unknown")).build().await?;
    confirmed(&publisher, "left over").await?;
    let got = contents(&connection, "leftovers").await?;
    expect(got == ["left over"], || format!("the queue has {got:?}"))
}
