//! Outcomes, order, contents.

use std::time::{Duration, Instant};

use forebay::{Message, Route, Unconfirmed, UnknownReason};
use forebay_wire::Value;
use tokio::task::JoinSet;

use super::{Saw, confirmed, expect, until_ready, with_queue};
use crate::engine::{Engine, Failure};

/// Long enough for several changes of the credit.
const ORDER_WATCHED: Duration = Duration::from_millis(1500);

pub(super) async fn every_publish_has_one_outcome(
    engine: &Engine,
    _saw: &mut Saw,
) -> Result<(), Failure> {
    let (connection, publisher) = with_queue(engine, "outcomes").await?;
    let mut outcomes = Vec::new();
    for number in 0..1000 {
        outcomes.push(publisher.publish(format!("{number}").into_bytes()).await?);
    }
    for outcome in outcomes {
        expect(!outcome.await?.republished, || "republished without a loss".to_owned())?;
    }
    let metrics = publisher.metrics();
    expect(metrics.confirmed == 1000 && metrics.in_flight_messages == 0, || {
        format!("{metrics:?}")
    })?;
    until_ready(&connection, "outcomes", 1000).await
}

/// The consumer tunes its own credit, which on RabbitMQ takes another consumer in its place; it has time for that.
pub(super) async fn order_is_kept(engine: &Engine, _saw: &mut Saw) -> Result<(), Failure> {
    let (connection, publisher) = with_queue(engine, "order").await?;
    let publishing = tokio::spawn(async move {
        for number in 0.. {
            let Ok(outcome) = publisher.publish(u32::to_be_bytes(number).to_vec()).await else {
                break;
            };
            drop(outcome);
        }
    });
    let mut consumer = connection.consumer("order").build().await?;
    let (began, mut number) = (Instant::now(), 0u32);
    while began.elapsed() < ORDER_WATCHED {
        let delivery = consumer.next().await?.ok_or("the consumer ended")?;
        let got = delivery.body();
        expect(got == number.to_be_bytes(), || format!("{got:?} came instead of {number}"))?;
        delivery.ack();
        number += 1;
    }
    publishing.abort();
    let metrics = consumer.metrics();
    eprintln!("{number} in order, credit {}, replaced {}", metrics.credit, metrics.reconsumed);
    Ok(())
}

pub(super) async fn unroutable_is_an_error(engine: &Engine, _saw: &mut Saw) -> Result<(), Failure> {
    let connection = engine.connect().await?;
    let publisher = connection.publisher(Route::queue("nowhere")).build().await?;
    match publisher.publish("x").await?.await {
        Err(Unconfirmed::Returned(refusal)) if refusal.code == 312 => Ok(()),
        other => Err(format!("the outcome is {other:?}").into()),
    }
}

pub(super) async fn unroutable_may_be_allowed(
    engine: &Engine,
    _saw: &mut Saw,
) -> Result<(), Failure> {
    let connection = engine.connect().await?;
    let publisher =
        connection.publisher(Route::queue("nowhere")).allow_unroutable().build().await?;
    confirmed(&publisher, "x").await
}

pub(super) async fn a_missing_exchange_is_told(
    engine: &Engine,
    _saw: &mut Saw,
) -> Result<(), Failure> {
    let connection = engine.connect().await?;
    let publisher = connection.publisher(Route::exchange("missing", "key")).build().await?;
    match publisher.publish("x").await?.await {
        Err(Unconfirmed::Unknown(UnknownReason::ChannelClosed(refusal))) if refusal.code == 404 => {
        }
        other => return Err(format!("the outcome is {other:?}").into()),
    }
    // The connection is none the worse for it.
    let sound = connection.publisher(Route::queue("nowhere")).allow_unroutable().build().await?;
    confirmed(&sound, "x").await
}

pub(super) async fn properties_arrive(engine: &Engine, _saw: &mut Saw) -> Result<(), Failure> {
    let (connection, publisher) = with_queue(engine, "properties").await?;
    let message = Message::new("body")
        .content_type("text/plain")
        .content_encoding("identity")
        .correlation_id("correlation")
        .reply_to("somewhere")
        .message_id("mine")
        .timestamp_s(1_700_000_000)
        .type_name("type")
        .user_id("guest")
        .app_id("suite")
        .priority(3)
        .header("text", Value::LongStr(b"value"))
        .header("number", Value::I64(-5))
        .header("yes", Value::Bool(true));
    confirmed(&publisher, message).await?;
    let mut consumer = connection.consumer("properties").build().await?;
    let delivery = consumer.next().await?.ok_or("the consumer ended")?;
    let got = delivery.properties();
    let headers = got.headers.ok_or("no headers")?;
    let text = |value: Option<forebay_wire::ShortStr<'_>>| value.map(|value| value.to_string());
    let texts = [
        (got.content_type, "text/plain"),
        (got.content_encoding, "identity"),
        (got.correlation_id, "correlation"),
        (got.reply_to, "somewhere"),
        (got.message_id, "mine"),
        (got.type_name, "type"),
        (got.user_id, "guest"),
        (got.app_id, "suite"),
    ];
    for (value, wanted) in texts {
        expect(text(value).as_deref() == Some(wanted), || format!("{value:?}, not {wanted}"))?;
    }
    let numbers = (got.timestamp, got.priority, got.delivery_mode);
    expect(numbers == (Some(1_700_000_000), Some(3), Some(2)), || format!("{numbers:?}"))?;
    for (name, wanted) in
        [("text", Value::LongStr(b"value")), ("number", Value::I64(-5)), ("yes", Value::Bool(true))]
    {
        let value = headers.get(name);
        expect(value == Some(wanted), || format!("header {name} is {value:?}"))?;
    }
    expect(delivery.body() == b"body", || "another body".to_owned())?;
    delivery.ack();
    Ok(())
}

pub(super) async fn large_messages_pass(engine: &Engine, _saw: &mut Saw) -> Result<(), Failure> {
    let body: Vec<u8> =
        (0..1u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 9) as u8).collect();
    arrives(engine, "large", body).await
}

pub(super) async fn empty_messages_pass(engine: &Engine, _saw: &mut Saw) -> Result<(), Failure> {
    arrives(engine, "empty", Vec::new()).await
}

async fn arrives(engine: &Engine, queue: &str, body: Vec<u8>) -> Result<(), Failure> {
    let (connection, publisher) = with_queue(engine, queue).await?;
    confirmed(&publisher, body.clone()).await?;
    let mut consumer = connection.consumer(queue).build().await?;
    let delivery = consumer.next().await?.ok_or("the consumer ended")?;
    expect(delivery.body() == body, || format!("{} bytes came", delivery.body().len()))?;
    delivery.ack();
    Ok(())
}

pub(super) async fn many_callers_share_a_publisher(
    engine: &Engine,
    _saw: &mut Saw,
) -> Result<(), Failure> {
    let (connection, publisher) = with_queue(engine, "callers").await?;
    let mut callers = JoinSet::new();
    for caller in 0..50 {
        let publisher = publisher.clone();
        callers.spawn(async move {
            for number in 0..20 {
                confirmed(&publisher, format!("{caller}.{number}").into_bytes()).await?;
            }
            Ok::<(), Failure>(())
        });
    }
    while let Some(ended) = callers.join_next().await {
        ended??;
    }
    until_ready(&connection, "callers", 1000).await
}
