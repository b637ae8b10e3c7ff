//! A pipeline over a queue, and its test, which needs no broker.
//!
//! `cargo run -p forebay --example pipeline`, `cargo test -p forebay --example pipeline`

use std::time::Duration;

use forebay::pipeline::{Item, Outcome, Pipeline, Queues};
use forebay::{Broker, Queue, Received, Route, Topology};

/// The work on one message. An error is this message's failure; the others go on.
async fn greet(name: Item<Received>) -> Result<(), std::str::Utf8Error> {
    println!("hello, {}", std::str::from_utf8(name.body())?);
    Ok(()) // now it is acknowledged
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let broker = Broker::in_memory()?;
    let connection = broker.connect().await?; // or Connection::open("amqp://localhost")
    connection.declare(Topology::new().queue(Queue::durable("names"))).await?;
    let names = connection.publisher(Route::queue("names")).build().await?;
    for name in ["Ada", "Bo", "Cy"] {
        names.publish(name).await?.await?;
    }

    let running = Pipeline::from(connection.source("names"))
        .process(25, greet)
        .on_failure(Outcome::Reject) // nonsense is of no use later; unless set, what fails goes back to its queue
        .start();
    let control = running.control();
    while control.report().settled() < 3 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    control.drain(Duration::from_secs(30)); // takes no more, finishes what it has
    println!("{:?}", running.join().await?);
    connection.close().await?; // with it the last acknowledgements leave
    broker.close()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::greet;
    use forebay::pipeline::{Pipeline, Verdict, source};
    use forebay::{Message, Received};

    #[tokio::test]
    async fn names_are_greeted_and_nonsense_goes_back() {
        let (messages, source) = source::test();
        let _running = Pipeline::from(source).process(25, greet).start();
        let name = Received::from(Message::from("Ada"));
        let nonsense = Received::from(Message::new(vec![0xff]));
        assert_eq!(messages.send(name).await, Verdict::Ack);
        assert_eq!(messages.send(nonsense).await, Verdict::Requeue);
    }
}
