//! What an attempt that has ended tells: the breaker, and about how many workers there should be.

use std::sync::atomic::Ordering;
use std::task::Waker;

use forebay_flow::workers::Call;

use super::{Onward, Stage};
use crate::handler::Handler;
use crate::outcome::Handled;
use crate::source::Source;

impl<S, H, N> Stage<S, H, N>
where
    S: Source,
    H: Handler<S::Value>,
    N: Onward<S::Value, <H::Output as Handled>::Value>,
{
    /// Something failed, or succeeded.
    pub(super) fn tell_breaker(&self, failed: bool) {
        // Nearly all succeed, and change nothing.
        if self.policy.breaker.is_none() || !(failed || self.failing.load(Ordering::Relaxed)) {
            return;
        }
        let mut floor = self.floor();
        self.failing.store(failed, Ordering::Relaxed);
        let was_open = floor.is_broken();
        if let Some(breaker) = &mut floor.breaker {
            if failed {
                breaker.failed(self.now_us())
            } else {
                breaker.succeeded()
            }
            if let Some(tracer) = &self.policy.tracer {
                tracer.breaker(breaker.open_until_us().and_then(|us| self.instant(us)));
            }
        }
        // Whoever succeeded may have more to do with its message, and the time for which others wait does not come.
        let is_open = floor.is_broken();
        let closes = was_open && !is_open;
        let successor = if closes { floor.pass_on() } else { None };
        self.count(&mut floor);
        drop(floor);
        if closes {
            self.sooner.notify_waiters();
        }
        successor.into_iter().for_each(Waker::wake);
        if is_open {
            self.supervise.notify_one(); // of the pause's end, which may come before anybody waits
        }
    }

    /// What a call that has ended tells about how many there should be.
    pub(super) fn learn(&self, took_us: Option<u64>, done: bool) {
        let Some(took_us) = took_us else { return };
        let mut tuning = self.tuning.lock();
        let Some(workers) = &mut *tuning else { return };
        let (full, now_us) = {
            let floor = self.floor();
            // More who call would only wait there with these.
            let calling =
                floor.dispatch.busy().saturating_sub(self.handing.load(Ordering::Relaxed));
            (calling >= floor.dispatch.concurrency(), self.now_us())
        };
        if let Some(count) = workers.ended(now_us, Call { took_us, succeeded: done, full }) {
            self.resize(count as usize);
        }
    }
}
