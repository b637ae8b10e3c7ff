//! Putting a pipeline together.

use std::fmt;
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;

use crate::dispatch::{Dispatch, Lane};
use crate::handler::{Async, Blocking, Handler};
use crate::item::Item;
use crate::outcome::{Handled, Outcome};
use crate::report::Report;
use crate::running::Running;
use crate::source::{Source, SourceError};
use crate::stage::{LaneOf, Stage};

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

    /// Works on up to `concurrency` messages at a time, at least 1, each by one call of `handler`.
    pub fn process<F, Fut>(self, concurrency: usize, handler: F) -> Process<S, Async<F>>
    where
        F: Fn(Item<S::Value>) -> Fut + Send + Sync + 'static,
        Fut: Future + Send,
        Fut::Output: Handled + Send,
    {
        Process::new(self.source, concurrency, Async(handler))
    }

    /// The same with a handler that computes or blocks: each call is on a thread of the runtime's pool for such
    /// work (512 threads unless the runtime was built otherwise), at a few microseconds a message. What has
    /// begun there cannot be cancelled.
    pub fn process_blocking<F, O>(self, concurrency: usize, handler: F) -> Process<S, Blocking<F>>
    where
        F: Fn(Item<S::Value>) -> O + Send + Sync + 'static,
        O: Handled + Send + 'static,
    {
        Process::new(self.source, concurrency, Blocking(Arc::new(handler)))
    }
}

/// A pipeline that can be started. All options have defaults.
pub struct Process<S: Source, H> {
    source: S,
    handler: H,
    concurrency: usize,
    buffer_max: usize,
    ordered_by: Option<LaneOf<S::Value>>,
    on_failure: Outcome,
}

impl<S: Source, H: Handler<S::Value>> Process<S, H> {
    fn new(source: S, concurrency: usize, handler: H) -> Process<S, H> {
        Process {
            source,
            handler,
            concurrency,
            buffer_max: BUFFER_MAX,
            ordered_by: None,
            on_failure: Outcome::Reject,
        }
    }

    /// Messages with the same key are worked on one at a time, in the order in which they came, by whichever
    /// worker is free; other keys pass them.
    #[must_use]
    pub fn ordered_by<K: Hash>(
        mut self,
        key: impl Fn(&S::Value) -> K + Send + Sync + 'static,
    ) -> Self {
        self.ordered_by = Some(Box::new(move |value| Lane::of(&key(value))));
        self
    }

    /// Messages held beside those in work, at least 1; [`BUFFER_MAX`] unless set. They are those that wait for
    /// an earlier one of their key: without [`Process::ordered_by`] there are hardly any. When they are that
    /// many, nothing more is taken, and other keys wait too.
    #[must_use]
    pub fn buffer_max(mut self, messages: usize) -> Self {
        self.buffer_max = messages.max(1);
        self
    }

    /// What becomes of a message whose handler returned an error or panicked: [`Outcome::Reject`] unless set.
    #[must_use]
    pub fn on_failure(mut self, outcome: Outcome) -> Self {
        self.on_failure = outcome;
        self
    }

    /// Starts it, on tasks of the current runtime.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start(self) -> Running {
        let dispatch = Dispatch::new(self.concurrency, self.buffer_max);
        let Process { source, handler, ordered_by, on_failure, .. } = self;
        Running::new(Stage::new(source, handler, dispatch, ordered_by, on_failure))
    }

    /// Starts it and waits for its end: see [`Running::join`].
    ///
    /// # Errors
    /// The source failed.
    pub async fn run(self) -> Result<Report, SourceError> {
        self.start().join().await
    }
}

impl<S: Source, H> fmt::Debug for Process<S, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process").field("concurrency", &self.concurrency).finish_non_exhaustive()
    }
}
