//! Connections that break in the middle of anything, many times over: every message is in the queue once, and
//! what is delivered twice says so.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::rig::{Broker, soon};
use forebay_client::{ByteStream, Connection, Options, Queue, Route, Topology};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

const CUTS: u64 = 1000;
const MESSAGES: u32 = 20_000;

/// A socket that breaks after so many bytes, whichever way they went.
struct Cut {
    stream: TcpStream,
    bytes_left: u64,
}

impl Cut {
    fn spend(&mut self, bytes: usize) {
        self.bytes_left = self.bytes_left.saturating_sub(bytes as u64);
    }

    fn broken(&self) -> bool {
        self.bytes_left == 0
    }
}

impl AsyncRead for Cut {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.broken() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        self.spend(buffer.filled().len() - before);
        polled
    }
}

impl AsyncWrite for Cut {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.broken() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        // In the middle of a frame as often as not.
        let part = bytes.len().min(usize::try_from(self.bytes_left).unwrap_or(usize::MAX));
        let polled = Pin::new(&mut self.stream).poll_write(cx, &bytes[..part]);
        if let Poll::Ready(Ok(count)) = polled {
            self.spend(count);
        }
        polled
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A connection whose sockets break `CUTS` times in all, after random numbers of bytes.
async fn fragile(address: String) -> (Connection, Arc<AtomicU64>) {
    let made = Arc::new(AtomicU64::new(0));
    let count = made.clone();
    let make = move || {
        let number = count.fetch_add(1, Ordering::Relaxed);
        let address = address.clone();
        async move {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            // splitmix64
            let mut random = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            random = (random ^ (random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let bytes_left = if number < CUTS { 2_000 + (random >> 32) % 4_000 } else { u64::MAX };
            Ok(Box::new(Cut { stream, bytes_left }) as Box<dyn ByteStream>)
        }
    };
    let builder = Connection::builder().recovery_pause(Duration::from_millis(1));
    let opening = builder.over("a broken wire", Options::default(), make);
    (soon("an open connection", opening).await.unwrap(), made)
}

#[tokio::test]
async fn every_message_is_in_the_queue_once() {
    let broker = Broker::start();
    let steady = broker.connect().await;
    steady.declare(Topology::new().queue(Queue::durable("q"))).await.unwrap();
    let (connection, made) = fragile(broker.address()).await;
    let publisher = connection.publisher(Route::queue("q")).build().await.unwrap();
    let mut outcomes = Vec::new();
    let mut published = 0_u32;
    while published < MESSAGES || made.load(Ordering::Relaxed) <= CUTS {
        let message = published.to_be_bytes().to_vec();
        outcomes.push(publisher.publish(message).await.unwrap());
        published += 1;
    }
    for outcome in outcomes {
        soon("an outcome", outcome).await.unwrap();
    }
    let metrics = publisher.metrics();
    assert!(metrics.resumed > 0 && metrics.republished > 0);
    assert!(connection.metrics().reconnects >= CUTS);

    let channel = steady.channel().await.unwrap();
    let mut copies = vec![0_u32; published as usize];
    while let Some((message, _)) = channel.get("q", true).await.unwrap() {
        copies[u32::from_be_bytes(message.body().try_into().unwrap()) as usize] += 1;
    }
    let wrong = copies.iter().position(|&copies| copies != 1);
    assert_eq!(wrong, None, "of {published} messages");
}

#[tokio::test]
async fn a_consumer_over_a_broken_wire_gets_everything_at_least_once() {
    let broker = Broker::start();
    let steady = broker.connect().await;
    steady.declare(Topology::new().queue(Queue::durable("q"))).await.unwrap();
    let publisher = steady.publisher(Route::queue("q")).build().await.unwrap();
    for number in 0..MESSAGES {
        drop(publisher.publish(number.to_be_bytes().to_vec()).await.unwrap());
    }
    publisher.idle().await;
    let (connection, _) = fragile(broker.address()).await;
    let mut consumer = soon("a consumer", async {
        loop {
            match connection.consumer("q").build().await {
                Ok(consumer) => break consumer,
                // The socket for consuming is opened once; it may break before it is open.
                Err(_) => tokio::task::yield_now().await,
            }
        }
    })
    .await;
    let mut seen = vec![0_u32; MESSAGES as usize];
    let mut missing = MESSAGES;
    let mut repeated = 0_u64;
    while missing > 0 {
        let delivery = soon("a delivery", consumer.next()).await.unwrap().unwrap();
        let number = u32::from_be_bytes(delivery.body().try_into().unwrap()) as usize;
        missing -= u32::from(seen[number] == 0);
        repeated += u64::from(seen[number] > 0);
        assert!(seen[number] == 0 || delivery.redelivered(), "a duplicate says so");
        seen[number] += 1;
        delivery.ack();
    }
    let metrics = consumer.metrics();
    assert!(metrics.delivered >= u64::from(MESSAGES));
    assert!(repeated <= metrics.redelivered);
}
