//! What can be done to a stage from outside.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_flow::explain::{Explanation, Settings};

use super::{Onward, Stage};
use crate::concurrency::Concurrency;
use crate::handler::Handler;
use crate::needs::Finding;
use crate::outcome::Handled;
use crate::report::Report;
use crate::running::Control;
use crate::source::Source;
use crate::trace::Tracer;

/// A stage, whatever its types.
pub(crate) trait Controlled: Send + Sync {
    fn set_concurrency(&self, concurrency: Concurrency);
    fn concurrency(&self) -> usize;
    /// So many messages more than before may be held beyond it, unsettled.
    fn holds_more(&self, messages: usize);
    fn set_rate(&self, per_s: Option<u64>);
    /// False while the breaker is open.
    fn may_begin(&self) -> bool;
    fn stop(&self);
    /// The supervisor looks at its deadline again.
    fn look(&self);
    /// Nobody works any more: what was not begun goes back, though a [`Control`](crate::Control) may live on.
    fn close(&self);
    fn report(&self) -> Report;
    fn findings(&self) -> Vec<Finding>;
    fn upstream(&self) -> Vec<Control>;
    fn explanation(&self) -> Option<Explanation>;
    /// What is known of its set-up.
    fn settings(&self) -> Settings;
}

impl<S, H, N> Controlled for Stage<S, H, N>
where
    S: Source,
    H: Handler<S::Value>,
    N: Onward<S::Value, <H::Output as Handled>::Value>,
{
    fn set_concurrency(&self, concurrency: Concurrency) {
        let mut tuning = self.tuning.lock();
        let first = concurrency.first(Some(self.concurrency()));
        self.tuning.replace(&mut tuning, concurrency.tuner(first));
        self.resize(first);
    }

    fn concurrency(&self) -> usize {
        self.floor().dispatch.concurrency()
    }

    fn holds_more(&self, messages: usize) {
        if messages == 0 {
            return;
        }
        // One at a time, so that the source hears of the last number last.
        let _tuning = self.tuning.lock();
        let beyond = self.beyond.load(Ordering::Relaxed).saturating_add(messages);
        self.beyond.store(beyond, Ordering::Relaxed);
        let needs = self.needs(self.concurrency());
        self.tell(&mut self.source(), needs);
    }

    fn set_rate(&self, per_s: Option<u64>) {
        let mut floor = self.floor();
        floor.set_rate(per_s, self.now_us());
        self.count(&mut floor);
        drop(floor);
        self.sooner.notify_waiters();
    }

    fn may_begin(&self) -> bool {
        !self.floor().is_broken()
    }

    fn stop(&self) {
        *self.source() = None;
        let mut floor = self.floor();
        floor.exhausted = true;
        floor.wake_all();
        drop(floor);
        self.supervise.notify_one();
    }

    fn look(&self) {
        self.supervise.notify_one();
    }

    fn close(&self) {
        *self.source() = None;
        let mut floor = self.floor();
        floor.exhausted = true;
        let given_up = floor.clear();
        drop(floor);
        let departures = self.departures().take();
        drop((given_up, departures));
    }

    fn report(&self) -> Report {
        self.counters.report()
    }

    fn upstream(&self) -> Vec<Control> {
        self.upstream.get().cloned().unwrap_or_default()
    }

    fn explanation(&self) -> Option<Explanation> {
        self.policy.tracer.as_ref().map(Tracer::explanation)
    }

    fn settings(&self) -> Settings {
        let mut settings = Settings::default();
        settings.workers = Some(self.concurrency() as u64);
        settings.prefetch = *self.prefetch.lock().unwrap_or_else(PoisonError::into_inner);
        settings.batch_messages = self.needs.batch_messages.map(|messages| messages as u64);
        settings.rate_per_s = self.floor().rate_per_s();
        settings.ordered = self.policy.ordered_by.is_some();
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        settings.batch_delay_us = self.needs.batch_delay.map(us);
        settings.timeout_us = self.policy.timeout.map(us);
        settings.retries = self.policy.retries.map(|backoff| backoff.pauses());
        settings.breaker = self.policy.breaker.map(|breaker| breaker.pauses());
        settings
    }

    fn findings(&self) -> Vec<Finding> {
        self.findings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
