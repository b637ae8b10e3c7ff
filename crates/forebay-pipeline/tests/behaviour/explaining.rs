//! Pipelines that tell where the time went, in virtual time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::virtual_time::in_virtual_time;
use forebay_pipeline::explain::{Cause, Detour, Explanation, Mark, Marks, Segment};
use forebay_pipeline::{
    Backoff, Batch, Breaker, Control, Explaining, Item, Pipeline, ToBatch, Verdict, source,
};
use tokio::time::sleep;

const MS: Duration = Duration::from_millis(1);

/// Mean milliseconds of the wait for `mark`.
fn mean_ms(explanation: &Explanation, mark: Mark) -> u64 {
    let wait = |segment: Segment| segment.to == mark && segment.detour.is_none();
    let share = explanation.shares().iter().find(|share| wait(share.segment));
    share.map_or(0, |share| share.sum_us / share.messages / 1_000)
}

/// Milliseconds of all messages together.
fn detour_ms(explanation: &Explanation, detour: Detour) -> u64 {
    let share = explanation.shares().iter().find(|share| share.segment.detour == Some(detour));
    share.map_or(0, |share| share.sum_us / 1_000)
}

/// What was explained at the end; its segments add up.
fn added_up(control: &Control) -> Explanation {
    let explanation = control.explanation().expect("it was asked for");
    let sum: u64 = explanation.shares().iter().map(|share| share.sum_us).sum();
    assert_eq!(sum, explanation.total_us());
    explanation
}

/// Where nobody waits for another, handlers are all there is.
#[test]
fn one_in_so_many_is_marked_and_its_segments_add_up() {
    in_virtual_time(async {
        let running = Pipeline::from(source::iter(0..1_000_u32))
            .process(4, async |_: Item<u32>| sleep(10 * MS).await)
            .explain(100, |_| Marks::new())
            .start();
        let control = running.control();
        running.join().await.unwrap();
        let explanation = control.explanation().unwrap();
        assert_eq!(explanation.messages(), 10);
        assert_eq!(explanation.total_us() / 10_000, 10);
        assert_eq!(mean_ms(&explanation, Mark::Handled), 10);
        let sum: u64 = explanation.shares().iter().map(|share| share.sum_us).sum();
        assert_eq!(sum, explanation.total_us());
        let cause = control.cause().unwrap();
        assert!(matches!(cause, Cause::Handler { handler_us: 9_000..=12_000 }), "{cause:?}");
    });
}

#[test]
fn a_hot_key_is_seen_as_a_wait_for_its_turn() {
    in_virtual_time(async {
        let running = Pipeline::from(source::iter(0..50_u32))
            .process(4, async |_: Item<u32>| sleep(10 * MS).await)
            .ordered_by(|_| ())
            .explain(1, |_| Marks::new())
            .start();
        let control = running.control();
        running.join().await.unwrap();
        let explanation = control.explanation().unwrap();
        assert!(mean_ms(&explanation, Mark::Taken) > 20, "{explanation:?}");
        assert_eq!(explanation.largest().unwrap().segment.to, Mark::Taken);
    });
}

/// Its pauses are not its key's fault.
#[test]
fn pauses_before_retries_and_the_attempts_before_them_are_told_apart_from_waiting() {
    in_virtual_time(async {
        let running = Pipeline::from(source::iter(0..1_u32))
            .process(1, async |message: Item<u32>| {
                sleep(10 * MS).await;
                if message.attempt() < 3 { Err("not yet") } else { Ok(()) }
            })
            .ordered_by(|_| ())
            .retries(Backoff::new(5, 400 * MS, 400 * MS))
            .explain(1, |_| Marks::new())
            .start();
        let control = running.control();
        running.join().await.unwrap();
        let explanation = added_up(&control);
        assert_eq!(detour_ms(&explanation, Detour::Attempts) / 10, 2);
        assert!((400..=800).contains(&detour_ms(&explanation, Detour::Pauses)), "{explanation}");
        assert!(mean_ms(&explanation, Mark::Taken) <= 2, "{explanation}");
        assert_eq!(mean_ms(&explanation, Mark::Handled), 10);
        assert_eq!(control.cause().unwrap().name(), "retry-pause");
        let drawn = explanation.timeline("jobs").text(60);
        assert!(drawn.contains("▒ retries, breaker"), "{drawn}");
    });
}

/// Open for 1 s and for 2 s; pauses that end meanwhile are a part of that, and count as pauses.
#[test]
fn what_an_open_breaker_holds_back_is_told_as_that() {
    in_virtual_time(async {
        let running = Pipeline::from(source::iter(0..1_u32))
            .process(
                1,
                async |message: Item<u32>| {
                    if message.attempt() < 3 { Err("not yet") } else { Ok(()) }
                },
            )
            .retries(Backoff::new(5, 100 * MS, 100 * MS))
            .breaker(Breaker::new(1, 1_000 * MS, 2_000 * MS))
            .explain(1, |_| Marks::new())
            .start();
        let control = running.control();
        running.join().await.unwrap();
        let explanation = added_up(&control);
        let pauses_ms = detour_ms(&explanation, Detour::Pauses);
        let open_ms = detour_ms(&explanation, Detour::Breaker);
        assert!((100..=200).contains(&pauses_ms), "{explanation}");
        assert!((2_990..=3_000).contains(&(pauses_ms + open_ms)), "{explanation}");
        let cause = control.cause().unwrap();
        assert_eq!(cause.name(), "breaker-open");
        assert!(cause.to_string().contains("nothing begins for 1000000 us"), "{cause}");
    });
}

#[test]
fn a_batch_that_is_tried_again_pauses_and_does_not_wait_to_be_full() {
    in_virtual_time(async {
        let running = Pipeline::from(source::iter(0..10_u32))
            .process(4, async |_: Item<u32>| ToBatch::new(()))
            .retries(Backoff::new(5, 600 * MS, 600 * MS))
            .timeout(50 * MS)
            .explain(1, |_| Marks::new())
            .batch("rows", 10, 500 * MS, async |batch: Item<Batch<()>>| {
                // The first attempt takes too long, the second fails.
                sleep(if batch.attempt() == 1 { 1_000 * MS } else { 20 * MS }).await;
                if batch.attempt() < 3 { Err("not yet") } else { Ok(()) }
            })
            .start();
        let control = running.control();
        running.join().await.unwrap();
        let explanation = added_up(&control);
        assert_eq!(explanation.messages(), 10);
        assert_eq!(detour_ms(&explanation, Detour::BatchAttempts) / 100, 7, "{explanation}");
        let pauses_ms = detour_ms(&explanation, Detour::BatchPauses);
        assert!((6_000..=12_000).contains(&pauses_ms), "{explanation}");
        assert_eq!(mean_ms(&explanation, Mark::Done), 20, "of the last one");
        assert_eq!(control.cause().unwrap().name(), "retry-pause");
    });
}

#[test]
fn a_batch_that_is_never_full_is_named() {
    in_virtual_time(async {
        let (messages, source) = source::test();
        let running = Pipeline::from(source)
            .process(4, async |_: Item<u32>| ToBatch::new(()))
            .explain(1, |_| Marks::new())
            .batch("rows", 1_000, 500 * MS, async |_: Item<Batch<()>>| sleep(5 * MS).await)
            .start();
        for number in 0..200 {
            drop(messages.send(number));
            sleep(20 * MS).await;
        }
        running.control().drain(1_000 * MS);
        let control = running.control();
        running.join().await.unwrap();
        let explanation = control.explanation().unwrap();
        assert_eq!(explanation.messages(), 200);
        assert_eq!(mean_ms(&explanation, Mark::Done), 5);
        assert_eq!(control.cause(), Some(Cause::BatchNeverFull { batch_delay_us: 500_000 }));
    });
}

/// One message in ten comes with marks: the others say less, and nothing where these are.
#[test]
fn messages_that_their_publisher_marked_are_those_that_are_explained() {
    in_virtual_time(async {
        let marks = |number: &u32| {
            let marked = number.is_multiple_of(10);
            if marked { Marks::new().with(Mark::Offered, 1_000_000) } else { Marks::new() }
        };
        let running = Pipeline::from(source::iter(1..=50_u32))
            .process(4, async |_: Item<u32>| sleep(10 * MS).await)
            .explain(2, marks)
            .start();
        let control = running.control();
        running.join().await.unwrap();
        let explanation = control.explanation().unwrap();
        assert_eq!(explanation.messages(), 5);
        let way = explanation.largest().unwrap().segment;
        assert_eq!((way.from, way.to), (Mark::Offered, Mark::Delivered));
    });
}

#[test]
fn single_messages_have_names_and_workers() {
    in_virtual_time(async {
        let told = Arc::new(Mutex::new(Vec::new()));
        let tell = told.clone();
        let how = Explaining::new(1, |_: &u64| Marks::new())
            .named(|number| number.is_multiple_of(2).then(|| format!("job {number}")))
            .each(move |journey| tell.lock().unwrap().push(journey.name.clone()));
        let running = Pipeline::from(source::iter(1..=4_u64))
            .process(2, async |number: Item<u64>| sleep(10 * MS * *number as u32).await)
            .explain_by(how)
            .start();
        let control = running.control();
        running.join().await.unwrap();
        assert_eq!(*told.lock().unwrap(), ["message 1", "job 2", "message 3", "job 4"]);
        let explanation = control.explanation().unwrap();
        let slowest = explanation.slowest().iter().map(|journey| (&*journey.name, journey.worker));
        // Whoever is done with the short ones takes the next.
        let expected = [("job 4", 2), ("message 3", 1), ("job 2", 2), ("message 1", 1)];
        assert!(slowest.eq(expected.map(|(name, worker)| (name, Some(worker)))), "{explanation:?}");
        let drawn = explanation.timeline("jobs").text(60);
        assert!(drawn.contains("worker  2, job 4"), "{drawn}");
    });
}

#[tokio::test]
async fn a_message_is_settled_though_whoever_is_told_of_it_panics() {
    let (messages, source) = source::test();
    let how = Explaining::new(1, |_: &u64| Marks::new()).each(|_| panic!("no space left"));
    let running = Pipeline::from(source).process(1, async |_: Item<u64>| {}).explain_by(how);
    let running = running.start();
    for number in 1..=2 {
        assert_eq!(messages.send(number).await, Verdict::Ack);
    }
    assert_eq!(running.control().explanation().unwrap().messages(), 2);
}

#[tokio::test]
async fn what_was_not_asked_for_is_not_there() {
    let running = Pipeline::from(source::iter(0..3)).process(1, async |_: Item<u32>| {}).start();
    let control = running.control();
    running.join().await.unwrap();
    assert!(control.explanation().is_none());
}
