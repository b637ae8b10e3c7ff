//! A queue as the source of a pipeline.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay::pipeline::explain::Mark;
use forebay::pipeline::{Batch, Item, Outcome, Pipeline, QueueSource, Queues, Running, ToBatch};
use forebay::{Broker, Connection, Message, Publisher, Queue, Received, Route, Topology};
use forebay_bench::link::{Conditions, LinkProxy};
use tokio::sync::{Barrier, Semaphore};
use tokio::time::timeout;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

async fn filled(broker: &Broker, messages: u32) -> Connection {
    let connection = broker.connect().await.unwrap();
    connection.declare(Topology::new().queue(Queue::durable("q"))).await.unwrap();
    let publisher = connection.publisher(Route::queue("q")).build().await.unwrap();
    for number in 0..messages {
        drop(publisher.publish(number.to_string()).await.unwrap());
    }
    publisher.idle().await;
    connection
}

async fn left_in(connection: &Connection) -> u32 {
    connection.channel().await.unwrap().purge_queue("q").await.unwrap()
}

#[tokio::test]
async fn each_message_of_a_queue_is_worked_on_and_acknowledged() {
    let broker = Broker::in_memory().unwrap();
    let connection = filled(&broker, 1_000).await;
    let done = Arc::new(Semaphore::new(0));
    let tell = done.clone();
    let handler = move |_: Item<Received>| {
        let tell = tell.clone();
        async move { tell.add_permits(1) }
    };
    let running = Pipeline::from(connection.source("q")).process(10, handler).start();
    timeout(PATIENCE, done.acquire_many(1_000)).await.unwrap().unwrap().forget();
    running.control().drain(PATIENCE);
    assert_eq!(running.join().await.unwrap().acked, 1_000);
    assert_eq!(left_in(&connection).await, 0);
}

#[tokio::test]
async fn as_many_messages_are_in_work_as_there_are_workers() {
    let broker = Broker::in_memory().unwrap();
    let connection = filled(&broker, 40).await;
    let (begun, go_on) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (tell, wait) = (begun.clone(), go_on.clone());
    let handler = move |_: Item<Received>| {
        let (tell, wait) = (tell.clone(), wait.clone());
        async move {
            tell.add_permits(1);
            wait.acquire().await.unwrap().forget();
        }
    };
    let running = Pipeline::from(connection.source("q")).process(25, handler).start();
    timeout(PATIENCE, begun.acquire_many(25)).await.unwrap().unwrap().forget();
    assert_eq!(begun.available_permits(), 0);
    // Fifteen more, though those here are still busy.
    running.control().set_concurrency(40);
    timeout(PATIENCE, begun.acquire_many(15)).await.unwrap().unwrap().forget();
    go_on.add_permits(40);
    running.control().drain(PATIENCE);
    assert_eq!(running.join().await.unwrap().acked, 40);
}

#[tokio::test]
async fn what_is_requeued_comes_again_and_what_is_given_up_is_back_in_its_queue() {
    let broker = Broker::in_memory().unwrap();
    let connection = filled(&broker, 3).await;
    let (begun, again) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicU32::new(0)));
    let (tell, count) = (begun.clone(), again.clone());
    let first = AtomicBool::new(true);
    let handler = move |message: Item<Received>| {
        let first = first.swap(false, Ordering::Relaxed);
        let (tell, count) = (tell.clone(), count.clone());
        async move {
            if first {
                return Outcome::Requeue;
            }
            count.fetch_add(u32::from(message.redelivered()), Ordering::Relaxed);
            tell.add_permits(1);
            std::future::pending().await
        }
    };
    let running = Pipeline::from(connection.source("q")).process(3, handler).start();
    timeout(PATIENCE, begun.acquire_many(3)).await.unwrap().unwrap().forget();
    assert_eq!(again.load(Ordering::Relaxed), 1);
    running.control().drain(Duration::ZERO);
    assert_eq!(running.join().await.unwrap().requeued, 1);
    let mut left = 0;
    while left < 3 {
        left += timeout(PATIENCE, left_in(&connection)).await.unwrap();
    }
}

#[tokio::test]
async fn a_batch_may_be_larger_than_any_credit_was() {
    let broker = Broker::in_memory().unwrap();
    let connection = filled(&broker, 1_500).await;
    let full = Arc::new(Semaphore::new(0));
    let tell = full.clone();
    let handler = move |batch: Item<Batch<u32>>| {
        let tell = tell.clone();
        async move { tell.add_permits(batch.len()) }
    };
    let hour = Duration::from_secs(3_600);
    let running = Pipeline::from(connection.source("q"))
        .process(4, async |_: Item<Received>| ToBatch::new(1))
        .batch("b", 1_500, hour, handler)
        .start();
    timeout(PATIENCE, full.acquire_many(1_500)).await.unwrap().unwrap().forget();
    running.control().drain(PATIENCE);
    assert_eq!(running.join().await.unwrap().acked, 1_500);
    assert_eq!(left_in(&connection).await, 0);
}

/// Three messages of one key are taken, and their connection is cut while the first is in work; they come again, or `late` ones are
/// published until one has come: what was begun of the three, in order.
async fn begun_over_a_cut(queue: Queue, transient: bool, late: bool) -> Vec<String> {
    let broker = Broker::in_memory().unwrap();
    let none = Conditions { rtt_us: 0, jitter_us: 0, bytes_per_s: None };
    let link = LinkProxy::start(broker.listen("127.0.0.1:0").unwrap(), none).unwrap();
    let uri = format!("amqp://guest:guest@{}", link.address());
    let connection = Connection::open(&uri).await.unwrap();
    connection.declare(Topology::new().queue(queue)).await.unwrap();
    let publisher = connection.publisher(Route::queue("q")).build().await.unwrap();
    for number in 0..3 {
        let message = Message::new(number.to_string());
        let message = if transient { message.transient() } else { message };
        drop(publisher.publish(message).await.unwrap());
    }
    publisher.idle().await;
    let (begun, go_on) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Semaphore::new(0)));
    let (note, wait) = (begun.clone(), go_on.clone());
    let come = Arc::new(Semaphore::new(0));
    let tell = come.clone();
    let running = Pipeline::from(connection.source("q"))
        .process(2, move |message: Item<Received>| {
            note.lock().unwrap().push(String::from_utf8_lossy(message.body()).into_owned());
            let wait = wait.clone();
            async move { wait.acquire().await.unwrap().forget() }
        })
        .ordered_by(move |_| {
            tell.add_permits(1);
            "one key"
        })
        .start();
    let taken = async |messages| {
        let taken = timeout(PATIENCE, come.acquire_many(messages)).await;
        taken.expect("there is a connection").unwrap().forget();
    };
    taken(3).await;
    link.cut();
    if late {
        // Until it is consumed again its queue may be gone, and what was published meanwhile with it.
        let publishing = async {
            loop {
                drop(publisher.publish("late").await.unwrap().await);
            }
        };
        tokio::select! {
            () = taken(1) => {}
            () = publishing => {}
        }
    } else {
        taken(3).await;
    }
    go_on.add_permits(1 << 20);
    running.control().drain(PATIENCE);
    running.join().await.unwrap();
    // The last that was published late was not waited for, and may have come to no queue.
    let closed = connection.close().await;
    assert!(late || closed.is_ok(), "{closed:?}");
    let mut begun = std::mem::take(&mut *begun.lock().unwrap());
    begun.retain(|body| body != "late");
    begun
}

#[tokio::test]
async fn what_waits_for_its_key_is_not_begun_when_its_connection_is_lost() {
    // The first was in work when the connection broke.
    assert_eq!(begun_over_a_cut(Queue::durable("q"), false, false).await, ["0", "0", "1", "2"]);
}

#[tokio::test]
async fn what_might_not_come_again_after_a_lost_connection_is_begun() {
    let twice = ["0", "1", "2", "0", "1", "2"];
    assert_eq!(begun_over_a_cut(Queue::durable("q"), true, false).await, twice);
    assert_eq!(begun_over_a_cut(Queue::transient("q"), false, false).await, twice);
}

#[tokio::test]
async fn what_a_queue_had_that_is_gone_with_its_connection_is_begun() {
    let begun = begun_over_a_cut(Queue::durable("q").auto_delete(), false, true).await;
    assert_eq!(begun[..3], ["0", "1", "2"]);
}

#[tokio::test]
async fn a_queue_that_is_not_there_ends_the_pipeline_with_a_sentence() {
    let broker = Broker::in_memory().unwrap();
    let connection = broker.connect().await.unwrap();
    let pipeline = Pipeline::from(connection.source("nowhere"));
    let error = pipeline.process(2, async |_: Item<Received>| {}).run().await.unwrap_err();
    assert!(error.to_string().contains("no queue 'nowhere'"), "{error}");
}

#[tokio::test]
async fn a_set_up_that_does_not_fit_is_named_at_the_start_and_when_it_changes() {
    let broker = Broker::in_memory().unwrap();
    let connection = filled(&broker, 0).await;
    let handler = async |_: Item<Received>| {};
    let names = |running: &Running| -> Vec<&str> {
        running.control().findings().iter().map(|finding| finding.name).collect()
    };
    let source = || QueueSource::from(connection.consumer("q").fixed_credit(10));
    let running = Pipeline::from(source().keep_credit()).process(10, handler).start();
    assert_eq!(names(&running), [""; 0]);
    running.control().set_concurrency(25);
    assert_eq!(names(&running), ["prefetch-below-workers"]);
    running.control().set_concurrency(30);
    assert_eq!(names(&running).len(), 1, "each is named once");

    let running = Pipeline::from(connection.source("q")).process(2_000, handler).start();
    assert_eq!(names(&running), [""; 0], "what nobody set is set as it has to be");

    let running = Pipeline::from(source()).process(25, handler).start();
    assert_eq!(names(&running), ["prefetch-below-workers"]);
    let says = &running.control().findings()[0].says;
    assert!(says.ends_with("(here it follows the workers)"), "{says}");
    running.control().set_concurrency(50);
    assert_eq!(names(&running).len(), 1, "it still does");
}

/// Whether all of them work at once, of as many jobs as there are workers.
async fn all_work_at_once(source: QueueSource, publisher: &Publisher, workers: usize) {
    let (all, done) = (Arc::new(Barrier::new(workers)), Arc::new(Semaphore::new(0)));
    let tell = done.clone();
    let running = Pipeline::from(source)
        .process(workers, move |_: Item<Received>| {
            let (all, tell) = (all.clone(), tell.clone());
            async move {
                all.wait().await;
                tell.add_permits(1);
            }
        })
        .start();
    for number in 0..workers {
        let job = Message::from(number.to_string().into_bytes());
        publisher.publish(job).await.unwrap().await.unwrap();
    }
    let worked = timeout(PATIENCE, done.acquire_many(workers as u32)).await;
    assert!(worked.is_ok(), "each of them has a job");
    running.control().drain(PATIENCE);
    running.join().await.unwrap();
}

#[tokio::test]
async fn a_prefetch_set_by_hand_leaves_no_worker_without_a_job() {
    let broker = Broker::in_memory().unwrap();
    let connection = filled(&broker, 0).await;
    let publisher = connection.publisher(Route::queue("q")).build().await.unwrap();
    for prefetch in [1, 5, 25, 250] {
        let consumer = connection.consumer("q");
        all_work_at_once(consumer.clone().fixed_credit(prefetch).into(), &publisher, 25).await;
        all_work_at_once(consumer.credit_max(prefetch).into(), &publisher, 25).await;
    }
}

#[tokio::test]
async fn the_way_from_a_publisher_to_a_pipeline_counts_where_it_is_marked() {
    let broker = Broker::in_memory().unwrap();
    let connection = filled(&broker, 0).await;
    let publisher = connection.publisher(Route::queue("q")).explain(1).build().await.unwrap();
    let pause = Duration::from_millis(20);
    publisher.publish(Message::from("early")).await.unwrap().await.unwrap();
    tokio::time::sleep(pause).await; // it waits in its queue for at least so long
    let done = Arc::new(Semaphore::new(0));
    let tell = done.clone();
    let running = Pipeline::from(connection.source("q"))
        .process(1, move |_: Item<Received>| {
            let tell = tell.clone();
            async move { tell.add_permits(1) }
        })
        .explain(1, Received::marks)
        .start();
    timeout(PATIENCE, done.acquire()).await.unwrap().unwrap().forget();
    let control = running.control();
    control.drain(PATIENCE);
    running.join().await.unwrap();
    let explanation = control.explanation().unwrap();
    let ends: Vec<Mark> = explanation.shares().iter().map(|share| share.segment.to).collect();
    let way = [Mark::Admitted, Mark::Written, Mark::Received, Mark::Sent, Mark::Delivered];
    assert_eq!(ends[..5], way);
    let queue = explanation.shares()[3];
    assert_eq!(queue.segment.name(), "queue");
    assert!(u128::from(queue.sum_us) >= pause.as_micros(), "{explanation:?}");
    let sum: u64 = explanation.shares().iter().map(|share| share.sum_us).sum();
    assert_eq!(sum, explanation.total_us());
}
