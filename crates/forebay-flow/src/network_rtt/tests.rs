use proptest::prelude::*;

use super::*;

fn rtt(rtt_us: u64) -> Option<KernelReading> {
    Some(KernelReading::of(rtt_us))
}

/// A broker that tells nothing, and a link that may carry much.
const UNKNOWN: Known = Known { narrow: false, alone: false, broker_most_us: f64::INFINITY };

fn set(
    network: &mut NetworkRtt,
    now_us: u64,
    reading: Option<KernelReading>,
    window: f64,
    latency_us: f64,
) -> bool {
    network.set(now_us, reading, window, latency_us, UNKNOWN)
}

/// The kernel has seen a shorter one in the last minutes.
fn rtt_beside(least_rtt_us: u64, rtt_us: u64) -> Option<KernelReading> {
    Some(KernelReading { least_rtt_us, ..KernelReading::of(rtt_us) })
}

#[test]
fn the_second_largest_of_five_counts() {
    let mut network = NetworkRtt::default();
    assert_eq!(network.get(), None);
    for (reading, counts) in [(5, 5), (90, 5), (6, 6), (7, 7), (8, 8), (8, 8), (1, 8), (50, 8)] {
        set(&mut network, 0, rtt(reading), 8.0, 0.0);
        assert_eq!(network.get(), Some(counts));
    }
}

#[test]
fn a_longer_route_is_told_once() {
    let mut network = NetworkRtt::default();
    let readings = [100, 101, 900, 901].into_iter().chain((0..30).map(|us| 10_000 + us));
    let longer: Vec<bool> = readings.map(|us| set(&mut network, 0, rtt(us), 8.0, 0.0)).collect();
    assert_eq!(longer.iter().filter(|&&told| told).count(), 1);
    assert!(!longer[..4 + LONGER_READINGS as usize].contains(&true), "{longer:?}");
    assert!(network.get() >= Some(10_000));
}

#[test]
fn what_our_own_window_adds_is_no_longer_route() {
    let mut network = NetworkRtt::default();
    for reading in 0..100 {
        // It doubles with every reading, and the queue with it.
        let window = 8.0 * f64::from(1u32 << (reading / 10).min(10));
        let queue_us = 100 * (window as u64 - 8);
        assert!(!set(
            &mut network,
            reading * 100_000,
            rtt(10_000 + reading + queue_us),
            window,
            0.0
        ));
    }
    assert!(network.get() <= Some(11_600));
}

#[test]
fn a_longer_route_is_told_though_there_always_was_a_queue() {
    let mut network = NetworkRtt::default();
    let mut told = 0;
    for reading in 0..200 {
        // The window grew while the link filled, and has been the same since.
        let window = if reading < 5 { 100.0 } else { 1_500.0 };
        let route_us = if reading < 100 { 10_000 } else { 100_000 };
        let queue_us = if reading < 5 { 0 } else { 6_000 };
        let rtt_us = route_us + queue_us + reading;
        let longer = set(&mut network, reading * 100_000, rtt(rtt_us), window, rtt_us as f64);
        assert!(!longer || reading > 100, "with reading {reading}");
        told += u32::from(longer);
    }
    assert_eq!(told, 1);
    assert!(network.get() >= Some(100_000));
}

#[test]
fn a_broker_that_reads_later_and_later_is_no_longer_route() {
    let mut network = NetworkRtt::default();
    for reading in 0..200 {
        let window = if reading < 20 { 10.0 } else { 70.0 };
        let rtt_us = 60 + reading + 500 * (reading / 5) * (reading / 5);
        assert!(!set(
            &mut network,
            reading * 100_000,
            rtt_beside(50, rtt_us),
            window,
            1.2 * rtt_us as f64
        ));
    }
}

#[test]
fn a_reading_that_is_less_than_most_of_the_latency_is_no_longer_route() {
    let mut network = NetworkRtt::default();
    for reading in 0..100 {
        let rtt_us = if reading < 20 { 50 + reading } else { 2_500 + reading };
        assert!(!set(&mut network, reading * 100_000, rtt(rtt_us), 100.0, 6_000.0));
    }
    assert!(network.get() <= Some(1_050));
    let mut longer = false;
    for reading in 100..110 {
        longer |= set(&mut network, reading * 100_000, rtt(2_500 + reading), 100.0, 3_000.0);
    }
    assert!(longer);
}

#[test]
fn no_route_to_this_machine_becomes_longer() {
    let told = |same_machine| {
        let mut network = NetworkRtt::default();
        let mut read = |reading: u64| {
            let now_us = reading * 100_000;
            let rtt_us = if reading < 20 { 50 } else { 41_000 } + reading % 7;
            (0..10).for_each(|confirm| network.confirmed(now_us, 41_300 + 3_000 * confirm));
            let reading =
                KernelReading { same_machine, least_rtt_us: 50, ..KernelReading::of(rtt_us) };
            set(&mut network, now_us, Some(reading), 54.0, 55_000.0)
        };
        ((0..100).filter(|&reading| read(reading)).count(), network.get())
    };
    assert_eq!(told(false).0, 1);
    let (longer, believed_us) = told(true);
    assert_eq!(longer, 0);
    assert!(believed_us <= Some(1_100), "{believed_us:?}");
}

/// RabbitMQ's kernel acknowledges when RabbitMQ reads, and confirms come soon after it.
fn late(network: &mut NetworkRtt, reading: u64) -> bool {
    let now_us = reading * 100_000;
    (0..10).for_each(|confirm| network.confirmed(now_us, 7_000 + 1_000 * confirm));
    set(network, now_us, rtt_beside(1, 13_000 + reading % 7), 20.0, 12_000.0)
}

#[test]
fn a_peer_that_acknowledges_late_is_near() {
    let mut network = NetworkRtt::default();
    set(&mut network, 0, rtt_beside(1, 500), 200.0, 0.0);
    for reading in 1..300 {
        assert!(!late(&mut network, reading));
        assert!(network.get() <= Some(1_002), "reading {reading}: {:?}", network.get());
    }
}

#[test]
fn a_longer_route_is_seen_before_the_kernel_forgets_the_one_before() {
    let mut network = NetworkRtt::default();
    let mut longer = 0;
    for reading in 0..100 {
        let rtt_us = if reading < 20 { 100 } else { 10_000 } + reading % 7;
        network.confirmed(reading * 100_000, rtt_us + 500);
        let latency_us = rtt_us as f64 + 800.0;
        longer += u32::from(set(
            &mut network,
            reading * 100_000,
            rtt_beside(100, rtt_us),
            8.0,
            latency_us,
        ));
    }
    assert_eq!(longer, 1);
    assert!(network.get() >= Some(10_000));
    // Nothing is as quick as that by mistake.
    for reading in 100..130 {
        assert!(!late(&mut network, reading));
    }
    assert!(network.get() <= Some(1_200), "{:?}", network.get());
}

#[test]
fn a_longer_route_is_seen_behind_a_machine_that_acknowledges_late() {
    let mut network = NetworkRtt::default();
    let mut longer = 0;
    for reading in 0..60 {
        // The window grows beside the busy machine, and then the route is longer.
        let (rtt_us, window) =
            if reading < 30 { (2_500, 8 * (1 + reading)) } else { (10_000, 200) };
        network.confirmed(reading * 100_000, rtt_us + 2_000);
        let rtt_us = rtt_us + reading % 7;
        let latency_us = rtt_us as f64 + 4_000.0;
        longer += u32::from(set(
            &mut network,
            reading * 100_000,
            rtt_beside(50, rtt_us),
            window as f64,
            latency_us,
        ));
    }
    assert_eq!(longer, 1);
    assert!(network.get() >= Some(10_000));
}

#[test]
fn a_link_is_full_while_its_queue_is_most_of_the_wait_and_ten_seconds_longer() {
    let mut network = NetworkRtt::default();
    let mut read = |reading: u64, rtt_us, latency_us| {
        set(&mut network, reading * 100_000, rtt(rtt_us + reading % 2), 8.0, latency_us);
        network.is_full()
    };
    assert!(!(0..10).any(|reading| read(reading, 33_000, 34_000.0)));
    // The broker's queue, whatever its kernel adds before it acknowledges.
    assert!(!(10..20).any(|reading| read(reading, 60_000, 200_000.0)));
    assert!((20..30).any(|reading| read(reading, 130_000, 140_000.0)));
    assert!((30..100).all(|reading| read(reading, 33_000, 34_000.0)));
    assert!(!read(140, 33_000, 34_000.0));
}

#[test]
fn bytes_that_are_not_sent_show_a_full_link_unless_it_is_one_machine() {
    for (rtt_us, full) in [(33_000, true), (100, false)] {
        let mut network = NetworkRtt::default();
        set(&mut network, 0, rtt(rtt_us), 8.0, 0.0);
        assert!(!network.is_full());
        let reading = KernelReading { unsent_bytes: 10_000, ..KernelReading::of(rtt_us + 1) };
        set(&mut network, 100_000, Some(reading), 8.0, rtt_us as f64);
        assert_eq!(network.is_full(), full);
        assert_eq!((network.take_unsent(), network.take_unsent()), (10_000, 0));
    }
}

#[test]
fn a_longer_route_is_seen_behind_what_tcp_holds_back() {
    let longer_with = |unsent: &dyn Fn(u64) -> u64| {
        let mut network = NetworkRtt::default();
        let mut read = |reading: u64| {
            let now_us = reading * 100_000;
            let (rtt_us, latency_us) = if reading < 30 { (1_500, 6_000) } else { (10_700, 26_000) };
            (0..10).for_each(|confirm| network.confirmed(now_us, latency_us - 500 * confirm));
            let unsent_bytes = if reading < 30 { 0 } else { unsent(reading) };
            let told = KernelReading { unsent_bytes, ..KernelReading::of(rtt_us + reading % 7) };
            set(&mut network, now_us, Some(told), 1_200.0, latency_us as f64)
        };
        (0..60).filter(|&reading| read(reading)).count()
    };
    assert_eq!(longer_with(&|_| 0), 0, "it may be the broker's queue");
    assert_eq!(longer_with(&|reading| if reading % 4 == 0 { 0 } else { 100_000 }), 1);
    assert_eq!(longer_with(&|reading| if reading % 4 == 0 { 100_000 } else { 0 }), 0);
}

#[test]
fn a_queue_that_goes_again_is_no_longer_route() {
    let mut network = NetworkRtt::default();
    for reading in 0..100 {
        let queue_us = if reading % 20 < LONGER_READINGS as u64 { 50_000 } else { 0 };
        set(&mut network, reading * 100_000, rtt(10_000 + reading), 8.0, 0.0);
        assert!(!set(&mut network, reading * 100_000, rtt(10_000 + reading + queue_us), 8.0, 0.0));
    }
}

#[test]
fn a_value_that_stands_still_is_not_believed_until_it_moves() {
    let mut network = NetworkRtt::default();
    for _ in 0..=FROZEN_READINGS {
        set(&mut network, 0, rtt(50), 8.0, 0.0);
    }
    assert_eq!(network.get(), None);
    set(&mut network, 0, rtt(51), 8.0, 0.0);
    assert!(network.get().is_some());
}

#[test]
fn none_and_zero_forget_what_was() {
    for nothing in [None, rtt(0)] {
        let mut network = NetworkRtt::default();
        set(&mut network, 0, rtt(50), 8.0, 0.0);
        set(&mut network, 0, nothing, 8.0, 0.0);
        assert_eq!(network.get(), None);
    }
}

/// Takes so many readings in, of a peer whose confirms take a fifth longer: how often the route became longer.
fn read(
    network: &mut NetworkRtt,
    readings: std::ops::Range<u64>,
    rtt_us: u64,
    window: f64,
) -> usize {
    let mut longer = |reading: &u64| {
        let told = rtt(rtt_us + reading % 7);
        set(network, reading * 100_000, told, window, 1.2 * rtt_us as f64)
    };
    readings.filter(|reading| longer(reading)).count()
}

#[test]
fn a_longer_route_that_another_connection_refutes_is_not_believed_again_soon() {
    let refuted = || {
        let mut network = NetworkRtt::default();
        assert_eq!(read(&mut network, 0..30, 10_000, 8.0), 0);
        assert_eq!(read(&mut network, 30..60, 40_000, 8.0), 1);
        assert!(network.get() >= Some(40_000));
        assert!(!network.refute(6_000_000, 25_000, 6_000_000), "it is no shorter than that");
        assert!(network.get() >= Some(40_000));
        assert!(network.refute(6_000_000, 10_500, 6_000_000));
        assert!(network.get() <= Some(12_100), "{:?}", network.get());
        network
    };
    let mut network = refuted();
    assert_eq!(read(&mut network, 60..120, 40_000, 8.0), 0);
    assert!(network.get() <= Some(12_100), "{:?}", network.get());
    assert!(!network.refute(12_000_000, 10_500, 1), "nothing is believed");
    assert_eq!(read(&mut network, 121..140, 40_000, 8.0), 1, "it may be another one by now");
    assert_eq!(read(&mut refuted(), 60..80, 90_000, 8.0), 1, "twice as much was not refuted");
}

#[test]
fn a_refuted_route_is_believed_again_after_a_minute_however_long_nobody_looks() {
    let mut network = NetworkRtt::default();
    assert_eq!(read(&mut network, 0..30, 10_000, 8.0), 0);
    assert_eq!(read(&mut network, 30..60, 40_000, 8.0), 1);
    assert!(network.refute(6_000_000, 10_500, 600_000_000));
    assert_eq!(read(&mut network, 60..659, 10_000, 8.0), 0);
    assert_eq!(read(&mut network, 660..700, 40_000, 8.0), 1);
}

proptest! {
    #[test]
    fn what_is_refuted_leaves_no_trace_but_the_other_connection_s_word(
        (route_us, times, window) in (2_000..50_000u64, 3..20u64, 1.0..1_000.0f64),
        (new_percent, rest_readings) in (100..140u64, 1..100u64),
    ) {
        let mut network = NetworkRtt::default();
        read(&mut network, 0..30, route_us, window);
        let calm_window = network.calm_window;
        let new_us = route_us * new_percent / 100;
        prop_assert!(!network.refute(3_000_000, new_us, 0));
        let longer = read(&mut network, 30..60, times * route_us, window);
        prop_assert_eq!(longer, 1);
        prop_assert!(network.refute(6_000_000, new_us, rest_readings * 100_000));
        let believed_us = network.get().unwrap();
        prop_assert!((new_us..=(new_us + 1_000).max(new_us * 115 / 100)).contains(&believed_us));
        prop_assert_eq!(network.calm_window, calm_window);
        let again = read(&mut network, 60..60 + rest_readings, times * route_us, window);
        prop_assert_eq!(again, 0);
    }
}

/// Of a publisher whose readings rise from 33 to 160 ms when it is so far, and stay there; how often a longer route is told.
fn risen(at: u64, unsent_bytes: u64, window: f64, known: Known) -> usize {
    let mut network = NetworkRtt::default();
    let mut longer = |reading: &u64| {
        let rtt_us = if *reading < at { 33_000 } else { 160_000 };
        let told = KernelReading { unsent_bytes, ..KernelReading::of(rtt_us + reading % 7) };
        network.set(reading * 100_000, Some(told), window, 1.1 * rtt_us as f64, known)
    };
    (0..100).filter(|reading| longer(reading)).count()
}

#[test]
fn before_a_narrow_link_that_was_full_a_longer_round_trip_is_a_queue() {
    let narrow = Known { narrow: true, ..UNKNOWN };
    assert_eq!(risen(50, 1, 4.0, UNKNOWN), 1, "it carries much");
    assert_eq!(risen(50, 0, 4.0, narrow), 1, "it was not full");
    assert_eq!(risen(50, 1, 4.0, narrow), 0);
    assert_eq!(risen(50, 1, 1.0, narrow), 0, "it may be that of others");
    assert_eq!(risen(50, 1, 1.0, Known { alone: true, ..narrow }), 1, "there is nobody else");
}

#[test]
fn who_has_only_begun_takes_a_longer_round_trip_for_a_queue() {
    let narrow = Known { narrow: true, ..UNKNOWN };
    assert_eq!(risen(4, 0, 4.0, narrow), 0);
    assert_eq!(risen(SETTLED_READINGS as u64, 0, 4.0, narrow), 1);
}

#[test]
fn a_link_is_full_where_the_broker_cannot_take_so_long() {
    let full_after = |broker_most_us| {
        let mut network = NetworkRtt::default();
        let mut full = |reading: &u64| {
            let rtt_us = 33_000 + (reading * 30_000).min(90_000);
            let known = Known { broker_most_us, ..UNKNOWN };
            network.set(reading * 100_000, rtt(rtt_us), 8.0, 600_000.0, known);
            network.is_full()
        };
        (0..50).find(|reading| full(reading))
    };
    assert_eq!(full_after(f64::INFINITY), None, "it may be the broker");
    assert_eq!(full_after(28_000.0), Some(STANDING_READINGS as u64));
}
