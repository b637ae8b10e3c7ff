//! How many connections, on a broker whose capacity for each and for all is known.

use forebay_flow::{Connections, Decision, Delivered};
use proptest::prelude::*;

const LOOK_US: u64 = 100_000;

/// A broker and its links: each connection has a ceiling, and so have all together.
#[derive(Debug, Clone, Copy)]
struct World {
    each: f64,
    all: f64,
    /// What callers would publish.
    demand: f64,
    /// Standard deviation of the rate in 100 ms, as a share.
    noise: f64,
    latency_us: u64,
}

struct Run {
    connections: Connections,
    world: World,
    now_us: u64,
    random: u64,
    /// A changed connection reaches its rate only after this time: windows start anew.
    slow_until_us: u64,
    useful: u32,
    /// So many connections, the latest, are lost, and cannot be opened again.
    lost: u32,
    changes: Vec<(u64, u32)>,
}

impl World {
    fn capacity(&self, count: u32) -> f64 {
        (self.each * f64::from(count)).min(self.all)
    }

    /// The fewest connections to which one more adds less than `gain`.
    fn best(&self, max: u32, gain: f64) -> u32 {
        let rate = |count| self.capacity(count).min(self.demand);
        (1..max).find(|&count| rate(count + 1) < (1.0 + gain) * rate(count)).unwrap_or(max)
    }
}

impl Run {
    fn new(world: World, max: u32, seed: u64) -> Run {
        Run {
            connections: Connections::new(max),
            world,
            now_us: 5_000_000,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            slow_until_us: 0,
            useful: u32::MAX,
            lost: 0,
            changes: Vec::new(),
        }
    }

    fn uniform(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// About normal, with a deviation of 1: twelve uniform numbers.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }

    fn seconds(&mut self, seconds: u64) {
        for _ in 0..seconds * 1_000_000 / LOOK_US {
            self.now_us += LOOK_US;
            let there = self.connections.count().saturating_sub(self.lost);
            let mut capacity = self.world.capacity(there);
            if self.now_us < self.slow_until_us {
                capacity *= 0.5;
            }
            capacity *= (1.0 + self.world.noise * self.normal()).max(0.0);
            let rate = capacity.min(self.world.demand);
            let delivered = Delivered {
                messages: (rate * LOOK_US as f64 / 1e6) as u64,
                waited: self.world.demand > capacity,
                lost: self.lost > 0,
                latency_us: self.world.latency_us,
            };
            let before = self.connections.count();
            let decision = self.connections.look(self.now_us, delivered, self.useful);
            let after = self.connections.count();
            match decision {
                Decision::Grow => assert_eq!(after, before + 1),
                Decision::Shrink => assert_eq!(after, before - 1),
                Decision::Hold => assert_eq!(after, before),
            }
            if self.lost > 0 {
                match decision {
                    // As there is none for those that were lost.
                    Decision::Grow => self.connections.refused(self.now_us),
                    Decision::Shrink => self.lost -= 1,
                    Decision::Hold => {}
                }
            }
            if decision != Decision::Hold {
                self.slow_until_us = self.now_us + 500_000 + 8 * self.world.latency_us;
                self.changes.push((self.now_us, after));
            }
        }
    }

    /// Goes on until no trial is on its way.
    fn settled(&mut self) -> u32 {
        while self.connections.is_trying() {
            self.seconds(1);
        }
        self.connections.count()
    }
}

fn saturated(each: f64, all: f64) -> World {
    World { each, all, demand: f64::INFINITY, noise: 0.05, latency_us: 20_000 }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn it_finds_as_many_as_help(
        each in 500.0..50_000.0_f64,
        ratio in 0.5..12.0_f64,
        noise in 0.0..0.05_f64, // beyond that one trial in some thousands errs, which is no fault
        latency_us in 0..400_000_u64,
        max in 1..9_u32,
        seed in any::<u64>(),
    ) {
        let world = World { noise, latency_us, ..saturated(each, each * ratio) };
        let mut run = Run::new(world, max, seed);
        run.seconds(1500);
        let count = run.settled();
        prop_assert!(count <= max);
        // What is within the noise of the threshold may go either way.
        let (least, most) = (world.best(max, 0.2), world.best(max, 0.02));
        prop_assert!((least..=most).contains(&count), "{count}, not {least} to {most}: {:?}", run.changes);
    }

    #[test]
    fn it_tries_less_and_less_where_nothing_helps(
        noise in 0.0..0.3_f64,
        seed in any::<u64>(),
    ) {
        let mut run = Run::new(World { noise, ..saturated(9000.0, 9000.0) }, 8, seed);
        run.seconds(3600);
        let late = run.changes.iter().filter(|&&(at_us, _)| at_us > 1_800_000_000).count();
        // Without pauses that grow they were some 150 in each half hour. Usually 6, and 12 in one of some thousands.
        prop_assert!(late <= 20, "{late} changes in the second half hour");
        prop_assert!(run.changes.len() <= 40, "{:?}", run.changes);
    }

    #[test]
    fn whatever_it_sees_it_keeps_within_bounds(
        looks in prop::collection::vec((1..3_000_000_u64, 0..1_000_000_u64, any::<bool>(), 0..5_000_000_u64, 0..12_u32, prop::bool::weighted(0.2), prop::bool::weighted(0.1), prop::bool::weighted(0.1)), 1..400),
        max in 0..9_u32,
    ) {
        let mut connections = Connections::new(max);
        let mut now_us = 0;
        for (after_us, messages, waited, latency_us, useful, refuse, renew, lost) in looks {
            now_us += after_us;
            if renew {
                connections.renewed(now_us, latency_us);
                prop_assert!(!connections.is_trying());
            }
            let delivered = Delivered { messages, waited, lost, latency_us };
            let before = connections.count();
            match connections.look(now_us, delivered, useful) {
                Decision::Grow => {
                    prop_assert_eq!(connections.count(), before + 1);
                    prop_assert!(connections.count() <= useful.max(1));
                    if refuse {
                        connections.refused(now_us);
                        prop_assert_eq!(connections.count(), before);
                    }
                }
                Decision::Shrink => prop_assert_eq!(connections.count(), before - 1),
                Decision::Hold => prop_assert_eq!(connections.count(), before),
            }
            prop_assert!((1..=max.max(1)).contains(&connections.count()));
        }
    }
}

#[test]
fn a_link_that_holds_each_connection_gets_them_all_within_a_minute() {
    // 64 KiB in flight over 100 ms: 640 messages of 1 kB a second each, whatever the broker can do.
    let world = World { latency_us: 150_000, ..saturated(640.0, 50_000.0) };
    let mut run = Run::new(world, 4, 1);
    run.seconds(80);
    assert_eq!(run.connections.count(), 4, "{:?}", run.changes);
}

#[test]
fn nothing_is_tried_while_nobody_waits() {
    let world = World { demand: 100.0, noise: 0.0, ..saturated(1000.0, 10_000.0) };
    let mut run = Run::new(world, 8, 1);
    run.seconds(600);
    assert_eq!(run.changes, []);
}

#[test]
fn connections_that_carry_the_load_stay_and_an_idle_client_has_one() {
    let demand = World { demand: 2500.0, noise: 0.02, ..saturated(1000.0, 100_000.0) };
    let mut run = Run::new(demand, 8, 3);
    run.seconds(300);
    assert_eq!(run.settled(), 3, "{:?}", run.changes);
    let changes = run.changes.len();
    run.seconds(600);
    assert_eq!(run.changes.len(), changes, "three carry it, and nobody waits: {:?}", run.changes);
    run.world.demand = 0.0;
    run.seconds(100);
    assert_eq!(run.connections.count(), 1);
    run.world.demand = f64::INFINITY;
    run.seconds(200);
    assert_eq!(run.settled(), 8, "{:?}", run.changes);
}

#[test]
fn what_was_kept_by_mistake_goes_again() {
    let mut run = Run::new(saturated(1000.0, 4000.0), 8, 7);
    run.seconds(300);
    assert_eq!(run.settled(), 4);
    // The link is better now: one connection could carry everything.
    run.world.each = 10_000.0;
    run.seconds(4000);
    assert_eq!(run.settled(), 1, "{:?}", run.changes);
}

#[test]
fn no_more_than_there_are_publishers() {
    let mut run = Run::new(saturated(1000.0, 100_000.0), 8, 5);
    run.useful = 2;
    run.seconds(100);
    assert_eq!(run.settled(), 2);
    run.useful = 1;
    run.seconds(1);
    assert_eq!(run.connections.count(), 1);
}

#[test]
fn a_trial_is_not_judged_by_what_the_route_was_before() {
    let mut run = Run::new(saturated(1000.0, 100_000.0), 8, 5);
    while !run.connections.is_trying() {
        run.seconds(1);
    }
    let (count, trials) = (run.connections.count(), run.changes.len());
    run.world = World { latency_us: 150_000, ..saturated(100.0, 100_000.0) };
    run.connections.renewed(run.now_us, run.world.latency_us);
    run.seconds(9);
    assert_eq!((run.connections.count(), run.changes.len()), (count, trials), "{:?}", run.changes);
    run.seconds(300);
    assert_eq!(run.settled(), 8, "{:?}", run.changes);
}

#[test]
fn while_nothing_is_delivered_nothing_is_tried_and_afterwards_at_once() {
    // The broker is blocked, or away, and everybody waits.
    let world = saturated(1000.0, 100_000.0);
    let mut run = Run::new(World { all: 0.0, ..world }, 8, 5);
    run.seconds(600);
    assert_eq!(run.changes, []);
    run.world = world;
    run.seconds(60);
    assert_eq!(run.settled(), 8, "{:?}", run.changes);
}

#[test]
fn a_client_that_stops_in_a_trial_is_back_at_one_connection() {
    let mut run = Run::new(saturated(1000.0, 4000.0), 4, 7);
    run.seconds(300);
    assert_eq!(run.settled(), 4);
    while run.connections.count() == 4 {
        run.seconds(1); // until it asks whether the fourth is worth it
    }
    assert!(run.connections.is_trying());
    run.world.demand = 0.0;
    run.seconds(200);
    assert_eq!(run.connections.count(), 1, "{:?}", run.changes);
}

#[test]
fn connections_that_are_waited_on_go_for_trials_alone() {
    let world = saturated(1000.0, 4000.0);
    let mut run = Run::new(world, 4, 7);
    run.seconds(300);
    assert_eq!(run.settled(), 4);
    while run.connections.count() == 4 {
        run.seconds(1);
    }
    assert_eq!((run.settled(), run.connections.count()), (4, 4), "the fourth is worth it");
    // From now on a quarter is taken, which as many as before carry; and then nothing for minutes.
    for (all, seconds) in [(1000.0, 100), (0.0, 200)] {
        run.world = saturated(all / 4.0, all);
        let changes = run.changes.len();
        run.seconds(seconds);
        assert_eq!(run.changes.len(), changes, "{:?}", run.changes);
    }
    // And nobody waits any more.
    run.world = World { demand: 0.0, ..world };
    run.seconds(100);
    assert_eq!(run.connections.count(), 1, "{:?}", run.changes);
}

#[test]
fn connections_that_are_lost_for_a_while_are_not_taken_for_useless() {
    for seconds in [5, 30, 60, 300] {
        for lost in 1..=4 {
            let mut run = Run::new(saturated(1_000.0, 4_000.0), 4, 1);
            run.seconds(300);
            assert_eq!(run.settled(), 4);
            run.lost = lost;
            run.seconds(seconds);
            run.lost = 0;
            run.seconds(15);
            assert_eq!(run.settled(), 4, "{lost} lost for {seconds} s: {:?}", run.changes);
        }
    }
}
