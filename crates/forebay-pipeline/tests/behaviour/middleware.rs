//! What stands between a pipeline and its handler: tower's layers, and the last keys.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::virtual_time::in_virtual_time;
use forebay_pipeline::{Item, Outcome, Pipeline, ToBatch, Verdict, source};
use tokio::time::sleep;
use tower::{ServiceBuilder, service_fn};

#[test]
fn a_service_with_a_time_limit_fails_where_it_takes_too_long() {
    in_virtual_time(async {
        let slow_if_odd = service_fn(|number: Item<u64>| async move {
            sleep(Duration::from_secs(*number % 2 * 10)).await;
            Ok::<_, Infallible>(Outcome::Ack)
        });
        let service = ServiceBuilder::new().timeout(Duration::from_secs(1)).service(slow_if_odd);
        let (messages, source) = source::test();
        let running = Pipeline::from(source).process_service(4, service).start();
        assert_eq!(messages.send(2).await, Verdict::Ack);
        assert_eq!(messages.send(3).await, Verdict::Requeue);
        drop(messages);
        let report = running.join().await.unwrap();
        assert_eq!((report.acked, report.requeued, report.failed), (1, 1, 1));
    });
}

#[test]
fn a_service_that_has_reached_its_limit_keeps_its_message_waiting() {
    in_virtual_time(async {
        let (at_work, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let (counted, seen) = (at_work.clone(), most.clone());
        let work = service_fn(move |_: Item<u32>| {
            let (at_work, most) = (counted.clone(), seen.clone());
            async move {
                most.fetch_max(at_work.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                sleep(Duration::from_secs(1)).await;
                at_work.fetch_sub(1, Ordering::SeqCst);
                Ok::<_, Infallible>(())
            }
        });
        let service = ServiceBuilder::new().concurrency_limit(3).service(work);
        let report =
            Pipeline::from(source::iter(0..20)).process_service(10, service).run().await.unwrap();
        assert_eq!(report.acked, 20);
        assert_eq!(most.load(Ordering::SeqCst), 3);
    });
}

/// Counts its calls; each number's first one fails if it is 13.
fn counting(
    calls: &Arc<AtomicU32>,
) -> impl Fn(Item<u32>) -> std::future::Ready<Result<(), &'static str>> + use<> {
    let calls = calls.clone();
    move |number| {
        let call = calls.fetch_add(1, Ordering::SeqCst);
        std::future::ready(if *number == 13 && call == 0 { Err("unlucky") } else { Ok(()) })
    }
}

#[tokio::test]
async fn what_was_done_is_not_done_again_and_what_failed_is() {
    let calls = Arc::new(AtomicU32::new(0));
    let (messages, source) = source::test();
    let running = Pipeline::from(source)
        .process(1, counting(&calls))
        .deduplicate(2, |number| (*number < 100).then_some(*number))
        .start();
    assert_eq!(messages.send(13).await, Verdict::Requeue);
    for number in [13, 13, 1, 13, 200, 200] {
        assert_eq!(messages.send(number).await, Verdict::Ack);
    }
    // 13 failed, 13, 1, and twice 200, which has no key.
    assert_eq!(calls.load(Ordering::SeqCst), 5);
    for number in [2, 13] {
        assert_eq!(messages.send(number).await, Verdict::Ack);
    }
    assert_eq!(calls.load(Ordering::SeqCst), 7, "13 was the oldest of three");
    drop(messages);
    running.join().await.unwrap();
}

#[tokio::test]
async fn what_only_went_to_a_batch_is_not_taken_for_done() {
    let batches = Arc::new(AtomicU32::new(0));
    let counted = batches.clone();
    let (messages, source) = source::test();
    let running = Pipeline::from(source)
        .process(1, async |number: Item<u32>| ToBatch::new(*number))
        .deduplicate(10, |number| Some(*number))
        .batch("b", 1, Duration::from_secs(60), move |_| {
            let first = counted.fetch_add(1, Ordering::SeqCst) == 0;
            std::future::ready(if first { Err("not stored") } else { Ok(()) })
        })
        .start();
    assert_eq!(messages.send(7).await, Verdict::Requeue);
    assert_eq!(messages.send(7).await, Verdict::Ack);
    assert_eq!(batches.load(Ordering::SeqCst), 2);
    drop(messages);
    running.join().await.unwrap();
}
