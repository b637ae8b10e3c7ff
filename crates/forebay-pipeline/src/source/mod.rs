//! Where messages come from, and who is told what became of them.

mod iter;
mod later;
mod lines;
mod merge;
mod stream;
mod test;

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use forebay_flow::Occupancy;

use crate::needs::{Finding, Needs};
use crate::outcome::Verdict;
use crate::running::Control;

pub use iter::{Iter, iter};
pub use later::{Later, Leaving, Past};
pub use lines::{LINE_BYTES_MAX, Lines, lines};
pub use merge::{Merged, merge};
pub use stream::{Streamed, stream};
pub use test::{SENT_MAX, Sent, TestMessages, TestSource, test};

/// A source of messages. It is asked for one only when a worker is idle, and dropped when nothing more is wanted:
/// what waits in it may then go to others, and the receipts that it gave out will be used yet.
pub trait Source: Send + 'static {
    /// What a message carries.
    type Value: Send + Sync + 'static;
    /// How the source learns what became of a message.
    type Receipt: Receipt;

    /// The next message; `None` when there will be no more. Never asked again after `None` or an error.
    ///
    /// Tasks take turns in asking: the last waker is the one to wake.
    ///
    /// # Errors
    /// The source is broken. The pipeline finishes what it has and ends with this error.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Taken<Self>>;

    /// Whether the next answer is [the end](Source::poll_next), as far as that is known without taking a message: asked where
    /// none may begin, which would otherwise hide the end. The waker is as there; who cannot know says pending.
    fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let _ = cx;
        Poll::Pending
    }

    /// What the pipeline needs of it, before the first message, when there are more or fewer workers, and when a message has
    /// been unsettled for half of [`Source::ack_timeout`]. A source with a
    /// limit of its own raises it, or a batch could wait for messages that cannot come; what it may not change and does
    /// not fit it returns.
    fn needs(&mut self, needs: &Needs) -> Vec<Finding> {
        let _ = needs;
        Vec::new()
    }

    /// The longest that it lets a message be unsettled, if it takes back what is for longer; zero is none. Asked after
    /// [`Source::needs`].
    fn ack_timeout(&self) -> Option<Duration> {
        None
    }

    /// How many workers there are at each moment and how many of them are busy: for a source that holds messages which
    /// could go to somebody else. It is told once, before anything else.
    fn occupancy(&mut self, occupancy: &Arc<Occupancy>) {
        let _ = occupancy;
    }

    /// The pipelines that are its own sources, if it is one itself. Asked after [`Source::needs`].
    fn upstream(&self) -> Vec<Control> {
        Vec::new()
    }

    /// What was before a message came, for a source whose messages tell: attempts count on, and it is begun when its time has
    /// come.
    fn past(value: &Self::Value, receipt: &Self::Receipt) -> Past {
        let _ = (value, receipt);
        Past::default()
    }

    /// Takes a message for later, where a source can: it does not count among the unsettled then, outlives the
    /// pipeline, and comes again as another. The receipt is used afterwards. Asked where no order is to be kept; `None`, or
    /// an error of what is returned: the pipeline holds the message.
    fn later(value: &Self::Value, receipt: &Self::Receipt, later: Later) -> Option<Leaving> {
        let _ = (value, receipt, later);
        None
    }

    /// The most messages that it lets be unsettled, if somebody set that by hand: what a pipeline that explains itself may
    /// have to blame.
    fn prefetch(&self) -> Option<u64> {
        None
    }
}

/// What a source answers.
pub type Taken<S> = Result<Option<(<S as Source>::Value, <S as Source>::Receipt)>, SourceError>;

/// Settles one message. Dropped unsettled, the message was given up: a source that can give it to somebody
/// else does so.
pub trait Receipt: Send + 'static {
    /// Whether it wants to be told of [`Receipt::worked`], which takes two looks at the clock.
    const TIMED: bool = false;

    /// The last attempt kept a worker busy for so long, without any waiting for others.
    fn worked(&mut self, time: Duration) {
        let _ = time;
    }

    /// Whether the message is back in its source already, and comes again: a connection that is gone brought it, for instance.
    /// What has not begun by then does not, so it is lost if it does not come: a source that is not sure says `false`, and it may
    /// be done twice. Asked before each attempt, so it should be quick.
    fn is_void(&self) -> bool {
        false
    }

    /// Returns at once.
    fn settle(self, verdict: Verdict);
}

/// For sources that do not care.
impl Receipt for () {
    fn settle(self, _: Verdict) {}
}

/// A source is broken.
#[derive(Debug)]
pub struct SourceError(Box<dyn Error + Send + Sync>);

impl SourceError {
    /// With what the source says about it.
    pub fn new(error: impl Into<Box<dyn Error + Send + Sync>>) -> SourceError {
        SourceError(error.into())
    }
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the pipeline's source failed: {}", self.0)
    }
}

impl Error for SourceError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.0)
    }
}
