//! A well-behaved client that goes on working while others misbehave.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_client::blocking::{Connection, ConsumeOptions, DeclareQueue, Publication};
use forebay_wire::Properties;

use super::PATIENCE;

/// Messages in one round trip.
const ROUND: u64 = 10;

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    progress: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Clone, Default)]
struct Progress {
    messages: u64,
    slowest_round: Duration,
    ended: Option<Result<(), String>>,
}

/// Publishes persistent messages to a durable queue, waits for their confirms, receives them in order
/// and acks them, again and again.
pub struct Witness {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

impl Witness {
    /// At work from now on.
    pub fn start(url: &str) -> Witness {
        let shared = Arc::new(Shared::default());
        let thread = std::thread::spawn({
            let (shared, url) = (shared.clone(), url.to_owned());
            move || {
                let ended = work(&url, &shared).map_err(|error| error.to_string());
                lock(&shared).ended = Some(ended);
                shared.changed.notify_all();
            }
        });
        Witness { shared, thread }
    }

    /// Waits until two more rounds are done, all of them begun after this call.
    pub fn goes_on(&self, during: &str) {
        let mut progress = lock(&self.shared);
        let goal = progress.messages + 3 * ROUND;
        let deadline = Instant::now() + PATIENCE;
        while progress.messages < goal {
            if let Some(ended) = &progress.ended {
                panic!("{during}: the witness ended: {ended:?}");
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{during}: the witness was not served for a minute");
            let waited = self.shared.changed.wait_timeout(progress, left);
            progress = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
    }

    /// Ends its work. Panics if it lost anything.
    pub fn finish(self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the witness does not panic");
        let progress = lock(&self.shared).clone();
        assert_eq!(progress.ended, Some(Ok(())), "after {} messages", progress.messages);
        println!(
            "the witness passed {} messages, the slowest ten in {} ms",
            progress.messages,
            progress.slowest_round.as_millis()
        );
    }
}

fn lock(shared: &Shared) -> std::sync::MutexGuard<'_, Progress> {
    shared.progress.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn work(url: &str, shared: &Shared) -> Result<(), Box<dyn std::error::Error>> {
    let connection = Connection::open_named(url, Some("witness"))?;
    let mut channel = connection.channel()?;
    let durable = DeclareQueue { durable: true, ..DeclareQueue::default() };
    channel.declare_queue("witness", durable)?;
    channel.confirm_select(ROUND)?;
    let mut consumer = channel.consume("witness", ConsumeOptions::default())?;
    let mut next = 0u64;
    while !shared.stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        for number in next..next + ROUND {
            let properties = Properties { delivery_mode: Some(2), ..Properties::default() };
            channel.publish(&Publication {
                routing_key: "witness",
                properties,
                body: &number.to_be_bytes(),
                ..Publication::default()
            })?;
        }
        if !channel.wait_settled_for(PATIENCE)? {
            return Err("a publish was not confirmed within a minute".into());
        }
        if channel.take_settled().iter().any(|settled| !settled.acked) {
            return Err("a publish was refused".into());
        }
        for number in next..next + ROUND {
            let message =
                consumer.next_message(Some(PATIENCE))?.ok_or("no message for a minute")?;
            if message.body() != number.to_be_bytes() || message.redelivered() {
                return Err(format!("got {:?} and expected {number}", message.body()).into());
            }
            consumer.ack(&message, false)?;
        }
        next += ROUND;
        let mut progress = lock(shared);
        progress.messages = next;
        progress.slowest_round = progress.slowest_round.max(began.elapsed());
        shared.changed.notify_all();
    }
    consumer.cancel()?;
    Ok(connection.close()?)
}
