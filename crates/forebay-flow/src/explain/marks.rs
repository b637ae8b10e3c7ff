//! The points of a message's way, when it passed them, and the segments between.

use std::num::{NonZeroU32, NonZeroU64};

use super::detour::{DETOURS, Detour};

/// A point on a message's way. In this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mark {
    /// The program offered it to its publisher.
    Offered,
    /// The window had room.
    Admitted,
    /// It was written to the socket.
    Written,
    /// The broker had read it.
    Received,
    /// It was on disk, and in its queue: where a broker delivers nothing before. Ours does, and has no such mark.
    Stored,
    /// The broker sent it to a consumer.
    Sent,
    /// The consumer's client had read it.
    Delivered,
    /// A worker took it.
    Taken,
    /// Its handler was done, by itself or to hand it to a batch.
    Handled,
    /// The handler of its batch began.
    Begun,
    /// And was done.
    Done,
    /// It was acknowledged.
    Settled,
}

/// All marks, in their order.
pub const MARKS: [Mark; 12] = [
    Mark::Offered,
    Mark::Admitted,
    Mark::Written,
    Mark::Received,
    Mark::Stored,
    Mark::Sent,
    Mark::Delivered,
    Mark::Taken,
    Mark::Handled,
    Mark::Begun,
    Mark::Done,
    Mark::Settled,
];

impl Mark {
    /// Its name, for machines. Never changes.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Mark::Offered => "offered",
            Mark::Admitted => "admitted",
            Mark::Written => "written",
            Mark::Received => "received",
            Mark::Stored => "stored",
            Mark::Sent => "sent",
            Mark::Delivered => "delivered",
            Mark::Taken => "taken",
            Mark::Handled => "handled",
            Mark::Begun => "begun",
            Mark::Done => "done",
            Mark::Settled => "settled",
        }
    }

    /// What a message waits for when this is the next mark it passes.
    fn wait(self) -> &'static str {
        match self {
            Mark::Offered => "before it was offered",
            Mark::Admitted => "publisher's window",
            Mark::Written => "publisher's socket",
            Mark::Received => "way to the broker",
            Mark::Stored => "disk",
            Mark::Sent => "queue",
            Mark::Delivered => "way to the consumer",
            Mark::Taken => "consumer's buffer",
            Mark::Handled => "handler",
            Mark::Begun => "batch",
            Mark::Done => "batch handler",
            Mark::Settled => "acknowledgement",
        }
    }
}

/// A part of a message's time: what it waited for between two marks that are known, or what it did there otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Segment {
    /// It begins with this,
    pub from: Mark,
    /// and ends with this.
    pub to: Mark,
    /// Somewhere between them, all times together; `None` is the wait for `to`, without the detours there.
    pub detour: Option<Detour>,
}

impl Segment {
    /// The waits it spans, the first and the last.
    #[must_use]
    pub fn name(self) -> String {
        if let Some(detour) = self.detour {
            return detour.title().to_owned();
        }
        let first = MARKS[self.from as usize + 1];
        // Some marks are optional: without a batch, or a broker that waits for its disk, these are neighbours.
        let neighbours = [(Mark::Handled, Mark::Settled), (Mark::Received, Mark::Sent)];
        if first == self.to || neighbours.contains(&(self.from, self.to)) {
            return self.to.wait().to_owned();
        }
        format!("{} to {}", first.wait(), self.to.wait())
    }

    /// Whether it is a wait and `mark` is its end, or was skipped within it.
    #[must_use]
    pub fn spans(self, mark: Mark) -> bool {
        self.detour.is_none() && mark > self.from && mark <= self.to
    }

    fn of(detour: Detour) -> Segment {
        Segment { from: detour.after(), to: detour.before(), detour: Some(detour) }
    }
}

/// The marks of one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Marks {
    at_us: [Option<NonZeroU64>; MARKS.len()],
    window_messages: Option<NonZeroU32>,
    detours_us: [u64; DETOURS.len()],
    /// Of the breaker's, so long in the queue.
    queue_breaker_us: u64,
}

impl Marks {
    /// None.
    #[must_use]
    pub fn new() -> Marks {
        Marks::default()
    }

    /// It passed `mark` at this time; a later time replaces an earlier one.
    pub fn passed(&mut self, mark: Mark, at_us: u64) {
        // One more than the time, which halves what messages without marks carry.
        self.at_us[mark as usize] = Some(NonZeroU64::MIN.saturating_add(at_us));
    }

    /// The same, in a row.
    #[must_use]
    pub fn with(mut self, mark: Mark, at_us: u64) -> Marks {
        self.passed(mark, at_us);
        self
    }

    /// It has yet to pass `mark`: what was known of that is not true any more.
    pub fn forget(&mut self, mark: Mark) {
        self.at_us[mark as usize] = None;
    }

    /// It took a detour for so long, beside those that are known. What is longer than the wait from which it is taken counts
    /// as that wait.
    pub fn detoured(&mut self, detour: Detour, us: u64) {
        let sum_us = &mut self.detours_us[detour as usize];
        *sum_us = sum_us.saturating_add(us);
    }

    /// What is known of a detour, all times together.
    #[must_use]
    pub fn detour_us(&self, detour: Detour) -> u64 {
        self.detours_us[detour as usize]
    }

    /// It lay for so long in the queue of a consumer whose breaker was open, beside what is known of that.
    pub fn queued_behind_breaker(&mut self, us: u64) {
        self.queue_breaker_us = self.queue_breaker_us.saturating_add(us);
    }

    /// When it passed `mark`, if that is known.
    #[must_use]
    pub fn at_us(&self, mark: Mark) -> Option<u64> {
        self.at_us[mark as usize].map(|after| after.get() - 1)
    }

    /// The same of a publisher whose window was set by hand, to so many messages.
    #[must_use]
    pub fn with_window(self, messages: u32) -> Marks {
        Marks { window_messages: NonZeroU32::new(messages), ..self }
    }

    /// What its publisher's window was set to by hand; `None` if it tunes itself, or nobody says.
    #[must_use]
    pub fn window_messages(&self) -> Option<u32> {
        self.window_messages.map(NonZeroU32::get)
    }

    /// Its segments with their times, which add up to [`Marks::total_us`]. The wait before a mark comes first, then the detours
    /// that were taken out of it.
    pub fn segments(&self) -> impl Iterator<Item = (Segment, u64)> + '_ {
        let mut known = self.known();
        let mut before = known.next();
        let waits = std::iter::from_fn(move || {
            let (from, from_us) = before?;
            let (to, to_us) = known.next()?;
            before = Some((to, to_us));
            Some((Segment { from, to, detour: None }, to_us - from_us))
        });
        let mut queue_breaker_us = 0;
        waits.flat_map(move |(wait, mut left_us)| {
            let mut cut = |us: u64| {
                let cut_us = us.min(left_us);
                left_us -= cut_us;
                cut_us
            };
            // What it waited behind the breaker in the queue is told with the rest of that, once.
            if wait.spans(Mark::Sent) && self.at_us(Mark::Taken).is_some() {
                queue_breaker_us += cut(self.queue_breaker_us);
            }
            let mut detours_us = DETOURS.map(|detour| {
                let taken = wait.spans(detour.before());
                if taken { cut(self.detours_us[detour as usize]) } else { 0 }
            });
            if wait.spans(Mark::Taken) {
                detours_us[Detour::Breaker as usize] += std::mem::take(&mut queue_breaker_us);
            }
            let detours = DETOURS.map(Segment::of).into_iter().zip(detours_us);
            std::iter::once((wait, left_us)).chain(detours.filter(|(_, us)| *us > 0))
        })
    }

    /// From its first mark to its last, as segments see them; 0 for fewer than two.
    #[must_use]
    pub fn total_us(&self) -> u64 {
        let mut known = self.known();
        let first = known.next().map_or(0, |(_, at_us)| at_us);
        known.last().map_or(0, |(_, at_us)| at_us - first)
    }

    /// By how much clocks disagreed at least: the largest step back.
    #[must_use]
    pub fn skew_us(&self) -> u64 {
        let mut latest_us = 0;
        let stamped = MARKS.into_iter().filter_map(|mark| self.at_us(mark));
        stamped.fold(0, |skew_us, at_us| {
            latest_us = latest_us.max(at_us);
            skew_us.max(latest_us - at_us)
        })
    }

    /// Marks in their order, never before the one before.
    fn known(&self) -> impl Iterator<Item = (Mark, u64)> + '_ {
        let mut latest_us = 0;
        MARKS.into_iter().filter_map(move |mark| {
            latest_us = latest_us.max(self.at_us(mark)?);
            Some((mark, latest_us))
        })
    }
}
