//! A pipeline with batches.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use forebay_flow::explain::Mark;

use crate::batch::{Batch, Batching};
use crate::collector::{Batches, Collector};
use crate::dispatch::Dispatch;
use crate::handler::{Async, Failure, Handler};
use crate::item::Item;
use crate::needs::Needs;
use crate::outcome::Handled;
use crate::pipeline::Process;
use crate::policy::{DeadLetters, Policy, Whole};
use crate::report::Report;
use crate::running::Running;
use crate::source::{Source, SourceError};
use crate::stage::{Nowhere, Onward, Stage};
use crate::supervise::{BatchWork, Deadline, supervise};

/// A pipeline with batches that can be started. See [`Process::batch`].
pub struct Batched<S: Source, H, V> {
    pub(crate) process: Process<S, H>,
    pub(crate) batchers: Vec<Box<dyn Plan<S::Value, V>>>,
}

impl<S, H, V> Batched<S, H, V>
where
    S: Source,
    H: Handler<S::Value>,
    H::Output: Handled<Value = V>,
    V: Send + Sync + 'static,
{
    /// One more batcher: see [`Process::batch`].
    #[must_use]
    pub fn batch<F, Fut>(
        self,
        name: &'static str,
        messages: usize,
        delay: Duration,
        handler: F,
    ) -> Self
    where
        F: Fn(Item<Batch<V>>) -> Fut + Send + Sync + 'static,
        Fut: Future + Send,
        Fut::Output: Handled<Value = Infallible> + Send,
    {
        self.batch_by(Batching::new(name, messages, delay), handler)
    }

    /// One more batcher: see [`Process::batch_by`].
    #[must_use]
    pub fn batch_by<F, Fut>(mut self, batching: Batching<V>, handler: F) -> Self
    where
        F: Fn(Item<Batch<V>>) -> Fut + Send + Sync + 'static,
        Fut: Future + Send,
        Fut::Output: Handled<Value = Infallible> + Send,
    {
        self.batchers.push(Box::new(Planned { batching, handler: Async(handler) }));
        self
    }

    /// Starts it, on tasks of the current runtime.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start(self) -> Running {
        let deadline = Deadline::default();
        let mut onward = ToBatchers { collectors: Vec::new() };
        let mut works = Vec::new();
        for plan in self.batchers {
            let (collector, work) = plan.start(&self.process.policy, &deadline);
            onward.collectors.push(collector);
            works.push(work);
        }
        let limits = || onward.collectors.iter().map(|collector| collector.batching.limits());
        let delay_us = limits().map(|limits| limits.delay_us).max();
        // As many batches may wait for another attempt as may be in work, beside those that are being made.
        let in_work = works.iter().map(BatchWork::messages).fold(0, usize::saturating_add);
        let made = limits().map(|limits| limits.held_max).fold(0, usize::saturating_add);
        let beyond = Needs {
            held_messages: made.saturating_add(in_work),
            put_off_messages: in_work,
            batch_messages: limits().map(|limits| limits.messages).max(),
            batch_delay: delay_us.map(Duration::from_micros),
            ..Needs::default()
        };
        let stage = self.process.stage(onward, beyond);
        let work = supervise(stage.clone(), deadline.clone());
        Running::new(stage, work, works, deadline)
    }

    /// Starts it and waits for its end: see [`Running::join`].
    ///
    /// # Errors
    /// The source failed.
    pub async fn run(self) -> Result<Report, SourceError> {
        self.start().join().await
    }
}

impl<S: Source, H, V> fmt::Debug for Batched<S, H, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Batched");
        debug.field("process", &self.process).field("batchers", &self.batchers.len()).finish()
    }
}

/// A batcher and its handler, whatever the handler's type.
pub(crate) trait Plan<T, V>: Send {
    fn start(
        self: Box<Self>,
        policy: &Policy<T>,
        deadline: &Deadline,
    ) -> (Arc<Collector<T, V>>, BatchWork);
}

struct Planned<V, F> {
    batching: Batching<V>,
    handler: Async<F>,
}

impl<T, V, F> Plan<T, V> for Planned<V, F>
where
    T: Send + Sync + 'static,
    V: Send + Sync + 'static,
    Async<F>: Handler<Batch<V>>,
    <Async<F> as Handler<Batch<V>>>::Output: Handled<Value = Infallible>,
    F: Send,
{
    fn start(
        self: Box<Self>,
        policy: &Policy<T>,
        deadline: &Deadline,
    ) -> (Arc<Collector<T, V>>, BatchWork) {
        let (name, batch_messages) = (self.batching.name, self.batching.limits().messages);
        // No more batches wait for another attempt than there are workers, and others pass them.
        let concurrency = self.batching.concurrency;
        let dispatch = Dispatch::new(concurrency.first(None), concurrency.most().saturating_add(1));
        let dead_letters = policy.dead_letters.clone();
        let collector = Arc::new(Collector::new(self.batching, dead_letters));
        let batches = Batches::new(collector.clone());
        let bury = |batch: Item<Batch<V>>, reason| batch.bury(reason);
        #[cfg(feature = "opentelemetry")]
        let spans = policy.spans.as_ref().map(|_| {
            Box::new(crate::spans::Spans::of_batches(move |batch: &Batch<V>| batch.span(name)))
        });
        #[cfg(not(feature = "opentelemetry"))]
        let spans = None;
        let (breaker, breaks_by_default) = policy.breaker();
        let policy = Policy {
            timeout: policy.timeout,
            retries: policy.retries,
            on_failure: Some(policy.at_last()),
            dead_letters: Some(DeadLetters::new(bury)),
            whole: Some(Box::new(Batchwise(collector.clone()))),
            // What batches need may be down while what single messages need is not: a state of its own.
            breaker,
            breaks_by_default,
            spans,
            ..Policy::default()
        };
        let stage = Stage::new(
            batches,
            Marking(self.handler),
            Nowhere,
            dispatch,
            concurrency,
            policy,
            Needs::default(),
        );
        let work = Box::pin(supervise(stage.clone(), deadline.clone()));
        let closed = collector.clone();
        let close = Box::new(move || closed.close());
        let workers = concurrency.most();
        (collector, BatchWork { name, batch_messages, workers, stage, work, close })
    }
}

/// What the stage of a batcher asks about its batches.
struct Batchwise<T, V>(Arc<Collector<T, V>>);

impl<T: Send + Sync + 'static, V: Send + Sync + 'static> Whole<Batch<V>> for Batchwise<T, V> {
    fn put_off(&self, batch: &Batch<V>, pause: Duration) {
        batch.put_off(pause);
    }

    fn attempts(&self, batch: &Batch<V>) -> u32 {
        batch.attempts()
    }

    fn is_settled(&self, batch: &Batch<V>) -> bool {
        batch.is_settled()
    }

    fn has_parts(&self, batch: &Batch<V>) -> bool {
        self.0.batching.bisects && batch.len() > 1
    }

    fn comes_in_parts(&self, batch: &Item<Batch<V>>) -> bool {
        if !self.has_parts(batch) {
            return false;
        }
        // It was in vain, and is no wait for others.
        Batch::put_off(batch, Duration::ZERO);
        self.0.bisect(batch, batch.attempt())
    }
}

/// A batch handler that marks the messages of its batches.
struct Marking<H>(H);

impl<V: Send + Sync + 'static, H: Handler<Batch<V>>> Handler<Batch<V>> for Marking<H> {
    type Output = H::Output;

    async fn handle(&self, batch: Item<Batch<V>>) -> Result<H::Output, Failure> {
        Batch::passed(&batch, Mark::Begun);
        let marked = batch.handle();
        let result = self.0.handle(batch).await;
        Batch::passed(&marked, Mark::Done);
        result
    }
}

/// All batchers of a pipeline.
struct ToBatchers<T, V> {
    collectors: Vec<Arc<Collector<T, V>>>,
}

impl<T, V> Onward<T, V> for ToBatchers<T, V>
where
    T: Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    fn hand_on(
        &self,
        batcher: Option<&'static str>,
        value: V,
        item: Item<T>,
    ) -> Result<impl Future<Output = ()> + Send, String> {
        let collector = match batcher {
            None if self.collectors.len() == 1 => self.collectors.first(),
            None => return Err("there are several batchers: name one with ToBatch::named".into()),
            Some(name) => self.collectors.iter().find(|collector| collector.batching.name == name),
        };
        match collector {
            Some(collector) => Ok(collector.put(value, item)),
            None => Err(format!("there is no batcher '{}'", batcher.unwrap_or_default())),
        }
    }
}
