//! Declaring, purging, deleting.

use forebay::{ChannelFault, DeclareQueue, Queue, Topology};

use super::{Saw, confirmed, expect, ready, until_ready, with_queue};
use crate::engine::{Engine, Failure};

pub(super) async fn declaring_again_changes_nothing(
    engine: &Engine,
    _saw: &mut Saw,
) -> Result<(), Failure> {
    let (connection, publisher) = with_queue(engine, "again").await?;
    confirmed(&publisher, "x").await?;
    connection.declare(Topology::new().queue(engine.queue("again"))).await?;
    engine.connect().await?.declare(Topology::new().queue(engine.queue("again"))).await?;
    until_ready(&connection, "again", 1).await
}

pub(super) async fn other_arguments_are_refused(
    engine: &Engine,
    _saw: &mut Saw,
) -> Result<(), Failure> {
    let (connection, _publisher) = with_queue(engine, "fixed").await?;
    match connection.declare(Topology::new().queue(Queue::transient("fixed"))).await {
        Err(error) => match error.fault {
            ChannelFault::Refused(refusal) if refusal.code == 406 => {}
            other => return Err(format!("refused otherwise: {other}").into()),
        },
        Ok(()) => return Err("it was taken".into()),
    }
    ready(&connection, "fixed").await.map(drop)
}

pub(super) async fn purging_and_deleting_count(
    engine: &Engine,
    _saw: &mut Saw,
) -> Result<(), Failure> {
    let (connection, publisher) = with_queue(engine, "counted").await?;
    let channel = connection.channel().await?;
    for _ in 0..5 {
        confirmed(&publisher, "x").await?;
    }
    until_ready(&connection, "counted", 5).await?;
    let purged = channel.purge_queue("counted").await?;
    expect(purged == 5, || format!("{purged} were purged"))?;
    for _ in 0..2 {
        confirmed(&publisher, "x").await?;
    }
    until_ready(&connection, "counted", 2).await?;
    let deleted = channel.delete_queue("counted", false, false).await?;
    expect(deleted == 2, || format!("{deleted} were deleted"))
}

pub(super) async fn a_queue_may_be_named_by_the_broker(
    engine: &Engine,
    saw: &mut Saw,
) -> Result<(), Failure> {
    let connection = engine.connect().await?;
    let channel = connection.channel().await?;
    let exclusive = DeclareQueue { exclusive: true, ..DeclareQueue::default() };
    let name = channel.declare_queue("", exclusive).await?.name;
    expect(!name.is_empty(), || "it has no name".to_owned())?;
    saw.note("names given by the broker begin with", &name[..name.len().min(8)]);
    let watcher = engine.connect().await?;
    connection.close().await?;
    // Until the broker has noticed that the connection is gone, the queue is locked; then it is missing.
    loop {
        match ready(&watcher, &name).await {
            Err(gone) if gone.to_string().contains("404") => return Ok(()),
            Err(locked) if locked.to_string().contains("405") => {}
            other => return Err(format!("it is still there: {other:?}").into()),
        }
    }
}
