//! Consumers that share a queue, in virtual time: demand and hand-back against messages that wait behind a
//! busy worker.
//!
//! ```text
//!   queue ──── half a round trip ───► process: buffer ──► 4 workers ── ack, half a round trip ──► queue
//!     ▲                                          │
//!     └──────────────── handed back ◄────────────┘      credit = wanted - (in work, waiting, on the way)
//! ```
//!
//! The measure is how long a message waited in a process while a worker elsewhere had nothing to do.

#[path = "model/random.rs"]
#[allow(dead_code, unreachable_pub, missing_docs)]
mod random;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use forebay_flow::demand::HAND_BACKS_MAX;
use forebay_flow::{Demand, may_hand_back};
use random::Random;

const PROCESSES: usize = 8;
const WORKERS: u32 = 4;

#[derive(Debug, Clone, Copy)]
struct Message {
    service_us: u64,
    handed_back: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Delivered { process: usize, message: usize },
    Completed { process: usize, message: usize },
    Acked { process: usize },
    Returned { process: usize, message: usize },
    Look { process: usize },
}

struct Process {
    demand: Demand,
    buffer: VecDeque<(usize, u64)>, // message, idle time when it came
    unacked: u32,                   // as the broker counts
    look_us: Option<u64>,
}

struct Consumers {
    rtt_us: u64,
    hands_back: bool,
    messages: Vec<Message>,
    queue: VecDeque<usize>,
    processes: Vec<Process>,
    agenda: BinaryHeap<Reverse<(u64, u64, Event)>>,
    next: u64,
    now_us: u64,
    idle_us: u64, // time during which a worker somewhere had nothing to do
    completed: usize,
    worst_wait_us: u64,
}

impl Consumers {
    fn new(rtt_us: u64, hands_back: bool, messages: Vec<Message>) -> Consumers {
        let demand = || Demand::new(0, WORKERS);
        let process =
            |_| Process { demand: demand(), buffer: VecDeque::new(), unacked: 0, look_us: None };
        Consumers {
            rtt_us,
            hands_back,
            queue: (0..messages.len()).collect(),
            messages,
            processes: (0..PROCESSES).map(process).collect(),
            agenda: BinaryHeap::new(),
            next: 0,
            now_us: 0,
            idle_us: 0,
            completed: 0,
            worst_wait_us: 0,
        }
    }

    fn set(&mut self, after_us: u64, event: Event) {
        self.next += 1;
        self.agenda.push(Reverse((self.now_us + after_us, self.next, event)));
    }

    /// Runs until all is done; the time it took.
    fn run(&mut self) -> u64 {
        for process in &mut self.processes {
            process.demand.set_rtt(self.rtt_us);
        }
        self.deliver();
        while self.completed < self.messages.len() {
            let Reverse((at_us, _, event)) = self.agenda.pop().expect("something goes on");
            if self.processes.iter().any(|process| process.demand.free() > 0) {
                self.idle_us += at_us - self.now_us;
            }
            self.now_us = at_us;
            self.step(event);
        }
        self.now_us
    }

    fn step(&mut self, event: Event) {
        let half_us = self.rtt_us / 2;
        match event {
            Event::Delivered { process, message } => {
                self.processes[process].buffer.push_back((message, self.idle_us));
                self.work(process);
            }
            Event::Completed { process, message } => {
                let service_us = self.messages[message].service_us;
                self.processes[process].demand.completed(self.now_us, service_us);
                self.completed += 1;
                self.set(half_us, Event::Acked { process });
                self.work(process);
            }
            Event::Acked { process } => {
                self.processes[process].unacked -= 1;
                self.deliver();
            }
            Event::Returned { process, message } => {
                self.processes[process].unacked -= 1;
                self.queue.push_front(message);
                self.deliver();
            }
            Event::Look { process } => {
                if self.processes[process].look_us.take_if(|us| *us <= self.now_us).is_some() {
                    self.work(process);
                }
            }
        }
    }

    fn work(&mut self, index: usize) {
        let process = &mut self.processes[index];
        let mut started = Vec::new();
        while process.demand.free() > 0
            && let Some((message, came_us)) = process.buffer.pop_front()
        {
            process.demand.started(self.now_us);
            self.worst_wait_us = self.worst_wait_us.max(self.idle_us - came_us);
            started.push(message);
        }
        let mut returned = Vec::new();
        if self.hands_back && process.demand.hand_back(self.now_us, process.buffer.len()) {
            process.buffer.retain(|&(message, came_us)| {
                let keep = !may_hand_back(self.messages[message].handed_back);
                if !keep {
                    self.messages[message].handed_back += 1;
                    self.worst_wait_us = self.worst_wait_us.max(self.idle_us - came_us);
                    returned.push(message);
                }
                keep
            });
        }
        let look_us = process.demand.next_hand_back_us(process.buffer.len());
        let look_changed = std::mem::replace(&mut process.look_us, look_us) != look_us;
        for message in started {
            let event = Event::Completed { process: index, message };
            self.set(self.messages[message].service_us, event);
        }
        for message in returned {
            self.set(self.rtt_us / 2, Event::Returned { process: index, message });
        }
        if let Some(look_us) = look_us.filter(|_| look_changed && self.hands_back) {
            self.set(look_us - self.now_us, Event::Look { process: index });
        }
    }

    /// One message each in turn to those who have credit.
    fn deliver(&mut self) {
        let mut given = true;
        while given {
            given = false;
            for index in 0..PROCESSES {
                let process = &mut self.processes[index];
                if process.unacked < process.demand.wanted()
                    && let Some(message) = self.queue.pop_front()
                {
                    process.unacked += 1;
                    given = true;
                    self.set(self.rtt_us / 2, Event::Delivered { process: index, message });
                }
            }
        }
    }
}

/// `count` messages of 1 ms, of which a thousandth take 10 s.
fn heavy(count: usize, seed: u64) -> Vec<Message> {
    let mut random = Random(seed);
    let service_us = move |_| if random.below(1_000) == 0 { 10_000_000 } else { 1_000 };
    (0..count).map(service_us).map(|us| Message { service_us: us, handed_back: 0 }).collect()
}

#[test]
fn no_message_waits_long_behind_a_busy_worker() {
    for (rtt_us, seed) in [(200, 1), (200, 2), (10_000, 1), (10_000, 2), (10_000, 3)] {
        let mut consumers = Consumers::new(rtt_us, true, heavy(20_000, seed));
        consumers.run();
        let (worst_us, most_us) = (consumers.worst_wait_us, (3 * rtt_us).max(100_000));
        assert!(worst_us <= most_us, "round trip {rtt_us} us, seed {seed}: {worst_us} us");
    }
    let without = (1..=3).map(|seed| {
        let mut consumers = Consumers::new(10_000, false, heavy(20_000, seed));
        consumers.run();
        consumers.worst_wait_us
    });
    let worst_us = without.max();
    assert!(worst_us > Some(1_000_000), "the load shows nothing: {worst_us:?} us");
}

#[test]
fn a_message_is_handed_back_three_times_at_most() {
    // Everybody gets stuck at once, again and again.
    let messages = (0..600).map(|index| Message {
        service_us: if index % 10 < 5 { 1_000 } else { 300_000 },
        handed_back: 0,
    });
    let mut consumers = Consumers::new(10_000, true, messages.collect());
    consumers.run();
    let most = consumers.messages.iter().map(|message| message.handed_back).max();
    assert!(most > Some(0), "the load shows nothing");
    assert!(most <= Some(HAND_BACKS_MAX), "{most:?}");
}

#[test]
fn demand_keeps_workers_busy_across_the_round_trip() {
    for (rtt_us, most_us) in [(200, 800_000), (10_000, 800_000), (100_000, 1_000_000)] {
        let messages = vec![Message { service_us: 1_000, handed_back: 0 }; 20_000];
        let took_us = Consumers::new(rtt_us, true, messages).run();
        assert!(took_us <= most_us, "round trip {rtt_us} us: {took_us} us");
    }
}
