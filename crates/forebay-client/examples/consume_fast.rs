//! Ten workers on one queue; how many messages wait in the client follows from how long the work takes.
//!
//! `cargo run -p forebay-client --example consume_fast -- amqp://localhost orders`

use std::sync::Arc;

use forebay_client::{Connection, Delivery};
use tokio::sync::Semaphore;

const WORKERS: u16 = 10;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let uri = arguments.next().unwrap_or_else(|| "amqp://localhost".into());
    let queue = arguments.next().unwrap_or_else(|| "orders".into());
    let connection = Connection::open(&uri).await?;
    let mut jobs = connection.consumer(queue).workers(WORKERS).build().await?;
    let idle = Arc::new(Semaphore::new(usize::from(WORKERS)));
    loop {
        // Asking for a message says that a worker is free, so first there is one.
        let worker = idle.clone().acquire_owned().await?;
        let Some(job) = jobs.next().await? else { return Ok(()) };
        tokio::spawn(async move {
            match work(&job) {
                Ok(()) => job.ack(),
                Err(error) => {
                    eprintln!("{error}");
                    job.reject() // dropped, or to the dead-letter exchange
                }
            };
            drop(worker);
        });
    }
}

fn work(job: &Delivery) -> Result<(), std::str::Utf8Error> {
    println!("{}", std::str::from_utf8(job.body())?);
    Ok(())
}
