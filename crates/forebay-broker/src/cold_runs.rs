//! What of a queue is in run files and not in RAM, and how much that is.
//!
//! ```text
//!   ┌───────┐ ┌────────┬───────┐ ┌────────┬───────┐
//!   │ run 1 │ │ before │ run 2 │ │ before │ run 3 │
//!   └───────┘ └────────┴───────┘ └────────┴───────┘
//! ```
//! It is counted where it changes: a long queue has thousands of runs, and each `basic.get` asks how many messages are left.

use std::collections::VecDeque;

use forebay_store::{RunId, Seq};

use crate::queue::{Entry, find};

/// A run file that holds part of a queue and nothing of it in RAM.
#[derive(Debug)]
pub(crate) struct ColdRun {
    /// Messages between the run before and this one, in RAM: a restart can leave some there. The
    /// first run has none, they are in the head.
    pub(crate) before: VecDeque<Entry>,
    pub(crate) run: RunId,
    pub(crate) messages: u64,
    /// Reading goes on at this sequence number.
    pub(crate) next_seq: Seq,
    /// The bodies in it count for the queue: not so of one that a restart found.
    pub(crate) counted: bool,
}

/// The runs in order.
#[derive(Debug, Default)]
pub(crate) struct ColdRuns {
    runs: VecDeque<ColdRun>,
    messages: u64,
    between: usize,
}

impl ColdRuns {
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Messages in the files.
    pub(crate) fn messages(&self) -> u64 {
        self.messages
    }

    /// Messages in RAM between two of them.
    pub(crate) fn between(&self) -> usize {
        self.between
    }

    /// The one that is read next.
    pub(crate) fn front(&self) -> Option<&ColdRun> {
        self.runs.front()
    }

    pub(crate) fn push_back(&mut self, run: ColdRun) {
        self.messages += run.messages;
        self.between += run.before.len();
        self.runs.push_back(run);
        self.check();
    }

    /// A message that was read leaves RAM again: it is what is read next. Returns whether all of its run had been read.
    pub(crate) fn unread(&mut self, run: RunId, seq: Seq) -> bool {
        self.messages += 1;
        let is_front = match self.runs.front_mut() {
            Some(cold) if cold.run == run => {
                cold.messages += 1;
                cold.next_seq = seq;
                true
            }
            _ => false,
        };
        if !is_front {
            self.runs.push_front(ColdRun {
                before: VecDeque::new(),
                run,
                messages: 1,
                next_seq: seq,
                counted: true,
            });
        }
        self.check();
        !is_front
    }

    /// So many messages were read of the first run, the last of them with this number; false if it is another run.
    pub(crate) fn read(
        &mut self,
        run: RunId,
        messages: u64,
        last: Option<Seq>,
        at_end: bool,
    ) -> bool {
        let Some(cold) = self.runs.front_mut().filter(|cold| cold.run == run) else { return false };
        let messages = messages.min(cold.messages);
        self.messages -= messages;
        cold.messages -= messages;
        if let Some(last) = last {
            cold.next_seq = last + 1;
        }
        if at_end && let Some(read) = self.runs.pop_front() {
            debug_assert!(read.before.is_empty());
            self.messages -= read.messages;
            self.between -= read.before.len();
        }
        self.check();
        true
    }

    /// What is in RAM before the first run.
    pub(crate) fn take_before(&mut self) -> VecDeque<Entry> {
        let before = self.runs.front_mut().map(|first| std::mem::take(&mut first.before));
        let before = before.unwrap_or_default();
        self.between -= before.len();
        self.check();
        before
    }

    /// The message of this number, if it is in RAM between two runs.
    pub(crate) fn get_mut(&mut self, seq: Seq) -> Option<&mut Entry> {
        if self.between == 0 {
            return None;
        }
        self.runs.iter_mut().find_map(|run| find(&mut run.before, seq))
    }

    /// What is in RAM between them.
    pub(crate) fn entries_between(&self) -> impl Iterator<Item = &Entry> {
        self.runs.iter().flat_map(|run| run.before.iter())
    }

    pub(crate) fn into_runs(self) -> VecDeque<ColdRun> {
        self.runs
    }

    /// The counts are what they count. Debug builds only: it costs what they save.
    fn check(&self) {
        debug_assert_eq!(self.messages, self.runs.iter().map(|run| run.messages).sum::<u64>());
        debug_assert_eq!(self.between, self.runs.iter().map(|run| run.before.len()).sum::<usize>());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::test_entry;

    fn run(number: u32, before: std::ops::Range<Seq>, messages: u64) -> ColdRun {
        let before: VecDeque<Entry> = before.map(test_entry).collect();
        let next_seq = before.back().map_or(1, |entry| entry.seq + 1);
        ColdRun { before, run: RunId(number), messages, next_seq, counted: true }
    }

    #[test]
    fn what_is_cold_is_counted_as_it_is_read_and_leaves_memory_again() {
        let mut cold = ColdRuns::default();
        cold.push_back(run(1, 0..0, 10));
        cold.push_back(run(2, 11..14, 5));
        let counts = |cold: &ColdRuns| (cold.messages(), cold.between());
        assert_eq!(counts(&cold), (15, 3));
        assert!(!cold.read(RunId(2), 5, Some(18), true), "it is not its turn");
        assert!(cold.read(RunId(1), 4, Some(4), false));
        assert!(!cold.unread(RunId(1), 4), "it is known");
        assert_eq!(cold.front().map(|run| (run.messages, run.next_seq)), Some((7, 4)));
        // Of what is left in it some was settled, or is of no use.
        assert!(cold.read(RunId(1), 5, Some(9), true));
        assert_eq!(counts(&cold), (5, 3));
        assert_eq!(cold.get_mut(12).map(|entry| entry.seq), Some(12));
        assert_eq!(cold.take_before().len(), 3);
        assert!(cold.get_mut(12).is_none());
        assert!(cold.unread(RunId(1), 9), "none of it was left");
        assert_eq!(counts(&cold), (6, 0));
        assert!(cold.read(RunId(1), 1, Some(9), true) && cold.read(RunId(2), 5, Some(18), true));
        assert_eq!((counts(&cold), cold.is_empty()), ((0, 0), true));
    }
}
