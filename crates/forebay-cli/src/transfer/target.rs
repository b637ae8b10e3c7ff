//! Where the messages go.

use forebay_client::{
    ChannelFault, Connection, DeclareExchange, DeclareQueue, Delivery, Message, NotPublished,
    Outcome, Publisher, Route,
};
use forebay_wire::Value;

use super::{Args, RECOVERY_ROUNDS, opening};
use crate::exit::{Exit, Failure};
use crate::happening::Happenings;

/// A publisher to an exchange or queue that exists.
pub(super) struct Target {
    connection: Connection,
    publisher: Publisher,
    /// Messages keep their routing keys.
    keeps_key: bool,
    /// A message that names it would come back to the source.
    circling_queue: Option<String>,
}

impl Target {
    pub(super) async fn open(args: &Args) -> Result<Target, Failure> {
        let builder =
            Connection::builder().name("forebay move, target").recovery_rounds(RECOVERY_ROUNDS);
        let connection =
            builder.open(&args.to).await.map_err(|error| opening("the target", "--to", &error))?;
        match Target::on(&connection, args).await {
            Ok(publisher) => {
                let keeps_key = args.exchange.is_some() && args.routing_key.is_none();
                let circling_queue = args.circling_queue();
                Ok(Target { connection, publisher, keeps_key, circling_queue })
            }
            Err(fault) => {
                let hint = match &fault {
                    ChannelFault::Refused(refusal) if refusal.code == 404 => {
                        "; declare it there first, for instance with forebay definitions import"
                    }
                    _ => "",
                };
                Err(Failure(Exit::Failed, format!("the target (--to): {fault}{hint}")))
            }
        }
    }

    async fn on(connection: &Connection, args: &Args) -> Result<Publisher, ChannelFault> {
        let channel = connection.channel().await?;
        let route = match &args.exchange {
            Some(exchange) => {
                if !exchange.is_empty() {
                    let passive = DeclareExchange { passive: true, ..Default::default() };
                    channel.declare_exchange(exchange, "direct", passive).await?;
                }
                Route::exchange(exchange, args.routing_key.as_deref().unwrap_or_default())
            }
            None => {
                let queue = args.to_queue.as_deref().unwrap_or(&args.queue);
                let passive = DeclareQueue { passive: true, ..Default::default() };
                channel.declare_queue(queue, passive).await?;
                Route::queue(queue)
            }
        };
        connection.publisher(route).build().await
    }

    pub(super) fn happenings(&self) -> Happenings {
        Happenings::of(&self.connection)
    }

    /// Publishes a message as it is, marked if it may have been moved before.
    pub(super) async fn publish(&self, delivery: &Delivery) -> Result<Outcome, String> {
        if let Some(circle) = self.circle(delivery) {
            return Err(circle);
        }
        let mut message = Message::forward(delivery);
        if self.keeps_key {
            let key = std::str::from_utf8(delivery.routing_key()).map_err(|_| {
                "its routing key is not UTF-8; give one for all with --routing-key".to_owned()
            })?;
            message = message.routing_key(key);
        }
        if delivery.redelivered() {
            message = message.marked();
        }
        self.publisher.publish(message).await.map_err(|NotPublished { reason, message }| {
            NotPublished { reason, message }.to_string()
        })
    }

    /// Why a message would come back to where it was taken from, if it would.
    fn circle(&self, delivery: &Delivery) -> Option<String> {
        let queue = self.circling_queue.as_deref()?;
        if self.keeps_key && delivery.routing_key() == queue.as_bytes() {
            return Some(format!(
                "a message's own routing key is `{queue}`, the queue it was taken from, to which the default \
                 exchange would bring it back; give a key for all with --routing-key, or name a queue with \
                 --to-queue"
            ));
        }
        let Some(Value::Array(keys)) = delivery.properties().headers?.get("CC") else {
            return None;
        };
        let comes_back = keys.iter().any(|key| key == Value::LongStr(queue.as_bytes()));
        comes_back.then(|| {
            format!(
                "a message's header CC names `{queue}`, the queue it was taken from, to which the default exchange \
                 would bring it back; name another exchange with --exchange"
            )
        })
    }

    /// Why it takes no publishes at the moment, if it does not.
    pub(super) fn blocked(&self) -> Option<String> {
        self.connection.blocked()
    }

    pub(super) async fn close(self) {
        drop(self.publisher);
        // If it is gone already, every outcome has said so.
        let _ = self.connection.close().await;
    }
}
