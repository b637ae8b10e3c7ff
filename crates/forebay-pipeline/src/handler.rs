//! What works on a message, and what happens when it panics.

use std::any::Any;
use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio::task::spawn_blocking;

use crate::item::Item;
use crate::outcome::Handled;
use crate::spans::carried;

/// The work of a stage. Made by [`Pipeline::process`](crate::Pipeline::process) and
/// [`Pipeline::process_blocking`](crate::Pipeline::process_blocking).
pub trait Handler<T>: Send + Sync + 'static {
    /// What it returns.
    type Output: Handled + Send;

    /// Works on `item`.
    fn handle(&self, item: Item<T>) -> impl Future<Output = Result<Self::Output, Failure>> + Send;
}

/// Why a handler's work came to nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// It returned this error.
    Error(String),
    /// It panicked with this message.
    Panic(String),
    /// It took longer than this.
    TimedOut(Duration),
}

impl Failure {
    fn panic(payload: &(dyn Any + Send)) -> Failure {
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        Failure::Panic(text.unwrap_or_else(|| "it did not say why".into()))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Error(error) => f.write_str(error),
            Failure::Panic(message) => write!(f, "it panicked: {message}"),
            Failure::TimedOut(limit) => write!(f, "it took longer than {limit:?}"),
        }
    }
}

/// The work, and its panic as a failure.
pub(crate) async fn catching<F: Future>(work: F) -> Result<F::Output, Failure> {
    // What the work had borrowed when it panicked is dropped with it; what it shares with others is guarded
    // by its own locks, which are poisoned.
    let begun = pin!(Some(work));
    let mut work = Cancelled(begun);
    poll_fn(|cx| {
        let begun = work.0.as_mut().as_pin_mut().expect("it is there until its end");
        match caught(|| begun.poll(cx)) {
            Ok(poll) => poll.map(Ok),
            Err(failure) => Poll::Ready(Err(failure)),
        }
    })
    .await
}

/// Work whose destructors may panic as well, when its time is up. Nobody waits for what it comes to then.
struct Cancelled<'a, F>(Pin<&'a mut Option<F>>);

impl<F> Drop for Cancelled<'_, F> {
    fn drop(&mut self) {
        if let Err(failure) = caught(|| self.0.set(None)) {
            tracing::error!(error = %failure, "a handler failed when it was cancelled");
        }
    }
}

/// The same for work that does not wait.
pub(crate) fn caught<A>(work: impl FnOnce() -> A) -> Result<A, Failure> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| Failure::panic(&*payload))
}

/// A handler that awaits.
#[derive(Debug)]
pub struct Async<F>(pub(crate) F);

impl<T, F, Fut> Handler<T> for Async<F>
where
    T: Send + Sync + 'static,
    F: Fn(Item<T>) -> Fut + Send + Sync + 'static,
    Fut: Future + Send,
    Fut::Output: Handled + Send,
{
    type Output = Fut::Output;

    async fn handle(&self, item: Item<T>) -> Result<Fut::Output, Failure> {
        catching(async move { (self.0)(item).await }).await
    }
}

/// A handler that computes or waits, on a thread of the runtime for such work.
#[derive(Debug)]
pub struct Blocking<F>(pub(crate) Arc<F>);

impl<T, F, O> Handler<T> for Blocking<F>
where
    T: Send + Sync + 'static,
    F: Fn(Item<T>) -> O + Send + Sync + 'static,
    O: Handled + Send + 'static,
{
    type Output = O;

    async fn handle(&self, item: Item<T>) -> Result<O, Failure> {
        let handler = self.0.clone();
        let due = Due(Arc::new(Mutex::new(Some(item)))); // until the end, whichever it is
        let begins = Due(due.0.clone());
        let call = spawn_blocking(carried(move || begins.take().map(|item| handler(item))));
        match call.await {
            Ok(Some(output)) => Ok(output),
            Err(error) if error.is_panic() => Err(Failure::panic(&*error.into_panic())),
            Ok(None) | Err(_) => Err(Failure::Error("the runtime is shutting down".into())),
        }
    }
}

/// The message of a call that has not begun. Whoever awaited the call and does not any more takes it out, and the call,
/// for which the runtime may find a thread at any time yet, comes to nothing.
struct Due<T>(Arc<Mutex<Option<Item<T>>>>);

impl<T> Due<T> {
    fn take(&self) -> Option<Item<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl<T> Drop for Due<T> {
    fn drop(&mut self) {
        self.take();
    }
}
