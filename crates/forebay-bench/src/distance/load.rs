//! Publishers that always have something to publish, and what they saw.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use forebay_client::machine::Options;
use forebay_client::{ByteStream, Connection, Message, Outcome, Publisher, Route, Window};
use forebay_wire::AmqpUri;
use tokio::net::TcpStream;
use tokio::sync::Barrier;
use tokio::time::{sleep_until, timeout};

use super::cell::Choice;
use super::tally::Tally;

/// A saturated load.
#[derive(Debug, Clone)]
pub(super) struct Load {
    pub(super) url: String,
    pub(super) queue: String,
    pub(super) publishers: usize,
    pub(super) size_bytes: usize,
    pub(super) choice: Choice,
    /// The first seconds, kept apart.
    pub(super) first: Duration,
    /// And those after them.
    pub(super) later: Duration,
    /// A confirm that takes longer is a timeout.
    pub(super) patience: Duration,
    /// The client may ask the kernel for the round trip of its sockets. Not where the way is an emulated
    /// link: the kernel would tell of loopback.
    pub(super) kernel_rtt: bool,
}

/// What all publishers saw.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) tally: Tally,
    /// Messages in flight that each was allowed at the end.
    pub(super) windows: Vec<u32>,
    /// Messages confirmed for each.
    pub(super) shares: Vec<u64>,
}

impl Load {
    pub(super) fn tally(&self) -> Tally {
        let us = |time: Duration| time.as_micros() as u64;
        Tally::new(us(self.first), us(self.first + self.later), us(self.patience))
    }

    fn window(&self) -> Window {
        match self.choice {
            Choice::Fixed(messages) => Window::fixed(messages),
            Choice::Tuned => Window::tuned(),
        }
    }

    /// Runs it. All publishers are connected before the first one begins; `began` is told when they do.
    pub(super) async fn run(&self, began: impl FnOnce(Instant)) -> Result<Seen, String> {
        let mut connections = Vec::new();
        for _ in 0..self.publishers {
            let opened = timeout(self.patience, self.open()).await;
            let connection = opened.map_err(|_| "the broker does not answer".to_owned())?;
            connections.push(connection?);
        }
        let start = Arc::new(Barrier::new(self.publishers + 1));
        let mut tasks = Vec::new();
        for connection in &connections {
            let publisher = connection.publisher(Route::queue(&self.queue)).window(self.window());
            let publisher = publisher.build().await.map_err(|error| error.to_string())?;
            let (load, start) = (self.clone(), start.clone());
            tasks.push(tokio::spawn(async move {
                start.wait().await;
                let tally = load.publish(&publisher, Instant::now()).await;
                (tally, publisher.metrics().window_messages)
            }));
        }
        start.wait().await;
        began(Instant::now());
        let mut seen = Seen { tally: self.tally(), windows: Vec::new(), shares: Vec::new() };
        for task in tasks {
            let (tally, window) = task.await.map_err(|error| error.to_string())?;
            seen.tally.merge(&tally);
            seen.windows.push(window);
            seen.shares.push(tally.total());
        }
        for connection in connections {
            // What it lost, if anything, was counted above.
            let _ = timeout(self.patience, connection.close()).await;
        }
        Ok(seen)
    }

    async fn open(&self) -> Result<Connection, String> {
        if self.kernel_rtt {
            return Connection::open(&self.url).await.map_err(|error| error.to_string());
        }
        let uri: AmqpUri = self.url.parse().map_err(|error| format!("{error}"))?;
        let (address, options) = (format!("{}:{}", uri.host, uri.port), Options::from_uri(&uri));
        let to = address.clone();
        let make = move || {
            let to = to.clone();
            async move {
                let stream = TcpStream::connect(to).await?;
                stream.set_nodelay(true)?;
                Ok(Box::new(stream) as Box<dyn ByteStream>)
            }
        };
        let opened = Connection::builder().over(address, options, make).await;
        opened.map_err(|error| error.to_string())
    }

    async fn publish(&self, publisher: &Publisher, began: Instant) -> Tally {
        let now_us = || began.elapsed().as_micros() as u64;
        let message = Message::new(vec![b'x'; self.size_bytes]);
        let mut tally = self.tally();
        let mut in_flight: VecDeque<(u64, Outcome)> = VecDeque::new();
        let length = self.first + self.later;
        let end_us = length.as_micros() as u64;
        let mut end = pin!(sleep_until((began + length).into()));
        loop {
            let called_us = now_us();
            if called_us >= end_us {
                break;
            }
            let published = tokio::select! {
                biased;
                published = publisher.publish(message.clone()) => published,
                () = &mut end => break,
            };
            match published {
                Ok(outcome) => in_flight.push_back((called_us, outcome)),
                Err(_) => {
                    // Gone for good: nothing else refuses a message like ours.
                    tally.failed(1);
                    break;
                }
            }
            // Asked for once, and not for each of the many that one confirm may be for.
            let mut told_us = None;
            while let Some((published_us, told)) = told(&mut in_flight) {
                match told {
                    true => tally.confirmed(published_us, *told_us.get_or_insert_with(now_us)),
                    false => tally.failed(1),
                }
            }
        }
        let drained = timeout(self.patience, async {
            while let Some((published_us, outcome)) = in_flight.front_mut() {
                let published_us = *published_us;
                match outcome.await {
                    Ok(_) => tally.confirmed(published_us, now_us()),
                    Err(_) => tally.failed(1),
                }
                in_flight.pop_front();
            }
        });
        if drained.await.is_err() {
            tally.failed(in_flight.len() as u64);
        }
        tally
    }
}

/// Takes the oldest message in flight if its outcome is known: when it was published, and whether it was
/// confirmed.
fn told(in_flight: &mut VecDeque<(u64, Outcome)>) -> Option<(u64, bool)> {
    let (published_us, outcome) = in_flight.front_mut()?;
    let published_us = *published_us;
    let mut nobody = Context::from_waker(Waker::noop());
    match Pin::new(outcome).poll(&mut nobody) {
        Poll::Pending => None,
        Poll::Ready(outcome) => {
            in_flight.pop_front();
            Some((published_us, outcome.is_ok()))
        }
    }
}
