//! The end of a pipeline whose breaker or rate lets nothing begin: at once, where nothing more can come. In virtual time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::virtual_time::in_virtual_time;
use forebay_pipeline::{
    Batch, Batching, Breaker, HandOn, Item, Outcome, Pipeline, Report, Running, Source, ToBatch,
    source,
};
use tokio::time::{Instant, sleep};

const HOUR: Duration = Duration::from_secs(3_600);

async fn fails<T>(_: Item<T>) -> Result<(), &'static str> {
    Err("the database is down")
}

/// What it came to, without any wait.
async fn at_once(running: Running) -> Report {
    let begun = Instant::now();
    let report = running.join().await.unwrap();
    assert_eq!(begun.elapsed(), Duration::ZERO);
    report
}

/// All three messages of `source` fail.
async fn fails_at_once<S: Source>(source: S, breaker: Breaker) {
    let running = Pipeline::from(source)
        .process(1, fails)
        .breaker(breaker)
        .on_failure(Outcome::Reject)
        .start();
    let report = at_once(running).await;
    assert_eq!((report.taken, report.rejected), (3, 3));
}

#[test]
fn a_breaker_that_opens_at_the_last_message_hides_no_end() {
    in_virtual_time(async {
        let breaker = Breaker::new(3, HOUR, HOUR);
        fails_at_once(source::iter(0..3), breaker).await;
        fails_at_once(source::merge([source::iter(0..1), source::iter(0..2)]), breaker).await;

        let (messages, source) = source::test();
        for number in 0..3 {
            drop(messages.send(number));
        }
        drop(messages);
        fails_at_once(source, breaker).await;

        let double = async |number: Item<u32>| HandOn(*number * 2);
        let doubled = Pipeline::from(source::iter(0..3)).process(4, double).into_source(5);
        fails_at_once(doubled, breaker).await;
    });
}

#[test]
fn a_rate_hides_no_end() {
    in_virtual_time(async {
        let begun = Instant::now();
        let pipeline = Pipeline::from(source::iter(0..3)).process(4, async |_: Item<u32>| {});
        assert_eq!(pipeline.rate_limit(1).run().await.unwrap().acked, 3);
        assert_eq!(begun.elapsed().as_secs(), 2, "for the second and the third");
    });
}

#[test]
fn a_breaker_that_opens_at_the_last_batch_hides_no_end() {
    in_virtual_time(async {
        let batched = |source| {
            Pipeline::from(source)
                .process(4, async |number: Item<u32>| ToBatch::new(*number))
                .breaker(Breaker::new(1, HOUR, HOUR))
                .on_failure(Outcome::Reject)
                .batch("b", 3, HOUR, fails::<Batch<u32>>)
                .start()
        };
        let (messages, source) = source::test();
        let running = batched(source);
        for number in 0..3 {
            drop(messages.send(number));
        }
        drop(messages);
        assert_eq!(at_once(running).await.rejected, 3);

        let (messages, source) = source::test();
        let running = batched(source);
        for number in 0..3 {
            drop(messages.send(number));
        }
        while running.control().report().rejected < 3 {
            sleep(Duration::from_millis(1)).await;
        }
        running.control().drain(HOUR);
        at_once(running).await;
    });
}

#[test]
fn a_batch_that_might_come_back_in_halves_is_awaited_and_nothing_else() {
    in_virtual_time(async {
        let kept = Arc::new(Mutex::new(None));
        let keep = kept.clone();
        let handler = move |batch: Item<Batch<u32>>| {
            if batch.len() > 1 {
                *keep.lock().unwrap() = Some(batch);
            }
            std::future::ready(Err::<(), _>("it is still at it"))
        };
        let running = Pipeline::from(source::iter(0..2))
            .process(1, async |number: Item<u32>| ToBatch::new(*number))
            .breaker(Breaker::new(3, HOUR, HOUR))
            .on_failure(Outcome::Reject)
            .batch_by(Batching::new("b", 2, HOUR).bisect_failures(), handler)
            .start();
        sleep(HOUR / 2).await;
        assert_eq!(running.control().report().rejected, 2, "each alone");
        drop(kept.lock().unwrap().take());
        at_once(running).await;
    });
}
