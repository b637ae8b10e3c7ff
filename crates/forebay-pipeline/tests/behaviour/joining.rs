//! Several sources for one pipeline, and pipelines one after the other.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::virtual_time::in_virtual_time;
use forebay_pipeline::explain::{Cause, Marks};
use forebay_pipeline::{Batch, HandOn, Item, Outcome, Pipeline, ToBatch, Verdict, source};
use tokio::time::{Instant, sleep};

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn workers_are_for_all_sources_together() {
    in_virtual_time(async {
        // Two thousand jobs here, one there: nobody is reserved for the one, and it does not wait for the others.
        let begun = Instant::now();
        let late = Arc::new(Mutex::new(None));
        let note = late.clone();
        let long: Vec<(u32, u64)> = (0..2_000).map(|number| (number, 10)).collect();
        let pipeline =
            Pipeline::from(source::merge([source::iter(long), source::iter(vec![(5_000, 10)])]));
        let report = pipeline
            .process(20, move |job: Item<(u32, u64)>| {
                let note = note.clone();
                async move {
                    if job.0 == 5_000 {
                        *note.lock().unwrap() = Some(begun.elapsed());
                    }
                    sleep(Duration::from_millis(job.1)).await;
                }
            })
            .run()
            .await
            .unwrap();
        assert_eq!(report.acked, 2_001);
        assert_eq!(*late.lock().unwrap(), Some(Duration::ZERO));
        assert_eq!(begun.elapsed(), Duration::from_millis(1_010));
    });
}

#[tokio::test]
async fn a_message_is_settled_at_the_end_of_the_chain() {
    let (messages, source) = source::test();
    let parse = async |text: Item<&'static str>| text.parse::<u32>().map(HandOn);
    let numbers =
        Pipeline::from(source).process(3, parse).on_failure(Outcome::Reject).into_source(1);
    let judge = async |number: Item<u32>| {
        if *number > 9 { Outcome::Requeue } else { Outcome::Ack }
    };
    let _running = Pipeline::from(numbers).process(2, judge).start();
    assert_eq!(messages.send("7").await, Verdict::Ack);
    assert_eq!(messages.send("70").await, Verdict::Requeue);
    assert_eq!(messages.send("seven").await, Verdict::Reject, "by the first pipeline");
}

#[tokio::test]
async fn three_in_a_row_end_one_after_the_other() {
    let double = async |number: Item<u64>| HandOn(*number * 2);
    let first = Pipeline::from(source::iter(0..1_000_u64)).process(4, double).into_source(1);
    let second = Pipeline::from(first).process(4, double).into_source(50);
    let sum = Arc::new(Mutex::new(0));
    let add = sum.clone();
    let report = Pipeline::from(second)
        .process(4, async |number: Item<u64>| ToBatch::new(*number))
        .batch("sum", 30, MINUTE, move |batch: Item<Batch<u64>>| {
            *add.lock().unwrap() += batch.iter().sum::<u64>();
            std::future::ready(())
        })
        .run()
        .await
        .unwrap();
    assert_eq!(report.acked, 1_000);
    assert_eq!(*sum.lock().unwrap(), 4 * 999 * 1_000 / 2);
}

#[tokio::test]
async fn any_number_may_be_between_two() {
    let first =
        Pipeline::from(source::iter(0..9)).process(4, async |number: Item<u32>| HandOn(*number));
    let second = Pipeline::from(first.into_source(usize::MAX)).process(4, async |_: Item<u32>| {});
    assert_eq!(second.run().await.unwrap().acked, 9);
}

/// Each pipeline of a chain is asked and changed while it runs, from the last one.
#[test]
fn the_beginning_of_a_chain_is_known_and_changed_from_its_end() {
    in_virtual_time(async {
        let hand_on = async |number: Item<u64>| HandOn(*number);
        let chain = |numbers: std::ops::Range<u64>| {
            let first = Pipeline::from(source::iter(numbers)).process(3, hand_on).rate_limit(10);
            first.explain(1, |_| Marks::new()).into_source(1)
        };
        let merged = source::merge([chain(0..20), chain(20..40)]);
        let last = Pipeline::from(merged)
            .process(2, async |_: Item<u64>| sleep(MINUTE).await)
            .explain(1, |_| Marks::new())
            .start();
        let control = last.control();
        let upstream = control.upstream();
        assert_eq!(upstream.len(), 2);
        for first in &upstream {
            assert_eq!((first.concurrency(), first.settings().rate_per_s), (3, Some(10)));
            assert!(first.upstream().is_empty());
            first.set_concurrency(1);
            first.set_rate(None);
            assert_eq!((first.concurrency(), first.settings().rate_per_s), (1, None));
        }
        let report = last.join().await.unwrap();
        assert_eq!(report.acked, 40);
        for first in upstream {
            assert_eq!((first.report().taken, first.report().acked), (20, 20));
            // What the end takes is not called the source's slowness to acknowledge.
            let cause = first.cause().unwrap();
            let Cause::NextPipeline { next_us } = cause else { panic!("{cause:?}") };
            assert!(next_us >= 60_000_000, "{cause}");
            let explanation = first.explanation().unwrap();
            let sum: u64 = explanation.shares().iter().map(|share| share.sum_us).sum();
            assert_eq!(sum, explanation.total_us());
        }
        assert_eq!(control.cause().unwrap().name(), "handler");
    });
}

#[test]
fn a_slow_end_holds_back_the_beginning() {
    in_virtual_time(async {
        let (messages, source) = source::test();
        let begun = Arc::new(Mutex::new(0));
        let count = begun.clone();
        let first = Pipeline::from(source)
            .process(4, move |number: Item<u32>| {
                *count.lock().unwrap() += 1;
                std::future::ready(HandOn(*number))
            })
            .into_source(2);
        let handler = async |_: Item<u32>| sleep(MINUTE).await;
        let running = Pipeline::from(first).process(1, handler).start();
        let sent: Vec<_> = (0..50).map(|number| messages.send(number)).collect();
        sleep(Duration::from_secs(30)).await;
        assert_eq!(
            *begun.lock().unwrap(),
            1 + 2 + 4,
            "in work, in the buffer, with those before it"
        );
        running.control().drain(2 * MINUTE);
        assert_eq!(running.join().await.unwrap().acked, 1);
        let mut back = 0;
        for verdict in sent {
            back += u32::from(verdict.await == Verdict::Requeue);
        }
        assert_eq!(back, 49);
    });
}

#[tokio::test]
async fn what_fails_at_the_beginning_is_known_at_the_end() {
    let text: &[u8] = b"1\n\xff\n";
    let first = Pipeline::from(source::lines(text))
        .process(1, async |line: Item<String>| HandOn(line.clone()))
        .into_source(1);
    let error =
        Pipeline::from(first).process(1, async |_: Item<String>| {}).run().await.unwrap_err();
    assert!(error.to_string().contains("line 2 is not UTF-8"), "{error}");
}
