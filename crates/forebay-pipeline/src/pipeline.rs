//! Putting a pipeline together.

use std::convert::Infallible;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use forebay_flow::explain::Marks;
use tower_service::Service;

use crate::backoff::Backoff;
use crate::batch::{Batch, Batching};
use crate::batched::Batched;
use crate::breaker::Breaker;
use crate::chain::Chained;
use crate::concurrency::Concurrency;
use crate::deduplicate::Deduplicated;
use crate::dispatch::{Dispatch, Lane};
use crate::handler::{Async, Blocking, Handler};
use crate::item::Item;
use crate::needs::Needs;
use crate::outcome::{Handled, Outcome};
use crate::policy::{DeadLetters, Policy};
use crate::report::Report;
use crate::running::Running;
use crate::service::Called;
use crate::source::{Source, SourceError};
use crate::stage::{Nowhere, Onward, Stage};
use crate::supervise::{Deadline, supervise};
use crate::trace::{Explaining, Tracer};

/// Messages that a pipeline holds beside those in work, unless told otherwise.
pub const BUFFER_MAX: usize = 1_000;

/// A source of messages that awaits its handler.
#[derive(Debug)]
pub struct Pipeline<S> {
    source: S,
}

impl<S: Source> Pipeline<S> {
    /// Takes its messages from `source`.
    pub fn from(source: S) -> Pipeline<S> {
        Pipeline { source }
    }

    /// Works on up to `concurrency` messages at a time, each by one call of `handler`: a number, or
    /// [`Concurrency::auto`].
    pub fn process<F, Fut>(
        self,
        concurrency: impl Into<Concurrency>,
        handler: F,
    ) -> Process<S, Async<F>>
    where
        F: Fn(Item<S::Value>) -> Fut + Send + Sync + 'static,
        Fut: Future + Send,
        Fut::Output: Handled + Send,
    {
        Process::new(self.source, concurrency.into(), Async(handler))
    }

    /// The same with a handler that computes or blocks: each call is on a thread of the runtime's pool for such
    /// work (512 threads unless the runtime was built otherwise), at a few microseconds a message. What has
    /// begun there cannot be cancelled; what still waits for a thread is.
    pub fn process_blocking<F, O>(
        self,
        concurrency: impl Into<Concurrency>,
        handler: F,
    ) -> Process<S, Blocking<F>>
    where
        F: Fn(Item<S::Value>) -> O + Send + Sync + 'static,
        O: Handled + Send + 'static,
    {
        Process::new(self.source, concurrency.into(), Blocking(Arc::new(handler)))
    }

    /// The same with a `tower` service, cloned for each message. Its answer is what a handler may return, and its error,
    /// or that it is not ready, is a failure. Retries are better left to [`Process::retries`], which frees the worker
    /// meanwhile: a layer that keeps requests to repeat them would have to clone the message.
    pub fn process_service<V>(
        self,
        concurrency: impl Into<Concurrency>,
        service: V,
    ) -> Process<S, Called<V>>
    where
        V: Service<Item<S::Value>> + Clone + Send + 'static,
        V::Response: Handled + Send,
        V::Error: fmt::Display + Send,
        V::Future: Send,
    {
        Process::new(self.source, concurrency.into(), Called::new(service))
    }
}

/// A pipeline that can be started. All options have defaults.
pub struct Process<S: Source, H> {
    source: S,
    handler: H,
    concurrency: Concurrency,
    buffer_max: usize,
    pub(crate) policy: Policy<S::Value>,
}

impl<S: Source, H: Handler<S::Value>> Process<S, H> {
    fn new(source: S, concurrency: Concurrency, handler: H) -> Process<S, H> {
        Process { source, handler, concurrency, buffer_max: BUFFER_MAX, policy: Policy::default() }
    }

    /// Messages with the same key are worked on one at a time, in the order in which they came, by whichever
    /// worker is free; other keys pass them. One that is tried again keeps its place ([`Process::retries`],
    /// [`Outcome::Retry`]). One that goes back to its source does not, which is what follows a failure unless
    /// [`Process::on_failure`] says otherwise: it comes again behind those of its key that are here.
    ///
    /// It is the handler that keeps them in order. What it hands on is handed on in their order, but batches do not wait
    /// for one another where several are in work ([`Batching::concurrency`]) or one is tried again.
    #[must_use]
    pub fn ordered_by<K: Hash>(
        mut self,
        key: impl Fn(&S::Value) -> K + Send + Sync + 'static,
    ) -> Self {
        self.policy.ordered_by = Some(Box::new(move |value| Lane::of(&key(value))));
        self
    }

    /// Acknowledges a message without calling the handler if its key is among the last `remembered` ones that the handler
    /// was done with; `None` is no key. Remembered is what it acknowledged itself: what it returned for a batch may still
    /// fail there. Two with one key at the same time are both worked on, unless they are
    /// [ordered by](Process::ordered_by) it. The keys are in memory, and gone with the process.
    ///
    /// A message-id is a good key if its publisher sets one and keeps it when it publishes again, as ours does.
    #[must_use]
    pub fn deduplicate<K>(
        self,
        remembered: usize,
        key: impl Fn(&S::Value) -> Option<K> + Send + Sync + 'static,
    ) -> Process<S, Deduplicated<S::Value, H, K>>
    where
        K: Hash + Eq + Clone + Send + 'static,
    {
        let Process { source, handler, concurrency, buffer_max, policy } = self;
        let handler = Deduplicated::new(handler, remembered, Box::new(key));
        Process { source, handler, concurrency, buffer_max, policy }
    }

    /// Messages held beside those in work, at least 1; [`BUFFER_MAX`] unless set. They are those that wait for
    /// an earlier one of their key: without [`Process::ordered_by`] there are hardly any. When they are that
    /// many, nothing more is taken, and other keys wait too.
    #[must_use]
    pub fn buffer_max(mut self, messages: usize) -> Self {
        self.buffer_max = messages.max(1);
        self
    }

    /// Tries a message again, after a pause, when its handler returned an error, panicked or took too long; it
    /// stays unacknowledged meanwhile, and those of its key wait. When [`Process::buffer_max`] messages wait already, the
    /// worker waits with the message. Batches are tried again as a whole, and those after them do not wait; when as many
    /// as there are workers for them wait already, a worker waits with its batch.
    #[must_use]
    pub fn retries(mut self, backoff: Backoff) -> Self {
        self.policy.retries = Some(backoff);
        self
    }

    /// An attempt that takes longer is cancelled where it waits, and has failed. A blocking handler that has begun cannot
    /// be cancelled: it goes on, and nobody looks at what it returns.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.policy.timeout = Some(limit);
        self
    }

    /// Starts at most so many messages a second, at least 1, a tenth of them at once. Messages that may not start
    /// yet stay in the source. [`Control::set_rate`](crate::Control::set_rate) changes it.
    #[must_use]
    pub fn rate_limit(mut self, messages_per_s: u64) -> Self {
        self.policy.rate_per_s = Some(messages_per_s);
        self
    }

    /// A circuit breaker: begins nothing for a while when so many attempts in a row have failed, or asked for another.
    /// What is not begun stays in the source. Each batcher has one like it, for its batches, which wait where they are; a batch
    /// that is [bisected](crate::Batching::bisect_failures) then has not failed there, but its messages that fail alone have.
    #[must_use]
    pub fn breaker(mut self, breaker: Breaker) -> Self {
        self.policy.breaker = Some(breaker);
        self
    }

    /// Marks one message in `every`, at least 1, with the times at which it passes the points of its way through the
    /// pipeline; [`Control::explanation`](crate::Control::explanation) adds them up. `marks` finds those with which a
    /// message comes, in microseconds since 1970: then its way to the pipeline counts. A message that its publisher
    /// marked ([`Mark::Offered`](crate::explain::Mark::Offered)) is one of the chosen; once there are such, they are what
    /// is explained, and no others.
    ///
    /// It costs an allocation and some locks for each message that is marked, a call of `marks` for the others.
    #[must_use]
    pub fn explain(
        self,
        every: u64,
        marks: impl Fn(&S::Value) -> Marks + Send + Sync + 'static,
    ) -> Self {
        self.explain_by(Explaining::new(every, marks))
    }

    /// The same, with names for messages, and with somebody who is told of each that was marked.
    #[must_use]
    pub fn explain_by(mut self, how: Explaining<S::Value>) -> Self {
        self.policy.tracer = Some(Tracer::new(how));
        self
    }

    /// Makes a span of OpenTelemetry for each attempt at a message, as `span_of` describes it, and attaches it while the
    /// handler works: what the handler begins, publishes or logs belongs to it. The first link of the description, if there is
    /// one, is the context with which the message came, and the span is its child. An error, a panic or a timeout is the span's
    /// `error.type` and status. A batch has a span of its own, with a link to where each message came from; an SDK may
    /// keep the first 128 links only, unless `OTEL_SPAN_LINK_COUNT_LIMIT` says otherwise.
    ///
    /// For messages of a queue `span_of` is `|order: &Received| order.process_span("orders")`. The tracer provider is the
    /// global one as it is now.
    #[cfg(feature = "opentelemetry")]
    #[must_use]
    pub fn opentelemetry(
        mut self,
        span_of: impl Fn(&S::Value) -> opentelemetry::trace::SpanBuilder + Send + Sync + 'static,
    ) -> Self {
        self.policy.spans = Some(Box::new(crate::spans::Spans::new(span_of)));
        self
    }

    /// Where messages go whose last attempt failed, unless [`Process::on_failure`] says otherwise, and those of
    /// [`Outcome::DeadLetter`], with the reason: for instance to a queue of their own. A message that was sent there is
    /// acknowledged; if sending fails it goes back to its source, and when that has happened ten times in a row there are pauses
    /// as for [`Process::on_failure`], unless that says [`Outcome::Requeue`].
    #[must_use]
    pub fn dead_letters<F, Fut, E>(mut self, send: F) -> Self
    where
        F: Fn(Item<S::Value>, String) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: fmt::Display,
    {
        self.policy.dead_letters = Some(DeadLetters::new(send));
        self
    }

    /// What becomes of a message whose last attempt failed. Unless set it goes to the
    /// [dead letters](Process::dead_letters), and where there are none back to its source; then, after ten failures in a
    /// row, nothing begins for a second at first and a minute at last, until something succeeds ([`Process::breaker`] sets
    /// others). Attempts that are followed by a pause of their own, or at a batch that is
    /// [bisected](crate::Batching::bisect_failures), are neither failures nor successes there, nor is what a handler puts off
    /// itself. [`Outcome::Reject`] deletes it, unless the broker has a dead-letter exchange for its queue.
    #[must_use]
    pub fn on_failure(mut self, outcome: Outcome) -> Self {
        self.policy.on_failure = Some(outcome);
        self
    }

    /// Sends values that handlers return as [`ToBatch`](crate::ToBatch) to a batcher: batches of `messages`, or of
    /// what has come within `delay` of the first, one at a time. [`Process::batch_by`] has more options.
    pub fn batch<V, F, Fut>(
        self,
        name: &'static str,
        messages: usize,
        delay: Duration,
        handler: F,
    ) -> Batched<S, H, V>
    where
        V: Send + Sync + 'static,
        H::Output: Handled<Value = V>,
        F: Fn(Item<Batch<V>>) -> Fut + Send + Sync + 'static,
        Fut: Future + Send,
        Fut::Output: Handled<Value = Infallible> + Send,
    {
        self.batch_by(Batching::new(name, messages, delay), handler)
    }

    /// The same with batches made as `batching` says.
    pub fn batch_by<V, F, Fut>(self, batching: Batching<V>, handler: F) -> Batched<S, H, V>
    where
        V: Send + Sync + 'static,
        H::Output: Handled<Value = V>,
        F: Fn(Item<Batch<V>>) -> Fut + Send + Sync + 'static,
        Fut: Future + Send,
        Fut::Output: Handled<Value = Infallible> + Send,
    {
        Batched { process: self, batchers: Vec::new() }.batch_by(batching, handler)
    }

    /// The source of another pipeline: it gets the values that handlers here return as [`HandOn`](crate::HandOn), and a
    /// message is settled when the last pipeline is done with its value. `buffer_max` values, at least 1, wait for the
    /// next pipeline; when they are that many, handlers here wait, and nothing more is taken.
    ///
    /// It starts with the next pipeline and ends with it. When that one is drained, what was not handed on by then
    /// goes back to the source.
    pub fn into_source<V>(self, buffer_max: usize) -> Chained<S, H, V>
    where
        H::Output: Handled<Value = V>,
        V: Send + Sync + 'static,
    {
        Chained::new(self, buffer_max)
    }

    /// Starts it, on tasks of the current runtime.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start(self) -> Running
    where
        H::Output: Handled<Value = Infallible>,
    {
        self.start_with(Nowhere, Needs::default())
    }

    /// `beyond`: what is held, and put off, elsewhere.
    pub(crate) fn start_with<N>(self, onward: N, beyond: Needs) -> Running
    where
        N: Onward<S::Value, <H::Output as Handled>::Value>,
    {
        let deadline = Deadline::default();
        let stage = self.stage(onward, beyond);
        let work = supervise(stage.clone(), deadline.clone());
        Running::new(stage, work, Vec::new(), deadline)
    }

    /// Starts it and waits for its end: see [`Running::join`].
    ///
    /// # Errors
    /// The source failed.
    pub async fn run(self) -> Result<Report, SourceError>
    where
        H::Output: Handled<Value = Infallible>,
    {
        self.start().join().await
    }

    /// `beyond`: what is held, and put off, elsewhere, and what is said of batches.
    pub(crate) fn stage<N>(self, onward: N, beyond: Needs) -> Arc<Stage<S, H, N>>
    where
        N: Onward<S::Value, <H::Output as Handled>::Value>,
    {
        let dispatch = Dispatch::new(self.concurrency.first(None), self.buffer_max);
        let waiting = if self.policy.ordered_by.is_some() { self.buffer_max } else { 0 };
        let needs = Needs {
            held_messages: beyond
                .held_messages
                .saturating_add(self.concurrency.most())
                .saturating_add(waiting),
            put_off_messages: beyond.put_off_messages.saturating_add(self.buffer_max - waiting),
            ordered: self.policy.ordered_by.is_some(),
            timeout: self.policy.timeout,
            retries: self.policy.retries,
            retry_pauses: self.policy.retries.map(|backoff| backoff.longest()),
            marks: self.policy.tracer.is_some(),
            ..beyond
        };
        let (concurrency, policy) = (self.concurrency, self.policy.with_breaker());
        Stage::new(self.source, self.handler, onward, dispatch, concurrency, policy, needs)
    }
}

impl<S: Source, H> fmt::Debug for Process<S, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process").field("concurrency", &self.concurrency).finish_non_exhaustive()
    }
}
