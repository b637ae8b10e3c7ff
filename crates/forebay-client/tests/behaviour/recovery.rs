//! Connections break, and what was begun on them goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use forebay_wire::{WireMethod, connection, queue};
use tokio::sync::Notify;

use crate::rig::peer::{Knock, Peer, Sent, connected, door};
use crate::rig::{Broker, soon};
use forebay_client::{
    Binding, BuildConsumerError, CloseError, Connection, Exchange, Happening, Lost,
    NotPublishedReason, OpenError, Options, Queue, Route, Topology, Unconfirmed, UnknownReason,
    Window,
};

#[tokio::test]
async fn what_has_no_outcome_is_published_again_with_its_id_and_a_mark() {
    let (connection, mut peer, mut door) = connected(Default::default()).await;
    let publisher = connection.publisher(Route::queue("q")).build().await.unwrap();
    let first = publisher.publish("a").await.unwrap();
    let second = publisher.publish("b").await.unwrap();
    let (channel, id_first, marked, _) = peer.published().await;
    assert!(!marked);
    let (_, id_second, ..) = peer.published().await;
    peer.confirm(channel, 1, false).await;
    assert!(!soon("an outcome", first).await.unwrap().republished);
    drop(peer);

    let third = tokio::spawn({
        let publisher = publisher.clone();
        async move { publisher.publish("c").await }
    });
    let mut peer = door.next().await;
    let (channel, id, marked, body) = peer.published().await;
    assert_eq!((id, marked, body), (id_second, true, b"b".to_vec()));
    let (_, id, marked, body) = peer.published().await;
    assert_eq!((marked, body), (false, b"c".to_vec()));
    assert_ne!(id, id_first);
    peer.confirm(channel, 2, true).await;
    assert!(soon("an outcome", second).await.unwrap().republished);
    let third = soon("admission", third).await.unwrap().unwrap();
    assert!(!soon("an outcome", third).await.unwrap().republished);
    assert_eq!(connection.metrics().reconnects, 1);
}

#[tokio::test]
async fn what_the_broker_closes_every_connection_for_is_given_up_and_the_rest_goes_on() {
    let builder = Connection::builder().recovery_pause(Duration::from_millis(1));
    let (connection, mut peer, mut door) = connected(builder).await;
    let publisher = connection.publisher(Route::queue("q")).build().await.unwrap();
    let mut outcomes = Vec::new();
    for body in ["a", "poison", "b"] {
        outcomes.push(publisher.publish(body).await.unwrap());
    }
    let mut connections = 0;
    loop {
        connections += 1;
        let mut taken = 0;
        while taken < outcomes.len() as u64 {
            let (channel, _, _, body) = peer.published().await;
            if body == b"poison" {
                break;
            }
            taken += 1;
            peer.confirm(channel, taken, false).await;
            if body == b"b" {
                break;
            }
        }
        if connections > 4 {
            break;
        }
        let close = connection::Close { reply_code: 501, ..Default::default() };
        peer.send(0, &close).await;
        drop(peer);
        peer = door.next().await;
    }
    let mut told = Vec::new();
    for outcome in outcomes {
        told.push(soon("an outcome", outcome).await);
    }
    assert!(told[0].is_ok() && told[2].is_ok(), "{told:?}");
    match &told[1] {
        Err(Unconfirmed::Unknown(UnknownReason::ConnectionsEnded { times: 3, last })) => {
            assert!(matches!(last, Lost::Closed(why) if why.code == 501), "{last}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn without_recovery_what_has_no_outcome_is_unknown() {
    let builder = Connection::builder().without_recovery();
    let (connection, mut peer, _door) = connected(builder).await;
    let publisher =
        connection.publisher(Route::queue("q")).window(Window::fixed(1)).build().await.unwrap();
    let outcome = publisher.publish("a").await.unwrap();
    let waiting = tokio::spawn({
        let publisher = publisher.clone();
        async move { publisher.publish("b").await }
    });
    peer.published().await;
    drop(peer);
    match soon("an outcome", outcome).await {
        Err(Unconfirmed::Unknown(UnknownReason::Lost(_))) => {}
        other => panic!("{other:?}"),
    }
    let refused = soon("an answer", waiting).await.unwrap().unwrap_err();
    assert!(matches!(refused.reason, NotPublishedReason::Lost(_)));
    assert_eq!(refused.message.body(), b"b");
}

#[tokio::test]
async fn an_outage_holds_no_message_for_longer_than_its_limit() {
    let (connection, mut peer, door) = connected(Default::default()).await;
    let limit = Duration::from_millis(10);
    let builder = connection.publisher(Route::queue("q")).window(Window::fixed(1));
    let publisher = builder.outcome_within(limit).build().await.unwrap();
    let outcome = publisher.publish("a").await.unwrap();
    drop(peer.published().await);
    // Nobody is there any more, and recovery goes on for ever.
    drop((peer, door));
    let unknown = soon("an outcome", outcome).await;
    assert_eq!(unknown, Err(Unconfirmed::Unknown(UnknownReason::TimeOver)));
    let metrics = publisher.metrics();
    assert_eq!((metrics.unknown, metrics.in_flight_messages), (1, 0));
    soon("idle", publisher.idle()).await;
}

#[tokio::test]
async fn acks_of_an_older_connection_are_never_sent_on_a_newer_one() {
    let (connection, _peer, mut door) = connected(Default::default()).await;
    let building = tokio::spawn(async move {
        let consumer = connection.consumer("q").fixed_credit(10).build().await;
        (connection, consumer)
    });
    let mut peer = door.next().await;
    peer.next().await;
    let Sent::Consume { channel, tag, .. } = peer.next().await else { panic!() };
    let (_connection, consumer) = soon("a consumer", building).await.unwrap();
    let mut consumer = consumer.unwrap();
    peer.deliver(channel, &tag, 1, b"a").await;
    peer.deliver(channel, &tag, 2, b"b").await;
    let old = soon("a delivery", consumer.next()).await.unwrap().unwrap();
    drop(peer);
    soon("the loss", async {
        while !old.is_stale() {
            tokio::task::yield_now().await;
        }
    })
    .await;

    let mut peer = door.next().await;
    assert!(matches!(peer.next().await, Sent::Qos { count: 10, .. }));
    let Sent::Consume { channel, tag: new_tag, .. } = peer.next().await else { panic!() };
    assert_ne!(new_tag, tag);
    peer.deliver(channel, &new_tag, 1, b"b again").await;
    let new = soon("a delivery", consumer.next()).await.unwrap().unwrap();
    assert_eq!(new.body(), b"b again", "what waited here came from the old connection");
    assert_eq!((old.is_stale(), new.is_stale()), (true, false));
    assert!(!old.comes_again(), "it did not say that it is persistent");
    assert!(old.ack().in_time().is_err());
    assert!(new.ack().in_time().is_ok());
    assert_eq!(peer.next().await, Sent::Ack { channel, tag: 1, multiple: false });
    assert_eq!(consumer.metrics().stale, 1);
}

/// A port that nobody else takes between two brokers is luck; a few tries make it certain enough.
async fn restarted_on(address: &str) -> Broker {
    let address = address.to_owned();
    tokio::task::spawn_blocking(move || Broker::start_at(&address)).await.unwrap()
}

#[tokio::test]
async fn topology_consumers_and_publishers_come_back_with_the_broker() {
    let broker = Broker::start();
    let address = broker.address();
    let connection = broker.connect().await;
    let mut happenings = connection.happenings();
    let topology = Topology::new()
        .exchange(Exchange::transient("events", "topic"))
        .queue(Queue::transient("log"))
        .binding(Binding::new("log", "events", "app.#"));
    connection.declare(topology).await.unwrap();
    let publisher =
        connection.publisher(Route::exchange("events", "app.start")).build().await.unwrap();
    let mut consumer = connection.consumer("log").build().await.unwrap();
    soon("an outcome", publisher.publish("before").await.unwrap()).await.unwrap();
    let delivery = soon("a delivery", consumer.next()).await.unwrap().unwrap();
    assert_eq!(delivery.body(), b"before");
    delivery.ack();

    // A broker in memory forgets everything.
    tokio::task::spawn_blocking(move || broker.stop()).await.unwrap();
    let waiting = tokio::spawn({
        let publisher = publisher.clone();
        async move { publisher.publish("after").await.unwrap().await }
    });
    let _broker = restarted_on(&address).await;
    let delivery = soon("a delivery", consumer.next()).await.unwrap().unwrap();
    assert_eq!(delivery.body(), b"after");
    delivery.ack();
    soon("an outcome", waiting).await.unwrap().unwrap();
    let mut seen = Vec::new();
    while let Ok(happening) = happenings.try_recv() {
        seen.push(happening);
    }
    assert!(seen.iter().any(|happening| matches!(happening, Happening::Lost { .. })));
    assert!(seen.iter().any(|happening| matches!(happening, Happening::Retrying { .. })));
    assert!(
        seen.iter()
            .any(|h| matches!(h, Happening::Connected { reconnects, .. } if *reconnects > 0))
    );
}

#[tokio::test]
async fn rounds_of_recovery_are_bounded_when_told_so() {
    let broker = Broker::start();
    let connection = Connection::builder().recovery_rounds(1).open(&broker.uri()).await.unwrap();
    let publisher = connection.publisher(Route::queue("q")).build().await.unwrap();
    tokio::task::spawn_blocking(move || broker.stop()).await.unwrap();
    let refused = soon("giving up", async {
        loop {
            match publisher.publish_within(Duration::from_millis(10), "x").await {
                Err(refused) if matches!(refused.reason, NotPublishedReason::Lost(_)) => {
                    break refused;
                }
                Ok(outcome) => drop(outcome.await),
                Err(_) => {}
            }
        }
    })
    .await;
    assert_eq!(refused.message.body(), b"x");
}

#[tokio::test]
async fn closing_while_it_connects_again_ends_at_once() {
    let broker = Broker::start();
    let connection = broker.connect().await;
    let mut happenings = connection.happenings();
    tokio::task::spawn_blocking(move || broker.stop()).await.unwrap();
    while !matches!(soon("a retry", happenings.recv()).await.unwrap(), Happening::Retrying { .. }) {
    }
    let channel = connection.channel().await;
    assert!(channel.is_err());
    assert!(matches!(
        soon("closed", connection.close()).await,
        Ok(()) | Err(CloseError::Lost(Lost::ClosedByUs))
    ));
}

/// A connection whose first stream is made, with its other end; all others never are, and each is told.
async fn connected_once() -> (Connection, Peer, Arc<Notify>) {
    let (mut door, knock) = door();
    let dialling = Arc::new(Notify::new());
    let make = {
        let (dialling, times) = (dialling.clone(), AtomicU32::new(0));
        move || -> Knock {
            if times.fetch_add(1, Ordering::Relaxed) == 0 {
                return knock();
            }
            dialling.notify_one();
            Box::pin(std::future::pending())
        }
    };
    let builder = Connection::builder().recovery_pause(Duration::from_millis(1));
    let opening = tokio::spawn(builder.over("the test", Options::default(), make));
    let peer = door.next().await;
    (soon("an open connection", opening).await.unwrap().unwrap(), peer, dialling)
}

#[tokio::test]
async fn closing_does_not_wait_for_a_stream_that_is_never_made() {
    let (connection, peer, dialling) = connected_once().await;
    drop(peer);
    soon("another attempt", dialling.notified()).await;
    assert_eq!(soon("closed", connection.close()).await, Ok(()));
}

#[tokio::test]
async fn closing_does_not_wait_for_the_stream_of_a_consumer_either_and_tells_who_wants_it() {
    let (connection, mut peer, dialling) = connected_once().await;
    let building = tokio::spawn(connection.consumer("q").build());
    soon("a second stream", dialling.notified()).await;
    let closing = tokio::spawn(connection.close());
    peer.expect("connection.close").await;
    peer.send(0, &connection::CloseOk::default()).await;
    assert_eq!(soon("closed", closing).await.unwrap(), Ok(()));
    let refused = soon("an answer", building).await.unwrap().unwrap_err();
    assert_eq!(refused, BuildConsumerError::NotOpened(OpenError::Lost(Lost::ClosedByUs)));
}

#[tokio::test]
async fn a_broker_that_closes_what_it_lets_in_is_tried_more_and_more_slowly() {
    let builder = Connection::builder().recovery_pause(Duration::from_millis(2));
    let (connection, peer, mut door) = connected(builder).await;
    let mut happenings = connection.happenings();
    drop(peer);
    for _ in 0..3 {
        let mut peer = door.next().await;
        let close = forebay_wire::connection::Close { reply_code: 320, ..Default::default() };
        peer.send(0, &close).await;
        assert_eq!(peer.next().await, Sent::Method { channel: 0, name: "connection.close-ok" });
    }
    let mut peer = door.next().await;
    // Then one that does something: after that one it begins again.
    let publisher = connection.publisher(Route::queue("q")).build().await.unwrap();
    let outcome = publisher.publish("a").await.unwrap();
    let (channel, ..) = peer.published().await;
    peer.confirm(channel, 1, false).await;
    soon("an outcome", outcome).await.unwrap();
    drop(peer);
    door.next().await;
    let mut attempts = Vec::new();
    while attempts.len() < 5 {
        if let Happening::Retrying { attempt, .. } = soon("news", happenings.recv()).await.unwrap()
        {
            attempts.push(attempt);
        }
    }
    assert_eq!(attempts, [1, 2, 3, 4, 1]);
}

#[test]
fn nobody_waits_for_a_connection_whose_runtime_has_ended() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (broker, theirs, ours) = (Broker::start(), runtime(), runtime());
    let (publisher, outcome) = theirs.block_on(async {
        let connection = broker.connect().await;
        let publisher = connection.publisher(Route::queue("q")).build().await.unwrap();
        let outcome = publisher.publish("a").await.unwrap();
        (publisher, outcome)
    });
    theirs.shutdown_background();
    match ours.block_on(soon("an outcome", outcome)) {
        Err(Unconfirmed::Unknown(UnknownReason::Lost(_))) => {}
        other => panic!("{other:?}"),
    }
    let refused = ours.block_on(soon("an answer", publisher.publish("b"))).unwrap_err();
    assert!(matches!(refused.reason, NotPublishedReason::Lost(_)));
}

/// As a RabbitMQ closes it for an exchange type that it does not know, and a Forebay for a kind of queue.
#[tokio::test]
async fn a_socket_that_the_broker_closes_for_a_declaration_is_opened_without_it() {
    let (connection, mut peer, mut door) = connected(Default::default()).await;
    let mut happenings = connection.happenings();
    let declaring = tokio::spawn({
        let connection = connection.clone();
        async move { connection.declare(Topology::new().queue(Queue::durable("q"))).await }
    });
    peer.answer_until(|_| declaring.is_finished()).await;
    declaring.await.unwrap().unwrap();
    let building = tokio::spawn(async move { connection.consumer("q").build().await });
    let mut peer = door.next().await;
    peer.expect("channel.open").await;
    peer.expect("queue.declare").await;
    let refusal = connection::Close {
        reply_code: 540,
        class_id: queue::Declare::CLASS_ID,
        method_id: queue::Declare::METHOD_ID,
        ..Default::default()
    };
    peer.send(0, &refusal).await;
    let mut peer = door.next().await;
    while !matches!(peer.next().await, Sent::Consume { .. }) {}
    soon("a consumer", building).await.unwrap().unwrap();
    let told = std::iter::from_fn(|| happenings.try_recv().ok());
    let refused = told.filter(|told| matches!(told, Happening::TopologyRefused { .. }));
    assert_eq!(refused.count(), 1);
}
