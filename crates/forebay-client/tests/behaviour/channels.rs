//! AMQP as it is, through the asynchronous client.

use std::time::Duration;

use crate::rig::peer::connected;
use crate::rig::{Broker, soon, with_queue};
use forebay_client::{
    Binding, ChannelFault, CloseError, Connection, Consume, DeclareExchange, DeclareQueue,
    Exchange, INBOX_BYTES_MAX, Lost, Message, OpenError, Queue, Route, Topology,
};
use forebay_wire::{Properties, ShortStr, Table};

#[tokio::test]
async fn every_method_gets_its_answer() {
    let broker = Broker::start();
    let connection = broker.connect().await;
    assert_eq!(connection.server().product, "Forebay");
    let channel = connection.channel().await.unwrap();
    let info = channel.declare_queue("q", DeclareQueue::default()).await.unwrap();
    assert_eq!((info.name.as_str(), info.message_count), ("q", 0));
    channel.declare_exchange("x", "topic", DeclareExchange::default()).await.unwrap();
    channel.declare_exchange("y", "fanout", DeclareExchange::default()).await.unwrap();
    channel.bind_queue("q", "x", "a.*", Table::default()).await.unwrap();
    channel.bind_exchange("x", "y", "", Table::default()).await.unwrap();
    channel.confirm_select().await.unwrap();
    let none = Properties::default();
    assert_eq!(channel.publish("y", "a.b", true, &none, b"one").await.unwrap(), 1);
    assert_eq!(channel.publish("x", "b", true, &none, b"two").await.unwrap(), 2);
    let mut settled = 0;
    while settled < 2 {
        let range = soon("outcomes", channel.next_settled()).await.unwrap();
        assert!(range.acked);
        settled += range.count();
    }
    let returns = channel.take_returns();
    assert_eq!((returns.len(), returns[0].reply_code), (1, 312));
    assert_eq!(returns[0].message.body(), b"two");

    let (message, left) = channel.get("q", false).await.unwrap().unwrap();
    assert_eq!((message.body(), left), (&b"one"[..], 0));
    channel.reject(message.delivery_tag(), true).unwrap();
    let (message, _) = channel.get("q", false).await.unwrap().unwrap();
    assert!(message.redelivered());
    channel.recover().await.unwrap();
    channel.qos(1, false).await.unwrap();
    let mut deliveries = channel.consume("q", Consume::default()).await.unwrap();
    let message = soon("a delivery", deliveries.next()).await.unwrap().unwrap();
    channel.ack(message.delivery_tag(), false).unwrap();
    deliveries.cancel().await.unwrap();
    assert!(soon("the end", deliveries.next()).await.unwrap().is_none());
    assert!(channel.get("q", true).await.unwrap().is_none());

    channel.unbind_exchange("x", "y", "", Table::default()).await.unwrap();
    channel.unbind_queue("q", "x", "a.*", Table::default()).await.unwrap();
    assert_eq!(channel.purge_queue("q").await.unwrap(), 0);
    assert_eq!(channel.delete_queue("q", true, true).await.unwrap(), 0);
    channel.delete_exchange("x", false).await.unwrap();
    channel.close().await.unwrap();
    connection.close().await.unwrap();
}

#[tokio::test]
async fn a_transaction_holds_back_and_performs() {
    let broker = Broker::start();
    let connection = broker.connect().await;
    let channel = connection.channel().await.unwrap();
    channel.declare_queue("q", DeclareQueue::default()).await.unwrap();
    channel.tx_select().await.unwrap();
    channel.publish("", "q", false, &Properties::default(), b"no").await.unwrap();
    channel.tx_rollback().await.unwrap();
    channel.publish("", "q", false, &Properties::default(), b"yes").await.unwrap();
    channel.tx_commit().await.unwrap();
    let (message, left) = channel.get("q", true).await.unwrap().unwrap();
    assert_eq!((message.body(), left), (&b"yes"[..], 0));
}

#[tokio::test]
async fn a_refusal_closes_the_channel_and_no_other() {
    let broker = Broker::start();
    let connection = broker.connect().await;
    let (first, second) =
        (connection.channel().await.unwrap(), connection.channel().await.unwrap());
    let passive = DeclareQueue { passive: true, ..Default::default() };
    for _ in 0..2 {
        match first.declare_queue("none", passive.clone()).await {
            Err(ChannelFault::Refused(refusal)) => assert_eq!(refusal.code, 404),
            other => panic!("{other:?}"),
        }
    }
    second.declare_queue("q", DeclareQueue::default()).await.unwrap();
    let long = "n".repeat(256);
    let fault = second.declare_queue(&long, DeclareQueue::default()).await.unwrap_err();
    assert_eq!(fault, ChannelFault::NameTooLong { bytes: 256 });
    second.declare_queue("q", DeclareQueue::default()).await.unwrap();
}

#[tokio::test]
async fn an_answer_nobody_waits_for_does_not_disturb_the_next() {
    let broker = Broker::start();
    let connection = broker.connect().await;
    let channel = connection.channel().await.unwrap();
    for number in 0..50 {
        let given_up = channel.declare_queue("given up", DeclareQueue::default());
        // Polled once, so that the request is on its way, and dropped.
        let _ = tokio::time::timeout(std::time::Duration::ZERO, given_up).await;
        let name = format!("q{number}");
        let info = channel.declare_queue(&name, DeclareQueue::default()).await.unwrap();
        assert_eq!(info.name, name);
    }
}

#[tokio::test]
async fn a_large_message_and_many_small_ones_pass() {
    let broker = Broker::start();
    let connection = broker.connect().await;
    let channel = connection.channel().await.unwrap();
    channel.declare_queue("q", DeclareQueue::default()).await.unwrap();
    let none = Properties { message_id: Some(ShortStr::truncated("id")), ..Default::default() };
    let large = vec![7; 5_000_000];
    channel.publish("", "q", false, &none, &large).await.unwrap();
    for number in 0..20_000_u32 {
        channel.publish("", "q", false, &none, &number.to_be_bytes()).await.unwrap();
    }
    let mut deliveries =
        channel.consume("q", Consume { no_ack: true, ..Default::default() }).await.unwrap();
    assert_eq!(soon("the large one", deliveries.next()).await.unwrap().unwrap().body(), large);
    for number in 0..20_000_u32 {
        let message = soon("a small one", deliveries.next()).await.unwrap().unwrap();
        assert_eq!(message.body(), number.to_be_bytes());
    }
}

#[tokio::test]
async fn what_cannot_be_opened_says_why() {
    let broker = Broker::start();
    let at = broker.address();
    for (uri, expected) in [
        ("http://host".to_owned(), "cannot read the URL"),
        (format!("amqp://guest:wrong@{at}"), "refused the login"),
        (format!("amqp://guest:guest@{at}/none"), "vhost none not found"),
        ("amqp://127.0.0.1:1".to_owned(), "cannot connect to 127.0.0.1:1"),
        ("amqp://host.invalid".to_owned(), "cannot find the host host.invalid"),
        ("amqps://127.0.0.1:1?verify=verify_none".to_owned(), "verify"),
        ("amqps://127.0.0.1:1?cacertfile=/none.pem".to_owned(), "/none.pem"),
        (format!("amqp://{at}?auth_mechanism=external"), "no EXTERNAL login"),
    ] {
        let error = soon("an answer", Connection::open(&uri)).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{uri}: {error}");
    }
    assert!(matches!(
        Connection::open("amqp://u:sesame@host/a/b").await,
        Err(OpenError::Uri { uri, .. }) if !uri.contains("sesame")
    ));
}

#[tokio::test]
async fn of_several_hosts_the_first_that_answers_is_taken() {
    let broker = Broker::start();
    let uri = format!("amqp://127.0.0.1:1,{}/%2f", broker.address());
    let connection = soon("the second host", Connection::open(&uri)).await.unwrap();
    connection.channel().await.unwrap();
}

#[tokio::test]
async fn a_further_socket_begins_at_the_host_that_let_in_the_one_before() {
    let broker = Broker::start();
    let away = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("amqp://{},{}/%2f", away.local_addr().unwrap(), broker.address());
    let (tried, mut tries) = tokio::sync::mpsc::channel(9);
    tokio::spawn(async move {
        // It hangs up.
        while away.accept().await.is_ok() && tried.send(()).await.is_ok() {}
    });
    let connection = soon("the second host", Connection::open(&uri)).await.unwrap();
    connection.declare(Topology::new().queue(Queue::durable("q"))).await.unwrap();
    soon("the first try", tries.recv()).await.unwrap();
    let _consumer = soon("a consumer", connection.consumer("q").build()).await.unwrap();
    assert!(tries.try_recv().is_err(), "it waited for a host that is known to be away");
}

#[tokio::test]
async fn after_closing_everything_says_so() {
    let broker = Broker::start();
    let connection = broker.connect().await;
    let channel = connection.channel().await.unwrap();
    let again = connection.clone();
    soon("closed", connection.close()).await.unwrap();
    let fault = channel.declare_queue("q", DeclareQueue::default()).await.unwrap_err();
    assert_eq!(fault, ChannelFault::Lost(Lost::ClosedByUs));
    assert!(again.channel().await.is_err());
    assert!(soon("an answer", again.consumer("q").build()).await.is_err());
    let twice = soon("closed", again.close()).await;
    assert_eq!(twice, Err(CloseError::Lost(Lost::ClosedByUs)));
}

#[tokio::test]
async fn closing_is_told_to_every_socket_although_nobody_waits() {
    let broker = Broker::start();
    let (connection, publisher) = with_queue(&broker, "q").await;
    let consumer = connection.consumer("q").build().await.unwrap();
    let again = connection.clone();
    // Polled once and dropped: the sockets that are still in use end all the same.
    let _ = tokio::time::timeout(Duration::ZERO, connection.close()).await;
    soon("the end", async {
        while publisher.publish("x").await.is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(again.channel().await.is_err());
    drop(consumer);
}

#[tokio::test]
async fn who_waits_for_messages_hears_that_the_channel_was_closed() {
    let broker = Broker::start();
    let connection = broker.connect().await;
    let channel = connection.channel().await.unwrap();
    channel.declare_queue("q", DeclareQueue::default()).await.unwrap();
    let mut deliveries = channel.consume("q", Consume::default()).await.unwrap();
    let waiting = tokio::spawn(async move {
        let first = deliveries.next().await;
        (first, deliveries.next().await)
    });
    tokio::task::yield_now().await;
    soon("an agreement", channel.close()).await.unwrap();
    let (first, second) = soon("the end", waiting).await.unwrap();
    assert!(first.is_err() && second.is_err(), "{first:?}, {second:?}");
}

#[tokio::test]
async fn what_was_deleted_is_not_declared_on_further_sockets() {
    let broker = Broker::start();
    let connection = broker.connect().await;
    let topology = Topology::new()
        .queue(Queue::durable("kept"))
        .queue(Queue::durable("gone"))
        .exchange(Exchange::durable("x", "fanout"))
        .binding(Binding::new("gone", "x", ""))
        .binding(Binding::new("kept", "x", ""));
    connection.declare(topology).await.unwrap();
    let channel = connection.channel().await.unwrap();
    channel.delete_queue("gone", false, false).await.unwrap();
    channel.unbind_queue("kept", "x", "", Table::default()).await.unwrap();
    let _consumer = connection.consumer("kept").build().await.unwrap();
    channel.publish("x", "", true, &Properties::default(), b"m").await.unwrap();
    let passive = DeclareQueue { passive: true, ..DeclareQueue::default() };
    let fault = channel.declare_queue("gone", passive).await.unwrap_err();
    assert!(matches!(fault, ChannelFault::Refused(refusal) if refusal.code == 404));
    assert_eq!(channel.take_returns().len(), 1, "nothing is bound to x");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_share_a_channel_and_a_connection() {
    let broker = Broker::start();
    let connection = broker.connect().await;
    let tasks: Vec<_> = (0..20)
        .map(|task| {
            let connection = connection.clone();
            tokio::spawn(async move {
                let channel = connection.channel().await.unwrap();
                let name = format!("q{task}");
                channel.declare_queue(&name, DeclareQueue::default()).await.unwrap();
                for _ in 0..100 {
                    let none = Properties::default();
                    channel.publish("", &name, false, &none, b"x").await.unwrap();
                }
                let info = channel.declare_queue(&name, DeclareQueue::default()).await.unwrap();
                assert_eq!(info.message_count, 100);
            })
        })
        .collect();
    for task in tasks {
        soon("a task", task).await.unwrap();
    }
}

#[tokio::test]
async fn a_consumer_that_nobody_waited_for_is_cancelled() {
    let broker = Broker::start();
    let connection = broker.connect().await;
    let channel = connection.channel().await.unwrap();
    channel.declare_queue("q", DeclareQueue::default()).await.unwrap();
    tokio::select! {
        biased;
        _ = channel.consume("q", Consume::default()) => panic!("the answer has a way to go"),
        () = std::future::ready(()) => {}
    }
    soon("the queue has no consumer", async {
        let passive = DeclareQueue { passive: true, ..DeclareQueue::default() };
        // The first answer may come before the end of the consumer, and is behind its beginning.
        while channel.declare_queue("q", passive.clone()).await.unwrap().consumer_count > 0 {}
    })
    .await;
    let other = connection.channel().await.unwrap();
    other.publish("", "q", false, &Properties::default(), b"m").await.unwrap();
    assert!(soon("an answer", other.get("q", true)).await.unwrap().is_some());
}

#[tokio::test]
async fn a_tag_may_be_used_again_when_its_consumer_was_cancelled() {
    let broker = Broker::start();
    let connection = broker.connect().await;
    let channel = connection.channel().await.unwrap();
    channel.declare_queue("q", DeclareQueue::default()).await.unwrap();
    let consume = Consume { tag: "again".into(), ..Consume::default() };
    let mut deliveries = channel.consume("q", consume.clone()).await.unwrap();
    deliveries.cancel().await.unwrap();
    // What held the first one is dropped after the second one has begun.
    deliveries = channel.consume("q", consume).await.unwrap();
    channel.publish("", "q", false, &Properties::default(), b"m").await.unwrap();
    let message = soon("a delivery", deliveries.next()).await.unwrap();
    assert_eq!(message.expect("it goes on").body(), b"m");
}

#[tokio::test]
async fn a_consumer_that_has_ended_is_cancelled_without_the_next_one_of_its_tag() {
    let broker = Broker::start();
    let connection = broker.connect().await;
    let channel = connection.channel().await.unwrap();
    channel.declare_queue("q", DeclareQueue::default()).await.unwrap();
    let consume = Consume { tag: "again".into(), ..Consume::default() };
    let mut first = channel.consume("q", consume.clone()).await.unwrap();
    first.cancel().await.unwrap();
    let mut second = channel.consume("q", consume).await.unwrap();
    first.cancel().await.unwrap();
    channel.publish("", "q", false, &Properties::default(), b"m").await.unwrap();
    let message = soon("a delivery", second.next()).await.unwrap();
    assert_eq!(message.expect("it goes on").body(), b"m");
}

#[tokio::test]
async fn who_takes_nothing_for_a_while_is_sent_the_rest_when_he_does() {
    const MESSAGES: usize = INBOX_BYTES_MAX / BODY_BYTES + 10;
    const BODY_BYTES: usize = 1 << 20;
    let broker = Broker::start();
    let connection = broker.connect().await;
    let channel = connection.channel().await.unwrap();
    channel.declare_queue("q", DeclareQueue::default()).await.unwrap();
    let publisher = connection.publisher(Route::queue("q")).build().await.unwrap();
    let body = bytes::Bytes::from(vec![0; BODY_BYTES]);
    for _ in 0..MESSAGES {
        drop(publisher.publish(Message::new(body.clone())).await.unwrap());
    }
    soon("outcomes", publisher.idle()).await;
    let consume = Consume { no_ack: true, ..Consume::default() };
    let mut deliveries = channel.consume("q", consume).await.unwrap();
    soon("a full inbox", async {
        while connection.metrics().read_bytes < INBOX_BYTES_MAX as u64 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    for _ in 0..MESSAGES {
        let message = soon("a message", deliveries.next()).await.unwrap().unwrap();
        assert_eq!(message.body().len(), BODY_BYTES);
    }
}

#[tokio::test]
async fn when_all_channels_are_in_use_nobody_waits_for_one() {
    let (connection, mut peer, _door) = connected(Default::default()).await;
    let answering = tokio::spawn(async move {
        loop {
            peer.next().await;
        }
    });
    let mut channels = Vec::new();
    let full = loop {
        match soon("an answer", connection.channel()).await {
            Ok(channel) => channels.push(channel),
            Err(full) => break full,
        }
    };
    assert_eq!(channels.len(), 100, "as many as the peer allows");
    assert_eq!(full.to_string(), "all 100 channels of the connection are in use");
    let publisher = soon("an answer", connection.publisher(Route::queue("q")).build()).await;
    assert_eq!(publisher.unwrap_err(), full);
    answering.abort();
}
