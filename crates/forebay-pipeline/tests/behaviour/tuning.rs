//! Pipelines that find out how many workers they need, in virtual time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::virtual_time::in_virtual_time;
use forebay_pipeline::{Batch, Batching, Concurrency, Item, Outcome, Pipeline, ToBatch, source};
use tokio::sync::Semaphore;
use tokio::time::sleep;

const CALL: Duration = Duration::from_millis(20);

/// Works on endless messages for so long with a service that answers so many at a time; the concurrency then.
fn with_service(places: usize, concurrency: Concurrency, seconds: u64) -> usize {
    in_virtual_time(async move {
        let service = Arc::new(Semaphore::new(places));
        let running = Pipeline::from(source::iter(0_u64..))
            .process(concurrency, move |_: Item<u64>| {
                let service = service.clone();
                async move {
                    let _place = service.acquire().await.unwrap();
                    sleep(CALL).await;
                }
            })
            .start();
        let control = running.control();
        sleep(Duration::from_secs(seconds)).await;
        let found = control.concurrency();
        control.drain(Duration::from_secs(60));
        running.join().await.unwrap();
        found
    })
}

#[test]
fn a_pipeline_has_as_many_workers_as_the_service_behind_it_has_places() {
    for places in [1, 3, 20, 100] {
        let found = with_service(places, Concurrency::auto(), 30);
        assert!(found * 4 >= places * 3 && found * 3 <= places * 4 + 3, "{found} for {places}");
    }
}

#[test]
fn bounds_are_kept() {
    assert_eq!(with_service(100, Concurrency::auto().max(5), 10), 5);
    assert_eq!(with_service(1, Concurrency::auto().min(7), 10), 7);
}

#[test]
fn handlers_that_ask_for_another_attempt_do_not_look_fast() {
    in_virtual_time(async {
        let busy = Arc::new(AtomicUsize::new(0));
        let handler = move |_: Item<u64>| {
            let busy = busy.clone();
            async move {
                let crowded = busy.fetch_add(1, Ordering::Relaxed) >= 10;
                sleep(if crowded { Duration::from_millis(1) } else { CALL }).await;
                busy.fetch_sub(1, Ordering::Relaxed);
                if crowded { Outcome::Retry(Duration::from_millis(5)) } else { Outcome::Ack }
            }
        };
        let running = Pipeline::from(source::iter(0_u64..))
            .process(Concurrency::auto(), handler)
            .buffer_max(50)
            .start();
        sleep(Duration::from_secs(30)).await;
        let found = running.control().concurrency();
        assert!((5..=14).contains(&found), "{found}");
    });
}

#[test]
fn workers_that_wait_for_slow_batches_do_not_call_for_more() {
    in_virtual_time(async {
        let handler = async |_: Item<u64>| {
            sleep(CALL).await;
            ToBatch::new(())
        };
        let running = Pipeline::from(source::iter(0_u64..))
            .process(Concurrency::auto(), handler)
            .batch_by(Batching::new("rows", 10, CALL).held_max(20), async |_: Item<Batch<()>>| {
                sleep(5 * CALL).await
            })
            .start();
        sleep(Duration::from_secs(60)).await;
        // Ten messages in the time of five calls: two workers would do.
        let found = running.control().concurrency();
        assert!(found <= 10, "{found}");
    });
}

#[test]
fn it_is_switched_on_and_off_while_it_runs() {
    in_virtual_time(async {
        let handler = async |_: Item<u64>| sleep(CALL).await;
        let running = Pipeline::from(source::iter(0_u64..)).process(2, handler).start();
        let control = running.control();
        sleep(Duration::from_secs(5)).await;
        assert_eq!(control.concurrency(), 2);
        control.set_concurrency(Concurrency::auto().max(64));
        sleep(Duration::from_secs(10)).await;
        assert_eq!(control.concurrency(), 64);
        control.set_concurrency(3);
        sleep(Duration::from_secs(10)).await;
        assert_eq!(control.concurrency(), 3);
    });
}
