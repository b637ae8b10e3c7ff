//! Work that takes longer than a broker waits for its ack.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use forebay::{ByteStream, Connection, Consumer, Options};
use forebay_wire::Value;
use tokio::net::TcpStream;

use super::{Saw, confirmed, expect, until_ready, with_queue};
use crate::engine::{Engine, Failure};

const QUEUE: &str = "long work";
/// The shortest that the broker looks for.
const TIMEOUT_MS: i32 = 1000;
/// Several timeouts, and what their looks may add.
const WORK: Duration = Duration::from_secs(5);

/// Asked of brokers that grant leases. RabbitMQ looks for late acks once a minute, and its timeout is known.
pub(super) async fn leases_last_as_long_as_the_program(
    engine: &Engine,
    saw: &mut Saw,
) -> Result<(), Failure> {
    let (connection, publisher) = with_queue(engine, QUEUE).await?;
    if !connection.server().can("forebay.leases") {
        return Ok(());
    }
    confirmed(&publisher, "job").await?;
    let mut worker = worker(&connection).await?;
    let job = worker.next().await?.ok_or("the consumer ended")?;
    expect(!job.redelivered(), || "it comes a second time".to_owned())?;
    tokio::time::sleep(WORK).await; // the work
    let settled = job.ack().in_time();
    expect(settled.is_ok(), || format!("the ack is {settled:?}"))?;
    until_ready(&connection, QUEUE, 0).await?;
    worker.stop();

    let (address, options) = engine.listening()?;
    confirmed(&publisher, "job").await?;
    let (taken, is_taken) = tokio::sync::oneshot::channel();
    let (thaw, frozen) = mpsc::sync_channel::<()>(0);
    let freezer = thread::spawn(move || freeze(address, options, taken, &frozen));
    is_taken.await?;
    let mut other = self::worker(&connection).await?;
    let job = other.next().await?.ok_or("the consumer ended")?;
    expect(job.redelivered(), || "the frozen worker's job is another one".to_owned())?;
    job.ack();
    drop(thaw);
    // Its connection ends with it, for which this runtime's threads may be needed.
    let ended = tokio::task::spawn_blocking(move || freezer.join()).await?;
    ended.map_err(|_| "the frozen worker panicked")??;
    saw.note("work may last beyond the ack timeout while its program lives", "yes");
    Ok(())
}

async fn worker(connection: &Connection) -> Result<Consumer, Failure> {
    let builder = connection.consumer(QUEUE);
    Ok(builder.argument("x-consumer-timeout", Value::I32(TIMEOUT_MS)).build().await?)
}

/// A program that takes one job and then does not even answer its broker.
fn freeze(
    address: (String, u16),
    options: Options,
    taken: tokio::sync::oneshot::Sender<()>,
    frozen: &mpsc::Receiver<()>,
) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let make = move || {
            let address = address.clone();
            async move { Ok(Box::new(TcpStream::connect(address).await?) as Box<dyn ByteStream>) }
        };
        let connection = Connection::builder().over("a frozen worker", options, make).await?;
        let mut worker = worker(&connection).await?;
        let job = worker.next().await?.ok_or("the consumer ended")?;
        let _ = taken.send(());
        // The whole runtime stands still in here, until the other end is dropped.
        let _ = frozen.recv();
        drop(job);
        Ok(())
    })
}
