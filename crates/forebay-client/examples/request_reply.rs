//! Asks a question and answers it, in one program.
//!
//! `cargo run -p forebay-client --example request_reply -- amqp://localhost`

use std::time::Duration;

use forebay_client::{Connection, Queue, Route, Topology};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let uri = std::env::args().nth(1).unwrap_or_else(|| "amqp://localhost".into());
    let connection = Connection::open(&uri).await?;
    connection.declare(Topology::new().queue(Queue::durable("double"))).await?;

    let mut requests = connection.consumer("double").build().await?;
    // Whoever asked may be gone by the time of the answer, and that is no error.
    let answers = connection.publisher(Route::queue("")).allow_unroutable().build().await?;
    tokio::spawn(async move {
        while let Ok(Some(request)) = requests.next().await {
            let text = String::from_utf8_lossy(request.body()).into_owned();
            if let Some(answer) = request.reply(text.repeat(2))
                && let Ok(outcome) = answers.publish(answer).await
            {
                request.ack();
                drop(outcome.await);
            }
        }
    });

    let caller = connection.caller();
    let reply = caller.call(Duration::from_secs(5), &Route::queue("double"), "ha").await?;
    println!("{}", String::from_utf8_lossy(reply.body()));
    Ok(())
}
