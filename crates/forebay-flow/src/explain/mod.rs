//! Where the time of messages went, and what to change: arithmetic over marks.
//!
//! ```text
//!   Offered ─window─ Admitted ─socket─ Written ─ingress─ Received ─disk─ Stored ─queue─ Sent ─link─ Delivered
//!   ─buffer─ Taken ─handler─ Handled ─batch─ Begun ─batch handler─ Done ─ack─ Settled
//! ```
//! A mark is a time at which a message passed a point of its way. Each segment between two marks has a name, that of
//! the wait it is; where a mark between them is missing (a broker that is not ours stamps none) the segment goes by what it
//! spans. What a message did before a mark beside waiting for it, attempts that failed, pauses, an open circuit breaker, is
//! taken out of that wait as segments of their own ([`Detour`]). So the segments of a message add up to the whole, whatever
//! is known.
//!
//! [`Explanation`] adds up messages and says which segment is the largest and what makes it so, by the settings that
//! are known. Nothing here reads a clock: marks are microseconds of one, and where machines with clocks of their own
//! stamp them, a mark before the one before it counts as the same time, and what it lacked is told as `skew_us`.

mod cause;
mod detour;
mod journey;
mod marks;
pub mod queue;
mod sampling;
mod text;
mod timeline;

pub use cause::{Cause, Pauses, Settings};
pub use detour::{DETOURS, Detour};
pub use journey::{Journey, Sample};
pub use marks::{MARKS, Mark, Marks, Segment};
pub use sampling::Sampling;
pub use text::printable;
pub use timeline::{BARS_MAX, Bar, Timeline, svg};

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
    /// In the order of the way; as many as there are different segments, 72 at most.
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
            let place = self.shares.binary_search_by_key(&segment, |share| share.segment);
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
        let (_, messages) =
            self.fixed.longest.filter(|_| self.fixed.sum_us.saturating_mul(2) > waited_us)?;
        Some(messages.into())
    }

    /// The time that the mean message waits for `mark`, without detours.
    fn mean_us(&self, mark: Mark) -> u64 {
        self.mean_us_of(|segment| segment.to == mark && segment.detour.is_none())
    }

    /// The time that the mean message spends on this.
    fn mean_detour_us(&self, detour: Detour) -> u64 {
        self.mean_us_of(|segment| segment.detour == Some(detour))
    }

    fn mean_us_of(&self, of: impl Fn(Segment) -> bool) -> u64 {
        let ends = self.shares.iter().filter(|share| of(share.segment));
        ends.map(|share| share.sum_us)
            .fold(0, u64::saturating_add)
            .checked_div(self.messages)
            .unwrap_or(0)
    }
}
