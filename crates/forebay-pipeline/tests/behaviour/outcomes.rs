//! Attempts, dead letters, time limits and rates, in virtual time.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::virtual_time::in_virtual_time;
use forebay_pipeline::{
    Backoff, Batch, Breaker, Item, Outcome, Pipeline, Running, ToBatch, Verdict, source,
};
use tokio::time::{Instant, sleep};

const SECOND: Duration = Duration::from_secs(1);

type Log = Arc<Mutex<Vec<String>>>;
type Unsent =
    Box<dyn Fn(Item<u32>, String) -> std::future::Ready<Result<(), &'static str>> + Send + Sync>;

fn take(log: &Log) -> Vec<String> {
    std::mem::take(&mut log.lock().unwrap())
}

/// Dead letters that are noted, with their reasons.
fn noting(
    log: &Log,
) -> impl Fn(Item<u32>, String) -> std::future::Ready<Result<(), String>> + use<> {
    let log = log.clone();
    move |item, reason| {
        log.lock().unwrap().push(format!("{}: {reason}", *item));
        std::future::ready(Ok(()))
    }
}

#[test]
fn a_failed_message_is_tried_again_after_pauses_that_grow() {
    in_virtual_time(async {
        let (messages, source) = source::test();
        let handler = async |item: Item<u32>| match item.attempt() {
            attempt if attempt < *item => Err("not yet"),
            _ => Ok(()),
        };
        let running = Pipeline::from(source)
            .process(1, handler)
            .retries(Backoff::new(3, SECOND, 60 * SECOND))
            .on_failure(Outcome::Requeue)
            .start();
        let begun = Instant::now();
        assert_eq!(messages.send(3).await, Verdict::Ack);
        let paused = begun.elapsed();
        assert!(paused >= 3 * SECOND / 2 && paused <= 4 * SECOND, "{paused:?}");
        assert_eq!(messages.send(5).await, Verdict::Requeue, "the fourth attempt was its last");
        let report = running.control().report();
        assert_eq!((report.failed, report.retried), (2 + 4, 2 + 3));
    });
}

#[test]
fn a_message_that_waits_for_its_next_attempt_holds_up_its_key_and_nobody_else() {
    in_virtual_time(async {
        let log = Log::default();
        let (messages, source) = source::test();
        let note = log.clone();
        let handler = move |item: Item<(&'static str, u32)>| {
            let first = item.0 == "a" && item.1 == 1 && item.attempt() == 1;
            if !first {
                note.lock().unwrap().push(format!("{}{}", item.0, item.1));
            }
            std::future::ready(if first { Outcome::Retry(10 * SECOND) } else { Outcome::Ack })
        };
        let _running = Pipeline::from(source).process(1, handler).ordered_by(|item| item.0).start();
        let begun = Instant::now();
        let (first, second) = (messages.send(("a", 1)), messages.send(("a", 2)));
        assert_eq!(messages.send(("b", 1)).await, Verdict::Ack);
        assert_eq!(begun.elapsed(), Duration::ZERO);
        assert_eq!(first.await, Verdict::Ack);
        assert_eq!(begun.elapsed().as_secs(), 10);
        assert_eq!(second.await, Verdict::Ack);
        assert_eq!(take(&log), ["b1", "a1", "a2"]);
    });
}

#[test]
fn where_too_many_wait_for_an_attempt_workers_wait_with_their_messages() {
    in_virtual_time(async {
        let handler = async |item: Item<u32>| {
            sleep(Duration::from_millis(1)).await; // so that both workers have one
            if item.attempt() == 1 { Outcome::Retry(10 * SECOND) } else { Outcome::Ack }
        };
        let pipeline = Pipeline::from(source::iter(0..6)).process(2, handler).buffer_max(1);
        let running = pipeline.start();
        sleep(SECOND).await;
        let report = running.control().report();
        assert_eq!((report.taken, report.retried), (2, 2));
        assert_eq!(running.join().await.unwrap().acked, 6);
    });
}

#[test]
fn dead_letters_are_sent_with_their_reason_and_then_acknowledged() {
    in_virtual_time(async {
        let log = Log::default();
        let (messages, source) = source::test();
        let handler = async |item: Item<u32>| match *item {
            0 => Ok(Outcome::DeadLetter),
            1 => Err("it is odd"),
            _ => panic!("no more"),
        };
        let running = Pipeline::from(source)
            .process(2, handler)
            .retries(Backoff::new(1, SECOND, SECOND))
            .on_failure(Outcome::DeadLetter)
            .dead_letters(noting(&log))
            .start();
        for number in 0..3 {
            assert_eq!(messages.send(number).await, Verdict::Ack);
        }
        assert_eq!(
            take(&log),
            ["0: its handler said so", "1: it is odd", "2: it panicked: no more"]
        );
        assert_eq!(running.control().report().dead_lettered, 3);
    });
}

#[tokio::test]
async fn a_dead_letter_that_cannot_be_sent_goes_back_and_without_a_place_it_is_rejected() {
    let handler = async |_: Item<u32>| Outcome::DeadLetter;
    let (messages, source) = source::test();
    let send = async |_: Item<u32>, _: String| Err("the other queue is gone");
    let _running = Pipeline::from(source).process(1, handler).dead_letters(send).start();
    assert_eq!(messages.send(1).await, Verdict::Requeue);
    let (messages, source) = source::test();
    let _running = Pipeline::from(source).process(1, handler).start();
    assert_eq!(messages.send(1).await, Verdict::Reject);
}

/// Dead letters cannot be sent for ten minutes.
async fn comes_again_after_pauses(
    start: impl FnOnce(source::Iter<std::ops::Range<u32>>, Unsent) -> Running,
) {
    let down = Arc::new(AtomicBool::new(true));
    let is_down = down.clone();
    let send: Unsent = Box::new(move |_, _| {
        let down = is_down.load(Ordering::Relaxed);
        std::future::ready(if down { Err("the other queue is gone") } else { Ok(()) })
    });
    let running = start(source::iter(0..5_000), send);
    let control = running.control();
    sleep(SECOND / 2).await;
    let report = control.report();
    assert!((10..=13).contains(&report.requeued), "ten, and who was at work: {report:?}");
    sleep(10 * 60 * SECOND).await;
    let report = control.report();
    assert!(report.requeued < 60, "a pause of a minute at last: {report:?}");
    down.store(false, Ordering::Relaxed);
    let begun = Instant::now();
    let report = running.join().await.unwrap();
    assert_eq!(report.dead_lettered, 5_000 - report.requeued);
    assert!(begun.elapsed() <= 60 * SECOND, "then it goes on");
}

#[test]
fn dead_letters_that_cannot_be_sent_do_not_spin() {
    let failing = async |_: Item<u32>| Err::<Outcome, _>("it is odd");
    let said = async |_: Item<u32>| Outcome::DeadLetter;
    in_virtual_time(async {
        comes_again_after_pauses(|source, send| {
            Pipeline::from(source).process(4, failing).dead_letters(send).start()
        })
        .await;
        comes_again_after_pauses(|source, send| {
            let process = Pipeline::from(source).process(4, said).dead_letters(send);
            process.on_failure(Outcome::Reject).start()
        })
        .await;
        comes_again_after_pauses(|source, send| {
            Pipeline::from(source)
                .process(4, async |number: Item<u32>| ToBatch::new(*number))
                .dead_letters(send)
                .batch("rows", 1, SECOND, async |_: Item<Batch<u32>>| Err::<(), _>("it is odd"))
                .start()
        })
        .await;
    });
}

#[test]
fn only_dead_letters_that_could_not_be_sent_in_a_row_make_a_pause() {
    in_virtual_time(async {
        let (messages, source) = source::test();
        let send =
            async |item: Item<u32>, _: String| if *item == 0 { Err("it is full") } else { Ok(()) };
        let running = Pipeline::from(source)
            .process(1, async |_: Item<u32>| Err::<(), _>("it is odd"))
            .dead_letters(send)
            .start();
        let control = running.control();
        for _ in 0..9 {
            assert_eq!(messages.send(0).await, Verdict::Requeue);
        }
        assert_eq!(messages.send(1).await, Verdict::Ack);
        for number in 0..10 {
            assert!(control.may_begin(), "{number} in a row");
            assert_eq!(messages.send(0).await, Verdict::Requeue);
        }
        assert!(!control.may_begin());
    });
}

#[tokio::test]
async fn what_fails_goes_to_the_dead_letters_unless_it_is_said_otherwise() {
    let log = Log::default();
    let handler = async |_: Item<u32>| Err::<(), _>("it is odd");
    let (messages, source) = source::test();
    let running = Pipeline::from(source).process(1, handler).dead_letters(noting(&log)).start();
    assert_eq!(messages.send(1).await, Verdict::Ack);
    assert_eq!(take(&log), ["1: it is odd"]);
    assert_eq!(running.control().report().dead_lettered, 1);
    let (messages, source) = source::test();
    let pipeline = Pipeline::from(source).process(1, handler).dead_letters(noting(&log));
    let running = pipeline.on_failure(Outcome::Requeue).start();
    for number in 0..10 {
        assert_eq!(messages.send(number).await, Verdict::Requeue);
    }
    assert!(running.control().may_begin(), "without a pause, as it was asked for");
}

#[test]
fn what_nobody_decided_goes_back_and_does_not_spin() {
    in_virtual_time(async {
        let down = Arc::new(AtomicBool::new(true));
        let is_down = down.clone();
        let handler = move |_: Item<u32>| {
            let down = is_down.load(Ordering::Relaxed);
            std::future::ready(if down { Err("the database is down") } else { Ok(()) })
        };
        let running = Pipeline::from(source::iter(0..5_000)).process(4, handler).start();
        let control = running.control();
        sleep(SECOND / 2).await;
        let report = control.report();
        assert!((10..=13).contains(&report.failed), "ten, and who was at work: {report:?}");
        sleep(10 * 60 * SECOND).await;
        let report = control.report();
        assert!(report.failed < 60, "a pause of a minute at last: {report:?}");
        assert_eq!(report.requeued, report.failed);
        down.store(false, Ordering::Relaxed);
        let report = running.join().await.unwrap();
        assert_eq!(report.acked, 5_000 - report.failed, "then it goes on");
    });
}

#[test]
fn who_decided_nothing_gets_a_pause_after_ten_last_attempts_in_vain() {
    in_virtual_time(async {
        let (messages, source) = source::test();
        let running = Pipeline::from(source)
            .process(1, async |_: Item<u32>| Err::<(), _>("the database is down"))
            .retries(Backoff::new(1, SECOND, SECOND))
            .start();
        let control = running.control();
        for number in 0..10 {
            assert!(control.may_begin(), "{number} have failed");
            assert_eq!(messages.send(number).await, Verdict::Requeue);
        }
        assert!(!control.may_begin(), "the first attempts between were no successes");
        assert_eq!(messages.send(10).await, Verdict::Requeue);
        sleep(SECOND * 3 / 2).await;
        assert!(!control.may_begin(), "now for two seconds");
    });
}

#[test]
fn what_a_handler_puts_off_is_no_success_for_the_breaker_of_who_decided_nothing() {
    for again in [Outcome::Retry(1_000 * SECOND), Outcome::Requeue] {
        in_virtual_time(async {
            let (messages, source) = source::test();
            let handler = move |work_ms: Item<u32>| async move {
                sleep(Duration::from_millis((*work_ms).into())).await;
                if *work_ms == 0 { Err("the database is down") } else { Ok(again) }
            };
            let running = Pipeline::from(source).process(2, handler).start();
            let control = running.control();
            for _ in 0..9 {
                assert_eq!(messages.send(0).await, Verdict::Requeue);
            }
            let _put_off = messages.send(1);
            sleep(SECOND).await;
            let _at_work = messages.send(500);
            sleep(SECOND / 10).await;
            assert_eq!(messages.send(0).await, Verdict::Requeue);
            assert!(!control.may_begin(), "the tenth in a row");
            sleep(SECOND * 3 / 4).await;
            assert!(!control.may_begin(), "nor does the one that was at work end the pause");
        });
    }
}

#[test]
fn an_attempt_that_takes_too_long_has_failed() {
    in_virtual_time(async {
        let (messages, source) = source::test();
        let handler = |item: Item<u32>| sleep(*item * SECOND);
        let running = Pipeline::from(source).process(2, handler).timeout(10 * SECOND).start();
        let begun = Instant::now();
        assert_eq!(messages.send(9).await, Verdict::Ack);
        assert_eq!(messages.send(1_000).await, Verdict::Requeue);
        assert_eq!(begun.elapsed().as_secs(), 19);
        let report = running.control().report();
        assert_eq!((report.failed, report.timed_out), (1, 1));
    });
}

#[test]
fn a_rate_is_kept_without_hoarding_and_changes_at_once() {
    in_virtual_time(async {
        let handler = async |_: Item<u32>| {};
        let running =
            Pipeline::from(source::iter(0..10_000)).process(25, handler).rate_limit(100).start();
        let control = running.control();
        for second in 1..=5 {
            sleep(SECOND).await;
            let report = control.report();
            let most = 10 + 100 * second;
            assert!(report.acked <= most && report.acked + 3 >= most, "{} of {most}", report.acked);
            assert_eq!(report.taken, report.acked, "what may not start stays in the source");
        }
        control.set_rate(Some(1_000));
        let before = control.report().acked;
        sleep(SECOND).await;
        let more = control.report().acked - before;
        assert!((1_000..=1_100).contains(&more), "{more}");
        control.set_rate(None);
        let begun = Instant::now();
        assert_eq!(running.join().await.unwrap().acked, 10_000);
        assert_eq!(begun.elapsed(), Duration::ZERO);
    });
}

#[test]
fn a_rate_that_is_set_again_and_again_is_no_higher_for_that() {
    in_virtual_time(async {
        let handler = async |_: Item<u32>| {};
        let running =
            Pipeline::from(source::iter(0..10_000)).process(25, handler).rate_limit(1_000).start();
        let control = running.control();
        for _ in 0..20 {
            sleep(SECOND / 20).await;
            control.set_rate(Some(1_000));
        }
        let acked = control.report().acked;
        assert!((1_000..=1_110).contains(&acked), "{acked}");
        control.drain(Duration::ZERO);
        let _ = running.join().await;
    });
}

#[test]
fn a_failed_batch_is_tried_again_and_buried_one_by_one() {
    in_virtual_time(async {
        let log = Log::default();
        let (messages, source) = source::test();
        let handler = async |batch: Item<Batch<u32>>| -> Result<(), String> {
            if batch.attempt() == 1 {
                batch.settle(0, Verdict::Ack);
            }
            Err(format!("attempt {}", batch.attempt()))
        };
        let running = Pipeline::from(source)
            .process(1, async |item: Item<u32>| ToBatch::new(*item))
            .retries(Backoff::new(2, SECOND, SECOND))
            .on_failure(Outcome::DeadLetter)
            .dead_letters(noting(&log))
            .batch("b", 3, SECOND, handler)
            .start();
        let sent = [1, 2, 3].map(|number| messages.send(number));
        for sent in sent {
            assert_eq!(sent.await, Verdict::Ack);
        }
        assert_eq!(take(&log), ["2: attempt 3", "3: attempt 3"]);
        let report = running.control().report();
        assert_eq!((report.failed, report.retried, report.dead_lettered), (3, 2, 2));
    });
}

#[test]
fn a_drain_waits_for_attempts_as_long_as_it_may() {
    for (pause, verdict) in [(5, Verdict::Ack), (500, Verdict::Requeue)] {
        in_virtual_time(async {
            let (messages, source) = source::test();
            let handler = move |item: Item<u32>| {
                let again = Outcome::Retry(pause * SECOND);
                std::future::ready(if item.attempt() == 1 { again } else { Outcome::Ack })
            };
            let running = Pipeline::from(source).process(2, handler).start();
            let sent = messages.send(1);
            sleep(SECOND).await;
            let control = running.control(); // which must not keep messages
            control.drain(60 * SECOND);
            running.join().await.unwrap();
            assert_eq!(sent.await, verdict);
        });
    }
}

#[test]
fn when_nothing_succeeds_little_is_begun_and_all_of_it_when_it_does_again() {
    in_virtual_time(async {
        let begun = Arc::new(AtomicU32::new(0));
        let count = begun.clone();
        let started = Instant::now();
        let handler = move |_: Item<u32>| {
            count.fetch_add(1, Ordering::Relaxed);
            let works = started.elapsed() > Duration::from_secs(600);
            std::future::ready(if works { Ok(()) } else { Err("out of order") })
        };
        let breaker = Breaker::new(5, Duration::from_secs(1), Duration::from_secs(60));
        let pipeline = Pipeline::from(source::iter(0..10_000)).process(4, handler);
        let running = pipeline.breaker(breaker).start();
        sleep(Duration::from_secs(599)).await;
        // 5 at first, then up to 4 at 1, 3, 7, 15, 31, 63, 123, ... s.
        let until_then = begun.load(Ordering::Relaxed);
        assert!((15..=70).contains(&until_then), "{until_then}");
        let report = running.join().await.unwrap();
        assert_eq!(report.failed, u64::from(until_then));
        assert_eq!(report.settled(), 10_000);
        assert!(started.elapsed() < Duration::from_secs(700));
    });
}

#[test]
fn who_is_idle_goes_on_when_a_success_closes_the_breaker() {
    in_virtual_time(async {
        const HOUR: Duration = Duration::from_secs(3_600);
        let (messages, source) = source::test();
        let handler = async |item: Item<u32>| {
            sleep(*item * SECOND).await;
            match *item {
                1 => Outcome::Requeue,
                2 => Outcome::DeadLetter,
                _ => Outcome::Ack,
            }
        };
        let running = Pipeline::from(source)
            .process(2, handler)
            .breaker(Breaker::new(1, HOUR, HOUR))
            // Whoever succeeds has no time for others.
            .dead_letters(async |_: Item<u32>, _: String| {
                sleep(HOUR).await;
                Ok::<(), String>(())
            })
            .start();
        let begun = Instant::now();
        let (requeued, _buried) = (messages.send(1), messages.send(2));
        assert_eq!(requeued.await, Verdict::Requeue);
        assert!(!running.control().may_begin());
        assert_eq!(messages.send(0).await, Verdict::Ack);
        assert_eq!(begun.elapsed().as_secs(), 2);
        assert!(running.control().may_begin());
    });
}

#[test]
fn all_who_are_idle_go_on_after_the_breakers_pause_though_a_dead_letter_is_still_being_sent() {
    in_virtual_time(async {
        let (messages, source) = source::test();
        let handler = async |item: Item<u32>| {
            sleep(10 * SECOND).await;
            if *item == 0 { Err("nonsense") } else { Ok(()) }
        };
        let running = Pipeline::from(source)
            .process(3, handler)
            .breaker(Breaker::new(1, SECOND, SECOND))
            .dead_letters(async |_: Item<u32>, _: String| {
                sleep(100 * SECOND).await;
                Ok::<(), String>(())
            })
            .start();
        let _buried = messages.send(0);
        sleep(12 * SECOND).await;
        assert!(running.control().may_begin());
        let begun = Instant::now();
        for sent in [1, 2].map(|number| messages.send(number)) {
            assert_eq!(sent.await, Verdict::Ack);
        }
        assert_eq!(begun.elapsed().as_secs(), 10, "side by side");
    });
}
