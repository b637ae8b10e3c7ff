//! Who may start which message: one buffer for all workers, one lane for each key.
//!
//! ```text
//!   source ──▶ arrived ──┬──────────────▶ ready (FIFO) ──▶ take ──▶ in work ──▶ finished
//!                        │ its key is     ▲                                        │
//!                        │ taken          └──── the lane's next ◀──────────────────┤
//!                        └──▶ lane (FIFO per key) ─────────────────────────────────┘
//! ```
//! A message that is put off for another attempt is held by whoever knows the time. It keeps its lane, so those
//! behind it wait with it, and it counts in the buffer.
//!
//! A message waits only while all workers are busy, or while an earlier one of its key is ready or in work:
//! never behind a worker. So `ready` is empty whenever a worker is idle after [`Dispatch::take`] was asked. The
//! demand is counted here, once, however many sources and workers there are; it is the number of idle workers,
//! since look-ahead belongs where messages can still go to somebody else: in the source.
//!
//! Invariants: `ready`, the lanes and what is put off are `buffer_max` messages at most; of a key's messages, one at
//! most is ready or in work; they start in the order of their arrival.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

/// The ordered line of one key. Two keys that share one, which happens once in 2^64 pairs, are kept in order
/// with each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lane(u64);

impl Lane {
    /// The lane of `key`.
    #[must_use]
    pub fn of(key: &(impl Hash + ?Sized)) -> Lane {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        Lane(hasher.finish())
    }
}

/// A message that a worker works on.
#[derive(Debug, PartialEq, Eq)]
pub struct Started<M> {
    /// What it is.
    pub message: M,
    /// Its lane, to be given to [`Dispatch::finished`].
    pub lane: Option<Lane>,
}

/// Distributes messages over workers that are all alike. No clock, no I/O.
#[derive(Debug)]
pub struct Dispatch<M> {
    concurrency: usize,
    buffer_max: usize,
    busy: usize,
    ready: VecDeque<Started<M>>,
    /// Keys with a message that is ready or in work, and what waits behind it.
    lanes: HashMap<Lane, VecDeque<M>>,
    /// In all lanes.
    behind: usize,
    /// Held elsewhere until its time has come.
    put_off: usize,
}

impl<M> Dispatch<M> {
    /// For `concurrency` workers, holding `buffer_max` messages that are not in work. Both are at least 1.
    #[must_use]
    pub fn new(concurrency: usize, buffer_max: usize) -> Dispatch<M> {
        Dispatch {
            concurrency: concurrency.max(1),
            buffer_max: buffer_max.max(1),
            busy: 0,
            ready: VecDeque::new(),
            lanes: HashMap::new(),
            behind: 0,
            put_off: 0,
        }
    }

    /// Messages wanted from the sources now: one for each idle worker that has none waiting, as far as the
    /// buffer has room.
    #[must_use]
    pub fn demand(&self) -> usize {
        let idle = self.concurrency.saturating_sub(self.busy);
        idle.saturating_sub(self.ready.len()).min(self.room())
    }

    /// A message came; with a lane it starts after all before it in that lane have finished.
    ///
    /// # Panics
    /// If the buffer is full: more came than [`Dispatch::demand`] said.
    pub fn arrived(&mut self, message: M, lane: Option<Lane>) {
        assert!(self.room() > 0, "more messages than were asked for");
        if let Some(lane) = lane {
            if let Some(waiting) = self.lanes.get_mut(&lane) {
                waiting.push_back(message);
                self.behind += 1;
                return;
            }
            self.lanes.insert(lane, VecDeque::new());
        }
        self.ready.push_back(Started { message, lane });
    }

    /// A worker is idle: what it starts, if there is anything.
    pub fn take(&mut self) -> Option<Started<M>> {
        if self.busy >= self.concurrency {
            return None;
        }
        let started = self.ready.pop_front()?;
        self.busy += 1;
        Some(started)
    }

    /// A worker is done with a message; the next of its lane may start.
    ///
    /// # Panics
    /// If no worker is busy, or the lane has no message in work.
    pub fn finished(&mut self, lane: Option<Lane>) {
        self.busy = self.busy.checked_sub(1).expect("who finishes has started");
        let Some(lane) = lane else { return };
        let waiting = self.lanes.get_mut(&lane).expect("a lane in work is known");
        if let Some(message) = waiting.pop_front() {
            self.behind -= 1;
            self.ready.push_back(Started { message, lane: Some(lane) });
        } else {
            self.lanes.remove(&lane);
        }
    }

    /// How many more messages may wait here.
    #[must_use]
    pub fn room(&self) -> usize {
        self.buffer_max.saturating_sub(self.buffered())
    }

    /// Messages that it can take now whatever their lanes, if workers are idle: with lanes in use each may have to wait.
    #[must_use]
    pub fn admits(&self) -> usize {
        match self.room() {
            0 => 0,
            room if !self.lanes.is_empty() => room,
            _ => usize::MAX,
        }
    }

    /// A worker is done with a message for now, and somebody holds it for [`Dispatch::again`].
    ///
    /// # Panics
    /// If no worker is busy, or there is no room.
    pub fn put_off(&mut self) {
        assert!(self.room() > 0, "a message is put off where there is no room");
        self.busy = self.busy.checked_sub(1).expect("what is put off was started");
        self.put_off += 1;
    }

    /// A message that was put off may start.
    ///
    /// # Panics
    /// If none was.
    pub fn again(&mut self, started: Started<M>) {
        self.put_off = self.put_off.checked_sub(1).expect("what comes again was put off");
        self.ready.push_back(started);
    }

    /// A message that was put off does not come again: somebody else has it.
    ///
    /// # Panics
    /// If none was.
    pub fn left(&mut self) {
        self.put_off = self.put_off.checked_sub(1).expect("what leaves was put off");
    }

    /// Whether a message waits for a worker and for nothing else.
    #[must_use]
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty() && self.busy < self.concurrency
    }

    /// Takes out all that waits. What is put off is given up too, by whoever holds it.
    pub fn clear(&mut self) -> Vec<M> {
        let mut cleared = Vec::with_capacity(self.buffered());
        for Started { message, lane } in self.ready.drain(..) {
            cleared.push(message);
            cleared.extend(lane.and_then(|lane| self.lanes.remove(&lane)).into_iter().flatten());
        }
        // What is left are lanes in work.
        cleared.extend(self.lanes.values_mut().flat_map(std::mem::take));
        (self.behind, self.put_off) = (0, 0);
        cleared
    }

    /// From now on so many workers, at least 1. Who is busy beyond that finishes and starts nothing.
    pub fn resize(&mut self, concurrency: usize) {
        self.concurrency = concurrency.max(1);
    }

    /// From now on `buffer_max` messages or more may wait here.
    pub fn make_room(&mut self, buffer_max: usize) {
        self.buffer_max = self.buffer_max.max(buffer_max);
    }

    /// How many workers there may be.
    #[must_use]
    pub fn concurrency(&self) -> usize {
        self.concurrency
    }

    /// Messages that wait for a worker and for nothing else.
    #[must_use]
    pub fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Messages in work.
    #[must_use]
    pub fn busy(&self) -> usize {
        self.busy
    }

    /// Messages that wait here.
    #[must_use]
    pub fn buffered(&self) -> usize {
        self.ready.len() + self.behind + self.put_off
    }

    /// Nothing waits and nothing is in work.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.busy == 0 && self.buffered() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    #[test]
    fn the_messages_of_a_key_run_one_at_a_time_and_others_pass_them() {
        let mut dispatch = Dispatch::new(3, 10);
        let (a, b) = (Some(Lane::of("a")), Some(Lane::of("b")));
        dispatch.arrived("a1", a);
        dispatch.arrived("a2", a);
        dispatch.arrived("b1", b);
        assert_eq!(dispatch.take().unwrap().message, "a1");
        assert_eq!(dispatch.take().unwrap().message, "b1");
        assert_eq!(dispatch.take(), None);
        assert_eq!(dispatch.demand(), 1, "a third worker is idle, and a2 is not for it");
        dispatch.finished(a);
        assert_eq!(dispatch.take().unwrap().message, "a2");
    }

    #[test]
    fn a_full_buffer_asks_for_nothing() {
        let mut dispatch = Dispatch::new(4, 2);
        let lane = Some(Lane::of("hot"));
        for number in 0..3 {
            assert!(dispatch.demand() > 0 && dispatch.admits() > 0);
            dispatch.arrived(number, lane);
            dispatch.take();
        }
        assert_eq!((dispatch.busy(), dispatch.buffered(), dispatch.demand()), (1, 2, 0));
        assert_eq!(dispatch.admits(), 0);
    }

    #[test]
    fn a_message_that_is_put_off_keeps_its_lane_and_frees_its_worker() {
        let mut dispatch = Dispatch::new(1, 10);
        let (a, b) = (Some(Lane::of("a")), Some(Lane::of("b")));
        for (message, lane) in [("a1", a), ("a2", a), ("b1", b)] {
            dispatch.arrived(message, lane);
        }
        let first = dispatch.take().unwrap();
        dispatch.put_off();
        assert_eq!(dispatch.take().unwrap().message, "b1");
        dispatch.finished(b);
        assert_eq!((dispatch.take(), dispatch.buffered(), dispatch.is_empty()), (None, 2, false));
        dispatch.again(first);
        assert_eq!(dispatch.take().unwrap().message, "a1");
        dispatch.finished(a);
        assert_eq!(dispatch.take().unwrap().message, "a2");
    }

    #[test]
    fn what_is_cleared_does_not_start_and_what_is_in_work_can_finish() {
        let mut dispatch = Dispatch::new(1, 10);
        let (a, b) = (Some(Lane::of("a")), Some(Lane::of("b")));
        for (message, lane) in [("a1", a), ("a2", a), ("b1", b), ("b2", b)] {
            dispatch.arrived(message, lane);
        }
        assert_eq!(dispatch.take().unwrap().message, "a1");
        assert_eq!(dispatch.clear(), ["b1", "b2", "a2"]);
        dispatch.finished(a);
        assert!(dispatch.is_empty() && dispatch.lanes.is_empty());
    }

    #[derive(Debug, Clone)]
    struct Job {
        pause: u64,
        work: u64,
        key: Option<u8>,
    }

    fn job() -> impl Strategy<Value = Job> {
        // One in ten takes a thousand times as long.
        let work = prop_oneof![9 => 0..10u64, 1 => 1_000..10_000u64];
        (0..5u64, work, prop::option::of(0..6u8)).prop_map(|(pause, work, key)| Job {
            pause,
            work,
            key,
        })
    }

    proptest! {
        /// Virtual time: jobs that arrive, take as long as they take, and workers who come and go.
        #[test]
        fn no_message_waits_while_a_worker_that_may_take_it_is_idle(
            jobs in prop::collection::vec(job(), 1..200),
            resizes in prop::collection::vec((0..2_000u64, 1..30usize), 0..6),
            concurrency in 1..30usize, buffer_max in 1..60usize,
        ) {
            let mut dispatch = Dispatch::new(concurrency, buffer_max);
            let mut arrivals: VecDeque<(u64, usize)> = VecDeque::new();
            let mut at = 0;
            for (number, job) in jobs.iter().enumerate() {
                at += job.pause;
                arrivals.push_back((at, number));
            }
            let mut resizes: Vec<_> = resizes;
            resizes.sort_unstable();
            let mut resizes = VecDeque::from(resizes);
            let mut ends: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
            let mut held: Vec<usize> = Vec::new(); // arrived, not started
            let mut in_work: Vec<usize> = Vec::new();
            let mut started_of_key: HashMap<u8, usize> = HashMap::new();
            let mut done = 0;
            let mut now = 0;
            while done < jobs.len() {
                if resizes.front().is_some_and(|resize| resize.0 <= now) {
                    dispatch.resize(resizes.pop_front().unwrap().1);
                }
                loop {
                    while let Some(started) = dispatch.take() {
                        let number = started.message;
                        held.retain(|other| *other != number);
                        if let Some(key) = jobs[number].key {
                            prop_assert!(in_work.iter().all(|other| jobs[*other].key != Some(key)));
                            let before = started_of_key.insert(key, number);
                            prop_assert!(before.is_none_or(|before| before < number), "order of a key");
                        }
                        in_work.push(number);
                        ends.push(Reverse((now + jobs[number].work, number)));
                    }
                    let due = arrivals.front().is_some_and(|arrival| arrival.0 <= now);
                    if !due || dispatch.demand() == 0 {
                        break;
                    }
                    let (_, number) = arrivals.pop_front().unwrap();
                    held.push(number);
                    dispatch.arrived(number, jobs[number].key.map(|key| Lane::of(&key)));
                    prop_assert!(dispatch.buffered() <= buffer_max);
                }
                if in_work.len() < dispatch.concurrency() {
                    for number in &held {
                        let key = jobs[*number].key;
                        let taken = key.is_some() && in_work.iter().any(|other| jobs[*other].key == key);
                        prop_assert!(taken, "{number} waits, and a worker is idle");
                    }
                    let could_come = arrivals.front().is_some_and(|arrival| arrival.0 <= now);
                    prop_assert!(!could_come || dispatch.buffered() == buffer_max, "one waits outside for nothing");
                }
                // The next thing that happens.
                let end = ends.peek().map(|Reverse(end)| end.0);
                let arrival = arrivals.front().map(|arrival| arrival.0.max(now)).filter(|_| dispatch.demand() > 0);
                let resize = resizes.front().map(|resize| resize.0.max(now));
                now = end.into_iter().chain(arrival).chain(resize).min().expect("work goes on");
                if end == Some(now) {
                    let Reverse((_, number)) = ends.pop().unwrap();
                    in_work.retain(|other| *other != number);
                    dispatch.finished(jobs[number].key.map(|key| Lane::of(&key)));
                    done += 1;
                }
            }
            prop_assert!(dispatch.is_empty() && dispatch.lanes.is_empty());
        }
    }
}
