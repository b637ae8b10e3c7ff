//! No message waits behind a busy worker while another is idle, in whatever process: what a pipeline was through
//! before does not make it hold more than its workers can begin.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use forebay::pipeline::source::merge;
use forebay::pipeline::{Batch, Breaker, Item, Outcome, Pipeline, Queues, Running, ToBatch};
use forebay::{Broker, Connection, Queue, Received, Route, Topology};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);
const HOUR: Duration = Duration::from_secs(3_600);

type Handled = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// A queue, and what has become of its messages.
#[derive(Clone)]
struct Work {
    connection: Connection,
    begun: Arc<Semaphore>,
    go_on: Arc<Semaphore>,
    done: Arc<Semaphore>,
}

impl Work {
    async fn new(broker: &Broker) -> Work {
        let connection = broker.connect().await.unwrap();
        connection.declare(Topology::new().queue(Queue::durable("q"))).await.unwrap();
        let none = || Arc::new(Semaphore::new(0));
        Work { connection, begun: none(), go_on: none(), done: none() }
    }

    async fn publish(&self, body: &str, times: u32) {
        let publisher = self.connection.publisher(Route::queue("q")).build().await.unwrap();
        for _ in 0..times {
            drop(publisher.publish(body.to_owned()).await.unwrap());
        }
        publisher.idle().await;
    }

    /// `long` jobs begin and last until they may go on, `later` ones are put off, others are done at once.
    async fn handle(self, message: Item<Received>) -> Outcome {
        match message.body() {
            b"long" => {
                self.begun.add_permits(1);
                self.go_on.acquire().await.unwrap().forget();
            }
            b"later" => {
                self.begun.add_permits(1);
                return Outcome::Retry(HOUR);
            }
            _ => self.done.add_permits(1),
        }
        Outcome::Ack
    }

    /// The handler of a pipeline.
    fn handler(&self) -> impl Fn(Item<Received>) -> Handled + Send + Sync + 'static {
        let work = self.clone();
        move |message| Box::pin(work.clone().handle(message))
    }

    /// A pipeline of so many workers.
    fn pipeline(&self, workers: usize) -> Running {
        let source = self.connection.source("q");
        Pipeline::from(source).process(workers, self.handler()).start()
    }

    async fn begun(&self, jobs: u32) {
        timeout(PATIENCE, self.begun.acquire_many(jobs)).await.unwrap().unwrap().forget();
    }

    async fn done(&self, jobs: u32) {
        timeout(PATIENCE, self.done.acquire_many(jobs)).await.unwrap().unwrap().forget();
    }

    /// The two workers of `pipeline` become busy, and then others get all that comes.
    async fn others_get_what_comes(&self, pipeline: &Running) {
        self.publish("long", 2).await;
        self.begun(2).await;
        let others = self.pipeline(2);
        self.publish("short", 10).await;
        self.done(10).await;
        self.go_on.add_permits(2);
        pipeline.control().drain(Duration::ZERO);
        others.control().drain(PATIENCE);
        others.join().await.unwrap();
    }
}

#[tokio::test]
async fn after_one_that_is_put_off() {
    let broker = Broker::in_memory().unwrap();
    let work = Work::new(&broker).await;
    let pipeline = work.pipeline(2);
    work.publish("later", 3).await;
    work.begun(3).await;
    work.others_get_what_comes(&pipeline).await;
}

#[tokio::test]
async fn with_fewer_workers_than_there_were() {
    let broker = Broker::in_memory().unwrap();
    let work = Work::new(&broker).await;
    let pipeline = work.pipeline(50);
    work.publish("short", 100).await;
    work.done(100).await;
    pipeline.control().set_concurrency(2);
    work.others_get_what_comes(&pipeline).await;
}

#[tokio::test]
async fn after_thousands_that_were_done_at_once() {
    let broker = Broker::in_memory().unwrap();
    let work = Work::new(&broker).await;
    let pipeline = work.pipeline(2);
    work.publish("short", 5_000).await;
    work.done(5_000).await;
    work.others_get_what_comes(&pipeline).await;
}

#[tokio::test]
async fn with_several_sources_for_the_same_workers() {
    let broker = Broker::in_memory().unwrap();
    let work = Work::new(&broker).await;
    let sources = merge((0..8).map(|_| work.connection.source("q")));
    let pipeline = Pipeline::from(sources).process(2, work.handler()).start();
    work.publish("short", 100).await;
    work.done(100).await;
    work.others_get_what_comes(&pipeline).await;
}

#[tokio::test]
async fn while_messages_wait_for_their_batch() {
    let broker = Broker::in_memory().unwrap();
    let work = Work::new(&broker).await;
    let handled = work.handler();
    let handler = move |job: Item<Received>| {
        let handled = handled(job);
        async move {
            let _ = handled.await;
            ToBatch::new(())
        }
    };
    let pipeline = Pipeline::from(work.connection.source("q"))
        .process(2, handler)
        .batch("b", 10, HOUR, async |_: Item<Batch<()>>| {})
        .start();
    work.publish("short", 7).await;
    work.done(7).await;
    work.others_get_what_comes(&pipeline).await;
}

#[tokio::test]
async fn while_a_breaker_is_open() {
    let broker = Broker::in_memory().unwrap();
    let work = Work::new(&broker).await;
    let pipeline = Pipeline::from(work.connection.source("q"))
        .process(2, work.handler())
        .breaker(Breaker::new(1, HOUR, HOUR))
        .start();
    work.publish("later", 1).await;
    work.begun(1).await;
    let others = work.pipeline(2);
    work.publish("short", 10).await;
    work.done(10).await;
    pipeline.control().drain(Duration::ZERO);
    others.control().drain(PATIENCE);
    others.join().await.unwrap();
}

/// Its workers may begin one message in a second, and would be done with it at once.
#[tokio::test]
async fn while_a_rate_lets_none_begin() {
    let broker = Broker::in_memory().unwrap();
    let work = Work::new(&broker).await;
    let pipeline = Pipeline::from(work.connection.source("q"))
        .process(50, work.handler())
        .rate_limit(1)
        .start();
    work.publish("short", 1).await;
    work.done(1).await;
    let others = work.pipeline(2);
    work.publish("short", 200).await;
    work.done(200).await;
    pipeline.control().drain(Duration::ZERO);
    others.control().drain(PATIENCE);
    others.join().await.unwrap();
}

#[tokio::test]
async fn while_the_buffer_is_full() {
    let broker = Broker::in_memory().unwrap();
    let work = Work::new(&broker).await;
    let pipeline = Pipeline::from(work.connection.source("q"))
        .process(50, work.handler())
        .ordered_by(|_| "one key")
        .buffer_max(2)
        .start();
    // One in work, and two that wait for it.
    work.publish("long", 3).await;
    work.begun(1).await;
    while pipeline.control().report().taken < 3 {
        tokio::task::yield_now().await;
    }
    let others = work.pipeline(2);
    work.publish("short", 10).await;
    work.done(10).await;
    pipeline.control().drain(Duration::ZERO);
    others.control().drain(PATIENCE);
    others.join().await.unwrap();
}

#[tokio::test]
async fn more_workers_come_than_any_credit_was_and_each_has_a_message() {
    let broker = Broker::in_memory().unwrap();
    let work = Work::new(&broker).await;
    let pipeline = work.pipeline(1);
    work.publish("short", 1).await;
    work.done(1).await;
    pipeline.control().set_concurrency(2_500);
    work.publish("long", 2_500).await;
    work.begun(2_500).await;
    assert_eq!(pipeline.control().findings(), []);
    work.go_on.add_permits(2_500);
    pipeline.control().drain(PATIENCE);
    pipeline.join().await.unwrap();
}

#[tokio::test]
async fn more_are_put_off_than_any_credit_was_and_the_rest_goes_on() {
    let broker = Broker::in_memory().unwrap();
    let work = Work::new(&broker).await;
    let pipeline = Pipeline::from(work.connection.source("q"))
        .process(2, work.handler())
        .buffer_max(3_000)
        .start();
    work.publish("later", 2_000).await;
    work.begun(2_000).await;
    work.publish("short", 10).await;
    work.done(10).await;
    pipeline.control().drain(Duration::ZERO);
}
