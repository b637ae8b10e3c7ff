//! Who a broker takes us for.
//!
//! RabbitMQ confirms a message with a user-id only if that is the name of the connection's user, and refuses any other: so
//! two messages tell who is logged in.

use forebay::{Connection, Message, Queue, Route, Topology, Unconfirmed, UnknownReason};

use crate::Tried;
use crate::engine::Failure;

/// A login that should succeed.
#[derive(clap::Args)]
pub(crate) struct Login {
    /// The broker, and how to log in there
    #[arg(long)]
    uri: String,
    /// Who we should be then
    #[arg(long)]
    user: String,
    /// What the login is called in the name of the case
    #[arg(long)]
    name: String,
}

impl Login {
    /// Logs in.
    pub(crate) async fn run(&self) -> Tried {
        let outcome = self.attempt().await.map(|()| Vec::new());
        Tried {
            case: format!("login.{}", self.name),
            promise: format!("the broker takes the connection for {}", self.user),
            outcome: outcome.map_err(|failure| failure.to_string()),
        }
    }

    async fn attempt(&self) -> Result<(), Failure> {
        let connection = Connection::open(&self.uri).await?;
        let queue = format!("login.{}", self.name);
        connection.declare(Topology::new().queue(Queue::durable(&queue))).await?;
        let publisher = connection.publisher(Route::queue(&queue)).build().await?;
        publisher.publish(Message::new("mine").user_id(&self.user)).await?.await?;
        match publisher.publish(Message::new("not mine").user_id("somebody else")).await?.await {
            Err(Unconfirmed::Unknown(UnknownReason::ChannelClosed(refusal)))
                if refusal.code == 406 => {}
            other => return Err(format!("in another's name: {other:?}").into()),
        }
        let mut consumer = connection.consumer(&queue).build().await?;
        let delivery = consumer.next().await?.ok_or("the consumer ended")?;
        if delivery.body() != b"mine" {
            return Err("another message came".into());
        }
        delivery.ack();
        connection.close().await?;
        Ok(())
    }
}
