//! Whether the right cause is named: set-ups that are bad on purpose, and what their messages' marks look like.

use forebay_flow::explain::{
    Cause, DETOURS, Detour, Explanation, MARKS, Mark, Marks, Pauses, Settings,
};
use proptest::prelude::*;

/// Times between the marks of a healthy message, all known: window, socket, way, disk, queue, way, buffer, handler,
/// batch, batch handler, acknowledgement.
const HEALTHY_US: [u64; 11] = [5, 10, 200, 900, 50, 200, 20, 1_000, 300, 700, 100];

/// A message whose wait for `mark` is `us` and that is healthy otherwise, without those marks.
fn waiting(mark: Mark, us: u64, without: &[Mark]) -> Marks {
    let mut at_us = 1_000_000;
    let mut marks = Marks::new().with(Mark::Offered, at_us);
    for (step_us, &passed) in HEALTHY_US.into_iter().zip(&MARKS[1..]) {
        at_us += if passed == mark { us } else { step_us };
        if !without.contains(&passed) {
            marks.passed(passed, at_us);
        }
    }
    marks
}

const UNBATCHED: [Mark; 2] = [Mark::Begun, Mark::Done];
/// What a broker does not stamp that is not ours.
const FOREIGN: [Mark; 3] = [Mark::Received, Mark::Stored, Mark::Sent];

fn explain(mark: Mark, us: u64, without: &[Mark], settings: Settings) -> Cause {
    let mut explanation = Explanation::new();
    for message in 0..100 {
        explanation.add(&waiting(mark, us + message, without));
    }
    let sum: u64 = explanation.shares().iter().map(|share| share.sum_us).sum();
    assert_eq!(sum, explanation.total_us());
    explanation.cause(&settings).expect("there are messages")
}

fn settings(change: impl FnOnce(&mut Settings)) -> Settings {
    let mut settings = Settings::default();
    change(&mut settings);
    settings
}

#[test]
fn a_window_that_was_set_by_hand_is_known_by_its_messages_and_blamed_for_its_own_waits_only() {
    let cause = |fixed_us: u64| {
        let mut explanation = Explanation::new();
        explanation.add(&waiting(Mark::Admitted, fixed_us, &UNBATCHED).with_window(10));
        explanation.add(&waiting(Mark::Admitted, fixed_us + 1, &UNBATCHED).with_window(7));
        explanation.add(&waiting(Mark::Admitted, 50_000, &UNBATCHED));
        explanation.cause(&Settings::default()).expect("there are messages")
    };
    assert_eq!(cause(40_000), Cause::WindowFixed { window_messages: 7 }, "it waited longest");
    assert_eq!(cause(10_000), Cause::BrokerFull, "the one that tunes itself has more to tell");
}

#[test]
fn fourteen_bad_set_ups_are_known_by_their_marks() {
    let batches = |settings: &mut Settings| {
        (settings.batch_messages, settings.batch_delay_us) = (Some(100), Some(50_000));
    };
    let second = 1_000_000;
    // A window of one message on a long link.
    let window = settings(|settings| settings.window_messages = Some(1));
    assert_eq!(
        explain(Mark::Admitted, second, &UNBATCHED, window),
        Cause::WindowFixed { window_messages: 1 }
    );
    // More is published than the broker takes.
    assert_eq!(explain(Mark::Admitted, second, &UNBATCHED, Settings::default()), Cause::BrokerFull);
    // A link of a few kilobits.
    assert_eq!(explain(Mark::Written, second, &UNBATCHED, Settings::default()), Cause::SocketFull);
    // A broker on the other side of the world.
    let away = explain(Mark::Received, 150_000, &UNBATCHED, Settings::default());
    assert_eq!(away, Cause::WayToBroker);
    // A disk that syncs for 300 ms.
    assert_eq!(explain(Mark::Stored, 300_000, &UNBATCHED, Settings::default()), Cause::Disk);
    // 25 workers, prefetch 1.
    let few = settings(|settings| (settings.workers, settings.prefetch) = (Some(25), Some(1)));
    let below = Cause::PrefetchBelowWorkers { prefetch: 1, workers: 25 };
    assert_eq!(explain(Mark::Sent, second, &UNBATCHED, few), below);
    // The same on a broker that stamps nothing.
    let without = [&UNBATCHED[..], &FOREIGN[..]].concat();
    assert_eq!(explain(Mark::Sent, second, &without, few), below);
    // Two workers for work that needs ten.
    let slow = settings(|settings| settings.workers = Some(2));
    let busy = Cause::WorkersBusy { workers: Some(2), handler_us: 1_000 };
    assert_eq!(explain(Mark::Sent, second, &UNBATCHED, slow), busy);
    // Nobody consumes for a while.
    let nobody = [&UNBATCHED[..], &[Mark::Handled, Mark::Taken]].concat();
    assert_eq!(explain(Mark::Sent, second, &nobody, Settings::default()), Cause::Queue);
    // 25 workers, one job at a time: the others are in the buffer of a busy one.
    let hoard = settings(|settings| (settings.workers, settings.prefetch) = (Some(4), Some(250)));
    let hoards = Cause::PrefetchHoards { prefetch: 250, workers: Some(4) };
    assert_eq!(explain(Mark::Taken, second, &UNBATCHED, hoard), hoards);
    // A handler that computes on the runtime's only thread.
    assert_eq!(explain(Mark::Taken, second, &UNBATCHED, slow), Cause::WorkersBehind);
    // A batch of 100 with a prefetch of 50.
    let starved = settings(|settings| {
        batches(settings);
        settings.prefetch = Some(50);
    });
    let never = Cause::PrefetchBelowBatch { prefetch: 50, batch_messages: 100 };
    assert_eq!(explain(Mark::Begun, 45_000, &[], starved), never);
    // A batch of 100 for ten messages a second.
    let idle = Cause::BatchNeverFull { batch_delay_us: 50_000 };
    assert_eq!(explain(Mark::Begun, 30_000, &[], settings(batches)), idle);
    // One batch at a time, of 400 ms each.
    let mut explanation = Explanation::new();
    let begun = waiting(Mark::Begun, 500_000, &[]);
    let done = begun.at_us(Mark::Begun).unwrap() + 400_000;
    explanation.add(&begun.with(Mark::Done, done).with(Mark::Settled, done + 100));
    let busy = Cause::BatchWorkersBusy { batch_us: 400_000 };
    assert_eq!(explanation.cause(&settings(batches)), Some(busy));
    // Acknowledgements on a connection that is blocked because it publishes.
    assert_eq!(explain(Mark::Settled, second, &UNBATCHED, Settings::default()), Cause::AckDelayed);
}

#[test]
fn work_that_is_slow_by_itself_is_no_wait() {
    let handler = explain(Mark::Handled, 700_000, &UNBATCHED, Settings::default());
    assert_eq!(handler, Cause::Handler { handler_us: 700_049 });
    let batch = explain(Mark::Done, 700_000, &[], Settings::default());
    assert_eq!(batch, Cause::BatchHandler { batch_us: 700_049 });
    assert!(handler.to_string().contains("700049 us a message"), "{handler}");
}

#[test]
fn a_consumer_that_came_late_is_no_reason_for_what_is_slow_beside_the_queue() {
    // Sixty of the seventy milliseconds in the queue passed before anybody consumed it.
    let mut explanation = Explanation::since(60_000);
    let marks = Marks::new().with(Mark::Received, 0).with(Mark::Sent, 70_000);
    explanation.add(&marks.with(Mark::Delivered, 150_000));
    assert_eq!(explanation.cause(&Settings::default()), Some(Cause::WayToConsumer));
    let mut explanation = Explanation::since(60_000);
    explanation.add(&marks.with(Mark::Delivered, 75_000));
    assert_eq!(explanation.cause(&Settings::default()), Some(Cause::NoConsumer));
}

#[test]
fn what_waits_in_a_consumer_for_its_rate_is_not_blamed_on_workers_who_are_idle() {
    let second = 1_000_000;
    let of = |rate_per_s, prefetch, mark| {
        let set = settings(|settings| {
            (settings.workers, settings.prefetch) = (Some(4), prefetch);
            settings.rate_per_s = Some(rate_per_s);
        });
        explain(mark, second, &UNBATCHED, set)
    };
    // A millisecond each: four workers do 4000 in a second.
    for prefetch in [None, Some(4), Some(250)] {
        assert_eq!(of(10, prefetch, Mark::Taken), Cause::RateLimited { rate_per_s: 10 });
    }
    let hoards = Cause::PrefetchHoards { prefetch: 250, workers: Some(4) };
    assert_eq!(of(5_000, Some(250), Mark::Taken), hoards, "they could not do as many");
}

/// Handlers that only hand to batches of a hundred, which take 400 ms: what waits before them waits for those.
#[test]
fn what_waits_for_workers_whose_batches_are_behind_is_blamed_on_the_batches() {
    let of = |waits: Mark, handler_us: u64, begun_us: u64, change: fn(&mut Settings)| {
        let mut at_us = 0;
        let mut marks = Marks::new().with(Mark::Received, 0);
        for (mark, us) in [
            (Mark::Sent, 100),
            (Mark::Delivered, 100),
            (Mark::Taken, 100),
            (Mark::Handled, handler_us),
            (Mark::Begun, begun_us),
            (Mark::Done, 400_000),
        ] {
            at_us += if mark == waits { 9_000_000 } else { us };
            marks.passed(mark, at_us);
        }
        let mut explanation = Explanation::new();
        explanation.add(&marks);
        let set = settings(|settings| {
            (settings.workers, settings.batch_workers) = (Some(4), Some(1));
            (settings.batch_messages, settings.batch_delay_us) = (Some(100), Some(50_000));
            change(settings);
        });
        explanation.cause(&set).expect("there is a message")
    };
    let behind = Cause::BatchWorkersBusy { batch_us: 400_000 };
    for waits in [Mark::Sent, Mark::Taken] {
        assert_eq!(of(waits, 3, 2_000_000, |_| {}), behind, "{waits:?}");
        // The same with a rate and an order that let more through than the batches.
        let limits = |settings: &mut Settings| {
            (settings.rate_per_s, settings.ordered) = (Some(1_000), true);
        };
        assert_eq!(of(waits, 3, 2_000_000, limits), behind, "{waits:?}");
    }
    // A batch waits for its time and no longer: somebody is free to take it.
    assert_eq!(of(Mark::Sent, 3, 50_000, |_| {}).name(), "workers-busy");
    // 4 ms of a batch for each message, and 5 ms of the workers; less where there are two batches at a time.
    assert_eq!(of(Mark::Sent, 20_000, 2_000_000, |_| {}).name(), "workers-busy");
    assert_eq!(of(Mark::Sent, 12_000, 2_000_000, |_| {}), behind);
    let two = |settings: &mut Settings| settings.batch_workers = Some(2);
    assert_eq!(of(Mark::Sent, 12_000, 2_000_000, two).name(), "workers-busy");
}

/// A message that waits in its queue for a second and in its consumer for another, and is healthy otherwise.
fn held(detours: &[(Detour, u64)], queue_breaker_us: u64, batched: bool) -> Marks {
    let second = 1_000_000;
    let mut marks = Marks::new().with(Mark::Received, 0).with(Mark::Sent, second);
    marks = marks.with(Mark::Delivered, second + 200).with(Mark::Taken, 2 * second + 200);
    let mut at_us = 2 * second + 1_200;
    marks.passed(Mark::Handled, at_us);
    if batched {
        at_us += second + 700;
        marks = marks.with(Mark::Begun, at_us - 700).with(Mark::Done, at_us);
    }
    marks.passed(Mark::Settled, at_us + 100);
    detours.iter().for_each(|(detour, us)| marks.detoured(*detour, *us));
    marks.queued_behind_breaker(queue_breaker_us);
    marks
}

#[test]
fn what_a_message_did_beside_waiting_is_blamed_and_not_whoever_it_would_have_waited_for() {
    let all = settings(|settings| {
        (settings.workers, settings.prefetch, settings.ordered) = (Some(4), Some(250), true);
        settings.retries = Some(Pauses { count: 5, first_us: 500_000, max_us: 60_000_000 });
        settings.breaker = Some(Pauses { count: 10, first_us: 400_000, max_us: 9_000_000 });
        settings.timeout_us = Some(900_000);
    });
    let cause = |marks: Marks| {
        let mut explanation = Explanation::new();
        explanation.add(&marks);
        explanation.cause(&all).expect("there is a message")
    };
    let (retries, breaker) = (all.retries, all.breaker);
    let mostly = 990_000;
    // Twice a pause of a half, in its consumer: not the key, not the prefetch.
    let mut waits = held(&[], 300_000, false);
    assert_eq!(cause(waits), Cause::KeyBusy);
    waits.detoured(Detour::Pauses, mostly / 2);
    waits.detoured(Detour::Pauses, mostly / 2);
    let pause = cause(waits);
    assert_eq!(pause, Cause::RetryPause { pause_us: mostly, retries });
    assert!(pause.to_string().contains("retries is set to 5, after 500000 us"), "{pause}");
    let asked = Cause::RetryPause { pause_us: mostly, retries: None };
    assert!(asked.to_string().contains("Outcome::Retry"), "{asked}");
    // An attempt that fails late.
    let late = cause(held(&[(Detour::Attempts, mostly)], 300_000, false));
    assert_eq!(late, Cause::EarlierAttempts { attempts_us: mostly, timeout_us: Some(900_000) });
    assert!(late.to_string().contains("timeout of 900000 us"), "{late}");
    // A breaker that is open while some lie here and others there: together it is the most.
    let open = cause(held(&[(Detour::Breaker, 600_000)], 600_000, false));
    assert_eq!(open, Cause::BreakerOpen { open_us: 1_200_000, breaker });
    assert!(open.to_string().contains("after 10 failures in a row nothing begins for 400000 us"));
    // A batch that was tried again.
    let first = [(Detour::Attempts, 600_000), (Detour::BatchPauses, mostly)];
    let batch = held(&first, 600_000, true);
    assert_eq!(cause(batch), Cause::RetryPause { pause_us: mostly, retries });
    let batch = held(&[(Detour::Pauses, 500_000), (Detour::BatchAttempts, mostly)], 600_000, true);
    assert_eq!(cause(batch).name(), "earlier-attempts");
    // What became of it is further on in a chain: not the acknowledgement's fault.
    let mut chained = held(&[], 0, false);
    chained = chained.with(Mark::Settled, chained.at_us(Mark::Handled).unwrap() + 5_000_000);
    assert_eq!(cause(chained), Cause::AckDelayed);
    chained.detoured(Detour::Next, 4_900_000);
    assert_eq!(cause(chained), Cause::NextPipeline { next_us: 4_900_000 });
}

#[test]
fn detours_are_segments_in_the_order_of_the_way() {
    let mut explanation = Explanation::new();
    explanation.add(&held(&[(Detour::Breaker, 1), (Detour::Pauses, 400_000)], 600_000, false));
    let text = explanation.to_string();
    let names: Vec<&str> =
        text.lines().skip(1).filter_map(|line| line.rsplit("  ").next()).collect();
    let expected = [
        "queue",
        "open circuit breaker",
        "way to the consumer",
        "consumer's buffer",
        "pauses before retries",
        "handler",
        "acknowledgement",
    ];
    assert_eq!(names, expected, "{text}");
    let sums: Vec<u64> = explanation.shares().iter().map(|share| share.sum_us).collect();
    assert_eq!(sums, [400_000, 600_001, 200, 599_999, 400_000, 1_000, 100]);
}

#[test]
fn a_segment_goes_by_what_it_spans() {
    let without = [&UNBATCHED[..], &FOREIGN[..]].concat();
    let names: Vec<String> =
        waiting(Mark::Offered, 0, &without).segments().map(|(segment, _)| segment.name()).collect();
    assert_eq!(
        names,
        [
            "publisher's window",
            "publisher's socket",
            "way to the broker to way to the consumer",
            "consumer's buffer",
            "handler",
            "acknowledgement"
        ]
    );
}

#[test]
fn it_is_read_as_a_table() {
    let mut explanation = Explanation::new();
    for end_us in [3_000_000, 5_000_000] {
        let marks = Marks::new().with(Mark::Delivered, 1_000).with(Mark::Taken, 2_500);
        explanation.add(&marks.with(Mark::Handled, end_us));
    }
    assert_eq!(
        explanation.to_string().lines().collect::<Vec<_>>(),
        [
            "2 messages, 4.00 s each from end to end",
            "    0.0 %    1.5 ms, at most   1.5 ms  consumer's buffer",
            "  100.0 %    4.00 s, at most   5.00 s  handler",
        ]
    );
}

#[test]
fn few_messages_are_told_as_they_are() {
    let mut explanation = Explanation::new();
    assert_eq!(explanation.to_string(), "no message was marked");
    explanation.add(&Marks::new().with(Mark::Taken, 5).with(Mark::Handled, 25));
    let text = explanation.to_string();
    assert!(text.starts_with("1 message, 20 us from end to end\n"), "{text}");
}

#[test]
fn without_messages_there_is_nothing_to_explain() {
    let mut explanation = Explanation::new();
    assert_eq!((explanation.largest(), explanation.cause(&Settings::default())), (None, None));
    explanation.add(&Marks::new().with(Mark::Taken, 5));
    assert_eq!(
        (explanation.messages(), explanation.total_us(), explanation.largest()),
        (1, 0, None)
    );
}

#[test]
fn clocks_that_disagree_are_told_and_cost_nothing_twice() {
    let marks = Marks::new()
        .with(Mark::Written, 1_000)
        .with(Mark::Received, 400)
        .with(Mark::Stored, 900)
        .with(Mark::Delivered, 2_000);
    assert_eq!((marks.skew_us(), marks.total_us()), (600, 1_000));
    let times: Vec<u64> = marks.segments().map(|(_, us)| us).collect();
    assert_eq!(times, [0, 0, 1_000]);
}

proptest! {
    #[test]
    fn segments_add_up_whatever_is_known_and_whatever_clocks_say(
        messages in prop::collection::vec(
            prop::collection::vec(prop::option::of(0..1_000_000_000_u64), MARKS.len()), 1..20),
        detours in prop::collection::vec((0..DETOURS.len(), 0..2_000_000_000_u64), 0..10),
        queue_breaker_us in prop_oneof![Just(0), 0..2_000_000_000_u64],
    ) {
        let mut explanation = Explanation::new();
        for stamps in messages {
            let mut marks = Marks::new();
            for (mark, at_us) in MARKS.into_iter().zip(stamps) {
                if let Some(at_us) = at_us {
                    marks.passed(mark, at_us);
                }
            }
            let undisturbed = marks;
            for (detour, us) in &detours {
                marks.detoured(DETOURS[*detour], *us);
            }
            marks.queued_behind_breaker(queue_breaker_us);
            let sum: u64 = marks.segments().map(|(_, us)| us).sum();
            prop_assert_eq!(sum, marks.total_us());
            prop_assert_eq!(marks.total_us(), undisturbed.total_us(), "a detour is a part of it");
            let segments: Vec<_> = marks.segments().collect();
            for (segment, us) in undisturbed.segments() {
                let left = segments.iter().filter(|(other, _)| *other == segment);
                prop_assert!(left.map(|(_, us)| *us).sum::<u64>() <= us, "taken out of {segment:?}");
            }
            let mut told: Vec<_> = segments.iter().map(|(segment, _)| *segment).collect();
            told.sort_unstable();
            told.dedup();
            prop_assert_eq!(told.len(), segments.len(), "each is told once");
            explanation.add(&marks);
        }
        let sum: u64 = explanation.shares().iter().map(|share| share.sum_us).sum();
        prop_assert_eq!(sum, explanation.total_us());
    }
}
