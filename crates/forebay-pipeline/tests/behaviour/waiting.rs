//! Workers who wait with their messages, because too many wait for another attempt already. In virtual time.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::virtual_time::in_virtual_time;
use forebay_pipeline::{Async, Breaker, Item, Outcome, Pipeline, Process, Verdict, source};
use tokio::time::{Instant, sleep, sleep_until};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

type Attempt =
    Box<dyn Fn(Item<u32>) -> Pin<Box<dyn Future<Output = Outcome> + Send>> + Send + Sync>;
type TwoMessages = Process<source::Iter<std::ops::Range<u32>>, Async<Attempt>>;

/// Two messages and a place for one of them until its second attempt, so that a worker waits with the other. In which second
/// each attempt begins.
fn begun_s(held_back: impl FnOnce(TwoMessages) -> TwoMessages) -> Vec<u64> {
    in_virtual_time(async {
        let begun: Arc<Mutex<Vec<u64>>> = Arc::default();
        let (note, start) = (begun.clone(), Instant::now());
        let handler: Attempt = Box::new(move |item| {
            note.lock().unwrap().push(start.elapsed().as_secs());
            Box::pin(async move {
                if item.attempt() > 1 {
                    return Outcome::Ack;
                }
                sleep_until(start + 3 * SECOND).await;
                Outcome::Retry(SECOND)
            })
        });
        let process = Pipeline::from(source::iter(0..2)).process(2, handler).buffer_max(1);
        assert_eq!(held_back(process).run().await.unwrap().acked, 2);
        std::mem::take(&mut *begun.lock().unwrap())
    })
}

#[test]
fn a_worker_that_waits_with_its_message_begins_it_when_the_rate_or_the_breaker_allows() {
    assert_eq!(begun_s(|process| process.rate_limit(1)), [0, 1, 4, 5]);
    let breaker = Breaker::new(2, 100 * SECOND, 100 * SECOND);
    assert_eq!(begun_s(|process| process.breaker(breaker)), [0, 0, 103, 103]);
}

#[test]
fn a_worker_that_waits_with_its_message_begins_it_when_a_success_closes_the_breaker() {
    in_virtual_time(async {
        let (messages, source) = source::test();
        let handler = async |item: Item<&'static str>| match item.attempt() {
            1 if *item == "well" => {
                sleep(11 * SECOND / 2).await;
                Outcome::Ack
            }
            1 => Outcome::Retry(SECOND),
            _ => Outcome::Ack,
        };
        let _running = Pipeline::from(source)
            .process(3, handler)
            .buffer_max(1)
            .breaker(Breaker::new(1, HOUR, HOUR))
            .start();
        let begun = Instant::now();
        for sent in ["well", "held", "with its worker"].map(|value| messages.send(value)) {
            assert_eq!(sent.await, Verdict::Ack);
        }
        assert_eq!(begun.elapsed().as_millis(), 5_500);
    });
}

#[test]
fn a_worker_that_waits_with_its_message_hears_of_another_rate_at_once() {
    in_virtual_time(async {
        let (messages, source) = source::test();
        let begun = Instant::now();
        let handler = move |item: Item<u32>| async move {
            if item.attempt() > 1 {
                return Outcome::Ack;
            }
            sleep_until(begun + 3 * SECOND).await;
            Outcome::Retry(SECOND)
        };
        let process = Pipeline::from(source).process(2, handler).buffer_max(1);
        let running = process.rate_limit(1).start();
        let both = [1, 2].map(|value| messages.send(value));
        // One goes on at 4 s, and the other would at 5.
        sleep(9 * SECOND / 2).await;
        running.control().set_rate(None);
        for sent in both {
            assert_eq!(sent.await, Verdict::Ack);
        }
        assert_eq!(begun.elapsed().as_millis(), 4_500);
    });
}
