//! One outcome for each message.

use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use crate::rig::peer::{Peer, Sent, connected};
use crate::rig::{Broker, PATIENCE, declare, depth, soon, with_queue};
use forebay_client::{
    CallError, CloseError, Connection, Happening, Message, NotPublishedReason, Partitions, Queue,
    Route, Unconfirmed, UnknownReason, Window,
};
use forebay_wire::{ShortStr, Value, basic, connection as amqp_connection};

#[tokio::test]
async fn a_message_is_admitted_and_then_confirmed() {
    let broker = Broker::start();
    let (connection, orders) = with_queue(&broker, "orders").await;
    let outcome = orders.publish("one").await.unwrap();
    let confirmed = soon("an outcome", outcome).await.unwrap();
    assert!(!confirmed.republished);
    assert_eq!(depth(&connection, "orders").await, 1);
    let metrics = orders.metrics();
    assert_eq!((metrics.published, metrics.confirmed, metrics.in_flight_messages), (1, 1, 0));
}

#[tokio::test]
async fn what_no_queue_takes_comes_back_with_its_reason() {
    let broker = Broker::start();
    let (connection, orders) = with_queue(&broker, "orders").await;
    let mut outcomes = Vec::new();
    for number in 0..100 {
        let message = Message::new(format!("{number}"));
        let message = match number % 3 {
            0 => message,
            1 => message.routing_key("nowhere"),
            _ => message.routing_key("nowhere").message_id(format!("mine-{number}")),
        };
        outcomes.push(orders.publish(message).await.unwrap());
    }
    for (number, outcome) in outcomes.into_iter().enumerate() {
        match soon("an outcome", outcome).await {
            Ok(_) => assert_eq!(number % 3, 0),
            Err(Unconfirmed::Returned(why)) => {
                assert_ne!(number % 3, 0);
                assert_eq!(why.code, 312);
            }
            Err(other) => panic!("{other}"),
        }
    }
    let unroutable = connection.publisher(Route::queue("nowhere")).allow_unroutable();
    let publisher = unroutable.build().await.unwrap();
    soon("an outcome", publisher.publish("x").await.unwrap()).await.unwrap();
}

#[tokio::test]
async fn what_the_broker_rejects_is_told_to_its_caller_alone() {
    let (connection, mut peer, _door) = connected(Default::default()).await;
    let publisher = connection.publisher(Route::queue("q")).build().await.unwrap();
    let first = publisher.publish("a").await.unwrap();
    let second = publisher.publish("b").await.unwrap();
    let (channel, ..) = peer.published().await;
    peer.published().await;
    peer.send(channel, &basic::Nack { delivery_tag: 1, ..Default::default() }).await;
    peer.confirm(channel, 2, false).await;
    assert_eq!(soon("an outcome", first).await, Err(Unconfirmed::Rejected));
    assert!(soon("an outcome", second).await.is_ok());
}

#[tokio::test]
async fn a_blocked_connection_admits_nobody_and_everything_else_goes_on() {
    let (connection, mut peer, _door) = connected(Default::default()).await;
    let mut happenings = connection.happenings();
    let publisher = connection.publisher(Route::queue("q")).build().await.unwrap();
    let before = publisher.publish("before").await.unwrap();
    let (channel, ..) = peer.published().await;
    let reason = ShortStr::truncated("low on memory");
    peer.send(0, &amqp_connection::Blocked { reason }).await;
    let blocked = soon("the news", happenings.recv()).await.unwrap();
    assert_eq!(blocked, Happening::Blocked { reason: "low on memory".into() });
    assert_eq!(connection.blocked().as_deref(), Some("low on memory"));
    let patience = Duration::from_millis(1);
    let late = publisher.publish_within(patience, "late").await.unwrap_err();
    assert_eq!(late.reason, NotPublishedReason::DeadlinePassed);
    // Confirms and channels go on.
    peer.confirm(channel, 1, false).await;
    soon("an outcome", before).await.unwrap();
    let waiting = tokio::spawn({
        let publisher = publisher.clone();
        async move { publisher.publish("after").await }
    });
    let opening = tokio::spawn(async move { connection.channel().await });
    peer.answer_until(|_| opening.is_finished()).await;
    assert!(opening.await.unwrap().is_ok());
    assert!(!waiting.is_finished());
    peer.send(0, &amqp_connection::Unblocked::default()).await;
    let (.., body) = peer.published().await;
    assert_eq!(body, b"after");
    assert!(soon("admission", waiting).await.unwrap().is_ok());
}

/// Before it knows, a window lets a message wait for a hundredth of a second.
#[tokio::test]
async fn a_window_hears_that_a_rabbitmq_carries_little() {
    let (connection, mut peer, _door) = connected(Default::default()).await;
    let publisher = connection.publisher(Route::queue("q")).build().await.unwrap();
    let always = tokio::spawn({
        let publisher = publisher.clone();
        async move {
            loop {
                drop(publisher.publish("more").await.unwrap());
            }
        }
    });
    let (channel, ..) = peer.published().await;
    let one_by_one = async {
        for delivery_tag in 1.. {
            // After some seconds it no longer knows how short a message was with it, and waits for that reason.
            assert!(delivery_tag < 400, "{:?}", publisher.metrics());
            tokio::time::sleep(Duration::from_millis(5)).await; // what a message takes it
            peer.confirm(channel, delivery_tag, false).await;
            peer.published().await;
            if publisher.metrics().target_us >= 15_000 {
                break;
            }
        }
    };
    soon("a longer target", one_by_one).await;
    always.abort();
}

#[tokio::test]
async fn a_missing_exchange_is_an_unknown_outcome_and_the_publisher_goes_on() {
    let broker = Broker::start();
    let (connection, orders) = with_queue(&broker, "orders").await;
    let lost = connection.publisher(Route::exchange("none", "k")).build().await.unwrap();
    for _ in 0..2 {
        match soon("an outcome", lost.publish("x").await.unwrap()).await {
            Err(Unconfirmed::Unknown(UnknownReason::ChannelClosed(why))) => {
                assert_eq!(why.code, 404)
            }
            other => panic!("{other:?}"),
        }
    }
    soon("an outcome", orders.publish("x").await.unwrap()).await.unwrap();
}

#[tokio::test]
async fn a_fixed_window_is_never_exceeded_and_admits_in_order() {
    let broker = Broker::start();
    let connection = broker.connect().await;
    declare(&connection, "q").await;
    let builder = connection.publisher(Route::queue("q")).window(Window::fixed(7));
    let publisher = builder.build().await.unwrap();
    let mut outcomes = Vec::new();
    for number in 0..2000_u32 {
        let message = number.to_be_bytes().to_vec();
        outcomes.push(soon("admission", publisher.publish(message)).await.unwrap());
        assert!(publisher.metrics().in_flight_messages <= 7);
    }
    for outcome in outcomes {
        soon("an outcome", outcome).await.unwrap();
    }
    let channel = connection.channel().await.unwrap();
    for number in 0..2000_u32 {
        let (message, _) = channel.get("q", true).await.unwrap().unwrap();
        assert_eq!(message.body(), number.to_be_bytes());
        assert_eq!(message.properties().delivery_mode, Some(2));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_share_a_publisher_and_each_gets_its_own_outcome() {
    let broker = Broker::start();
    let (connection, orders) = with_queue(&broker, "orders").await;
    let tasks: Vec<_> = (0..50)
        .map(|task| {
            let orders = orders.clone();
            tokio::spawn(async move {
                for number in 0..200 {
                    let key = if number % 10 == task % 10 { "nowhere" } else { "orders" };
                    let message = Message::new("x").routing_key(key);
                    let outcome = orders.publish(message).await.unwrap().await;
                    assert_eq!(outcome.is_ok(), key == "orders");
                }
            })
        })
        .collect();
    for task in tasks {
        soon("a caller", task).await.unwrap();
    }
    assert_eq!(depth(&connection, "orders").await, 50 * 180);
    let metrics = orders.metrics();
    assert_eq!((metrics.published, metrics.returned), (10_000, 1_000));
    assert_eq!(metrics.published, metrics.confirmed + metrics.returned);
}

#[tokio::test]
async fn a_deadline_hands_the_message_back_and_others_go_on() {
    let (connection, mut peer, _door) = connected(Default::default()).await;
    let builder = connection.publisher(Route::queue("q")).window(Window::fixed(1));
    let publisher = builder.build().await.unwrap();
    let held = publisher.publish("held").await.unwrap();
    let patience = Duration::from_millis(1);
    let late = publisher.publish_within(patience, "late").await.unwrap_err();
    assert_eq!(late.reason, NotPublishedReason::DeadlinePassed);
    assert_eq!(late.message.body(), b"late");
    let (channel, .., body) = peer.published().await;
    assert_eq!(body, b"held");
    peer.confirm(channel, 1, false).await;
    soon("an outcome", held).await.unwrap();
    let after = soon("admission", publisher.publish("after")).await.unwrap();
    let (.., body) = peer.published().await;
    assert_eq!(body, b"after");
    peer.confirm(channel, 2, false).await;
    soon("an outcome", after).await.unwrap();
}

#[tokio::test]
async fn whoever_gives_up_waiting_leaves_no_permit_behind() {
    let broker = Broker::start();
    let connection = broker.connect().await;
    declare(&connection, "q").await;
    let builder = connection.publisher(Route::queue("q")).window(Window::fixed(2));
    let publisher = builder.build().await.unwrap();
    for _ in 0..200 {
        let outcome = soon("admission", publisher.publish("kept")).await.unwrap();
        for _ in 0..5 {
            // Polled once and dropped: admitted or waiting, whichever it was.
            let _ = tokio::time::timeout(Duration::ZERO, publisher.publish("dropped")).await;
        }
        drop(outcome);
    }
    soon("idle", publisher.idle()).await;
    let metrics = publisher.metrics();
    assert_eq!((metrics.in_flight_messages, metrics.waiting), (0, 0));
    assert_eq!(metrics.published, metrics.confirmed);
}

#[tokio::test]
async fn what_is_published_so_far_is_waited_for_while_a_clone_goes_on() {
    let (connection, mut peer, _door) = connected(Default::default()).await;
    let publisher = connection.publisher(Route::queue("q")).build().await.unwrap();
    let kept = publisher.publish("before").await.unwrap();
    let mut idle = std::pin::pin!(publisher.idle());
    // Polled once: from here on it is known what it waits for.
    assert!(tokio::time::timeout(Duration::ZERO, idle.as_mut()).await.is_err());
    let after = publisher.clone().publish("after").await.unwrap();
    let (channel, ..) = peer.published().await;
    peer.confirm(channel, 1, false).await;
    soon("idle", idle).await;
    assert_eq!(publisher.metrics().in_flight_messages, 1);
    drop((kept, after));
}

#[tokio::test]
async fn who_waits_for_outcomes_no_longer_leaves_nothing_behind() {
    let (connection, mut peer, _door) = connected(Default::default()).await;
    let publisher = connection.publisher(Route::queue("q")).build().await.unwrap();
    let outcome = publisher.publish("a").await.unwrap();
    peer.published().await;
    let bell = Arc::new(Bell);
    let waker = Waker::from(bell.clone());
    for _ in 0..3 {
        let mut idle = Box::pin(publisher.idle());
        assert!(idle.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        assert_eq!(Arc::strong_count(&bell), 3);
        drop(idle);
        assert_eq!(Arc::strong_count(&bell), 2);
    }
    drop(outcome);
}

/// Rings for nobody.
struct Bell;

impl Wake for Bell {
    fn wake(self: Arc<Self>) {}
}

#[tokio::test]
async fn a_patience_without_an_end_is_none() {
    let broker = Broker::start();
    let (_connection, orders) = with_queue(&broker, "orders").await;
    let published = orders.publish_within(Duration::MAX, "one").await;
    soon("an outcome", published.unwrap()).await.unwrap();
}

#[tokio::test]
async fn dropping_everything_still_brings_the_messages_there() {
    let broker = Broker::start();
    let (connection, orders) = with_queue(&broker, "orders").await;
    for _ in 0..500 {
        drop(orders.publish("x").await.unwrap());
    }
    drop((orders, connection));
    let connection = broker.connect().await;
    soon("all there", async {
        while depth(&connection, "orders").await < 500 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn closing_waits_for_the_outcomes() {
    let broker = Broker::start();
    let (connection, orders) = with_queue(&broker, "orders").await;
    let mut outcomes = Vec::new();
    for _ in 0..500 {
        outcomes.push(orders.publish("x").await.unwrap());
    }
    soon("closed", connection.close()).await.unwrap();
    for outcome in outcomes {
        soon("an outcome", outcome).await.unwrap();
    }
    let refused = orders.publish("late").await.unwrap_err();
    assert!(matches!(refused.reason, NotPublishedReason::Lost(_)));
}

/// Closes; the broker agrees, and says nothing else.
async fn closed(connection: Connection, peer: &mut Peer) -> Result<(), CloseError> {
    let closing = tokio::spawn(connection.close());
    while !matches!(peer.next().await, Sent::Method { name: "connection.close", .. }) {}
    soon("closed", closing).await.unwrap()
}

#[tokio::test]
async fn closing_fails_over_what_was_refused_and_nobody_heard_of() {
    let (connection, mut peer, _door) = connected(Default::default()).await;
    let publisher = connection.publisher(Route::queue("q")).build().await.unwrap();
    let heard = publisher.publish("heard").await.unwrap();
    drop(publisher.publish("dropped before").await.unwrap());
    let dropped_after = publisher.publish("dropped after").await.unwrap();
    let kept = publisher.publish("kept").await.unwrap();
    drop(publisher.publish("confirmed").await.unwrap());
    let (channel, ..) = peer.published().await;
    peer.send(channel, &basic::Nack { delivery_tag: 4, multiple: true, requeue: false }).await;
    peer.confirm(channel, 5, false).await;
    assert_eq!(soon("an outcome", heard).await, Err(Unconfirmed::Rejected));
    drop(dropped_after);
    assert_eq!(publisher.metrics().abandoned_unconfirmed, 2);
    let error = closed(connection, &mut peer).await.unwrap_err();
    let counts =
        CloseError::Unconfirmed { rejected: 3, returned: 0, unknown: 0, withdrawn: 0, lost: None };
    assert_eq!(error, counts);
    assert!(error.to_string().contains("not confirmed: 3 (3 rejected"), "{error}");
    // It is told all the same to whoever asks later.
    assert_eq!(soon("an outcome", kept).await, Err(Unconfirmed::Rejected));
}

#[tokio::test]
async fn closing_fails_over_what_had_no_answer_in_time() {
    let builder = Connection::builder().close_patience(Duration::from_millis(1));
    let (connection, mut peer, _door) = connected(builder).await;
    let publisher = connection.publisher(Route::queue("q")).build().await.unwrap();
    drop(publisher.publish("dropped").await.unwrap());
    let _kept = publisher.publish("kept").await.unwrap();
    let awaited = tokio::spawn(publisher.publish("awaited").await.unwrap());
    peer.published().await;
    let unknown = closed(connection, &mut peer).await;
    let counts =
        CloseError::Unconfirmed { rejected: 0, returned: 0, unknown: 2, withdrawn: 0, lost: None };
    assert_eq!(unknown, Err(counts), "the third is told to its task");
    assert!(matches!(awaited.await.unwrap(), Err(Unconfirmed::Unknown(_))));
}

#[tokio::test]
async fn closing_fails_over_what_a_loss_left_unknown() {
    let builder = Connection::builder().without_recovery();
    let (connection, mut peer, _door) = connected(builder).await;
    let publisher = connection.publisher(Route::queue("q")).build().await.unwrap();
    drop(publisher.publish("dropped").await.unwrap());
    peer.published().await;
    drop(peer);
    soon("idle", publisher.idle()).await;
    match soon("closed", connection.close()).await {
        Err(CloseError::Unconfirmed { unknown: 1, lost: Some(_), .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn closing_is_in_order_if_all_is_confirmed_and_not_if_something_came_back() {
    let broker = Broker::start();
    for nowhere in [0, 2] {
        let (connection, orders) = with_queue(&broker, "orders").await;
        for _ in 0..100 {
            drop(orders.publish("x").await.unwrap());
        }
        for _ in 0..nowhere {
            drop(orders.publish(Message::new("x").routing_key("nowhere")).await.unwrap());
        }
        let returned = match soon("closed", connection.close()).await {
            Ok(()) => 0,
            Err(CloseError::Unconfirmed {
                rejected: 0,
                returned,
                unknown: 0,
                withdrawn: 0,
                lost: None,
            }) => returned,
            Err(other) => panic!("{other:?}"),
        };
        assert_eq!(returned, nowhere);
    }
}

#[tokio::test]
async fn the_window_finds_its_size_by_itself() {
    let broker = Broker::start();
    let (connection, orders) = with_queue(&broker, "orders").await;
    let mut last = None;
    for _ in 0..20_000 {
        last = Some(soon("admission", orders.publish(vec![0; 100])).await.unwrap());
    }
    soon("the last outcome", last.unwrap()).await.unwrap();
    soon("idle", orders.idle()).await;
    let metrics = orders.metrics();
    assert_eq!(metrics.confirmed, 20_000);
    assert!(metrics.window_messages >= 8);
    assert_eq!(metrics.confirm_latency.count, 20_000);
    let written = connection.metrics();
    assert!(written.writes * 4 < 20_000, "{} writes for 20,000 messages", written.writes);
}

#[tokio::test]
async fn names_that_amqp_cannot_say_are_refused() {
    let broker = Broker::start();
    let (connection, orders) = with_queue(&broker, "orders").await;
    let long = "k".repeat(256);
    assert!(connection.publisher(Route::queue(long.clone())).build().await.is_err());
    let refused = orders.publish(Message::new("x").correlation_id(long)).await.unwrap_err();
    assert!(matches!(refused.reason, NotPublishedReason::TooLong(_)));
}

#[tokio::test]
async fn each_key_keeps_to_its_part_and_its_order() {
    for parts in [Partitions::new("orders", 4), Partitions::by_exchange("orders", 4)] {
        keys_keep_to_their_parts(parts).await;
    }
}

async fn keys_keep_to_their_parts(parts: Partitions) {
    let broker = Broker::start();
    let connection = broker.connect().await;
    connection.declare(parts.topology(Queue::durable)).await.unwrap();
    let publisher = connection.publisher(parts.target()).build().await.unwrap();
    for number in 0..400_u32 {
        let message = parts.route((number % 20).to_string(), number.to_be_bytes().to_vec());
        drop(publisher.publish(message).await.unwrap());
    }
    publisher.idle().await;
    assert_eq!(publisher.metrics().confirmed, 400);
    let channel = connection.channel().await.unwrap();
    let mut seen = 0;
    let mut part_of = [None; 20];
    for part in 0..4 {
        let mut last = [None; 20];
        while let Some((message, _)) = channel.get(&parts.queue(part), true).await.unwrap() {
            let number = u32::from_be_bytes(message.body().try_into().unwrap());
            let key = number % 20;
            assert!(parts.of(key.to_string()).is_none_or(|chosen| chosen == part));
            assert_eq!(*part_of[key as usize].get_or_insert(part), part, "one part a key");
            assert!(last[key as usize].replace(number) < Some(number));
            seen += 1;
        }
    }
    assert_eq!(seen, 400);
}

#[tokio::test]
async fn headers_longer_than_a_frame_are_refused_and_nothing_breaks() {
    let broker = Broker::start();
    let (connection, publisher) = with_queue(&broker, "q").await;
    let with =
        |bytes| Message::new("m").header("long", Value::LongStr("x".repeat(bytes).as_bytes()));
    let long = with(200_000);
    let refused = publisher.publish(long).await.unwrap_err();
    assert!(matches!(refused.reason, NotPublishedReason::TooLong(_)));
    assert_eq!(
        refused.to_string().split(" of ").next(),
        Some("the message was not sent: properties")
    );
    // What fits is sent, and what is added on the way has room.
    let fits = with(125_000);
    soon("an outcome", publisher.publish(fits).await.unwrap()).await.unwrap();
    let asked = with(200_000);
    let refused = connection.caller().call(PATIENCE, &Route::queue("q"), asked).await.unwrap_err();
    assert!(matches!(refused, CallError::TooLong(_)), "{refused}");
    assert_eq!(connection.metrics().reconnects, 0);
}
