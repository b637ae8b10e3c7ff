//! Messages that a test makes, and what became of each.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::sync::{mpsc, oneshot};

use super::{Receipt, Source, Taken};
use crate::outcome::Verdict;

/// Messages sent and not yet taken by the pipeline, at most.
pub const SENT_MAX: usize = 10_000;

/// A source for tests: send it messages, and await what becomes of them.
///
/// ```
/// use forebay_pipeline::{Item, Pipeline, Verdict, source};
///
/// async fn parse(line: Item<&'static str>) -> Result<(), std::num::ParseIntError> {
///     let number: u32 = line.parse()?;
///     println!("{number}");
///     Ok(())
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let (messages, source) = source::test();
/// let _running = Pipeline::from(source).process(5, parse).start();
/// assert_eq!(messages.send("12").await, Verdict::Ack);
/// assert_eq!(messages.send("twelve").await, Verdict::Requeue);
/// # }
/// ```
#[must_use]
pub fn test<T: Send + Sync + 'static>() -> (TestMessages<T>, TestSource<T>) {
    let (sender, receiver) = mpsc::channel(SENT_MAX);
    (TestMessages(sender), TestSource(receiver))
}

/// Sends messages to a [`TestSource`]; when it is dropped the source ends.
#[derive(Debug, Clone)]
pub struct TestMessages<T>(mpsc::Sender<(T, TestReceipt)>);

impl<T> TestMessages<T> {
    /// Sends a message.
    ///
    /// # Panics
    /// If [`SENT_MAX`] messages wait already, or the pipeline is gone.
    pub fn send(&self, value: T) -> Sent {
        let (settled, verdict) = oneshot::channel();
        if let Err(error) = self.0.try_send((value, TestReceipt(settled))) {
            panic!("the pipeline takes no more test messages: {error}");
        }
        Sent(verdict)
    }
}

/// Resolves when the message is settled. What was given up unsettled counts as [`Verdict::Requeue`], as brokers
/// see it.
#[derive(Debug)]
pub struct Sent(oneshot::Receiver<Verdict>);

impl Future for Sent {
    type Output = Verdict;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Verdict> {
        Pin::new(&mut self.0).poll(cx).map(|verdict| verdict.unwrap_or(Verdict::Requeue))
    }
}

/// See [`test`](fn@test).
#[derive(Debug)]
pub struct TestSource<T>(mpsc::Receiver<(T, TestReceipt)>);

/// Tells a [`Sent`].
#[derive(Debug)]
pub struct TestReceipt(oneshot::Sender<Verdict>);

impl Receipt for TestReceipt {
    fn settle(self, verdict: Verdict) {
        // The test may not care.
        let _ = self.0.send(verdict);
    }
}

impl<T: Send + Sync + 'static> Source for TestSource<T> {
    type Value = T;
    type Receipt = TestReceipt;

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Taken<Self>> {
        self.0.poll_recv(cx).map(Ok)
    }

    fn poll_over(&mut self, _: &mut Context<'_>) -> Poll<()> {
        if self.0.is_closed() && self.0.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    }
}
