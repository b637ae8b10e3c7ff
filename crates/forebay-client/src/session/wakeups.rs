//! What is left to do once the session is given back: whom an outcome concerns hears of it, and those who wait are woken.
//! Spans, the log and wakers run code of others, which may take its time, or want the session.

use std::task::Waker;

use super::target::Target;
use crate::outcome::{Confirmed, Unconfirmed};
use crate::spans::PublishSpan;
use crate::timed::TimedPublish;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Wakeups {
    conclusions: Vec<Conclusion>,
    wakers: Vec<Waker>,
}

/// Whom an outcome concerns, beside its caller.
#[derive(Debug)]
pub(super) enum Conclusion {
    /// The spans of a message, the first with its message-id, end with it.
    Spans {
        span: Option<(Box<PublishSpan>, String)>,
        timed: Option<TimedPublish>,
        outcome: Result<Confirmed, Unconfirmed>,
    },
    /// Nobody waited for it, so the log has it.
    NotHeard { target: Target, unconfirmed: Unconfirmed },
}

impl Wakeups {
    pub(super) fn conclude(&mut self, conclusion: Conclusion) {
        self.conclusions.push(conclusion);
    }

    /// What was left to do elsewhere.
    pub(super) fn append(&mut self, other: &mut Wakeups) {
        self.conclusions.append(&mut other.conclusions);
        self.wakers.append(&mut other.wakers);
    }

    /// Nobody may hold the session.
    pub(crate) fn perform(self) {
        self.conclusions.into_iter().for_each(Conclusion::tell);
        self.wakers.into_iter().for_each(Waker::wake);
    }
}

impl Extend<Waker> for Wakeups {
    fn extend<W: IntoIterator<Item = Waker>>(&mut self, wakers: W) {
        self.wakers.extend(wakers);
    }
}

impl Conclusion {
    fn tell(self) {
        match self {
            Conclusion::Spans { span, timed, outcome } => {
                if let Some((span, message_id)) = span {
                    span.concluded(&message_id, outcome.as_ref().err());
                }
                if let Some(timed) = timed {
                    timed.concluded(&outcome);
                }
            }
            Conclusion::NotHeard { target, unconfirmed } => tracing::warn!(
                exchange = target.exchange,
                routing_key = target.routing_key,
                "nobody waited for this outcome: {unconfirmed}"
            ),
        }
    }
}
