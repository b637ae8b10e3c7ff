//! The embedded broker, as a program would use it.

use forebay::blocking::DeclareQueue;
use forebay::blocking::{Connection, ConsumeOptions, Publication};
use forebay::{Broker, Options, Queue, Route, Topology, UserSetting};
use std::path::PathBuf;
use std::time::Duration;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        Dir(std::env::temp_dir().join(format!("forebay-embedded-{name}-{}", std::process::id())))
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn publication(body: &[u8]) -> Publication<'_> {
    let properties = forebay_wire::Properties { delivery_mode: Some(2), ..Default::default() };
    Publication { routing_key: "q", properties, body, ..Default::default() }
}

#[test]
fn confirmed_messages_are_there_when_the_store_is_opened_again() {
    let dir = Dir::new("again");
    let broker = Broker::open(&dir.0).unwrap();
    let connection = broker.connect_blocking().unwrap();
    let mut channel = connection.channel().unwrap();
    channel.declare_queue("q", DeclareQueue { durable: true, ..Default::default() }).unwrap();
    channel.confirm_select(10).unwrap();
    for number in 0..100u8 {
        channel.publish(&publication(&[number])).unwrap();
    }
    channel.wait_settled().unwrap();
    // The connection is still open, and nobody reads from it.
    broker.close().unwrap();
    assert!(channel.get("q", true).is_err());

    let broker = Broker::open(&dir.0).unwrap();
    let mut channel = broker.connect_blocking().unwrap().channel().unwrap();
    for number in 0..100u8 {
        assert_eq!(channel.get("q", true).unwrap().unwrap().0.body(), [number]);
    }
    assert!(channel.get("q", true).unwrap().is_none());
}

#[test]
fn more_than_the_pipes_hold_passes_while_both_sides_wait_for_each_other() {
    let broker = Broker::in_memory().unwrap();
    let connection = broker.connect_blocking().unwrap();
    let mut channel = connection.channel().unwrap();
    channel.declare_queue("q", DeclareQueue::default()).unwrap();
    let no_ack = ConsumeOptions { no_ack: true, ..Default::default() };
    let mut consumer = channel.consume("q", no_ack).unwrap();
    let body = vec![1; 1_000_000];
    // One thread publishes and consumes on one connection: each direction fills up in turn.
    for _ in 0..20 {
        channel.publish(&publication(&body)).unwrap();
    }
    for _ in 0..20 {
        let message = consumer.next_message(Some(PATIENCE)).unwrap().expect("a message");
        assert_eq!(message.body().len(), body.len());
    }
    broker.close().unwrap();
}

#[test]
fn processes_outside_may_join() {
    let broker = Broker::builder()
        .vhost("shop")
        .user(UserSetting::with_password("app", "secret", "shop"))
        .start()
        .unwrap();
    let address = broker.listen("127.0.0.1:0").unwrap();
    let outside = Connection::open(&format!("amqp://app:secret@{address}/shop")).unwrap();
    let mut channel = outside.channel().unwrap();
    channel.declare_queue("q", DeclareQueue::default()).unwrap();
    channel.confirm_select(1).unwrap();
    channel.publish(&publication(b"x")).unwrap();
    channel.wait_settled().unwrap();

    let options = Options {
        username: "app".into(),
        password: "secret".into(),
        vhost: "shop".into(),
        ..Options::default()
    };
    let inside = broker.connect_blocking_with(options).unwrap();
    let (message, _) = inside.channel().unwrap().get("q", true).unwrap().unwrap();
    assert_eq!(message.body(), b"x");
    assert_eq!(broker.status().unwrap().broker.connections, 2);
    assert!(
        broker
            .connect_blocking_with(Options { vhost: "none".into(), ..Options::default() })
            .is_err()
    );
}

#[test]
fn a_directory_serves_one_broker_at_a_time() {
    let dir = Dir::new("once");
    let first = Broker::open(&dir.0).unwrap();
    assert!(Broker::open(&dir.0).unwrap_err().to_string().contains("in use"));
    drop(first);
    Broker::open(&dir.0).unwrap();
}

#[tokio::test]
async fn the_asynchronous_client_needs_no_socket_either() {
    let broker = Broker::in_memory().unwrap();
    let connection = broker.connect().await.unwrap();
    connection.declare(Topology::new().queue(Queue::durable("q"))).await.unwrap();
    let publisher = connection.publisher(Route::queue("q")).build().await.unwrap();
    let mut consumer = connection.consumer("q").build().await.unwrap();
    let body = vec![1; 300_000];
    let published = tokio::spawn(async move {
        for _ in 0..50 {
            drop(publisher.publish(body.clone()).await.unwrap());
        }
        publisher.idle().await;
        publisher.metrics().confirmed
    });
    for _ in 0..50 {
        let next = tokio::time::timeout(PATIENCE, consumer.next()).await.unwrap();
        let delivery = next.unwrap().unwrap();
        assert_eq!(delivery.body().len(), 300_000);
        delivery.ack();
    }
    assert_eq!(published.await.unwrap(), 50);
    broker.close().unwrap();
    let lost = tokio::time::timeout(PATIENCE, consumer.next()).await.unwrap();
    assert!(lost.is_err());
}
