//! Callers who wait to be admitted: how they hear of it, and how they wait no longer.

use std::task::{Context, Poll, Waker};

use forebay_flow::WaiterId;

use super::{Ledger, Wakeups, remember};
use crate::marks::Stamps;
use crate::message::Message;
use crate::outcome::NotPublishedReason;

/// Why a caller who waited was not admitted.
#[derive(Debug)]
pub(crate) enum NotAdmitted {
    /// It never will be.
    Never(NotPublishedReason, Message),
    /// The connection is gone, and another one may take it.
    Elsewhere(Message),
}

/// One caller before the gate.
#[derive(Debug)]
pub(super) struct Waiting {
    /// Its message's place among all of this publisher.
    pub(super) number: u64,
    pub(super) message: Option<Message>,
    pub(super) stamps: Option<Box<Stamps>>,
    pub(super) asked_at_us: u64,
    pub(super) entry: Option<usize>,
    /// It has left the gate, and shall ask elsewhere.
    pub(super) elsewhere: bool,
    pub(super) waker: Option<Waker>,
}

impl Waiting {
    /// Whether it may still be admitted.
    pub(super) fn is_at_gate(&self) -> bool {
        self.entry.is_none() && !self.elsewhere
    }
}

impl Ledger {
    /// Whether a waiting message has its permit. `Err`: it never will, and here it is.
    pub(crate) fn poll_admitted(
        &mut self,
        id: WaiterId,
        cx: &mut Context<'_>,
    ) -> Poll<Result<usize, NotAdmitted>> {
        let waiting = self.waiting.get_mut(&id).expect("a waiter asks until it has its answer");
        if let Some(entry) = waiting.entry {
            self.waiting.remove(&id);
            return Poll::Ready(Ok(entry));
        }
        if let Some(lost) = self.over.clone() {
            let message = self.withdraw(id).expect_err("it was not admitted");
            return Poll::Ready(Err(NotAdmitted::Never(NotPublishedReason::Lost(lost), message)));
        }
        if waiting.elsewhere {
            let message = self.withdraw(id).expect_err("it was not admitted");
            return Poll::Ready(Err(NotAdmitted::Elsewhere(message)));
        }
        remember(&mut waiting.waker, cx);
        Poll::Pending
    }

    /// There is no connection: who waits here without an order to keep may be served by another one.
    pub(crate) fn turn_away(&mut self, wakeups: &mut Wakeups) {
        if self.ordered {
            return;
        }
        for (id, waiting) in &mut self.waiting {
            if waiting.is_at_gate() {
                waiting.elsewhere = true;
                self.gate.cancel(*id);
                wakeups.extend(waiting.waker.take());
            }
        }
        self.wake_idlers(wakeups);
    }

    /// The caller waits no longer. If its message was sent meanwhile nobody will ask for its outcome; if not, here it is.
    pub(crate) fn stop_waiting(&mut self, id: WaiterId, wakeups: &mut Wakeups) -> Option<Message> {
        match self.withdraw(id) {
            Ok(entry) => {
                self.abandon(entry, wakeups);
                None
            }
            Err(message) => Some(message),
        }
    }

    /// The caller waits no longer: its message back, or its entry if it was admitted meanwhile.
    pub(crate) fn withdraw(&mut self, id: WaiterId) -> Result<usize, Message> {
        let waiting = self.waiting.remove(&id).expect("a waiter withdraws once");
        if let Some(entry) = waiting.entry {
            return Ok(entry);
        }
        self.gate.cancel(id);
        Err(waiting.message.expect("it was not admitted"))
    }
}
