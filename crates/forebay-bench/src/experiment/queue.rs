//! A queue for an experiment: new and empty, deleted afterwards.

use forebay_client::{Connection, DeclareQueue};
use forebay_wire::{TableBuf, Value};

use super::{Place, told};

/// Declares a durable queue anew; `name` is what [`Place::queue`] makes its name of.
pub(super) async fn fresh(
    connection: &Connection,
    place: &Place,
    name: &str,
) -> Result<(), String> {
    place.goes_on()?;
    delete(connection, place, name).await?;
    let channel = connection.channel().await.map_err(told)?;
    let mut arguments = TableBuf::new();
    if let Some(kind) = &place.queue_type {
        arguments.push("x-queue-type", Value::LongStr(kind.as_bytes()));
    }
    let how = DeclareQueue { durable: true, arguments, ..DeclareQueue::default() };
    channel.declare_queue(&place.queue(name), how).await.map(drop).map_err(told)
}

/// Deletes it with all that is in it.
pub(super) async fn delete(
    connection: &Connection,
    place: &Place,
    name: &str,
) -> Result<(), String> {
    let channel = connection.channel().await.map_err(told)?;
    channel.delete_queue(&place.queue(name), false, false).await.map(drop).map_err(told)
}
