//! Who hires workers, waits for the last of them, and sends them home when time is up.

use std::future::poll_fn;
use std::panic::resume_unwind;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};

use crate::handler::Handler;
use crate::let_go::LetGo;
use crate::outcome::Handled;
use crate::source::{Source, SourceError};
use crate::stage::{Controlled, Onward, Stage};

/// When a drain ends, if one was asked for.
#[derive(Clone, Default)]
pub(crate) struct Deadline(Arc<Mutex<Option<Instant>>>);

impl Deadline {
    pub(crate) fn set(&self, patience: Duration) {
        // Patience beyond the clock's end is as good as none given.
        let at = Instant::now().checked_add(patience);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = at;
    }

    fn get(&self) -> Option<Instant> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The workers of one batcher.
pub(crate) struct BatchWork {
    pub(crate) name: &'static str,
    /// In a batch.
    pub(crate) batch_messages: usize,
    /// So many there may be.
    pub(crate) workers: usize,
    pub(crate) stage: Arc<dyn Controlled>,
    pub(crate) work: Pin<Box<dyn Future<Output = Result<(), SourceError>> + Send>>,
    /// No more messages come.
    pub(crate) close: Box<dyn FnOnce() + Send>,
}

impl BatchWork {
    /// Those that may be in work at a time.
    pub(crate) fn messages(&self) -> usize {
        self.batch_messages.saturating_mul(self.workers)
    }
}

/// The stage of the handlers first, then its batches. Aborted, it takes all workers along.
pub(crate) async fn supervise_all(
    first: impl Future<Output = Result<(), SourceError>>,
    batches: Vec<BatchWork>,
) -> Result<(), SourceError> {
    let mut works = JoinSet::new();
    let mut closers = Vec::new();
    for batch in batches {
        works.spawn(batch.work);
        closers.push(batch.close);
    }
    let mut first = pin!(first);
    let result = loop {
        tokio::select! {
            result = &mut first => break result,
            Some(done) = works.join_next() => unless_panicked(done.map(drop)),
        }
    };
    closers.into_iter().for_each(|close| close());
    while let Some(done) = works.join_next().await {
        unless_panicked(done.map(drop));
    }
    result
}

/// One stage, until its work is done or the deadline has passed.
pub(crate) async fn supervise<S, H, N>(
    stage: Arc<Stage<S, H, N>>,
    deadline: Deadline,
) -> Result<(), SourceError>
where
    S: Source,
    H: Handler<S::Value>,
    N: Onward<S::Value, <H::Output as Handled>::Value>,
{
    let _closed_at_last = Closing(stage.clone());
    let (mut workers, let_go) = (JoinSet::new(), Arc::new(LetGo::default()));
    loop {
        while let Some(seat) = stage.hire() {
            workers.spawn(work(stage.clone(), seat, let_go.clone()));
        }
        while let Some(departure) = stage.next_departure() {
            let stage = stage.clone();
            workers.spawn(async move { stage.see_off(departure).await });
        }
        let (deadline, tick, telling) = (deadline.get(), stage.next_tick(), let_go.due());
        tokio::select! {
            left = workers.join_next() => match left {
                None => return stage.result(),
                Some(left) => unless_panicked(left),
            },
            () = stage.supervise.notified() => {}
            () = sleep_until(tick.unwrap_or_else(Instant::now)), if tick.is_some() => stage.tick(),
            () = sleep_until(telling.unwrap_or_else(Instant::now)), if telling.is_some() => {
                let_go.tell();
            }
            () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                workers.shutdown().await;
                return stage.result();
            }
        }
    }
}

/// Closes the stage, whichever way its supervision ends.
struct Closing(Arc<dyn Controlled>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// One worker.
async fn work<S, H, N>(stage: Arc<Stage<S, H, N>>, seat: usize, let_go: Arc<LetGo>)
where
    S: Source,
    H: Handler<S::Value>,
    N: Onward<S::Value, <H::Output as Handled>::Value>,
{
    loop {
        // A source that always has something must not keep the others from running.
        tokio::task::coop::consume_budget().await;
        let mut taken = poll_fn(|cx| stage.poll_take(seat, cx)).await;
        if taken.is_none() {
            return;
        }
        while let Some(started) = taken {
            taken = if started.message.is_void() {
                stage.let_go(started);
                if let_go.one(Instant::now()) {
                    stage.supervise.notify_one();
                }
                None
            } else if let Some(rest) = started.message.rest() {
                stage.rest(started, rest).await
            } else {
                let attempted = stage.attempt(&started.message, seat).await;
                stage.finish(started, attempted).await
            };
        }
    }
}

/// Passes a task's panic on.
fn unless_panicked(left: Result<(), JoinError>) {
    if let Some(panic) = left.err().and_then(|error| error.try_into_panic().ok()) {
        resume_unwind(panic);
    }
}
