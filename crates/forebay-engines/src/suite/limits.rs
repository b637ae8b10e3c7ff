//! Where engines are known to differ: answers rather than promises.

use std::time::Duration;

use forebay::{ChannelFault, Queue, Topology};
use forebay_wire::{Properties, Value};

use super::{Saw, confirmed, expect, ready, with_queue};
use crate::engine::{Engine, Failure};

pub(super) async fn what_it_says_about_itself(
    engine: &Engine,
    saw: &mut Saw,
) -> Result<(), Failure> {
    let connection = engine.connect().await?;
    let server = connection.server();
    expect(!server.product.is_empty(), || "it has no name".to_owned())?;
    saw.note("product", &server.product);
    let mut own: Vec<&str> = server
        .capabilities
        .iter()
        .map(String::as_str)
        .filter(|name| name.starts_with("forebay."))
        .collect();
    own.sort_unstable();
    saw.note(
        "capabilities of its own",
        if own.is_empty() { "none".to_owned() } else { own.join(", ") },
    );
    let limits = connection.limits();
    saw.note("frames are of so many bytes at most", limits.frame_bytes_max);
    saw.note("a connection has so many channels at most", limits.channel_max);
    Ok(())
}

pub(super) async fn which_arguments_it_takes(
    engine: &Engine,
    saw: &mut Saw,
) -> Result<(), Failure> {
    let arguments: [(&str, Value<'_>); 8] = [
        ("x-message-ttl", Value::I32(60_000)),
        ("x-expires", Value::I32(60_000)),
        ("x-max-length", Value::I32(1_000)),
        ("x-max-length-bytes", Value::I32(1_000_000)),
        ("x-dead-letter-exchange", Value::LongStr(b"amq.fanout")),
        ("x-max-priority", Value::I32(5)),
        ("x-single-active-consumer", Value::Bool(true)),
        ("x-delivery-limit", Value::I32(5)),
    ];
    for (name, value) in arguments {
        let queue = engine.queue(&format!("argument {name}")).argument(name, value);
        let taken = declared(engine, queue).await?;
        saw.note(&format!("queue argument `{name}`"), taken);
    }
    let quorum = declared(engine, Queue::quorum("argument quorum")).await?;
    saw.note("`x-queue-type: quorum`", quorum);
    Ok(())
}

/// On a connection of its own, since some refusals (540) end theirs.
async fn declared(engine: &Engine, queue: Queue) -> Result<String, Failure> {
    let connection = engine.connect().await?;
    match connection.declare(Topology::new().queue(queue)).await {
        Ok(()) => Ok("taken".to_owned()),
        Err(error) => match error.fault {
            ChannelFault::Refused(refusal) => Ok(format!("refused with {}", refusal.code)),
            ChannelFault::Lost(forebay::Lost::Closed(refusal)) => {
                Ok(format!("refused with {}", refusal.code))
            }
            other => Err(other.to_string().into()),
        },
    }
}

pub(super) async fn where_a_requeued_message_goes(
    engine: &Engine,
    saw: &mut Saw,
) -> Result<(), Failure> {
    let (connection, publisher) = with_queue(engine, "requeued").await?;
    for number in 0..3u8 {
        confirmed(&publisher, vec![number]).await?;
    }
    let mut consumer = connection.consumer("requeued").fixed_credit(1).build().await?;
    consumer.next().await?.ok_or("the consumer ended")?.requeue();
    let mut order = Vec::new();
    while order.len() < 3 {
        let delivery = consumer.next().await?.ok_or("the consumer ended")?;
        order.push(delivery.body()[0]);
        delivery.ack();
    }
    let place = order.iter().position(|&number| number == 0).ok_or("it did not come again")?;
    saw.note(
        "a requeued message goes to",
        match place {
            0 => "its old place",
            1 => "the second place",
            _ => "the end of the queue",
        },
    );
    Ok(())
}

pub(super) async fn how_often_it_was_delivered(
    engine: &Engine,
    saw: &mut Saw,
) -> Result<(), Failure> {
    let (connection, publisher) = with_queue(engine, "counted deliveries").await?;
    confirmed(&publisher, "x").await?;
    let mut consumer = connection.consumer("counted deliveries").build().await?;
    consumer.next().await?.ok_or("the consumer ended")?.requeue();
    let again = consumer.next().await?.ok_or("the consumer ended")?;
    let count = again.properties().headers.and_then(|headers| headers.get("x-delivery-count"));
    let counted = if count.is_some() { "yes" } else { "no" };
    saw.note("`x-delivery-count` on redelivered messages", counted);
    again.ack();
    Ok(())
}

pub(super) async fn transactions(engine: &Engine, _saw: &mut Saw) -> Result<(), Failure> {
    let (connection, _publisher) = with_queue(engine, "transactions").await?;
    let channel = connection.channel().await?;
    channel.tx_select().await?;
    let properties = Properties { delivery_mode: Some(2), ..Properties::default() };
    for body in [b"one".as_slice(), b"two"] {
        channel.publish("", "transactions", true, &properties, body).await?;
    }
    let before = ready(&connection, "transactions").await?;
    expect(before == 0, || format!("{before} are there before the commit"))?;
    channel.tx_commit().await?;
    let mut after = 0;
    for _ in 0..100 {
        after = ready(&connection, "transactions").await?;
        if after == 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    expect(after == 2, || format!("{after} are there after the commit"))
}
