//! What a stage does about its messages beside working on them.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::backoff::Backoff;
use crate::breaker::Breaker;
use crate::dispatch::Lane;
use crate::handler::{Failure, catching};
use crate::item::Item;
use crate::outcome::{Outcome, Verdict};
use crate::spans::Spans;
use crate::trace::Tracer;

/// Finds a value's lane.
pub(crate) type LaneOf<T> = Box<dyn Fn(&T) -> Lane + Send + Sync>;

/// Failures in a row before those of a pipeline that goes on as nobody decided have to wait.
const FAILURES: u32 = 10;

/// What a value knows of itself that is not one message, but a batch of them.
pub(crate) trait Whole<T>: Send + Sync {
    /// It is tried again after so long.
    fn put_off(&self, value: &T, pause: Duration);
    /// Attempts before the first.
    fn attempts(&self, value: &T) -> u32;
    /// Nothing is left of it to work on.
    fn is_settled(&self, value: &T) -> bool;
    /// It may come again in parts when its last attempt has failed.
    fn has_parts(&self, value: &T) -> bool;
    /// Its last attempt failed. True: it comes again in parts, and is not to be settled.
    fn comes_in_parts(&self, item: &Item<T>) -> bool;
}

/// Options of a stage.
pub(crate) struct Policy<T> {
    pub(crate) ordered_by: Option<LaneOf<T>>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) retries: Option<Backoff>,
    /// `None`: nobody decided.
    pub(crate) on_failure: Option<Outcome>,
    pub(crate) dead_letters: Option<DeadLetters<T>>,
    /// Messages a second.
    pub(crate) rate_per_s: Option<u64>,
    pub(crate) breaker: Option<Breaker>,
    /// Nobody asked for it: it counts only what comes again at once though no handler said so.
    pub(crate) breaks_by_default: bool,
    pub(crate) tracer: Option<Tracer<T>>,
    pub(crate) whole: Option<Box<dyn Whole<T>>>,
    pub(crate) spans: Option<Box<Spans<T>>>,
}

impl<T> Default for Policy<T> {
    fn default() -> Policy<T> {
        Policy {
            ordered_by: None,
            timeout: None,
            retries: None,
            on_failure: None,
            dead_letters: None,
            rate_per_s: None,
            breaker: None,
            breaks_by_default: false,
            tracer: None,
            whole: None,
            spans: None,
        }
    }
}

impl<T> Policy<T> {
    /// Whether another attempt at `item` would change nothing.
    pub(crate) fn is_settled(&self, item: &Item<T>) -> bool {
        item.is_settled() || self.whole.as_ref().is_some_and(|whole| whole.is_settled(item))
    }

    /// Whether the last attempt at `item` failed, and its parts are to tell which of them is to blame.
    fn asks_parts(&self, item: &Item<T>) -> bool {
        let has_parts = self.whole.as_ref().is_some_and(|whole| whole.has_parts(item));
        has_parts && !self.is_settled(item) && !matches!(self.after(item), Outcome::Retry(_))
    }

    /// What follows from the failure of `item`.
    pub(crate) fn after(&self, item: &Item<T>) -> Outcome {
        let backoff = self.retries.filter(|_| !self.is_settled(item));
        let pause = backoff.and_then(|backoff| backoff.pause(item.attempt(), item.number()));
        pause.map_or(self.at_last(), Outcome::Retry)
    }

    /// What becomes of a message whose last attempt failed. Rejecting deletes it where no dead-letter exchange has it, and a
    /// database that is down for a minute fails every message, so that is for who asks for it.
    pub(crate) fn at_last(&self) -> Outcome {
        let unset =
            if self.dead_letters.is_some() { Outcome::DeadLetter } else { Outcome::Requeue };
        self.on_failure.unwrap_or(unset)
    }

    /// With the user's breaker, or one for failures that come again at once, to the workers who have just failed, though nobody
    /// has decided that: where nothing was said of them, and where a dead letter cannot be sent.
    pub(crate) fn with_breaker(mut self) -> Policy<T> {
        let (breaker, by_default) = self.breaker();
        (self.breaker, self.breaks_by_default) = (breaker, by_default);
        self
    }

    /// The breaker, and whether nobody asked for it.
    pub(crate) fn breaker(&self) -> (Option<Breaker>, bool) {
        let unasked = match self.on_failure {
            None => true,
            Some(Outcome::Requeue) => false, // it was asked for
            Some(_) => self.dead_letters.is_some(),
        };
        if self.breaker.is_some() || !unasked {
            return (self.breaker, self.breaks_by_default);
        }
        let (first, most) = (Duration::from_secs(1), Duration::from_secs(60));
        (Some(Breaker::new(FAILURES, first, most)), true)
    }

    /// Whether the breaker takes for a failure what an attempt has come to; `None`: for nothing yet. It takes so a batch whose
    /// parts are to tell which message is to blame; one by default also what is tried again after a pause or as its handler says,
    /// and a dead letter that is still to be sent.
    pub(crate) fn has_failed(&self, item: &Item<T>, decided: &Decided) -> Option<bool> {
        let buries = |then| then == Outcome::DeadLetter && self.dead_letters.is_some();
        match decided {
            Err(_) if self.asks_parts(item) => None,
            _ if !self.breaks_by_default => Some(!is_done(decided)),
            Err(_) => (self.after(item) == Outcome::Requeue).then_some(true),
            Ok(then) => (is_done(decided) && !then.is_some_and(buries)).then_some(false),
        }
    }
}

/// What an attempt has come to; `None`: its message has been handed on.
pub(crate) type Decided = Result<Option<Outcome>, Failure>;

/// Whether it did what it was for.
pub(crate) fn is_done(decided: &Decided) -> bool {
    let again = |then| matches!(then, Outcome::Requeue | Outcome::Retry(_));
    decided.as_ref().is_ok_and(|then| !then.is_some_and(again))
}

/// A dead letter on its way.
pub(crate) type Burial = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// Where messages go that nobody can use.
pub(crate) struct DeadLetters<T>(Arc<dyn Fn(Item<T>, String) -> Burial + Send + Sync>);

impl<T> Clone for DeadLetters<T> {
    fn clone(&self) -> Self {
        DeadLetters(self.0.clone())
    }
}

impl<T: Send + Sync + 'static> DeadLetters<T> {
    pub(crate) fn new<F, Fut, E>(send: F) -> DeadLetters<T>
    where
        F: Fn(Item<T>, String) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: fmt::Display,
    {
        DeadLetters(Arc::new(move |item, reason| {
            let sending = send(item, reason);
            Box::pin(async move { sending.await.map_err(|error| error.to_string()) })
        }))
    }

    /// Sends a message there and acknowledges it; if that fails it goes back to its source, for it is nowhere
    /// else. Whether it was sent; `None`: there was nothing to send.
    pub(crate) async fn take(&self, item: &Item<T>, reason: &str) -> Option<bool> {
        if item.is_settled() {
            return None;
        }
        let send = async { (self.0)(item.handle(), reason.to_owned()).await };
        let sent = catching(send).await.unwrap_or_else(|failure: Failure| Err(failure.to_string()));
        let buried = sent.is_ok();
        match sent {
            Ok(()) => item.buried(),
            Err(error) => {
                tracing::error!(error, "a dead letter could not be sent and is requeued");
                item.settle(Verdict::Requeue);
            }
        }
        Some(buried)
    }
}

/// Settles `item`, which is not to be tried again. Of a dead letter, whether it was sent.
pub(crate) async fn conclude<T: Send + Sync + 'static>(
    item: &Item<T>,
    outcome: Outcome,
    reason: &str,
    dead_letters: Option<&DeadLetters<T>>,
) -> Option<bool> {
    let verdict = match (outcome, dead_letters) {
        (Outcome::DeadLetter, Some(dead_letters)) => {
            return dead_letters.take(item, reason).await;
        }
        (Outcome::Ack, _) => Verdict::Ack,
        (Outcome::Reject | Outcome::DeadLetter, _) => Verdict::Reject,
        (Outcome::Requeue | Outcome::Retry(_), _) => Verdict::Requeue,
    };
    item.settle(verdict);
    None
}
