//! Set-ups that are bad on purpose, from publisher to pipeline over a real broker, and the cause that is named.
//!
//! Each makes one wait many times as long as all others together, so that a busy machine does not change what is named.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay::pipeline::explain::{Cause, Mark, Pauses};
use forebay::pipeline::{
    Backoff, Batch, Breaker, Control, Item, Pipeline, QueueSource, Queues, Running, Source, ToBatch,
};
use forebay::{Broker, Connection, Queue, Received, Route, Topology, Window};
use forebay_bench::link::{Conditions, LinkProxy};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);
const MS: Duration = Duration::from_millis(1);

/// A broker with a queue, and who is near.
struct Scene {
    broker: Broker,
    near: Connection,
    /// A permit for each message that is done.
    done: Arc<Semaphore>,
    /// There to be far away by.
    link: Option<LinkProxy>,
}

impl Scene {
    async fn new() -> Scene {
        let broker = Broker::in_memory().unwrap();
        let near = broker.connect().await.unwrap();
        near.declare(Topology::new().queue(Queue::durable("q"))).await.unwrap();
        Scene { broker, near, done: Arc::new(Semaphore::new(0)), link: None }
    }

    /// A connection over a link with this round trip.
    async fn far(&mut self, rtt: Duration) -> Connection {
        let address = self.broker.listen("127.0.0.1:0").unwrap();
        let conditions =
            Conditions { rtt_us: rtt.as_micros() as u64, jitter_us: 0, bytes_per_s: None };
        let link = self.link.insert(LinkProxy::start(address, conditions).unwrap());
        Connection::open(&format!("amqp://guest:guest@{}", link.address())).await.unwrap()
    }

    /// A handler that sleeps for so long.
    fn work(
        &self,
        pause: Duration,
    ) -> impl Fn(Item<Received>) -> Work + Clone + Send + Sync + 'static {
        let done = self.done.clone();
        move |_| {
            let done = done.clone();
            Box::pin(async move {
                sleep(pause).await;
                done.add_permits(1);
            })
        }
    }

    async fn until_done(&self, messages: u32) {
        timeout(PATIENCE, self.done.acquire_many(messages)).await.unwrap().unwrap().forget();
    }

    /// A message that is not marked has gone the whole way: from now on somebody consumes.
    async fn ready(&self) {
        let publisher = self.near.publisher(Route::queue("q")).build().await.unwrap();
        publisher.publish("first").await.unwrap().await.unwrap();
        self.until_done(1).await;
    }

    /// Publishes marked messages, so many at once.
    async fn publish(&self, connection: &Connection, window: Window, messages: usize) {
        let publisher = connection.publisher(Route::queue("q")).explain(1).window(window);
        let publisher = publisher.build().await.unwrap();
        let each = (0..messages).map(|number| {
            let publisher = publisher.clone();
            tokio::spawn(async move { publisher.publish(number.to_string()).await.unwrap().await })
        });
        for published in each.collect::<Vec<_>>() {
            published.await.unwrap().unwrap();
        }
    }

    /// The same one after the other, each when the one before is done.
    async fn publish_in_turn(&self, connection: &Connection, messages: usize) {
        for _ in 0..messages {
            self.publish(connection, Window::tuned(), 1).await;
            self.until_done(1).await;
        }
    }
}

type Work = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

/// Ends the pipeline; its messages' segments add up.
async fn ended(running: Running) -> Control {
    let control = running.control();
    control.drain(PATIENCE);
    running.join().await.unwrap();
    let explanation = control.explanation().expect("it was asked for");
    let sum_us: u64 = explanation.shares().iter().map(|share| share.sum_us).sum();
    assert_eq!(sum_us, explanation.total_us());
    eprintln!("{explanation}");
    control
}

fn fixed_credit(scene: &Scene, credit: u16) -> QueueSource {
    QueueSource::from(scene.near.consumer("q").fixed_credit(credit)).keep_credit()
}

fn start<S: Source<Value = Received>>(
    source: S,
    workers: usize,
    work: impl Fn(Item<Received>) -> Work + Clone + Send + Sync + 'static,
) -> Running {
    Pipeline::from(source).process(workers, work).explain(1, Received::marks).start()
}

#[tokio::test]
async fn a_window_of_one_message_over_a_long_link() {
    let mut scene = Scene::new().await;
    let running = start(scene.near.source("q"), 4, scene.work(Duration::ZERO));
    scene.ready().await;
    let far = scene.far(40 * MS).await;
    scene.publish(&far, Window::fixed(1), 10).await;
    scene.until_done(10).await;
    let cause = ended(running).await.cause();
    assert_eq!(cause, Some(Cause::WindowFixed { window_messages: 1 }));
}

#[tokio::test]
async fn a_publisher_far_away() {
    let mut scene = Scene::new().await;
    let running = start(scene.near.source("q"), 4, scene.work(Duration::ZERO));
    scene.ready().await;
    let far = scene.far(300 * MS).await;
    scene.publish_in_turn(&far, 2).await;
    assert_eq!(ended(running).await.cause(), Some(Cause::WayToBroker));
}

#[tokio::test]
async fn a_consumer_far_away() {
    let mut scene = Scene::new().await;
    let far = scene.far(300 * MS).await;
    let running = start(far.source("q"), 4, scene.work(Duration::ZERO));
    scene.ready().await;
    let near = scene.near.clone();
    scene.publish_in_turn(&near, 2).await;
    assert_eq!(ended(running).await.cause(), Some(Cause::WayToConsumer));
}

#[tokio::test]
async fn two_workers_for_the_work_of_ten() {
    let scene = Scene::new().await;
    let running = start(scene.near.source("q"), 2, scene.work(20 * MS));
    scene.ready().await;
    scene.publish(&scene.near, Window::tuned(), 60).await;
    scene.until_done(60).await;
    let cause = ended(running).await.cause();
    assert!(matches!(cause, Some(Cause::WorkersBusy { workers: Some(2), .. })), "{cause:?}");
}

#[tokio::test]
async fn twenty_five_workers_and_a_prefetch_of_one() {
    let scene = Scene::new().await;
    let running = start(fixed_credit(&scene, 1), 25, scene.work(20 * MS));
    scene.ready().await;
    scene.publish(&scene.near, Window::tuned(), 40).await;
    scene.until_done(40).await;
    let cause = ended(running).await.cause();
    assert_eq!(cause, Some(Cause::PrefetchBelowWorkers { prefetch: 1, workers: 25 }));
}

#[tokio::test]
async fn two_workers_that_are_sent_all_there_is() {
    let scene = Scene::new().await;
    let running = start(fixed_credit(&scene, 250), 2, scene.work(20 * MS));
    scene.ready().await;
    scene.publish(&scene.near, Window::tuned(), 60).await;
    scene.until_done(60).await;
    let cause = ended(running).await.cause();
    assert_eq!(cause, Some(Cause::PrefetchHoards { prefetch: 250, workers: Some(2) }));
}

#[tokio::test]
async fn a_consumer_that_comes_late() {
    let scene = Scene::new().await;
    scene.publish(&scene.near, Window::tuned(), 10).await;
    sleep(500 * MS).await; // what the messages wait for
    let running = start(scene.near.source("q"), 4, scene.work(Duration::ZERO));
    scene.until_done(10).await;
    assert_eq!(ended(running).await.cause(), Some(Cause::NoConsumer));
}

#[tokio::test]
async fn a_rate_limit_that_somebody_forgot() {
    let scene = Scene::new().await;
    let running = Pipeline::from(scene.near.source("q"))
        .process(2, scene.work(Duration::ZERO))
        .rate_limit(40)
        .explain(1, Received::marks)
        .start();
    scene.ready().await;
    scene.publish(&scene.near, Window::tuned(), 60).await;
    scene.until_done(60).await;
    assert_eq!(ended(running).await.cause(), Some(Cause::RateLimited { rate_per_s: 40 }));
}

#[tokio::test]
async fn a_key_that_all_messages_have() {
    let scene = Scene::new().await;
    let running = Pipeline::from(scene.near.source("q"))
        .process(8, scene.work(20 * MS))
        .ordered_by(|_| "the same")
        .explain(1, Received::marks)
        .start();
    scene.ready().await;
    scene.publish(&scene.near, Window::tuned(), 40).await;
    scene.until_done(40).await;
    assert_eq!(ended(running).await.cause(), Some(Cause::KeyBusy));
}

/// A handler whose first attempt at each message takes so long, and is in vain.
fn once_more(
    done: &Arc<Semaphore>,
    attempt: Duration,
) -> impl Fn(Item<Received>) -> Trying + Clone + Send + Sync + 'static {
    let done = done.clone();
    move |message| {
        let done = done.clone();
        Box::pin(async move {
            if message.attempt() == 1 {
                sleep(attempt).await;
                return Err("not at once");
            }
            done.add_permits(1);
            Ok(())
        })
    }
}

type Trying = std::pin::Pin<Box<dyn Future<Output = Result<(), &'static str>> + Send>>;

#[tokio::test]
async fn retries_that_pause_for_long() {
    let scene = Scene::new().await;
    let running = Pipeline::from(scene.near.source("q"))
        .process(4, once_more(&scene.done, Duration::ZERO))
        .retries(Backoff::new(3, 600 * MS, 600 * MS))
        .explain(1, Received::marks)
        .start();
    scene.ready().await;
    scene.publish(&scene.near, Window::tuned(), 20).await;
    scene.until_done(20).await;
    let cause = ended(running).await.cause();
    let retries = Some(Pauses { count: 3, first_us: 600_000, max_us: 600_000 });
    let Some(Cause::RetryPause { pause_us: 300_000..=600_000, retries: found }) = cause else {
        panic!("{cause:?}")
    };
    assert_eq!(found, retries);
}

#[tokio::test]
async fn attempts_that_fail_late() {
    let scene = Scene::new().await;
    let running = Pipeline::from(scene.near.source("q"))
        .process(4, once_more(&scene.done, 500 * MS))
        .retries(Backoff::new(3, MS, MS))
        .explain(1, Received::marks)
        .start();
    scene.ready().await;
    scene.publish(&scene.near, Window::tuned(), 4).await;
    scene.until_done(4).await;
    let cause = ended(running).await.cause();
    let late = matches!(cause, Some(Cause::EarlierAttempts { attempts_us: 500_000.., .. }));
    assert!(late, "{cause:?}");
}

/// Most of what waits is in the queue, the rest in the client.
#[tokio::test]
async fn a_breaker_that_two_failures_open() {
    let scene = Scene::new().await;
    let (done, failures) = (scene.done.clone(), Arc::new(Semaphore::new(0)));
    let to_come = failures.clone();
    let running = Pipeline::from(scene.near.source("q"))
        .process(2, move |_: Item<Received>| {
            let down = failures.try_acquire().map(|failure| failure.forget()).is_ok();
            done.add_permits(1);
            async move { if down { Err("it is down") } else { Ok(()) } }
        })
        .breaker(Breaker::new(2, 1_000 * MS, 1_000 * MS))
        .explain(1, Received::marks)
        .start();
    scene.ready().await;
    to_come.add_permits(2);
    scene.publish(&scene.near, Window::tuned(), 40).await;
    scene.until_done(40).await;
    let cause = ended(running).await.cause();
    let breaker = Some(Pauses { count: 2, first_us: 1_000_000, max_us: 1_000_000 });
    let Some(Cause::BreakerOpen { breaker: found, .. }) = cause else { panic!("{cause:?}") };
    assert_eq!(found, breaker);
}

/// What is explained is what somebody with a watch would have seen.
#[tokio::test]
async fn a_slow_handler() {
    let scene = Scene::new().await;
    let running = start(scene.near.source("q"), 4, scene.work(300 * MS));
    scene.ready().await;
    let before = Instant::now();
    scene.publish_in_turn(&scene.near, 2).await;
    let control = ended(running).await;
    let watched_us = u64::try_from(before.elapsed().as_micros()).unwrap();
    let cause = control.cause();
    assert!(matches!(cause, Some(Cause::Handler { handler_us: 300_000.. })), "{cause:?}");
    let explanation = control.explanation().unwrap();
    assert!((600_000..=watched_us).contains(&explanation.total_us()), "{explanation}");
    assert_eq!(explanation.messages(), 2);
    assert_eq!(explanation.shares()[0].segment.to, Mark::Admitted);
}

#[tokio::test]
async fn batches_larger_than_what_comes() {
    let scene = Scene::new().await;
    let done = scene.done.clone();
    let running = Pipeline::from(scene.near.source("q"))
        .process(4, async |_: Item<Received>| ToBatch::new(()))
        .explain(1, Received::marks)
        .batch("rows", 1_000, 600 * MS, move |batch: Item<Batch<()>>| {
            let done = done.clone();
            async move { done.add_permits(batch.len()) }
        })
        .start();
    scene.ready().await;
    for _ in 0..6 {
        scene.publish(&scene.near, Window::tuned(), 1).await;
        sleep(60 * MS).await; // how often they come
    }
    scene.until_done(6).await;
    let cause = ended(running).await.cause();
    assert_eq!(cause, Some(Cause::BatchNeverFull { batch_delay_us: 600_000 }));
}

#[tokio::test]
async fn batches_larger_than_the_prefetch() {
    let scene = Scene::new().await;
    let done = scene.done.clone();
    let running = Pipeline::from(fixed_credit(&scene, 10))
        .process(4, async |_: Item<Received>| ToBatch::new(()))
        .explain(1, Received::marks)
        .batch("rows", 50, 200 * MS, move |batch: Item<Batch<()>>| {
            let done = done.clone();
            async move { done.add_permits(batch.len()) }
        })
        .start();
    scene.ready().await;
    scene.publish(&scene.near, Window::tuned(), 50).await;
    scene.until_done(50).await;
    let cause = ended(running).await.cause();
    assert_eq!(cause, Some(Cause::PrefetchBelowBatch { prefetch: 10, batch_messages: 50 }));
}

#[tokio::test]
async fn a_slow_batch_handler() {
    let scene = Scene::new().await;
    let done = scene.done.clone();
    let running = Pipeline::from(scene.near.source("q"))
        .process(4, async |_: Item<Received>| ToBatch::new(()))
        .explain(1, Received::marks)
        .batch("rows", 1, 10 * MS, move |batch: Item<Batch<()>>| {
            let done = done.clone();
            async move {
                sleep(300 * MS).await;
                done.add_permits(batch.len());
            }
        })
        .start();
    scene.ready().await;
    scene.publish_in_turn(&scene.near, 2).await;
    let cause = ended(running).await.cause();
    assert!(matches!(cause, Some(Cause::BatchHandler { batch_us: 300_000.. })), "{cause:?}");
}
