//! Fetches what a queue names from a web server that has twenty places and takes 20 ms for an answer. Nobody says how
//! many requests at a time: the pipeline finds the twenty.
//!
//! `cargo run --release -p forebay --example fetch`, `cargo test -p forebay --example fetch`

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay::pipeline::{Backoff, Breaker, Concurrency, Item, Pipeline, Queues};
use forebay::{Broker, Queue, Received, Route, Topology};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{interval, sleep};

const PLACES: usize = 20;
const ANSWER: Duration = Duration::from_millis(20);
const PAGES: u32 = 20_000;
/// More of an answer is not read.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// The body of a page, by HTTP 1.0.
async fn get(server: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(server).await?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: {server}\r\n\r\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.lines().next().unwrap_or_default();
    match status.split(' ').nth(1) {
        Some("200") => Ok(body.to_owned()),
        _ => Err(io::Error::other(format!("{path}: the server says '{status}'"))),
    }
}

/// The work on one message.
async fn fetch(
    server: SocketAddr,
    message: Item<Received>,
    bytes: Arc<AtomicU64>,
) -> io::Result<()> {
    let path = std::str::from_utf8(message.body()).map_err(io::Error::other)?;
    let page = get(server, path).await?;
    bytes.fetch_add(page.len() as u64, Ordering::Relaxed);
    Ok(())
}

/// A server with so many places, where the rest waits. Of what begins with `/flaky` each third is refused.
async fn serve(listener: TcpListener, places: usize, answer: Duration) -> io::Result<()> {
    let free = Arc::new(Semaphore::new(places));
    let asked = Arc::new(AtomicU64::new(0));
    loop {
        let (stream, _) = listener.accept().await?;
        let (free, asked) = (free.clone(), asked.clone());
        tokio::spawn(async move {
            let mut stream = BufReader::new(stream);
            let mut line = String::new();
            stream.read_line(&mut line).await?;
            let _place = free.acquire().await.map_err(io::Error::other)?;
            sleep(answer).await;
            let flaky = line.contains("/flaky") && asked.fetch_add(1, Ordering::Relaxed) % 3 == 0;
            let status = if flaky { "503 Service Unavailable" } else { "200 OK" };
            let page = format!("HTTP/1.0 {status}\r\n\r\nhere is {}", line.trim_end());
            stream.write_all(page.as_bytes()).await?;
            stream.shutdown().await
        });
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let server = listener.local_addr()?;
    let serving = tokio::spawn(serve(listener, PLACES, ANSWER));

    let broker = Broker::in_memory()?;
    let connection = broker.connect().await?;
    connection.declare(Topology::new().queue(Queue::durable("pages"))).await?;
    let pages = connection.publisher(Route::queue("pages")).build().await?;
    for number in 0..PAGES {
        drop(pages.publish(format!("/page/{number}")).await?);
    }
    pages.idle().await;

    let bytes = Arc::new(AtomicU64::new(0));
    let sum = bytes.clone();
    let running = Pipeline::from(connection.source("pages"))
        .process(Concurrency::auto(), move |message| fetch(server, message, sum.clone()))
        .timeout(Duration::from_secs(5))
        .retries(Backoff::new(5, Duration::from_millis(100), Duration::from_secs(10)))
        .breaker(Breaker::new(20, Duration::from_secs(1), Duration::from_secs(60)))
        .start();
    let control = running.control();
    let mut second = interval(Duration::from_secs(1));
    while control.report().settled() < u64::from(PAGES) {
        second.tick().await;
        let done = control.report().settled();
        println!("{done} pages, {} at a time", control.concurrency());
    }
    control.drain(Duration::from_secs(30));
    let report = running.join().await?;
    println!("{} bytes; {report:?}", bytes.load(Ordering::Relaxed));
    serving.abort();
    connection.close().await?; // with it the last acknowledgements leave
    broker.close()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay::Message;
    use forebay::pipeline::{Outcome, Verdict, source};

    #[tokio::test]
    async fn pages_are_fetched_and_tried_again_and_nonsense_is_rejected() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = listener.local_addr().unwrap();
        let serving = tokio::spawn(serve(listener, 2, Duration::ZERO));
        let (messages, source) = source::test();
        let bytes = Arc::new(AtomicU64::new(0));
        let sum = bytes.clone();
        let running = Pipeline::from(source)
            .process(4, move |message| fetch(server, message, sum.clone()))
            .retries(Backoff::new(1, Duration::from_millis(1), Duration::from_millis(1)))
            .on_failure(Outcome::Reject)
            .start();
        let page = |path: &'static str| Received::from(Message::from(path));
        assert_eq!(messages.send(page("/flaky")).await, Verdict::Ack, "the second time");
        assert_eq!(messages.send(page("/page")).await, Verdict::Ack);
        assert_eq!(messages.send(Received::from(Message::new(vec![0xff]))).await, Verdict::Reject);
        assert_eq!(running.control().report().retried, 2);
        assert_eq!(bytes.load(Ordering::Relaxed), 27 + 26);
        serving.abort();
    }
}
