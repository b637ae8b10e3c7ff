//! A first program: it cannot lose a message without being told.
//!
//! `cargo run -p forebay-client --example publish_safely -- amqp://localhost`

use forebay_client::{Connection, Queue, Route, Topology};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let uri = std::env::args().nth(1).unwrap_or_else(|| "amqp://localhost".into());
    let connection = Connection::open(&uri).await?;
    connection.declare(Topology::new().queue(Queue::durable("orders"))).await?;
    let orders = connection.publisher(Route::queue("orders")).build().await?;
    orders.publish("one").await?.await?; // first await: there was room; second: it is on disk
    connection.close().await?; // fails if a message is not confirmed and no outcome was awaited that said so
    Ok(())
}
