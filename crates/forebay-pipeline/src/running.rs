//! A pipeline at work: its workers, and what can be done to it meanwhile.

use std::fmt;
use std::future::poll_fn;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

use crate::handler::Handler;
use crate::report::Report;
use crate::source::{Source, SourceError};
use crate::stage::{Controlled, Stage};

/// A pipeline at work. Dropping it stops it: handlers are cancelled where they wait, and their messages go back
/// to the source. [`Control::drain`] is the gentle way.
#[must_use = "a pipeline that is dropped stops"]
pub struct Running {
    control: Control,
    supervisor: JoinHandle<Result<Report, SourceError>>,
}

impl Running {
    pub(crate) fn new<S: Source, H: Handler<S::Value>>(stage: Arc<Stage<S, H>>) -> Running {
        let deadline = Arc::new(Mutex::new(None));
        let supervisor = tokio::spawn(supervise(stage.clone(), deadline.clone()));
        Running { control: Control { stage, deadline }, supervisor }
    }

    /// To change it while it runs.
    #[must_use]
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// Waits until the source has ended, or a drain was asked for, and all messages are settled.
    ///
    /// # Errors
    /// The source failed. What had been taken from it is settled.
    ///
    /// # Panics
    /// With the panic of the source or of the function that finds keys. Those of handlers are caught.
    ///
    /// # Cancellation
    /// Dropping the future stops the pipeline, as dropping `Running` does.
    pub async fn join(mut self) -> Result<Report, SourceError> {
        match (&mut self.supervisor).await {
            Ok(result) => result,
            Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
            Err(_) => Ok(self.control.report()), // the runtime is shutting down
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.supervisor.abort();
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").field("report", &self.control.report()).finish_non_exhaustive()
    }
}

/// Changes a pipeline while it runs. Cheap to clone, usable from handlers, and without effect once the pipeline
/// has ended.
#[derive(Clone)]
pub struct Control {
    stage: Arc<dyn Controlled>,
    deadline: Arc<Mutex<Option<Instant>>>,
}

impl Control {
    /// From now on so many messages at a time, at least 1. Handlers that are too many finish what they have.
    pub fn set_concurrency(&self, concurrency: usize) {
        self.stage.resize(concurrency);
    }

    /// Takes no more messages and finishes those that are here, for `patience` at most: then handlers are
    /// cancelled where they wait, and their messages go back to the source. [`Running::join`] tells when it is
    /// over.
    pub fn drain(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        *self.deadline.lock().unwrap_or_else(PoisonError::into_inner) = Some(deadline);
        self.stage.stop();
    }

    /// What it has done so far.
    #[must_use]
    pub fn report(&self) -> Report {
        self.stage.report()
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").field("report", &self.report()).finish_non_exhaustive()
    }
}

/// Hires workers until the work is done. Aborted, it takes them along.
async fn supervise<S: Source, H: Handler<S::Value>>(
    stage: Arc<Stage<S, H>>,
    deadline: Arc<Mutex<Option<Instant>>>,
) -> Result<Report, SourceError> {
    let _closed_at_last = Closing(stage.clone());
    let mut workers = JoinSet::new();
    loop {
        while let Some(seat) = stage.hire() {
            workers.spawn(work(stage.clone(), seat));
        }
        let deadline = *deadline.lock().unwrap_or_else(PoisonError::into_inner);
        tokio::select! {
            left = workers.join_next() => match left {
                None => return stage.result(),
                Some(Ok(())) => {}
                Some(Err(error)) => resume_unwind(error.into_panic()),
            },
            () = stage.supervise.notified() => {}
            () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                workers.shutdown().await;
                return stage.result();
            }
        }
    }
}

/// Closes the stage, whichever way its supervisor ends.
struct Closing<S: Source, H: Handler<S::Value>>(Arc<Stage<S, H>>);

impl<S: Source, H: Handler<S::Value>> Drop for Closing<S, H> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// One worker.
async fn work<S: Source, H: Handler<S::Value>>(stage: Arc<Stage<S, H>>, seat: usize) {
    loop {
        // A source that always has something must not keep the others from running.
        tokio::task::coop::consume_budget().await;
        let Some(started) = poll_fn(|cx| stage.poll_take(seat, cx)).await else { return };
        let result = stage.handler.handle(started.message.handle()).await;
        stage.finish(&started, result);
    }
}
