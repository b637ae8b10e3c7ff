//! `forebay consume --explain`: marks on some messages, and what they add up to.

use std::time::{SystemTime, UNIX_EPOCH};

use forebay::pipeline::explain::{Explanation, Journey, Mark, Sample};
use forebay_client::Received;

use crate::explained;

/// Which messages are marked, and what they add up to.
pub(super) struct Marking {
    /// One in so many of those that their publishers did not mark.
    every: u64,
    sample: Sample,
}

impl Marking {
    pub(super) fn new(every: u64) -> Marking {
        Marking { every, sample: Sample::since(since_1970_us()) }
    }

    /// Message number `number`, from 0, is about to be written: its marks, if it gets any.
    pub(super) fn taken(&self, number: u64, message: &Received) -> Option<Box<Journey>> {
        let marks = message.marks();
        if marks.at_us(Mark::Offered).is_none() && !number.is_multiple_of(self.every) {
            return None;
        }
        let name = explained::name(message)
            .unwrap_or_else(|| format!("message {}", number.saturating_add(1)));
        let marks = marks.with(Mark::Taken, since_1970_us());
        Some(Box::new(Journey { name, worker: None, marks }))
    }

    /// These are written and flushed.
    pub(super) fn written<'a>(&self, journeys: impl Iterator<Item = &'a mut Box<Journey>>) {
        let now_us = since_1970_us();
        for journey in journeys {
            if journey.marks.at_us(Mark::Handled).is_none() {
                journey.marks.passed(Mark::Handled, now_us);
            }
        }
    }

    /// It is acknowledged.
    pub(super) fn settled(&mut self, mut journey: Journey) {
        journey.marks.passed(Mark::Settled, since_1970_us());
        self.sample.add(journey);
    }

    pub(super) fn explanation(&self) -> &Explanation {
        self.sample.explanation()
    }
}

fn since_1970_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
