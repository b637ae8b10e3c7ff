//! Closing, at moments that only this crate can choose.

use std::time::Duration;

use forebay_server::{Config, Data, Server};
use tokio::time::timeout;

use crate::{Connection, Lost, Queue, Topology};

const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_close_that_is_dropped_ends_the_socket_for_consuming_whoever_has_it_locked() {
    let config = Config {
        data: Data::Memory,
        amqp: vec!["127.0.0.1:0".to_owned()],
        http: None,
        drain_timeout: Duration::from_millis(500),
        ..Config::default()
    };
    let broker = Server::start(config).expect("a broker in memory starts");
    let uri = format!("amqp://guest:guest@{}/%2f", broker.addresses().amqp[0]);
    let connection = Connection::open(&uri).await.expect("guest may log in");
    connection.declare(Topology::new().queue(Queue::durable("q"))).await.unwrap();
    let consumer = connection.consumer("q").build().await.unwrap();
    let shared = connection.shared.clone();
    let locked = shared.consuming.lock().await;
    let guard = locked.clone().expect("a socket for the consumer");
    let closed = timeout(Duration::ZERO, connection.close()).await;
    assert!(closed.is_err(), "it waits: {closed:?}");
    drop(locked);
    let over = async {
        loop {
            match guard.link.with(|session| session.over().cloned()) {
                Some(lost) => break lost,
                None => tokio::task::yield_now().await,
            }
        }
    };
    assert_eq!(timeout(PATIENCE, over).await.expect("it ends"), Lost::ClosedByUs);
    drop(consumer);
}
