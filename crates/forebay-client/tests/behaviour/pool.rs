//! Publishers over sockets of which each is narrow: the client opens more by itself.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::rig::{Broker, declare, depth, soon};
use forebay_client::{
    ByteStream, Connection, Happening, Message, Options, Queue, Route, Topology, Window,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{broadcast, watch};

/// Bytes a stream carries to the broker in 10 ms.
const NARROW_BYTES: usize = 8000;

/// Streams to the broker, each narrow, until they are cut.
struct Narrow {
    address: String,
    cut: watch::Sender<u32>,
}

impl Narrow {
    async fn stream(self: Arc<Self>) -> io::Result<Box<dyn ByteStream>> {
        let broker = TcpStream::connect(&self.address).await?;
        let (ours, theirs) = tokio::io::duplex(8192);
        let mut cut = self.cut.subscribe();
        tokio::spawn(async move {
            let (mut from_broker, mut to_broker) = broker.into_split();
            let (mut from_client, mut to_client) = tokio::io::split(theirs);
            let up = async {
                let mut bytes = vec![0; NARROW_BYTES];
                let mut turns = tokio::time::interval(Duration::from_millis(10));
                loop {
                    turns.tick().await;
                    match from_client.read(&mut bytes).await {
                        Ok(count) if count > 0 => to_broker.write_all(&bytes[..count]).await?,
                        _ => return io::Result::Ok(()),
                    }
                }
            };
            tokio::select! {
                _ = up => {}
                _ = tokio::io::copy(&mut from_broker, &mut to_client) => {}
                _ = cut.changed() => {}
            }
        });
        Ok(Box::new(ours))
    }
}

async fn connect(broker: &Broker) -> (Connection, Arc<Narrow>) {
    let narrow = Arc::new(Narrow { address: broker.address(), cut: watch::Sender::new(0) });
    let streams = narrow.clone();
    let builder = Connection::builder().connections_max(3);
    let opening = builder.over("narrow", Options::default(), move || streams.clone().stream());
    (opening.await.unwrap(), narrow)
}

async fn grown(happenings: &mut broadcast::Receiver<Happening>) {
    loop {
        if let Happening::PublishingOver { connections: 2.. } = happenings.recv().await.unwrap() {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_sockets_open_where_one_is_narrow_and_a_cut_loses_nothing() {
    let broker = Broker::start();
    let (connection, narrow) = connect(&broker).await;
    let queues: Vec<String> = (0..4).map(|number| format!("queue {number}")).collect();
    let topology =
        queues.iter().fold(Topology::new(), |all, queue| all.queue(Queue::durable(queue)));
    connection.declare(topology).await.unwrap();
    let mut happenings = connection.happenings();
    let (stop, stopped) = watch::channel(false);
    let mut tasks = Vec::new();
    for queue in &queues {
        let builder = connection.publisher(Route::queue(queue)).window(Window::fixed(20));
        let publisher = builder.build().await.unwrap();
        let stopped = stopped.clone();
        tasks.push(tokio::spawn(async move {
            let mut outcomes = Vec::new();
            while !*stopped.borrow() {
                let number = outcomes.len() as u32;
                let mut body = number.to_be_bytes().to_vec();
                body.resize(500, 0);
                outcomes.push(publisher.publish(Message::new(body)).await.unwrap());
            }
            let count = outcomes.len() as u32;
            for outcome in outcomes {
                outcome.await.unwrap();
            }
            count
        }));
    }
    soon("a second socket", grown(&mut happenings)).await;
    assert!(connection.publishing_metrics().len() > 1);
    narrow.cut.send_modify(|cuts| *cuts += 1);
    soon("the first loss", async {
        while !matches!(happenings.recv().await.unwrap(), Happening::Connected { .. }) {}
    })
    .await;
    stop.send(true).unwrap();
    let reader = broker.connect().await;
    let channel = reader.channel().await.unwrap();
    for (queue, task) in queues.iter().zip(tasks) {
        let count = soon("all outcomes", task).await.unwrap();
        let mut numbers = Vec::new();
        while let Some((message, _)) = channel.get(queue, true).await.unwrap() {
            numbers.push(u32::from_be_bytes(message.body()[..4].try_into().unwrap()));
        }
        assert_eq!(numbers, (0..count).collect::<Vec<_>>(), "in order, each once");
    }
}

#[tokio::test]
async fn one_publisher_stays_on_one_socket_and_closing_ends_it() {
    let broker = Broker::start();
    let (connection, _narrow) = connect(&broker).await;
    declare(&connection, "orders").await;
    let publisher = connection.publisher(Route::queue("orders")).build().await.unwrap();
    for number in 0..100_u32 {
        drop(publisher.publish(number.to_be_bytes().to_vec()).await.unwrap());
    }
    publisher.idle().await;
    assert_eq!(depth(&connection, "orders").await, 100);
    assert_eq!(connection.publishing_metrics().len(), 1);
    let other = connection.clone();
    connection.close().await.unwrap();
    assert!(other.publisher(Route::queue("orders")).build().await.is_err());
    assert_eq!(other.publishing_metrics().len(), 0);
}
