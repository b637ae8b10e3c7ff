//! A broker of this house on a free port, and patience.

pub(crate) mod peer;

use std::future::Future;
use std::time::Duration;

use forebay_client::{Connection, Publisher, Queue, Route, Topology};
use forebay_server::{Config, Data, Server};

/// Longer than anything here takes; a test that waits so long has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Broker {
    server: Server,
}

impl Broker {
    pub(crate) fn start() -> Broker {
        Broker::start_at("127.0.0.1:0")
    }

    pub(crate) fn start_at(address: &str) -> Broker {
        let config = Config {
            data: Data::Memory,
            amqp: vec![address.to_owned()],
            http: None,
            drain_timeout: Duration::from_millis(500),
            ..Config::default()
        };
        Broker { server: Server::start(config).expect("a broker in memory starts") }
    }

    pub(crate) fn address(&self) -> String {
        self.server.addresses().amqp[0].to_string()
    }

    pub(crate) fn uri(&self) -> String {
        format!("amqp://guest:guest@{}/%2f", self.address())
    }

    pub(crate) fn stop(self) {
        self.server.stop().unwrap();
    }

    pub(crate) async fn connect(&self) -> Connection {
        Connection::open(&self.uri()).await.expect("guest may log in")
    }
}

/// A connection with one durable queue, and a publisher on it.
pub(crate) async fn with_queue(broker: &Broker, queue: &str) -> (Connection, Publisher) {
    let connection = broker.connect().await;
    declare(&connection, queue).await;
    let publisher = connection.publisher(Route::queue(queue)).build().await.unwrap();
    (connection, publisher)
}

pub(crate) async fn declare(connection: &Connection, queue: &str) {
    connection.declare(Topology::new().queue(Queue::durable(queue))).await.unwrap();
}

/// Messages ready in a queue.
pub(crate) async fn depth(connection: &Connection, queue: &str) -> u32 {
    let channel = connection.channel().await.unwrap();
    let passive = forebay_client::DeclareQueue { passive: true, ..Default::default() };
    channel.declare_queue(queue, passive).await.unwrap().message_count
}

/// Fails instead of waiting for ever.
pub(crate) async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(output) => output,
        Err(_) => panic!("never happened: {what}"),
    }
}
