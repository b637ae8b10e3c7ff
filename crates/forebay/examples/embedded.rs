//! A broker inside this process, on disk: publish, confirm, consume, acknowledge.
//!
//! `cargo run -p forebay --example embedded`

use forebay::{Broker, Queue, Route, Topology};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::temp_dir().join(format!("forebay-embedded-{}", std::process::id()));
    let broker = Broker::open(&dir)?;
    let connection = broker.connect().await?; // no socket
    connection.declare(Topology::new().queue(Queue::durable("orders"))).await?;

    let orders = connection.publisher(Route::queue("orders")).build().await?;
    let mut outcomes = Vec::new();
    for number in 1..=10 {
        outcomes.push(orders.publish(format!("order {number}")).await?);
    }
    for outcome in outcomes {
        outcome.await?;
    }
    println!("10 orders are confirmed: they are on disk");

    let mut jobs = connection.consumer("orders").build().await?;
    for _ in 0..10 {
        let Some(order) = jobs.next().await? else { break };
        println!("{}", String::from_utf8_lossy(order.body()));
        order.ack();
    }

    connection.close().await?;
    broker.close()?;
    std::fs::remove_dir_all(dir)?;
    Ok(())
}
