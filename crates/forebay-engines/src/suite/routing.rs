//! Exchanges and bindings.

use std::collections::BTreeMap;

use forebay::{Binding, Connection, Exchange, Message, Partitions, Queue, Route, Topology};
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

/// Two programs publish: one as ours do, and one like any other client, to the exchange by its name.
pub(super) async fn each_key_keeps_to_its_part(
    engine: &Engine,
    _saw: &mut Saw,
) -> Result<(), Failure> {
    const KEYS: u32 = 40;
    let connection = engine.connect().await?;
    let parts = Partitions::by_exchange("parts", 4);
    connection.declare(parts.topology(|name| engine.queue(&name))).await?;
    let ours = connection.publisher(parts.target()).build().await?;
    let foreign = connection.publisher(Route::exchange("parts", "")).build().await?;
    for number in 0..400 {
        let (key, body) = (format!("key {}", number % KEYS), number.to_string());
        if number % 3 == 0 {
            confirmed(&foreign, Message::new(body).routing_key(key)).await?;
        } else {
            confirmed(&ours, parts.route(key, body)).await?;
        }
    }
    let mut last: BTreeMap<u32, (u32, u32)> = BTreeMap::new();
    let mut sizes = Vec::new();
    for part in 0..parts.count() {
        let bodies = contents(&connection, &parts.queue(part)).await?;
        sizes.push(bodies.len());
        for body in bodies {
            let number: u32 = body.parse()?;
            if let Some((before, its_part)) = last.insert(number % KEYS, (number, part)) {
                let key = number % KEYS;
                expect(its_part == part, || format!("key {key} is in two parts"))?;
                expect(before < number, || format!("key {key}: {number} after {before}"))?;
            }
        }
    }
    expect(sizes.iter().sum::<usize>() == 400, || format!("the parts have {sizes:?} messages"))?;
    expect(sizes.iter().filter(|&&size| size > 0).count() > 1, || {
        format!("one part has all: {sizes:?}")
    })
}
