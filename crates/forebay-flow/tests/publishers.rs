//! Windows on a simulated broker: the failures of a delay-based window, one by one.
//!
//! The broker here is four times as slow as the one of `examples/cells.rs`, which leaves every ratio as it is
//! and makes the runs short enough for a debug build.

mod model;

use forebay_flow::{Amount, Fixed, Pfw, PfwOptions, Window};
use model::{Cell, Costs, Kernel, Outcome, run};

const S: u64 = 1_000_000;

fn pfw(seed: u64) -> Box<dyn Window> {
    Box::new(Pfw::new(PfwOptions { seed, ..PfwOptions::default() }))
}

fn fixed(messages: u32) -> impl Fn(u64) -> Box<dyn Window> {
    move |_| Box::new(Fixed::new(Amount::new(messages, u64::MAX)))
}

fn slow_broker() -> Cell {
    Cell {
        costs: Costs { visit_us: 48.0, message_us: 64.0, commit_message_us: 6.0 },
        ..Cell::default()
    }
}

/// Route lengths of 0.1, 10, 100 and 0.1 ms, each for `phase_us`.
fn steps(phase_us: u64, kernel: Kernel) -> (Cell, Outcome) {
    let rtts = [100, 10_000, 100_000, 100];
    let cell = Cell {
        rtt_us: (0..).map(|phase| phase * phase_us).zip(rtts).collect(),
        kernel,
        end_us: 4 * phase_us,
        warm_us: 0,
        ..slow_broker()
    };
    let outcome = run(&cell, pfw);
    (cell, outcome)
}

/// Rate over the second that begins `after_us` into the phase, and over the phase's last two seconds.
fn settled(outcome: &Outcome, phase_us: u64, phase: u64, after_us: u64) -> (f64, f64) {
    let (from_us, to_us) = (phase * phase_us, (phase + 1) * phase_us);
    (
        outcome.per_s_between(from_us + after_us, from_us + after_us + S),
        outcome.per_s_between(to_us - 2 * S, to_us),
    )
}

#[test]
fn it_follows_the_route_within_three_seconds() {
    let phase_us = 8 * S;
    let (_, outcome) = steps(phase_us, Kernel::Right);
    for phase in 1..4 {
        let (soon, steady) = settled(&outcome, phase_us, phase, 2 * S);
        assert!(soon >= 0.85 * steady, "phase {phase}: {soon:.0} of {steady:.0} msg/s");
        assert!(steady >= 13_500.0, "phase {phase}: {steady:.0} msg/s");
    }
    // Nothing is left standing of the long route's window.
    let mean_ms = outcome.mean_ms_between(31 * S, 32 * S);
    assert!(mean_ms < 25.0, "{mean_ms:.1} ms after the route was short again");
}

#[test]
fn without_the_kernel_it_follows_the_route_within_twenty_seconds() {
    let phase_us = 24 * S;
    let (_, outcome) = steps(phase_us, Kernel::Off);
    for phase in 1..4 {
        let (soon, steady) = settled(&outcome, phase_us, phase, 19 * S);
        assert!(soon >= 0.85 * steady, "phase {phase}: {soon:.0} of {steady:.0} msg/s");
        assert!(steady >= 13_000.0, "phase {phase}: {steady:.0} msg/s");
    }
}

#[test]
fn a_wrong_kernel_does_not_break_it() {
    for rtt_us in [10_000, 100_000] {
        let cell = |kernel| Cell {
            rtt_us: vec![(0, rtt_us)],
            kernel,
            end_us: 11 * S,
            warm_us: 6 * S,
            ..slow_broker()
        };
        let right = run(&cell(Kernel::Right), pfw);
        for kernel in [
            Kernel::Off,
            Kernel::Zero,
            Kernel::FrozenAtFirst,
            Kernel::Noisy(0.5),
            Kernel::Scaled(0.5),
            Kernel::Scaled(1.5),
        ] {
            let wrong = run(&cell(kernel), pfw);
            let (rate, p99_ms) = (wrong.per_s(), wrong.latency_ms(0.99));
            assert!(rate >= 0.9 * right.per_s(), "{rtt_us} us, {kernel:?}: {rate:.0} msg/s");
            assert!(
                p99_ms <= 3.0 * right.latency_ms(0.99),
                "{rtt_us} us, {kernel:?}: p99 {p99_ms:.1} ms"
            );
        }
    }
}

/// RabbitMQ's. Taken for a long way, those who saw most of it had ten times the others' share.
///
/// Of many runs, as what the others' windows do to one publisher's readings cannot always be told from a longer route: in one or two of
/// twenty-four somebody begins anew for it, and the others wait for a second.
#[test]
fn a_kernel_that_acknowledges_late_is_no_long_way() {
    let mut longer = Vec::new();
    for seed in 1..=11 {
        let cell = |kernel| Cell {
            seed,
            kernel,
            commit_times: false,
            end_us: 40 * S,
            warm_us: 20 * S,
            ..slow_broker()
        };
        let [right, late] = [Kernel::Right, Kernel::Late].map(|kernel| run(&cell(kernel), pfw));
        assert!(late.fairness() >= 0.95, "{seed}: fairness {:.2}", late.fairness());
        assert!(
            late.per_s() >= 0.95 * right.per_s(),
            "{seed}: {:.0} of {:.0} msg/s",
            late.per_s(),
            right.per_s()
        );
        longer.push(late.latency_ms(0.99) / right.latency_ms(0.99));
    }
    longer.sort_by(f64::total_cmp);
    assert!(
        longer[5] <= 1.3 && longer[7] <= 1.5,
        "p99 of so many times the right one: {longer:.2?}"
    );
}

#[test]
fn a_kernel_that_froze_does_not_hold_it_on_the_old_route() {
    let phase_us = 24 * S;
    let (_, outcome) = steps(phase_us, Kernel::FrozenAtFirst);
    for phase in 1..4 {
        let (soon, steady) = settled(&outcome, phase_us, phase, 19 * S);
        assert!(
            soon >= 0.85 * steady && steady >= 13_000.0,
            "phase {phase}: {soon:.0}, {steady:.0}"
        );
    }
}

/// A thousand flows and ten minutes, scaled down: 60 flows on a broker a sixteenth as fast, so that a
/// round takes as long.
#[test]
fn the_base_does_not_drift_in_permanent_overload() {
    let cell = Cell {
        flows: 60,
        costs: Costs { visit_us: 192.0, message_us: 256.0, commit_message_us: 24.0 },
        end_us: 600 * S,
        warm_us: 60 * S,
        ..Cell::default()
    };
    let outcome = run(&cell, pfw);
    let second = outcome.mean_ms_between(60 * S, 120 * S);
    let last = outcome.mean_ms_between(540 * S, 600 * S);
    assert!(
        last <= 1.2 * second,
        "mean latency {second:.0} ms in minute 2, {last:.0} ms in minute 10"
    );
}

#[test]
fn without_the_kernel_overload_adds_a_bounded_delay() {
    let cell = Cell {
        rtt_us: vec![(0, 10_000)],
        kernel: Kernel::Off,
        costs: Costs { visit_us: 192.0, message_us: 256.0, commit_message_us: 24.0 },
        end_us: 300 * S,
        warm_us: 0,
        ..Cell::default()
    };
    let outcome = run(&cell, pfw);
    for minute in 1..5 {
        let mean_ms = outcome.mean_ms_between(60 * minute * S, 60 * (minute + 1) * S);
        assert!(mean_ms <= 350.0, "mean latency {mean_ms:.0} ms in minute {}", minute + 1);
    }
}

#[test]
fn a_stall_of_the_broker_leaves_nothing_behind() {
    let cell =
        Cell { stall_us: Some((4 * S, 6 * S)), end_us: 12 * S, warm_us: 2 * S, ..slow_broker() };
    let outcome = run(&cell, pfw);
    let before = (outcome.per_s_between(2 * S, 4 * S), outcome.mean_ms_between(2 * S, 4 * S));
    let after = (outcome.per_s_between(7 * S, 9 * S), outcome.mean_ms_between(7 * S, 9 * S));
    assert!(after.0 >= 0.95 * before.0, "{before:?} before, {after:?} after");
    assert!(after.1 <= 1.5 * before.1, "{before:?} before, {after:?} after");
}

#[test]
fn a_program_that_publishes_little_does_not_inflate_the_window() {
    let cell = Cell {
        flows: 1,
        rate_per_s: 200.0,
        rtt_us: vec![(0, 10_000)],
        end_us: 60 * S,
        warm_us: 0,
        ..slow_broker()
    };
    let outcome = run(&cell, pfw);
    assert!(outcome.window_messages <= 16, "{} messages", outcome.window_messages);
}

#[test]
fn after_a_minute_of_silence_a_burst_runs_as_before() {
    let cell = Cell {
        flows: 1,
        rtt_us: vec![(0, 10_000)],
        idle_us: Some((10 * S, 70 * S)),
        end_us: 80 * S,
        warm_us: 5 * S,
        ..slow_broker()
    };
    let outcome = run(&cell, pfw);
    let before = (outcome.per_s_between(5 * S, 9 * S), outcome.mean_ms_between(5 * S, 9 * S));
    let after = (outcome.per_s_between(71 * S, 75 * S), outcome.mean_ms_between(71 * S, 75 * S));
    assert!(after.0 >= 0.95 * before.0 && after.1 <= 1.5 * before.1, "{before:?}, {after:?}");
}

/// At least nine tenths of the best fixed window's rate, and a p99 of at most 1.5 times the knee's: the
/// least p99 among the fixed windows with at least 95 % of the best rate.
#[test]
fn it_matches_the_best_fixed_window() {
    let cell = |flows, rtt_us, fsync_us| Cell {
        flows,
        rtt_us: vec![(0, rtt_us)],
        fsync_us: vec![(0, fsync_us)],
        end_us: 10 * S,
        warm_us: 5 * S,
        ..slow_broker()
    };
    for (name, cell, grid) in [
        ("1 flow, RTT 10 ms", cell(1, 10_000, 1_000), [100, 200, 300, 500]),
        ("20 flows, RTT 100 ms", cell(20, 100_000, 1_000), [50, 75, 100, 150]),
        ("20 flows, fsync 8 ms", cell(20, 200, 8_000), [13, 20, 35, 50]),
    ] {
        let fixed: Vec<Outcome> = grid.map(|w| run(&cell, fixed(w))).into();
        let best = fixed.iter().map(Outcome::per_s).fold(0.0, f64::max);
        let knee_ms = fixed
            .iter()
            .filter(|outcome| outcome.per_s() >= 0.95 * best)
            .map(|outcome| outcome.latency_ms(0.99))
            .fold(f64::INFINITY, f64::min);
        let ours = run(&cell, pfw);
        let (rate, p99_ms) = (ours.per_s(), ours.latency_ms(0.99));
        assert!(rate >= 0.9 * best, "{name}: {rate:.0} of {best:.0} msg/s");
        assert!(p99_ms <= 1.5 * knee_ms, "{name}: p99 {p99_ms:.1} ms, the knee's {knee_ms:.1} ms");
        assert!(ours.variation() <= 0.1, "{name}: throughput varies by {:.2}", ours.variation());
        assert!(ours.fairness() >= 0.95, "{name}: fairness {:.2}", ours.fairness());
    }
}

/// A commit of 0.2, 8 and 0.2 ms, each for 8 s, and what publishers have who begin with 8.
fn slow_disk(flows: usize, commit_times: bool) -> (Outcome, Outcome) {
    let cell = |fsync_us: Vec<(u64, u64)>, seconds| Cell {
        flows,
        fsync_us,
        commit_times,
        end_us: seconds * S,
        warm_us: 0,
        ..slow_broker()
    };
    let steps = cell(vec![(0, 200), (8 * S, 8_000), (16 * S, 200)], 24);
    (run(&steps, pfw), run(&cell(vec![(0, 8_000)], 8), pfw))
}

#[test]
fn a_disk_that_becomes_slow_and_says_so_costs_no_more_than_it_must() {
    for flows in [1, 20] {
        let (outcome, fresh) = slow_disk(flows, true);
        for phase in 0..3 {
            let (soon, steady) = settled(&outcome, 8 * S, phase, 2 * S);
            assert!(soon >= 0.85 * steady, "{flows}, {phase}: {soon:.0} of {steady:.0} msg/s");
        }
        let (_, slow) = settled(&outcome, 8 * S, 1, 0);
        let fresh_per_s = fresh.per_s_between(6 * S, 8 * S);
        assert!(slow >= 0.9 * fresh_per_s, "{flows}: {slow:.0} of {fresh_per_s:.0} msg/s");
        let (slow_ms, fresh_ms) =
            (outcome.mean_ms_between(14 * S, 16 * S), fresh.mean_ms_between(6 * S, 8 * S));
        assert!(slow_ms <= 1.5 * fresh_ms, "{flows}: {slow_ms:.1} ms beside {fresh_ms:.1}");
        // Nothing is left standing of the slow disk's window.
        let (before_ms, after_ms) =
            (outcome.mean_ms_between(6 * S, 8 * S), outcome.mean_ms_between(22 * S, 24 * S));
        assert!(after_ms <= 1.3 * before_ms, "{flows}: {after_ms:.1} ms, {before_ms:.1} before");
    }
}

/// What a latency alone cannot tell.
#[test]
fn a_disk_that_becomes_slow_and_does_not_say_so_is_taken_for_a_queue() {
    let (outcome, fresh) = slow_disk(1, false);
    let (_, slow) = settled(&outcome, 8 * S, 1, 0);
    let fresh = fresh.per_s_between(6 * S, 8 * S);
    assert!(slow < 0.7 * fresh, "{slow:.0} of {fresh:.0} msg/s");
}

fn least(parts: &[f64]) -> f64 {
    parts.iter().copied().fold(f64::INFINITY, f64::min)
}

#[test]
fn beside_floods_without_confirms_each_gets_its_share() {
    for (floods, rtt_us) in [(1, 200), (1, 10_000), (5, 200)] {
        let cell = Cell {
            flows: 50,
            floods,
            rtt_us: vec![(0, rtt_us)],
            end_us: 15 * S,
            warm_us: 5 * S,
            ..slow_broker()
        };
        let parts = run(&cell, pfw).fair_parts(floods);
        assert!(least(&parts) >= 0.8, "{floods} floods, {rtt_us} us: {parts:.2?}");
    }
}

/// Half of the publishers have twice as many messages in flight as they could publish in a second.
#[test]
fn beside_fixed_windows_far_too_large_each_gets_its_share() {
    for rtt_us in [200, 10_000] {
        let cell =
            Cell { rtt_us: vec![(0, rtt_us)], end_us: 20 * S, warm_us: 10 * S, ..slow_broker() };
        let alone = run(&cell, pfw).per_s();
        let careless = 2 * alone as u32 / cell.flows as u32;
        let index = std::cell::Cell::new(0);
        let outcome = run(&cell, |seed| {
            index.set(index.get() + 1);
            if index.get() % 2 == 0 { pfw(seed) } else { fixed(careless)(seed) }
        });
        let parts = outcome.fair_parts(0);
        let tuned: Vec<f64> = parts.iter().copied().skip(1).step_by(2).collect();
        assert!(least(&tuned) >= 0.8, "{rtt_us} us, {careless} in flight each: {parts:.2?}");
        let rate = outcome.per_s();
        assert!(rate >= 0.95 * alone, "{rtt_us} us: {rate:.0} of {alone:.0} msg/s");
    }
}
