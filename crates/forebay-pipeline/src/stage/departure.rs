//! Messages that wait for their next attempt: here, or with their source.
//!
//! ```text
//!   worker ──▶ put off ──┬─ its source takes it? ──▶ seen off ──▶ acknowledged, and comes again as another
//!                        │                              │ it did not, after all
//!                        └──▶ held until it is due ◀────┘
//! ```
//! It counts in the buffer until it has left. Nobody works on it before that is known: a source that has it for later
//! gives it to somebody else.

use std::sync::{MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use tokio::time::sleep_until;

use super::{Onward, Stage};
use crate::dispatch::Started;
use crate::handler::Handler;
use crate::item::Item;
use crate::outcome::Handled;
use crate::source::{Leaving, Source};

/// A message on its way to its source, for later.
pub(crate) struct Departure<T> {
    started: Started<Item<T>>,
    leaving: Leaving,
    due_us: u64,
}

impl<S, H, N> Stage<S, H, N>
where
    S: Source,
    H: Handler<S::Value>,
    N: Onward<S::Value, <H::Output as Handled>::Value>,
{
    /// A worker took what came before its time, and does not begin it.
    pub(crate) async fn rest(
        &self,
        started: Started<Item<S::Value>>,
        rest: Duration,
    ) -> Option<Started<Item<S::Value>>> {
        let successor = self.floor().not_begun();
        successor.into_iter().for_each(Waker::wake);
        self.wait_for_later(started, rest).await
    }

    /// It is begun, or begun again, in so long. Where too many wait for that, the worker waits with it and gets it back.
    pub(crate) async fn wait_for_later(
        &self,
        started: Started<Item<S::Value>>,
        pause: Duration,
    ) -> Option<Started<Item<S::Value>>> {
        let pause_us = u64::try_from(pause.as_micros()).unwrap_or(u64::MAX);
        let due_us = self.now_us().saturating_add(pause_us);
        let ordered = self.policy.ordered_by.is_some();
        let leaving = if ordered { None } else { started.message.later(pause) };
        let has_room = {
            let mut floor = self.floor();
            let has_room = floor.put_off(self.policy.whole.is_some());
            self.count(&mut floor);
            has_room
        };
        match leaving {
            Some(leaving) if has_room => {
                let departure = Departure { started, leaving, due_us };
                // Otherwise it goes back to its source.
                if let Some(departures) = &mut *self.departures() {
                    departures.push(departure);
                }
            }
            None if has_room => self.floor().hold(started, due_us),
            leaving => return self.wait_with(started, leaving, due_us).await,
        }
        self.supervise.notify_one();
        None
    }

    async fn wait_with(
        &self,
        started: Started<Item<S::Value>>,
        leaving: Option<Leaving>,
        due_us: u64,
    ) -> Option<Started<Item<S::Value>>> {
        if let Some(leaving) = leaving
            && self.has_left(&started.message, leaving).await
        {
            self.done(started.lane);
            return None;
        }
        self.reach(due_us).await;
        // As for those that are taken from the floor.
        loop {
            let sooner = self.sooner.notified(); // from here on
            let Err(again_us) = self.go_on() else { return Some(started) };
            tokio::select! {
                () = self.reach(again_us) => {}
                () = sooner => {}
            }
        }
    }

    fn go_on(&self) -> Result<(), u64> {
        let (gone, successor) = {
            let mut floor = self.floor();
            let gone = floor.go_on(self.now_us());
            let successor = floor.pass_on();
            self.count(&mut floor);
            (gone, successor)
        };
        // The token was awaited by others, who have to look when there is another one.
        successor.into_iter().for_each(Waker::wake);
        if gone.is_err() {
            self.supervise.notify_one();
        }
        gone
    }

    async fn reach(&self, at_us: u64) {
        match self.instant(at_us) {
            Some(at) => sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    /// The next one to [see off](Stage::see_off).
    pub(crate) fn next_departure(&self) -> Option<Departure<S::Value>> {
        self.departures().as_mut()?.pop()
    }

    pub(super) fn departures(&self) -> MutexGuard<'_, Option<Vec<Departure<S::Value>>>> {
        self.departures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until its source has it, or will not have it.
    pub(crate) async fn see_off(&self, departure: Departure<S::Value>) {
        let Departure { started, leaving, due_us } = departure;
        let left = self.has_left(&started.message, leaving).await;
        let mut floor = self.floor();
        if !left {
            floor.hold(started, due_us);
            drop(floor);
            self.supervise.notify_one();
            return;
        }
        floor.left();
        if floor.over() {
            floor.wake_all();
        }
        // Who wanted more and found no room.
        let successor = floor.pass_on();
        self.count(&mut floor);
        drop(floor);
        successor.into_iter().for_each(Waker::wake);
    }

    async fn has_left(&self, item: &Item<S::Value>, leaving: Leaving) -> bool {
        match leaving.await {
            Ok(()) => item.left(),
            Err(finding) => {
                tracing::debug!(name = finding.name, "a message is held until its next attempt");
                self.found(finding);
                return false;
            }
        }
        true
    }
}
