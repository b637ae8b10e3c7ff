//! Credit that follows the workers, acks that leave together, nothing lost on the way.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::rig::peer::{Sent, connected};
use crate::rig::{Broker, PATIENCE, depth, soon, with_queue};
use forebay_client::{ConsumeError, Consumer};

async fn fill(publisher: &forebay_client::Publisher, count: u32) {
    for number in 0..count {
        drop(publisher.publish(number.to_be_bytes().to_vec()).await.unwrap());
    }
    publisher.idle().await;
}

fn number(body: &[u8]) -> u32 {
    u32::from_be_bytes(body.try_into().unwrap())
}

async fn next(consumer: &mut Consumer) -> forebay_client::Delivery {
    soon("a delivery", consumer.next()).await.unwrap().expect("a message")
}

#[tokio::test]
async fn messages_come_in_order_and_acks_leave_together() {
    let broker = Broker::start();
    let (connection, orders) = with_queue(&broker, "orders").await;
    fill(&orders, 5000).await;
    let mut consumer = connection.consumer("orders").build().await.unwrap();
    for expected in 0..5000 {
        let delivery = next(&mut consumer).await;
        assert_eq!(number(delivery.body()), expected);
        delivery.ack();
    }
    let metrics = consumer.metrics();
    assert_eq!((metrics.acked, metrics.in_work), (5000, 0));
    assert!(metrics.ack_frames * 2 < 5000, "{} frames", metrics.ack_frames);
    drop(consumer);
    connection.clone().close().await.unwrap();
    let connection = broker.connect().await;
    assert_eq!(depth(&connection, "orders").await, 0);
}

#[tokio::test]
async fn whoever_collects_before_settling_gets_all_it_asks_for() {
    let broker = Broker::start();
    let (connection, orders) = with_queue(&broker, "orders").await;
    fill(&orders, 300).await;
    let mut consumer = connection.consumer("orders").build().await.unwrap();
    let mut batch = Vec::new();
    for _ in 0..300 {
        batch.push(next(&mut consumer).await);
    }
    assert_eq!(consumer.metrics().in_work, 300);
    for delivery in batch.into_iter().rev() {
        assert!(delivery.ack().in_time().is_ok());
    }
    assert_eq!(consumer.metrics().in_work, 0);
}

#[tokio::test]
async fn slow_work_holds_nothing_back() {
    let broker = Broker::start();
    let (connection, orders) = with_queue(&broker, "orders").await;
    fill(&orders, 100).await;
    let mut busy = connection.consumer("orders").build().await.unwrap();
    let held = next(&mut busy).await;
    // Its one worker is busy, so all the others are for somebody else.
    let mut other = connection.consumer("orders").build().await.unwrap();
    let mut seen = BTreeSet::new();
    while seen.len() < 99 {
        let delivery = next(&mut other).await;
        seen.insert(number(delivery.body()));
        delivery.ack();
    }
    assert!(!seen.contains(&number(held.body())));
}

#[tokio::test]
async fn what_waits_behind_a_worker_that_got_stuck_goes_to_others() {
    let broker = Broker::start();
    let (connection, orders) = with_queue(&broker, "orders").await;
    fill(&orders, 2000).await;
    let mut stuck = connection.consumer("orders").build().await.unwrap();
    // Fast work first, so that many messages are sent ahead.
    while stuck.metrics().ready < 4 {
        next(&mut stuck).await.ack();
    }
    let held = next(&mut stuck).await;
    let mut other = connection.consumer("orders").build().await.unwrap();
    let mut left = 2000 - stuck.metrics().acked - 1;
    while left > 0 {
        next(&mut other).await.ack();
        left -= 1;
    }
    assert!(stuck.metrics().handed_back >= 1);
    assert_eq!((stuck.metrics().ready, stuck.metrics().in_work), (0, 1));
    held.ack();
}

/// A credit that is one or two above the workers is not worth a change otherwise.
#[tokio::test]
async fn one_message_behind_workers_that_got_stuck_goes_to_others() {
    let broker = Broker::start();
    let (connection, orders) = with_queue(&broker, "orders").await;
    let mut stuck = connection.consumer("orders").workers(2).build().await.unwrap();
    let mut other = connection.consumer("orders").workers(2).build().await.unwrap();
    // Short jobs for both, so that each is sent a little more than its workers can take.
    fill(&orders, 200).await;
    for _ in 0..200 {
        let job = tokio::select! {
            job = stuck.next() => job.unwrap().unwrap(),
            job = other.next() => job.unwrap().unwrap(),
        };
        tokio::time::sleep(Duration::from_millis(1)).await; // its work
        job.ack();
    }
    let mut held = Vec::new();
    while held.len() < 2 {
        fill(&orders, 1).await;
        tokio::select! {
            job = stuck.next() => held.push(job.unwrap().unwrap()),
            job = other.next() => drop(job.unwrap().unwrap().ack()),
        };
    }
    fill(&orders, 100).await;
    for _ in 0..100 {
        next(&mut other).await.ack();
    }
    assert_eq!((stuck.metrics().ready, stuck.metrics().in_work), (0, 2));
}

#[tokio::test]
async fn a_dropped_consumer_takes_no_more_and_its_work_can_still_be_settled() {
    let broker = Broker::start();
    let (connection, orders) = with_queue(&broker, "orders").await;
    fill(&orders, 10).await;
    let mut consumer = connection.consumer("orders").fixed_credit(10).build().await.unwrap();
    let held = next(&mut consumer).await;
    drop(consumer);
    let mut other = connection.consumer("orders").build().await.unwrap();
    for expected in 1..10 {
        let delivery = next(&mut other).await;
        assert_eq!(number(delivery.body()), expected);
        delivery.ack();
    }
    assert!(held.ack().in_time().is_ok());
}

#[tokio::test]
async fn who_holds_a_message_for_longer_than_it_may_can_know() {
    let broker = Broker::start();
    let (connection, orders) = with_queue(&broker, "orders").await;
    fill(&orders, 2).await;
    let limited = connection.consumer("orders").work_limit(Duration::from_millis(1));
    let mut consumer = limited.build().await.unwrap();
    let held = next(&mut consumer).await;
    soon("the end of its time", async {
        while !held.is_stale() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(held.comes_again());
    drop(consumer);
    let mut other = connection.consumer("orders").build().await.unwrap();
    let held = next(&mut other).await;
    assert!(!held.is_stale() && !held.comes_again(), "it may be held for as long as it takes");
}

#[tokio::test]
async fn work_may_take_a_moment_whatever_the_limit_and_any_time_may_be_one() {
    let broker = Broker::start();
    let (connection, _orders) = with_queue(&broker, "orders").await;
    let limit = |limit| connection.consumer("orders").work_limit(limit).limits().work_limit;
    let millisecond = Duration::from_millis(1);
    assert_eq!(limit(Duration::ZERO), Some(millisecond), "not given back before it is handed out");
    assert_eq!(limit(millisecond / 2), Some(millisecond));
    // Microseconds of this are counted in 64 bits; those of the other are not.
    for long in [Duration::from_secs(1 << 44), Duration::from_secs(18_446_744_073_710)] {
        assert!(limit(long) >= Some(Duration::from_secs(1 << 44)), "{long:?}");
    }
}

#[tokio::test]
async fn what_is_dropped_or_requeued_comes_again_and_what_is_rejected_does_not() {
    let broker = Broker::start();
    let (connection, orders) = with_queue(&broker, "orders").await;
    fill(&orders, 1).await;
    let mut consumer = connection.consumer("orders").build().await.unwrap();
    drop(next(&mut consumer).await);
    let again = next(&mut consumer).await;
    assert!(again.redelivered());
    again.requeue();
    next(&mut consumer).await.reject();
    fill(&orders, 1).await;
    assert!(!next(&mut consumer).await.redelivered());
}

#[tokio::test]
async fn stopping_gives_back_what_waits_and_keeps_what_is_in_work() {
    let broker = Broker::start();
    let (connection, orders) = with_queue(&broker, "orders").await;
    fill(&orders, 50).await;
    let mut consumer = connection.consumer("orders").fixed_credit(20).build().await.unwrap();
    let held = next(&mut consumer).await;
    consumer.stop();
    assert!(soon("the end", consumer.next()).await.unwrap().is_none());
    soon("the rest in the queue", async {
        while depth(&connection, "orders").await < 49 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(held.ack().in_time().is_ok());
    let mut rest = connection.consumer("orders").build().await.unwrap();
    for expected in 1..50 {
        let delivery = next(&mut rest).await;
        assert_eq!(number(delivery.body()), expected, "requeued messages keep their order");
        delivery.ack();
    }
}

#[tokio::test]
async fn a_queue_that_is_missing_or_goes_away_is_told() {
    let broker = Broker::start();
    let (connection, _orders) = with_queue(&broker, "orders").await;
    assert!(connection.consumer("none").build().await.is_err());
    let mut consumer = connection.consumer("orders").build().await.unwrap();
    connection.channel().await.unwrap().delete_queue("orders", false, false).await.unwrap();
    let error = soon("the news", consumer.next()).await.unwrap_err();
    assert_eq!(error, ConsumeError::Cancelled);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_workers_at_once_each_settle_their_own() {
    let broker = Broker::start();
    let (connection, orders) = with_queue(&broker, "orders").await;
    fill(&orders, 2000).await;
    let mut consumer = connection.consumer("orders").workers(25).build().await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..2000 {
        let delivery = next(&mut consumer).await;
        tasks.spawn(async move {
            tokio::task::yield_now().await;
            let odd = number(delivery.body()) & 1 == 1;
            if odd { delivery.reject() } else { delivery.ack() }
        });
    }
    while let Some(settlement) = soon("a worker", tasks.join_next()).await {
        assert!(settlement.unwrap().in_time().is_ok());
    }
    drop(consumer);
    assert_eq!(depth(&connection, "orders").await, 0);
}

#[tokio::test]
async fn where_credit_cannot_change_live_a_second_consumer_takes_over_from_the_first() {
    let (connection, peer, mut door) = connected(Default::default()).await;
    let building = tokio::spawn(async move { connection.consumer("jobs").build().await });
    let mut peer_of_consumer = door.next().await;
    let consumed = |sent| match sent {
        Sent::Consume { channel, tag, .. } => (channel, tag),
        other => panic!("{other:?}"),
    };
    assert!(matches!(peer_of_consumer.next().await, Sent::Qos { count: 1, global: false, .. }));
    let (first, first_tag) = consumed(peer_of_consumer.next().await);
    let mut consumer = soon("a consumer", building).await.unwrap().unwrap();
    peer_of_consumer.deliver(first, &first_tag, 1, b"a").await;
    let held = next(&mut consumer).await;
    // Asking for another while holding one is the sign of a second worker.
    let asking = tokio::spawn(async move {
        let second = next(&mut consumer).await;
        (consumer, second)
    });
    let Sent::Qos { channel: second, count, .. } = peer_of_consumer.next().await else { panic!() };
    assert!(count >= 2);
    assert_eq!(second, first, "what is worked off in order is sent in order");
    let (_, second_tag) = consumed(peer_of_consumer.next().await);
    assert_ne!(second_tag, first_tag, "make before break");
    match peer_of_consumer.next().await {
        Sent::Cancel { channel, tag } => assert_eq!((channel, tag), (first, first_tag)),
        other => panic!("{other:?}"),
    }
    peer_of_consumer.deliver(first, &second_tag, 2, b"b").await;
    let (_consumer, other) = soon("the second", asking).await.unwrap();
    other.ack();
    assert_eq!(
        peer_of_consumer.next().await,
        Sent::Ack { channel: first, tag: 2, multiple: false }
    );
    held.ack();
    assert_eq!(
        peer_of_consumer.next().await,
        Sent::Ack { channel: first, tag: 1, multiple: false }
    );
    drop(peer);
}

#[tokio::test]
async fn acks_wait_for_a_gap_and_then_cover_what_is_finished_only() {
    let (connection, _peer, mut door) = connected(Default::default()).await;
    let building =
        tokio::spawn(async move { connection.consumer("jobs").fixed_credit(100).build().await });
    let mut peer = door.next().await;
    peer.next().await;
    let Sent::Consume { channel, tag, .. } = peer.next().await else { panic!() };
    let mut consumer = soon("a consumer", building).await.unwrap().unwrap();
    let mut held = Vec::new();
    for number in 1..=10 {
        peer.deliver(channel, &tag, number, b"x").await;
        held.push(Some(next(&mut consumer).await));
    }
    for number in [1, 2, 3, 5, 6] {
        held[number - 1].take().unwrap().ack();
    }
    assert_eq!(peer.next().await, Sent::Ack { channel, tag: 3, multiple: true });
    assert_eq!(peer.next().await, Sent::Ack { channel, tag: 5, multiple: false });
    assert_eq!(peer.next().await, Sent::Ack { channel, tag: 6, multiple: false });
    held[3].take().unwrap().requeue();
    assert_eq!(peer.next().await, Sent::Nack { channel, tag: 4, requeue: true });
    for delivery in held.into_iter().flatten() {
        delivery.ack();
    }
    assert_eq!(peer.next().await, Sent::Ack { channel, tag: 10, multiple: true });
}

#[tokio::test]
async fn an_idle_consumer_waits_without_end() {
    let broker = Broker::start();
    let (connection, orders) = with_queue(&broker, "orders").await;
    let mut consumer = connection.consumer("orders").build().await.unwrap();
    let waited = tokio::time::timeout(Duration::from_millis(5), consumer.next()).await;
    assert!(waited.is_err(), "a dropped wait takes nothing");
    fill(&orders, 1).await;
    let delivery = tokio::time::timeout(PATIENCE, consumer.next()).await.unwrap();
    delivery.unwrap().unwrap().ack();
}

#[tokio::test]
async fn a_delivery_tag_that_was_there_before_is_the_end_of_the_connection() {
    let (connection, peer, mut door) = connected(Default::default()).await;
    let building = tokio::spawn({
        let connection = connection.clone();
        async move { connection.consumer("q").build().await }
    });
    // Consumers have a connection of their own.
    let mut consuming = door.next().await;
    let (channel, tag) = loop {
        if let Sent::Consume { channel, tag, .. } = consuming.next().await {
            break (channel, tag);
        }
    };
    let mut consumer = soon("a consumer", building).await.unwrap().unwrap();
    consuming.deliver(channel, &tag, 1, b"one").await;
    let first = soon("a message", consumer.next()).await.unwrap().unwrap();
    consuming.deliver(channel, &tag, 1, b"again").await;
    let mut consuming = door.next().await;
    let (channel, tag) = loop {
        if let Sent::Consume { channel, tag, .. } = consuming.next().await {
            break (channel, tag);
        }
    };
    consuming.deliver(channel, &tag, 1, b"two").await;
    let second = soon("a message", consumer.next()).await.unwrap().unwrap();
    assert_eq!((first.body(), second.body()), (&b"one"[..], &b"two"[..]));
    assert_eq!(connection.metrics().reconnects, 0, "nothing became of the other connection");
    drop(peer);
}
