//! A queue as a pipeline's source, on any broker.

use std::task::{Context, Poll, ready};
use std::time::Duration;

use forebay_client::{Consumer, Delivery, Received};
use forebay_pipeline::source::Taken;
use forebay_pipeline::{Receipt, Source, SourceError, Verdict};

/// What this consumer is delivered.
pub(super) struct QueueSource(pub(super) Consumer);

/// A delivery to settle.
pub(super) struct Settling(Delivery);

impl Source for QueueSource {
    type Value = Received;
    type Receipt = Settling;

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Taken<Self>> {
        let taken = ready!(self.0.poll_next(cx)).map_err(SourceError::new)?;
        Poll::Ready(Ok(taken.map(|mut delivery| (delivery.take_message(), Settling(delivery)))))
    }
}

impl Receipt for Settling {
    const TIMED: bool = true;

    fn worked(&mut self, time: Duration) {
        self.0.set_worked(time);
    }

    fn settle(self, verdict: Verdict) {
        // Nothing is measured where an answer comes too late.
        let _ = match verdict {
            Verdict::Ack => self.0.ack(),
            Verdict::Reject => self.0.reject(),
            Verdict::Requeue => self.0.requeue(),
        };
    }
}
