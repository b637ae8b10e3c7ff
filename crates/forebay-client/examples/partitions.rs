//! One queue in four parts: the orders of a customer stay in order, those of different customers go side by side.
//!
//! `cargo run -p forebay-client --example partitions -- amqp://localhost`
//!
//! RabbitMQ needs its plug-in `rabbitmq_consistent_hash_exchange` for this; `Partitions::new` needs nothing.

use forebay_client::{Connection, Partitions, Queue};

const CUSTOMERS: usize = 20;
const ORDERS: usize = 10;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let uri = std::env::args().nth(1).unwrap_or_else(|| "amqp://localhost".into());
    let connection = Connection::open(&uri).await?;
    let orders = Partitions::by_exchange("orders", 4);
    connection.declare(orders.topology(Queue::durable)).await?; // on a cluster: Queue::quorum

    let (done, mut finished) = tokio::sync::mpsc::channel(100);
    for part in 0..orders.count() {
        // One task for each part here; programs on several machines may each take some of them.
        let mut jobs = connection.consumer(orders.queue(part)).build().await?;
        let done = done.clone();
        tokio::spawn(async move {
            while let Ok(Some(job)) = jobs.next().await {
                let text = String::from_utf8_lossy(job.body()).into_owned();
                job.ack();
                if done.send((part, text)).await.is_err() {
                    return;
                }
            }
        });
    }

    let publisher = connection.publisher(orders.target()).build().await?;
    let mut outcomes = Vec::new();
    for number in 0..ORDERS {
        for customer in 0..CUSTOMERS {
            let order = orders.route(format!("{customer}"), format!("{customer}: order {number}"));
            outcomes.push(publisher.publish(order).await?);
        }
    }
    for outcome in outcomes {
        outcome.await?;
    }
    for _ in 0..CUSTOMERS * ORDERS {
        let (part, order) = finished.recv().await.ok_or("the consumers have ended")?;
        println!("part {part}, customer {order}");
    }
    connection.close().await?;
    Ok(())
}
