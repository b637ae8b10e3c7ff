//! Messages that go back to their source while they wait in a pipeline, as when a connection is lost, and come again.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::virtual_time::in_virtual_time;
use forebay_pipeline::source::{Later, Leaving, Taken};
use forebay_pipeline::{
    Batch, Batching, HandOn, Item, Outcome, Pipeline, Receipt, Running, Source, ToBatch, Verdict,
};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

const MINUTE: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Inside {
    waiting: VecDeque<u32>,
    unsettled: Vec<u32>,
    connection: u32,
    waker: Option<Waker>,
    /// Asked to take one for later.
    put_off: u32,
}

/// Holds its messages until they are acknowledged.
#[derive(Clone, Default)]
struct Queue(Arc<Mutex<Inside>>);

struct Delivered {
    queue: Queue,
    number: u32,
    connection: u32,
}

impl Queue {
    fn publish(&self, numbers: impl IntoIterator<Item = u32>) {
        let mut inside = self.0.lock().unwrap();
        inside.waiting.extend(numbers);
        inside.waker.take().into_iter().for_each(Waker::wake);
    }

    /// What was delivered and not acknowledged is delivered again.
    fn reconnect(&self) {
        let mut inside = self.0.lock().unwrap();
        inside.connection += 1;
        let again = std::mem::take(&mut inside.unsettled);
        again.into_iter().rev().for_each(|number| inside.waiting.push_front(number));
        inside.waker.take().into_iter().for_each(Waker::wake);
    }

    fn is_empty(&self) -> bool {
        let inside = self.0.lock().unwrap();
        inside.waiting.is_empty() && inside.unsettled.is_empty()
    }
}

impl Source for Queue {
    type Value = u32;
    type Receipt = Delivered;

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Taken<Self>> {
        let mut inside = self.0.lock().unwrap();
        let Some(number) = inside.waiting.pop_front() else {
            inside.waker = Some(cx.waker().clone());
            return Poll::Pending;
        };
        inside.unsettled.push(number);
        let connection = inside.connection;
        Poll::Ready(Ok(Some((number, Delivered { queue: self.clone(), number, connection }))))
    }

    fn later(_: &u32, receipt: &Delivered, _: Later) -> Option<Leaving> {
        receipt.queue.0.lock().unwrap().put_off += 1;
        None
    }
}

impl Receipt for Delivered {
    fn is_void(&self) -> bool {
        self.connection != self.queue.0.lock().unwrap().connection
    }

    fn settle(self, _: Verdict) {
        let mut inside = self.queue.0.lock().unwrap();
        if self.connection == inside.connection {
            inside.unsettled.retain(|number| *number != self.number);
        }
    }
}

type Seen = Arc<Mutex<Vec<u32>>>;

fn seen(seen: &Seen) -> Vec<u32> {
    seen.lock().unwrap().clone()
}

/// Until so many were taken.
async fn taken(running: &Running, messages: u64) {
    while running.control().report().taken < messages {
        sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn what_waits_for_its_key_is_not_begun_when_it_comes_again() {
    in_virtual_time(async {
        let queue = Queue::default();
        queue.publish([1, 2, 3]);
        let (begun, go_on) = (Seen::default(), Arc::new(Semaphore::new(0)));
        let (note, wait) = (begun.clone(), go_on.clone());
        let running = Pipeline::from(queue.clone())
            .process(2, move |number: Item<u32>| {
                note.lock().unwrap().push(*number);
                let wait = wait.clone();
                async move { wait.acquire().await.unwrap().forget() }
            })
            .ordered_by(|_| "one key")
            .start();
        taken(&running, 3).await;
        queue.reconnect();
        taken(&running, 6).await;
        go_on.add_permits(10);
        running.control().drain(MINUTE);
        let report = running.join().await.unwrap();
        // The first was in work. After the third comes no second any more.
        assert_eq!(seen(&begun), [1, 1, 2, 3]);
        assert_eq!((report.taken, report.acked, report.requeued), (6, 4, 2), "none is left");
        assert!(queue.is_empty());
    });
}

#[test]
fn what_is_let_go_takes_nothing_of_the_rate() {
    in_virtual_time(async {
        let queue = Queue::default();
        queue.publish(1..=10);
        let begun = Arc::new(Mutex::new(Vec::new()));
        let (note, start) = (begun.clone(), Instant::now());
        let running = Pipeline::from(queue.clone())
            .process(2, move |number: Item<u32>| {
                let at = start.elapsed();
                note.lock().unwrap().push((*number, at.as_secs()));
                let first = at < Duration::from_secs(1);
                sleep(if first { Duration::from_millis(3_500) } else { Duration::ZERO })
            })
            .ordered_by(|_| "one key")
            .rate_limit(1)
            .start();
        taken(&running, 10).await;
        queue.reconnect();
        taken(&running, 20).await;
        assert!(start.elapsed() < Duration::from_secs(2), "they wait for their key");
        sleep(MINUTE).await;
        // One token was kept by who waits, and one is there.
        let mut expected = vec![(1, 0), (1, 3), (2, 3)];
        expected.extend((3..=10).map(|number| (number, u64::from(number) + 1)));
        assert_eq!(*begun.lock().unwrap(), expected);
        assert!(queue.is_empty());
    });
}

#[test]
fn what_pauses_before_another_attempt_is_not_begun_when_it_comes_again() {
    in_virtual_time(async {
        let queue = Queue::default();
        queue.publish([1]);
        let attempts = Seen::default();
        let note = attempts.clone();
        let running = Pipeline::from(queue.clone())
            .process(2, move |number: Item<u32>| {
                note.lock().unwrap().push(number.attempt());
                let last = number.attempt() == 2;
                std::future::ready(if last { Outcome::Ack } else { Outcome::Retry(MINUTE) })
            })
            .start();
        taken(&running, 1).await;
        queue.reconnect();
        running.control().drain(10 * MINUTE);
        assert_eq!(running.join().await.unwrap().requeued, 1);
        assert_eq!(seen(&attempts), [1]);

        let running = Pipeline::from(queue.clone()).process(2, async |_: Item<u32>| {}).start();
        taken(&running, 1).await;
        running.control().drain(MINUTE);
        running.join().await.unwrap();
        assert!(queue.is_empty());
    });
}

#[test]
fn what_comes_again_is_not_put_off_as_well() {
    in_virtual_time(async {
        let queue = Queue::default();
        queue.publish([1]);
        let (begin, begun) = (queue.clone(), Seen::default());
        let note = begun.clone();
        let running = Pipeline::from(queue.clone())
            .process(1, move |number: Item<u32>| {
                note.lock().unwrap().push(*number);
                let first = note.lock().unwrap().len() == 1;
                if first {
                    begin.reconnect();
                }
                std::future::ready(if first { Outcome::Retry(MINUTE) } else { Outcome::Ack })
            })
            .start();
        taken(&running, 2).await;
        running.control().drain(10 * MINUTE);
        let started = Instant::now();
        let report = running.join().await.unwrap();
        assert_eq!((seen(&begun), report.retried), (vec![1, 1], 0));
        assert_eq!(started.elapsed(), Duration::ZERO, "nothing waits");
        let inside = queue.0.lock().unwrap();
        assert_eq!(inside.put_off, 0, "it would come a third time");
    });
}

fn batches(queue: &Queue, batch: usize, early: bool) -> (Running, Seen) {
    let written = Seen::default();
    let write = written.clone();
    let handler = move |rows: Item<Batch<u32>>| {
        write.lock().unwrap().extend(rows.iter());
        std::future::ready(())
    };
    let running = Pipeline::from(queue.clone())
        .process(2, move |number: Item<u32>| {
            assert!(!early || number.ack_now());
            std::future::ready(ToBatch::new(*number))
        })
        .batch_by(Batching::new("rows", batch, MINUTE), handler)
        .start();
    (running, written)
}

#[test]
fn what_comes_again_is_once_in_its_batch() {
    in_virtual_time(async {
        let queue = Queue::default();
        queue.publish([1, 2]);
        let (running, written) = batches(&queue, 6, false);
        taken(&running, 2).await;
        queue.reconnect();
        queue.publish([3, 4]);
        taken(&running, 6).await;
        running.control().drain(MINUTE);
        let report = running.join().await.unwrap();
        assert_eq!(seen(&written), [1, 2, 3, 4]);
        assert_eq!((report.taken, report.acked, report.requeued), (6, 4, 2), "none is left");
        assert!(queue.is_empty());
    });
}

#[test]
fn a_batch_of_which_all_comes_again_is_not_begun_and_what_was_acknowledged_early_is() {
    for (early, expected) in [(false, 0), (true, 2)] {
        in_virtual_time(async {
            let queue = Queue::default();
            queue.publish([1, 2]);
            let (running, written) = batches(&queue, 10, early);
            taken(&running, 2).await;
            running.control().drain(10 * MINUTE);
            queue.reconnect();
            let report = running.join().await.unwrap();
            assert_eq!(seen(&written).len(), expected);
            assert_eq!(report.settled(), 2);
            assert_eq!(queue.is_empty(), early);
        });
    }
}

#[test]
fn a_batch_that_pauses_before_another_attempt_is_not_begun_when_it_comes_again() {
    in_virtual_time(async {
        let queue = Queue::default();
        queue.publish([1, 2]);
        let attempts = Seen::default();
        let note = attempts.clone();
        let handler = move |rows: Item<Batch<u32>>| {
            note.lock().unwrap().push(rows.attempt());
            std::future::ready(Outcome::Retry(MINUTE))
        };
        let running = Pipeline::from(queue.clone())
            .process(2, async |number: Item<u32>| ToBatch::new(*number))
            .batch("rows", 2, MINUTE, handler)
            .start();
        taken(&running, 2).await;
        running.control().drain(10 * MINUTE);
        sleep(Duration::from_secs(1)).await;
        queue.reconnect();
        assert_eq!(running.join().await.unwrap().requeued, 2);
        assert_eq!(seen(&attempts), [1]);
    });
}

#[test]
fn the_next_of_a_chain_does_not_begin_what_comes_again() {
    in_virtual_time(async {
        let queue = Queue::default();
        queue.publish([1, 2]);
        let (begun, go_on) = (Seen::default(), Arc::new(Semaphore::new(0)));
        let (note, wait) = (begun.clone(), go_on.clone());
        let first = Pipeline::from(queue.clone()).process(1, async |it: Item<u32>| HandOn(*it));
        let running = Pipeline::from(first.into_source(5))
            .process(1, move |number: Item<u32>| {
                note.lock().unwrap().push(*number);
                let wait = wait.clone();
                async move { wait.acquire().await.unwrap().forget() }
            })
            .start();
        let beginning = running.control().upstream().remove(0);
        while beginning.report().taken < 2 || seen(&begun).is_empty() {
            sleep(Duration::from_millis(1)).await;
        }
        queue.reconnect();
        go_on.add_permits(10);
        while !queue.is_empty() {
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(seen(&begun), [1, 1, 2]);
    });
}
