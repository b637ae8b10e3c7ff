//! The search on brokers whose knee is known.

use proptest::prelude::*;

use super::*;

/// A pipe: in flight over the round trip, until it is full.
fn pipe(full: f64) -> impl Fn(u32) -> f64 {
    move |window| 20_000.0 * (f64::from(window) / full).min(1.0)
}

/// A broker that gets full slowly.
fn slow(half: f64) -> impl Fn(u32) -> f64 {
    move |window| 20_000.0 * f64::from(window) / (f64::from(window) + half)
}

/// A full pipe that loses a third of its rate with far too much in flight.
fn collapsing(window: u32) -> f64 {
    pipe(50.0)(window) * if window > 500 { 0.66 } else { 1.0 }
}

struct Ended {
    finding: Finding,
    runs: usize,
    curve: Curve,
    tuned: usize,
}

/// Searches a curve whose runs vary by up to `noise` of their rate.
fn searched(curve: impl Fn(u32) -> f64, repeat: usize, noise: f64, seed: u64) -> Ended {
    let mut search = Search::new(repeat, true, seed);
    let mut random = Random::new(seed + 1_000);
    while let Some(window) = search.next() {
        let vary = 1.0 + noise * (random.below(2_001) as f64 / 1_000.0 - 1.0);
        match window {
            Window::Fixed(messages) => search.learn(window, curve(messages) * vary),
            _ => search.learn(window, 19_000.0),
        }
    }
    let finding = finding(&search.curve, seed).expect("it carries something");
    Ended { finding, runs: search.runs, curve: search.curve, tuned: search.tuned.0 }
}

#[test]
fn the_knee_of_a_pipe_is_where_it_gets_full() {
    for full in [7.0, 33.0, 250.0, 4_000.0] {
        let Ended { finding, curve, tuned, .. } = searched(pipe(full), 3, 0.0, 1);
        let exact = 0.95 * full;
        assert!(
            (f64::from(finding.window) - exact).abs() <= (0.03 * exact).max(1.0),
            "{finding:?}"
        );
        assert!(!finding.growing && tuned == 3);
        let (low, high) = finding.interval.expect("three repetitions");
        assert!(low <= finding.window && finding.window <= high);
        let below = curve.range(..finding.measured).next_back().expect("a window below");
        assert!(
            f64::from(finding.measured)
                <= (NEAR * f64::from(*below.0)).max(1.0 + f64::from(*below.0))
        );
    }
}

#[test]
fn five_searches_of_one_broker_agree_though_its_runs_vary() {
    let found: Vec<u32> =
        (0..5).map(|seed| searched(pipe(200.0), 3, 0.02, seed).finding.window).collect();
    let exact = 190.0;
    for window in &found {
        assert!((f64::from(*window) / exact - 1.0).abs() <= 0.05, "{found:?}");
    }
}

#[test]
fn one_lucky_run_is_found_out() {
    let mut search = Search::new(3, false, 1);
    let mut lucky = true;
    while let Some(window) = search.next() {
        let Window::Fixed(messages) = window else { panic!("nothing tunes itself here") };
        // The first run of window 4 shows what the broker cannot do.
        let luck = messages == 4 && std::mem::take(&mut lucky);
        search.learn(window, if luck { 20_000.0 } else { pipe(60.0)(messages) });
    }
    let window = finding(&search.curve, 1).expect("it carries something").window;
    assert!((54..=60).contains(&window), "{window}");
}

#[test]
fn a_ladder_that_an_unlucky_run_ended_goes_on() {
    let mut search = Search::new(3, false, 1);
    let mut unlucky = 2;
    while let Some(window) = search.next() {
        let Window::Fixed(messages) = window else { panic!("nothing tunes itself here") };
        let luck = messages > 4 && unlucky > 0;
        unlucky -= i32::from(luck);
        search.learn(window, if luck { 100.0 } else { pipe(300.0)(messages) });
    }
    let finding = finding(&search.curve, 1).expect("it carries something");
    assert!((275..=300).contains(&finding.window), "{finding:?}");
}

#[test]
fn a_broker_that_collapses_has_its_knee_before() {
    let Ended { finding, .. } = searched(collapsing, 3, 0.02, 2);
    assert!((44..=52).contains(&finding.window) && finding.best < 500, "{finding:?}");
}

#[test]
fn a_smooth_curve_has_a_wide_interval_and_no_end_of_runs() {
    let Ended { finding, runs, .. } = searched(slow(10.0), 3, 0.02, 3);
    let (low, high) = finding.interval.expect("three repetitions");
    assert!(high - low >= finding.window / 10, "{finding:?}");
    assert!((100..=300).contains(&finding.window), "{finding:?}");
    assert!(runs <= RUNS_MAX);
}

#[test]
fn one_message_may_be_enough() {
    let Ended { finding, .. } = searched(|_| 900.0, 3, 0.0, 4);
    assert_eq!((finding.window, finding.measured, finding.interval), (1, 1, Some((1, 1))));
}

#[test]
fn a_rate_that_never_stops_growing_is_said_to_grow() {
    let Ended { finding, .. } = searched(f64::from, 1, 0.0, 5);
    assert!(finding.growing, "{finding:?}");
}

#[test]
fn runs_that_fail_end_the_search_without_a_knee() {
    let mut search = Search::new(2, false, 1);
    while let Some(window) = search.next() {
        search.learn(window, 0.0);
    }
    assert!(search.runs <= 10);
    assert_eq!(finding(&search.curve, 1), None);
}

proptest! {
    /// Whatever a broker does, the search ends, stays in its bounds, and repeats nothing more often than asked.
    #[test]
    fn any_search_ends(
        repeat in 1..5_usize,
        seed in 0..1_000_u64,
        rates in prop::collection::vec(0.0..1e5_f64, RUNS_MAX),
    ) {
        let mut search = Search::new(repeat, true, seed);
        let mut rates = rates.into_iter();
        while let Some(window) = search.next() {
            if let Window::Fixed(messages) = window {
                prop_assert!((WINDOW_MIN..=WINDOW_MAX).contains(&messages));
            }
            search.learn(window, rates.next().expect("no more than RUNS_MAX"));
        }
        prop_assert!(search.curve.values().all(|runs| runs.len() <= repeat));
        prop_assert!(search.tuned.0 <= repeat);
    }
}
