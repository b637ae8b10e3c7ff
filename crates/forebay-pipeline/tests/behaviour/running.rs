//! Pipelines at work, in virtual time where time matters.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::convert::Infallible;
use std::fmt;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::virtual_time::in_virtual_time;
use forebay_pipeline::source::{self, TestSource};
use forebay_pipeline::{Item, Outcome, Pipeline, Running, SourceError, Verdict};
use proptest::prelude::*;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use tower::{Service, service_fn};

const MINUTE: Duration = Duration::from_secs(60);

/// Only where something is broken.
const LONGEST: Duration = Duration::from_secs(10);

/// When each of `jobs`, which all arrive at once, would start with nobody idle while one waits.
fn ideal_starts(jobs: &[u64], workers: usize) -> Vec<u64> {
    let mut free: BinaryHeap<Reverse<u64>> = (0..workers).map(|_| Reverse(0)).collect();
    let mut starts = Vec::new();
    for job in jobs {
        let Reverse(start) = free.pop().unwrap();
        starts.push(start);
        free.push(Reverse(start + job));
    }
    starts
}

fn starts(jobs: &[u64], workers: usize) -> Vec<u64> {
    in_virtual_time(async {
        let begun = Instant::now();
        let starts = Arc::new(Mutex::new(vec![None; jobs.len()]));
        let seen = starts.clone();
        let numbered: Vec<(usize, u64)> = jobs.iter().copied().enumerate().collect();
        Pipeline::from(source::iter(numbered))
            .process(workers, move |job: Item<(usize, u64)>| {
                let seen = seen.clone();
                async move {
                    let (number, work_ms) = *job;
                    seen.lock().unwrap()[number] = Some(begun.elapsed().as_millis() as u64);
                    sleep(Duration::from_millis(work_ms)).await;
                }
            })
            .run()
            .await
            .unwrap();
        let starts = starts.lock().unwrap();
        starts.iter().map(|start| start.expect("each message is worked on")).collect()
    })
}

#[test]
fn jobs_that_arrive_together_start_together_if_there_are_workers() {
    assert_eq!(starts(&[20_000; 25], 25), [0; 25]);
    assert_eq!(starts(&[20_000; 26], 25)[25], 20_000);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn nobody_is_idle_while_a_message_waits(
        jobs in prop::collection::vec(prop_oneof![9 => 1..20u64, 1 => 5_000..10_000u64], 1..80),
        workers in 1..10usize,
    ) {
        prop_assert_eq!(starts(&jobs, workers), ideal_starts(&jobs, workers));
    }
}

#[tokio::test]
async fn a_message_sent_late_wakes_a_worker_each_time() {
    let (messages, source) = source::test();
    let _running = Pipeline::from(source).process(3, async |_: Item<u32>| {}).start();
    for number in 0..100 {
        assert_eq!(messages.send(number).await, Verdict::Ack);
    }
}

/// A handler that computes, and ends only when the handler of the next message has begun on another thread.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_keeps_its_thread_holds_up_no_message_that_others_could_take() {
    let (begin, begun) = mpsc::sync_channel(1);
    let (release, released) = mpsc::sync_channel(1);
    let released = Mutex::new(released);
    let handler = move |keeps: Item<bool>| {
        let kept = *keeps && {
            begin.send(()).unwrap();
            released.lock().unwrap().recv_timeout(LONGEST).is_err()
        };
        if !*keeps {
            release.send(()).unwrap();
        }
        ready(if kept { Err("nobody came") } else { Ok(()) })
    };
    let (messages, source) = source::test();
    let _running = Pipeline::from(source).process(4, handler).start();
    for _ in 0..20 {
        let keeps = messages.send(true);
        begun.recv_timeout(LONGEST).unwrap();
        let other = messages.send(false);
        assert_eq!((keeps.await, other.await), (Verdict::Ack, Verdict::Ack));
    }
}

#[test]
fn keys_keep_their_order_while_workers_come_and_go() {
    in_virtual_time(async {
        let seen: Arc<Mutex<HashMap<u64, Vec<u64>>>> = Arc::default();
        let record = seen.clone();
        let running = Pipeline::from(source::iter(0..3_000_u64))
            .process(2, move |number: Item<u64>| {
                let record = record.clone();
                async move {
                    // Late ones of a key are quicker: two at a time would overtake.
                    sleep(Duration::from_millis(1 + (3_000 - *number) % 17)).await;
                    record.lock().unwrap().entry(*number % 60).or_default().push(*number);
                }
            })
            .ordered_by(|number| number % 60)
            .start();
        for concurrency in [50, 5, 50, 1, 30] {
            sleep(Duration::from_millis(20)).await;
            running.control().set_concurrency(concurrency);
        }
        assert_eq!(running.join().await.unwrap().acked, 3_000);
        let seen = seen.lock().unwrap();
        assert_eq!(seen.values().map(Vec::len).sum::<usize>(), 3_000);
        assert!(seen.values().all(|numbers| numbers.is_sorted()));
    });
}

#[tokio::test]
async fn a_failure_is_one_messages_and_nobody_elses() {
    let (messages, source) = source::test();
    let handler = async |text: Item<&'static str>| match *text {
        "panic" => panic!("cannot go on"),
        "error" => Err("cannot be read"),
        "reject" => Ok(Outcome::Reject),
        "requeue" => Ok(Outcome::Requeue),
        _ => Ok(Outcome::Ack),
    };
    let running = Pipeline::from(source).process(2, handler).on_failure(Outcome::Reject).start();
    let sent =
        ["fine", "panic", "error", "reject", "requeue", "fine"].map(|text| messages.send(text));
    let mut verdicts = Vec::new();
    for sent in sent {
        verdicts.push(sent.await);
    }
    use Verdict::{Ack, Reject, Requeue};
    assert_eq!(verdicts, [Ack, Reject, Reject, Reject, Requeue, Ack]);
    drop(messages);
    let report = running.join().await.unwrap();
    assert_eq!((report.taken, report.failed, report.panicked), (6, 2, 1));
    assert_eq!((report.acked, report.rejected, report.requeued), (2, 3, 1));
}

struct Mute;

impl fmt::Display for Mute {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        panic!("nothing to say")
    }
}

/// The message `false` fails, by a panic, and `true` after it is worked on.
async fn false_panics_alone(start: impl FnOnce(TestSource<bool>) -> Running) {
    let (messages, source) = source::test();
    let running = start(source);
    assert_eq!(messages.send(false).await, Verdict::Requeue);
    assert_eq!(messages.send(true).await, Verdict::Ack);
    let report = running.control().report();
    assert_eq!((report.failed, report.panicked), (1, 1));
}

#[tokio::test]
async fn an_error_that_panics_when_it_is_told_is_one_messages_too() {
    let handler = async |fine: Item<bool>| if *fine { Ok(()) } else { Err(Mute) };
    false_panics_alone(|source| Pipeline::from(source).process(1, handler).start()).await;
    let keyed = |fine: &bool| Some(*fine);
    false_panics_alone(|source| {
        Pipeline::from(source).process(1, handler).deduplicate(9, keyed).start()
    })
    .await;
    let service = service_fn(handler);
    false_panics_alone(|source| Pipeline::from(source).process_service(1, service).start()).await;
}

/// A service of which there is no second, the first time.
struct Single {
    asked: Arc<AtomicBool>,
}

impl Clone for Single {
    fn clone(&self) -> Single {
        assert!(self.asked.swap(true, Ordering::SeqCst), "not yet");
        Single { asked: self.asked.clone() }
    }
}

impl Service<Item<bool>> for Single {
    type Response = ();
    type Error = Infallible;
    type Future = Ready<Result<(), Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Item<bool>) -> Self::Future {
        ready(Ok(()))
    }
}

#[tokio::test]
async fn a_service_that_panics_when_it_is_cloned_fails_one_message() {
    let service = Single { asked: Arc::default() };
    false_panics_alone(|source| Pipeline::from(source).process_service(1, service).start()).await;
}

/// Must not be dropped before its time.
struct Unfinished(bool);

impl Drop for Unfinished {
    fn drop(&mut self) {
        assert!(!self.0, "cancelled in the middle");
    }
}

#[test]
fn a_handler_that_panics_when_it_is_cancelled_fails_one_message() {
    in_virtual_time(async {
        let (messages, source) = source::test();
        let handler = async |long: Item<bool>| {
            let mut unfinished = Unfinished(true);
            if *long {
                sleep(2 * MINUTE).await;
            }
            unfinished.0 = false;
        };
        let running = Pipeline::from(source).process(1, handler).timeout(MINUTE).start();
        assert_eq!(messages.send(true).await, Verdict::Requeue);
        assert_eq!(messages.send(false).await, Verdict::Ack);
        let report = running.control().report();
        assert_eq!((report.failed, report.timed_out), (1, 1));
    });
}

#[tokio::test]
async fn what_was_acknowledged_early_stays_so() {
    let (messages, source) = source::test();
    let handler = async |item: Item<()>| -> Result<(), &str> {
        assert!(item.ack_now());
        assert!(!item.ack_now(), "twice");
        Err("too late to matter")
    };
    let _running = Pipeline::from(source).process(1, handler).start();
    assert_eq!(messages.send(()).await, Verdict::Ack);
}

type Never = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A handler that says when it has begun and then waits for ever, and its messages.
fn stuck() -> (Arc<Notify>, impl Fn(Item<u32>) -> Never) {
    let begun = Arc::new(Notify::new());
    let tell = begun.clone();
    let handler = move |_: Item<u32>| -> Never {
        let tell = tell.clone();
        Box::pin(async move {
            tell.notify_one();
            std::future::pending().await
        })
    };
    (begun, handler)
}

#[test]
fn a_drain_takes_no_more_and_finishes_what_it_has() {
    in_virtual_time(async {
        let (messages, source) = source::test();
        let running = Pipeline::from(source)
            .process(2, async |_: Item<u32>| sleep(Duration::from_secs(5)).await)
            .ordered_by(|_| ()) // so that one waits in the buffer
            .start();
        let first = [messages.send(1), messages.send(2)];
        sleep(Duration::from_secs(1)).await;
        running.control().drain(MINUTE);
        let report = running.join().await.unwrap();
        assert_eq!((report.taken, report.acked), (2, 2));
        for sent in first {
            assert_eq!(sent.await, Verdict::Ack);
        }
    });
}

#[test]
fn after_its_deadline_a_drain_gives_back_what_is_not_done() {
    in_virtual_time(async {
        let (messages, source) = source::test();
        let (begun, handler) = stuck();
        let running = Pipeline::from(source).process(2, handler).ordered_by(|_| ()).start();
        let control = running.control(); // which must not keep messages
        let sent = [messages.send(1), messages.send(2), messages.send(3)];
        begun.notified().await;
        control.drain(MINUTE);
        let report = running.join().await.unwrap();
        assert_eq!(report.settled(), 0);
        for sent in sent {
            assert_eq!(sent.await, Verdict::Requeue);
        }
    });
}

#[tokio::test]
async fn a_dropped_pipeline_gives_back_all_it_has() {
    let (messages, source) = source::test();
    let (begun, handler) = stuck();
    let running = Pipeline::from(source).process(2, handler).ordered_by(|_| ()).start();
    let _control = running.control();
    let sent = [messages.send(1), messages.send(2), messages.send(3)];
    begun.notified().await;
    drop(running);
    for sent in sent {
        assert_eq!(sent.await, Verdict::Requeue);
    }
}

#[tokio::test]
async fn lines_are_messages() {
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let record = seen.clone();
    let handler = move |line: Item<String>| {
        let record = record.clone();
        async move { record.lock().unwrap().push(line.to_string()) }
    };
    let text: &[u8] = b"one\r\n\ntwo\nlast";
    let report = Pipeline::from(source::lines(text)).process(1, handler).run().await.unwrap();
    assert_eq!(report.acked, 4);
    assert_eq!(*seen.lock().unwrap(), ["one", "", "two", "last"]);
}

#[tokio::test]
async fn a_source_that_fails_ends_the_pipeline_after_what_it_gave() {
    let text: &[u8] = b"one\n\xff\xff\nthree";
    let seen = Arc::new(Mutex::new(0));
    let count = seen.clone();
    let handler = move |_: Item<String>| {
        *count.lock().unwrap() += 1;
        std::future::ready(())
    };
    let error: SourceError =
        Pipeline::from(source::lines(text)).process(4, handler).run().await.unwrap_err();
    assert_eq!(error.to_string(), "the pipeline's source failed: line 2 is not UTF-8");
    assert_eq!(*seen.lock().unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn threads_share_the_work_and_lose_none() {
    let sum = Arc::new(Mutex::new(0));
    let add = sum.clone();
    let handler = move |number: Item<u64>| {
        let add = add.clone();
        async move {
            tokio::task::yield_now().await;
            *add.lock().unwrap() += *number;
        }
    };
    let pipeline = Pipeline::from(source::iter(0..20_000_u64)).process(16, handler);
    let report = pipeline.ordered_by(|number| number % 7).run().await.unwrap();
    assert_eq!(report.acked, 20_000);
    assert_eq!(*sum.lock().unwrap(), 20_000 * 19_999 / 2);
}
