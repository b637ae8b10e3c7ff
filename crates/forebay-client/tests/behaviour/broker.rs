//! The blocking client against the broker of this house, over TCP and over an in-process pipe.

use std::time::Duration;

use forebay_client::Options;
use forebay_client::blocking::{Channel, Connection, ConsumeOptions, Publication};
use forebay_client::blocking::{ChannelFault, ConsumeError, DeclareQueue, Lost, OpenError};
use forebay_server::{Config, Data, Server};
use forebay_wire::{Properties, ShortStr, TableBuf, Value};

fn serve() -> (Server, String) {
    let config = Config {
        data: Data::Memory,
        amqp: vec!["127.0.0.1:0".to_owned()],
        http: None,
        ..Config::default()
    };
    let server = Server::start(config).expect("a broker in memory starts");
    let uri = format!("amqp://guest:guest@{}/%2f", server.addresses().amqp[0]);
    (server, uri)
}

fn in_process(server: &Server) -> Connection {
    let writer = server.connect();
    let reader = writer.try_clone().expect("a second handle");
    Connection::over(reader, writer, Options::default()).expect("the broker lets guest in")
}

fn publish(channel: &mut Channel, queue: &str, body: &[u8]) -> u64 {
    let publication = Publication { routing_key: queue, body, ..Default::default() };
    channel.publish(&publication).expect("it is taken")
}

/// Publishes and consumes 5,000 messages, with a window far smaller than that.
fn round_trip(connection: &Connection) {
    let mut publisher = connection.channel().unwrap();
    publisher.declare_queue("orders", DeclareQueue::default()).unwrap();
    publisher.confirm_select(64).unwrap();
    for number in 1..=5000_u64 {
        let sequence = publish(&mut publisher, "orders", &number.to_be_bytes());
        assert_eq!(sequence, number);
        assert!(publisher.unconfirmed() <= 64);
    }
    publisher.wait_settled().unwrap();
    let settled = publisher.take_settled();
    assert_eq!(settled.iter().map(|range| range.count()).sum::<u64>(), 5000);
    assert!(settled.iter().all(|range| range.acked));

    let mut channel = connection.channel().unwrap();
    let options = ConsumeOptions { prefetch: 100, ..Default::default() };
    let mut consumer = channel.consume("orders", options).unwrap();
    for number in 1..=5000_u64 {
        let message = consumer.next().unwrap().unwrap();
        assert_eq!(message.body(), number.to_be_bytes());
        assert_eq!(message.delivery_tag(), number);
        if number % 50 == 0 {
            consumer.ack(&message, true).unwrap();
        }
    }
    consumer.cancel().unwrap();
    let passive = DeclareQueue { passive: true, ..Default::default() };
    assert_eq!(channel.declare_queue("orders", passive).unwrap().message_count, 0);
    channel.close().unwrap();
}

#[test]
fn messages_make_the_round_trip_in_order_over_tcp() {
    let (server, uri) = serve();
    let connection = Connection::open(&uri).unwrap();
    assert_eq!(connection.server().product, "Forebay");
    round_trip(&connection);
    connection.close().unwrap();
    server.stop().unwrap();
}

#[test]
fn messages_make_the_round_trip_in_order_inside_the_process() {
    let (server, _) = serve();
    let connection = in_process(&server);
    round_trip(&connection);
    connection.close().unwrap();
    server.stop().unwrap();
}

#[test]
fn a_large_message_and_its_properties_arrive_unchanged() {
    let (server, uri) = serve();
    let connection = Connection::open(&uri).unwrap();
    let mut channel = connection.channel().unwrap();
    channel.declare_queue("q", DeclareQueue::default()).unwrap();
    channel.confirm_select(1).unwrap();
    let body: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let properties = Properties {
        content_type: Some(ShortStr::truncated("text/plain")),
        message_id: Some(ShortStr::truncated("m-1")),
        priority: Some(3),
        ..Default::default()
    };
    let publication =
        Publication { routing_key: "q", properties, body: &body, ..Default::default() };
    channel.publish(&publication).unwrap();
    channel.wait_settled().unwrap();
    let (message, left) = channel.get("q", true).unwrap().unwrap();
    assert_eq!((left, message.body().len()), (0, body.len()));
    assert!(message.body() == body);
    assert_eq!(message.properties(), properties);
    assert_eq!(message.routing_key(), b"q");
    assert_eq!(channel.get("q", true).unwrap(), None);
    connection.close().unwrap();
    server.stop().unwrap();
}

#[test]
fn a_refusal_closes_its_channel_and_no_other() {
    let (server, uri) = serve();
    let connection = Connection::open(&uri).unwrap();
    let mut good = connection.channel().unwrap();
    let mut bad = connection.channel().unwrap();
    let passive = || DeclareQueue { passive: true, ..Default::default() };
    for _ in 0..2 {
        let fault = bad.declare_queue("absent", passive()).unwrap_err();
        let ChannelFault::Refused(refusal) = fault else { panic!("{fault}") };
        assert_eq!(refusal.code, 404);
        assert!(refusal.text.contains("no queue 'absent'"), "{refusal}");
    }
    let long = "x".repeat(256);
    let fault = good.declare_queue(&long, passive()).unwrap_err();
    assert_eq!(fault, ChannelFault::NameTooLong { bytes: 256 });
    good.declare_queue("present", DeclareQueue::default()).unwrap();
    connection.close().unwrap();
    server.stop().unwrap();
}

#[test]
fn an_unroutable_message_comes_back_before_its_confirm() {
    let (server, uri) = serve();
    let connection = Connection::open(&uri).unwrap();
    let mut channel = connection.channel().unwrap();
    channel.confirm_select(10).unwrap();
    let publication = Publication {
        routing_key: "nowhere",
        mandatory: true,
        body: b"lost",
        ..Default::default()
    };
    assert_eq!(channel.publish(&publication).unwrap(), 1);
    channel.wait_settled().unwrap();
    let returns = channel.take_returns();
    assert_eq!(returns.len(), 1);
    assert_eq!((returns[0].reply_code, returns[0].message.body()), (312, &b"lost"[..]));
    assert!(channel.take_settled()[0].acked);
    connection.close().unwrap();
    server.stop().unwrap();
}

#[test]
fn the_handle_of_a_closed_channel_has_no_part_in_the_next_one_of_its_number() {
    let (server, uri) = serve();
    let connection = Connection::open(&uri).unwrap();
    let mut before = connection.channel().unwrap();
    let passive = DeclareQueue { passive: true, ..Default::default() };
    before.declare_queue("none", passive).unwrap_err();
    let mut after = connection.channel().unwrap();
    assert_eq!(before.number(), after.number());
    after.declare_queue("q", DeclareQueue::default()).unwrap();
    after.confirm_select(10).unwrap();
    let publication = Publication { routing_key: "q", body: b"m", ..Default::default() };
    for fault in [
        before.publish(&publication).unwrap_err(),
        before.get("q", true).unwrap_err(),
        before.ack(1, false).unwrap_err(),
        before.wait_settled().unwrap_err(),
    ] {
        let ChannelFault::Refused(why) = fault else { panic!("{fault}") };
        assert_eq!(why.code, 404, "it knows why it was closed");
    }
    publish(&mut after, "q", b"m");
    assert_eq!((before.unconfirmed(), after.unconfirmed()), (0, 1));
    after.wait_settled().unwrap();
    assert!(before.take_settled().is_empty());
    assert_eq!(after.take_settled().len(), 1);
    before.close().unwrap_err();
    assert!(after.get("q", true).unwrap().is_some());
    connection.close().unwrap();
    server.stop().unwrap();
}

#[test]
fn headers_longer_than_a_frame_are_refused_and_the_channel_goes_on() {
    let (server, uri) = serve();
    let connection = Connection::open(&uri).unwrap();
    let mut channel = connection.channel().unwrap();
    channel.declare_queue("q", DeclareQueue::default()).unwrap();
    let long = "x".repeat(200_000);
    let headers = TableBuf::new().with("long", Value::LongStr(long.as_bytes()));
    let properties = Properties { headers: Some(headers.as_table()), ..Default::default() };
    let publication = Publication { routing_key: "q", properties, ..Default::default() };
    let fault = channel.publish(&publication).unwrap_err();
    assert!(matches!(fault, ChannelFault::PropertiesTooLong { .. }), "{fault}");
    publish(&mut channel, "q", b"m");
    assert!(channel.get("q", true).unwrap().is_some());
    server.stop().unwrap();
}

/// Somebody else's request read that it was closed.
#[test]
fn a_channel_that_is_over_has_not_settled_what_it_published() {
    let (server, uri) = serve();
    let connection = Connection::open(&uri).unwrap();
    let (mut publisher, mut other) = (connection.channel().unwrap(), connection.channel().unwrap());
    publisher.confirm_select(10).unwrap();
    let publication = Publication { exchange: "absent", body: b"lost", ..Default::default() };
    publisher.publish(&publication).unwrap();
    publisher.flush().unwrap();
    other.declare_queue("present", DeclareQueue::default()).unwrap();
    let fault = publisher.wait_settled_for(Duration::from_secs(10)).unwrap_err();
    let ChannelFault::Refused(refusal) = fault else { panic!("{fault}") };
    assert_eq!(refusal.code, 404);
    connection.close().unwrap();
    server.stop().unwrap();
}

#[test]
fn a_patience_without_an_end_is_none() {
    let (server, uri) = serve();
    let connection = Connection::open(&uri).unwrap();
    let mut channel = connection.channel().unwrap();
    channel.declare_queue("q", DeclareQueue::default()).unwrap();
    let mut consumer = channel.consume("q", ConsumeOptions::default()).unwrap();
    channel.confirm_select(2).unwrap();
    publish(&mut channel, "q", b"m");
    let message = consumer.next_message(Some(Duration::MAX)).unwrap().expect("it waits for it");
    assert_eq!(message.body(), b"m");
    publish(&mut channel, "q", b"n");
    assert_eq!(channel.wait_settled_for(Duration::MAX), Ok(true));
    connection.close().unwrap();
    server.stop().unwrap();
}

#[test]
fn what_is_not_acked_comes_again() {
    let (server, uri) = serve();
    let connection = Connection::open(&uri).unwrap();
    let mut channel = connection.channel().unwrap();
    channel.declare_queue("q", DeclareQueue::default()).unwrap();
    publish(&mut channel, "q", b"again");
    let mut consumer = channel.consume("q", ConsumeOptions::default()).unwrap();
    let message = consumer.next().unwrap().unwrap();
    consumer.nack(&message, false, true).unwrap();
    let message = consumer.next().unwrap().unwrap();
    assert!(message.redelivered());
    connection.close().unwrap();
    assert_eq!(
        consumer.next().unwrap().unwrap_err(),
        ConsumeError::Channel(ChannelFault::Lost(Lost::ClosedByUs))
    );
    assert!(consumer.next().is_none());

    let connection = Connection::open(&uri).unwrap();
    let mut channel = connection.channel().unwrap();
    let (message, _) = channel.get("q", true).unwrap().unwrap();
    assert!(message.redelivered());
    assert_eq!(message.body(), b"again");
    connection.close().unwrap();
    server.stop().unwrap();
}

#[test]
fn a_consumer_hears_that_its_queue_is_gone() {
    let (server, uri) = serve();
    let connection = Connection::open(&uri).unwrap();
    let mut channel = connection.channel().unwrap();
    channel.declare_queue("q", DeclareQueue::default()).unwrap();
    let mut consumer = channel.consume("q", ConsumeOptions::default()).unwrap();
    assert_eq!(consumer.next_message(Some(Duration::from_millis(1))), Ok(None));
    channel.delete_queue("q").unwrap();
    assert_eq!(consumer.next().unwrap().unwrap_err(), ConsumeError::Cancelled);
    connection.close().unwrap();
    server.stop().unwrap();
}

#[test]
fn a_bad_login_is_refused_in_words_without_the_password() {
    let (server, uri) = serve();
    let bad = uri.replace("guest:guest", "guest:sesame");
    let OpenError::Refused(refusal) = Connection::open(&bad).unwrap_err() else {
        panic!("a refusal was expected")
    };
    assert_eq!(refusal.code, 403);
    server.stop().unwrap();

    let error = Connection::open(&uri).unwrap_err();
    assert!(matches!(error, OpenError::NotConnected { .. }), "{error}");
    let error = Connection::open("amqp://guest:sesame@host:port/").unwrap_err();
    assert!(!error.to_string().contains("sesame"), "{error}");
    let error = Connection::open("amqps://localhost?cacertfile=nowhere.pem").unwrap_err();
    assert!(error.to_string().contains("nowhere.pem"), "{error}");
}

#[test]
fn a_broker_that_stops_says_so() {
    let (server, uri) = serve();
    let connection = Connection::open(&uri).unwrap();
    let mut channel = connection.channel().unwrap();
    channel.declare_queue("q", DeclareQueue::default()).unwrap();
    let mut consumer = channel.consume("q", ConsumeOptions::default()).unwrap();
    server.request_stop();
    let error = consumer.next().unwrap().unwrap_err();
    let ConsumeError::Channel(ChannelFault::Lost(Lost::Closed(refusal))) = error else {
        panic!("{error}")
    };
    assert_eq!(refusal.code, 320);
    server.wait().unwrap();
}

#[test]
fn a_channel_is_closed_with_the_last_of_its_handles() {
    let (_server, uri) = serve();
    let connection = Connection::open(&uri).unwrap();
    let mut other = connection.channel().unwrap();
    other.declare_queue("q", DeclareQueue::default()).unwrap();
    publish(&mut other, "q", b"m");
    let mut channel = connection.channel().unwrap();
    let mut consumer = channel.consume("q", ConsumeOptions::default()).unwrap();
    drop(channel);
    let message = consumer.next().unwrap().unwrap();
    assert!(!message.redelivered());
    drop(consumer);
    // Not acknowledged, it is in its queue again, and the number is free.
    let (message, _) = other.get("q", true).unwrap().expect("it is back");
    assert!(message.redelivered());
    for _ in 0..5_000 {
        connection.channel().unwrap();
    }
}

#[test]
fn a_consumer_that_was_cancelled_says_so() {
    let (_server, uri) = serve();
    let connection = Connection::open(&uri).unwrap();
    let mut channel = connection.channel().unwrap();
    channel.declare_queue("q", DeclareQueue::default()).unwrap();
    let mut consumer = channel.consume("q", ConsumeOptions::default()).unwrap();
    consumer.cancel().unwrap();
    assert_eq!(consumer.next(), Some(Err(ConsumeError::Cancelled)));
    let options = ConsumeOptions { tag: "t".to_owned(), ..Default::default() };
    channel.consume("q", options.clone()).unwrap().cancel().unwrap();
    let mut again = channel.consume("q", options).unwrap();
    publish(&mut channel, "q", b"m");
    assert_eq!(again.next().unwrap().unwrap().body(), b"m");
}
