//! Deliveries, acks, and the ends of consumers.

use std::collections::HashSet;
use std::time::Duration;

use forebay::{BuildConsumerError, ChannelFault, ConsumeError};

use super::{Saw, confirmed, expect, ready, until_ready, with_queue};
use crate::engine::{Engine, Failure};

pub(super) async fn acked_is_gone(engine: &Engine, _saw: &mut Saw) -> Result<(), Failure> {
    let (connection, publisher) = with_queue(engine, "acked").await?;
    for number in 0..100u8 {
        confirmed(&publisher, vec![number]).await?;
    }
    let other = engine.connect().await?;
    let mut consumer = other.consumer("acked").build().await?;
    for _ in 0..100 {
        let delivery = consumer.next().await?.ok_or("the consumer ended")?;
        delivery.ack().in_time()?;
    }
    drop(consumer);
    // Closing brings the acks out, and would bring back what is not acknowledged.
    other.close().await?;
    let left = ready(&connection, "acked").await?;
    expect(left == 0, || format!("{left} messages are back"))
}

pub(super) async fn dropped_comes_again(engine: &Engine, _saw: &mut Saw) -> Result<(), Failure> {
    let (connection, publisher) = with_queue(engine, "dropped").await?;
    confirmed(&publisher, "x").await?;
    let mut consumer = connection.consumer("dropped").build().await?;
    let first = consumer.next().await?.ok_or("the consumer ended")?;
    expect(!first.redelivered(), || "the first delivery is marked as redelivered".to_owned())?;
    drop(first);
    let again = consumer.next().await?.ok_or("the consumer ended")?;
    expect(again.redelivered(), || "the second delivery is not marked".to_owned())?;
    again.ack();
    Ok(())
}

pub(super) async fn rejected_is_gone(engine: &Engine, _saw: &mut Saw) -> Result<(), Failure> {
    let (connection, publisher) = with_queue(engine, "rejected").await?;
    confirmed(&publisher, "bad").await?;
    confirmed(&publisher, "good").await?;
    let mut consumer = connection.consumer("rejected").build().await?;
    consumer.next().await?.ok_or("the consumer ended")?.reject();
    let next = consumer.next().await?.ok_or("the consumer ended")?;
    expect(next.body() == b"good", || "the rejected message came again".to_owned())?;
    next.ack();
    drop(consumer);
    until_ready(&connection, "rejected", 0).await
}

pub(super) async fn consumers_share_a_queue(
    engine: &Engine,
    _saw: &mut Saw,
) -> Result<(), Failure> {
    let (connection, publisher) = with_queue(engine, "shared").await?;
    let mut one = connection.consumer("shared").build().await?;
    let mut two = connection.consumer("shared").build().await?;
    let mut wanted: HashSet<Vec<u8>> = HashSet::new();
    for number in 0..200u8 {
        wanted.insert(vec![number]);
        confirmed(&publisher, vec![number]).await?;
    }
    while !wanted.is_empty() {
        let delivery = tokio::select! {
            delivery = one.next() => delivery,
            delivery = two.next() => delivery,
        };
        let delivery = delivery?.ok_or("a consumer ended")?;
        expect(wanted.remove(delivery.body()), || "a message came twice".to_owned())?;
        delivery.ack();
    }
    Ok(())
}

pub(super) async fn a_missing_queue_is_refused(
    engine: &Engine,
    _saw: &mut Saw,
) -> Result<(), Failure> {
    let connection = engine.connect().await?;
    match connection.consumer("not-there").build().await {
        Err(error) if refusal_code(&error) == Some(404) => Ok(()),
        other => Err(format!("{other:?}").into()),
    }
}

pub(super) async fn deletion_ends_consumers(
    engine: &Engine,
    _saw: &mut Saw,
) -> Result<(), Failure> {
    let (connection, _publisher) = with_queue(engine, "deleted").await?;
    let mut consumer = connection.consumer("deleted").build().await?;
    connection.channel().await?.delete_queue("deleted", false, false).await?;
    match consumer.next().await {
        Err(ConsumeError::Cancelled) => Ok(()),
        other => Err(format!("{other:?}").into()),
    }
}

pub(super) async fn an_exclusive_consumer_is_alone(
    engine: &Engine,
    saw: &mut Saw,
) -> Result<(), Failure> {
    let (connection, _publisher) = with_queue(engine, "alone").await?;
    let _first = connection.consumer("alone").exclusive().build().await?;
    let second = match connection.consumer("alone").build().await {
        Ok(_) => "let in".to_owned(),
        Err(error) => match refusal_code(&error) {
            Some(code) => format!("refused with {code}"),
            None => return Err(error.into()),
        },
    };
    saw.note("a consumer beside an exclusive one is", second);
    Ok(())
}

pub(super) async fn stopping_gives_back(engine: &Engine, _saw: &mut Saw) -> Result<(), Failure> {
    let (connection, publisher) = with_queue(engine, "stopped").await?;
    for number in 0..20u8 {
        confirmed(&publisher, vec![number]).await?;
    }
    let mut first = connection.consumer("stopped").fixed_credit(10).build().await?;
    first.next().await?.ok_or("the consumer ended")?.ack();
    first.stop();
    while let Some(delivery) = first.next().await? {
        delivery.requeue();
    }
    let mut second = connection.consumer("stopped").build().await?;
    let mut left: HashSet<Vec<u8>> = (1..20u8).map(|number| vec![number]).collect();
    while !left.is_empty() {
        let delivery = second.next().await?.ok_or("the consumer ended")?;
        expect(left.remove(delivery.body()), || format!("{:?} came again", delivery.body()))?;
        delivery.ack();
    }
    Ok(())
}

pub(super) async fn get_takes_one(engine: &Engine, _saw: &mut Saw) -> Result<(), Failure> {
    let (connection, publisher) = with_queue(engine, "get").await?;
    let channel = connection.channel().await?;
    expect(channel.get("get", true).await?.is_none(), || {
        "an empty queue gave something".to_owned()
    })?;
    for number in 0..3u8 {
        confirmed(&publisher, vec![number]).await?;
    }
    for (number, left) in [(0, 2), (1, 1), (2, 0)] {
        let (message, count) = loop {
            match channel.get("get", false).await? {
                Some(got) => break got,
                // A replica may learn of a confirmed message a little later.
                None => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        };
        expect(message.body() == [number], || format!("{:?}, not {number}", message.body()))?;
        expect(count == left, || format!("{count} are said to be left, and not {left}"))?;
        channel.ack(message.delivery_tag(), false)?;
    }
    channel.close().await?;
    Ok(())
}

fn refusal_code(error: &BuildConsumerError) -> Option<u16> {
    match error {
        BuildConsumerError::Refused(ConsumeError::Channel(ChannelFault::Refused(refusal))) => {
            Some(refusal.code)
        }
        _ => None,
    }
}
