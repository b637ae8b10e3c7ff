//! One message's way, with its name and who worked on it; and samples of many.

use std::fmt;

use super::text::{Duration, printable};
use super::{Bar, Detour, Explanation, MARKS, Mark, Marks, Segment};

/// One message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Journey {
    /// What people call it: its message-id, where it has one.
    pub name: String,
    /// The worker that took it, from 1; the last one, if it was tried again.
    pub worker: Option<u64>,
    /// When it passed what.
    pub marks: Marks,
}

impl Journey {
    /// It alone, explained.
    #[must_use]
    pub fn explanation(&self) -> Explanation {
        let mut explanation = Explanation::new();
        explanation.add(&self.marks);
        explanation
    }

    /// Its longest wait.
    #[must_use]
    pub fn largest(&self) -> Option<(Segment, u64)> {
        self.marks.segments().max_by_key(|(_, us)| *us)
    }

    /// It as a bar: it waits from when it was in its queue, or where that is not known from when it was written or came, and
    /// is worked on by its handler, or its batch's where that takes longer, at the last attempt. `None`: no worker had it.
    #[must_use]
    pub fn bar(&self) -> Option<Bar> {
        let at_us = |mark| self.marks.at_us(mark);
        let work = |(from, to)| Some((at_us(from)?, at_us(to)?));
        let stages = [(Mark::Taken, Mark::Handled), (Mark::Begun, Mark::Done)];
        let longest = |work: &(u64, u64)| work.1.saturating_sub(work.0);
        let (begun_us, done_us) = stages.into_iter().filter_map(work).max_by_key(longest)?;
        let in_batch = at_us(Mark::Begun) == Some(begun_us);
        let begun = if in_batch { Mark::Begun } else { Mark::Taken };
        let before = |detour: Detour| detour.before() <= begun;
        let detours =
            self.marks.segments().filter(|(segment, _)| segment.detour.is_some_and(before));
        let held_us = detours.map(|(_, us)| us).sum();
        let before = MARKS[..=Mark::Received as usize].iter().rev();
        let came_us = before.copied().find_map(at_us).or(at_us(Mark::Delivered));
        Some(Bar {
            name: match self.worker {
                Some(worker) => format!("worker {worker:>2}, {}", shortened(&self.name)),
                None => shortened(&self.name),
            },
            came_us: came_us.unwrap_or(begun_us).min(begun_us),
            held_us,
            begun_us,
            done_us: done_us.max(begun_us),
        })
    }
}

/// `orders.txt:17: 1.63 s, of it 1.20 s consumer's buffer, worker 3`
impl fmt::Display for Journey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", printable(&self.name), Duration(self.marks.total_us()))?;
        if let Some((segment, us)) = self.largest() {
            write!(f, ", of it {} {}", Duration(us), segment.name())?;
        }
        self.worker.map_or(Ok(()), |worker| write!(f, ", worker {worker}"))
    }
}

/// Characters of a name beside a bar.
const NAME_MAX: usize = 14;

/// The end of a name, where ids differ.
fn shortened(name: &str) -> String {
    match name.chars().count().checked_sub(NAME_MAX) {
        None | Some(0) => name.to_owned(),
        Some(over) => format!("…{}", name.chars().skip(over + 1).collect::<String>()),
    }
}

/// Messages that their publishers marked, and others, of which only the end of their way is known. Once there are any
/// of the former, they are what is explained.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    whole: Explanation,
    here: Explanation,
}

impl Sample {
    /// Without messages, of a consumer that began at this time ([`Explanation::since`]).
    #[must_use]
    pub fn since(consumed_since_us: u64) -> Sample {
        let nothing = Explanation::since(consumed_since_us);
        Sample { whole: nothing.clone(), here: nothing }
    }

    /// One more message.
    pub fn add(&mut self, journey: Journey) {
        let whole = journey.marks.at_us(Mark::Offered).is_some();
        let explanation = if whole { &mut self.whole } else { &mut self.here };
        explanation.add_journey(journey);
    }

    /// What they add up to.
    #[must_use]
    pub fn explanation(&self) -> &Explanation {
        if self.whole.messages() > 0 { &self.whole } else { &self.here }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn journey(name: &str, marks: &[(Mark, u64)]) -> Journey {
        let marks = marks.iter().fold(Marks::new(), |all, (mark, at_us)| all.with(*mark, *at_us));
        Journey { name: name.into(), worker: Some(3), marks }
    }

    #[test]
    fn one_message_tells_its_largest_wait() {
        let handled =
            [(Mark::Delivered, 5_000), (Mark::Taken, 905_000), (Mark::Handled, 1_005_000)];
        let one = journey("orders:17", &handled);
        assert_eq!(
            one.to_string(),
            "orders:17: 1.00 s, of it 900.0 ms consumer's buffer, worker 3"
        );
        assert_eq!(one.explanation().total_us(), 1_000_000);
        let mut tried = one.clone();
        tried.marks.detoured(Detour::Pauses, 800_000);
        assert_eq!(
            tried.to_string(),
            "orders:17: 1.00 s, of it 800.0 ms pauses before retries, worker 3"
        );
        assert_eq!(tried.bar().unwrap().held_us, 800_000);
        let unknown = Journey { worker: None, ..journey("m", &[]) };
        assert_eq!(unknown.to_string(), "m: 0 us");
        assert_eq!(unknown.bar(), None);
    }

    #[test]
    fn a_bar_begins_in_the_queue_and_works_where_it_takes_longest() {
        let way =
            [(Mark::Offered, 1), (Mark::Received, 4), (Mark::Delivered, 9), (Mark::Taken, 20)];
        let handled = journey("m", &[&way[..], &[(Mark::Handled, 25)]].concat()).bar().unwrap();
        assert_eq!((handled.came_us, handled.begun_us, handled.done_us), (4, 20, 25));
        let batch = [(Mark::Handled, 25), (Mark::Begun, 40), (Mark::Done, 90)];
        let batched = journey("m", &[&way[..], &batch].concat()).bar().unwrap();
        assert_eq!((batched.came_us, batched.begun_us, batched.done_us), (4, 40, 90));
        assert_eq!(batched.name, "worker  3, m");
    }

    #[test]
    fn a_terminal_does_nothing_that_stands_in_a_name() {
        let odd = journey("a\u{1b}[2J\nb\u{9b}", &[]);
        assert_eq!(odd.to_string(), "a\u{FFFD}[2J\u{FFFD}b\u{FFFD}: 0 us, worker 3");
        assert_eq!(odd.name, "a\u{1b}[2J\nb\u{9b}", "for programs it is what it is");
    }

    #[test]
    fn long_names_end_as_they_do() {
        assert_eq!(shortened("orders.txt:137"), "orders.txt:137");
        assert_eq!(shortened("all-orders.txt:137"), "…rders.txt:137");
    }

    #[test]
    fn the_slowest_are_kept_and_no_more_than_can_be_drawn() {
        let mut sample = Sample::since(0);
        for us in 1..=100 {
            sample.add(journey(&us.to_string(), &[(Mark::Taken, 0), (Mark::Handled, us)]));
        }
        let explanation = sample.explanation();
        let names: Vec<&str> = explanation.slowest().iter().map(|each| &*each.name).collect();
        assert_eq!((names.len(), names[0], names[24]), (25, "100", "76"));
        let text = explanation.timeline("jobs").text(80);
        assert!(text.contains("and 75 that took less"), "{text}");
        sample.add(journey("marked", &[(Mark::Offered, 0), (Mark::Handled, 5)]));
        assert_eq!(sample.explanation().messages(), 1, "those that say more count");
    }
}
