//! Requests with replies.

use std::time::Duration;

use crate::rig::peer::connected;
use crate::rig::{Broker, PATIENCE, declare, soon, with_queue};
use forebay_client::{CallError, Connection, Message, Route};
use forebay_wire::{Properties, ShortStr};

/// Answers each request with its body twice; replies in pairs, the later one first.
async fn answer(connection: Connection) {
    let replies = connection.publisher(Route::queue("")).allow_unroutable().build().await.unwrap();
    let mut requests = connection.consumer("rpc").build().await.unwrap();
    let mut held = None;
    while let Ok(Some(request)) = requests.next().await {
        let twice = [request.body(), request.body()].concat();
        let reply = request.reply(twice).expect("a caller wants an answer");
        request.ack();
        match held.take() {
            None => held = Some(reply),
            Some(earlier) => {
                drop(replies.publish(reply).await.unwrap());
                drop(replies.publish(earlier).await.unwrap());
            }
        }
    }
}

#[tokio::test]
async fn each_reply_finds_its_caller_whatever_their_order() {
    let broker = Broker::start();
    let connection = broker.connect().await;
    declare(&connection, "rpc").await;
    let answering = tokio::spawn(answer(connection.clone()));
    let caller = connection.caller();
    let calls: Vec<_> = (0..200)
        .map(|number| {
            let caller = caller.clone();
            tokio::spawn(async move {
                let request = format!("{number}-");
                caller.call(PATIENCE, &Route::queue("rpc"), request).await
            })
        })
        .collect();
    for (number, call) in calls.into_iter().enumerate() {
        let reply = soon("a reply", call).await.unwrap().unwrap();
        assert_eq!(reply.body(), format!("{number}-{number}-").as_bytes());
    }
    answering.abort();
}

#[tokio::test]
async fn a_request_that_is_passed_on_as_it_came_is_answered_to_who_passes_it_on() {
    let broker = Broker::start();
    let connection = broker.connect().await;
    declare(&connection, "front").await;
    declare(&connection, "rpc").await;
    let serving = connection.clone();
    let server = tokio::spawn(async move {
        let replies = serving.publisher(Route::queue("")).allow_unroutable().build().await.unwrap();
        let mut requests = serving.consumer("rpc").build().await.unwrap();
        let request = requests.next().await.unwrap().unwrap();
        let reply = request.reply("served").expect("an answer is wanted");
        replies.publish(reply).await.unwrap().await.unwrap();
        request.ack();
    });
    let asking = connection.clone();
    let asker = tokio::spawn(async move {
        asking.caller().call(PATIENCE, &Route::queue("front"), "please").await
    });
    let mut requests = connection.consumer("front").build().await.unwrap();
    let request = soon("a request", requests.next()).await.unwrap().unwrap();
    let proxy = connection.caller();
    let passed_on = Message::forward(&request);
    let reply = soon("the reply", proxy.call(PATIENCE, &Route::queue("rpc"), passed_on)).await;
    assert_eq!(reply.unwrap().body(), b"served");
    asker.abort();
    soon("the server", server).await.unwrap();
}

#[tokio::test]
async fn a_request_nobody_takes_is_an_error_at_once() {
    let broker = Broker::start();
    let (connection, _orders) = with_queue(&broker, "orders").await;
    let caller = connection.caller();
    let error = caller.call(PATIENCE, &Route::queue("none"), "x").await.unwrap_err();
    assert!(matches!(error, CallError::Unroutable(_)), "{error}");
    let error = caller.call(PATIENCE, &Route::exchange("none", "k"), "x").await.unwrap_err();
    assert!(matches!(error, CallError::ChannelClosed(_)), "{error}");
    let error =
        caller.call(Duration::from_millis(1), &Route::queue("orders"), "x").await.unwrap_err();
    assert_eq!(error, CallError::TimedOut { unsent: false });
}

#[tokio::test]
async fn a_lost_connection_ends_its_calls_and_the_next_ones_go_on() {
    let (connection, mut peer, mut door) = connected(Default::default()).await;
    let caller = connection.caller();
    let calling = tokio::spawn({
        let caller = caller.clone();
        async move { caller.call(PATIENCE, &Route::queue("rpc"), "a").await }
    });
    peer.published().await;
    drop(peer);
    let error = soon("an answer", calling).await.unwrap().unwrap_err();
    assert!(matches!(error, CallError::Lost(_)), "{error}");
    let calling =
        tokio::spawn(async move { caller.call(PATIENCE, &Route::queue("rpc"), "b").await });
    let mut peer = door.next().await;
    let (.., body) = peer.published().await;
    assert_eq!(body, b"b");
    calling.abort();
}

/// As RabbitMQ does it: what needs no ack needs no number of its own.
#[tokio::test]
async fn replies_may_all_have_the_same_delivery_tag() {
    let (connection, mut peer, _door) = connected(Default::default()).await;
    let caller = connection.caller();
    for (number, request) in ["a", "b", "c"].into_iter().enumerate() {
        let asking = tokio::spawn({
            let caller = caller.clone();
            async move { caller.call(PATIENCE, &Route::queue("rpc"), request).await }
        });
        let (channel, ..) = peer.published().await;
        let number = number.to_string();
        let properties =
            Properties { correlation_id: ShortStr::new(number.as_bytes()), ..Default::default() };
        peer.deliver_with(channel, "c", 1, &properties, request.as_bytes()).await;
        let reply = soon("a reply", asking).await.unwrap().unwrap();
        assert_eq!(reply.body(), request.as_bytes());
    }
    assert_eq!(connection.metrics().reconnects, 0);
}
