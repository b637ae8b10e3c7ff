use super::*;
use crate::together::Together;

fn telling(visit_bytes: u64) -> BrokerKind {
    match visit_bytes {
        0 => BrokerKind::Unknown,
        bytes => BrokerKind::FairVisits { bytes },
    }
}

/// What queueing may add with this service time, window and size, without a network between; the broker tells its visits.
fn added_us(service_us: u64, window: f64, size_bytes: f64) -> f64 {
    added_with_us(service_us, window, size_bytes, 65_536)
}

fn added_with_us(service_us: u64, window: f64, size_bytes: f64, visit_bytes: u64) -> f64 {
    let mut target = DelayTarget::new(true, u64::MAX);
    target.set_broker(telling(visit_bytes));
    target.add(0, service_us);
    target.set(service_us as f64, service_us as f64, window, size_bytes);
    target.us() - target.base_us()
}

/// Of twenty that share one queue each would have as much more of it as it has seen less quick a moment.
#[test]
fn before_rabbitmq_all_steer_for_the_same_latency_whatever_was_the_quickest() {
    let target_us = |service_us, window| {
        let mut target = DelayTarget::new(true, u64::MAX);
        target.set_broker(BrokerKind::RabbitMq);
        target.add(0, service_us);
        target.set(10_000.0, 10_000.0, window, 200.0);
        target.us()
    };
    for service_us in [10, 1_000, 4_000] {
        assert!((target_us(service_us, 1.0) - 15_000.0).abs() < 1.0);
        assert!((target_us(service_us, 64.0) - 7_500.0).abs() < 1.0);
    }
    // A slow disk's commits are no queue.
    assert!((target_us(20_000, 16.0) - 30_000.0).abs() < 1.0);
}

/// A publisher that has it carry more than is told, as in the first tenth of a second, goes by what it sees.
#[test]
fn before_a_slow_rabbitmq_messages_may_wait_longer_than_before_a_quick_one() {
    let target_us = |told_per_s: u64, standing_us| {
        let mut target = DelayTarget::new(true, u64::MAX);
        target.set_broker(BrokerKind::RabbitMq);
        target.add(0, 100);
        for second in 0..2 {
            let messages = second * told_per_s;
            target.set_together(second * 1_000_000, Together { messages, least_service_us: None });
        }
        target.set(standing_us, standing_us, 64.0, 0.0);
        target.us()
    };
    assert!((target_us(50_000, 10_000.0) - 8_500.0).abs() < 1.0);
    assert!((target_us(34_000, 10_000.0) - 12_500.0).abs() < 1.0);
    assert!(
        (target_us(10, 1_280.0) - 8_500.0).abs() < 1.0,
        "it carries 50,000 a second of its own"
    );
}

/// Of twenty that share its queue some never see it short.
#[test]
fn what_is_a_queue_is_not_taken_for_the_time_a_rabbitmq_takes() {
    let target_us = |told_per_s: u64| {
        let mut target = DelayTarget::new(true, u64::MAX);
        target.set_broker(BrokerKind::RabbitMq);
        target.add(0, 15_000);
        target.add(SERVICE_BUCKET_US, 50_000);
        for second in 0..2 {
            let messages = second * told_per_s;
            target.set_together(second * 1_000_000, Together { messages, least_service_us: None });
        }
        target.set(60_000.0, 60_000.0, 64.0, 0.0);
        target.us()
    };
    assert!((target_us(34_000) - 18_750.0).abs() < 1.0);
    // Where it carries little it is what the disk takes.
    assert!((target_us(10_000) - 22_500.0).abs() < 1.0);
}

/// A confirm takes two writes of 8 ms there, and no publisher of the process has seen one that took less.
#[test]
fn before_a_rabbitmq_on_a_slow_disk_messages_may_wait_longer() {
    let target_us = |least_service_us| {
        let mut target = DelayTarget::new(true, u64::MAX);
        target.set_broker(BrokerKind::RabbitMq);
        target.add(0, 17_000);
        for messages in [0, 40_000] {
            target.set_together(25 * messages, Together { messages, least_service_us });
        }
        target.set(20_000.0, 20_000.0, 64.0, 0.0);
        (target.base_us(), target.us())
    };
    let about = |(base_us, us): (f64, f64), wanted: (f64, f64)| {
        (base_us - wanted.0).abs() < 1.0 && (us - wanted.1).abs() < 1.0
    };
    assert!(about(target_us(None), (10_625.0, 15_937.5)));
    assert!(about(target_us(Some(2_000)), (10_625.0, 15_937.5)), "another saw a shorter queue");
    assert!(about(target_us(Some(16_000)), (16_000.0, 31_590.7)));
}

#[test]
fn what_a_slow_disk_takes_is_told_and_not_the_luckiest_message() {
    let told_us = |quickest_us: &[u64]| {
        let mut target = DelayTarget::new(true, u64::MAX);
        target.set_broker(BrokerKind::RabbitMq);
        for &us in quickest_us {
            target.add(0, us);
            target.set(us as f64, us as f64, 64.0, 0.0);
        }
        target.service_us()
    };
    assert_eq!(told_us(&[18_000, 18_000, 18_000, 18_000]), Some(18_000));
    assert_eq!(told_us(&[18_000, 18_000, 18_000, 10_000]), Some(17_000));
    assert_eq!(told_us(&[1_800, 1_800, 1_800, 1_000]), Some(1_000));
}

#[test]
fn the_commit_before_ones_own_is_no_queue() {
    // Idle, a message sees one commit; in a steady flow two.
    let commit_us = 30_000;
    assert!(added_us(commit_us, 20_000.0, 0.0) > commit_us as f64);
}

#[test]
fn who_alone_keeps_our_disk_busy_may_have_three_commits_in_flight() {
    let added_us = |window, size_bytes, visit_bytes| {
        let mut target = DelayTarget::new(true, u64::MAX);
        target.set_broker(telling(visit_bytes));
        target.add(0, 10_000);
        target.add(1, 30_000); // the least is of a quiet moment
        target.set(10_000.0, 10_000.0, window, size_bytes);
        target.us() - target.base_us()
    };
    assert!((added_us(10_000.0, 0.0, 65_536) - 30_000.0).abs() < 1.0);
    assert!((added_us(10_000.0, 500.0, 65_536) - 18_750.0).abs() < 1.0);
    for (window, visit_bytes) in [(4_000.0, 65_536), (10_000.0, 0)] {
        assert!((added_us(window, 0.0, visit_bytes) - 12_500.0).abs() < 1.0);
    }
}

/// Told a commit of 8 ms that so many share.
fn sharing(publishers: u32) -> DelayTarget {
    let mut target = DelayTarget::new(true, u64::MAX);
    target.set_broker(telling(65_536));
    target.set_commit(CommitTime { us: 8_000, publishers, ..CommitTime::default() });
    target
}

/// A confirm waits for the commit that runs and for its own, and while that one runs the next fills.
#[test]
fn who_is_told_what_commits_take_may_wait_for_somewhat_more_than_two() {
    for (publishers, size_bytes) in [(1, 200.0), (1, 5_000.0), (20, 200.0), (20, 5_000.0)] {
        let mut target = sharing(publishers);
        target.add(0, 8_000);
        let window = 16e6 / (size_bytes + 200.0) / f64::from(publishers);
        target.set(16_000.0, 16_000.0, window, size_bytes);
        let commits = target.us() / 8_000.0;
        let most = if publishers == 1 { 2.8..=3.1 } else { 2.2..=2.5 };
        assert!(most.contains(&commits), "{publishers} of {size_bytes} B: {commits}");
    }
}

/// Who has most in flight waits for commits that it fills itself.
#[test]
fn those_who_share_a_slow_disk_steer_for_one_latency_whatever_each_has_seen() {
    let us = |least_us, window, size_bytes| {
        let mut target = sharing(20);
        target.add(0, least_us);
        let mean_us = 2.0 * least_us as f64;
        target.set(mean_us, mean_us, window, size_bytes);
        (target.base_us(), target.us() - target.base_us())
    };
    let large = us(16_000, 5_000.0, 500.0);
    for (least_us, window) in [(9_000, 500.0), (16_000, 714.0), (9_000, 714.0), (16_000, 500.0)] {
        let (base_us, added_us) = us(least_us, window, 500.0);
        assert!((base_us - 8_000.0).abs() < 1.0, "{base_us}");
        assert!((11_500.0..=13_500.0).contains(&added_us), "{added_us}");
        assert!(added_us > 1.4 * large.1, "who has more waits for less: {added_us}, {large:?}");
    }
}

/// One alone writes for as long as a commit takes to refill what the last one confirmed; twenty do so in turns.
#[test]
fn of_those_who_share_a_slow_disk_and_do_not_know_the_way_none_waits_as_one_alone_may() {
    let added_us = |publishers| {
        let mut target = DelayTarget::new(false, u64::MAX);
        target.set_broker(telling(65_536));
        target.set_commit(CommitTime { us: 8_000, publishers, ..CommitTime::default() });
        target.add(0, 12_000);
        target.set(24_000.0, 24_000.0, 1_000.0, 200.0);
        target.us() - target.base_us()
    };
    assert!(added_us(1) > 24_000.0, "{}", added_us(1));
    assert!(added_us(20) < 16_000.0, "{}", added_us(20));
}

/// What the way takes is in what each measures, and not in what the broker tells.
#[test]
fn who_does_not_know_the_way_does_not_rely_on_what_the_broker_tells() {
    let mut target = DelayTarget::new(false, u64::MAX);
    target.set_commit(CommitTime { us: 8_000, publishers: 20, ..CommitTime::default() });
    target.add(0, 50_000);
    target.set(50_000.0, 50_000.0, 100.0, 0.0);
    assert!((target.base_us() - 50_000.0).abs() < 1.0, "{}", target.base_us());
}

/// Each would take the others' queue for what there is without.
#[test]
fn of_a_disk_that_is_known_no_queue_is_believed() {
    let base_us = |us| {
        let mut target = DelayTarget::new(true, u64::MAX);
        target.set_commit(CommitTime { us, publishers: 1, ..CommitTime::default() });
        target.add(0, 8_000);
        target.set(8_000.0, 8_000.0, 100.0, 0.0);
        target.add(20_000_000, 50_000); // and for long nothing less
        target.set(50_000.0, 50_000.0, 100.0, 0.0);
        target.base_us()
    };
    assert!((base_us(8_000) - 8_000.0).abs() < 1.0);
    assert!((base_us(0) - 32_500.0).abs() < 1.0);
}

#[test]
fn what_is_on_a_long_way_keeps_the_disk_busy_and_needs_no_commits_in_flight() {
    let added_us = |network_us| {
        let mut target = DelayTarget::new(false, u64::MAX);
        target.set_broker(telling(65_536));
        target.set_network(0, Some(KernelReading::of(network_us)), 0.0, network_us as f64);
        target.add(0, network_us + 10_000);
        target.add(1, network_us + 30_000); // the least is of a quiet moment
        let mean_us = network_us as f64 + 10_000.0;
        target.set(mean_us, mean_us, 30_000.0, 0.0);
        target.us() - target.base_us()
    };
    let distance_us = |network_us: f64| network_us.min(4_000.0) + 0.15 * network_us;
    assert!((added_us(100) - 29_900.0 - distance_us(100.0)).abs() < 1.0);
    assert!((added_us(10_000) - 20_000.0 - distance_us(10_000.0)).abs() < 1.0);
    assert!((added_us(40_000) - 12_500.0 - distance_us(40_000.0)).abs() < 1.0);
}

#[test]
fn a_turn_of_the_scheduler_is_no_distance_and_neither_is_a_way_that_a_slow_broker_outlasts() {
    let is_distant = |network_us, service_us| {
        let mut target = DelayTarget::new(false, u64::MAX);
        target.set_network(0, Some(KernelReading::of(network_us)), 0.0, network_us as f64);
        target.add(0, network_us + service_us);
        target.set((network_us + service_us) as f64, 0.0, 100.0, 200.0);
        target.is_distant()
    };
    assert!(is_distant(10_000, 1_000));
    assert!(!is_distant(1_500, 100) && !is_distant(10_000, 30_000));
}

/// Of 1000 B on a broker that reads 51.2 of them in a visit, and has nothing else to wait for than 0.1 ms.
fn waiting(latency_us: f64, window: f64) -> DelayTarget {
    let mut target = DelayTarget::new(true, u64::MAX);
    target.set_broker(telling(51_200));
    target.add(0, 100);
    target.set(latency_us, latency_us, window, 800.0);
    target
}

#[test]
fn up_to_what_a_visit_takes_the_target_is_the_latency_at_which_the_window_is_as_large() {
    let target_us = |latency_us, window| waiting(latency_us, window).us();
    assert!((target_us(3_000.0, 32.0) - 3_000.0 * 64.0 / 32.0).abs() < 1.0);
    assert!((target_us(6_000.0, 64.0) - 6_000.0).abs() < 1.0);
    assert!(target_us(6_000.0, 128.0) < 6_000.0, "larger than that it is as any other");
    assert!((target_us(90_000.0, 1.0) - 400_100.0).abs() < 1.0, "there is a limit");
    assert!(target_us(200.0, 64.0) > 2_000.0, "and no less than without it");
}

/// Of 200 B, with the base of 0.1 ms and `network_us`, told how many publish.
fn filling(publishers: u32, network_us: u64, latency_us: f64, window: f64) -> DelayTarget {
    let mut target = DelayTarget::new(false, u64::MAX);
    target.set_broker(telling(65_536));
    target.set_commit(CommitTime { us: 0, publishers, ..CommitTime::default() });
    target.set_network(0, Some(KernelReading::of(network_us)), 0.0, latency_us);
    target.add(0, network_us + 100);
    target.set(latency_us, latency_us, window, 200.0);
    target
}

#[test]
fn few_publishers_next_door_keep_as_much_in_flight_as_makes_commits_large() {
    for (publishers, window) in [(1, 3_000.0), (4, 1_324.1), (20, 487.5)] {
        let target = filling(publishers, 50, 5_000.0, window - 1.0);
        assert!(target.us() > 5_000.0, "{publishers}");
        assert!((target.window_max() - window).abs() < 1.0, "{}", target.window_max());
        assert!(filling(publishers, 50, 5_000.0, window + 1.0).us() < 5_000.0, "{publishers}");
    }
}

/// Told such a part, with 4 ms of latency.
fn asked(
    part_permille: u32,
    network_us: u64,
    commit_us: u64,
    window: f64,
    bytes: f64,
) -> DelayTarget {
    let mut target = DelayTarget::new(false, u64::MAX);
    target.set_broker(telling(65_536));
    target.set_commit(CommitTime { us: commit_us, publishers: 20, part_permille });
    target.set_network(0, Some(KernelReading::of(network_us)), 0.0, 4_000.0);
    target.add(0, network_us + 100);
    target.set(4_000.0, 4_000.0, window, bytes);
    target
}

/// Fill, visits and latency: 487.5 messages of 200 B, 37.5 of 5 kB.
#[test]
fn next_door_a_window_has_the_part_in_flight_that_the_broker_asks_for() {
    for part_permille in [700, 1_300] {
        let part = f64::from(part_permille) / 1_000.0;
        let target = asked(part_permille, 50, 0, 100.0, 200.0);
        assert!((target.window_max() - 487.5 * part).abs() < 1.0, "{}", target.window_max());
        let [asked_us, all_us] =
            [part_permille, 1_000].map(|part| asked(part, 50, 0, 500.0, 5_000.0).us());
        assert!((asked_us - part * all_us).abs() < 1.0, "{asked_us} of {all_us}");
    }
    let target = asked(300, 50, 0, 300.0, 200.0);
    assert!(target.us() - target.base_us() >= 299.0, "and never nothing");
    assert_eq!(asked(10, 50, 0, 300.0, 200.0).us(), target.us(), "nor what is no part");
}

#[test]
fn far_away_and_on_a_slow_disk_no_part_is_asked_for() {
    for (network_us, commit_us) in [(2_000, 0), (50, 8_000)] {
        let of = |part| asked(part, network_us, commit_us, 500.0, 5_000.0);
        assert!((of(500).us() - of(1_000).us()).abs() < 1e-9);
        assert!((of(500).part() - 1.0).abs() < 1e-9);
    }
    assert!((asked(500, 50, 0, 500.0, 5_000.0).part() - 0.5).abs() < 1e-9);
}

#[test]
fn what_fills_commits_waits_for_16_ms_at_most_and_only_next_door() {
    let window = 1_500.0;
    let target = filling(1, 50, 60_000.0, window);
    assert!((target.us() - target.base_us() - FILL_MAX_US).abs() < 1.0, "a slow machine");
    assert!(filling(0, 50, 4_000.0, window).us() < 3_000.0, "the broker does not tell");
    // Of 5 kB, where what fills commits is more than the visits that may wait far away.
    let mut target = filling(1, 2_100, 22_000.0, 1_000.0);
    target.set(22_000.0, 22_000.0, 1_000.0, 5_000.0);
    assert!(target.us() < 22_000.0 && target.window_max().is_infinite(), "far away");
}

/// A visit is 163.84 messages: of 4000 messages in 18 ms sixteen are 11.8 ms.
#[test]
fn over_a_distance_sixteen_visits_may_wait_beside_what_is_on_the_way() {
    let added_us = |publishers, network_us, latency_us, window| {
        let target = filling(publishers, network_us, latency_us, window);
        assert!(target.window_max().is_infinite(), "what is on the way has no bound");
        target.us() - target.base_us()
    };
    let us = added_us(20, 10_000, 18_000.0, 4_000.0);
    assert!((us - 18_000.0 * 16.0 * 163.84 / 4_000.0).abs() < 10.0, "{us}");
    for (network_us, most_us) in [(10_000, 20_000.0), (30_000, 24_000.0), (200_000, 30_000.0)] {
        let slow_us = added_us(20, network_us, network_us as f64 + 50_000.0, 600.0);
        assert!((slow_us - most_us).abs() < 1.0, "a slow machine, {network_us} us away: {slow_us}");
    }
    let quick_us = added_us(20, 10_000, 18_000.0, 36_000.0);
    assert!((5_500.0..7_000.0).contains(&quick_us), "no less than without them: {quick_us}");
    let alone_us = added_us(1, 10_000, 18_000.0, 9_000.0);
    assert!((alone_us - 18_000.0 * 35.0 * 163.84 / 9_000.0).abs() < 10.0, "{alone_us}");
    let slow_us = added_us(1, 100_000, 118_000.0, 18_000.0);
    assert!((slow_us - 100.0 - 19_000.0).abs() < 1_000.0, "few never wait for more: {slow_us}");
    let untold_us = added_us(0, 10_000, 18_000.0, 9_000.0);
    assert!((5_500.0..7_000.0).contains(&untold_us), "it may be one of many: {untold_us}");
}

/// A visit may take longer than what fills commits may; who waits like a crowd is one.
#[test]
fn few_publishers_too_may_fill_a_visit_on_a_slow_machine() {
    assert!((filling(1, 50, 30_000.0, 150.0).us() - 30_000.0 * 163.84 / 150.0).abs() < 50.0);
}

#[test]
fn in_a_crowd_a_window_fills_one_visit() {
    let mut target = waiting(7_300.0, 64.0);
    assert!((target.window_max() - 1.25 * 51.2).abs() < 0.1, "51.2 messages would wait for 5.8 ms");
    for latency_us in [7_800.0, 5_000_000.0] {
        target.set(latency_us, latency_us, 64.0, 800.0);
        assert!((target.window_max() - 51.2).abs() < 0.1);
    }
}

#[test]
fn a_member_of_a_crowd_does_not_take_its_queue_for_the_base() {
    let target_us = |commit_us| {
        let mut target = DelayTarget::new(true, u64::MAX);
        target.set_broker(telling(51_200));
        target.add(0, 40_000);
        if commit_us > 0 {
            target.set_commit(CommitTime {
                us: commit_us,
                publishers: 1_000,
                ..CommitTime::default()
            });
        }
        target.set(80_000.0, 80_000.0, 102.4, 800.0);
        target.us()
    };
    assert!((target_us(0) - 40_000.0).abs() < 1.0, "with half of the window");
    assert!(target_us(30_000) > 55_000.0, "of a slow disk it is told");
}

/// On a longer way the kernel's round trip is most of the wait.
#[test]
fn far_away_nobody_is_a_crowd() {
    let mut target = waiting(50_000.0, 32.0);
    assert!(target.crowd.is_known());
    target.set_network(0, Some(KernelReading::of(10_000)), 0.0, 50_000.0);
    target.set(50_000.0, 50_000.0, 32.0, 800.0);
    assert!(!target.crowd.is_known());
}

#[test]
fn a_latency_that_is_good_for_a_visit_only_is_good_for_no_larger_window() {
    assert!(waiting(50_000.0, 32.0).window_max() < 75.0);
    assert!(waiting(500.0, 32.0).window_max().is_infinite(), "nothing waits to speak of");
}

/// Of a publisher of 1 kB behind a link of 33 ms that is full, of which it has so many bytes a second.
fn behind_a_full_link(bytes_per_s: f64) -> DelayTarget {
    of_size(1_000.0, bytes_per_s)
}

fn of_size(size_bytes: f64, bytes_per_s: f64) -> DelayTarget {
    let mut target = DelayTarget::new(false, u64::MAX);
    target.set_broker(telling(65_536));
    target.set_network(0, Some(KernelReading::of(33_000)), 0.0, 33_000.0);
    target.add(0, 34_000);
    target.add(1, 60_000);
    let full = KernelReading { unsent_bytes: 10_000, ..KernelReading::of(33_001) };
    target.set_network(100_000, Some(full), 8.0, 34_000.0);
    let window = 0.1 * bytes_per_s / (size_bytes + OVERHEAD_BYTES);
    target.set(100_000.0, 100_000.0, window, size_bytes);
    target
}

#[test]
fn small_messages_share_the_packets_of_a_narrow_link() {
    let wants = |size_bytes, bytes_per_s| of_size(size_bytes, bytes_per_s).wants_full_packets();
    assert!(wants(200.0, 120_000.0));
    assert!(!wants(200.0, 2_000_000.0), "it carries much");
    assert!(!wants(1_000.0, 120_000.0), "each fills a packet");
}

#[test]
fn behind_a_narrow_link_no_visit_is_worth_waiting_for() {
    assert!(!behind_a_full_link(2_000_000.0).is_narrow());
    assert!(behind_a_full_link(800_000.0).is_narrow());
    // Otherwise the latency at which 68 messages are in flight, 10 of which take 100 ms.
    assert!(behind_a_full_link(120_000.0).us() < 150_000.0);
}

#[test]
fn what_waits_in_the_kernel_for_a_narrow_link_is_too_much() {
    let mut narrow = behind_a_full_link(120_000.0);
    let messages = narrow.too_many().expect("10 kB wait");
    assert!((messages - (10_000.0 - UNSENT_BYTES) / 1_200.0).abs() < 1e-6);
    assert_eq!(narrow.too_many(), None, "until it is read again");
    assert_eq!(behind_a_full_link(2_000_000.0).too_many(), None);
}

#[test]
fn before_a_narrow_link_its_queue_is_no_service_time() {
    let mut target = behind_a_full_link(120_000.0);
    // A start by twenty: no confirm was quicker than their queue, which the kernel sees by and by.
    let us = |target: &mut DelayTarget, rtt_us| {
        for reading in 1..10 {
            let told = KernelReading { unsent_bytes: 1, ..KernelReading::of(rtt_us) };
            target.set_network(reading * 100_000, Some(told), 8.0, 200_000.0);
            target.add(reading * 100_000, 200_000);
        }
        target.service = WindowedMin::new(SERVICE_BUCKET_US);
        target.service_least = f64::INFINITY;
        target.service.add(1_000_000, 150_000);
        target.set(200_000.0, 200_000.0, 20.0, 1_000.0);
        target.base_us()
    };
    assert!(us(&mut target, 190_000) < 50_000.0, "{}", target.base_us());
}

#[test]
fn over_a_distance_a_broker_takes_no_longer_than_it_tells_of_its_publishers() {
    let base_us = |network_us, told: Option<u32>| {
        let mut target = DelayTarget::new(false, u64::MAX);
        target.set_broker(telling(65_536));
        if let Some(publishers) = told {
            target.set_commit(CommitTime { publishers, ..CommitTime::default() });
        }
        target.set_network(0, Some(KernelReading::of(network_us)), 8.0, 200_000.0);
        target.add(0, 200_000);
        target.set(200_000.0, 200_000.0, 8.0, 200.0);
        target.base_us()
    };
    assert!(base_us(33_000, None) > 199_000.0);
    assert!((base_us(33_000, Some(20)) - 61_000.0).abs() < 10.0, "{}", base_us(33_000, Some(20)));
    assert!((base_us(33_000, Some(1)) - 42_000.0).abs() < 10.0);
    let near = (base_us(100, Some(20)), base_us(100, None));
    assert!((near.0 - near.1).abs() < 1.0, "next door it may be busy: {near:?}");
}

#[test]
fn over_a_distance_nobody_waits_longer_than_the_visits_to_all_take() {
    let target_us = |told: Option<u32>| {
        let mut target = DelayTarget::new(false, u64::MAX);
        target.set_broker(telling(65_536));
        if let Some(publishers) = told {
            target.set_commit(CommitTime { publishers, ..CommitTime::default() });
        }
        target.set_network(0, Some(KernelReading::of(33_000)), 8.0, 34_000.0);
        target.add(0, 34_000);
        target.set(900_000.0, 900_000.0, 8.0, 200.0);
        target.us()
    };
    assert!(target_us(None) > 400_000.0);
    assert!(target_us(Some(20)) < 100_000.0);
    assert!(target_us(Some(1_000)) > 400_000.0);
}

#[test]
fn what_the_user_allows_is_the_most() {
    let mut target = DelayTarget::new(true, 500);
    target.add(0, 1_000);
    target.set(9_000.0, 9_000.0, 8.0, 100.0);
    assert!((target.us() - 1_500.0).abs() < 1.0);
}
