//! How many workers, in front of a service whose knee is known, in virtual time.
//!
//! ```text
//!   workers ── calls ──▶ queue ──▶ servers, each with one call at a time ──▶ ended
//!      ▲                                                                       │
//!      └───────────────────────────────────────────────────────────────────────┘
//! ```

#[path = "model/random.rs"]
#[allow(dead_code, unreachable_pub, missing_docs)]
mod random;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use forebay_flow::Workers;
use forebay_flow::workers::Call;
use proptest::prelude::*;
use random::Random;

/// What calls meet.
#[derive(Debug, Clone, Copy)]
struct Service {
    servers: u32,
    mean_us: u64,
    /// Otherwise they are all alike.
    exponential: bool,
    /// More calls than this at a time are refused, at once.
    refuses_above: u32,
    /// Of calls, so many in a hundred fail, after this time.
    fails: (u64, u64),
    /// Messages a second, if they are fewer than the workers could do.
    arrivals_per_s: Option<f64>,
}

impl Service {
    fn with(servers: u32, mean_us: u64) -> Service {
        let (exponential, refuses_above, arrivals_per_s) = (false, u32::MAX, None);
        Service { servers, mean_us, exponential, refuses_above, fails: (0, 0), arrivals_per_s }
    }
}

struct World {
    service: Service,
    workers: Workers,
    random: Random,
    now_us: u64,
    ends: BinaryHeap<Reverse<(u64, u64, bool)>>, // when, begun, whether a server had it
    queued: VecDeque<u64>,
    served: u32,
    busy: u32,
    /// Until when messages have come, and how many of them wait.
    arrived_us: f64,
    waiting: u64,
    successes: u64,
    most: u32,
    /// How often the count was changed.
    changes: u32,
}

impl World {
    fn new(service: Service, workers: Workers, seed: u64) -> World {
        World {
            service,
            workers,
            random: Random(seed),
            now_us: 0,
            ends: BinaryHeap::new(),
            queued: VecDeque::new(),
            served: 0,
            busy: 0,
            arrived_us: 0.0,
            waiting: 0,
            successes: 0,
            most: 0,
            changes: 0,
        }
    }

    fn service_us(&mut self) -> u64 {
        let mean = self.service.mean_us as f64;
        let us = if self.service.exponential { mean * self.random.exponential() } else { mean };
        (us as u64).max(1)
    }

    /// Idle workers begin.
    fn begin(&mut self) {
        if let Some(per_s) = self.service.arrivals_per_s {
            while self.arrived_us <= self.now_us as f64 {
                self.arrived_us += 1e6 / per_s * self.random.exponential();
                self.waiting += 1;
            }
        }
        while self.busy < self.workers.count() {
            if self.service.arrivals_per_s.is_some() {
                if self.waiting == 0 {
                    return;
                }
                self.waiting -= 1;
            }
            self.busy += 1;
            let (percent, after_us) = self.service.fails;
            if self.busy > self.service.refuses_above {
                self.ends.push(Reverse((self.now_us + 100, self.now_us, false)));
            } else if self.random.below(100) < percent {
                self.ends.push(Reverse((self.now_us + after_us, self.now_us, false)));
            } else {
                self.queued.push_back(self.now_us);
            }
            self.serve();
        }
    }

    fn serve(&mut self) {
        while self.served < self.service.servers {
            let Some(begun_us) = self.queued.pop_front() else { return };
            self.served += 1;
            let end_us = self.now_us + self.service_us();
            self.ends.push(Reverse((end_us, begun_us, true)));
        }
    }

    fn run(&mut self, seconds: u64) {
        let until_us = self.now_us + seconds * 1_000_000;
        loop {
            self.begin();
            let end = self.ends.peek().map(|Reverse((end_us, _, _))| *end_us);
            let arrival = self.service.arrivals_per_s.map(|_| self.arrived_us.ceil() as u64);
            let next_us = end.into_iter().chain(arrival).min().expect("something happens");
            if next_us > until_us {
                self.now_us = until_us;
                return;
            }
            self.now_us = next_us;
            if end == Some(next_us) {
                self.end();
            }
        }
    }

    fn end(&mut self) {
        let Reverse((_, begun_us, succeeded)) = self.ends.pop().expect("it was seen");
        self.served -= u32::from(succeeded);
        self.successes += u64::from(succeeded);
        let full = self.busy >= self.workers.count();
        self.busy -= 1;
        self.serve();
        let call = Call { took_us: self.now_us - begun_us, succeeded, full };
        let before = self.workers.count();
        let changed = self.workers.ended(self.now_us, call);
        assert_eq!(changed, (self.workers.count() != before).then(|| self.workers.count()));
        self.most = self.most.max(self.workers.count());
        self.changes += u32::from(changed.is_some());
    }

    /// Successes a second over so many seconds.
    fn rate(&mut self, seconds: u64) -> f64 {
        let before = self.successes;
        self.run(seconds);
        (self.successes - before) as f64 / seconds as f64
    }

    /// The count between trials.
    fn settled(&mut self) -> u32 {
        while self.workers.is_trying() {
            self.run(1);
        }
        self.workers.count()
    }

    fn capacity(&self) -> f64 {
        f64::from(self.service.servers) * 1e6 / self.service.mean_us as f64
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn it_finds_the_knee(
        servers in 1..150_u32,
        mean_us in 1_000..20_000_u64,
        exponential in any::<bool>(),
        start in 1..100_u32,
        seed in any::<u64>(),
    ) {
        let service = Service { exponential, ..Service::with(servers, mean_us) };
        let mut world = World::new(service, Workers::new(start, 1, 256), seed);
        // Trials among random times err now and then, and the next ones mend it: the median of five counts.
        let mut counts = [60, 30, 30, 30, 30].map(|seconds| {
            world.run(seconds);
            world.settled()
        });
        counts.sort_unstable();
        let count = f64::from(counts[2]);
        let knee = f64::from(servers);
        let slack = if exponential { 2.2 } else { 1.3 };
        prop_assert!(count >= knee / slack - 1.0 && count <= knee * slack + 1.0, "{count} for {knee}");
        let rate = world.rate(30);
        prop_assert!(rate >= 0.9 / slack * world.capacity(), "{rate} of {}", world.capacity());
    }

    #[test]
    fn whatever_happens_it_keeps_its_bounds(
        calls in prop::collection::vec((0..100_000_u64, 0..1_000_000_u64, any::<bool>(), any::<bool>()), 1..3_000),
        start in 0..50_u32, min in 0..20_u32, more in 0..100_u32,
    ) {
        let mut workers = Workers::new(start, min, min + more);
        let mut now_us = 0;
        for (pause_us, took_us, succeeded, full) in calls {
            now_us += pause_us;
            let before = workers.count();
            let changed = workers.ended(now_us, Call { took_us, succeeded, full });
            prop_assert!(workers.count() >= min.max(1) && workers.count() <= (min + more).max(1));
            prop_assert_eq!(changed.is_some(), workers.count() != before);
            prop_assert!(workers.count() <= 2 * before && before <= 2 * workers.count());
        }
    }
}

#[test]
fn a_service_that_loses_servers_gets_fewer_calls_and_more_when_they_are_back() {
    let mut world = World::new(Service::with(64, 10_000), Workers::new(8, 1, 256), 1);
    world.run(60);
    assert!((56..=80).contains(&world.settled()), "{}", world.workers.count());
    world.service.servers = 6;
    world.run(60);
    assert!(world.settled() <= 9, "{}", world.workers.count());
    world.service.servers = 64;
    world.run(120);
    assert!(world.settled() >= 48, "{}", world.workers.count());
}

#[test]
fn work_that_takes_longer_by_itself_keeps_its_workers() {
    let mut world = World::new(Service::with(40, 5_000), Workers::new(8, 1, 256), 2);
    world.run(60);
    world.settled();
    (world.service.mean_us, world.service.servers) = (50_000, 40);
    world.run(60);
    assert!((32..=52).contains(&world.settled()), "{}", world.workers.count());
}

#[test]
fn refusals_are_no_speed() {
    let service = Service { refuses_above: 20, ..Service::with(100, 10_000) };
    let mut world = World::new(service, Workers::new(8, 1, 256), 3);
    world.run(60);
    assert!((12..=25).contains(&world.settled()), "{}", world.workers.count());
    let before = world.changes;
    assert!(world.rate(30) >= 1_400.0);
    let changes = world.changes - before;
    assert!(changes <= 30, "{changes} in half a minute: nor is what one too many left an outage");
}

#[test]
fn workers_that_are_not_used_do_not_become_more() {
    // Four servers' worth of messages, and capacity for a hundred.
    let service = Service { arrivals_per_s: Some(400.0), ..Service::with(100, 10_000) };
    let mut world = World::new(service, Workers::new(8, 1, 256), 4);
    world.run(300);
    assert!(world.most <= 32, "{}", world.most);
    let rate = world.rate(60);
    assert!(rate >= 380.0, "{rate}: all of it is done");
}

/// Calls that fail while there are more than so many at a time, and take ten times as long then.
fn collapsing(workers: &mut Workers, now_us: &mut u64, at_most: u32, calls: u64) -> u64 {
    let mut successes = 0;
    for _ in 0..calls {
        let succeeded = workers.count() <= at_most;
        let took_us = if succeeded { 10_000 } else { 100_000 };
        *now_us += took_us / u64::from(workers.count());
        workers.ended(*now_us, Call { took_us, succeeded, full: true });
        successes += u64::from(succeeded);
    }
    successes
}

#[test]
fn a_service_that_fails_all_calls_beyond_some_gets_so_few() {
    let (mut workers, mut now_us) = (Workers::new(100, 1, 256), 0);
    collapsing(&mut workers, &mut now_us, 20, 20_000);
    let successes = collapsing(&mut workers, &mut now_us, 20, 20_000);
    assert!(successes >= 15_000, "{successes} of 20000 with {} workers", workers.count());
}

#[test]
fn after_an_outage_there_are_soon_as_many_as_before() {
    for (mean_us, outage_s) in [(10_000, 3), (10_000, 60), (100_000, 3), (100_000, 20)] {
        let service = Service::with(40, mean_us);
        let mut world = World::new(service, Workers::new(8, 1, 256), 5);
        world.run(mean_us / 500);
        assert!((32..=52).contains(&world.settled()), "{}", world.workers.count());
        world.service.refuses_above = 0;
        world.run(outage_s);
        assert!(world.workers.count() <= 2, "{}: gently", world.workers.count());
        world.service.refuses_above = u32::MAX;
        world.run((150 * mean_us).div_ceil(1_000_000));
        let count = world.workers.count();
        assert!(count >= 20, "{count} for 40 places, a hundred and fifty calls later");
    }
}

/// The median of several outages in which so many in a hundred calls failed: after how many seconds there are half as many workers
/// as places again.
fn seconds_until_back(percent: u64, after_us: u64) -> u64 {
    let mut seconds: Vec<u64> = (0..11)
        .map(|seed| {
            let service = Service { exponential: true, ..Service::with(40, 10_000) };
            let mut world = World::new(service, Workers::new(40, 1, 256), seed);
            world.run(60);
            world.service.fails = (percent, after_us);
            world.run(100);
            world.service.fails = (0, 0);
            (0..900)
                .find(|_| {
                    let back = world.workers.count() >= 20;
                    world.run(u64::from(!back));
                    back
                })
                .unwrap_or(900)
        })
        .collect();
    seconds.sort_unstable();
    seconds[seconds.len() / 2]
}

#[test]
fn after_an_outage_of_most_calls_there_are_soon_as_many_as_before() {
    for (percent, after_us) in [(90, 100), (98, 10_000)] {
        let seconds = seconds_until_back(percent, after_us);
        assert!(seconds <= 12, "{seconds} s, {percent} % having failed after {after_us} us");
    }
}
