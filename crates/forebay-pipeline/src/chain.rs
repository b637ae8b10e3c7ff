//! A pipeline whose results are the messages of another.
//!
//! ```text
//!   source ──▶ handlers ──▶ [buffer] ──▶ handlers of the next ──▶ ...
//!     ▲                                          │
//!     └───────────── settled at the end ◄────────┘
//! ```

use std::fmt;
use std::task::{Context, Poll, ready};

use forebay_flow::explain::Detour;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;

use crate::handler::Handler;
use crate::item::Item;
use crate::needs::{Finding, Needs};
use crate::outcome::{Handled, Step, Verdict};
use crate::pipeline::Process;
use crate::running::{Control, Running};
use crate::source::{Receipt, Source, SourceError, Taken};
use crate::stage::Onward;

/// Hands a value on to the next pipeline: what a handler returns, alone or in a `Result`, where
/// [`Process::into_source`] follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandOn<V>(pub V);

impl<V: Send> Handled for HandOn<V> {
    type Value = V;

    fn handled(self) -> Result<Step<V>, String> {
        Ok(Step::Batch { batcher: None, value: self.0 })
    }
}

/// A pipeline as the source of another. See [`Process::into_source`].
pub struct Chained<S: Source, H, V> {
    state: State<S, H, V>,
    buffer_max: usize,
}

enum State<S: Source, H, V> {
    Planned(Option<Box<Process<S, H>>>),
    Running {
        running: Running,
        values: mpsc::Receiver<Handed<V, S::Value>>,
        /// How it ended, once it did: told after the last value.
        ended: Option<Result<(), SourceError>>,
        /// What it knows to be held by the next pipeline.
        held: usize,
    },
}

impl<S, H, V> Chained<S, H, V>
where
    S: Source,
    H: Handler<S::Value>,
    H::Output: Handled<Value = V>,
    V: Send + Sync + 'static,
{
    pub(crate) fn new(process: Process<S, H>, buffer_max: usize) -> Self {
        // More than a channel can count are more than there are.
        let buffer_max = buffer_max.clamp(1, Semaphore::MAX_PERMITS);
        Chained { state: State::Planned(Some(Box::new(process))), buffer_max }
    }

    /// Where the next pipeline may hold, and put off, so many messages.
    fn begin(&mut self, next: &Needs) {
        if let State::Planned(process) = &mut self.state {
            let process = process.take().expect("it is planned until it runs");
            let (sender, values) = mpsc::channel(self.buffer_max);
            let beyond = Needs {
                held_messages: next.held_messages.saturating_add(self.buffer_max),
                put_off_messages: next.put_off_messages,
                ..Needs::default()
            };
            let running = process.start_with(ToNext(sender), beyond);
            let held = next.held_messages;
            self.state = State::Running { running, values, ended: None, held };
        }
    }
}

impl<S, H, V> Source for Chained<S, H, V>
where
    S: Source,
    H: Handler<S::Value>,
    H::Output: Handled<Value = V>,
    V: Send + Sync + 'static,
{
    type Value = V;
    type Receipt = ChainReceipt<S::Value>;

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Taken<Self>> {
        loop {
            match &mut self.state {
                State::Planned(_) => self.begin(&Needs::default()),
                State::Running { running, values, ended, .. } => {
                    if let Poll::Ready(Some(handed)) = values.poll_recv(cx) {
                        return Poll::Ready(Ok(Some(handed.apart())));
                    }
                    // A task that is over must not be asked again.
                    if ended.is_none() {
                        *ended = Some(ready!(running.poll_end(cx)));
                    }
                    // What was handed on before the end, which nobody wakes for any more.
                    if let Ok(handed) = values.try_recv() {
                        return Poll::Ready(Ok(Some(handed.apart())));
                    }
                    let ended = ended.take().expect("it is over");
                    return Poll::Ready(ended.map(|()| None));
                }
            }
        }
    }

    fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let State::Running { running, values, ended, .. } = &mut self.state else {
            return Poll::Pending;
        };
        if ended.is_none() {
            *ended = Some(ready!(running.poll_end(cx)));
        }
        if values.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    }

    fn needs(&mut self, needs: &Needs) -> Vec<Finding> {
        // Its own source is told when it starts, which is with the next pipeline. What that finds is its own finding.
        match &mut self.state {
            State::Planned(_) => self.begin(needs),
            State::Running { running, held, .. } => {
                running.holds_more(needs.held_messages.saturating_sub(*held));
                *held = needs.held_messages.max(*held);
            }
        }
        Vec::new()
    }

    fn upstream(&self) -> Vec<Control> {
        match &self.state {
            State::Planned(_) => Vec::new(),
            State::Running { running, .. } => vec![running.control()],
        }
    }
}

impl<S: Source, H, V> fmt::Debug for Chained<S, H, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chained").field("buffer_max", &self.buffer_max).finish_non_exhaustive()
    }
}

/// A value on its way from one pipeline to the next.
struct Handed<V, T> {
    value: V,
    item: Item<T>,
    at: Instant,
}

impl<V, T> Handed<V, T> {
    fn apart(self) -> (V, ChainReceipt<T>) {
        (self.value, ChainReceipt { item: self.item, handed: self.at })
    }
}

/// Settles the message from which a value came, at its own source.
#[derive(Debug)]
pub struct ChainReceipt<T> {
    item: Item<T>,
    handed: Instant,
}

impl<T: Send + Sync + 'static> Receipt for ChainReceipt<T> {
    fn is_void(&self) -> bool {
        self.item.is_void()
    }

    fn settle(self, verdict: Verdict) {
        self.item.detoured(Detour::Next, self.handed.elapsed());
        self.item.settle(verdict);
    }
}

/// The next pipeline, as handlers see it.
pub(crate) struct ToNext<T, V>(mpsc::Sender<Handed<V, T>>);

impl<T, V> Onward<T, V> for ToNext<T, V>
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
        if let Some(name) = batcher {
            return Err(format!("there is no batcher '{name}': another pipeline follows"));
        }
        let handed = Handed { value, item, at: Instant::now() };
        Ok(async {
            // Where nobody takes values any more the message goes back with them.
            let _ = self.0.send(handed).await;
        })
    }
}
