//! Pipelines with batches, in virtual time where time matters.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::virtual_time::in_virtual_time;
use forebay_pipeline::{
    Backoff, Batch, Batching, Breaker, Item, Outcome, Pipeline, ToBatch, Verdict, source,
};
use proptest::prelude::*;
use tokio::time::{Instant, sleep};

const MINUTE: Duration = Duration::from_secs(60);

async fn as_it_is(number: Item<u32>) -> ToBatch<u32> {
    ToBatch::new(*number)
}

/// Batches that were seen, and a handler that notes them.
type Seen = Arc<Mutex<Vec<Vec<u32>>>>;

fn noting(seen: &Seen) -> impl Fn(Item<Batch<u32>>) -> std::future::Ready<()> + use<> {
    let seen = seen.clone();
    move |batch| {
        seen.lock().unwrap().push(batch.to_vec());
        std::future::ready(())
    }
}

#[test]
fn a_batch_ends_when_it_is_full_or_its_time_is_up_or_nothing_more_comes() {
    in_virtual_time(async {
        let seen = Seen::default();
        let (messages, source) = source::test();
        let running = Pipeline::from(source)
            .process(4, as_it_is)
            .batch("b", 3, MINUTE, noting(&seen))
            .start();
        let begun = Instant::now();
        let first = [1, 2, 3].map(|number| messages.send(number));
        for sent in first {
            assert_eq!(sent.await, Verdict::Ack);
        }
        assert_eq!(begun.elapsed(), Duration::ZERO, "full");
        assert_eq!(messages.send(4).await, Verdict::Ack);
        assert!(begun.elapsed() >= MINUTE && begun.elapsed() < MINUTE + Duration::from_secs(1));
        let last = messages.send(5);
        drop(messages);
        let report = running.join().await.unwrap();
        assert_eq!((report.taken, report.acked), (5, 5));
        assert_eq!(last.await, Verdict::Ack);
        assert!(begun.elapsed() < 2 * MINUTE, "nothing more could come");
        assert_eq!(*seen.lock().unwrap(), [vec![1, 2, 3], vec![4], vec![5]]);
    });
}

#[tokio::test]
async fn batchers_may_hold_as_many_as_there_are() {
    let seen = Seen::default();
    let without_limit = |name| Batching::new(name, usize::MAX, MINUTE);
    let running = Pipeline::from(source::iter(0..9))
        .process(4, async |number: Item<u32>| ToBatch::named("b", *number))
        .batch_by(without_limit("a").held_max(usize::MAX), noting(&seen))
        .batch_by(without_limit("b"), noting(&seen))
        .start();
    assert_eq!(running.join().await.unwrap().acked, 9);
    assert_eq!(*seen.lock().unwrap(), [Vec::from_iter(0..9)]);
}

#[tokio::test]
async fn keys_bytes_and_the_messages_themselves_end_batches() {
    let seen = Seen::default();
    let batching = Batching::new("b", 100, MINUTE)
        .by_key(|number| number % 2)
        .bytes(10, |number| if *number < 50 { 5 } else { 1 })
        .ends_with(|number| *number == 99);
    let pipeline = Pipeline::from(source::iter([2, 1, 4, 3, 99, 6])).process(1, as_it_is);
    pipeline.batch_by(batching, noting(&seen)).run().await.unwrap();
    assert_eq!(*seen.lock().unwrap(), [vec![2, 4], vec![1, 3], vec![99], vec![6]]);
}

#[tokio::test]
async fn batchers_have_names() {
    let (even, odd) = (Seen::default(), Seen::default());
    let sort = async |number: Item<u32>| match *number {
        0 => ToBatch::named("nowhere", 0),
        number if number % 2 == 0 => ToBatch::named("even", number),
        number => ToBatch::named("odd", number),
    };
    let report = Pipeline::from(source::iter(0..8))
        .process(1, sort)
        .on_failure(Outcome::Reject)
        .batch("even", 10, MINUTE, noting(&even))
        .batch("odd", 2, MINUTE, noting(&odd))
        .run()
        .await
        .unwrap();
    assert_eq!((report.acked, report.failed, report.rejected), (7, 1, 1));
    assert_eq!(*even.lock().unwrap(), [vec![2, 4, 6]]);
    assert_eq!(*odd.lock().unwrap(), [vec![1, 3], vec![5, 7]]);
}

#[tokio::test]
async fn a_failed_batch_fails_those_that_were_not_settled_one_by_one() {
    let (messages, source) = source::test();
    let handler = async |batch: Item<Batch<u32>>| -> Result<(), &str> {
        batch.settle(1, Verdict::Ack);
        batch.settle(2, Verdict::Requeue);
        if batch[0] == 10 {
            panic!("at the worst moment");
        }
        Err("no")
    };
    let running = Pipeline::from(source)
        .process(1, as_it_is)
        .on_failure(Outcome::Reject)
        .batch("b", 4, MINUTE, handler)
        .start();
    for first in [0, 10] {
        let sent = [0, 1, 2, 3].map(|number| messages.send(first + number));
        let mut verdicts = Vec::new();
        for sent in sent {
            verdicts.push(sent.await);
        }
        use Verdict::{Ack, Reject, Requeue};
        assert_eq!(verdicts, [Reject, Ack, Requeue, Reject]);
    }
    drop(messages);
    let report = running.join().await.unwrap();
    assert_eq!((report.failed, report.panicked, report.settled()), (2, 1, 8));
}

/// Fails if one of a batch is bad, and notes all that it was given.
fn refusing(
    seen: Seen,
    bad: impl Fn(u32) -> bool + Send + Sync + 'static,
) -> impl Fn(Item<Batch<u32>>) -> std::future::Ready<Result<(), &'static str>> {
    move |batch| {
        seen.lock().unwrap().push(batch.to_vec());
        let refused = batch.iter().any(|number| bad(*number));
        std::future::ready(if refused { Err("a bad row") } else { Ok(()) })
    }
}

#[test]
fn one_bad_message_among_a_hundred_fails_alone() {
    in_virtual_time(async {
        let (seen, buried) = (Seen::default(), Arc::new(Mutex::new(Vec::new())));
        let grave = buried.clone();
        let report = Pipeline::from(source::iter(0..100))
            .process(4, as_it_is)
            .retries(Backoff::new(2, MINUTE, MINUTE))
            .on_failure(Outcome::DeadLetter)
            .dead_letters(move |number: Item<u32>, reason| {
                grave.lock().unwrap().push((*number, reason));
                std::future::ready(Ok::<(), String>(()))
            })
            .batch_by(
                Batching::new("rows", 100, MINUTE).bisect_failures(),
                refusing(seen.clone(), |number| number == 37),
            )
            .run()
            .await
            .unwrap();
        assert_eq!((report.acked, report.rejected, report.dead_lettered), (100, 0, 1));
        assert_eq!(*buried.lock().unwrap(), [(37, "a bad row".to_owned())]);
        let seen = seen.lock().unwrap();
        let lengths: Vec<usize> = seen.iter().map(Vec::len).collect();
        // Three attempts at the whole; then the half with it, of that, and so on.
        assert_eq!(lengths[..8], [100, 100, 100, 50, 25, 25, 12, 13]);
        assert_eq!((seen.len(), report.failed), (3 + 2 * 6, 3 + 6), "{lengths:?}");
    });
}

#[test]
fn halves_leave_out_what_is_settled_and_a_cancelled_batch_has_halves_too() {
    in_virtual_time(async {
        let seen = Seen::default();
        let told = seen.clone();
        let handler = move |batch: Item<Batch<u32>>| {
            told.lock().unwrap().push(batch.to_vec());
            async move {
                if batch.len() == 8 {
                    (0..4).for_each(|index| assert!(batch.settle(index, Verdict::Ack)));
                    sleep(2 * MINUTE).await; // longer than it may
                }
                if batch[..] == [6, 7] {
                    assert!(batch.settle(0, Verdict::Reject));
                }
                if batch.contains(&6) { Err("a bad row") } else { Ok(()) }
            }
        };
        let report = Pipeline::from(source::iter(0..8))
            .process(1, as_it_is)
            .timeout(MINUTE)
            .batch_by(Batching::new("rows", 8, MINUTE).bisect_failures(), handler)
            .run()
            .await
            .unwrap();
        assert_eq!((report.acked, report.rejected, report.timed_out), (7, 1, 1));
        let expected = [(0..8).collect(), vec![4, 5, 6, 7], vec![4, 5], vec![6, 7], vec![7]];
        assert_eq!(*seen.lock().unwrap(), expected);
    });
}

#[test]
fn a_drain_waits_for_halves_and_a_deadline_gives_them_back() {
    in_virtual_time(async {
        let (messages, source) = source::test();
        let running = Pipeline::from(source)
            .process(1, as_it_is)
            .batch_by(
                Batching::new("rows", 4, MINUTE).bisect_failures(),
                async |batch: Item<Batch<u32>>| {
                    sleep(if batch.len() == 1 { 10 * MINUTE } else { MINUTE }).await;
                    if batch.contains(&1) { Err("a bad row") } else { Ok(()) }
                },
            )
            .start();
        let sent = [0, 1, 2, 3].map(|number| messages.send(number));
        sleep(MINUTE / 2).await;
        // 4 for a minute, the first two for another, then the first alone.
        running.control().drain(5 * MINUTE);
        running.join().await.unwrap();
        for verdict in sent {
            assert_eq!(verdict.await, Verdict::Requeue);
        }
    });
}

proptest! {
    #[test]
    fn whoever_is_not_bad_is_acked_by_a_batch_that_succeeded(
        bad in prop::collection::hash_set(0..60_u32, 0..12),
        messages in 1..60_usize, workers in 1..4_usize, named in any::<bool>(),
    ) {
        let seen = Seen::default();
        let report = in_virtual_time(async {
            let refused = bad.clone();
            let batching = Batching::new("rows", messages, MINUTE).concurrency(workers);
            let batching = if named { batching.by_key(|number| number % 3) } else { batching };
            let handler = refusing(seen.clone(), move |number| refused.contains(&number));
            Pipeline::from(source::iter(0..60))
                .process(4, as_it_is)
                .on_failure(Outcome::Reject)
                .batch_by(batching.bisect_failures(), handler)
                .run()
                .await
                .unwrap()
        });
        prop_assert_eq!(report.rejected, bad.len() as u64);
        prop_assert_eq!(report.acked, 60 - bad.len() as u64);
        let seen = seen.lock().unwrap();
        let well = |batch: &&Vec<u32>| !batch.iter().any(|number| bad.contains(number));
        let mut done: Vec<u32> = seen.iter().filter(well).flatten().copied().collect();
        done.sort_unstable();
        let good: Vec<u32> = (0..60).filter(|number| !bad.contains(number)).collect();
        prop_assert_eq!(done, good, "each once");
    }
}

#[test]
fn handlers_wait_for_slow_batches_and_no_more_is_taken_than_may_be_held() {
    in_virtual_time(async {
        let slow = async |_: Item<Batch<u32>>| sleep(Duration::from_secs(1)).await;
        let batching = Batching::new("b", 10, MINUTE).held_max(20);
        let running = Pipeline::from(source::iter(0..200))
            .process(5, as_it_is)
            .batch_by(batching, slow)
            .start();
        let control = running.control();
        let begun = Instant::now();
        for _ in 0..100 {
            sleep(Duration::from_millis(173)).await;
            let report = control.report();
            let held = report.taken - report.settled();
            assert!(held <= 10 + 20 + 5, "{held} messages are held");
        }
        assert_eq!(running.join().await.unwrap().acked, 200);
        assert_eq!(begun.elapsed().as_secs(), 20, "one batch a second, without a pause");
    });
}

#[test]
fn batches_are_worked_on_side_by_side_and_more_so_when_told() {
    in_virtual_time(async {
        let slow = async |_: Item<Batch<u32>>| sleep(Duration::from_secs(10)).await;
        let batching = Batching::new("b", 1, MINUTE).concurrency(2);
        let running = Pipeline::from(source::iter(0..12))
            .process(20, as_it_is)
            .batch_by(batching, slow)
            .start();
        let begun = Instant::now();
        sleep(Duration::from_secs(5)).await;
        assert!(!running.control().set_batch_concurrency("a", 10));
        assert!(running.control().set_batch_concurrency("b", 10));
        assert_eq!(running.join().await.unwrap().acked, 12);
        assert_eq!(begun.elapsed().as_secs(), 20); // 2, after 5 seconds 8 more, after 10 the last 2
    });
}

/// Batches that were begun when all are to wait for another attempt, with so many workers at the start and now.
fn begun_before_none_may_wait(workers: usize, now: usize) -> usize {
    in_virtual_time(async {
        let seen = Seen::default();
        let note = noting(&seen);
        let handler = move |batch: Item<Batch<u32>>| {
            let noted = note(batch);
            async move {
                noted.await;
                Outcome::Retry(60 * MINUTE)
            }
        };
        let running = Pipeline::from(source::iter(0..20))
            .process(20, as_it_is)
            .batch_by(Batching::new("b", 1, MINUTE).concurrency(workers), handler)
            .start();
        assert!(running.control().set_batch_concurrency("b", now));
        sleep(MINUTE).await;
        seen.lock().unwrap().len()
    })
}

#[test]
fn batches_have_places_to_wait_for_another_attempt_though_their_workers_came_later() {
    let begun = begun_before_none_may_wait(4, 4);
    assert!(begun >= 4, "{begun}");
    assert_eq!(begun_before_none_may_wait(1, 4), begun);
}

#[test]
fn a_batch_that_waits_for_another_attempt_holds_up_no_other() {
    // A place for one of each worker, and one worker who waits with his.
    for (workers, wait) in [(1, 1), (3, 3), (3, 4)] {
        in_virtual_time(async {
            let (messages, source) = source::test();
            let handler = async |batch: Item<Batch<u32>>| {
                let first = batch[0] == 0 && batch.attempt() == 1;
                if first { Outcome::Retry(60 * MINUTE) } else { Outcome::Ack }
            };
            let _running = Pipeline::from(source)
                .process(20, as_it_is)
                .batch_by(Batching::new("b", 1, MINUTE).concurrency(workers), handler)
                .start();
            let begun = Instant::now();
            let first: Vec<_> = (0..wait).map(|_| messages.send(0)).collect();
            for number in 1..10 {
                assert_eq!(messages.send(number).await, Verdict::Ack);
            }
            assert_eq!(begun.elapsed(), Duration::ZERO, "{wait} of {workers}");
            for sent in first {
                assert_eq!(sent.await, Verdict::Ack);
            }
            assert_eq!(begun.elapsed().as_secs(), 3_600);
        });
    }
}

#[test]
fn a_breaker_holds_back_batches_that_fail() {
    in_virtual_time(async {
        let handler = async |_: Item<Batch<u32>>| Err::<(), _>("the database is down");
        let running = Pipeline::from(source::iter(0..1_000))
            .process(4, as_it_is)
            .breaker(Breaker::new(3, MINUTE, MINUTE))
            .on_failure(Outcome::Reject)
            .batch("b", 10, MINUTE, handler)
            .start();
        let control = running.control();
        sleep(MINUTE / 2).await;
        let report = control.report();
        assert_eq!((report.failed, report.rejected), (3, 30));
        assert!(control.may_begin(), "single messages do not fail");
        sleep(MINUTE).await;
        assert_eq!(control.report().failed, 4, "one try, after the pause");
    });
}

#[test]
fn batches_of_who_decided_nothing_get_a_pause_after_ten_last_attempts_in_vain() {
    in_virtual_time(async {
        let second = Duration::from_secs(1);
        let (messages, source) = source::test();
        let _running = Pipeline::from(source)
            .process(1, as_it_is)
            .retries(Backoff::new(1, second, second))
            .batch("b", 1, MINUTE, async |_: Item<Batch<u32>>| Err::<(), _>("it is down"))
            .start();
        let mut begun = Instant::now();
        for number in 0..10 {
            assert_eq!(messages.send(number).await, Verdict::Requeue);
            assert!(begun.elapsed() <= second + second / 100, "only its own pause");
            begun = Instant::now();
        }
        for pause_s in [1, 2] {
            assert_eq!(messages.send(10).await, Verdict::Requeue);
            assert!(begun.elapsed() >= pause_s * second + second / 2, "{:?}", begun.elapsed());
            begun = Instant::now();
        }
    });
}

#[test]
fn one_bad_message_of_a_batch_that_is_bisected_is_one_failure_in_a_row() {
    for breaker in [None, Some(Breaker::new(2, MINUTE, MINUTE))] {
        in_virtual_time(async {
            let (messages, source) = source::test();
            let process = Pipeline::from(source).process(1, as_it_is);
            let process = match breaker {
                Some(breaker) => process.breaker(breaker),
                None => process,
            };
            let batching = Batching::new("rows", 1_024, MINUTE).bisect_failures();
            let refuses = refusing(Seen::default(), |number| number == 0);
            let _running = process.batch_by(batching, refuses).start();
            let begun = Instant::now();
            let sent: Vec<_> = (0..1_024).map(|number| messages.send(number)).collect();
            for (number, sent) in sent.into_iter().enumerate() {
                let verdict = if number == 0 { Verdict::Requeue } else { Verdict::Ack };
                assert_eq!(sent.await, verdict, "{number} {breaker:?}");
            }
            assert_eq!(begun.elapsed(), Duration::ZERO, "eleven calls failed in a row {breaker:?}");
        });
    }
}

#[test]
fn attempts_at_a_batch_before_it_is_bisected_are_failures_for_the_breaker_that_was_set() {
    in_virtual_time(async {
        let running = Pipeline::from(source::iter(0..64))
            .process(1, as_it_is)
            .retries(Backoff::new(3, Duration::ZERO, Duration::ZERO))
            .breaker(Breaker::new(3, MINUTE, MINUTE))
            .batch_by(
                Batching::new("rows", 64, MINUTE).bisect_failures(),
                refusing(Seen::default(), |_| true),
            )
            .start();
        sleep(MINUTE / 2).await;
        assert_eq!(running.control().report().failed, 3);
    });
}

#[test]
fn bad_messages_of_batches_that_are_bisected_are_failures_when_they_are_alone() {
    in_virtual_time(async {
        let running = Pipeline::from(source::iter(0..64))
            .process(1, as_it_is)
            .batch_by(
                Batching::new("rows", 64, MINUTE).bisect_failures(),
                refusing(Seen::default(), |_| true),
            )
            .start();
        sleep(Duration::from_millis(500)).await;
        assert_eq!(running.control().report().requeued, 10);
    });
}

#[test]
fn what_is_sent_to_a_batcher_that_is_not_there_does_not_spin() {
    in_virtual_time(async {
        let running = Pipeline::from(source::iter(0..5_000))
            .process(4, async |number: Item<u32>| ToBatch::named("rwos", *number))
            .batch("rows", 10, MINUTE, async |_: Item<Batch<u32>>| {})
            .start();
        sleep(Duration::from_millis(500)).await;
        let report = running.control().report();
        assert!((10..=13).contains(&report.failed), "ten, and who was at work: {report:?}");
        assert_eq!(report.requeued, report.failed);
    });
}

#[test]
fn a_batch_of_which_all_is_settled_is_not_worked_on_again() {
    for again in [Ok(Outcome::Retry(MINUTE)), Err("the last row was the bad one")] {
        in_virtual_time(async {
            let (messages, source) = source::test();
            let handler = move |batch: Item<Batch<u32>>| {
                assert!((0..batch.len()).all(|index| batch.settle(index, Verdict::Ack)));
                std::future::ready(again)
            };
            let running = Pipeline::from(source)
                .process(2, as_it_is)
                .retries(Backoff::new(3, MINUTE, MINUTE))
                .batch("b", 2, MINUTE, handler)
                .start();
            for sent in [1, 2].map(|number| messages.send(number)) {
                assert_eq!(sent.await, Verdict::Ack);
            }
            drop(messages);
            let begun = Instant::now();
            assert_eq!(running.join().await.unwrap().retried, 0);
            assert_eq!(begun.elapsed(), Duration::ZERO);
        });
    }
}

#[test]
fn a_drain_finishes_open_batches_and_its_deadline_gives_them_back() {
    for (work, verdict) in [(1, Verdict::Ack), (1_000, Verdict::Requeue)] {
        in_virtual_time(async {
            let (messages, source) = source::test();
            let handler = move |_: Item<Batch<u32>>| sleep(Duration::from_secs(work));
            let pipeline = Pipeline::from(source).process(2, as_it_is);
            let running = pipeline.batch("b", 2, 100 * MINUTE, handler).start();
            let sent = [1, 2, 3, 4, 5].map(|number| messages.send(number));
            sleep(Duration::from_millis(10)).await;
            let control = running.control(); // which must not keep messages
            control.drain(MINUTE);
            running.join().await.unwrap();
            for sent in sent {
                assert_eq!(sent.await, verdict);
            }
        });
    }
}

#[tokio::test]
async fn a_dropped_pipeline_gives_back_what_is_in_batches() {
    let (messages, source) = source::test();
    let handler = async |_: Item<Batch<u32>>| {};
    let running =
        Pipeline::from(source).process(2, as_it_is).batch("b", 9, MINUTE, handler).start();
    let control = running.control();
    let sent = messages.send(1);
    while control.report().taken == 0 {
        tokio::task::yield_now().await;
    }
    drop(running);
    assert_eq!(sent.await, Verdict::Requeue);
}
