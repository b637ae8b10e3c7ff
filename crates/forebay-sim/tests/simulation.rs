//! The simulator itself: it repeats, it shrinks, and its checker sees.

use forebay_sim::{Event, Job, Swarm, replay, run, shrink};

/// Seeds that once broke a promise; what they found is held by tests of its own where it happened
/// (`forebay-broker/tests/behaviour`). A later commit makes other runs of them, so they
/// are kept as runs that were interesting, not as proofs.
const REMEMBERED: [u64; 9] = [
    11,
    16,
    31,
    32_575,
    31_393,
    17_954_181_201_709,
    17_955_274_074_347,
    17_956_869_983_570,
    17_959_955_745_178,
];

#[test]
fn remembered_seeds_keep_every_promise() {
    for seed in REMEMBERED {
        let report = run(seed, &Swarm::new(seed), false);
        assert_eq!(report.violation, None, "seed {seed}");
    }
}

/// What is counted in some worlds of this kind, which keep every promise.
fn seen(wanted: fn(&Swarm) -> bool, count: fn(&forebay_sim::Statistics) -> u64) -> u64 {
    let worlds = (0..).map(|seed| (seed, Swarm::new(seed))).filter(|(_, swarm)| wanted(swarm));
    worlds
        .take(6)
        .map(|(seed, swarm)| {
            let report = run(seed, &swarm, false);
            assert_eq!(report.violation, None, "seed {seed}");
            count(&report.statistics)
        })
        .sum()
}

/// Rules about what never happens say nothing.
#[test]
fn worlds_that_balance_hold_publishers_and_worlds_with_leases_renew_them() {
    assert!(seen(|swarm| swarm.balance, |statistics| statistics.held) > 0);
    assert!(seen(|swarm| swarm.leases, |statistics| statistics.asked) > 0);
}

#[test]
fn what_is_too_much_is_dropped_or_refused() {
    assert!(
        seen(|s| s.limit_bytes > 0 && !s.limits && !s.refuses, |statistics| statistics.dropped) > 0
    );
    assert!(
        seen(|s| s.limit_bytes > 0 && !s.limits && s.refuses, |statistics| statistics.refused) > 0
    );
}

#[test]
fn consumers_stand_back_for_others_and_unused_queues_go() {
    assert!(seen(|s| s.single_active && !s.consumer_priorities, |s| s.preferred) > 0);
    assert!(seen(|s| s.consumer_priorities && !s.single_active, |s| s.preferred) > 0);
    assert!(seen(|swarm| swarm.expires_ms > 0, |statistics| statistics.queues_expired) > 0);
}

#[test]
fn who_asks_gets_replies() {
    let asks = |swarm: &Swarm| {
        let jobs = || swarm.clients.iter().flatten();
        jobs().any(|job| *job == Job::Request) && jobs().any(|job| *job == Job::Get)
    };
    assert!(seen(asks, |statistics| statistics.replies) > 0);
}

/// What a rule about expired messages says depends on there being some.
#[test]
fn messages_expire_and_are_lost_by_nothing_else() {
    let mut expired = 0;
    for (seed, swarm) in (0..60).map(|seed| (seed, Swarm::new(seed))) {
        if swarm.ttl_ms > 0 {
            let report = run(seed, &swarm, false);
            assert_eq!(report.violation, None, "seed {seed}");
            expired += report.statistics.expired;
        }
    }
    assert!(expired > 0);
}

/// What a rule about crashes amid dead letters says depends on there being some.
#[test]
fn dead_letters_are_delivered_and_crashes_leave_some_in_doubt() {
    let (mut letters, mut left, mut found) = (0, 0, 0);
    for seed in 0..150 {
        let mut swarm = Swarm::new(seed);
        if !swarm.dead_letters || swarm.in_memory {
            continue;
        }
        swarm.requeue_one_in = swarm.requeue_one_in.min(2);
        let report = run(seed, &swarm, false);
        assert_eq!(report.violation, None, "seed {seed}");
        letters += report.statistics.letters;
        left += report.statistics.left;
        found += report.statistics.found_letters;
    }
    let seen = format!("{letters} letters, {left} not rejected, {found} found after a crash");
    assert!(left > 0 && letters > left && found > 0, "{seen}");
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 0..8 {
        let swarm = Swarm::new(seed);
        let (one, other) = (run(seed, &swarm, false), run(seed, &swarm, false));
        assert_eq!(one.trace_hash, other.trace_hash, "seed {seed}");
        assert_eq!(one.statistics, other.statistics, "seed {seed}");
        // And so is the list of its events.
        let again = replay(seed, &swarm, &one.events, false);
        assert_eq!(again.trace_hash, one.trace_hash, "seed {seed}");
    }
}

#[test]
fn two_seeds_are_two_runs() {
    let swarm = Swarm::new(1);
    assert_ne!(run(1, &swarm, false).trace_hash, run(2, &swarm, false).trace_hash);
}

/// A disk that says it has synced and has not: no software can keep its promise on it, and a checker
/// that does not see that sees nothing.
#[test]
fn a_lying_disk_is_seen() {
    let seen = (0..40).filter(|seed| {
        let mut swarm = lying(*seed);
        swarm.lying_disk = true;
        let lied_to = run(*seed, &swarm, false).violation;
        swarm.lying_disk = false;
        assert_eq!(run(*seed, &swarm, false).violation, None, "seed {seed} on an honest disk");
        lied_to.is_some()
    });
    assert!(seen.count() > 20, "most lies together with a power loss must be seen");
}

/// A world of confirming publishers in which the power goes now and then.
fn lying(seed: u64) -> Swarm {
    let mut swarm = Swarm::new(seed).calm();
    swarm.clients = vec![vec![Job::Confirm], vec![Job::Confirm, Job::Confirm]];
    swarm.persistent_sixteenths = 16;
    swarm.in_memory = false;
    swarm.options.durability = forebay_store::Durability::Always;
    swarm.events = 1_000;
    swarm.power_loss = 6;
    swarm
}

#[test]
fn a_failing_run_shrinks_to_a_short_one_that_fails_the_same_way() {
    let (seed, swarm, report) = (0..40)
        .map(|seed| {
            let mut swarm = lying(seed);
            swarm.lying_disk = true;
            (seed, swarm.clone(), run(seed, &swarm, false))
        })
        .find(|(.., report)| report.violation.is_some())
        .expect("a lying disk is seen");
    let violation = report.violation.expect("it was found by it");
    let before = report.events.len();
    let (events, shrunk) = shrink(seed, &swarm, report.events, violation.clone());
    assert_eq!(shrunk.rule, violation.rule);
    assert!(events.len() < 60.min(before), "{} of {before} events", events.len());
    assert!(events.iter().any(|event| matches!(event, Event::Die { .. })), "without a death?");
}
