//! A pipeline at work, and what can be done to it meanwhile.

use std::fmt;
use std::future::poll_fn;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use forebay_flow::explain::{Cause, Explanation, Settings};
use tokio::task::JoinHandle;

use crate::concurrency::Concurrency;
use crate::needs::Finding;
use crate::report::Report;
use crate::source::SourceError;
use crate::stage::Controlled;
use crate::supervise::{BatchWork, Deadline, supervise_all};

/// A pipeline at work. Dropping it stops it: handlers are cancelled where they wait, and their messages go back
/// to the source. [`Control::drain`] is the gentle way.
#[must_use = "a pipeline that is dropped stops"]
pub struct Running {
    control: Control,
    supervisor: JoinHandle<Result<(), SourceError>>,
}

impl Running {
    /// `work` is the supervision of `stage`.
    pub(crate) fn new(
        stage: Arc<dyn Controlled>,
        work: impl Future<Output = Result<(), SourceError>> + Send + 'static,
        batches: Vec<BatchWork>,
        deadline: Deadline,
    ) -> Running {
        let batchers = batches.iter().map(Batcher::of).collect();
        let supervisor = tokio::spawn(supervise_all(work, batches));
        Running { control: Control { stage, batches: batchers, deadline }, supervisor }
    }

    /// So many messages more are held elsewhere, for a pipeline that is a part of another.
    pub(crate) fn holds_more(&self, messages: usize) {
        self.control.stage.holds_more(messages);
    }

    /// To change it while it runs.
    #[must_use]
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// Its end, for a pipeline that is a part of another.
    pub(crate) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SourceError>> {
        Pin::new(&mut self.supervisor).poll(cx).map(|ended| match ended {
            Ok(result) => result,
            Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
            // The runtime is shutting down.
            Err(_) => Ok(()),
        })
    }

    /// Waits until the source has ended, or a drain was asked for, and all messages are settled.
    ///
    /// # Errors
    /// The source failed. What had been taken from it is settled.
    ///
    /// # Panics
    /// With the panic of the source or of a function that looks at messages to find a key or a size. Those of
    /// handlers are caught.
    ///
    /// # Cancellation
    /// Dropping the future stops the pipeline, as dropping `Running` does.
    pub async fn join(mut self) -> Result<Report, SourceError> {
        poll_fn(|cx| self.poll_end(cx)).await?;
        Ok(self.control.report())
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
    batches: Vec<Batcher>,
    deadline: Deadline,
}

/// A batcher at work.
#[derive(Clone)]
struct Batcher {
    name: &'static str,
    batch_messages: usize,
    /// The most that there were to be at a time: those whose messages are counted.
    workers_max: Arc<AtomicUsize>,
    stage: Arc<dyn Controlled>,
}

impl Batcher {
    fn of(work: &BatchWork) -> Batcher {
        Batcher {
            name: work.name,
            batch_messages: work.batch_messages,
            workers_max: Arc::new(AtomicUsize::new(work.workers)),
            stage: work.stage.clone(),
        }
    }

    /// From now on so many batches at a time. Messages for which that is more than was counted, in work and put off.
    fn set_concurrency(&self, concurrency: Concurrency) -> usize {
        self.stage.set_concurrency(concurrency);
        let most = concurrency.most();
        let workers = most.saturating_sub(self.workers_max.fetch_max(most, Ordering::Relaxed));
        workers.saturating_mul(self.batch_messages).saturating_mul(2)
    }
}

impl Control {
    /// From now on so many messages at a time, or as many as it finds out. Handlers that are too many finish what they
    /// have.
    pub fn set_concurrency(&self, concurrency: impl Into<Concurrency>) {
        self.stage.set_concurrency(concurrency.into());
    }

    /// The same for the batches of a batcher. False if there is none of this name.
    pub fn set_batch_concurrency(
        &self,
        batcher: &str,
        concurrency: impl Into<Concurrency>,
    ) -> bool {
        let concurrency = concurrency.into();
        let Some(batcher) = self.batches.iter().find(|it| it.name == batcher) else { return false };
        self.stage.holds_more(batcher.set_concurrency(concurrency));
        true
    }

    /// How many messages may be in work at a time now: what [`Concurrency::auto`] has come to.
    #[must_use]
    pub fn concurrency(&self) -> usize {
        self.stage.concurrency()
    }

    /// From now on so many messages a second, at least 1, a tenth of them at once; `None`: as many as there are.
    /// Messages that may not start yet stay in the source.
    pub fn set_rate(&self, messages_per_s: Option<u64>) {
        self.stage.set_rate(messages_per_s);
    }

    /// Whether messages begin when there are some and somebody is idle: false while its
    /// [breaker](crate::Process::breaker) is open, whatever its source holds then.
    #[must_use]
    pub fn may_begin(&self) -> bool {
        self.stage.may_begin()
    }

    /// The pipelines whose results are its messages ([`Process::into_source`](crate::Process::into_source)): one in a chain,
    /// several where they are merged, none otherwise. What is asked of them, and changed, is theirs alone, except that each
    /// ends with this one at the latest.
    #[must_use]
    pub fn upstream(&self) -> Vec<Control> {
        self.stage.upstream()
    }

    /// Takes no more messages and finishes those that are here, for `patience` at most: then handlers are
    /// cancelled where they wait, and their messages go back to the source. [`Running::join`] tells when it is
    /// over.
    pub fn drain(&self, patience: Duration) {
        self.deadline.set(patience);
        self.stage.stop();
        for batcher in &self.batches {
            batcher.stage.look();
        }
    }

    /// What does not fit together in its set-up, as its source sees it: at the start, whenever there are more or fewer workers,
    /// and when a message is unsettled for half of the time that the source allows. The log has it, too.
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        self.stage.findings()
    }

    /// Where the time of the messages went that [`Process::explain`](crate::Process::explain) marks; `None` where it was
    /// not asked for.
    #[must_use]
    pub fn explanation(&self) -> Option<Explanation> {
        self.stage.explanation()
    }

    /// What makes the largest wait of its [explanation](Control::explanation) as large as it is, by what is known of its
    /// set-up: displayed, a sentence with what to change. `None` without marked messages.
    #[must_use]
    pub fn cause(&self) -> Option<Cause> {
        self.explanation()?.cause(&self.settings())
    }

    /// What is known of its set-up; nothing of its publishers'.
    #[must_use]
    pub fn settings(&self) -> Settings {
        let mut settings = self.stage.settings();
        let batches = self.batches.iter().map(|batcher| batcher.stage.concurrency() as u64);
        settings.batch_workers = settings.batch_messages.map(|_| batches.sum());
        settings
    }

    /// What it has done so far.
    #[must_use]
    pub fn report(&self) -> Report {
        let mut report = self.stage.report();
        for batcher in &self.batches {
            let batches = batcher.stage.report();
            report.failed += batches.failed;
            report.panicked += batches.panicked;
            report.timed_out += batches.timed_out;
            report.retried += batches.retried;
        }
        report
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").field("report", &self.report()).finish_non_exhaustive()
    }
}
