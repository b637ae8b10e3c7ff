//! Connections that break.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay::{ByteStream, Connection, REPUBLISHED_HEADER, Route};
use tokio::io::{AsyncReadExt, copy, duplex, split};
use tokio::net::TcpStream;

use super::{Saw, confirmed, expect, with_queue};
use crate::engine::{Engine, Failure};

const CUTS: u64 = 1000;

/// What a wire carries in each direction before it is cut, in bytes: more than a login.
const WIRE_BYTES: std::ops::Range<u64> = 2_000..12_000;

/// Bytes on their way, in each direction.
const ON_THE_WAY_BYTES: usize = 4096;

pub(super) async fn cuts_lose_nothing(engine: &Engine, saw: &mut Saw) -> Result<(), Failure> {
    let (steady, end) = with_queue(engine, "cuts").await?;
    let (address, options) = engine.listening()?;
    let made = Arc::new(AtomicU64::new(0));
    let count = made.clone();
    let make = move || wire(address.clone(), count.fetch_add(1, Ordering::Relaxed));
    let builder = Connection::builder().recovery_pause(Duration::from_millis(1));
    let connection = builder.over("a breaking wire", options, make).await?;
    let publisher = connection.publisher(Route::queue("cuts")).build().await?;
    let mut outcomes = Vec::new();
    while made.load(Ordering::Relaxed) <= CUTS {
        outcomes.push(publisher.publish(outcomes.len().to_string()).await?);
    }
    let mut copies = vec![(0_u32, 0_u32); outcomes.len()];
    for outcome in outcomes {
        outcome.await?;
    }
    let reconnects = connection.metrics().reconnects;
    expect(reconnects >= CUTS, || format!("it was cut {reconnects} times only"))?;

    confirmed(&end, "end").await?;
    let mut consumer = steady.consumer("cuts").fixed_credit(500).build().await?;
    loop {
        let delivery = consumer.next().await?.ok_or("the consumer ended")?;
        let body = std::str::from_utf8(delivery.body())?.to_owned();
        let headers = delivery.properties().headers;
        let marked = headers.is_some_and(|headers| headers.get(REPUBLISHED_HEADER).is_some());
        delivery.ack();
        if body == "end" {
            break;
        }
        let (all, plain) = &mut copies[body.parse::<usize>()?];
        *all += 1;
        *plain += u32::from(!marked);
    }
    let lost = copies.iter().filter(|(all, _)| *all == 0).count();
    let doubled = copies.iter().filter(|(all, _)| *all > 1).count();
    let unmarked = copies.iter().filter(|(_, plain)| *plain > 1).count();
    eprintln!("{} messages, {reconnects} reconnects: {doubled} are there twice", copies.len());
    expect(lost == 0, || format!("{lost} confirmed messages are missing"))?;
    expect(unmarked == 0, || format!("{unmarked} of {doubled} duplicates are not marked"))?;
    let knows = steady.server().can("forebay.named_publishers");
    expect(doubled == 0 || !knows, || format!("{doubled} messages are there twice"))?;
    let twice = if doubled == 0 { "none" } else { "some, marked" };
    saw.note(
        "messages that are in a queue twice after a thousand cuts of a publisher's connection",
        twice,
    );
    Ok(())
}

/// A connection's stream; the first [`CUTS`] of them break somewhere.
async fn wire(address: (String, u16), number: u64) -> io::Result<Box<dyn ByteStream>> {
    let socket = TcpStream::connect(address).await?;
    socket.set_nodelay(true)?;
    if number >= CUTS {
        return Ok(Box::new(socket));
    }
    let (ours, theirs) = duplex(ON_THE_WAY_BYTES);
    let (from_client, mut to_client) = split(theirs);
    let (from_broker, mut to_broker) = socket.into_split();
    let mut up = from_client.take(random_bytes(2 * number));
    let mut down = from_broker.take(random_bytes(2 * number + 1));
    tokio::spawn(async move {
        // Whichever direction ends first ends both, in the middle of a frame as often as not.
        tokio::select! {
            _ = copy(&mut up, &mut to_broker) => {}
            _ = copy(&mut down, &mut to_client) => {}
        }
    });
    Ok(Box::new(ours))
}

/// Steele et al., splitmix64 (2014).
fn random_bytes(number: u64) -> u64 {
    let mut random = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    random = (random ^ (random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    WIRE_BYTES.start + (random >> 32) % (WIRE_BYTES.end - WIRE_BYTES.start)
}
