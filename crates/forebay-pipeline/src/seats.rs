//! Idle workers, and whom to wake.
//!
//! Of the idle workers the one that asked a source last is the one it wakes. When that one takes a message,
//! another has to ask in its place, if there is one and something is wanted: *the searcher*. There is one at a
//! time, or each message would wake a worker that finds nothing.

use std::task::Waker;

use slab::Slab;

/// Workers of a stage.
#[derive(Debug, Default)]
pub(crate) struct Seats {
    /// The waker of those that wait.
    seats: Slab<Option<Waker>>,
    /// Those that wait, and some that no longer do; each once.
    waiting: Vec<usize>,
    /// Woken, and not yet here.
    searcher: Option<usize>,
}

impl Seats {
    /// A new worker's seat.
    pub(crate) fn sit(&mut self) -> usize {
        self.seats.insert(None)
    }

    /// The worker is gone.
    pub(crate) fn leave(&mut self, seat: usize) {
        self.here(seat);
        self.seats.remove(seat);
        self.waiting.retain(|other| *other != seat);
    }

    /// The worker looks for work.
    pub(crate) fn here(&mut self, seat: usize) {
        self.seats[seat] = None;
        if self.searcher == Some(seat) {
            self.searcher = None;
        }
    }

    /// It found none.
    pub(crate) fn wait(&mut self, seat: usize, waker: &Waker) {
        self.seats[seat] = Some(waker.clone());
        // Those at the end are woken first, and so they are found at the end.
        if self.waiting.last() != Some(&seat) {
            self.waiting.retain(|other| *other != seat);
            self.waiting.push(seat);
        }
    }

    /// A worker to wake, so that somebody looks for work; none if one is on its way.
    pub(crate) fn search(&mut self) -> Option<Waker> {
        if self.searcher.is_some() {
            return None;
        }
        while let Some(seat) = self.waiting.pop() {
            if let Some(waker) = self.seats[seat].take() {
                self.searcher = Some(seat);
                return Some(waker);
            }
        }
        None
    }

    /// All that wait.
    pub(crate) fn all(&mut self) -> Vec<Waker> {
        self.waiting.clear();
        self.seats.iter_mut().filter_map(|(_, waker)| waker.take()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_worker_searches_at_a_time_and_none_that_is_gone() {
        let mut seats = Seats::default();
        let (first, second) = (seats.sit(), seats.sit());
        seats.wait(first, Waker::noop());
        seats.wait(second, Waker::noop());
        assert!(seats.search().is_some());
        assert!(seats.search().is_none(), "one is on its way");
        seats.here(second);
        seats.leave(first);
        assert!(seats.search().is_none(), "nobody waits");
        seats.wait(second, Waker::noop());
        assert_eq!(seats.all().len(), 1);
        assert!(seats.search().is_none());
    }
}
