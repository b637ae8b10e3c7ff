//! Where the time of messages went, and what to change: arithmetic over marks.
//!
//! ```text
//!   Offered ─window─ Admitted ─socket─ Written ─ingress─ Received ─disk─ Stored ─queue─ Sent ─link─ Delivered
//!   ─buffer─ Taken ─handler─ Handled ─batch─ Begun ─batch handler─ Done ─ack─ Settled
//! ```
//! A mark is a time at which a message passed a point of its way. Each segment between two marks has a name, that of
//! the wait it is; where a mark between them is missing (a broker that is not ours stamps none) the segment goes by what it
//! spans. So the segments of a message add up to the whole, whatever is known.
//!
//! [`Explanation`] adds up messages and says which segment is the largest and what makes it so, by the settings that
//! are known. Nothing here reads a clock: marks are microseconds of one, and where machines with clocks of their own
//! stamp them, a mark before the one before it counts as the same time, and what it lacked is told as `skew_us`.

mod cause;
mod journey;
pub mod queue;
mod text;
mod timeline;

use std::num::{NonZeroU32, NonZeroU64};

pub use cause::{Cause, Settings};
pub use journey::{Journey, Sample};
pub use timeline::{BARS_MAX, Bar, Timeline, svg};

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

/// A part of a message's time: what it waited for between two marks that are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Segment {
    /// It begins with this,
    pub from: Mark,
    /// and ends with this.
    pub to: Mark,
}

impl Segment {
    /// The waits it spans, the first and the last.
    #[must_use]
    pub fn name(self) -> String {
        let first = MARKS[self.from as usize + 1];
        // Some marks are optional: without a batch, or a broker that waits for its disk, these are neighbours.
        let neighbours = [(Mark::Handled, Mark::Settled), (Mark::Received, Mark::Sent)];
        if first == self.to || neighbours.contains(&(self.from, self.to)) {
            return self.to.wait().to_owned();
        }
        format!("{} to {}", first.wait(), self.to.wait())
    }

    /// Whether `mark` is its end, or was skipped within it.
    #[must_use]
    pub fn spans(self, mark: Mark) -> bool {
        mark > self.from && mark <= self.to
    }
}

/// The marks of one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Marks {
    at_us: [Option<NonZeroU64>; MARKS.len()],
    window_messages: Option<NonZeroU32>,
}

impl Marks {
    /// None.
    #[must_use]
    pub fn new() -> Marks {
        Marks::default()
    }

    /// It passed `mark` at this time; later attempts replace earlier ones.
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

    /// Its segments with their times, which add up to [`Marks::total_us`].
    pub fn segments(&self) -> impl Iterator<Item = (Segment, u64)> + '_ {
        let mut known = self.known();
        let mut before = known.next();
        std::iter::from_fn(move || {
            let (from, from_us) = before?;
            let (to, to_us) = known.next()?;
            before = Some((to, to_us));
            Some((Segment { from, to }, to_us - from_us))
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

/// The time of a segment over many messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Which.
    pub segment: Segment,
    /// Messages that had it.
    pub messages: u64,
    /// Their time in it, together.
    pub sum_us: u64,
    /// The longest.
    pub max_us: u64,
}

/// Waits for windows that were set by hand.
#[derive(Debug, Clone, Copy, Default)]
struct FixedWindows {
    sum_us: u64,
    /// The longest, and what that window was set to.
    longest: Option<(u64, u32)>,
}

/// Many messages, added up.
#[derive(Debug, Clone, Default)]
pub struct Explanation {
    /// In the order of the way; as many as there are different segments, 66 at most.
    shares: Vec<Share>,
    messages: u64,
    total_us: u64,
    skew_us: u64,
    /// When somebody began to consume; 0: before all of them.
    consumed_since_us: u64,
    unattended_us: u64,
    fixed: FixedWindows,
    /// Those that have names, the slowest first; [`BARS_MAX`] at most.
    slowest: Vec<Journey>,
}

impl Explanation {
    /// Without messages.
    #[must_use]
    pub fn new() -> Explanation {
        Explanation::default()
    }

    /// Without messages, of a consumer that began at this time: what lay there before could not go on.
    #[must_use]
    pub fn since(consumed_since_us: u64) -> Explanation {
        Explanation { consumed_since_us, ..Explanation::default() }
    }

    /// One more message.
    pub fn add(&mut self, marks: &Marks) {
        self.messages += 1;
        self.total_us = self.total_us.saturating_add(marks.total_us());
        self.skew_us = self.skew_us.max(marks.skew_us());
        for (segment, us) in marks.segments() {
            if let Some(messages) = marks.window_messages().filter(|_| segment.to == Mark::Admitted)
            {
                self.fixed.sum_us = self.fixed.sum_us.saturating_add(us);
                self.fixed.longest = self.fixed.longest.max(Some((us, messages)));
            }
            if segment.spans(Mark::Sent) {
                let from_us = marks.at_us(segment.from).unwrap_or(u64::MAX);
                let before_us = self.consumed_since_us.saturating_sub(from_us).min(us);
                self.unattended_us = self.unattended_us.saturating_add(before_us);
            }
            let key = |share: &Share| (share.segment.from, share.segment.to);
            let place = self.shares.binary_search_by_key(&(segment.from, segment.to), key);
            let index = place.unwrap_or_else(|index| {
                let share = Share { segment, messages: 0, sum_us: 0, max_us: 0 };
                self.shares.insert(index, share);
                index
            });
            let share = &mut self.shares[index];
            share.messages += 1;
            share.sum_us = share.sum_us.saturating_add(us);
            share.max_us = share.max_us.max(us);
        }
    }

    /// The same, and its name is kept if it is among the slowest.
    pub fn add_journey(&mut self, journey: Journey) {
        self.add(&journey.marks);
        let total_us = journey.marks.total_us();
        let place = self.slowest.partition_point(|other| other.marks.total_us() >= total_us);
        if place < BARS_MAX {
            self.slowest.truncate(BARS_MAX - 1);
            self.slowest.insert(place, journey);
        }
    }

    /// Messages with names that took longest from end to end, the slowest first; [`BARS_MAX`] at most.
    #[must_use]
    pub fn slowest(&self) -> &[Journey] {
        &self.slowest
    }

    /// These as bars.
    #[must_use]
    pub fn timeline(&self, title: impl Into<String>) -> Timeline {
        let bars: Vec<Bar> = self.slowest.iter().filter_map(Journey::bar).collect();
        let others = self.messages.saturating_sub(bars.len() as u64);
        Timeline::new(title, bars).and_others(usize::try_from(others).unwrap_or(usize::MAX))
    }

    /// Messages that were added.
    #[must_use]
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// Their time from end to end, together.
    #[must_use]
    pub fn total_us(&self) -> u64 {
        self.total_us
    }

    /// By how much clocks disagreed at least.
    #[must_use]
    pub fn skew_us(&self) -> u64 {
        self.skew_us
    }

    /// For how long messages lay in their queue, together, before the consumer began ([`Explanation::since`]).
    #[must_use]
    pub fn unattended_us(&self) -> u64 {
        self.unattended_us
    }

    /// All segments, in the order of the way. Their sums add up to [`Explanation::total_us`].
    #[must_use]
    pub fn shares(&self) -> &[Share] {
        &self.shares
    }

    /// The segment with the most time; none without messages.
    #[must_use]
    pub fn largest(&self) -> Option<Share> {
        self.shares.iter().copied().max_by_key(|share| share.sum_us)
    }

    /// What makes the largest segment as large as it is, by the settings that are known.
    #[must_use]
    pub fn cause(&self, settings: &Settings) -> Option<Cause> {
        cause::of(self, settings)
    }

    /// The window that was set by hand for which messages waited longest, if most of the time that they waited for windows
    /// was for such.
    fn fixed_window_messages(&self) -> Option<u64> {
        let admitted = self.shares.iter().filter(|share| share.segment.to == Mark::Admitted);
        let waited_us = admitted.map(|share| share.sum_us).fold(0, u64::saturating_add);
        let (_, messages) = self.fixed.longest.filter(|_| self.fixed.sum_us * 2 > waited_us)?;
        Some(messages.into())
    }

    /// The time that the mean message spends in what ends with `mark`.
    fn mean_us(&self, mark: Mark) -> u64 {
        let ends = self.shares.iter().filter(|share| share.segment.to == mark);
        ends.map(|share| share.sum_us).sum::<u64>().checked_div(self.messages).unwrap_or(0)
    }
}
